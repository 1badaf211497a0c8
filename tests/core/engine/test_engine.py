"""The engine: whole conversations between clients, the engine and a server, from byte strings."""

import dataclasses
from typing import Any

import pytest

from holdmq.core import Delivery, DeliveryKind
from holdmq.core.engine import EngineSettings, EventKind, OpenSession, OutOfStepError
from tests.bridge.packets import packet, puback, pubcomp, pubrec, pubrel, text
from tests.core.engine.engine_talk import (
    PUBREL_RECORD,
    T0,
    Desk,
    connect,
    page,
    publish,
    push,
    queued,
    record,
    transient,
)

INBOX = b"{c}_inbox"
OOM = b"-OOM command not allowed\r\n"


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- publishing


def test_a_publish_is_acknowledged_when_the_server_has_it(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"a/b", b"hello", qos=1, packet_id=5))
    assert desk.commands() == [[b"TOPIC.PUBLISH", b"a/b", b"hello", b"QOS", b"1", b"FROM", b"c", b"EPOCH", b"7"]]
    assert desk.received(conn) == b""
    desk.answer(b":1\r\n")
    assert desk.received(conn) == puback(5)


def test_a_publish_of_qos_0_is_not_answered(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"a", b"x") + publish(b"a", b"x", retain=True))
    assert desk.commands() == [
        [b"TOPIC.PUBLISH", b"a", b"x", b"FROM", b"c"],
        [b"TOPIC.PUBLISH", b"a", b"x", b"RETAIN", b"FROM", b"c", b"EPOCH", b"7"],
    ]
    desk.answer(b":1\r\n:1\r\n")
    assert desk.received(conn) == b""
    assert desk.engine.outstanding == 0


@pytest.mark.parametrize("cut", range(1, 28))
def test_packets_may_be_cut_anywhere(desk: Desk, cut: int) -> None:
    conn = desk.open()
    data = publish(b"a", b"1", qos=1, packet_id=1) + publish(b"b", b"2", qos=1, packet_id=2) + b"\xc0\0" + puback(9)
    desk.send(conn, data[:cut])
    desk.send(conn, data[cut:])
    assert [command[1] for command in desk.commands()] == [b"a", b"b"]
    desk.answer(b":1\r", b"\n:1\r\n")
    assert desk.received(conn) == b"\xd0\0" + puback(1) + puback(2)


def test_the_servers_bytes_may_be_cut_anywhere() -> None:
    fetched = page([(2, 2, 0, record(b"two"))])
    data = b":1\r\n" + fetched + push(INBOX, queued(3, 2, record(b"three")))
    for cut in range(len(data)):
        desk = Desk()
        conn = desk.open()
        desk.send(conn, publish(b"a", qos=1, packet_id=1))
        desk.answer(push(INBOX, queued(2, 1, record(b"two"))))
        assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH", b"SESSION.FETCH"]
        desk.answer(data[:cut])
        desk.answer(data[cut:])
        assert desk.received(conn) == (
            puback(1) + publish(b"t", b"two", qos=1, packet_id=2) + publish(b"t", b"three", qos=1, packet_id=3)
        )


def test_a_qos_2_publish_is_taken_once_by_its_identifier(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"a", b"x", qos=2, packet_id=3))
    assert desk.commands()[0][-4:] == [b"EPOCH", b"7", b"PACKET", b"3"]
    desk.answer(b":0\r\n")
    assert desk.received(conn) == pubrec(3)
    desk.send(conn, publish(b"a", b"x", qos=2, packet_id=3, dup=True))
    desk.commands()
    desk.answer(b":-1\r\n")
    assert desk.received(conn) == pubrec(3)
    desk.send(conn, pubrel(3))
    assert desk.commands() == [[b"SESSION.COMPLETE", b"{c}", b"EPOCH", b"7", b"3"]]
    assert desk.received(conn) == b""
    desk.answer(b":1\r\n")
    assert desk.received(conn) == pubcomp(3)


def test_acknowledgements_come_in_the_order_of_the_publishes_also_after_a_denied_one(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(True, b"ok/#")], denied_otherwise=True)
    desk.send(
        conn,
        publish(b"ok/1", qos=1, packet_id=1)
        + publish(b"no", qos=1, packet_id=2)
        + publish(b"ok/2", qos=1, packet_id=3),
    )
    assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH", b"PING", b"TOPIC.PUBLISH"]
    desk.answer(b":1\r\n", b"+PONG\r\n", b":1\r\n")
    assert desk.received(conn) == puback(1) + puback(2) + puback(3)


@pytest.mark.parametrize("version", [4, 5])
def test_a_denied_publish_of_qos_2_gives_its_identifier_back(desk: Desk, version: int) -> None:
    conn = desk.open(version=version)
    desk.engine.rules(conn, [], denied_otherwise=True)
    desk.send(conn, publish(b"no", qos=2, packet_id=9, properties=b"" if version == 5 else None))
    assert desk.commands() == [[b"SESSION.COMPLETE", b"{c}", b"EPOCH", b"7", b"9"]]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == (pubrec(9, 0x87) if version == 5 else pubrec(9))


@pytest.mark.parametrize("more", [[], [(False, b"no")], [(False, b"+/no")]], ids=["alone", "beside a topic", "a plus"])
def test_rules_on_topics_with_a_dollar_deny_these_and_no_others(desk: Desk, more: list[tuple[bool, bytes]]) -> None:
    conn = desk.open()
    desk.engine.rules(conn, [(True, b"$SYS/a/#"), (False, b"$SYS/#"), *more], denied_otherwise=False)
    topics = [b"$SYS", b"$SYS/b", b"$SYS/a/b", b"$other", b"a", b"no", b"x/no"]
    desk.send(conn, b"".join(publish(t, qos=1, packet_id=i + 1) for i, t in enumerate(topics)))
    allowed = [command[1] for command in desk.commands() if command[0] == b"TOPIC.PUBLISH"]
    denied = {b"$SYS", b"$SYS/b", *({b"no": [b"no"], b"+/no": [b"x/no"]}[more[0][1]] if more else [])}
    assert allowed == [topic for topic in topics if topic not in denied]
    desk.engine.rules(conn, [], denied_otherwise=False)
    desk.send(conn, publish(b"$SYS/b", qos=1, packet_id=99))
    assert [command[1] for command in desk.commands()] == [b"$SYS/b"]


def test_mqtt_5_learns_what_became_of_a_publish(desk: Desk) -> None:
    conn = desk.open(version=5)
    desk.engine.rules(conn, [(False, b"no"), (True, b"#")], denied_otherwise=False)
    topics = [b"heard", b"unheard", b"no", b"full"]
    desk.send(conn, b"".join(publish(t, qos=1, packet_id=i + 1, properties=b"") for i, t in enumerate(topics)))
    desk.commands()
    desk.answer(b":1\r\n", b":0\r\n", b"+PONG\r\n", OOM)
    assert desk.received(conn) == puback(1) + puback(2, 0x10) + puback(3, 0x87) + puback(4, 0x97)


def test_properties_are_passed_on_and_message_expiry_becomes_a_time_to_live(desk: Desk) -> None:
    conn = desk.open(version=5)
    user, expiry = b"\x26" + text(b"k") + text(b"v"), b"\x02\0\0\0\x0a"
    desk.send(conn, publish(b"a", b"x", properties=user + expiry))
    assert desk.commands() == [[b"TOPIC.PUBLISH", b"a", b"x", b"TTL", b"10", b"FROM", b"c", b"PROPERTIES", user]]


@pytest.mark.parametrize(
    ("interval", "settings", "seconds"),
    [
        (0, {}, 0),
        (None, {}, None),
        (None, {"message_expiry_s": 5}, 5),
        (None, {"max_message_expiry_s": 7}, 7),
        (None, {"message_expiry_s": 9, "max_message_expiry_s": 7}, 7),
        (90, {"message_expiry_s": 5, "max_message_expiry_s": 7}, 7),
        (6, {"message_expiry_s": 5, "max_message_expiry_s": 7}, 6),
        (0, {"message_expiry_s": 5, "max_message_expiry_s": 7}, 0),
    ],
)
def test_a_publish_lives_no_longer_than_the_settings_allow(
    interval: int | None, settings: dict[str, Any], seconds: int | None
) -> None:
    desk = Desk(dataclasses.replace(EngineSettings(), **settings))
    conn = desk.open(version=5)
    desk.send(conn, publish(b"a", properties=b"" if interval is None else b"\x02" + interval.to_bytes(4, "big")))
    options = [] if seconds is None else [b"TTL", b"%d" % seconds]
    assert desk.commands() == [[b"TOPIC.PUBLISH", b"a", b"", *options, b"FROM", b"c"]]


def test_a_message_with_an_expiry_of_0_is_sent_at_once_or_never(desk: Desk) -> None:
    conn = desk.open(version=5, window=1)
    for serial in (1, 2, 3):
        desk.answer(push(INBOX, queued(serial, serial - 1, record(b"%d" % serial, expires_ms=T0))))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1, properties=b"\x02\0\0\0\0")
    assert desk.commands() == [[b"SESSION.SENT", b"{c}", b"EPOCH", b"7", b"1"]]
    desk.send(conn, puback(1))
    assert desk.received(conn) == b""
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1-3"]]


def test_a_topic_alias_stands_for_the_topic_that_was_sent_with_it(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_in=2)
    desk.send(
        conn, publish(b"long/topic", b"1", properties=b"\x23\0\x02") + publish(b"", b"2", properties=b"\x23\0\x02")
    )
    assert [command[1] for command in desk.commands()] == [b"long/topic", b"long/topic"]
    desk.send(conn, publish(b"", b"3", properties=b"\x23\0\x01"))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x82)]


def test_more_than_the_receive_maximum_is_an_error_of_the_client(desk: Desk) -> None:
    conn = desk.open(version=5, receive_maximum=2)
    desk.send(conn, b"".join(publish(b"a", qos=1, packet_id=i, properties=b"") for i in (1, 2)))
    desk.commands()
    desk.answer(b":1\r\n:1\r\n")
    desk.send(conn, b"".join(publish(b"a", qos=1, packet_id=i, properties=b"") for i in (3, 4)))
    assert desk.events == []
    desk.send(conn, publish(b"a", qos=1, packet_id=5, properties=b""))
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, 0x93)]


def test_what_was_refused_for_now_is_sent_again_in_its_order(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, b"".join(publish(b"t", b"%d" % i, qos=1, packet_id=i) for i in (1, 2, 3)))
    desk.commands()
    desk.answer(b":1\r\n", OOM, b":1\r\n")
    assert desk.received(conn) == puback(1)
    assert desk.kinds() == [EventKind.REFUSED]
    desk.send(conn, publish(b"t", b"4", qos=1, packet_id=4))
    assert desk.engine.should_pause(conn)
    assert desk.commands() == []
    desk.now_ms += 60
    again = desk.commands()
    assert [command[2] for command in again] == [b"2", b"3", b"4"]
    assert [command[-1] == b"RETRY" for command in again] == [True, False, False]  # all replies were here
    desk.answer(b":1\r\n" * 3)
    assert desk.received(conn) == puback(2) + puback(3) + puback(4)
    assert desk.kinds() == [EventKind.RELIEF]


def test_what_the_server_did_not_answer_is_sent_again_when_it_is_back(desk: Desk) -> None:
    conn = desk.open()
    desk.send(
        conn, publish(b"t", b"1", qos=1, packet_id=1) + publish(b"t", b"0") + publish(b"t", b"2", qos=2, packet_id=2)
    )
    desk.commands()
    desk.engine.server_lost()
    desk.send(conn, publish(b"t", b"3", qos=1, packet_id=3))
    assert desk.engine.should_pause(conn)
    assert desk.engine.server_output() == b""
    desk.engine.server_restored(desk.now_ms)
    published = [command[2] for command in desk.commands() if command[0] == b"TOPIC.PUBLISH"]
    assert published == [b"1", b"2", b"3"]
    desk.answer(b":1\r\n", b":-1\r\n", b":1\r\n")
    assert desk.received(conn) == puback(1) + pubrec(2) + puback(3)


def test_a_client_with_too_much_unanswered_pauses_until_half_of_it_is_answered() -> None:
    desk = Desk(EngineSettings(max_client_outstanding=4))
    conn = desk.open()
    desk.send(conn, b"".join(publish(b"t", qos=1, packet_id=i) for i in range(1, 7)))
    desk.commands()
    assert desk.engine.should_pause(conn)
    desk.answer(b":1\r\n" * 3)
    assert desk.kinds() == []
    desk.answer(b":1\r\n")
    assert desk.kinds() == [EventKind.RELIEF]
    assert not desk.engine.should_pause(conn)


# ---- receiving


def test_a_push_that_follows_is_sent_at_once_and_acknowledged_in_one_command(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(1, 0, record(b"one"))), push(INBOX, queued(2, 1, record(b"two"))))
    assert desk.received(conn) == publish(b"t", b"one", qos=1, packet_id=1) + publish(b"t", b"two", qos=1, packet_id=2)
    desk.send(conn, puback(2) + puback(1))
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"2", b"1"]]


def test_qos_0_is_sent_while_the_client_reads_and_dropped_while_not(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, transient(record(b"now"))))
    assert desk.received(conn) == publish(b"t", b"now")
    desk.engine.set_writable(conn, False)
    desk.answer(push(INBOX, transient(record(b"never"))))
    assert desk.received(conn) == b""
    assert desk.engine.counters()["messages_dropped_qos0"] == 1


def test_a_gap_is_fetched_and_pushes_after_the_page_follow_it(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(3, 2, record(b"three"))))
    assert desk.received(conn) == b""
    assert desk.commands()[0][:6] == [b"SESSION.FETCH", b"{c}", b"EPOCH", b"7", b"AFTER", b"0"]
    desk.answer(page([(i, i, 0, record(b"%d" % i)) for i in (1, 2, 3)]), push(INBOX, queued(4, 3, record(b"4"))))
    expected = [publish(b"t", b"%d" % i, qos=1, packet_id=i) for i in (1, 2, 3, 4)]
    assert desk.received(conn) == b"".join(expected)


def test_no_more_than_the_window_is_unacknowledged_and_the_rest_follows_in_order(desk: Desk) -> None:
    conn = desk.open(window=2)
    desk.answer(*(push(INBOX, queued(i, i - 1, record(b"%d" % i))) for i in range(1, 6)))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1) + publish(b"t", b"2", qos=1, packet_id=2)
    desk.send(conn, puback(1))
    assert desk.received(conn) == publish(b"t", b"3", qos=1, packet_id=3)
    desk.send(conn, puback(2) + puback(3))
    assert desk.received(conn) == publish(b"t", b"4", qos=1, packet_id=4) + publish(b"t", b"5", qos=1, packet_id=5)


def test_a_resumed_session_gets_what_it_had_again_with_dup_and_owed_releases(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    assert desk.commands()[0][0] == b"SESSION.FETCH"
    desk.answer(page([(1, 1, 2, PUBREL_RECORD), (2, 2, 1, record(b"2", qos=2)), (3, 3, 0, record(b"3"))]))
    assert desk.received(conn) == pubrel(1) + publish(b"t", b"2", qos=2, packet_id=2, dup=True) + publish(
        b"t", b"3", qos=1, packet_id=3
    )
    desk.send(conn, pubcomp(1))
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1"]]


def test_qos_2_is_released_at_the_server_before_the_client_hears_of_it(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(1, 0, record(b"x", qos=2), qos=2)))
    assert desk.received(conn) == publish(b"t", b"x", qos=2, packet_id=1)
    desk.send(conn, pubrec(1))
    assert desk.received(conn) == b""
    assert desk.commands() == [[b"SESSION.RELEASE", b"{c}", b"EPOCH", b"7", b"1"]]
    desk.answer(b":1\r\n")
    assert desk.received(conn) == pubrel(1)
    desk.send(conn, pubrec(1))
    assert desk.received(conn) == pubrel(1)
    desk.send(conn, pubcomp(1))
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1"]]


def test_pages_continue_until_nothing_follows(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 0, record(b"1"))], more=True))
    assert desk.commands()[0][4:6] == [b"AFTER", b"1"]
    desk.answer(page([(2, 2, 0, record(b"2"))]))
    assert desk.commands() == []
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1) + publish(b"t", b"2", qos=1, packet_id=2)


def test_after_a_loss_nothing_is_sent_twice_and_acknowledgements_wait_until_all_is_compared(desk: Desk) -> None:
    conn = desk.open()
    one, two, three = record(b"1"), record(b"2"), record(b"3")
    desk.answer(push(INBOX, queued(1, 0, one)), push(INBOX, queued(2, 1, two)))
    desk.received(conn)
    desk.send(conn, puback(1))
    desk.commands()
    desk.engine.server_lost()
    desk.send(conn, puback(2))
    desk.engine.server_restored(desk.now_ms)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 0, one), (2, 2, 0, two), (3, 3, 0, three)]))
    assert desk.received(conn) == publish(b"t", b"3", qos=1, packet_id=3)
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1-2"]]


def test_another_message_under_an_identifier_that_the_client_has_is_a_conflict(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(1, 0, record(b"ours"))))
    desk.received(conn)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(page([(1, 1, 0, record(b"another"))]))
    assert desk.kinds() == [EventKind.CONFLICT]
    assert desk.received(conn) == b""


def test_a_message_that_the_server_lost_is_not_acknowledged_to_it(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(1, 0, record(b"lost"))))
    desk.received(conn)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(page([]))
    desk.send(conn, puback(1))
    assert desk.commands() == []


def test_an_oversized_message_does_not_hold_up_the_queue(desk: Desk) -> None:
    conn = desk.open(version=5, max_packet_out=40)
    desk.answer(push(INBOX, queued(1, 0, record(b"x" * 50))), push(INBOX, queued(2, 1, record(b"ok"))))
    assert desk.received(conn) == publish(b"t", b"ok", qos=1, packet_id=2, properties=b"")
    assert desk.commands() == [[b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1"]]


def test_the_remaining_expiry_is_sent_and_an_expired_message_is_not(desk: Desk) -> None:
    conn = desk.open(version=5, window=1)
    for serial, life_ms in ((1, 60_000), (2, 2_000), (3, 9_500)):
        desk.answer(push(INBOX, queued(serial, serial - 1, record(b"%d" % serial, expires_ms=T0 + life_ms))))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1, properties=b"\x02\0\0\0\x3c")
    assert desk.commands() == [[b"SESSION.SENT", b"{c}", b"EPOCH", b"7", b"1"]]
    desk.now_ms += 4_000
    desk.send(conn, puback(1))
    assert desk.received(conn) == publish(b"t", b"3", qos=1, packet_id=3, properties=b"\x02\0\0\0\x06")
    assert desk.commands() == [
        [b"SESSION.SENT", b"{c}", b"EPOCH", b"7", b"3"],
        [b"SESSION.ACK", b"{c}", b"EPOCH", b"7", b"1-2"],
    ]


def test_topic_aliases_shorten_what_is_sent(desk: Desk) -> None:
    conn = desk.open(version=5, alias_maximum_out=1)
    for serial, topic in ((1, b"first/topic"), (2, b"other/topic"), (3, b"first/topic")):
        desk.answer(push(INBOX, queued(serial, serial - 1, record(b"x", topic=topic))))
    assert desk.received(conn) == (
        publish(b"first/topic", b"x", qos=1, packet_id=1, properties=b"\x23\0\x01")
        + publish(b"other/topic", b"x", qos=1, packet_id=2, properties=b"")
        + publish(b"", b"x", qos=1, packet_id=3, properties=b"\x23\0\x01")
    )


def test_a_backlog_can_be_limited_to_a_rate(desk: Desk) -> None:
    conn = desk.open(resumed=True, replay_rate=2)
    desk.commands()
    desk.answer(page([(i, i, 0, record(b"%d" % i)) for i in range(1, 6)]))
    assert desk.received(conn).count(b"\0\x01t") == 2
    assert desk.engine.has_timed_work
    desk.now_ms += 1000
    desk.engine.flush(desk.now_ms)
    assert desk.received(conn).count(b"\0\x01t") == 2


# ---- who has the session


def test_another_connection_of_the_process_takes_the_inbox_over(desk: Desk) -> None:
    first = desk.open()
    second = desk.engine.attach()
    desk.engine.receive(second, connect(b"c"), desk.now_ms)
    assert desk.engine.open(second, OpenSession(4, b"c", b"{c}", 8), desk.now_ms) == first
    desk.answer(push(INBOX, queued(1, 0, record(b"x"))))
    assert desk.received(first) == b""
    assert desk.received(second) == publish(b"t", b"x", qos=1, packet_id=1)
    desk.engine.close(first)
    desk.answer(push(INBOX, queued(2, 1, record(b"y"))))
    assert desk.received(second) == publish(b"t", b"y", qos=1, packet_id=2)


def test_a_notice_of_a_newer_owner_is_an_event_and_one_of_our_own_is_not(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, Delivery(DeliveryKind.TAKEN_OVER, serial=7).encode()))
    assert desk.events == []
    desk.answer(push(INBOX, Delivery(DeliveryKind.TAKEN_OVER, serial=8).encode()))
    assert [(event.kind, event.conn, event.epoch) for event in desk.events] == [(EventKind.TAKEN_OVER, conn, 8)]


def test_a_fenced_command_is_an_event(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", qos=2, packet_id=1))
    desk.commands()
    desk.answer(b"-FENCED the session has a newer owner\r\n")
    assert desk.kinds() == [EventKind.TAKEN_OVER]
    assert desk.received(conn) == b""


def test_replies_to_a_closed_connection_reach_nobody(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands()
    desk.engine.close(conn)
    other = desk.open(b"d")
    desk.send(other, publish(b"t", qos=1, packet_id=2))
    desk.commands()
    desk.answer(b":1\r\n:1\r\n")
    assert desk.received(other) == puback(2)


# ---- the owner's own


def test_packets_for_the_owner_hold_up_what_follows_until_it_continues(desk: Desk) -> None:
    conn = desk.engine.attach()
    event = desk.engine.receive(conn, connect() + publish(b"t", b"1", qos=1, packet_id=1), desk.now_ms)
    assert event is not None
    assert (event.kind, event.data) == (EventKind.PACKET, connect())
    assert desk.engine.should_pause(conn)
    assert desk.engine.receive(conn, b"\xc0\0", desk.now_ms) is None
    desk.engine.open(conn, OpenSession(4, b"c", b"{c}", 1), desk.now_ms)
    assert desk.engine.proceed(conn, desk.now_ms) is None
    assert desk.received(conn) == b"\xd0\0"
    assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH"]


def test_replies_to_the_owners_commands_come_with_their_token_in_their_turn(desk: Desk) -> None:
    conn = desk.open()
    desk.engine.command(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nx\r\n", replies=False)
    desk.engine.command(b"*1\r\n$4\r\nPING\r\n", conn=conn, token=77)
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    assert [command[0] for command in desk.commands()] == [b"SUBSCRIBE", b"PING", b"TOPIC.PUBLISH"]
    confirmation = b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"
    desk.answer(confirmation + b"+PONG\r\n" + b":0\r\n")
    assert [(event.kind, event.token, event.data) for event in desk.events] == [
        (EventKind.PUSH, 0, confirmation),
        (EventKind.REPLY, 77, b"+PONG\r\n"),
    ]
    assert desk.received(conn) == puback(1)


def test_a_reply_that_nobody_asked_for_is_the_end_of_the_connection_to_the_server(desk: Desk) -> None:
    desk.open()
    with pytest.raises(OutOfStepError):
        desk.answer(b":1\r\n")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (publish(b"t"), 0x82),
        (packet(0x90, b"\0\1\0\0"), 0x82),
        (b"\x36\x00", 0x81),
    ],
)
def test_a_fault_of_the_client_is_reported_with_its_reason_code(desk: Desk, data: bytes, code: int) -> None:
    conn = desk.open(version=5) if data[0] != 0x30 else desk.engine.attach()
    desk.send(conn, data)
    assert [(event.kind, event.code) for event in desk.events] == [(EventKind.ERROR, code)]
    desk.events.clear()
    desk.send(conn, publish(b"t"))
    assert desk.events == []
