"""Who a client certificate is. What OpenSSL makes of a certificate is taken from a real handshake in memory."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from holdmq_bridge.auth import CertificateError, CertificateName, certificate_identity, is_loopback

# C=DE, O=Example, CN=device-7; DNS:device-7.example.org, email:d7@example.org, URI:urn:dev:7, IP:10.0.0.7
PEM = Path(__file__).with_name("device-7.pem")


@pytest.fixture(scope="module")
def certificate() -> dict[str, Any]:
    """What a server sees of its client's certificate."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(PEM))
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(PEM))
    client.check_hostname = False
    for context in (server, client):
        context.load_cert_chain(PEM)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_server = server.wrap_bio(to_server, to_client, server_side=True)
    at_client = client.wrap_bio(to_client, to_server)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (at_client, at_server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    assert done == {at_client, at_server}
    found = at_server.getpeercert()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", None), ("cn", "device-7"), ("san-dns", "device-7.example.org"), ("san-email", "d7@example.org"),
        ("san-uri", "urn:dev:7"),
    ],
)  # fmt: skip
def test_the_name_is_taken_from_where_the_settings_say(
    certificate: dict[str, Any], name: str, expected: str | None
) -> None:
    assert certificate_identity(certificate, CertificateName(name)) == expected


def test_without_a_certificate_there_is_no_name() -> None:
    assert certificate_identity(None, CertificateName.CN) is None
    assert certificate_identity({}, CertificateName.CN) is None


@pytest.mark.parametrize(
    "certificate",
    [
        {"subject": ((("commonName", "a"),), (("commonName", "b"),))},
        {"subject": ((("organizationName", "a"),),)},
        {"subject": ((("commonName", ""),),)},
        {"subject": ((("commonName", "a\x00b"),),)},
        {"subject": ((("commonName", "a\nb"),),)},
        {"subject": ((("commonName", "x" * 2000),),)},
    ],
)
def test_an_ambiguous_or_impossible_name_identifies_nobody(certificate: dict[str, Any]) -> None:
    with pytest.raises(CertificateError):
        certificate_identity(certificate, CertificateName.CN)


def test_two_alternative_names_of_a_kind_identify_nobody() -> None:
    found = {"subjectAltName": (("DNS", "a"), ("DNS", "b"), ("URI", "c"))}
    with pytest.raises(CertificateError, match="2 names"):
        certificate_identity(found, CertificateName.SAN_DNS)
    assert certificate_identity(found, CertificateName.SAN_URI) == "c"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("/run/mqtt.sock", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.1", False), ("broker.example.org", False), ("", False),  # noqa: S104
    ],
)  # fmt: skip
def test_loopback_is_what_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) is local
