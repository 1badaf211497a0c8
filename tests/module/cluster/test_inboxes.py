"""Pushes to inboxes do not take the bus of the cluster, unless the owner of the session listens on another node."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import redis

from tests.module.cluster.routes_support import WAIT_S, Node, Nodes, session_of
from tests.support import eventually


class Listener:
    """A connection that listens on the inbox of a session."""

    def __init__(self, node: Node, name: str) -> None:
        self._pubsub = node.server.client().pubsub()
        self._pubsub.subscribe(f"{session_of(name)}_inbox")
        eventually(lambda: self._next()["type"] == "subscribe", WAIT_S, "the subscription")

    def _next(self) -> dict[str, Any]:
        message = self._pubsub.get_message(timeout=0.2)
        return message or {"type": None, "data": b""}

    def wait_for(self, payload: bytes) -> None:
        """Until a push has this payload."""
        eventually(lambda: payload in bytes(self._next()["data"]), WAIT_S, f"a push with {payload!r}")

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    """Those that are to be closed."""
    made: list[Listener] = []
    yield made
    for one in made:
        one.close()


def on_the_bus(node: Node) -> int:
    """How many published messages the node has sent to others."""
    found: dict[str, str] = redis.Redis(port=node.server.port, decode_responses=True).cluster("INFO")
    return int(found.get("cluster_stats_messages_publish_sent", 0))


def opened(node: Node, name: str) -> None:
    """A connected session with a subscription."""
    node.client.execute_command("SESSION.OPEN", session_of(name), "OWNER", "bridge")
    node.subscribe(name, "inbox/t")


def publish(node: Node, payload: str) -> None:
    node.client.execute_command("TOPIC.PUBLISH", "inbox/t", payload, "QOS", 1)


def test_a_push_to_an_owner_that_listens_here_does_not_take_the_bus(nodes: Nodes, listeners: list[Listener]) -> None:
    node = nodes.all[0]
    name = next(nodes.clients(node))
    opened(node, name)
    listeners.append(Listener(node, name))
    before = on_the_bus(node)
    for number in range(20):
        publish(node, f"number {number}")
    listeners[0].wait_for(b"number 19")
    assert on_the_bus(node) == before


def test_a_message_for_a_session_that_is_away_does_not_take_the_bus(nodes: Nodes) -> None:
    node = nodes.all[0]
    name = next(nodes.clients(node))
    node.subscribe(name, "inbox/t")
    before = on_the_bus(node)
    publish(node, "x")
    assert on_the_bus(node) == before


def test_an_owner_that_has_not_followed_its_slot_yet_is_reached_over_the_bus(
    nodes: Nodes, listeners: list[Listener]
) -> None:
    node, former, _ = nodes.all
    name = next(islice(nodes.clients(node), 1, None))
    opened(node, name)
    listeners.append(Listener(former, name))
    publish(node, "from the new node")
    listeners[0].wait_for(b"from the new node")
