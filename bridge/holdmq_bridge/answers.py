"""The rare packets that a server sends: CONNACK, SUBACK, UNSUBACK, DISCONNECT, in both versions of the protocol.

3.1.1 knows no DISCONNECT from a server and no codes in an UNSUBACK; there the first is nothing, the second only an
identifier.  A reason string is left out where it would make the packet larger than the client takes [MQTT-3.2.2-19].
"""

from collections.abc import Callable, Sequence

from holdmq.core import mqtt
from holdmq.core.mqtt import NO_PROPERTIES, PROTOCOL_LEVEL, PROTOCOL_LEVEL_5, Properties
from holdmq_bridge.reasons import return_code
from holdmq_bridge.settings import Settings
from holdmq_bridge.terms import Terms

ACCEPTED = 0
_MAX_REASON_BYTES = 1024


def connack(terms: Terms, settings: Settings, *, present: bool) -> bytes:
    """The session is open; in 5.0 with everything that the client has to know about this server."""
    if terms.version != PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(present, ACCEPTED)
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
    return mqtt.encode_connack(present, ACCEPTED, properties, version=PROTOCOL_LEVEL_5)


def refusal(version: int, reason: int, detail: str, max_packet: int = 0) -> bytes:
    """A CONNACK that refuses; `max_packet` is what the client takes, 0: anything."""
    if version < PROTOCOL_LEVEL_5:
        return mqtt.encode_connack(False, return_code(reason))
    return _explained(
        lambda properties: mqtt.encode_connack(False, reason, properties, version=PROTOCOL_LEVEL_5), detail, max_packet
    )


def suback(version: int, packet_id: int, reasons: Sequence[int], detail: str = "", max_packet: int = 0) -> bytes:
    """One reason for each filter: the granted QoS or why not; in words, if there is something to say."""
    if version == PROTOCOL_LEVEL_5:
        return _explained(
            lambda properties: mqtt.encode_suback(packet_id, reasons, properties, version=PROTOCOL_LEVEL_5),
            detail,
            max_packet,
        )
    return mqtt.encode_suback(packet_id, [min(reason, mqtt.SUBACK_FAILURE) for reason in reasons])


def unsuback(version: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """One reason for each filter; in 3.1.1 none."""
    codes = reasons if version == PROTOCOL_LEVEL_5 else ()
    return mqtt.encode_unsuback(packet_id, codes, version=version)


def disconnect(version: int, reason: int, detail: str, max_packet: int = 0) -> bytes:
    """Why the connection is about to be closed; empty in 3.1.1."""
    if version == PROTOCOL_LEVEL:
        return b""
    return _explained(
        lambda properties: mqtt.encode_disconnect(reason, properties, version=PROTOCOL_LEVEL_5), detail, max_packet
    )


def _explained(encode: Callable[[Properties], bytes], detail: str, max_packet: int) -> bytes:
    """With a reason string, if there is one and it fits."""
    text = detail.replace("\0", "").encode("utf-8", "replace")[:_MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
    packet = encode(Properties(reason_string=text)) if text else encode(NO_PROPERTIES)
    return encode(NO_PROPERTIES) if 0 < max_packet < len(packet) else packet
