"""The username in a client certificate: from its subject or its alternative names, by the settings.

Takes the result of `ssl.SSLSocket.getpeercert()` for a certificate that TLS has verified. Invariant: an ambiguous name
is no name. Two common names, or two alternative names of the same kind, identify no user: one of them may be forged.
"""

import enum
from collections.abc import Mapping
from typing import Any

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.records import check_name


class CertificateName(enum.StrEnum):
    """The part of a certificate that is the username."""

    NONE = "none"  # username and password identify a client
    CN = "cn"
    SAN_DNS = "san-dns"
    SAN_EMAIL = "san-email"
    SAN_URI = "san-uri"


_ALTERNATIVE = {
    CertificateName.SAN_DNS: "DNS",
    CertificateName.SAN_EMAIL: "email",
    CertificateName.SAN_URI: "URI",
}


class CertificateError(ValueError):
    """The certificate has no usable name. The text says why."""


def certificate_identity(certificate: Mapping[str, Any] | None, name: CertificateName) -> str | None:
    """The username of a certificate; None without a certificate, or if certificates do not count.

    Args:
        certificate: as `getpeercert()` returns it.
        name: the part to take.

    Raises:
        CertificateError: it does not have exactly one such name, or the name is not a valid username.
    """
    if name is CertificateName.NONE or not certificate:
        return None
    if name is CertificateName.CN:
        parts = (part for relative in certificate.get("subject", ()) for part in relative)
        found = [str(value) for key, value in parts if key == "commonName"]
    else:
        kind = _ALTERNATIVE[name]
        found = [str(value) for key, value in certificate.get("subjectAltName", ()) if key == kind]
    if len(found) != 1:
        raise CertificateError(f"the certificate has {len(found)} names of the kind {name.value}; expected one")
    try:
        return check_name(found[0], f"certificate name ({name.value})")
    except ArgumentError as error:
        raise CertificateError(str(error)) from error
