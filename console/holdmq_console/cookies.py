"""Signs the login in a cookie, and checks it. Pure: no I/O, no clock.

    cookie = base64url(JSON of the login) "." base64url(HMAC-SHA-256 of the first part)

Invariants
 1. Every login that `read` returns was signed with the same key.
 2. A CSRF token belongs to one login: it is an HMAC over the login's id, with another prefix than a cookie's.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass

MAX_COOKIE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Login:
    """What a cookie says.

    Attributes:
        user: the user's name.
        id: the login's own id.
        expires: when it ends, in seconds since 1970.
        credential: of which password it was, without revealing it.
    """

    user: str
    id: str
    expires: int
    credential: str


def credential_of(stored: str) -> str:
    """Says which stored password hash it is, without revealing it."""
    return hashlib.sha256(b"holdmq console credential\0" + stored.encode()).hexdigest()[:32]


def write(login: Login, key: bytes) -> str:
    """Makes the cookie of a login."""
    body = _encoded(json.dumps(asdict(login), ensure_ascii=True, separators=(",", ":")).encode())
    return f"{body}.{_signature(b'cookie', body, key)}"


def read(cookie: str, key: bytes) -> Login | None:
    """The login in a cookie; None if it was not signed with the key."""
    body, dot, signature = cookie.partition(".")
    if not dot or len(cookie) > MAX_COOKIE_BYTES or not cookie.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(b"cookie", body, key)):
        return None
    try:
        return Login(**json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except (ValueError, TypeError, binascii.Error):  # signed by another version of the console
        return None


def csrf_of(login_id: str, key: bytes) -> str:
    """What the forms of a login have to carry."""
    return _signature(b"csrf", login_id, key)


def same(one: str, other: str) -> bool:
    """Compares two secrets in a time that does not depend on them."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def _signature(what: bytes, body: str, key: bytes) -> str:
    return _encoded(hmac.digest(key, what + b"\0" + body.encode(), "sha256"))


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
