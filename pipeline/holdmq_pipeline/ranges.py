"""The common parts of the batch reader and the stream reader of history: planning, tasks as plain values, loss."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from holdmq_pipeline.errors import DataLossError
from holdmq_pipeline.history_reader import RangeQuery
from holdmq_pipeline.offsets import Offsets, Range, ShardInfo
from holdmq_pipeline.options import Options
from holdmq_pipeline.wire import Link, range_key

__all__ = ["RangePartition", "check_loss", "offsets_at", "query_of", "shard_infos"]

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """A task: numbers of a shard, and the query for them."""

    def __init__(self, query: "RangeQuery", part: Range) -> None:
        super().__init__(part)
        self.query = query
        self.part = part


def shard_infos(info: Mapping[bytes, Any]) -> list[ShardInfo]:
    """The data of HISTORY.INFO that a plan needs."""
    return [ShardInfo(shard[b"shard"], shard[b"first"], shard[b"last"] + 1) for shard in info[b"shard"]]


def query_of(options: Options, store: str, columns: tuple[str, ...]) -> "RangeQuery":
    """The query of the tasks."""
    return RangeQuery(store, columns, options.topic_filters(), options.required("fetchRows", 1, 100_000))


def offsets_at(link: "Link", store: str, shards: list[ShardInfo], time_ms: int) -> Offsets:
    """For each shard the number of the first message at this time or later."""
    return {
        info.shard: int(link.ask(range_key(store, info.shard), "HISTORY.SEQ", store, info.shard, max(time_ms, 0)))
        for info in shards
    }


def check_loss(options: Options, store: str, gaps: Sequence[Range]) -> None:
    """Fails, or logs, as the options want it.

    Raises:
        DataLossError: failOnDataLoss is true and there are gaps.
    """
    for gap in gaps:
        text = (
            f"store {store}, shard {gap.shard}: retention removed the numbers {gap.begin} to {gap.end - 1}, "
            "which were to be read"
        )
        if options.flag("failOnDataLoss"):
            raise DataLossError(f"{text} (failOnDataLoss=false counts them and continues)")
        log.warning("%s", text)
