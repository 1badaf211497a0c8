"""The data source `holdmq`, reading: the reader of each table, and the batch reader of history.

Planning asks the server for the first and last number of each shard, and divides what is to be read into ranges. Tasks
read the ranges (history_reader.py). Everything that a task needs is in its partition and in the reader's fields, as
plain values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from holdmq_pipeline import schemas, tables
from holdmq_pipeline.archive import read_archived
from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.history_reader import RangeQuery, read_range, without_collector
from holdmq_pipeline.offsets import Range, lost, plan, resolve
from holdmq_pipeline.options import READ, STREAM, Options
from holdmq_pipeline.ranges import RangePartition, check_loss, offsets_at, query_of, shard_infos
from holdmq_pipeline.stream import HistoryStreamReader
from holdmq_pipeline.wire import Link

__all__ = ["reader", "schema", "stream_reader"]


def schema(given: Mapping[str, str]) -> str:
    """All columns of a table, as SQL writes them."""
    return schemas.all_columns(Options({name: value for name, value in given.items() if name.lower() in _SCHEMA}))


_SCHEMA = ("table", "includeheaders")
"""The options on which the columns depend: whether it will be read once or followed is not known yet."""


def reader(given: Mapping[str, str], wanted: StructType) -> DataSourceReader:
    """The batch reader of a table."""
    options = Options(given, READ)
    columns = tuple(schemas.chosen(options, wanted))
    if options.text("table") != "history":
        return tables.reader(options, columns)
    return (PushingHistoryReader if options.flag("pushFilters") else HistoryReader)(options, columns)


def stream_reader(given: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """The stream reader of history.

    Raises:
        OptionError: another table.
    """
    options = Options(given, STREAM)
    if options.choice("table", tuple(schemas.TABLES)) != "history":
        raise OptionError(f"option table is {options.text('table')!r}; expected history: the others cannot be followed")
    return HistoryStreamReader(options, tuple(schemas.chosen(options, wanted)))


class HistoryReader(DataSourceReader):
    """Reads a store once."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._begin_ms = options.time_ms("startingTimestamp")
        self._end_ms = options.time_ms("endingTimestamp")
        self._begin = options.offsets("startingOffsets")
        self._end = options.offsets("endingOffsets")
        self._only: dict[int, tuple[int, int]] | None = None
        self._store = options.text("store")
        for time_option, offset_option in (
            ("startingTimestamp", "startingOffsets"),
            ("endingTimestamp", "endingOffsets"),
        ):
            if time_option in options and offset_option in options:
                raise OptionError(f"options {time_option} and {offset_option} are both there; expected one of them")
        self._tasks = (options.required("maxRecordsPerPartition"), options.number("minPartitions"))
        self._query = query_of(options, self._store, columns)
        options.flag("failOnDataLoss")

    def partitions(self) -> Sequence[InputPartition]:
        """Cuts what there is now into ranges."""
        with Link(self._options) as link:
            info = link.store(self._store)
            self._store = info[b"store"].decode()
            self._query = replace(self._query, store=self._store)
            shards = shard_infos(info)
            begin = (
                offsets_at(link, self._store, shards, self._begin_ms)
                if self._begin_ms is not None
                else resolve("startingOffsets", self._begin, shards)
            )
            end = (
                offsets_at(link, self._store, shards, self._end_ms)
                if self._end_ms is not None
                else resolve("endingOffsets", self._end, shards)
            )
        gaps = lost(begin, shards)
        if "archive" not in self._options:
            check_loss(self._options, self._store, gaps)
        ranges = [Range(shard, *self._narrowed(shard, begin[shard], end[shard])) for shard in begin]
        return [RangePartition(self._query, part) for part in plan(ranges, *self._tasks)]

    def _narrowed(self, shard: int, begin: int, end: int) -> tuple[int, int]:
        """The range of a shard, of which a query may want a part only."""
        if self._only is None:
            return begin, end
        least, most = self._only.get(shard, self._only.get(-1, (1, 0)))
        return max(begin, least), min(end, most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range, in a task."""
        if partition.value is None:  # what Spark makes of no partitions at all
            return
        task = cast("RangePartition", partition)
        with Link(self._options) as link, without_collector():
            yield from read_range(link, task.query, task.part, self._gap)

    def _gap(self, query: RangeQuery, gap: Range) -> Iterator[pa.RecordBatch]:
        """What the server does not have any more: from the archive, if there is one."""
        if "archive" in self._options:
            yield from read_archived(self._options.text("archive"), query, gap)
        else:
            check_loss(self._options, query.store, [gap])


class PushingHistoryReader(HistoryReader):
    """The same with comparisons of a query as bounds: `option("pushFilters", "true")`.

    A class of its own, because Spark refuses every read through a reader that has `pushFilters` unless its setting
    `spark.sql.python.filterPushdown.enabled` is on. Spark checks what was pushed once more, so bounds may be wide.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Narrows the range; every filter stays Spark's, too."""
        least, most, shard = 1, 2**62, -1
        for one in filters:
            path: tuple[str, ...] = getattr(one, "attribute", ())
            name = path[0] if len(path) == 1 else ""
            value: Any = getattr(one, "value", None)
            if name == "topic" and isinstance(one, EqualTo):
                self._push_topic(str(value))
            elif name == "timestamp" and isinstance(
                one, (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
            ):
                self._push_time(one)
            elif name == "shard" and isinstance(one, EqualTo):
                shard = int(value)
            elif name == "offset" and isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)):
                least = max(least, int(one.value))
            if name == "offset" and isinstance(one, (EqualTo, LessThan, LessThanOrEqual)):
                most = min(most, int(one.value) + 1)
            yield one
        self._only = {shard: (least, most)}

    def _push_topic(self, topic: str) -> None:
        if not self._query.topic_filters and not set("+#") & set(topic) and topic:
            self._query = replace(self._query, topic_filters=(topic,))

    def _push_time(self, one: Any) -> None:
        time_ms = int(one.value.timestamp() * 1000)
        if not isinstance(one, (LessThan, LessThanOrEqual)) and "startingOffsets" not in self._options:
            self._begin_ms = max(time_ms, self._begin_ms or 0)
        if not isinstance(one, (GreaterThan, GreaterThanOrEqual)) and "endingOffsets" not in self._options:
            self._end_ms = min(time_ms + 1, 2**53 if self._end_ms is None else self._end_ms)
