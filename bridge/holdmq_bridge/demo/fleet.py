"""Step 3: MQTT. A subscriber goes away, stations publish at QoS 1, the server is killed, nothing is lost."""

import json
import threading
from dataclasses import dataclass, field
from typing import Any, Self

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from holdmq_bridge.demo.transcript import Transcript, wait_for
from holdmq_bridge.demo.weather import Observation

SUBSCRIBER = "archive"
PATIENT = "station-patience"
CLIENT_IDS = frozenset({SUBSCRIBER, PATIENT})
FILTER = "demo/weather/+"
CONNECT_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 60.0
STOPPED_S = 1.0
KEEP_ALIVE_S = 30


def device_id(station: str) -> str:
    """The client id of a station."""
    return f"station-{station}"


def topic_of(station: str) -> str:
    """Where a station publishes."""
    return f"demo/weather/{station}"


@dataclass
class Mailbox:
    """What an MQTT client saw; filled by paho's thread."""

    connected: threading.Event = field(default_factory=threading.Event)
    subscribed: threading.Event = field(default_factory=threading.Event)
    session_present: bool = False
    acknowledged: set[int] = field(default_factory=set)
    received: list[tuple[str, int]] = field(default_factory=list)


class MqttClient:
    """A paho client with a persistent session, in paho's own thread."""

    def __init__(self, client_id: str, host: str, port: int) -> None:
        self.mailbox = Mailbox()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.max_inflight_messages_set(1000)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_publish = self._on_publish
        self._client.on_message = self._on_message
        self._client.connect(host, port, keepalive=KEEP_ALIVE_S)
        self._client.loop_start()
        wait_for(self.mailbox.connected.is_set, CONNECT_TIMEOUT_S, f"the CONNACK for {client_id}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, topic_filter: str) -> None:
        """Subscribes at QoS 1 and waits for the SUBACK."""
        self._client.subscribe(topic_filter, qos=1)
        wait_for(self.mailbox.subscribed.is_set, CONNECT_TIMEOUT_S, "the SUBACK")

    def publish(self, topic: str, payload: bytes) -> int:
        """Publishes at QoS 1; returns the packet identifier to look for in `acknowledged`."""
        return self._client.publish(topic, payload, qos=1).mid

    def _on_connect(self, _c: Client, _u: Any, flags: ConnectFlags, _r: ReasonCode, _p: Any) -> None:
        self.mailbox.session_present = flags.session_present
        self.mailbox.connected.set()

    def _on_subscribe(self, _c: Client, _u: Any, _mid: int, _codes: list[ReasonCode], _p: Any) -> None:
        self.mailbox.subscribed.set()

    def _on_publish(self, _c: Client, _u: Any, mid: int, _r: ReasonCode, _p: Any) -> None:
        self.mailbox.acknowledged.add(mid)

    def _on_message(self, _c: Client, _u: Any, message: MQTTMessage) -> None:
        number = json.loads(message.payload)["n"]
        self.mailbox.received.append((message.topic.rsplit("/", 1)[1], number))


class Fleet:
    """The clients of step 3 against one bridge.

    Args:
        t: the transcript.
        host: of the bridge.
        port: of the bridge.
        data: what the stations have measured.
    """

    def __init__(self, t: Transcript, host: str, port: int, data: dict[str, list[Observation]]) -> None:
        self._t = t
        self._address = (host, port)
        self._data = data

    @property
    def count(self) -> int:
        """How many messages there are in all."""
        return sum(len(observations) for observations in self._data.values())

    def subscribe_and_go_away(self) -> None:
        """A client with a persistent session subscribes and disconnects."""
        with self._client(SUBSCRIBER) as archive:
            archive.subscribe(FILTER)
        self._t.say(f"client '{SUBSCRIBER}': clean_session=False, SUBSCRIBE {FILTER} QoS 1, DISCONNECT")

    def publish_all(self) -> int:
        """Each station publishes what it measured; returns how many PUBACKs came."""
        return sum(self._publish(station, observations) for station, observations in self._data.items())

    def _publish(self, station: str, observations: list[Observation]) -> int:
        with self._client(device_id(station)) as device:
            sent = {device.publish(topic_of(station), observation.payload()) for observation in observations}
            seen = device.mailbox.acknowledged
            wait_for(lambda: sent <= seen, DRAIN_TIMEOUT_S, f"all PUBACKs of {station}")
            return len(sent)

    def publish_to_a_stopped_server(self, stop: Any, resume: Any) -> tuple[int, int]:
        """One message while the server does not answer; returns the PUBACKs before it continues, and after."""
        with self._client(PATIENT) as device:
            stop()
            mid = device.publish("demo/other", b"{}")
            threading.Event().wait(STOPPED_S)
            before = len(device.mailbox.acknowledged)
            resume()
            wait_for(
                lambda: mid in device.mailbox.acknowledged, CONNECT_TIMEOUT_S, "the PUBACK after the server went on"
            )
            return before, len(device.mailbox.acknowledged)

    def come_back(self) -> None:
        """The subscriber returns and must find its session and every message."""
        with self._client(SUBSCRIBER) as archive:
            self._t.check("session present", archive.mailbox.session_present, True)
            wait_for(lambda: len(archive.mailbox.received) >= self.count, DRAIN_TIMEOUT_S, f"all {self.count} messages")
            received = list(archive.mailbox.received)
        self._t.check(
            f"every message once: {self.count} received", (len(received), len(set(received))), (self.count, self.count)
        )
        for station, observations in self._data.items():
            numbers = [number for of, number in received if of == station]
            self._t.check(f"in order: {station} 1 ... {len(observations)}", numbers, [o.number for o in observations])

    def _client(self, client_id: str) -> MqttClient:
        return MqttClient(client_id, *self._address)
