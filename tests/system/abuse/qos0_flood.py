"""Pours publishes of QoS 0 to itself and to nine others, who read."""

import contextlib

from tests.bridge import packets
from tests.system.abuse.target import BLOCK_BYTES, Target, pour

OTHERS = 9


def abuse(target: Target) -> None:
    """Ten clients."""
    publish = packets.publish("abuse/flood", b"x" * 200)
    block = publish * (BLOCK_BYTES // len(publish))
    with contextlib.ExitStack() as stack:
        everybody = [stack.enter_context(target.client(f"abuse-q0-{n}", ("abuse/flood", 0))) for n in range(OTHERS + 1)]
        pour(target, everybody[0], block, *everybody[1:])
