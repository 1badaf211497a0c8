"""The address of the server: parses a redis://, rediss:// or unix:// URL, or the name of a service of Sentinels.

    redis://[user:password@]host:port/database
    sentinel://[user:password@]host:port,host:port/service[/database]     user and password are the server's

redis-py parses the URLs and asks the Sentinels, so that the bridge accepts exactly what the Python client accepts.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from holdmq.password import with_password

_SENTINEL = "sentinel://"
_CLIENT_TIMEOUT_S = 5.0

FindPrimary = Callable[[], Awaitable[tuple[str, int]]]


class _FoundElsewhere(Sentinel):
    """Finds the primary by a function, in place of asking Sentinels."""

    def __init__(self, find: FindPrimary) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]
        self._find = find

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """As in redis-py, where a MasterNotFoundError counts as a failed connection."""
        try:
            return await self._find()
        except OSError as error:
            raise MasterNotFoundError(f"{service_name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Target:
    """Address, credentials and database of a server."""

    host: str
    port: int
    path: str | None  # of a Unix socket, in place of host and port
    tls: bool
    username: str | None
    password: str | None
    database: int
    service: str = ""  # a name that `sentinels` know, in place of host and port
    sentinels: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parses a URL.  The password may be in a file (HOLDMQ_PASSWORD_FILE).

        Raises:
            ValueError: it is not a valid URL, or the file cannot be read.
        """
        url = with_password(url)
        if url.startswith(_SENTINEL):
            return cls._parse_sentinel(url)
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
            tls=connection_class is SSLConnection,
            username=options.get("username"),
            password=options.get("password"),
            database=int(options.get("db") or 0),
        )

    @classmethod
    def _parse_sentinel(cls, url: str) -> "Target":
        addresses, _, path = url.removeprefix(_SENTINEL).partition("/")
        credentials, _, hosts = addresses.rpartition("@")
        service, _, database = path.partition("/")
        sentinels = []
        for host in hosts.split(","):
            name, _, port = host.rpartition(":")
            if not name or not port.isdigit():
                raise ValueError(f"server URL: {host!r} stands where host:port of a Sentinel is expected")
            sentinels.append((name.strip("[]"), int(port)))
        if not service or not (database or "0").isdigit():
            raise ValueError(f"server URL: {path!r} stands where service[/database] is expected")
        server = parse_url(f"redis://{credentials}@127.0.0.1") if credentials else {}
        return cls(
            host="",
            port=0,
            path=None,
            tls=False,
            username=server.get("username"),
            password=server.get("password"),
            database=int(database or 0),
            service=service,
            sentinels=tuple(sentinels),
        )

    async def connect(self, factory: Callable[[], asyncio.BufferedProtocol], address: tuple[str, int] | None) -> None:
        """Opens a connection.

        Args:
            factory: makes the protocol.
            address: of the primary, if Sentinels named it; else None.

        Raises:
            OSError: the connection failed.
        """
        loop = asyncio.get_running_loop()
        if self.path is not None:
            await loop.create_unix_connection(factory, self.path)
            return
        host, port = address or (self.host, self.port)
        await loop.create_connection(factory, host, port, ssl=ssl.create_default_context() if self.tls else None)

    def client(self, find: FindPrimary | None = None) -> Redis:
        """An ordinary asyncio client of this server, whose replies are bytes.

        Args:
            find: finds the primary, in place of the Sentinels of the URL.  It may raise OSError.
        """
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "db": self.database,
            "socket_timeout": _CLIENT_TIMEOUT_S,
            "socket_connect_timeout": _CLIENT_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # a subscription that is lost has to be noticed
        }
        if self.sentinels:
            sentinel = _FoundElsewhere(find) if find else Sentinel(self.sentinels, socket_timeout=_CLIENT_TIMEOUT_S)
            found: Redis = sentinel.master_for(self.service, **options)
            return found
        if self.path is not None:
            return Redis(unix_socket_path=self.path, **options)
        return Redis(host=self.host, port=self.port, ssl=self.tls, **options)

    def __str__(self) -> str:
        if self.sentinels:
            return f"{self.service}/{self.database}"
        return self.path if self.path is not None else f"{self.host}:{self.port}/{self.database}"
