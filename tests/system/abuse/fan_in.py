"""Pours publishes of QoS 1, to a receiver who acknowledges each one, and slows publishers by that."""

import contextlib
import struct

from tests.bridge import packets
from tests.system.abuse.target import BLOCK_BYTES, Target, drain, wait

MESSAGE_BYTES = 15
IDENTIFIER_AT = 12


def abuse(target: Target) -> None:
    """Two clients."""
    block = b"".join(packets.publish("abuse/in", b"x", qos=1, pid=pid) for pid in range(1, 1001))
    assert len(block) == 1000 * MESSAGE_BYTES
    with target.client("abuse-in", ("abuse/in", 1)) as receiver, target.client("abuse-in-publisher") as publisher:
        receiver.setblocking(False)
        publisher.setblocking(False)
        left, unread, acknowledged = memoryview(block), b"", b""
        while target.has_time():
            wait(receiver, publisher)
            drain(publisher)
            with contextlib.suppress(BlockingIOError):
                left = left[publisher.send(left) :] or memoryview(block)
            with contextlib.suppress(BlockingIOError):
                unread += receiver.recv(BLOCK_BYTES)
            whole = len(unread) // MESSAGE_BYTES * MESSAGE_BYTES
            for at in range(IDENTIFIER_AT, whole, MESSAGE_BYTES):
                (pid,) = struct.unpack_from(">H", unread, at)
                acknowledged += packets.puback(pid)
            with contextlib.suppress(BlockingIOError):
                acknowledged = acknowledged[receiver.send(acknowledged) :]
            unread = unread[whole:]
