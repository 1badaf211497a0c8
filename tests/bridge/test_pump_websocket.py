"""WebSockets in the pump: the request, frames off and on, peers who break rules or do not read."""

import struct
from collections.abc import Iterator

import pytest

from holdmq_bridge._pump import lib
from tests.bridge import packets
from tests.bridge.test_pump import HARD_LIMIT, LARGE, Harness, Member, Told, kinds
from tests.core.mqtt.test_websocket import BINARY, CLOSE, PING, close, frame, length_of, pong

REQUEST = b"GET /mqtt HTTP/1.1\r\nhost: h\r\n\r\n"
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
MOST = 1000
CONNECT = packets.connect("c")


@pytest.fixture
def harness() -> Iterator[Harness]:
    """One of its own."""
    made = Harness()
    yield made
    made.close()


def upgraded(harness: Harness) -> Member:
    """A WebSocket whose request was accepted."""
    member = harness.add(MOST)
    member.peer.sendall(REQUEST)
    assert requests(harness, member) == [REQUEST]
    lib.hmq_pump_upgrade(harness.pump, member.number, ANSWER, len(ANSWER), True)
    assert member.read(len(ANSWER)) == ANSWER
    return member


def requests(harness: Harness, member: Member) -> list[bytes]:
    """What a turn tells of."""
    found = []
    for told in harness.turn():
        assert (told.kind, told.number, told.conn) == (lib.HMQ_PUMP_UPGRADE, member.number, member.conn)
        found.append(harness.bytes_told())
    return found


def message(data: bytes) -> bytes:
    """As the pump sends it."""
    return bytes((0x80 | BINARY,)) + length_of(len(data), 0) + data


def ended(harness: Harness) -> Told:
    """Turns until the end of a socket."""
    return harness.turns(until=lib.HMQ_PUMP_CLOSED)[-1]


def test_a_request_is_reported_when_it_is_complete(harness: Harness) -> None:
    one = harness.add(MOST)
    one.peer.sendall(REQUEST[:9])
    assert requests(harness, one) == []
    one.peer.sendall(REQUEST[9:])
    assert requests(harness, one) == [REQUEST]


def test_a_client_that_is_refused_gets_the_answer_and_nothing_else(harness: Harness) -> None:
    one = harness.add(MOST)
    one.peer.sendall(REQUEST)
    list(harness.turn())
    lib.hmq_pump_upgrade(harness.pump, one.number, b"HTTP/1.1 403\r\n\r\n", 16, False)
    harness.engine.send(one.conn, b"mqtt")
    assert harness.write() == []
    assert lib.hmq_pump_close(harness.pump, one.number, False)
    assert one.read(100) == b"HTTP/1.1 403\r\n\r\n"


def test_before_the_request_nothing_is_sent(harness: Harness) -> None:
    one = harness.add(MOST)
    harness.engine.send(one.conn, b"mqtt")
    assert harness.write() == []
    assert lib.hmq_pump_close(harness.pump, one.number, False)
    assert one.read(100) == b""


@pytest.mark.parametrize("cut", [1, 2, 7, 100])
def test_packets_come_out_of_frames(harness: Harness, cut: int) -> None:
    one = upgraded(harness)
    stream = frame(BINARY, CONNECT[:5]) + frame(PING) + frame(BINARY, CONNECT[5:])
    told: list[Told] = []
    for at in range(0, len(stream), cut):
        one.peer.sendall(stream[at : at + cut])
        told += harness.turn()
    assert set(kinds(told[:-1])) <= {lib.HMQ_PUMP_PARTIAL}
    assert kinds(told[-1:]) == [lib.HMQ_PUMP_PACKET]
    assert harness.engine.last_event().data == CONNECT
    assert one.read(2) == pong()


def test_output_goes_as_messages(harness: Harness) -> None:
    one = upgraded(harness)
    for data in (b"a", b"b" * 200):
        harness.engine.send(one.conn, data)
        assert harness.write() == []
    assert one.read(207) == message(b"a") + message(b"b" * 200)


def test_a_message_that_does_not_fit_waits_and_arrives_whole(harness: Harness) -> None:
    one = upgraded(harness)
    harness.engine.send(one.conn, LARGE)
    assert harness.write() == [Told(lib.HMQ_PUMP_FULL, one.number, one.conn, 0, False)]
    harness.engine.send(one.conn, b"more")
    assert harness.write() == []
    expected = message(LARGE) + message(b"more")
    got = b""
    while lib.hmq_pump_waiting(harness.pump, one.number):
        got += one.peer.recv(1 << 20)
        list(harness.turn())
    assert got + one.read(len(expected) - len(got)) == expected


def test_pings_that_nobody_reads_the_pongs_of_cost_no_memory(harness: Harness) -> None:
    one = upgraded(harness)
    harness.engine.send(one.conn, LARGE)
    harness.write()
    harness.until_the_socket_is_full(one)
    waiting = lib.hmq_pump_waiting(harness.pump, one.number)
    assert waiting > HARD_LIMIT
    for number in range(1000):
        one.peer.sendall(frame(PING, b"%d" % number) * 9)
        assert list(harness.turn()) == []
        assert lib.hmq_pump_waiting(harness.pump, one.number) == waiting
    got = b""
    while lib.hmq_pump_waiting(harness.pump, one.number):
        got += one.peer.recv(1 << 20)
        list(harness.turn())
    expected = message(LARGE) + pong(b"999")
    assert got + one.read(len(expected) - len(got)) == expected


def test_many_small_frames_of_one_socket_leave_the_turn_to_others(harness: Harness) -> None:
    busy, other = upgraded(harness), upgraded(harness)
    busy.peer.setblocking(False)
    flood = frame(PING) * 20_000
    try:
        while True:
            busy.peer.send(flood)
    except BlockingIOError:
        pass
    other.peer.sendall(frame(BINARY, CONNECT))
    assert [(told.kind, told.number) for told in harness.turn()] == [(lib.HMQ_PUMP_PACKET, other.number)]


@pytest.mark.parametrize(
    ("data", "fault", "code"),
    [
        (b"\x81\x80", lib.HMQ_WEBSOCKET_TEXT, 1003),
        (b"\x82\xff" + struct.pack(">Q", 1 << 63) + bytes(4), lib.HMQ_WEBSOCKET_BAD_LENGTH, 1002),
        (b"\x82\xff" + struct.pack(">Q", (1 << 63) - 1) + bytes(4), lib.HMQ_WEBSOCKET_TOO_BIG, 1009),
        (b"\x09\x80", lib.HMQ_WEBSOCKET_FRAGMENTED_CONTROL, 1002),
    ],
)
def test_anyone_who_breaks_a_rule_is_told_and_lost(harness: Harness, data: bytes, fault: int, code: int) -> None:
    one = upgraded(harness)
    one.peer.sendall(frame(BINARY, CONNECT) + data)
    assert kinds(list(harness.turn())) == [lib.HMQ_PUMP_PACKET]  # what came before
    assert (ended(harness).number, harness.fault_told()) == (one.number, fault)
    assert one.read(100) == close(code)


def test_a_close_is_answered_and_the_connection_lost(harness: Harness) -> None:
    one = upgraded(harness)
    one.peer.sendall(frame(CLOSE, b"\x03\xe8bye"))
    assert (ended(harness).number, harness.fault_told()) == (one.number, 0)
    assert one.read(100) == close(1000)


@pytest.mark.parametrize("waits", [b"", LARGE])
def test_the_bridges_close_frame_follows_pending_messages(harness: Harness, waits: bytes) -> None:
    one = upgraded(harness)
    if waits:
        harness.engine.send(one.conn, waits)
        harness.write()
    lib.hmq_pump_detach(harness.pump, one.number)
    assert lib.hmq_pump_close(harness.pump, one.number, False) == (not waits)
    expected = (message(waits) if waits else b"") + close(1000)
    got = b""
    while waits and not list(harness.turn()):
        got += one.peer.recv(1 << 20)
    assert got + one.read(len(expected) - len(got) + 1) == expected


def test_the_end_of_a_peer_in_the_middle_of_a_request_is_reported(harness: Harness) -> None:
    one = harness.add(MOST)
    one.peer.sendall(REQUEST[:9])
    list(harness.turn())
    one.peer.close()
    assert ended(harness).number == one.number
