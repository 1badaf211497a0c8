"""Stored messages, and deliveries to a session's inbox. The layouts are in src/topic/record.h.

`decode(encode(x)) == x` for every valid x. Times are in milliseconds since 1970-01-01 UTC.
"""

import enum
import threading
from dataclasses import dataclass

from holdmq.core._binding import BytesLike, CData, ffi, layout, lib, to_bytes

__all__ = ["MAX_TIME_MS", "Delivery", "DeliveryKind", "InvalidRecordError", "Record", "RecordType", "is_record"]

MAX_TIME_MS = 2**48 - 1


class InvalidRecordError(ValueError):
    """Bytes are not a record or delivery, or a value does not fit the layout."""


class RecordType(enum.IntEnum):
    """The type of a record."""

    PUBLISH = lib.HMQ_RECORD_PUBLISH
    PUBREL = lib.HMQ_RECORD_PUBREL


class DeliveryKind(enum.IntEnum):
    """The kind of a delivery: a message of the queue, a message of QoS 0, or a notice (taken over, dropped)."""

    QUEUED = lib.HMQ_DELIVERY_QUEUED
    TRANSIENT = lib.HMQ_DELIVERY_TRANSIENT
    TAKEN_OVER = lib.HMQ_DELIVERY_TAKEN_OVER
    DROPPED = lib.HMQ_DELIVERY_DROPPED


@dataclass(frozen=True, slots=True)
class Record:
    """A stored message.

    Attributes:
        type: a publish, or the pubrel in place of a released QoS 2 message (of which only `time_ms` counts).
        qos: 0..2, as published.
        retain: as published.
        time_ms: time of publishing, 0..2**48-1.
        expires_ms: time of expiry; 0: never.
        topic: at most 65535 bytes.
        publisher: client id of the publisher; empty: none.
        properties: as MQTT 5.0 encodes them, without their length; empty: none.
        share: the filter $share/<group>/<filter> by which a session got it; empty: none.
        payload: the content.
    """

    type: RecordType = RecordType.PUBLISH
    qos: int = 0
    retain: bool = False
    time_ms: int = 0
    expires_ms: int = 0
    topic: bytes = b""
    publisher: bytes = b""
    properties: bytes = b""
    share: bytes = b""
    payload: bytes = b""

    def encode(self) -> bytes:
        """The record's bytes.

        Raises:
            InvalidRecordError: if a field is out of its range.
        """
        record, _keep = _new_record(self)
        size = lib.hmq_record_size(record)
        if size == 0:
            raise InvalidRecordError(f"a field of the record is out of its range: {self!r}")
        out = ffi.new("uint8_t[]", size)
        return bytes(ffi.buffer(out, lib.hmq_record_encode(record, out, size)))

    @classmethod
    def decode(cls, data: BytesLike) -> "Record":
        """Decodes a record.

        Raises:
            InvalidRecordError: if they are not a record of version 1.
        """
        source = data if type(data) is bytes else bytes(data)
        scratch = _scratch
        if lib.hmq_record_decode(source, len(source), scratch.record):
            raise InvalidRecordError(f"not a record of version 1: {source[:16]!r} ({len(source)} bytes)")
        kind, qos, retain, time_ms, expires_ms, *slices = _RECORD.unpack(scratch.raw_record)
        if kind == _PUBREL:
            return cls(RecordType.PUBREL, qos, retain, time_ms)
        topic, topic_len, publisher, publisher_len, properties, properties_len, *more = slices
        share, share_len, payload, payload_len = more
        start = payload + payload_len - len(source)  # slices are addresses; the payload ends where the source does
        topic -= start
        return cls(
            RecordType.PUBLISH,
            qos,
            retain,
            time_ms,
            expires_ms,
            source[topic : topic + topic_len],
            source[publisher - start : publisher - start + publisher_len] if publisher_len else b"",
            source[properties - start : properties - start + properties_len] if properties_len else b"",
            source[share - start : share - start + share_len] if share_len else b"",
            source[payload - start :],
        )


def is_record(data: BytesLike) -> bool:
    """Whether the value begins like a record. Values of other programs, such as JSON, do not."""
    source = to_bytes(data)
    return bool(lib.hmq_record_is(source, len(source)))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A push to a session's inbox.

    Attributes:
        kind: see `DeliveryKind`.
        qos: of this delivery, 0..2.
        retain: the flag for the client.
        packet_id: 1..65535 if queued, else 0.
        serial: of the message if queued; the new epoch if taken over; the last epoch if dropped; else 0.
        previous: serial of the message before it in the queue; 0 if it is the only one.
        record: the record's bytes (see `message`); empty if taken over or dropped.
    """

    kind: DeliveryKind
    qos: int = 0
    retain: bool = False
    packet_id: int = 0
    serial: int = 0
    previous: int = 0
    record: bytes = b""

    def message(self) -> Record:
        """The record, decoded.

        Raises:
            InvalidRecordError: if it is not a record.
        """
        return Record.decode(self.record)

    def encode(self) -> bytes:
        """The delivery's bytes.

        Raises:
            InvalidRecordError: if a field is out of its range.
        """
        out = ffi.new("uint8_t[]", lib.HMQ_DELIVERY_HEADER_BYTES)
        delivery, _keep = _new_delivery(self)
        if not lib.hmq_delivery_encode_header(delivery, out, lib.HMQ_DELIVERY_HEADER_BYTES):
            raise InvalidRecordError(f"a field of the delivery is out of its range: {self!r}")
        return bytes(ffi.buffer(out)) + self.record

    @classmethod
    def decode(cls, data: BytesLike) -> "Delivery":
        """Decodes a delivery.

        Raises:
            InvalidRecordError: if they are none.
        """
        source = data if type(data) is bytes else bytes(data)
        scratch = _scratch
        if lib.hmq_delivery_decode(source, len(source), scratch.delivery):
            raise InvalidRecordError(f"not a delivery: {source[:24]!r} ({len(source)} bytes)")
        kind, qos, retain, packet_id, serial, previous, _, _ = _DELIVERY.unpack(scratch.raw_delivery)
        return cls(_KINDS[kind], qos, retain, packet_id, serial, previous, source[_DELIVERY_HEADER_BYTES:])


class _Scratch(threading.local):
    """Memory for results of C, separate in each thread: calls of C release the interpreter's lock."""

    def __init__(self) -> None:
        self.record = ffi.new("hmq_record *")
        self.raw_record = ffi.buffer(self.record)
        self.delivery = ffi.new("hmq_delivery *")
        self.raw_delivery = ffi.buffer(self.delivery)


_scratch = _Scratch()
_PUBREL = int(RecordType.PUBREL)
_KINDS = {int(kind): kind for kind in DeliveryKind}
_DELIVERY_HEADER_BYTES: int = lib.HMQ_DELIVERY_HEADER_BYTES
_RECORD = layout("hmq_record")
_DELIVERY = layout("hmq_delivery")


def _new_record(record: Record) -> tuple[CData, object]:
    """The record as a C struct, and objects that must live as long."""
    texts = [
        ffi.from_buffer("uint8_t[]", text)
        for text in (record.topic, record.publisher, record.properties, record.share, record.payload)
    ]
    slices = [(text, len(text)) for text in texts]
    try:
        scalars = [int(record.type), record.qos, record.retain, record.time_ms, record.expires_ms]
        return ffi.new("hmq_record *", [*scalars, *slices]), texts
    except OverflowError as error:
        raise InvalidRecordError(f"a field of the record is out of its range: {record!r}") from error


def _new_delivery(delivery: Delivery) -> tuple[CData, object]:
    record = ffi.from_buffer("uint8_t[]", delivery.record)
    scalars = [delivery.kind, delivery.qos, delivery.retain, delivery.packet_id, delivery.serial, delivery.previous]
    try:
        return ffi.new("hmq_delivery *", [*scalars, (record, len(record))]), record
    except OverflowError as error:
        raise InvalidRecordError(f"a field of the delivery is out of its range: {delivery!r}") from error
