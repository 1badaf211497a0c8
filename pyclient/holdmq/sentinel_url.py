"""The URL of a service of Sentinels, as the bridge and the command line take it.

The form is `sentinel://[user:password@]host:port,host:port/service[/database][?option=value&...]`. User and password
are the server's. The options are `sentinel_username` and `sentinel_password`, for Sentinels that ask for them, and
`tls=yes`, for Sentinels and servers with TLS.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import redis.asyncio
from redis import Redis, Sentinel
from redis.connection import parse_url
from redis.sentinel import MasterNotFoundError

from holdmq.address import MAX_PORT, Address
from holdmq.primary import Primary

__all__ = ["SENTINEL", "FindPrimary", "SentinelUrl", "found_by"]

FindPrimary: TypeAlias = Callable[[], Awaitable[Address]]

SENTINEL = "sentinel://"
"""How such a URL begins."""

_OPTIONS = ("sentinel_username", "sentinel_password", "tls")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """What such a URL says."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    username: str | None
    password: str | None
    database: int
    tls: bool
    sentinel_options: dict[str, Any]
    """For a redis-py client of a Sentinel."""

    @classmethod
    def parse(cls, url: str) -> "SentinelUrl":
        """Parses it.

        Raises:
            ValueError: it is not a valid URL.
        """
        url, _, query = url.partition("?")
        options = _options(query)
        addresses, _, path = url.removeprefix(SENTINEL).partition("/")
        credentials, _, hosts = addresses.rpartition("@")
        service, _, database = path.partition("/")
        sentinels = []
        for host in hosts.split(","):
            name, _, port = host.rpartition(":")
            if not name or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
                raise ValueError(f"server URL: {host!r} is in the place of host:port of a Sentinel")
            sentinels.append((name.strip("[]"), int(port)))
        if not service or not (database or "0").isdigit():
            raise ValueError(f"server URL: {path!r} is in the place of service[/database]")
        server = parse_url(f"redis://{credentials}@127.0.0.1") if credentials else {}
        tls = options.get("tls") == "yes"
        login = {"username": options.get("sentinel_username"), "password": options.get("sentinel_password")}
        return cls(
            sentinels=tuple(sentinels),
            service=service,
            username=server.get("username"),
            password=server.get("password"),
            database=int(database or 0),
            tls=tls,
            sentinel_options={**login, "ssl": tls},
        )

    def primary(self) -> Primary:
        """The primary, as the Sentinels know it."""
        return Primary(self.sentinels, self.service, self.sentinel_options)

    def client(self, **options: Any) -> Redis:
        """A client of redis-py of the primary, which it finds by the Sentinels; options as of `Redis`."""
        watched = _Sentinels(self.primary())
        found: Redis = watched.master_for(  # type: ignore[no-untyped-call]
            self.service, **self._login, **options
        )
        return found

    def asyncio_client(self, find: FindPrimary, **options: Any) -> redis.asyncio.Redis:
        """The same for asyncio; `find` finds the primary for each connection."""
        return found_by(find, self.service, **self._login, **options)

    @property
    def _login(self) -> dict[str, Any]:
        return {"db": self.database, "username": self.username, "password": self.password, "ssl": self.tls}


class _Sentinels(Sentinel):
    """Asks all Sentinels; redis-py's own takes the word of the first one that answers."""

    def __init__(self, primary: Primary) -> None:
        super().__init__(())  # type: ignore[no-untyped-call]
        self._primary = primary

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """The address of the primary."""
        return self._primary.find()


class _FoundBy(redis.asyncio.Sentinel):
    def __init__(self, find: FindPrimary) -> None:
        super().__init__(())  # type: ignore[no-untyped-call]
        self._find = find

    async def discover_master(self, service_name: str) -> Address:
        """As in redis-py, where a MasterNotFoundError counts as a failed connection."""
        try:
            return await self._find()
        except OSError as error:
            raise MasterNotFoundError(f"{service_name}: {error}") from error


def found_by(find: FindPrimary, service: str, **options: Any) -> redis.asyncio.Redis:
    """An asyncio client of redis-py whose server a function finds, for each of its connections.

    Args:
        find: the function.  It may raise OSError.
        service: the name of the service.
        options: as of `redis.asyncio.Redis`.
    """
    found: redis.asyncio.Redis = _FoundBy(find).master_for(service, **options)
    return found


def _options(query: str) -> dict[str, str]:
    """The options after the question mark.

    Raises:
        ValueError: another option or value.  The text has no password.
    """
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise ValueError(f"server URL: unknown option {name}; accepted are {', '.join(_OPTIONS)}")
    if found.get("tls", "no") not in ("yes", "no"):
        raise ValueError(f"server URL: tls={found['tls']}; accepted are yes and no")
    return found
