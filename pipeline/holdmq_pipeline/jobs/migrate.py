"""The job `migrate`: moves the messages of TBMQ into sessions, keeps identifiers and order, and compares the result.

    tables or keyspace ──► tbmq.py ──► pieces of queues ──► dry run ──► SESSION.IMPORT ──► sessions opened ──► compared
                                     (session_plan.py)      report    (session_import.py)           (session_compare.py)

The source is read once, and the plan is kept on the executors' disks: report, import and comparison use the same plan.
Without `execute` nothing is written. A migration is refused as a whole, before anything is written, if some messages
cannot be moved (oversized, unreadable), or if clients already have messages or a connection. Options say what may be
skipped or appended.

All messages of a client are in one partition, from the source on. So no message is shuffled, and each step is one pass
of the tasks.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import redis
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from holdmq_pipeline.errors import PipelineError
from holdmq_pipeline.figures import JobFigures, measured
from holdmq_pipeline.session_compare import compare
from holdmq_pipeline.session_import import COUNTS, IMPORTED, OPENED, TO_IMPORT, import_queues, open_sessions
from holdmq_pipeline.session_plan import Target, planned
from holdmq_pipeline.tbmq import Source

MAX_QUEUE = 65535


class MigrationRefusedError(PipelineError):
    """The dry run found something that the options do not allow; nothing was written."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The messages and clients that would be migrated.

    Attributes:
        clients: that have messages, or a row of their own.
        messages: that would be stored.
        bytes: of their records.
        released: of them, QoS 2 messages whose PUBREC was seen.
        expired: messages left out because their time is over.
        oversized: messages that are larger than allowed.
        unreadable: values that are not messages; `example` says why.
        beyond_limit: oldest messages of clients that have more than the limit: left out, as TBMQ would.
        repeated_ids: messages whose packet identifier another one of the same client bears: they get new ones.
        conflicts: clients whose session has messages or a connection already.
        resumed: clients that this migration has begun with before.
        example: a conflict, an oversized or an unreadable message.
    """

    clients: int = 0
    messages: int = 0
    bytes: int = 0
    released: int = 0
    expired: int = 0
    oversized: int = 0
    unreadable: int = 0
    beyond_limit: int = 0
    repeated_ids: int = 0
    conflicts: int = 0
    resumed: int = 0
    example: str = ""

    def __str__(self) -> str:
        return "\n".join(f"{field.name.replace('_', ' '):14} {getattr(self, field.name)}" for field in fields(self))


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The options of a migration.

    Attributes:
        limit: most messages of a session, 1..65535; the newest are kept.
        skip_unfit: leave out oversized and unreadable messages.
        skip_conflicts: leave out clients whose session has messages or a connection.
        verify: compare afterwards.
    """

    limit: int = MAX_QUEUE
    skip_unfit: bool = False
    skip_conflicts: bool = False
    verify: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_QUEUE:
            raise ValueError(f"limit is {self.limit}; expected 1..{MAX_QUEUE}")


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The result of a migration.

    Attributes:
        figures: rows are messages that were stored, bytes those of their records.
        dry_run: the report before it.
        differences: the result of the comparison: lost, extra, differ; empty if nothing was compared.
    """

    figures: JobFigures
    dry_run: DryRun
    differences: Mapping[str, int]


def migrate(
    source: Source,
    target: Target,
    *,
    execute: bool = False,
    subscriptions: DataFrame | None = None,
    options: MigrationOptions | None = None,
) -> MigrationResult:
    """Migrates, or reports what would be migrated.

    Args:
        source: of `from_postgres` or `from_keyspace`.
        target: the servers, and under which name.
        execute: False: report only.
        subscriptions: `client_id string, filter string, qos int`, if there is a list of them (TBMQ keeps it elsewhere).
        options: of the migration.

    Raises:
        MigrationRefusedError: the options do not allow something that was found; nothing was written.

    Example:
        >>> source = from_postgres(spark, Postgres("jdbc:postgresql://127.0.0.1/mqtt", "reader"), Rules(now_ms))
        >>> print(migrate(source, target).dry_run)
        >>> migrate(source, target, execute=True).differences
        {'lost': 0, 'extra': 0, 'differ': 0}
    """
    how = options or MigrationOptions()
    with measured("migrate") as figures:
        plan = planned(source, target, how.limit).persist(StorageLevel.DISK_ONLY)
        try:
            report = _report(plan, target)
            figures.rows, figures.bytes = report.messages, report.bytes
            figures.counts |= {"clients": report.clients, "expired": report.expired, "executed": int(execute)}
            if not execute:
                return MigrationResult(figures, report, {})
            _check(report, target, how)
            _write(plan, target, subscriptions, figures)
            differences = asdict(compare(plan, target, _conflict(target))) if how.verify else {}
            figures.counts |= differences
        finally:
            plan.unpersist()
    return MigrationResult(figures, report, differences)


# ---- before ----


def _conflict(target: Target) -> Column:
    """Is the session in use? Heads of clients know."""
    busy = f.col("connected") if target.merge else f.col("connected") | (f.col("held") > 0)
    return f.col("head") & busy & ~f.col("ours")


def _report(plan: DataFrame, target: Target) -> DryRun:
    conflict = _conflict(target)
    summed = ("messages", "bytes", "released", "expired", "oversized", "unreadable", "beyond_limit", "repeated_ids")
    row = plan.agg(
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in summed),
        f.count_if("head").alias("clients"),
        f.count_if(conflict).alias("conflicts"),
        f.count_if(f.col("head") & f.col("ours")).alias("resumed"),
        f.max("example").alias("unfit"),
        f.max(f.when(conflict, f.concat(f.lit("the session of "), "client_id", f.lit(" is in use")))).alias("in_use"),
    ).first()
    assert row is not None
    found = row.asDict()
    in_use, unfit = found.pop("in_use"), found.pop("unfit")
    return DryRun(**found, example=in_use or unfit or "")


def _check(report: DryRun, target: Target, how: MigrationOptions) -> None:
    unfit = report.oversized + report.unreadable
    if unfit and not how.skip_unfit:
        raise MigrationRefusedError(
            f"{report.oversized} oversized and {report.unreadable} unreadable messages; expected none unless they may "
            f"be left out; one of them: {report.example}"
        )
    if report.conflicts and not how.skip_conflicts:
        wanted = "nobody connected" if target.merge else "empty sessions, or to append messages to what is there"
        raise MigrationRefusedError(f"{report.conflicts} clients; expected {wanted}; one of them: {report.example}")


# ---- after ----


def _write(plan: DataFrame, target: Target, subscriptions: DataFrame | None, figures: JobFigures) -> None:
    pieces = plan.withColumn("conflict", _conflict(target)).select(*TO_IMPORT)
    opens = subscriptions is None
    imported = pieces.mapInArrow(lambda batches: import_queues(batches, target, opens=opens), IMPORTED)
    sums = (f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in COUNTS)
    totals = imported.agg(*sums, f.max("problem").alias("problem")).first()
    assert totals is not None
    figures.rows = totals.stored
    figures.counts |= {name: totals[name] for name in COUNTS} | {"subscriptions": 0}
    if totals.problem is not None:  # another program wrote there after the dry run
        raise redis.ResponseError(totals.problem)
    if subscriptions is not None:
        clients = plan.where(f.col("head") & ~_conflict(target)).select("client_id")
        made = _with_filters(clients, subscriptions).mapInArrow(lambda batches: open_sessions(batches, target), OPENED)
        row = made.groupBy().sum().first()
        assert row is not None
        figures.counts |= {"opened": row[0] or 0, "subscriptions": row[1] or 0}


def _with_filters(clients: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """The clients, each with its filters and their QoS."""
    filters = subscriptions.groupBy("client_id").agg(
        f.map_from_entries(f.collect_list(f.struct("filter", f.col("qos").cast("int")))).alias("filters")
    )
    return clients.join(filters, "client_id", "left")
