"""The engine and what a server may send: wrong replies, confirmations, pushes, replies of any size; events in order."""

from typing import Any

import pytest

from holdmq.core import Delivery, DeliveryKind
from holdmq.core.engine import EngineSettings, EventKind, OpenSession, OutOfStepError
from tests.bridge.packets import puback, pubrec, pubrel
from tests.core.engine.engine_talk import (
    Desk,
    bulk,
    connect,
    identifiers,
    packed,
    page,
    publish,
    push,
    queued,
    record,
    transient,
)

INBOX = b"{c}_inbox"
PING = b"*1\r\n$4\r\nPING\r\n"
FOREIGN = [
    b"+OK\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b"$1\r\n1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"%0\r\n",
    b"#t\r\n",
    b",1\r\n",
]
RIGHT = dict.fromkeys(("publish", "complete", "ack", "release"), b":1\r\n")
RIGHT |= {"denied": b"+OK\r\n", "sent": b"+OK\r\n", "fetch": b""}
ONE = record(b"1")
GOOD_PACKED = packed([(1, 1, 0, ONE)])
GOOD_ENTRY = b"*4\r\n:1\r\n:1\r\n:0\r\n" + bulk(ONE)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def ask(desk: Desk, command: str) -> int:
    """A connection with one command under way: this one."""
    conn = desk.open(resumed=command == "fetch")
    if command == "denied":
        desk.engine.rules(conn, [], denied_otherwise=True)
    life: dict[str, Any] = {"expires_ms": desk.now_ms + 60_000} if command == "sent" else {}
    if command in ("ack", "release", "sent"):
        desk.answer(push(INBOX, queued(1, 0, record(b"1", qos=2 if command == "release" else 1, **life))))
    packets = {
        "publish": publish(b"t", qos=1, packet_id=1),
        "denied": publish(b"t", qos=1, packet_id=1),
        "complete": pubrel(1),
        "ack": puback(1),
        "release": pubrec(1),
    }
    desk.send(conn, packets.get(command, b""))
    assert len(desk.commands()) == 1
    desk.received(conn)
    return conn


# ---- what does not fit what was asked


@pytest.mark.parametrize(
    ("command", "reply"), [(command, reply) for command in RIGHT for reply in FOREIGN if reply != RIGHT[command]]
)
def test_a_reply_of_another_type_does_not_belong_to_this_command(desk: Desk, command: str, reply: bytes) -> None:
    conn = ask(desk, command)
    with pytest.raises(OutOfStepError):
        desk.answer(reply)
    with pytest.raises(OutOfStepError):
        desk.answer(b":1\r\n")
    assert desk.received(conn) == b""
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert desk.commands()


@pytest.mark.parametrize(
    "reply",
    [
        b"*3\r\n:1\r\n:0\r\n:0\r\n",
        b"*3\r\n*-1\r\n:0\r\n:0\r\n",
        b"*3\r\n*0\r\n:2\r\n:0\r\n",
        b"*3\r\n*0\r\n:-1\r\n:0\r\n",
        b"*3\r\n*0\r\n+OK\r\n:0\r\n",
        b"*3\r\n*0\r\n:0\r\n_\r\n",
        b"*2\r\n*0\r\n:0\r\n",
        b"*3\r\n*1\r\n-OOM\r\n:0\r\n:0\r\n",
        b"*3\r\n*1\r\n*3\r\n:1\r\n:1\r\n:0\r\n:0\r\n:0\r\n",
        b"*3\r\n*1\r\n" + GOOD_ENTRY.replace(b":1", b":0", 1) + b":0\r\n:0\r\n",
        b"*3\r\n*1\r\n" + GOOD_ENTRY.replace(b":1\r\n:1", b":1\r\n:65536") + b":0\r\n:0\r\n",
        b"*3\r\n*1\r\n" + GOOD_ENTRY.replace(b":1\r\n:1", b":1\r\n:-1") + b":0\r\n:0\r\n",
        b"*3\r\n*1\r\n" + GOOD_ENTRY.replace(b":0", b":3") + b":0\r\n:0\r\n",
        b"*3\r\n*1\r\n" + GOOD_ENTRY.replace(b":0", b":256") + b":0\r\n:0\r\n",
        b"*3\r\n*1\r\n*4\r\n:1\r\n:1\r\n:0\r\n$-1\r\n:0\r\n:0\r\n",
        b"*3\r\n*2\r\n" + GOOD_ENTRY + b"-ERR half-way\r\n:0\r\n:0\r\n",
        b"*3\r\n$-1\r\n:0\r\n:0\r\n",
        b"*3\r\n" + bulk(GOOD_PACKED) + b":2\r\n:0\r\n",
        b"*3\r\n" + bulk(GOOD_PACKED) + b":0\r\n:-1\r\n",
        b"*3\r\n" + bulk(GOOD_PACKED) + bulk(b"") + b":0\r\n",
        b"*2\r\n" + bulk(GOOD_PACKED) + b":0\r\n",
        *(b"*3\r\n" + bulk(GOOD_PACKED[:cut]) + b":0\r\n:0\r\n" for cut in range(1, len(GOOD_PACKED))),
        b"*3\r\n" + bulk(GOOD_PACKED + b"\0") + b":0\r\n:0\r\n",
        b"*3\r\n" + bulk(packed([(0, 1, 0, ONE)])) + b":0\r\n:0\r\n",
        b"*3\r\n" + bulk(packed([(2**53 + 1, 1, 0, ONE)])) + b":0\r\n:0\r\n",
        b"*3\r\n" + bulk(packed([(1, 0, 0, ONE)])) + b":0\r\n:0\r\n",
        b"*3\r\n" + bulk(packed([(1, 1, 3, ONE)])) + b":0\r\n:0\r\n",
        b"*3\r\n" + bulk(packed([(1, 1, 0, ONE), (2, 2, 255, ONE)])) + b":0\r\n:0\r\n",
    ],
)
def test_a_page_of_another_form_is_invalid(desk: Desk, reply: bytes) -> None:
    conn = ask(desk, "fetch")
    with pytest.raises(OutOfStepError):
        desk.answer(reply)
    desk.received(conn)
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH"]


@pytest.mark.parametrize("pack", [False, True])
def test_a_page_is_taken_in_either_form(desk: Desk, pack: bool) -> None:
    conn = ask(desk, "fetch")
    entries = [(1, 1, 1, record(b"1")), (2, 2, 0, record(b"2")), (4, 4, 0, record(b"")), (5, 5, 0, b"no record")]
    reply = page(entries, more=True, pack=pack)
    for at in range(len(reply)):
        desk.answer(reply[at : at + 1])
    assert desk.received(conn) == b"".join(
        publish(b"t", payload, qos=1, packet_id=packet_id, dup=packet_id == 1)
        for packet_id, payload in ((1, b"1"), (2, b"2"), (4, b""))
    )
    command = desk.commands()[0]
    assert command[4:6] == [b"AFTER", b"5"]
    assert command[10:] == [b"PACKED", b"BOUNDED"]
    assert desk.engine.counters()["messages_unreadable"] == 1


def test_a_module_that_does_not_know_packed_pages_is_asked_for_others(desk: Desk) -> None:
    first, second = desk.open(b"a", resumed=True), desk.open(b"b", resumed=True)
    assert [command[10:] for command in desk.commands()] == [[b"PACKED", b"BOUNDED"]]
    desk.answer(b"-ERR unexpected argument 'PACKED'\r\n")
    again = desk.commands()
    assert sorted(command[1] for command in again) == [b"{a}", b"{b}"]
    assert [len(command) for command in again] == [10, 10]
    desk.answer(*(page([(1, 1, 0, record(b"x"))], pack=False) for _ in again))
    assert desk.received(first) == desk.received(second) == publish(b"t", b"x", qos=1, packet_id=1)
    assert desk.kinds() == []
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert desk.commands()[0][10:] == [b"PACKED", b"BOUNDED"]


def test_what_is_refused_without_packed_too_ends_the_client(desk: Desk) -> None:
    ask(desk, "fetch")
    desk.answer(b"-ERR no\r\n")
    assert len(desk.commands()) == 1
    assert desk.kinds() == []
    desk.answer(b"-ERR no\r\n")
    assert desk.kinds() == [EventKind.FAILED]


@pytest.mark.parametrize(
    "data",
    [
        b"?\r\n",
        b":1x\r\n",
        b":\r\n",
        b":-\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775809\r\n",
        b"*536870913\r\n",
        b"*-2\r\n",
        b"*1x\r\n",
        b"$-2\r\n",
        b"$x\r\n",
        b"$1\r\nab\r\n",
        b"$1\r\na\rb\n",
        b"+a\rb\r\n",
    ],
)
def test_bytes_that_are_not_resp_end_the_connection_to_the_server(desk: Desk, data: bytes) -> None:
    conn = desk.open()
    desk.engine.command(PING, conn=conn)
    desk.commands()
    with pytest.raises(OutOfStepError):
        desk.answer(data)


def test_a_reply_before_its_command_was_written_is_unexpected(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    with pytest.raises(OutOfStepError):
        desk.answer(b":1\r\n")
    assert desk.received(conn) == b""


# ---- what the owner asked


@pytest.mark.parametrize(
    "reply",
    [
        b"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n_\r\n",
        b"~2\r\n,1.5\r\n#t\r\n",
        b"|1\r\n+k\r\n+v\r\n*1\r\n(12\r\n",
        b"*2\r\n|1\r\n+k\r\n+v\r\n:1\r\n=7\r\ntxt:abc\r\n",
        b"!3\r\nERR\r\n",
        b"*-1\r\n",
        b":-9223372036854775808\r\n",
        b":9223372036854775807\r\n",
    ],
)
def test_any_reply_to_the_owner_is_handed_over_as_it_is_however_it_is_cut(desk: Desk, reply: bytes) -> None:
    conn = desk.open()
    for cut in range(len(reply)):
        desk.engine.command(PING, conn=conn, token=cut)
        desk.commands()
        desk.answer(reply[:cut])
        assert desk.events == []
        desk.answer(reply[cut:])
        assert [(event.kind, event.conn, event.token, event.data) for event in desk.events] == [
            (EventKind.REPLY, conn, cut, reply)
        ]
        desk.events.clear()


def test_a_reply_may_be_large_and_come_in_many_parts(desk: Desk) -> None:
    conn = ask(desk, "fetch")
    large = record(b"x" * 3_000_000)
    reply = page([(1, 1, 0, large), (2, 2, 0, ONE)])
    for start in range(0, len(reply), 65536):
        desk.answer(reply[start : start + 65536])
    assert len(desk.received(conn)) == 3_000_000 + 10
    assert desk.engine.has_timed_work  # the other one had no room behind so much
    desk.commands()
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=2)


# ---- confirmations


def subscribe(*channels: bytes, command: bytes = b"SUBSCRIBE") -> bytes:
    return b"*%d\r\n" % (1 + len(channels)) + bulk(command) + b"".join(map(bulk, channels))


def confirmation(channel: bytes, kind: bytes = b"subscribe") -> bytes:
    return b">3\r\n" + bulk(kind) + bulk(channel) + b":1\r\n"


@pytest.mark.parametrize(("command", "kind"), [(b"SUBSCRIBE", b"subscribe"), (b"UNSUBSCRIBE", b"unsubscribe")])
def test_a_subscription_is_over_when_each_channel_is_confirmed(desk: Desk, command: bytes, kind: bytes) -> None:
    conn = desk.open()
    desk.engine.command(subscribe(b"x", b"y", command=command), replies=False)
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    assert len(desk.commands()) == 2
    desk.answer(confirmation(b"x", kind), push(INBOX, transient(ONE)), confirmation(b"y", kind), b":1\r\n")
    assert desk.received(conn) == publish(b"t", b"1") + puback(1)
    assert desk.engine.outstanding == 0


@pytest.mark.parametrize("confirmed", [0, 1])
def test_the_refusal_of_a_subscription_is_not_taken_for_that_of_a_publish(desk: Desk, confirmed: int) -> None:
    """Else each reply that follows would be that of the command before, and a refused publish acknowledged."""
    conn = desk.open()
    desk.engine.command(subscribe(b"x", b"y"), replies=False)
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1) + publish(b"t", b"2", qos=1, packet_id=2))
    desk.commands()
    desk.answer(confirmation(b"x") * confirmed)
    with pytest.raises(OutOfStepError):
        desk.answer(b"-BUSY running a script\r\n", b":1\r\n", b"-OOM\r\n")
    assert desk.received(conn) == b""
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    assert [command[2] for command in desk.commands() if command[0] == b"TOPIC.PUBLISH"] == [b"1", b"2"]


def test_a_confirmation_that_nothing_waits_for_is_a_push_like_any(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", qos=1, packet_id=1))
    desk.commands()
    desk.answer(confirmation(b"x"), b":1\r\n")
    assert desk.kinds() == [EventKind.PUSH]
    assert desk.received(conn) == puback(1)


# ---- pushes


@pytest.mark.parametrize(
    "data",
    [
        b">0\r\n",
        b">1\r\n:1\r\n",
        b">2\r\n" + bulk(b"message") + bulk(INBOX),
        b">3\r\n" + bulk(b"message") + bulk(INBOX) + b":1\r\n",
        b">3\r\n" + bulk(b"message") + b"$-1\r\n" + bulk(b"x"),
        b">3\r\n" + bulk(b"message") + bulk(b"news") + bulk(b"x"),
        b">4\r\n" + bulk(b"pmessage") + bulk(b"*") + bulk(INBOX) + bulk(b"x"),
        b">2\r\n" + bulk(b"invalidate") + b"_\r\n",
    ],
)
def test_a_push_that_is_not_a_delivery_is_the_owners(desk: Desk, data: bytes) -> None:
    desk.open()
    desk.answer(data)
    assert [(event.kind, event.data) for event in desk.events] == [(EventKind.PUSH, data)]


def test_a_delivery_that_cannot_be_read_is_counted_and_nothing_else(desk: Desk) -> None:
    conn = desk.open()
    released = Delivery(DeliveryKind.TRANSIENT, record=b"\xfa\x12" + bytes(7)).encode()
    for payload in (b"", b"x", b"\xfb" + bytes(20), transient(b"no record"), released):
        desk.answer(push(INBOX, payload))
    desk.answer(push(b"{nobody}_inbox", transient(ONE)))
    assert desk.received(conn) == b""
    assert desk.events == []
    assert desk.engine.counters()["messages_unreadable"] == 5
    assert desk.engine.counters()["deliveries_received"] == 5


def test_what_somebody_else_put_into_the_queue_stays_there_and_does_not_hold_it_up(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([(1, 1, 0, b"no record"), (2, 2, 0, ONE)]))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=2)
    desk.send(conn, puback(2))
    assert [command[-1] for command in desk.commands()] == [b"2"]
    desk.engine.server_lost()
    desk.engine.server_restored(desk.now_ms)
    desk.commands()
    desk.answer(page([(1, 1, 1, b"no record"), (2, 2, 1, ONE)]))
    assert len(desk.commands()) == 2  # the page from where it was passed, and the acknowledgement
    desk.answer(page([(1, 1, 1, b"no record")]), b":1\r\n")
    assert desk.commands() == []
    assert desk.received(conn) == b""


def test_a_message_is_taken_once_whatever_is_pushed_and_fetched(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, queued(1, 0, ONE)), push(INBOX, queued(1, 0, ONE)), push(INBOX, queued(3, 2, ONE)))
    desk.commands()
    desk.answer(push(INBOX, queued(2, 1, ONE)), page([(1, 1, 0, ONE), (2, 2, 0, ONE), (2, 2, 0, ONE), (3, 3, 0, ONE)]))
    desk.answer(push(INBOX, queued(3, 2, ONE)))
    assert desk.received(conn) == b"".join(publish(b"t", b"1", qos=1, packet_id=i) for i in (1, 2, 3))
    assert desk.kinds() == []


def test_what_comes_before_a_new_session_is_open_is_fetched(desk: Desk) -> None:
    conn = desk.engine.attach()
    assert desk.engine.receive(conn, connect(), desk.now_ms) is not None
    desk.answer(push(INBOX, queued(1, 0, ONE)))
    desk.engine.open(conn, OpenSession(4, b"c", b"{c}", 7), desk.now_ms)
    assert [command[0] for command in desk.commands()] == [b"SESSION.FETCH"]
    desk.answer(page([(1, 1, 0, ONE)]))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)


def test_a_notice_of_its_own_opening_is_nothing_to_fetch(desk: Desk) -> None:
    conn = desk.engine.attach()
    assert desk.engine.receive(conn, connect(), desk.now_ms) is not None
    desk.answer(push(INBOX, Delivery(DeliveryKind.TAKEN_OVER, serial=7).encode()))
    desk.engine.open(conn, OpenSession(4, b"c", b"{c}", 7), desk.now_ms)
    assert desk.commands() == []


def test_a_session_that_is_taken_over_gets_nothing_any_more(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(INBOX, Delivery(DeliveryKind.TAKEN_OVER, serial=8).encode()))
    desk.answer(push(INBOX, queued(1, 0, ONE)), push(INBOX, transient(ONE)))
    assert desk.kinds() == [EventKind.TAKEN_OVER]
    assert desk.received(conn) == b""


def test_a_session_that_is_dropped_ends_its_connection_unless_the_notice_is_older(desk: Desk) -> None:
    conn = desk.open()  # epoch 7
    desk.answer(push(INBOX, Delivery(DeliveryKind.DROPPED, serial=6).encode()))
    assert desk.kinds() == []
    desk.answer(push(INBOX, Delivery(DeliveryKind.DROPPED, serial=7).encode()))
    assert [(event.kind, event.conn, event.epoch) for event in desk.events] == [(EventKind.TAKEN_OVER, conn, 0)]


# ---- events


def test_events_come_in_the_order_in_which_they_happened(desk: Desk) -> None:
    conn = desk.open()
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.engine.command(PING, conn=conn, token=5)
    desk.commands()
    desk.answer(b"-OOM\r\n", b"+PONG\r\n", b">1\r\n:1\r\n")
    assert desk.kinds() == [EventKind.REFUSED, EventKind.REPLY, EventKind.PUSH]


def test_nothing_is_taken_after_an_event_that_waits(desk: Desk) -> None:
    """Else a notice of a newer owner is lost that comes after the reply with which its session is opened."""
    first = desk.open()
    second = desk.engine.attach()
    desk.engine.receive(second, connect(b"c"), desk.now_ms)
    desk.send(first, publish(b"t", b"1", qos=1, packet_id=1))
    desk.engine.command(PING, conn=second, token=5)
    desk.commands()
    kinds = []
    notice = push(INBOX, Delivery(DeliveryKind.TAKEN_OVER, serial=9).encode())
    for event in desk.engine.replies(b"-OOM\r\n+PONG\r\n" + notice, desk.now_ms):
        kinds.append((event.kind, event.conn))
        if event.kind == EventKind.REPLY:
            assert desk.engine.open(second, OpenSession(4, b"c", b"{c}", 8), desk.now_ms) == first
    assert kinds == [(EventKind.REFUSED, first), (EventKind.REPLY, second), (EventKind.TAKEN_OVER, second)]


def test_events_that_waited_keep_their_bytes(desk: Desk) -> None:
    first, second = desk.open(b"a"), desk.open(b"b")
    for conn in (first, second):
        desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands()
    desk.answer(b"-OOM one\r\n", b"-READONLY two\r\n")
    desk.look()
    assert [(event.conn, event.data) for event in desk.events] == [(first, b"OOM one"), (second, b"READONLY two")]


# ---- bounds


def test_too_many_or_too_large_commands_without_a_reply_are_congestion() -> None:
    desk = Desk(EngineSettings(max_outstanding=2, max_outstanding_bytes=1000))
    conn = desk.open()
    desk.send(conn, publish(b"t", b"x" * 1000))
    congested = [desk.engine.congested]
    desk.commands()
    desk.answer(b":1\r\n")
    congested.append(desk.engine.congested)
    desk.send(conn, publish(b"t") * 3)
    assert [*congested, desk.engine.congested] == [True, False, True]


def test_settings_of_0_are_as_little_as_works() -> None:
    desk = Desk(EngineSettings(max_ready=0, max_ready_bytes=0, max_fetches=0, retry_first_ms=0, retry_most_ms=0))
    conn = desk.open(resumed=True, window=1)
    assert desk.commands()[0][6:] == [b"COUNT", b"1", b"BYTES", b"1", b"PACKED", b"BOUNDED"]
    desk.answer(page([(1, 1, 0, ONE)], more=True))
    desk.answer(*[page([(2, 2, 0, ONE)], more=True)] * len(desk.commands()))
    desk.send(conn, publish(b"t", b"1", qos=1, packet_id=1))
    desk.commands()
    desk.answer(b"-OOM\r\n")
    desk.now_ms += 1
    assert [command[0] for command in desk.commands()] == [b"TOPIC.PUBLISH"]


def test_many_acknowledgements_go_in_several_commands(desk: Desk) -> None:
    conn = desk.open(window=65535)
    for serial in range(1, 1203):
        desk.answer(push(INBOX, queued(serial, serial - 1, ONE)))
    desk.send(conn, b"".join(puback(i) for i in range(1, 1203)))
    commands = desk.commands()
    assert [len(identifiers(command[4:])) for command in commands] == [500, 500, 202]
    desk.answer(b":500\r\n", b"-OOM\r\n", b":202\r\n")
    desk.now_ms += 60
    assert [command[4:] for command in desk.commands()] == [commands[1][4:]]


# --- Pages and their bytes --------------------------------------------------------------------------------------------


def header(serial: int) -> bytes:
    """What is pushed of a message that is too much for now."""
    return Delivery(DeliveryKind.QUEUED, 1, False, serial, serial, serial).encode()


def test_a_header_that_is_pushed_has_the_message_fetched(desk: Desk) -> None:
    conn = desk.open()
    desk.answer(push(b"{c}_inbox", header(1)))
    assert [command[:6] for command in desk.commands()] == [[b"SESSION.FETCH", b"{c}", b"EPOCH", b"7", b"AFTER", b"0"]]
    desk.answer(page([(1, 1, 0, ONE)], too_large=()))
    assert desk.received(conn) == publish(b"t", b"1", qos=1, packet_id=1)
    desk.answer(push(b"{c}_inbox", queued(2, 1, record(b"2"))))
    assert desk.received(conn) == publish(b"t", b"2", qos=1, packet_id=2)


def test_a_message_larger_than_a_page_is_fetched_by_itself() -> None:
    desk = Desk(EngineSettings(max_ready_bytes=1000, max_fetch_bytes=3000))
    conn = desk.open(resumed=True)
    assert desk.commands()[0][6:10] == [b"COUNT", b"1000", b"BYTES", b"1000"]
    desk.answer(page([], more=True, too_large=(50_000, 1, 1)))
    assert desk.commands()[0][4:10] == [b"AFTER", b"0", b"COUNT", b"1", b"BYTES", b"50000"]
    large = record(b"x" * 49_000)
    desk.answer(page([(1, 1, 0, large)], more=True, too_large=()))
    assert desk.received(conn) == publish(b"t", b"x" * 49_000, qos=1, packet_id=1)
    assert desk.commands()[0][4:10] == [b"AFTER", b"1", b"COUNT", b"1000", b"BYTES", b"1000"]


def test_pages_under_way_have_a_bound_in_bytes() -> None:
    desk = Desk(EngineSettings(max_ready_bytes=1000, max_fetch_bytes=2500))
    for number in range(6):
        desk.open(b"%d" % number, resumed=True)
    owed: list[tuple[bytes, int]] = []
    asked: list[tuple[bytes, int]] = []
    for _ in range(20):
        fresh = [(command[1], int(command[9])) for command in desk.commands()]
        owed, asked = owed + fresh, asked + fresh
        if not owed:
            break
        large = [size for _, size in owed if size > 1000]
        assert len(large) <= 1  # two would be more than 2,500 bytes, and
        assert sum(size for _, size in owed) - sum(large) <= 2500
        is_large = owed.pop(0) == (b"{0}", 1000)
        desk.answer(page([], more=is_large, too_large=(2400, 1, 1) if is_large else ()))
    assert sorted(asked) == sorted([*((b"{%d}" % number, 1000) for number in range(6)), (b"{0}", 2400)])


def test_a_small_page_does_not_wait_for_the_large_messages_of_others() -> None:
    desk = Desk(EngineSettings(max_ready_bytes=1000, max_fetch_bytes=3000))
    for number in range(3):  # all that were answered raise the number of pages under way
        desk.open(b"%d" % number, resumed=True)
        desk.commands()
        desk.answer(page([], too_large=()))
    desk.open(b"large", resumed=True)
    desk.commands()
    desk.answer(page([], more=True, too_large=(50_000, 1, 1)))
    assert [(command[1], command[9]) for command in desk.commands()] == [(b"{large}", b"50000")]
    desk.open(b"small", resumed=True)
    assert [(command[1], command[9]) for command in desk.commands()] == [(b"{small}", b"1000")]


def test_a_message_larger_than_any_reply_may_be_is_passed_and_acknowledged(desk: Desk) -> None:
    conn = desk.open(resumed=True)
    desk.commands()
    desk.answer(page([], more=True, too_large=(30_000_000, 1, 1)))
    commands = desk.commands()
    assert [command[0] for command in commands] == [b"SESSION.FETCH", b"SESSION.ACK"]
    assert commands[0][4:10] == [b"AFTER", b"1", b"COUNT", b"1000", b"BYTES", b"65536"]
    assert commands[1][4:] == [b"1"]
    desk.answer(page([(2, 2, 0, record(b"2"))], too_large=()))
    assert desk.received(conn) == publish(b"t", b"2", qos=1, packet_id=2)
    assert desk.engine.counters()["messages_dropped_oversized"] == 1
