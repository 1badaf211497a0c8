"""Publishes again and again to thousands of sessions of its own, whose clients are away."""

from tests.bridge import packets
from tests.system.abuse.target import Target, pour

SESSIONS = 3000


def prepare(target: Target) -> None:
    """The sessions."""
    target.leave_sessions("abuse-wide", SESSIONS, "abuse/wide")


def abuse(target: Target) -> None:
    """A publisher."""
    with target.client("abuse-wide-publisher") as publisher:
        pour(target, publisher, packets.publish("abuse/wide", b"x" * 20, qos=1, pid=1))
