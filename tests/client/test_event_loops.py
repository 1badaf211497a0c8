"""An asyncio client belongs to one event loop at a time: two at once are refused, one after the other work."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from holdmq import AsyncHoldMQ, ConcurrentUseError, HoldMQ
from tests.support import Cluster, Server
from tests.support.server import HOST

TOPIC = "s/x"
WAIT_S = 30.0


def stored(server: Server) -> list[bytes]:
    return [kept.payload for kept in HoldMQ(server.client()).history.start_replay(TOPIC, "1h")]


def url_of(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.mark.parametrize("own", [False, True], ids=["from_url", "redis.asyncio.Redis"])
def test_another_run_after_the_first_continues_with_the_client(server: Server, own: bool) -> None:
    HoldMQ(server.client()).history.create("s", TOPIC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # each run leaves its connections open, as asyncio warns
        client: Any = redis.asyncio.Redis(port=server.port) if own else None
        hold = AsyncHoldMQ(client) if own else AsyncHoldMQ.from_url(url_of(server))
        for number in range(6):
            asyncio.run(append(hold, number))
        del client, hold  # and the last run's here
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


async def publish(hold: AsyncHoldMQ[Any], text: str) -> None:
    """To one node, and to all."""
    await asyncio.wait_for(hold.channel("c", sharded=True).publish(text), WAIT_S)
    await asyncio.wait_for(hold.topics.publish("s/x", text, qos=1), WAIT_S)


def several(hold: AsyncHoldMQ[Any]) -> list[Callable[[], Awaitable[Any]]]:
    """Calls that reach the cluster in different ways."""
    return [
        lambda: publish(hold, "second"),
        lambda: hold.topics.publish("s/x", "second", qos=1),
        lambda: hold.ssubscribe("c").get(timeout=1),
        lambda: hold.history.follow("s/#").get(timeout=1),
        hold.check,
        hold.bridges,
    ]


@pytest.mark.parametrize("own", [False, True], ids=["from_url", "redis.asyncio.RedisCluster"])
def test_a_client_of_a_cluster_is_refused_after_its_loop_was_closed(cluster: Cluster, own: bool) -> None:
    client: Any = redis.asyncio.RedisCluster(host=HOST, port=cluster.nodes[0].port) if own else None
    hold = AsyncHoldMQ(client) if own else AsyncHoldMQ.from_url(cluster.nodes[0].url, cluster=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the first run leaves its connections open
        asyncio.run(publish(hold, "first"))
        for number in range(len(several(hold))):

            async def run(number: int = number, hold: AsyncHoldMQ[Any] = hold) -> None:
                await asyncio.wait_for(several(hold)[number](), WAIT_S)

            with pytest.raises(ConcurrentUseError, match="of a cluster belongs to an event loop that was closed"):
                asyncio.run(run())
            del run
        del client, hold
        gc.collect()
    with cluster.client() as reader:
        assert list(HoldMQ(reader).channel("c").backlog()) == [b"first"]


def test_a_client_of_a_cluster_that_was_closed_may_be_used_in_the_next_loop(cluster: Cluster) -> None:
    hold = AsyncHoldMQ.from_url(cluster.nodes[0].url, cluster=True)

    async def use(text: str) -> None:
        async with hold:
            await publish(hold, text)

    for text in ("first", "second", "third"):
        asyncio.run(use(text))
    with cluster.client() as reader:
        assert list(HoldMQ(reader).channel("c").backlog()) == [b"first", b"second", b"third"]


def test_a_client_of_a_cluster_is_refused_in_a_second_loop_at_the_same_time(cluster: Cluster) -> None:
    def other(hold: AsyncHoldMQ[Any]) -> None:
        with pytest.raises(ConcurrentUseError, match="belongs to another event loop"):
            asyncio.run(publish(hold, "second"))

    async def first() -> None:
        async with AsyncHoldMQ.from_url(cluster.nodes[0].url, cluster=True) as hold:
            await publish(hold, "first")
            await asyncio.wait_for(asyncio.to_thread(other, hold), WAIT_S)
            await publish(hold, "third")

    asyncio.run(first())
