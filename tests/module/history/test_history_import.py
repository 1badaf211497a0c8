"""HISTORY.IMPORT keeps many messages of a shard in one step: all or none, once for each chunk."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import TAIL, append, fill_tail, replay_all, store
from tests.module.sessions_support import (
    assert_indexes_hold,
    assert_same_keys,
    error_of,
    matches,
    publish,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server


def record(topic: str, payload: str, **facts: Any) -> bytes:
    """A published message."""
    return core.Record(topic=topic.encode(), payload=payload.encode(), time_ms=1000, **facts).encode()


def bring(client: redis.Redis, name: str, shard: int, *records: bytes, by: tuple[Any, ...] = ()) -> list[int]:
    """HISTORY.IMPORT."""
    words = ("PRODUCER", *by) if by else ()
    reply: list[int] = client.execute_command("HISTORY.IMPORT", name, shard, *words, "RECORD", *records)
    return reply


def test_records_get_numbers_in_their_order_and_stay_what_they_were(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    publish(client, "a/0", "before")
    records = [
        record("a/1", "x", qos=2, retain=True, publisher=b"dev", properties=b"\x01\x01", expires_ms=4_000_000_000_000),
        record("a/2", ""),
        record("a/1", "y"),
    ]
    assert bring(client, "s", 0, *records) == [2, 4, 1]
    publish(client, "a/0", "after")
    entries = replay_all(client, "#")
    assert [entry.sequence for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.record for entry in entries[1:4]] == records
    assert [entry.time_us for entry in entries] == sorted({entry.time_us for entry in entries})


def test_imports_of_any_size_are_found_by_every_filter(client: redis.Redis) -> None:
    store(client, "s", "d/#", bytes=8 * 40_000)
    chance = random.Random(3)
    pairs: list[tuple[bytes, bytes]] = []
    for size in (1, TAIL - 1, 3, 2 * TAIL, 10, 1, 700):
        some = [(f"d/{chance.randrange(20)}/{chance.choice('tp')}", str(len(pairs) + n)) for n in range(size)]
        assert bring(client, "s", 0, *(record(*pair) for pair in some)) == [len(pairs) + 1, len(pairs) + size, 1]
        pairs += [(topic.encode(), payload.encode()) for topic, payload in some]
    assert int(client.hget("{s/0}_history", "epoch") or 0) > 1
    for asked in ("#", "d/7/#", "d/+/t", "d/3/p", "+/9/t"):
        want = [pair for pair in pairs if matches(asked, pair[0].decode())]
        assert [entry.pair for entry in replay_all(client, asked, count=300)] == want


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (b"no record", "record 2 is not a published message"),
        (record("other", "m"), "record 2: the store 's' does not select the topic 'other'"),
        (record("a/#", "m"), "record 2 has no valid topic"),
        (core.Record(topic=b"a/1", payload=b"", time_ms=1, share=b"$share/g/a/1").encode(), "record 2 has a share"),
    ],
)
def test_one_wrong_record_refuses_all(client: redis.Redis, wrong: bytes, told: str) -> None:
    store(client, "s", "a/#")
    append(client, "s", "a/1", "m")
    with unchanged(client):
        assert told in str(error_of(client, "HISTORY.IMPORT", "s", 0, "RECORD", record("a/1", "1"), wrong))


def test_a_topic_of_another_shard_is_refused_with_its_shard(client: redis.Redis) -> None:
    store(client, "s", "#", shards=4)
    own = append(client, "s", "topic", "m").shard
    other = (own + 1) % 4
    with unchanged(client):
        told = str(error_of(client, "HISTORY.IMPORT", "s", other, "RECORD", record("topic", "m")))
    assert f"'topic' belongs to shard {own}, not to shard {other}" in told
    assert bring(client, "s", own, record("topic", "m")) == [2, 2, 1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("s", 1, "RECORD", b""), "the shard is '1'"),
        (("t", 0, "RECORD", b""), "there is no store 't'"),
        (("s", 0, "PRODUCER", "p", 1), "the chunk"),
        (("s", 0, "PRODUCER", "p", 1, 1), "RECORD is missing"),
        (("s", 0, "RECORD", *[b""] * 10_001), "10001 records"),
        (("s", 0, "RECORDS", b""), "RECORDS"),
    ],
)
def test_bad_arguments_are_named(client: redis.Redis, words: tuple[Any, ...], told: str) -> None:
    store(client, "s", "a/#")
    with unchanged(client):
        assert told in str(error_of(client, "HISTORY.IMPORT", *words))


@pytest.mark.parametrize("suffix", ["_1_0", "_1_0_1_0_0", "_producers"])
def test_a_key_of_another_type_refuses_all(client: redis.Redis, suffix: str) -> None:
    store(client, "s", "a/#")
    fill_tail(client, "s", "a/1")
    client.delete("{s/0}_history" + suffix)
    client.zadd("{s/0}_history" + suffix, {"x": 1})
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"WRONGTYPE"):
        bring(client, "s", 0, record("a/1", "1"), record("a/2", "2"), by=("p", 1, 1))


def test_a_log_that_takes_no_such_number_refuses_all(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    append(client, "s", "a/1", "m")
    client.execute_command("XSETID", "{s/0}_history_1_0", "50-0")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"ends earlier"):
        bring(client, "s", 0, record("a/1", "1"), record("a/2", "2"))


def test_a_chunk_is_kept_once(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    chunk = [record("a/1", str(number)) for number in range(5)]
    assert bring(client, "s", 0, *chunk, by=("p", 1, 1)) == [1, 5, 1]
    assert bring(client, "s", 0, *chunk[:2], by=("p", 1, 2)) == [6, 7, 1]
    with unchanged(client):
        assert bring(client, "s", 0, *chunk[:2], by=("p", 1, 2)) == [6, 7, 0]
        assert bring(client, "s", 0, *chunk, by=("p", 1, 1)) == [0, 0, 0]
        with pytest.raises(redis.ResponseError, match=r"^FENCED"):
            bring(client, "s", 0, *chunk, by=("p", 0, 9))
    assert len(replay_all(client, "#")) == 7


def test_an_import_into_an_empty_shard_begins_it(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    assert bring(client, "s", 0, *(record("a/1", str(number)) for number in range(3 * TAIL))) == [1, 3 * TAIL, 1]
    assert len(replay_all(client, "a/1")) == 3 * TAIL
    append(client, "s", "a/1", "one more")
    assert client.hget("{s/0}_history", "sequence") == b"%d" % (3 * TAIL)
    assert len(replay_all(client, "a/1")) == 3 * TAIL + 1


def test_a_replica_and_a_killed_server_have_all_of_it(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    wait_for_replica(client, replica.client())
    store(client, "s", "a/#", bytes=8 * 50_000)
    for turn in range(4):
        bring(client, "s", 0, *(record(f"a/{number % 9}", str(number)) for number in range(700)), by=("p", 1, turn))
    wait_for_replica(client, replica.client())
    want, given = snapshot(client), replay_all(client, "a/4")
    assert_same_keys(snapshot(replica.client()), want)
    primary.kill()
    primary.start()
    client = primary.client()
    assert replay_all(client, "a/4") == given
    assert bring(client, "s", 0, record("a/4", "again"), by=("p", 1, 3))[2] == 0
    assert_indexes_hold(client)


def test_a_user_has_to_be_allowed_to_write_the_shard(client: redis.Redis, server: Server) -> None:
    store(client, "s", "a/#")
    client.execute_command("ACL", "SETUSER", "writer", "on", "nopass", "+@all", "~elsewhere*", "&*")
    try:
        other = server.client(username="writer", password="")
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"may not write"):
            bring(other, "s", 0, record("a/1", "m"))
    finally:
        client.execute_command("ACL", "DELUSER", "writer")
