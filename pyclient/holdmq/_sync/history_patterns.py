# Generated from pyclient/holdmq/_async/history_patterns.py by tools/generate_sync.py; change that file.
"""The pattern sets of a store of history: what is in use, and the two steps to another one."""

from collections.abc import Sequence
from dataclasses import replace

from holdmq import history_commands as commands
from holdmq._sync.executor import Executor
from holdmq._sync.history_cluster import HistoryCluster
from holdmq.errors import CommandError, StaleError
from holdmq.history_replies import PatternProposal, PatternStats
from holdmq.replies import Text


class HistoryPatterns:
    r"""The pattern sets of a store; the attribute `patterns` of `HistoryStore`.

    A set is a text, made by a learner (`holdmq.core.PatternLearner`, for one) or by hand. It is prepared for the next
    generation, which only checks it, and then committed, which switches all shards in one step (in a cluster one after
    the other).

    Threads may share it, and processes that fork: each gets connections of its own.

    Example:
        >>> hold.history.create("devices", "devices/#")
        >>> patterns = hold.history.store("devices").patterns
        >>> generation, text = patterns.get()
        >>> generation, text
        (1, 'holdmq-patterns 1 levels=8\n#\n')
        >>> patterns.prepare(generation + 1, "holdmq-patterns 1 levels=8\n#\ndevices/+/state\n")
        >>> patterns.commit(generation + 1)
        >>> [pattern.filter for pattern in patterns.stats()]
        ['#', 'devices/+/state']
    """

    def __init__(self, executor: Executor, store: Text) -> None:
        self._executor = executor
        self._cluster = HistoryCluster(executor)
        self._store = store

    def get(self, *, shard: int | None = None, generation: int | None = None) -> tuple[int, str]:
        """The generation, and its set as text; of the present one unless another is named.

        In a cluster those of the first shard, unless another is named.

        Raises:
            CommandError: nothing is kept by that generation.
        """
        commands.patterns_get(self._store, shard=shard, generation=generation)  # refuses what cannot be
        [place, *_] = self._places(shard)
        return self._executor.execute(commands.patterns_get(self._store, shard=place, generation=generation))

    def stats(self, *, shard: int | None = None) -> tuple[PatternStats, ...]:
        """What each pattern of the present set has; of all shards unless one is named."""
        commands.patterns_stats(self._store, shard=shard)
        found: dict[tuple[int, str], PatternStats] = {}
        for place in self._places(shard):
            for one in self._executor.execute(commands.patterns_stats(self._store, shard=place)):
                before = found.get((one.pattern, one.filter))
                found[one.pattern, one.filter] = (
                    one if before is None else replace(one, messages=one.messages + before.messages)
                )
        return tuple(found.values())

    def prepare(self, generation: int, text: str, *, shards: int | None = None, shard: int | None = None) -> None:
        """Checks a set and keeps it for `generation`, which has to be the present one + 1.

        In a cluster each shard has a generation of its own (they differ where the store learns by itself); all of them
        have to be at the one before, or a shard has to be named.

        Args:
            generation: for which it is.
            text: the set.
            shards: over how many shards topics are spread from then on, 1 to 64 (default: as many as now). Not in a
                cluster.
            shard: of this one alone; where shards are on several servers.

        Raises:
            CommandError: the text is none, or does not give every topic exactly one pattern.
            StaleError: the store, or a shard of it, has another generation by now; nothing is prepared.
        """
        commands.patterns_prepare(self._store, generation, text, shards=shards, shard=shard)
        prepared: list[int | None] = []
        try:
            for place in self._places(shard):
                self._executor.execute(
                    commands.patterns_prepare(self._store, generation, text, shards=shards, shard=place)
                )
                prepared.append(place)
        except CommandError:
            for place in prepared:
                self._executor.execute(commands.patterns_abort(self._store, shard=place))
            raise

    def commit(self, generation: int, *, shard: int | None = None) -> None:
        """Switches to what was prepared; what was kept before stays readable.

        In a cluster shard by shard. If that fails in between, the same call again switches those that are left.

        Raises:
            StaleError: another generation, or nothing, is prepared.
        """
        commands.patterns_commit(self._store, generation, shard=shard)
        places = self._places(shard)
        stale: StaleError | None = None
        switched = 0
        for place in places:
            try:
                self._executor.execute(commands.patterns_commit(self._store, generation, shard=place))
                switched += 1
            except StaleError as error:
                if (self.get(shard=place))[0] != generation:
                    raise
                stale = error  # by a call before this one
        if stale is not None and switched == 0:
            raise stale

    def abort(self, *, shard: int | None = None) -> None:
        """Forgets what was prepared."""
        commands.patterns_abort(self._store, shard=shard)
        for place in self._places(shard):
            self._executor.execute(commands.patterns_abort(self._store, shard=place))

    def propose(self, *, margin: int | None = None) -> PatternProposal:
        """What the server's learner proposes, from a sample of what the store holds and the filters of its readers.

        In a cluster that of the node with the first shard, which knows its own shards and readers.

        Args:
            margin: how much better it has to be than the present set, in percent (default 10).
        """
        command = commands.patterns_propose(self._store, margin=margin)
        if self._executor.is_cluster:
            self.get(shard=0)  # finds the node
        return self._executor.execute(command)

    def _places(self, shard: int | None) -> Sequence[int | None]:
        """The shards to go to one by one; None: all that the server has, in one step."""
        if shard is not None or not self._executor.is_cluster:
            return [shard]
        return self._cluster.shards(self._store)
