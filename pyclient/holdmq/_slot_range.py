"""Ranges of slots of a cluster."""

from dataclasses import dataclass
from typing import Final

SLOTS: Final = 16384
"""The number of slots of a cluster."""


@dataclass(frozen=True, slots=True)
class SlotRange:
    """A range of slots of a cluster.

    Attributes:
        first: the first slot.
        last: the last slot, included.
        address: the node to ask for them, `host:port`. Empty if it is unknown.
    """

    first: int
    last: int
    address: str = ""
