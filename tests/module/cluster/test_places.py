"""The place of a new subscription among the retained messages of a cluster: in its session, moved by deliveries."""

from typing import Any

import pytest

from holdmq.core import Record
from tests.module.cluster.routes_support import Node, Nodes, error_of, session_of

RECORD = Record(topic=b"t/1", payload=b"x", qos=1, retain=True, time_ms=1).encode()


def opened(nodes: Nodes, expiry_s: int = 60) -> tuple[Node, str, int]:
    node = nodes.all[0]
    key = session_of(next(nodes.clients(node)))
    reply: Any = node.client.execute_command("SESSION.OPEN", key, "OWNER", "o", "EXPIRY", expiry_s)
    return node, key, int(reply[0])


def places(node: Node, key: str) -> dict[bytes, bytes]:
    found: Any = node.client.hgetall(f"{key}_places")
    return dict(found)


def queued(node: Node, key: str) -> int:
    return len(node.client.execute_command("SESSION.FETCH", key)[0])


def test_a_place_begins_with_the_subscription_if_retained_messages_are_due(nodes: Nodes) -> None:
    node, key, _epoch = opened(nodes)
    pairs = ["t/#", 1, "u/#", "1:7", "v/#", 32, "w/#", 16, "$share/g/x", "1&1"]  # v: do not send; w: if new
    node.client.execute_command("SESSION.SUBSCRIBE", key, *pairs)
    assert places(node, key) == {b"t/#": b"1 ", b"u/#": b"1:7 ", b"w/#": b"16 "}
    assert 0 < node.client.pttl(f"{key}_places") == pytest.approx(node.client.pttl(f"{key}_subscriptions"), abs=1000)
    node.client.execute_command("SESSION.UNSUBSCRIBE", key, "t/#", "u/#", "w/#")
    assert places(node, key) == {}
    node.server.check_indexes()


def test_a_session_that_ends_with_its_connection_has_no_places(nodes: Nodes) -> None:
    node, key, _epoch = opened(nodes, 0)
    node.client.execute_command("SESSION.SUBSCRIBE", key, "t/#", 1)
    assert places(node, key) == {}


@pytest.mark.parametrize("how", ["DROP", "CLEAN"])
def test_places_end_with_the_session(nodes: Nodes, how: str) -> None:
    node, key, _epoch = opened(nodes)
    node.client.execute_command("SESSION.SUBSCRIBE", key, "t/#", 1)
    if how == "DROP":
        node.client.execute_command("SESSION.DROP", key)
    else:
        node.client.execute_command("SESSION.OPEN", key, "OWNER", "o", "EXPIRY", 60, "CLEAN")
    assert places(node, key) == {}


def test_a_place_moves_with_what_is_delivered_and_only_from_where_it_is(nodes: Nodes) -> None:
    node, key, epoch = opened(nodes)
    node.client.execute_command("SESSION.SUBSCRIBE", key, "t/#", 1)
    deliver = ("SESSION.DELIVER", key, "EPOCH", epoch, "RETAINED", "t/#")
    assert node.client.execute_command(*deliver, "1 ", "1 a", RECORD) == 1
    assert places(node, key) == {b"t/#": b"1 a"}
    refused = error_of(node.client, *deliver, "1 ", "1 b", RECORD)
    assert refused.startswith("STALE the place of RETAINED is '1 '; another one of the filter 't/#'")
    assert error_of(node.client, *deliver, "1 a", "x" * 8193).startswith("the place of RETAINED has 8193 bytes")
    assert "the new place of RETAINED" in error_of(node.client, *deliver, "1 a")
    assert queued(node, key) == 1
    assert node.client.execute_command(*deliver, "1 a", "1 a", RECORD) == 1
    assert node.client.execute_command(*deliver, "1 a", "") == 0
    assert places(node, key) == {}
    assert error_of(node.client, *deliver, "1 a", "1 b", RECORD).startswith("STALE")
    assert queued(node, key) == 2
    node.client.execute_command("SESSION.SUBSCRIBE", key, "t/#", 1)  # begins again
    assert places(node, key) == {b"t/#": b"1 "}
