"""The engine tells the server what clients acknowledged: behind what somebody waits for, in turn, so much at a time."""

import pytest

from tests.core.engine_talk import Desk, page, puback, publish, push, queued, record

MOST_ACKING = 4000  # identifiers under way to the server (src/engine_internal.h)
MOST_ACKS = 500  # in one command (src/engine_acks.c)
MOST_UNTOLD = 20_000  # acknowledged by a client, and the server not told yet (src/engine_send.c)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def deliver(desk: Desk, name: bytes, serials: range) -> None:
    desk.answer(*(push(b"{%s}_inbox" % name, queued(serial, serial - 1, record(b"%d" % serial))) for serial in serials))


def acknowledge(desk: Desk, conn: int, serials: range) -> None:
    desk.look()
    desk.send(conn, b"".join(map(puback, serials)))


def told(commands: list[list[bytes]]) -> list[tuple[bytes, int]]:
    """Of each SESSION.ACK: whose, and of how many messages."""
    return [(command[1], len(command) - 4) for command in commands if command[0] == b"SESSION.ACK"]


def test_the_server_is_asked_for_a_page_before_it_is_told_what_was_acknowledged(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 0, record(b"1"))], more=True))
    acknowledge(desk, conn, range(1, 2))
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH", b"SESSION.ACK"]


def test_only_so_many_acknowledgements_are_under_way_and_the_rest_goes_with_the_replies(desk: Desk) -> None:
    conn = desk.open(window=65_535)
    everything = range(1, MOST_ACKING + MOST_ACKS + 8)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)] * (MOST_ACKING // MOST_ACKS)
    assert desk.commands() == []
    desk.answer(b":%d\r\n" % MOST_ACKS)
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)]
    desk.answer(b":%d\r\n" % MOST_ACKS)
    assert told(desk.commands()) == [(b"{c}", 7)]
    assert desk.engine.waits is False


def test_who_acknowledges_little_does_not_stand_behind_all_of_who_acknowledges_much(desk: Desk) -> None:
    much, little = desk.open(b"much", window=65_535), desk.open(b"little")
    everything = range(1, MOST_ACKING * 2 + 1)
    deliver(desk, b"much", everything)
    deliver(desk, b"little", range(1, 2))
    acknowledge(desk, much, everything)
    desk.commands()
    acknowledge(desk, little, range(1, 2))
    desk.answer(b":%d\r\n" % MOST_ACKS, b":%d\r\n" % MOST_ACKS)
    assert told(desk.commands()) == [(b"{much}", MOST_ACKS), (b"{little}", 1), (b"{much}", MOST_ACKS)]


def test_a_client_that_goes_has_all_told_that_it_acknowledged(desk: Desk) -> None:
    conn = desk.open(window=65_535)
    everything = range(1, MOST_ACKING + MOST_ACKS + 1)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    desk.commands()
    desk.engine.close(conn)
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)]


def test_replies_to_a_client_that_is_gone_make_room_for_others(desk: Desk) -> None:
    gone, here = desk.open(b"gone", window=65_535), desk.open(b"here")
    everything = range(1, MOST_ACKING + 1)
    deliver(desk, b"gone", everything)
    deliver(desk, b"here", range(1, 2))
    acknowledge(desk, gone, everything)
    desk.commands()
    desk.engine.close(gone)
    acknowledge(desk, here, range(1, 2))
    assert desk.commands() == []
    desk.answer(b":%d\r\n" % MOST_ACKS)
    assert told(desk.commands()) == [(b"{here}", 1)]


def test_after_a_loss_of_the_server_nothing_is_under_way_any_more(desk: Desk) -> None:
    conn = desk.open(window=65_535)
    everything = range(1, MOST_ACKING + MOST_ACKS + 1)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    desk.commands()
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(page([(serial, serial, 1, record(b"%d" % serial)) for serial in everything]))
    assert sum(count for _, count in told(desk.commands())) == MOST_ACKING


def test_a_client_waits_when_the_server_is_too_far_behind_with_what_it_acknowledged(desk: Desk) -> None:
    conn = desk.open(window=1)
    for serials in (range(1, MOST_UNTOLD + 1), range(MOST_UNTOLD + 1, MOST_UNTOLD + 3)):
        for serial in serials:
            deliver(desk, b"c", range(serial, serial + 1))
            acknowledge(desk, conn, range(serial, serial + 1))
    assert desk.received(conn).endswith(publish(b"t", b"%d" % (MOST_UNTOLD + 1), qos=1, packet_id=MOST_UNTOLD + 1))
    desk.commands()
    desk.answer(b":%d\r\n" % MOST_ACKS)
    desk.commands()
    assert desk.received(conn) == publish(b"t", b"%d" % (MOST_UNTOLD + 2), qos=1, packet_id=MOST_UNTOLD + 2)
