"""How a link connects: TLS, WebSocket, passwords; and what it does with what one of the sides will not take."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from holdmq.core import mqtt
from tests.bridge.uplink.support import HOST, TIMEOUT_S, LinkProcess, Local, Mosquitto, Remote, payloads
from tests.support import BridgeProcess, Server, embedded_kinds, eventually
from tests.support.ports import reserve_port

server_kinds = embedded_kinds
MakeMosquitto = Callable[..., Mosquitto]
MakeRemote = Callable[..., Remote]
MakeLink = Callable[..., LinkProcess]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = authority.issue_cert(HOST, "localhost")
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    own = authority.issue_cert("link@example.com")
    own.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "link.pem"))
    return tmp_path


def test_tls_with_a_certificate_of_the_link(
    local: Local, mosquitto: MakeMosquitto, uplink: MakeLink, certificates: Path
) -> None:
    lines = f"cafile {certificates}/ca.pem\ncertfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n"
    broker = mosquitto(f"listener {{port}} {HOST}\n{lines}require_certificate true\n")
    # By 5.0 a message that was here before is not let in; by 3.1.1 a second link may bring it back.
    more = {"tls": True, "tls_ca": f"{certificates}/ca.pem", "tls_certificate": f"{certificates}/link.pem"}
    uplink(local, broker, ['"" in 2 back/a over/a'], name="back", protocol="3.1.1", **more)
    uplink(local, broker, ['"" out 2 there/a over/a'], name="out", protocol="3.1.1", **more)
    local.listen("back/#")
    expected = [b"x" * 1_000_000, *(b"%d" % number for number in range(300))]
    for payload in expected:
        local.publish("there/a", payload, qos=2)
    eventually(lambda: len(local.received()) == len(expected), TIMEOUT_S)
    assert payloads(local.messages) == expected


def test_a_certificate_of_an_unknown_authority_is_refused(
    local: Local, mosquitto: MakeMosquitto, uplink: MakeLink, certificates: Path
) -> None:
    lines = f"certfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n"
    broker = mosquitto(f"listener {{port}} {HOST}\n{lines}")
    link = uplink(local, broker, ["a out 1"], tls=True, start=False)
    link.spawn()
    eventually(lambda: "certificate verify failed" in link.log_text(), TIMEOUT_S)
    assert not link.events("connected")


@pytest.mark.parametrize(
    ("setting", "file", "told"),
    [("tls_ca", "server.key", "tls_ca: no certificate in"), ("tls_key", "server.key", "server.key is not that of")],
)
def test_a_file_of_tls_that_cannot_be_used_is_named(
    local: Local, mosquitto: MakeMosquitto, uplink: MakeLink, certificates: Path, setting: str, file: str, told: str
) -> None:
    broker = mosquitto(f"listener {{port}} {HOST}\n")
    files = {"tls_ca": f"{certificates}/ca.pem", "tls_certificate": f"{certificates}/link.pem"}
    link = uplink(local, broker, ["a out 1"], tls=True, start=False, **files | {setting: f"{certificates}/{file}"})
    link.spawn()
    eventually(lambda: told in link.log_text(), TIMEOUT_S)


@pytest.mark.parametrize("protocol", ["5.0", "3.1.1"])
def test_websocket(
    local: Local,
    fresh_server: Callable[..., Server],
    bridge: Callable[..., BridgeProcess],
    uplink: MakeLink,
    protocol: str,
) -> None:
    there = Local(fresh_server())
    with reserve_port() as port:
        bridge(there.server, arguments=["--ws-port", str(port.number)])
        local.listen("in")
        there.listen("out")
        broker = SimpleNamespace(port=port.number)
        uplink(local, broker, ["out out 2", "in in 2"], transport="websockets", protocol=protocol)
        expected = [b"x" * 1_000_000, *(b"%d" % number for number in range(300))]
        for payload in expected:
            local.publish("out", payload, qos=2)
            there.publish("in", payload, qos=2)
        for side in (local, there):
            eventually(lambda side=side: len(side.received()) >= len(expected), TIMEOUT_S)  # type: ignore[misc] # bound now
            assert payloads(side.messages) == expected


def test_username_and_password_from_a_file(
    local: Local, mosquitto: MakeMosquitto, uplink: MakeLink, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    tool = shutil.which("mosquitto_passwd")
    assert tool is not None
    subprocess.run([tool, "-b", "-c", str(passwords), "plant", "secret"], check=True, capture_output=True)
    broker = mosquitto(f"listener {{port}} {HOST}\npassword_file {passwords}\n".replace("anonymous true", ""))
    broker.stop()
    config = Path(broker.command[-1])
    config.write_text(config.read_text().replace("allow_anonymous true", "allow_anonymous false"))
    broker.start()
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    link = uplink(local, broker, ["a out 1"], username="plant", password_file=str(secret), start=False)
    link.spawn()
    eventually(lambda: "Not authorized" in link.log_text() or "Bad user" in link.log_text(), TIMEOUT_S)
    secret.write_text("secret\n")  # read with each attempt
    link.wait_connected()


# ---- what one of the sides will not take ----


class Scripted:
    """A broker of MQTT 5.0 that says what the test lets it say."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(TIMEOUT_S)
        self.port = self._listener.getsockname()[1]
        self.published: list[mqtt.Publish] = []
        self.answer: Callable[[mqtt.Packet], bytes] = lambda _packet: b""
        self.connack = mqtt.encode_connack(False, 0, version=5)
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        unread = b""
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                return
            if not data:
                return
            decoded = mqtt.decode_many(unread + data, version=5)
            unread = (unread + data)[decoded.consumed :]
            for packet in decoded.packets:
                if isinstance(packet, mqtt.Publish):
                    self.published.append(packet)
                connection.sendall(self._said(packet))

    def _said(self, packet: mqtt.Packet) -> bytes:
        match packet:
            case mqtt.Connect():
                return self.connack
            case mqtt.Subscribe():
                return mqtt.encode_suback(packet.packet_id, [e.qos for e in packet.subscriptions], version=5)
            case mqtt.Pingreq():
                return mqtt.encode_pingresp()
        return self.answer(packet)

    def say(self, packets: bytes) -> None:
        """To the newest connection."""
        self.connections[-1].sendall(packets)

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


QUIET = {"notifications": False}


def test_a_message_that_the_other_broker_refuses_for_good_is_logged_and_does_not_block_others(
    local: Local, scripted: Scripted, uplink: MakeLink
) -> None:
    def answer(packet: mqtt.Packet) -> bytes:
        if isinstance(packet, mqtt.Publish):
            return mqtt.encode_pubrec(packet.packet_id, 0x87 if packet.payload == b"bad" else 0, version=5)
        return mqtt.encode_pubcomp(packet.packet_id) if isinstance(packet, mqtt.Pubrel) else b""

    scripted.answer = answer
    link = uplink(local, scripted, ["a out 2"], **QUIET)
    for payload in (b"1", b"bad", b"2"):
        local.publish("a", payload, qos=2)
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")
    assert payloads(scripted.published) == [b"1", b"bad", b"2"]
    assert "reason code 0x87" in link.log_text()


def test_a_quota_that_is_used_up_is_tried_again(local: Local, scripted: Scripted, uplink: MakeLink) -> None:
    refusals = iter([0x97, 0x97])

    def answer(packet: mqtt.Packet) -> bytes:
        if isinstance(packet, mqtt.Publish):
            return mqtt.encode_puback(packet.packet_id, next(refusals, 0), version=5)
        return b""

    scripted.answer = answer
    uplink(local, scripted, ["a out 1"], **QUIET)
    local.publish("a", b"1")
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")
    assert payloads(scripted.published) == [b"1", b"1", b"1"]


def test_the_other_broker_s_limits_are_kept(local: Local, scripted: Scripted, uplink: MakeLink) -> None:
    limits = mqtt.Properties(receive_maximum=3, maximum_qos=1, retain_available=0, maximum_packet_size=200)
    scripted.connack = mqtt.encode_connack(False, 0, limits, version=5)
    link = uplink(local, scripted, ["a out 2"], **QUIET)
    local.publish("a", b"x" * 300, qos=2)
    for number in range(10):
        local.publish("a", b"%d" % number, qos=2, retain=True)
    for first in range(0, 10, 3):
        last = min(first + 3, 10)
        eventually(lambda last=last: len(scripted.published) >= last, TIMEOUT_S, f"{last} messages")  # type: ignore[misc] # bound now
        assert len(scripted.published) == last
        scripted.say(b"".join(mqtt.encode_puback(message.packet_id) for message in scripted.published[first:last]))
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")
    assert {(message.qos, message.retain) for message in scripted.published} == {(1, False)}
    assert payloads(scripted.published) == [b"%d" % number for number in range(10)]
    assert "the other broker takes 200" in link.log_text()


def test_a_publish_of_qos_2_that_comes_twice_is_published_once(
    local: Local, scripted: Scripted, uplink: MakeLink
) -> None:
    local.listen("a")
    uplink(local, scripted, ["a in 2"], **QUIET)
    for dup in (False, True, True):
        scripted.say(mqtt.encode_publish(b"a", b"1", 2, dup=dup, packet_id=9, version=5))
    scripted.say(mqtt.encode_pubrel(9) + mqtt.encode_publish(b"a", b"2", 2, packet_id=9, version=5))
    eventually(lambda: payloads(local.received()) == [b"1", b"2"], TIMEOUT_S)


def test_a_topic_that_mqtt_forbids_here_is_refused_and_the_next_one_comes_in(
    local: Local, scripted: Scripted, uplink: MakeLink
) -> None:
    answers: list[mqtt.Packet] = []

    def answer(packet: mqtt.Packet) -> bytes:
        if isinstance(packet, mqtt.Puback):
            answers.append(packet)
        return b""

    scripted.answer = answer
    local.listen("long/#")
    uplink(local, scripted, [f"# in 1 long/{'x' * 200}/"], **QUIET)
    scripted.say(mqtt.encode_publish(b"y" * 65500, b"1", 1, packet_id=1, version=5))
    scripted.say(mqtt.encode_publish(b"y", b"2", 1, packet_id=2, version=5))
    eventually(lambda: payloads(local.received()) == [b"2"], TIMEOUT_S)
    eventually(lambda: len(answers) == 2, TIMEOUT_S)
    assert answers == [mqtt.Puback(1, 0x90), mqtt.Puback(2)]


def test_a_server_without_memory_gets_the_message_later(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    local.listen("a")
    link = uplink(local, broker, ["a in 2"])
    local.redis.config_set("maxmemory", "1mb")
    there.wait_acknowledged({there.publish("a", b"%d" % number, 2) for number in range(20)})
    eventually(
        lambda: link.events("no connection to the other broker") or link.events("the HoldMQ server cannot be used"),
        TIMEOUT_S,
    )
    local.redis.config_set("maxmemory", "0")
    eventually(lambda: payloads(local.received()) == [b"%d" % number for number in range(20)], TIMEOUT_S)


def test_a_flood_is_held_back_and_nothing_of_it_is_lost(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    local.listen("a")
    uplink(local, broker, ["a in 1"], max_pending=10, receive_maximum=1000)
    sent = {there.publish("a", b"%d" % number, 1) for number in range(2000)}
    there.wait_acknowledged(sent)
    eventually(lambda: len(local.received()) == 2000, TIMEOUT_S)
    assert payloads(local.messages) == [b"%d" % number for number in range(2000)]
