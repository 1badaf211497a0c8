"""History of a cluster of three nodes, while slots move from one to another: read, followed and archived as a whole."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdmq import HoldMQ, history_commands
from holdmq_pipeline.archive import archived, history
from holdmq_pipeline.figures import JobFigures
from holdmq_pipeline.history_reader import RangeQuery, read_range
from holdmq_pipeline.jobs.archive import Archiver
from holdmq_pipeline.jobs.replay import Target, replay
from holdmq_pipeline.offsets import Range
from holdmq_pipeline.options import READ, Options
from holdmq_pipeline.wire import Link
from tests.client.support import message_of
from tests.module.cluster_support import SlotMove, owner
from tests.pipeline.history_support import Message, fleet, rows
from tests.support import Cluster, embedded_kinds, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

SHARDS = 4
STORE = "fleet"
WAIT_S = 20.0


@pytest.fixture
def hold(cluster: Cluster) -> Iterator[HoldMQ]:
    """A client of the cluster, with an empty store."""
    client = cluster.client()
    made = HoldMQ(client)
    made.history.create(STORE, "#", shards=SHARDS)
    yield made
    client.close()


def append(hold: HoldMQ, count: int) -> list[Message]:
    """Messages of the fleet; what was kept."""
    places = [(hold.history.store(STORE).append(topic, payload), topic, payload) for topic, payload in fleet(count)]
    return [Message(place.shard, place.sequence, topic, payload) for place, topic, payload in places]


def moving(cluster: Cluster, shard: int) -> SlotMove:
    """The way of a shard's slot from its node to the next one."""
    slot = history_commands.shard_slot(STORE, shard)
    source = owner(cluster, slot)
    return SlotMove(cluster, source, cluster.nodes[cluster.nodes.index(source) - 1], slot)


def finish(cluster: Cluster, way: SlotMove) -> None:
    """Moves all keys, and waits until the nodes agree."""
    assert sum(way.move_all(1000)) > 0
    way.end()
    shard = next(one for one in range(SHARDS) if history_commands.shard_slot(STORE, one) == way.slot)
    eventually(lambda: moving(cluster, shard).source is way.target, WAIT_S, "a node that knows of the move")


def move(cluster: Cluster, shard: int) -> None:
    """Moves a shard's slot."""
    way = moving(cluster, shard)
    way.begin()
    finish(cluster, way)


def test_slots_that_move_while_a_batch_is_read_cost_nothing(
    spark: "SparkSession", cluster: Cluster, hold: HoldMQ
) -> None:
    kept = append(hold, 120)
    reader = spark.read.format("holdmq").options(url=cluster.nodes[0].url)
    found: list[Message] = []
    # A task for each shard, begun when its rows are asked for; all of them were planned before.
    for row in reader.load().select("shard", "offset", "topic", "payload").toLocalIterator():
        found.append(Message(row.shard, row.offset, row.topic, bytes(row.payload)))
        if len(found) == 20:
            for shard in range(SHARDS):
                move(cluster, shard)
    assert sorted(found) == sorted(kept)


def test_a_task_continues_where_it_is_when_its_shard_moves(cluster: Cluster, hold: HoldMQ) -> None:
    kept = append(hold, 300)
    shard = max(range(SHARDS), key=lambda one: sum(message.shard == one for message in kept))
    own = [message for message in kept if message.shard == shard]
    with Link(Options({"url": cluster.nodes[0].url}, READ)) as link:
        query = RangeQuery(STORE, ("offset",), (), 7)
        batches = read_range(link, query, Range(shard, 1, len(own) + 1), lambda _query, _gap: iter(()))
        found = next(batches).column(0).to_pylist()
        way = moving(cluster, shard)
        way.begin()
        way.move(*way.keys(3))  # half of it is here, half there: nobody may read it now
        with ThreadPoolExecutor(1) as other:
            moved = other.submit(finish, cluster, way)
            for batch in batches:
                found += batch.column(0).to_pylist()
            moved.result()
    assert found == list(range(1, len(own) + 1))


def test_slots_that_move_while_a_query_follows_cost_nothing(
    spark: "SparkSession", cluster: Cluster, hold: HoldMQ, tmp_path: Path
) -> None:
    kept = append(hold, 200)
    batches: dict[int, list[Message]] = {}

    def take(frame: Any, batch: int) -> None:
        move(cluster, batch % SHARDS)  # the batch is planned, and not read
        found = [Message(row.shard, row.offset, row.topic, bytes(row.payload)) for row in frame.collect()]
        assert batches.setdefault(batch, found) == found, "a repeated batch has other rows"

    reader = spark.readStream.format("holdmq").schema("shard int, offset long, topic string, payload binary")
    stream = reader.options(url=cluster.nodes[1].url, maxOffsetsPerTrigger=120).load()
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(message for batch in batches.values() for message in batch) == sorted(kept)
    assert len(batches) == 2


def test_a_cluster_is_archived_replayed_and_trimmed_while_slots_move(
    spark: "SparkSession", cluster: Cluster, hold: HoldMQ, tmp_path: Path
) -> None:
    kept = append(hold, 300)
    options = {"url": cluster.nodes[2].url}
    table = str(tmp_path / "archive")
    shards = itertools.cycle(range(SHARDS))  # another one in each phase of a batch
    archiver = Archiver(
        spark, Options(options), table, batch_rows=200, task_rows=150, fault=lambda _phase: move(cluster, next(shards))
    )
    assert archiver.batch(JobFigures("archive"), 0) is False
    assert archiver.batch(JobFigures("archive"), 0) is True
    assert rows(archived(spark, table, STORE)) == sorted(kept)
    info = hold.history.store(STORE).info()
    assert [(shard.messages, shard.holds["archive"] == shard.last) for shard in info.shards] == [(0, True)] * SHARDS
    later = append(hold, 40)
    assert rows(history(spark, options, table)) == sorted(kept + later)
    figures = replay(spark, options, table, Target("sessions", "reader", options["url"]), "again")
    assert figures.rows == 340
    queue = hold.session("reader").fetch(count=1000).entries
    assert sorted(message_of(entry).payload for entry in queue) == sorted(one.payload for one in kept + later)
