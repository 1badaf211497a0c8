"""Many checks in one command (ROUTE.MCHECK), and a node that stood still."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import redis

from tests.module.cluster.routes_support import WAIT_S, Node, Nodes, error_of, session_of, slot_of
from tests.module.cluster_support import SlotMove
from tests.support import Cluster, Server, eventually

TIMEOUT_MS = 1500


def checks(node: Node, n: int, *asked: tuple[str, str, int, int]) -> Any:
    """ROUTE.MCHECK; an error of one check is its text."""
    words = [word for one in asked for word in one]
    found, generation, replies = node.client.execute_command("ROUTE.MCHECK", node.id, n, *words)
    assert found == node.id.encode()
    assert generation == node.info().generation
    return [str(reply) if isinstance(reply, redis.ResponseError) else reply for reply in replies]


@pytest.fixture
def node(nodes: Nodes) -> Node:
    """A node that knows all routes."""
    found = nodes.all[0]
    found.learn(nodes.all)
    return found


def test_many_topics_are_checked_at_once(nodes: Nodes, node: Node) -> None:
    one, two = (session_of(name) for name in islice(nodes.clients(node), 2))
    node.add("a/+", 5)
    node.add("b", 6)
    n = node.info().generation
    a, b, c = checks(node, n, (one, "a/b", 0, -1), (two, "b", 0, -1), (two, "c", 0, -1))
    assert (a[1], b[1], c[1]) == ([5, 5], [6, 6], [])
    assert checks(node, n, (two, "b", 0, b[0]), (one, "a/b", 0, a[0]), (one, "a/b", 0, a[0] + 1)) == [b"OK", b"OK", a]
    node.add("a/b", 7)
    again, still = checks(node, n, (one, "a/b", 0, a[0]), (two, "b", 0, b[0]))
    assert again[1] == [5, 5, 7, 7]
    assert still == b"OK"
    assert checks(node, n + 1, (two, "b", 0, b[0])) == [b]  # the caller knows it of another generation
    left = 1024
    while left:  # on a slow machine a command has not the time for all
        replies = checks(node, n, *[(two, "b", 0, b[0])] * left)
        done = replies.count(b"OK")
        assert done > 0
        assert [b"OK"] * done == replies[:done]
        assert all("ask for this topic again" in reply for reply in replies[done:])
        left -= done


def test_each_check_has_its_own_refusal(nodes: Nodes, node: Node) -> None:
    name = next(nodes.clients(node))
    key, other = session_of(name), session_of(next(nodes.clients(nodes.all[1])))
    epoch = node.client.execute_command("SESSION.OPEN", key, "OWNER", "bridge")[0]
    n = node.info().generation
    good, fenced, unknown, moved = checks(
        node,
        n,
        (key, "a", epoch, -1),
        (key, "a", epoch + 1, -1),
        (f"x{key}", "a", 5, -1),
        (other, "a", 0, -1),
    )
    assert good[1] == []
    assert fenced.startswith("FENCED")
    assert unknown.startswith("NOSESSION")
    assert str(slot_of(other[1:-1])) in moved


def test_a_session_whose_slot_is_moving_is_not_checked(moved: Nodes) -> None:
    node, target, _third = moved.all
    node.learn(moved.all)
    name, other = islice(moved.clients(node), 2)
    move = SlotMove(moved.cluster, node.server, target.server, slot_of(name))
    move.begin()
    n = node.info().generation
    replies = checks(node, n, (session_of(name), "a", 0, -1), (session_of(other), "a", 0, -1))
    assert "moving to another node" in replies[0]
    assert replies[1][1] == []


def test_arguments_that_are_not_checks_are_refused_as_a_whole(nodes: Nodes, node: Node) -> None:
    key = session_of(next(nodes.clients(node)))
    n = node.info().generation
    one = (key, "a", 0, -1)
    for words, error in (
        ((node.id, n, *one, key), "5 arguments remain; expected session key, topic, epoch and version for each check"),
        ((node.id, n, *(one * 1025)), "4100 arguments remain"),
        (("x", n, *one), "node is 'x'"),
        ((node.id, 0, *one), "generation is '0'"),
        ((node.id, n, "c", "a", 0, -1), "the session key is 'c'"),
        ((node.id, n, *one, key, "a/+", 0, -1), "INVALIDTOPIC the topic 'a/+'"),
        ((node.id, n, key, "a", -1, -1), "epoch is '-1'"),
        ((node.id, n, key, "a", 0, -2), "version is '-2'; expected a whole number from -1 to"),
    ):
        assert error in error_of(node.client, "ROUTE.MCHECK", *words)
    node.renew()
    assert error_of(node.client, "ROUTE.MCHECK", node.id, n, *one).startswith("NOROUTES")


def test_checks_take_a_bounded_time(nodes: Nodes, node: Node) -> None:
    key = session_of(next(nodes.clients(node)))
    with node.client.pipeline(transaction=False) as pipeline:
        for begin in range(0, 16384, 4096):
            pipeline.execute_command(
                "ROUTE.ADD", *(word for slot in range(begin, begin + 4096) for word in ("#", slot))
            )
        pipeline.execute()
    n = node.info().generation
    replies = checks(node, n, *[(key, f"t/{i}", 0, -1) for i in range(1024)])
    late = [reply for reply in replies if isinstance(reply, str)]
    assert replies[0][1] == [0, 16383]
    assert late
    assert all("the command has taken its share of the server's time (2 ms); ask for this" in text for text in late)


# --- A node that stood still ------------------------------------------------------------------------------------------


@pytest.fixture
def still(fresh_cluster: Callable[..., Cluster]) -> Nodes:
    """Three nodes whose first knows all routes, and of which none is replaced."""
    nodes = Nodes(fresh_cluster(3, config=[f"cluster-node-timeout {TIMEOUT_MS}"]))
    nodes.all[0].learn(nodes.all)
    return nodes


def stop(server: Server, seconds: float) -> None:
    """Let a server stand still for so long: this time is what is tested."""
    server.pause()
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= end, seconds + 5, "the time")
    server.resume()


def answers(node: Node, key: str) -> bool:
    """Does it answer checks?"""
    try:
        node.client.execute_command("ROUTE.CHECK", key, "a")
    except (redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError):
        return False
    return True


def test_a_node_that_stood_still_answers_no_check_until_the_majority_has_answered_it(still: Nodes) -> None:
    node = still.all[0]
    name = next(still.clients(node))
    key, n = session_of(name), node.info().generation
    with node.server.client(socket_timeout=60).client() as waiting:  # its commands wait in a buffer
        waiting.execute_command("PING")
        assert answers(node, key)
        node.server.pause()
        end = time.monotonic() + TIMEOUT_MS / 1000 + 0.7
        waiting.connection.send_command("ROUTE.CHECK", key, "a")
        eventually(lambda: time.monotonic() >= end, 10, "the time")
        node.server.resume()
        with pytest.raises(redis.ResponseError, match=r"did not run for|cluster is down"):
            waiting.connection.read_response()
    eventually(lambda: answers(node, key), WAIT_S, "a node that answers again")
    assert node.info().generation == n


def test_without_the_majority_it_does_not_answer(still: Nodes) -> None:
    node, *others = still.all
    key = session_of(next(still.clients(node)))
    for other in others:
        other.server.pause()
    try:
        stop(node.server, TIMEOUT_MS / 1000 + 0.5)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert not answers(node, key)
    finally:
        for other in others:
            other.server.resume()
    eventually(lambda: answers(node, key), WAIT_S, "a node that answers again")


def test_a_shorter_pause_is_not_a_standstill(still: Nodes) -> None:
    node = still.all[0]
    key = session_of(next(still.clients(node)))
    stop(node.server, 0.4)
    assert answers(node, key)


def test_a_long_command_is_a_standstill_too(still: Nodes) -> None:
    node = still.all[0]
    key = session_of(next(still.clients(node)))
    with node.server.client(socket_timeout=60).client() as client:
        client.connection.send_packed_command(
            client.connection.pack_commands([("DEBUG", "SLEEP", TIMEOUT_MS / 1000 + 0.5), ("ROUTE.CHECK", key, "a")])
        )
        first = client.connection.read_response()
        assert first == b"OK"
        with pytest.raises(redis.ResponseError, match=r"did not run for|cluster is down"):
            client.connection.read_response()
    eventually(lambda: answers(node, key), WAIT_S, "a node that answers again")
