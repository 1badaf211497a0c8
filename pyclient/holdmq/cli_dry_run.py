"""The command `holdmq dry-run`: which channels a policy would hold, counted on live traffic before anything is held."""

import time
from itertools import islice
from typing import Any

import click

from holdmq._sync.client import HoldMQ
from holdmq.cli_output import Seconds, output
from holdmq.durations import whole_seconds
from holdmq.replies import DryRunReport, DryRunSummary

MAX_S = 30 * 86400
DEFAULT_COUNT = 50
ROW = ("channel", "messages", "bytes", "unheard", "last", "rule", "hold", "key")


@click.command("dry-run")
@click.option(
    "--seconds",
    default="60s",
    type=Seconds(),
    show_default=True,
    help="Duration: a number of seconds, or such as 90s, 15m, 24h, 7d.",
)
@click.option(
    "--policies", help="Policy list to try.  [default: the server's list, or the default list if that is empty]"
)
@click.option("--held", is_flag=True, help="Show only channels that would hold messages.")
@click.option(
    "--count", type=click.IntRange(1), default=DEFAULT_COUNT, show_default=True, help="Maximum channels shown."
)
@click.option("--background", is_flag=True, help="Start the dry run and return. --report shows its state.")
@click.option(
    "--report", is_flag=True, help="Do not start a dry run. Show the counts of the running or the last dry run."
)
@click.option("--stop", is_flag=True, help="End the running dry run, and show its counts.")
@click.pass_obj
def dry_run(
    hold: HoldMQ,
    seconds: float,
    policies: str | None,
    held: bool,
    count: int,
    background: bool,
    report: bool,
    stop: bool,
) -> None:
    """Show which channels would hold messages under a policy. Nothing is held, written or replicated.

    Ctrl-C ends the dry run and shows its counts.
    """
    if sum((background, report, stop)) > 1:
        raise click.UsageError("--background, --report and --stop exclude each other")
    if stop:
        hold.dry_run.stop()
    elif not report:
        hold.dry_run.start(seconds=whole_seconds("--seconds", seconds, 1, MAX_S), policies=policies)
        if background:
            return
        wait(hold, seconds)
    show(hold.dry_run.report(), held=held, count=count)


def wait(hold: HoldMQ, seconds: float) -> None:
    """Waits for the end of the dry run; Ctrl-C ends it now."""
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        click.echo(err=True)
    hold.dry_run.stop()


def show(report: DryRunReport, *, held: bool, count: int) -> None:
    """Prints the channels, and on standard error what is said of all of them."""
    rows = [row for row in report.channels if row.messages or not held]
    output().rows(ROW, ([value(getattr(row, name)) for name in ROW] for row in islice(rows, count)))
    if len(rows) > count:
        click.echo(f"{len(rows) - count} more channels were counted: --count shows them", err=True)
    for summary in report.summaries:
        for line in remarks(summary):
            click.echo(line, err=True)


def value(of: Any) -> Any:
    """A time as it is read."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(of)) if isinstance(of, float) else of


def remarks(summary: DryRunSummary) -> list[str]:
    """What the table does not show."""
    state = "goes on" if summary.running else "has ended"
    size = f"{summary.messages} messages ({summary.bytes} bytes)"
    lines = [f"the dry run {state} after {summary.seconds:.0f} s: {size} would have been held"]
    if summary.left_out_messages:
        lines.append(
            f"left out of the table for want of room: {summary.left_out_messages} of these messages"
            f" ({summary.left_out_bytes} bytes)"
        )
    if summary.denied:
        lines.append(f"not held, because the publisher may not write the channel's list: {summary.denied} messages")
    if summary.passed_over:
        lines.append(f"not counted, because the publisher may not run CHANNEL.PUBLISH: {summary.passed_over} messages")
    return lines
