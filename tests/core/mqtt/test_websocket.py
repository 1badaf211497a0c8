"""The frame layer of WebSockets: whole, byte by byte and against wsproto; each rule that a client can break; memory."""

import itertools
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from holdmq.core._binding import ffi, lib
from holdmq.core.websocket import MAX_HEAD_BYTES, Phase, WebSocket, fault_text
from tests.core.support import Books, heap_bytes

KEY = b"\x01\xf2\x83\x74"
FIN = 0x80
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MOST = 1000  # bytes of a message
FRAMES, MOST_S_A_FRAME = 100_000, 5e-6  # a hundred times what it is
REQUEST = b"GET /mqtt HTTP/1.1\r\nhost: h\r\n\r\n"


class Read(NamedTuple):
    """What became of a stream: its MQTT, where it ended, the control frames that were owed on the way."""

    mqtt: bytes
    phase: Phase
    fault: int
    answers: bytes


def masked(payload: bytes, key: bytes = KEY) -> bytes:
    """Unmasked by the same [RFC 6455, 5.3]."""
    return bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def length_of(size: int, mask: int = 0x80) -> bytes:
    """The length in its shortest form."""
    if size < 126:
        return bytes((mask | size,))
    return (
        bytes((mask | 126,)) + struct.pack(">H", size)
        if size < 65536
        else bytes((mask | 127,)) + struct.pack(">Q", size)
    )


def frame(opcode: int, payload: bytes = b"", *, first: int = FIN, key: bytes = KEY) -> bytes:
    """As a client sends it."""
    return bytes((first | opcode,)) + length_of(len(payload)) + key + masked(payload, key)


def pong(payload: bytes = b"") -> bytes:
    """As a server sends it."""
    return bytes((FIN | PONG, len(payload))) + payload


def close(code: int) -> bytes:
    """As a server sends it."""
    return bytes((FIN | CLOSE, 2)) + struct.pack(">H", code)


def opened(*, most: int = MOST) -> WebSocket:
    """One whose request was accepted."""
    made = WebSocket(most)
    feed(made, REQUEST)
    made.answered(accepted=True)
    return made


def feed(websocket: WebSocket, data: bytes) -> bytes:
    """Reads from a block of exactly this size."""
    block = heap_bytes(data)
    kept = websocket.read(memoryview(ffi.buffer(block, len(data))), len(data))
    return bytes(ffi.buffer(block, kept)) if kept else b""


def read(parts: Iterable[bytes], *, most: int = MOST) -> Read:
    """All of them one after the other; what is owed is taken after each."""
    websocket = opened(most=most)
    mqtt, answers = b"", b""
    for part in parts:
        mqtt += feed(websocket, part)
        answers += websocket.answer()
    return Read(mqtt, websocket.phase, websocket.fault, answers)


def bytewise(data: bytes) -> list[bytes]:
    """One by one."""
    return [data[at : at + 1] for at in range(len(data))]


# ---- the request -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[REQUEST], bytewise(REQUEST), [REQUEST[:-3], REQUEST[-3:]]])
def test_a_request_is_reported_once_it_is_complete(parts: list[bytes]) -> None:
    websocket = WebSocket(MOST)
    for part in parts:
        assert (websocket.phase, websocket.request) == (Phase.HEAD, b"")
        assert feed(websocket, part) == b""
    assert (websocket.phase, websocket.request) == (Phase.ASKED, REQUEST)
    websocket.answered(accepted=True)
    assert (websocket.phase, websocket.request) == (Phase.OPEN, b"")
    assert feed(websocket, frame(BINARY, b"mqtt")) == b"mqtt"


def test_what_follows_a_request_is_seen_by_who_answers_it() -> None:
    websocket = WebSocket(MOST)
    feed(websocket, REQUEST + b"early")
    assert websocket.request == REQUEST + b"early"
    assert feed(websocket, b"and more") == b""
    assert websocket.request == REQUEST + b"early"


def test_anyone_who_was_refused_is_not_read() -> None:
    websocket = WebSocket(MOST)
    feed(websocket, REQUEST)
    websocket.answered(accepted=False)
    assert feed(websocket, frame(BINARY, b"mqtt") + frame(PING)) == b""
    assert (websocket.phase, websocket.fault, websocket.owes, websocket.close()) == (Phase.OVER, 0, False, b"")


@pytest.mark.parametrize("data", [b"\x10\x0c\x00\x04MQTT", b"\x16\x03\x01", b"POST / HTTP/1.1\r\n", b"G\r"])
def test_what_can_become_no_request_is_not_waited_for(data: bytes) -> None:
    websocket = WebSocket(MOST)
    feed(websocket, data)
    assert (websocket.phase, websocket.request) == (Phase.ASKED, data)


@pytest.mark.parametrize("piece", [1, 1000, 20_000])
def test_a_request_without_an_end_takes_a_bounded_room(piece: int) -> None:
    books = Books()
    websocket = WebSocket(MOST, allocator=books.allocator)
    bare = books.bytes_out
    endless = b"GET /" + b"x" * 20_000
    sent = 0
    while websocket.phase is Phase.HEAD:
        feed(websocket, endless[sent : sent + piece])
        sent += piece
        assert books.bytes_out - bare <= MAX_HEAD_BYTES
    assert websocket.request == endless[:MAX_HEAD_BYTES]
    websocket.answered(accepted=False)
    assert books.bytes_out == bare


def test_without_memory_for_a_request_the_connection_is_over() -> None:
    books = Books(lambda call: call == 3)
    websocket = WebSocket(MOST, allocator=books.allocator)
    feed(websocket, b"GET /")
    feed(websocket, b"x" * 1000)
    assert (websocket.phase, websocket.owes) == (Phase.OVER, False)
    with pytest.raises(MemoryError):
        WebSocket(MOST, allocator=Books(lambda _call: True).allocator)


def test_all_memory_goes_back() -> None:
    books = Books()
    websocket = WebSocket(MOST, allocator=books.allocator)
    feed(websocket, b"GET /")
    del websocket
    assert books.bytes_out == 0


# ---- frames ----------------------------------------------------------------------------------------------------------

STREAMS = {
    "one": (frame(BINARY, b"abc"), b"abc", b""),
    "many": (frame(BINARY, b"a") + frame(BINARY, b"b" * 9) + frame(BINARY), b"a" + b"b" * 9, b""),
    "fragments": (
        frame(BINARY, b"ab", first=0) + frame(CONTINUATION, first=0) + frame(CONTINUATION, b"c"),
        b"abc",
        b"",
    ),
    "ping": (frame(PING, b"hello"), b"", pong(b"hello")),
    "within": (
        frame(BINARY, b"ab", first=0) + frame(PING, b"!") + frame(CONTINUATION, b"c") + frame(BINARY, b"d"),
        b"abcd",
        pong(b"!"),
    ),
    "pong": (frame(PONG, b"unasked") + frame(BINARY, b"x"), b"x", b""),
    "medium": (frame(BINARY, b"m" * 126) + frame(BINARY, b"n" * 300), b"m" * 126 + b"n" * 300, b""),
    "full": (frame(BINARY, b"f" * MOST), b"f" * MOST, b""),
    "largest ping": (frame(PING, b"p" * 125), b"", pong(b"p" * 125)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_frames_are_read_in_whatever_parts_they_come(name: str) -> None:
    data, mqtt, answers = STREAMS[name]
    expected = Read(mqtt, Phase.OPEN, 0, answers)
    assert read([data]) == read(bytewise(data)) == expected
    for at in range(1, len(data), max(1, len(data) // 100)):
        assert read([data[:at], data[at:]]) == expected


def test_a_message_above_64_kib_is_read() -> None:
    large = bytes(range(256)) * 300
    data = frame(BINARY, large)
    assert read([data], most=len(large)).mqtt == large
    assert read([data[at : at + 777] for at in range(0, len(data), 777)], most=len(large)).mqtt == large


def test_pings_that_come_together_have_one_pong() -> None:
    pings = b"".join(frame(PING, b"%d" % number) for number in range(1000))
    assert read([pings]).answers == pong(b"999")


def test_a_pong_that_cannot_be_sent_yet_gives_way_to_the_next() -> None:
    websocket = opened()
    feed(websocket, frame(PING, b"old"))
    feed(websocket, frame(PING, b"new"))
    assert websocket.owes
    assert websocket.answer() == pong(b"new")
    assert (websocket.owes, websocket.answer()) == (False, b"")


FAULTS = {
    "RSV1": (b"\xc2\x80", lib.HMQ_WEBSOCKET_RESERVED_BIT, 1002),
    "RSV2": (b"\xa2\x80", lib.HMQ_WEBSOCKET_RESERVED_BIT, 1002),
    "RSV3": (b"\x99\x80", lib.HMQ_WEBSOCKET_RESERVED_BIT, 1002),
    "opcode 3": (b"\x83\x80", lib.HMQ_WEBSOCKET_UNKNOWN_OPCODE, 1002),
    "opcode 11": (b"\x8b\x80", lib.HMQ_WEBSOCKET_UNKNOWN_OPCODE, 1002),
    "no mask": (b"\x82\x01", lib.HMQ_WEBSOCKET_UNMASKED, 1002),
    "fragmented ping": (b"\x09\x80", lib.HMQ_WEBSOCKET_FRAGMENTED_CONTROL, 1002),
    "fragmented close": (b"\x08\x80", lib.HMQ_WEBSOCKET_FRAGMENTED_CONTROL, 1002),
    "long ping": (b"\x89\xfe", lib.HMQ_WEBSOCKET_LONG_CONTROL, 1002),
    "continuation": (b"\x80\x81", lib.HMQ_WEBSOCKET_STRAY_CONTINUATION, 1002),
    "text": (b"\x81\x81", lib.HMQ_WEBSOCKET_TEXT, 1003),
    "within": (frame(BINARY, b"", first=0) + b"\x82\x81", lib.HMQ_WEBSOCKET_INTERLEAVED, 1002),
    "2^63 bytes": (b"\x82\xff\x80" + bytes(7) + KEY, lib.HMQ_WEBSOCKET_BAD_LENGTH, 1002),
    "2^64-1 bytes": (b"\x82\xff" + b"\xff" * 8 + KEY, lib.HMQ_WEBSOCKET_BAD_LENGTH, 1002),
    "125 in 16 bits": (b"\x82\xfe\x00\x7d" + KEY, lib.HMQ_WEBSOCKET_BAD_LENGTH, 1002),
    "65535 in 64 bits": (b"\x82\xff" + struct.pack(">Q", 65535) + KEY, lib.HMQ_WEBSOCKET_BAD_LENGTH, 1002),
    "too big": (b"\x82\xfe" + struct.pack(">H", MOST + 1) + KEY, lib.HMQ_WEBSOCKET_TOO_BIG, 1009),
    "2^63-1 bytes": (b"\x82\xff\x7f" + b"\xff" * 7 + KEY, lib.HMQ_WEBSOCKET_TOO_BIG, 1009),
    "too big in parts": (
        frame(BINARY, bytes(MOST), first=0) + frame(CONTINUATION, b"", first=0) + frame(CONTINUATION, b"x")[:-1],
        lib.HMQ_WEBSOCKET_TOO_BIG,
        1009,
    ),
    "2^63-1 in parts": (
        frame(BINARY, b"x", first=0) + b"\x80\xff\x7f" + b"\xff" * 7 + KEY,
        lib.HMQ_WEBSOCKET_TOO_BIG,
        1009,
    ),
    "half a status": (frame(CLOSE, b"\x03"), lib.HMQ_WEBSOCKET_BAD_CLOSE, 1002),
    "status 1005": (frame(CLOSE, b"\x03\xed"), lib.HMQ_WEBSOCKET_BAD_CLOSE, 1002),
    "status 999": (frame(CLOSE, b"\x03\xe7"), lib.HMQ_WEBSOCKET_BAD_CLOSE, 1002),
    "status 5000": (frame(CLOSE, b"\x13\x88"), lib.HMQ_WEBSOCKET_BAD_CLOSE, 1002),
    "reason": (frame(CLOSE, b"\x03\xe8\xc0\x80"), lib.HMQ_WEBSOCKET_BAD_REASON, 1007),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_broken_ends_the_reading_at_the_byte_that_shows_it(name: str) -> None:
    data, fault, code = FAULTS[name]
    before = frame(BINARY, b"before")
    assert read([data[:-1]]).fault == 0
    for parts in ([before + data + frame(BINARY, b"after") + frame(PING)], [*bytewise(before + data), frame(PING)]):
        got = read(parts)
        assert got.mqtt.rstrip(b"\0x") == b"before"
        assert got[1:] == (Phase.OVER, fault, close(code))
    assert str(code) in fault_text(fault)


@pytest.mark.parametrize("payload", [b"", *(struct.pack(">H", code) + b"r" for code in (1000, 1001, 1011, 3000, 4999))])
def test_a_close_is_answered_with_its_status_and_nothing_is_read_after_it(payload: bytes) -> None:
    got = read([frame(BINARY, b"x") + frame(CLOSE, payload) + frame(BINARY, b"y") + frame(PING)])
    expected = bytes((FIN | CLOSE, len(payload[:2]))) + payload[:2]
    assert got == Read(b"x", Phase.OVER, 0, expected)


def test_a_pong_that_is_owed_goes_before_the_close() -> None:
    assert read([frame(PING, b"p") + frame(CLOSE)]).answers == pong(b"p") + b"\x88\x00"


def test_our_close_is_sent_once_and_ends_the_reading() -> None:
    websocket = opened()
    assert websocket.close(1001) == close(1001)
    assert feed(websocket, frame(PING) + frame(CLOSE)) == b""
    assert (websocket.close(), websocket.answer(), websocket.phase) == (b"", b"", Phase.OVER)
    assert WebSocket(MOST).close() == b""  # there is nobody yet who speaks in frames


def test_after_a_clients_close_ours_is_not_sent_beside_the_answer() -> None:
    websocket = opened()
    feed(websocket, frame(CLOSE))
    assert websocket.close() == b""
    assert websocket.answer() == b"\x88\x00"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 1 << 40])
def test_headers_have_the_shortest_form(size: int) -> None:
    assert WebSocket.header(size) == bytes((FIN | BINARY,)) + length_of(size, 0)


# ---- against wsproto -------------------------------------------------------------------------------------------------


def wsproto_reads(data: bytes) -> Read:
    """What the other implementation makes of it; a text frame ends it as MQTT wants."""
    protocol = FrameProtocol(client=False, extensions=[])
    protocol.receive_bytes(data)
    mqtt, answers = b"", b""
    try:
        for got in protocol.received_frames():
            if got.opcode is Opcode.TEXT:
                return Read(mqtt, Phase.OVER, lib.HMQ_WEBSOCKET_TEXT, close(1003))
            if got.opcode is Opcode.BINARY:
                mqtt += payload_of(got)
            elif got.opcode is Opcode.PING:
                answers = pong(payload_of(got))
            elif got.opcode is Opcode.CLOSE:
                return Read(mqtt, Phase.OVER, 0, close_answer(got))
    except ParseFailed as error:
        in_text = error.code == CloseReason.INVALID_FRAME_PAYLOAD_DATA and "CLOSE" not in str(error)
        return Read(mqtt, Phase.OVER, 1, close(1003 if in_text else error.code))
    return Read(mqtt, Phase.OPEN, 0, answers)


def payload_of(got: Frame) -> bytes:
    """Of a frame whose payload is bytes."""
    assert isinstance(got.payload, bytes | bytearray)
    return bytes(got.payload)


def close_answer(got: Frame) -> bytes:
    """The status echoed."""
    code = got.payload[0]
    return b"\x88\x00" if code is CloseReason.NO_STATUS_RCVD else close(int(code))


# 1014 was registered after wsproto's list was made.
statuses = st.sampled_from([0, 999, 1000, 1004, 1005, 1006, 1007, 1013, 1015, 1016, 2999, 3000, 4999, 5000])
closes = st.builds(lambda code, text: struct.pack(">H", code) + text, statuses, st.binary(max_size=6))
keys = st.binary(min_size=4, max_size=4)
sizes = st.integers(0, 20) | st.sampled_from([124, 125, 126, 127, 130, 300])
payloads = sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
good = st.one_of(
    st.builds(
        frame, st.sampled_from([BINARY, BINARY, CONTINUATION]), payloads, first=st.sampled_from([0, FIN]), key=keys
    ),
    st.builds(frame, st.sampled_from([PING, PONG]), st.binary(max_size=125), key=keys),
)
odd = st.one_of(
    st.builds(frame, st.integers(0, 15), payloads, first=st.sampled_from([0, FIN, FIN, 0x40, 0x90]), key=keys),
    st.builds(frame, st.just(CLOSE), closes | st.binary(max_size=3), key=keys),
    st.binary(min_size=1, max_size=12),
    st.builds(lambda size: b"\x82\xff" + struct.pack(">Q", size) + KEY, st.integers(0, (1 << 64) - 1)),
)
streams = st.lists(st.one_of(good, good, good, odd), max_size=8).map(b"".join)


@given(streams, st.lists(st.integers(0, 2000), max_size=6), st.integers(0, 3))
@example(frame(BINARY, b"ab", first=0) + frame(PING) + frame(CONTINUATION, b"c"), [3], 0)
def test_a_stream_means_what_wsproto_makes_of_it(data: bytes, cuts: list[int], short: int) -> None:
    # wsproto looks at a whole header, this layer at its first bytes: a stream that is cut off goes on with zeros.
    data = data[: len(data) - short] + bytes(40)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[begin:end] for begin, end in itertools.pairwise(places) if end > begin]
    most = (1 << 63) - 1
    websocket = opened(most=most)
    mqtt = b"".join(feed(websocket, part) for part in parts)
    expected = wsproto_reads(data)
    assert (mqtt, websocket.phase, websocket.fault > 0) == (expected.mqtt, expected.phase, expected.fault > 0)
    assert websocket.answer().endswith(expected.answers)


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(0, 70_000))
def test_what_is_sent_is_read_by_wsproto(messages: list[bytes], large: int) -> None:
    protocol = FrameProtocol(client=True, extensions=[])
    sent = [*messages, bytes(large)]
    protocol.receive_bytes(b"".join(WebSocket.header(len(message)) + message for message in sent))
    got = [(found.opcode, payload_of(found), found.message_finished) for found in protocol.received_frames()]
    assert got == [(Opcode.BINARY, message, True) for message in sent]


@pytest.mark.parametrize("made", [frame(BINARY), frame(PING), frame(BINARY, b"\xc0\x00")])
def test_a_frame_costs_little_however_small_it_is(made: bytes) -> None:
    data = made * FRAMES
    websocket = opened()
    begun = time.process_time()
    feed(websocket, data)
    assert websocket.phase is Phase.OPEN
    assert (time.process_time() - begun) / FRAMES < MOST_S_A_FRAME
