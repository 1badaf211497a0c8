"""paho's client without its own QoS 1 and 2: it keeps CONNECT, TLS, WebSocket, keep-alive and framing.

paho-mqtt holds the state of its exchanges in memory, gives out packet identifiers itself and answers a PUBLISH of
QoS 2 with PUBREC before anybody has stored it: a process that is killed then loses the message, or doubles it.  A link
must not, so PUBLISH and all that acknowledges it is taken out here as it came, and what is sent is made by the core's
codec.  (Rejected: filling paho's `_out_messages` from the server, which needs more of its inner life and leaves PUBREC
too early; a client of our own, which would write TLS, WebSocket, proxies and CONNECT again.)

The seam is three private names of paho's, `_packet_handle`, `_in_packet` and `_packet_queue`; pyproject.toml bounds the
version, and tests/bridge/test_uplink_paho.py fails if they change.
"""

from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from holdmq.core import mqtt

# What paho does not get to see.
_OURS = frozenset(
    [
        mqtt.PacketType.PUBLISH,
        mqtt.PacketType.PUBACK,
        mqtt.PacketType.PUBREC,
        mqtt.PacketType.PUBREL,
        mqtt.PacketType.PUBCOMP,
        mqtt.PacketType.SUBACK,
        mqtt.PacketType.UNSUBACK,
    ]
)
_CONNACK = int(mqtt.PacketType.CONNACK)
_AS_WRITTEN = 0x40  # a type that paho does nothing about when it is written


class Client(paho.Client):
    """Collects packets instead of handling them.

    Attributes:
        packets_read: how many packets of any type were read.
        connack_code: of the CONNACK, None before it came.
        collected: the packets that are ours, byte for byte.
    """

    def __init__(self, client_id: str, protocol: MQTTProtocolVersion, **options: Any) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            reconnect_on_failure=False,
            **options,
        )
        self.packets_read = 0
        self.connack_code: int | None = None
        self.collected = bytearray()

    def _packet_handle(self) -> MQTTErrorCode:
        self.packets_read += 1
        first, body = self._in_packet["command"], self._in_packet["packet"]
        kind = first >> 4
        if kind == _CONNACK and len(body) >= 2:
            self.connack_code = body[1]
        if kind not in _OURS:
            return super()._packet_handle()
        self.collected.append(first)
        self.collected += _variable_length(len(body))
        self.collected += body
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def send(self, packets: bytes) -> None:
        """Hands over whole packets to be written as they are."""
        self._packet_queue(_AS_WRITTEN, packets, 0, 0)

    def take(self) -> bytes:
        """What was collected since the last call."""
        taken = bytes(self.collected)
        self.collected.clear()
        return taken


def _variable_length(number: int) -> bytes:
    """A variable byte integer [MQTT 5.0 section 1.5.5]."""
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)
