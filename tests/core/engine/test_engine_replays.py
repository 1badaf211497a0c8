"""The engine and a session that reads history: when there is room for more, and what is backlog."""

from holdmq.core.engine import EngineSettings, EventKind
from tests.bridge.packets import puback
from tests.core.engine.engine_talk import Desk, page, push, queued, record, transient

INBOX = b"{c}_inbox"
MESSAGE = record(b"m")


def pushed(desk: Desk, first: int, last: int) -> None:
    """Messages with these serials come on the inbox."""
    desk.answer(*(push(INBOX, queued(serial, serial - 1, MESSAGE)) for serial in range(first, last + 1)))


def rooms(desk: Desk) -> int:
    """How often ROOM came since the last call, after a flush."""
    desk.look()
    desk.engine.flush(desk.now_ms)
    return desk.kinds().count(EventKind.ROOM)


def test_room_is_reported_once_for_each_time_it_is_asked_for() -> None:
    desk = Desk()
    conn = desk.open()
    assert rooms(desk) == 0
    desk.engine.replays(conn, True, wants_room=True)
    assert [rooms(desk), rooms(desk)] == [1, 0]
    desk.engine.replays(conn, True)
    assert rooms(desk) == 0


def test_there_is_room_when_half_of_what_is_kept_ready_is_free() -> None:
    desk = Desk(EngineSettings(max_ready=10))
    conn = desk.open(window=2)
    pushed(desk, 1, 10)  # 2 are sent, 8 are ready
    desk.engine.replays(conn, True, wants_room=True)
    assert rooms(desk) == 0
    desk.send(conn, puback(1) + puback(2))
    assert rooms(desk) == 0
    desk.send(conn, puback(3))
    assert rooms(desk) == 1


def test_there_is_no_room_while_the_queue_is_behind() -> None:
    desk = Desk()
    conn = desk.open(resumed=True)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH"]
    desk.engine.replays(conn, True, wants_room=True)
    assert rooms(desk) == 0
    desk.answer(page([]))
    assert rooms(desk) == 1


def test_there_is_no_room_while_the_client_takes_nothing() -> None:
    desk = Desk()
    conn = desk.open()
    desk.engine.set_writable(conn, False)
    desk.engine.replays(conn, True, wants_room=True)
    assert rooms(desk) == 0
    desk.engine.set_writable(conn, True)
    assert rooms(desk) == 1


def test_what_is_read_from_history_counts_for_no_latency_and_is_limited_as_backlog() -> None:
    desk = Desk()
    conn = desk.open(replay_rate=2)
    desk.engine.replays(conn, True)
    pushed(desk, 1, 5)
    desk.answer(push(INBOX, transient(record(b"0", qos=0))))
    assert desk.engine.counters()["latency_count"] == 0
    assert desk.engine.counters()["messages_sent"] == (1, 2, 0)
    desk.engine.replays(conn, False)
    desk.now_ms += 2000
    assert desk.received(conn)
    desk.engine.flush(desk.now_ms)
    desk.answer(push(INBOX, transient(record(b"0", qos=0))))
    assert desk.engine.counters()["latency_count"] == 1


def test_a_connection_that_is_gone_wants_no_room() -> None:
    desk = Desk()
    conn = desk.open()
    desk.engine.close(conn)
    desk.engine.replays(conn, True, wants_room=True)
    assert rooms(desk) == 0
