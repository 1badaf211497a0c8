"""The properties of MQTT 5.0 (section 2.2.2) as one value, and to and from bytes by the core's codec.

The core's table (src/mqtt/properties.c) says which property may be where, how often and with which values. This file
has only the names.
"""

import threading
from dataclasses import dataclass

from holdmq.core._binding import CData, ffi, lib
from holdmq.core._mqtt_errors import InvalidPacketError

__all__ = ["NO_PROPERTIES", "WILL", "Properties", "decode_properties", "encode_properties"]

WILL: int = lib.HMQ_MQTT_WILL  # the place of a will's properties; else it is a PacketType


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a packet or of a will, by their names in the standard (table 2-4); None: it is not there.

    Intervals and `server_keep_alive` are seconds, `maximum_packet_size` is bytes; `payload_format_indicator`, the
    `request_...`, `maximum_qos` and the `..._available` are 0 or 1. Texts are bytes of well-formed UTF-8.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: bytes | None = None
    response_topic: bytes | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: bytes | None = None
    server_keep_alive: int | None = None
    authentication_method: bytes | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: bytes | None = None
    server_reference: bytes | None = None
    reason_string: bytes | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[bytes, bytes], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifiers_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()

_NAMES: dict[int, str] = {
    lib.HMQ_MQTT_PAYLOAD_FORMAT: "payload_format_indicator",
    lib.HMQ_MQTT_MESSAGE_EXPIRY: "message_expiry_interval",
    lib.HMQ_MQTT_CONTENT_TYPE: "content_type",
    lib.HMQ_MQTT_RESPONSE_TOPIC: "response_topic",
    lib.HMQ_MQTT_CORRELATION_DATA: "correlation_data",
    lib.HMQ_MQTT_SUBSCRIPTION_ID: "subscription_identifiers",
    lib.HMQ_MQTT_SESSION_EXPIRY: "session_expiry_interval",
    lib.HMQ_MQTT_ASSIGNED_CLIENT_ID: "assigned_client_identifier",
    lib.HMQ_MQTT_SERVER_KEEP_ALIVE: "server_keep_alive",
    lib.HMQ_MQTT_AUTH_METHOD: "authentication_method",
    lib.HMQ_MQTT_AUTH_DATA: "authentication_data",
    lib.HMQ_MQTT_REQUEST_PROBLEM: "request_problem_information",
    lib.HMQ_MQTT_WILL_DELAY: "will_delay_interval",
    lib.HMQ_MQTT_REQUEST_RESPONSE: "request_response_information",
    lib.HMQ_MQTT_RESPONSE_INFORMATION: "response_information",
    lib.HMQ_MQTT_SERVER_REFERENCE: "server_reference",
    lib.HMQ_MQTT_REASON_STRING: "reason_string",
    lib.HMQ_MQTT_RECEIVE_MAXIMUM: "receive_maximum",
    lib.HMQ_MQTT_TOPIC_ALIAS_MAXIMUM: "topic_alias_maximum",
    lib.HMQ_MQTT_TOPIC_ALIAS: "topic_alias",
    lib.HMQ_MQTT_MAXIMUM_QOS: "maximum_qos",
    lib.HMQ_MQTT_RETAIN_AVAILABLE: "retain_available",
    lib.HMQ_MQTT_USER_PROPERTY: "user_properties",
    lib.HMQ_MQTT_MAXIMUM_PACKET_SIZE: "maximum_packet_size",
    lib.HMQ_MQTT_WILDCARD_AVAILABLE: "wildcard_subscription_available",
    lib.HMQ_MQTT_SUBSCRIPTION_ID_AVAILABLE: "subscription_identifiers_available",
    lib.HMQ_MQTT_SHARED_AVAILABLE: "shared_subscription_available",
}
_REPEATED = (lib.HMQ_MQTT_SUBSCRIPTION_ID, lib.HMQ_MQTT_USER_PROPERTY)
_TEXTS = (lib.HMQ_MQTT_TEXT, lib.HMQ_MQTT_BINARY)


class _Scratch(threading.local):
    """What C writes to, one for each thread."""

    def __init__(self) -> None:
        self.at = ffi.new("size_t *")
        self.found = ffi.new("hmq_mqtt_property *")


_scratch = _Scratch()


# ---- from bytes ----


def decode_properties(data: bytes) -> Properties:
    """The properties in these bytes (as encoded, without their length), which a decoder has checked before."""
    if not data:
        return NO_PROPERTIES
    held = ffi.from_buffer("uint8_t[]", data)
    whole = ffi.new("hmq_slice *", (held, len(data)))[0]
    at, found = _scratch.at, _scratch.found
    values: dict[str, object] = {}
    many: dict[str, list[object]] = {}
    at[0] = 0
    while lib.hmq_mqtt_next_property(whole, at, found):
        name = _NAMES[found.id]
        if found.id in _REPEATED:
            many.setdefault(name, []).append(_value(found))
        else:
            values[name] = _value(found)
    values.update((name, tuple(each)) for name, each in many.items())
    return Properties(**values)  # type: ignore[arg-type] # the kind of each is its field's type


def _value(found: CData) -> object:
    if found.kind in _TEXTS:
        return _bytes(found.value)
    return (_bytes(found.name), _bytes(found.value)) if found.kind == lib.HMQ_MQTT_PAIR else found.number


def _bytes(text: CData) -> bytes:
    return bytes(ffi.buffer(text.data, text.len)) if text.len else b""


# ---- to bytes ----


def encode_properties(properties: Properties, place: int) -> bytes:
    """The properties as they are in a packet, without their length.

    Args:
        properties: what is there.
        place: the PacketType, or WILL.

    Raises:
        InvalidPacketError: if a value is out of its range, a text ill-formed, or a property does not belong there.
    """
    if properties is NO_PROPERTIES:
        return b""
    values = ((number, name, getattr(properties, name)) for number, name in _NAMES.items())
    data = b"".join([_encoded(number, name, value) for number, name, value in values if value is not None])
    if not data:
        return b""
    held = ffi.from_buffer("uint8_t[]", data)
    error = lib.hmq_mqtt_check_properties(ffi.new("hmq_slice *", (held, len(data)))[0], place)
    if error:
        raise InvalidPacketError(f"{ffi.string(lib.hmq_mqtt_error_text(error)).decode()}: {_shown(properties)}")
    return data


def _shown(properties: Properties) -> str:
    values = {name: getattr(properties, name) for name in _NAMES.values()}
    return ", ".join(f"{name}={value!r:.100}" for name, value in values.items() if value not in {None, ()})


def _encoded(number: int, name: str, value: object) -> bytes:
    if number in _REPEATED:
        if not isinstance(value, tuple):
            raise InvalidPacketError(f"{name} is {value!r:.100}; expected a tuple")
        return b"".join(_one(number, name, each) for each in value)
    return _one(number, name, value)


def _one(number: int, name: str, value: object) -> bytes:
    kind = lib.hmq_mqtt_kind_of_property(number)
    described: dict[str, object] = {"id": number}
    capacity = 5
    texts: list[CData] = []  # held until C has copied them
    if kind in _TEXTS or kind == lib.HMQ_MQTT_PAIR:
        parts = value if kind == lib.HMQ_MQTT_PAIR else (value,)
        names = ("name", "value") if kind == lib.HMQ_MQTT_PAIR else ("value",)
        if not (isinstance(parts, tuple) and len(parts) == len(names) and all(isinstance(p, bytes) for p in parts)):
            raise InvalidPacketError(f"{name} is {value!r:.100}; expected {'pairs of ' * (len(names) - 1)}bytes")
        for part, field in zip(parts, names, strict=True):
            texts.append(ffi.from_buffer("uint8_t[]", part))
            described[field] = (texts[-1], len(part))
            capacity += len(part)
    else:
        described["number"] = value
    out = ffi.new("uint8_t[]", capacity)
    try:
        size = lib.hmq_mqtt_put_property(ffi.new("hmq_mqtt_property *", described), out, capacity)
    except (OverflowError, TypeError):
        size = 0
    if size == 0:
        raise InvalidPacketError(f"{name} is {value!r:.100}, which is out of its range")
    return bytes(ffi.buffer(out, size))
