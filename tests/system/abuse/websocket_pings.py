"""Pours pings over three WebSockets before it logs in, and reads no pong."""

import contextlib
import time

from tests.system.abuse.target import BLOCK_BYTES, PING, Target, frame, wait

PEERS = 3
LONGEST_S = 8.0  # a connection without a CONNECT is closed after 10 s


def abuse(target: Target) -> None:
    """Three peers, made again now and then."""
    ping = frame(PING, b"p" * 125)
    block = ping * (BLOCK_BYTES // len(ping))
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(target.websocket(receive_buffer=4096)) for _ in range(PEERS)]
        left = dict.fromkeys(peers, memoryview(block))
        for peer in peers:
            peer.setblocking(False)
        until = time.monotonic() + LONGEST_S
        while target.has_time() and time.monotonic() < until:
            wait(*peers)
            for peer in peers:
                with contextlib.suppress(BlockingIOError):
                    left[peer] = left[peer][peer.send(left[peer]) :] or memoryview(block)
