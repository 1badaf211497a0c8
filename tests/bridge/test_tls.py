"""The files of TLS: what is told of those that cannot be used."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from holdmq_bridge.settings import Settings
from holdmq_bridge.tls import tls_context
from tests.bridge.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Made for one test."""
    return Certificates(tmp_path)


def encrypted(leaf: trustme.LeafCert) -> bytes:
    """Its private key, with a passphrase."""
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"secret"))


@pytest.mark.parametrize(
    ("setting", "content", "told"),
    [
        ("tls_certificate", None, "tls_certificate: cannot read .*wrong: No such file or directory"),
        (
            "tls_certificate",
            lambda certificates: certificates.key.read_bytes(),
            "tls_certificate: no certificate in .*wrong",
        ),
        (
            "tls_key",
            lambda certificates: certificates.server.read_bytes(),
            "tls_key: no private key in .*wrong; expected PEM",
        ),
        (
            "tls_key",
            lambda certificates: encrypted(certificates.authority.issue_cert("one")),
            "tls_key: the private key in .*wrong is encrypted",
        ),
        (
            "tls_key",
            lambda certificates: certificates.authority.issue_cert("one").private_key_pem.bytes(),
            "tls_key: .*wrong is not that of the first cert",
        ),
        (
            "tls_client_ca",
            lambda certificates: certificates.key.read_bytes(),
            "tls_client_ca: no certificate in .*wrong",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_setting(
    certificates: Certificates, tmp_path: Path, setting: str, content: Callable[[Certificates], bytes] | None, told: str
) -> None:
    files = {"tls_certificate": certificates.server, "tls_key": certificates.key, "tls_client_ca": certificates.ca}
    settings = Settings(**files, tls_client_certificates="required")  # type: ignore[arg-type] # as the names say
    assert tls_context(settings).cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
    wrong = tmp_path / "wrong"
    if content is not None:
        wrong.write_bytes(content(certificates))
    with pytest.raises(OSError, match=told):
        tls_context(settings.model_copy(update={setting: wrong}))


def test_a_certificate_without_a_key_asks_for_it(certificates: Certificates) -> None:
    with pytest.raises(OSError, match=f"tls_key is missing: {certificates.server} holds the certificate without"):
        tls_context(Settings(tls_certificate=certificates.server))
    both = certificates.server.with_name("both.pem")
    both.write_bytes(certificates.key.read_bytes() + certificates.server.read_bytes())
    tls_context(Settings(tls_certificate=both))
