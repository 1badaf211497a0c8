"""The HoldMQ server of a link process: one that is named, or the primary that Sentinels name, followed for all links.

Invariants
 1. What a server replied is used only if no failover was announced before the reply was read, or if the announced one
    did not happen: else the reply may be that of a primary whose writes are lost.
 2. A connection to a server that is no longer the primary ends at once.
"""

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from holdmq_bridge.base.target import Target
from holdmq_bridge.server.sentinels import Address, Sentinels

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Primary:
    """Makes clients of the server.  `start` and `stop` it inside the event loop.

    Args:
        target: the server, or its Sentinels.

    Attributes:
        moves: how often another server has become the primary.
    """

    def __init__(self, target: Target) -> None:
        self.moves = 0
        self._target = target
        self._sentinels = (
            Sentinels(target.sentinels, target.service, self, target.sentinel_options) if target.sentinels else None
        )
        self._address: Address | None = None  # last announced
        self._is_certain = asyncio.Event()
        self._is_certain.set()
        self._has_moved = asyncio.Event()

    def start(self) -> None:
        """Begins to follow the Sentinels, if there are any."""
        if self._sentinels is not None:
            self._sentinels.start()

    async def stop(self) -> None:
        """Follows them no more."""
        if self._sentinels is not None:
            await self._sentinels.stop()

    def client(self) -> "Redis":
        """A client of the server."""
        return self._target.client(None if self._sentinels is None else self._find)

    async def wait_until_certain(self, moves: int) -> None:
        """Waits until no failover is in doubt.

        Raises:
            RedisError: the primary has changed since this number of moves.
        """
        await self._is_certain.wait()
        if moves != self.moves:
            raise RedisError("the primary has moved")

    async def wait_until_moved(self, moves: int) -> None:
        """Waits until there is another primary.

        Raises:
            RedisError: there is.
        """
        while moves == self.moves:
            self._has_moved.clear()
            await self._has_moved.wait()
        raise RedisError("the primary has moved")

    async def _find(self) -> Address:
        assert self._sentinels is not None
        while True:
            await self._is_certain.wait()
            self._address = await self._sentinels.primary()
            if self._is_certain.is_set():  # they may have said that a failover is under way
                return self._address

    # ---- from the Sentinels ----------------------------------------------------------------------------------------

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """A replica is about to be promoted; or it is not, after all."""
        if doubt:
            self._is_certain.clear()
        else:
            self._is_certain.set()

    def primary_moved(self, address: Address) -> None:
        """This server is the primary now."""
        if address != self._address:
            self._address = address
            self.moves += 1
            self._has_moved.set()
