"""The URL of a service of Sentinels, as the bridge and the command line take it.

sentinel://[user:password@]host:port,host:port/service[/database]     user and password are the server's
"""

from dataclasses import dataclass

from redis import Redis, Sentinel
from redis.connection import parse_url

__all__ = ["SENTINEL", "SentinelUrl"]

SENTINEL = "sentinel://"
"""How such a URL begins."""

_MAX_PORT = 65535
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """What such a URL says."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    username: str | None
    password: str | None
    database: int

    @classmethod
    def parse(cls, url: str) -> "SentinelUrl":
        """Parses it.

        Raises:
            ValueError: it is not a valid URL.
        """
        addresses, _, path = url.removeprefix(SENTINEL).partition("/")
        credentials, _, hosts = addresses.rpartition("@")
        service, _, database = path.partition("/")
        sentinels = []
        for host in hosts.split(","):
            name, _, port = host.rpartition(":")
            if not name or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
                raise ValueError(f"server URL: {host!r} stands where host:port of a Sentinel is expected")
            sentinels.append((name.strip("[]"), int(port)))
        if not service or not (database or "0").isdigit():
            raise ValueError(f"server URL: {path!r} stands where service[/database] is expected")
        server = parse_url(f"redis://{credentials}@127.0.0.1") if credentials else {}
        return cls(tuple(sentinels), service, server.get("username"), server.get("password"), int(database or 0))

    def client(self) -> Redis:
        """A client of redis-py of the primary, which it finds by the Sentinels."""
        found: Redis = Sentinel(self.sentinels, socket_timeout=_TIMEOUT_S).master_for(
            self.service, db=self.database, username=self.username, password=self.password
        )
        return found
