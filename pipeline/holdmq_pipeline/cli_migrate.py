"""The commands `holdmq pipeline migrate ...`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdmq_pipeline.cli_setting import Setting, checked, loaded, note, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdmq_pipeline.tbmq import Source

DRIVER_JARS = ("/usr/share/java/postgresql.jar",)
POSTGRES_EXAMPLE = (
    "Example: holdmq pipeline migrate postgres jdbc:postgresql://db/thingsboard_mqtt_broker --user reader --execute"
)
KEYSPACE_EXAMPLE = "Example: holdmq --url redis://new:6379 pipeline migrate keyspace redis://old:6379 --execute"


@click.group()
def migrate() -> None:
    """Migrate sessions from TBMQ. Without --execute, only report what would be stored."""


def migration_options(command: Any) -> Any:
    """The options that both sources share."""
    for option in (
        click.option("--execute", is_flag=True, help="Store the messages instead of only reporting."),
        click.option(
            "--run", default="tbmq", show_default=True, help="Name of the migration. The same name continues it."
        ),
        click.option("--merge", is_flag=True, help="Append messages to sessions that already have some."),
        click.option("--skip-conflicts", is_flag=True, help="Skip clients whose session is in use."),
        click.option("--skip-unfit", is_flag=True, help="Skip oversized and unreadable messages."),
        click.option(
            "--limit",
            type=click.IntRange(1, 65535),
            default=65535,
            show_default=True,
            help="Maximum number of messages of a session.",
        ),
        click.option(
            "--max-bytes",
            type=click.IntRange(1),
            default=268_435_455,
            show_default=True,
            help="Maximum bytes of a message.",
        ),
        click.option(
            "--expiry",
            type=click.IntRange(0, 2**32 - 1),
            default=2**32 - 1,
            help="Expiry interval of new sessions, in seconds.  [default: never]",
        ),
        click.option("--subscriptions", help="Table of subscriptions: client_id, filter, qos."),
        click.option("--prefix", default="", help="Prefix of the session keys in the target."),
        click.option(
            "--partitions",
            type=click.IntRange(1, 10_000),
            default=8,
            show_default=True,
            help="Number of reading tasks.",
        ),
    ):
        command = option(command)
    return command


@migrate.command("postgres", epilog=POSTGRES_EXAMPLE)
@click.argument("jdbc_url")
@click.option("--user", required=True, help="User of the database who may read the tables.")
@click.option("--user-password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--jar", help=f"JDBC driver of PostgreSQL.  [default: {', '.join(DRIVER_JARS)}]")
@click.option(
    "--ttl", type=click.IntRange(0), default=0, help="Expiry interval of messages without one, in seconds. 0: none."
)
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
    """Migrate from the tables device_publish_msg and device_session_ctx of TBMQ 1.x."""
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
@click.option("--source-prefix", default="", help="Cache prefix of TBMQ.")
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
    """Migrate from the Redis keyspace of TBMQ 2.x at SOURCE_URL. Of a cluster, name one node."""
    from holdmq_pipeline.tbmq import from_keyspace  # noqa: PLC0415

    spark = setting.spark()
    given = {"url": source_url, "keyPrefix": source_prefix, "passwordFile": source_password_file or ""}
    source = from_keyspace(spark, checked(given), rules(how, 0), partitions=partitions)
    run_migration(setting, spark, source, **how)


def rules(how: dict[str, Any], ttl_s: int) -> Any:
    """How messages are judged; takes `max_bytes` out of the options."""
    from holdmq_pipeline.tbmq import Rules  # noqa: PLC0415

    return Rules(int(time.time() * 1000), ttl_s, how.pop("max_bytes"))


def run_migration(setting: Setting, spark: "SparkSession", source: "Source", **how: Any) -> None:
    """Migrates as the options say, and shows report and figures."""
    from holdmq_pipeline.jobs.migrate import MigrationOptions, migrate  # noqa: PLC0415
    from holdmq_pipeline.session_plan import Target  # noqa: PLC0415

    target = Target(
        checked(setting.options(keyPrefix=how["prefix"])), run=how["run"], merge=how["merge"], expiry_s=how["expiry"]
    )
    allowed = MigrationOptions(how["limit"], how["skip_unfit"], how["skip_conflicts"])
    filters = loaded(spark, how["subscriptions"]) if how["subscriptions"] else None
    result = migrate(source, target, execute=how["execute"], subscriptions=filters, options=allowed)
    note(str(result.dry_run))
    show(result.figures)
    if any(result.differences.values()):
        raise click.ClickException(f"the comparison found differences: {dict(result.differences)}")
