"""WebSocket clients that are hard to serve: floods of small frames, peers that do not read, requests without an end."""

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.bridge import packets
from tests.bridge.certificates import Certificates, secured
from tests.bridge.conftest import Connect
from tests.bridge.test_upgrade import request
from tests.core.mqtt.test_websocket import BINARY, PING, PONG, close, frame
from tests.support import BridgeProcess, Server, eventually, reserve_port
from tests.support.ports import Port
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]

TIMEOUT_S = 10.0
FLOOD_S = 3.0
MOST_CONNECT_S = 2.0  # on a machine that is busy with other things
MOST_GROWTH_BYTES = 32 * 1024 * 1024
SMALL_RECEIVE_BUFFER = 4096


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made once for the file."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def metrics() -> Iterator[Port]:
    """A port for them."""
    reserved = reserve_port()
    yield reserved
    reserved.release()


def counted(metrics: Port, name: str) -> float:
    """A counter of the bridge."""
    with urlopen(f"http://127.0.0.1:{metrics.number}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    return float(re.findall(rf"^holdmq_bridge_{name}_total (\S+)$", text, re.MULTILINE)[0])


class Raw:
    """A client that speaks in bytes."""

    def __init__(self, port: int, *, context: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        made = socket.socket()
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(TIMEOUT_S)
        made.connect(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = made if context is None else context.wrap_socket(made, server_hostname="localhost")

    def ask(self, data: bytes) -> bytes:
        """Sends a request; the head of its answer."""
        self.socket.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = self.socket.recv(1)
            assert part, f"closed after {answer!r}"
            answer += part
        return answer

    def upgrade(self) -> None:
        """Speaks in frames from now on."""
        assert self.ask(request()).startswith(b"HTTP/1.1 101 ")

    def connect(self, client_id: str = "", *, keep_alive_s: int = 0) -> None:
        """A session of MQTT."""
        self.socket.sendall(frame(BINARY, packets.connect(client_id, keep_alive=keep_alive_s)))
        self.expect(b"\x82\x04" + packets.connack())

    def expect(self, data: bytes) -> None:
        """The next bytes are these."""
        got = b""
        while len(got) < len(data):
            part = self.socket.recv(len(data) - len(got))
            assert part, f"closed after {got!r}"
            got += part
        assert got == data

    def rest(self) -> bytes:
        """All that comes up to the end."""
        got = b""
        with contextlib.suppress(ConnectionError):
            while part := self.socket.recv(65536):
                got += part
        return got


@pytest.fixture
def dial_raw() -> Iterator[Callable[..., Raw]]:
    """Makes them; options as of Raw."""
    made: list[Raw] = []

    def connect(port: Port, **options: object) -> Raw:
        made.append(Raw(port.number, **options))  # type: ignore[arg-type] # Raw's own
        return made[-1]

    yield connect
    for client in made:
        client.socket.close()


class Flood(threading.Thread):
    """Sends the same bytes again and again, and reads what comes, or does not."""

    def __init__(self, client: Raw, data: bytes, *, reads: bool) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._data = data * (65536 // len(data) + 1)
        self._reads = reads
        self.sent = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Until it is over, or the connection is."""
        self._client.socket.settimeout(0.2)
        at = 0
        with contextlib.suppress(ConnectionError):
            while not self.over.is_set():
                try:
                    sent = self._client.socket.send(self._data[at:])
                except TimeoutError:
                    sent = 0
                self.sent += sent
                at = (at + sent) % len(self._data)
                if self._reads:
                    with contextlib.suppress(BlockingIOError):
                        self._client.socket.recv(1 << 20, socket.MSG_DONTWAIT)


@contextlib.contextmanager
def flooding(*floods: Flood) -> Iterator[None]:
    """While it lasts."""
    for flood in floods:
        flood.start()
    try:
        yield
    finally:
        for flood in floods:
            flood.over.set()
            flood.join()


def slowest_connect_s(dial: Connect, port: int) -> float:
    """Of clients that come one after the other, for FLOOD_S."""
    slowest, begun = 0.0, time.monotonic()
    while (now := time.monotonic()) < begun + FLOOD_S:
        dial(port).close()
        slowest = max(slowest, time.monotonic() - now)
    return slowest


def resident_bytes(process: BridgeProcess) -> int:
    """Its memory."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize(("listener", "reads"), [("ws", True), ("ws", False), ("wss", False)])
def test_packets_in_small_frames_delay_nobody_else(
    server: Server,
    bridge: MakeBridge,
    dial: Connect,
    dial_raw: Callable[..., Raw],
    port: Port,
    certificates: Certificates,
    listener: str,
    reads: bool,
) -> None:
    made = bridge(server, arguments=secured(certificates, f"--{listener}-port", port))
    client = dial_raw(port, context=certificates.context() if listener == "wss" else None)
    client.upgrade()
    client.connect("flood")
    flood = Flood(client, frame(BINARY, packets.PINGREQ), reads=reads)
    with flooding(flood):
        eventually(lambda: flood.sent > 0)
        assert slowest_connect_s(dial, made.port) < MOST_CONNECT_S


def test_small_packets_over_tls_delay_nobody_else(
    server: Server,
    bridge: MakeBridge,
    dial: Connect,
    dial_raw: Callable[..., Raw],
    port: Port,
    certificates: Certificates,
) -> None:
    made = bridge(server, arguments=secured(certificates, "--tls-port", port))
    client = dial_raw(port, context=certificates.context())
    client.socket.sendall(packets.connect("flood", keep_alive=0))
    client.expect(packets.connack())
    flood = Flood(client, packets.publish("t"), reads=False)
    with flooding(flood):
        eventually(lambda: flood.sent > 0)
        assert slowest_connect_s(dial, made.port) < MOST_CONNECT_S


@pytest.mark.parametrize("logged_in", [False, True])
@pytest.mark.parametrize("listener", ["ws", "wss"])
def test_pings_of_peers_who_do_not_read_cost_no_memory_and_delay_nobody(
    server: Server,
    bridge: MakeBridge,
    dial: Connect,
    dial_raw: Callable[..., Raw],
    port: Port,
    certificates: Certificates,
    listener: str,
    logged_in: bool,
) -> None:
    made = bridge(server, arguments=secured(certificates, f"--{listener}-port", port))
    context = certificates.context() if listener == "wss" else None
    peers = [dial_raw(port, context=context, receive_buffer=SMALL_RECEIVE_BUFFER) for _ in range(3)]
    for number, peer in enumerate(peers):
        peer.upgrade()
        if logged_in:
            peer.connect(f"flood{number}")
    before = resident_bytes(made)
    with flooding(*(Flood(peer, frame(PING, b"p" * 125), reads=False) for peer in peers)):
        slowest_s = slowest_connect_s(dial, made.port)
        assert resident_bytes(made) - before < MOST_GROWTH_BYTES
    assert slowest_s < MOST_CONNECT_S


def test_anyone_who_does_not_read_a_flood_of_messages_gets_no_more_than_the_buffer_holds(
    server: Server, bridge: MakeBridge, dial: Connect, dial_raw: Callable[..., Raw], port: Port
) -> None:
    made = bridge(server, arguments=["--ws-port", str(port.number)])
    slow = dial_raw(port, receive_buffer=SMALL_RECEIVE_BUFFER)
    slow.upgrade()
    slow.connect("slow")
    slow.socket.sendall(frame(BINARY, packets.subscribe(1, ("flood", 0))))
    slow.expect(b"\x82\x05" + packets.suback(1, 0))
    sender = dial(made.port)
    before = resident_bytes(made)
    for number in range(400):  # 40 MB
        sender.send(packets.publish("flood", b"x" * 100_000))
        if number % 10 == 0:
            sender.expect_nothing()
    assert resident_bytes(made) - before < MOST_GROWTH_BYTES


# ---- the request -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["ws", "wss"])
def test_anyone_who_never_ends_a_request_is_closed_in_time(
    server: Server,
    bridge: MakeBridge,
    dial_raw: Callable[..., Raw],
    port: Port,
    certificates: Certificates,
    listener: str,
) -> None:
    bridge(server, arguments=[*secured(certificates, f"--{listener}-port", port), "--connect-timeout-s", "1"])
    client = dial_raw(port, context=certificates.context() if listener == "wss" else None)
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for byte in request():
            client.socket.sendall(bytes((byte,)))
            time.sleep(0.05)  # slower than the time that it has
            assert time.monotonic() - begun < TIMEOUT_S
    assert client.rest() == b""


def test_a_request_without_an_end_is_refused_when_it_is_too_long(
    server: Server, bridge: MakeBridge, dial_raw: Callable[..., Raw], port: Port
) -> None:
    made = bridge(server, arguments=["--ws-port", str(port.number)])
    answer = dial_raw(port).ask(b"GET /mqtt HTTP/1.1\r\n" + b"x: y\r\n" * 2000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    eventually(lambda: "a request above 8192 bytes (status 431)" in made.log_text())


@pytest.mark.parametrize("listener", ["ws", "wss"])
def test_a_web_page_of_another_host_is_refused_counted_and_logged(
    server: Server,
    bridge: MakeBridge,
    dial_raw: Callable[..., Raw],
    port: Port,
    metrics: Port,
    certificates: Certificates,
    listener: str,
) -> None:
    arguments = [*secured(certificates, f"--{listener}-port", port), "--metrics-port", str(metrics.number)]
    made = bridge(server, arguments=arguments)
    context = certificates.context() if listener == "wss" else None
    page = dial_raw(port, context=context)
    assert page.ask(request(origin="http://evil.example")).startswith(b"HTTP/1.1 403 ")
    assert page.rest() == b"origin 'http://evil.example' is not one of ws_origins\n"
    eventually(lambda: "origin 'http://evil.example' is not one of ws_origins (status 403)" in made.log_text())
    assert counted(metrics, "websockets_refused") == 1
    own = dial_raw(port, context=context)
    assert own.ask(request(origin="http://localhost:3000")).startswith(b"HTTP/1.1 101 ")


def test_frames_that_break_a_rule_are_counted_and_logged(
    server: Server, bridge: MakeBridge, dial_raw: Callable[..., Raw], port: Port, metrics: Port
) -> None:
    arguments = ["--ws-port", str(port.number), "--metrics-port", str(metrics.number)]
    made = bridge(server, arguments=arguments)
    client = dial_raw(port)
    client.upgrade()
    client.connect("odd")
    client.socket.sendall(b"\x82\xff\x80" + bytes(7) + b"key!")
    assert client.rest() == close(1002)
    eventually(lambda: "WebSocket closed with 1002: a length of 2^63 or more" in made.log_text())
    assert counted(metrics, "websocket_faults") == 1


def test_pings_are_not_a_sign_of_life_of_a_client(
    server: Server, bridge: MakeBridge, dial_raw: Callable[..., Raw], port: Port
) -> None:
    made = bridge(server, arguments=["--ws-port", str(port.number)])
    client = dial_raw(port)
    client.upgrade()
    client.connect("silent", keep_alive_s=1)
    with contextlib.suppress(ConnectionError):
        for _ in range(int(TIMEOUT_S / 0.1)):
            client.socket.sendall(frame(PING))
            if client.socket.recv(2) != bytes((0x80 | PONG, 0)):
                break
            time.sleep(0.1)  # more often than the keep-alive
    eventually(lambda: "silent for one and a half keep-alives" in made.log_text())
