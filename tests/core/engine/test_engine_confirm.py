"""Acknowledgements that are withheld until replicas have confirmed: WAIT, its replies, and a server that is lost."""

import pytest

from holdmq.core.engine import EngineSettings, EventKind
from tests.bridge.packets import puback, pubcomp, pubrec, pubrel
from tests.core.engine.engine_talk import Desk, page, publish

WAIT = [b"WAIT", b"2", b"100"]


@pytest.fixture
def desk() -> Desk:
    return Desk(EngineSettings(wait_replicas=2, wait_timeout_ms=100))


def number(packet_id: int, *, qos: int = 1) -> bytes:
    return publish(b"t", b"%d" % packet_id, qos=qos, packet_id=packet_id)


def names(commands: list[list[bytes]]) -> list[bytes]:
    return [command[2] if command[0] == b"TOPIC.PUBLISH" else command[0] for command in commands]


def test_a_turn_ends_with_one_wait_and_its_publishes_are_acknowledged_when_replicas_have_confirmed(desk: Desk) -> None:
    one, two = desk.open(b"c"), desk.open(b"d")
    desk.send(one, number(1) + number(2))
    desk.send(two, number(1))
    commands = desk.commands()
    assert names(commands) == [b"1", b"2", b"1", b"WAIT"]
    assert commands[-1] == WAIT
    desk.answer(b":1\r\n", b":1\r\n", b":1\r\n")
    assert desk.received(one) == desk.received(two) == b""
    desk.answer(b":2\r\n")
    assert desk.received(one) == puback(1) + puback(2)
    assert desk.received(two) == puback(1)
    assert desk.commands() == []


def test_without_the_setting_nothing_waits() -> None:
    desk = Desk()
    conn = desk.open()
    desk.send(conn, number(1))
    assert names(desk.commands()) == [b"1"]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == puback(1)


def test_an_acknowledgement_is_withheld_until_enough_replicas_have_confirmed(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1))
    desk.commands()
    desk.answer(b":1\r\n", b":1\r\n")  # one replica in place of two
    assert desk.received(conn) == b""
    assert desk.commands() == [WAIT]
    desk.answer(b":0\r\n")
    assert desk.commands() == [WAIT]
    assert desk.engine.counters()["waits_unconfirmed"] == 2
    assert desk.engine.levels()["acknowledgements_withheld"] == 1
    assert desk.engine.unanswered(conn) == 1
    desk.answer(b":3\r\n")
    assert desk.received(conn) == puback(1)
    assert desk.engine.levels()["acknowledgements_withheld"] == 0
    assert [(event.kind, event.token) for event in desk.events] == [
        (EventKind.UNCONFIRMED, 1),
        (EventKind.CONFIRMED, 3),
    ]


def test_one_wait_is_under_way_and_the_next_covers_all_that_was_sent_meanwhile(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1))
    assert names(desk.commands()) == [b"1", b"WAIT"]
    desk.send(conn, number(2))
    assert names(desk.commands()) == [b"2"]
    desk.send(conn, number(3))
    assert names(desk.commands()) == [b"3"]
    desk.answer(b":1\r\n", b":2\r\n", b":1\r\n", b":1\r\n")
    assert desk.received(conn) == puback(1)
    assert names(desk.commands()) == [b"WAIT"]
    desk.answer(b":2\r\n")
    assert desk.received(conn) == puback(2) + puback(3)


def test_publishes_of_qos_0_need_no_wait(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x"))
    assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH"]


def test_what_was_not_confirmed_is_sent_again_after_a_loss_before_everything_else(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1) + number(2))
    desk.commands()
    desk.answer(b":1\r\n", b"-OOM no room\r\n")  # held, and temporarily refused
    desk.send(conn, number(3))
    desk.engine.server_lost()
    assert desk.received(conn) == b""
    desk.engine.server_restored(desk.now_ms)
    assert names(desk.commands()) == [b"1", b"2", b"3", b"SESSION.FETCH", b"WAIT"]
    desk.answer(b":1\r\n" * 3, page([]), b":2\r\n")
    assert desk.received(conn) == puback(1) + puback(2) + puback(3)


def test_the_steps_of_qos_2_are_confirmed_each(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1, qos=2))
    desk.commands()
    desk.answer(b":1\r\n")
    assert desk.received(conn) == b""
    desk.answer(b":2\r\n")
    assert desk.received(conn) == pubrec(1)
    desk.send(conn, pubrel(1))
    assert names(desk.commands()) == [b"SESSION.COMPLETE", b"WAIT"]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == b""
    desk.answer(b":2\r\n")
    assert desk.received(conn) == pubcomp(1)


def test_a_publish_of_qos_2_that_was_not_confirmed_counts_as_sent_before(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1, qos=2))
    desk.commands()
    desk.answer(b":1\r\n")
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(b":-1\r\n", page([]), b":2\r\n")  # the new primary had it
    assert desk.received(conn) == pubrec(1)
    assert desk.engine.counters()["publishes_repeated"] == 0


def test_a_refusal_stays_behind_the_acknowledgements_that_are_withheld(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1, properties=b""))
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2, properties=b""))
    desk.commands()
    desk.answer(b":1\r\n", b"-NOPERM no\r\n")
    assert desk.received(conn) == b""
    desk.answer(b":2\r\n")
    assert desk.received(conn) == puback(1) + puback(2, 0x87)


def test_a_denied_publish_alone_waits_for_nobody(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(False, b"t")], denied_otherwise=False)
    desk.send(conn, number(1))
    assert names(desk.commands()) == [b"PING"]
    desk.answer(b"+PONG\r\n")
    assert desk.received(conn) == puback(1)


def test_a_wait_that_the_server_refuses_is_tried_again_after_its_time(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, number(1))
    desk.commands()
    desk.answer(b":1\r\n", b"-NOPERM no WAIT\r\n")
    desk.look()
    assert [(event.kind, event.data) for event in desk.events] == [(EventKind.UNCONFIRMED, b"NOPERM no WAIT")]
    assert desk.commands() == []
    assert desk.engine.has_timed_work
    desk.now_ms += 100
    assert desk.commands() == [WAIT]
    desk.answer(b":2\r\n")
    assert desk.received(conn) == puback(1)


def test_a_client_that_left_is_not_answered_and_holds_nothing_back(desk: Desk) -> None:
    gone, stays = desk.open(b"c"), desk.open(b"d")
    desk.send(gone, number(1))
    desk.send(stays, number(1))
    desk.commands()
    desk.answer(b":1\r\n", b":1\r\n")
    desk.engine.close(gone)
    assert desk.engine.levels()["acknowledgements_withheld"] == 1
    desk.answer(b":2\r\n")
    assert desk.received(stays) == puback(1)
    assert desk.engine.outstanding == 0


def test_withheld_acknowledgements_count_for_the_bounds() -> None:
    desk = Desk(EngineSettings(wait_replicas=1, wait_timeout_ms=100, max_client_outstanding=2, max_outstanding=3))
    conn = desk.open()
    desk.send(conn, number(1) + number(2) + number(3) + number(4))
    desk.commands()
    desk.answer(b":1\r\n" * 4, b":0\r\n")
    assert desk.engine.should_pause(conn)
    assert bool(desk.engine.congested)
    desk.commands()
    desk.answer(b":1\r\n")
    assert not desk.engine.congested
    assert EventKind.RELIEF in desk.kinds()


def test_the_identifier_of_a_publish_that_is_not_confirmed_is_in_use(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1, properties=b""))
    desk.commands()
    desk.answer(b":1\r\n")
    subscribe = b"\x82\x07\x00\x01\x00\x00\x01t\x00"
    desk.send(conn, subscribe)
    assert [event.code for event in desk.events if event.kind == EventKind.PACKET] == [0x91]
