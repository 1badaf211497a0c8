# Generated from pyclient/holdmq/_async/history_cluster.py by tools/generate_sync.py; change that file.
"""Commands for all shards of a store in a cluster: each node executes them for its own shards.

Invariants:

1. The node of the first shard comes first. If it refuses, nothing has changed anywhere. If two clients make the same
   store at the same time, it decides whose seed counts.
2. A repetition has no further effect. Retries end: after `moving_timeout` seconds an error names the slots that were
   not served.
3. No step is atomic over all nodes: if a node fails, some shards are done and others are not. The same call again
   continues.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from holdmq import _wire as wire
from holdmq import core
from holdmq import history_commands as commands
from holdmq._sync.executor import Executor
from holdmq._sync.patience import Patience
from holdmq.commands import Command, SlotRange
from holdmq.durations import Duration
from holdmq.errors import CommandError, MovingError, NoStoreError
from holdmq.history_replies import HistoryInfo
from holdmq.replies import Text

T = TypeVar("T")


class HistoryCluster:
    """The stores of a cluster."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._nodes = executor.nodes

    def create(self, store: Text, filters: Sequence[str], settings: Mapping[str, Duration | None]) -> None:
        """Creates or changes a store on every node that has one of its shards.

        Raises:
            CommandError: a node refused it.
            MovingError: some shards were still moving when the time was over. The others have the store.
        """
        copies = self._executor.execute(commands.history_copies(store))
        wanted = cast("int | None", settings.get("shards"))
        shards = wanted if wanted is not None else max((copy.shards for copy in copies), default=1)
        seed = copies[0].seed if copies else secrets.token_hex(16)
        now_ms = self._executor.execute_anywhere(commands.server_time_ms())
        changed_ms = max(now_ms, *(copy.changed_ms + 1 for copy in copies), 0)
        command = commands.history_store_here(store, filters, seed, changed_ms, **{**settings, "shards": shards})
        patience = Patience(self._executor.moving_timeout)
        left = set(range(shards))
        while left:
            for node in self._first_shard_first(store):
                for written in self._try(node, command):
                    left.difference_update(written)
                if 0 in left:
                    break
            if left:
                self._wait(patience, command, store, left)
        self._nodes.forget(store)
        self._tell(store, filters, range(shards))

    def _tell(self, store: Text, filters: Sequence[str], shards: Iterable[int]) -> None:
        """Tells every primary of the shards: publishers find them as they find subscribers."""
        slots = [core.slot_of(commands.shard_key(store, shard)) for shard in shards]
        self._nodes.refresh()
        self._executor.routes.tell([(wire.topic_filter(one), slot) for one in filters for slot in slots])

    def drop(self, store: Text) -> None:
        """Removes a store from every node. Repeats that until no node knows it, because a shard may move meanwhile.

        Raises:
            NoStoreError: no node knew it.
            MovingError: a shard was on its way until the time was over; the others are removed.
        """
        command = commands.history_unstore(store)
        patience = Patience(self._executor.moving_timeout)
        rounds, known = 0, True
        while known:
            known = False
            for node in self._nodes.primaries():
                try:
                    self._try(node, command)
                except NoStoreError:
                    continue
                known = True
            copies = self._executor.execute(commands.history_copies(store))  # some may have come with a slot
            known = known or len(copies) > 0
            if known:
                self._wait(patience, command, store, [0])
            rounds += 1
        self._nodes.forget(store)
        if rounds == 1:
            raise NoStoreError(f"there is no store {store!r}")

    def shards(self, store: Text) -> range:
        """The numbers of a store's shards, as they are now.

        Raises:
            NoStoreError: there is no such store.
        """
        self._nodes.forget(store)
        return range((self._nodes.layout(store)).shards)

    def info(self, store: Text) -> HistoryInfo:
        """The state of each shard, read at its node."""
        command = [commands.history_info(store, shard) for shard in self.shards(store)]
        parts = [self._executor.execute(one) for one in command]
        shards = tuple(shard for part in parts for shard in part.shards)
        return HistoryInfo(parts[0].policy, max(part.generation for part in parts), shards)

    def hold(self, store: Text, reader: Text, watermarks: Mapping[int, int] | None) -> dict[int, int]:
        """Sets the watermarks of a reader, each at the node of its shard, or holds all messages of all shards."""
        shards = set(self.shards(store))
        if not watermarks:
            return self._hold_all(store, reader, shards)
        found: dict[int, int] = {}
        for shard, sequence in watermarks.items():
            marks = self._executor.execute(commands.history_hold(store, reader, {shard: sequence}))
            found.update(marks)
        name = commands.reader_name(reader)
        for shard in sorted(shards - found.keys()):  # those of nodes that were not asked
            [one] = (self._executor.execute(commands.history_info(store, shard))).shards
            found.update({shard: one.holds[name]} if name in one.holds else {})
        return dict(sorted(found.items()))

    def _hold_all(self, store: Text, reader: Text, shards: set[int]) -> dict[int, int]:
        command = commands.history_hold(store, reader)
        patience = Patience(self._executor.moving_timeout)
        found: dict[int, int] = {}
        while True:
            for part in self._ask_all(command):
                found.update(part)
            left = shards - found.keys()
            if not left:
                return dict(sorted(found.items()))
            self._wait(patience, command, store, left)

    def release(self, store: Text, reader: Text) -> None:
        """Ends the hold of a reader on all nodes."""
        command = commands.history_release(store, reader)
        name = commands.reader_name(reader)
        patience = Patience(self._executor.moving_timeout)
        while True:
            self._ask_all(command)
            held = [one.shard for one in (self.info(store)).shards if name in one.holds or name in one.lost]
            if not held:
                return
            self._wait(patience, command, store, held)

    def store_of(self, topic_filter: str) -> str:
        """The store whose topics a filter can match.

        Raises:
            NoStoreError: there is none.
            CommandError: there are several.
        """
        stores = self._executor.execute(commands.history_stores())
        found = [
            policy.store
            for policy in stores
            if any(commands.filters_overlap(one, topic_filter) for one in policy.filters)
        ]
        if not found:
            raise NoStoreError(f"NOSTORE no store keeps topics of the filter {topic_filter!r}")
        if len(found) > 1:
            raise CommandError(
                f"{len(found)} stores keep topics of the filter {topic_filter!r}: one of them has to be named"
            )
        return found[0]

    def _try(self, node: Any, command: Command[T]) -> list[T]:
        """Returns the reply of a node. None if it refused for a temporary reason."""
        try:
            return [self._nodes.ask(node, command)]
        except self._nodes.passing:
            return []

    def _ask_all(self, command: Command[T]) -> list[T]:
        """Returns the replies of the nodes that know the store and do not move it."""
        replies: list[T] = []
        for node in self._nodes.primaries():
            try:
                replies += self._try(node, command)
            except NoStoreError:
                continue  # it has no shard of it
        return replies

    def _first_shard_first(self, store: Text) -> list[Any]:
        """Returns the primaries. The node of the first shard comes first."""
        first = self._nodes.owner(commands.shard_key(store, 0))
        return [first, *(node for node in self._nodes.primaries() if node.name != first.name)]

    def _wait(self, patience: Patience, command: Command[T], store: Text, shards: Iterable[int]) -> None:
        """Waits a moment and reloads the table of slots. Raises MovingError when the time is over."""
        if not patience.wait():
            slots = sorted(commands.shard_slot(store, shard) for shard in shards)
            raise MovingError.of(command.words[0], [SlotRange(slot, slot) for slot in slots])
        self._nodes.refresh()
