"""Dry runs: which channels a policy would hold messages of, counted on live traffic before anything is held."""

from typing import Any, TypeVar

from holdmq import _dry_run_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq._durations import Duration
from holdmq.commands import Command
from holdmq.replies import DryRunChannel, DryRunReport, Text

T = TypeVar("T")

DEFAULT_SECONDS = 3600


class AsyncDryRun:
    """The dry run of a server, or of all primaries of a cluster; the attribute `dry_run` of `AsyncHoldMQ`.

    Tasks of one event loop may share it; a process that is forked after its first use makes its own (`ForkedError`).
    """

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor

    async def start(self, *, seconds: Duration = DEFAULT_SECONDS, policies: Text | None = None) -> None:
        """Begins to count by channel what would be held; the counts of an earlier dry run are forgotten.

        Args:
            seconds: how long it lasts, 1 to 2592000.
            policies: the policy list to try; None: the server's own, or the default one if that has no rule.

        Raises:
            ArgumentError: a number outside of its range.
        """
        await self._everywhere(commands.channel_dryrun_start(lasting=seconds, policies=policies))

    async def stop(self) -> bool:
        """Ends it; whether it was running.  What was counted can still be read."""
        stopped = await self._everywhere(commands.channel_dryrun_stop())
        return any(stopped)

    async def report(self) -> DryRunReport:
        """What was counted, the channels with the most messages first, of a cluster those of all nodes.

        Example:
            >>> await hold.dry_run.start(policies="jobs:* hold=unheard")
            >>> await hold.channel("jobs:mail").publish("m")
            0
            >>> [(row.channel, row.messages) for row in (await hold.dry_run.report()).channels]
            [('jobs:mail', 1)]
        """
        summaries, channels = [], list[DryRunChannel]()
        for node in await self._nodes():
            cursor: bytes | None = None
            while True:
                page = await self._at(node, commands.channel_dryrun_report(cursor))
                channels += page.channels
                cursor = page.cursor
                if cursor is None:
                    summaries.append(page.summary)
                    break
        return DryRunReport(tuple(summaries), tuple(sorted(channels, key=_most_first)))

    async def _nodes(self) -> list[Any]:
        return list((await self._executor.cluster()).get_primaries()) if self._executor.is_cluster else [None]

    async def _at(self, node: Any, command: Command[T]) -> T:
        return await (self._executor.execute(command) if node is None else self._executor.execute_at(node, command))

    async def _everywhere(self, command: Command[T]) -> list[T]:
        return [await self._at(node, command) for node in await self._nodes()]


def _most_first(row: DryRunChannel) -> tuple[int, int, str]:
    return -row.messages, -row.unheard, row.channel
