"""The job `replay`: publishes a range of the past (archive and server) into topics, channels or sessions, once.

The rows of a shard go to one task, in the order of their numbers, so the messages of a topic arrive in the order in
which they were published. The server knows the shard and number from which each message comes (`idempotentBy=offset` of
the sink). So an interrupted replay is run again under its name, and nothing arrives twice, even if messages were
archived, trimmed or compacted in the meantime.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from holdmq_pipeline.archive import Filters, Time, history
from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.figures import JobFigures, measured
from holdmq_pipeline.options import checked_filters, timestamp_ms

__all__ = ["Target", "replay", "replay_frame"]

ROWS_OF_HISTORY = ("topic", "payload", "qos", "retain", "publisher", "properties", "expires")


@dataclass(frozen=True)
class Target:
    """The target of the messages.

    Attributes:
        table: topics, channels or sessions.
        to: of channels and sessions: the channel, or the client id, that gets all of them; of topics: what comes
            before each topic, for example `replayed/`; empty: they go where they came from.
        url: of the server; empty: the one that they are read from.
        rows_per_second: the maximum, over all tasks together; None: no limit.
    """

    table: str
    to: str = ""
    url: str = ""
    rows_per_second: int | None = None


def replay(
    spark: SparkSession,
    options: Mapping[str, str],
    table: str,
    target: Target,
    name: str,
    *,
    topic_filter: Filters = None,
    start: Time | None = None,
    end: Time | None = None,
) -> JobFigures:
    """Replays what the filter matches.

    Args:
        spark: reads and writes.
        options: of the data source that is read: url, passwordFile, store ...
        table: the archive; empty: only what the server has.
        target: where to.
        name: of this replay: the same name again continues where it ended, another name begins anew.
        topic_filter: an MQTT filter, or several: what any of them matches; None: everything.
        start: from this time on.
        end: the first time that is not replayed; None: now.

    Returns:
        Messages read and bytes of their payloads; those past their expiry are read and left out.

    Raises:
        OptionError: an invalid target.
    """
    frame = past(spark, options, table, topic_filter=topic_filter, start=start, end=end)
    return replay_frame(spark, frame, {**options, **({"url": target.url} if target.url else {})}, target, name)


def past(
    spark: SparkSession,
    options: Mapping[str, str],
    table: str,
    *,
    topic_filter: Filters = None,
    start: Time | None = None,
    end: Time | None = None,
) -> DataFrame:
    """A range of history: archive and server as one; only the server if `table` is empty."""
    if table:
        return history(spark, options, table, topic_filter, start, end)
    reader = spark.read.format("holdmq").options(**options)
    filters = checked_filters(topic_filter, "topic_filter")
    if filters:
        reader = reader.option("topicFilter", json.dumps(filters))
    for option, value in (("startingTimestamp", start), ("endingTimestamp", end)):
        reader = reader if value is None else reader.option(option, timestamp_ms(value, option))
    return reader.load()


def replay_frame(
    spark: SparkSession, frame: DataFrame, options: Mapping[str, str], target: Target, name: str
) -> JobFigures:
    """The same for rows that are there: any DataFrame with the columns of history, from one store.

    Raises:
        OptionError: an invalid target, or no name.
    """
    if target.table not in {"topics", "channels", "sessions"}:
        raise OptionError(f"target {target.table!r}; expected topics, channels or sessions")
    if target.table != "topics" and not target.to:
        raise OptionError(f"target {target.table} without a name; expected the channel or the client id that gets all")
    if not name:
        raise OptionError("the replay has no name; expected one, under which it can be run again")
    key = {"topics": "topic", "channels": "channel", "sessions": "client_id"}[target.table]
    names = list(ROWS_OF_HISTORY) if target.table != "channels" else ["payload"]
    columns = [F.col(one) for one in ("shard", "offset", *names)]
    chosen = frame.select(*columns)
    chosen = chosen.withColumn(key, F.concat(F.lit(target.to), F.col("topic")) if key == "topic" else F.lit(target.to))
    # One order for one queue or channel; shard by shard otherwise.
    parts = spark.sparkContext.defaultParallelism if key == "topic" and target.rows_per_second is None else 1
    ordered = chosen.repartition(parts, "shard").sortWithinPartitions("shard", "offset")
    passed = {one: options[one] for one in options if one.lower() in {"url", "passwordfile", "keyprefix"}}
    with measured("replay") as figures:
        seen = Observation()
        watched = ordered.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum(F.length("payload")).alias("bytes"))
        writer = watched.write.format("holdmq").mode("append").options(**passed)
        writer = (
            writer.option("table", target.table).option("writeId", f"replay:{name}").option("idempotentBy", "offset")
        )
        if target.rows_per_second is not None:
            writer = writer.option("maxRowsPerSecond", str(target.rows_per_second))
        writer.save()
        figures.rows = int(seen.get["rows"])
        figures.bytes = int(seen.get["bytes"] or 0)
    return figures
