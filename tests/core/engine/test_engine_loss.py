"""The engine and a server that goes and comes back, as it was or in an older state: what is compared, sent, told."""

from typing import Any

import pytest

from holdmq.core.engine import EngineSettings, EventKind
from tests.bridge.packets import puback, pubcomp, pubrec, pubrel
from tests.core.engine.engine_talk import PUBREL_RECORD, Desk, deliver, page, publish, push, queued, record

INBOX = b"{c}_inbox"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def entry(serial: int, *, state: int = 1, qos: int = 1, **fields: Any) -> tuple[int, int, int, bytes]:
    """What `deliver` sent, as a page shows it."""
    value = PUBREL_RECORD if state == 2 else record(b"%d" % serial, qos=qos, **fields)
    return serial, serial, state, value


def sent(serial: int, *, qos: int = 1, dup: bool = False) -> bytes:
    return publish(b"t", b"%d" % serial, qos=qos, packet_id=serial, dup=dup)


def lose_and_restore(desk: Desk) -> list[list[bytes]]:
    desk.look()
    desk.written.clear()
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    return desk.commands()


def test_what_the_client_has_not_is_sent_after_what_it_has(desk: Desk) -> None:
    conn = desk.open(window=2)
    deliver(desk, 1, 2, 3)
    assert [command[:6] for command in lose_and_restore(desk)] == [
        [b"SESSION.FETCH", b"{c}", b"EPOCH", b"7", b"AFTER", b"0"]
    ]
    desk.answer(page([entry(1), entry(2), entry(3, state=0)]))
    assert desk.received(conn) == b""
    desk.send(conn, puback(1))
    assert desk.received(conn) == sent(3)


def test_the_comparison_ends_after_the_last_message_sent_however_long_the_queue_is(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, 2)
    desk.send(conn, puback(1))
    lose_and_restore(desk)
    desk.answer(page([entry(1), entry(2), entry(3, state=0)], more=True))
    assert desk.received(conn) == sent(3)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH", b"SESSION.ACK"]


def test_a_message_that_came_back_with_an_older_state_is_fetched_after_the_comparison(desk: Desk) -> None:
    conn = desk.open(window=1)
    deliver(desk, 1)
    desk.send(conn, puback(1))
    desk.commands()
    desk.answer(b":1\r\n")
    deliver(desk, 2)
    lose_and_restore(desk)
    desk.answer(page([entry(1), entry(2, state=0)]))
    assert desk.received(conn) == b""
    assert desk.commands()[0][4:6] == [b"AFTER", b"0"]
    desk.answer(page([entry(1), entry(2, state=0)]))
    desk.send(conn, puback(2))
    assert desk.received(conn) == sent(1, dup=True)
    assert [command[-1] for command in desk.commands()] == [b"2"]


def test_the_comparison_needs_no_room(desk: Desk) -> None:
    """Only releases under comparison fill the window, and all that the server has was acknowledged long ago."""
    desk = Desk(EngineSettings(max_ready=2))
    conn = desk.open(window=1)
    for serial in range(1, 5):
        deliver(desk, serial)
        desk.send(conn, puback(serial))
    desk.commands()
    desk.answer(b":4\r\n")
    deliver(desk, 5, qos=2)
    desk.send(conn, pubrec(5))
    lose_and_restore(desk)
    desk.answer(page([entry(1), entry(2)], more=True))
    assert desk.commands()[0][4:6] == [b"AFTER", b"2"]
    desk.answer(page([entry(3), entry(4)]))
    assert desk.received(conn) == pubrel(5)
    assert desk.commands()[0][4:6] == [b"AFTER", b"0"]
    desk.answer(page([entry(1), entry(2)], more=True))
    desk.send(conn, pubcomp(5))
    assert desk.received(conn) == sent(1, dup=True)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH"]  # nothing of 5


@pytest.mark.parametrize("as_page", [False, True])
def test_a_message_that_is_gone_keeps_its_identifier_until_the_client_is_done_with_it(
    desk: Desk, as_page: bool
) -> None:
    conn = desk.open()
    deliver(desk, 1)
    lose_and_restore(desk)
    desk.answer(page([]))
    if as_page:
        desk.answer(push(INBOX, queued(2, 1, record(b"y"))))
        desk.commands()
        desk.answer(page([(1, 1, 0, record(b"x"))]))
    else:
        desk.answer(push(INBOX, queued(1, 0, record(b"x"))))
    assert desk.kinds() == [EventKind.CONFLICT]
    assert desk.received(conn) == b""


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("conflict", [(1, 1, 1, record(b"x")), (2, 1, 1, record(b"1"))])
def test_nothing_goes_to_or_comes_from_a_connection_in_conflict(
    desk: Desk, conflict: tuple[int, int, int, bytes], acknowledged: bool
) -> None:
    conn = desk.open()
    deliver(desk, 1, 2)
    lose_and_restore(desk)
    if acknowledged:
        desk.send(conn, puback(1))
    desk.answer(page([conflict, entry(3)], more=True))
    desk.send(conn, publish(b"t", b"", qos=1, packet_id=1))
    assert desk.kinds() == [EventKind.CONFLICT]
    assert desk.commands() == []
    assert desk.received(conn) == b""


# ---- QoS 2


@pytest.mark.parametrize("released", [False, True])
def test_a_release_in_doubt_is_repeated_if_the_server_has_it_not(desk: Desk, released: bool) -> None:
    conn = desk.open()
    deliver(desk, 1, qos=2)
    desk.send(conn, pubrec(1))
    desk.commands()
    lose_and_restore(desk)
    desk.answer(page([entry(1, qos=2, state=2 if released else 1)]))
    assert desk.received(conn) == (pubrel(1) if released else b"")
    commands = desk.commands()
    assert commands == ([] if released else [[b"SESSION.RELEASE", b"{c}", b"EPOCH", b"7", b"1"]])
    desk.answer(b":1\r\n" * len(commands))
    assert desk.received(conn) == (b"" if released else pubrel(1))
    desk.send(conn, pubcomp(1))
    assert [command[0] for command in desk.commands()] == [b"SESSION.ACK"]


def test_releases_in_doubt_keep_the_order_of_the_pubrecs(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, 2, qos=2)
    desk.send(conn, pubrec(1) + pubrec(2))
    assert len(desk.commands()) == 2
    desk.answer(b"-READONLY x\r\n")
    lose_and_restore(desk)
    desk.answer(page([entry(1, qos=2), entry(2, qos=2, state=2)]))
    assert desk.received(conn) == b""
    assert [command[-1] for command in desk.commands()] == [b"1"]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == pubrel(1) + pubrel(2)


def test_a_released_message_is_found_again(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([entry(1, state=2)]))
    assert desk.received(conn) == pubrel(1)
    lose_and_restore(desk)
    desk.send(conn, pubcomp(1))
    assert desk.commands() == []
    desk.answer(page([entry(1, state=2)]))
    assert [command[0] for command in desk.commands()] == [b"SESSION.ACK"]
    assert desk.received(conn) == b""


@pytest.mark.parametrize("when", ["before the loss", "while comparing", "after it"])
def test_an_exchange_whose_message_is_gone_ends_well(desk: Desk, when: str) -> None:
    conn = desk.open()
    deliver(desk, 1, qos=2)
    if when == "before the loss":
        desk.send(conn, pubrec(1))
    lose_and_restore(desk)
    if when == "while comparing":
        desk.send(conn, pubrec(1))
    assert desk.received(conn) == b""
    desk.answer(page([]))
    if when == "after it":
        desk.send(conn, pubrec(1))
    assert desk.received(conn) == pubrel(1)
    desk.send(conn, pubcomp(1))
    assert desk.commands() == []
    desk.answer(push(INBOX, queued(1, 0, record(b"new"))))
    assert desk.received(conn) == publish(b"t", b"new", qos=1, packet_id=1)


# ---- what was sent


def test_what_was_sent_is_reported_again_if_the_server_knows_it_not(desk: Desk) -> None:
    conn = desk.open()
    life = {"expires_ms": desk.now_ms + 60_000}
    deliver(desk, 1, 2, **life)
    desk.commands()
    lose_and_restore(desk)
    desk.answer(page([entry(1, **life), entry(2, state=0, **life)]))
    assert desk.commands() == [[b"SESSION.SENT", b"{c}", b"EPOCH", b"7", b"2"]]
    assert desk.engine.sent_serial(conn) == 2


def test_what_was_sent_is_what_the_server_has_still(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, 2, 3)
    lose_and_restore(desk)
    assert desk.engine.sent_serial(conn) == 3  # so far as is known
    desk.answer(page([entry(1)]))
    assert desk.engine.sent_serial(conn) == 1
    desk.engine.server_lost()
    desk.engine.server_lost()
    assert desk.engine.sent_serial(conn) == 1


def test_a_second_loss_while_comparing_compares_again(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, 2)
    desk.send(conn, puback(1))
    lose_and_restore(desk)
    desk.answer(page([entry(1)], more=True))
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH", b"SESSION.ACK"]
    lose_and_restore(desk)
    desk.answer(page([entry(2)]))
    desk.send(conn, puback(2))
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"2"]]
    assert desk.received(conn) == b""


# ---- publishes


def test_a_publish_that_was_not_written_is_not_in_doubt(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"0"))
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert [command[2] for command in desk.commands() if command[0] == b"TOPIC.PUBLISH"] == [b"0"]


def test_a_completion_is_sent_again(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, pubrel(5))
    desk.commands()
    assert [command[0] for command in lose_and_restore(desk)] == [b"SESSION.COMPLETE", b"SESSION.FETCH"]
    desk.answer(b":0\r\n")
    assert desk.received(conn) == pubcomp(5)


def test_the_owners_commands_are_forgotten(desk: Desk) -> None:
    desk.open()
    desk.engine.command(b"*1\r\n$4\r\nPING\r\n", token=1)
    assert [command[0] for command in lose_and_restore(desk)] == [b"SESSION.FETCH"]


def test_a_connection_that_ended_is_left_alone(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1) + b"\xff")
    desk.commands()
    assert lose_and_restore(desk) == []
    desk.engine.close(conn)


# ---- queues of many clients


def test_after_a_loss_pages_are_fetched_one_at_a_time_at_first(desk: Desk) -> None:
    ids = [b"%d" % i for i in range(5)]
    for client_id in ids:
        desk.open(client_id, resumed=True)
    assert len(desk.commands()) == 1
    fetched = 1
    for expected in (2, 2, 0):  # one more is allowed with each
        for _ in range(desk.engine.outstanding):
            desk.answer(page([]))
        commands = desk.commands()
        fetched += len(commands)
        assert len(commands) == expected
    assert fetched == 5


def test_a_page_for_a_closed_connection_reaches_nobody_and_frees_its_place() -> None:
    desk = Desk(EngineSettings(max_fetches=1))
    first = desk.open(resumed=True)
    waiting = desk.open(b"d", resumed=True)
    assert len(desk.commands()) == 1
    desk.engine.close(first)
    again = desk.open(resumed=True)
    assert first != again
    desk.engine.close(waiting)
    desk.answer(page([entry(1)]))
    assert desk.received(again) == b""
    assert [command[:2] for command in desk.commands()] == [[b"SESSION.FETCH", b"{c}"]]
    desk.answer(page([entry(1)]))
    assert desk.received(again) == sent(1, dup=True)
