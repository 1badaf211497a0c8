"""Publishes 1 MB of QoS 1 again and again to forty subscribers, who read and acknowledge."""

import contextlib
import struct

from tests.bridge import packets
from tests.system.abuse.target import BLOCK_BYTES, Target, drain, some, wait

SUBSCRIBERS = 40
PAYLOAD = b"x" * 1_000_000
WHOLE = len(packets.publish("abuse/large", PAYLOAD, qos=1, pid=1))
IDENTIFIER_AT = WHOLE - len(PAYLOAD) - 2


class Subscriber:
    """One of them."""

    def __init__(self) -> None:
        self._at = 0  # in the publish that comes now
        self._identifier = b""

    def read(self, data: bytes) -> bytes:
        """What is to be acknowledged."""
        acknowledged = b""
        while data:
            here = data[: WHOLE - self._at]
            wanted = slice(max(0, IDENTIFIER_AT - self._at), max(0, IDENTIFIER_AT + 2 - self._at))
            self._identifier += here[wanted]
            self._at += len(here)
            data = data[len(here) :]
            if self._at == WHOLE:
                acknowledged += packets.puback(struct.unpack(">H", self._identifier)[0])
                self._at, self._identifier = 0, b""
        return acknowledged


def abuse(target: Target) -> None:
    """Forty-one clients."""
    with contextlib.ExitStack() as stack:
        sockets = {
            stack.enter_context(target.client(f"abuse-large-{number}", ("abuse/large", 1))): Subscriber()
            for number in range(SUBSCRIBERS)
        }
        publisher = stack.enter_context(target.client("abuse-large-publisher"))
        for one in (*sockets, publisher):
            one.setblocking(False)
        block = packets.publish("abuse/large", PAYLOAD, qos=1, pid=1)
        left = memoryview(block)
        while target.has_time():
            wait(*sockets, publisher)
            drain(publisher)
            with contextlib.suppress(BlockingIOError):
                left = left[publisher.send(left[:BLOCK_BYTES]) :] or memoryview(block)
            for one, subscriber in sockets.items():
                with contextlib.suppress(BlockingIOError):
                    one.send(subscriber.read(some(one)))
