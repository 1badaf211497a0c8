# Generated from pyclient/holdmq/_async/history_patterns.py by tools/generate_sync.py; change that file.
"""The pattern sets of a store of history: what is in use, and the two steps to another one."""

from typing import TYPE_CHECKING

from holdmq import history_commands as commands
from holdmq.history_replies import PatternProposal, PatternStats
from holdmq.replies import Text

if TYPE_CHECKING:
    from holdmq._sync.client import HoldMQ


class HistoryPatterns:
    r"""The pattern sets of a store; the attribute `patterns` of `HistoryStore`.

    A set is a text, made by a learner (`holdmq.core.PatternLearner`, for one) or by hand. It is prepared for the next
    generation, which only checks it, and then committed, which switches all shards in one step.

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

    def __init__(self, hold: "HoldMQ", store: Text) -> None:
        self._hold = hold
        self._store = store

    def get(self, *, shard: int | None = None, generation: int | None = None) -> tuple[int, str]:
        """The generation, and its set as text; of the present one unless another is named.

        Raises:
            CommandError: nothing is kept by that generation.
        """
        return self._hold.execute(commands.patterns_get(self._store, shard=shard, generation=generation))

    def stats(self, *, shard: int | None = None) -> tuple[PatternStats, ...]:
        """What each pattern of the present set has; of all shards unless one is named."""
        return self._hold.execute(commands.patterns_stats(self._store, shard=shard))

    def prepare(self, generation: int, text: str, *, shards: int | None = None, shard: int | None = None) -> None:
        """Checks a set and keeps it for `generation`, which has to be the present one + 1.

        Args:
            generation: for which it is.
            text: the set.
            shards: over how many shards topics are spread from then on, 1 to 64 (default: as many as now).
            shard: of this one alone; where shards are on several servers.

        Raises:
            CommandError: the text is none, or does not give every topic exactly one pattern.
            StaleError: the store has another generation by now.
        """
        self._hold.execute(commands.patterns_prepare(self._store, generation, text, shards=shards, shard=shard))

    def commit(self, generation: int, *, shard: int | None = None) -> None:
        """Switches to what was prepared; what was kept before stays readable.

        Raises:
            StaleError: another generation, or nothing, is prepared.
        """
        self._hold.execute(commands.patterns_commit(self._store, generation, shard=shard))

    def abort(self, *, shard: int | None = None) -> None:
        """Forgets what was prepared."""
        self._hold.execute(commands.patterns_abort(self._store, shard=shard))

    def propose(self, *, margin: int | None = None) -> PatternProposal:
        """What the server's learner proposes, from a sample of what the store holds and the filters of its readers.

        Args:
            margin: how much better it has to be than the present set, in percent (default 10).
        """
        return self._hold.execute(commands.patterns_propose(self._store, margin=margin))
