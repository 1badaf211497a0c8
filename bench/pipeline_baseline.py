"""What a programmer would write with redis-py and Spark alone; the pipeline is measured beside it."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import hiredis
import redis
from pyspark.sql import DataFrame, Row, SparkSession

from bench.pipeline_data import payload_of, topic_of
from holdmq import core

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


def publish_partition(url: str) -> Any:
    """A function for foreachPartition: TOPIC.PUBLISH by a pipeline of redis-py."""

    def run(rows: Iterator[Row]) -> None:
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows):
                pipeline.execute_command("TOPIC.PUBLISH", row.topic, bytes(row.payload), "QOS", row.qos)
                if number % PIPELINE == PIPELINE - 1:
                    pipeline.execute()
            pipeline.execute()

    return run


def add_partition(url: str) -> Any:
    """A function for foreachPartition: SESSION.ADD by a pipeline of redis-py."""

    def run(rows: Iterator[Row]) -> None:
        with contextlib.closing(redis.Redis.from_url(url)) as client:
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows):
                pipeline.execute_command("SESSION.ADD", core.session_key(row.client_id), "MESSAGES", bytes(row.payload))
                if number % PIPELINE == PIPELINE - 1:
                    pipeline.execute()
            pipeline.execute()

    return run
