"""The table history, read once: what it has is what plain Python says."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import PySparkException

from tests.pipeline.history_support import append, fleet, matching, rows, store
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

server_kinds = embedded_kinds

Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: "SparkSession", server: Server) -> Read:
    """Reads with these options."""

    def load(schema: str | None = None, **options: Any) -> "DataFrame":
        reader = spark.read.format("holdmq").option("url", server.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def test_every_message_is_read_once_whatever_the_cut(read: Read, client: redis.Redis) -> None:
    store(client, shards=3)
    kept = append(client, fleet(1500))
    assert rows(read(maxRecordsPerPartition=130, fetchRows=50)) == sorted(kept)
    assert rows(read(minPartitions=7)) == sorted(kept)


def test_a_filter_finds_what_matches(read: Read, client: redis.Redis) -> None:
    store(client, shards=2)
    kept = append(client, fleet(900))
    for topic_filter in ("rooms/+/devices/14/#", "+/2/#", "gateways/1", "rooms/#", "no/such"):
        assert rows(read(topicFilter=topic_filter)) == sorted(matching(kept, topic_filter)), topic_filter


def test_several_filters_find_what_any_of_them_matches_once_and_in_order(read: Read, client: redis.Redis) -> None:
    store(client, shards=2)
    kept = append(client, fleet(900))
    several = ("rooms/+/devices/14/#", "+/2/#", "gateways/1", "no/such")
    frame = read(topicFilter=json.dumps(several), fetchRows=5, maxRecordsPerPartition=300)  # 100 numbers at a time
    assert rows(frame) == sorted(matching(kept, *several))
    narrow = read("topic string, shard int", topicFilter=json.dumps(several), minPartitions=1)
    order = [row.topic for row in narrow.collect() if row.shard == 1]
    assert order == [message.topic for message in matching(kept, *several) if message.shard == 1]


def test_columns_are_as_published(read: Read, client: redis.Redis) -> None:
    store(client)
    # MQTT 5.0 properties: content type "text/plain", user property k=v.
    properties = b"\x03\x00\x0atext/plain\x26\x00\x01k\x00\x01v"
    words = ("QOS", 2, "RETAIN", "TTL", 3600, "FROM", "meter-7", "PROPERTIES", properties)
    append(client, [("a/b", b"\x00\xff")], "fleet", *words)
    append(client, [("a/c", b"")])
    first, second = read(includeHeaders="true").orderBy("offset").collect()
    assert (first.topic, first.payload, first.qos, first.retain) == ("a/b", bytearray(b"\x00\xff"), 2, True)
    assert (first.publisher, first.properties, first.content_type) == ("meter-7", bytearray(properties), "text/plain")
    assert [tuple(pair) for pair in first.headers] == [("k", "v")]
    assert round((first.expires - first.published).total_seconds()) == 3600
    assert abs((first.timestamp - first.published).total_seconds()) < 5
    assert (second.payload, second.qos, second.retain) == (bytearray(), 0, False)
    assert (second.publisher, second.properties, second.expires, second.headers) == (None, None, None, None)


def test_only_named_columns_are_read(read: Read, client: redis.Redis) -> None:
    store(client)
    kept = append(client, fleet(20))
    frame = read("topic string, shard int")
    assert frame.columns == ["topic", "shard"]
    assert [row.topic for row in frame.collect()] == [message.topic for message in kept]


def test_numbers_bound_what_is_read(read: Read, client: redis.Redis) -> None:
    store(client, shards=2)
    kept = append(client, fleet(400))
    begin, end = {0: 20, 1: 40}, {0: 90, 1: 41}
    found = rows(
        read(startingOffsets=json.dumps(begin), endingOffsets=json.dumps(end))  # keys become texts
    )
    assert found == sorted(m for m in kept if begin[m.shard] <= m.offset < end[m.shard])


def test_times_bound_what_is_read(read: Read, client: redis.Redis) -> None:
    store(client)
    kept = append(client, fleet(10))
    times = [row.timestamp.timestamp() for row in read("timestamp timestamp").collect()]
    assert times == sorted(times)
    client.execute_command("WAIT", 1, 20)  # for a replica that is not there: twenty milliseconds
    begin = client.time()
    later = append(client, fleet(5))
    assert rows(read(startingTimestamp=begin[0] * 1000 + begin[1] // 1000)) == sorted(later)
    assert rows(read(endingTimestamp=begin[0] * 1000 + begin[1] // 1000)) == sorted(kept)
    assert rows(read(startingTimestamp=f"{begin[0]}.{begin[1] // 1000:03}")) == sorted(later)  # seconds
    assert rows(read(startingTimestamp="24h")) == sorted(kept + later)
    assert rows(read(endingTimestamp="24h")) == []


def test_comparisons_of_a_query_become_bounds(read: Read, client: redis.Redis) -> None:
    store(client)
    kept = append(client, fleet(300))
    frame = read(pushFilters="true")
    topic = kept[17].topic
    assert rows(frame.where(frame.topic == topic)) == sorted(m for m in kept if m.topic == topic)
    assert rows(frame.where("offset > 17 and offset <= 21 and shard = 0")) == sorted(kept[17:21])
    moment = frame.where("offset = 100").collect()[0].timestamp
    before = frame.where(frame.timestamp < moment)
    assert rows(before) == sorted(kept[:99])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topicfliter": "#"}, "topicfliter"),
        ({"topicFilter": "a/#/b"}, "topicFilter"),
        ({"startingOffsets": '{"0": 1}'}, "each of"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
        ({"fetchRows": "0"}, "fetchRows"),
        ({"maxOffsetsPerTrigger": "5"}, "stream"),
        ({"store": "none"}, "none"),
    ],
)
def test_a_wrong_option_is_named(read: Read, client: redis.Redis, options: dict[str, str], said: str) -> None:
    store(client, shards=2)
    with pytest.raises(PySparkException, match=said):
        read(**options).collect()


def test_a_column_of_another_type_is_named(read: Read, client: redis.Redis) -> None:
    store(client)
    with pytest.raises(PySparkException, match="column qos is int; expected tinyint"):
        read("qos int").collect()


def test_without_a_store_the_option_is_asked_for(read: Read, client: redis.Redis) -> None:
    store(client, "a", "a/#")
    store(client, "b", "b/#")
    with pytest.raises(PySparkException, match="expected one of a, b"):
        read().collect()
