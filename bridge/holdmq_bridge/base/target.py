"""The address of the server: parses a redis://, rediss:// or unix:// URL, or the name of a service of Sentinels.

    redis://[user:password@]host:port/database
    sentinel://[user:password@]host:port,host:port/service[/database][?options]     see holdmq/sentinel_url.py

redis-py parses the URLs and asks the Sentinels, so that the bridge accepts exactly what the Python client accepts.

A password from a file (HOLDMQ_PASSWORD_FILE) is read for each connection: it can be changed, at the server and in the
file, while the bridge runs.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from redis import CredentialProvider
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdmq.address import shown_address
from holdmq.password import with_password
from holdmq.sentinel_url import SENTINEL, FindPrimary, SentinelUrl, found_by
from holdmq_bridge.base.logs import Log

_CLIENT_TIMEOUT_S = 5.0
_DATABASE = re.compile(r"/?[0-9]*", re.ASCII)

log = Log("target")


class _FromFile(CredentialProvider):
    """User and password for each connection of a client, as they are then."""

    def __init__(self, target: "Target") -> None:
        self._target = target

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """For AUTH; empty without a password."""
        target = self._target.renewed()
        both = (target.username, target.password)
        return tuple(word for word in both if word is not None)  # type: ignore[return-value] # empty is fine, too

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same."""
        return self.get_credentials()


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
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)  # of clients of Sentinels
    url: str = field(default="", repr=False)  # if the password is that of the file, else empty

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parses a URL.  The password may be in a file (HOLDMQ_PASSWORD_FILE).

        Raises:
            ValueError: it is not a valid URL, or the file cannot be read.
        """
        full = with_password(url)
        parse = cls._parse_sentinel if url.startswith(SENTINEL) else cls._parse_server
        return replace(parse(full), url="" if full == url else url)

    def at(self, address: tuple[str, int]) -> "Target":
        """The same user and password at another address: a node of the cluster that this server belongs to."""
        host, port = address
        return replace(self, host=host, port=port, path=None)

    def renewed(self) -> "Target":
        """The same with the password that the file has now; unchanged if the file cannot be read."""
        try:
            if not self.url:
                return self
            return replace(Target.parse(self.url), host=self.host, port=self.port, path=self.path)
        except ValueError as error:
            log.warning("the former password of the server is used", error=error)
            return self

    @classmethod
    def _parse_server(cls, url: str) -> "Target":
        options: dict[str, Any] = {**parse_url(url)}
        connection_class = options.pop("connection_class", None)
        known = ("host", "port", "path", "username", "password", "db")
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"server URL: unknown option {', '.join(unknown)}; only an address, user and database")
        unix = connection_class is UnixDomainSocketConnection
        path = urlsplit(url).path
        if not unix and not _DATABASE.fullmatch(path):
            raise ValueError(f"server URL: {path!r} is in the place of the number of a database")
        return cls(
            host=_host(options.get("host") or "127.0.0.1"),
            port=int(options.get("port") or 6379),
            path=options["path"] if unix else None,
            tls=connection_class is SSLConnection,
            username=options.get("username"),
            password=options.get("password"),
            database=int(options.get("db") or 0),
        )

    @classmethod
    def _parse_sentinel(cls, url: str) -> "Target":
        named = SentinelUrl.parse(url)
        return cls(
            host="",
            port=0,
            path=None,
            tls=named.tls,
            username=named.username,
            password=named.password,
            database=named.database,
            service=named.service,
            sentinels=tuple((_host(host), port) for host, port in named.sentinels),
            sentinel_options=named.sentinel_options,
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
            find: finds the address for each connection.  It may raise OSError.  Needed if Sentinels name the server.
        """
        options: dict[str, Any] = {
            "db": self.database,
            "socket_timeout": _CLIENT_TIMEOUT_S,
            "socket_connect_timeout": _CLIENT_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # a subscription that is lost has to be noticed
        }
        if self.url:
            options["credential_provider"] = _FromFile(self)
        else:
            options |= {"username": self.username, "password": self.password}
        if find is not None:
            return found_by(find, self.service, ssl=self.tls, **options)
        assert not self.sentinels
        if self.path is not None:
            return Redis(unix_socket_path=self.path, **options)
        return Redis(host=self.host, port=self.port, ssl=self.tls, **options)

    def __str__(self) -> str:
        if self.sentinels:
            return f"{self.service}/{self.database}"
        return self.path if self.path is not None else f"{shown_address((self.host, self.port))}/{self.database}"


def _host(name: str) -> str:
    """The name, if a resolver takes it.

    Raises:
        ValueError: it does not.
    """
    try:
        name.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"server URL: {name!r} is not a host ({error})") from error
    return name
