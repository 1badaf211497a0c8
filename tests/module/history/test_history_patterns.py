"""HISTORY.PATTERNS: a store goes over to another pattern set while it is written and read; nothing is lost by it.

HOLDMQ_TEST_TOPICS=1000000 makes the test of many topics its long form.
"""

import os
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import (
    append,
    facts,
    in_order,
    named_map,
    read_range,
    read_ranges,
    replay,
    replay_all,
    store,
)
from tests.module.sessions_support import (
    digest,
    error_of,
    matches,
    publish,
    unchanged,
    wait_for_replica,
)
from tests.support import RawClient, ReplyError, Server

pytestmark = pytest.mark.usefixtures("posting_lists_hold")

TOPICS = int(os.environ.get("HOLDMQ_TEST_TOPICS", "20000"))

HEAD = "holdmq-patterns 1 levels=8\n"
FIRST = HEAD + "#\n"
SETS = (
    HEAD + "#\nd/+/state\nd/+/temperature\n",
    HEAD + "#2\nd/#3\n",
    HEAD + "#\nd/+/+\nd/7/state\n",
)
FILTERS = ("#", "d/7/#", "d/+/state", "+/3/temperature", "d/+/x/+")


def patterns(client: redis.Redis, what: str, name: str, *words: Any) -> Any:
    """HISTORY.PATTERNS <what>."""
    return client.execute_command("HISTORY.PATTERNS", what, name, *words)


def switch(client: redis.Redis, name: str, text: str) -> int:
    """Prepares and commits the next generation; its number."""
    generation = int(patterns(client, "GET", name)[0]) + 1
    assert patterns(client, "PREPARE", name, generation, text) == b"OK"
    assert patterns(client, "COMMIT", name, generation) == b"OK"
    return generation


def stats(client: redis.Redis, name: str, *words: Any) -> list[dict[str, Any]]:
    """HISTORY.PATTERNS STATS."""
    return [named_map(one) for one in patterns(client, "STATS", name, *words)]


def refusal(client: redis.Redis, *words: Any) -> str:
    """The error of HISTORY.PATTERNS; fails if anything was changed."""
    with unchanged(client):
        return error_of(client, "HISTORY.PATTERNS", *words) or ""


def topic_of(chance: random.Random) -> str:
    return f"d/{chance.randrange(9)}/{chance.choice(('state', 'temperature', 'x/y'))}"


# --- Nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_a_switch_in_the_middle_of_a_replay_loses_and_repeats_nothing(client: redis.Redis, shards: int) -> None:
    store(client, "s", "d/#", shards=shards)
    chance = random.Random(shards)
    kept: dict[int, list[tuple[bytes, bytes]]] = {}

    def write(count: int) -> None:
        for _ in range(count):
            topic, payload = topic_of(chance), b"%d" % sum(map(len, kept.values()))
            kept.setdefault(append(client, "s", topic, payload).shard, []).append((topic.encode(), payload))

    write(100)
    cursors: dict[str, tuple[bytes | None, list[Any]]] = {asked: (None, []) for asked in FILTERS}
    for turn in range(12):
        if turn % 3 == 2:
            switch(client, "s", SETS[turn // 3 % 3])
        write(1 + chance.randrange(40))
        for asked, (cursor, found) in cursors.items():
            page = replay(client, asked, cursor=cursor, count=17)
            cursors[asked] = (page.cursor, found + page.entries)
    assert facts(client, "s")["generation"] == 5
    for asked, (cursor, found) in cursors.items():
        assert cursor is not None
        want = {
            shard: some
            for shard, pairs in kept.items()
            if (some := [pair for pair in pairs if matches(asked, pair[0].decode())])
        }
        assert in_order(found + replay_all(client, asked, CURSOR=cursor)) == want
    seen: set[int] = set()
    for shard, pairs in kept.items():
        rows = read_ranges(client, "s", shard, 1, len(pairs), "PACKED", count=30)
        assert rows.pairs == pairs
        generations = rows.columns["generation"]
        assert generations == sorted(generations)
        seen.update(generations)
    assert seen == {1, 2, 3, 4, 5}


def test_writers_and_readers_continue_while_generations_change(client: redis.Redis, server: Server) -> None:
    store(client, "s", "d/#", shards=2, epoch=1)
    done = threading.Event()
    written: list[list[tuple[bytes, bytes]]] = [[], []]
    failures: list[redis.RedisError] = []

    def write(number: int) -> None:
        chance, own = random.Random(number), server.client()
        try:
            while not done.is_set():
                topic, payload = f"{topic_of(chance)}-{number}", b"%d" % len(written[number])
                publish(own, topic, payload)
                written[number].append((topic.encode(), payload))
        except redis.RedisError as failure:
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        found = replay(client, "d/#", count=100)
        entries = found.entries
        for turn in range(9):
            switch(client, "s", SETS[turn % 3])
            for _ in range(5):
                found = replay(client, "d/#", count=50, cursor=found.cursor)
                entries = entries + found.entries
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert not failures
    entries = entries + replay_all(client, "d/#", CURSOR=found.cursor)
    in_order(entries)
    for number, pairs in enumerate(written):
        mine = [entry.pair for entry in entries if entry.pair[0].endswith(b"-%d" % number)]
        by_topic: dict[bytes, list[bytes]] = {}
        for topic, payload in mine:
            by_topic.setdefault(topic, []).append(payload)
        assert sorted(mine) == sorted(pairs)
        assert all(payloads == sorted(payloads, key=int) for payloads in by_topic.values())


def test_what_is_there_keeps_its_layout_and_its_set(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    for number in range(20):
        append(client, "s", f"d/{number}/state", "old")
    before = {key: client.dump(key) for key in client.keys("{s/0}_history_1_*")}
    switch(client, "s", SETS[0])
    append(client, "s", "d/1/state", "new")
    assert {key: client.dump(key) for key in before} == before
    assert patterns(client, "GET", "s") == [2, SETS[0].encode()]
    assert patterns(client, "GET", "s", "GENERATION", 1) == [1, FIRST.encode()]
    assert read_range(client, "s", 0, 20, 21, columns=["generation", "pattern"]).columns == {
        "generation": [1, 2],
        "pattern": [0, 1],
    }


def test_a_store_without_messages_can_have_another_set(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    assert patterns(client, "GET", "s") == [1, FIRST.encode()]
    assert switch(client, "s", SETS[0]) == 2
    places = [append(client, "s", f"d/{number}/state", "m") for number in range(20)]
    assert {(one["generation"], one["first"]) for one in facts(client, "s")["shard"]} == {(2, 1)}
    assert len(replay_all(client, "d/+/state")) == 20
    assert min(place.sequence for place in places) == 1
    first = next(place for place in places if place.sequence == 1)
    assert facts(client, "s", shard=first.shard)["shard"][0]["first_time"] == first.time_us
    assert [one["messages"] for one in stats(client, "s")] == [0, 20, 0]


# --- A million topics -------------------------------------------------------------------------------------------------


def test_device_topics_with_two_suffixes_end_in_two_patterns(client: redis.Redis) -> None:
    store(client, "s", "devices/#")
    learner = core.PatternLearner()
    for number in range(TOPICS // 2):
        for suffix in ("temperature", "pressure"):
            learner.observe(f"devices/{number}/{suffix}", 1)
    (present, text) = patterns(client, "GET", "s")
    proposed = learner.propose(core.PatternSet(text), {"devices/7/#": 1}).patterns
    assert proposed is not None
    assert switch(client, "s", bytes(proposed.text).decode()) == present + 1
    with client.pipeline(transaction=False) as pipe:
        for number in range(0, TOPICS // 2, max(1, TOPICS // 4000)):
            for suffix in ("temperature", "pressure"):
                pipe.execute_command("TOPIC.PUBLISH", f"devices/{number}/{suffix}", number)
        sent = len(pipe.execute())
    used = {one["filter"].split(b"/")[-1]: one["messages"] for one in stats(client, "s") if one["messages"]}
    assert used == {b"temperature": sent // 2, b"pressure": sent // 2}
    page = replay(client, "devices/0/#")
    assert [entry.pair for entry in page.entries] == [
        (b"devices/0/temperature", b"0"),
        (b"devices/0/pressure", b"0"),
    ]
    assert page.visited <= 4


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_set_for_another_generation_is_stale(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    append(client, "s", "d/1", "m")
    for generation in (1, 3):
        told = refusal(client, "PREPARE", "s", generation, SETS[0])
        assert told.startswith("STALE store 's', shard 0: the generation is 1; expected to prepare the next one, 2")
    assert refusal(client, "COMMIT", "s", 2).startswith("STALE")
    patterns(client, "PREPARE", "s", 2, SETS[0])
    assert refusal(client, "COMMIT", "s", 3).startswith("STALE")
    patterns(client, "PREPARE", "s", 2, SETS[1])
    patterns(client, "COMMIT", "s", 2)
    assert patterns(client, "GET", "s") == [2, SETS[1].encode()]
    assert refusal(client, "COMMIT", "s", 2).startswith("STALE")
    assert refusal(client, "PREPARE", "s", 2, SETS[0]).startswith("STALE")


def test_a_shard_that_is_ahead_stops_all_of_them(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    patterns(client, "PREPARE", "s", 2, SETS[0])
    patterns(client, "COMMIT", "s", 2, "SHARD", 1)
    assert [one["generation"] for one in facts(client, "s")["shard"]] == [1, 2]
    assert refusal(client, "COMMIT", "s", 2).startswith("STALE store 's', shard 1: the generation is 2")
    patterns(client, "COMMIT", "s", 2, "SHARD", 0)
    assert [one["generation"] for one in facts(client, "s")["shard"]] == [2, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1"),
        (HEAD + "d/+\n", "#"),
        (HEAD + "#\n#\n", "line 3"),
        ("holdmq-patterns 1 levels=9\n#\n", "levels=9; expected 8, as the store 's'"),
        (HEAD + "#\na/\x00\n", "line 3"),
    ],
)
def test_a_text_that_is_not_a_pattern_set_is_refused_with_the_reason(client: redis.Redis, text: str, says: str) -> None:
    store(client, "s", "d/#")
    told = refusal(client, "PREPARE", "s", 2, text)
    assert told.startswith("the pattern set")
    assert says in told


def test_what_was_prepared_can_be_forgotten(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    patterns(client, "PREPARE", "s", 2, SETS[0])
    assert len(client.keys("*_prepared")) == 2
    assert patterns(client, "ABORT", "s") == b"OK"
    assert not client.keys("*_prepared")
    assert refusal(client, "COMMIT", "s", 2).startswith("STALE")
    assert patterns(client, "ABORT", "s") == b"OK"


def test_keys_that_others_changed_stop_a_switch(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    for number in range(20):
        append(client, "s", f"d/{number}", "m")
    client.set("{s/1}_history_prepared", "x")
    assert "'{s/1}_history_prepared'" in refusal(client, "PREPARE", "s", 2, SETS[0])
    client.delete("{s/1}_history_prepared")
    patterns(client, "PREPARE", "s", 2, SETS[0])
    client.hset("{s/1}_history_prepared", "text", "holdmq-patterns 1 levels=8\n")
    assert "another program changed the prepared pattern set of store 's', shard 1" in refusal(client, "COMMIT", "s", 2)
    patterns(client, "PREPARE", "s", 2, SETS[0])
    client.lpush("{s/1}_history_2_patterns", "x")
    assert "'{s/1}_history_2_patterns'" in refusal(client, "COMMIT", "s", 2)
    client.delete("{s/1}_history_2_patterns")
    assert patterns(client, "COMMIT", "s", 2) == b"OK"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("GET", "t"), "there is no store"),
        (("GET", "s", "SHARD", 2), "the shard is '2'"),
        (("GET", "s", "GENERATION", 7), "no pattern set of generation 7"),
        (("GET", "s", "GENERATION", 0), "the generation is '0'"),
        (("STATS", "s", "SHARD", 2), "SHARD is '2'"),
        (("STATS", "s", "x"), "unexpected argument 'x'"),
        (("PREPARE", "s", "x", FIRST), "the generation is 'x'"),
        (("PREPARE", "s", 2, FIRST, "SHARD", 2), "SHARD is '2'"),
        (("COMMIT", "s", 0), "the generation is '0'"),
        (("ABORT", "s", "SHARD"), "SHARD is missing"),
    ],
)
def test_a_wrong_argument_is_named(client: redis.Redis, words: tuple[Any, ...], says: str) -> None:
    store(client, "s", "d/#", shards=2)
    assert says in refusal(client, *words)


def test_only_who_may_write_the_keys_of_a_shard_switches_it(client: redis.Redis, server: Server) -> None:
    store(client, "s", "d/#")
    client.acl_setuser(
        "reader",
        enabled=True,
        passwords=["+p"],
        commands=["+@all"],
        keys=["%R~{s/0}_history*"],
        channels=["d/#"],
    )
    with RawClient(server.port) as reader:
        reader.call("AUTH", "reader", "p")
        assert reader.call("HISTORY.PATTERNS", "GET", "s") == [1, FIRST.encode()]
        with pytest.raises(ReplyError, match=re.escape("NOPERM the user may not write the key '{s/0}_history'")):
            reader.call("HISTORY.PATTERNS", "PREPARE", "s", 2, SETS[0])
    client.acl_deluser("reader")


# --- Elsewhere --------------------------------------------------------------------------------------------------------


def test_a_switch_reaches_replicas_and_the_append_only_file_as_plain_commands(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(aof=True)
    client = primary.client()
    replica = fresh_server(replica_of=primary, module=False)
    store(client, "s", "d/#", shards=2)
    for turn in range(3):
        for number in range(20):
            publish(client, f"d/{number}/state", f"{turn} {number}")
        switch(client, "s", SETS[turn])
    publish(client, "d/1/state", "last")
    wait_for_replica(client, replica.client())
    assert digest(replica.client()) == digest(client)
    found = replay_all(client, "d/+/state")
    primary.kill()
    primary.restart()
    client = primary.client()
    assert replay_all(client, "d/+/state") == found
    assert len(found) == 61
    assert facts(client, "s")["generation"] == 4
    assert switch(client, "s", SETS[0]) == 5
