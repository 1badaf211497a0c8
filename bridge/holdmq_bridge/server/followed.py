"""The primary of a service of Sentinels for a process with clients of redis-py: a link process, the console.

    +selected-slave ──► in doubt: changes wait
    +promoted-slave ──► the primary has moved: connections to the former one end

Invariants
 1. A change is confirmed only if no failover was announced while it was made, or if the announced one did not happen.
    The former primary takes writes for ten seconds more, and loses them when it becomes a replica.
 2. Who waits for the end of a doubt waits as long as doubts last at most (sentinels.py), mostly ten seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdmq.address import Address
from holdmq_bridge.server.sentinels import Sentinels


def _ignore() -> None:
    """Nobody has to be told."""


class FollowedPrimary:
    """One for each process.  `start` and `stop` it inside the event loop.

    Args:
        sentinels: of the URL.  Without any there is nothing to follow, and the server never moves.
        service: its name.
        options: of clients of Sentinels.
        on_move: called when another server has become the primary.

    Attributes:
        moves: how often that has happened.
    """

    def __init__(
        self,
        sentinels: tuple[Address, ...],
        service: str,
        options: Mapping[str, Any],
        on_move: Callable[[], None] = _ignore,
    ) -> None:
        self.moves = 0
        self._on_move = on_move
        self._address: Address | None = None  # last announced
        self._is_certain = asyncio.Event()
        self._is_certain.set()
        self._has_moved = asyncio.Event()
        self._sentinels = Sentinels(sentinels, service, self, options) if sentinels else None

    def start(self) -> None:
        """Begins to follow the Sentinels."""
        if self._sentinels is not None:
            self._sentinels.start()

    async def stop(self) -> None:
        """Follows them no more."""
        if self._sentinels is not None:
            await self._sentinels.stop()

    @property
    def has_sentinels(self) -> bool:
        """Whether there is anybody to follow."""
        return self._sentinels is not None

    async def settled(self) -> int:
        """Waits until no failover is in doubt, and returns the number of moves."""
        await self._is_certain.wait()
        return self.moves

    async def moved(self, moves: int) -> None:
        """Waits until the number of moves is another one."""
        while moves == self.moves:
            self._has_moved.clear()
            await self._has_moved.wait()

    async def find(self) -> Address:
        """The address of the primary.

        Raises:
            OSError: no Sentinel knows.
        """
        assert self._sentinels is not None
        self._address = await self._sentinels.primary()
        return self._address

    async def find_settled(self) -> Address:
        """The same when no failover is in doubt."""
        while True:
            await self._is_certain.wait()
            address = await self.find()
            if self._is_certain.is_set():  # they may have said that a failover is under way
                return address

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
            self._on_move()
