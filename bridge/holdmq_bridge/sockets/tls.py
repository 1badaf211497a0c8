"""Loads the TLS files into a context.  An error names the file and what is wrong with it.

A link to another broker loads its files here, too.  A context never changes: changed files make a new one, with ticket
keys of its own.  So a client cannot resume a TLS session that began under the former files.  The former context and its
revocation lists are freed with their last connection.

Not O(1): making a context reads all files.  Each handshake verifies the signatures of the revocation lists it needs.
"""

import re
import ssl
from pathlib import Path
from typing import NoReturn

from holdmq_bridge.base.logs import Log
from holdmq_bridge.process.settings import Settings

log = Log("tls")

_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
_CRL = re.compile(rb"-----BEGIN X509 CRL-----")
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class _Handshake(ssl.SSLObject):
    """The server's side of a connection.  Logs a handshake that fails, which asyncio drops silently.

    The client's address is not known here.  It would be with `start_tls` on an accepted transport, but uvloop reads
    right after connection_made even if that pauses reading: an early hello would be lost.
    """

    def do_handshake(self) -> None:
        """Raises what ssl.SSLObject raises."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLCertVerificationError as error:
            log.warning("the certificate of a client was refused", error=error.verify_message)
            raise
        except ssl.SSLError as error:
            log.info("a TLS handshake failed", error=error.reason or error)
            raise


def tls_context(settings: Settings) -> ssl.SSLContext:
    """The context of the ports with TLS.

    Raises:
        OSError: a file cannot be read, or does not hold what its setting expects; the text says which and what.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Handshake
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert settings.tls_certificate is not None
    load_certificate(context, settings.tls_certificate, settings.tls_key)
    if settings.tls_crl is not None:  # before the CAs, so that everything in the store is from this file
        _load_crl(context, settings.tls_crl)
    if settings.tls_client_ca is not None:
        load_authorities(context, "tls_client_ca", settings.tls_client_ca)
    context.verify_mode = _VERIFY[settings.tls_client_certificates]
    return context


def tls_stamps(settings: Settings) -> list[tuple[int, int, int] | None]:
    """Time, size and inode of each TLS file, by which a change is noticed; None for an unreadable one."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca, settings.tls_crl):
        try:
            facts = None if name is None else name.stat()
        except OSError:
            facts = None
        stamps.append(None if facts is None else (facts.st_mtime_ns, facts.st_size, facts.st_ino))
    return stamps


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Loads the own certificate and its key (None: from the same file).  Raises OSError like `tls_context`."""
    _expect("tls_certificate", certificate, _CERTIFICATE, "certificate")
    if key is not None:
        _expect("tls_key", key, _KEY, "private key")
    elif _KEY.search(_read("tls_certificate", certificate)) is None:
        raise OSError(f"tls_key is missing: {certificate} holds the certificate without its private key")

    def encrypted() -> NoReturn:  # OpenSSL would ask at the terminal, and block the process
        where = "tls_key" if key is not None else "tls_certificate"
        name = key or certificate
        raise OSError(f"{where}: the private key in {name} is encrypted; expected one without a passphrase")

    try:
        context.load_cert_chain(certificate, key, encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            first = f"the first certificate in {certificate}"
            raise OSError(f"tls_key: the private key in {key or certificate} is not that of {first}") from error
        files = f"{certificate} and {key}" if key is not None else str(certificate)
        raise OSError(f"tls_certificate, tls_key: cannot use {files}: {error}") from error


def load_authorities(context: ssl.SSLContext, setting: str, name: Path) -> None:
    """Trusts the certificates in the file that the setting names.  Raises OSError like `tls_context`."""
    _expect(setting, name, _CERTIFICATE, "certificate")
    try:
        context.load_verify_locations(name)
    except ssl.SSLError as error:
        raise OSError(f"{setting}: cannot use {name}: {error}") from error


def _load_crl(context: ssl.SSLContext, name: Path) -> None:
    """Checks the whole chain: a revoked intermediate CA must not vouch any more."""
    _expect("tls_crl", name, _CRL, "certificate revocation list")
    try:
        context.load_verify_locations(name)
    except ssl.SSLError as error:
        raise OSError(f"tls_crl: cannot use {name}: {error}") from error
    if context.cert_store_stats()["x509"]:  # it would be trusted
        raise OSError(f"tls_crl: {name} holds a certificate; expected certificate revocation lists alone")
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _expect(setting: str, name: Path, pattern: re.Pattern[bytes], what: str) -> None:
    if pattern.search(_read(setting, name)) is None:
        raise OSError(f"{setting}: no {what} in {name}; expected PEM")


def _read(setting: str, name: Path) -> bytes:
    try:
        return name.read_bytes()
    except OSError as error:
        raise OSError(f"{setting}: cannot read {name}: {error.strerror}") from error
