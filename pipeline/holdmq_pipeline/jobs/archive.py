"""The job `archive`: copies history into a table, batch by batch, and trims the server afterwards.

A batch has five steps. (1) Ask for the numbers of each shard, and take those after the table's watermarks. (2) Tasks
read the messages, sort them (layout.py) and write the files; no row passes through Spark's JVM or the driver. (3) One
commit of the table adds the files and moves the watermarks. (4) The reader's hold in the server moves to the watermarks
(`HISTORY.HOLD`). (5) If requested, the server's copy is trimmed up to them (`HISTORY.TRIM`).

Invariants:

1. The table is authoritative: the next batch follows from its watermarks alone. A job may end at any moment; the next
   one loses nothing and repeats nothing. Files of a batch that was not committed are in no version.
2. Only committed messages are trimmed: from before the first read on, the hold is at the last committed message.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql import SparkSession

from holdmq import core
from holdmq_pipeline import archive_table, layout
from holdmq_pipeline.archive_table import ArchiveTable, Change, Snapshot, open_table
from holdmq_pipeline.errors import ArchiveError, DataLossError, OptionError
from holdmq_pipeline.figures import JobFigures, Progress, measured
from holdmq_pipeline.history_reader import RangeQuery, read_range, without_collector
from holdmq_pipeline.holds import hold, move, release
from holdmq_pipeline.layout import ArchiveFile
from holdmq_pipeline.offsets import Range, ShardInfo, admitted, lost, plan
from holdmq_pipeline.options import READ, Options
from holdmq_pipeline.places import whole_path
from holdmq_pipeline.ranges import check_loss, shard_infos
from holdmq_pipeline.wire import Link, range_key

__all__ = ["Archiver", "archive", "compact"]

log = logging.getLogger(__name__)

COLUMNS = tuple(name for name in layout.SCHEMA.names if name not in layout.LEVEL_NAMES)
COMMIT_TRIES = 5
Fault = Callable[[str], None]
"""Called with the name of a phase when the job comes there; tests end it then."""


def no_fault(_phase: str) -> None:
    """What is not under test continues."""


def archive(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    options: Mapping[str, str],
    table: str,
    *,
    reader: str = "archive",
    batch_rows: int = 1_000_000,
    task_rows: int = 250_000,
    trim_after_s: float | None = None,
    follow_s: float | None = None,
    progress: Progress | None = None,
) -> JobFigures:
    """Archives a store.

    Args:
        spark: whose tasks read and write.
        options: of the data source: url, passwordFile, store, fetchRows, failOnDataLoss.
        table: its location; `parquet:<path>` for plain Parquet, else a Delta table, which is created if it is missing.
        reader: the name of the hold in the server.
        batch_rows: maximum messages per commit.
        task_rows: maximum messages per task, which holds them in memory.
        trim_after_s: once archived, messages older than this are removed from the server; 0 at once, None never.
        follow_s: None: ends once all messages are archived; otherwise the interval of checks, forever.
        progress: shows the progress.

    Returns:
        Messages, bytes of the files, time; counts: commits, files, missed.

    Raises:
        ArchiveError: the table is another store's, or another archiver writes to it.
        DataLossError: messages are gone that were not archived, and failOnDataLoss is true.
    """
    archiver = Archiver(spark, Options(options, READ), table, reader=reader, batch_rows=batch_rows, task_rows=task_rows)
    step = progress.step("archiving") if progress else None
    with measured("archive") as figures:
        figures.counts.update({"commits": 0, "files": 0, "missed": 0})
        while True:
            done = archiver.batch(figures, trim_after_s)
            if progress is not None and step is not None:
                progress.at(step, figures.rows, figures.rows + archiver.left)
            if done and follow_s is None:
                return figures
            if done and follow_s is not None:
                time.sleep(follow_s)


@dataclass(frozen=True)
class Task:
    """The data that a task needs."""

    options: Options
    location: str
    query: RangeQuery
    part: Range


class Archiver:
    """Moves a store into a table, a batch at a time.

    Args:
        spark: whose tasks read and write.
        options: of the data source.
        location: of the table.
        reader: the name of the hold in the server.
        batch_rows: maximum messages per commit.
        task_rows: maximum messages per task.
        fault: as `Fault` says.

    Attributes:
        left: messages that were there and not archived yet when the last batch was planned.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        location: str,
        *,
        reader: str = "archive",
        batch_rows: int = 1_000_000,
        task_rows: int = 250_000,
        fault: Fault = no_fault,
    ) -> None:
        for name, value in (("batch_rows", batch_rows), ("task_rows", task_rows)):
            if value < 1:
                raise OptionError(f"{name} is {value}; expected 1 or more")
        self._spark = spark
        self._options = options
        self._location = whole_path(location)
        self._reader = reader
        self._batch_rows = batch_rows
        self._task_rows = task_rows
        self._fault = fault
        self._held = False
        self.left = 0

    def batch(self, figures: JobFigures, trim_after_s: float | None = None) -> bool:
        """One batch; True if nothing is left now."""
        table = open_table(self._location)
        with Link(self._options) as link:
            info = link.store(self._options.text("store"))
            store = info[b"store"].decode()
            snapshot = table.snapshot(store)
            if not self._held:
                self._hold(link, store, snapshot)
                info = link.store(store)
            shards = shard_infos(info)
            begin = self._begin(store, snapshot, shards, figures)
            latest = {one.shard: max(one.end, begin[one.shard]) for one in shards}
            end = admitted(begin, latest, self._batch_rows)
            self.left = sum(latest[shard] - end[shard] for shard in end)
            ranges = [Range(shard, begin[shard], end[shard]) for shard in end]
            if any(len(part) for part in ranges) or snapshot.version < 0:
                self._fault("before write")
                files = self._write(store, ranges)
                self._fault("after write")
                self._commit(table, store, snapshot, files, {shard: number - 1 for shard, number in end.items()})
                self._fault("after commit")
                figures.counts["commits"] = int(figures.counts.get("commits", 0)) + 1
                figures.counts["files"] = int(figures.counts.get("files", 0)) + len(files)
                figures.rows += sum(one.rows for one in files)
                figures.bytes += sum(one.size for one in files)
            marks = {shard: number - 1 for shard, number in end.items()}
            move(link, store, self._reader, marks)
            self._fault("after hold")
            if trim_after_s is not None:
                self._trim(link, store, marks, trim_after_s)
                self._fault("after trim")
        return self.left == 0

    def _hold(self, link: Link, store: str, snapshot: Snapshot) -> None:
        """Makes the server keep the messages after the table's watermarks."""
        try:
            hold(link, store, self._reader)
            move(link, store, self._reader, snapshot.watermarks)
        except redis.ResponseError as error:
            if not str(error).startswith("HOLDLOST") or self._options.flag("failOnDataLoss"):
                raise
            log.warning("%s", error)
            release(link, store, self._reader)
            hold(link, store, self._reader)
        self._held = True

    def _begin(
        self, store: str, snapshot: Snapshot, shards: Sequence[ShardInfo], figures: JobFigures
    ) -> dict[int, int]:
        """The next number of each shard."""
        begin = {
            one.shard: snapshot.watermarks[one.shard] + 1 if one.shard in snapshot.watermarks else one.first
            for one in shards
        }
        try:
            gaps = lost(begin, list(shards))
        except DataLossError as error:
            raise ArchiveError(f"{self._location} is ahead of store {store}: {error}") from error
        check_loss(self._options, store, gaps)
        for gap in gaps:
            figures.counts["missed"] = int(figures.counts.get("missed", 0)) + len(gap)
            begin[gap.shard] = gap.end
        return begin

    def _write(self, store: str, ranges: Sequence[Range]) -> list[ArchiveFile]:
        """Tasks read the ranges and write files; what they wrote."""
        query = RangeQuery(store, (*COLUMNS, "pattern", "generation"), (), self._options.required("fetchRows"))
        tasks = [Task(self._options, self._location, query, part) for part in plan(list(ranges), self._task_rows, None)]
        if not tasks:
            return []
        found = self._spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(write_range).collect()
        return list(found)

    def _commit(
        self,
        table: ArchiveTable,
        store: str,
        snapshot: Snapshot,
        files: Sequence[ArchiveFile],
        marks: Mapping[int, int],
    ) -> None:
        """Commits; again on a newer version if another commit left the watermarks alone."""
        based_on = snapshot
        for tries in range(COMMIT_TRIES):
            try:
                table.commit(Change(store, based_on, files, watermarks=marks))
            except ArchiveError:
                newer = table.snapshot(store)
                if (
                    newer.watermarks != snapshot.watermarks
                    or newer.version == based_on.version
                    or tries == COMMIT_TRIES - 1
                ):
                    raise
                based_on = newer
            else:
                return

    def _trim(self, link: Link, store: str, marks: Mapping[int, int], after_s: float) -> None:
        """Removes what is archived and old enough; what another reader holds waits for the next batch."""
        before_ms = int((time.time() - after_s) * 1000)
        for shard, mark in marks.items():
            key = range_key(store, shard)
            older = mark if after_s <= 0 else int(link.ask(key, "HISTORY.SEQ", store, shard, before_ms)) - 1
            if min(mark, older) < 1:
                continue
            try:
                link.ask(key, "HISTORY.TRIM", store, shard, min(mark, older))
            except redis.ResponseError as error:
                if not str(error).startswith("HELD"):
                    raise
                log.info("%s", error)


def write_range(task: Task) -> list[ArchiveFile]:
    """A task: reads a range and writes its files."""
    with Link(task.options) as link, without_collector():

        def gone(query: RangeQuery, gap: Range) -> Any:
            check_loss(task.options, query.store, [gap])
            return iter(())

        batches = list(read_range(link, task.query, task.part, gone))
        if not batches:
            return []
        rows = pa.Table.from_batches(batches)
        structures = _structures(link, task.query.store, task.part.shard, rows)
    written = []
    for day, structure, part in layout.parts(rows, structures):
        name = f"{task.query.store}-{task.part.shard}-{task.part.begin}"
        written.append(write_part(task.location, layout.arranged(part, structure), day, structure, name))
    return written


def write_part(location: str, rows: pa.Table, day: str, structure: str, name: str) -> ArchiveFile:
    """Writes a file of arranged rows."""
    path = layout.part_path(day, structure, "".join(c if c.isalnum() or c == "-" else "_" for c in name))
    size = archive_table.save(location, path, rows)
    return ArchiveFile(path, day, structure, size, rows.num_rows, *layout.bounds(rows))


def _structures(link: Link, store: str, shard: int, rows: pa.Table) -> dict[tuple[int, int], str]:
    """The structures of the patterns that occur."""
    found = {}
    for generation in rows.column("generation").unique().to_pylist():
        key = range_key(store, shard)
        _generation, text = link.ask(key, "HISTORY.PATTERNS", "GET", store, "SHARD", shard, "GENERATION", generation)
        patterns = core.PatternSet(text)
        for number in range(len(patterns)):
            found[generation, number] = layout.structure_of(patterns[number].text.decode())
    return found


def compact(
    spark: SparkSession,
    table: str,
    store: str,
    *,
    file_rows: int = 2_000_000,
    least_files: int = 2,
    before: str | None = None,
    progress: Progress | None = None,
    fault: Fault = no_fault,
) -> JobFigures:
    """Makes few large files of the small ones that batches leave: one for each day and structure, where rows allow it.

    Readers of an older version can continue to read it; the old files stay until the table is vacuumed.

    Args:
        spark: whose tasks read and write.
        table: the archive.
        store: any store of it.
        file_rows: most rows of a file, which a task holds in memory.
        least_files: fewer files of a day and structure are left alone.
        before: only days before this one (ISO 8601); None: all.
        progress: shows the progress.
        fault: as `Fault` says.

    Raises:
        OptionError: `before` is not a date.
        ArchiveError: there is no archive; or files changed meanwhile: what was written is in no version, and it can be
            done again.
    """
    try:
        until = None if before is None else date.fromisoformat(before).isoformat()
    except ValueError as error:
        raise OptionError(f"before is {before!r}; expected a date like 2026-11-01") from error
    archive_of = open_table(table)
    with measured("compact") as figures:
        figures.counts.update({"files_before": 0, "files_after": 0})
        snapshot = archive_of.snapshot(store)
        if snapshot.version < 0:
            raise ArchiveError(f"{table} is not an archive yet; expected one that the job archive has made")
        groups: dict[tuple[str, str], list[ArchiveFile]] = {}
        for one in snapshot.files:
            if until is None or one.date < until:
                groups.setdefault((one.date, one.structure), []).append(one)
        bundles = [
            bundle
            for group in groups.values()
            if len(group) >= least_files
            for bundle in _bundles(group, file_rows)
            if len(bundle) >= least_files
        ]
        step = progress.step("compacting", len(bundles)) if progress else None
        if bundles:
            tasks = [(archive_of.location, bundle) for bundle in bundles]
            added = spark.sparkContext.parallelize(tasks, len(tasks)).map(merge_files).collect()
            removed = [one for bundle in bundles for one in bundle]
            fault("after write")
            archive_of.commit(Change(store, snapshot, added, removed))
            fault("after commit")
            figures.rows = sum(one.rows for one in added)
            figures.bytes = sum(one.size for one in added)
            figures.counts.update({"files_before": len(removed), "files_after": len(added)})
        if progress is not None and step is not None:
            progress.advance(step, len(bundles))
    return figures


def _bundles(files: Sequence[ArchiveFile], most_rows: int) -> list[list[ArchiveFile]]:
    """Files in the order of their times, cut where a bundle would have too many rows."""
    bundles: list[list[ArchiveFile]] = []
    rows = 0
    for one in sorted(files, key=lambda one: (one.least["timestamp"], one.path)):
        if not bundles or rows + one.rows > most_rows:
            bundles.append([])
            rows = 0
        bundles[-1].append(one)
        rows += one.rows
    return bundles


def merge_files(task: tuple[str, Sequence[ArchiveFile]]) -> ArchiveFile:
    """A task: several files of a day and structure as one."""
    location, files = task
    rows = pa.concat_tables([archive_table.load(location, one) for one in files])
    levels = [name for name in layout.LEVEL_NAMES if name in rows.schema.names]
    first = files[0]
    arranged = layout.arranged(rows.drop_columns(levels), first.structure)
    return write_part(location, arranged, first.date, first.structure, "compacted")
