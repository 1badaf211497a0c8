"""MQTT clients that others wrote, behind one interface; the first of them, paho-mqtt.

    test ──► Client ──┬── Paho       paho-mqtt, its network loop in a thread (here)
                      ├── Gmqtt      gmqtt, in an event loop of its own (mqtt_library_gmqtt)
                      ├── MqttJs     MQTT.js in a Node.js process (mqtt_library_processes)
                      └── Mosquitto  mosquitto_sub, and a mosquitto_pub for each message (mqtt_library_processes)

Every wait has a bound.  Who makes a client stops it; `vanish` ends a connection without DISCONNECT.
"""

import abc
import queue
from dataclasses import dataclass, field
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

HOST = "127.0.0.1"
TIMEOUT_S = 20.0
QUIET_S = 0.3  # in which nothing may come
SESSION_EXPIRY_S = 300
VERSION_5 = 5


@dataclass(frozen=True)
class Properties:
    """The properties of a PUBLISH in 5.0; empty or 0: not there."""

    user: tuple[tuple[str, str], ...] = ()
    content_type: str = ""
    response_topic: str = ""
    correlation: str = ""
    expiry_s: int = 0
    identifiers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Message:
    """A message as it is published or received."""

    topic: str
    payload: str
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default=Properties())


class Client(abc.ABC):
    """A client id at a broker on loopback.

    Args:
        port: of the broker.
        client_id: of the client; its session is kept if it is not `clean`.
        version: protocol level, 4 (3.1.1) or 5 (5.0).
        clean: begin with a new session, and keep none.
        will: what is published if it vanishes.
    """

    tells_session_present = True

    def __init__(
        self, port: int, client_id: str, version: int, *, clean: bool = True, will: Message | None = None
    ) -> None:
        self.port = port
        self.client_id = client_id
        self.version = version
        self.clean = clean
        self.will = will
        self.received: queue.Queue[Message] = queue.Queue()

    @property
    def asks_for_its_will(self) -> bool:
        """Whether the library says goodbye "with will message"."""
        return False

    @abc.abstractmethod
    def start(self) -> bool:
        """Connects; returns whether a session was present (False if the library does not tell)."""

    @abc.abstractmethod
    def subscribe(self, topic_filter: str, qos: int, identifier: int = 0) -> None:
        """Subscribes; raises AssertionError unless the QoS was granted."""

    @abc.abstractmethod
    def publish(self, message: Message) -> None:
        """Publishes and waits until the broker has acknowledged it."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Says goodbye; does nothing if it is gone."""

    @abc.abstractmethod
    def vanish(self) -> None:
        """Ends the connection without DISCONNECT."""

    def next(self) -> Message:
        """The next message received."""
        try:
            return self.received.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"{self.client_id}: no message within {TIMEOUT_S:g} s") from None

    def take(self, count: int) -> list[Message]:
        """So many messages."""
        return [self.next() for _ in range(count)]

    def expect_nothing(self) -> None:
        """Nothing comes for a moment."""
        try:
            message = self.received.get(timeout=QUIET_S)
        except queue.Empty:
            return
        raise AssertionError(f"{self.client_id}: {message} was not expected")


# ---- paho-mqtt -------------------------------------------------------------------------------------------------------


class Paho(Client):
    """paho-mqtt."""

    _client: paho.Client | None = None

    def start(self) -> bool:
        """Connects."""
        five = self.version == VERSION_5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=None if five else self.clean,
            protocol=paho.MQTTv5 if five else paho.MQTTv311,
        )
        present: queue.Queue[bool] = queue.Queue()
        self._subacks: queue.Queue[list[int]] = queue.Queue()
        client.on_connect = lambda _c, _d, flags, _reason, _p: present.put(flags.session_present)
        client.on_subscribe = lambda _c, _d, _mid, codes, _p: self._subacks.put([code.value for code in codes])
        client.on_message = lambda _c, _d, message: self.received.put(self._read(message))
        if self.will is not None:
            properties = self._properties(self.will, PacketTypes.WILLMESSAGE)
            client.will_set(self.will.topic, self.will.payload, self.will.qos, self.will.retain, properties)
        if five:
            properties = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0 if self.clean else SESSION_EXPIRY_S
            client.connect(HOST, self.port, clean_start=self.clean, properties=properties)
        else:
            client.connect(HOST, self.port)
        client.loop_start()
        self._client = client
        return present.get(timeout=TIMEOUT_S)

    def subscribe(self, topic_filter: str, qos: int, identifier: int = 0) -> None:
        """Subscribes."""
        assert self._client is not None
        if self.version == VERSION_5:
            properties = PahoProperties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            if identifier:
                properties.SubscriptionIdentifier = identifier
            self._client.subscribe(topic_filter, options=SubscribeOptions(qos), properties=properties)
        else:
            self._client.subscribe(topic_filter, qos)
        assert self._subacks.get(timeout=TIMEOUT_S) == [qos]

    def publish(self, message: Message) -> None:
        """Publishes."""
        assert self._client is not None
        properties = self._properties(message, PacketTypes.PUBLISH)
        info = self._client.publish(message.topic, message.payload, message.qos, message.retain, properties)
        info.wait_for_publish(TIMEOUT_S)
        assert info.is_published()

    def stop(self) -> None:
        """Says goodbye."""
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.loop_stop()

    def vanish(self) -> None:
        """Closes the socket."""
        client, self._client = self._client, None
        assert client is not None
        client.loop_stop()
        sock = client.socket()
        assert sock is not None
        sock.close()

    def _properties(self, message: Message, place: int) -> PahoProperties | None:
        if self.version != VERSION_5:
            return None
        given, made = message.properties, PahoProperties(place)  # type: ignore[no-untyped-call]
        if given.user:
            made.UserProperty = list(given.user)
        if given.content_type:
            made.ContentType = given.content_type
        if given.response_topic:
            made.ResponseTopic = given.response_topic
        if given.correlation:
            made.CorrelationData = given.correlation.encode()
        if given.expiry_s:
            made.MessageExpiryInterval = given.expiry_s
        return made

    @staticmethod
    def _read(message: paho.MQTTMessage) -> Message:
        got: Any = message.properties
        properties = Properties(
            user=tuple(getattr(got, "UserProperty", ())),
            content_type=getattr(got, "ContentType", ""),
            response_topic=getattr(got, "ResponseTopic", ""),
            correlation=getattr(got, "CorrelationData", b"").decode(),
            expiry_s=getattr(got, "MessageExpiryInterval", 0),
            identifiers=tuple(getattr(got, "SubscriptionIdentifier", ())),
        )
        return Message(message.topic, message.payload.decode(), message.qos, message.retain, properties)
