"""HTTPS with a certificate that may be renewed while the console runs: new connections use the new one."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NoReturn

log = logging.getLogger("holdmq.console")

CHECK_S = 2.0


async def follow(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Takes over the files each time that they have changed. Files that do not fit together change nothing."""
    stamps = _stamps(certificate, key)
    while True:
        await asyncio.sleep(CHECK_S)
        found = _stamps(certificate, key)
        if found == stamps or None in found:  # one is being replaced
            continue
        stamps = found
        try:
            check(certificate, key)
            _load(context, certificate, key)
        except (OSError, ValueError) as error:
            log.warning("the renewed certificate is not used: %s: %s", certificate, error)
        else:
            log.info("the renewed certificate is used: %s", certificate)


def check(certificate: Path, key: Path | None) -> None:
    """Loads the files once.

    Raises:
        OSError: they cannot be read, are no PEM files, do not fit together, or the key is encrypted.
    """
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


def _load(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    def encrypted() -> NoReturn:  # OpenSSL would ask at the terminal, and block the process
        raise OSError("the private key is encrypted; expected one without a passphrase")

    context.load_cert_chain(certificate, key, encrypted)


def _stamps(*names: Path | None) -> list[tuple[int, int, int] | None]:
    stamps: list[tuple[int, int, int] | None] = []
    for name in filter(None, names):
        try:
            facts = name.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((facts.st_mtime_ns, facts.st_size, facts.st_ino))
    return stamps
