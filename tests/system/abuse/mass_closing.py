"""Opens a thousand connections, with wills and sessions that last, and closes all of them in the same moment."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import Target, receive

COUNT = 1000
WILL = packets.Will(b"abuse/mass-closing/gone", b"gone")


def abuse(target: Target) -> None:
    """One crowd after the other."""
    while target.has_time():
        with contextlib.ExitStack() as crowd:
            for number in range(COUNT):
                if not target.has_time():
                    return
                client = crowd.enter_context(target.connection())
                client.sendall(packets.connect(f"abuse-mass-{number}", clean=False, keep_alive=0, will=WILL))
                receive(client, 4)
