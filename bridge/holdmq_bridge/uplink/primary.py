"""The HoldMQ server of a link process: one that is named, or the primary that Sentinels name, followed for all links.

Invariants
 1. What a server replied is used only if no failover was announced before the reply was read, or if the announced one
    did not happen: else the reply may be that of a primary whose writes are lost.
 2. A connection to a server that is no longer the primary ends at once.
"""

from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from holdmq_bridge.base.target import Target
from holdmq_bridge.server.followed import FollowedPrimary

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Primary(FollowedPrimary):
    """Makes clients of the server.

    Args:
        target: the server, or its Sentinels.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.sentinels, target.service, target.sentinel_options)
        self._target = target

    def client(self) -> "Redis":
        """A client of the server."""
        return self._target.client(self.find_settled if self.has_sentinels else None)

    async def wait_until_certain(self, moves: int) -> None:
        """Waits until no failover is in doubt.

        Raises:
            RedisError: the primary has changed since this number of moves.
        """
        if moves != await self.settled():
            raise RedisError("the primary has moved")

    async def wait_until_moved(self, moves: int) -> None:
        """Waits until there is another primary.

        Raises:
            RedisError: there is.
        """
        await self.moved(moves)
        raise RedisError("the primary has moved")
