"""The files of TLS: certificates of clients that were revoked, and what is told of files that cannot be used."""

import contextlib
import json
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from holdmq_bridge.process.settings import Settings
from holdmq_bridge.sockets.tls import tls_context
from tests.bridge import packets
from tests.bridge.certificates import Certificates, crl, dial_tls, secured
from tests.support import BridgeProcess, Server, eventually
from tests.support.ports import Port
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
READ_AGAIN = "the TLS files were read again"


class Fleet(Certificates):
    """Devices below a root and below an intermediate CA."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.crl = folder / "crl.pem"
        self.intermediate = self.authority.create_child_ca()
        self.one, self.other = (self.authority.issue_cert(name, common_name=name) for name in ("one", "other"))
        self.below = self.intermediate.issue_cert("below", common_name="below")

    def arguments(self, port: Port, *more: str) -> list[str]:
        """Of a bridge that asks for certificates that are not revoked."""
        asked = ["--tls-client-ca", str(self.ca), "--tls-client-certificates", "required", "--tls-crl", str(self.crl)]
        return secured(self, "--tls-port", port, *asked, *more)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """With no revocation list yet."""
    return Fleet(tmp_path)


class Door:
    """The port with TLS of a bridge, and what its log says of those who knock."""

    def __init__(self, made: BridgeProcess, port: Port) -> None:
        self._made, self._port = made, port

    def accepts(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSession:
        """A client gets in, and leaves; what is returned may spare its next connection the certificate."""
        with dial_tls(self._port, context, session) as connection:
            connection.sendall(packets.connect("c1"))
            assert connection.recv(10) == packets.connack()
            assert connection.session is not None
            assert connection.session_reused == (session is not None)
            return connection.session

    def refuses(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> str:
        """A client does not get in; returns why."""
        before = len(self._refusals())
        answer = b""
        with contextlib.suppress(OSError), dial_tls(self._port, context, session) as connection:
            connection.sendall(packets.connect("c1"))
            answer = connection.recv(10)
        assert answer == b""
        eventually(lambda: len(self._refusals()) == before + 1, what="a line on the refusal")
        return self._refusals()[-1]

    def _refusals(self) -> list[str]:
        lines = [json.loads(line) for line in self._made.log_text().splitlines()]
        return [line["error"] for line in lines if line["event"] == "the certificate of a client was refused"]


# ---- revoked certificates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGHUP", "file"])
def test_a_certificate_that_is_revoked_while_the_bridge_runs_is_refused_from_the_next_connect_on(
    server: Server, bridge: MakeBridge, fleet: Fleet, port: Port, how: str
) -> None:
    def put(data: bytes, event: str) -> None:
        before = made.log_text().count(event)
        fleet.crl.with_suffix(".new").write_bytes(data)
        fleet.crl.with_suffix(".new").replace(fleet.crl)
        if how != "file":
            os.kill(made.pid, signal.SIGHUP)
        eventually(lambda: made.log_text().count(event) > before, what=event)

    fleet.crl.write_bytes(crl(fleet.authority, fleet.other))
    made = bridge(server, arguments=fleet.arguments(port, "--tls-poll-s", "0.1" if how == "file" else "0"))
    door = Door(made, port)
    one, other = fleet.context(fleet.one), fleet.context(fleet.other)
    assert door.refuses(other) == "certificate revoked"
    session = door.accepts(one)
    door.accepts(one, session)
    with dial_tls(port, one) as stays:
        stays.sendall(packets.connect("c2"))
        assert stays.recv(10) == packets.connack()
        put(b"nothing\n", "cannot be used")
        assert f"tls_crl: no certificate revocation list in {fleet.crl}" in made.log_text()
        door.accepts(one, session)
        assert door.refuses(other) == "certificate revoked"
        put(crl(fleet.authority, fleet.one), READ_AGAIN)
        assert door.refuses(one) == "certificate revoked"
        assert door.refuses(one, session) == "certificate revoked"
        door.accepts(other)
        stays.sendall(packets.PINGREQ)
        assert stays.recv(10) == packets.PINGRESP


def test_no_certificate_of_the_chain_may_be_revoked_or_without_a_list_that_is_in_time(
    server: Server, bridge: MakeBridge, fleet: Fleet, port: Port
) -> None:
    root, below = fleet.authority, fleet.intermediate
    lists_and_reasons = [
        ([crl(root), crl(below, fleet.below)], "certificate revoked"),
        ([crl(root, below), crl(below)], "certificate revoked"),
        ([crl(below)], "unable to get certificate CRL"),
        ([crl(root)], "unable to get certificate CRL"),
        ([crl(root), crl(below, days=-1)], "CRL has expired"),
    ]
    fleet.crl.write_bytes(crl(root) + crl(below))
    made = bridge(server, arguments=fleet.arguments(port, "--tls-poll-s", "0"))
    door = Door(made, port)
    door.accepts(fleet.context(fleet.below))
    for number, (lists, reason) in enumerate(lists_and_reasons, 1):
        fleet.crl.write_bytes(b"".join(lists))
        os.kill(made.pid, signal.SIGHUP)
        eventually(lambda number=number: made.log_text().count(READ_AGAIN) == number)  # type: ignore[misc] # a default
        assert door.refuses(fleet.context(fleet.below)) == reason


def test_a_revocation_list_that_is_missing_ends_the_start_with_a_reason(
    server: Server, bridge: MakeBridge, fleet: Fleet, port: Port
) -> None:
    with pytest.raises(RuntimeError, match=f"tls_crl: cannot read {fleet.crl}: No such file"):
        bridge(server, arguments=fleet.arguments(port))


# ---- files that cannot be used ---------------------------------------------------------------------------------------


def encrypted(leaf: trustme.LeafCert) -> bytes:
    """Its private key, with a passphrase."""
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"secret"))


@pytest.mark.parametrize(
    ("setting", "content", "told"),
    [
        ("tls_certificate", None, "tls_certificate: cannot read .*wrong: No such file or directory"),
        ("tls_certificate", lambda fleet: fleet.key.read_bytes(), "tls_certificate: no certificate in .*wrong"),
        ("tls_key", lambda fleet: fleet.server.read_bytes(), "tls_key: no private key in .*wrong; expected PEM"),
        ("tls_key", lambda fleet: encrypted(fleet.one), "tls_key: the private key in .*wrong is encrypted"),
        ("tls_key", lambda fleet: fleet.one.private_key_pem.bytes(), "tls_key: .*wrong is not that of the first cert"),
        ("tls_client_ca", lambda fleet: crl(fleet.authority), "tls_client_ca: no certificate in .*wrong"),
        ("tls_crl", lambda fleet: fleet.ca.read_bytes(), "tls_crl: no certificate revocation list in .*wrong"),
        ("tls_crl", lambda fleet: fleet.ca.read_bytes() + crl(fleet.authority), "tls_crl: .*wrong holds a certificate"),
        ("tls_crl", lambda fleet: crl(fleet.authority)[:-40], "tls_crl: cannot use .*wrong"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported_with_its_setting(
    fleet: Fleet, tmp_path: Path, setting: str, content: Callable[[Fleet], bytes] | None, told: str
) -> None:
    fleet.crl.write_bytes(crl(fleet.authority))
    files = {"tls_certificate": fleet.server, "tls_key": fleet.key, "tls_client_ca": fleet.ca, "tls_crl": fleet.crl}
    settings = Settings(**files, tls_client_certificates="required")  # type: ignore[arg-type] # as the names say
    assert tls_context(settings).cert_store_stats() == {"x509": 1, "crl": 1, "x509_ca": 1}
    wrong = tmp_path / "wrong"
    if content is not None:
        wrong.write_bytes(content(fleet))
    with pytest.raises(OSError, match=told):
        tls_context(settings.model_copy(update={setting: wrong}))


def test_a_certificate_without_a_key_asks_for_it(fleet: Fleet) -> None:
    with pytest.raises(OSError, match=f"tls_key is missing: {fleet.server} holds the certificate without"):
        tls_context(Settings(tls_certificate=fleet.server))
    both = fleet.server.with_name("both.pem")
    both.write_bytes(fleet.key.read_bytes() + fleet.server.read_bytes())
    tls_context(Settings(tls_certificate=both))


# ---- many packets at once --------------------------------------------------------------------------------------------


def test_more_packets_than_are_taken_at_once_are_all_answered_in_order(
    server: Server, bridge: MakeBridge, fleet: Fleet, port: Port
) -> None:
    fleet.crl.write_bytes(crl(fleet.authority, fleet.other))
    bridge(server, arguments=fleet.arguments(port))
    pings = 5000
    with dial_tls(port, fleet.context(fleet.one)) as client:
        client.sendall(packets.connect("c1") + packets.PINGREQ * pings)
        client.sendall(packets.subscribe(1, ("t", 0)) + packets.PINGREQ * pings)
        answers = packets.PINGRESP * pings
        expected = packets.connack() + answers + packets.suback(1, 0) + answers
        got = b""
        while len(got) < len(expected):
            got += client.recv(65_536)
    assert got == expected
