"""The baseline of the pipeline: programs that one would write with redis-py and Spark alone."""

import contextlib
import gc
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import hiredis
import redis
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

from bench.pipeline_data import payload_of, topic_of
from holdmq import core
from holdmq_pipeline import schemas

STREAM = "plain"
SCHEMA = "topic string, payload binary, qos int, ts long"
PIPELINE = 1000


def fill_stream(client: redis.Redis, rows: int) -> None:
    """The same messages in an ordinary stream."""
    for begin in range(0, rows, 10_000):
        pipeline = client.pipeline(transaction=False)
        for number in range(begin, min(begin + 10_000, rows)):
            fields: dict[Any, Any] = {"topic": topic_of(number), "payload": payload_of(number), "qos": 1, "ts": number}
            pipeline.xadd(STREAM, fields)
        pipeline.execute()


def scan(spark: SparkSession, url: str) -> DataFrame:
    """All of a stream, by redis-py, as a DataFrame."""
    rows = []
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        last = "-"
        while True:
            entries: Any = client.xrange(STREAM, min=last, count=1000)
            if not entries:
                break
            for _id, fields in entries:
                found = (fields[b"topic"].decode(), fields[b"payload"], int(fields[b"qos"]), int(fields[b"ts"]))
                rows.append(found)
            last = f"({entries[-1][0].decode()}"
    return spark.createDataFrame(rows, SCHEMA)


def scan_history(spark: SparkSession, url: str, store: str, count: int) -> DataFrame:
    """The first messages of a store with all columns that the data source has, by redis-py, as a DataFrame."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        at = 1
        while at <= count:
            reply: Any = client.execute_command("HISTORY.RANGE", store, 0, at, count, "COUNT", 1000)
            at, _visited, _missed, _rows, columns = reply
            for offset, us, topic, payload, qos, retain, publisher, properties, sent, ends, pattern, generation in zip(
                *columns, strict=True
            ):
                row = (
                    0,
                    offset,
                    datetime.fromtimestamp(us / 1e6, UTC),
                    topic.decode(),
                    payload,
                    qos,
                    retain != 0,
                    publisher.decode() or None,
                    properties or None,
                    datetime.fromtimestamp(sent / 1e3, UTC),
                    datetime.fromtimestamp(ends / 1e3, UTC) if ends else None,
                    pattern,
                    generation,
                )
                rows.append(row)
    return spark.createDataFrame(rows, schemas.TABLES["history"])


def bare_xrange(url: str) -> int:
    """The server's own limit: XRANGE by hiredis, nothing done with what comes; how many entries."""
    client = redis.Redis.from_url(url)
    connection = client.connection_pool.get_connection()
    gc.disable()
    try:
        seen, last = 0, b"-"
        while True:
            connection.send_packed_command([packed(last)])
            entries = connection.read_response(disable_decoding=True)
            if not entries:
                return seen
            seen += len(entries)
            last = b"(" + entries[-1][0]
    finally:
        gc.enable()
        client.close()


def packed(last: bytes) -> bytes:
    """XRANGE from an id on."""
    words: Any = (b"XRANGE", STREAM.encode(), last, b"+", b"COUNT", 10_000)
    command: bytes = hiredis.pack_command(words)
    return command


def publish_partition(url: str, once: bool) -> Any:
    """A function for foreachPartition: TOPIC.PUBLISH by a pipeline of redis-py.

    Args:
        url: of the server.
        once: numbered, so that a task that is tried again repeats nothing, as of the sink.
    """
    write = uuid.uuid4().hex

    def run(rows: Iterator[Row]) -> None:
        producer = f"{write}:{partition()}"
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows):
                words = ("PRODUCER", producer, 1, number) if once else ()
                pipeline.execute_command("TOPIC.PUBLISH", row.topic, bytes(row.payload), "QOS", row.qos, *words)
                if number % PIPELINE == PIPELINE - 1:
                    pipeline.execute()
            pipeline.execute()

    return run


def add_partition(url: str, once: bool) -> Any:
    """A function for foreachPartition: SESSION.ADD by a pipeline of redis-py; arguments as of `publish_partition`."""
    write = uuid.uuid4().hex

    def run(rows: Iterator[Row]) -> None:
        producer = f"{write}:{partition()}"
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows):
                words = ("PRODUCER", producer, number + 1) if once else ()
                key = core.session_key(row.client_id)
                pipeline.execute_command("SESSION.ADD", key, *words, "MESSAGES", bytes(row.payload))
                if number % PIPELINE == PIPELINE - 1:
                    pipeline.execute()
            pipeline.execute()

    return run


def stock_partition(url: str) -> Any:
    """A function for foreachPartition: the queue of a session by a script, in keys that HoldMQ and TBMQ read, too.

    What a programmer writes who has no module: identifier, order and time to live are given in one step. It repeats
    messages when a task is tried again.
    """

    def run(rows: Iterator[Row]) -> None:
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            sha = client.script_load(QUEUE_SCRIPT)
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows):
                key = "{" + row.client_id + "}_messages"
                pipeline.evalsha(
                    sha, 2, key, "{" + row.client_id + "}_last_packet_id", bytes(row.payload), TTL_S, LIMIT
                )
                if number % PIPELINE == PIPELINE - 1:
                    pipeline.execute()
            pipeline.execute()

    return run


def partition() -> int:
    """The task's, which a retry of it has, too."""
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("no task is running; expected to be called by Spark")
    return task.partitionId()


TTL_S = 604_800
LIMIT = 10_000
QUEUE_SCRIPT = """
local id = tonumber(redis.call('GET', KEYS[2]) or '0') % 65535 + 1
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local serial = last[2] and tonumber(last[2]) + 1 or id
local name = KEYS[1] .. '_' .. id
redis.call('SET', name, ARGV[1], 'EX', ARGV[2])
redis.call('ZADD', KEYS[1], serial, name)
redis.call('SET', KEYS[2], id, 'EX', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2])
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[3])
if over > 0 then
  for _, old in ipairs(redis.call('ZRANGE', KEYS[1], 0, over - 1)) do redis.call('DEL', old) end
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, over - 1)
end
return id
"""
