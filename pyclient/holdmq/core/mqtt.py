"""MQTT packets from Python: bytes to objects and back, MQTT 3.1.1, both directions of all 14 types.

The work is done by the codec of the core (src/mqtt.h); what it lets pass is valid, texts included. Topics, filters,
client ids and user names are bytes (well-formed UTF-8), because they go on to the server as bytes.

`decode_many` reads everything that has arrived in one call into C and makes one small object for each packet; treat
these as values. What may be sent when is the session's affair.
"""

import enum
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from holdmq.core._binding import BytesLike, CData, Text, ffi, layout, lib, to_bytes

__all__ = [
    "MAX_PACKET_BYTES",
    "PROTOCOL_LEVEL",
    "SUBACK_FAILURE",
    "Connack",
    "Connect",
    "Decoded",
    "Disconnect",
    "InvalidPacketError",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "ProtocolError",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode_many",
    "encode_connack",
    "encode_connect",
    "encode_disconnect",
    "encode_pingreq",
    "encode_pingresp",
    "encode_puback",
    "encode_pubcomp",
    "encode_publish",
    "encode_pubrec",
    "encode_pubrel",
    "encode_suback",
    "encode_subscribe",
    "encode_unsuback",
    "encode_unsubscribe",
]

PROTOCOL_LEVEL: int = lib.HMQ_MQTT_3_1_1
MAX_PACKET_BYTES: int = lib.HMQ_MQTT_MAX_BYTES
SUBACK_FAILURE = 0x80  # [MQTT-3.9.3-2]

_BATCH = 256  # packets that one call into C decodes
_SCRATCH_BYTES = 4096  # packets up to this size are encoded without an allocation


class PacketType(enum.IntEnum):
    """The type in the first byte of a packet (table 2.1)."""

    CONNECT = lib.HMQ_MQTT_CONNECT
    CONNACK = lib.HMQ_MQTT_CONNACK
    PUBLISH = lib.HMQ_MQTT_PUBLISH
    PUBACK = lib.HMQ_MQTT_PUBACK
    PUBREC = lib.HMQ_MQTT_PUBREC
    PUBREL = lib.HMQ_MQTT_PUBREL
    PUBCOMP = lib.HMQ_MQTT_PUBCOMP
    SUBSCRIBE = lib.HMQ_MQTT_SUBSCRIBE
    SUBACK = lib.HMQ_MQTT_SUBACK
    UNSUBSCRIBE = lib.HMQ_MQTT_UNSUBSCRIBE
    UNSUBACK = lib.HMQ_MQTT_UNSUBACK
    PINGREQ = lib.HMQ_MQTT_PINGREQ
    PINGRESP = lib.HMQ_MQTT_PINGRESP
    DISCONNECT = lib.HMQ_MQTT_DISCONNECT


class InvalidPacketError(ValueError):
    """A packet cannot be encoded: a field is out of its range."""


class ProtocolError(ValueError):
    """The other side sent bytes that MQTT forbids; the text names the statement of the standard that they violate.

    Attributes:
        code: the core's number for the fault (`hmq_mqtt_error` in src/mqtt.h).
        connack_code: return code of the CONNACK that a server must send before it closes the connection (1: protocol
            level, 2: client id), 0: close without one.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        self.connack_code = int(lib.hmq_mqtt_error_connack(code))
        super().__init__(ffi.string(lib.hmq_mqtt_error_text(code)).decode())

    def __reduce__(self) -> tuple[type["ProtocolError"], tuple[int]]:
        return type(self), (self.code,)


# ---- packets ----


@dataclass(slots=True)
class Will:
    """What the server publishes when the client vanishes (section 3.1.2.5)."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(slots=True)
class Connect:
    """CONNECT (section 3.1); `keep_alive_s` 0 switches the keep-alive off; an empty client id asks for one."""

    client_id: bytes
    clean: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: bytes | None = None
    password: bytes | None = None
    level: int = PROTOCOL_LEVEL


@dataclass(slots=True)
class Connack:
    """CONNACK (section 3.2); `code` 0 accepts."""

    session_present: bool
    code: int


@dataclass(slots=True)
class Publish:
    """PUBLISH (section 3.3); `packet_id` 0 with QoS 0."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0


@dataclass(slots=True)
class Puback:
    """PUBACK (section 3.4)."""

    packet_id: int


@dataclass(slots=True)
class Pubrec:
    """PUBREC (section 3.5)."""

    packet_id: int


@dataclass(slots=True)
class Pubrel:
    """PUBREL (section 3.6)."""

    packet_id: int


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP (section 3.7)."""

    packet_id: int


@dataclass(slots=True)
class Subscription:
    """One entry of a SUBSCRIBE; one that is not `valid` breaks a limit of ours and is to be refused with 0x80."""

    topic_filter: bytes
    qos: int = 0
    valid: bool = True


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (section 3.8), with one entry or more."""

    packet_id: int
    subscriptions: list[Subscription] = field(default_factory=list)


@dataclass(slots=True)
class Suback:
    """SUBACK (section 3.9): for each entry the QoS granted, or 0x80."""

    packet_id: int
    codes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (section 3.10), with one filter or more."""

    packet_id: int
    topic_filters: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (section 3.11)."""

    packet_id: int


@dataclass(slots=True)
class Pingreq:
    """PINGREQ (section 3.12)."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP (section 3.13)."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (section 3.14)."""


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
)


class Decoded(NamedTuple):
    """What `decode_many` found: the packets, their bytes in all, and the fault behind them, None if there is none.

    The bytes from `consumed` on are the beginning of a packet that is still to come (or, after a fault, rubbish).
    """

    packets: list[Packet]
    consumed: int
    error: ProtocolError | None


# ---- decoding ----


class _Scratch(threading.local):
    """What C writes to, one for each thread: calls into C give up the interpreter's lock.

    `raw` is the memory of `packets`, `text` that of `out`.
    """

    def __init__(self) -> None:
        self.packets = ffi.new("hmq_mqtt_packet[]", _BATCH)
        self.raw = ffi.buffer(self.packets)
        self.consumed = ffi.new("size_t *")
        self.error = ffi.new("hmq_mqtt_error *")
        self.text = ffi.new("char[]", _SCRATCH_BYTES)
        self.out = ffi.cast("uint8_t *", self.text)


_scratch = _Scratch()
_PACKET = layout("hmq_mqtt_packet")
_PUBLISH = int(PacketType.PUBLISH)


def decode_many(data: BytesLike, *, max_packet_bytes: int = MAX_PACKET_BYTES) -> Decoded:
    """Decodes all whole packets at the beginning of the bytes.

    Args:
        data: what has arrived and was not consumed yet; copied unless it is bytes.
        max_packet_bytes: the most that a whole packet may have; told as an error as soon as its length is known.
    """
    source = data if type(data) is bytes else bytes(data)
    scratch = _scratch
    packets: list[Packet] = []
    total = len(source)
    at = 0
    begin = source  # cffi passes bytes as a pointer to them
    while True:
        count = lib.hmq_mqtt_decode_many(
            begin,
            total - at,
            PROTOCOL_LEVEL,
            max_packet_bytes,
            scratch.packets,
            _BATCH,
            scratch.consumed,
            scratch.error,
        )
        if count:
            _append_packets(packets, scratch, count, source, at)
            at += scratch.consumed[0]
        if count < _BATCH:
            error = scratch.error[0]
            return Decoded(packets, at, ProtocolError(error) if error else None)
        begin = ffi.from_buffer("uint8_t[]", source) + at


def _append_packets(packets: list[Packet], scratch: _Scratch, count: int, source: bytes, end: int) -> None:
    """Makes objects of C's packets; `end` is where the packet before them ends in the source.

    Slices are addresses; that a payload ends where its packet does tells where the source begins.
    """
    for index, fields in enumerate(_PACKET.iter_unpack(scratch.raw[: count * _PACKET.size])):
        kind, qos, dup, retain, _, _, packet_id, size, _, topic, topic_len, _, _, payload, payload_len = fields
        end += size
        if kind == _PUBLISH:
            topic -= payload + payload_len - end
            packets.append(
                Publish(source[topic : topic + topic_len], source[end - payload_len : end], qos, retain, dup, packet_id)
            )
        else:
            make = _IDENTIFIED.get(kind)
            packets.append(make(packet_id) if make else _READERS[kind](scratch.packets[index]))


def _slice(text: CData) -> bytes:
    return bytes(ffi.buffer(text.data, text.len)) if text.len else b""


def _read_connect(packet: CData) -> Connect:
    c = ffi.new("hmq_mqtt_connect *")
    lib.hmq_mqtt_read_connect(ffi.addressof(packet), c)  # cannot fail: the decoder has done it before
    will = Will(_slice(c.will_topic), _slice(c.will_payload), c.will_qos, c.will_retain) if c.has_will else None
    username = _slice(c.username) if c.has_username else None
    password = _slice(c.password) if c.has_password else None
    return Connect(_slice(c.client_id), c.clean, c.keep_alive_s, will, username, password, c.level)


def _entries(packet: CData) -> list[Subscription]:
    found: list[Subscription] = []
    at = ffi.new("size_t *")
    entry = ffi.new("hmq_mqtt_entry *")
    while lib.hmq_mqtt_next_entry(ffi.addressof(packet), at, entry):
        found.append(Subscription(_slice(entry.filter), entry.options, entry.error == lib.HMQ_TOPIC_OK))
    return found


_IDENTIFIED: dict[int, Callable[[int], Packet]] = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
    PacketType.UNSUBACK: Unsuback,
}

_READERS: dict[int, Callable[[CData], Packet]] = {
    PacketType.CONNECT: _read_connect,
    PacketType.CONNACK: lambda packet: Connack(packet.session_present, packet.code),
    PacketType.SUBSCRIBE: lambda packet: Subscribe(packet.packet_id, _entries(packet)),
    PacketType.SUBACK: lambda packet: Suback(packet.packet_id, list(_slice(packet.payload))),
    PacketType.UNSUBSCRIBE: lambda packet: Unsubscribe(
        packet.packet_id, [entry.topic_filter for entry in _entries(packet)]
    ),
    PacketType.PINGREQ: lambda _packet: Pingreq(),
    PacketType.PINGRESP: lambda _packet: Pingresp(),
    PacketType.DISCONNECT: lambda _packet: Disconnect(),
}


# ---- encoding ----


def _out(size: int) -> tuple[CData, CData]:
    """Memory for so many bytes, to be written as `uint8_t *` and read as `char *`."""
    if size <= _SCRATCH_BYTES:
        return _scratch.out, _scratch.text
    text = ffi.new("char[]", size)
    return ffi.cast("uint8_t *", text), text


def _encode(packet_type: PacketType, *, payload: bytes = b"", **fields: object) -> bytes:
    held = ffi.from_buffer("uint8_t[]", payload)
    described = {"type": packet_type, "payload": (held, len(payload)), **fields}
    try:
        packet = ffi.new("hmq_mqtt_packet *", described)
    except OverflowError as error:
        raise InvalidPacketError(f"a field of the {packet_type.name} is out of its range: {fields}") from error
    size = lib.hmq_mqtt_size(packet, PROTOCOL_LEVEL)
    if size == 0:
        raise InvalidPacketError(f"a field of the {packet_type.name} is out of its range: {fields}")
    out, text = _out(size)
    return ffi.unpack(text, lib.hmq_mqtt_encode(packet, PROTOCOL_LEVEL, out, size))


def encode_publish(
    topic: Text, payload: BytesLike, qos: int = 0, retain: bool = False, dup: bool = False, packet_id: int = 0
) -> bytes:
    """A PUBLISH; the topic is taken as valid.

    Raises:
        InvalidPacketError: if QoS is not 0..2; if `packet_id` is 0 with QoS 1 or 2, or not 0 with QoS 0; if DUP is set
            with QoS 0; if the topic is empty or longer than 65535 bytes; if the packet is too large for MQTT.
    """
    name = topic if type(topic) is bytes else to_bytes(topic)
    body = payload if type(payload) is bytes else to_bytes(payload)
    capacity = len(name) + len(body) + 16
    out, text = _out(capacity)
    try:
        size = lib.hmq_mqtt_encode_publish(name, len(name), body, len(body), qos, retain, dup, packet_id, out, capacity)
    except OverflowError:
        size = 0
    if size == 0:
        raise InvalidPacketError(
            f"a field of the PUBLISH is out of its range: topic of {len(name)} bytes, payload of {len(body)} bytes, "
            f"qos {qos}, dup {dup}, packet_id {packet_id}"
        )
    return ffi.unpack(text, size)


# The packets that are nothing but an identifier: all but its two bytes come from the codec once.
_HEADS = {
    packet_type: _encode(packet_type, packet_id=1)[:-2]
    for packet_type in (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.UNSUBACK,
    )
}
_PUBACK_HEAD = _HEADS[PacketType.PUBACK]
_PUBREC_HEAD = _HEADS[PacketType.PUBREC]
_PUBREL_HEAD = _HEADS[PacketType.PUBREL]
_PUBCOMP_HEAD = _HEADS[PacketType.PUBCOMP]
_UNSUBACK_HEAD = _HEADS[PacketType.UNSUBACK]


def _identified(head: bytes, packet_id: int) -> bytes:
    if not 1 <= packet_id <= lib.HMQ_PACKET_ID_MAX:
        raise InvalidPacketError(f"packet_id is {packet_id}, expected 1..65535")
    return head + packet_id.to_bytes(2, "big")


def encode_puback(packet_id: int) -> bytes:
    """A PUBACK. Raises InvalidPacketError if the identifier is not within 1..65535."""
    return _identified(_PUBACK_HEAD, packet_id)


def encode_pubrec(packet_id: int) -> bytes:
    """A PUBREC. Raises InvalidPacketError if the identifier is not within 1..65535."""
    return _identified(_PUBREC_HEAD, packet_id)


def encode_pubrel(packet_id: int) -> bytes:
    """A PUBREL. Raises InvalidPacketError if the identifier is not within 1..65535."""
    return _identified(_PUBREL_HEAD, packet_id)


def encode_pubcomp(packet_id: int) -> bytes:
    """A PUBCOMP. Raises InvalidPacketError if the identifier is not within 1..65535."""
    return _identified(_PUBCOMP_HEAD, packet_id)


def encode_unsuback(packet_id: int) -> bytes:
    """An UNSUBACK. Raises InvalidPacketError if the identifier is not within 1..65535."""
    return _identified(_UNSUBACK_HEAD, packet_id)


def encode_connack(session_present: bool, code: int) -> bytes:
    """A CONNACK. Raises InvalidPacketError if the code is not within 0..5, or refuses and has a session present."""
    return _encode(PacketType.CONNACK, session_present=session_present, code=code)


def encode_suback(packet_id: int, codes: Iterable[int]) -> bytes:
    """A SUBACK with one code (0..2, 0x80) for each entry.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no code, or one that MQTT does not know.
    """
    granted = list(codes)
    for code in granted:
        if code not in {0, 1, 2, SUBACK_FAILURE}:
            raise InvalidPacketError(f"the SUBACK code {code} is not 0, 1, 2 or 128 [MQTT-3.9.3-2]")
    return _encode(PacketType.SUBACK, payload=bytes(granted), packet_id=packet_id)


def encode_pingreq() -> bytes:
    """A PINGREQ."""
    return _encode(PacketType.PINGREQ)


def encode_pingresp() -> bytes:
    """A PINGRESP."""
    return _encode(PacketType.PINGRESP)


def encode_disconnect() -> bytes:
    """A DISCONNECT."""
    return _encode(PacketType.DISCONNECT)


def encode_connect(connect: Connect) -> bytes:
    """A CONNECT.

    Raises:
        InvalidPacketError: if a text is longer than 65535 bytes; if the client id is empty without `clean`; if there is
            a password without a user name; if the level is not 4; if the will's QoS or topic is out of its range.
    """
    will = connect.will
    texts = {
        "client_id": connect.client_id,
        "will_topic": will.topic if will else b"",
        "will_payload": will.payload if will else b"",
        "username": connect.username or b"",
        "password": connect.password or b"",
    }
    held = {name: ffi.from_buffer("uint8_t[]", text) for name, text in texts.items()}
    described = {
        "level": connect.level,
        "clean": connect.clean,
        "keep_alive_s": connect.keep_alive_s,
        "has_will": will is not None,
        "will_qos": will.qos if will else 0,
        "will_retain": will.retain if will else False,
        "has_username": connect.username is not None,
        "has_password": connect.password is not None,
        **{name: (text, len(text)) for name, text in held.items()},
    }
    try:
        parts = ffi.new("hmq_mqtt_connect *", described)
    except OverflowError as error:
        raise InvalidPacketError(f"a field of the CONNECT is out of its range: {connect!r}") from error
    size = lib.hmq_mqtt_connect_size(parts)
    if size == 0:
        raise InvalidPacketError(f"a field of the CONNECT is out of its range: {connect!r}")
    out = ffi.new("uint8_t[]", size)
    lib.hmq_mqtt_encode_connect(parts, out, size)
    return _encode(PacketType.CONNECT, payload=bytes(ffi.buffer(out, size)))


def encode_subscribe(packet_id: int, subscriptions: Iterable[tuple[Text, int]]) -> bytes:
    """A SUBSCRIBE for these pairs of filter and QoS; the filters are taken as valid.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no pair, or one is out of its range.
    """
    entries = b"".join(_encode_entry(topic_filter, qos, True) for topic_filter, qos in subscriptions)
    return _encode(PacketType.SUBSCRIBE, payload=entries, packet_id=packet_id)


def encode_unsubscribe(packet_id: int, topic_filters: Iterable[Text]) -> bytes:
    """An UNSUBSCRIBE for these filters, which are taken as valid.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no filter, or one is out of its range.
    """
    entries = b"".join(_encode_entry(topic_filter, 0, False) for topic_filter in topic_filters)
    return _encode(PacketType.UNSUBSCRIBE, payload=entries, packet_id=packet_id)


def _encode_entry(topic_filter: Text, qos: int, with_options: bool) -> bytes:
    data = to_bytes(topic_filter)
    held = ffi.from_buffer("uint8_t[]", data)
    capacity = len(data) + 3
    out, text = _out(capacity)
    try:
        entry = ffi.new("hmq_mqtt_entry *", {"filter": (held, len(data)), "options": qos})
        size = lib.hmq_mqtt_encode_entry(entry, with_options, out, capacity)
    except OverflowError:
        size = 0
    if size == 0:
        raise InvalidPacketError(f"a filter of {len(data)} bytes with QoS {qos}: expected 1..65535 bytes, QoS 0..2")
    return ffi.unpack(text, size)
