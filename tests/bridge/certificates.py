"""Certificates for tests, as files: an authority, the server's certificate, those of clients, lists of revoked ones."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from tests.support.ports import Port

TIMEOUT_S = 10.0


class Certificates:
    """An authority, the server's certificate and a client's, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = trustme.CA()
        self.ca, self.server, self.key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
        self.authority.cert_pem.write_to_path(str(self.ca))
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.server.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))

    def context(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """What a client trusts, and is."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context


def secured(certificates: Certificates, option: str, port: Port, *more: str) -> list[str]:
    """Arguments of a bridge with a listener over TLS."""
    files = ["--tls-certificate", str(certificates.server), "--tls-key", str(certificates.key)]
    return [option, str(port.number), *files, *more]


def dial_tls(port: Port, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    """A connection; with a session of a former one it need not show its certificate again.  Raises OSError."""
    plain = socket.create_connection(("127.0.0.1", port.number), TIMEOUT_S)
    try:
        return context.wrap_socket(plain, server_hostname="localhost", session=session)
    except BaseException:
        plain.close()
        raise


def crl(authority: trustme.CA, *revoked: trustme.LeafCert | trustme.CA, days: int = 1) -> bytes:
    """A revocation list in PEM whose next update is due in so many days."""
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    made = x509.CertificateRevocationListBuilder(issuer.subject, now - timedelta(days=9), now + timedelta(days=days))
    for one in revoked:
        pem = one.cert_pem if isinstance(one, trustme.CA) else one.cert_chain_pems[0]
        serial = x509.load_pem_x509_certificate(pem.bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(days=1))
        made = made.add_revoked_certificate(entry.build())
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
