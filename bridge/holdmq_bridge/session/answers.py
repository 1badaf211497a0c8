"""The rare packets that a server sends: CONNACK, SUBACK, UNSUBACK, DISCONNECT, in both versions of the protocol.

3.1.1 knows no DISCONNECT from a server and no codes in an UNSUBACK; there the first is nothing, the second only an
identifier.  What a client can do without is left out where it would make the packet larger than the client takes
[MQTT-3.2.2-19]; a packet that is too large all the same is empty: none that large may be sent [MQTT-3.1.2-24].
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from holdmq.core import mqtt
from holdmq.core.mqtt import NO_PROPERTIES, PROTOCOL_LEVEL, PROTOCOL_LEVEL_5, Properties
from holdmq_bridge.base.reasons import return_code
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.session.terms import Terms

ACCEPTED = 0
_MAX_REASON_BYTES = 1024


def connack(terms: Terms, settings: Settings, *, present: bool) -> bytes:
    """The session is open; in 5.0 with everything that the client has to know about this server.

    To a client that takes small packets only what it could not know otherwise is told; empty if not even that fits.
    """
    if terms.version != PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(present, ACCEPTED)
    for properties in _told(terms, settings):
        packet = mqtt.encode_connack(present, ACCEPTED, properties, version=PROTOCOL_LEVEL_5)
        if _fits(packet, terms.max_packet_out):
            return packet
    return b""


def _told(terms: Terms, settings: Settings) -> Iterator[Properties]:
    """All, then what has to be told: that something is served is what a client takes for granted."""
    properties = Properties(
        session_expiry_interval=terms.expiry_s if terms.expiry_changed else None,
        receive_maximum=settings.receive_maximum,
        retain_available=1,
        maximum_packet_size=settings.max_packet_bytes,
        assigned_client_identifier=terms.client_id if terms.assigned else None,
        topic_alias_maximum=settings.max_topic_alias or None,
        wildcard_subscription_available=1,
        subscription_identifiers_available=1,
        shared_subscription_available=1,
        server_keep_alive=terms.keep_alive_s if terms.keep_alive_changed else None,
        response_information=terms.response_information or None,
    )
    yield properties
    yield replace(
        properties,
        retain_available=None,
        wildcard_subscription_available=None,
        subscription_identifiers_available=None,
        shared_subscription_available=None,
        topic_alias_maximum=None,
        response_information=None,
    )


def _fits(packet: bytes, max_packet: int) -> bool:
    return not 0 < max_packet < len(packet)


def refusal(version: int, reason: int, detail: str, max_packet: int = 0) -> bytes:
    """A CONNACK that refuses; `max_packet` is what the client takes, 0: anything."""
    if version < PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(False, return_code(reason))
    return _explained(
        lambda properties: mqtt.encode_connack(False, reason, properties, version=PROTOCOL_LEVEL_5), detail, max_packet
    )


def suback(version: int, packet_id: int, reasons: Sequence[int], detail: str = "", max_packet: int = 0) -> bytes:
    """One reason for each filter: the granted QoS or why not; in words, if there is something to say.

    Empty if the client does not take so many.
    """
    if version == PROTOCOL_LEVEL_5:
        return _explained(
            lambda properties: mqtt.encode_suback(packet_id, reasons, properties, version=PROTOCOL_LEVEL_5),
            detail,
            max_packet,
        )
    return mqtt.encode_suback(packet_id, [min(reason, mqtt.SUBACK_FAILURE) for reason in reasons])


def unsuback(version: int, packet_id: int, reasons: Sequence[int], max_packet: int = 0) -> bytes:
    """One reason for each filter, empty if the client does not take so many; in 3.1.1 none."""
    codes = reasons if version == PROTOCOL_LEVEL_5 else ()
    packet = mqtt.encode_unsuback(packet_id, codes, version=version)
    return packet if _fits(packet, max_packet) else b""


def disconnect(version: int, reason: int, detail: str, max_packet: int = 0) -> bytes:
    """Why the connection is about to be closed; empty in 3.1.1."""
    if version == PROTOCOL_LEVEL:
        return b""
    return _explained(
        lambda properties: mqtt.encode_disconnect(reason, properties, version=PROTOCOL_LEVEL_5), detail, max_packet
    )


def _explained(encode: Callable[[Properties], bytes], detail: str, max_packet: int) -> bytes:
    """With a reason string, if there is one and it fits; empty if the packet does not fit without it."""
    text = detail.replace("\0", "").encode("utf-8", "replace")[:_MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
    for properties in (Properties(reason_string=text), NO_PROPERTIES) if text else (NO_PROPERTIES,):
        packet = encode(properties)
        if _fits(packet, max_packet):
            return packet
    return b""
