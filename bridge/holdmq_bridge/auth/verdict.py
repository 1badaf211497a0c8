"""What the authenticator answers: a verdict, its reason with the codes of both protocol versions, and who it is about.

Plain values, shared by the bridge and the parts of this package.
"""

import enum
from dataclasses import dataclass, field

from holdmq_bridge.auth.rules import CompiledRules
from holdmq_bridge.base.quota import NO_QUOTA, Quota

NO_RULES = CompiledRules((), default=False)
_ADMINISTRATIVE_ACTION = 0x98
_SERVER_UNAVAILABLE_V3 = 3


class Reason(enum.Enum):
    """Why a client may or may not connect: (return code of MQTT 3.1.1, reason code of MQTT 5.0) of the CONNACK.

    Sources: MQTT 3.1.1 table 3.1, MQTT 5.0 table 3-1.
    """

    ACCEPTED = (0, 0x00)
    BAD_CREDENTIALS = (4, 0x86)  # unknown user, wrong or missing password
    NOT_AUTHORIZED = (5, 0x87)  # known but not allowed; anonymous where that is off
    SERVER_UNAVAILABLE = (_SERVER_UNAVAILABLE_V3, 0x88)  # users and rules cannot be read now
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
        """For the DISCONNECT (MQTT 5.0, table 3-13) of a client that was connected and may no longer be."""
        if self in (Reason.NOT_AUTHORIZED, Reason.SERVER_BUSY):
            return self.reason_code
        return _ADMINISTRATIVE_ACTION


class Kind(enum.Enum):
    """How a client showed who it is."""

    ANONYMOUS = "anonymous"
    PASSWORD = "password"  # noqa: S105 (the name of a kind)
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is.

    Attributes:
        kind: how it showed that.
        username: the user, None if it is anonymous. A name that nobody verified is never here.
        credential: says which password it was, without telling it; a client with another one than its user has now is
            no longer allowed.
    """

    kind: Kind
    username: str | None = None
    credential: bytes = field(default=b"", repr=False)


ANONYMOUS = Identity(Kind.ANONYMOUS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """May a client connect, and what may it do then.

    Attributes:
        allowed: whether it may connect.
        reason: for the CONNACK, or the DISCONNECT if it was connected.
        identity: who it is.
        rules: what it may do; if it is not allowed, nothing.
        detail: the reason in words, for the log; never to be told to the client.
        session_kind: application or device, if its user has to have one; else empty.
        overflow: what happens to messages for its full queue, if its user's record says; else empty.
        quota: what its user may have in the server, as far as the user's record says.
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
    """Stored users or rules were changed: whoever is concerned is to be reviewed.

    Attributes:
        version: what the rules are now.
        users: the users concerned; None: everybody is, anonymous clients too.
    """

    version: int
    users: frozenset[str] | None = None

    def concerns(self, identity: Identity) -> bool:
        """Is this client to be reviewed?"""
        return self.users is None or identity.username in self.users
