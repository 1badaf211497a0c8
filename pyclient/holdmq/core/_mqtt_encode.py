"""MQTT packets to bytes: one function for each type, and `encode` for any packet.

Fields that 3.1.1 does not have (properties, most reason codes) are omitted when a packet is encoded for it, so that a
server makes an answer once for both versions.
"""

from collections.abc import Callable, Iterable
from typing import Any

from holdmq.core._binding import Text, ffi, lib, to_bytes
from holdmq.core._mqtt_encode_publish import (
    encode_puback,
    encode_pubcomp,
    encode_publish,
    encode_pubrec,
    encode_pubrel,
)
from holdmq.core._mqtt_errors import InvalidPacketError
from holdmq.core._mqtt_packets import (
    PROTOCOL_LEVEL,
    PROTOCOL_LEVEL_5,
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
)
from holdmq.core._mqtt_properties import NO_PROPERTIES, WILL, Properties, encode_properties
from holdmq.core._mqtt_write import out_of, write

__all__ = [
    "SUBACK_FAILURE",
    "encode",
    "encode_auth",
    "encode_connack",
    "encode_connect",
    "encode_disconnect",
    "encode_pingreq",
    "encode_pingresp",
    "encode_suback",
    "encode_subscribe",
    "encode_unsuback",
    "encode_unsubscribe",
]

SUBACK_FAILURE = 0x80  # [MQTT-3.9.3-2]


# ---- subscriptions ----


def encode_subscribe(
    packet_id: int,
    subscriptions: Iterable[tuple[Text, int] | Subscription],
    properties: Properties = NO_PROPERTIES,
    *,
    version: int = PROTOCOL_LEVEL,
) -> bytes:
    """A SUBSCRIBE for these entries, or pairs of filter and options (in 3.1.1 the QoS); filters are taken as valid.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no entry, or one is out of its range.
    """
    pairs = [
        (entry.topic_filter, entry.options) if isinstance(entry, Subscription) else entry for entry in subscriptions
    ]
    if version == PROTOCOL_LEVEL and any(options > 2 for _, options in pairs):
        raise InvalidPacketError(f"3.1.1 knows the options 0..2 (the QoS) only: {[options for _, options in pairs]}")
    entries = b"".join(_encode_entry(topic_filter, options, True) for topic_filter, options in pairs)
    return write(PacketType.SUBSCRIBE, version=version, payload=entries, packet_id=packet_id, properties=properties)


def encode_unsubscribe(
    packet_id: int,
    topic_filters: Iterable[Text],
    properties: Properties = NO_PROPERTIES,
    *,
    version: int = PROTOCOL_LEVEL,
) -> bytes:
    """An UNSUBSCRIBE for these filters, which are taken as valid.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no filter, or one is out of its range.
    """
    entries = b"".join(_encode_entry(topic_filter, 0, False) for topic_filter in topic_filters)
    return write(PacketType.UNSUBSCRIBE, version=version, payload=entries, packet_id=packet_id, properties=properties)


def _encode_entry(topic_filter: Text, options: int, with_options: bool) -> bytes:
    data = to_bytes(topic_filter)
    held = ffi.from_buffer("uint8_t[]", data)
    capacity = len(data) + 3
    out, text = out_of(capacity)
    try:
        entry = ffi.new("hmq_mqtt_entry *", {"filter": (held, len(data)), "options": options})
        size = lib.hmq_mqtt_encode_entry(entry, with_options, out, capacity)
    except OverflowError:
        size = 0
    if size == 0:
        raise InvalidPacketError(
            f"a filter of {len(data)} bytes with options {options:#x}; expected 1..65535 bytes, QoS 0..2, retain "
            "handling 0..2, no reserved bit"
        )
    return ffi.unpack(text, size)


def _codes(packet_type: PacketType, codes: Iterable[int], version: int) -> bytes:
    """The codes of a SUBACK or UNSUBACK, checked."""
    granted = list(codes)
    for code in granted:
        if version == PROTOCOL_LEVEL:
            known = code in {0, 1, 2, SUBACK_FAILURE}
        else:
            known = 0 <= code <= 255 and lib.hmq_mqtt_reason_is_known(packet_type, code)
        if not known:
            raise InvalidPacketError(
                f"the {packet_type.name} code {code} is not one of MQTT level {version} [MQTT-3.9.3-2, MQTT-3.11.3-2]"
            )
    return bytes(granted)


def encode_suback(
    packet_id: int,
    codes: Iterable[int],
    properties: Properties = NO_PROPERTIES,
    *,
    version: int = PROTOCOL_LEVEL,
) -> bytes:
    """A SUBACK with one code (0..2, 0x80; in 5.0 those of table 3-8) for each entry.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535, there is no code, or one that MQTT does not know.
    """
    payload = _codes(PacketType.SUBACK, codes, version)
    return write(PacketType.SUBACK, version=version, payload=payload, packet_id=packet_id, properties=properties)


def encode_unsuback(
    packet_id: int,
    codes: Iterable[int] = (),
    properties: Properties = NO_PROPERTIES,
    *,
    version: int = PROTOCOL_LEVEL,
) -> bytes:
    """An UNSUBACK; in 5.0 with one code (table 3-9) for each filter, which 3.1.1 leaves out.

    Raises:
        InvalidPacketError: if the identifier is not within 1..65535; in 5.0 if there is no code or an unknown one.
    """
    if version == PROTOCOL_LEVEL:
        return write(PacketType.UNSUBACK, packet_id=packet_id)
    payload = _codes(PacketType.UNSUBACK, codes, version)
    return write(PacketType.UNSUBACK, version=version, payload=payload, packet_id=packet_id, properties=properties)


# ---- connections ----


def encode_connack(
    session_present: bool, code: int, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A CONNACK.

    Raises:
        InvalidPacketError: if the code is not one of MQTT (3.1.1: 0..5), or it refuses and a session is present.
    """
    return write(PacketType.CONNACK, version=version, session_present=session_present, code=code, properties=properties)


def encode_pingreq() -> bytes:
    """A PINGREQ."""
    return write(PacketType.PINGREQ)


def encode_pingresp() -> bytes:
    """A PINGRESP."""
    return write(PacketType.PINGRESP)


def encode_disconnect(
    reason_code: int = 0, properties: Properties = NO_PROPERTIES, *, version: int = PROTOCOL_LEVEL
) -> bytes:
    """A DISCONNECT. Raises InvalidPacketError if the reason code or a property is out of its range."""
    return write(PacketType.DISCONNECT, version=version, code=reason_code, properties=properties)


def encode_auth(reason_code: int = 0, properties: Properties = NO_PROPERTIES) -> bytes:
    """An AUTH of 5.0.

    Raises:
        InvalidPacketError: if the reason code is unknown or, unless the packet is empty, no method is among the
            properties.
    """
    return write(PacketType.AUTH, version=PROTOCOL_LEVEL_5, code=reason_code, properties=properties)


def encode_connect(connect: Connect) -> bytes:
    """A CONNECT, by its level.

    Raises:
        InvalidPacketError: if a text is longer than 65535 bytes; if the level is not 4 or 5, or 5 for a bridge; if the
            will's QoS or topic is out of its range; if a property is; in 3.1.1, if the client id is empty without
            `clean` or there is a password without a user name.
    """
    will = connect.will
    five = connect.level == PROTOCOL_LEVEL_5
    texts = {
        "client_id": connect.client_id,
        "properties": encode_properties(connect.properties, PacketType.CONNECT) if five else b"",
        "will_properties": encode_properties(will.properties, WILL) if five and will else b"",
        "will_topic": will.topic if will else b"",
        "will_payload": will.payload if will else b"",
        "username": connect.username or b"",
        "password": connect.password or b"",
    }
    held = {name: ffi.from_buffer("uint8_t[]", text) for name, text in texts.items()}
    described = {
        "level": connect.level,
        "bridge": connect.bridge,
        "clean": connect.clean,
        "keep_alive_s": connect.keep_alive_s,
        "has_will": will is not None,
        "will_qos": will.qos if will else 0,
        "will_retain": will.retain if will else False,
        "has_username": connect.username is not None,
        "has_password": connect.password is not None,
        **{name: (text, len(text)) for name, text in held.items()},
    }
    wrong = f"a field of the CONNECT is out of its range: {connect!r}"
    try:
        parts = ffi.new("hmq_mqtt_connect *", described)
    except OverflowError as error:
        raise InvalidPacketError(wrong) from error
    size = lib.hmq_mqtt_connect_size(parts)
    if size == 0:
        raise InvalidPacketError(wrong)
    out = ffi.new("uint8_t[]", size)
    lib.hmq_mqtt_encode_connect(parts, out, size)
    return write(PacketType.CONNECT, payload=bytes(ffi.buffer(out, size)))


# ---- any packet ----

_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    Connect: lambda p, _version: encode_connect(p),
    Connack: lambda p, version: encode_connack(p.session_present, p.code, p.properties, version=version),
    Publish: lambda p, version: encode_publish(
        p.topic, p.payload, p.qos, p.retain, p.dup, p.packet_id, p.properties, version=version
    ),
    Puback: lambda p, version: encode_puback(p.packet_id, p.reason_code, p.properties, version=version),
    Pubrec: lambda p, version: encode_pubrec(p.packet_id, p.reason_code, p.properties, version=version),
    Pubrel: lambda p, version: encode_pubrel(p.packet_id, p.reason_code, p.properties, version=version),
    Pubcomp: lambda p, version: encode_pubcomp(p.packet_id, p.reason_code, p.properties, version=version),
    Subscribe: lambda p, version: encode_subscribe(p.packet_id, p.subscriptions, p.properties, version=version),
    Suback: lambda p, version: encode_suback(p.packet_id, p.codes, p.properties, version=version),
    Unsubscribe: lambda p, version: encode_unsubscribe(p.packet_id, p.topic_filters, p.properties, version=version),
    Unsuback: lambda p, version: encode_unsuback(p.packet_id, p.codes, p.properties, version=version),
    Pingreq: lambda _p, _version: encode_pingreq(),
    Pingresp: lambda _p, _version: encode_pingresp(),
    Disconnect: lambda p, version: encode_disconnect(p.reason_code, p.properties, version=version),
    Auth: lambda p, version: write(PacketType.AUTH, version=version, code=p.reason_code, properties=p.properties),
}


def encode(packet: Packet, *, version: int = PROTOCOL_LEVEL) -> bytes:
    """Any packet, for protocol level 4 (3.1.1) or 5 (5.0); a CONNECT by the level that it has.

    Raises:
        InvalidPacketError: as the function of its type does; an AUTH for 3.1.1.
    """
    return _ENCODERS[type(packet)](packet, version)
