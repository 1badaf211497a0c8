"""The table history, followed: every message once, over restarts, and a gap is never silent."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.errors import StreamingQueryException

from holdmq_pipeline.offsets import Range
from holdmq_pipeline.options import STREAM, Options
from holdmq_pipeline.stream import lost_messages
from tests.pipeline.history_support import Message, append, fleet, store
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

COLUMNS = "shard int, offset long, topic string, payload binary"


class Follower:
    """A query that can be run again and again from its checkpoint; what each batch had, by its number."""

    def __init__(self, spark: "SparkSession", url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._checkpoint = str(directory / "checkpoint")
        self.batches: dict[int, list[Message]] = {}

    def run(self, *, fail_in: Any = None, **options: Any) -> None:
        """Reads what there is; fails in a batch, after its rows were read, if asked to."""

        def take(frame: Any, batch: int) -> None:
            found = [Message(r.shard, r.offset, r.topic, bytes(r.payload)) for r in frame.collect()]
            assert self.batches.setdefault(batch, found) == found, "a repeated batch has other rows"
            if batch == fail_in:
                raise RuntimeError("on purpose")

        reader = self._spark.readStream.format("holdmq").schema(COLUMNS).option("url", self._url).options(**options)
        writer = reader.load().writeStream.option("checkpointLocation", self._checkpoint).foreachBatch(take)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)

    @property
    def messages(self) -> list[Message]:
        """Of all batches."""
        return sorted(message for batch in self.batches.values() for message in batch)


@pytest.fixture
def follower(spark: "SparkSession", server: Server, tmp_path: Path) -> Follower:
    """A query on the server, not started."""
    return Follower(spark, server.url, tmp_path)


def test_batches_are_bounded_and_a_restart_continues(follower: Follower, client: redis.Redis) -> None:
    store(client, shards=2)
    kept = append(client, fleet(500))
    follower.run(maxOffsetsPerTrigger=200)
    assert [len(batch) for batch in follower.batches.values()] == [200, 200, 100]
    kept += append(client, fleet(100))
    follower.run()
    assert follower.messages == sorted(kept)


def test_a_batch_that_failed_comes_again_with_the_same_rows(follower: Follower, client: redis.Redis) -> None:
    store(client)
    kept = append(client, fleet(300))
    with pytest.raises(StreamingQueryException, match="on purpose"):
        follower.run(fail_in=1, maxOffsetsPerTrigger=120)
    kept += append(client, fleet(50))
    follower.run(maxOffsetsPerTrigger=120)
    assert follower.messages == sorted(kept)
    assert [message.offset for message in follower.batches[1]] == list(range(121, 241))


def test_latest_is_decided_once(follower: Follower, client: redis.Redis) -> None:
    store(client)
    append(client, fleet(40))
    options = {"startingOffsets": "latest", "groupId": "dashboards"}
    follower.run(**options)
    assert follower.messages == []
    kept = append(client, fleet(10))
    with pytest.raises(StreamingQueryException, match="on purpose"):
        follower.run(fail_in=len(follower.batches), **options)
    kept += append(client, fleet(10))
    follower.run(**options)
    assert follower.messages == sorted(kept)
    key = "holdmq_pipeline:dashboards"
    assert json.loads(client.hget(key, "start fleet")) == {"v": 1, "store": "fleet", "next": {"0": 41}}  # type: ignore[arg-type]


def test_latest_needs_a_group(follower: Follower, client: redis.Redis) -> None:
    store(client)
    with pytest.raises(StreamingQueryException, match="expected a name under which the server keeps"):
        follower.run(startingOffsets="latest")


def retention_overtakes(client: redis.Redis) -> tuple[list[Message], list[Message]]:
    """Twenty messages, of which retention has taken the first ten; both halves."""
    store(client, age=3600, epoch=1)
    before = append(client, fleet(10))
    client.execute_command("HISTORY.TRIM", "fleet", 0, 10)
    return before, append(client, fleet(10))


def test_a_gap_is_an_error(follower: Follower, client: redis.Redis) -> None:
    retention_overtakes(client)
    with pytest.raises(StreamingQueryException, match="shard 0: retention removed the numbers 1 to 10"):
        follower.run(startingOffsets='{"0": 1}')


def test_a_gap_is_counted_if_that_is_asked_for(follower: Follower, client: redis.Redis, server: Server) -> None:
    _before, after = retention_overtakes(client)
    options = {"startingOffsets": '{"0": 1}', "failOnDataLoss": "false", "groupId": "lenient"}
    follower.run(**options)
    assert follower.messages == after
    assert lost_messages(Options({"url": server.url, "groupId": "lenient"}, STREAM)) == [Range(0, 1, 11)]


# --- Holding ----------------------------------------------------------------------------------------------------------


def test_a_stream_that_does_not_hold_is_overtaken_by_trimming(follower: Follower, client: redis.Redis) -> None:
    store(client)
    append(client, fleet(20))
    follower.run(groupId="loose")
    append(client, fleet(20))
    client.execute_command("HISTORY.TRIM", "fleet", 0, 30)
    with pytest.raises(StreamingQueryException, match="shard 0: retention removed the numbers 21 to 30"):
        follower.run(groupId="loose")


def test_a_stream_that_holds_keeps_what_it_has_not_read(follower: Follower, client: redis.Redis) -> None:
    store(client, shards=2)
    options = {"groupId": "careful", "hold": "true", "maxOffsetsPerTrigger": 15}
    kept = append(client, fleet(40))
    with pytest.raises(StreamingQueryException, match="on purpose"):
        follower.run(fail_in=1, **options)
    ends = {message.shard: message.offset for message in kept}
    for shard, end in ends.items():
        with pytest.raises(redis.ResponseError, match="HELD"):
            client.execute_command("HISTORY.TRIM", "fleet", shard, end)
    kept += append(client, fleet(20))
    follower.run(**options)
    assert follower.messages == sorted(kept)
    follower.run(**options)  # nothing is new: the last batch is still held, and no more than that
    read = {shard: min(m.offset for m in follower.batches[max(follower.batches)] if m.shard == shard) for shard in ends}
    for shard, begin in read.items():
        assert client.execute_command("HISTORY.TRIM", "fleet", shard, begin - 1) == begin
        with pytest.raises(redis.ResponseError, match="HELD"):
            client.execute_command("HISTORY.TRIM", "fleet", shard, begin + 1)


def test_a_group_that_holds_and_was_lost_is_an_error_or_counted(follower: Follower, client: redis.Redis) -> None:
    store(client, holdbytes=1, bytes=1_000_000, epoch=1)
    options = {"groupId": "slow", "hold": "true"}
    append(client, fleet(5))
    follower.run(**options)
    client.hset("{fleet/0}_history_holds", "slow", "lost 3")  # as retention marks it
    client.execute_command("HISTORY.TRIM", "fleet", 0, 5)
    kept = append(client, fleet(5))
    with pytest.raises(StreamingQueryException, match="HOLDLOST"):
        follower.run(**options)
    follower.run(**options, failOnDataLoss="false")
    assert follower.messages[-5:] == kept


def test_holding_needs_a_group(follower: Follower, client: redis.Redis) -> None:
    store(client)
    with pytest.raises(StreamingQueryException, match="expected the name of the reader that holds"):
        follower.run(hold="true")


def test_a_second_checkpoint_of_a_group_moves_no_mark_back(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    store(client)
    options = {"groupId": "careful", "hold": "true", "maxOffsetsPerTrigger": 10}
    kept = append(client, fleet(30))
    for name in ("first", "second"):
        follower = Follower(spark, server.url, tmp_path / name)
        follower.run(**options)
        assert follower.messages == sorted(kept)
    assert client.hget("{fleet/0}_history_holds", "careful") == b"20"
