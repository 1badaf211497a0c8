"""Where the server is: a redis://, rediss:// or unix:// URL, taken apart once.

redis-py reads the URL, so that the bridge understands exactly what the Python client does.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection, parse_url


@dataclass(frozen=True, slots=True)
class Target:
    """Address, credentials and database of a server."""

    host: str
    port: int
    path: str | None  # of a Unix socket, then host and port do not count
    tls: ssl.SSLContext | None
    username: str | None
    password: str | None
    database: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Takes a URL apart.  Raises ValueError with what was wrong."""
        options: dict[str, Any] = {**parse_url(url)}
        connection_class = options.pop("connection_class", None)
        known = ("host", "port", "path", "username", "password", "db")
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"server URL: unknown option {', '.join(unknown)}; only an address, user and database")
        unix = connection_class is UnixDomainSocketConnection
        return cls(
            host=options.get("host") or "127.0.0.1",
            port=int(options.get("port") or 6379),
            path=options["path"] if unix else None,
            tls=ssl.create_default_context() if connection_class is SSLConnection else None,
            username=options.get("username"),
            password=options.get("password"),
            database=int(options.get("db") or 0),
        )

    async def connect(self, factory: Callable[[], asyncio.BufferedProtocol]) -> None:
        """Opens a connection whose events go to a protocol that `factory` makes.  Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            await loop.create_unix_connection(factory, self.path)
        else:
            await loop.create_connection(factory, self.host, self.port, ssl=self.tls)

    def __str__(self) -> str:
        return self.path if self.path is not None else f"{self.host}:{self.port}/{self.database}"
