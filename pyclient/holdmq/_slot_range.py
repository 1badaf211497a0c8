"""Slots of a cluster, as nodes name those that they did not serve."""

from dataclasses import dataclass
from typing import Final

SLOTS: Final = 16384
"""Slots of a cluster."""


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots of a cluster, both ends included, and where to ask for them: `host:port`, empty if that is not known."""

    first: int
    last: int
    address: str = ""
