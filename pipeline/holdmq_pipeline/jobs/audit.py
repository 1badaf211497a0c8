"""The job `audit`: compares what publishers say they sent with what was stored, delivered and acknowledged.

    published ─┬─ stored        lost, duplicates, unexpected, out of order (audit_tables.py)
               ├─ delivered     the same for each client, latency by topic and client
               └─ acknowledged  messages that clients got and never acknowledged
    sessions ──── at risk       published ──── top talkers, silent devices, volume

Each finding is a table (Parquet and CSV below the output folder). The first rows of each, the figures and the plots are
on one page (audit_page.py). Without an input, its findings are left out, and the page says so.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from holdmq_pipeline import audit_tables as tables
from holdmq_pipeline.audit_page import Page, write_page
from holdmq_pipeline.figures import JobFigures, Progress, measured

PAGE_NAME = "index.html"
PARTS_PER_CORE = 4
FINDINGS = ("lost", "duplicates", "unexpected", "inversions", "at_risk", "silent")
"""Tables whose rows are faults, or ask for a look."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs of an audit; audit_tables.py has their columns.

    Attributes:
        published: what publishers say they sent.
        stored: a history or an archive, with a column `message`.
        delivered: the messages that clients got.
        acknowledged: the messages that clients acknowledged.
        subscriptions: who should get what.
        sessions: their state.
        devices: `publisher`: all expected publishers.
    """

    published: DataFrame
    stored: DataFrame | None = None
    delivered: DataFrame | None = None
    acknowledged: DataFrame | None = None
    subscriptions: DataFrame | None = None
    sessions: DataFrame | None = None
    devices: DataFrame | None = None

    def __post_init__(self) -> None:
        """Checks the columns.

        Raises:
            ValueError: one is missing, or what clients acknowledged is given without what they got.
        """
        for name in tables.REQUIRED:
            frame = getattr(self, name)
            if frame is not None:
                tables.checked(name, frame)
        if self.acknowledged is not None and self.delivered is None:
            raise ValueError("acknowledged is given without delivered; expected both")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The limits from which a row is a finding.

    Attributes:
        limit: most messages of a session.
        share: of the limit, from which a session is at risk.
        talkers: how many of the top talkers.
        silence_factor: a device is silent after this many times its usual interval between messages.
        silence_s: less is not silent, in seconds.
        until_ms: up to when it was listened, ms since 1970; 0: the last message.
        shown: rows of each table on the page.
    """

    limit: int = 10_000
    share: float = 0.8
    talkers: int = 20
    silence_factor: float = 10.0
    silence_s: float = 60.0
    until_ms: int = 0
    shown: int = 50


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The findings.

    Attributes:
        figures: rows are published messages; `counts` has the number of rows of each finding.
        tables: all of them, by name.
        page: where the page is, None if none was written.
    """

    figures: JobFigures
    tables: Mapping[str, DataFrame] = field(repr=False)
    page: Path | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, duplicated, unexpected or out of order."""
        return not any(self.figures.counts.get(name, 0) for name in FINDINGS[:4])


def findings(evidence: Evidence, options: AuditOptions) -> dict[str, DataFrame]:
    """The tables that the evidence allows, by name."""
    published, found = evidence.published, dict[str, list[DataFrame]]()
    routes = None if evidence.subscriptions is None else tables.routes(published, evidence.subscriptions)
    if evidence.stored is not None:
        _add(found, "lost", tables.lost(published, evidence.stored, "stored"))
        _add(found, "duplicates", tables.duplicates(evidence.stored, "stored", by_client=False))
        _add(found, "unexpected", tables.unexpected(published, evidence.stored, "stored"))
        late = tables.inversions(published, evidence.stored, "stored", order="offset", by="shard")
        _add(found, "inversions", late.withColumnRenamed("shard", "within"))
    delivered = evidence.delivered
    if delivered is not None:
        _add(found, "lost", tables.lost(published, delivered, "delivered", expected=routes))
        _add(found, "duplicates", tables.duplicates(delivered, "delivered", by_client=True))
        _add(found, "unexpected", tables.unexpected(published, delivered, "delivered", expected=routes))
        late = tables.inversions(published, delivered, "delivered", order="position", by="client")
        _add(found, "inversions", late.withColumnRenamed("client", "within"))
        _add(found, "latency_by_topic", tables.latency(published, delivered, "topic"))
        _add(found, "latency_by_client", tables.latency(published, delivered, "client"))
        _add(found, "volume_delivered", tables.volume(delivered))
        if evidence.acknowledged is not None:
            _add(found, "lost", tables.unacknowledged(published, delivered, evidence.acknowledged))
    if evidence.sessions is not None:
        _add(found, "at_risk", tables.at_risk(evidence.sessions, limit=options.limit, share=options.share))
    _add(found, "volume_published", tables.volume(published))
    _add(found, "top_talkers", tables.top_talkers(published, options.talkers))
    until = options.until_ms or _last_ms(published)
    quiet = tables.silent(
        published, until_ms=until, devices=evidence.devices, factor=options.silence_factor, least_s=options.silence_s
    )
    _add(found, "silent", quiet)
    return {name: reduce(DataFrame.unionByName, frames) for name, frames in found.items()}


def audit(
    evidence: Evidence,
    output: Path | None = None,
    *,
    options: AuditOptions | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Audits, and writes tables and page if there is a folder for them.

    Args:
        evidence: the inputs.
        output: a folder, which is created if it is missing; its tables are replaced. None: nothing is written.
        options: the limits.
        progress: shows the progress.

    Raises:
        ValueError: a column is missing, or a filter is invalid.

    Example:
        >>> evidence = Evidence(published, stored=spark.read.format("holdmq").load().withColumn("message", number))
        >>> result = audit(evidence, Path("audit"))
        >>> result.figures.counts["lost"], result.clean
        (0, True)
    """
    how = options or AuditOptions()
    shown = progress or Progress(shown=False)
    with measured("audit") as figures, shown, _parted(evidence.published.sparkSession) as parts:
        read, once = _read_once(evidence, parts)
        try:
            figures.rows, figures.bytes = _volume_of(read.published)
            found = findings(read, how)
            step = shown.step("tables", total=len(found))
            page = Page(figures, how.shown)
            for name, frame in found.items():
                kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
                try:
                    _keep(page, name, kept, output)
                finally:
                    kept.unpersist()
                shown.advance(step)
        finally:
            for frame in once:
                frame.unpersist()
    place = None
    if output is not None:
        place = output / PAGE_NAME
        write_page(page, place)
    return AuditResult(figures, found, place)


def _read_once(evidence: Evidence, parts: int) -> tuple[Evidence, list[DataFrame]]:
    """The evidence, kept with the columns that count: each table is asked many times; and what is to be given back.

    Tables of messages are kept by message, and in that order: what joins or groups by it, which is most of an audit,
    neither shuffles nor sorts them again.
    """
    once: dict[str, DataFrame] = {}
    for name, columns in tables.REQUIRED.items():
        frame: DataFrame | None = getattr(evidence, name)
        if frame is not None:
            wanted = [*columns, *(["bytes"] if name == "published" and "bytes" in frame.columns else [])]
            chosen = frame.select(*wanted)
            if "message" in columns:
                chosen = chosen.repartition(parts, "message").sortWithinPartitions("message")
            once[name] = chosen.persist(StorageLevel.MEMORY_AND_DISK)
    return replace(evidence, **once), list(once.values())


@contextmanager
def _parted(spark: SparkSession) -> Iterator[int]:
    """Shuffles into some parts for each core in this block, at most as many as are set; yields how many.

    Spark makes 200 for any amount of rows, and does not put them together where a table is kept: most of a small audit
    would be their tasks.
    """
    name = "spark.sql.shuffle.partitions"
    most = str(spark.conf.get(name))
    parts = min(int(most), PARTS_PER_CORE * spark.sparkContext.defaultParallelism)
    spark.conf.set(name, parts)
    try:
        yield parts
    finally:
        spark.conf.set(name, most)


def _volume_of(published: DataFrame) -> tuple[int, int]:
    """Messages, and bytes if they are known."""
    size = "coalesce(sum(bytes), 0)" if "bytes" in published.columns else "0"
    row = published.selectExpr("count(*)", size).first()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _keep(page: Page, name: str, frame: DataFrame, output: Path | None) -> None:
    """Counts a table, and with a folder shows and writes it."""
    if output is None:
        page.figures.counts[name] = frame.count()
        return
    page.figures.counts[name] = page.add(name, frame)
    frame.write.mode("overwrite").parquet(str(output / f"{name}.parquet"))
    frame.coalesce(1).write.mode("overwrite").option("header", True).csv(str(output / f"{name}.csv"))


def _add(found: dict[str, list[DataFrame]], name: str, frame: DataFrame) -> None:
    if name == "inversions":
        frame = frame.withColumn("within", frame["within"].cast("string"))
    found.setdefault(name, []).append(frame)


def _last_ms(published: DataFrame) -> int:
    row = published.selectExpr("coalesce(max(unix_millis(time)), 0)").first()
    return int(row[0]) if row else 0
