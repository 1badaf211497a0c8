"""Follows a store: the stream reader of history.

A batch is a pure function of its two offsets: the numbers in between are dense, and reading asks for expired messages,
too. So a batch that Spark repeats after a crash has the same rows, unless retention removed them. That is an error, or
(failOnDataLoss=false) a gap that is logged and counted.

Two methods are not called as their names suggest (PySpark 4.3), and nothing depends on them:
    initialOffset   is called several times, and again when a first batch is repeated after a crash. `latest` would be
                    another number each time, so it is decided once and stored in the server, under groupId.
    commit          is called one batch late, and never for the last batch. A program that trims the server does so
                    after a commit of its own (the job `archive`).

The server's state of a group is a plain hash `holdmq_pipeline:<groupId>`:
    start <store>                     the offset that `latest` was, as JSON
    lost <store> <shard> <begin>      the first number after a gap that begins there

With `hold` the group is a reader that the store waits for (`HISTORY.HOLD`). It holds everything when the query begins.
When a batch is planned, Spark has committed the one before. So the hold moves then, and the messages of the last batch
are held until the next one is planned.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.history_reader import read_range, without_collector
from holdmq_pipeline.holds import hold, move, release
from holdmq_pipeline.offsets import Offsets, Range, ShardInfo, admitted, from_json, lost, plan, resolve, to_json
from holdmq_pipeline.options import Options
from holdmq_pipeline.ranges import RangePartition, check_loss, offsets_at, query_of, shard_infos
from holdmq_pipeline.wire import Link

__all__ = ["HistoryStreamReader", "group_key", "lost_messages"]


log = logging.getLogger(__name__)


def group_key(group: str) -> str:
    """Where the server keeps what it knows of a group."""
    return f"holdmq_pipeline:{group}"


def lost_messages(options: Options) -> list[Range]:
    """The gaps that a group with failOnDataLoss=false has gone over, in all stores; groupId names it."""
    with Link(options) as link:
        fields = link.ask(group_key(options.text("groupId")).encode(), "HGETALL", group_key(options.text("groupId")))
    pairs = fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True)
    gaps = []
    for name, value in pairs:
        kind, *place = name.decode().split(" ")
        if kind == "lost":
            gaps.append(Range(int(place[-2]), int(place[-1]), int(value)))
    return sorted(gaps, key=lambda gap: (gap.shard, gap.begin))


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a store from an offset on."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._store = options.text("store")
        self._begin = options.offsets("startingOffsets")
        self._begin_ms = options.time_ms("startingTimestamp")
        self._most = options.number("maxOffsetsPerTrigger")
        self._tasks = (options.required("maxRecordsPerPartition"), options.number("minPartitions"))
        self._query = query_of(options, self._store, columns)
        self._may_lose = not options.flag("failOnDataLoss")
        self._holds = options.flag("hold")
        if self._holds and "groupId" not in options:
            raise OptionError(
                "option hold is true, but there is no groupId; expected the name of the reader that holds"
            )
        if self._begin_ms is not None and "startingOffsets" in options:
            raise OptionError("options startingTimestamp and startingOffsets are both there; expected one of them")
        self._moves = self._begin == "latest" or (isinstance(self._begin, dict) and -1 in self._begin.values())
        if self._moves and "groupId" not in options:
            raise OptionError(
                "option startingOffsets has latest, but there is no groupId; expected a name under which the server "
                "keeps where the query began, so that its first batch can be repeated after a crash"
            )
        self._initial: Offsets | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins; always the same for the same group."""
        if self._initial is None:
            with self._link() as link:
                self._initial = self._first_offsets(link)
        return to_json(self._store, self._initial)

    def _first_offsets(self, link: Link) -> Offsets:
        self._hold(link, {})
        shards = self._shards(link)
        if self._begin_ms is not None:
            offsets = offsets_at(link, self._store, shards, self._begin_ms)
        else:
            offsets = resolve("startingOffsets", self._begin, shards)
        if "groupId" not in self._options:
            return offsets
        key = group_key(self._options.text("groupId")).encode()
        field = f"start {self._store}"
        link.ask(key, "HSETNX", key, field, json.dumps(to_json(self._store, offsets)))
        return from_json(self._store, json.loads(link.ask(key, "HGET", key, field)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch."""
        begin = from_json(self._store_name(), start)
        latest = self._target if self._target is not None else self._latest()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(self._store, admitted(begin, latest, most))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As maxOffsetsPerTrigger says."""
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of this run; its beginning is decided first, so that it cannot be after the end."""
        if self._moves:
            self.initialOffset()
        self._target = self._latest()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Shown in the query's progress: how far behind it is."""
        return to_json(self._store_name(), self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets."""
        begin, until = from_json(self._store_name(), start), from_json(self._store, end)
        with self._link() as link:
            self._hold(link, begin)
            shards = self._shards(link)
            gaps = [
                Range(gap.shard, gap.begin, min(gap.end, until[gap.shard]))
                for gap in lost(begin, shards)
                if gap.shard in until and until[gap.shard] > gap.begin
            ]
            check_loss(self._options, self._store, gaps)
            self._count(link, self._store, gaps)
        skipped = {gap.shard: gap.end for gap in gaps}
        ranges = [Range(shard, skipped.get(shard, begin.get(shard, 1)), number) for shard, number in until.items()]
        return [RangePartition(self._query, part) for part in plan(ranges, *self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range, in a task."""
        task = cast("RangePartition", partition)
        with self._link() as link, without_collector():
            yield from read_range(link, task.query, task.part, lambda query, gap: self._gap(link, query.store, gap))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing hangs on it."""

    def stop(self) -> None:
        """Nothing is open between two calls."""

    def _gap(self, link: Link, store: str, gap: Range) -> Iterator[pa.RecordBatch]:
        check_loss(self._options, store, [gap])
        self._count(link, store, [gap])
        yield from ()

    def _count(self, link: Link, store: str, gaps: Sequence[Range]) -> None:
        """Notes gaps in the server; the same gap again is the same note."""
        if "groupId" in self._options:
            key = group_key(self._options.text("groupId")).encode()
            for gap in gaps:
                link.ask(key, "HSET", key, f"lost {store} {gap.shard} {gap.begin}", gap.end)

    def _hold(self, link: Link, begin: Offsets) -> None:
        """From now on the server keeps what the group has not read; all before `begin` it has."""
        if not self._holds:
            return
        reader = self._options.text("groupId")
        self._shards(link)  # finds the store that was not named
        try:
            hold(link, self._store, reader)
            move(link, self._store, reader, {shard: number - 1 for shard, number in begin.items()})
        except redis.ResponseError as error:
            if not str(error).startswith("HOLDLOST") or not self._may_lose:
                raise
            log.warning("%s", error)  # what is gone is found as a gap, and counted
            release(link, self._store, reader)
            hold(link, self._store, reader)

    def _link(self) -> Link:
        return Link(self._options)

    def _store_name(self) -> str:
        if not self._store:
            with self._link() as link:
                self._shards(link)
        return self._store

    def _shards(self, link: Link) -> list[ShardInfo]:
        info = link.store(self._store)
        self._store = info[b"store"].decode()
        self._query = replace(self._query, store=self._store)
        return shard_infos(info)

    def _latest(self) -> Offsets:
        with self._link() as link:
            return {info.shard: info.end for info in self._shards(link)}
