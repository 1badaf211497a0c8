"""Opens a thousand connections, with wills and sessions that last, and keeps silent: they expire in the same moment."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import Target, receive

COUNT = 1000
WILL = packets.Will(b"abuse/silence/gone", b"gone")


def abuse(target: Target) -> None:
    """One crowd after the other; the last packet of each is sent when all are there."""
    while target.has_time():
        with contextlib.ExitStack() as opened:
            crowd = []
            for number in range(COUNT):
                if not target.has_time():
                    return
                client = opened.enter_context(target.connection())
                client.sendall(packets.connect(f"abuse-silent-{number}", clean=False, keep_alive=2, will=WILL))
                receive(client, 4)
                crowd.append(client)
            for client in crowd:
                client.sendall(packets.PINGREQ)
            for client in crowd:
                while client.recv(16):  # PINGRESP, and the end
                    pass
