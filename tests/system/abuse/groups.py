"""A member of a group gets thousands of messages and takes none, leaves, and comes again."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import Target, pour_some

FILTER = ("$share/abuse/abuse/group", 1)
MESSAGES = 5000


def abuse(target: Target) -> None:
    """Three members, of whom one leaves, and a publisher."""
    publishes = b"".join(packets.publish("abuse/group", b"x" * 50, qos=1, pid=pid) for pid in range(1, MESSAGES + 1))
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(target.client("abuse-group-publisher"))
        for number in range(2):
            stack.enter_context(target.client(f"abuse-group-{number}", FILTER))
        while target.has_time():
            with target.client("abuse-group-leaves", FILTER):
                pour_some(target, publisher, publishes)
