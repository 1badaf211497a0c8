"""The commands `holdmq pipeline ...`: each parses its arguments, calls a job and prints its figures.

`holdmq` finds the group through the entry point `pipeline` of the group `holdmq.commands`. Exit status 0: done; 1: the
job was refused, or an audit found faults; 2: the command line was wrong.
"""

from pathlib import Path
from typing import Any

import click

from holdmq_pipeline.cli_archive import archive, compact, export, replay
from holdmq_pipeline.cli_migrate import migrate
from holdmq_pipeline.cli_setting import Refusing, Setting, checked, history, loaded, note, show

LEARN_EXAMPLE = "Example: holdmq pipeline learn --input /data/archive --store telemetry --filters asked.tsv --install"
AUDIT_EXAMPLE = (
    "Example: holdmq pipeline audit --published sent.csv --store telemetry --delivered got.parquet --output audit"
)


@click.group(cls=Refusing)
@click.option(
    "--master",
    help="Master of Spark, as for spark-submit.  [default: that of spark-submit, or all cores of this machine]",
)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Setting of Spark. May be repeated.")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False), help="File with the server's password.")
@click.pass_context
def pipeline(context: click.Context, master: str | None, conf: tuple[str, ...], password_file: str | None) -> None:
    """Run Spark jobs on the messages that HoldMQ keeps."""
    settings = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r}; expected NAME=VALUE", param_hint="--conf")
        settings[name] = value
    context.obj = Setting(master, settings, password_file)


for command in (archive, compact, export, replay, migrate):
    pipeline.add_command(command)


# ---- learn ----


@pipeline.command(epilog=LEARN_EXAMPLE)
@click.option("--input", "path", help="Archive, or table with the column topic (and count).  [default: the store]")
@click.option("--store", help="Store whose pattern set is compared, and replaced with --install.")
@click.option(
    "--filters",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the filters of readers, one per line, with an optional tab and count.",
)
@click.option("--install", is_flag=True, help="Make the cheapest set the next generation of the store.")
@click.option(
    "--margin",
    type=click.IntRange(0, 100),
    default=10,
    show_default=True,
    help="Percent by which a new set must be cheaper.",
)
@click.option(
    "--levels", type=click.IntRange(1, 16), help="Topic levels to index.  [default: those of the store, or 8]"
)
@click.option(
    "--max-patterns", type=click.IntRange(1, 4096), default=256, show_default=True, help="Maximum number of patterns."
)
@click.option(
    "--sample",
    type=click.IntRange(1, 100_000),
    default=10_000,
    show_default=True,
    help="Topics on which the sets are scored.",
)
@click.option("--estimate", is_flag=True, help="Estimate the number of different levels instead of counting them.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the cheapest set to this file.")
@click.pass_obj
def learn(
    setting: Setting,
    /,
    path: str | None,
    store: str | None,
    filters: Path | None,
    install: bool,
    margin: int,
    output: Path | None,
    **how: Any,
) -> None:
    """Learn topic patterns, compare their cost for readers, and install the cheapest set."""
    from holdmq_pipeline.jobs import learn as job  # noqa: PLC0415

    if path is None and store is None:
        raise click.UsageError("--input or --store is missing")
    if install and store is None:
        raise click.UsageError("--install needs --store")
    if how["levels"] is not None and store is not None:
        raise click.UsageError("--levels is of no use with --store, whose levels are indexed")
    how = {name: value for name, value in how.items() if value is not None}
    how["exact"] = not how.pop("estimate")
    spark = setting.spark()
    topics = loaded(spark, path) if path else history(spark, setting, store or "").select("topic")
    uses = job.read_filters(filters) if filters else None
    if store is None:
        result = job.learn(topics, filters=uses, options=job.LearnOptions(**how))
    else:
        with link(setting) as joined:
            result = job.learn_store(
                topics,
                joined,
                store,
                filters=uses,
                options=job.LearnOptions(**how),
                margin_percent=margin,
                dry_run=not install,
            )
    if output is not None:
        output.write_bytes(result.best.patterns.text)
    note(result.report())
    show(result.figures)


def link(setting: Setting) -> Any:
    """A connection to the server."""
    from holdmq_pipeline.wire import Link  # noqa: PLC0415

    return Link(checked(setting.options()))


# ---- audit ----


@pipeline.command(epilog=AUDIT_EXAMPLE)
@click.option(
    "--published",
    required=True,
    help="Table of what publishers sent: message, publisher, topic, number, time [, bytes].",
)
@click.option(
    "--stored", help="Archive of what was stored, with the columns shard, offset, topic and payload (or message)."
)
@click.option("--store", help="Store in the server, instead of an archive.")
@click.option(
    "--message",
    default="cast(payload as string)",
    show_default=True,
    help="SQL expression that identifies a stored message.",
)
@click.option("--delivered", help="Table of deliveries: message, client, position, time.")
@click.option("--acknowledged", help="Table of acknowledgements: message, client.")
@click.option("--subscriptions", help="Table of subscriptions: client, filter.")
@click.option("--sessions", is_flag=True, help="Include the sessions of the server.")
@click.option(
    "--limit", type=click.IntRange(1, 65535), default=10_000, show_default=True, help="Maximum messages of a session."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the page and the tables.",
)
@click.pass_obj
def audit(
    setting: Setting, /, published: str, output: Path, message: str, limit: int, sessions: bool, **paths: Any
) -> None:
    """Compare what publishers say they sent with what was stored, delivered and acknowledged."""
    from holdmq_pipeline.figures import Progress  # noqa: PLC0415
    from holdmq_pipeline.jobs.audit import AuditOptions, Evidence  # noqa: PLC0415
    from holdmq_pipeline.jobs.audit import audit as job  # noqa: PLC0415

    spark = setting.spark(bar=False)
    stored = loaded(spark, paths["stored"]) if paths["stored"] else None
    if paths["store"]:
        stored = history(spark, setting, paths["store"])
    if stored is not None and "message" not in stored.columns:
        stored = stored.selectExpr("*", f"{message} as message")
    info = spark.read.format("holdmq").options(**setting.options(table="session_info")).load() if sessions else None
    given = {
        name: loaded(spark, paths[name]) if paths[name] else None
        for name in ("delivered", "acknowledged", "subscriptions")
    }
    evidence = Evidence(loaded(spark, published), stored=stored, sessions=info, **given)
    result = job(evidence, output, options=AuditOptions(limit=limit), progress=Progress())
    note(f"{result.page}")
    show(result.figures)
    if not result.clean:
        raise click.ClickException("the audit found faults")
