"""paho's client without its QoS 1 and 2: only its CONNECT, TLS, WebSocket, keep-alive and framing are used.

paho-mqtt keeps the state of its exchanges in memory, assigns packet identifiers, and answers a PUBLISH of QoS 2 with
PUBREC before it is stored.  A killed process would lose or duplicate messages.  So publishes and acknowledgements are
intercepted here as raw bytes, and outgoing packets are made by the core's codec.  (Rejected: filling paho's
`_out_messages` from the server, which uses more of its private names and leaves PUBREC too early; a client of our own,
which would repeat TLS, WebSocket, proxies and CONNECT.)

Three private names of paho are used: `_packet_handle`, `_in_packet` and `_packet_queue`.  pyproject.toml bounds the
version, and tests/bridge/uplink/test_uplink_paho.py fails if they change.
"""

from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from holdmq.core import mqtt

# Packets that paho does not handle.
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
_AS_WRITTEN = 0x40  # a type that paho writes without further action


class Client(paho.Client):
    """Collects packets instead of handling them.

    Attributes:
        packets_read: packets of any type so far.
        connack_code: of the CONNACK; None before it arrives.
        collected: intercepted packets, byte for byte.
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
        """Writes whole packets as they are."""
        self._packet_queue(_AS_WRITTEN, packets, 0, 0)

    def take(self) -> bytes:
        """Returns the packets that were intercepted since the last call."""
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
