"""The rare packets that a server sends: CONNACK, SUBACK, UNSUBACK, DISCONNECT.

3.1.1 knows no DISCONNECT from a server and no codes in an UNSUBACK; there the first is nothing, the second only an
identifier.
"""

from collections.abc import Sequence

from holdmq.core import mqtt
from holdmq_bridge.reasons import return_code, suback_code

ACCEPTED = 0


def connack(*, present: bool) -> bytes:
    """The session is open."""
    return mqtt.encode_connack(present, ACCEPTED)


def refusal(reason: int) -> bytes:
    """A CONNACK that refuses."""
    return mqtt.encode_connack(False, return_code(reason))


def suback(version: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """One reason for each filter: the granted QoS or why not."""
    return mqtt.encode_suback(packet_id, [suback_code(reason, version) for reason in reasons])


def unsuback(packet_id: int) -> bytes:
    """Answers an UNSUBSCRIBE."""
    return mqtt.encode_unsuback(packet_id)
