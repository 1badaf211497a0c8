"""The rights of a client, as its session uses them.  holdmq_bridge.auth decides who has which.

A `Permissions` object never changes: new rights are a new object.
"""

from dataclasses import dataclass
from typing import Protocol

from holdmq_bridge.base.quota import NO_QUOTA, Quota
from holdmq_bridge.base.reasons import Reason


class Permissions(Protocol):
    """What one client may do."""

    def may_publish(self, topic: bytes) -> bool:
        """Whether it may publish to this topic, also by a will."""

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """Whether it may subscribe to this filter, also to `$share/<group>/<filter>`."""

    @property
    def subscribes_freely(self) -> bool:
        """Whether it may subscribe to everything: no subscription needs a check."""

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """Pairs (allow, filter), of which the first match decides; and the verdict if none matches."""

    def receive_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """The same for messages to the client."""


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
    """Whether a client may connect, and with which rights.

    Attributes:
        allowed: whether it may.
        reason: reason code of MQTT 5.0, such as 0x86 (bad user name or password); SUCCESS if allowed.
        rules: its rights.
        detail: why it may not, in words: for the log, not for the client.
        session_kind: application or device, if the user's record fixes it; else empty.
        overflow: what happens to messages for a full queue, if the user's record says; else empty.
        identity: the owner of its session.
        adopts: another identity whose sessions it may take over; empty: none.
        quota: bounds of the user's record.
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
