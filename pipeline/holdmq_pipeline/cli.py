"""The commands `holdmq pipeline ...`: words to arguments, one call of a job, its figures.

The group is found by `holdmq` through the entry point `pipeline` of the group `holdmq.commands`. Spark and the jobs are
only loaded by the command that needs them. Exit status 0: done; 1: refused, or an audit found faults; 2: the words were
wrong.
"""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdmq_pipeline.figures import JobFigures
    from holdmq_pipeline.jobs.migrate import MigrationResult
    from holdmq_pipeline.options import Options
    from holdmq_pipeline.tbmq import Source

DEFAULT_URL = "redis://127.0.0.1:6379"
DRIVER_JARS = ("/usr/share/java/postgresql.jar",)
LEARN_EXAMPLE = "Example: holdmq pipeline learn --input /data/archive --store telemetry --filters asked.tsv --install"
POSTGRES_EXAMPLE = (
    "Example: holdmq pipeline migrate postgres jdbc:postgresql://db/thingsboard_mqtt_broker --user reader --execute"
)
KEYSPACE_EXAMPLE = "Example: holdmq --url redis://new:6379 pipeline migrate keyspace redis://old:6379 --execute"
AUDIT_EXAMPLE = (
    "Example: holdmq pipeline audit --published sent.csv --store telemetry --delivered got.parquet --output audit"
)


@click.group()
@click.option("--master", help="As of spark-submit; default: all cores of this machine, or what spark-submit says.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False), help="Holds the server's password.")
@click.pass_context
def pipeline(context: click.Context, master: str | None, conf: tuple[str, ...], password_file: str | None) -> None:
    """Spark jobs over what HoldMQ keeps."""
    settings = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r}, expected NAME=VALUE", param_hint="--conf")
        settings[name] = value
    context.obj = Setting(master, settings, password_file)


@dataclasses.dataclass
class Setting:
    """What holds for every job."""

    master: str | None
    settings: dict[str, str]
    password_file: str | None

    def spark(self, **further: str) -> "SparkSession":
        """The session, with further settings: `spark_jars` stands for `spark.jars`."""
        from holdmq_pipeline.spark import spark_session  # noqa: PLC0415 - takes a second to load

        return spark_session(
            "holdmq",
            master=self.master,
            settings={**{n.replace("_", "."): v for n, v in further.items()}, **self.settings},
        )

    @property
    def url(self) -> str:
        """Of the server: what `holdmq --url` says."""
        return str(
            click.get_current_context().find_root().params.get("url") or os.environ.get("HOLDMQ_URL", DEFAULT_URL)
        )

    def options(self, **given: str) -> dict[str, str]:
        """For the data source."""
        password = {"passwordFile": self.password_file} if self.password_file else {}
        return {"url": self.url, **password, **given}


def show(figures: "JobFigures") -> None:
    """The figures that a job ends with: a line, or with `holdmq --json` a JSON document."""
    if click.get_current_context().find_root().params.get("as_json"):
        click.echo(json.dumps(figures.as_dict()))
    else:
        click.echo(str(figures))


def note(text: str) -> None:
    """A report for a person; with `holdmq --json` it goes to standard error."""
    click.echo(text, err=bool(click.get_current_context().find_root().params.get("as_json")))


def loaded(spark: "SparkSession", path: str) -> "DataFrame":
    """The table at a path."""
    from holdmq_pipeline.inputs import read_table  # noqa: PLC0415

    return read_table(spark, path)


def history(spark: "SparkSession", setting: Setting, store: str) -> "DataFrame":
    """What the server holds of a store, topic, payload and place only where no more is asked for."""
    return spark.read.format("holdmq").options(**setting.options(store=store)).load()


# ---- learn ----


@pipeline.command(epilog=LEARN_EXAMPLE)
@click.option("--input", "path", help="An archive, or any table with a column topic (and count). Default: the store.")
@click.option("--store", help="The store whose patterns are compared, and installed with --install.")
@click.option("--filters", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What readers ask for.")
@click.option("--install", is_flag=True, help="Make the cheapest set the store's next generation.")
@click.option(
    "--margin", type=click.IntRange(0, 100), default=10, show_default=True, help="Percent it has to be cheaper."
)
@click.option("--levels", type=click.IntRange(1, 16), default=8, show_default=True, help="To be indexed.")
@click.option("--max-patterns", type=click.IntRange(1, 4096), default=256, show_default=True, help="Of a set.")
@click.option(
    "--sample", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Topics to score on."
)
@click.option("--estimate", is_flag=True, help="Estimate how many different levels there are instead of counting.")
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
    """Learn topic patterns, compare them by what they cost readers, install the best."""
    from holdmq_pipeline.jobs import learn as job  # noqa: PLC0415

    if path is None and store is None:
        raise click.UsageError("--input or --store is missing")
    if install and store is None:
        raise click.UsageError("--install needs --store")
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
    from holdmq_pipeline.options import Options  # noqa: PLC0415
    from holdmq_pipeline.wire import Link  # noqa: PLC0415

    return Link(Options(setting.options()))


# ---- migrate ----


@pipeline.group()
def migrate() -> None:
    """From TBMQ into sessions; without --execute it only reports."""


def migration_options(command: Any) -> Any:
    """The options that both sources share."""
    for option in (
        click.option("--execute", is_flag=True, help="Write; otherwise only report."),
        click.option("--run", default="tbmq", show_default=True, help="The migration's name: the same one goes on."),
        click.option("--merge", is_flag=True, help="Put messages behind what sessions have already."),
        click.option("--skip-conflicts", is_flag=True, help="Leave out clients whose session is in use."),
        click.option("--skip-unfit", is_flag=True, help="Leave out oversized and unreadable messages."),
        click.option("--limit", type=click.IntRange(1, 65535), default=65535, show_default=True, help="Of a session."),
        click.option(
            "--max-bytes", type=click.IntRange(1), default=268_435_455, show_default=True, help="Of a message."
        ),
        click.option("--expiry", type=click.IntRange(0, 2**32 - 1), default=2**32 - 1, help="Of sessions, in seconds."),
        click.option("--subscriptions", help="A table with client_id, filter and qos."),
        click.option("--prefix", default="", help="What stands before the session keys of the target."),
        click.option(
            "--partitions", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Tasks that read."
        ),
    ):
        command = option(command)
    return command


@migrate.command("postgres", epilog=POSTGRES_EXAMPLE)
@click.argument("jdbc_url")
@click.option("--user", required=True, help="Who may read the tables.")
@click.option("--user-password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--jar", help=f"PostgreSQL's driver; default: {', '.join(DRIVER_JARS)}.")
@click.option("--ttl", type=click.IntRange(0), default=0, help="Of messages without an expiry, in seconds; 0: none.")
@migration_options
@click.pass_obj
def migrate_postgres(
    setting: Setting,
    /,
    jdbc_url: str,
    user: str,
    user_password_file: Path | None,
    jar: str | None,
    ttl: int,
    partitions: int,
    **how: Any,
) -> None:
    """From the tables device_publish_msg and device_session_ctx."""
    from holdmq_pipeline.tbmq import Postgres, from_postgres  # noqa: PLC0415

    driver = jar or next((place for place in DRIVER_JARS if Path(place).exists()), None)
    if driver is None:
        raise click.UsageError(
            "PostgreSQL's driver for Java was not found (Debian: libpostgresql-jdbc-java): --jar PATH"
        )
    password = user_password_file.read_text(encoding="utf-8").strip() if user_password_file else ""
    spark = setting.spark(spark_jars=driver)
    database = Postgres(jdbc_url, user, password, partitions)
    run_migration(setting, spark, from_postgres(spark, database, rules(how, ttl)), **how)


@migrate.command("keyspace", epilog=KEYSPACE_EXAMPLE)
@click.argument("source_url")
@click.option("--source-prefix", default="", help="TBMQ's cache prefix.")
@click.option("--source-password-file", type=click.Path(exists=True, dir_okay=False))
@migration_options
@click.pass_obj
def migrate_keyspace(
    setting: Setting,
    /,
    source_url: str,
    source_prefix: str,
    source_password_file: str | None,
    partitions: int,
    **how: Any,
) -> None:
    """From TBMQ's Redis keyspace at SOURCE_URL (one node of it, if it is a cluster)."""
    from holdmq_pipeline.tbmq import from_keyspace  # noqa: PLC0415

    spark = setting.spark()
    given = {"url": source_url, "keyPrefix": source_prefix, "passwordFile": source_password_file or ""}
    source = from_keyspace(spark, checked(given), rules(how, 0), partitions=partitions)
    run_migration(setting, spark, source, **how)


def checked(given: dict[str, str]) -> "Options":
    """Options of the data source; empty ones are left out."""
    from holdmq_pipeline.options import Options  # noqa: PLC0415

    return Options({name: value for name, value in given.items() if value})


def rules(how: dict[str, Any], ttl_s: int) -> Any:
    """How messages are judged; takes `max_bytes` out of the options."""
    from holdmq_pipeline.tbmq import Rules  # noqa: PLC0415

    return Rules(int(time.time() * 1000), ttl_s, how.pop("max_bytes"))


def run_migration(setting: Setting, spark: "SparkSession", source: "Source", **how: Any) -> None:
    """Migrates as the options say, and shows report and figures."""
    from holdmq_pipeline.jobs.migrate import MigrationOptions, MigrationRefusedError, migrate  # noqa: PLC0415
    from holdmq_pipeline.session_import import Target  # noqa: PLC0415

    target = Target(
        checked(setting.options(keyPrefix=how["prefix"])), run=how["run"], merge=how["merge"], expiry_s=how["expiry"]
    )
    allowed = MigrationOptions(how["limit"], how["skip_unfit"], how["skip_conflicts"])
    filters = loaded(spark, how["subscriptions"]) if how["subscriptions"] else None
    try:
        result: MigrationResult = migrate(
            source, target, execute=how["execute"], subscriptions=filters, options=allowed
        )
    except MigrationRefusedError as error:
        raise click.ClickException(str(error)) from error
    note(str(result.dry_run))
    show(result.figures)
    if any(result.differences.values()):
        raise click.ClickException(f"the comparison found differences: {dict(result.differences)}")


# ---- audit ----


@pipeline.command(epilog=AUDIT_EXAMPLE)
@click.option("--published", required=True, help="Table: message, publisher, topic, number, time [, bytes].")
@click.option("--stored", help="An archive, with the columns shard, offset, topic and payload (or message).")
@click.option("--store", help="Instead: what the server holds of this store.")
@click.option(
    "--message", default="cast(payload as string)", show_default=True, help="SQL that tells a stored message."
)
@click.option("--delivered", help="Table: message, client, position, time.")
@click.option("--acknowledged", help="Table: message, client.")
@click.option("--subscriptions", help="Table: client, filter.")
@click.option("--sessions", is_flag=True, help="Look at the sessions of the server, too.")
@click.option("--limit", type=click.IntRange(1, 65535), default=10_000, show_default=True, help="Of a session.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for page and tables."
)
@click.pass_obj
def audit(
    setting: Setting, /, published: str, output: Path, message: str, limit: int, sessions: bool, **paths: Any
) -> None:
    """Compare what publishers say they sent with what was stored, delivered and acknowledged."""
    from holdmq_pipeline.figures import Progress  # noqa: PLC0415
    from holdmq_pipeline.jobs.audit import AuditOptions, Evidence  # noqa: PLC0415
    from holdmq_pipeline.jobs.audit import audit as job  # noqa: PLC0415

    spark = setting.spark()
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
