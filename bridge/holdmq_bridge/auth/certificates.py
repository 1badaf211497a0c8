"""Who a client certificate is: a name from its subject or its alternative names, as the settings say.

Takes what `ssl.SSLSocket.getpeercert()` returns for a certificate that TLS has verified; verifying is TLS's work, not
ours. Invariant: a name that is ambiguous is no name: two common names, or two alternative names of the kind asked for,
identify nobody, because one of them could have been slipped in.
"""

import enum
from collections.abc import Mapping
from typing import Any

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.records import check_name


class CertificateName(enum.StrEnum):
    """Which part of a certificate is the username."""

    NONE = "none"  # certificates identify nobody: username and password do
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
    """The certificate has no usable name; says why."""


def certificate_identity(certificate: Mapping[str, Any] | None, name: CertificateName) -> str | None:
    """The username that a certificate stands for; None if there is no certificate or it is not asked.

    Args:
        certificate: as `getpeercert()` returns it.
        name: which part to take.

    Raises:
        CertificateError: it does not have exactly one such name, or one that no user can have.
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
        raise CertificateError(f"the certificate has {len(found)} names of the kind {name.value}, expected one")
    try:
        return check_name(found[0], f"certificate name ({name.value})")
    except ArgumentError as error:
        raise CertificateError(str(error)) from error
