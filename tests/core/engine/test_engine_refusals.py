"""The engine and a server that refuses: what is sent again, when, and in which order."""

import pytest

from holdmq.core.engine import EngineSettings, EventKind
from tests.bridge.packets import puback, pubcomp, pubrec, pubrel
from tests.core.engine.engine_talk import Desk, deliver, page, publish, record

INBOX = b"{c}_inbox"
OOM = b"-OOM command not allowed\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
SETTINGS = EngineSettings(retry_first_ms=50, retry_most_ms=150, retry_total_ms=1000)


@pytest.fixture
def desk() -> Desk:
    return Desk(SETTINGS)


def names(commands: list[list[bytes]]) -> list[bytes]:
    return [command[0] for command in commands]


def payloads(commands: list[list[bytes]]) -> list[bytes]:
    return [command[2] for command in commands if command[0] == b"TOPIC.PUBLISH"]


def send_numbered(desk: Desk, conn: int, *numbers: int, qos: int = 1) -> None:
    desk.send(conn, b"".join(publish(b"t", b"%d" % i, qos=qos, packet_id=i) for i in numbers))


# ---- publishes


QUOTA = b"-QUOTA the queue of the session '{c}' is full\r\n"
QUEUEFULL = b"-QUEUEFULL the queue of the session '{c}' is full\r\n"


@pytest.mark.parametrize("refusal", [OOM, QUOTA])
def test_a_client_of_mqtt_5_learns_at_once_that_there_is_no_room(desk: Desk, refusal: bytes) -> None:
    conn = desk.open(version=5)
    desk.send(conn, b"".join(publish(b"t", b"", qos=1, packet_id=i, properties=b"") for i in (1, 2)))
    desk.commands()
    desk.answer(refusal, b":1\r\n")
    assert desk.received(conn) == puback(1, 0x97) + puback(2)


@pytest.mark.parametrize(("version", "refusal"), [(4, OOM), (4, QUOTA), (4, QUEUEFULL), (5, QUEUEFULL)])
def test_a_publisher_that_waits_for_room_gets_its_acknowledgements_when_there_is_some(
    desk: Desk, version: int, refusal: bytes
) -> None:
    conn, other = desk.open(version=version), desk.open(b"other")
    properties = b"" if version == 5 else None
    desk.send(conn, b"".join(publish(b"t", b"", qos=1, packet_id=i, properties=properties) for i in (1, 2)))
    desk.send(other, publish(b"u", b"", qos=1, packet_id=1))
    desk.commands()
    desk.answer(refusal, b":1\r\n", b":1\r\n")
    assert (desk.received(conn), desk.received(other)) == (b"", puback(1))
    desk.now_ms += 60
    desk.commands()
    desk.answer(b":1\r\n" * 2)
    assert desk.received(conn) == puback(1) + puback(2)


def test_a_server_without_room_is_sent_a_few_first_and_then_more(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, *range(1, 21))
    assert len(payloads(desk.commands())) == 20
    desk.answer(QUEUEFULL, *[b":1\r\n"] * 19)
    got = []
    for count in (4, 8, 8):
        desk.now_ms += 60
        sent = payloads(desk.commands())
        assert len(sent) == count
        got += sent
        desk.answer(b":1\r\n" * count)
    assert got == [b"%d" % number for number in range(1, 21)]
    assert desk.received(conn) == b"".join(puback(number) for number in range(1, 21))
    send_numbered(desk, conn, *range(21, 41))
    assert len(payloads(desk.commands())) == 20


def test_a_second_refusal_begins_with_a_few_again_and_a_loss_with_all(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, *range(1, 25))
    desk.commands()
    desk.answer(QUEUEFULL, *[b":1\r\n"] * 23)
    for count in (4, 8):
        desk.now_ms += 60
        assert len(payloads(desk.commands())) == count
        desk.answer(*[b":1\r\n"] * (count if count == 4 else 3))
    desk.answer(QUEUEFULL, *[b":1\r\n"] * 4)
    desk.now_ms += 60
    assert payloads(desk.commands()) == [b"8", b"9", b"10", b"11"]
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert payloads(desk.commands()) == [b"%d" % number for number in range(8, 25)]


def test_who_waited_too_long_for_room_is_notified(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"", qos=1, packet_id=1, properties=b""))
    for _ in range(20):
        if desk.commands():
            desk.answer(QUEUEFULL)
        desk.now_ms += 150
    assert desk.received(conn) == puback(1, 0x97)


def test_what_comes_while_replies_are_owed_stays_behind_what_is_sent_again(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, 1, 2, 3)
    desk.commands()
    desk.answer(OOM)
    send_numbered(desk, conn, 4)
    desk.answer(b":1\r\n:1\r\n")
    desk.now_ms += 60
    assert payloads(desk.commands()) == [b"1", b"2", b"3", b"4"]
    desk.answer(b":1\r\n" * 4)
    assert desk.received(conn) == b"".join(puback(i) for i in (1, 2, 3, 4))


def test_what_comes_while_replies_are_owed_stays_behind_them_when_the_server_is_lost(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, 1, 2, 3)
    desk.commands()
    desk.answer(OOM)
    send_numbered(desk, conn, 4)
    desk.engine.server_lost()
    send_numbered(desk, conn, 5)
    desk.engine.server_restored(desk.now_ms)
    assert payloads(desk.commands()) == [b"1", b"2", b"3", b"4", b"5"]


def test_nothing_is_answered_out_of_turn_after_a_refused_publish(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.engine.rules(conn, [(False, b"no")], denied_otherwise=False)
    desk.send(
        conn,
        publish(b"t", b"1", qos=2, packet_id=1, properties=b"")
        + publish(b"t", b"2", qos=2, packet_id=2, properties=b"")
        + publish(b"no", b"3", qos=1, packet_id=3, properties=b"")
        + publish(b"t", b"4", qos=1, packet_id=4, properties=b"")
        + pubrel(9),
    )
    desk.commands()
    desk.answer(READONLY, b":1\r\n", b"+PONG\r\n", OOM, b":1\r\n")
    assert desk.received(conn) == b""
    desk.now_ms += 60
    assert names(desk.commands()) == [b"TOPIC.PUBLISH"] * 2 + [b"PING", b"TOPIC.PUBLISH", b"SESSION.COMPLETE"]
    desk.answer(b":1\r\n", b":-1\r\n", b"+PONG\r\n", OOM, b":0\r\n")
    assert desk.received(conn) == pubrec(1) + pubrec(2) + puback(3, 0x87) + puback(4, 0x97) + pubcomp(9)


def test_a_repetition_by_the_engine_itself_does_not_widen_the_receive_maximum(desk: Desk) -> None:
    conn = desk.open(version=5, receive_maximum=2)
    desk.send(conn, b"".join(publish(b"t", b"", qos=2, packet_id=i, properties=b"") for i in (1, 2)))
    desk.commands()
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(b":-1\r\n" * 2)
    assert desk.received(conn) == pubrec(1) + pubrec(2)
    desk.send(conn, publish(b"t", b"", qos=2, packet_id=3, properties=b""))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x93)]


def test_a_repetition_by_the_client_counts_once_for_the_receive_maximum(desk: Desk) -> None:
    conn = desk.open(version=5, receive_maximum=2)
    desk.send(conn, b"".join(publish(b"t", b"", qos=2, packet_id=1, dup=dup, properties=b"") for dup in (False, True)))
    desk.commands()
    desk.answer(b":1\r\n:-1\r\n")
    desk.send(conn, publish(b"t", b"", qos=2, packet_id=2, properties=b""))
    assert desk.events == []
    desk.send(conn, publish(b"t", b"", qos=2, packet_id=3, properties=b""))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x93)]


def test_qos_0_is_dropped_and_counted_where_the_server_refuses_or_is_not_there(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1) + publish(b"t", b"2"))
    desk.commands()
    desk.answer(OOM, OOM)
    desk.send(conn, publish(b"t", b"3"))
    desk.engine.close(conn)
    assert desk.engine.counters()["publishes_dropped_qos0"] == 2


def test_pauses_double_up_to_their_bound_and_start_again_after_a_success(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, 1)
    for pause_ms in (50, 100, 150, 150):
        assert payloads(desk.commands()) == [b"1"]
        desk.answer(OOM)
        desk.now_ms += pause_ms - 1
        assert desk.commands() == []
        assert desk.engine.has_timed_work
        desk.now_ms += 1
    desk.commands()
    send_numbered(desk, conn, 2)  # never without anything outstanding
    desk.answer(b":1\r\n")
    desk.commands()
    desk.now_ms += 3_600_000
    desk.answer(OOM)
    assert [kind for kind in desk.kinds() if kind != EventKind.RELIEF] == [EventKind.REFUSED] * 5
    desk.now_ms += 50
    assert payloads(desk.commands()) == [b"2"]


def test_a_clock_that_is_set_back_ends_the_pause(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, 1)
    desk.commands()
    desk.answer(OOM)
    desk.now_ms -= 3_600_000
    assert payloads(desk.commands()) == [b"1"]


def test_a_client_whose_publishes_are_refused_for_too_long_is_ended(desk: Desk) -> None:
    conn = desk.open()
    send_numbered(desk, conn, 1, 2)
    kinds: list[int] = []
    for _ in range(12):
        desk.commands()
        desk.answer(*[OOM] * desk.engine.outstanding)
        kinds += desk.kinds()
        desk.now_ms += 150
    assert kinds == [EventKind.REFUSED] * 7 + [EventKind.FAILED]
    assert desk.commands() == []
    assert desk.received(conn) == b""


def test_in_mqtt_5_it_is_notified(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1, properties=b""))
    while not desk.received(conn):
        desk.commands()
        assert desk.now_ms < 1_760_000_000_000 + 3000
        desk.answer(*[READONLY] * desk.engine.outstanding)
        desk.now_ms += 150
    assert desk.engine.outstanding == 0
    assert desk.engine.counters()["publishes_refused"] == 1
    assert EventKind.FAILED not in desk.kinds()


@pytest.mark.parametrize(
    ("refusal", "reason"), [(b"-NOPERM no\r\n", 0x87), (b"-INVALIDTOPIC no\r\n", 0x80), (b"!5\r\nERR x\r\n", 0x80)]
)
def test_what_is_refused_for_good_ends_mqtt_3_and_is_told_to_mqtt_5(desk: Desk, refusal: bytes, reason: int) -> None:
    three, five = desk.open(), desk.open(b"d", version=5)
    send_numbered(desk, three, 1, 2)
    desk.send(five, publish(b"t", b"1", qos=1, packet_id=1, properties=b""))
    desk.commands()
    desk.answer(refusal, b":1\r\n", refusal)
    assert [(event.kind, event.conn) for event in (*desk.events, *desk.engine.events())] == [(EventKind.FAILED, three)]
    assert desk.received(three) == b""
    assert desk.received(five) == puback(1, reason)


# ---- commands of the session


def test_acknowledgements_go_out_while_publishes_are_refused(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    send_numbered(desk, conn, 1)
    desk.commands()
    desk.answer(OOM)
    desk.send(conn, puback(1))
    assert names(desk.commands()) == [b"SESSION.ACK"]


def test_publishes_go_out_and_are_answered_while_acknowledgements_are_refused(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    desk.received(conn)
    desk.send(conn, puback(1))
    send_numbered(desk, conn, 1)
    assert names(desk.commands()) == [b"TOPIC.PUBLISH", b"SESSION.ACK"]
    send_numbered(desk, conn, 2)
    desk.commands()
    desk.answer(b":1\r\n", READONLY, b":1\r\n")
    assert desk.received(conn) == puback(1) + puback(2)
    assert not desk.engine.should_pause(conn)
    assert desk.commands() == []
    desk.now_ms += 60
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1"]]


def test_a_refusal_long_after_the_last_one_is_the_first_of_a_new_row(desk: Desk) -> None:
    conn = desk.open()
    for serial in (1, 2):
        deliver(desk, serial)
        desk.send(conn, puback(serial))
        desk.commands()
        desk.answer(READONLY)
        assert desk.kinds() == [EventKind.REFUSED]
        desk.now_ms += 60
        assert names(desk.commands()) == [b"SESSION.ACK"]
        desk.answer(b":1\r\n")
        desk.now_ms += 3_600_000


def test_a_client_whose_acknowledgements_are_refused_for_too_long_is_ended(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    desk.send(conn, puback(1))
    kinds: list[int] = []
    for _ in range(12):
        desk.commands()
        desk.answer(*[READONLY] * desk.engine.outstanding)
        kinds += desk.kinds()
        desk.now_ms += 150
    assert kinds == [EventKind.REFUSED] * 7 + [EventKind.FAILED]
    assert desk.commands() == []


def test_releases_keep_the_order_of_the_pubrecs_when_one_is_refused(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, 2, 3, qos=2)
    desk.received(conn)
    desk.send(conn, pubrec(2) + pubrec(1))
    assert names(desk.commands()) == [b"SESSION.RELEASE"] * 2
    desk.answer(READONLY)
    desk.send(conn, pubrec(3))
    assert desk.commands() == []
    desk.now_ms += 60
    assert desk.commands() == []  # one is under way still
    desk.answer(b":1\r\n")
    assert [command[-1] for command in desk.commands()] == [b"2", b"1", b"3"]
    desk.answer(b":1\r\n" * 3)
    assert desk.received(conn) == pubrel(2) + pubrel(1) + pubrel(3)


def test_what_was_sent_is_reported_again_when_that_was_refused(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, expires_ms=desk.now_ms + 60_000)
    assert desk.received(conn)
    assert names(desk.commands()) == [b"SESSION.SENT"]
    desk.answer(OOM)
    desk.now_ms += 60
    assert desk.commands() == [[b"SESSION.SENT", b"{c}", b"EPOCH", b"7", b"1"]]
    desk.answer(b"+OK\r\n")
    assert desk.commands() == []


def test_a_page_that_was_refused_is_fetched_again(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(b"-BUSY running a script\r\n")
    assert desk.commands() == []
    desk.now_ms += 60
    assert names(desk.commands()) == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 0, record(b"1"))]))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)


@pytest.mark.parametrize("command", ["ack", "fetch", "release", "publish"])
def test_a_fenced_connection_gets_and_asks_nothing_from_then_on(desk: Desk, command: str) -> None:
    conn = desk.open(resumed=command == "fetch")
    deliver(desk, 1, qos=2 if command == "release" else 1)
    desk.received(conn)
    desk.send(
        conn, {"ack": puback(1), "release": pubrec(1), "publish": publish(b"t", qos=2, packet_id=1)}.get(command, b"")
    )
    assert len(desk.commands()) == 1
    desk.answer(b"-FENCED the session has a newer owner\r\n")
    assert desk.kinds() == [EventKind.TAKEN_OVER]
    deliver(desk, 2)
    desk.now_ms += 10_000
    assert desk.commands() == []
    assert desk.received(conn) == b""
    assert desk.kinds() == []
