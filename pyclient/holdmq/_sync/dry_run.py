# Generated from pyclient/holdmq/_async/dry_run.py by tools/generate_sync.py; change that file.
"""Dry runs: which channels a policy would hold messages of, counted on live traffic before anything is held."""

from typing import Any, TypeVar

from holdmq import _dry_run_commands as commands
from holdmq._durations import Duration
from holdmq._sync.executor import Executor
from holdmq.commands import Command
from holdmq.replies import DryRunChannel, DryRunReport, Text

T = TypeVar("T")

DEFAULT_SECONDS = 3600


class DryRun:
    """The dry run of a server, or of all primaries of a cluster; the attribute `dry_run` of `HoldMQ`.

    Threads may share it, and processes that fork: each gets connections of its own.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, *, seconds: Duration = DEFAULT_SECONDS, policies: Text | None = None) -> None:
        """Begins to count by channel what would be held; the counts of an earlier dry run are forgotten.

        Args:
            seconds: how long it lasts, 1 to 2592000.
            policies: the policy list to try; None: the server's own, or the default one if that has no rule.

        Raises:
            ArgumentError: a number outside of its range.
        """
        self._everywhere(commands.channel_dryrun_start(lasting=seconds, policies=policies))

    def stop(self) -> bool:
        """Ends it; whether it was running.  What was counted can still be read."""
        stopped = self._everywhere(commands.channel_dryrun_stop())
        return any(stopped)

    def report(self) -> DryRunReport:
        """What was counted, the channels with the most messages first, of a cluster those of all nodes.

        Example:
            >>> hold.dry_run.start(policies="jobs:* hold=unheard")
            >>> hold.channel("jobs:mail").publish("m")
            0
            >>> [(row.channel, row.messages) for row in (hold.dry_run.report()).channels]
            [('jobs:mail', 1)]
        """
        summaries, channels = [], list[DryRunChannel]()
        for node in self._nodes():
            cursor: bytes | None = None
            while True:
                page = self._at(node, commands.channel_dryrun_report(cursor))
                channels += page.channels
                cursor = page.cursor
                if cursor is None:
                    summaries.append(page.summary)
                    break
        return DryRunReport(tuple(summaries), tuple(sorted(channels, key=_most_first)))

    def _nodes(self) -> list[Any]:
        return list((self._executor.cluster()).get_primaries()) if self._executor.is_cluster else [None]

    def _at(self, node: Any, command: Command[T]) -> T:
        return self._executor.execute(command) if node is None else self._executor.execute_at(node, command)

    def _everywhere(self, command: Command[T]) -> list[T]:
        return [self._at(node, command) for node in self._nodes()]


def _most_first(row: DryRunChannel) -> tuple[int, int, str]:
    return -row.messages, -row.unheard, row.channel
