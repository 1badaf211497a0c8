"""Logs in as another user with the client ids of the quiet pair, a hundred times a second."""

import time

from tests.bridge import packets
from tests.system.abuse.target import PASSWORD, USER, Target, receive

QUIET = ("quiet-pub-0", "quiet-sub-0")
REFUSED = 5


def abuse(target: Target) -> None:
    """One client after the other."""
    while target.has_time():
        for name in QUIET:
            with target.connection() as thief:
                thief.sendall(packets.connect(name, username=USER, password=PASSWORD))
                code = receive(thief, 4)[3]
                if code != REFUSED:
                    raise AssertionError(f"{name} was given to a thief: return code {code}")
        time.sleep(0.02)
