"""The findings of an audit: each is a function from DataFrames to a DataFrame, without I/O.

The inputs, with the columns that are used:

    published       message string, publisher string, topic string, number long, time timestamp [, bytes long]
                    according to the publishers; number increases with each message of a publisher
    stored          message string, shard int, offset long: a history, or an archive
    delivered       message string, client string, position long, time timestamp; position increases with each delivery
    acknowledged    message string, client string
    subscriptions   client string, filter string: who should get what; $share filters oblige no particular client
    sessions        client_id string, messages long, ttl_ms long: the table `session_info`

`message` is anything that identifies a message, for example a number that the publisher put into it.

Findings are exact: missing messages are an anti join, duplicates a group, inversions a window. Quantiles are within one
in ten thousand of their rank. Not O(1): each finding shuffles by message, unless tables are partitioned by message
already (jobs/audit.py); the order takes a shuffle by client and topic.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from holdmq import core

REQUIRED = {
    "published": ("message", "publisher", "topic", "number", "time"),
    "stored": ("message", "shard", "offset"),
    "delivered": ("message", "client", "position", "time"),
    "acknowledged": ("message", "client"),
    "subscriptions": ("client", "filter"),
    "sessions": ("client_id", "messages", "ttl_ms"),
}
QUANTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000
MAX_FILTERS = 1_000_000
ROUTES = "topic string, filter string"


def checked(name: str, frame: DataFrame) -> DataFrame:
    """The frame, if it has the columns of its name.

    Raises:
        ValueError: one is missing.
    """
    missing = [column for column in REQUIRED[name] if column not in frame.columns]
    if missing:
        raise ValueError(f"{name} has the columns {frame.columns}; expected {', '.join(missing)} too")
    return frame


# ---- who should get what ----


def routes(published: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """The clients that get messages of each topic: `topic, client, shared`.

    Raises:
        ValueError: a filter is invalid, or there are too many different ones.
    """
    filters = [row[0] for row in subscriptions.select("filter").distinct().limit(MAX_FILTERS + 1).collect()]
    if len(filters) > MAX_FILTERS:
        raise ValueError(f"more than {MAX_FILTERS} different filters; expected fewer")
    bare = {text: _bare(text) for text in filters}

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        trie = core.TopicTrie()
        for number, text in enumerate(filters):
            trie.set(bare[text], number)
        for batch in batches:
            found = [(topic, filters[m.subscriber]) for topic in batch.column(0).to_pylist() for m in trie.match(topic)]
            topics, matching = zip(*found, strict=True) if found else ((), ())
            yield pa.RecordBatch.from_arrays(
                [pa.array(topics, pa.string()), pa.array(matching, pa.string())], ["topic", "filter"]
            )

    matched = published.select("topic").distinct().mapInArrow(match, ROUTES)
    joined = matched.join(subscriptions.select("client", "filter").distinct(), "filter")
    shared = f.col("filter").startswith("$share/")
    return joined.groupBy("topic", "client").agg(f.min(shared).alias("shared"))


def _bare(text: str) -> bytes:
    """The filter without its group.

    Raises:
        ValueError: it is invalid.
    """
    try:
        core.check_topic_filter(text)
    except core.InvalidTopicError as error:
        raise ValueError(f"{text!r} among the subscriptions is not a topic filter: {error}") from error
    share = core.split_share(text)
    return text.encode() if share is None else share[1]


# ---- findings ----


def lost(published: DataFrame, found: DataFrame, stage: str, *, expected: DataFrame | None = None) -> DataFrame:
    """Messages that a stage should have and lacks: `stage, message, publisher, topic, number, client`.

    Args:
        published: the messages sent.
        found: the messages of the stage: `message`, with `expected` also `client`.
        stage: its name.
        expected: the clients that should get them (`routes`); None: each message must be there once, for any client.
    """
    columns = ["message", "publisher", "topic", "number"]
    if expected is None:
        missing = published.join(found.select("message").distinct(), "message", "left_anti")
        rows = missing.select(*columns, f.lit(None).cast("string").alias("client"))
    else:
        wanted = published.join(expected.where(~f.col("shared")), "topic").select(*columns, "client")
        rows = wanted.join(found.select("message", "client").distinct(), ["message", "client"], "left_anti")
    return rows.select(f.lit(stage).alias("stage"), *columns, "client")


def unacknowledged(published: DataFrame, delivered: DataFrame, acknowledged: DataFrame) -> DataFrame:
    """Messages that clients got and never acknowledged, in the form of `lost`."""
    got = delivered.select("message", "client").distinct()
    missing = got.join(acknowledged.select("message", "client").distinct(), ["message", "client"], "left_anti")
    return missing.join(published, "message", "left").select(
        f.lit("acknowledged").alias("stage"), "message", "publisher", "topic", "number", "client"
    )


def duplicates(found: DataFrame, stage: str, *, by_client: bool) -> DataFrame:
    """Messages that a stage has more than once: `stage, message, client, copies`."""
    keys = ["message", "client"] if by_client else ["message"]
    rows = found.groupBy(*keys).agg(f.count("*").alias("copies")).where("copies > 1")
    client = f.col("client") if by_client else f.lit(None).cast("string").alias("client")
    return rows.select(f.lit(stage).alias("stage"), "message", client, "copies")


def unexpected(published: DataFrame, found: DataFrame, stage: str, *, expected: DataFrame | None = None) -> DataFrame:
    """Messages of a stage without a publisher or a subscription: `stage, message, client`."""
    client = f.col("client") if "client" in found.columns else f.lit(None).cast("string").alias("client")
    rows = found.select("message", client).distinct()
    if expected is None:
        strange = rows.join(published.select("message"), "message", "left_anti")
    else:
        sent = published.select("message", "topic").join(expected, "topic").select("message", "client")
        strange = rows.join(sent, ["message", "client"], "left_anti")
    return strange.select(f.lit(stage).alias("stage"), "message", "client")


def inversions(published: DataFrame, found: DataFrame, stage: str, *, order: str, by: str) -> DataFrame:
    """Messages that came after a later one of the same publisher and topic; of several copies the first counts.

    Args:
        published: the messages sent, with `number`.
        found: the messages of the stage.
        stage: its name.
        order: the column that orders it.
        by: the column within which it is ordered: the client, the shard.

    Returns:
        `stage, message, publisher, topic, number, behind` (the number that it came after) and the column `by`.
    """
    first = found.groupBy("message", by).agg(f.min(order).alias("place"))
    placed = first.join(published.select("message", "publisher", "topic", "number"), "message")
    before = Window.partitionBy(by, "publisher", "topic").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    late = placed.withColumn("behind", f.max("number").over(before)).where("number < behind")
    return late.select(f.lit(stage).alias("stage"), "message", "publisher", "topic", "number", "behind", by)


def latency(published: DataFrame, delivered: DataFrame, by: str) -> DataFrame:
    """Times to the first delivery, by `topic` or `client`: `messages, p50, p95, p99, max`, in ms."""
    first = delivered.groupBy("message", "client").agg(f.min("time").alias("arrived"))
    taken = first.join(published.select("message", "topic", "time"), "message").withColumn(
        "ms", (f.unix_micros("arrived") - f.unix_micros("time")) / 1000
    )
    names = [f"p{round(100 * q)}" for q in QUANTILES]
    quantiles = f.percentile_approx("ms", list(QUANTILES), ACCURACY)
    grouped = taken.groupBy(by).agg(f.count("*").alias("messages"), quantiles.alias("q"), f.max("ms").alias("max"))
    return grouped.select(by, "messages", *(f.col("q")[i].alias(name) for i, name in enumerate(names)), "max").orderBy(
        f.desc("p99"), by
    )


# ---- who needs a look ----


def at_risk(sessions: DataFrame, *, limit: int, share: float = 0.8, ttl_ms: int = 3_600_000) -> DataFrame:
    """Sessions that are nearly full, or end soon with messages in them: `client_id, messages, used, ttl_ms`."""
    used = f.col("messages") / f.lit(limit)
    ends = (f.col("ttl_ms") >= 0) & (f.col("ttl_ms") < ttl_ms)
    return (
        sessions.select("client_id", "messages", used.alias("used"), "ttl_ms")
        .where((f.col("used") >= share) | (ends & (f.col("messages") > 0)))
        .orderBy(f.desc("used"), "client_id")
    )


def top_talkers(published: DataFrame, count: int = 20) -> DataFrame:
    """The publishers with the most messages: `publisher, messages, bytes, share` (of all messages)."""
    size = f.sum("bytes") if "bytes" in published.columns else f.lit(None).cast("long")
    grouped = published.groupBy("publisher").agg(f.count("*").alias("messages"), size.alias("bytes"))
    total = f.sum("messages").over(Window.partitionBy(f.lit(0)))
    return grouped.withColumn("share", f.col("messages") / total).orderBy(f.desc("messages"), "publisher").limit(count)


def silent(
    published: DataFrame,
    *,
    until_ms: int,
    devices: DataFrame | None = None,
    factor: float = 10.0,
    least_s: float = 60.0,
) -> DataFrame:
    """Publishers that have been silent for unusually long: `publisher, last, silent_s, usual_s`.

    Args:
        published: the messages sent.
        until_ms: the end of the observation, ms since 1970.
        devices: `publisher`: all expected publishers; those never heard are silent, too. None: those that were heard.
        factor: a gap of this many times the mean interval between its messages is unusual.
        least_s: shorter gaps are not unusual, in seconds.
    """
    span = f.unix_micros(f.max("time")) - f.unix_micros(f.min("time"))
    heard = published.groupBy("publisher").agg(
        f.max("time").alias("last"),
        (span / f.greatest(f.count("*") - 1, f.lit(1)) / 1_000_000).alias("usual_s"),
    )
    known = heard if devices is None else devices.select("publisher").distinct().join(heard, "publisher", "left")
    quiet = (f.lit(until_ms) - f.unix_millis("last")) / 1000
    unusual = f.greatest(f.coalesce("usual_s", f.lit(0.0)) * factor, f.lit(least_s))
    return (
        known.withColumn("silent_s", quiet)
        .where(f.col("last").isNull() | (f.col("silent_s") > unusual))
        .select("publisher", "last", "silent_s", "usual_s")
        .orderBy(f.desc_nulls_first("silent_s"), "publisher")
    )


def volume(frame: DataFrame, buckets: int = 120) -> DataFrame:
    """Messages over time, in slices of equal length, up to a maximum number: `begin, seconds, messages`."""
    at = f.unix_micros("time")
    span = frame.agg(f.min(at).alias("low"), f.max(at).alias("high"))
    width = f.greatest(f.ceil((f.col("high") - f.col("low") + 1) / buckets), f.lit(1))
    sliced = frame.select(at.alias("at")).crossJoin(f.broadcast(span)).withColumn("width", width)
    slot = f.floor((f.col("at") - f.col("low")) / f.col("width"))
    return (
        sliced.groupBy(slot.alias("slot"), "low", "width")
        .agg(f.count("*").alias("messages"))
        .select(
            f.timestamp_micros(f.col("low") + f.col("slot") * f.col("width")).alias("begin"),
            (f.col("width") / 1_000_000).alias("seconds"),
            "messages",
        )
        .orderBy("begin")
    )
