"""PUBLISH and its acknowledgements to bytes, in fewer steps than other packets because they are the most frequent."""

from holdmq.core._binding import BytesLike, Text, ffi, lib, to_bytes
from holdmq.core._mqtt_errors import InvalidPacketError
from holdmq.core._mqtt_packets import PROTOCOL_LEVEL, PacketType
from holdmq.core._mqtt_properties import NO_PROPERTIES, Properties, encode_properties
from holdmq.core._mqtt_write import out_of, scratch, write

__all__ = ["encode_puback", "encode_pubcomp", "encode_publish", "encode_pubrec", "encode_pubrel"]


def encode_publish(
    topic: Text,
    payload: BytesLike,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: Properties = NO_PROPERTIES,
    *,
    version: int = PROTOCOL_LEVEL,
) -> bytes:
    """A PUBLISH; the topic is assumed to be valid.

    Raises:
        InvalidPacketError: if QoS is not 0..2; if `packet_id` is 0 with QoS 1 or 2, or not 0 with QoS 0; if DUP is set
            with QoS 0; if the topic is empty (and in 5.0 without an alias) or longer than 65535 bytes; if the packet is
            too large for MQTT; if a property is out of its range or does not belong into a PUBLISH.
    """
    name = topic if type(topic) is bytes else to_bytes(topic)
    body = payload if type(payload) is bytes else to_bytes(payload)
    if version != PROTOCOL_LEVEL:
        return _encode_publish5(name, body, version, properties, (qos, retain, dup, packet_id))
    capacity = len(name) + len(body) + 16
    out, text = out_of(capacity)
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


def _encode_publish5(
    topic: bytes, payload: bytes, version: int, properties: Properties, rest: tuple[int, bool, bool, int]
) -> bytes:
    """The same for 5.0, by a packet of C's that is used again and again: to make one costs more than to write it."""
    if not topic and properties.topic_alias is None:
        raise InvalidPacketError("the PUBLISH has neither a topic nor a topic alias")
    more = encode_properties(properties, PacketType.PUBLISH)
    packet = scratch.publish
    held = (
        ffi.from_buffer("uint8_t[]", topic),
        ffi.from_buffer("uint8_t[]", payload),
        ffi.from_buffer("uint8_t[]", more),
    )
    packet.topic.data, packet.payload.data, packet.properties.data = held
    packet.topic.len, packet.payload.len, packet.properties.len = len(topic), len(payload), len(more)
    capacity = len(topic) + len(payload) + len(more) + 16
    out, text = out_of(capacity)
    try:
        packet.qos, packet.retain, packet.dup, packet.packet_id = rest
        size = lib.hmq_mqtt_encode(packet, version, out, capacity)
    except OverflowError:
        size = 0
    if size == 0:
        raise InvalidPacketError(
            f"a field of the PUBLISH is out of its range for protocol level {version}: topic of {len(topic)} bytes, "
            f"payload of {len(payload)} bytes, (qos, retain, dup, packet_id) {rest}"
        )
    return ffi.unpack(text, size)


# The packets that are nothing but an identifier: all but its two bytes come from the codec once.
_HEADS = {
    packet_type: write(packet_type, packet_id=1)[:-2]
    for packet_type in (
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
    )
}
_PUBACK_HEAD = _HEADS[PacketType.PUBACK]
_PUBREC_HEAD = _HEADS[PacketType.PUBREC]
_PUBREL_HEAD = _HEADS[PacketType.PUBREL]
_PUBCOMP_HEAD = _HEADS[PacketType.PUBCOMP]


def _identified(head: bytes, packet_id: int) -> bytes:
    if not 1 <= packet_id <= lib.HMQ_PACKET_ID_MAX:
        raise InvalidPacketError(f"packet_id is {packet_id}; expected 1..65535")
    return head + packet_id.to_bytes(2, "big")


def _acknowledgement(
    packet_type: PacketType, packet_id: int, reason_code: int, properties: Properties, version: int
) -> bytes:
    return write(packet_type, version=version, packet_id=packet_id, code=reason_code, properties=properties)


def encode_puback(
    packet_id: int, reason_code: int = 0, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A PUBACK. Raises InvalidPacketError if identifier (1..65535), reason code or a property is out of its range."""
    if not reason_code and properties is NO_PROPERTIES:
        return _identified(_PUBACK_HEAD, packet_id)
    return _acknowledgement(PacketType.PUBACK, packet_id, reason_code, properties, version)


def encode_pubrec(
    packet_id: int, reason_code: int = 0, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A PUBREC. Raises InvalidPacketError if identifier (1..65535), reason code or a property is out of its range."""
    if not reason_code and properties is NO_PROPERTIES:
        return _identified(_PUBREC_HEAD, packet_id)
    return _acknowledgement(PacketType.PUBREC, packet_id, reason_code, properties, version)


def encode_pubrel(
    packet_id: int, reason_code: int = 0, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A PUBREL. Raises InvalidPacketError if identifier (1..65535), reason code or a property is out of its range."""
    if not reason_code and properties is NO_PROPERTIES:
        return _identified(_PUBREL_HEAD, packet_id)
    return _acknowledgement(PacketType.PUBREL, packet_id, reason_code, properties, version)


def encode_pubcomp(
    packet_id: int, reason_code: int = 0, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A PUBCOMP. Raises InvalidPacketError if identifier (1..65535), reason code or a property is out of its range."""
    if not reason_code and properties is NO_PROPERTIES:
        return _identified(_PUBCOMP_HEAD, packet_id)
    return _acknowledgement(PacketType.PUBCOMP, packet_id, reason_code, properties, version)
