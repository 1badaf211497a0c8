"""What the bridge has to know about a client's rights; who has which is the affair of holdmq_bridge.auth.

`Permissions` is what one client may do; it does not change (a change is a new one).
"""

from dataclasses import dataclass
from typing import Protocol

from holdmq_bridge.base.quota import NO_QUOTA, Quota
from holdmq_bridge.base.reasons import Reason


class Permissions(Protocol):
    """What one client may do."""

    def may_publish(self, topic: bytes) -> bool:
        """To this topic, a will included."""

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """To this filter, `$share/<group>/<filter>` included."""

    @property
    def subscribes_freely(self) -> bool:
        """To whatever there is: no subscription has to be looked at."""

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """(allow, filter) in order, the first that matches decides; and the verdict if none does."""

    def receive_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """The same for topics that may be sent to the client."""


class _Everything:
    """No rule at all."""

    def may_publish(self, topic: bytes) -> bool:
        return True

    def may_subscribe(self, topic_filter: bytes) -> bool:
        return True

    @property
    def subscribes_freely(self) -> bool:
        return True

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        return [], True

    def receive_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        return [], True


EVERYTHING: Permissions = _Everything()
ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a client is let in.

    Attributes:
        allowed: or not, then `reason` says why.
        reason: a reason code of MQTT 5.0, 0x86 (bad user name or password) for one; SUCCESS if allowed.
        rules: what it may do.
        detail: why not, in words, for the log; the client is not told.
        session_kind: application or device, if its user has to have one; else empty.
        overflow: what happens to messages for its full queue, if its user's record says; else empty.
        identity: to whom its session belongs.
        adopts: whose sessions it may have as well; empty: nobody's.
        quota: what its user may have in the server, as far as the user's record says.
    """

    allowed: bool
    reason: int = Reason.SUCCESS
    rules: Permissions = EVERYTHING
    detail: str = ""
    session_kind: str = ""
    overflow: str = ""
    identity: str = ANONYMOUS
    adopts: str = ""
    quota: Quota = NO_QUOTA
