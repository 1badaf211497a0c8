"""MQTT 5.0 packets as bytes, built and taken apart by the tests' own code, not by the codec under test.

Properties are built one by one and joined:  connect("c1", properties=number(SESSION_EXPIRY, 60) + pair("a", "b")).
What is read comes as a dictionary from identifier to value (a list for user properties and subscription identifiers).
"""

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.bridge import packets
from tests.bridge.packets import Will, length, packet, text

# Table 2-4
PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA = 0x01, 0x02, 0x03, 0x08, 0x09
SUBSCRIPTION_ID, SESSION_EXPIRY, ASSIGNED_CLIENT_ID, SERVER_KEEP_ALIVE = 0x0B, 0x11, 0x12, 0x13
AUTH_METHOD, AUTH_DATA, REQUEST_PROBLEM, WILL_DELAY, REQUEST_RESPONSE = 0x15, 0x16, 0x17, 0x18, 0x19
RESPONSE_INFORMATION, REASON_STRING, RECEIVE_MAXIMUM, ALIAS_MAXIMUM, TOPIC_ALIAS = 0x1A, 0x1F, 0x21, 0x22, 0x23
MAXIMUM_QOS, RETAIN_AVAILABLE, USER_PROPERTY, MAXIMUM_PACKET, WILDCARD, IDS, SHARED = (
    0x24,
    0x25,
    0x26,
    0x27,
    0x28,
    0x29,
    0x2A,
)

_BYTES = {PAYLOAD_FORMAT, REQUEST_PROBLEM, REQUEST_RESPONSE, MAXIMUM_QOS, RETAIN_AVAILABLE, WILDCARD, IDS, SHARED}
_TWO_BYTES = {SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, ALIAS_MAXIMUM, TOPIC_ALIAS}
_FOUR_BYTES = {MESSAGE_EXPIRY, SESSION_EXPIRY, WILL_DELAY, MAXIMUM_PACKET}


def number(identifier: int, value: int) -> bytes:
    """A property that is a number."""
    if identifier == SUBSCRIPTION_ID:
        return bytes([identifier]) + length(value)
    size = 1 if identifier in _BYTES else 2 if identifier in _TWO_BYTES else 4
    return bytes([identifier]) + value.to_bytes(size, "big")


def string(identifier: int, value: str | bytes) -> bytes:
    """A property that is a text or binary data."""
    return bytes([identifier]) + text(value)


def pair(name: str, value: str) -> bytes:
    """A user property."""
    return bytes([USER_PROPERTY]) + text(name) + text(value)


def block(properties: bytes) -> bytes:
    """Properties with their length."""
    return length(len(properties)) + properties


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: str | None = None,
    password: bytes | None = None,
    properties: bytes = b"",
) -> bytes:
    """CONNECT."""
    flags = 0x02 if clean else 0
    payload = text(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += block(will.properties) + text(will.topic) + text(will.payload)
    if username is not None:
        flags |= 0x80
        payload += text(username)
    if password is not None:
        flags |= 0x40
        payload += text(password)
    head = text("MQTT") + bytes([5, flags]) + struct.pack(">H", keep_alive)
    return packet(0x10, head + block(properties) + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    pid: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    """PUBLISH."""
    first = 0x30 | (0x08 if dup else 0) | qos << 1 | retain
    return packet(first, text(topic) + (struct.pack(">H", pid) if qos else b"") + block(properties) + payload)


def acknowledgement(first: int, pid: int, code: int = 0) -> bytes:
    """PUBACK (0x40), PUBREC (0x50), PUBREL (0x62) or PUBCOMP (0x70) in its shortest form."""
    return packets.acknowledgement(first, pid, code or None)


def subscribe(pid: int, *filters: tuple[str, int], properties: bytes = b"") -> bytes:
    """SUBSCRIBE to (filter, options byte) pairs."""
    entries = b"".join(text(name) + bytes([options]) for name, options in filters)
    return packet(0x82, struct.pack(">H", pid) + block(properties) + entries)


def suback(pid: int, *codes: int) -> bytes:
    """SUBACK without properties."""
    return packet(0x90, struct.pack(">H", pid) + b"\0" + bytes(codes))


def unsubscribe(pid: int, *filters: str) -> bytes:
    """UNSUBSCRIBE."""
    return packet(0xA2, struct.pack(">H", pid) + b"\0" + b"".join(text(name) for name in filters))


def unsuback(pid: int, *codes: int) -> bytes:
    """UNSUBACK without properties."""
    return packet(0xB0, struct.pack(">H", pid) + b"\0" + bytes(codes))


def disconnect(code: int = 0, properties: bytes = b"") -> bytes:
    """DISCONNECT."""
    return packet(0xE0, bytes([code]) + block(properties) if code or properties else b"")


def auth(code: int = 0x18, properties: bytes = b"") -> bytes:
    """AUTH."""
    return packet(0xF0, bytes([code]) + block(properties))


# ---- taken apart -----------------------------------------------------------------------------------------------------


@dataclass
class Received:
    """A packet taken apart; `kind` is the high half of its first byte."""

    kind: int
    code: int = 0
    present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    pid: int = 0
    retain: bool = False
    dup: bool = False
    codes: list[int] = field(default_factory=list)
    properties: dict[int, Any] = field(default_factory=dict)


class _Bytes:
    """What is left to read."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        taken, self.data = self.data[:count], self.data[count:]
        assert len(taken) == count, "the packet is cut off"
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def text(self) -> bytes:
        return self.take(self.number(2))

    def properties(self) -> dict[int, Any]:
        listed = _Bytes(self.take(self.variable()))
        found: dict[int, Any] = {}
        while listed.data:
            identifier = listed.number(1)
            if identifier == USER_PROPERTY:
                found.setdefault(identifier, []).append((listed.text().decode(), listed.text().decode()))
            elif identifier == SUBSCRIPTION_ID:
                found.setdefault(identifier, []).append(listed.variable())
            elif identifier in _BYTES:
                found[identifier] = listed.number(1)
            elif identifier in _TWO_BYTES:
                found[identifier] = listed.number(2)
            elif identifier in _FOUR_BYTES:
                found[identifier] = listed.number(4)
            else:
                found[identifier] = listed.text()
        return found


def read(data: bytes) -> Received:
    """Takes a whole packet of a server apart."""
    rest = _Bytes(data)
    first = rest.number(1)
    assert rest.variable() == len(rest.data)
    got = Received(first >> 4)
    if got.kind == 2:
        got.present, got.code, got.properties = bool(rest.number(1)), rest.number(1), rest.properties()
    elif got.kind == 3:
        got.qos, got.retain, got.dup = first >> 1 & 3, bool(first & 1), bool(first & 8)
        got.topic = rest.text().decode()
        got.pid = rest.number(2) if got.qos else 0
        got.properties, got.payload = rest.properties(), rest.data
    elif got.kind in (4, 5, 6, 7):
        got.pid = rest.number(2)
        got.code = rest.number(1) if rest.data else 0
        got.properties = rest.properties() if rest.data else {}
    elif got.kind in (9, 11):
        got.pid, got.properties, got.codes = rest.number(2), rest.properties(), list(rest.data)
    elif got.kind == 14:
        got.code = rest.number(1) if rest.data else 0
        got.properties = rest.properties() if rest.data else {}
    return got
