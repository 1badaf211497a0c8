"""What is used of paho-mqtt's inner life; a version that changes it fails here, by name."""

import inspect
import socket
import struct
from collections.abc import Iterator

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import MQTTErrorCode

from holdmq.core import mqtt
from holdmq_bridge.uplink.client import Client

TIMEOUT_S = 20.0


def test_paho_still_has_the_private_names_that_the_link_uses() -> None:
    assert list(inspect.signature(paho.Client._packet_handle).parameters) == ["self"]
    assert list(inspect.signature(paho.Client._packet_queue).parameters)[:5] == [
        "self",
        "command",
        "packet",
        "mid",
        "qos",
    ]
    client = Client("c", paho.MQTTv5)
    assert {"command", "packet", "remaining_length"} <= set(client._in_packet)
    assert "_packet_handle()" in inspect.getsource(paho.Client._packet_read)


class Peer:
    """The other end of a client's socket: reads and writes bytes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def accept(self) -> None:
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(TIMEOUT_S)

    def close(self) -> None:
        self.socket.close()
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_nothing_of_qos_1_and_2_is_answered_by_paho_itself(peer: Peer) -> None:
    client = Client("c", paho.MQTTv5)
    client.connect("127.0.0.1", peer.port)
    peer.accept()
    assert peer.socket.recv(1000)[0] == 0x10
    packets = b"".join(
        [
            mqtt.encode_publish(b"a", b"1", 1, packet_id=1, version=5),
            mqtt.encode_publish(b"a", b"x" * 300, 2, packet_id=2, version=5),
            mqtt.encode_pubrel(2),
            mqtt.encode_puback(3),
            mqtt.encode_pubrec(4),
            mqtt.encode_pubcomp(5),
            mqtt.encode_suback(6, [0], version=5),
        ]
    )
    peer.socket.sendall(mqtt.encode_connack(True, 0, version=5) + packets)
    while client.packets_read < 8:
        assert client.loop(TIMEOUT_S) == MQTTErrorCode.MQTT_ERR_SUCCESS
    assert client.take() == packets
    assert client.take() == b""
    assert client.connack_code == 0
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.socket.recv(1)  # no PUBACK, no PUBREC, no PUBREL
    client.send(mqtt.encode_publish(b"out", b"1", 2, packet_id=7, version=5) + mqtt.encode_pubrel(8))
    client.loop_write()
    peer.socket.settimeout(TIMEOUT_S)
    sent = peer.socket.recv(1000)
    assert sent == mqtt.encode_publish(b"out", b"1", 2, packet_id=7, version=5) + struct.pack("!BBH", 0x62, 2, 8)
    client.disconnect()
    client.loop_write()
