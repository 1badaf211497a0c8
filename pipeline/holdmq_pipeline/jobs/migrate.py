"""The job `migrate`: from TBMQ into sessions, packet identifiers and order kept, compared afterwards.

    tables or keyspace ──► tbmq.py ──► records ──► dry run ──► SESSION.IMPORT ──► sessions opened ──► compared
                                                     report      (session_import.py)

The source is read once and kept on the executors' disks, so that what was reported is what is imported and what is
compared. Without `execute` nothing is written. Refused as a whole, before anything is written, is a migration with
messages that cannot be taken over (oversized, unreadable), or with clients that have messages or a connection already;
what may be left out or put behind has to be said.

Not O(1): one shuffle of the messages by client.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import redis
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from holdmq_pipeline.errors import PipelineError
from holdmq_pipeline.figures import JobFigures, measured
from holdmq_pipeline.session_compare import compare
from holdmq_pipeline.session_import import COUNTS, IMPORTED, OPENED, STATES, Target, import_queues, look, open_sessions
from holdmq_pipeline.tbmq import EXPIRED, OVERSIZED, RELEASED, Source

MAX_QUEUE = 65535


class MigrationRefusedError(PipelineError):
    """The dry run found what was not allowed; nothing was written."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would be migrated.

    Attributes:
        clients: that have messages, or a row of their own.
        messages: that would be stored.
        bytes: of their records.
        released: of them, QoS 2 messages whose PUBREC was seen.
        expired: messages left out because their time is over.
        oversized: messages that are larger than allowed.
        unreadable: messages that are no messages; `example` says why.
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
    """What is allowed.

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
            raise ValueError(f"limit is {self.limit}, expected 1..{MAX_QUEUE}")


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What was done.

    Attributes:
        figures: rows are messages that were stored, bytes those of their records.
        dry_run: what was reported before.
        differences: what the comparison found: lost, extra, differ; empty if nothing was compared.
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
    """Migrates, or says what would be migrated.

    Args:
        source: of `from_postgres` or `from_keyspace`.
        target: the servers, and under which name.
        execute: False: report only.
        subscriptions: `client_id string, filter string, qos int`, if there is a list of them (TBMQ keeps it elsewhere).
        options: what is allowed.

    Raises:
        MigrationRefusedError: something is there that was not allowed; nothing was written.

    Example:
        >>> source = from_postgres(spark, Postgres("jdbc:postgresql://127.0.0.1/mqtt", "reader"), Rules(now_ms))
        >>> print(migrate(source, target).dry_run)
        >>> migrate(source, target, execute=True).differences
        {'lost': 0, 'extra': 0, 'differ': 0}
    """
    how = options or MigrationOptions()
    with measured("migrate") as figures:
        messages = source.messages.repartition("client_id").persist(StorageLevel.DISK_ONLY)
        kept = _kept(messages, how.limit).persist(StorageLevel.DISK_ONLY)
        clients = _clients(source, messages).persist(StorageLevel.DISK_ONLY)
        states = _states(clients, target).persist(StorageLevel.DISK_ONLY)
        try:
            report = _report(messages, kept, states, target)
            figures.rows, figures.bytes = report.messages, report.bytes
            figures.counts |= {"clients": report.clients, "expired": report.expired, "executed": int(execute)}
            messages.unpersist()
            if not execute:
                return MigrationResult(figures, report, {})
            _check(report, target, how)
            fit = clients.join(states.where(~_conflict(target)).select("client_id"), "client_id", "left_semi")
            _write(kept, fit, target, subscriptions, figures)
            differences = _verified(kept, fit, target, figures) if how.verify else {}
        finally:
            for frame in (messages, kept, clients, states):
                frame.unpersist()
    return MigrationResult(figures, report, differences)


# ---- before ----


def _kept(messages: DataFrame, limit: int) -> DataFrame:
    """What is to be stored: the newest `limit` of each client; of equal packet identifiers the first keeps it."""
    newest = Window.partitionBy("client_id").orderBy(f.desc("serial"))
    same = Window.partitionBy("client_id", "packet_id").orderBy("serial")
    return (
        messages.where("problem is null")
        .withColumn("age", f.row_number().over(newest))
        .where(f.col("age") <= limit)
        .withColumn("repeated", (f.col("packet_id") > 0) & (f.row_number().over(same) > 1))
        .withColumn("packet_id", f.when(f.col("repeated"), 0).otherwise(f.col("packet_id")))
        .drop("age", "problem")
    )


def _clients(source: Source, messages: DataFrame) -> DataFrame:
    """Each client once, with the packet identifier handed out last, 0 if unknown."""
    return (
        source.sessions.unionByName(messages.select("client_id", f.lit(0).alias("last_packet_id")))
        .groupBy("client_id")
        .agg(f.max("last_packet_id").alias("last_packet_id"))
    )


def _states(clients: DataFrame, target: Target) -> DataFrame:
    return clients.select("client_id").mapInArrow(lambda batches: look(batches, target), STATES)


def _conflict(target: Target) -> Column:
    busy = f.col("connected") if target.merge else f.col("connected") | (f.col("messages") > 0)
    return busy & ~f.col("ours")


def _report(messages: DataFrame, kept: DataFrame, states: DataFrame, target: Target) -> DryRun:
    problem = f.col("problem")
    unfit = problem.isNotNull() & ~problem.isin(EXPIRED)
    found = messages.agg(
        f.count_if(problem == EXPIRED).alias("expired"),
        f.count_if(problem == OVERSIZED).alias("oversized"),
        f.count_if(unfit & (problem != OVERSIZED)).alias("unreadable"),
        f.count_if(problem.isNull()).alias("good"),
        f.max(f.when(unfit, f.concat_ws(" ", "client_id", "serial", "problem"))).alias("example"),
    ).first()
    stored = kept.agg(
        f.count("*").alias("messages"),
        f.coalesce(f.sum(f.octet_length("value")), f.lit(0)).alias("bytes"),
        f.count_if(f.col("state") == RELEASED).alias("released"),
        f.count_if("repeated").alias("repeated_ids"),
    ).first()
    there = states.agg(
        f.count("*").alias("clients"),
        f.count_if(_conflict(target)).alias("conflicts"),
        f.count_if("ours").alias("resumed"),
        f.max(f.when(_conflict(target), f.concat(f.lit("the session of "), "client_id", f.lit(" is in use")))).alias(
            "conflict"
        ),
    ).first()
    assert found is not None
    assert stored is not None
    assert there is not None
    return DryRun(
        clients=there.clients,
        **stored.asDict(),
        expired=found.expired,
        oversized=found.oversized,
        unreadable=found.unreadable,
        beyond_limit=found.good - stored.messages,
        conflicts=there.conflicts,
        resumed=there.resumed,
        example=there.conflict or found.example or "",
    )


def _check(report: DryRun, target: Target, how: MigrationOptions) -> None:
    unfit = report.oversized + report.unreadable
    if unfit and not how.skip_unfit:
        raise MigrationRefusedError(
            f"{report.oversized} oversized and {report.unreadable} unreadable messages, expected none unless they may "
            f"be left out; one of them: {report.example}"
        )
    if report.conflicts and not how.skip_conflicts:
        wanted = "nobody connected" if target.merge else "empty sessions, or to put messages behind what is there"
        raise MigrationRefusedError(f"{report.conflicts} clients, expected {wanted}; one of them: {report.example}")


# ---- after ----


def _write(
    kept: DataFrame, clients: DataFrame, target: Target, subscriptions: DataFrame | None, figures: JobFigures
) -> None:
    columns = ["client_id", "serial", "packet_id", "state", "lives_until", "value", "last_packet_id"]
    rows = clients.join(kept, "client_id", "left").select(*columns)
    queues = rows.repartition("client_id").sortWithinPartitions("client_id", "serial")
    imported = queues.mapInArrow(lambda batches: import_queues(batches, target), IMPORTED).persist()
    try:
        totals = imported.agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in COUNTS)).first()
        refused = imported.where("problem is not null").head()
    finally:
        imported.unpersist()
    assert totals is not None
    figures.rows = totals.stored
    figures.counts |= totals.asDict()
    if refused is not None:  # somebody else wrote there after the dry run
        raise redis.ResponseError(f"client {refused.client_id}: {refused.problem}")
    subscribed = subscriptions is not None
    made = _with_filters(clients, subscriptions)
    opened = made.mapInArrow(lambda batches: open_sessions(batches, target, subscribed), OPENED)
    row = opened.agg(f.count_if("opened"), f.coalesce(f.sum("subscriptions"), f.lit(0))).first()
    assert row is not None
    figures.counts |= {"opened": row[0], "subscriptions": row[1]}


def _with_filters(clients: DataFrame, subscriptions: DataFrame | None) -> DataFrame:
    if subscriptions is None:
        return clients.select("client_id")
    filters = subscriptions.groupBy("client_id").agg(
        f.map_from_entries(f.collect_list(f.struct("filter", f.col("qos").cast("int")))).alias("filters")
    )
    return clients.select("client_id").join(filters, "client_id", "left")


def _verified(kept: DataFrame, clients: DataFrame, target: Target, figures: JobFigures) -> dict[str, int]:
    expected = kept.join(clients.select("client_id"), "client_id", "left_semi")
    differences = compare(expected, clients, target)
    figures.counts |= asdict(differences)
    return asdict(differences)
