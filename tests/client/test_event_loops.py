"""An asyncio client belongs to one event loop at a time: two at once are refused, one after the other work."""

import asyncio
import gc
import warnings
from typing import Any

import pytest
import redis.asyncio

from holdmq import AsyncHoldMQ, ConcurrentUseError, HoldMQ
from tests.support import Server

TOPIC = "s/x"
WAIT_S = 30.0


def stored(server: Server) -> list[bytes]:
    return [kept.payload for kept in HoldMQ(server.client()).history.start_replay(TOPIC, "1h")]


def url_of(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.mark.parametrize("own", [False, True], ids=["from_url", "redis.asyncio.Redis"])
def test_another_run_after_the_first_goes_on_with_the_client(server: Server, own: bool) -> None:
    HoldMQ(server.client()).history.create("s", TOPIC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # each run leaves its connections open, as asyncio warns
        client: Any = redis.asyncio.Redis(port=server.port) if own else None
        hold = AsyncHoldMQ(client) if own else AsyncHoldMQ.from_url(url_of(server))
        for number in range(6):
            asyncio.run(append(hold, number))
        gc.collect()
    assert stored(server) == [b"%d" % number for number in range(6)]


async def append(hold: AsyncHoldMQ[Any], number: int) -> None:
    await hold.history.store("s").append(TOPIC, str(number))


def test_a_second_loop_at_the_same_time_is_refused_before_anything_is_sent(server: Server) -> None:
    HoldMQ(server.client()).history.create("s", TOPIC)
    errors: list[BaseException] = []

    def other(hold: AsyncHoldMQ[Any]) -> None:
        with pytest.raises(ConcurrentUseError, match="belongs to another event loop") as raised:
            asyncio.run(append(hold, 2))
        errors.append(raised.value)

    async def first() -> None:
        async with AsyncHoldMQ.from_url(url_of(server)) as hold:
            await append(hold, 1)
            await asyncio.wait_for(asyncio.to_thread(other, hold), WAIT_S)
            await append(hold, 3)

    asyncio.run(first())
    assert len(errors) == 1
    assert stored(server) == [b"1", b"3"]
