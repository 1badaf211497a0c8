"""Reads ranges of a shard's numbers as Arrow batches: the task of every reader of history.

`read_range` is a pure function of (store, shard, begin, end, filters). It also asks for expired messages, so that a
repeated task gets the same rows. The task finds the owner of the shard page by page, because its slot may move to
another node of a cluster meanwhile. While Spark takes a batch, the server prepares the next one.

A command has one filter. Several filters are requested one after the other, over `VISITS_FOR_EACH * fetch_rows` numbers
at a time, and their messages are sorted. A message that several of them match is returned once.

The garbage collector is off in the loop: it would walk through the replies again and again (five times slower,
measured).
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from holdmq_pipeline import packed
from holdmq_pipeline.errors import DataLossError
from holdmq_pipeline.offsets import Range
from holdmq_pipeline.wire import PASSING, Link, Patience, patiently, range_key

__all__ = ["RangeQuery", "read_range", "without_collector"]

log = logging.getLogger(__name__)

FETCH_BYTES = 16 << 20
VISITS_FOR_EACH = 20


@dataclass(frozen=True)
class RangeQuery:
    """The messages to read of a store.

    Attributes:
        store: its name.
        columns: names of Spark's columns, in order.
        topic_filters: any of them may match; none: everything.
        fetch_rows: messages that one command reads.
    """

    store: str
    columns: tuple[str, ...]
    topic_filters: tuple[str, ...]
    fetch_rows: int


Gap = Callable[[RangeQuery, Range], Iterator[pa.RecordBatch]]


@contextmanager
def without_collector() -> Iterator[None]:
    """Switches the cyclic garbage collector off for a while."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_range(link: Link, query: RangeQuery, part: Range, gap: Gap) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in order.

    Args:
        link: where.
        query: what.
        part: the numbers.
        gap: is asked for what retention has taken; yields what can be had of it otherwise, or raises.
    """
    if len(query.topic_filters) > 1:
        yield from _read_by_filter(link, query, part, gap)
        return
    asked = packed.commands_columns(query.columns)
    at = part.begin
    patience = Patience()
    while at < part.end:
        try:
            for next_at, missed, rows, columns in _pages(link, query, asked, part, at):
                if missed:
                    yield from gap(query, Range(part.shard, at, min(at + missed, part.end)))
                if rows:
                    yield packed.batch(query.columns, part.shard, rows, asked, columns)
                at = next_at
                patience.succeed()
        except PASSING:  # a server that restarts, a slot that is on its way or somewhere else by now
            if not patience.wait():
                raise
        link.forget()


def _read_by_filter(link: Link, query: RangeQuery, part: Range, gap: Gap) -> Iterator[pa.RecordBatch]:
    """The same for several filters."""
    columns = query.columns if "offset" in query.columns else (*query.columns, "offset")
    step = VISITS_FOR_EACH * query.fetch_rows
    for begin in range(part.begin, part.end, step):
        window = Range(part.shard, begin, min(begin + step, part.end))
        found = [
            batch
            for one in query.topic_filters
            for batch in read_range(link, replace(query, columns=columns, topic_filters=(one,)), window, gap)
        ]
        if not found:
            continue
        rows = pa.Table.from_batches(found)
        _numbers, first = np.unique(rows.column("offset").to_numpy(), return_index=True)
        rows = rows.take(pa.array(first)).select(list(query.columns)).combine_chunks()
        yield from rows.to_batches(max_chunksize=query.fetch_rows)


def _pages(
    link: Link, query: RangeQuery, asked: Sequence[packed.Column], part: Range, at: int
) -> Iterator[tuple[int, int, int, Any]]:
    """Reads page by page; the next one is always requested already."""
    names = [column.source for column in asked]
    options = ["COLUMNS", len(names), *names, "COUNT", query.fetch_rows, "BYTES", FETCH_BYTES, "PACKED", "EXPIRED"]
    if query.topic_filters:
        options += ["FILTER", query.topic_filters[0], "VISIT", VISITS_FOR_EACH * query.fetch_rows]
    key = range_key(query.store, part.shard)

    def words(begin: int) -> list[Any]:
        return ["HISTORY.RANGE", query.store, part.shard, begin, part.end - 1, *options]

    patiently(lambda: link.node(key).ping(), link.forget)
    with link.connection(link.node(key)) as connection:
        connection.send_command(*words(at))
        while True:
            reply = connection.read_response(disable_decoding=True)
            if isinstance(reply, redis.RedisError):
                raise reply
            next_at, _visited, missed, rows, columns = reply
            if next_at <= at:
                # Beyond the last message: the plan had numbers that do not exist any more.
                raise DataLossError(
                    f"store {query.store}, shard {part.shard}: numbers {at} to {part.end - 1} are to be read, but the "
                    f"last is {at - 1}: the server lost what it had, or the store was made anew"
                )
            if next_at < part.end:
                connection.send_command(*words(next_at))
            yield next_at, missed, rows, columns
            at = next_at
            if at >= part.end:
                return
