"""HISTORY.RANGE gives what was kept, column by column; HISTORY.INFO and SEQ say what there is."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdmq import core
from tests.module.history_support import COLUMNS, append, facts, read_range, read_ranges, replay_all, store
from tests.module.sessions_support import digest, error_of, matches, publish, wait_for_replica
from tests.support import Push, RawClient, ReplyError, Server, eventually

DAY_MS = 86_400_000


def learned(client: redis.Redis, name: str, text: str, shard: int = 0) -> None:
    """Puts a pattern set in the place of the first one, in which nothing was written yet but a message of "#"."""
    client.set(f"{{{name}/{shard}}}_history_1_patterns", text)


def error(client: redis.Redis, *command: str | bytes | int) -> str:
    """The text of the error that a command gets."""
    return error_of(client, *command) or ""


PATTERNS = "holdmq-patterns 1 levels=8\n#\nd/+/state\nd/+/temperature\n"


def published(client: redis.Redis, count: int) -> list[dict[str, Any]]:
    """Appends so many messages of all kinds to store s; their columns."""
    chance = random.Random(count)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        topic = f"d/{chance.randrange(9)}/{chance.choice(('state', 'temperature', 'x/y'))}"
        qos, retain = chance.randrange(3), chance.randrange(2)
        publisher = chance.choice((b"", b"client-%d" % number))
        properties = chance.choice((b"", b"\x26\x00\x01a\x00\x01b"))
        ttl = chance.choice((0, 1000))
        options: list[Any] = ["QOS", qos, *(["RETAIN"] if retain else []), *(["TTL", ttl] if ttl else [])]
        options += [*(["FROM", publisher] if publisher else []), *(["PROPERTIES", properties] if properties else [])]
        payload = chance.choice((b"", b"%d" % number, bytes(range(256))))
        place = append(client, "s", topic, payload, *options)
        rows.append(
            {
                "sequence": place.sequence,
                "time": place.time_us,
                "topic": topic.encode(),
                "payload": payload,
                "qos": qos,
                "retain": retain,
                "publisher": publisher,
                "properties": properties,
                "ttl": ttl,
            }
        )
    return rows


# --- What it gives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_all_columns_are_those_of_the_messages_packed_or_not(
    client: redis.Redis, server: Server, protocol: int
) -> None:
    store(client, "s", "d/#", epoch=3600)
    append(client, "s", "d/0/first", "")
    learned(client, "s", PATTERNS)
    rows = published(client, 300)
    asking = server.client(protocol=protocol)
    records = [entry.message for entry in replay_all(client, "#")][1:]
    patterns = core.PatternSet(PATTERNS)
    for switches in ([], ["PACKED"]):
        for count in (7, 2000):
            got = read_ranges(asking, "s", 0, 2, 301, *switches, count=count)
            for name in ("sequence", "time", "topic", "payload", "qos", "retain", "publisher", "properties"):
                assert got.columns[name] == [row[name] for row in rows]
            assert got.columns["published"] == [record.time_ms for record in records]
            assert got.columns["expires"] == [
                record.time_ms + row["ttl"] * 1000 if row["ttl"] else 0
                for row, record in zip(rows, records, strict=True)
            ]
            assert got.columns["pattern"] == [patterns.find(row["topic"]).pattern for row in rows]
            assert got.columns["generation"] == [1] * 300
            assert (got.rows, got.visited, got.missed, got.next) == (300, 300, 0, 302)


def test_columns_come_in_the_order_asked_for(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    append(client, "s", "d/1", "m", "QOS", 1)
    for switches in ([], ["PACKED"]):
        got = read_range(client, "s", 0, 1, 1, *switches, columns=["payload", "qos", "sequence"])
        assert list(got.columns.items()) == [("payload", [b"m"]), ("qos", [1]), ("sequence", [1])]
        none = read_range(client, "s", 0, 2, 9, *switches)
        assert (none.rows, none.next) == (0, 2)
        assert list(none.columns) == list(COLUMNS)


LEVEL = st.sampled_from(("a", "b", "", "$x"))
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(lambda topic: topic and topic[0] != "$")
FILTER = st.builds(
    "/".join, st.tuples(st.sampled_from(("a", "+", "")), st.sampled_from(("a", "+", "b")), st.sampled_from(("#", "+")))
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topics=st.lists(TOPIC, min_size=1, max_size=50),
    asked=st.lists(FILTER, min_size=1, max_size=4),
    span=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    limits=st.sampled_from(({}, {"count": 3}, {"visit": 2}, {"bytes": 1})),
)
def test_a_filter_takes_what_a_search_through_everything_finds(
    client: redis.Redis, topics: list[str], asked: list[str], span: tuple[int, int], limits: dict[str, int]
) -> None:
    client.flushall()
    store(client, "s", "#", levels=2)
    pairs = [(topic.encode(), b"%d" % number) for number, topic in enumerate(topics)]
    for topic, payload in pairs:
        append(client, "s", topic, payload)
    first, last = min(span), min(max(span), len(topics))
    for asked_filter in asked:
        want = [pair for pair in pairs[first - 1 : last] if matches(asked_filter, pair[0].decode())]
        if first <= last:
            assert read_ranges(client, "s", 0, first, last, "PACKED", filter=asked_filter, **limits).pairs == want


def test_a_range_goes_through_epochs_and_generations(client: redis.Redis) -> None:
    store(client, "s", "d/#", bytes=8 * 20_000)  # what is more would be dropped
    pairs = [(f"d/{n % 7}/state".encode(), b"%d" % n + b"x" * 50) for n in range(1100)]
    for topic, payload in pairs:
        append(client, "s", topic, payload)
    assert len(client.hgetall("{s/0}_history_epochs")) > 4
    for count in (100, 2000):
        got = read_ranges(client, "s", 0, 1, 1100, "PACKED", count=count)
        assert got.pairs == pairs
        assert got.columns["sequence"] == list(range(1, 1101))
        few = read_ranges(client, "s", 0, 300, 1000, filter="d/3/#", count=count)
        assert few.pairs == [pair for pair in pairs[299:1000] if pair[0] == b"d/3/state"]


def test_payloads_of_many_bytes_come_whole(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    payloads = [bytes([65 + number]) * (3 << 20) for number in range(4)]
    for payload in payloads:
        append(client, "s", "d/1", payload)
    assert read_range(client, "s", 0, 1, 4, "PACKED", bytes=20 << 20).columns["payload"] == payloads
    page = read_range(client, "s", 0, 1, 4, "PACKED")
    assert (page.rows, page.next) == (2, 3), "8 MiB, the default, end the page"
    page = read_range(client, "s", 0, 2, 4, bytes=10)
    assert (page.rows, page.next) == (1, 3), "one message comes whatever its size"
    page = read_range(client, "s", 0, 1, 4, bytes=100, columns=["sequence"])
    assert page.rows == 4, "only what is replied counts"


def test_a_page_is_bounded_by_messages_and_visits(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    for number in range(50):
        append(client, "s", f"d/{number}", "m")
    assert read_range(client, "s", 0, 1, 50, count=7).next == 8
    page = read_range(client, "s", 0, 1, 50, filter="+/49", visit=5)
    assert page.rows <= 1
    assert page.visited <= 5
    page = read_range(client, "s", 0, 1, 50, filter="+/+", visit=5)
    assert (page.rows, page.visited, page.next) == (5, 5, 6)


# --- What it leaves out -----------------------------------------------------------------------------------------------


def test_messages_past_their_own_expiry_come_only_when_asked_for(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    append(client, "s", "d/1", "short", "TTL", 1)
    append(client, "s", "d/1", "long", "TTL", 1000)
    eventually(lambda: read_range(client, "s", 0, 1, 2).rows == 1)
    page = read_range(client, "s", 0, 1, 2)
    assert (page.pairs, page.visited, page.next) == ([(b"d/1", b"long")], 2, 3)
    assert read_range(client, "s", 0, 1, 2, "EXPIRED").pairs == [(b"d/1", b"short"), (b"d/1", b"long")]


def test_what_is_past_the_age_of_the_store_is_missed_once(client: redis.Redis) -> None:
    store(client, "s", "d/#", age=1000)
    for number in range(600):
        append(client, "s", "d/1", str(number))
    assert read_range(client, "s", 0, 1, 600).missed == 0
    store(client, "s", "d/#", age=1)
    eventually(lambda: facts(client, "s")["shard"][0]["first"] == 601)
    append(client, "s", "d/1", "new")
    page = read_range(client, "s", 0, 11, 601)
    assert (page.missed, page.next, page.pairs) == (590, 602, [(b"d/1", b"new")])
    page = read_range(client, "s", 0, 11, 20)
    assert (page.missed, page.next, page.rows) == (10, 21, 0)


def test_the_range_ends_where_the_shard_does(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    assert read_range(client, "s", 0, 1, 100).next == 1
    append(client, "s", "d/1", "m")
    page = read_range(client, "s", 0, 1, 100)
    assert (page.rows, page.next) == (1, 2), "those that come later are not passed over"
    assert read_range(client, "s", 0, 50, 100).next == 50
    page = read_range(client, "s", 0, 1, 0)
    assert (page.rows, page.next) == (0, 1)


# --- What stands in the way -------------------------------------------------------------------------------------------


def test_what_others_changed_is_an_error_that_names_shard_and_number(client: redis.Redis) -> None:
    store(client, "s", "d/#")
    for number in range(5):
        append(client, "s", "d/1", str(number))
    log = "{s/0}_history_1_0"
    entries: list[Any] = client.xrange(log) or []
    client.delete(log)
    for number, (entry_id, fields) in enumerate(entries):
        client.xadd(log, {b"m": b"no record"} if number == 2 else fields, id=entry_id)
    page = read_range(client, "s", 0, 1, 5)
    assert (page.rows, page.next) == (2, 3), "what comes before is given"
    told = error(client, "HISTORY.RANGE", "s", 0, 3, 5)
    assert "store 's', shard 0" in told
    assert "sequence number 3" in told
    assert read_range(client, "s", 0, 4, 5).rows == 2
    client.delete(log)
    client.set(log, "x")
    assert f"another program changed the history of store 's', shard 0: '{log}'" in error(
        client, "HISTORY.RANGE", "s", 0, 1, 5
    )


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("{s/0}_history", ("HSET", "{s/0}_history", "sequence", "x")),
        ("{s/0}_history_epochs", ("HDEL", "{s/0}_history_epochs", "2")),
        ("{s/0}_history_epochs", ("HSET", "{s/0}_history_epochs", "1", "1 1")),
        ("{s/0}_history_1_patterns", ("SET", "{s/0}_history_1_patterns", "none")),
    ],
)
def test_a_state_that_others_changed_is_an_error(client: redis.Redis, key: str, change: tuple[str, ...]) -> None:
    store(client, "s", "d/#", bytes=8 * 1000)
    for number in range(55):
        append(client, "s", "d/1", f"{number} {'x' * 50}")
    assert client.exists(key)
    assert facts(client, "s")["shard"][0]["epoch"] > 3
    client.execute_command(*change)
    assert error(client, "HISTORY.RANGE", "s", 0, 1, 5).startswith("WRONGTYPE")
    assert client.ping()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x", 0, 1, 2), "there is no store"),
        (("s", 2, 1, 2), "the shard is '2'; expected a whole number from 0 to 1"),
        (("s", "x", 1, 2), "the shard is 'x'"),
        (("s", 0, 0, 2), "from is '0'"),
        (("s", 0, 5, 3), "to is '3'; expected a whole number from 4"),
        (("s", 0, 1, 2, "FILTER", "a/#/b"), "INVALIDTOPIC the topic filter"),
        (("s", 0, 1, 2, "FILTER", "$share/g/a"), "shared subscription"),
        (("s", 0, 1, 2, "COLUMNS", 1, "color"), "the column is 'color'"),
        (("s", 0, 1, 2, "COLUMNS", 2, "qos", "qos"), "given twice"),
        (("s", 0, 1, 2, "COLUMNS", 2, "qos"), "the column is missing"),
        (("s", 0, 1, 2, "COLUMNS", 0), "COLUMNS is '0'"),
        (("s", 0, 1, 2, "COUNT", 100001), "COUNT is '100001'"),
        (("s", 0, 1, 2, "BYTES", 0), "BYTES is '0'"),
        (("s", 0, 1, 2, "VISIT", -1), "VISIT is '-1'"),
        (("s", 0, 1, 2, "LATER"), "unexpected argument 'LATER'"),
    ],
)
def test_a_wrong_argument_is_named(client: redis.Redis, words: tuple[Any, ...], says: str) -> None:
    store(client, "s", "d/#", shards=2)
    append(client, "s", "d/1", "m")
    assert says in error(client, "HISTORY.RANGE", *words)


# --- INFO and SEQ -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_shows_what_each_shard_has(client: redis.Redis, server: Server, protocol: int) -> None:
    asking = server.client(protocol=protocol)
    store(client, "s", "d/#", "e/+", shards=3, bytes=900_000, age=DAY_MS // 1000)
    empty = facts(asking, "s", shard=1)["shard"]
    assert empty == [
        {"shard": 1, "first": 1, "last": 0, "first_time": 0, "last_time": 0, "bytes": 0, "epoch": 0}
        | {"oldest_epoch": 0, "generation": 1, "trimmed": 0, "holds": {}}
    ]
    places = [append(client, "s", f"d/{number}", "x" * 500) for number in range(300)]
    client.hset("{s/1}_history_holds", mapping={"job": 7, "other": "lost 3"})
    told = facts(asking, "s")
    assert (told["store"], told["filters"], told["shards"], told["generation"]) == (b"s", [b"d/#", b"e/+"], 3, 1)
    assert (told["levels"], told["age"], told["bytes"]) == (8, DAY_MS // 1000, 900_000)
    for one in told["shard"]:
        mine = [place for place in places if place.shard == one["shard"]]
        assert (one["first"], one["last"]) == (1, len(mine))
        assert (one["first_time"], one["last_time"]) == (mine[0].time_us, mine[-1].time_us)
        assert one["holds"] == ({b"job": 7, b"other": b"lost 3"} if one["shard"] == 1 else {})
        assert len(mine) * 500 < one["bytes"] < len(mine) * 700
        assert one["epoch"] > 1
    assert [one["shard"] for one in facts(asking, "s", shard=2)["shard"]] == [2]
    assert "the shard is '3'" in error(client, "HISTORY.INFO", "s", "SHARD", 3)
    assert "there is no store" in error(client, "HISTORY.INFO", "t")


def test_a_time_leads_to_the_first_message_then_or_later(client: redis.Redis) -> None:
    store(client, "s", "d/#", bytes=8 * 20_000)
    assert client.execute_command("HISTORY.SEQ", "s", 0, 0) == 1
    places = [append(client, "s", "d/1", "x" * 100) for _ in range(900)]
    for ms in {place.time_us // 1000 + offset for place in places[::50] for offset in (0, 1)}:
        want = next((place.sequence for place in places if place.time_us >= ms * 1000), 901)
        assert client.execute_command("HISTORY.SEQ", "s", 0, ms) == want
    assert client.execute_command("HISTORY.SEQ", "s", 0, 0) == 1
    assert client.execute_command("HISTORY.SEQ", "s", 0, places[-1].time_us // 1000 + DAY_MS) == 901
    assert "the time is '-1'" in error(client, "HISTORY.SEQ", "s", 0, -1)
    store(client, "s", "d/#", age=1)
    eventually(lambda: client.execute_command("HISTORY.SEQ", "s", 0, 0) == 901)


# --- Who may, and where -----------------------------------------------------------------------------------------------


def test_a_replica_that_only_reads_gives_the_same(
    client: redis.Redis, server: Server, fresh_server: Callable[..., Server]
) -> None:
    store(client, "s", "d/#")
    replica = fresh_server(replica_of=server)
    for number in range(50):
        publish(client, f"d/{number % 3}", str(number))
    reader = replica.client()
    wait_for_replica(client, reader)
    assert digest(reader) == digest(client)
    assert read_range(reader, "s", 0, 1, 50) == read_range(client, "s", 0, 1, 50)
    assert facts(reader, "s") == facts(client, "s")


def test_only_who_may_read_the_keys_of_a_shard_gets_it(client: redis.Redis, server: Server) -> None:
    store(client, "s", "d/#", shards=2)
    append(client, "s", "d/1", "m")
    client.acl_setuser(
        "reader", enabled=True, passwords=["+p"], commands=["+@all"], keys=["{s/1}_history*"], channels=["d/#"]
    )
    with RawClient(server.port) as reader:
        reader.call("AUTH", "reader", "p")
        for command in (("HISTORY.RANGE", "s", 0, 1, 2), ("HISTORY.SEQ", "s", 0, 0), ("HISTORY.INFO", "s")):
            with pytest.raises(ReplyError, match=re.escape("NOPERM the user may not read the key '{s/0}_history'")):
                reader.call(*command)
        assert reader.call("HISTORY.SEQ", "s", 1, 0) == 1
    client.acl_deluser("reader")


def test_a_reply_is_complete_though_a_key_expires_while_it_is_made(client: redis.Redis, server: Server) -> None:
    store(client, "s", "d/#", shards=2)
    for number in range(20):
        append(client, "s", f"d/{number}", "m")
    held, listed = "{s/1}_history_holds", "{s/1}_history_1_0_0_0_0"
    commands = [
        (held, ("HISTORY.INFO", "s")),
        (held, ("HISTORY.RANGE", "s", 1, 1, 9)),
        (held, ("HISTORY.CHECK", "s", 1)),
        (listed, ("HISTORY.REPLAY", "d/#")),
    ]
    with RawClient(server.port, protocol=3) as reader:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        client.config_set("notify-keyspace-events", "Kx")
        reader.call("PSUBSCRIBE", "__keyspace@0__:*")
        try:
            for key, command in commands:
                whole = reader.call(*command)
                if key == held:
                    client.hset(key, "r", 1)
                else:
                    client.set(key, "")
                client.pexpire(key, 1)
                client.execute_command("DEBUG", "SLEEP", 0.01)
                reader.send(*command)
                while isinstance(reply := reader.read(), Push):
                    pass
                assert reply == whole
                client.delete(key)
                reader.pending()
        finally:
            client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)
            client.config_set("notify-keyspace-events", "")
