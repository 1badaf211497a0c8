"""Dry runs: count on live traffic which messages a policy would hold, before anything is held."""

from typing import Any, TypeVar

from holdmq import _dry_run_commands as commands
from holdmq._async.executor import AsyncExecutor
from holdmq.commands import Command
from holdmq.durations import Duration
from holdmq.replies import DryRunChannel, DryRunReport, Text

T = TypeVar("T")

DEFAULT_SECONDS = 3600


class AsyncDryRun:
    """The dry run of a server, or of all primaries of a cluster; the attribute `dry_run` of `AsyncHoldMQ`.

    A dry run counts, on live traffic, which messages a channel policy would hold. It holds nothing.

    Tasks of one event loop may share it. A process that forks after its first use must make its own (`ForkedError`).
    """

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor

    async def start(self, *, seconds: Duration = DEFAULT_SECONDS, policies: Text | None = None) -> None:
        """Starts a dry run. The counts of an earlier one are lost.

        Args:
            seconds: how long it lasts, 1 to 2592000 seconds.
            policies: the policy list to try. None tries the server's own list, or the default list if that is empty.

        Raises:
            ArgumentError: a number out of range.
        """
        await self._everywhere(commands.channel_dryrun_start(lasting=seconds, policies=policies))

    async def stop(self) -> bool:
        """Stops the dry run. Returns whether one was running. Its report can still be read."""
        stopped = await self._everywhere(commands.channel_dryrun_stop())
        return any(stopped)

    async def report(self) -> DryRunReport:
        """Returns the counts, channels with the most messages first. In a cluster: of all nodes.

        Examples:
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
