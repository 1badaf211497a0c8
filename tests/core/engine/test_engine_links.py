"""Several links: each has its own commands, replies and losses, and a session moves from one to another in order."""

from typing import Any

import pytest

from holdmq.core.engine import MOST_LINKS, Engine, EngineSettings, EventKind, OutOfStepError
from tests.bridge import packets
from tests.core.engine.engine_talk import Desk, page, publish, push, queued, record
from tests.core.support import Books

MOVED = b"-MOVED 7 10.0.0.2:6379\r\n"


def desk_of(links: int, **settings: Any) -> Desk:
    return Desk(EngineSettings(links=links, **settings))


def test_an_engine_has_one_link_unless_told_otherwise() -> None:
    engine = Engine()
    assert engine.link_outstanding(0) == 0
    with pytest.raises(MemoryError):
        engine.command(b"*1\r\n$4\r\nPING\r\n", link=1)


def test_links_are_bounded() -> None:
    assert Engine(EngineSettings(links=MOST_LINKS)).outstanding == 0
    with pytest.raises(MemoryError):
        Engine(EngineSettings(links=MOST_LINKS + 1))


def test_commands_of_a_session_go_to_its_link() -> None:
    desk = desk_of(3)
    conn = desk.open(link=2)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    assert desk.commands(0) == desk.commands(1) == []
    assert [command[1] for command in desk.commands(2)] == [b"t"]
    desk.answer(b":1\r\n", link=2)
    assert desk.received(conn) == packets.puback(1)


def test_a_session_cannot_open_on_a_link_that_does_not_exist() -> None:
    desk = desk_of(2)
    with pytest.raises(MemoryError):
        desk.open(link=2)


def test_replies_belong_to_the_commands_of_their_link() -> None:
    desk = desk_of(2)
    first, second = desk.open(b"a", link=0), desk.open(b"b", link=1)
    desk.send(first, publish(b"t", qos=1, packet_id=1))
    desk.send(second, publish(b"t", qos=1, packet_id=2))
    assert len(desk.commands(0)) == len(desk.commands(1)) == 1
    desk.answer(b":1\r\n", link=1)
    assert (desk.received(first), desk.received(second)) == (b"", packets.puback(2))
    desk.answer(b":1\r\n", link=0)
    assert desk.received(first) == packets.puback(1)


def test_parts_of_replies_of_two_links_do_not_mix() -> None:
    desk = desk_of(2)
    first, second = desk.open(b"a", link=0), desk.open(b"b", link=1)
    desk.send(first, publish(b"t", qos=1, packet_id=1))
    desk.send(second, publish(b"t", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.answer(b":", link=0)
    desk.answer(b":1", link=1)
    desk.answer(b"1\r\n", link=0)
    assert desk.received(first) == packets.puback(1)
    desk.answer(b"\r\n", link=1)
    assert desk.received(second) == packets.puback(2)


def test_a_reply_that_nobody_asked_for_breaks_only_its_link() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands(0)
    with pytest.raises(OutOfStepError):
        desk.answer(b":1\r\n", link=1)
    desk.answer(b":1\r\n", link=0)
    assert desk.received(conn) == packets.puback(1)


def test_the_owners_replies_and_pushes_name_their_link() -> None:
    desk = desk_of(2)
    desk.engine.command(b"*1\r\n$4\r\nPING\r\n", token=5, link=1)
    assert desk.commands(1) == [[b"PING"]]
    desk.answer(b"+PONG\r\n", push(b"news", b"x"), link=1)
    assert [(event.kind, event.token, event.link) for event in desk.events] == [
        (EventKind.REPLY, 5, 1),
        (EventKind.PUSH, 0, 1),
    ]


def test_the_loss_of_a_link_repeats_only_its_publishes() -> None:
    desk = desk_of(2)
    first, second = desk.open(b"a", link=0), desk.open(b"b", link=1)
    desk.send(first, publish(b"t", b"1", qos=1, packet_id=1))
    desk.send(second, publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands(0), desk.commands(1)
    desk.engine.server_lost(1)
    assert desk.engine.link_outstanding(0) == 1
    assert desk.engine.link_outstanding(1) == 0
    assert not desk.engine.should_pause(first)
    assert desk.engine.should_pause(second)
    desk.answer(b":1\r\n", link=0)
    assert desk.received(first) == packets.puback(1)
    assert desk.commands(0) == desk.commands(1) == []
    desk.engine.server_restored(desk.now_ms, 1)
    assert [command[2] for command in desk.commands(1) if command[0] == b"TOPIC.PUBLISH"] == [b"2"]


def test_all_links_together_are_bounded() -> None:
    desk = desk_of(2, max_outstanding=2)
    first, second = desk.open(b"a", link=0), desk.open(b"b", link=1)
    desk.send(first, publish(b"t", qos=1, packet_id=1) + publish(b"t", qos=1, packet_id=2))
    levels = [desk.engine.congested]
    desk.send(second, publish(b"t", qos=1, packet_id=3))
    levels.append(desk.engine.congested)
    desk.commands(0), desk.commands(1)
    desk.engine.server_lost(0)
    assert desk.engine.outstanding == 1
    assert [*levels, desk.engine.congested] == [False, True, False]


def test_each_link_asks_its_replicas() -> None:
    desk = desk_of(2, wait_replicas=1)
    first, second = desk.open(b"a", link=0), desk.open(b"b", link=1)
    desk.send(first, publish(b"t", qos=1, packet_id=1))
    desk.send(second, publish(b"t", qos=1, packet_id=2))
    assert [desk.commands(link)[-1][0] for link in (0, 1)] == [b"WAIT", b"WAIT"]
    desk.answer(b":1\r\n:0\r\n", link=0)
    desk.answer(b":1\r\n:1\r\n", link=1)
    assert (desk.received(first), desk.received(second)) == (b"", packets.puback(2))
    assert [event.link for event in desk.events if event.kind == EventKind.UNCONFIRMED] == [0]
    assert [command[0] for command in desk.commands(0)] == [b"WAIT"]
    desk.answer(b":1\r\n", link=0)
    assert desk.received(first) == packets.puback(1)


# ---- moving


def test_a_session_moves_after_the_replies_on_its_former_link() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands(0)
    desk.engine.move(conn, 1)
    assert desk.engine.link_of(conn) == 1
    desk.send(conn, publish(b"t", b"2", qos=1, packet_id=2))
    assert desk.commands(0) == desk.commands(1) == []
    desk.answer(b":1\r\n", link=0)
    assert desk.received(conn) == packets.puback(1)
    assert [command[2] for command in desk.commands(1) if command[0] == b"TOPIC.PUBLISH"] == [b"2"]
    assert desk.commands(0) == []


def test_a_session_that_waits_for_nothing_moves_at_the_next_flush() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.engine.move(conn, 1)
    assert [command[0] for command in desk.commands(1)] == [b"SESSION.FETCH"]
    desk.answer(page([]), link=1)
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    assert [command[0] for command in desk.commands(1)] == [b"TOPIC.PUBLISH"]


def test_a_refused_publish_and_all_after_it_are_sent_on_the_new_link() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    for at in (1, 2, 3):
        desk.send(conn, publish(b"t", b"%d" % at, qos=1, packet_id=at))
    assert len(desk.commands(0)) == 3
    desk.answer(b":1\r\n", MOVED, link=0)
    desk.look()
    refusals = [event for event in desk.events if event.kind == EventKind.REFUSED]
    assert [(event.conn, event.data) for event in refusals] == [(conn, MOVED.strip()[1:])]
    desk.engine.move(conn, 1)
    assert desk.commands(1) == []  # the reply to the third is missing
    desk.answer(MOVED, link=0)
    assert [command[2] for command in desk.commands(1) if command[0] == b"TOPIC.PUBLISH"] == [b"2", b"3"]


@pytest.mark.parametrize("error", [MOVED, b"-ASK 7 10.0.0.2:6379\r\n", b"-TRYAGAIN the slot is moving\r\n"])
def test_a_session_that_is_not_moved_asks_its_link_again(error: bytes) -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands(0)
    desk.answer(error, link=0)
    desk.now_ms += desk.settings.retry_first_ms
    assert [command[2] for command in desk.commands(0)] == [b"1"]
    desk.answer(b":1\r\n", link=0)
    assert desk.received(conn) == packets.puback(1)


def test_with_one_link_moved_is_a_refusal_for_good() -> None:
    desk = desk_of(1)
    conn = desk.open()
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands()
    desk.answer(MOVED)
    assert EventKind.FAILED in desk.kinds()


def test_a_fetch_that_is_moved_is_sent_on_the_new_link() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0, resumed=True)
    assert [command[0] for command in desk.commands(0)] == [b"SESSION.FETCH"]
    desk.answer(MOVED, link=0)
    desk.engine.move(conn, 1)
    assert [command[0] for command in desk.commands(1)] == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 0, record(b"a"))]), link=1)
    assert b"a" in desk.received(conn)


def test_a_message_in_flight_is_not_sent_again_after_a_move() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.answer(push(b"{c}_inbox", queued(1, 0, record(b"first"))), link=0)
    assert b"first" in desk.received(conn)
    desk.engine.move(conn, 1)
    assert [command[0] for command in desk.commands(1)] == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 1, record(b"first")), (2, 2, 0, record(b"second"))]), link=1)
    if desk.commands(1):
        desk.answer(page([(2, 2, 0, record(b"second"))]), link=1)
    received = desk.received(conn)
    assert b"first" not in received
    assert b"second" in received


def test_an_acknowledgement_that_was_refused_is_sent_on_the_new_link() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.answer(push(b"{c}_inbox", queued(1, 0, record(b"first"))), link=0)
    desk.received(conn)
    desk.send(conn, packets.puback(1))
    assert [command[0] for command in desk.commands(0)] == [b"SESSION.ACK"]
    desk.engine.move(conn, 1)
    assert desk.commands(1) == []
    desk.answer(MOVED, link=0)
    assert [command[0] for command in desk.commands(1)] == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 1, record(b"first"))]), link=1)
    assert [command[-1] for command in desk.commands(1) if command[0] == b"SESSION.ACK"] == [b"1"]


def test_pushes_of_a_former_link_are_ignored() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.engine.move(conn, 1)
    desk.commands(1)
    desk.answer(page([]), link=1)
    desk.answer(push(b"{c}_inbox", queued(1, 0, record(b"stale"))), link=0)
    assert desk.received(conn) == b""
    desk.answer(push(b"{c}_inbox", queued(1, 0, record(b"right"))), link=1)
    assert b"right" in desk.received(conn)


def test_the_loss_of_the_former_link_completes_a_move() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands(0)
    desk.engine.move(conn, 1)
    desk.engine.server_lost(0)
    assert [command[2] for command in desk.commands(1) if command[0] == b"TOPIC.PUBLISH"] == [b"1"]


def test_a_move_to_a_link_that_is_down_waits_for_it() -> None:
    desk = desk_of(2)
    conn = desk.open(link=0)
    desk.engine.server_lost(1)
    desk.engine.move(conn, 1)
    desk.commands(0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    assert desk.commands(0) == desk.commands(1) == []
    assert desk.engine.should_pause(conn)
    desk.engine.server_restored(desk.now_ms, 1)
    assert [command[2] for command in desk.commands(1) if command[0] == b"TOPIC.PUBLISH"] == [b"1"]


def test_the_last_of_several_moves_counts() -> None:
    desk = desk_of(3)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands(0)
    desk.engine.move(conn, 1)
    desk.engine.move(conn, 2)
    desk.answer(MOVED, link=0)
    assert desk.commands(1) == []
    assert [command[2] for command in desk.commands(2) if command[0] == b"TOPIC.PUBLISH"] == [b"1"]


def test_withheld_answers_move_with_their_session() -> None:
    desk = desk_of(2, wait_replicas=1)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    assert [command[0] for command in desk.commands(0)] == [b"TOPIC.PUBLISH", b"WAIT"]
    desk.answer(b":1\r\n", link=0)
    desk.engine.move(conn, 1)
    commands = desk.commands(1)
    assert [command[0] for command in commands if command[0] != b"SESSION.FETCH"] == [b"TOPIC.PUBLISH", b"WAIT"]
    desk.answer(b":1\r\n", link=0)  # the WAIT of the former link: it confirms nothing of the session
    assert desk.received(conn) == b""
    assert desk.engine.link_outstanding(0) == 0
    replies = {b"TOPIC.PUBLISH": b":1\r\n", b"WAIT": b":1\r\n", b"SESSION.FETCH": page([])}
    desk.answer(*(replies[command[0]] for command in commands), link=1)
    assert desk.received(conn) == packets.puback(1)


def test_a_move_needs_an_open_session_and_an_existing_link() -> None:
    desk = desk_of(2)
    conn = desk.open()
    for wrong in ((conn, 2), (desk.engine.attach(), 1), (0, 1)):
        with pytest.raises(ValueError, match="no open session, or there is no link"):
            desk.engine.move(*wrong)


def moved_while_memory_is_short(call: int) -> tuple[bool, bool]:
    """Moves a session while this call for memory fails: whether it failed, and whether the publish arrived."""
    books = Books()
    desk = Desk(EngineSettings(links=2), books=books)
    conn = desk.open(link=0)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands(0)
    before = books.calls
    books.fail_at(before + call)
    desk.engine.move(conn, 1)
    desk.answer(MOVED, link=0)
    sent = desk.commands(1)
    has_failed = books.calls >= before + call
    desk.now_ms += 1000
    sent += desk.commands(1)
    assert desk.commands(0) == []
    is_sent = b"TOPIC.PUBLISH" in {command[0] for command in sent}
    assert is_sent != (EventKind.FAILED in desk.kinds())
    return has_failed, is_sent


def test_a_move_without_memory_loses_no_publish_of_a_connected_client() -> None:
    outcomes = [moved_while_memory_is_short(call) for call in range(1, 30)]
    assert outcomes[0][0]
    assert outcomes[-1] == (False, True)
