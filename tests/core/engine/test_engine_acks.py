"""The engine tells the server what clients acknowledged: after what clients wait for, in turn, so much at a time."""

import pytest

from tests.bridge.packets import puback
from tests.core.engine.engine_talk import T0, Desk, identifiers, page, publish, push, queued, record

# As in src/engine/acks.c.
MOST_ACKING = 4000  # identifiers under way to the server, while a client is behind
MOST_ACKS = 500  # in one command
MOST_ACK_WAIT_MS = 100


@pytest.fixture
def desk() -> Desk:
    return Desk()


def deliver(desk: Desk, name: bytes, serials: range) -> None:
    desk.answer(*(push(b"{%s}_inbox" % name, queued(serial, serial - 1, record(b"%d" % serial))) for serial in serials))


def acknowledge(desk: Desk, conn: int, serials: range) -> None:
    desk.look()
    desk.send(conn, b"".join(map(puback, serials)))


def let_somebody_be_behind(desk: Desk) -> int:
    """A client whose queue is not fetched to its end."""
    conn = desk.open(b"behind", resumed=True)
    desk.engine.set_writable(conn, False)
    assert desk.commands() == []
    return conn


def told(commands: list[list[bytes]]) -> list[tuple[bytes, int]]:
    """Of each SESSION.ACK: whose, and of how many messages."""
    return [(command[1], len(identifiers(command[4:]))) for command in commands if command[0] == b"SESSION.ACK"]


def test_a_page_is_requested_before_acknowledgements_are_passed_on(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 0, record(b"1"))], more=True))
    acknowledge(desk, conn, range(1, 2))
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH", b"SESSION.ACK"]


OK = b"+OK\r\n"
QUIET_MS = 10_000


def sent(*serials: int) -> bytes:
    """The PUBLISHes of these messages."""
    return b"".join(publish(b"t", b"%d" % serial, qos=1, packet_id=serial) for serial in serials)


def windows(commands: list[list[bytes]]) -> list[tuple[int, int]]:
    """Of each SESSION.SENT with a WINDOW: the window and the serial."""
    return [(int(one[5]), int(one[6])) for one in commands if one[0] == b"SESSION.SENT" and one[4] == b"WINDOW"]


def test_no_more_than_the_window_is_sent_before_the_server_knows_that_more_may_be(desk: Desk) -> None:
    conn = desk.open(window=2, places=3)
    deliver(desk, b"c", range(1, 8))
    assert desk.received(conn) == sent(1, 2)
    assert desk.commands() == []  # the client has its window: nothing waits but for its acknowledgements
    desk.send(conn, puback(1) + puback(2))
    assert desk.received(conn) == b""  # 1 and 2 may be in the queue still
    commands = desk.commands()
    assert windows(commands) == [(3, 2)]
    assert told(commands) == [(b"{c}", 2)]
    desk.answer(*(OK if command[0] == b"SESSION.SENT" else b"" for command in commands))
    assert desk.received(conn) == sent(3)
    desk.answer(b":2\r\n")
    assert desk.received(conn) == sent(4)  # which fills the window
    assert desk.commands() == []


def test_a_client_that_waits_for_nothing_on_its_way_makes_no_command(desk: Desk) -> None:
    conn = desk.open(window=2, places=16)
    for serial in range(1, 9):
        deliver(desk, b"c", range(serial, serial + 1))
        assert desk.received(conn) == sent(serial)
        desk.send(conn, puback(serial))
        assert [command[0] for command in desk.commands()] == [b"SESSION.ACK"]
        desk.answer(b":1\r\n")


def widened(desk: Desk) -> int:
    """A client with a window of 1, to which 2 more may be sent, and which has acknowledged all."""
    conn = desk.open(window=1, places=3)
    deliver(desk, b"c", range(1, 3))
    assert desk.received(conn) == sent(1)
    desk.send(conn, puback(1))
    names = [command[0] for command in desk.commands()]
    assert sorted(names) == [b"SESSION.ACK", b"SESSION.SENT"]
    desk.answer(*(OK if name == b"SESSION.SENT" else b":1\r\n" for name in names))
    assert desk.received(conn) == sent(2)
    desk.send(conn, puback(2))
    assert told(desk.commands()) == [(b"{c}", 1)]
    desk.answer(b":1\r\n")
    return conn


def test_after_a_while_the_window_is_enough_again(desk: Desk) -> None:
    conn = widened(desk)
    desk.now_ms += QUIET_MS - 1
    assert desk.commands() == []
    desk.now_ms += 1
    assert windows(desk.commands()) == [(1, 2)]
    deliver(desk, b"c", range(3, 5))
    assert desk.received(conn) == sent(3)
    desk.send(conn, puback(3))
    assert desk.received(conn) == b""
    assert windows(desk.commands()) == [(3, 3)]


def test_a_client_that_uses_its_places_keeps_them(desk: Desk) -> None:
    conn = widened(desk)
    deliver(desk, b"c", range(3, 6))
    for serial in range(3, 6):
        desk.now_ms += QUIET_MS
        assert desk.received(conn) == sent(serial)
        desk.send(conn, puback(serial))
        assert windows(desk.commands()) == []  # 3 is in its place until the server has removed it
    desk.answer(b":1\r\n")
    assert told(desk.commands()) == [(b"{c}", 2)]


def test_a_refused_window_is_sent_again_and_not_used_before(desk: Desk) -> None:
    conn = desk.open(window=1, places=3)
    deliver(desk, b"c", range(1, 3))
    assert desk.received(conn) == sent(1)
    desk.send(conn, puback(1))
    names = [command[0] for command in desk.commands()]
    desk.answer(*(b"-MISCONF disk\r\n" for _ in names))
    assert desk.received(conn) == b""
    desk.now_ms += 60_000
    commands = desk.commands()
    assert windows(commands) == [(3, 1)]
    desk.answer(*(OK if command[0] == b"SESSION.SENT" else b"-MISCONF disk\r\n" for command in commands))
    assert desk.received(conn) == sent(2)


def test_a_server_that_returns_is_told_how_many_may_have_been_sent(desk: Desk) -> None:
    widened(desk)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert [window for window, _ in windows(desk.commands())] == [3]


def test_a_server_that_returns_before_more_were_sent_need_not_be_told(desk: Desk) -> None:
    conn = desk.open(window=1, places=3)
    deliver(desk, b"c", range(1, 3))
    desk.look()
    desk.send(conn, puback(1))
    assert [window for window, _ in windows(desk.commands())] == [3]
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert windows(desk.commands()) == []


def test_identifiers_that_follow_one_another_are_named_as_a_range(desk: Desk) -> None:
    conn = desk.open(window=65_535)
    deliver(desk, b"c", range(1, 31))
    acknowledged = [3, 4, 6, 9, 8, 7, 10, 11, 12, 30]
    desk.look()
    desk.send(conn, b"".join(map(puback, acknowledged)))
    assert [command[4:] for command in desk.commands()] == [[b"3-4", b"6", b"9", b"8", b"7", b"10-12", b"30"]]


def test_the_largest_identifier_and_the_smallest_are_not_a_range(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(serial, (serial - 1) % 65_535 + 1, 0, record(b"1")) for serial in range(65_534, 65_538)]))
    desk.look()
    desk.send(conn, b"".join(map(puback, [65_534, 65_535, 1, 2])))
    assert [command[4:] for command in desk.commands()] == [[b"65534-65535", b"1-2"]]


def test_while_nobody_is_behind_all_acknowledgements_go_at_once(desk: Desk) -> None:
    conn = desk.open(window=65_535)
    everything = range(1, 2 * MOST_ACKING + 1)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)] * (2 * MOST_ACKING // MOST_ACKS)


def test_what_is_acknowledged_while_a_command_is_under_way_goes_with_the_next(desk: Desk) -> None:
    conn, other = desk.open(window=65_535), desk.open(b"other")
    deliver(desk, b"c", range(1, MOST_ACKS + 10))
    deliver(desk, b"other", range(1, 2))
    acknowledge(desk, conn, range(1, 2))
    assert told(desk.commands()) == [(b"{c}", 1)]
    acknowledge(desk, conn, range(2, 4))
    acknowledge(desk, other, range(1, 2))
    assert told(desk.commands()) == [(b"{other}", 1)]
    acknowledge(desk, conn, range(4, 7))
    assert desk.commands() == []
    assert not desk.engine.has_timed_work
    desk.answer(b":1\r\n")
    assert told(desk.commands()) == [(b"{c}", 5)]
    acknowledge(desk, conn, range(7, MOST_ACKS + 7))
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)]  # a whole command waits for nothing


def test_only_so_many_acknowledgements_are_under_way_and_the_rest_goes_with_the_replies(desk: Desk) -> None:
    let_somebody_be_behind(desk)
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
    assert desk.engine.has_timed_work is False


def test_a_client_with_few_acknowledgements_does_not_wait_for_all_of_one_with_many(desk: Desk) -> None:
    let_somebody_be_behind(desk)
    much, little = desk.open(b"much", window=65_535), desk.open(b"little")
    everything = range(1, MOST_ACKING * 2 + 1)
    deliver(desk, b"much", everything)
    deliver(desk, b"little", range(1, 2))
    acknowledge(desk, much, everything)
    desk.commands()
    acknowledge(desk, little, range(1, 2))
    desk.answer(b":%d\r\n" % MOST_ACKS, b":%d\r\n" % MOST_ACKS)
    assert told(desk.commands()) == [(b"{much}", MOST_ACKS), (b"{little}", 1), (b"{much}", MOST_ACKS)]


def test_all_acknowledgements_of_a_client_that_goes_are_passed_on(desk: Desk) -> None:
    let_somebody_be_behind(desk)
    conn = desk.open(window=65_535)
    everything = range(1, MOST_ACKING + MOST_ACKS + 1)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    desk.commands()
    desk.engine.close(conn)
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)]


def test_replies_to_a_client_that_is_gone_make_room_for_others(desk: Desk) -> None:
    let_somebody_be_behind(desk)
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
    let_somebody_be_behind(desk)
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


def test_they_go_when_no_client_is_behind_any_more(desk: Desk) -> None:
    behind, conn = let_somebody_be_behind(desk), desk.open(window=65_535)
    everything = range(1, MOST_ACKING + 2)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    desk.commands()
    desk.engine.close(behind)
    assert told(desk.commands()) == [(b"{c}", 1)]


@pytest.mark.parametrize("later_ms", [T0 + MOST_ACK_WAIT_MS, T0 - 1])
def test_none_waits_long_also_if_the_clock_is_set_back(desk: Desk, later_ms: int) -> None:
    let_somebody_be_behind(desk)
    conn = desk.open(window=65_535)
    everything = range(1, MOST_ACKING + 2 * MOST_ACKS + 1)
    deliver(desk, b"c", everything)
    acknowledge(desk, conn, everything)
    desk.commands()
    desk.now_ms = T0 + MOST_ACK_WAIT_MS - 1
    assert desk.commands() == []
    assert desk.engine.has_timed_work
    desk.now_ms = later_ms
    assert told(desk.commands()) == [(b"{c}", MOST_ACKS)] * 2
    assert not desk.engine.has_timed_work
