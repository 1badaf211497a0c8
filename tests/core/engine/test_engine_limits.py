"""Packets with very many parts, and CONNECTs that never become whole: refused before anything is made of them."""

import time

import pytest

from holdmq.core._binding import ffi, lib
from holdmq.core.engine import EngineSettings, Event, EventKind, error_text
from tests.bridge import packets5
from tests.bridge.packets import Will, packet, text
from tests.core.engine.engine_talk import Desk, connect, publish

QUOTA, TOO_LARGE, BUSY = 0x97, 0x95, 0x89
LIMITS = EngineSettings(
    max_connect_bytes=1000, max_filters=3, max_user_properties=4, max_user_property_bytes=50, max_unread_connects=8192
)
PAIR = b"\x26" + text(b"n") + text(b"v")


@pytest.fixture
def desk() -> Desk:
    return Desk(LIMITS)


def listed(first: int, filters: int, *, properties: bytes = b"\0", options: bytes = b"") -> bytes:
    """A SUBSCRIBE or UNSUBSCRIBE of 5.0."""
    return packet(first, b"\0\1" + properties + b"".join(text(b"t") + options for _ in range(filters)))


def connect5(properties: bytes, *, will_properties: bytes | None = None) -> bytes:
    """A CONNECT with these properties."""
    will = None if will_properties is None else Will("w", properties=will_properties)
    return packets5.connect("c", keep_alive=0, will=will, properties=properties)


def faults(desk: Desk) -> list[int]:
    return [event.code for event in desk.events if event.kind == EventKind.ERROR]


def first(desk: Desk, data: bytes) -> Event:
    """What comes of the first bytes of a connection."""
    event = desk.engine.receive(desk.engine.attach(), data, desk.now_ms)
    assert event is not None
    return event


@pytest.mark.parametrize(("kind", "options"), [(0x82, b"\1"), (0xA2, b"")], ids=["SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_packet_with_more_filters_than_allowed_ends_the_connection(desk: Desk, kind: int, options: bytes) -> None:
    conn = desk.open(version=5)
    desk.send(conn, listed(kind, 3, options=options))
    assert [event.kind for event in desk.events] == [EventKind.PACKET]
    desk.send(conn, listed(kind, 4, options=options))
    assert faults(desk) == [QUOTA]
    assert "too many topic filters; expected at most the limit of this receiver" in error_text(desk.events[-1].error)
    assert desk.engine.counters()["packets_over_limits"] == 1


@pytest.mark.parametrize("properties", [PAIR * 5, b"\x26" + text(b"n" * 25) + text(b"v" * 26)], ids=["many", "long"])
def test_user_properties_are_bounded_in_every_packet(desk: Desk, properties: bytes) -> None:
    block = packets5.block(properties)
    for data in (
        publish(b"t", properties=properties),
        listed(0x82, 1, properties=block, options=b"\0"),
        listed(0xA2, 1, properties=block),
        packet(0x40, b"\0\1\0" + block),
        packet(0xE0, b"\0" + block),
    ):
        desk.send(desk.open(version=5), data)
        assert faults(desk) == [QUOTA]
        desk.events.clear()
    for data in (connect5(properties), connect5(b"", will_properties=properties)):
        assert (first(desk, data).kind, first(desk, data).code) == (EventKind.ERROR, QUOTA)


def test_as_many_user_properties_as_allowed_are_taken(desk: Desk) -> None:
    assert first(desk, connect5(PAIR * 4, will_properties=PAIR * 4)).kind == EventKind.PACKET
    conn = desk.open(version=5)
    desk.send(conn, publish(b"t", properties=PAIR * 4))
    assert not desk.events


def test_a_connect_that_is_too_large_is_refused_by_its_first_bytes(desk: Desk) -> None:
    whole = connect5(b"\x15" + text(b"m" * 1000))
    event = first(desk, whole[:12])
    assert (event.kind, event.code) == (EventKind.ERROR, TOO_LARGE)
    assert event.data == whole[:12]  # so that the client can be answered in its version
    assert first(desk, connect(b"c" * 900)).kind == EventKind.PACKET


def test_incomplete_connects_are_bounded_together_and_a_small_one_is_still_taken(desk: Desk) -> None:
    half = connect(b"c" * 970)[:-1]
    refused = []
    for _ in range(1000):
        conn = desk.engine.attach()
        if desk.engine.receive(conn, half, desk.now_ms) is not None:
            refused.append(conn)
    assert not refused  # none of them holds more than what is always held
    desk = Desk(EngineSettings(max_connect_bytes=4000, max_unread_connects=8192))
    half = connect(b"c" * 3900)[:-1]
    conns = [desk.engine.attach() for _ in range(10)]
    events = [desk.engine.receive(conn, half, desk.now_ms) for conn in conns]
    codes = [event.code for event in events if event is not None]
    assert codes
    assert set(codes) == {BUSY}
    small = connect(b"good")
    conn = desk.engine.attach()
    assert desk.engine.receive(conn, small[:-1], desk.now_ms) is None
    event = desk.engine.receive(conn, small[-1:], desk.now_ms)
    assert event is not None
    assert event.kind == EventKind.PACKET
    for one in conns:
        desk.engine.close(one)
    again = desk.engine.attach()
    assert desk.engine.receive(again, half, desk.now_ms) is None  # there is room again


@pytest.mark.parametrize("kind", [0x82, 0xA2], ids=["SUBSCRIBE", "UNSUBSCRIBE"])
def test_refusing_the_largest_packets_takes_no_time(kind: int) -> None:
    desk = Desk(EngineSettings(max_filters=1000, max_user_properties=256))
    options = b"\0" if kind == 0x82 else b""
    most = listed(kind, 250_000, options=options)
    properties = PAIR * 140_000
    size = len(properties)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    many = packet(kind, b"\0\1" + length + properties + text(b"t") + options)
    for data in (most, many):
        took: list[float] = []
        while len(took) < 20 and (not took or min(took) >= 0.005):  # the least counts: the machine may be busy
            conn = desk.open(version=5)
            began = time.process_time()
            desk.send(conn, data)
            took.append(time.process_time() - began)
            assert faults(desk) == [QUOTA]
            desk.events.clear()
        assert min(took) < 0.005


@pytest.mark.parametrize(("filters", "count"), [(3, 1), (4, 0)])
def test_the_decoder_lets_pass_what_is_within_its_limits(filters: int, count: int) -> None:
    limits = ffi.new("hmq_mqtt_limits *", {"max_packet_bytes": 1000, "max_filters": 3})
    packets, consumed, error = ffi.new("hmq_mqtt_packet[2]"), ffi.new("size_t *"), ffi.new("hmq_mqtt_error *")
    data = listed(0x82, filters, options=b"\0")
    assert lib.hmq_mqtt_decode_within(data, len(data), 5, limits, packets, 2, consumed, error) == count
    assert (consumed[0], error[0] == lib.HMQ_MQTT_OK) == (len(data) if count else 0, bool(count))
