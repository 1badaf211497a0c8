"""The state of learned patterns as a DataFrame: any number of topics, one shuffle for each level (pattern_levels.py).

The messages of children are counted in `BUCKETS` buckets by hash, so the amount of data that the driver collects does
not grow with the number of topics. The state of a level is persisted, and the state of the level before is then
released.

A persisted plan that Spark may still change (adaptive execution) is described twice in the plan that reads it, as first
and as final plan. With eight levels, each of which reads the one before, that makes 256 descriptions. Spark writes all
of them for every query, which takes minutes of one core. So `CACHED_PLANS` is off during that time.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from holdmq_pipeline.pattern_state import (
    CONTROL,
    CONTROL_CHARACTERS,
    DOLLAR,
    ENDED,
    Asked,
    Bucket,
    Hot,
    Known,
    Way,
)

__all__ = ["FrameState"]

BUCKETS = 64
CACHED_PLANS = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
ESTIMATE_ERROR = 0.05  # of one bucket; of the sum of all an eighth
PATH = [("group", pa.int32()), ("path", pa.string())]
ASKED = pa.schema([*PATH, ("bucket", pa.int32()), ("least", pa.int64())])
WAY = pa.schema([*PATH, ("to", pa.int32()), ("concrete", pa.bool_()), ("plus", pa.string()), ("hot", pa.int64())])
KNOWN = pa.schema([*PATH, ("level", pa.string()), ("weight", pa.int64())])


class FrameState:
    """Topics at a level, as a DataFrame.

    Args:
        topics: columns topic and messages; equal topics are added up.
        exact: count different levels exactly, else estimate them.
    """

    def __init__(self, topics: DataFrame, *, exact: bool) -> None:
        self._exact = exact
        self._depth = 0
        self._settings = topics.sparkSession.conf
        self._before = self._settings.get(CACHED_PLANS)
        self._settings.set(CACHED_PLANS, "false")
        self._state = (
            topics.select(f.lit(0).alias("group"), f.lit("").alias("path"), f.col("topic").alias("rest"), "messages")
            .groupBy("group", "path", "rest")
            .agg(f.sum("messages").alias("messages"))
        )
        self._held: list[DataFrame] = []  # the state, and while it is computed the one before
        self._parts = self._state

    def families(self) -> list[tuple[int, str, list[Bucket]]]:
        """The children of each group and path."""
        self._held.append(self._state.persist(StorageLevel.MEMORY_AND_DISK))
        self._parts = _with_level(self._state, self._depth)
        different = f.count_distinct("level") if self._exact else f.approx_count_distinct("level", ESTIMATE_ERROR)
        rows = (
            self._parts.groupBy("group", "path", "bucket")
            .agg(different.alias("different"), f.sum("messages").alias("messages"))
            .groupBy("group", "path")
            .agg(f.collect_list(f.struct("bucket", "different", "messages")).alias("buckets"))
            .collect()
        )
        if len(self._held) > 1:
            self._held.pop(0).unpersist()
        return [(row.group, row.path, [Bucket(*bucket) for bucket in row.buckets]) for row in rows]

    def hot(self, asked: Sequence[Asked]) -> list[Hot]:
        """The hot children of buckets."""
        rows = (
            self._parts.join(f.broadcast(self._local(asked, ASKED)), ["group", "path", "bucket"])
            .groupBy("group", "path", "level", "least")
            .agg(f.sum("messages").alias("messages"))
            .where("messages * 100 >= least")
            .collect()
        )
        return [Hot(row.group, row.path, row.level, row.messages) for row in rows]

    def keep_dollars(self, most: int) -> None:
        """Of the levels that begin with `$` only the most frequent are followed."""
        is_dollar = f.col("bucket") == DOLLAR
        rows = (
            self._parts.where(is_dollar)
            .groupBy("level")
            .agg(f.sum("messages").alias("messages"))
            .orderBy(f.desc("messages"), "level")
            .limit(most)
            .collect()
        )
        self._parts = self._parts.where(~is_dollar | f.col("level").isin([row.level for row in rows]))

    def advance(self, ways: Sequence[Way], known: Sequence[Known]) -> None:
        """To the next level."""
        is_hot = f.coalesce(f.col("weight") >= f.col("hot"), f.lit(False))
        token = f.when(f.col("concrete") | (f.col("bucket") == DOLLAR) | is_hot, f.col("level")).otherwise(
            f.col("plus")
        )
        self._state = (
            self._parts.where(f.col("bucket") != ENDED)
            .join(f.broadcast(self._local(ways, WAY)), ["group", "path"])
            .where(~(f.col("concrete") & (f.col("bucket") == CONTROL)))
            .join(f.broadcast(self._local(known, KNOWN)), ["group", "path", "level"], "left")
            .select(
                f.col("to").alias("group"),
                (token if self._depth == 0 else f.concat("path", f.lit("/"), token)).alias("path"),
                f.col("tail").alias("rest"),
                "messages",
            )
            .groupBy("group", "path", "rest")
            .agg(f.sum("messages").alias("messages"))
        )
        self._depth += 1

    def close(self) -> None:
        """Releases the persisted state, and restores the setting."""
        self._settings.set(CACHED_PLANS, self._before or "true")
        for frame in self._held:
            frame.unpersist()

    def _local(self, rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> DataFrame:
        """A small DataFrame that needs no task to be made."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return self._state.sparkSession.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def _with_level(state: DataFrame, depth: int) -> DataFrame:
    """The state with its next level, the levels after it (null: none), and the bucket that the level falls in."""
    level = f.substring_index("rest", "/", 1)
    bucket = f.when(f.col("rest").isNull(), ENDED).when(level.rlike(CONTROL_CHARACTERS), CONTROL)
    if depth == 0:
        bucket = bucket.when(level.startswith("$"), DOLLAR)
    return state.select(
        "group",
        "path",
        "messages",
        level.alias("level"),
        f.when(f.instr("rest", "/") > 0, f.expr("substring(rest, instr(rest, '/') + 1)")).alias("tail"),
        bucket.otherwise(f.pmod(f.xxhash64(level), f.lit(BUCKETS)).cast("int")).alias("bucket"),
    )
