"""Bytes to MQTT packets.

`decode_many` reads everything that has arrived in one call into C and makes one small object for each packet.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from holdmq.core._binding import BytesLike, CData, ffi, layout, lib
from holdmq.core._mqtt_errors import ProtocolError
from holdmq.core._mqtt_packets import (
    PROTOCOL_LEVEL,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from holdmq.core._mqtt_properties import Properties, decode_properties

__all__ = ["ANY_VERSION", "MAX_PACKET_BYTES", "Decoded", "decode_many"]

ANY_VERSION: int = lib.HMQ_MQTT_ANY_VERSION
MAX_PACKET_BYTES: int = lib.HMQ_MQTT_MAX_BYTES

_BATCH = 256  # packets that one call into C decodes


class Decoded(NamedTuple):
    """The result of `decode_many`: packets, the number of their bytes, and the fault after them, if any.

    The bytes from `consumed` on are the beginning of an incomplete packet, or faulty.
    """

    packets: list[Packet]
    consumed: int
    error: ProtocolError | None


class _Scratch(threading.local):
    """Memory for results of C, separate in each thread: calls of C release the interpreter's lock.

    `raw` is the memory of `packets`.
    """

    def __init__(self) -> None:
        self.packets = ffi.new("hmq_mqtt_packet[]", _BATCH)
        self.raw = ffi.buffer(self.packets)
        self.consumed = ffi.new("size_t *")
        self.error = ffi.new("hmq_mqtt_error *")


_scratch = _Scratch()
_PACKET = layout("hmq_mqtt_packet")
_PUBLISH = int(PacketType.PUBLISH)


def decode_many(data: BytesLike, *, version: int = PROTOCOL_LEVEL, max_packet_bytes: int = MAX_PACKET_BYTES) -> Decoded:
    """Decodes all whole packets at the beginning of the bytes.

    Args:
        data: what has arrived and was not consumed yet; copied unless it is bytes.
        version: protocol level, 4 (3.1.1) or 5 (5.0); or ANY_VERSION: the bytes begin with a CONNECT (else that is a
            fault), and its level is that of all that follows.
        max_packet_bytes: the most that a whole packet may have; an error as soon as its length is known.
    """
    source = data if type(data) is bytes else bytes(data)
    scratch = _scratch
    found = scratch.packets
    packets: list[Packet] = []
    total = len(source)
    at = 0
    begin = source  # cffi passes bytes as a pointer to them
    while True:
        count = lib.hmq_mqtt_decode_many(
            begin, total - at, version, max_packet_bytes, found, _BATCH, scratch.consumed, scratch.error
        )
        if count:
            _append_packets(packets, scratch, count, source, at)
            at += scratch.consumed[0]
        if count < _BATCH:
            error = scratch.error[0]
            return Decoded(packets, at, _fault(error, found[count]) if error else None)
        begin = ffi.from_buffer("uint8_t[]", source) + at
        version = found[count - 1].version


def _fault(error: int, packet: CData) -> ProtocolError:
    connect = error != lib.HMQ_MQTT_BAD_VERSION and packet.type == lib.HMQ_MQTT_CONNECT
    return ProtocolError(error, packet.version if connect else 0)


def _append_packets(packets: list[Packet], scratch: _Scratch, count: int, source: bytes, end: int) -> None:
    """Makes objects of C's packets; `end` is where the packet before them ends in the source.

    Slices are addresses; since a payload ends where its packet does, the end gives the beginning of the source.
    """
    for index, fields in enumerate(_PACKET.iter_unpack(scratch.raw[: count * _PACKET.size])):
        kind, qos, dup, retain, _, code, packet_id, size, _, topic, topic_len, more, more_len, body, body_len = fields
        end += size
        if kind == _PUBLISH:
            base = body + body_len - end
            topic -= base
            name, payload = source[topic : topic + topic_len], source[end - body_len : end]
            if more_len:
                properties = decode_properties(source[more - base : more - base + more_len])
                packets.append(Publish(name, payload, qos, retain, dup, packet_id, properties))
            else:
                packets.append(Publish(name, payload, qos, retain, dup, packet_id))
            continue
        make = _ACKNOWLEDGEMENTS.get(kind)
        if make is None:
            packets.append(_READERS[kind](scratch.packets[index]))
        elif code or more_len:
            packets.append(make(packet_id, code, _properties(scratch.packets[index])))
        else:
            packets.append(make(packet_id))


def _slice(text: CData) -> bytes:
    return bytes(ffi.buffer(text.data, text.len)) if text.len else b""


def _properties(packet: CData) -> Properties:
    return decode_properties(_slice(packet.properties))


def _read_connect(packet: CData) -> Connect:
    c = ffi.new("hmq_mqtt_connect *")
    lib.hmq_mqtt_read_connect(ffi.addressof(packet), c)  # cannot fail: the decoder has done it before
    will = None
    if c.has_will:
        properties = decode_properties(_slice(c.will_properties))
        will = Will(_slice(c.will_topic), _slice(c.will_payload), c.will_qos, c.will_retain, properties)
    username = _slice(c.username) if c.has_username else None
    password = _slice(c.password) if c.has_password else None
    properties = decode_properties(_slice(c.properties))
    return Connect(
        _slice(c.client_id), c.clean, c.keep_alive_s, will, username, password, c.level, properties, c.bridge
    )


def _entries(packet: CData) -> list[Subscription]:
    found: list[Subscription] = []
    at = ffi.new("size_t *")
    entry = ffi.new("hmq_mqtt_entry *")
    while lib.hmq_mqtt_next_entry(ffi.addressof(packet), at, entry):
        options = entry.options
        found.append(
            Subscription(
                _slice(entry.filter),
                options & lib.HMQ_MQTT_OPTION_QOS,
                entry.error == lib.HMQ_TOPIC_OK,
                bool(options & lib.HMQ_MQTT_OPTION_NO_LOCAL),
                bool(options & lib.HMQ_MQTT_OPTION_RETAIN_AS_PUBLISHED),
                options >> lib.HMQ_MQTT_OPTION_RETAIN_HANDLING_SHIFT,
            )
        )
    return found


_ACKNOWLEDGEMENTS: dict[int, type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]] = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
}

_READERS: dict[int, Callable[[CData], Packet]] = {
    PacketType.CONNECT: _read_connect,
    PacketType.CONNACK: lambda packet: Connack(packet.session_present, packet.code, _properties(packet)),
    PacketType.SUBSCRIBE: lambda packet: Subscribe(packet.packet_id, _entries(packet), _properties(packet)),
    PacketType.SUBACK: lambda packet: Suback(packet.packet_id, list(_slice(packet.payload)), _properties(packet)),
    PacketType.UNSUBSCRIBE: lambda packet: Unsubscribe(
        packet.packet_id, [entry.topic_filter for entry in _entries(packet)], _properties(packet)
    ),
    PacketType.UNSUBACK: lambda packet: Unsuback(packet.packet_id, list(_slice(packet.payload)), _properties(packet)),
    PacketType.PINGREQ: lambda _packet: Pingreq(),
    PacketType.PINGRESP: lambda _packet: Pingresp(),
    PacketType.DISCONNECT: lambda packet: Disconnect(packet.code, _properties(packet)),
    PacketType.AUTH: lambda packet: Auth(packet.code, _properties(packet)),
}
