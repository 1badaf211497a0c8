"""Writing to a cluster of three nodes: each session, channel and shard of history gets every row once."""

import itertools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from redis.crc import key_slot

from holdmq import HoldMQ
from holdmq.commands import SlotRange
from holdmq_pipeline.everywhere import Everywhere
from holdmq_pipeline.options import WRITE, Options
from holdmq_pipeline.sender import Written
from holdmq_pipeline.sink import send_all
from holdmq_pipeline.wire import Link, received
from tests.client.support import message_of
from tests.module.cluster_support import SlotMove, owner
from tests.support import Cluster, Server, embedded_kinds, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

WAIT_S = 20.0
ROWS = [(f"t/{number % 5}", b"%d" % number) for number in range(2500)]
"""Three commands."""


@pytest.fixture
def hold(cluster: Cluster) -> Iterator[HoldMQ]:
    """A client, with a store of topics and a subscriber on each node."""
    client = cluster.client()
    made = HoldMQ(client)
    made.history.create("fleet", "#", shards=3)
    for name in subscribers(cluster):
        made.session(name).subscribe("t/#")
    yield made
    client.disconnect_connection_pools()  # `close` leaves them to the garbage collector
    client.close()


def subscribers(cluster: Cluster) -> list[str]:
    """A client id for each node, whatever has moved."""
    ids = [f"reader-{number}" for number in range(100)]
    return [next(one for one in ids if owner(cluster, key_slot(one.encode())) is node) for node in cluster.nodes]


def got(hold: HoldMQ, names: list[str]) -> list[list[bytes]]:
    """What waits for each, in order."""
    return [[message_of(entry).payload for entry in hold.session(name).fetch(count=10_000).entries] for name in names]


def assert_all_is_there_once(hold: HoldMQ, names: list[str]) -> None:
    """For each subscriber and in history, in the order of the topics."""
    payloads = [payload for _topic, payload in ROWS]
    assert got(hold, names) == [payloads] * len(names)
    kept = [(message.topic, message.payload) for message in hold.history.start_replay("#")]
    assert len(kept) == len(ROWS)
    for topic in {topic for topic, _payload in ROWS}:
        assert [payload for at, payload in kept if at == topic] == [payload for at, payload in ROWS if at == topic]


def write(spark: "SparkSession", cluster: Cluster, write_id: str) -> None:
    """Writes ROWS."""
    frame = spark.createDataFrame(ROWS, "topic string, payload binary").selectExpr("*", "1 as qos").coalesce(1)
    options = {"url": cluster.nodes[1].url, "table": "topics", "writeId": write_id}
    frame.write.format("holdmq").mode("append").options(**options).save()


def move(cluster: Cluster, slot: int, target: Server) -> None:
    """Moves a slot to a node."""
    way = SlotMove(cluster, owner(cluster, slot), target, slot)
    way.begin()
    assert sum(way.move_all(1000)) > 0
    way.end()
    eventually(lambda: all(owner(cluster, slot, node) is target for node in cluster.nodes), WAIT_S, "a move")


def test_every_node_gets_every_row_once_also_when_slots_moved_before_the_next_attempt(
    spark: "SparkSession", cluster: Cluster, hold: HoldMQ
) -> None:
    names = subscribers(cluster)
    full = cluster.nodes[2].client()
    full.config_set("maxmemory", 1)
    try:
        with pytest.raises(PySparkException, match="a node refused to publish: command not allowed when used memory"):
            write(spark, cluster, "w")
    finally:
        full.config_set("maxmemory", 0)
    assert [len(one) for one in got(hold, names)] == [1000, 1000, 0]
    slot = key_slot(names[0].encode())
    source = cluster.nodes[0]
    move(cluster, slot, cluster.nodes[2])  # its session has the first rows, the node has not
    try:
        write(spark, cluster, "w")
        assert_all_is_there_once(hold, names)
        hold.session("late").subscribe("t/#")
        write(spark, cluster, "w")
        assert_all_is_there_once(hold, names)
        assert got(hold, ["late"]) == [[]]
    finally:
        move(cluster, slot, source)


def rows(of: list[tuple[str, bytes]]) -> pa.RecordBatch:
    """A batch as Spark hands it over."""
    topics, payloads = zip(*of, strict=True)
    columns = [pa.array(topics, pa.string()), pa.array(payloads, pa.binary()), pa.array([1] * len(of), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["topic", "payload", "qos"])


def send(url: str, batches: Iterable[pa.RecordBatch]) -> Written:
    """What a task does with its rows."""
    options = Options({"url": url, "table": "topics", "chunkRows": "1000"}, WRITE)
    with Link(options) as link:
        return send_all(link, options, "spark:q", 0, 1, batches)


def test_a_slot_that_is_on_its_way_is_served_where_it_arrives(cluster: Cluster, hold: HoldMQ) -> None:
    names = subscribers(cluster)
    source, target = cluster.nodes[:2]
    way = SlotMove(cluster, source, target, key_slot(names[0].encode()))
    way.begin()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(ROWS[:1200])  # the first command is on its way, and this slot waits
        assert sum(way.move_all(100)) > 0
        way.end()
        yield rows(ROWS[1200:])

    try:
        written = send(cluster.nodes[0].url, batches())
        assert (written.rows, written.stored, written.repeated) == (len(ROWS), len(ROWS), 0)
        assert_all_is_there_once(hold, names)
    finally:
        move(cluster, way.slot, source)


def test_a_task_that_fails_closes_its_connections(cluster: Cluster, hold: HoldMQ) -> None:
    clients = [node.client() for node in cluster.nodes]
    assert hold.is_cluster

    def connections() -> list[int]:
        return [client.info("clients")["connected_clients"] for client in clients]

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(ROWS[:1200])
        raise RuntimeError("no more rows")

    before = connections()
    with pytest.raises(RuntimeError, match="no more rows") as failed:
        send(cluster.nodes[0].url, batches())
    eventually(lambda: connections() == before, WAIT_S, "the end of all connections of the task")
    assert failed.traceback  # it holds the task's objects until here: nothing is closed because it was forgotten


def die_in_between(url: str) -> None:
    """A task that is killed when one node has the second command, and the others have not."""
    commands = itertools.count(1)
    send_to_all = Everywhere._send

    def send_to_one(everywhere: Everywhere, ranges: Iterable[SlotRange]) -> None:
        if next(commands) < 2:
            send_to_all(everywhere, ranges)
            return
        node, own = everywhere._by_node(ranges)[0]
        connection = everywhere._connection(node)
        assert everywhere._now is not None
        connection.send_packed_command([everywhere._now.head(own), everywhere._now.messages])
        received(connection, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    Everywhere._send = send_to_one  # type: ignore[assignment, method-assign]
    send(url, [rows(ROWS)])


def test_a_task_that_is_killed_when_some_nodes_have_its_rows_is_repeated_without_a_trace(
    cluster: Cluster, hold: HoldMQ
) -> None:
    names = subscribers(cluster)
    url = cluster.nodes[0].url
    child = multiprocessing.get_context("spawn").Process(target=die_in_between, args=(url,))
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == -signal.SIGKILL
    assert sorted(len(one) for one in got(hold, names)) == [1000, 1000, 2000]
    written = send(url, [rows(ROWS[:700]), rows(ROWS[700:])])
    assert (written.stored, written.repeated) == (1500, 1000)
    assert_all_is_there_once(hold, names)
    assert send(url, [rows(ROWS)]).repeated == len(ROWS)


def test_sessions_and_channels_get_every_row(spark: "SparkSession", cluster: Cluster) -> None:
    url = cluster.nodes[0].url
    sent = [(f"client-{number % 20}", b"%d" % number) for number in range(400)]
    frame = spark.createDataFrame(sent, "client_id string, payload binary").write.format("holdmq").mode("append")
    frame.options(url=url, table="sessions", chunkRows=50).save()
    counted = Counter(client_id for client_id, _payload in sent)
    info = spark.read.format("holdmq").options(url=url, table="session_info").load().collect()
    assert {row.client_id: row.messages for row in info} == counted
    found = spark.read.format("holdmq").options(url=url, table="sessions").load().collect()
    assert Counter((row.client_id, bytes(row.payload)) for row in found) == Counter(sent)
    channels = [(f"ch-{number % 9}", b"%d" % number) for number in range(90)]
    frame = spark.createDataFrame(channels, "channel string, payload binary").write.format("holdmq").mode("append")
    frame.options(url=url, table="channels").save()
    lists = spark.read.format("holdmq").options(url=url, table="channels", channelPattern="ch-*").load().collect()
    assert Counter((row.channel, bytes(row.payload)) for row in lists) == Counter(channels)
    node = cluster.node_of("ch-3").client()
    assert node.llen("ch-3") == 10
