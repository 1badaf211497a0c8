"""HISTORY.REPLAY finds what a brute-force search finds, page by page, across epochs, restarts and retention."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdmq import core
from tests.module.history_support import Entry, append, fill_tail, in_order, replay, replay_all, store
from tests.module.sessions_support import (
    digest,
    error_of,
    matches,
    publish,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

LEVEL = st.sampled_from(("a", "b", "", "$x", "c"))
TOPIC = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    """A valid filter of at most five levels."""
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), min_size=0, max_size=4))
    levels += draw(st.sampled_from((["#"], ["a"], ["+"], ["b"])))
    return "/".join(levels)


# --- The model --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topics=st.lists(TOPIC, max_size=60),
    asked=st.lists(filters(), min_size=1, max_size=6),
    shards=st.integers(1, 3),
    levels=st.integers(1, 4),
    count=st.integers(1, 7),
    visit=st.integers(1, 9),
    epoch_bytes=st.sampled_from((0, 200)),
)
def test_a_replay_is_what_a_search_through_everything_finds(
    client: redis.Redis,
    topics: list[str],
    asked: list[str],
    shards: int,
    levels: int,
    count: int,
    visit: int,
    epoch_bytes: int,
) -> None:
    client.flushall()
    size = 8 * shards * epoch_bytes  # an epoch of a few messages: all but the last have their lists
    store(client, "plain", "+/#", shards=shards, levels=levels, bytes=size)
    store(client, "dollar", "$x/#", shards=shards, levels=levels, bytes=size)
    kept: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}
    for number, topic in enumerate(topics):
        name = "dollar" if matches("$x/#", topic) else "plain"
        if name == "plain" and not matches("+/#", topic):
            continue
        place = append(client, name, topic, str(number))
        kept.setdefault((name, place.shard), []).append((topic.encode(), b"%d" % number))
    for asked_filter in asked:
        for name in ("plain", "dollar"):
            want = {
                shard: found
                for (of, shard), pairs in kept.items()
                if of == name and (found := [pair for pair in pairs if matches(asked_filter, pair[0].decode())])
            }
            for options in ({}, {"count": count}, {"visit": visit, "bytes": 40}):
                given_ = replay_all(client, asked_filter, store=name, **options)
                assert in_order(given_) == want, (asked_filter, options)


def messages(client: redis.Redis, count: int, seed: int = 1) -> list[tuple[bytes, bytes]]:
    """Publishes so many to topics of devices; what was published."""
    chance = random.Random(seed)
    pairs = []
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            topic = f"devices/{chance.randrange(50)}/{chance.choice(('temperature', 'pressure', 'state/x/y'))}"
            pipe.execute_command("TOPIC.PUBLISH", topic, number)
            pairs.append((topic.encode(), b"%d" % number))
        pipe.execute()
    return pairs


FILTERS = (
    "#",
    "devices/7/#",
    "devices/+/temperature",
    "+/7/temperature",
    "devices/7/pressure",
    "+/+/state/+/y",
    "devices/x/#",
)


@pytest.mark.parametrize("bits", [1, 2, 20])
def test_colliding_hashes_find_the_same(client: redis.Redis, bits: int) -> None:
    store(client, "s", "#")
    append(client, "s", "before", "m")
    client.set("{s/0}_history_1_patterns", f"holdmq-patterns 1 levels=8\n#\ndevices/+{bits}/#{bits}\n")
    pairs = [(b"before", b"m"), *messages(client, 3000)]
    for asked in FILTERS:
        want = [pair for pair in pairs if matches(asked, pair[0].decode())]
        assert [entry.pair for entry in replay_all(client, asked, count=100)] == want


def test_many_messages_are_found_across_pages_of_lists_and_epochs(client: redis.Redis) -> None:
    store(client, "s", "devices/#", bytes=8 * 90_000)
    pairs = messages(client, 6000)
    assert len(client.hgetall("{s/0}_history_epochs")) > 2
    for asked in FILTERS:
        want = [pair for pair in pairs if matches(asked, pair[0].decode())]
        assert [entry.pair for entry in replay_all(client, asked, count=700)] == want, asked


def test_a_rare_level_is_found_without_visiting_everything(client: redis.Redis) -> None:
    store(client, "s", "devices/#")
    pairs = messages(client, 6000)
    for asked in ("devices/7/#", "devices/7/pressure", "+/7/temperature"):
        page = replay(client, asked)
        assert len(page.entries) == sum(matches(asked, topic.decode()) for topic, _ in pairs)
        assert page.visited <= 2 * len(page.entries)
        assert page.end


# --- Bounds -----------------------------------------------------------------------------------------------------------


def test_a_page_is_bounded_by_messages_visits_and_bytes(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    for number in range(50):
        append(client, "s", f"a/{number}", "x" * 1000)
    assert len(replay(client, "#", count=7).entries) == 7
    assert len(replay(client, "#", bytes=5000).entries) == 4
    assert len(replay(client, "#", bytes=1).entries) == 1
    page = replay(client, "+/#", visit=9)
    assert (len(page.entries), page.visited, page.end) == (9, 9, False)


def test_a_reader_at_the_end_gets_what_comes_later(client: redis.Redis) -> None:
    store(client, "s", "a/#", shards=3)
    page = replay(client, "a/#")
    assert (page.entries, page.end) == ([], True)
    for number in range(20):
        append(client, "s", f"a/{number}", "m")
        page = replay(client, "a/#", cursor=page.cursor)
        assert page.pairs == [(f"a/{number}".encode(), b"m")]
        assert page.end


def test_no_shard_waits_forever(client: redis.Redis) -> None:
    store(client, "s", "#", shards=4)
    shards = {append(client, "s", str(number), "m").shard for number in range(40)}
    page = replay(client, "#", count=1)
    seen = {page.entries[0].shard}
    for _ in range(3):
        page = replay(client, "#", count=1, cursor=page.cursor)
        seen.add(page.entries[0].shard)
    assert seen == shards == {0, 1, 2, 3}


def test_one_shard_can_be_read_alone(client: redis.Redis) -> None:
    store(client, "s", "#", shards=3)
    places = [append(client, "s", str(number), "m").shard for number in range(60)]
    for shard in range(3):
        entries = replay_all(client, "#", shard=shard, count=5)
        assert [entry.sequence for entry in entries] == list(range(1, places.count(shard) + 1))
        assert replay_all(client, "#", shard=shard, SEQ=4) == entries[3:]
    assert "SEQ is given without SHARD; expected both" in str(error_of(client, "HISTORY.REPLAY", "#", "SEQ", 4))


def test_from_and_to_are_times(client: redis.Redis) -> None:
    store(client, "s", "a", bytes=8 * 10_000)
    places = [append(client, "s", "a", str(number)) for number in range(900)]
    for first, last in ((0, 899), (250, 260), (256, 600), (899, 899)):
        since, until = places[first].time_us // 1000, places[last].time_us // 1000
        want = [n for n, place in enumerate(places) if since <= place.time_us // 1000 <= until]
        entries = replay_all(client, "a", FROM=since, to=until, count=100)
        assert [int(entry.message.payload) for entry in entries] == want
    assert replay_all(client, "a", FROM=places[-1].time_us // 1000 + 1) == []
    assert len(replay_all(client, "a", FROM="earliest")) == 900


# --- What is not there any more ---------------------------------------------------------------------------------------


def test_a_message_that_has_expired_is_not_given(client: redis.Redis) -> None:
    store(client, "s", "a")
    append(client, "s", "a", "short", "TTL", 1)
    append(client, "s", "a", "long", "TTL", 1000)
    deadline = replay_all(client, "a")[0].message.expires_ms
    while _now(client) <= deadline:
        pass
    assert [entry.message.payload for entry in replay_all(client, "a")] == [b"long"]


def _now(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds * 1000 + micros // 1000)


def test_what_is_older_than_the_age_is_hidden_and_counted_as_missed(client: redis.Redis) -> None:
    store(client, "s", "a", age=3600, epoch=600)
    first = append(client, "s", "a", "old")
    page = replay(client, "a")
    for sequence in (2, 3):
        append(client, "s", "a", f"old {sequence}")
    store(client, "s", "a", age=3, epoch=1)
    while _now(client) <= first.time_us // 1000 + 3300:
        pass
    new = append(client, "s", "a", "new")
    late = replay(client, "a", cursor=page.cursor)
    assert [entry.sequence for entry in late.entries] == [new.sequence]
    assert late.missed == 2
    assert [entry.sequence for entry in replay_all(client, "a")] == [new.sequence]


def test_an_entry_that_others_deleted_is_left_out(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    places = [append(client, "s", f"a/{number % 3}", str(number)) for number in range(30)]
    client.xdel("{s/0}_history_1_0", f"4-{places[3].time_us}")
    assert [int(entry.message.payload) for entry in replay_all(client, "a/0", count=2)] == [
        n for n in range(0, 30, 3) if n != 3
    ]
    assert len(replay_all(client, "#", count=2)) == 29


@pytest.mark.parametrize("suffix", ["_1_0", "_1_0_1_0_0", "_1_patterns"])
def test_what_others_changed_is_an_error_and_no_wrong_answer(client: redis.Redis, suffix: str) -> None:
    store(client, "s", "a/#")
    fill_tail(client, "s", "a/b")
    append(client, "s", "a/b", "m")
    client.delete("{s/0}_history" + suffix)
    client.zadd("{s/0}_history" + suffix, {"x": 1})
    with unchanged(client):
        assert "another program changed" in str(error_of(client, "HISTORY.REPLAY", "a/b"))
    client.delete("{s/0}_history" + suffix)


# --- Cursors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["cut", "other", "twice", "fewer", "with-from"])
def test_a_cursor_that_is_not_this_replays_is_refused(client: redis.Redis, change: str) -> None:
    store(client, "s", "#", shards=2)
    cursor = replay(client, "#").cursor
    options: list[Any] = []
    match change:
        case "cut":
            cursor = cursor[:-1]
        case "other":
            cursor = cursor.replace(b"h2", b"h3")
        case "twice":
            cursor = b",".join([cursor.split(b",")[0]] * 2)
        case "fewer":
            cursor = cursor.split(b",")[0]
        case "with-from":
            options = ["FROM", 1]
    assert str(error_of(client, "HISTORY.REPLAY", "#", "CURSOR", cursor, *options)).startswith("CURSOR is ")


def fill_two_stores(client: redis.Redis) -> bytes:
    """Stores a and b with nine messages each; the cursor after five of a."""
    store(client, "a", "a/#")
    store(client, "b", "b/#")
    for number in range(9):
        append(client, "a", "a/x", str(number))
        append(client, "b", "b/x", str(number))
    return replay(client, "a/#", count=5).cursor


def unnamed(cursor: bytes) -> bytes:
    """The cursor as an earlier release wrote it: without its store."""
    return b",".join(core.Cursor.decode(one)._replace(store=b"").encode() for one in cursor.split(b","))


def test_a_cursor_of_another_store_is_refused(client: redis.Redis) -> None:
    cursor = fill_two_stores(client)
    refused = str(error_of(client, "HISTORY.REPLAY", "b/#", "CURSOR", cursor))
    assert re.match(r"WRONGSTORE CURSOR is of the store 'a' \(id \w+\), not of the store 'b' \(id \w+\)", refused)
    assert [entry.message.payload for entry in replay(client, "a/#", cursor=cursor).entries] == [b"5", b"6", b"7", b"8"]


def test_a_cursor_of_a_store_that_was_created_again_is_refused(client: redis.Redis) -> None:
    cursor = fill_two_stores(client)
    client.execute_command("HISTORY.UNSTORE", "a")
    eventually(lambda: error_of(client, "HISTORY.STORE", "a", "FILTER", "a/#") is None, 5, "the store is created again")
    for number in range(9):
        append(client, "a", "a/x", f"new {number}")
    refused = str(error_of(client, "HISTORY.REPLAY", "a/#", "CURSOR", cursor))
    assert re.match(r"WRONGSTORE CURSOR is of an earlier store 'a' .*, not of the store 'a'", refused)


def test_a_cursor_of_an_earlier_release_is_accepted_if_it_is_known_to_be_of_the_store(client: redis.Redis) -> None:
    cursor = unnamed(fill_two_stores(client))
    page = replay(client, "a/#", cursor=cursor)
    assert [entry.message.payload for entry in page.entries] == [b"5", b"6", b"7", b"8"]
    assert core.Cursor.decode(page.cursor).store == b"a"  # the next one names it
    refused = str(error_of(client, "HISTORY.REPLAY", "b/#", "CURSOR", cursor))
    assert re.match(
        r"WRONGSTORE CURSOR was written by an earlier release .* store 'b'; .*the cursor's time is \d{13}", refused
    )


def test_a_cursor_of_an_earlier_release_that_has_read_nothing_is_good_for_any_store(client: redis.Redis) -> None:
    store(client, "e", "e/#", shards=2)
    cursor = unnamed(replay(client, "e/#").cursor)
    store(client, "f", "f/#", shards=2)
    append(client, "f", "f/x", "1")
    assert replay(client, "f/#", cursor=cursor).pairs == [(b"f/x", b"1")]


def test_a_cursor_survives_a_restart_and_a_failover(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary)
    client, follower = primary.client(), replica.client()
    wait_for_replica(client, follower)
    store(client, "s", "devices/#", bytes=8 * 30_000)
    pairs = messages(client, 1000)
    page = replay(client, "devices/#", count=300)
    got = page.pairs
    primary.kill()
    primary.restart()
    client = primary.client()
    page = replay(client, "devices/#", count=300, cursor=page.cursor)
    got += page.pairs
    pairs += messages(client, 100, seed=2)
    eventually(lambda: digest(follower) == digest(client), 20, "a replica that has caught up")
    primary.kill()
    follower.execute_command("REPLICAOF", "NO", "ONE")
    pairs += messages(follower, 100, seed=3)
    while not page.end:
        page = replay(follower, "devices/#", count=300, cursor=page.cursor)
        got += page.pairs
    assert got == pairs


def test_numbers_that_were_lost_with_a_primary_are_not_skipped_when_they_are_given_again(client: redis.Redis) -> None:
    store(client, "s", "a")
    append(client, "s", "a", "kept")
    replica = {name: client.dump(name) or b"" for name in client.keys("*")}
    for number in range(3):
        append(client, "s", "a", f"lost {number}")
    page = replay(client, "a")
    assert len(page.entries) == 4
    client.flushall()
    for name, value in replica.items():
        client.restore(name, 0, value)
    append(client, "s", "a", "after")
    page = replay(client, "a", cursor=page.cursor)
    assert page.pairs == [(b"a", b"after")]


# --- Many writers and readers -----------------------------------------------------------------------------------------


def test_a_reader_among_writers_gets_everything_once_and_in_order(client: redis.Redis) -> None:
    store(client, "s", "#", shards=3, bytes=3 * 8 * 4000)
    chance = random.Random(5)
    got: list[Entry] = []
    cursor: bytes | None = None
    published: dict[bytes, list[bytes]] = {}
    for number in range(600):
        topic = f"t/{chance.randrange(9)}"
        publish(client, topic, str(number))
        published.setdefault(topic.encode(), []).append(b"%d" % number)
        if chance.random() < 0.2:
            page = replay(client, "t/+", count=chance.randrange(1, 9), cursor=cursor)
            got, cursor = got + page.entries, page.cursor
    assert cursor is not None
    got += replay_all(client, "t/+", cursor=cursor)
    in_order(got)
    for topic_, payloads in published.items():
        assert [entry.message.payload for entry in got if entry.message.topic == topic_] == payloads


# --- Many patterns ----------------------------------------------------------------------------------------------------


def test_a_search_through_hundreds_of_patterns_comes_on_with_each_page(client: redis.Redis) -> None:
    store(client, "s", "d/#", levels=4)
    text = "holdmq-patterns 1 levels=4\n#\n" + "".join(f"d/{kind}/+\n" for kind in range(300))
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, text)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2)
    chance = random.Random(1)
    topics = [f"d/{chance.randrange(300)}/{chance.randrange(200)}" for _ in range(6000)]
    with client.pipeline(transaction=False) as pipe:
        for topic in topics:
            pipe.execute_command("HISTORY.APPEND", "s", topic, "m")
        pipe.execute()
    found, pages = [], 0
    page = replay(client, "d/+/7", visit=1)
    while not page.end and pages < 200:
        pages += 1
        found += page.entries
        page = replay(client, "d/+/7", visit=1, cursor=page.cursor)
    assert page.end
    assert [entry.pair[0].decode() for entry in found + page.entries] == [t for t in topics if t.endswith("/7")]
    assert in_order(found + page.entries)
