"""Who may connect and what it may do, as the bridge asks: the interface of an authenticator, and one that allows all.

    client_id, username, password, certificate ──► authenticate ──► Verdict: allowed or not, identity, rules
    later, when what is stored has changed     ──► on_change    ──► the bridge asks again

`Permissions` is what one client may do; it does not change (a change is a new one).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from holdmq_bridge.reasons import Reason


class Permissions(Protocol):
    """What one client may do."""

    def may_publish(self, topic: bytes) -> bool:
        """To this topic, a will included."""

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """To this filter, `$share/<group>/<filter>` included."""

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        """(allow, filter) in order, the first that matches decides; and the verdict if none does."""


class _Everything:
    """No rule at all."""

    def may_publish(self, topic: bytes) -> bool:
        return True

    def may_subscribe(self, topic_filter: bytes) -> bool:
        return True

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        return [], True


EVERYTHING: Permissions = _Everything()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a client is let in.

    Attributes:
        allowed: or not, then `reason` says why.
        reason: a reason code of MQTT 5.0, 0x86 (bad user name or password) for one; SUCCESS if allowed.
        identity: who it is, for the logs.
        rules: what it may do.
        detail: why not, in words, for the log; the client is not told.
    """

    allowed: bool
    reason: int = Reason.SUCCESS
    identity: str = ""
    rules: Permissions = EVERYTHING
    detail: str = ""


class Authenticator(Protocol):
    """Decides who is let in."""

    def authenticate(
        self, client_id: bytes, username: bytes | None, password: bytes | None, certificate_identity: str | None
    ) -> Verdict | Awaitable[Verdict]:
        """The verdict; one that takes its time (a slow hash, by intent) is awaited, and nobody else waits for it."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this, in the event loop, when verdicts or rules may have changed."""


class AllowAll:
    """Everybody may do everything: for a bridge without any users, behind a closed door."""

    def authenticate(
        self, client_id: bytes, username: bytes | None, password: bytes | None, certificate_identity: str | None
    ) -> Verdict:
        """Always allowed."""
        return _ALLOWED

    def on_change(self, callback: Callable[[], None]) -> None:
        """Nothing ever changes."""


_ALLOWED = Verdict(True)
