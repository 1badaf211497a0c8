"""Reads an archive as a DataFrame: its files, a range of numbers, or archive and server as one history.

`history` is exact while an archiver archives and trims. It takes the table's version and watermarks first, and reads
the rest from the server, after the watermarks. Messages that are archived and trimmed between planning and reading are
then missing in the server, but a later version of the table has them: the task reads them there (`read_archived`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from holdmq import core
from holdmq.history_commands import Start
from holdmq_pipeline import archive_table, layout, packed
from holdmq_pipeline.archive_table import ArchiveTable, open_table
from holdmq_pipeline.errors import DataLossError
from holdmq_pipeline.history_reader import RangeQuery
from holdmq_pipeline.layout import ArchiveFile
from holdmq_pipeline.offsets import Range
from holdmq_pipeline.options import READ, Options, checked_filters, timestamp_ms
from holdmq_pipeline.ranges import offsets_at, shard_infos
from holdmq_pipeline.wire import Link

__all__ = ["archived", "history", "pattern_table", "read_archived", "topic_matches"]

Time = Start
Filters = str | Sequence[str] | None

COLUMNS = (
    "shard int, offset long, timestamp timestamp, topic string, payload binary, qos byte, retain boolean, "
    "publisher string, properties binary, published timestamp, expires timestamp"
)
LEVEL_COLUMNS = ", ".join(f"{name} string" for name in layout.LEVEL_NAMES)
NAMES = [part.strip().split(" ")[0] for part in COLUMNS.split(",")]


def topic_matches(column: Column, topic_filter: str) -> Column:
    """Whether an MQTT topic filter matches a column of topics, as an expression that Spark compiles.

    Example:
        >>> frame.where(topic_matches(frame.topic, "site/+/dev/#"))  # doctest: +SKIP
    """
    core.check_topic_filter(topic_filter)
    levels = topic_filter.split("/")
    pattern = ""
    for at, level in enumerate(levels):
        if level == "#":
            pattern = pattern + "(/.*)?" if at else ".*"
            break
        pattern += "/" if at else ""
        pattern += "[^/]*" if level == "+" else "\\Q" + level.replace("\\E", "\\E\\\\E\\Q") + "\\E"
    matches = column.rlike(f"(?s)\\A{pattern}\\z")
    return matches & ~column.startswith("$") if levels[0] in {"+", "#"} else matches


def archived(
    spark: SparkSession,
    table: str,
    store: str,
    topic_filter: Filters = None,
    start: Time | None = None,
    end: Time | None = None,
) -> DataFrame:
    """The messages of an archive. Files that cannot match are not opened, pages that cannot match are not decoded.

    Args:
        spark: reads the files.
        table: the archive.
        store: any store of it.
        topic_filter: an MQTT filter, or several, of which any may match; None: everything.
        start: from this time on, in any form that a replay of the Python client takes.
        end: the first time that is not read.
    """
    archive_of = open_table(table)
    filters = checked_filters(topic_filter, "topic_filter")
    start_ms, end_ms = _bounds_ms(start, end)
    return _cold(spark, archive_of, archive_of.snapshot(store).files, filters, _us(start_ms), _us(end_ms))


def history(
    spark: SparkSession,
    options: Mapping[str, str],
    table: str,
    topic_filter: Filters = None,
    start: Time | None = None,
    end: Time | None = None,
) -> DataFrame:
    """Archive and server as one: every message of a store once, also while it is archived and trimmed.

    Args:
        spark: reads both.
        options: of the data source: url, passwordFile, store, fetchRows ...
        table: the archive.
        topic_filter: an MQTT filter, or several, of which any may match; None: everything.
        start: from this time on, in any form that a replay of the Python client takes.
        end: the first time that is not read; later messages than the call are not read either.
    """
    source = Options(options, READ)
    filters = checked_filters(topic_filter, "topic_filter")
    start_ms, end_ms = _bounds_ms(start, end)
    archive_of = open_table(table)
    with Link(source) as link:
        store = link.store(source.text("store"))[b"store"].decode()
        snapshot = archive_of.snapshot(store)
        shards = shard_infos(link.store(store))
        begin = {one.shard: snapshot.watermarks.get(one.shard, one.first - 1) + 1 for one in shards}
        until = {one.shard: max(one.end, begin[one.shard]) for one in shards}
        if start_ms is not None:
            found = offsets_at(link, store, shards, start_ms)
            # The first that is still there may have followed others, which are archived by now.
            begin = {
                one.shard: max(begin[one.shard], found[one.shard] if found[one.shard] > one.first else 0)
                for one in shards
            }
        if end_ms is not None:
            found = offsets_at(link, store, shards, end_ms + 1)
            until = {one.shard: max(min(until[one.shard], found[one.shard]), 0) for one in shards}
    live = (
        spark.read.format("holdmq")
        .schema(COLUMNS)
        .options(**options)
        .option("store", store)
        .option("archive", archive_of.location)
    )
    live = live.option("startingOffsets", _json(begin)).option(
        "endingOffsets", _json({shard: max(number, begin[shard]) for shard, number in until.items()})
    )
    if filters:
        live = live.option("topicFilter", json.dumps(filters))
    hot = _within(live.load(), _us(start_ms), _us(end_ms))
    return _cold(spark, archive_of, snapshot.files, filters, _us(start_ms), _us(end_ms)).unionByName(hot)


def pattern_table(
    spark: SparkSession,
    table: str,
    store: str,
    structure: str,
    start: Time | None = None,
    end: Time | None = None,
    *,
    sample: int = 1000,
) -> DataFrame:
    """A learned pattern as a table of its own: its varying levels as columns, JSON payloads as typed columns.

    A level is called like the concrete level before it (`site/+/dev/+/state` has the columns site and dev), else
    `level_<n>`. Members of payloads that are JSON objects are columns, with types that fit a sample of them; a payload
    that is no such object has null there. `payload` stays unchanged.

    Args:
        spark: reads the files.
        table: the archive.
        store: any store of it.
        structure: as `structures` lists them.
        start: from this time on.
        end: the first time that is not read.
        sample: how many payloads the types are inferred from.
    """
    start_ms, end_ms = _bounds_ms(start, end)
    archive_of = open_table(table)
    files = [one for one in archive_of.snapshot(store).files if one.structure == structure]
    frame = _read(spark, archive_of, _in_time(files, _us(start_ms), _us(end_ms)))
    frame = _within(frame, _us(start_ms), _us(end_ms))
    names = level_names(structure)
    levels = [F.col(layout.LEVEL_NAMES[at]).alias(name) for at, name in enumerate(names)]
    frame = frame.select(*levels, *NAMES)
    texts = frame.select(F.col("payload").cast("string").alias("value")).where("value like '{%'").limit(sample)
    inferred = spark.read.json(texts.rdd.map(lambda row: row.value)).schema
    members = [one for one in inferred.fields if one.name != "_corrupt_record"]
    if not members:
        return frame
    parsed = frame.withColumn("_json", F.from_json(F.col("payload").cast("string"), inferred))
    taken = {name.lower() for name in frame.columns}
    typed = [
        F.col("_json").getField(one.name).alias(one.name if one.name.lower() not in taken else f"payload_{one.name}")
        for one in members
    ]
    return parsed.select(*names, "timestamp", *typed, *[name for name in NAMES if name != "timestamp"])


def structures(table: str, store: str) -> dict[str, int]:
    """The structures of an archive, and how many messages each has."""
    found: dict[str, int] = {}
    for one in open_table(table).snapshot(store).files:
        found[one.structure] = found.get(one.structure, 0) + one.rows
    return found


def level_names(structure: str) -> list[str]:
    """The names of the varying levels.

    Example:
        >>> level_names("site/+/dev/+/state"), level_names("+/+")
        (['site', 'dev'], ['level_1', 'level_2'])
    """
    levels = structure.split("/")
    names: list[str] = []
    for at, level in enumerate(levels):
        if level == "+":
            before = levels[at - 1] if at and levels[at - 1] != "+" else ""
            usable = before.isidentifier() and before.lower() not in {*names, *NAMES}
            names.append(before.lower() if usable else f"level_{at + 1}")
        elif level == "#":
            names += [f"level_{at + number + 1}" for number in range(layout.LEVELS - len(names))]
    return names[: layout.LEVELS]


def read_archived(location: str, query: RangeQuery, part: Range) -> Iterator[pa.RecordBatch]:
    """Numbers of a shard, from an archive, in order, in a task.

    Raises:
        DataLossError: some are missing.
    """
    files = [
        one
        for one in open_table(location).snapshot(query.store).files
        if one.least["shard"] <= part.shard <= one.most["shard"]
        and one.least["offset"] < part.end
        and one.most["offset"] >= part.begin
    ]
    wanted = [("shard", "=", part.shard), ("offset", ">=", part.begin), ("offset", "<", part.end)]
    tables = [archive_table.load(location, one, filters=wanted) for one in files]
    rows = pa.concat_tables(tables).sort_by("offset") if tables else layout.SCHEMA.empty_table()
    if rows.num_rows != len(part):
        raise DataLossError(
            f"store {query.store}, shard {part.shard}: of the numbers {part.begin} to {part.end - 1}, which the "
            f"server does not have any more, {location} has {rows.num_rows}"
        )
    if query.topic_filters:
        topics = rows.column("topic").combine_chunks().dictionary_encode()
        matches = [
            any(core.matches(one, topic) for one in query.topic_filters) for topic in topics.dictionary.to_pylist()
        ]
        chosen = pa.array(matches, pa.bool_())
        rows = rows.filter(chosen.take(topics.indices))
    for name in query.columns:
        if name not in rows.schema.names and name not in packed.HEADERS:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int32()))
    if any(name in packed.HEADERS for name in query.columns):
        for name, values in packed.headers(rows.column("properties")).items():
            rows = rows.append_column(name, values)
    yield from rows.select(list(query.columns)).combine_chunks().to_batches(max_chunksize=query.fetch_rows)


def _cold(
    spark: SparkSession,
    archive_of: ArchiveTable,
    files: list[ArchiveFile],
    filters: tuple[str, ...],
    start_us: int | None,
    end_us: int | None,
) -> DataFrame:
    """The rows of files; structures whose levels the filters fix alike are read together."""
    files = _in_time(files, start_us, end_us)
    if not filters:
        return _within(_read(spark, archive_of, files).select(*NAMES), start_us, end_us)
    # By what the filters fix in a structure, which Spark compares with the bounds of pages, and which they are.
    groups: dict[tuple[tuple[str, tuple[tuple[str, str], ...]], ...], list[ArchiveFile]] = {}
    for one in files:
        own = tuple(
            (each, tuple(sorted(layout.fixed_levels(one.structure, each).items())))
            for each in filters
            if layout.overlap(one.structure, each)
        )
        if own:
            groups.setdefault(own, []).append(one)
    whole: DataFrame | None = None
    for own, files_of in sorted(groups.items()):
        frame = _within(_read(spark, archive_of, files_of), start_us, end_us)
        if all(fixed for _one, fixed in own):
            frame = frame.where(_any(_all(F.col(name) == value for name, value in fixed) for _one, fixed in own))
        frame = frame.where(_any(topic_matches(F.col("topic"), one) for one, _fixed in own)).select(*NAMES)
        whole = frame if whole is None else whole.unionByName(frame)
    return whole if whole is not None else spark.createDataFrame([], COLUMNS)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__or__, conditions)


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__and__, conditions)


def _read(spark: SparkSession, archive_of: ArchiveTable, files: list[ArchiveFile]) -> DataFrame:
    schema = f"{COLUMNS}, {LEVEL_COLUMNS}"
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*[archive_of.uri(one) for one in files])


def _in_time(files: list[ArchiveFile], start_us: int | None, end_us: int | None) -> list[ArchiveFile]:
    return [
        one
        for one in files
        if (start_us is None or one.most["timestamp"] >= start_us)
        and (end_us is None or one.least["timestamp"] < end_us)
    ]


def _within(frame: DataFrame, start_us: int | None, end_us: int | None) -> DataFrame:
    if start_us is not None:
        frame = frame.where(F.col("timestamp") >= F.timestamp_micros(F.lit(start_us)))
    if end_us is not None:
        frame = frame.where(F.col("timestamp") < F.timestamp_micros(F.lit(end_us)))
    return frame


def _us(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000


def _bounds_ms(start: Time | None, end: Time | None) -> tuple[int | None, int | None]:
    """Both as ms since 1970. They are read once, so that an age means the same for archive and server."""
    start_ms = None if start is None else timestamp_ms(start, "start")
    return start_ms, None if end is None else timestamp_ms(end, "end")


def _json(offsets: Mapping[int, int]) -> Any:
    return json.dumps({str(shard): number for shard, number in offsets.items()})
