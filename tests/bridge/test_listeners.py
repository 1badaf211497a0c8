"""The ways in: TLS with and without certificates of clients, WebSocket cut anywhere, the PROXY protocol, workers."""

import contextlib
import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trustme
import uvloop
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets.listeners import Listeners
from holdmq_bridge.sockets.proxy import Header, parse
from tests.bridge import packets
from tests.bridge.certificates import Certificates, dial_tls, secured
from tests.bridge.conftest import Connect
from tests.support import BridgeProcess, Server, embedded_kinds, eventually
from tests.support.ports import Port

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
TIMEOUT_S = 10.0
START_S = 60.0  # of processes, on a machine that is busy with others


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made once for the file."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


def converse(connection: socket.socket) -> None:
    """CONNECT and PINGREQ."""
    connection.sendall(packets.connect("c1") + packets.PINGREQ)
    expected = packets.connack() + packets.PINGRESP
    got = b""
    while len(got) < len(expected):
        data = connection.recv(100)
        assert data, f"closed after {got!r}"
        got += data
    assert got == expected


# ---- TLS -------------------------------------------------------------------------------------------------------------


def test_mqtt_over_tls_beside_mqtt_over_tcp(
    server: Server, bridge: MakeBridge, certificates: Certificates, port: Port, dial: Connect
) -> None:
    made = bridge(server, arguments=secured(certificates, "--tls-port", port))
    with dial_tls(port, certificates.context()) as connection:
        converse(connection)
    dial(made.port, "c2").expect_nothing()


def test_a_client_without_the_required_certificate_does_not_get_in(
    server: Server, bridge: MakeBridge, certificates: Certificates, port: Port
) -> None:
    required = ["--tls-client-ca", str(certificates.ca), "--tls-client-certificates", "required"]
    made = bridge(server, arguments=secured(certificates, "--tls-port", port, *required))
    stranger = trustme.CA().issue_cert("device-1", common_name="device-1")
    for context in (certificates.context(), certificates.context(stranger)):
        with pytest.raises((ssl.SSLError, AssertionError, OSError)), dial_tls(port, context) as connection:
            converse(connection)
    for told in ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "unable to get local issuer certificate"):
        eventually(lambda told=told: f'"error": "{told}"' in made.log_text())  # type: ignore[misc] # a default
    known = certificates.authority.issue_cert("device-1", common_name="device-1")
    with dial_tls(port, certificates.context(known)) as connection:
        converse(connection)


def test_a_certificate_is_an_identity(
    server: Server, bridge: MakeBridge, certificates: Certificates, port: Port
) -> None:
    optional = ["--tls-client-ca", str(certificates.ca), "--tls-client-certificates", "optional"]
    identity = ["--certificate-name", "cn", "--certificate-without-user", "true", "--allow-anonymous", "false"]
    bridge(server, arguments=secured(certificates, "--tls-port", port, *optional, *identity))
    known = certificates.authority.issue_cert("device-1", common_name="device-1")
    with dial_tls(port, certificates.context(known)) as connection:
        converse(connection)
    with dial_tls(port, certificates.context()) as connection:
        connection.sendall(packets.connect("c1"))
        assert connection.recv(100) == packets.connack(5)


def test_the_session_of_one_certificate_is_not_anothers(
    server: Server, bridge: MakeBridge, certificates: Certificates, port: Port, client: redis.Redis
) -> None:
    required = ["--tls-client-ca", str(certificates.ca), "--tls-client-certificates", "required"]
    identity = ["--certificate-name", "cn", "--certificate-without-user", "true", "--allow-anonymous", "false"]
    bridge(server, arguments=secured(certificates, "--tls-port", port, *required, *identity))
    own, other = (certificates.authority.issue_cert(name, common_name=name) for name in ("device-1", "device-2"))

    def answer(certificate: trustme.LeafCert, *, clean: bool) -> bytes:
        with dial_tls(port, certificates.context(certificate)) as connection:
            connection.sendall(packets.connect("c1", clean=clean))
            return connection.recv(100)

    assert answer(own, clean=False) == packets.connack()
    assert client.hget("{c1}_session", "identity") == b"user:device-1"
    assert [answer(other, clean=clean) for clean in (False, True)] == [packets.connack(5)] * 2
    assert answer(own, clean=False) == packets.connack(present=True)


def test_files_that_are_not_certificates_are_named(
    server: Server, bridge: MakeBridge, port: Port, tmp_path: Path
) -> None:
    nothing = tmp_path / "empty.pem"
    nothing.touch()
    with pytest.raises(RuntimeError, match=f"tls_certificate: no certificate in {nothing}"):
        bridge(server, arguments=["--tls-port", str(port.number), "--tls-certificate", str(nothing)])


def dialed_issuer(port: Port, *known: Certificates) -> int:
    """Whose certificate the bridge shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for certificates in known:
        certificates.authority.configure_trust(context)
    with dial_tls(port, context) as connection:
        chain = connection.getpeercert(binary_form=True)
    assert chain is not None
    return [chain == ssl.PEM_cert_to_DER_cert(each.server.read_text()) for each in known].index(True)


@pytest.mark.parametrize("how", ["SIGHUP", "file", "SIGHUP with workers"])
def test_new_certificates_are_served_without_a_restart_and_broken_ones_are_not(
    server: Server, bridge: MakeBridge, port: Port, tmp_path: Path, how: str
) -> None:
    used, old, new = (Certificates(tmp_path / name) for name in ("used", "old", "new"))
    poll = ["--tls-poll-s", "0.1" if how == "file" else "0"]
    workers = ["--workers", "2"] if how == "SIGHUP with workers" else []

    def put(certificates: Certificates, key: bytes | None = None) -> None:
        used.key.write_bytes(certificates.key.read_bytes() if key is None else key)
        used.server.write_bytes(certificates.server.read_bytes())
        if how != "file":
            os.kill(made.pid, signal.SIGHUP)

    used.key.write_bytes(old.key.read_bytes())
    used.server.write_bytes(old.server.read_bytes())
    made = bridge(server, arguments=secured(used, "--tls-port", port, *poll, *workers))
    context = old.context()
    if workers:  # who begins with broken files does not begin
        eventually(lambda: made.log_text().count('"listening"') == 2, START_S, "two workers")
    with dial_tls(port, context) as stays:
        converse(stays)
        put(new, key=b"no key")
        eventually(lambda: "cannot be used" in made.log_text(), what="a complaint about the files")
        assert dialed_issuer(port, old, new) == 0
        put(new)
        dials = 16 if workers else 1  # so many that every worker is met
        eventually(lambda: all(dialed_issuer(port, old, new) for _ in range(dials)), what="the new certificate")
        with dial_tls(port, new.context()) as connection:
            connection.sendall(packets.connect("c2"))
            assert connection.recv(10) == packets.connack()
        stays.sendall(packets.PINGREQ)
        assert stays.recv(10) == packets.PINGRESP


# ---- WebSocket -------------------------------------------------------------------------------------------------------


class Browser:
    """A WebSocket client in events."""

    def __init__(
        self, connection: socket.socket, *, path: str = "/mqtt", subprotocols: tuple[str, ...] = ("mqtt",)
    ) -> None:
        self._socket = connection
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._rest = b""  # came behind what was expected, in the same message
        self.send(Request(host="localhost", target=path, subprotocols=list(subprotocols)))

    def send(self, event: Event) -> None:
        self._socket.sendall(self._frames.send(event))

    def next(self) -> Event:
        """The next event; the socket's end is an error."""
        while True:
            for event in self._frames.events():
                return event
            data = self._socket.recv(4096)
            assert data, "closed"
            self._frames.receive_data(data)

    def expect(self, data: bytes) -> None:
        """These bytes come next, in binary messages."""
        got = self._rest
        while len(got) < len(data):
            event = self.next()
            assert isinstance(event, BytesMessage), event
            got += bytes(event.data)
        self._rest = got[len(data) :]
        assert got.startswith(data), got

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def web(server: Server, bridge: MakeBridge, port: Port) -> Iterator[Callable[..., Browser]]:
    """Makes clients of a bridge with a WebSocket; options as of Browser."""
    bridge(server, arguments=["--ws-port", str(port.number), "--ws-max-frame-bytes", "1000"])
    made: list[Browser] = []

    def make(**options: object) -> Browser:
        made.append(Browser(socket.create_connection(("127.0.0.1", port.number), TIMEOUT_S), **options))  # type: ignore[arg-type] # Browser's own
        return made[-1]

    yield make
    for browser in made:
        browser.close()


def test_packets_may_be_cut_anywhere_over_websocket_messages(web: Callable[..., Browser]) -> None:
    browser = web()
    accepted = browser.next()
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == "mqtt"  # [MQTT-6.0.0-4]
    stream = packets.connect("c1") + packets.subscribe(1, ("a", 1)) + packets.publish("a", b"x", qos=1, pid=9)
    for at in range(0, len(stream), 3):
        browser.send(BytesMessage(stream[at : at + 3]))  # [MQTT-6.0.0-2]
    browser.expect(packets.connack() + packets.suback(1, 1))  # the publish and its PUBACK may be in the same message
    browser.send(BytesMessage(packets.PINGREQ + packets.PINGREQ))
    got = b""
    while got.count(packets.PINGRESP) < 2:
        event = browser.next()
        assert isinstance(event, BytesMessage)
        got += bytes(event.data)


def test_a_ping_of_the_websocket_is_answered(web: Callable[..., Browser]) -> None:
    browser = web()
    browser.next()
    browser.send(Ping(b"hello"))
    assert browser.next() == Pong(b"hello")


def test_a_close_is_answered_and_a_disconnect_closes(web: Callable[..., Browser]) -> None:
    browser = web()
    browser.next()
    browser.send(CloseConnection(1000))
    assert isinstance(browser.next(), CloseConnection)
    browser = web()
    browser.next()
    browser.send(BytesMessage(packets.connect("c1") + packets.DISCONNECT))
    browser.expect(packets.connack())
    closed = browser.next()
    assert isinstance(closed, CloseConnection)
    assert closed.code == 1000


@pytest.mark.parametrize(
    ("event", "code"),
    [(TextMessage("text"), 1003), (BytesMessage(b"\x30" + b"x" * 1000), 1009)],
    ids=["text", "too big"],
)
def test_messages_that_are_not_allowed_close_the_websocket(
    web: Callable[..., Browser], event: Event, code: int
) -> None:
    browser = web()
    browser.next()
    browser.send(event)
    closed = browser.next()
    assert isinstance(closed, CloseConnection)
    assert closed.code == code  # [MQTT-6.0.0-1]


@pytest.mark.parametrize(
    ("options", "status"), [({"path": "/"}, 404), ({"subprotocols": ("chat",)}, 400), ({"subprotocols": ()}, 400)]
)
def test_other_paths_and_subprotocols_are_rejected(
    web: Callable[..., Browser], options: dict[str, object], status: int
) -> None:
    rejected = web(**options).next()
    assert isinstance(rejected, RejectConnection)
    assert rejected.status_code == status


def test_websocket_over_tls(server: Server, bridge: MakeBridge, certificates: Certificates, port: Port) -> None:
    bridge(server, arguments=secured(certificates, "--wss-port", port))
    with dial_tls(port, certificates.context()) as connection:
        browser = Browser(connection)
        assert isinstance(browser.next(), AcceptConnection)
        browser.send(BytesMessage(packets.connect("c1")))
        browser.expect(packets.connack())


# ---- the PROXY protocol ----------------------------------------------------------------------------------------------

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V1 = b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 1883\r\n"
V2 = (
    SIGNATURE + b"\x21\x11" + struct.pack(">H", 12) + bytes([10, 1, 2, 3, 10, 0, 0, 1]) + struct.pack(">HH", 4711, 1883)
)


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (V1, Header("10.1.2.3:4711", len(V1))),
        (V2, Header("10.1.2.3:4711", len(V2))),
        (b"PROXY UNKNOWN\r\n", Header("", 15)),
        (b"PROXY TCP6 ::1 ::2 1 2\r\n", Header("::1:1", 24)),
        (SIGNATURE + b"\x20\x00\x00\x00", Header("", 16)),
        (SIGNATURE + b"\x21\x21" + struct.pack(">H", 39) + bytes(36) + b"tlv", Header(":::0", 55)),
    ],
)
def test_a_proxy_header_is_read_whole_or_not_at_all(data: bytes, header: Header) -> None:
    for cut in range(1, len(data)):
        assert parse(data[:cut]) is None
    assert parse(data) == header
    assert parse(data + b"more") == header


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c",
        b"PROXY TCP4 10.1.2.3 10.0.0.1 x 1883\r\n",
        b"PROXY TCP4 300.1.2.3 10.0.0.1 1 1883\r\n",
        b"PROXY \xff\r\n",
        b"PROXY\r\n",
        b"PROXY TCP4 " + b"1" * 107,
        SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
    ],
)
def test_an_invalid_proxy_header_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(data)


@pytest.mark.parametrize("header", [V1, V2])
def test_behind_a_proxy_the_clients_own_address_is_known(server: Server, bridge: MakeBridge, header: bytes) -> None:
    made = bridge(server, arguments=["--proxy-protocol", "true", "--allow-anonymous", "true"])
    with socket.create_connection(("127.0.0.1", made.port), TIMEOUT_S) as connection:
        connection.sendall(header)
        converse(connection)
    eventually(lambda: '"peer": "10.1.2.3:4711"' in made.log_text())
    with socket.create_connection(("127.0.0.1", made.port), TIMEOUT_S) as connection:
        connection.sendall(packets.connect("c1"))
        assert connection.recv(100) == b""


@pytest.mark.parametrize("listener", ["mqtt", "ws"])
def test_a_proxy_header_is_believed_from_the_proxies_that_are_named_alone(
    server: Server, bridge: MakeBridge, port: Port, listener: str
) -> None:
    named = ["--proxy-protocol", "true", "--allow-anonymous", "true", "--proxy-networks", "127.0.0.7,10.0.0.0/8"]
    made = bridge(server, arguments=[*named, "--ws-port", str(port.number)])
    address = ("127.0.0.1", port.number if listener == "ws" else made.port)
    with socket.create_connection(address, TIMEOUT_S) as connection:
        assert read_all(connection, V1 + packets.connect("c1")) == b""
    eventually(lambda: "a connection without a valid PROXY header was refused" in made.log_text())
    assert "is not in proxy_networks (127.0.0.7,10.0.0.0/8)" in made.log_text()
    with socket.create_connection(address, TIMEOUT_S, ("127.0.0.7", 0)) as connection:
        connection.sendall(V1)
        if listener == "ws":
            browser = Browser(connection)
            assert isinstance(browser.next(), AcceptConnection)
            browser.send(BytesMessage(packets.connect("c1")))
            browser.expect(packets.connack())
        else:
            converse(connection)
    eventually(lambda: '"peer": "10.1.2.3:4711"' in made.log_text())
    text = made.log_text()
    assert text.count("10.1.2.3") == text.count('"peer": "10.1.2.3:4711"')


def test_unless_others_are_named_proxies_are_on_this_machine() -> None:
    assert [str(network) for network in Settings().proxies] == ["127.0.0.0/8", "::1/128"]


def test_anyone_who_says_nothing_instead_of_a_proxy_header_is_closed_in_time(
    server: Server, bridge: MakeBridge
) -> None:
    options = ["--proxy-protocol", "true", "--allow-anonymous", "true", "--connect-timeout-s", "0.5"]
    made = bridge(server, arguments=options)
    with socket.create_connection(("127.0.0.1", made.port), TIMEOUT_S) as connection:
        assert read_all(connection, V1[:-1]) == b""
    eventually(lambda: "no PROXY header within 0.5 s" in made.log_text())


def read_all(connection: socket.socket, sent: bytes) -> bytes:
    """What comes after this, up to the end."""
    got = b""
    with contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        while part := connection.recv(1000):
            got += part
    return got


# ---- workers ---------------------------------------------------------------------------------------------------------


def workers_of(made: BridgeProcess) -> list[int]:
    """Process ids of the workers, as the log tells."""
    lines = [line for line in made.log_text().splitlines() if '"worker started"' in line]
    return [int(line.partition('"pid": ')[2].partition("}")[0]) for line in lines]


def test_workers_share_a_port_and_are_one_broker(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--workers", "2"])
    eventually(lambda: made.log_text().count('"listening"') == 2, START_S, "two workers")
    receivers = [dial(made.port, f"r{number}") for number in range(24)]  # the kernel chooses the worker
    for receiver in receivers:
        receiver.subscribe(("a", 1))
    dial(made.port, "s").publish("a", b"x")
    for receiver in receivers:
        assert receiver.read_publish().payload == b"x"
    owners = {server.client().hget(f"{{r{number}}}_session", "owner") for number in range(24)}
    assert len(owners) == 2


def test_a_worker_that_dies_is_started_again(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--workers", "2"])
    eventually(lambda: made.log_text().count('"listening"') == 2, START_S, "two workers")
    os.kill(workers_of(made)[0], signal.SIGKILL)
    eventually(lambda: made.log_text().count('"listening"') == 3, START_S, "a third worker")
    for number in range(8):
        dial(made.port, f"c{number}").expect_nothing()


def test_workers_stop_in_order_with_their_parent(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--workers", "2"])
    eventually(lambda: made.log_text().count('"listening"') == 2, START_S, "two workers")
    clients = [dial(made.port, f"c{number}") for number in range(4)]
    assert made.stop() == 0
    for client in clients:
        client.expect_closed()
    assert made.log_text().count('"stopped"') == 2


def test_workers_do_not_outlive_a_parent_that_was_killed(server: Server, bridge: MakeBridge, dial: Connect) -> None:
    made = bridge(server, arguments=["--workers", "2"])
    eventually(lambda: made.log_text().count('"listening"') == 2, START_S, "two workers")
    client = dial(made.port, "c1")
    made.kill()
    client.expect_closed()
    eventually(lambda: made.log_text().count('"stopped"') == 2)


def test_workers_that_begin_while_their_parent_is_killed_never_listen(server: Server, tmp_path: Path) -> None:
    made = BridgeProcess(server.url, tmp_path, arguments=["--workers", "2"])
    try:
        made.spawn()
        eventually(lambda: made.log_text().count('"worker started"') == 2, START_S, "two workers")
        made.kill()
        assert '"listening"' not in made.log_text()
        eventually(lambda: not made.workers(), START_S, "the end of the workers")
        assert '"listening"' not in made.log_text()
    finally:
        made.close()


@pytest.mark.parametrize("name", ["port", "ws_port"])
def test_an_address_on_which_somebody_listens_first_is_named(port: Port, name: str) -> None:
    async def scene() -> None:
        bridge = Bridge(Settings.model_validate({"port": 0, name: port.number}))
        listeners = Listeners(bridge.process, bridge.pump, bridge.new_client, bridge)
        await listeners.open(reuse_port=False)
        with socket.socket() as other:  # as long as nobody listens both may be bound
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port.number))
            other.listen()
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port.number}: Address already in use"):
                await listeners.serve()
        listeners.close()
        await bridge.stop()

    uvloop.run(scene())
