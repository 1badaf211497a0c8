"""Pours PINGREQs, 32,768 in each write, and reads all answers."""

from tests.system.abuse.target import BLOCK_BYTES, Target, pour


def abuse(target: Target) -> None:
    """One client."""
    with target.client("abuse-pings") as client:
        pour(target, client, b"\xc0\0" * (BLOCK_BYTES // 2))
