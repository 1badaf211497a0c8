"""Shard channels in a cluster: kept on the node that has the slot, and followed when the slot moves."""

import time
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio.cluster import ClusterNode, RedisCluster

from holdmq import ArgumentError, AsyncHoldMQ, AsyncSubscription
from holdmq._io import async_sleep
from tests.support import Cluster, Server

WAIT_S = 15.0


@pytest.fixture
async def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Three primaries."""
    return fresh_cluster(3)


@pytest.fixture
async def hold(cluster: Cluster) -> AsyncIterator[AsyncHoldMQ]:
    """A client of the cluster."""
    client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes])
    yield AsyncHoldMQ(client)
    await client.aclose()


async def data_of(messages: AsyncSubscription) -> bytes | str:
    """The content of the next message, which has to come."""
    message = await messages.get(WAIT_S)
    assert message is not None
    return message.data


def move_slot(cluster: Cluster, name: str) -> Server:
    """Gives the slot of a key, which is empty, to another node; returns that."""
    source = cluster.node_of(name)
    target = next(node for node in cluster.nodes if node is not source)
    slot = target.client().execute_command("CLUSTER", "KEYSLOT", name)
    owner = target.client().execute_command("CLUSTER", "MYID")
    for node in (target, source, *[other for other in cluster.nodes if other not in (source, target)]):
        node.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", owner)
    return target


@pytest.mark.parametrize("channel", ["weather", "{news}.today", "status"])
async def test_a_shard_channel_is_kept_on_the_node_of_its_slot(
    cluster: Cluster, hold: AsyncHoldMQ, channel: str
) -> None:
    weather = hold.channel(channel, sharded=True)
    assert await weather.publish("kept") == 0
    assert cluster.node_of(channel).client().lrange(channel, 0, -1) == [b"kept"]
    assert await weather.last() == b"kept"
    async with weather.subscribe() as messages:
        if cluster.nodes[0].kind.hands_off_exactly:  # before 7.2 it stays in the list
            assert await data_of(messages) == b"kept"
        assert await messages.get(0.1) is None
        assert await weather.publish("live") == 1
        assert await data_of(messages) == b"live"


async def test_a_subscription_follows_its_slot(cluster: Cluster, hold: AsyncHoldMQ) -> None:
    weather = hold.channel("weather", sharded=True)
    async with weather.subscribe() as messages:
        assert await messages.get(0.1) is None
        assert await weather.publish("here") == 1
        assert await data_of(messages) == b"here"
        target = move_slot(cluster, "weather")
        deadline = time.monotonic() + WAIT_S
        while target.client().execute_command("PUBSUB", "SHARDNUMSUB", "weather") != [b"weather", 1]:
            assert time.monotonic() < deadline, "the subscription did not follow"
            assert await messages.get(0.05) is None
            await async_sleep(0.01)
        assert target.client().execute_command("SPUBLISH", "weather", "there") == 1
        assert await data_of(messages) == b"there"
        assert messages.reconnections >= 1


async def test_channels_of_several_slots_need_subscriptions_of_their_own(hold: AsyncHoldMQ) -> None:
    with pytest.raises(ArgumentError, match="channels are of 2 slots; expected a common hash tag"):
        await hold.ssubscribe("a", "b").get(1)
    async with hold.ssubscribe("{t}a", "{t}b") as messages:
        assert await hold.channel("{t}b", sharded=True).publish("b") == 1
        assert await data_of(messages) == b"b"
