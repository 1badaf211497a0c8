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
        click.option("--to-time", "end", help="The first time that is not read; as for --from."),
        click.option("--from", "start", help="From this time on: ISO 8601, ms since 1970, or how long ago: 24h, 7d."),
        click.option("--filter", "topic_filter", multiple=True, help="An MQTT topic filter; may be repeated."),
        click.option("--archive", "table", default="", help="The archive; without it only what the server has."),
        click.option("--store", default="", help="The store; may be left out if there is only one."),
    ):
        command = option(command)
    return command


@click.command(epilog=ARCHIVE_EXAMPLE)
@click.argument("table")
@click.option("--store", default="", help="The store; may be left out if there is only one.")
@click.option("--reader", default="archive", show_default=True, help="The name of the hold in the server.")
@click.option(
    "--batch-rows", type=click.IntRange(1, MAX_ROWS), default=1_000_000, show_default=True, help="Of a commit."
)
@click.option(
    "--trim-after",
    type=Seconds(),
    help="How long the server keeps its copy, like 3600 or 24h; default: for ever. It waits for readers that hold "
    "the store (a Spark stream with hold=true), not for others.",
)
@click.option("--follow", type=Seconds(positive=True), help="Look again after so long, like 60 or 15m, for ever.")
@click.option("--skip-lost", is_flag=True, help="Count messages that retention took before they were read; else fail.")
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
    """Archive a store into TABLE: a Delta table, or parquet:PATH for plain Parquet; made if it is not there."""
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
@click.option("--store", required=True, help="The store whose messages it has.")
@click.option("--file-rows", type=click.IntRange(1, MAX_ROWS), default=2_000_000, show_default=True, help="Of a file.")
@click.option(
    "--least-files", type=click.IntRange(2, MAX_ROWS), default=2, show_default=True, help="Fewer stay as they are."
)
@click.option("--before", help="Only days before this one (ISO 8601).")
@click.pass_obj
def compact(setting: Setting, /, table: str, store: str, **how: Any) -> None:
    """Make few large files of the small ones of an archive."""
    from holdmq_pipeline.figures import Progress  # noqa: PLC0415
    from holdmq_pipeline.jobs.archive import compact as job  # noqa: PLC0415

    with Progress() as progress:
        show(job(setting.spark(bar=False), table, store, progress=progress, **how))


@click.command("history", epilog=HISTORY_EXAMPLE)
@range_options
@click.option("--output", required=True, help="A folder, made anew: Parquet, or CSV or JSON if it ends like that.")
@click.pass_obj
def export(
    setting: Setting,
    /,
    store: str,
    table: str,
    output: str,
    **chosen: str | None,
) -> None:
    """Write a range of the past, archive and server as one, to a folder."""
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
@click.option("--to", default="", help="The channel or client that gets all; of topics: what stands before each.")
@click.option("--target-url", default="", help="The server that they go to; default: the one that they are read from.")
@click.option("--rate", type=click.IntRange(1, MAX_ROWS), help="At most so many messages a second.")
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
    """Replay a range of the past, in order and once; NAME run again goes on where it ended."""
    from holdmq_pipeline.jobs.replay import Target  # noqa: PLC0415
    from holdmq_pipeline.jobs.replay import replay as job  # noqa: PLC0415

    target = Target(into, to, target_url, rate)
    show(job(setting.spark(), setting.options(store=store), table, target, name, **chosen))
