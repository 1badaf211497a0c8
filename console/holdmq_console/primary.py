"""The primary of the console's server: what the console confirms, and where its client connects.

Without Sentinels there is nothing to follow, and nothing to be in doubt about.
"""

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis

from holdmq.sentinel_url import SENTINEL, SentinelUrl
from holdmq_bridge.server.followed import FollowedPrimary
from holdmq_console.problems import ProblemError

DOUBT_S = 15.0  # longer than most failovers; the longest take minutes


class Primary(FollowedPrimary):
    """One for each process.

    Args:
        url: of the server. Only one of Sentinels has something to follow.
        on_move: called when there is another primary.
    """

    def __init__(self, url: str, on_move: Callable[[], None]) -> None:
        self._url = SentinelUrl.parse(url) if url.startswith(SENTINEL) else None
        if self._url is None:
            super().__init__((), "", {})
        else:
            super().__init__(self._url.sentinels, self._url.service, self._url.sentinel_options, on_move)

    def client(self, **options: object) -> Redis:
        """A client of the primary that the Sentinels name; options as of `redis.asyncio.Redis`."""
        assert self._url is not None
        return self._url.asyncio_client(self.find, **options)

    async def settled(self) -> int:
        """Waits until no failover is in doubt, and returns the number of moves.

        Raises:
            ProblemError: one has been in doubt for DOUBT_S.
        """
        try:
            async with asyncio.timeout(DOUBT_S):
                return await super().settled()
        except TimeoutError as error:
            detail = f"a failover has been under way for {DOUBT_S:g} s; look again, and try again when it has ended"
            raise ProblemError(503, detail, headers={"Retry-After": "10"}) from error

    async def confirm(self, moves: int) -> None:
        """Waits until it is certain that the primary is the one of before.

        Args:
            moves: what `settled` returned before the change.

        Raises:
            ProblemError: there is another one, or that takes too long.
        """
        if moves != await self.settled():
            detail = "the primary has moved in the meantime, and may lack this change; look before you try again"
            raise ProblemError(503, detail, headers={"Retry-After": "1"})
