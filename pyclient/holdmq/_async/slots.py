"""Commands for all slots of a cluster: each node executes them for its own slots, and each slot is served exactly once.

A node replies which of the requested slots it did not serve (`SLOTS` in docs/commands/topic.md). Those are requested
again, elsewhere or later. Invariants:

1. Served slots are not requested again, so nothing is stored twice. Other slots are, so nothing is missed.
2. A command with pages is asked for again as a whole: `merge` removes what was listed before.
3. Retries end: when the time is over, `MovingError` names the slots that are left.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from holdmq import commands
from holdmq._async.link import AsyncLink
from holdmq._async.patience import AsyncPatience
from holdmq.commands import Command, SlotRange
from holdmq.errors import MovingError, is_demoted
from holdmq.slots import gaps, node_at, overlaps, owners

T = TypeVar("T")


class AsyncSlots:
    """The node of each slot, as far as the cluster client knows it."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self._owners: list[tuple[SlotRange, Any]] = []  # in the order of the slots; empty: unknown

    async def execute(self, command: Command[T]) -> T:
        """Executes a command for every slot and merges the results.

        Raises:
            MovingError: some slots were still moving when the time was over. The others were served.
        """
        parts: list[T] = []
        left = [SlotRange(0, commands.SLOTS - 1)]
        patience = AsyncPatience(self._link.moving_timeout)
        while left:
            left = await self._ask(command, left, parts)
            if left and not all(part.address for part in left):
                self._owners = []
                if await patience.wait():
                    await self._link.reload()
            if left and patience.is_over:
                raise MovingError.of(command.words[0], left)
        return command.merge(parts) if command.merge else parts[0]

    async def _ask(self, command: Command[T], ranges: Sequence[SlotRange], parts: list[T]) -> list[SlotRange]:
        """Asks each node for its part of the ranges. Returns the slots that were not served."""
        questions, left = await self.by_node(ranges)
        for node, own in questions:
            try:
                left += await self._ask_node(command, node, own, parts)
            except Exception as error:
                self._owners = []
                if not is_demoted(error):  # a replica by now: nothing was done, another node has its slots
                    raise
                left += [SlotRange(part.first, part.last) for part in own]
        return left

    async def _ask_node(
        self, command: Command[T], node: Any, own: Sequence[SlotRange], parts: list[T]
    ) -> list[SlotRange]:
        """Asks one node for its part, page by page. Returns the slots that it did not serve in all pages."""
        left: dict[SlotRange, None] = {}
        page: Command[T] | None = command
        while page is not None:
            served = await self._link.execute_at(node, commands.for_slots(page, own))
            parts.append(served.value)
            left.update(dict.fromkeys(served.left))
            page = page.following(served.value) if page.following else None
        return list(left)

    def forget(self) -> None:
        """Forgets who has which slot; the table of the cluster client counts again."""
        self._owners = []

    async def by_node(self, ranges: Sequence[SlotRange]) -> tuple[list[tuple[Any, list[SlotRange]]], list[SlotRange]]:
        """Groups ranges by the node to ask. Also returns the ranges without a known node."""
        cluster = await self._link.cluster()
        known_owners = self._owners  # another task may forget them meanwhile
        if not known_owners:
            known_owners = self._owners = list(owners(cluster.nodes_manager.slots_cache))
        by_node: dict[str, tuple[Any, list[SlotRange]]] = {}
        nobody: list[SlotRange] = []
        for part in ranges:
            known = node_at(cluster, part.address)
            pieces = [(part, known)] if known is not None else overlaps(part, known_owners)
            for piece, node in pieces:
                by_node.setdefault(node.name, (node, []))[1].append(piece)
            nobody += gaps(part, [piece for piece, _node in pieces])
        return list(by_node.values()), nobody
