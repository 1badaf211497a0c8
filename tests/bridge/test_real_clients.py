"""MQTT clients that others wrote, in both versions: paho-mqtt, mosquitto_pub and mosquitto_sub."""

import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support import BridgeProcess, Server, eventually

MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]
TIMEOUT_S = 20.0


def properties(kind: int, **values: Any) -> Any:
    """Properties of a packet as paho has them."""
    made: Any = cast("Any", Properties)(kind)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Paho:
    """A paho client with its network loop in a thread, and what it received in a queue."""

    def __init__(self, port: int, client_id: str = "", *, clean: bool = True, version: int = paho.MQTTv311) -> None:
        self.received: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.present: queue.Queue[bool] = queue.Queue()
        self.subscribed = threading.Event()
        self.acknowledged: set[int] = set()
        self._port = port
        self._five = version == paho.MQTTv5
        self._clean = clean
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if self._five else clean,
            protocol=MQTTProtocolVersion(version),
        )
        self.client.on_connect = self._on_connect
        self.client.on_message = lambda _client, _data, message: self.received.put(message)
        self.client.on_publish = lambda _client, _data, mid, *_: self.acknowledged.add(mid)
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.reconnect_delay_set(1, 1)

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        assert not reason.is_failure
        self.present.put(flags.session_present)

    def start(self) -> bool:
        """Connects; returns whether its session was present."""
        if self._five:
            lasting = properties(PacketTypes.CONNECT, SessionExpiryInterval=0 if self._clean else 60)
            self.client.connect("127.0.0.1", self._port, 30, clean_start=self._clean, properties=lasting)
        else:
            self.client.connect("127.0.0.1", self._port, keepalive=30)
        self.client.loop_start()
        return self.present.get(timeout=TIMEOUT_S)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribes and waits for the SUBACK."""
        self.client.subscribe(topic_filter, qos)
        assert self.subscribed.wait(TIMEOUT_S)

    def next(self) -> paho.MQTTMessage:
        """The next message received."""
        return self.received.get(timeout=TIMEOUT_S)

    def stop(self) -> None:
        """Says goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def make_paho(broker: BridgeProcess) -> Iterator[Callable[..., Paho]]:
    """Makes paho clients."""
    made: list[Paho] = []

    def make(client_id: str = "", *, port: int = 0, clean: bool = True, version: int = paho.MQTTv311) -> Paho:
        made.append(Paho(port or broker.port, client_id, clean=clean, version=version))
        return made[-1]

    yield make
    for client in made:
        client.stop()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_receives(make_paho: Callable[..., Paho], qos: int, version: int) -> None:
    receiver, sender = make_paho(version=version), make_paho(version=version)
    receiver.start()
    sender.start()
    receiver.subscribe("weather/#", qos)
    for number in range(50):
        sender.client.publish("weather/jfk", b"%d" % number, qos=qos).wait_for_publish(TIMEOUT_S)
    assert [int(receiver.next().payload) for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_comes_back_to_its_session(make_paho: Callable[..., Paho], version: int) -> None:
    sender = make_paho()
    sender.start()
    receiver = make_paho("keeper", clean=False, version=version)
    assert not receiver.start()
    receiver.subscribe("weather/+/temp", 1)
    receiver.stop()
    for number in range(200):
        sender.client.publish(f"weather/{number % 3}/temp", b"%d" % number, qos=1).wait_for_publish(TIMEOUT_S)
    receiver = make_paho("keeper", clean=False, version=version)
    assert receiver.start()
    assert [int(receiver.next().payload) for _ in range(200)] == list(range(200))


def test_paho_asks_and_is_answered_with_properties(make_paho: Callable[..., Paho]) -> None:
    asker, answerer = make_paho(version=paho.MQTTv5), make_paho(version=paho.MQTTv5)
    asker.start()
    answerer.start()
    asker.subscribe("answers/1", 1)
    answerer.subscribe("questions", 1)
    units = [("unit", "K"), ("unit", "C")]
    question = properties(PacketTypes.PUBLISH, ResponseTopic="answers/1", CorrelationData=b"42", UserProperty=units)
    asker.client.publish("questions", b"?", 1, properties=question)
    got: Any = answerer.next().properties
    assert got.UserProperty == units
    answer = properties(PacketTypes.PUBLISH, CorrelationData=got.CorrelationData)
    answerer.client.publish(got.ResponseTopic, b"!", 1, properties=answer)
    heard: Any = asker.next()
    assert (heard.payload, heard.properties.CorrelationData) == (b"!", b"42")


def test_paho_survives_the_death_of_the_server_and_of_a_bridge(
    fresh_server: MakeServer, bridge: MakeBridge, make_paho: Callable[..., Paho]
) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    made = bridge(server)
    receiver, sender = make_paho("keeper", port=made.port, clean=False), make_paho("device", port=made.port)
    receiver.start()
    sender.start()
    receiver.subscribe("n", 1)
    sent = {sender.client.publish("n", b"%d" % number, qos=1).mid for number in range(100)}
    server.kill()
    sent |= {sender.client.publish("n", b"%d" % number, qos=1).mid for number in range(100, 200)}
    server.restart()
    eventually(lambda: sent <= sender.acknowledged, TIMEOUT_S, "the acknowledgements of the first 200")
    made.kill()
    sent |= {sender.client.publish("n", b"%d" % number, qos=1).mid for number in range(200, 300)}
    made.restart()
    eventually(lambda: sent <= sender.acknowledged, TIMEOUT_S, "the acknowledgements of all 300")
    got: dict[int, None] = {}
    while len(got) < 300:
        got[int(receiver.next().payload)] = None
    assert list(got) == list(range(300))


def mosquitto(tool: str, broker: BridgeProcess, *options: str, version: str = "mqttv311") -> list[str]:
    """The command line of mosquitto_pub or mosquitto_sub."""
    path = shutil.which(f"mosquitto_{tool}")
    assert path is not None, "run `make test-servers`"
    return [path, "-h", "127.0.0.1", "-p", str(broker.port), "-V", version, *options]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_reaches_mosquitto_sub(
    client: redis.Redis, broker: BridgeProcess, qos: str, version: str
) -> None:
    options = ["-i", "sub", "-t", "house/+/temp", "-q", qos, "-C", "3", "-v"]
    subscriber = subprocess.Popen(
        mosquitto("sub", broker, *options, version=version),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: client.hlen("{sub}_subscriptions"), TIMEOUT_S, "the subscription")
        for room in ("kitchen", "bath", "attic"):
            sent = run(
                mosquitto("pub", broker, "-t", f"house/{room}/temp", "-m", f"{room} 21", "-q", qos, version=version)
            )
            assert sent.returncode == 0, sent.stderr
        printed, _ = subscriber.communicate(timeout=TIMEOUT_S)
    finally:
        subscriber.kill()
        subscriber.communicate()
    assert subscriber.returncode == 0
    assert printed.splitlines() == [
        "house/kitchen/temp kitchen 21",
        "house/bath/temp bath 21",
        "house/attic/temp attic 21",
    ]


def test_mosquitto_sub_finds_what_waited_and_what_is_retained(broker: BridgeProcess) -> None:
    session = mosquitto("sub", broker, "-i", "keeper", "-c", "-q", "1", "-t", "a")
    assert run([*session, "-E"]).returncode == 0  # subscribes and leaves
    for number in range(1, 6):
        assert run(mosquitto("pub", broker, "-t", "a", "-m", str(number), "-q", "1")).returncode == 0
    assert run([*session, "-C", "5"]).stdout.split() == ["1", "2", "3", "4", "5"]
    assert run(mosquitto("pub", broker, "-t", "r", "-m", "kept", "-q", "1", "-r")).returncode == 0
    assert run(mosquitto("sub", broker, "-t", "r", "-C", "1")).stdout == "kept\n"


def test_mosquitto_pub_waits_for_a_server_that_is_away(fresh_server: MakeServer, bridge: MakeBridge) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    made = bridge(server)
    server.kill()
    sender = subprocess.Popen(mosquitto("pub", made, "-t", "a", "-m", "x", "-q", "1", "-r"), stderr=subprocess.DEVNULL)
    try:
        server.restart()
        assert sender.wait(TIMEOUT_S) == 0
    finally:
        sender.kill()
        sender.wait()
    eventually(lambda: server.client().execute_command("TOPIC.RETAINED", "#") == [b"a"])
