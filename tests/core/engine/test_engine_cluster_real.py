"""Publishes that cross the nodes of a real cluster: order and acknowledgements while slots move and links break."""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from holdmq import core
from holdmq.core.engine import EventKind, Store
from tests.core.engine.engine_front import Front, first_of_each, got, subscribe
from tests.module.cluster_support import SlotMove, owner
from tests.support import Cluster

Make = Callable[[Cluster], Front]


@pytest.fixture
def fronts() -> Iterator[Make]:
    """Makes fronts, and closes them."""
    made: list[Front] = []

    def make(cluster: Cluster) -> Front:
        made.append(Front(cluster))
        return made[-1]

    yield make
    for front in made:
        front.close()


def one_on_each(front: Front) -> list[str]:
    return [next(front.nodes.clients(node)) for node in front.nodes.all]


def send_all(front: Front, conn: int, numbers: range, topic: bytes = b"t") -> None:
    for number in numbers:
        front.publish(conn, topic, number)


def test_a_publish_reaches_the_sessions_of_all_nodes_before_its_puback(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    listeners = one_on_each(front)
    for name in listeners:
        subscribe(front.nodes, name, "t")
    conn = front.open("publisher")
    send_all(front, conn, range(1, 101))
    seen = 0
    while seen < 100:
        front.turn()
        if len(front.acknowledged(conn)) > seen:
            seen = len(front.acknowledged(conn))
            for node, name in zip(front.nodes.all, listeners, strict=True):
                assert len(got(node, name)) >= seen
    assert front.acknowledged(conn) == list(range(1, 101))
    for node, name in zip(front.nodes.all, listeners, strict=True):
        assert got(node, name) == list(range(1, 101))
    counters = front.engine.counters()
    assert counters["routes_asked"] == 1
    assert counters["visits_sent"] == 300
    assert {EventKind.ROUTES_MISSING} <= {event.kind for event in front.events}


def test_a_publish_visits_only_nodes_with_subscribers(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    listener = next(front.nodes.clients(front.nodes.all[1]))
    subscribe(front.nodes, listener, "only")
    conn = front.open("publisher")
    send_all(front, conn, range(1, 51), b"only")
    front.until(lambda: len(front.acknowledged(conn)) == 50, "all PUBACKs")
    assert front.engine.counters()["visits_sent"] == 50
    assert got(front.nodes.all[1], listener) == list(range(1, 51))


def test_a_subscription_counts_for_the_next_publish(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    names = [name for node in front.nodes.all for name in islice(front.nodes.clients(node), 5)]
    conn = front.open("publisher")
    for number, name in enumerate(names, 1):
        front.publish(conn, b"a/b", 2 * number - 1)  # may be under way
        subscribe(front.nodes, name, "a/+")
        front.publish(conn, b"a/b", 2 * number)
    front.until(lambda: len(front.acknowledged(conn)) == 2 * len(names), "all PUBACKs")
    for number, name in enumerate(names, 1):
        numbers = got(front.nodes.of(name), name)
        assert numbers == sorted(numbers)
        assert set(range(2 * number, 2 * len(names) + 1)) <= set(numbers)


def test_retained_messages_are_kept_by_the_nodes_of_their_topics(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    listeners = one_on_each(front)
    for name in listeners:
        subscribe(front.nodes, name, "plant/#")
    conn = front.open("publisher")
    for number in range(1, 31):
        front.publish(conn, b"plant/%d" % (number % 10), number, retain=number % 3 > 0)
    front.until(lambda: len(front.acknowledged(conn)) == 30, "all PUBACKs")
    for node, name in zip(front.nodes.all, listeners, strict=True):
        assert sorted(got(node, name)) == list(range(1, 31))
        for topic in range(10):
            numbers = got(node, name, b"plant/%d" % topic)
            assert numbers == sorted(numbers)
    for topic in range(10):
        key = f"{{plant/{topic}}}_retained"
        kept = cluster.node_of(key).client().hget(key, "payload")
        assert kept == b"%d" % max(n for n in range(1, 31) if n % 10 == topic and n % 3 > 0)


class Traffic:
    """Publishers that each send the same numbers to a topic of their own.

    Attributes:
        sent: the last number.
    """

    def __init__(self, front: Front, publishers: int) -> None:
        self.front = front
        self.conns = [front.open(f"publisher-{at}") for at in range(publishers)]
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            for at, conn in enumerate(self.conns):
                self.front.publish(conn, b"t/%d" % at, self.sent)
            if self.sent % 5 == 0:
                self.front.turn(0)

    def end(self) -> list[int]:
        """All numbers, once each publisher has its PUBACKs in order."""
        numbers = list(range(1, self.sent + 1))
        self.front.until(
            lambda: all(len(self.front.acknowledged(conn)) == self.sent for conn in self.conns), "all PUBACKs"
        )
        assert [self.front.acknowledged(conn) for conn in self.conns] == [numbers] * len(self.conns)
        return numbers


def move_to_next(cluster: Cluster, name: str, traffic: Traffic) -> None:
    """Moves the slot of a session key by key, while messages are sent."""
    slot = core.slot_of(core.session_key(name.encode()))
    source = cluster.node_of(name)
    move = SlotMove(cluster, source, cluster.nodes[(cluster.nodes.index(source) + 1) % 3], slot)
    move.begin()
    traffic.send(20)
    for _ in move.move_all(10):
        traffic.send(3)
        traffic.front.turn(0)
    move.end()
    traffic.send(20)


@pytest.mark.parametrize("publishers", [1, 3])
def test_order_holds_while_slots_move_key_by_key(
    fresh_cluster: Callable[..., Cluster], fronts: Make, publishers: int
) -> None:
    cluster = fresh_cluster(3)
    front = fronts(cluster)
    listeners = one_on_each(front)
    for name in listeners:
        subscribe(front.nodes, name, "t/+")
    traffic = Traffic(front, publishers)
    traffic.send(50)
    for name in listeners:
        move_to_next(cluster, name, traffic)
    numbers = traffic.end()
    for name in listeners:
        holder = owner(cluster, core.slot_of(core.session_key(name.encode())))
        node = next(node for node in front.nodes.all if node.server is holder)
        for at in range(publishers):
            assert got(node, name, b"t/%d" % at) == numbers  # once: nothing was lost with a link


def test_a_publisher_whose_own_slot_moves_continues(fresh_cluster: Callable[..., Cluster], fronts: Make) -> None:
    cluster = fresh_cluster(2)
    front = fronts(cluster)
    listener = next(front.nodes.clients(front.nodes.all[1]))
    subscribe(front.nodes, listener, "t")
    name = next(front.nodes.clients(front.nodes.all[0]))
    conn = front.open(name)
    send_all(front, conn, range(1, 21))
    front.turn()
    move = SlotMove(cluster, cluster.nodes[0], cluster.nodes[1], core.slot_of(core.session_key(name.encode())))
    move.begin()
    send_all(front, conn, range(21, 41))
    for _ in move.move_all(1):
        front.turn()
    move.end()
    send_all(front, conn, range(41, 61))
    front.until(lambda: len(front.acknowledged(conn)) == 60, "all PUBACKs")
    assert front.acknowledged(conn) == list(range(1, 61))
    assert got(front.nodes.all[1], listener) == list(range(1, 61))
    assert front.engine.link_of(conn) == 1


def test_links_that_break_between_publish_and_reply(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    listeners = one_on_each(front)
    for name in listeners:
        subscribe(front.nodes, name, "t")
    conn = front.open("publisher")
    sent = 0
    for round_ in range(9):
        send_all(front, conn, range(sent + 1, sent + 21))
        sent += 20
        link = round_ % 3
        if round_ % 2 == 0:
            front.turn(0)
        front.lose(link)
        front.turn(0)
        front.connect(link)
    front.until(lambda: len(front.acknowledged(conn)) == sent, "all PUBACKs")
    assert front.acknowledged(conn) == list(range(1, sent + 1))
    for node, name in zip(front.nodes.all, listeners, strict=True):
        assert first_of_each(got(node, name)) == list(range(1, sent + 1))


def test_a_node_that_forgets_its_routes_is_fed_again(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    listeners = one_on_each(front)
    for name in listeners:
        subscribe(front.nodes, name, "t")
    conn = front.open("publisher")
    sent = 0
    for _ in range(4):
        send_all(front, conn, range(sent + 1, sent + 21))
        sent += 20
        front.turn(0)
        front.nodes.of("publisher").renew()
    front.until(lambda: len(front.acknowledged(conn)) == sent, "all PUBACKs")
    assert front.acknowledged(conn) == list(range(1, sent + 1))
    for node, name in zip(front.nodes.all, listeners, strict=True):
        assert got(node, name) == list(range(1, sent + 1))
    missing = [event for event in front.events if event.kind == EventKind.ROUTES_MISSING]
    assert {event.code for event in missing} >= {0}


def test_a_node_that_restarts_has_exported_to_nobody(fresh_cluster: Callable[..., Cluster], fronts: Make) -> None:
    cluster = fresh_cluster(3, aof=True)
    front = fronts(cluster)
    name = next(front.nodes.clients(front.nodes.all[1]))
    subscribe(front.nodes, name, "t")
    conn = front.open(next(front.nodes.clients(front.nodes.all[0])))
    send_all(front, conn, range(1, 11))
    front.until(lambda: len(front.acknowledged(conn)) == 10, "PUBACKs")
    front.lose(1)
    cluster.nodes[1].restart()
    front.connect(1)
    send_all(front, conn, range(11, 21))
    front.until(lambda: len(front.acknowledged(conn)) == 20, "all PUBACKs")
    assert got(front.nodes.all[1], name)[-10:] == list(range(11, 21))
    assert 1 in {event.code for event in front.events if event.kind == EventKind.ROUTES_MISSING}


def test_history_is_kept_in_the_slot_of_its_shard(cluster: Cluster, fronts: Make) -> None:
    front = fronts(cluster)
    for node in front.nodes.all:
        node.client.execute_command(
            *("HISTORY.STORE", "kept", "FILTER", "kept/#", "SHARDS", 3, "SEED", "0" * 32, "CHANGED", 1)
        )
    keys = [b"{kept/%d}_history" % shard for shard in range(3)]
    front.engine.stores([Store((b"kept/#",), 0, tuple(map(core.slot_of, keys)))])
    conn = front.open("publisher")
    for number in range(1, 31):
        front.publish(conn, b"kept/%d" % number, number)
    front.until(lambda: len(front.acknowledged(conn)) == 30, "all PUBACKs")
    kept: dict[int, int] = {}
    for server in {cluster.node_of(key).port: cluster.node_of(key) for key in keys}.values():
        for shard in server.client().execute_command("HISTORY.INFO", "kept")[b"shard"]:
            kept[shard[b"shard"]] = shard[b"last"]
    assert sum(kept.values()) == 30
    assert all(kept.values())
