"""The end of a client's session, in a cluster: its slot's outbox says which members of groups end with it."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdmq.core import slot_of
from tests.module.cluster.routes_support import Node, Nodes, session_of
from tests.support import eventually

WAIT_S = 20.0
GROUP, OTHER = "$share/g/t", "$share/h/t"
MARK = b"\xfc"


@pytest.fixture
def boxes(nodes: Nodes) -> Iterator[Nodes]:
    """Nodes with outboxes, of ends only."""
    for node in nodes.all:
        node.client.config_set("holdmq.outbox-bytes", 4096)
        node.client.config_set("holdmq.presence", "no")
        node.client.execute_command("OUTBOX.READ")  # a reader
    yield nodes
    for node in nodes.all:
        node.client.config_set("holdmq.outbox-bytes", 0)
        node.client.config_set("holdmq.presence", "yes")


def opened(node: Node, key: str, *words: Any) -> int:
    reply = node.client.execute_command("SESSION.OPEN", key, "OWNER", "o", *words)
    return int(reply[0])


def ends(node: Node) -> list[tuple[int, bytes]]:
    """Slot and text of the ends in the outboxes of a node."""
    rows = node.client.execute_command("OUTBOX.READ")
    return sorted((slot, body) for slot, _number, body in rows)


def expected(key: str, epoch: int, *groups: str) -> list[tuple[int, bytes]]:
    client = key[1:-1]
    return sorted((slot_of(key), MARK + f"{epoch} {client}:{{{group}}}".encode()) for group in groups)


def member_of(nodes: Nodes) -> tuple[Node, str, int]:
    """A session that notes two groups: its node, key and epoch."""
    node = nodes.all[0]
    key = session_of(next(nodes.clients(node)))
    epoch = opened(node, key, "EXPIRY", 60)
    node.client.execute_command("SESSION.SUBSCRIBE", key, "EPOCH", epoch, GROUP, "1&3", "t", 1, OTHER, "1&4")
    node.client.execute_command("SESSION.SUBSCRIBE", key, "EPOCH", epoch, GROUP, "2&3")
    return node, key, epoch


def test_a_session_that_is_dropped_names_its_members(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    assert ends(node) == []
    node.client.execute_command("SESSION.DROP", key)
    assert ends(node) == expected(key, epoch, GROUP, OTHER)


def test_a_session_that_begins_clean_names_the_members_of_the_former_one(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    later = opened(node, key, "CLEAN", "EXPIRY", 60)
    assert later > epoch
    assert ends(node) == expected(key, epoch, GROUP, OTHER)
    node.client.execute_command("SESSION.DROP", key)
    assert ends(node) == expected(key, epoch, GROUP, OTHER)  # the new one has no members


def test_a_session_that_is_closed_for_good_names_its_members(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    node.client.execute_command("SESSION.CLOSE", key, "EPOCH", epoch, "EXPIRY", 0)
    assert ends(node) == expected(key, epoch, GROUP, OTHER)


def test_a_session_that_expires_with_a_will_names_its_members(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    epoch = opened(node, key, "EXPIRY", 1, "WILL", "w", "x", "WILLDELAY", 60)
    node.client.execute_command("SESSION.CLOSE", key, "EPOCH", epoch, "WILL")
    wanted = expected(key, epoch, GROUP, OTHER)
    eventually(lambda: [one for one in ends(node) if one[1].startswith(MARK)] == wanted, WAIT_S, "the ends")


def test_a_group_that_was_left_is_not_named(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    node.client.execute_command("SESSION.UNSUBSCRIBE", key, "EPOCH", epoch, GROUP, "t")
    node.client.execute_command("SESSION.DROP", key)
    assert ends(node) == expected(key, epoch, OTHER)


def test_a_session_that_lives_on_names_nobody(boxes: Nodes) -> None:
    node, key, epoch = member_of(boxes)
    node.client.execute_command("SESSION.CLOSE", key, "EPOCH", epoch)
    opened(node, key, "EXPIRY", 60)
    assert ends(node) == []


def test_at_most_64_members_are_named(boxes: Nodes) -> None:
    node = boxes.all[0]
    node.client.config_set("holdmq.outbox-bytes", 1 << 20)
    key = session_of(next(boxes.clients(node)))
    epoch = opened(node, key, "EXPIRY", 60)
    pairs = [word for at in range(70) for word in (f"$share/g/{at}", "1&1")]
    node.client.execute_command("SESSION.SUBSCRIBE", key, "EPOCH", epoch, *pairs)
    node.client.execute_command("SESSION.DROP", key)
    rows = node.client.execute_command("OUTBOX.READ", "SLOT", slot_of(key), "COUNT", 1000)
    assert len(rows) == 64
    boxes.all[0].server.check_indexes()


def test_an_end_that_has_no_room_is_logged(boxes: Nodes) -> None:
    node, key, _epoch = member_of(boxes)
    node.client.config_set("holdmq.outbox-bytes", 10)
    node.client.execute_command("SESSION.DROP", key)
    assert ends(node) == []
    assert "member sessions of a client that ended stay until they expire" in node.server.log_text()
