"""Records and deliveries: the layouts byte by byte, round trips, every truncation, and rubbish."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import (
    MAX_TIME_MS,
    Delivery,
    DeliveryKind,
    InvalidRecordError,
    Record,
    RecordType,
    is_record,
)
from holdmq.core._binding import ffi, lib
from tests.core.support import copy, heap_bytes, written

times = st.integers(0, MAX_TIME_MS)
small = st.binary(max_size=12)
records = st.one_of(
    st.builds(
        Record,
        qos=st.integers(0, 2),
        retain=st.booleans(),
        time_ms=times,
        expires_ms=times,
        topic=small,
        publisher=small,
        properties=small,
        share=small,
        payload=small,
    ),
    st.builds(Record, type=st.just(RecordType.PUBREL), qos=st.integers(0, 2), retain=st.booleans(), time_ms=times),
)
serials = st.integers(1, 2**64 - 1)
deliveries = st.one_of(
    st.builds(
        Delivery,
        kind=st.just(DeliveryKind.QUEUED),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        packet_id=st.integers(1, 65535),
        serial=serials,
        previous=st.integers(0, 2**64 - 1),
        record=small,
    ),
    st.builds(Delivery, kind=st.just(DeliveryKind.TRANSIENT), retain=st.booleans(), record=small),
    st.builds(Delivery, kind=st.sampled_from([DeliveryKind.TAKEN_OVER, DeliveryKind.DROPPED]), serial=serials),
)

FULL = Record(
    qos=1, retain=True, time_ms=1, expires_ms=2, topic=b"a/b", publisher=b"me", properties=b"\x01\x00", payload=b"hi"
)
# magic, version 1 type publish, QoS 1 + retain + expires + publisher + properties
FULL_BYTES = bytes.fromhex("fa 11 3d 010000000000 020000000000 0300 612f62 0200 6d65 02000000 0100 6869")

QUEUED = Delivery(DeliveryKind.QUEUED, 1, True, 258, 65537, 65536, FULL_BYTES)
QUEUED_BYTES = bytes.fromhex("fb 01 05 0201 0100010000000000 0000010000000000") + FULL_BYTES


def decode_record(data: bytes) -> Any:
    """The C struct, None if refused; its slices must lie inside the input."""
    source, record = heap_bytes(data), ffi.new("hmq_record *")
    if lib.hmq_record_decode(source, len(data), record):
        return None
    for part in (record.topic, record.publisher, record.properties, record.share, record.payload):
        assert part.len == 0 or (part.data >= source and part.data + part.len <= source + len(data))
    return source, record


def reencoded(record: Any) -> bytes:
    size = lib.hmq_record_size(record)
    return written(size, lambda out, room: lib.hmq_record_encode(record, ffi.cast("uint8_t *", out), room))


# ---- the layout ----


def test_a_record_with_everything_lies_as_its_header_draws_it() -> None:
    assert FULL.encode() == FULL_BYTES
    assert Record.decode(FULL_BYTES) == FULL


def test_a_record_with_nothing_is_eleven_bytes() -> None:
    assert Record(time_ms=MAX_TIME_MS).encode() == bytes.fromhex("fa 11 00 ffffffffffff 0000")


def test_a_pubrel_ends_after_its_time() -> None:
    pubrel = Record(type=RecordType.PUBREL, qos=2, time_ms=256)
    assert pubrel.encode() == bytes.fromhex("fa 12 02 000100000000")
    assert Record.decode(pubrel.encode()) == pubrel


def test_a_delivery_lies_as_its_header_draws_it() -> None:
    assert QUEUED.encode() == QUEUED_BYTES
    assert Delivery.decode(QUEUED_BYTES) == QUEUED
    assert QUEUED.message() == FULL


def test_a_takeover_carries_the_epoch_and_no_record() -> None:
    notice = Delivery(DeliveryKind.TAKEN_OVER, serial=7)
    assert notice.encode() == bytes.fromhex("fb 03 00 0000 0700000000000000 0000000000000000")
    with pytest.raises(InvalidRecordError):
        Delivery.decode(notice.encode() + b"x")


# ---- laws ----


@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    data = record.encode()
    assert Record.decode(data) == record
    assert Record.decode(memoryview(data)) == record
    assert is_record(data)
    decoded = decode_record(data)
    assert reencoded(decoded[1]) == data


@given(records)
def test_a_truncated_record_is_refused_or_shorter_by_its_payload(record: Record) -> None:
    data = record.encode()
    head = len(data) - len(record.payload)
    for size in range(len(data)):
        decoded = decode_record(data[:size])
        if size < head:
            assert decoded is None
        else:
            assert copy(decoded[1].payload.data, decoded[1].payload.len) == record.payload[: size - head]


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda rest: b"\xfa\x11" + rest)))
def test_what_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    decoded = decode_record(data)
    if decoded is not None:
        assert reencoded(decoded[1]) == data


@given(records, st.data())
def test_a_changed_byte_is_refused_or_read_as_what_it_says(record: Record, data: st.DataObject) -> None:
    changed = bytearray(record.encode())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    decoded = decode_record(bytes(changed))
    if decoded is not None:
        assert reencoded(decoded[1]) == bytes(changed)


@given(deliveries)
def test_a_delivery_comes_back_as_it_was(delivery: Delivery) -> None:
    data = delivery.encode()
    assert Delivery.decode(data) == delivery
    for size in range(min(len(data), lib.HMQ_DELIVERY_HEADER_BYTES)):
        assert lib.hmq_delivery_decode(heap_bytes(data[:size]), size, ffi.new("hmq_delivery *")) == -1


@given(st.one_of(st.binary(max_size=40), st.binary(min_size=20, max_size=40).map(lambda rest: b"\xfb" + rest)))
def test_a_delivery_that_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    source, delivery = heap_bytes(data), ffi.new("hmq_delivery *")
    if lib.hmq_delivery_decode(source, len(data), delivery):
        return
    size = lib.HMQ_DELIVERY_HEADER_BYTES
    head = written(size, lambda out, room: lib.hmq_delivery_encode_header(delivery, ffi.cast("uint8_t *", out), room))
    assert head + copy(delivery.record.data, delivery.record.len) == data


# ---- refusals ----


@pytest.mark.parametrize(
    "changes",
    [
        {"qos": 3},
        {"qos": 256},
        {"time_ms": -1},
        {"time_ms": MAX_TIME_MS + 1},
        {"time_ms": 2**64},
        {"expires_ms": -1},
        {"expires_ms": MAX_TIME_MS + 1},
        {"topic": bytes(65536)},
        {"publisher": bytes(65536)},
        {"type": RecordType.PUBREL},
        {"type": 0},
        {"type": 3},
    ],
)
def test_a_field_out_of_its_range_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError, match="out of its range"):
        replace(FULL, **changes).encode()


def test_a_record_that_cannot_be_has_no_size_and_is_not_written_in_c() -> None:
    for fields in ({"type": 1, "payload": (ffi.NULL, 2**64 - 1)}, {"type": 1, "properties": (ffi.NULL, 2**32)}, {}):
        record = ffi.new("hmq_record *", fields)
        assert lib.hmq_record_size(record) == 0
        assert lib.hmq_record_encode(record, heap_bytes(bytes(64)), 64) == 0


@pytest.mark.parametrize(
    "changes",
    [{"expires_ms": 1}, {"topic": b"x"}, {"publisher": b"x"}, {"properties": b"x"}, {"share": b"x"}, {"payload": b"x"}],
    ids=str,
)
def test_a_pubrel_has_nothing_but_its_time(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        replace(Record(type=RecordType.PUBREL), **changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        FULL_BYTES.replace(b"\xfa", b"\xfb", 1),  # magic
        FULL_BYTES.replace(b"\x11", b"\x21", 1),  # version 2
        FULL_BYTES.replace(b"\x11", b"\x13", 1),  # type 3
        FULL_BYTES.replace(b"\x3d", b"\x3f", 1),  # QoS 3
        FULL_BYTES.replace(b"\x3d", b"\x7d", 1),  # a flag that does not exist
        bytes.fromhex("fa 11 08 010000000000 000000000000 0000"),  # expires, but never
        bytes.fromhex("fa 11 10 010000000000 0000 0000"),  # a publisher without an id
        bytes.fromhex("fa 11 20 010000000000 0000 00000000"),  # properties without any
        bytes.fromhex("fa 12 00 010000000000 00"),  # a pubrel with something behind it
        bytes.fromhex("fa 12 08 010000000000"),  # a pubrel that expires
        bytes.fromhex("fa 11 20 010000000000 0000 ffffffff 01"),  # properties beyond the end
    ],
)
def test_an_invalid_record_is_refused(data: bytes) -> None:
    assert decode_record(data) is None
    with pytest.raises(InvalidRecordError, match="not a record of version 1"):
        Record.decode(data)


@pytest.mark.parametrize(
    "delivery",
    [
        replace(QUEUED, qos=3),
        replace(QUEUED, packet_id=0),
        replace(QUEUED, packet_id=65536),
        replace(QUEUED, serial=0),
        replace(QUEUED, serial=-1),
        Delivery(DeliveryKind.TRANSIENT, qos=1),
        Delivery(DeliveryKind.TRANSIENT, packet_id=1),
        Delivery(DeliveryKind.TRANSIENT, serial=1),
        Delivery(DeliveryKind.TRANSIENT, previous=1),
        Delivery(DeliveryKind.TAKEN_OVER, retain=True),
        Delivery(DeliveryKind.TAKEN_OVER, record=b"x"),
        Delivery(DeliveryKind.DROPPED, previous=1),
    ],
)
def test_a_delivery_that_contradicts_its_kind_is_not_written(delivery: Delivery) -> None:
    with pytest.raises(InvalidRecordError, match="out of its range"):
        delivery.encode()


@pytest.mark.parametrize(("at", "value"), [(0, 0xFA), (1, 0), (1, 4), (2, 3), (2, 8), (3, 0)], ids=hex)
def test_an_invalid_delivery_is_refused(at: int, value: int) -> None:
    changed = bytearray(replace(QUEUED, packet_id=1).encode())
    changed[at] = value
    with pytest.raises(InvalidRecordError, match="not a delivery"):
        Delivery.decode(bytes(changed))


def test_the_values_of_others_do_not_look_like_records() -> None:
    for value in (b"", b'{"topicName":"a"}', "ú".encode(), b"\xfa", b"\xfa\x11"):
        assert not lib.hmq_record_is(heap_bytes(value), len(value))
        assert not is_record(value)


@pytest.mark.parametrize("expires_ms", [0, 1, 1_700_000_000_000, MAX_TIME_MS])
def test_the_expiry_is_read_without_decoding_the_rest(expires_ms: int) -> None:
    data = Record(time_ms=5, expires_ms=expires_ms, topic=b"t", payload=b"p").encode()
    assert lib.hmq_record_expires(heap_bytes(data), len(data)) == expires_ms
    if expires_ms:
        assert [lib.hmq_record_expires(heap_bytes(data[:size]), size) for size in (0, 1, 2, 9, 14)] == [0] * 5


@pytest.mark.parametrize("value", [b"", b"{}", b'{"packetType":"PUBLISH"}', b"\xfa" * 20, b"\xfa\x12" + bytes(13)])
def test_what_is_not_a_publish_record_has_no_expiry(value: bytes) -> None:
    assert lib.hmq_record_expires(heap_bytes(value), len(value)) == 0


@given(records)
def test_the_qos_of_a_record_is_seen_without_decoding_it(record: Record) -> None:
    data = record.encode()
    is_qos0 = record.type is RecordType.PUBLISH and record.qos == 0
    assert lib.hmq_record_has_qos0(heap_bytes(data), len(data)) == is_qos0
    assert not lib.hmq_record_has_qos0(heap_bytes(b"{}"), 2)
