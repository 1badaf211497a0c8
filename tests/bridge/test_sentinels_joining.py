"""Which Sentinels a bridge follows, over time."""

import asyncio
from collections.abc import Callable

import pytest

from holdmq.address import Address
from holdmq_bridge.server import sentinels
from holdmq_bridge.server.sentinels import Sentinels
from tests.support import SentinelProcess, Server, eventually
from tests.support.sentinel import SERVICE

FOLLOWED_S = 30.0


class Listener:
    """Hears nothing here."""

    def primary_in_doubt(self, *, doubt: bool) -> None:
        """A failover; there is none."""
        raise AssertionError(doubt)

    def primary_moved(self, address: Address) -> None:
        """The same."""
        raise AssertionError(address)


def test_a_sentinel_that_joins_later_is_followed_and_enough(
    fresh_server: Callable[..., Server],
    fresh_sentinel: Callable[[Server], SentinelProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "_LISTED_EVERY_S", 0.2)
    primary = fresh_server()
    fresh_server(replica_of=primary)
    first = fresh_sentinel(primary)

    async def follow() -> Address:
        followed = Sentinels((("127.0.0.1", first.port),), SERVICE, Listener())
        followed.start()
        try:
            await until(first.is_followed, "a Sentinel that is followed")
            later = await asyncio.to_thread(fresh_sentinel, primary)
            await until(later.is_followed, "the other Sentinel, followed too")
            first.kill()
            return await followed.primary()
        finally:
            await followed.stop()

    assert asyncio.run(follow()) == ("127.0.0.1", primary.port)


async def until(condition: Callable[[], bool], what: str) -> None:
    """`eventually` beside the event loop."""
    await asyncio.to_thread(eventually, condition, FOLLOWED_S, what)
