"""Logs in with random names and passwords, fifty at a time."""

import contextlib
import secrets

from tests.bridge import packets
from tests.system.abuse.target import Target

AT_A_TIME = 50


def abuse(target: Target) -> None:
    """Fifty peers, then the next fifty."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(target.connection()) for _ in range(AT_A_TIME)]
        for peer in peers:
            peer.sendall(packets.connect(f"abuse-{secrets.token_hex(4)}", username=secrets.token_hex(4), password=b"x"))
        for peer in peers:
            with contextlib.suppress(TimeoutError, ConnectionError):
                peer.recv(4)
