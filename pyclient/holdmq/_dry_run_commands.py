"""The commands `CHANNEL.DRYRUN`, without I/O; `holdmq.commands` exports them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdmq import _arguments as arguments
from holdmq import _wire as wire
from holdmq._command import Command
from holdmq.durations import Duration, whole_seconds
from holdmq.replies import DryRunChannel, DryRunSummary, Hold, Text

if TYPE_CHECKING:
    from holdmq._wire import Word

MAX_DRY_RUN_S = 30 * 86400
PAGE = 1000


@dataclass(frozen=True, slots=True)
class DryRunPage:
    """A page of a dry run's report.

    Attributes:
        cursor: where to continue. None after the last page.
        channels: the counts of the channels of this page.
        summary: the totals.
    """

    cursor: bytes | None
    channels: tuple[DryRunChannel, ...]
    summary: DryRunSummary


def channel_dryrun_start(*, lasting: Duration, policies: Text | None = None) -> Command[None]:
    """`CHANNEL.DRYRUN START`: starts to count what a policy list would hold."""
    words: list[Word] = ["CHANNEL.DRYRUN", "START", "SECONDS", whole_seconds("seconds", lasting, 1, MAX_DRY_RUN_S)]
    if policies is not None:
        words += ["POLICIES", arguments.name("policies", policies)]
    return Command(tuple(words), wire.ok)


def channel_dryrun_stop() -> Command[bool]:
    """`CHANNEL.DRYRUN STOP`: stops the dry run. Replies whether one was running."""
    return Command(("CHANNEL.DRYRUN", "STOP"), wire.flag)


def channel_dryrun_report(cursor: bytes | None = None) -> Command[DryRunPage]:
    """`CHANNEL.DRYRUN REPORT`: a page of the counts, ordered by channel."""
    words: list[Word] = ["CHANNEL.DRYRUN", "REPORT", "COUNT", PAGE]
    if cursor is not None:
        words += ["CURSOR", arguments.binary("cursor", cursor)]
    return Command(tuple(words), _page)


def _page(reply: object) -> DryRunPage:
    cursor, rows, summary = wire.array(reply, 3)
    at = wire.string(cursor)
    return DryRunPage(None if at == b"0" else at, tuple(map(_channel, wire.array(rows))), _summary(summary))


def _channel(reply: object) -> DryRunChannel:
    channel, rule, hold, unheard, messages, size, last_ms, key = wire.array(reply, 8)
    return DryRunChannel(
        channel=wire.decoded(channel),
        rule=None if rule is None else wire.decoded(rule),
        hold=Hold(wire.decoded(hold)),
        unheard=wire.integer(unheard),
        messages=wire.integer(messages),
        bytes=wire.integer(size),
        last=wire.integer(last_ms) / 1000,
        key=wire.flag(key),
    )


def _summary(reply: object) -> DryRunSummary:
    fields = wire.mapping(reply)
    return DryRunSummary(
        policies=wire.decoded(fields["policies"]),
        running=wire.flag(fields["running"]),
        started=wire.integer(fields["started_ms"]) / 1000,
        seconds=wire.integer(fields["lasted_ms"]) / 1000,
        channels=wire.integer(fields["channels"]),
        messages=wire.integer(fields["messages"]),
        bytes=wire.integer(fields["bytes"]),
        left_out_messages=wire.integer(fields["left_out_messages"]),
        left_out_bytes=wire.integer(fields["left_out_bytes"]),
        denied=wire.integer(fields["denied"]),
        passed_over=wire.integer(fields["passed_over"]),
    )
