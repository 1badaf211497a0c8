"""What is published to a topic that a store selects is kept once, whole, in plain keys; producers repeat safely."""

import re
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.history_support import TAIL, Place, append, check_all, fill_tail, replay, replay_all, store
from tests.module.sessions_support import (
    assert_indexes_hold,
    assert_same_keys,
    digest,
    error_of,
    names,
    now_ms,
    publish,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server


def test_a_publish_is_kept_once_though_nobody_or_many_subscribe(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    for number in range(3):
        client.execute_command("SESSION.SUBSCRIBE", f"{{c{number}}}", "#", 1)
    assert publish(client, "a/b", "m", qos=1) == 3
    client.flushdb()
    store(client, "s", "a/#")
    assert publish(client, "a/b", "m") == 0
    assert len(replay_all(client, "#")) == 1


def test_other_topics_leave_no_trace(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    before = names(client)
    for topic in ("b", "$SYS/a", "ab", "/a"):
        publish(client, topic, "m")
    assert names(client) == before


def test_a_message_comes_back_as_it_was_published(client: redis.Redis) -> None:
    store(client, "s", "#")
    properties = b"\x03\x00\x04text\x01\x01"
    before = now_ms(client)
    publish(client, "a//b/", b"\x00\xff", qos=2, ttl=100, publisher="dev/1", properties=properties, retain=True)
    publish(client, "plain", "", qos=0)
    full, plain = (entry.message for entry in replay_all(client, "#"))
    assert before <= full.time_ms <= now_ms(client)
    assert full == core.Record(
        qos=2,
        retain=True,
        time_ms=full.time_ms,
        expires_ms=full.time_ms + 100_000,
        topic=b"a//b/",
        publisher=b"dev/1",
        properties=properties,
        payload=b"\x00\xff",
    )
    assert (plain.topic, plain.payload, plain.qos) == (b"plain", b"", 0)


def test_the_layout_is_that_of_the_documentation(client: redis.Redis) -> None:
    store(client, "s", "a/#", levels=2)
    place = append(client, "s", "a/b", "m")
    assert (place.shard, place.sequence, place.new) == (0, 1, 1)
    at_first = {b"{s/0}_history", b"{s/0}_history_epochs", b"{s/0}_history_1_patterns", b"{s/0}_history_1_0"}
    assert set(names(client, "{s/0}*")) == at_first
    assert client.get("{s/0}_history_1_patterns") == b"holdmq-patterns 1 levels=2\n#\n"
    ((entry_id, fields),) = client.execute_command("XRANGE", "{s/0}_history_1_0", "1", "1")
    assert entry_id == f"1-{place.time_us}".encode()
    assert core.Record.decode(fields[b"m"]).payload == b"m"
    state = client.hgetall("{s/0}_history")
    assert (state[b"sequence"], state[b"first"], state[b"epoch"]) == (b"0", b"1", b"1")
    assert client.hgetall("{s/0}_history_epochs") == {b"1": f"1 {place.time_us} 1 0".encode()}
    fill_tail(client, "s", "a/b")
    lists = set(names(client, "{s/0}*")) - at_first
    slots_and_pages = sorted(re.sub(rb"^.*history_1_0_|_\d+$", b"", name) for name in lists if b"marks" not in name)
    assert slots_and_pages == [b"0_0", b"0_1", b"1_0", b"1_1", b"2_0", b"2_1"]
    assert lists >= {b"{s/0}_history_1_0_0_0_0", b"{s/0}_history_1_marks"}
    assert client.hget("{s/0}_history", "sequence") == b"%d" % TAIL
    assert client.strlen("{s/0}_history_1_marks") == 16 * TAIL // 256
    assert client.getrange("{s/0}_history_1_marks", 0, 7) == place.time_us.to_bytes(8, "little")


def test_ids_rise_though_the_clock_was_ahead(client: redis.Redis) -> None:
    store(client, "s", "a")
    first = append(client, "s", "a", "1")
    ahead = first.time_us + 3_600_000_000
    client.hset("{s/0}_history", "time", ahead)
    second, third = append(client, "s", "a", "2"), append(client, "s", "a", "3")
    assert (second.time_us, third.time_us) == (ahead + 1, ahead + 2)
    assert [entry.sequence for entry in replay_all(client, "a")] == [1, 2, 3]


def test_a_topic_is_in_one_shard_and_all_shards_are_used(client: redis.Redis) -> None:
    store(client, "s", "#", shards=4)
    places = {topic: append(client, "s", topic, "m").shard for topic in map(str, range(100))}
    assert set(places.values()) == {0, 1, 2, 3}
    assert all(append(client, "s", topic, "again").shard == shard for topic, shard in places.items())


@pytest.mark.parametrize("suffix", ["", "_epochs", "_1_0", "_1_patterns"])
@pytest.mark.parametrize("retain", [False, True])
def test_a_key_of_another_type_refuses_the_publish_before_anything_is_stored(
    client: redis.Redis, suffix: str, retain: bool
) -> None:
    store(client, "s", "a")
    client.execute_command("SESSION.SUBSCRIBE", "{c}", "#", 1)
    if suffix == "_1_patterns":
        publish(client, "a", "first", qos=1)
    client.delete("{s/0}_history" + suffix)
    client.zadd("{s/0}_history" + suffix, {"x": 1})
    with unchanged(client):
        error = error_of(client, "TOPIC.PUBLISH", "a", "m", "QOS", 1, *(["RETAIN"] if retain else []))
    assert re.match(r"WRONGTYPE|history of store", str(error))


def test_a_retained_message_that_is_refused_keeps_nothing_in_history(client: redis.Redis) -> None:
    store(client, "s", "a")
    client.set("{a}_retained", "no hash")
    with unchanged(client):
        assert "WRONGTYPE" in str(error_of(client, "TOPIC.PUBLISH", "a", "m", "RETAIN"))


@pytest.mark.parametrize("suffix", ["_1_0_0_0_0", "_1_0_1_0_0", "_1_marks"])
def test_a_list_of_another_type_refuses_the_message_that_would_have_it_written(
    client: redis.Redis, suffix: str
) -> None:
    store(client, "s", "a")
    fill_tail(client, "s", "a")
    client.zadd("{s/0}_history" + suffix, {"x": 1})
    with unchanged(client):
        assert "WRONGTYPE" in str(error_of(client, "TOPIC.PUBLISH", "a", "m"))
    client.delete("{s/0}_history" + suffix)
    publish(client, "a", "m")
    assert len(replay_all(client, "a")) == TAIL + 1


def test_what_was_acknowledged_is_read_while_a_list_is_of_another_type_and_continues_after_it(
    client: redis.Redis,
) -> None:
    store(client, "s", "d/#")
    fill_tail(client, "s", "d/1", 2 * TAIL)
    (name,) = names(client, "{s/0}_history_1_0_1_1_*")
    listed = name.decode()
    client.rename(listed, "aside")
    client.zadd(listed, {"x": 1})
    with unchanged(client):
        assert f"WRONGTYPE the key '{listed}' holds" in str(error_of(client, "HISTORY.APPEND", "s", "d/1", "m"))
        assert "another program changed" in str(error_of(client, "HISTORY.REPLAY", "d/1"))
        assert len(replay_all(client, "#")) == 2 * TAIL
        assert any(f"'{listed}' is not a string" in sentence for sentence in check_all(client))
    client.delete(listed)
    client.rename("aside", listed)
    append(client, "s", "d/1", "m")
    assert len(replay_all(client, "d/1")) == 2 * TAIL + 1
    assert check_all(client) == []


def test_a_list_that_others_changed_is_refused(client: redis.Redis) -> None:
    store(client, "s", "a")
    fill_tail(client, "s", "a")
    for wrong, expected in ((b"\xff\xff\xff", "a posting list"), (b"\xf9\xff\xff\xff\xff\x7f", "ends earlier")):
        client.set("{s/0}_history_1_0_0_0_0", wrong)
        with unchanged(client):
            assert expected in str(error_of(client, "HISTORY.APPEND", "s", "a", "m"))


def test_numbers_continue_after_what_others_wrote_to_a_log(client: redis.Redis) -> None:
    store(client, "s", "a")
    append(client, "s", "a", "1")
    client.xadd("{s/0}_history_1_0", {"m": "x"}, id="99-0")
    assert append(client, "s", "a", "2").sequence == 100
    assert "another program changed the history of store 's', shard 0, at sequence number 2" in str(
        error_of(client, "HISTORY.REPLAY", "#", "SEQ", 2)
    )
    assert [entry.message.payload for entry in replay_all(client, "a", SEQ=100)] == [b"2"]


def test_an_epoch_ends_by_its_size_and_numbers_continue(client: redis.Redis) -> None:
    store(client, "s", "a", bytes=8 * 1000)
    places = [append(client, "s", "a", "x" * 100) for _ in range(50)]
    assert [place.sequence for place in places] == list(range(1, 51))
    epochs = client.hgetall("{s/0}_history_epochs")
    assert len(epochs) > 4
    assert client.hget("{s/0}_history", "epoch") == b"%d" % len(epochs)
    assert [entry.sequence for entry in replay_all(client, "a")] == list(range(1, 51))


def test_a_will_is_kept(client: redis.Redis) -> None:
    store(client, "s", "will")
    epoch, _ = client.execute_command("SESSION.OPEN", "{c}", "OWNER", "o", "EXPIRY", 9, "WILL", "will", "gone")
    client.execute_command("SESSION.CLOSE", "{c}", "EPOCH", epoch, "WILL")
    assert [entry.pair for entry in replay_all(client, "will")] == [(b"will", b"gone")]


def test_a_transaction_keeps_all_its_messages_in_order(client: redis.Redis) -> None:
    store(client, "s", "a")
    with client.pipeline(transaction=True) as pipe:
        for number in range(5):
            pipe.execute_command("TOPIC.PUBLISH", "a", number)
        pipe.execute_command("HISTORY.REPLAY", "a")
        *_, (entries, *_rest) = pipe.execute()
    assert [core.Record.decode(entry[3]).payload for entry in entries] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_server_without_memory_refuses(client: redis.Redis) -> None:
    store(client, "s", "a")
    client.config_set("maxmemory", 1)
    try:
        with unchanged(client):
            assert "used memory" in str(error_of(client, "HISTORY.APPEND", "s", "a", "m"))
            assert "used memory" in str(error_of(client, "TOPIC.PUBLISH", "a", "m"))
            assert "used memory" in str(error_of(client, "HISTORY.STORE", "t", "FILTER", "b"))
        assert replay(client, "a").end
    finally:
        client.config_set("maxmemory", 0)


# --- Producers --------------------------------------------------------------------------------------------------------


def test_a_chunk_is_kept_once_however_often_it_is_sent(client: redis.Redis) -> None:
    store(client, "s", "a")
    first = append(client, "s", "a", "1", "PRODUCER", "p", 1, 1)
    second = append(client, "s", "a", "2", "PRODUCER", "p", 1, 2)
    with unchanged(client):
        assert append(client, "s", "a", "2", "PRODUCER", "p", 1, 2) == second._replace(new=0)
        assert append(client, "s", "a", "1", "PRODUCER", "p", 1, 1) == Place(first.shard, 0, 0, 0)
        assert "FENCED" in str(error_of(client, "HISTORY.APPEND", "s", "a", "0", "PRODUCER", "p", 0, 9))
    assert append(client, "s", "a", "3", "PRODUCER", "p", 2, 1).new == 1
    assert append(client, "s", "a", "4", "PRODUCER", "q", 1, 1).new == 1
    assert [entry.message.payload for entry in replay_all(client, "a")] == [b"1", b"2", b"3", b"4"]


# --- Replicas and files -----------------------------------------------------------------------------------------------


def test_a_replica_and_the_append_only_file_hold_the_same_without_the_module(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    wait_for_replica(client, replica.client())
    store(client, "s", "a/#", "$b/+", shards=2, bytes=200_000)
    for number in range(1200):
        publish(client, f"a/{number % 70}/{number % 3}", f"payload {number}", qos=number % 3)
        append(client, "s", f"$b/{number % 5}", "m", "PRODUCER", "p", 1, number)
    wait_for_replica(client, replica.client())
    assert sum(len(client.hgetall(f"{{s/{shard}}}_history_epochs")) for shard in (0, 1)) > 4
    want, state = digest(client), snapshot(client)
    assert_same_keys(snapshot(replica.client()), state)
    assert digest(replica.client()) == want
    given = replay_all(client, "a/+/1")
    primary.restart()
    again = primary.client()
    assert digest(again) == want
    assert replay_all(again, "a/+/1") == given
    assert_indexes_hold(again)


def test_a_replica_answers_and_refuses_writes(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, reader = primary.client(), replica.client()
    wait_for_replica(client, reader)
    store(client, "s", "a/#", shards=3)
    for number in range(300):
        publish(client, f"a/{number % 7}", str(number))
    wait_for_replica(client, reader)
    assert replay_all(reader, "a/3") == replay_all(client, "a/3")
    assert "read only replica" in str(error_of(reader, "HISTORY.APPEND", "s", "a", "m"))
    assert "read only replica" in str(error_of(reader, "HISTORY.UNSTORE", "s"))
    assert_indexes_hold(reader)
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    assert append(reader, "s", "a/3", "after").new == 1
    assert replay_all(reader, "a/3")[-1].pair == (b"a/3", b"after")
