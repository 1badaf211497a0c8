"""The primary of a service of Sentinels, followed for one process. Without Sentinels there is nothing to follow.

    +selected-slave ──► in doubt: changes wait
    +promoted-slave ──► the primary has moved: connections to the former one end

Invariants
 1. A change is confirmed only if no failover was announced while it was made, or if the announced one did not happen.
    The former primary takes writes for ten seconds more, and loses them when it becomes a replica.
 2. A change waits for the end of a doubt, which Sentinels bound to about ten seconds.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError

from holdmq.sentinel_url import SENTINEL, SentinelUrl
from holdmq_bridge.server.sentinels import Address, Sentinels
from holdmq_console.problems import ProblemError


class Primary:
    """One for each process.

    Args:
        url: of the server. Only one of Sentinels has something to follow.
        on_move: called when there is another primary.
    """

    def __init__(self, url: str, on_move: Callable[[], None]) -> None:
        self._on_move = on_move
        self._moves = 0
        self._address: Address | None = None
        self._is_certain = asyncio.Event()
        self._is_certain.set()
        self._sentinels: Sentinels | None = None
        if url.startswith(SENTINEL):
            parsed = SentinelUrl.parse(url)
            self._sentinels = Sentinels(parsed.sentinels, parsed.service, self, parsed.sentinel_options)

    def start(self) -> None:
        """Begins to follow. Call it inside the event loop."""
        if self._sentinels is not None:
            self._sentinels.start()

    async def stop(self) -> None:
        """Ends."""
        if self._sentinels is not None:
            await self._sentinels.stop()

    async def settled(self) -> int:
        """Waits for the end of a failover that is under way, and returns what `confirm` needs."""
        await self._is_certain.wait()
        return self._moves

    async def confirm(self, moves: int) -> None:
        """Waits until it is certain that the primary is the one of before.

        Raises:
            ProblemError: there is another one.
        """
        if moves != await self.settled():
            detail = "the primary has moved in the meantime, and may lack this change; look before you try again"
            raise ProblemError(503, detail, headers={"Retry-After": "1"})

    async def find(self) -> Address:
        """The address of the primary.

        Raises:
            MasterNotFoundError: no Sentinel knows.
        """
        assert self._sentinels is not None
        try:
            self._address = await self._sentinels.primary()
        except OSError as error:
            raise MasterNotFoundError(str(error)) from error
        return self._address

    def take_over(self, client: Any) -> None:
        """Lets an asynchronous client of redis-py find the primary here."""
        if self._sentinels is not None:
            client.connection_pool.sentinel_manager = _Finder(self.find)

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
            self._moves += 1
            self._on_move()


class _Finder:
    """What a pool of redis-py asks for the primary."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    async def discover_master(self, _service_name: str) -> Address:
        found: Address = await self._find()
        return found
