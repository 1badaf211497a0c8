# Generated from pyclient/holdmq/_async/history_patterns.py by tools/generate_sync.py; change that file.
"""The pattern sets of a history store: the current set, and the two steps to a new one."""

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

    A pattern set is a text. A learner makes it (`propose`, or `holdmq.core.PatternLearner`), or you write it. `prepare`
    checks a set and keeps it for the next generation. `commit` switches all shards to it in one step. In a cluster, the
    shards switch one after the other.

    Threads may share it, and so may processes that fork: each process gets its own connections.

    Examples:
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
        """Returns a generation and its pattern set. Without arguments: the current generation.

        In a cluster, this is the generation of the first shard unless you name another one.

        Raises:
            CommandError: no message is kept by that generation.
        """
        commands.patterns_get(self._store, shard=shard, generation=generation)  # refuses what cannot be
        [place, *_] = self._places(shard)
        return self._executor.execute(commands.patterns_get(self._store, shard=place, generation=generation))

    def stats(self, *, shard: int | None = None) -> tuple[PatternStats, ...]:
        """Returns statistics of each pattern of the current set, over all shards unless you name one."""
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
        """Checks a pattern set and keeps it for `generation`, which must be the current one + 1.

        In a cluster, each shard has its own generation. They differ if the store learns by itself. All shards must be
        at the previous generation, or you name a shard.

        Args:
            generation: the generation that the set is for.
            text: the pattern set.
            shards: the number of shards over which topics are spread from then on, 1 to 64 (default: unchanged). Not
                in a cluster.
            shard: prepare this shard only.

        Raises:
            CommandError: the text is not a pattern set, or does not give every topic exactly one pattern.
            StaleError: the store, or one of its shards, has another generation. Nothing is prepared.
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
        """Switches to the prepared pattern set. Older messages stay readable.

        A cluster switches shard by shard. If that fails in between, call the method again to switch the others.

        Raises:
            StaleError: another generation is prepared, or none.
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
        """Discards the prepared pattern set."""
        commands.patterns_abort(self._store, shard=shard)
        for place in self._places(shard):
            self._executor.execute(commands.patterns_abort(self._store, shard=place))

    def propose(self, *, margin: int | None = None) -> PatternProposal:
        """Asks the server's learner for a pattern set, based on a sample of the messages and on readers' filters.

        In a cluster, the node of the first shard answers. It knows its own shards and readers only.

        Args:
            margin: by how many percent the proposal must be better than the current set (default 10).
        """
        command = commands.patterns_propose(self._store, margin=margin)
        if self._executor.is_cluster:
            self.get(shard=0)  # finds the node
        return self._executor.execute(command)

    def _places(self, shard: int | None) -> Sequence[int | None]:
        """The shards to send to, one by one. None means all shards of the server in one step."""
        if shard is not None or not self._executor.is_cluster:
            return [shard]
        return self._cluster.shards(self._store)
