"""The engine and what a client may send and be sent: acknowledgements out of place, aliases, sizes, rates, rest."""

import random
import struct

import pytest

from holdmq.core._binding import lib
from holdmq.core.engine import Backlog, EngineSettings, EventKind, OpenSession, error_text
from tests.bridge.packets import packet, puback, pubcomp, pubrec, pubrel, text
from tests.core.engine.engine_talk import T0, Desk, connect, deliver, page, publish, push, queued, record, transient

LONG_QUEUE = lib.HMQ_LONG_QUEUE

INBOX = b"{c}_inbox"
PINGREQ = b"\xc0\0"
TURN_PACKETS = 512  # as in src/engine/client.c


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- acknowledgements that do not fit


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "wrong"), [(1, pubrec(1)), (1, pubcomp(1)), (2, puback(1)), (2, pubcomp(1))])
def test_an_acknowledgement_that_the_qos_does_not_have_ends_the_connection(
    desk: Desk, qos: int, wrong: bytes, version: int
) -> None:
    conn = desk.open(version=version)
    deliver(desk, 1, qos=qos)
    desk.received(conn)
    desk.send(conn, wrong)
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x82)]
    assert desk.commands() == []
    assert desk.received(conn) == b""


def test_a_puback_after_a_pubrec_ends_the_connection(desk: Desk) -> None:
    conn = desk.open(version=5)
    deliver(desk, 1, qos=2)
    desk.send(conn, pubrec(1))
    desk.commands()
    desk.answer(b":1\r\n")
    desk.send(conn, puback(1))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x82)]


def test_an_unknown_pubrec_is_notified_and_others_are_ignored(desk: Desk) -> None:
    three, five = desk.open(b"d"), desk.open(version=5)
    for conn in (three, five):
        desk.send(conn, puback(1) + pubrec(2) + pubcomp(3))
    assert desk.received(three) == pubrel(2)
    assert desk.received(five) == pubrel(2, 0x92)
    assert desk.engine.counters()["acknowledgements_unknown"] == 6


def test_an_unknown_pubrec_with_an_error_gets_no_pubrel(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.send(conn, pubrec(2, 0x80))
    assert desk.received(conn) == b""
    assert desk.engine.counters()["acknowledgements_unknown"] == 1


def test_a_pubrec_with_an_error_ends_the_exchange(desk: Desk) -> None:
    conn = desk.open(version=5, window=1)
    deliver(desk, 1, 2, qos=2)
    desk.received(conn)
    desk.send(conn, pubrec(1, 0x87))
    assert [command[0] for command in desk.commands()] == [b"SESSION.ACK"]
    assert desk.received(conn) == publish(b"t", b"2", qos=2, packet_id=2, properties=b"")


def test_a_second_pubrec_waits_for_the_release_and_an_early_pubcomp_is_nothing(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1, qos=2)
    desk.received(conn)
    desk.send(conn, pubrec(1) + pubrec(1) + pubcomp(1))
    assert [command[0] for command in desk.commands()] == [b"SESSION.RELEASE"]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == pubrel(1)
    desk.send(conn, pubcomp(1) + pubcomp(1) + pubrec(1))
    assert [command[0] for command in desk.commands()] == [b"SESSION.ACK"]
    assert desk.engine.counters()["acknowledgements_unknown"] == 3


# ---- what does not fit the client


def test_a_message_that_fits_only_without_a_new_alias_is_sent_without(desk: Desk) -> None:
    whole = publish(b"long/topic", b"1", qos=1, packet_id=1, properties=b"")
    conn = desk.open(version=5, alias_maximum_out=5, max_packet_out=len(whole))
    deliver(desk, 1, topic=b"long/topic")
    assert desk.received(conn) == whole
    deliver(desk, 2, topic=b"topic")
    assert desk.received(conn) == publish(b"topic", b"2", qos=1, packet_id=2, properties=b"\x23\0\x01")
    assert desk.engine.counters()["messages_dropped_oversized"] == 0


def test_an_oversized_message_leaves_no_alias_behind(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_out=5, max_packet_out=30)
    desk.answer(push(INBOX, queued(1, 0, record(b"x" * 50, topic=b"topic"))))
    desk.answer(push(INBOX, transient(record(b"x" * 50, topic=b"topic"))))
    deliver(desk, 2, topic=b"topic")
    assert desk.received(conn) == publish(b"topic", b"2", qos=1, packet_id=2, properties=b"\x23\0\x01")
    assert desk.engine.counters()["messages_dropped_oversized"] == 2
    assert [command[-1] for command in desk.commands()] == [b"1"]


def test_only_bytes_that_complete_a_packet_are_taken(desk: Desk) -> None:
    conn = desk.open()
    ping = b"\xc0\0"
    took = []
    for data in (ping[:1], ping[1:], ping + ping[:1], ping[1:] + ping[:1], b"", publish(b"t", b"x")[:-1]):
        desk.send(conn, data)
        took.append(desk.engine.completed_packet)
    assert took == [False, True, True, True, False, False]


def test_while_a_packet_is_with_the_owner_bytes_count_as_taken(desk: Desk) -> None:
    conn = desk.engine.attach()
    assert desk.engine.receive(conn, connect(), desk.now_ms) is not None
    assert desk.engine.completed_packet
    assert desk.engine.receive(conn, b"\xc0", desk.now_ms) is None
    assert desk.engine.completed_packet


@pytest.mark.parametrize("up", [True, False], ids=["under way", "kept while the server is away"])
def test_a_question_with_the_identifier_of_an_unanswered_publish_is_marked(desk: Desk, up: bool) -> None:
    other = desk.open(b"o", version=5)
    conn = desk.open(version=5)
    desk.send(other, publish(b"t", qos=1, packet_id=2, properties=b""))
    if not up:
        desk.engine.server_lost()
    desk.send(conn, publish(b"t", qos=1, packet_id=1, properties=b""))
    codes = []
    for packet_id in (1, 2):
        desk.send(conn, packet(0x82, packet_id.to_bytes(2, "big") + b"\0" + text(b"a") + b"\0"))
        event = desk.events.pop()
        codes.append((event.kind, event.code))
        assert desk.engine.proceed(conn, desk.now_ms) is None
    assert codes == [(EventKind.PACKET, 0x91), (EventKind.PACKET, 0)]


def test_an_expiry_beyond_what_mqtt_can_say_is_the_longest_it_can(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.answer(push(INBOX, queued(1, 0, record(b"1", expires_ms=T0 + (1 << 33) * 1000))))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1, properties=b"\x02\xff\xff\xff\xff")


def test_a_message_in_flight_is_sent_again_though_its_time_is_over(desk: Desk) -> None:
    conn = desk.open(version=5, resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 1, record(b"1", expires_ms=T0 - 1)), (2, 2, 0, record(b"2", expires_ms=T0))]))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1, dup=True, properties=b"\x02\0\0\0\0")
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"2"]]
    assert desk.engine.sent_serial(conn) == 1
    assert desk.engine.counters()["messages_dropped_expired"] == 1


def topic_of(number: int) -> bytes:
    return b"no" if number % 2 else b"ok/%d" % number


def test_a_message_that_the_client_may_not_receive_is_acknowledged_to_the_queue_and_told_once(desk: Desk) -> None:
    conn = desk.open(version=5, resumed=True)
    desk.engine.receive_rules(conn, [(False, b"no"), (True, b"#")], denied_otherwise=True)
    desk.commands()
    entries = [(number, number, int(number < 3), record(b"x", topic=topic_of(number), qos=2)) for number in range(1, 6)]
    desk.answer(page(entries))
    received = [publish(topic_of(n), b"x", qos=2, packet_id=n, dup=n < 3, properties=b"") for n in (2, 4)]
    assert desk.received(conn) == b"".join(received)
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1", b"3", b"5"]]
    assert [(event.kind, event.conn, event.data) for event in desk.events] == [(EventKind.WITHHELD, conn, b"no")]
    assert desk.engine.counters()["messages_denied"] == 3


def test_a_message_of_qos_0_that_the_client_may_not_receive_is_left_out(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.engine.receive_rules(conn, [(True, b"ok/#")], denied_otherwise=True)
    desk.answer(push(INBOX, transient(record(b"x", topic=b"no", qos=0))))
    desk.answer(push(INBOX, transient(record(b"x", topic=b"ok/1", qos=0))))
    assert desk.received(conn) == publish(b"ok/1", b"x", properties=b"")
    desk.engine.receive_rules(conn, [], denied_otherwise=False)
    desk.answer(push(INBOX, transient(record(b"x", topic=b"no", qos=0))))
    assert desk.received(conn) == publish(b"no", b"x", properties=b"")
    assert desk.engine.counters()["messages_denied"] == 1


def test_more_messages_wait_in_the_line_than_fit_and_the_rest_at_the_server() -> None:
    desk = Desk(EngineSettings(max_ready=2))
    conn = desk.open(window=1)
    deliver(desk, 1, 2, 3, 4)
    assert desk.commands() == []  # not for each message that comes: when half of the line is free
    desk.send(conn, puback(1))
    assert desk.commands()[0][4:8] == [b"AFTER", b"3", b"COUNT", b"1"]


def test_one_call_takes_so_many_packets_and_the_next_ones_the_rest() -> None:
    desk = Desk()
    conn = desk.open()
    pings = TURN_PACKETS * 2 + 10
    assert desk.engine.receive(conn, PINGREQ * pings + PINGREQ[:1], desk.now_ms) is None
    assert len(desk.received(conn)) == len(PINGREQ) * TURN_PACKETS
    for more in (TURN_PACKETS, 10):
        assert desk.engine.has_more(conn)
        assert desk.engine.receive(conn, b"", desk.now_ms) is None
        assert len(desk.received(conn)) == len(PINGREQ) * more
    assert not desk.engine.has_more(conn)
    assert desk.engine.receive(conn, PINGREQ[1:], desk.now_ms) is None
    assert len(desk.received(conn)) == len(PINGREQ)


def test_so_many_packets_without_one_behind_them_leave_nothing() -> None:
    desk = Desk()
    conn = desk.open()
    desk.engine.receive(conn, PINGREQ * TURN_PACKETS, desk.now_ms)
    assert not desk.engine.has_more(conn)


def test_a_packet_of_the_owners_stops_what_is_behind_it_until_it_is_dealt_with() -> None:
    desk = Desk()
    conn = desk.open()
    subscribe = packet(0x82, struct.pack(">H", 1) + text(b"t") + b"\0")
    event = desk.engine.receive(conn, PINGREQ + subscribe + PINGREQ * (TURN_PACKETS + 1), desk.now_ms)
    assert event is not None
    assert not desk.engine.has_more(conn)
    assert desk.engine.proceed(conn, desk.now_ms) is None
    assert desk.engine.has_more(conn)


def test_the_backlog_of_a_receiver_is_known_and_whether_it_grows() -> None:
    desk = Desk(EngineSettings(max_ready=4))
    conn = desk.open(window=1)
    seen = [desk.engine.backlog(conn)]
    for serial in range(1, 7):
        deliver(desk, serial)
        seen.append(desk.engine.backlog(conn))
    none, waits, grows = Backlog.NONE, Backlog.WAITS, Backlog.GROWS
    assert seen == [none, waits, waits, grows, grows, grows, grows]  # a full window alone: the next one would wait
    for serial in range(1, 6):
        desk.send(conn, puback(serial))
    desk.commands()
    desk.answer(page([(6, 6, 0, record(b"6"))]))
    assert desk.engine.backlog(conn) is Backlog.WAITS
    desk.send(conn, puback(6))
    assert desk.engine.backlog(conn) is Backlog.NONE


def test_a_queue_that_live_messages_make_long_is_counted_once_until_its_receiver_has_caught_up() -> None:
    desk = Desk(EngineSettings(max_ready=4))
    conn = desk.open(window=1)

    def outgrown() -> int:
        counted = desk.engine.counters()["backlogs_outgrown"]
        assert isinstance(counted, int)
        return counted

    deliver(desk, *range(1, LONG_QUEUE + 5))
    assert outgrown() == 0
    deliver(desk, LONG_QUEUE + 5, LONG_QUEUE + 6)
    assert outgrown() == 1
    for serial in range(1, 6):
        desk.send(conn, puback(serial))
    desk.commands()
    desk.answer(page([(6, 6, 0, record(b"6"))], more=True), b":5\r\n")
    deliver(desk, LONG_QUEUE + 7)
    assert outgrown() == 1
    desk.send(conn, puback(6))
    desk.commands()
    desk.answer(page([(LONG_QUEUE + 7, 7, 0, record(b"7"))]))
    deliver(desk, *range(LONG_QUEUE + 8, 2 * LONG_QUEUE + 20))
    assert outgrown() == 2


def test_a_backlog_from_before_grows_only_when_it_is_long() -> None:
    desk = Desk()
    conn = desk.open(resumed=True)
    assert desk.engine.backlog(conn) is Backlog.WAITS
    deliver(desk, LONG_QUEUE - 1)
    assert desk.engine.backlog(conn) is Backlog.WAITS
    deliver(desk, LONG_QUEUE)
    assert desk.engine.backlog(conn) is Backlog.GROWS


def test_large_commands_and_publishes_to_many_sessions_are_more_work_for_the_server() -> None:
    desk = Desk()
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x" * 10_240))
    assert desk.engine.outstanding == 1
    assert 10 < desk.engine.owed < 13
    desk.commands()
    desk.answer(b":400\r\n")
    assert desk.engine.owed == 0
    desk.send(desk.open(b"other"), publish(b"t", b"1") * 8)
    assert desk.engine.owed == 100  # each as much as so many: 400 sessions, one publish in four


def test_what_waits_for_clients_can_be_looked_at() -> None:
    desk = Desk(EngineSettings(max_ready=2))
    conn, other = desk.open(window=1), desk.open(b"o")
    nothing = {"messages_inflight": 0, "messages_ready": 0, "clients_behind": 0, "bytes_unsent": 0}
    nothing |= {"acknowledgements_withheld": 0}
    desk.received(conn)
    desk.received(other)
    assert desk.engine.levels() == nothing
    deliver(desk, 1, 2, 3, 4)
    unsent = len(desk.received(conn))
    assert unsent
    assert desk.engine.levels() == nothing | {"messages_inflight": 1, "messages_ready": 2, "clients_behind": 1}
    desk.engine.close(conn)
    assert desk.engine.levels() == nothing
    desk.send(other, b"\xc0\0")
    assert desk.engine.levels() == nothing | {"bytes_unsent": 2}


def test_a_client_that_does_not_read_gets_its_queue_when_it_does(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.engine.set_writable(conn, False)
    assert desk.commands() == []
    desk.engine.set_writable(conn, True)
    assert len(desk.commands()) == 1
    desk.engine.set_writable(conn, False)
    desk.answer(page([(1, 1, 0, record(b"1"))]))
    assert desk.received(conn) == b""
    desk.engine.set_writable(conn, True)
    desk.commands()
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)


def test_messages_of_qos_0_do_not_hold_up_the_queue_for_good() -> None:
    desk = Desk(EngineSettings(max_output_bytes=10))
    conn = desk.open()
    desk.answer(push(INBOX, transient(record(b"0" * 10))), push(INBOX, transient(record(b"1"))))
    deliver(desk, 1)
    assert desk.received(conn) == publish(b"t", b"0" * 10)
    waits = [desk.engine.has_timed_work]
    desk.engine.flush(desk.now_ms)
    assert [*waits, desk.engine.has_timed_work] == [True, False]
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)
    assert desk.engine.counters()["messages_dropped_qos0"] == 1


# ---- topic aliases of the client


def test_an_alias_may_get_another_topic(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_in=1)
    alias = b"\x23\0\x01"
    topics = [b"first", b"", b"other", b"other", b""]
    desk.send(conn, b"".join(publish(topic, b"", properties=alias) for topic in topics))
    assert [command[1] for command in desk.commands()] == [b"first", b"first", b"other", b"other", b"other"]


@pytest.mark.parametrize(
    ("properties", "code"), [(b"\x23\0\x02", 0x94), (b"\x23\0\x00", 0x94), (b"\x23\0\x01", 0x82), (b"", 0x82)]
)
def test_an_empty_topic_needs_an_alias_that_was_set(desk: Desk, properties: bytes, code: int) -> None:
    conn = desk.open(version=5, alias_maximum_in=1)
    desk.send(conn, publish(b"", b"", properties=properties))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, code)]


def test_properties_on_both_sides_of_the_alias_are_passed_on(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_in=1)
    first, last = (b"\x26" + text(key) + text(b"v") for key in (b"a", b"b"))
    desk.send(conn, publish(b"t", b"1", properties=first + b"\x23\0\x01" + last))
    assert desk.commands()[0][-2:] == [b"PROPERTIES", first + last]


# ---- many


def test_commands_and_replies_may_continue_forever_with_some_always_under_way(desk: Desk) -> None:
    conn = desk.open()
    for i in range(1, 500):
        desk.send(conn, publish(b"t", b"%d" % i, qos=1, packet_id=i))
        assert [command[2] for command in desk.commands()] == [b"%d" % i]
        if i > 2:
            desk.answer(b":1\r\n")
            assert desk.received(conn) == puback(i - 2)


def test_a_large_window_may_be_acknowledged_in_any_order(desk: Desk) -> None:
    conn = desk.open(window=65535)
    order = list(range(1, 400))
    for serial in order:
        deliver(desk, serial)
    random.Random(1).shuffle(order)
    for packet_id in order:
        desk.send(conn, puback(packet_id) * 2)
        assert [int(command[-1]) for command in desk.commands()] == [packet_id]
        desk.answer(b":1\r\n")
    assert desk.engine.counters()["acknowledgements_unknown"] == len(order)


# ---- faults


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (connect(level=5), 0x82, "second CONNECT"),
        (publish(b"t", properties=b"\x0b\x05"), 0x82, "subscription identifier"),
        (packet(0x20, b"\0\0\0"), 0x82, "only a server sends"),
        (b"\x40\x02\0\0", 0x82, "identifier"),
        (b"\xc1\0", 0x81, ""),
    ],
)
def test_a_fault_ends_the_connection_and_is_named(desk: Desk, data: bytes, code: int, said: str) -> None:
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", b"1", properties=b"") + data + publish(b"t", b"2", properties=b""))
    (event,) = desk.events
    assert (event.kind, event.conn, event.code) == (EventKind.ERROR, conn, code)
    assert said in error_text(event.error)
    assert event.data.startswith(data)
    assert [command[2] for command in desk.commands()] == [b"1"]
    desk.answer(b":1\r\n", push(INBOX, queued(1, 0, record(b"1"))), push(INBOX, transient(record(b"0"))))
    assert desk.received(conn) == b""
    desk.engine.send(conn, b"\xe0\0")
    assert desk.received(conn) == b"\xe0\0"


def test_each_error_of_the_engine_has_a_text() -> None:
    assert len({error_text(error) for error in range(-107, -100)}) == 7
    assert error_text(-106) == "out of memory"
    assert error_text(-1) != error_text(-2)


def test_a_page_or_reply_for_a_connection_that_ended_is_not_looked_at(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1) + b"\xff")
    assert len(desk.commands()) == 1
    desk.answer(b":1\r\n")
    desk.commands()
    assert desk.received(conn) == b""
    assert not desk.engine.should_pause(conn)


# ---- rates and rest


def test_a_client_above_its_rate_is_not_read_until_its_debt_is_paid(desk: Desk) -> None:
    conn = desk.open(publish_rate=10)
    desk.send(conn, publish(b"t") * 10)
    assert not desk.engine.should_pause(conn)
    desk.send(conn, publish(b"t") * 5)
    assert desk.engine.should_pause(conn)
    assert desk.engine.has_timed_work
    desk.commands()
    desk.answer(b":1\r\n" * 15)
    desk.now_ms += 490
    desk.commands()
    assert desk.kinds() == []
    desk.now_ms += 10
    desk.commands()
    assert desk.kinds() == [EventKind.RELIEF]
    assert not desk.engine.should_pause(conn)
    assert not desk.engine.has_timed_work


def test_a_long_silence_allows_no_more_than_the_burst_of_a_second(desk: Desk) -> None:
    conn = desk.open(publish_rate=10)
    desk.send(conn, publish(b"t") * 11)
    desk.now_ms += 3_600_000
    desk.commands()
    desk.send(conn, publish(b"t") * 10)
    assert not desk.engine.should_pause(conn)
    desk.send(conn, publish(b"t"))
    assert desk.engine.should_pause(conn)


def test_a_clock_that_is_set_back_costs_a_client_nothing(desk: Desk) -> None:
    conn = desk.open(publish_rate=10, replay_rate=10, resumed=True)
    desk.send(conn, publish(b"t") * 11)
    desk.commands()
    desk.answer(b":1\r\n" * 11, page([(i, i, 0, record(b"")) for i in range(1, 21)]))
    assert desk.received(conn).count(b"\0\x01t") == 10
    assert desk.engine.should_pause(conn)
    desk.now_ms -= 3_600_000
    desk.commands()
    desk.now_ms += 200
    desk.commands()
    assert not desk.engine.should_pause(conn)
    assert desk.received(conn).count(b"\0\x01t") == 2


def test_denied_publishes_of_qos_0_are_dropped_and_rules_may_change(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(True, b"ok"), (False, b"#")], denied_otherwise=False)
    desk.send(conn, publish(b"ok", b"1") + publish(b"no", b"2"))
    desk.engine.rules(conn, [], denied_otherwise=False)
    desk.send(conn, publish(b"no", b"3"))
    assert [command[2] for command in desk.commands()] == [b"1", b"3"]
    assert desk.engine.counters()["publishes_denied"] == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_connections_first_denied_publish_is_reported_with_its_topic(desk: Desk, qos: int) -> None:
    conn = desk.open(version=5, alias_maximum_in=1)
    desk.engine.rules(conn, [(True, b"ok")], denied_otherwise=True)
    alias = b"\x23\0\1"
    named = publish(b"ok", b"1", qos=qos, packet_id=1, properties=b"") + publish(
        b"no", b"2", qos=qos, packet_id=2, properties=alias
    )
    again = publish(b"", b"3", qos=qos, packet_id=3, properties=alias) + publish(b"ok", b"4", properties=b"")
    desk.send(conn, named + again)
    assert [(event.kind, event.conn, event.data) for event in desk.events] == [(EventKind.DENIED, conn, b"no")]
    assert [command[2] for command in desk.commands() if command[0] == b"TOPIC.PUBLISH"] == [b"1", b"4"]
    assert desk.engine.counters()["publishes_denied"] == 2


def test_a_denied_publish_by_alias_is_reported_with_the_topic_of_the_alias(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_in=1)
    alias = b"\x23\0\1"
    desk.send(conn, publish(b"a/b", properties=alias))
    desk.engine.rules(conn, [], denied_otherwise=True)
    desk.send(conn, publish(b"", properties=alias))
    assert [(event.kind, event.data) for event in desk.events] == [(EventKind.DENIED, b"a/b")]


# ---- handles


def test_a_handle_of_a_closed_connection_reaches_nobody(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.close(conn)
    again = desk.engine.attach()
    assert again != conn
    assert again & 0xFFFFFFFF == conn & 0xFFFFFFFF
    for stale in (conn, 0, 1 << 32, 99):
        assert desk.engine.receive(stale, connect(), T0) is None
        assert desk.engine.proceed(stale, T0) is None
        desk.engine.send(stale, b"x")
        desk.engine.rules(stale, [(True, b"#")], denied_otherwise=False)
        desk.engine.set_writable(stale, True)
        assert not desk.engine.should_pause(stale)
        assert desk.engine.sent_serial(stale) == 0
        desk.engine.close(stale)
        with pytest.raises(MemoryError):
            desk.engine.open(stale, OpenSession(4, b"c", b"{c}", 1), T0)
    desk.look()
    assert desk.written == {}


def test_only_a_connection_that_waits_for_it_can_be_opened_and_only_once(desk: Desk) -> None:
    session = OpenSession(4, b"c", b"{c}", 1)
    conn = desk.engine.attach()
    with pytest.raises(MemoryError):
        desk.engine.open(conn, session, T0)
    assert desk.engine.receive(conn, connect(), T0) is not None
    assert desk.engine.proceed(conn, T0) is None  # not before it is open
    desk.engine.open(conn, session, T0)
    with pytest.raises(MemoryError):
        desk.engine.open(conn, session, T0)


def test_the_former_connection_to_a_session_gets_nothing_any_more(desk: Desk) -> None:
    former = desk.open(resumed=True)
    desk.send(former, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands()
    conn = desk.open()
    desk.answer(b":1\r\n", page([(1, 1, 0, record(b"1"))]))
    assert desk.received(former) == b""
    deliver(desk, 1)
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)


def test_many_inboxes_come_and_go_and_each_gets_its_own(desk: Desk) -> None:
    conns = {b"%d" % i: desk.open(b"%d" % i) for i in range(300)}
    for client_id in list(conns)[::3]:
        desk.engine.close(conns.pop(client_id))
    for i in range(300):
        desk.answer(push(b"{%d}_inbox" % i, transient(record(b"%d" % i))))
    assert {conn: desk.received(conn) for conn in conns.values()} == {
        conn: publish(b"t", client_id) for client_id, conn in conns.items()
    }
    assert desk.engine.counters()["deliveries_received"] == 200


# ---- the end of a connection


def test_what_gathered_goes_out_when_the_connection_is_closed(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    deliver(desk, 2, qos=2)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands()
    desk.answer(b"-OOM\r\n")  # that it waits does not hold up the others
    desk.send(conn, puback(1) + pubrec(2) + b"\xff")
    desk.engine.close(conn)
    assert [command[0] for command in desk.commands()] == [b"SESSION.RELEASE", b"SESSION.ACK"]
    desk.now_ms += 60
    assert desk.commands() == []


def test_a_connection_may_be_closed_while_the_server_is_away(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    desk.engine.server_lost()
    desk.send(conn, puback(1) + publish(b"t", b"1", qos=1, packet_id=1))
    desk.engine.close(conn)
    desk.engine.server_restored(desk.now_ms)
    assert desk.commands() == []


def test_the_owners_packets_come_after_what_was_to_be_sent(desk: Desk) -> None:
    conn = desk.open()
    deliver(desk, 1)
    desk.engine.send(conn, b"\xe0\0")
    desk.engine.send(conn, b"")
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1) + b"\xe0\0"


def test_a_packet_for_the_owner_may_be_left_as_long_as_it_likes(desk: Desk) -> None:
    conn = desk.open()
    subscribe = packet(0x82, b"\0\x01" + text(b"t") + b"\0")
    event = desk.engine.receive(conn, subscribe + publish(b"t", b"1") + subscribe, desk.now_ms)
    assert event is not None
    assert (event.kind, event.data) == (EventKind.PACKET, subscribe)
    assert desk.commands() == []
    assert desk.engine.should_pause(conn)
    event = desk.engine.proceed(conn, desk.now_ms)
    assert event is not None
    assert event.data == subscribe
    assert [command[2] for command in desk.commands()] == [b"1"]
    assert desk.kinds() == [EventKind.RELIEF]  # nothing of the client's waits any more
    assert desk.engine.proceed(conn, desk.now_ms) is None
