"""MQTT 3.1.1 packets as bytes, built and taken apart by the tests' own code, not by the codec under test.

The tests of bridge and engine (tests/core/engine) and the benchmarks build their packets here and in packets5.py.
Also the binary forms of the module's values (src/topic/record.h), for tests that play the server.
"""

import struct
from dataclasses import dataclass

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"
DISCONNECT = b"\xe0\x00"


def text(value: str | bytes) -> bytes:
    """A string with its length [MQTT-1.5.3]."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def length(count: int) -> bytes:
    """A remaining length: 7 bits per byte, the eighth says that more follow (section 2.2.3)."""
    out = bytearray()
    while True:
        count, digit = divmod(count, 128)
        out.append(digit | (0x80 if count else 0))
        if not count:
            return bytes(out)


def packet(first: int, body: bytes) -> bytes:
    """A whole packet from its first byte and what follows the length."""
    return bytes([first]) + length(len(body)) + body


@dataclass(frozen=True)
class Will:
    """A will of a CONNECT; its properties count in MQTT 5.0 only."""

    topic: str | bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: bytes = b""


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: str | None = None,
    password: bytes | None = None,
    name: str = "MQTT",
    level: int = 4,
) -> bytes:
    """CONNECT."""
    flags = 0x02 if clean else 0
    payload = text(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += text(will.topic) + text(will.payload)
    if username is not None:
        flags |= 0x80
        payload += text(username)
    if password is not None:
        flags |= 0x40
        payload += text(password)
    return packet(0x10, text(name) + bytes([level, flags]) + struct.pack(">H", keep_alive) + payload)


def connack(code: int = 0, *, present: bool = False) -> bytes:
    """CONNACK."""
    return bytes([0x20, 2, present, code])


def publish(
    topic: str | bytes, payload: bytes = b"", *, qos: int = 0, pid: int = 0, retain: bool = False, dup: bool = False
) -> bytes:
    """PUBLISH; the identifier belongs to QoS 1 and 2 only."""
    first = 0x30 | (0x08 if dup else 0) | qos << 1 | retain
    return packet(first, text(topic) + (struct.pack(">H", pid) if qos else b"") + payload)


def acknowledgement(first: int, pid: int, reason: int | None = None) -> bytes:
    """PUBACK (0x40), PUBREC (0x50), PUBREL (0x62) or PUBCOMP (0x70); a reason code exists in MQTT 5.0 only."""
    return packet(first, struct.pack(">H", pid) + (b"" if reason is None else bytes([reason])))


def puback(pid: int, reason: int | None = None) -> bytes:
    """PUBACK."""
    return acknowledgement(0x40, pid, reason)


def pubrec(pid: int, reason: int | None = None) -> bytes:
    """PUBREC."""
    return acknowledgement(0x50, pid, reason)


def pubrel(pid: int, reason: int | None = None) -> bytes:
    """PUBREL."""
    return acknowledgement(0x62, pid, reason)


def pubcomp(pid: int, reason: int | None = None) -> bytes:
    """PUBCOMP."""
    return acknowledgement(0x70, pid, reason)


def subscribe(pid: int, *filters: tuple[str | bytes, int]) -> bytes:
    """SUBSCRIBE to (filter, QoS) pairs."""
    return packet(0x82, struct.pack(">H", pid) + b"".join(text(name) + bytes([qos]) for name, qos in filters))


def suback(pid: int, *codes: int) -> bytes:
    """SUBACK."""
    return packet(0x90, struct.pack(">H", pid) + bytes(codes))


def unsubscribe(pid: int, *filters: str) -> bytes:
    """UNSUBSCRIBE."""
    return packet(0xA2, struct.pack(">H", pid) + b"".join(text(name) for name in filters))


def unsuback(pid: int) -> bytes:
    """UNSUBACK."""
    return b"\xb0\x02" + struct.pack(">H", pid)


@dataclass(frozen=True)
class Published:
    """A PUBLISH taken apart."""

    topic: str
    payload: bytes
    qos: int
    pid: int
    retain: bool
    dup: bool


def read_publish(data: bytes) -> Published:
    """Takes a whole PUBLISH apart; fails if it is none."""
    assert data[0] >> 4 == 3, f"a PUBLISH expected, but {data[:40]!r} came"
    at = 1
    while data[at] & 0x80:
        at += 1
    at += 1
    size = int.from_bytes(data[at : at + 2], "big")
    topic = data[at + 2 : at + 2 + size].decode()
    at += 2 + size
    qos = data[0] >> 1 & 3
    pid = 0
    if qos:
        pid = int.from_bytes(data[at : at + 2], "big")
        at += 2
    return Published(topic, data[at:], qos, pid, bool(data[0] & 1), bool(data[0] & 8))


def record(topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, time_ms: int = 1) -> bytes:
    """A stored message as src/topic/record.h draws it."""
    flags = qos | (4 if retain else 0)
    name = topic.encode()
    return bytes([0xFA, 0x11, flags]) + time_ms.to_bytes(6, "little") + struct.pack("<H", len(name)) + name + payload


def delivery(
    kind: int,
    body: bytes = b"",
    *,
    qos: int = 1,
    retain: bool = False,
    pid: int = 0,
    serial: int = 0,
    previous: int = 0,
) -> bytes:
    """What an inbox channel carries, as src/topic/record.h draws it."""
    return struct.pack("<BBBHQQ", 0xFB, kind, qos | (4 if retain else 0), pid, serial, previous) + body
