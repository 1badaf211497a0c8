"""The table of an archive: its files, and up to which number of each shard they reach. Each commit changes both.

    DeltaArchive  a Delta table, by the library deltalake. The watermark of a shard is the version of an application
                  transaction `holdmq/<store>/<shard>`. Delta keeps the last version of each, however its log is pruned.
    ParquetTable  plain Parquet files with a commit log of their own: `_holdmq/00000000000000000007.json`. For one
                  machine, or a file system that several machines share.

`open_table(location)` returns either of them; the location of the second is `parquet:<path>`.

Invariants:

1. The table is authoritative: files and watermarks change in one atomic commit, and a file that no commit names does
   not count.
2. A watermark never decreases. A commit names the watermarks from which it continues, so of two simultaneous archivers
   one is refused.
3. A commit is on disk: its files are synced before it, and it is synced before anything is trimmed because of it.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from holdmq_pipeline import layout
from holdmq_pipeline.errors import ArchiveError
from holdmq_pipeline.layout import ArchiveFile
from holdmq_pipeline.places import PARQUET, whole_path

__all__ = ["ArchiveTable", "Change", "Snapshot", "open_table"]

LOG = "_holdmq"
PARTITIONS = ["date", "structure"]


@dataclass
class Snapshot:
    """A table at a version.

    Attributes:
        version: its number.
        files: all of them.
        watermarks: by shard: all numbers up to this one are in the files.
    """

    version: int
    files: list[ArchiveFile] = field(default_factory=list)
    watermarks: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """The changes of a commit, in one step.

    Attributes:
        store: the store of the watermarks.
        based_on: the version that it follows.
        added: new files.
        removed: files whose rows the new files have.
        watermarks: by shard, those that move.
    """

    store: str
    based_on: Snapshot
    added: Sequence[ArchiveFile]
    removed: Sequence[ArchiveFile] = ()
    watermarks: Mapping[int, int] = field(default_factory=dict)


class ArchiveTable(Protocol):
    """The interface of a table format for the jobs. `open_table` names the classes that have it."""

    location: str

    def snapshot(self, store: str) -> Snapshot:
        """The present version."""

    def commit(self, change: Change) -> None:
        """Adds files, removes files and moves watermarks, in one step.

        Raises:
            ArchiveError: a conflicting commit came first.
        """

    def uri(self, file: ArchiveFile) -> str:
        """The URI of a file for Spark."""


def open_table(location: str) -> "ArchiveTable":
    """The table at this place; its first commit creates it. Its `location` is absolute, so that tasks find it."""
    location = whole_path(location)
    if location.startswith(PARQUET):
        return ParquetTable(location)
    return DeltaArchive(location)


def filesystem(location: str) -> tuple[pa.fs.FileSystem, str]:
    """The file system of a table and the table's path there."""
    place = location.removeprefix(PARQUET)
    if urlparse(place).scheme in {"", "file"}:
        return pa.fs.LocalFileSystem(), str(Path(urlparse(place).path).absolute())
    found: tuple[pa.fs.FileSystem, str] = pa.fs.FileSystem.from_uri(place)
    return found


def save(location: str, path: str, rows: pa.Table) -> int:
    """Writes a file of the table, synced to the disk; returns its size."""
    system, base = filesystem(location)
    whole = f"{base}/{path}"
    system.create_dir(whole.rsplit("/", 1)[0], recursive=True)
    with system.open_output_stream(whole) as sink:
        layout.write_file(rows, sink)
    if isinstance(system, pa.fs.LocalFileSystem):
        synced(Path(whole))
    return int(system.get_file_info(whole).size)


def synced(path: Path) -> None:
    """Syncs a local file or directory to the disk, with its name."""
    for one in (path, path.parent):
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class DeltaArchive:
    """A Delta table."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._system, self._base = filesystem(location)
        self._table: Any = None

    def snapshot(self, store: str) -> Snapshot:
        """The present version."""
        if not DeltaTable.is_deltatable(self.location):
            return Snapshot(-1)
        table = self._table = DeltaTable(self.location)
        names = {field.name for field in table.schema().fields}
        if not {"shard", "offset", "structure"} <= names:
            raise ArchiveError(
                f"{self.location} is a Delta table with the columns {sorted(names)}; expected an archive's"
            )
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        files = [_of_action(row) for row in rows]
        shards = table.transaction_version(f"holdmq/{store}") or 0
        watermarks = {shard: table.transaction_version(f"holdmq/{store}/{shard}") for shard in range(shards)}
        return Snapshot(table.version(), files, {s: mark for s, mark in watermarks.items() if mark is not None})

    def commit(self, change: Change) -> None:
        """One step."""
        fields = [*layout.SCHEMA, pa.field("date", pa.date32()), pa.field("structure", pa.string())]
        schema = Schema.from_arrow(pa.schema(fields))
        try:
            if change.based_on.version < 0:
                self._table = DeltaTable.create(self.location, schema, mode="error", partition_by=PARTITIONS)
            now_ms = int(time.time() * 1000)
            actions: list[Any] = [
                AddAction(one.path, one.size, _partition(one), now_ms, not change.removed, _statistics(one))
                for one in change.added
            ]
            actions += [
                RemoveAction(
                    one.path,
                    deletion_timestamp=now_ms,
                    data_change=False,
                    size=one.size,
                    partition_values=_partition(one),
                )
                for one in change.removed
            ]
            store, marks = change.store, dict(change.watermarks)
            transactions = [Transaction(f"holdmq/{store}/{shard}", mark) for shard, mark in marks.items()]
            if marks:
                transactions.append(Transaction(f"holdmq/{store}", max(marks) + 1))
            properties = CommitProperties(
                custom_metadata={"holdmq": json.dumps({"store": store, "watermarks": marks})},
                app_transactions=transactions,
                max_commit_retries=0,
            )
            self._table.create_write_transaction(actions, "append", schema, PARTITIONS, commit_properties=properties)
        except DeltaError as error:
            raise ArchiveError(
                f"{self.location}: the commit was refused; is another archiver running? {error}"
            ) from error
        self._sync(self._table.version() if self._table is not None else 0)

    def uri(self, file: ArchiveFile) -> str:
        """The URI of a file for Spark."""
        return _uri(self._system, self._base, file, self.location)

    def _sync(self, version: int) -> None:
        if isinstance(self._system, pa.fs.LocalFileSystem):
            for number in range(max(version - 1, 0), version + 2):
                log = Path(self._base) / "_delta_log" / f"{number:020}.json"
                if log.exists():
                    synced(log)


def _partition(one: ArchiveFile) -> dict[str, str | None]:
    return {"date": one.date, "structure": one.structure}


def _statistics(one: ArchiveFile) -> str:
    """As Delta has them; times there are in milliseconds, so the bounds are rounded outwards."""

    def shown(values: Mapping[str, int], up: int) -> dict[str, Any]:
        moment = datetime.fromtimestamp((values["timestamp"] // 1000 + up) / 1000, UTC)
        return {**values, "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"}

    return json.dumps({"numRecords": one.rows, "minValues": shown(one.least, 0), "maxValues": shown(one.most, 1)})


def _of_action(row: Mapping[str, Any]) -> ArchiveFile:
    least, most = (
        {name: row[f"{side}.{name}"] for name in ("shard", "offset", "timestamp")} for side in ("min", "max")
    )
    for side in (least, most):
        side["timestamp"] = int(side["timestamp"].timestamp() * 1_000_000)
    day = row["partition.date"]
    return ArchiveFile(
        row["path"],
        day if isinstance(day, str) else day.isoformat(),
        row["partition.structure"],
        row["size_bytes"],
        row["num_records"],
        least,
        most,
    )


def _uri(system: pa.fs.FileSystem, base: str, file: ArchiveFile, location: str) -> str:
    if isinstance(system, pa.fs.LocalFileSystem):
        return f"file://{base}/{file.path}"
    return f"{location.removeprefix(PARQUET).rstrip('/')}/{file.path}"


class ParquetTable:
    """Parquet files and a log."""

    def __init__(self, location: str) -> None:
        self.location = location
        system, self._base = filesystem(location)
        if not isinstance(system, pa.fs.LocalFileSystem):
            raise ArchiveError(f"{location}; expected a path of a file system, for commits that exclude each other")
        self._system = system
        self._log = Path(self._base) / LOG

    def snapshot(self, store: str) -> Snapshot:
        """The present version: the log read from its beginning. O(commits)."""
        files: dict[str, ArchiveFile] = {}
        marks: dict[int, int] = {}
        version = -1
        for version, path in enumerate(self._commits()):  # noqa: B007 - the last one is the table's
            entry = json.loads(path.read_text())
            for name in entry["removed"]:
                del files[name]
            files.update((one["path"], ArchiveFile(**one)) for one in entry["added"])
            if entry["store"] == store:
                marks.update((int(shard), mark) for shard, mark in entry["watermarks"].items())
        return Snapshot(version, list(files.values()), marks)

    def _commits(self) -> Iterable[Path]:
        return sorted(self._log.glob("*.json")) if self._log.is_dir() else []

    def commit(self, change: Change) -> None:
        """One step: a file with the next number, which only one can make."""
        entry = {
            "store": change.store,
            "added": [asdict(one) for one in change.added],
            "removed": [one.path for one in change.removed],
            "watermarks": dict(change.watermarks),
        }
        version = change.based_on.version + 1
        self._log.mkdir(parents=True, exist_ok=True)
        path = self._log / f"{version:020}.json"
        draft = self._log / f".{os.getpid()}-{time.monotonic_ns()}"
        draft.write_text(json.dumps(entry))
        synced(draft)
        try:
            os.link(draft, path)
        except FileExistsError as error:
            raise ArchiveError(f"{self.location}: another archiver has committed version {version}") from error
        finally:
            draft.unlink()
        synced(path)

    def uri(self, file: ArchiveFile) -> str:
        """The URI of a file for Spark."""
        return _uri(self._system, self._base, file, self.location)


def load(location: str, file: ArchiveFile, **options: Any) -> pa.Table:
    """A file's rows; options as of `pyarrow.parquet.read_table`."""
    system, base = filesystem(location)
    return layout.whole(pq.read_table(f"{base}/{file.path}", filesystem=system, partitioning=None, **options))
