"""Publishes that cross the nodes of a cluster and wait for replicas at each node that they visit."""

from typing import Any

from holdmq.core.engine import EventKind
from tests.bridge.packets import puback, pubrec
from tests.core.engine.engine_talk import Desk, publish
from tests.core.engine.test_engine_cluster import OK, asked, changed, checks, desk_of, taken, visits, words_of

WAIT = [b"WAIT", b"1", b"100"]


def desk_that_waits(**settings: Any) -> Desk:
    return desk_of(wait_replicas=1, wait_timeout_ms=100, **settings)


def number(packet_id: int, *, qos: int = 1, retain: bool = False) -> bytes:
    return publish(b"t", b"%d" % packet_id, qos=qos, packet_id=packet_id, retain=retain)


def published(desk: Desk, conn: int, packet: bytes, *slots: int) -> None:
    """The first publish to `t` is checked and sent to these slots; nothing was answered yet."""
    desk.send(conn, packet)
    desk.commands(0)
    desk.answer(checks(changed(1, *slots)))


def test_an_acknowledgement_waits_for_the_replicas_of_each_node_that_was_visited() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1), 5, 6000)
    at_home, elsewhere = desk.commands(0), desk.commands(1)
    assert (visits(at_home), visits(elsewhere)) == ([(b"1", [5])], [(b"1", [6000])])
    assert at_home[-1] == elsewhere[-1] == WAIT
    desk.answer(taken(1), b":1\r\n", link=0)
    assert desk.received(conn) == b""
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == b""
    assert desk.engine.levels()["acknowledgements_withheld"] == 1
    desk.answer(b":1\r\n", link=1)
    assert desk.received(conn) == puback(1)
    assert [desk.commands(link) for link in range(3)] == [[], [], []]
    assert desk.engine.outstanding == desk.engine.levels()["acknowledgements_withheld"] == 0


def test_one_wait_a_turn_and_link_confirms_all_publishes_before_it() -> None:
    desk = desk_that_waits()
    one, two = desk.open(b"c", link=0), desk.open(b"d", link=0)
    published(desk, one, number(1), 6000)
    desk.commands(1)
    desk.answer(taken(1), b":1\r\n", link=1)
    assert desk.received(one) == puback(1)
    desk.send(one, number(2) + number(3))
    desk.send(two, number(4))
    sent = desk.commands(1)
    assert [payload for payload, _ in visits(sent)] == [b"2", b"3", b"4"]
    assert words_of(sent, b"WAIT") == [WAIT[1:]]
    assert desk.commands(0)[-1][0] == b"ROUTE.MCHECK"
    desk.answer(checks(OK, OK))
    desk.answer(taken(1), taken(1), taken(1), link=1)
    assert desk.received(one) == desk.received(two) == b""
    desk.answer(b":1\r\n", link=1)
    assert desk.received(one) == puback(2) + puback(3)
    assert desk.received(two) == puback(4)


def test_too_few_replicas_at_one_node_withhold_only_what_visited_it() -> None:
    desk = desk_that_waits()
    one, two = desk.open(b"c", link=0), desk.open(b"d", link=0)
    published(desk, one, number(1), 6000)
    desk.commands(1)
    desk.answer(taken(1), b":0\r\n", link=1)
    desk.look()
    assert [(event.kind, event.link, event.token) for event in desk.events] == [(EventKind.UNCONFIRMED, 1, 0)]
    desk.send(two, publish(b"u", b"2", qos=1, packet_id=2))
    desk.commands(0)
    desk.answer(checks(changed(1, 5)))
    desk.commands(0)
    desk.answer(taken(1), b":1\r\n")
    assert (desk.received(one), desk.received(two)) == (b"", puback(2))
    assert desk.commands(1) == [WAIT]
    desk.answer(b":1\r\n", link=1)
    assert desk.received(one) == puback(1)


def test_what_was_not_confirmed_is_sent_again_after_its_link_was_lost_and_checked_again() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1), 5, 6000)
    desk.commands(0), desk.commands(1)
    desk.answer(taken(1), b":1\r\n", link=0)
    desk.answer(taken(1), link=1)
    desk.engine.server_lost(1)
    desk.engine.server_restored(desk.now_ms, 1)
    again = desk.commands(1)
    assert visits(again) == [(b"1", [6000])]
    assert again[-1] == WAIT
    assert asked(desk.commands(0)) == [(b"t", b"1")]
    desk.answer(checks(OK))
    desk.answer(taken(1), b":1\r\n", link=1)
    assert desk.received(conn) == puback(1)
    assert desk.engine.outstanding == 0


def test_a_confirmed_visit_is_not_sent_again_after_a_loss() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1), 6000, 12000)
    desk.commands(1), desk.commands(2)
    desk.answer(taken(1), b":1\r\n", link=1)
    desk.engine.server_lost(1)
    desk.engine.server_restored(desk.now_ms, 1)
    assert visits(desk.commands(1)) == []
    desk.answer(taken(1), b":1\r\n", link=2)
    assert desk.received(conn) == puback(1)


def test_a_slot_that_refused_the_publish_is_sent_to_once_after_a_loss() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1), 6000, 6001)
    desk.commands(1)
    desk.answer(taken(1, (6001, 6001, b"TRYAGAIN the slot is moving")), link=1)
    desk.engine.server_lost(1)
    desk.engine.server_restored(desk.now_ms, 1)
    desk.now_ms += 1000
    sent = visits(desk.commands(1))
    assert sorted(slot for _, slots in sent for slot in slots) == [6000, 6001]


def test_qos_2_waits_and_qos_0_does_not() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1, qos=2), 6000)
    desk.commands(1)
    desk.answer(taken(1), link=1)
    assert desk.received(conn) == b""
    desk.answer(b":1\r\n", link=1)
    assert desk.received(conn) == pubrec(1)
    desk.send(conn, publish(b"t", b"0"))
    sent = desk.commands(1)
    assert visits(sent) == [(b"0", [6000])]
    assert words_of(sent, b"WAIT") == []
    desk.commands(0)
    desk.answer(checks(OK))
    desk.answer(taken(1), link=1)
    assert desk.engine.outstanding == 0


def test_a_client_that_goes_leaves_nothing_that_is_withheld() -> None:
    desk = desk_that_waits()
    conn = desk.open(link=0)
    published(desk, conn, number(1), 6000)
    desk.commands(1)
    desk.answer(taken(1), link=1)
    assert desk.engine.levels()["acknowledgements_withheld"] == 1
    desk.engine.close(conn)
    assert desk.engine.levels()["acknowledgements_withheld"] == 0
    desk.answer(b":1\r\n", link=1)
    assert desk.engine.outstanding == 0
