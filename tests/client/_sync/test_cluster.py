# Generated from tests/client/_async/test_cluster.py by tools/generate_sync.py; change that file.
"""Shard channels in a cluster: kept on the node that has the slot, and followed when the slot moves."""

import time
from collections.abc import Callable, Iterator

import pytest
from redis.cluster import ClusterNode, RedisCluster

from holdmq import ArgumentError, HoldMQ, Subscription
from holdmq._io import sleep
from tests.support import Cluster, Server

WAIT_S = 15.0


@pytest.fixture
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Three primaries."""
    return fresh_cluster(3)


@pytest.fixture
def hold(cluster: Cluster) -> Iterator[HoldMQ]:
    """A client of the cluster."""
    client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes])
    yield HoldMQ(client)
    client.close()


def data_of(messages: Subscription) -> bytes | str:
    """The content of the next message, which has to come."""
    message = messages.get(WAIT_S)
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
def test_a_shard_channel_is_kept_on_the_node_of_its_slot(cluster: Cluster, hold: HoldMQ, channel: str) -> None:
    weather = hold.channel(channel, sharded=True)
    assert weather.publish("kept") == 0
    assert cluster.node_of(channel).client().lrange(channel, 0, -1) == [b"kept"]
    assert weather.last() == b"kept"
    with weather.subscribe() as messages:
        if cluster.nodes[0].kind.hands_off_exactly:  # before 7.2 it stays in the list
            assert data_of(messages) == b"kept"
        assert messages.get(0.1) is None
        assert weather.publish("live") == 1
        assert data_of(messages) == b"live"


def test_a_subscription_follows_its_slot(cluster: Cluster, hold: HoldMQ) -> None:
    weather = hold.channel("weather", sharded=True)
    with weather.subscribe() as messages:
        assert messages.get(0.1) is None
        assert weather.publish("here") == 1
        assert data_of(messages) == b"here"
        target = move_slot(cluster, "weather")
        deadline = time.monotonic() + WAIT_S
        while target.client().execute_command("PUBSUB", "SHARDNUMSUB", "weather") != [b"weather", 1]:
            assert time.monotonic() < deadline, "the subscription did not follow"
            assert messages.get(0.05) is None
            sleep(0.01)
        assert target.client().execute_command("SPUBLISH", "weather", "there") == 1
        assert data_of(messages) == b"there"
        assert messages.reconnections >= 1


def test_channels_of_several_slots_need_subscriptions_of_their_own(hold: HoldMQ) -> None:
    with pytest.raises(ArgumentError, match="channels are of 2 slots; expected a common hash tag"):
        hold.ssubscribe("a", "b").get(1)
    with hold.ssubscribe("{t}a", "{t}b") as messages:
        assert hold.channel("{t}b", sharded=True).publish("b") == 1
        assert data_of(messages) == b"b"
