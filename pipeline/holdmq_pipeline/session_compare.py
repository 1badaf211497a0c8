"""Compares what was to be imported with what the sessions hold, message by message, by stock commands.

A message whose time to live has run out meanwhile counts neither as lost nor as there. Where messages were put behind
others (merged), serials and identifiers may be new ones: then the values count, as often as they occur.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from holdmq import core
from holdmq_pipeline.session_import import Target
from holdmq_pipeline.tbmq import QUEUED, RELEASED, batch_of, queue_pages
from holdmq_pipeline.wire import Link

HELD = "client_id string, serial long, packet_id int, state int, digest binary"
ARROW_HELD = pa.schema(
    [("client_id", pa.string()), ("serial", pa.int64()), ("packet_id", pa.int32()), ("state", pa.int32()),
     ("digest", pa.binary())]
)  # fmt: skip
SLACK_MS = 1000  # the clocks of executors and servers


@dataclass(frozen=True, slots=True)
class Differences:
    """What a comparison found, in messages.

    Attributes:
        lost: that are not there.
        extra: that are there and should not be.
        differ: with another packet identifier, state or content.
    """

    lost: int
    extra: int
    differ: int


def compare(expected: DataFrame, clients: DataFrame, target: Target) -> Differences:
    """Compares `expected` with the sessions of `clients`.

    Args:
        expected: `client_id, serial, packet_id, state, lives_until, value`; packet_id 0: any.
        clients: `client_id`: whose sessions are read.
        target: where they are.
    """
    now_ms = int(time.time() * 1000)
    wanted = expected.select(
        "client_id",
        "serial",
        "packet_id",
        "state",
        "lives_until",
        f.when(f.col("state") == RELEASED, f.lit(b"")).otherwise(f.unhex(f.sha2("value", 256))).alias("digest"),
    )
    held = clients.select("client_id").mapInArrow(lambda batches: _held(batches, target), HELD)
    alive = (f.col("lives_until") == 0) | (f.col("lives_until") > now_ms + SLACK_MS)
    found = _by_value(wanted, held, alive) if target.merge else _by_serial(wanted, held, alive)
    row = found.first()
    assert row is not None
    return Differences(row.lost or 0, row.extra or 0, row.differ or 0)


def _by_serial(wanted: DataFrame, held: DataFrame, alive: Column) -> DataFrame:
    both = wanted.alias("w").join(held.alias("h"), ["client_id", "serial"], "full")
    there = f.col("h.digest").isNotNull()
    same = (
        ((f.col("w.packet_id") == 0) | (f.col("w.packet_id") == f.col("h.packet_id")))
        & (f.col("w.state") == f.col("h.state"))
        & (f.col("w.digest") == f.col("h.digest"))
    )
    known = f.col("w.digest").isNotNull()
    return both.agg(
        f.count_if(known & ~there & alive).alias("lost"),
        f.count_if(~known).alias("extra"),
        f.count_if(known & there & ~same).alias("differ"),
    )


def _by_value(wanted: DataFrame, held: DataFrame, alive: Column) -> DataFrame:
    ours = wanted.where(alive).groupBy("client_id", "state", "digest").agg(f.count("*").alias("wanted"))
    theirs = held.groupBy("client_id", "state", "digest").agg(f.count("*").alias("held"))
    missing = f.greatest(f.col("wanted") - f.coalesce("held", f.lit(0)), f.lit(0))
    both = ours.join(theirs, ["client_id", "state", "digest"], "left")
    return both.agg(f.sum(missing).alias("lost"), f.lit(0).alias("extra"), f.lit(0).alias("differ"))


def _held(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    with Link(target.options) as link:
        for batch in batches:
            for client_id in batch.column(0).to_pylist():
                for page in queue_pages(link, target.key(client_id)):
                    rows = [
                        (client_id, entry.serial, entry.packet_id, *_state_and_digest(entry.value))
                        for entry in page
                        if entry.value is not None
                    ]
                    yield batch_of(rows, ARROW_HELD)


def _state_and_digest(value: bytes) -> tuple[int, bytes]:
    if core.is_record(value) and core.Record.decode(value).type == core.RecordType.PUBREL:
        return RELEASED, b""
    return QUEUED, hashlib.sha256(value).digest()
