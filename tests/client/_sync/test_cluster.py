# Generated from tests/client/_async/test_cluster.py by tools/generate_sync.py; change that file.
"""Shard channels in a cluster: kept on the node that has the slot, and followed when the slot moves."""

import time
from collections.abc import Callable

import pytest

from holdmq import ArgumentError, HoldMQ, Subscription, history_commands
from holdmq._io import sleep
from holdmq.commands import Command, Scope
from tests.client.support import message_of
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, Server

WAIT_S = 15.0


@pytest.fixture
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """Three primaries."""
    return fresh_cluster(3)


@pytest.fixture
def hold(cluster: Cluster, connect_cluster: Callable[..., HoldMQ]) -> HoldMQ:
    """A client of the cluster."""
    return connect_cluster(cluster)


def data_of(messages: Subscription) -> bytes | str:
    """The content of the next message, which has to come."""
    message = messages.get(WAIT_S)
    assert message is not None
    return message.data


def move_slot(cluster: Cluster, name: str) -> Server:
    """Gives the slot of a key, which is empty, to another node; returns that."""
    source = cluster.node_of(name)
    target = next(node for node in cluster.nodes if node is not source)
    move = SlotMove(cluster, source, target, target.client().execute_command("CLUSTER", "KEYSLOT", name))
    move.begin()  # or else the target would believe the source again, whose claim would be as new as its own
    move.end()
    return target


def test_a_publish_reaches_the_sessions_of_all_nodes_and_is_retained_once(cluster: Cluster, hold: HoldMQ) -> None:
    names = [f"c{number}" for number in range(9)]
    for name in names:
        assert hold.session(name).subscribe("weather/#", qos=1) == (True,)
    assert len({cluster.node_of("{" + name + "}") for name in names}) == len(cluster.nodes)
    assert hold.topics.publish("weather/oslo", b"snow", qos=1, retain=True) == len(names)
    for name in names:
        [entry] = (hold.session(name).fetch()).entries
        assert message_of(entry).payload == b"snow"
    assert [node.client().keys("*_retained") for node in cluster.nodes].count([b"{weather/oslo}_retained"]) == 1
    kept = hold.topics.retained_message("weather/oslo")
    assert kept is not None
    assert kept.payload == b"snow"
    assert hold.topics.publish("weather/oslo", b"", retain=True) == 0
    assert hold.topics.retained("#") == ()


def test_a_new_subscription_gets_what_all_nodes_retain(cluster: Cluster, hold: HoldMQ) -> None:
    topics = [f"weather/{number}" for number in range(9)]
    for qos, topic in enumerate(topics):
        hold.topics.publish(topic, topic.encode(), qos=qos % 3, retain=True, ttl=100)
    assert all(node.client().dbsize() for node in cluster.nodes)
    assert hold.topics.retained("weather/+") == tuple(topics)
    assert [message.payload for message in hold.topics.retained_messages("#", count=5)] == (
        [topic.encode() for topic in topics[:5]]
    )
    session = hold.session("c")
    session.subscribe("weather/#", qos=1)
    messages = [message_of(entry) for entry in (session.fetch()).entries]
    assert [(message.topic, message.qos) for message in messages] == (
        [(topic, 1) for qos, topic in enumerate(topics) if qos % 3 > 0]  # QoS 0 is for who is connected
    )
    assert all(message.retain and message.expires_ms for message in messages)
    own = hold.session("own")
    hold.topics.publish("own/a", b"a", qos=1, retain=True, publisher="own")
    hold.topics.publish("own/b", b"b", qos=1, retain=True, publisher="other")
    own.subscribe("own/#", qos=1, no_local=True, identifier=300)
    [entry] = (own.fetch()).entries
    assert (message_of(entry).payload, message_of(entry).properties) == (b"b", b"\x0b\xac\x02")
    assert session.subscribe("weather/#", qos=1, retain_handling=1) == (False,)
    assert session.subscribe("weather/+", qos=1, retain_handling=2) == (True,)
    assert len((session.fetch()).entries) == len(messages)


def test_a_command_about_a_shard_of_history_goes_to_the_node_that_has_its_slot(cluster: Cluster, hold: HoldMQ) -> None:
    for shard in range(9):
        key = history_commands.shard_key("s", shard)
        asked = Command(("CLUSTER MYID",), bytes, scope=Scope.SHARD, key=key)
        assert hold.execute(asked) == cluster.node_of(key.decode()).client().execute_command("CLUSTER", "MYID")


def test_a_client_whose_table_is_old_finds_every_session_all_the_same(cluster: Cluster, hold: HoldMQ) -> None:
    assert hold.topics.publish("a", b"1", qos=1) == 0  # from now on it knows who has which slot
    target = move_slot(cluster, "{c}")
    client = target.client()
    client.execute_command("SESSION.SUBSCRIBE", "{c}", "a", 1)
    assert hold.topics.publish("a", b"2", qos=1) == 1
    assert client.zcard("{c}_messages") == 1


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


def test_a_client_lists_the_sessions_of_all_nodes_as_its_first_command(
    cluster: Cluster, hold: HoldMQ, connect_cluster: Callable[..., HoldMQ]
) -> None:
    names = sorted(f"c{number}" for number in range(9))
    for name in names:
        hold.session(name).open("reader", expiry=60)
    listed = [row.client_id for row in connect_cluster(cluster).sessions()]
    assert sorted(listed) == names


def test_a_dry_run_counts_the_shard_channels_of_all_nodes(cluster: Cluster, hold: HoldMQ) -> None:
    for node in cluster.nodes:
        node.client().config_set("holdmq.policies", "")
    hold.dry_run.start(policies="*")
    names = [f"shard {number}" for number in range(9)]
    for name in names:
        hold.channel(name, sharded=True).publish("m")
        hold.channel(f"global {name}", sharded=False).publish("m")  # is heard on other nodes, too: never held
    report = hold.dry_run.report()
    assert [(row.channel, row.messages) for row in report.channels] == [(name, 1) for name in names]
    assert [summary.channels for summary in report.summaries].count(0) == 0
    assert hold.dry_run.stop()
    assert [node.client().dbsize() for node in cluster.nodes] == [0, 0, 0]
