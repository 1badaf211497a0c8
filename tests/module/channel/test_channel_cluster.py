"""Channels in a cluster: shard channels are held by the node that owns their slot, global ones by none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis
from redis.crc import key_slot

from tests.module.channels_support import (
    MakeRaw,
    answers,
    held,
    held_key,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import Cluster, RawClient, Server, ServerKind, eventually
from tests.support.server import SLOTS

MakeCluster = Callable[..., Cluster]
NAMES = [f"ch{number}" for number in range(30)] + ["{tag}ch", "a}b", "a{b", "100%", "{}x"]


@dataclass
class Node:
    """A node and a client of it."""

    server: Server
    client: redis.Redis


@dataclass
class Nodes:
    """The nodes of a cluster, in the order of their slots."""

    nodes: list[Node]

    def owner(self, channel: str | bytes) -> Node:
        """The node that owns the slot of a channel, as the slots were handed out."""
        slot = key_slot(channel if isinstance(channel, bytes) else channel.encode())
        return self.nodes[next(i for i in range(len(self.nodes)) if slot < (i + 1) * SLOTS // len(self.nodes))]

    def other(self, channel: str) -> Node:
        """A node that does not own it."""
        return next(node for node in self.nodes if node is not self.owner(channel))

    def set_policies(self, *rules: str) -> None:
        """Set the policies of all nodes."""
        for node in self.nodes:
            set_policies(node.client, *rules)

    def out_of_place(self) -> list[bytes]:
        """Keys that lie on a node that does not own their slot."""
        keys = [(node, key) for node in self.nodes for key in node.client.keys("*")]
        return [key for node, key in keys if isinstance(key, bytes) and self.owner(key) is not node]

    def check_indexes(self) -> None:
        """On each node the index of the held lists must equal one rebuilt from the keys."""
        for node in self.nodes:
            assert node.client.execute_command("HOLDMQ.CHECK") == []


def nodes_of(cluster: Cluster) -> Nodes:
    """Each node with a client."""
    return Nodes([Node(server, server.client()) for server in cluster.nodes])


@pytest.fixture
def three(shared_cluster: Cluster) -> Iterator[Nodes]:
    """Three nodes without keys; checked afterwards."""
    nodes = nodes_of(shared_cluster)
    yield nodes
    nodes.check_indexes()
    for node in nodes.nodes:
        node.server.check()
        node.server.reset()


@pytest.fixture
def two(fresh_cluster: MakeCluster) -> Nodes:
    """Two nodes of the test's own, whose slots it may move."""
    return nodes_of(fresh_cluster(2))


# --- Holding and handing over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["* hold=unheard", "* last=on", "* hold=all last=on maxlen=1 ttl=100"])
def test_a_shard_channel_is_held_where_its_slot_is(three: Nodes, raw: MakeRaw, rule: str) -> None:
    three.set_policies(rule)
    for name in NAMES:
        assert three.owner(name).client.execute_command("SPUBLISH", name, f"of {name}") == 0
    assert three.out_of_place() == []
    for name in NAMES:
        owner = three.owner(name)
        assert held(owner.client, name) == [f"of {name}".encode()]
        assert owner.client.execute_command("CHANNEL.LAST", name) == f"of {name}".encode()
        came = subscribe(raw(owner.server), name, command="SSUBSCRIBE")
        assert came == ([[b"smessage", name.encode(), f"of {name}".encode()]] if serves_each(owner.client) else [])


def test_a_shard_publish_on_another_node_is_redirected_and_holds_nothing(three: Nodes, raw: MakeRaw) -> None:
    moved = f"-MOVED {key_slot(b'ch')} 127.0.0.1:{three.owner('ch').server.port}"
    connection = raw(three.other("ch").server)
    for command in (["SPUBLISH", "ch", "m"], ["CHANNEL.SPUBLISH", "ch", "m"], ["SSUBSCRIBE", "ch"]):
        assert answers(connection, command) == [moved]
    assert answers(connection, ["CHANNEL.LAST", "ch"]) == [moved]
    assert connection.pending() == []
    assert all(node.client.dbsize() == 0 for node in three.nodes)


def test_producers_are_known_where_the_slot_of_their_shard_channel_is(three: Nodes, raw: MakeRaw) -> None:
    once = ["PRODUCER", "job", "1", "1"]
    for name in ("ch", "{tag}ch", "a{b"):
        client = three.owner(name).client
        assert client.execute_command("CHANNEL.SPUBLISH", name, "m", *once) == 0
        assert client.execute_command("CHANNEL.SPUBLISH", name, "m", *once) == -1
        assert held(client, name) == [b"m"]
    assert three.out_of_place() == []
    connection = raw(three.owner("a}b").server)
    for command in (["CHANNEL.SPUBLISH", "a}b"], ["CHANNEL.PUBLISH", "ch"], ["TOPIC.PUBLISH", "ch"]):
        [refusal] = answers(connection, [*command, "m", *once])
        assert refusal.startswith("-ERR PRODUCER is not accepted here in a cluster")
    assert three.out_of_place() == []


def test_a_global_publish_holds_nothing_and_is_heard_on_every_node(three: Nodes, raw: MakeRaw) -> None:
    listeners = [raw(node.server) for node in three.nodes]
    for listener in listeners:
        subscribe(listener, "heard")
    wait_for_the_bus(three, listeners)
    for number, node in enumerate(three.nodes):
        assert node.client.publish("heard", number) == 1  # its own receivers only, as ever
        assert node.client.publish("nobody", number) == 0
        for listener in listeners:
            text = b"ready"
            while text.startswith(b"ready"):  # more of them may have been under way
                [text] = messages([listener.read_message()])
            assert text == b"%d" % number
    assert all(node.client.dbsize() == 0 for node in three.nodes)


def wait_for_the_bus(three: Nodes, listeners: list[RawClient]) -> None:
    """Wait until each node's messages reach the subscribers of "heard" on every node."""
    for number, node in enumerate(three.nodes):
        text = b"ready %d" % number
        missing = set(range(len(listeners)))

        def all_heard(node: Node = node, text: bytes = text, missing: set[int] = missing) -> bool:
            node.client.publish("heard", text)
            missing -= {index for index in missing if text in messages(listeners[index].pending())}
            return not missing

        eventually(all_heard, 20, "links between all nodes of the cluster")


@pytest.mark.parametrize("rule", ["* hold=all last=on", "* hold=unheard"])
def test_the_explicit_command_keeps_nothing_on_the_wrong_node(three: Nodes, raw: MakeRaw, rule: str) -> None:
    three.set_policies(rule)
    for node in three.nodes:
        answers(raw(node.server), *[["CHANNEL.PUBLISH", name, "m"] for name in NAMES])
    assert three.out_of_place() == []


def test_a_publish_in_a_script_or_transaction_keeps_nothing_on_the_wrong_node(three: Nodes, raw: MakeRaw) -> None:
    for node in three.nodes:
        for name in NAMES:
            assert node.client.eval("return redis.call('PUBLISH', ARGV[1], 'm')", 0, name) == 0
        publishes = [["PUBLISH", name, "m"] for name in NAMES]
        assert answers(raw(node.server), ["MULTI"], *publishes, ["EXEC"])[-1] == [0] * len(NAMES)
    assert all(node.client.dbsize() == 0 for node in three.nodes)


def test_a_shard_publish_in_a_script_is_held(three: Nodes) -> None:
    owner = three.owner("ch").client
    assert owner.eval("return redis.call('SPUBLISH', KEYS[1], 'm')", 1, "ch") == 0
    assert owner.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"m"]
    assert three.out_of_place() == []


def test_a_subscriber_of_a_global_channel_never_gets_a_list_from_the_wrong_node(three: Nodes, raw: MakeRaw) -> None:
    three.set_policies("* deliver=held")
    owner, other = three.owner("ch"), three.other("ch")
    owner.client.rpush(held_key("ch"), "held")
    assert subscribe(raw(other.server), "ch") == []
    assert subscribe(raw(other.server), "*", command="PSUBSCRIBE") == []
    assert messages(subscribe(raw(owner.server), "ch")) + held(owner.client, "ch") == [b"held"]
    assert three.out_of_place() == []


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "PSUBSCRIBE"])
@pytest.mark.parametrize(
    "then",
    [
        ("GET", "{key}"),
        ("CHANNEL.PUBLISH", "ch", "m"),
        ("EVAL", "redis.call('GET', KEYS[1]) return redis.call('PUBLISH', 'ch', 'm')", 1, "{key}"),
    ],
    ids=["GET", "CHANNEL.PUBLISH", "EVAL"],
)
def test_a_client_that_subscribes_in_a_transaction_about_another_slot_gets_what_is_held(
    three: Nodes, raw: MakeRaw, kind: str, then: tuple[str | int, ...]
) -> None:
    three.set_policies("* deliver=held")
    node = three.owner("ch")
    key = next(name for name in NAMES if three.owner(name) is node and key_slot(name.encode()) != key_slot(b"ch"))
    for number in range(2):
        node.client.execute_command("SPUBLISH", "ch", number)
    before = raw(node.server)
    words = [key if word == "{key}" else word for word in then]
    came = answers(before, ["MULTI"], [kind, "ch"], ["SET", key, "v"], words, ["EXEC"])[-1] + before.pending()
    if serves_each(node.client):
        eventually(lambda: held(node.client, "ch") == [], what="a channel that was handed over")
        came += before.pending()
    got = [text for text in messages(came) if text != b"m"]
    assert got + held(node.client, "ch") == [b"0", b"1"]


def test_a_backlog_of_a_shard_channel_is_handed_over_in_order(three: Nodes, raw: MakeRaw) -> None:
    three.set_policies("* deliver=held")
    node = three.owner("ch")
    for number in range(1000):
        node.client.execute_command("SPUBLISH", "ch", number)
    expected = [b"%d" % number for number in range(1000)]
    subscriber = raw(node.server)
    subscriber.send("SSUBSCRIBE", "ch")
    if serves_each(node.client):
        assert messages(subscriber.read_many(1001)) == expected
        assert node.client.dbsize() == 0
    else:
        assert messages(subscriber.pending()) == []
        assert held(node.client, "ch") == expected


# --- Slots that move --------------------------------------------------------------------------------------------------


def move_slot_by_migrate(source: Node, target: Node, slot: int) -> None:
    """Move one slot key by key, as cluster tools do."""
    [source_id, target_id] = [node.client.execute_command("CLUSTER", "MYID").decode() for node in (source, target)]
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    keys = source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    source.client.execute_command("MIGRATE", "127.0.0.1", target.server.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source):
        node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def test_held_messages_move_with_their_slot(two: Nodes, raw: MakeRaw) -> None:
    two.set_policies("* last=on deliver=held")
    source, target = two.owner("ch"), two.other("ch")
    for number in range(100):
        source.client.execute_command("SPUBLISH", "ch", number)
    expiry = source.client.execute_command("PEXPIRETIME", held_key("ch"))
    move_slot_by_migrate(source, target, key_slot(b"ch"))
    assert source.client.dbsize() == 0
    two.check_indexes()
    moved_expiry = target.client.execute_command("PEXPIRETIME", held_key("ch"))
    assert abs(moved_expiry - expiry) < 5000  # MIGRATE carries what is left of it
    assert target.client.execute_command("CHANNEL.LAST", "ch") == b"99"
    target.client.execute_command("SPUBLISH", "ch", 100)
    assert held(target.client, "ch") == [b"%d" % number for number in range(101)]
    if serves_each(target.client):
        subscriber = raw(target.server)
        subscriber.send("SSUBSCRIBE", "ch")
        assert messages(subscriber.read_many(102)) == [b"%d" % number for number in range(101)]
    two.check_indexes()


def test_the_servers_own_slot_migration_works_with_the_module(
    server_kind: ServerKind, two: Nodes, raw: MakeRaw
) -> None:
    source, target = two.owner("ch"), two.other("ch")
    for number in range(100):
        source.client.execute_command("SPUBLISH", "ch", number)
    slot = key_slot(b"ch")
    target_id = target.client.execute_command("CLUSTER", "MYID").decode()
    command = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target_id]
    if server_kind.family != "valkey" or server_kind.version < (9, 0):
        [reply] = answers(raw(source.server), command)
        assert "unknown subcommand" in reply.lower()  # that server has none of its own
        return
    source.client.execute_command(*command)
    eventually(lambda: has(target.server, held_key("ch")), 30, "a slot that has moved")
    assert held(target.client, "ch") == [b"%d" % number for number in range(100)]
    eventually(lambda: source.client.dbsize() == 0)
    two.check_indexes()
    assert messages(subscribe(raw(target.server), "ch", command="SSUBSCRIBE")) == [b"99"]


def has(server: Server, key: str) -> bool:
    """Whether the node serves the key's slot and has the key."""
    with RawClient(server.port) as connection:
        connection.send("EXISTS", key)
        return connection.read() == 1


@pytest.mark.parametrize("heard", [True, False])
def test_a_shard_message_is_published_as_on_a_stock_server_while_its_slot_moves(
    two: Nodes, raw: MakeRaw, heard: bool
) -> None:
    source, target, slot = two.owner("ch"), two.other("ch"), key_slot(b"ch")
    subscriber = raw(source.server)
    if heard:
        subscribe(subscriber, "ch", command="SSUBSCRIBE")
    [source_id, target_id] = [node.client.execute_command("CLUSTER", "MYID").decode() for node in (source, target)]
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    for number in range(3):
        assert answers(raw(source.server), ["SPUBLISH", "ch", number]) == [1 if heard else 0]
    assert messages(subscriber.pending()) == ([b"0", b"1", b"2"] if heard else [])


def test_a_transaction_runs_as_on_a_stock_server_if_the_slot_of_its_message_begins_to_move(
    two: Nodes, raw: MakeRaw
) -> None:
    source, target, slot = two.owner("ch"), two.other("ch"), key_slot(b"ch")
    [source_id, target_id] = [node.client.execute_command("CLUSTER", "MYID").decode() for node in (source, target)]

    def outcome(intercept: str, channel: str, then: list[list[str]]) -> tuple[object, list[bytes]]:
        source.client.config_set("holdmq.intercept", intercept)
        connection = raw(source.server)
        queued = answers(connection, ["MULTI"], ["SPUBLISH", channel, "m"], *then)
        assert queued == ["OK", *["QUEUED"] * (1 + len(then))]
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        replies = answers(connection, ["EXEC"])
        for node in (source, target):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        return replies, messages(subscriber.pending())

    subscriber = raw(source.server)
    subscribe(subscriber, "{ch}heard", command="SSUBSCRIBE")
    for channel in ("ch", "{ch}heard"):
        for then in ([], [["GET", "{ch}key"]]):
            assert outcome("yes", channel, then) == outcome("no", channel, then)
    assert source.client.dbsize() == 0  # its list, a new key, may not come to be where the slot leaves
    two.check_indexes()


def test_a_message_is_held_where_its_list_still_is_while_the_slot_moves(two: Nodes, raw: MakeRaw) -> None:
    source, target, slot = two.owner("ch"), two.other("ch"), key_slot(b"ch")
    source.client.execute_command("SPUBLISH", "ch", "before")
    [source_id, target_id] = [node.client.execute_command("CLUSTER", "MYID").decode() for node in (source, target)]
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    assert answers(raw(source.server), ["SPUBLISH", "ch", "meanwhile"]) == [0]
    kept = [b"before", b"meanwhile"] if serves_each(source.client) else [b"before"]
    assert source.client.lrange(held_key("ch"), 0, -1) == kept
    two.check_indexes()


def test_a_node_that_checks_its_own_assertions_holds_what_nobody_hears(fresh_cluster: MakeCluster) -> None:
    [node] = nodes_of(fresh_cluster(1)).nodes
    for name in NAMES:
        assert node.client.execute_command("SPUBLISH", name, "m") == 0
        assert node.client.execute_command("CHANNEL.SPUBLISH", name, "n") == 0
        assert node.client.execute_command("CHANNEL.LEN", name) == 2
    assert node.server.process.running
