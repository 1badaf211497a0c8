"""MQTT packets of 3.1.1 and 5.0 as Python values, a class for each type.

Fields of 5.0 only (properties, most reason codes, subscription options) have a default that means "absent".
"""

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

from holdmq.core._binding import lib
from holdmq.core._mqtt_properties import NO_PROPERTIES, Properties

__all__ = [
    "PROTOCOL_LEVEL",
    "PROTOCOL_LEVEL_5",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
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
]

PROTOCOL_LEVEL: int = lib.HMQ_MQTT_3_1_1
PROTOCOL_LEVEL_5: int = lib.HMQ_MQTT_5_0

_RETAIN_HANDLING_SHIFT: int = lib.HMQ_MQTT_OPTION_RETAIN_HANDLING_SHIFT


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
    AUTH = lib.HMQ_MQTT_AUTH


@dataclass(slots=True)
class Will:
    """The message that the server publishes when the client vanishes (section 3.1.2.5)."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Connect:
    """CONNECT (section 3.1). `keep_alive_s` 0: no keep-alive. Empty `client_id`: the server assigns one.

    `level` is the protocol level: 4 (3.1.1) or 5 (5.0). `bridge`: with 3.1.1, another broker connects as a bridge (bit
    0x80 of the level, as Mosquitto sets it).
    """

    client_id: bytes
    clean: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: bytes | None = None
    password: bytes | None = None
    level: int = PROTOCOL_LEVEL
    properties: Properties = NO_PROPERTIES
    bridge: bool = False


@dataclass(slots=True)
class Connack:
    """CONNACK (section 3.2); `code` is a return code, in 5.0 a reason code: 0 accepts."""

    session_present: bool
    code: int
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Publish:
    """PUBLISH (section 3.3). `packet_id`: 0 with QoS 0. `topic`: in 5.0 empty if a topic alias replaces it."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Puback:
    """PUBACK (section 3.4)."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrec:
    """PUBREC (section 3.5)."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrel:
    """PUBREL (section 3.6)."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP (section 3.7)."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Subscription:
    """An entry of a SUBSCRIBE. If it is not `valid`, it exceeds one of our limits and must be refused.

    The code for that is 0x80 in 3.1.1, and 0x8F in 5.0. `retain_handling`: retained messages are sent always (0), only
    for a new subscription (1), or never (2).
    """

    topic_filter: bytes
    qos: int = 0
    valid: bool = True
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @property
    def options(self) -> int:
        """The byte after the filter (5.0, section 3.8.3.1). In 3.1.1 it is the QoS."""
        flags = self.no_local << 2 | self.retain_as_published << 3
        return self.qos | flags | self.retain_handling << _RETAIN_HANDLING_SHIFT


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (section 3.8), with one entry or more."""

    packet_id: int
    subscriptions: list[Subscription] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    """SUBACK (section 3.9): for each entry the QoS granted, or 0x80 (in 5.0 a reason code from there on)."""

    packet_id: int
    codes: list[int] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (section 3.10), with one filter or more."""

    packet_id: int
    topic_filters: list[bytes] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (section 3.11); in 5.0 with a reason code for each filter."""

    packet_id: int
    codes: list[int] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pingreq:
    """PINGREQ (section 3.12)."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP (section 3.13)."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (section 3.14); in 3.1.1 only a client sends it."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """AUTH (5.0, section 3.15)."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


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
    | Auth
)
