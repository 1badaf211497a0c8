"""Slots of a cluster: which nodes own them, and what is left of a range.

For commands that every node executes for its own slots (`holdmq.commands.for_slots`).

Examples:
    >>> from holdmq.commands import SlotRange
    >>> gaps(SlotRange(0, 99), [SlotRange(10, 19), SlotRange(50, 99)])
    [SlotRange(first=0, last=9, address=''), SlotRange(first=20, last=49, address='')]
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdmq.commands import SLOTS, SlotRange

__all__ = ["gaps", "mask_of", "node_at", "overlaps", "owners", "ranges_in"]


def node_at(cluster: Any, address: str) -> Any:
    """The node at `host:port`. None if the client does not know it.

    Args:
        cluster: a cluster client of redis-py.
        address: as a reply names it.
    """
    host, _, port = address.rpartition(":")
    return cluster.get_node(host=host, port=int(port)) if host and port.isdigit() else None


def owners(table: dict[int, Sequence[Any]]) -> Iterator[tuple[SlotRange, Any]]:
    """The ranges of slots with their primaries. O(slots).

    Args:
        table: the nodes of each slot, the primary first: `slots_cache` of redis-py.
    """
    first, last, owner = 0, -1, None
    for slot in range(SLOTS):
        nodes = table.get(slot)
        node = nodes[0] if nodes else None
        if node is not owner or node is None:
            if owner is not None:
                yield SlotRange(first, last), owner
            first, owner = slot, node
        last = slot
    if owner is not None:
        yield SlotRange(first, last), owner


def mask_of(ranges: Iterable[SlotRange]) -> int:
    """The slots of ranges as the bits of a number.

    Examples:
        >>> bin(mask_of([SlotRange(0, 1), SlotRange(3, 3)]))
        '0b1011'
    """
    mask = 0
    for part in ranges:
        mask |= (1 << part.last + 1) - (1 << part.first)
    return mask


def ranges_in(mask: int) -> list[SlotRange]:
    """The ranges of the slots whose bits are set.

    Examples:
        >>> ranges_in(0b1011)
        [SlotRange(first=0, last=1, address=''), SlotRange(first=3, last=3, address='')]
    """
    found, first = [], 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        length = (~mask & mask + 1).bit_length() - 1
        found.append(SlotRange(first + gap, first + gap + length - 1))
        mask >>= length
        first += gap + length
    return found


def overlaps(part: SlotRange, known: Iterable[tuple[SlotRange, Any]]) -> list[tuple[SlotRange, Any]]:
    """The parts of a range that are in known ranges, each with its node."""
    return [
        (SlotRange(max(part.first, own.first), min(part.last, own.last)), node)
        for own, node in known
        if own.first <= part.last and own.last >= part.first
    ]


def gaps(part: SlotRange, pieces: Iterable[SlotRange]) -> list[SlotRange]:
    """The parts of a range that are in none of its ordered pieces."""
    left, first = [], part.first
    for piece in pieces:
        if piece.first > first:
            left.append(SlotRange(first, piece.first - 1))
        first = piece.last + 1
    if first <= part.last:
        left.append(SlotRange(first, part.last))
    return left
