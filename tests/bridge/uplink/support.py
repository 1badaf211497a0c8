"""The two sides of a link under test, each with somebody who publishes and somebody who listens.

Local   a HoldMQ server: publishes with TOPIC.PUBLISH, listens with a session of its own
Remote  another broker: a paho client that publishes and listens with a session that is kept
Mosquitto, LinkProcess    processes, as an operator starts them
"""

import json
import shutil
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from holdmq import HoldMQ, Message
from holdmq.core import Delivery, DeliveryKind
from holdmq.server import ChildProcess
from tests.support import Server, eventually
from tests.support.ports import reserve_port

if TYPE_CHECKING:
    import redis

HOST = "127.0.0.1"
TIMEOUT_S = 30.0
PERSISTENT = """
persistence true
persistence_location {folder}/
allow_anonymous true
max_queued_messages 0
max_inflight_messages 100
user root
"""


class Mosquitto(ChildProcess):
    """A broker of Debian's package; what it holds outlives `stop`, since it saves when it is told to end."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        path = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/sbin")
        assert path is not None, "run `bash tools/needed.sh mosquitto`"
        self._port = reserve_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "mosquitto.conf"
        lines = PERSISTENT.format(folder=folder) + (settings or f"listener {self.port} {HOST}\n").format(port=self.port)
        config.write_text(lines)
        super().__init__([path, "-c", str(config)], log=folder / "mosquitto.log")

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port.number

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self.spawn()
        eventually(self._answers, TIMEOUT_S, "a Mosquitto that accepts connections")

    def _answers(self) -> bool:
        assert self.running, self.log_text()
        try:
            socket.create_connection((HOST, self.port), 1).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Kills it if it still runs."""
        if self.running:
            self.kill()
        self._port.release()


class LinkProcess(ChildProcess):
    """`holdmq-bridge link` with one link.

    Args:
        server: of HoldMQ.
        folder: for configuration and log.
        upstream: port of the other broker.
        topics: topic lines.
        settings: further settings of the connection.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        upstream: int,
        topics: Sequence[str],
        settings: Mapping[str, Any],
        process: Mapping[str, Any],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        connection = {
            "name": "up",
            "address": f"{HOST}:{upstream}",
            "retry_first_s": 0.05,
            "retry_max_s": 0.3,
            **settings,
        }
        self.name = connection["name"]
        self.config = folder / f"{self.name}.toml"
        lines = [f"{name} = {_toml(value)}" for name, value in {"redis": server.url, **process}.items()]
        lines += ["[[connection]]", f"topics = {json.dumps(list(topics))}"]
        lines += [f"{name} = {_toml(value)}" for name, value in connection.items()]
        self.config.write_text("\n".join(lines) + "\n")
        super().__init__(
            [sys.executable, "-m", "holdmq_bridge", "link", "--config", str(self.config), "--log-level", "DEBUG"],
            log=folder / f"{self.name}-{id(self):x}.log",
            environment={"PYTHONUNBUFFERED": "1"},
        )

    def start(self) -> None:
        """Starts it and waits until it carries messages."""
        self.spawn()
        self.wait_connected()

    def wait_connected(self) -> None:
        """Until it has said so since its last start."""
        eventually(self._is_connected, TIMEOUT_S, f"the link {self.name} connected")

    def _is_connected(self) -> bool:
        assert self.running, self.log_text(since_start=True)
        return self.events("connected") > 0

    def events(self, name: str) -> int:
        """How often an event was logged since the last start."""
        return sum(line.get("event") == name for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        """The log since the last start."""
        return [json.loads(line) for line in self.log_text(since_start=True).splitlines() if line.startswith("{")]


def _toml(value: object) -> str:
    return json.dumps(value)


class Local:
    """The side of HoldMQ."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis: redis.Redis = server.client()
        self.hold = HoldMQ(self.redis)
        self._session = self.hold.session("probe")
        self._after = 0
        self._inbox = self.redis.pubsub(ignore_subscribe_messages=True)
        self.messages: list[Message] = []
        self.transient: list[Message] = []  # QoS 0

    def listen(self, topic_filter: str, qos: int = 2) -> None:
        """Collects what is published from now on."""
        self._inbox.subscribe("{probe}_inbox")
        self._inbox.get_message(timeout=TIMEOUT_S)
        self._session.open("test", expiry=3600)
        self._session.subscribe(topic_filter, qos=qos, retain_as_published=True)

    def publish(self, topic: str, payload: bytes, **more: Any) -> None:
        """Publishes once; QoS 1 unless said otherwise."""
        self.hold.topics.publish(topic, payload, **{"qos": 1, "publisher": "tester", **more})

    def received(self) -> list[Message]:
        """All messages up to now, in order."""
        while True:
            page = self._session.fetch(after=self._after, count=1000)
            for entry in page.entries:
                self._after = entry.serial
                assert entry.message is not None, "nothing here is released"
                self.messages.append(entry.message)
            if page.entries:
                self._session.ack(*(entry.packet_id for entry in page.entries))
            if not page.more:
                return self.messages

    def heard(self) -> list[Message]:
        """All messages of QoS 0 up to now."""
        while (pushed := self._inbox.get_message()) is not None:
            delivery = Delivery.decode(pushed["data"])
            if delivery.kind is DeliveryKind.TRANSIENT:
                self.transient.append(Message.from_record(delivery.record))
        return self.transient

    def waiting(self, name: str = "up") -> int:
        """Messages in the queue of the link."""
        return self.hold.session(f"link:{name}").info().messages


class Remote:
    """The side of another broker: a paho client with a session."""

    def __init__(self, port: int, client_id: str, *, five: bool = True) -> None:
        self.five = five
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv5 if five else paho.MQTTv311,
            clean_session=None if five else False,
        )
        self.port = port
        self.messages: list[paho.MQTTMessage] = []
        self.acknowledged: set[int] = set()
        self._subscribed = threading.Event()
        self._connected = threading.Event()
        self.client.max_inflight_messages_set(100)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_message = lambda _client, _data, message: self.messages.append(message)
        self.client.on_publish = lambda _client, _data, mid, *_: self.acknowledged.add(mid)
        self.client.on_subscribe = lambda *_: self._subscribed.set()

    def start(self) -> None:
        """Connects."""
        more: dict[str, Any] = {}
        if self.five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho declares no types here
            properties.SessionExpiryInterval = 3600
            more = {"properties": properties, "clean_start": False}
        self.client.connect(HOST, self.port, 30, **more)
        self.client.loop_start()
        assert self._connected.wait(TIMEOUT_S)

    def listen(self, topic_filter: str, qos: int = 2) -> None:
        """Collects what is published from now on."""
        self._subscribed.clear()
        if self.five:
            self.client.subscribe(topic_filter, options=SubscribeOptions(qos=qos, retainAsPublished=True))
        else:
            self.client.subscribe(topic_filter, qos)
        assert self._subscribed.wait(TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 1, **more: Any) -> int:
        """Publishes; returns paho's number for it."""
        return self.client.publish(topic, payload, qos, **more).mid

    def wait_acknowledged(self, numbers: set[int]) -> None:
        """Until the broker has all of these."""
        eventually(lambda: numbers <= self.acknowledged, TIMEOUT_S, "the broker's acknowledgements")

    def stop(self) -> None:
        """Says goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


def payloads(messages: Iterable[Any]) -> list[bytes]:
    """What they carry, in order."""
    return [bytes(message.payload) for message in messages]


def numbers(messages: Sequence[Any]) -> Counter[int]:
    """How often each number came."""
    return Counter(int(payload) for payload in payloads(messages))


def gathered(received: Callable[[], Sequence[Any]], count: int, timeout_s: float = TIMEOUT_S) -> Sequence[Any]:
    """What came, once each number below `count` has come."""

    def missing() -> bool:
        lacking = sorted(set(range(count)) - set(numbers(received())))
        assert not lacking, f"{len(lacking)} of {count} are missing, from {lacking[:5]} to {lacking[-5:]}"
        return True

    eventually(missing, timeout_s, f"{count} messages")
    return received()
