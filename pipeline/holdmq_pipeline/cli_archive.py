"""The commands `holdmq pipeline archive`, `compact`, `history` and `replay`."""

from pathlib import Path
from typing import Any

import click

from holdmq.cli_output import Seconds
from holdmq_pipeline.cli_setting import Setting, show

MAX_ROWS = 1_000_000_000
ARCHIVE_EXAMPLE = "Example: holdmq pipeline archive /data/archive --store telemetry --trim-after 3600 --follow 60"
COMPACT_EXAMPLE = "Example: holdmq pipeline compact /data/archive --store telemetry --before 2026-11-01"
HISTORY_EXAMPLE = (
    "Example: holdmq pipeline history --archive /data/archive --store telemetry --filter 'site/5/#' --from 2026-11-01 "
    "--output site5.parquet"
)
REPLAY_EXAMPLE = (
    "Example: holdmq pipeline replay again-1 --archive /data/archive --store telemetry --filter 'site/5/#' "
    "--into topics --to replayed/ --rate 1000"
)


def range_options(command: Any) -> Any:
    """Which messages: the options that `history` and `replay` share."""
    for option in (
        click.option("--to-time", "end", help="End of the range, not included, in the same forms as --from."),
        click.option(
            "--from", "start", help="Start of the range: ISO 8601, ms since 1970, or an age such as 24h or 7d."
        ),
        click.option("--filter", "topic_filter", multiple=True, help="MQTT topic filter. May be repeated."),
        click.option("--archive", "table", default="", help="Archive.  [default: only the server is read]"),
        click.option("--store", default="", help="Store. Needed only if there are several."),
    ):
        command = option(command)
    return command


@click.command(epilog=ARCHIVE_EXAMPLE)
@click.argument("table")
@click.option("--store", default="", help="Store. Needed only if there are several.")
@click.option("--reader", default="archive", show_default=True, help="Name of the hold in the server.")
@click.option(
    "--batch-rows",
    type=click.IntRange(1, MAX_ROWS),
    default=1_000_000,
    show_default=True,
    help="Maximum number of rows of a commit.",
)
@click.option(
    "--trim-after",
    type=Seconds(),
    help="How long the server keeps its copy, such as 3600 or 24h. Trimming waits only for readers that hold the store "
    "(a Spark stream with hold=true).  [default: forever]",
)
@click.option(
    "--follow", type=Seconds(positive=True), help="Repeat with this interval, such as 60 or 15m, until Ctrl-C."
)
@click.option(
    "--skip-lost", is_flag=True, help="Count messages that retention removed before they were read, instead of failing."
)
@click.pass_obj
def archive(
    setting: Setting,
    /,
    table: str,
    store: str,
    reader: str,
    batch_rows: int,
    trim_after: float | None,
    follow: float | None,
    skip_lost: bool,
) -> None:
    """Archive a store into TABLE: a Delta table, or parquet:PATH for plain Parquet. Creates a missing table."""
    from holdmq_pipeline.figures import Progress  # noqa: PLC0415
    from holdmq_pipeline.jobs.archive import archive as job  # noqa: PLC0415

    options = setting.options(store=store, failOnDataLoss=str(not skip_lost).lower())
    with Progress() as progress:
        figures = job(
            setting.spark(bar=False),
            options,
            table,
            reader=reader,
            batch_rows=batch_rows,
            trim_after_s=trim_after,
            follow_s=follow,
            progress=progress,
        )
    show(figures)


@click.command(epilog=COMPACT_EXAMPLE)
@click.argument("table")
@click.option("--store", required=True, help="Store whose messages the archive has.")
@click.option(
    "--file-rows", type=click.IntRange(1, MAX_ROWS), default=2_000_000, show_default=True, help="Rows of a new file."
)
@click.option(
    "--least-files",
    type=click.IntRange(2, MAX_ROWS),
    default=2,
    show_default=True,
    help="Minimum number of small files to merge.",
)
@click.option("--before", help="Compact only days before this one (ISO 8601).")
@click.pass_obj
def compact(setting: Setting, /, table: str, store: str, **how: Any) -> None:
    """Replace the small files of an archive by few large ones."""
    from holdmq_pipeline.figures import Progress  # noqa: PLC0415
    from holdmq_pipeline.jobs.archive import compact as job  # noqa: PLC0415

    with Progress() as progress:
        show(job(setting.spark(bar=False), table, store, progress=progress, **how))


@click.command("history", epilog=HISTORY_EXAMPLE)
@range_options
@click.option(
    "--output",
    required=True,
    help="New folder for the result: Parquet, or CSV or JSON if its name ends in .csv or .json.",
)
@click.pass_obj
def export(
    setting: Setting,
    /,
    store: str,
    table: str,
    output: str,
    **chosen: str | None,
) -> None:
    """Write messages of a time range, from archive and server together, to a folder."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    from holdmq_pipeline.figures import measured  # noqa: PLC0415
    from holdmq_pipeline.inputs import read_table  # noqa: PLC0415
    from holdmq_pipeline.jobs.replay import past  # noqa: PLC0415

    spark = setting.spark()
    form = Path(output).suffix.removeprefix(".")
    form = form if form in {"csv", "json"} else "parquet"
    with measured("history") as figures:
        frame = past(spark, setting.options(store=store), table, **chosen)
        if form == "csv":  # which has no bytes: payloads as text, as far as they are
            binary = [name for name, kind in frame.dtypes if kind == "binary"]
            frame = frame.select(*(f.col(n).cast("string").alias(n) if n in binary else n for n in frame.columns))
        writer = frame.write.mode("error").format(form)
        (writer.option("header", True) if form == "csv" else writer).save(output)
        figures.rows = read_table(spark, output, form).count()
        figures.bytes = sum(part.stat().st_size for part in Path(output).glob("*") if part.is_file())
    show(figures)


@click.command(epilog=REPLAY_EXAMPLE)
@click.argument("name")
@range_options
@click.option("--into", type=click.Choice(["topics", "channels", "sessions"]), default="topics", show_default=True)
@click.option("--to", default="", help="Channel or client that gets the messages, or a prefix for their topics.")
@click.option(
    "--target-url", default="", help="URL of the server that gets them.  [default: the server that they are read from]"
)
@click.option("--rate", type=click.IntRange(1, MAX_ROWS), help="Maximum messages per second.")
@click.pass_obj
def replay(
    setting: Setting,
    /,
    name: str,
    store: str,
    table: str,
    into: str,
    to: str,
    target_url: str,
    rate: int | None,
    **chosen: Any,
) -> None:
    """Replay messages of a time range, each once and in order. NAME, run again, continues where it ended."""
    from holdmq_pipeline.jobs.replay import Target  # noqa: PLC0415
    from holdmq_pipeline.jobs.replay import replay as job  # noqa: PLC0415

    target = Target(into, to, target_url, rate)
    show(job(setting.spark(), setting.options(store=store), table, target, name, **chosen))
