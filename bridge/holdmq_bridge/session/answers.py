"""Encodes CONNACK, SUBACK, UNSUBACK and DISCONNECT in both versions of the protocol.

3.1.1 has no DISCONNECT from a server and no codes in an UNSUBACK: there the former is empty, the latter an identifier.
Optional properties are left out if the packet would exceed the client's maximum packet size [MQTT-3.2.2-19].  If it is
still too large, the result is empty: it may not be sent [MQTT-3.1.2-24].
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
    """A CONNACK that accepts; in 5.0 with the properties of this server.

    For a client that takes only small packets, properties that state a default are left out.
    """
    if terms.version != PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(present, ACCEPTED)
    for properties in _connack_properties(terms, settings):
        packet = mqtt.encode_connack(present, ACCEPTED, properties, version=PROTOCOL_LEVEL_5)
        if _fits(packet, terms.max_packet_out):
            return packet
    return b""


def _connack_properties(terms: Terms, settings: Settings) -> Iterator[Properties]:
    """All properties, then only those that differ from what a client assumes."""
    properties = Properties(
        session_expiry_interval=terms.expiry_s if terms.expiry_changed else None,
        receive_maximum=settings.receive_maximum,
        retain_available=1,
        maximum_packet_size=settings.max_packet_bytes,
        assigned_client_identifier=terms.client_id if terms.is_assigned else None,
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
    """A CONNACK that refuses; `max_packet`: the client's limit, 0 for none."""
    if version < PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(False, return_code(reason))
    return _with_reason(
        lambda properties: mqtt.encode_connack(False, reason, properties, version=PROTOCOL_LEVEL_5), detail, max_packet
    )


def suback(version: int, packet_id: int, reasons: Sequence[int], detail: str = "", max_packet: int = 0) -> bytes:
    """A SUBACK with the granted QoS or a reason code for each filter."""
    if version == PROTOCOL_LEVEL_5:
        return _with_reason(
            lambda properties: mqtt.encode_suback(packet_id, reasons, properties, version=PROTOCOL_LEVEL_5),
            detail,
            max_packet,
        )
    return mqtt.encode_suback(packet_id, [min(reason, mqtt.SUBACK_FAILURE) for reason in reasons])


def unsuback(version: int, packet_id: int, reasons: Sequence[int], max_packet: int = 0) -> bytes:
    """An UNSUBACK with a reason code for each filter; none in 3.1.1."""
    codes = reasons if version == PROTOCOL_LEVEL_5 else ()
    packet = mqtt.encode_unsuback(packet_id, codes, version=version)
    return packet if _fits(packet, max_packet) else b""


def disconnect(version: int, reason: int, detail: str, max_packet: int = 0, server_reference: str = "") -> bytes:
    """A DISCONNECT that says why, and which server to use; empty in 3.1.1."""
    if version == PROTOCOL_LEVEL:
        return b""
    return _with_reason(
        lambda properties: mqtt.encode_disconnect(reason, properties, version=PROTOCOL_LEVEL_5),
        detail,
        max_packet,
        server_reference.encode(),
    )


def _with_reason(encode: Callable[[Properties], bytes], detail: str, max_packet: int, reference: bytes = b"") -> bytes:
    """Encodes with as much of reason string and server reference as fits; empty if nothing fits."""
    text = detail.replace("\0", "").encode("utf-8", "replace")[:_MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
    least = Properties(server_reference=reference) if reference else NO_PROPERTIES
    for properties in (replace(least, reason_string=text) if text else least, least, NO_PROPERTIES):
        packet = encode(properties)
        if _fits(packet, max_packet):
            return packet
    return b""
