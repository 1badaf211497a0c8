"""Publishes as fast as it can to a hundred sessions of its own, whose clients are away."""

from tests.bridge import packets
from tests.system.abuse.target import Target, pour

SESSIONS = 100
BURST = 200


def prepare(target: Target) -> None:
    """The sessions."""
    target.leave_sessions("abuse-fan-out", SESSIONS, "abuse/fan-out/#")


def abuse(target: Target) -> None:
    """A publisher."""
    block = b"".join(
        packets.publish(f"abuse/fan-out/{pid % 7}", b"x" * 50, qos=1, pid=pid) for pid in range(1, BURST + 1)
    )
    with target.client("abuse-fan-out-publisher") as publisher:
        pour(target, publisher, block)
