"""Holds two hundred connections, each with a CONNECT of 60,000 bytes of which the last one never comes."""

import contextlib
import time

from tests.bridge import packets
from tests.system.abuse.target import Target

CONNECTIONS = 200
HELD_S = 0.5


def abuse(target: Target) -> None:
    """Two hundred peers; those that are closed come again."""
    half = packets.connect("abuse-half", username="u", password=b"x" * 60_000)[:-1]
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            if not target.has_time():
                return
            with contextlib.suppress(ConnectionError):
                stack.enter_context(target.connection()).sendall(half)
        time.sleep(HELD_S)
