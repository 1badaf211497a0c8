"""The map of a cluster, from replies as nodes send them: addresses, epochs, gaps, redirections, other clusters."""

from typing import Any

import pytest

from holdmq_bridge.server.cluster_map import (
    SLOTS,
    Address,
    ClusterError,
    ClusterMap,
    Node,
    RefreshTimer,
    View,
    module_version,
    newest,
    redirection,
    shown_slots,
)

ASKED = ("10.0.0.9", 7000)
Row = list[Any]


def info(epoch: int = 1, state: str = "ok") -> bytes:
    return f"cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n".encode()


def row(begin: int, end: int, number: int, host: bytes | None = None, *more: Any) -> Row:
    """A row of CLUSTER SLOTS, with a replica."""
    endpoint = b"10.0.0.%d" % number if host is None else host
    return [begin, end, [endpoint, 6379, b"id-%d" % number, *more], [b"10.1.0.1", 6379, b"replica", []]]


def view(*rows: Row, epoch: int = 1, state: str = "ok", asked: Address = ASKED) -> View:
    return View.read(asked, info(epoch, state), rows)


def address(entry: list[Any], asked: Address = ASKED) -> Address:
    return View.read(asked, info(), [[0, SLOTS - 1, entry]]).nodes[0].address


THREE = [row(0, 5460, 1), row(5461, 10922, 2), row(10923, 16383, 3)]


def map_of(*rows: Row) -> ClusterMap:
    made = ClusterMap()
    assert made.take(view(*rows))
    return made


def test_each_slot_has_its_node() -> None:
    made = map_of(*THREE)
    for slot, number in ((0, 1), (5460, 1), (5461, 2), (16383, 3)):
        assert made.node_of(slot) == Node(f"id-{number}", (f"10.0.0.{number}", 6379))
    assert made.uncovered() == []
    assert made.is_ok


def test_a_node_may_have_several_ranges() -> None:
    made = map_of(row(0, 0, 1), row(1, 16382, 2), row(16383, 16383, 1))
    assert [(first, last, node and node.id) for first, last, node in made.ranges()] == [
        (0, 0, "id-1"),
        (1, 16382, "id-2"),
        (16383, 16383, "id-1"),
    ]
    assert set(made.nodes) == {"id-1", "id-2"}


def test_an_empty_map_has_no_nodes() -> None:
    made = ClusterMap()
    assert made.node_of(7) is None
    assert made.uncovered() == [(0, 16383)]
    assert not made.is_ok
    assert not made.take(view(state="fail")), "nothing has changed"


def test_slots_without_a_node_are_named() -> None:
    made = map_of(row(10, 19, 1), row(21, 16383, 2))
    assert made.uncovered() == [(0, 9), (20, 20)]
    assert shown_slots(made.uncovered()) == "0-9, 20"
    assert shown_slots([(at, at) for at in range(7)]) == "0, 1, 2, 3, 4 and 2 more ranges"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ([b"10.0.0.1", 6379, b"id", []], ("10.0.0.1", 6379)),
        ([b"host-1.example", 16379, b"id", [b"ip", b"10.0.0.1"]], ("host-1.example", 16379)),
        ([None, 6379, b"id", [b"ip", b"10.0.0.1"]], ("10.0.0.9", 6379)),
        ([b"", 6379, b"id"], ("10.0.0.9", 6379)),
        ([b"?", 6379, b"id", [b"ip", b"10.0.0.1"]], ("10.0.0.1", 6379)),
        ([b"?", 6379, b"id", {b"ip": b"10.0.0.1"}], ("10.0.0.1", 6379)),
        ([b"?", 6379, b"id"], ("10.0.0.9", 6379)),
        ([b"2001:db8::1", 6379, b"id", []], ("2001:db8::1", 6379)),
    ],
)
def test_addresses_are_those_that_are_announced(entry: list[Any], expected: Address) -> None:
    assert address(entry) == expected


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([[0, SLOTS, [b"h", 1, b"id"]]], "slots 0 to 16384; expected 0 to 16383"),
        ([[5, 4, [b"h", 1, b"id"]]], "slots 5 to 4"),
        ([[0, 1, [b"h", 0, b"id"]]], "port 0; expected an id, and a port from 1 to 65535"),
        ([[0, 1, [b"h", 1, b""]]], "a node ''"),
        ([[0, 1]], "no answer of a node of a cluster"),
        ([[0, 1, [b"\xff", 1, b"id"]]], "no answer of a node of a cluster"),
        (7, "no answer of a node of a cluster"),
        ([[at, at, [b"h", 1, b"id-%d" % at]] for at in range(257)], "257 nodes have slots; expected at most 256"),
    ],
)
def test_a_reply_that_is_not_understood_is_refused(rows: Any, complaint: str) -> None:
    with pytest.raises(ClusterError, match=complaint):
        View.read(ASKED, info(), rows)


def test_a_node_outside_a_cluster_gives_no_view() -> None:
    with pytest.raises(ClusterError, match="cluster_current_epoch"):
        View.read(ASKED, b"", [])


def test_a_changed_view_is_noticed_and_an_equal_one_is_not_a_change() -> None:
    made = map_of(*THREE)
    assert not made.take(view(*THREE))
    assert not made.take(view(*reversed(THREE))), "the order of the rows says nothing"
    assert made.take(view(*THREE[:2], row(10923, 16383, 2)))
    assert set(made.nodes) == {"id-1", "id-2"}
    assert made.take(view(*THREE[:2], row(10923, 16383, 2), state="fail"))


def test_a_new_address_is_a_change() -> None:
    made = map_of(*THREE)
    assert made.take(view(row(0, 5460, 1, b"10.9.9.9"), *THREE[1:]))
    node = made.node_of(0)
    assert node == Node("id-1", ("10.9.9.9", 6379))


def test_the_highest_epoch_counts_then_a_node_that_is_not_cut_off() -> None:
    stale, cut, right = view(epoch=3), view(epoch=4, state="fail"), view(*THREE, epoch=4)
    assert newest([stale, cut, right]) is right
    assert newest([right, stale]) is right
    assert newest([cut, stale]) is cut


def test_another_cluster_changes_nothing() -> None:
    made = map_of(*THREE)
    with pytest.raises(ClusterError, match="belongs to another cluster"):
        made.take(view(row(0, 16383, 7), epoch=99))
    assert made.node_of(0) == Node("id-1", ("10.0.0.1", 6379))
    assert made.take(view(row(0, 16383, 3))), "one known node is enough"


def test_a_node_that_was_reset_does_not_empty_the_map() -> None:
    made = map_of(*THREE)
    with pytest.raises(ClusterError, match="no node that has slots"):
        made.take(view())
    assert made.uncovered() == []


def test_a_redirection_counts_until_the_next_view() -> None:
    made = map_of(*THREE)
    node = made.moved(0, ("10.0.0.2", 6379))
    assert node is not None
    assert node.id == "id-2"
    assert made.node_of(0) == node
    assert made.take(view(*THREE))
    assert made.node_of(0) != node


def test_a_redirection_to_an_unknown_node_leaves_the_slot() -> None:
    made = map_of(*THREE)
    assert made.moved(0, ("10.0.0.7", 6379)) is None
    assert made.node_of(0) == Node("id-1", ("10.0.0.1", 6379))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("MOVED 3999 127.0.0.1:6381", (3999, ("127.0.0.1", 6381))),
        ("ASK 0 host-2:6381", (0, ("host-2", 6381))),
        ("MOVED 3999 :6381", (3999, ("10.0.0.9", 6381))),
        ("MOVED 3999 ?:6381", (3999, ("10.0.0.9", 6381))),
        ("MOVED 3999 2001:db8::1:6381", (3999, ("2001:db8::1", 6381))),
        ("MOVED 16384 127.0.0.1:6381", None),
        ("MOVED x 127.0.0.1:6381", None),
        ("MOVED 1 127.0.0.1:", None),
        ("MOVED 1", None),
        ("TRYAGAIN the slot 3 is moving", None),
        ("", None),
    ],
)
def test_redirections_name_slot_and_address(error: str, expected: tuple[int, Address] | None) -> None:
    assert redirection(error, ASKED) == expected


def test_rounds_come_periodically_and_soon_after_a_sign_but_not_too_often() -> None:
    timer = RefreshTimer(10.0, 0.5)
    assert timer.wait_s(100.0) == 0.0
    timer.begin(100.0)
    assert timer.wait_s(103.0) == 7.0
    timer.request()
    assert timer.wait_s(100.1) == pytest.approx(0.4)
    assert timer.wait_s(100.6) == 0.0
    timer.begin(100.6)
    assert timer.wait_s(100.6) == 10.0


def test_signs_during_a_round_lead_to_one_more() -> None:
    timer = RefreshTimer(10.0, 0.5)
    timer.begin(100.0)
    for _ in range(1000):
        timer.request()
    assert timer.wait_s(100.0) == 0.5
    timer.begin(100.5)
    assert timer.wait_s(100.5) == 10.0


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ([], None),
        ([[b"name", b"other", b"ver", 7]], None),
        ([[b"name", b"other", b"ver", 7], [b"name", b"holdmq", b"ver", 200, b"path", b"/m.so"]], 200),
        ([{b"name": b"holdmq", b"ver": 200, b"args": []}], 200),
    ],
)
def test_hello_has_the_version_of_the_module(modules: Any, expected: int | None) -> None:
    assert module_version([b"server", b"valkey", b"modules", modules]) == expected
    assert module_version({b"server": b"valkey", b"modules": modules}) == expected


@pytest.mark.parametrize("reply", [None, [], [b"modules"], {b"modules": [7]}, b"text"])
def test_any_other_reply_to_hello_is_refused(reply: Any) -> None:
    with pytest.raises(ClusterError, match="no reply to HELLO"):
        module_version(reply)
