"""The answers of the authenticator: verdicts, reasons with the codes of both protocol versions, identities, changes."""

import enum
from dataclasses import dataclass, field

from holdmq_bridge.auth.rules import CompiledRules
from holdmq_bridge.base.quota import NO_QUOTA, Quota

NO_RULES = CompiledRules((), default=False)
_ADMINISTRATIVE_ACTION = 0x98
_SERVER_UNAVAILABLE_V3 = 3


class Reason(enum.Enum):
    """Why a client may or may not connect: return code of MQTT 3.1.1, and reason code of MQTT 5.0.

    Sources: MQTT 3.1.1 table 3.1, MQTT 5.0 table 3-1.
    """

    ACCEPTED = (0, 0x00)
    BAD_CREDENTIALS = (4, 0x86)  # unknown user, wrong or missing password
    NOT_AUTHORIZED = (5, 0x87)  # known but not allowed, or anonymous where that is not allowed
    SERVER_UNAVAILABLE = (_SERVER_UNAVAILABLE_V3, 0x88)  # users and rules cannot be read
    SERVER_BUSY = (_SERVER_UNAVAILABLE_V3, 0x89)  # too many logins are waiting
    BANNED = (5, 0x8A)  # a blocked client id, or too many failures

    @property
    def return_code(self) -> int:
        """For a CONNACK of MQTT 3.1.1."""
        return int(self.value[0])

    @property
    def reason_code(self) -> int:
        """For a CONNACK of MQTT 5.0."""
        return int(self.value[1])

    @property
    def disconnect_code(self) -> int:
        """For the DISCONNECT of a connected client (MQTT 5.0, table 3-13)."""
        if self in (Reason.NOT_AUTHORIZED, Reason.SERVER_BUSY):
            return self.reason_code
        return _ADMINISTRATIVE_ACTION


class Kind(enum.Enum):
    """How a client proved its identity."""

    ANONYMOUS = "anonymous"
    PASSWORD = "password"  # noqa: S105 (the name of a kind)
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is.

    Attributes:
        kind: how it proved that.
        username: the user; None if anonymous. The name is always verified.
        credential: a digest of the stored password hash. If the user's password has changed since, the client is no
            longer allowed.
    """

    kind: Kind
    username: str | None = None
    credential: bytes = field(default=b"", repr=False)


ANONYMOUS = Identity(Kind.ANONYMOUS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a client may connect, and with which rights.

    Attributes:
        allowed: whether it may connect.
        reason: for the CONNACK, or the DISCONNECT of a connected client.
        identity: of the client.
        rules: its rights; none if it is not allowed.
        detail: the reason in words: for the log, never for the client.
        session_kind: application or device, if the user's record fixes it; else empty.
        overflow: what happens to messages for a full queue, if the user's record says; else empty.
        quota: bounds of the user's record.
    """

    allowed: bool
    reason: Reason
    identity: Identity = ANONYMOUS
    rules: CompiledRules = NO_RULES
    detail: str = ""
    session_kind: str = ""
    overflow: str = ""
    quota: Quota = NO_QUOTA


@dataclass(frozen=True, slots=True)
class Change:
    """A change of stored users or rules. The clients that it concerns need a review.

    Attributes:
        version: of the rules now.
        users: the users concerned; None: all clients, also anonymous ones.
    """

    version: int
    users: frozenset[str] | None = None

    def concerns(self, identity: Identity) -> bool:
        """Whether a client of this identity needs a review."""
        return self.users is None or identity.username in self.users
