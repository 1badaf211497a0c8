"""Publishes as fast as it can to a hundred clients of its own, which read and never acknowledge."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import Target, pour

RECEIVERS = 100
BURST = 500


def abuse(target: Target) -> None:
    """A publisher and its receivers."""
    block = b"".join(packets.publish("abuse/silent", b"x" * 200, qos=1, pid=pid) for pid in range(1, BURST + 1))
    with contextlib.ExitStack() as clients:
        silent = [
            clients.enter_context(target.client(f"abuse-silent-{number}", ("abuse/silent", 1)))
            for number in range(RECEIVERS)
        ]
        pour(target, clients.enter_context(target.client("abuse-silent-publisher")), block, *silent)
