"""A store's topics are spread over another number of shards with a generation; orders, cursors and holds continue."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import (
    append,
    facts,
    read_ranges,
    replay,
    replay_all,
    store,
)
from tests.module.sessions_support import (
    Session,
    digest,
    error_of,
    publish,
    unchanged,
    wait_for_replica,
)
from tests.support import Server

pytestmark = pytest.mark.usefixtures("posting_lists_hold")

TEXT = "holdmq-patterns 1 levels=8\n#\nd/+/state\n"


def spread(client: redis.Redis, shards: int) -> None:
    """Prepares and commits a generation of store s that spreads topics over so many shards."""
    generation = facts(client, "s")["generation"] + 1
    assert client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", generation, TEXT, "SHARDS", shards) == b"OK"
    assert client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", generation) == b"OK"


def assert_ordered(pairs: list[tuple[bytes, bytes]], count: int) -> None:
    """Every number once, and those of a topic rising."""
    assert sorted(int(payload) for _, payload in pairs) == list(range(count))
    last: dict[bytes, int] = {}
    for topic, payload in pairs:
        assert last.get(topic, -1) < int(payload), topic
        last[topic] = int(payload)


@pytest.mark.parametrize("count", [3, 40, 1000])
def test_a_topic_that_moved_keeps_its_order_in_a_replay(client: redis.Redis, count: int) -> None:
    store(client, "s", "d/#", shards=2)
    chance = random.Random(count)
    number = 0
    cursor: bytes | None = None
    pairs: list[tuple[bytes, bytes]] = []
    for shards in (2, 5, 3, 1, 4):
        if shards != 2:
            spread(client, shards)
        for _ in range(60):
            publish(client, f"d/{chance.randrange(12)}/state", str(number))
            number += 1
        page = replay(client, "d/+/state", count=count, **({} if cursor is None else {"cursor": cursor}))
        cursor, pairs = page.cursor, pairs + page.pairs
    rest = [entry.pair for entry in replay_all(client, "d/+/state", CURSOR=cursor, count=count)]
    assert_ordered(pairs + rest, number)
    told = facts(client, "s")
    assert (told["shards"], told["spread"]) == (5, 4)
    all_at_once = [entry.pair for entry in replay_all(client, "d/#")]
    assert_ordered(all_at_once, number)


def test_a_session_that_replays_gets_a_topic_that_moved_in_order(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=1)
    session = Session(client)
    session.subscribe(("d/#", "1@earliest!"))
    number = 0
    for shards in (1, 4, 2):
        if shards != 1:
            spread(client, shards)
        for _ in range(50):
            publish(client, f"d/{number % 7}", str(number), qos=1)
            number += 1
        client.execute_command("SESSION.REPLAY", "{c}", "COUNT", 30)
    for _ in range(20):
        client.execute_command("SESSION.REPLAY", "{c}", "COUNT", 30)
    records = [core.Record.decode(entry.value) for entry in session.fetch_all()]
    assert_ordered([(record.topic, record.payload) for record in records], number)


def test_each_shard_has_its_part_and_new_messages_go_by_the_new_number(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    before = [append(client, "s", f"d/{n}", str(n)) for n in range(60)]
    spread(client, 6)
    after = [append(client, "s", f"d/{n}", str(60 + n)) for n in range(60)]
    assert {place.shard for place in before} == {0, 1}
    assert {place.shard for place in after} == set(range(6))
    told = facts(client, "s")
    assert [one["generation"] for one in told["shard"]] == [2] * 6
    rows = 0
    for one in told["shard"]:
        got = read_ranges(client, "s", one["shard"], 1, one["last"], "PACKED") if one["last"] else None
        rows += got.rows if got else 0
        assert one["first"] == 1
    assert rows == 120
    spread(client, 1)
    assert {append(client, "s", f"d/{n}", "m").shard for n in range(60)} == {0}
    assert facts(client, "s")["shards"] == 6, "those that have something stay"


def test_a_cursor_of_some_shards_alone_is_not_one_of_all(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    for number in range(20):
        append(client, "s", f"d/{number}", "m")
    one = replay(client, "d/#", shard=0).cursor
    two = replay(client, "d/#", count=5).cursor
    spread(client, 3)
    assert "other shards" in (error_of(client, "HISTORY.REPLAY", "d/#", "CURSOR", one) or "")
    assert replay(client, "d/#", cursor=two).entries
    assert replay(client, "d/#", shard=0, cursor=one).end


def test_anyone_who_holds_a_store_holds_its_new_shards(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=1)
    append(client, "s", "d/1", "m")
    client.execute_command("HISTORY.HOLD", "s", "archive", 0, 1)
    spread(client, 3)
    assert [one["holds"] for one in facts(client, "s")["shard"]] == [{b"archive": 1}, {b"archive": 0}, {b"archive": 0}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((2, TEXT, "SHARDS", 0), "SHARDS is '0'; expected a whole number from 1 to 64"),
        ((2, TEXT, "SHARDS", 65), "SHARDS is '65'"),
        ((2, TEXT, "SHARDS", 3, "SHARD", 0), "expected one of them"),
    ],
)
def test_a_wrong_number_of_shards_is_refused(client: redis.Redis, words: tuple[Any, ...], says: str) -> None:
    store(client, "s", "d/#", shards=2)
    with unchanged(client):
        assert says in (error_of(client, "HISTORY.PATTERNS", "PREPARE", "s", *words) or "")


def test_a_key_in_the_place_of_a_new_shard_stops_the_switch(client: redis.Redis) -> None:
    store(client, "s", "d/#", shards=2)
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, TEXT, "SHARDS", 4)
    client.set("{s/3}_history", "x")
    with unchanged(client):
        assert "'{s/3}_history'" in (error_of(client, "HISTORY.PATTERNS", "COMMIT", "s", 2) or "")
        assert "all switch at once" in (error_of(client, "HISTORY.PATTERNS", "COMMIT", "s", 2, "SHARD", 0) or "")
    client.delete("{s/3}_history")
    assert client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2) == b"OK"


def test_it_outlasts_a_restart_reaches_replicas_and_goes_with_the_store(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    store(client, "s", "d/#", shards=2)
    for number in range(40):
        publish(client, f"d/{number}", str(number))
    spread(client, 5)
    store(client, "s", "d/#", "e/#")
    for number in range(40, 80):
        publish(client, f"d/{number}", str(number))
    wait_for_replica(client, replica.client())
    assert digest(replica.client()) == digest(client)
    primary.kill()
    primary.restart()
    client = primary.client()
    told = facts(client, "s")
    assert (told["shards"], told["spread"]) == (5, 5)
    assert_ordered([entry.pair for entry in replay_all(client, "d/#")], 80)
    client.execute_command("HISTORY.UNSTORE", "s")
    assert client.keys("*") == []
