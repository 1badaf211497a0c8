"""Ten subscribers who never read get messages of 10 KB (QoS 0) and 1 KB (QoS 1), as many as can be sent."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import Target, pour

READERS = 10


def abuse(target: Target) -> None:
    """Eleven clients."""
    block = packets.publish("abuse/slow", b"x" * 10_000) + packets.publish("abuse/slow", b"y" * 1_000, qos=1, pid=1)
    with contextlib.ExitStack() as stack:
        for number in range(READERS):
            stack.enter_context(target.client(f"abuse-slow-{number}", ("abuse/slow", 1)))
        pour(target, stack.enter_context(target.client("abuse-slow-publisher")), block)
