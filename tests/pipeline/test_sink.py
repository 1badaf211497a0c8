"""Writing to topics, channels and sessions: what a DataFrame has arrives once, in order, whatever fails."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import Row, functions

from holdmq import core
from holdmq_pipeline.messages import Chunk, Maker
from holdmq_pipeline.options import WRITE, Options
from holdmq_pipeline.sender import Sender, Written
from holdmq_pipeline.sink import send_all
from holdmq_pipeline.wire import Link
from tests.pipeline.history_support import append, fleet, rows, store
from tests.support import Server, embedded_kinds, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

server_kinds = embedded_kinds

Write = Callable[..., None]
WAIT_S = 20.0


@pytest.fixture
def write(server: Server) -> Write:
    """Writes a DataFrame to a table of the server."""

    def save(frame: "DataFrame", table: str, url: str = server.url, **options: Any) -> None:
        frame.write.format("holdmq").mode("append").options(url=url, table=table, **options).save()

    return save


def kept(client: redis.Redis, name: str = "fleet") -> list[tuple[str, bytes]]:
    """What the history of a store has, in the order of its only shard."""
    entries = client.execute_command("HISTORY.REPLAY", "#", "STORE", name, "COUNT", 10000)[0]
    records = [core.Record.decode(entry[3]) for entry in entries]
    return [(record.topic.decode(), record.payload) for record in records]


def queue(client: redis.Redis, client_id: str) -> list[bytes]:
    """The values that wait for a client."""
    return [
        entry[3] for entry in client.execute_command("SESSION.FETCH", core.session_key(client_id), "COUNT", 10000)[0]
    ]


def test_topics_get_every_row_in_order_with_all_that_was_said_of_it(
    spark: "SparkSession", write: Write, client: redis.Redis
) -> None:
    store(client)
    sent = fleet(700)
    frame = spark.createDataFrame([Row(topic=topic, payload=payload) for topic, payload in sent]).coalesce(1)
    write(frame, "topics", chunkRows=64)
    assert kept(client) == sent
    whole = "topic string, payload binary, qos int, retain boolean, publisher string, properties binary, ttl int"
    properties = b"\x03\x00\x01x"
    write(spark.createDataFrame([("r", b"p", 2, True, "me", properties, 60)], whole), "topics")
    entry = client.execute_command("HISTORY.REPLAY", "r")[0][0]
    record = core.Record.decode(entry[3])
    assert (record.qos, record.retain, record.publisher, record.properties) == (2, True, b"me", properties)
    assert record.expires_ms - record.time_ms == 60_000
    assert client.execute_command("TOPIC.RETAINED", "r") == [b"r"]


def test_channels_hold_every_row(spark: "SparkSession", write: Write, client: redis.Redis) -> None:
    sent = [(f"ch-{number % 3}", b"%d" % number) for number in range(90)]
    write(spark.createDataFrame(sent, "channel string, payload binary").coalesce(1), "channels", chunkRows=7)
    for name in ("ch-0", "ch-1", "ch-2"):
        assert client.lrange(name, 0, -1) == [payload for channel, payload in sent if channel == name]


def test_sessions_get_values_and_records(spark: "SparkSession", write: Write, client: redis.Redis) -> None:
    sent = [(f"c{number % 4}", b"%d" % number) for number in range(200)]
    write(spark.createDataFrame(sent, "client_id string, payload binary").coalesce(1), "sessions", chunkRows=30)
    for name in ("c0", "c1", "c2", "c3"):
        assert queue(client, name) == [payload for client_id, payload in sent if client_id == name]
    whole = "client_id string, topic string, payload binary, qos int"
    write(spark.createDataFrame([("d", "a/b", b"p", 2)], whole), "sessions", ttl=100)
    record = core.Record.decode(queue(client, "d")[0])
    assert (record.topic, record.payload, record.qos) == (b"a/b", b"p", 2)
    assert 0 < client.ttl(core.message_key(core.session_key("d"), 1)) <= 100


@pytest.mark.parametrize("table", ["topics", "channels", "sessions"])
def test_a_task_that_is_tried_again_repeats_nothing(
    spark: "SparkSession", write: Write, client: redis.Redis, table: str, tmp_path: Path
) -> None:
    store(client)
    sent = [("one", b"%d" % number) for number in range(500)]
    name = {"topics": "topic", "channels": "channel", "sessions": "client_id"}[table]
    marker = str(tmp_path / "failed")

    def failing(batches: Any) -> Any:
        """Fails once, in the middle."""
        seen = 0
        for batch in batches:
            for at in range(0, batch.num_rows, 50):
                if seen >= 300 and not Path(marker).exists():
                    Path(marker).touch()
                    raise RuntimeError("on purpose")
                yield batch.slice(at, 50)
                seen += 50

    schema = f"{name} string, payload binary"
    frame = spark.createDataFrame(sent, schema).coalesce(1).mapInArrow(failing, schema)
    write(frame, table, chunkRows=20)
    assert Path(marker).exists()
    read: dict[str, Callable[[], Any]] = {
        "topics": lambda: [payload for _topic, payload in kept(client)],
        "channels": lambda: client.lrange("one", 0, -1),
        "sessions": lambda: queue(client, "one"),
    }
    assert read[table]() == [payload for _name, payload in sent]


def test_the_same_write_id_repeats_nothing(spark: "SparkSession", write: Write, client: redis.Redis) -> None:
    store(client)
    frame = spark.createDataFrame([("a", b"1"), ("a", b"2")], "topic string, payload binary").coalesce(1)
    write(frame, "topics", writeId="w1")
    write(frame, "topics", writeId="w1")
    assert kept(client) == [("a", b"1"), ("a", b"2")]
    write(frame, "topics", idempotent="false")
    assert len(kept(client)) == 4


def test_what_was_refused_is_stored_by_the_next_attempt(
    spark: "SparkSession", write: Write, client: redis.Redis
) -> None:
    sent = [("good", b"1"), ("bad", b"2"), ("good", b"3"), ("bad", b"4")]
    frame = spark.createDataFrame(sent, "client_id string, payload binary").coalesce(1)
    client.set("{bad}_messages", "of another type")
    with pytest.raises(PySparkException, match="WRONGTYPE"):
        write(frame, "sessions", writeId="w2", chunkRows=2)
    client.delete("{bad}_messages")
    write(frame, "sessions", writeId="w2", chunkRows=2)
    assert (queue(client, "good"), queue(client, "bad")) == ([b"1", b"3"], [b"2", b"4"])


def task(url: str, table: str, rows: list[tuple[str, bytes]]) -> Written:
    """What a task does with its rows, in chunks of two."""
    options = Options({"url": url, "table": table, "chunkRows": "2"}, WRITE)
    columns = [pa.array([name for name, _ in rows]), pa.array([payload for _, payload in rows])]
    names = ["client_id" if table == "sessions" else "channel", "payload"]
    with Link(options) as link:
        return send_all(link, options, "spark:q", 0, 1, [pa.RecordBatch.from_arrays(columns, names)])


LATER = [("good", b"1"), ("bad", b"2"), ("bad", b"3"), ("good", b"4")]


def die_behind_a_refusal(url: str, table: str, wrong: str) -> None:
    """A task that is killed when one of its rows was refused, before it knows.

    What was wrong is put right before the rows behind it come.
    """
    transmit = Sender._transmit
    client = redis.Redis.from_url(url)

    def stored() -> int:
        return int(client.zcard("{good}_messages") if table == "sessions" else client.llen("good"))

    def dying(sender: Sender, chunk: Chunk) -> None:
        transmit(sender, chunk)
        if not client.exists(wrong):
            eventually(lambda: stored() == 2, WAIT_S, "the rows behind")
            os.kill(os.getpid(), signal.SIGKILL)
        eventually(lambda: stored() == 1, WAIT_S, "the first rows")
        client.delete(wrong)

    Sender._transmit = dying  # type: ignore[assignment, method-assign]
    task(url, table, LATER)


@pytest.mark.parametrize(
    ("table", "wrong"), [("sessions", "{bad}_messages"), ("channels", "{bad}_producer{spark:q:0}")]
)
def test_rows_after_a_refused_one_wait_for_it_also_if_the_task_is_killed_at_once(
    server: Server, client: redis.Redis, table: str, wrong: str
) -> None:
    client.rpush(wrong, "of another type")
    child = multiprocessing.get_context("spawn").Process(target=die_behind_a_refusal, args=(server.url, table, wrong))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL

    def there(name: str) -> list[bytes]:
        return queue(client, name) if table == "sessions" else client.execute_command("LRANGE", name, 0, -1)

    assert (there("good"), there("bad")) == ([b"1", b"4"], [])
    assert task(server.url, table, LATER).rows == 4
    assert (there("good"), there("bad")) == ([b"1", b"4"], [b"2", b"3"])


def test_a_session_that_is_dropped_meanwhile_gets_what_comes_afterwards(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    transmit = Sender._transmit

    chunks = itertools.count()

    def dropping(sender: Sender, chunk: Chunk) -> None:
        if next(chunks) == 1:
            eventually(lambda: client.zcard("{c}_messages") == 2, WAIT_S, "the first rows")
            client.execute_command("SESSION.DROP", "{c}")
        transmit(sender, chunk)

    monkeypatch.setattr(Sender, "_transmit", dropping)
    written = task(server.url, "sessions", [("c", b"%d" % number) for number in range(6)])
    assert (written.stored, queue(client, "c")) == (6, [b"2", b"3", b"4", b"5"])


def test_topics_continue_in_order_where_one_was_refused(
    spark: "SparkSession", write: Write, client: redis.Redis
) -> None:
    store(client)
    sent = [("bad" if number == 700 else "good", b"%d" % number, number == 700) for number in range(1500)]
    frame = spark.createDataFrame(sent, "topic string, payload binary, retain boolean").coalesce(1)
    client.set("{bad}_retained", "of another type")
    with pytest.raises(PySparkException, match="WRONGTYPE"):
        write(frame, "topics", writeId="w3", chunkRows=600)
    client.delete("{bad}_retained")
    assert len(kept(client)) == 700
    write(frame, "topics", writeId="w3", chunkRows=600)
    assert kept(client) == [(topic, payload) for topic, payload, _retain in sent]


def test_a_stream_that_was_stopped_in_a_batch_writes_it_once(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    store(client, "source", "in/#")
    store(client, "target", "out/#")
    append(client, [(f"in/{number}", b"%d" % number) for number in range(300)], "source")

    def run(fail_at: int) -> None:
        def renamed(batches: Any) -> Any:
            import pyarrow as pa  # noqa: PLC0415 - in a task

            for batch in batches:
                payloads = batch.column("payload")
                if any(payload.as_py() == b"%d" % fail_at for payload in payloads):
                    raise RuntimeError("on purpose")
                topics = pa.array(["out/" + topic.as_py()[3:] for topic in batch.column("topic")])
                yield pa.RecordBatch.from_arrays([topics, payloads], ["topic", "payload"])

        reader = spark.readStream.format("holdmq").schema("topic string, payload binary")
        source = reader.options(url=server.url, store="source", maxOffsetsPerTrigger=100, fetchRows=30).load()
        stream = source.mapInArrow(renamed, "topic string, payload binary").writeStream.format("holdmq")
        query = stream.options(url=server.url, table="topics", checkpointLocation=str(tmp_path), chunkRows=10)
        query.trigger(availableNow=True).start().awaitTermination(110)

    with pytest.raises(PySparkException, match="on purpose"):
        run(fail_at=170)
    assert 100 <= len(kept(client, "target")) < 300
    run(fail_at=-1)
    assert kept(client, "target") == [(f"out/{number}", b"%d" % number) for number in range(300)]


def test_history_goes_into_another_store_as_it_is(spark: "SparkSession", write: Write, server: Server) -> None:
    client = server.client()
    store(client, "fleet", "rooms/#")
    append(client, [message for message in fleet(50) if message[0].startswith("rooms/")])
    frame = spark.read.format("holdmq").options(url=server.url, store="fleet").load()
    there = sorted(message.payload for message in rows(frame))
    store(client, "copy", "copies/#")
    with pytest.raises(PySparkException, match="a row has no topic"):
        write(frame.withColumn("topic", functions.lit("")), "topics")
    copied = frame.withColumn("topic", functions.concat(functions.lit("copies/"), frame.topic)).repartition(1)
    write(copied.sortWithinPartitions("shard", "offset"), "topics", idempotentBy="offset", writeId="copy-1")
    write(copied.sortWithinPartitions("shard", "offset"), "topics", idempotentBy="offset", writeId="copy-1")
    assert sorted(payload for _topic, payload in kept(client, "copy")) == there


def test_a_rate_is_kept(spark: "SparkSession", write: Write, client: redis.Redis) -> None:
    frame = spark.createDataFrame([("c", b"x")] * 60, "channel string, payload binary").coalesce(1)
    begin = client.time()
    write(frame, "channels", maxRowsPerSecond=100, chunkRows=10)
    end = client.time()
    assert end[0] + end[1] / 1e6 - begin[0] - begin[1] / 1e6 >= 0.5
    assert client.llen("c") == 60


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("topic string", {}, "lacks the columns payload"),
        ("topic string, payload binary, quality int", {}, "quality mean nothing to topics"),
        ("topic string, payload binary", {"idempotentBy": "offset"}, "lacks the columns shard, offset"),
        ("topic string, payload binary", {"chunkRows": "0"}, "chunkRows"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: "SparkSession", write: Write, columns: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        write(spark.createDataFrame([], columns), "topics", **options)


@pytest.mark.parametrize("of_batch", [1_000, 70_001, 300_000])
def test_chunks_end_at_the_same_rows_in_whatever_batches_they_come(of_batch: int) -> None:
    clients = [f"c{number % 5}" for number in range(300_000)]
    rows = pa.record_batch({"client_id": clients, "payload": [b"x"] * len(clients)})
    maker = Maker(
        Options({"table": "sessions", "chunkRows": "180000"}, WRITE),
        "name",
        0,
        1,
        sharded=False,
    )
    batches = [rows.slice(at, of_batch) for at in range(0, rows.num_rows, of_batch)]
    chunks = [chunk for batch in batches for chunk in maker.add(batch)] + [maker.rest()]
    assert [sum(chunk.rows) for chunk in chunks] == [75_000, 150_000, 75_000]
