"""Parts of a CONNECT: its will as options of SESSION.OPEN, and the protocol level of a faulty packet."""

from dataclasses import replace
from typing import Any

from holdmq.core import mqtt
from holdmq.core.mqtt import NO_PROPERTIES, WILL, encode_properties
from holdmq_bridge.process.settings import Settings


def will_options(packet: mqtt.Connect, settings: Settings) -> tuple[Any, ...]:
    """The will as options of SESSION.OPEN; empty without a will."""
    will = packet.will
    if will is None:
        return ()
    options: tuple[Any, ...] = ("WILL", will.topic, will.payload, "WILLQOS", will.qos)
    if will.retain:
        options += ("WILLRETAIN",)
    if will.properties.will_delay_interval:
        options += ("WILLDELAY", will.properties.will_delay_interval)
    expiry = _message_expiry(will.properties.message_expiry_interval, settings)
    if expiry is not None:
        options += ("WILLTTL", expiry)
    passed = replace(will.properties, will_delay_interval=None, message_expiry_interval=None)
    if passed != NO_PROPERTIES:
        options += ("WILLPROPERTIES", encode_properties(passed, WILL))
    return options


def _message_expiry(requested: int | None, settings: Settings) -> int | None:
    """The expiry of a message that asks for this interval.  The engine applies the same rule to publishes."""
    expiry = requested if requested is not None else settings.message_expiry_s or None
    most = settings.max_message_expiry_s
    if most and (expiry is None or expiry > most):
        return most
    return expiry


_BRIDGE = 0x80  # a bit of the level: see mqtt.Connect


def protocol_level(data: bytes) -> int:
    """The level at the beginning of a CONNECT, which may be cut off or faulty; 0 if it is not there."""
    at = 1
    while at < min(len(data), 5) and data[at] & 0x80:
        at += 1
    name = data[at + 1 : at + 7]
    return data[at + 7] & ~_BRIDGE if name == b"\x00\x04MQTT" and len(data) > at + 7 else 0
