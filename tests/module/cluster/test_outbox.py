"""Wills and presence in a cluster wait in the slot of their session until somebody has published them everywhere."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from holdmq.core import Record, slot_of
from tests.module.cluster.routes_support import Failover, Node, Nodes, error_of, session_of
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, eventually

WAIT_S = 20.0
LIMIT = 4096


def switch_on(nodes: Nodes, limit: int = LIMIT) -> None:
    """Let all nodes have outboxes, of wills only."""
    for node in nodes.all:
        node.client.config_set("holdmq.outbox-bytes", limit)
        node.client.config_set("holdmq.presence", "no")
        node.client.execute_command("OUTBOX.READ")  # a reader


@pytest.fixture
def boxes(nodes: Nodes) -> Iterator[Nodes]:
    """Nodes with outboxes."""
    switch_on(nodes)
    yield nodes
    for node in nodes.all:
        node.client.config_set("holdmq.outbox-bytes", 0)
        node.client.config_set("holdmq.presence", "yes")


def die(node: Node, client_id: str, payload: str = "gone", *more: str | int) -> int:
    """Connect a client with a will, and lose it; returns the slot of its session."""
    key = session_of(client_id)
    will = ["WILL", "state/" + client_id, payload, "WILLQOS", 1, *more]
    opened = node.client.execute_command("SESSION.OPEN", key, "owner", 60, *will)
    epoch = opened[b"epoch"] if isinstance(opened, dict) else opened[0]
    node.client.execute_command("SESSION.CLOSE", key, "EPOCH", epoch, "WILL")
    return slot_of(key)


def read(node: Node, *words: Any) -> list[tuple[int, int, Record]]:
    """What the outboxes of a node have: slot, number and record."""
    reply = node.client.execute_command("OUTBOX.READ", *words)
    return [(slot, number, Record.decode(record)) for slot, number, record in reply]


def two_of(nodes: Nodes) -> tuple[Node, str, str]:
    """A node, and two clients with sessions there."""
    node = nodes.all[0]
    names = nodes.clients(node)
    return node, next(names), next(names)


def test_nothing_waits_at_a_node_until_somebody_reads_its_outboxes(fresh_cluster: Callable[..., Cluster]) -> None:
    nodes = Nodes(fresh_cluster(3))
    node, client_id, other = two_of(nodes)
    assert node.client.config_get("holdmq.outbox-bytes") == {"holdmq.outbox-bytes": "262144"}
    node.subscribe(other, "state/#")
    die(node, client_id, "delivered here")
    assert node.client.keys("*_outbox") == []
    assert len(node.client.execute_command("SESSION.FETCH", session_of(other))[0]) == 1
    assert read(node) == []
    node.client.config_set("holdmq.presence", "no")
    die(node, client_id, "waits")
    assert [record.payload for _, _, record in read(node)] == [b"waits"]
    assert len(node.client.execute_command("SESSION.FETCH", session_of(other))[0]) == 1


def test_a_presence_message_that_no_session_of_the_cluster_subscribes_to_does_not_wait(boxes: Nodes) -> None:
    node, client_id, _other = two_of(boxes)
    node.client.config_set("holdmq.presence", "yes")
    node.learn(boxes.all)
    die(node, client_id)
    assert [record.topic for _, _, record in read(node)] == [b"state/" + client_id.encode()]
    node.client.execute_command("ROUTE.ADD", "$SYS/clients/+/disconnected", 5)
    die(node, client_id)
    gone = f"$SYS/clients/{client_id}/disconnected".encode()
    assert [record.topic for _, _, record in read(node)].count(gone) == 1


def test_a_will_waits_in_the_slot_of_its_session_until_it_is_acknowledged(boxes: Nodes) -> None:
    node, client_id, other = two_of(boxes)
    node.subscribe(other, "state/#")
    slot = die(node, client_id, "gone", "WILLRETAIN")
    ((at, number, record),) = read(node)
    assert (at, record.topic, record.payload, record.qos, record.retain, record.publisher) == (
        (slot, b"state/" + client_id.encode(), b"gone", 1, True, client_id.encode())
    )
    assert node.client.execute_command("SESSION.FETCH", session_of(other))[0] == []
    (key,) = node.client.keys("*_outbox")
    assert slot_of(key) == slot
    assert node.client.execute_command("OUTBOX.ACK", slot, number - 1) == 0
    assert read(node) == [(at, number, record)]
    assert node.client.execute_command("OUTBOX.ACK", slot, number) == 1
    assert node.client.execute_command("OUTBOX.ACK", slot, number) == 0
    assert read(node) == []
    assert node.client.keys("*_outbox") == []


def test_numbers_grow_also_after_the_outbox_was_empty(boxes: Nodes) -> None:
    node, client_id, _other = two_of(boxes)
    numbers = []
    for _ in range(3):
        slot = die(node, client_id)
        ((_at, number, _record),) = read(node)
        numbers.append(number)
        node.client.execute_command("OUTBOX.ACK", slot, number)
    assert numbers == sorted(set(numbers))


def test_messages_are_read_in_their_order_and_in_pages(boxes: Nodes) -> None:
    node, client_id, _other = two_of(boxes)
    slot = slot_of(session_of(client_id))
    for at in range(20):
        die(node, client_id, f"{at}")
    assert [record.payload for _, _, record in read(node)] == [b"%d" % at for at in range(16)]  # of one slot
    page = read(node, "SLOT", slot, "COUNT", 3)
    rest = read(node, "SLOT", slot, "AFTER", page[-1][1])
    assert [record.payload for _, _, record in page + rest] == [b"%d" % at for at in range(20)]
    assert node.client.execute_command("OUTBOX.ACK", slot, page[-1][1]) == 3
    assert read(node, "SLOT", slot) == rest


def test_presence_waits_with_the_wills(boxes: Nodes) -> None:
    node, client_id, _other = two_of(boxes)
    node.client.config_set("holdmq.presence", "yes")
    die(node, client_id)
    topics = [record.topic.decode() for _, _, record in read(node)]
    sys = f"$SYS/clients/{client_id}"
    assert sorted(topics) == sorted([f"{sys}/connected", f"{sys}/disconnected", f"state/{client_id}"])


def test_what_does_not_fit_is_published_on_the_node(boxes: Nodes) -> None:
    node, client_id, other = two_of(boxes)
    node.subscribe(other, "state/#")
    die(node, client_id, "x" * (LIMIT - 200))
    die(node, client_id, "y" * 300)
    assert [record.payload[:1] for _, _, record in read(node)] == [b"x"]
    (entry,) = node.client.execute_command("SESSION.FETCH", session_of(other))[0]
    assert b"y" * 300 in b"".join(part for part in entry if isinstance(part, bytes))


def test_a_key_that_another_program_made_is_not_an_outbox(boxes: Nodes) -> None:
    node, client_id, other = two_of(boxes)
    node.subscribe(other, "state/#")
    slot = die(node, client_id)
    (key,) = node.client.keys("*_outbox")
    node.client.delete(key)
    assert read(node) == []
    node.client.rpush(key, "no message")
    assert read(node) == []
    die(node, client_id)
    assert len(node.client.execute_command("SESSION.FETCH", session_of(other))[0]) == 1
    node.client.delete(key)
    node.client.set(key, "text")
    assert error_of(node.client, "OUTBOX.ACK", slot, 1).startswith("WRONGTYPE ")
    node.client.delete(key)


def test_wrong_arguments_are_refused(boxes: Nodes) -> None:
    node, client_id, _other = two_of(boxes)
    slot = die(node, client_id)
    for words in (("SLOT", 16384), ("COUNT", 0), ("COUNT", 1001), ("AFTER", -1), ("NOW",)):
        assert str(words[-1]) in error_of(node.client, "OUTBOX.READ", *words)
    assert "0" in error_of(node.client, "OUTBOX.ACK", slot, 0)
    elsewhere = next(other for other in boxes.all if other is not node)
    assert error_of(elsewhere.client, "OUTBOX.READ", "SLOT", slot) == f"MOVED {slot}"
    assert error_of(elsewhere.client, "OUTBOX.ACK", slot, 1) == f"MOVED {slot}"
    assert len(read(node)) == 1


def test_an_outbox_moves_with_its_slot(moved: Nodes) -> None:
    switch_on(moved)
    source, client_id, _other = two_of(moved)
    target = moved.all[1]
    slot = die(source, client_id)
    before = read(source)
    move = SlotMove(moved.cluster, source.server, target.server, slot)
    move.begin()
    assert read(source) == []
    assert error_of(source.client, "OUTBOX.ACK", slot, before[0][1]).startswith("TRYAGAIN ")
    for key in move.keys(100):
        move.move(key)
        assert read(source) == read(target) == []
    move.end()
    assert read(source) == []
    assert read(target) == before
    assert target.client.execute_command("OUTBOX.ACK", slot, before[0][1]) == 1


def test_an_outbox_survives_the_loss_of_its_node(failover: Failover) -> None:
    switch_on(failover.nodes)
    node, client_id, _other = two_of(failover.nodes)
    slot = slot_of(session_of(client_id))
    replica = failover.add_replica(node)
    die(node, client_id)
    before = read(node)
    failover.replace(node, replica, slot)
    assert read(replica) == before
    assert replica.client.execute_command("OUTBOX.ACK", slot, before[0][1]) == 1


def test_an_outbox_survives_a_restart(fresh_cluster: Callable[..., Cluster]) -> None:
    nodes = Nodes(fresh_cluster(3, config=["appendonly yes"]))
    switch_on(nodes)
    node, client_id, _other = two_of(nodes)
    die(node, client_id)
    before = read(node)
    node.server.restart()
    again = Node(node.server)

    def serves() -> bool:
        try:
            return read(again) == before
        except redis.exceptions.ClusterDownError:
            return False

    eventually(serves, WAIT_S, "a node that serves its outbox")
