"""A range of the past goes somewhere once more: in order, and exactly once."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from holdmq import core
from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.jobs.archive import archive
from holdmq_pipeline.jobs.replay import Target, replay
from tests.pipeline.history_support import append, fleet, matching, store
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds


def queue(client: redis.Redis, client_id: str) -> list[core.Record]:
    """What waits for a client."""
    entries = client.execute_command("SESSION.FETCH", core.session_key(client_id), "COUNT", 10000)[0]
    return [core.Record.decode(entry[3]) for entry in entries]


def test_a_replay_that_is_run_again_continues_where_it_ended(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    store(client, topic_filter="rooms/#")
    sent = [message for message in fleet(300) if message[0].startswith("rooms/")]
    kept = append(client, sent, "fleet", "QOS", 1, "FROM", "meter")
    options = {"url": server.url}
    target = Target("sessions", "analyst")
    archive(spark, options, table, batch_rows=100, trim_after_s=0)
    wanted = matching(kept, "rooms/+/devices/+/temperature")
    assert replay(spark, options, table, target, "r1", topic_filter="rooms/+/devices/+/temperature").rows == len(wanted)
    more = append(client, sent[:40], "fleet", "QOS", 1, "FROM", "meter")
    replay(spark, options, table, target, "r1", topic_filter="rooms/+/devices/+/temperature")
    wanted += matching(more, "rooms/+/devices/+/temperature")
    found = queue(client, "analyst")
    assert [(one.topic.decode(), one.payload) for one in found] == [(one.topic, one.payload) for one in wanted]
    assert {(one.qos, one.publisher) for one in found} == {(1, b"meter")}


def test_topics_get_it_in_the_order_of_each_and_channels_in_one(
    spark: "SparkSession", server: Server, client: redis.Redis
) -> None:
    store(client, topic_filter="rooms/#", shards=2)
    store(client, "copies", "copies/#")
    kept = append(client, [message for message in fleet(200) if message[0].startswith("rooms/")])
    options = {"url": server.url, "store": "fleet"}
    for _twice in range(2):
        replay(spark, options, "", Target("topics", "copies/"), "r2")
        replay(spark, options, "", Target("channels", "all"), "r3")
    entries = client.execute_command("HISTORY.REPLAY", "copies/#", "COUNT", 10000)[0]
    copies = [core.Record.decode(entry[3]) for entry in entries]
    by_topic: dict[str, list[bytes]] = {}
    for copy in copies:
        by_topic.setdefault(copy.topic.decode().removeprefix("copies/"), []).append(copy.payload)
    expected: dict[str, list[bytes]] = {}
    for message in sorted(kept):
        expected.setdefault(message.topic, []).append(message.payload)
    assert by_topic == expected
    assert client.lrange("all", 0, -1) == [message.payload for message in sorted(kept)]


@pytest.mark.parametrize(
    ("target", "name", "said"),
    [
        (Target("queues"), "r", "expected topics, channels or sessions"),
        (Target("channels"), "r", "expected the channel"),
        (Target("topics"), "", "has no name"),
    ],
)
def test_a_target_that_cannot_be_is_named(
    spark: "SparkSession", server: Server, client: redis.Redis, target: Target, name: str, said: str
) -> None:
    store(client)
    with pytest.raises(OptionError, match=said):
        replay(spark, {"url": server.url}, "", target, name)
