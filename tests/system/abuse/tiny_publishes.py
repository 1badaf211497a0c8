"""Pours publishes of QoS 0 without a payload, 9,000 in each write, to a topic without subscribers."""

from tests.bridge import packets
from tests.system.abuse.target import BLOCK_BYTES, Target, pour


def abuse(target: Target) -> None:
    """One client."""
    publish = packets.publish("abuse/t")
    with target.client("abuse-tiny") as client:
        pour(target, client, publish * (BLOCK_BYTES // len(publish)))
