"""The connections to the server: the asynchronous client, and the store of users, which is synchronous."""

from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.concurrency import run_in_threadpool

from holdmq import AsyncHoldMQ
from holdmq_bridge.auth.store import Store

T = TypeVar("T")

TIMEOUT_S = 15.0
CONNECTIONS = 32
_WRITE_ANYWAY = "#!lua flags=allow-oom\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"


class Broker:
    """One for each process.

    Args:
        url: the server.
        views: live views, each of which keeps a connection.

    Attributes:
        hold: the client.
        client: the client object of redis-py below it.
    """

    def __init__(self, url: str, views: int) -> None:
        self.hold: AsyncHoldMQ[bytes] = AsyncHoldMQ.from_url(
            url, max_connections=CONNECTIONS + views, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
        self.client: Any = self.hold.client
        self._sync: redis.Redis = redis.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self.hold.aclose()
        self._sync.close()

    async def forget_idle(self) -> None:
        """Closes the connections that wait in the pool: after a restart of the server each would fail once."""
        await self.client.connection_pool.disconnect(inuse_connections=False)

    async def write(self, command: str, key: str, *arguments: Any) -> Any:
        """Writes a small key of the console, even if the memory of the server is full.

        Otherwise nobody could log in and remove anything then. What is written so is bounded.
        """
        try:
            return await self.client.execute_command(command, key, *arguments)
        except redis.exceptions.OutOfMemoryError:
            return await self.client.eval(_WRITE_ANYWAY, 1, key, command, *arguments)

    async def store(self, use: Callable[[Store], T], *, expected: int | None = None) -> T:
        """Calls a function with the store of users, in a thread.

        Args:
            use: the function.
            expected: the version that an edit needs; None: any.
        """
        return await run_in_threadpool(use, Store(self._sync, expected=expected))
