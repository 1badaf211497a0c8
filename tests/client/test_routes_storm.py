"""Publishes of a program while slots move key by key both ways, and while a node is replaced by its replica."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from holdmq import HoldMQ, HoldMQError
from holdmq.core import slot_of
from tests.client.support import message_of
from tests.module.cluster.routes_support import Failover, Nodes, session_of
from tests.module.cluster_support import FAILS_OVER, SlotMove
from tests.support import Cluster, Server, eventually

WAIT_S = 60.0
TOPIC = "plant/7"


def client_of(nodes: Nodes) -> HoldMQ:
    """A client of the nodes that run."""
    startup = [redis.cluster.ClusterNode("127.0.0.1", node.server.port) for node in nodes.all]
    return HoldMQ(redis.RedisCluster(startup_nodes=startup))


def learned(nodes: Nodes) -> Nodes:
    """The same, with each other's routes."""
    for node in nodes.all:
        node.learn(nodes.all)
    return nodes


class Publisher:
    """A thread that publishes numbers.

    Attributes:
        granted: those whose publish returned.
        failed: those whose outcome is not known.
    """

    def __init__(self, hold: HoldMQ) -> None:
        self._hold = hold
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.granted: list[int] = []
        self.failed: list[int] = []

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            try:
                self._hold.topics.publish(TOPIC, b"%d" % number, qos=1)
            except (redis.ConnectionError, HoldMQError):
                self.failed.append(number)
            else:
                self.granted.append(number)
            time.sleep(0.002)  # a queue has room for the whole test

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join(WAIT_S)

    def goes_on(self) -> None:
        """Wait until it has published some more."""
        before = len(self.granted)
        eventually(lambda: len(self.granted) > before + 20, WAIT_S, "publishes that return")


def numbers(hold: HoldMQ, client_id: str) -> list[int]:
    """What is in the queue of a session."""
    found: list[int] = []
    session, after = hold.session(client_id), 0
    while entries := session.fetch(after=after, count=1000).entries:
        found += [int(message_of(entry).payload) for entry in entries]
        after = entries[-1].serial
    return found


@pytest.fixture
def clients() -> Iterator[Callable[[Nodes], HoldMQ]]:
    """Makes clients, which are closed afterwards."""
    made: list[HoldMQ] = []

    def make(nodes: Nodes) -> HoldMQ:
        made.append(client_of(nodes))
        return made[-1]

    yield make
    for hold in made:
        hold.client.close()


def test_every_publish_that_returns_is_in_each_session_once_and_in_order_while_slots_move(
    fresh_cluster: Callable[..., Cluster], clients: Callable[[Nodes], HoldMQ]
) -> None:
    nodes = learned(Nodes(fresh_cluster(3)))
    hold = clients(nodes)
    names = [next(iter(nodes.clients(node))) for node in nodes.all]
    for name in names:
        hold.session(name).subscribe("plant/#")
    home = nodes.of(TOPIC)
    publisher = Publisher(clients(nodes))
    moved = [session_of(name) for name in names if nodes.of(name) is not home] + [session_of(TOPIC)]
    with publisher.running():
        for key in moved:
            source, target = (
                nodes.cluster.node_of(key),
                next(node.server for node in nodes.all if node.server is not nodes.cluster.node_of(key)),
            )
            for giver, taker in ((source, target), (target, source)):
                publisher.goes_on()
                move = SlotMove(nodes.cluster, giver, taker, slot_of(key))
                move.begin()
                for _ in move.move_all(10):
                    pass
                move.end()
        publisher.goes_on()
    assert publisher.failed == []
    for name in names:
        assert numbers(hold, name) == publisher.granted


def test_every_publish_that_returns_is_in_each_session_when_a_node_is_replaced(
    fresh_cluster: Callable[..., Cluster],
    fresh_server: Callable[..., Server],
    clients: Callable[[Nodes], HoldMQ],
) -> None:
    failover = Failover(Nodes(fresh_cluster(3, config=FAILS_OVER)), fresh_server)
    nodes = learned(failover.nodes)
    hold = clients(nodes)
    names = [next(iter(nodes.clients(node))) for node in nodes.all]
    for name in names:
        hold.session(name).subscribe("plant/#")
    lost = next(node for node in nodes.all if node is not nodes.of(TOPIC))
    slot = slot_of(session_of(next(name for name in names if nodes.of(name) is lost)))
    replica = failover.add_replica(lost)
    publisher = Publisher(clients(nodes))
    with publisher.running():
        publisher.goes_on()
        lost.client.execute_command("CLIENT", "PAUSE", 500, "WRITE")  # what it acknowledged is on its replica
        failover.replace(lost, replica, slot)
        publisher.goes_on()
    assert len(publisher.failed) <= 1
    certain = set(publisher.granted)
    for name in names:
        found = numbers(hold, name)
        assert [number for number in found if number in certain] == publisher.granted
        assert sorted(set(found)) == found
