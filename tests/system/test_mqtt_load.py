"""The load generator finds what a broker does wrong, and nothing where it does right."""

import json
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.mqtt_brokers import Running, holdmq, mosquitto
from bench.mqtt_load import GENERATOR, LoadError, Options, holding, run_load
from tests.bridge import packets

HOST = "127.0.0.1"
MESSAGES = 100
STALL_S = 0.4


def load(port: int, *arguments: str, timeout_s: int = 5) -> tuple[int, dict[str, Any]]:
    """Exit status and result; what has not come for `timeout_s` seconds counts as lost."""
    command = [str(GENERATOR), "--port", str(port), "--timeout", str(timeout_s), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)


class Forwarder(socketserver.ThreadingTCPServer):
    """A broker for one publisher and one subscriber that hands messages on as `tamper` says.

    Attributes:
        tamper: number of a message to the numbers of the messages that are sent in its place.
        stall_at: the message before which it sleeps.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, tamper: Callable[[int], Sequence[int]] = lambda number: [number], stall_at: int = -1) -> None:
        super().__init__((HOST, 0), _Conversation)
        self.tamper = tamper
        self.stall_at = stall_at
        self.messages: list[bytes] = []
        self.subscriber: socket.socket | None = None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def hand_on(self, message: bytes) -> None:
        number = len(self.messages)
        self.messages.append(message)
        if number == self.stall_at:
            time.sleep(STALL_S)
        assert self.subscriber is not None
        for which in self.tamper(number):
            self.subscriber.sendall(self.messages[which])


class _Conversation(socketserver.StreamRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        while True:
            first, body = self._packet()
            match first >> 4:
                case 1:
                    self.wfile.write(packets.connack())
                case 3:
                    topic_length = int.from_bytes(body[:2], "big")
                    self.server.hand_on(packets.packet(first, body))
                    self.wfile.write(packets.puback(int.from_bytes(body[2 + topic_length : 4 + topic_length], "big")))
                case 8:
                    self.server.subscriber = self.connection
                    self.wfile.write(packets.suback(int.from_bytes(body[:2], "big"), 1))
                case 0 | 14:
                    return

    def _packet(self) -> tuple[int, bytes]:
        head = self.rfile.read(2)
        if len(head) < 2:
            return 0, b""
        assert head[1] < 128, "short packets only"
        return head[0], self.rfile.read(head[1])


@pytest.fixture
def forwarder() -> Iterator[Callable[..., Forwarder]]:
    made: list[tuple[Forwarder, threading.Thread]] = []

    def make(*arguments: Any, **options: Any) -> Forwarder:
        server = Forwarder(*arguments, **options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.append((server, thread))
        return server

    yield make
    for server, thread in made:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def native_broker() -> Iterator[Running]:
    """Mosquitto, which knows every version and QoS."""
    with mosquitto(saving=False).start(websocket=True) as running:
        yield running


@pytest.fixture(scope="module")
def bridge_broker() -> Iterator[Running]:
    with holdmq().start(websocket=True) as running:
        yield running


def counted(total: dict[str, int]) -> dict[str, int]:
    """What is wrong."""
    return {name: total[name] for name in ("lost", "duplicates", "out_of_order", "foreign", "refused")}


NOTHING_WRONG = dict.fromkeys(("lost", "duplicates", "out_of_order", "foreign", "refused"), 0)


def test_a_broker_that_hands_everything_on_passes(forwarder: Callable[..., Forwarder]) -> None:
    status, found = load(forwarder().port, "--count", str(MESSAGES), timeout_s=20)
    assert (status, found["fault"], counted(found["total"])) == (0, "", NOTHING_WRONG)
    assert (found["in"], found["out"], found["latency_us"]["count"]) == (MESSAGES, MESSAGES, MESSAGES)


def test_a_lost_message_is_counted_and_fails_the_run(forwarder: Callable[..., Forwarder]) -> None:
    status, found = load(forwarder(lambda n: [] if n in (10, 11, 99) else [n]).port, "--count", str(MESSAGES))
    assert (status, counted(found["total"])) == (1, {**NOTHING_WRONG, "lost": 3})


def test_a_duplicate_is_counted_and_allowed_with_qos_1(forwarder: Callable[..., Forwarder]) -> None:
    status, found = load(forwarder(lambda n: [n, n] if n == 99 else [n]).port, "--count", str(MESSAGES))
    assert (status, counted(found["total"])) == (0, {**NOTHING_WRONG, "duplicates": 1})


def test_messages_in_another_order_are_counted_and_fail_the_run(forwarder: Callable[..., Forwarder]) -> None:
    swapped = forwarder(lambda n: {40: [], 41: [41, 40]}.get(n, [n]))
    status, found = load(swapped.port, "--count", str(MESSAGES))
    assert (status, counted(found["total"])) == (1, {**NOTHING_WRONG, "out_of_order": 1})


def test_many_losses_apart_from_each_other_are_all_counted(forwarder: Callable[..., Forwarder]) -> None:
    status, found = load(forwarder(lambda n: [] if n % 2 else [n]).port, "--count", str(MESSAGES))
    assert (status, counted(found["total"])) == (1, {**NOTHING_WRONG, "lost": MESSAGES // 2})


def test_messages_of_another_run_are_foreign(native_broker: Running) -> None:
    persistent = ("--persistent", "--count", "10", "--prefix", "foreign")
    assert load(native_broker.port, "--pattern", "store", *persistent, timeout_s=20)[0] == 0
    status, found = load(native_broker.port, "--pattern", "pairs", *persistent, "--payload", "63")
    assert (status, found["total"]["foreign"]) == (1, 10)


def test_a_broker_that_vanishes_is_a_fault(forwarder: Callable[..., Forwarder]) -> None:
    server = forwarder()

    def hang_up(_number: int) -> list[int]:
        assert server.subscriber is not None
        server.subscriber.shutdown(socket.SHUT_RDWR)
        return []

    server.tamper = hang_up
    status, found = load(server.port, "--count", "1")
    assert status == 1
    assert "load-sub-0: the connection was lost" in found["fault"]


def test_at_a_rate_a_stall_counts_for_every_message_that_was_due_meanwhile(
    forwarder: Callable[..., Forwarder],
) -> None:
    # One window of one message: a generator that sent late and measured from there would see one slow message.
    server = forwarder(stall_at=20)
    arguments = ("--count", str(MESSAGES), "--rate", "200", "--window", "1")
    status, found = load(server.port, *arguments, timeout_s=20)
    assert status == 0
    assert found["latency_us"]["max"] >= STALL_S * 1e6
    assert found["latency_us"]["p50"] >= STALL_S * 1e6 / 8


def test_a_watched_process_has_its_cpu_time_measured(native_broker: Running) -> None:
    found = run_load(native_broker.port, "pairs", {"seconds": 0.3, "pairs": 5}, watch=native_broker.pids)
    assert found.messages > 0
    assert 0 < found.cpu_s[native_broker.pids[0]] <= found.seconds * 1.5
    assert 0 < found.generator_cpu_s <= found.seconds * 1.5


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("pattern", "clients"),
    [
        ("pairs", {"pairs": 5}),
        ("fan-out", {"subscribers": 5}),
        ("fan-in", {"publishers": 5}),
    ],
)
def test_every_version_and_qos_gets_through(
    native_broker: Running, pattern: str, clients: dict[str, float], qos: int, version: int
) -> None:
    prefix = f"{pattern}-{qos}-{version}"
    options: Options = {
        **clients,
        "count": 300,
        "qos": qos,
        "mqtt": version,
        "prefix": prefix,
        "window": 7,
        "payload": 500,
    }
    found = run_load(native_broker.port, pattern, options)
    publishers, subscribers = clients.get("publishers", 1), clients.get("subscribers", 1)
    if pattern == "pairs":
        publishers = 5
    assert (found.incoming, found.outgoing) == (300 * publishers, 300 * publishers * subscribers)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload", [24, 200, 16_000])
def test_every_size_gets_through_websockets(
    native_broker: Running, bridge_broker: Running, payload: int, qos: int
) -> None:
    """Headers of frames have three lengths."""
    prefix = f"ws-{qos}-{payload}"
    options: Options = {"websocket": "/mqtt", "pairs": 3, "count": 100, "qos": qos, "prefix": prefix, "behind": 5}
    for broker in (native_broker, bridge_broker):
        found = run_load(broker.websocket_port, "pairs", {**options, "payload": payload})
        assert (found.incoming, found.outgoing) == (300, 300)
    with pytest.raises(LoadError, match="the WebSocket was refused or closed"):
        run_load(bridge_broker.websocket_port, "pairs", {**options, "websocket": "/other"})


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
def test_what_was_stored_is_drained(native_broker: Running, qos: int, version: int) -> None:
    options: Options = {
        "persistent": True,
        "count": 200,
        "qos": qos,
        "mqtt": version,
        "prefix": f"away-{qos}-{version}",
    }
    assert run_load(native_broker.port, "store", {**options, "pairs": 4}).incoming == 800
    drained = run_load(native_broker.port, "drain", {**options, "subscribers": 4})
    assert (drained.outgoing, drained.raw["sessions_present"]) == (800, 4)
    with pytest.raises(LoadError, match='"lost": 800'):
        run_load(native_broker.port, "drain", {**options, "subscribers": 4, "timeout": 0.3})


def test_the_bridge_passes_too(bridge_broker: Running) -> None:
    options: Options = {"persistent": True, "count": 100, "prefix": "mine"}
    assert run_load(bridge_broker.port, "pairs", {**options, "pairs": 5}, watch=bridge_broker.pids).messages == 1000
    away: Options = {**options, "prefix": "away"}
    run_load(bridge_broker.port, "store", {**away, "pairs": 3})
    assert run_load(bridge_broker.port, "drain", {**away, "subscribers": 3}).outgoing == 300


def test_idle_connections_are_held(native_broker: Running) -> None:
    files = Path(f"/proc/{native_broker.pids[0]}/fd")
    with holding(native_broker.port, 300, {"prefix": "idle", "keep-alive": 1}):
        time.sleep(2)  # more than one and a half keep-alives: they have to ping
        assert len(list(files.iterdir())) >= 300


def test_clients_come_from_the_address_that_is_asked_for(native_broker: Running) -> None:
    def addresses() -> set[str]:
        connections = Path("/proc/net/tcp").read_text().splitlines()[1:]
        ends = [line.split()[1:3] for line in connections if line.split()[3] == "01"]
        return {peer[:8] for own, peer in ends if own.endswith(f":{native_broker.port:04X}")}

    with holding(native_broker.port, 3, {"prefix": "elsewhere", "source": "127.0.0.9"}):
        assert "0900007F" in addresses()
    with pytest.raises(LoadError, match="cannot come from that address"):
        run_load(native_broker.port, "pairs", {"source": "192.0.2.1", "count": 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--port is missing"),
        (["--port", "0"], "--port 0; expected a whole number from 1 to 65535"),
        (["--port", "1", "--qos", "3"], "--qos 3; expected a whole number from 0 to 2"),
        (["--port", "1", "--pattern", "ring"], "--pattern ring; expected pairs, fan-out"),
        (["--port", "1", "--pattern", "store"], "--persistent, --count and --qos 1 or 2 expected"),
        (["--port", "1", "--pattern", "fan-in", "--subscribers", "2"], "as many publishers as subscribers expected"),
        (["--port", "1", "--publishers", "2"], "as many publishers as subscribers expected"),
        (["--port", "1", "--prefix", "a/b"], "expected 1 to 64 letters, digits, - and _"),
        (["--port", "1", "--payload", "23"], "--payload 23; expected a whole number from 24 to 16000"),
        (["--port", "1", "--websocket", "mqtt"], "--websocket mqtt; expected a path that begins with /"),
        (["--port", "1", "more"], "more: not an option"),
    ],
)
def test_wrong_usage_is_reported(arguments: list[str], said: str) -> None:
    done = subprocess.run([str(GENERATOR), *arguments], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
