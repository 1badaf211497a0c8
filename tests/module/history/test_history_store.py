"""HISTORY.STORE, HISTORY.STORES, HISTORY.UNSTORE: the policies, no two of which select the same topic."""

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.module.history_support import append, replay_all, store
from tests.module.sessions_support import assert_indexes_hold, error_of, matches, names, publish, unchanged
from tests.support import Server

LEVELS = ("a", "b", "", "$x", "ab")
LEVEL = st.sampled_from(LEVELS)


def policies(client: redis.Redis) -> dict[bytes, dict[bytes, object]]:
    """HISTORY.STORES by name."""
    return {row[b"store"]: row for row in client.execute_command("HISTORY.STORES")}


@st.composite
def filters(draw: st.DrawFn) -> str:
    """A valid filter of at most four levels."""
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), min_size=0, max_size=3))
    levels += draw(st.sampled_from((["#"], ["a"], ["+"])))
    return "/".join(levels)


def topics() -> list[str]:
    """All topics of at most four levels that could tell two filters apart."""
    some = [[level] for level in LEVELS]
    for _ in range(3):
        some += [[*topic, level] for topic in some if len(topic) < 4 for level in LEVELS]
    return sorted({"/".join(topic) for topic in some} - {""})


TOPICS = topics()


def test_a_policy_is_kept_in_a_plain_hash(client: redis.Redis) -> None:
    store(client, "s", "a/+", "b/#", shards=4, age=3600, bytes=1000, levels=3, epoch=60)
    kept = client.hgetall("{s}_history_store")
    seed = kept.pop(b"seed")
    assert len(seed) == 32
    assert kept == {
        b"shards": b"4",
        b"age": b"3600",
        b"bytes": b"1000",
        b"levels": b"3",
        b"epoch": b"60",
        b"filter a/+": b"",
        b"filter b/#": b"",
    }
    assert policies(client)[b"s"] == {
        b"store": b"s",
        b"filters": [b"a/+", b"b/#"],
        b"shards": 4,
        b"levels": 3,
        b"age": 3600,
        b"epoch": 60,
        b"bytes": 1000,
        b"holdbytes": 1000,
        b"learn": 0,
    }


def test_a_seed_may_be_chosen(client: redis.Redis) -> None:
    seed = "0123456789abcdef" * 2
    store(client, "s", "a/#", SEED=seed)
    store(client, "s", "b/#", SEED=seed)
    assert client.hget("{s}_history_store", "seed") == seed.encode()


def test_an_epoch_that_was_chosen_stays_and_one_that_was_not_follows_the_age(client: redis.Redis) -> None:
    store(client, "chosen", "a/#", EPOCH=60)
    store(client, "chosen", "a/#", AGE=7200)
    store(client, "derived", "b/#")
    store(client, "derived", "b/#", AGE=1600)
    assert policies(client)[b"chosen"][b"epoch"] == 60
    assert policies(client)[b"derived"][b"epoch"] == 100


def test_what_is_not_said_again_stays_and_filters_are_those_of_the_last_time(client: redis.Redis) -> None:
    store(client, "s", "a", "b", shards=4, age=3600)
    seed = client.hget("{s}_history_store", "seed")
    store(client, "s", "b", "c", bytes=7)
    (policy,) = policies(client).values()
    assert (policy[b"filters"], policy[b"shards"], policy[b"age"], policy[b"bytes"]) == ([b"b", b"c"], 4, 3600, 7)
    assert client.hget("{s}_history_store", "seed") == seed


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters(), filters())
def test_two_stores_are_refused_exactly_when_a_topic_is_in_both(client: redis.Redis, one: str, other: str) -> None:
    client.flushall()
    store(client, "one", one)
    both = [topic for topic in TOPICS if matches(one, topic) and matches(other, topic)]
    error = error_of(client, "HISTORY.STORE", "other", "FILTER", other)
    if both:
        assert error is not None
        assert "overlaps" in error
    else:
        assert error is None


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("HISTORY.STORE", "s", "SHARDS", 1, "AGE", 1), "FILTER is missing"),
        (("HISTORY.STORE", "a b", "FILTER", "x"), "the store is 'a b'"),
        (("HISTORY.STORE", "x" * 65, "FILTER", "x"), "1 to 64 letters"),
        (("HISTORY.STORE", "s", "FILTER", "a/#/b"), "INVALIDTOPIC"),
        (("HISTORY.STORE", "s", "FILTER", "$share/g/a"), "shared subscription"),
        (("HISTORY.STORE", "s", "FILTER", "x", "SHARDS", 0), "SHARDS is '0'"),
        (("HISTORY.STORE", "s", "FILTER", "x", "LEVELS", 17), "LEVELS is '17'"),
        (("HISTORY.STORE", "s", "FILTER", "x", "AGE", 100000, "EPOCH", 1), "EPOCH is 1"),
        (("HISTORY.STORE", "s", "FILTER", "x", "MORE"), "unexpected argument 'MORE'"),
        (("HISTORY.STORE", "s", "FILTER", "x", "SEED", "0" * 31), "32 hexadecimal digits"),
        (
            ("HISTORY.STORE", "old", "FILTER", "old", "SEED", "0" * 32),
            "SEED differs from that of the existing store 'old'",
        ),
        (("HISTORY.STORE", "s", "FILTER", "x", "CHANGED", 1), "CHANGED is accepted by nodes of a cluster only"),
        (("HISTORY.STORE", "old", "FILTER", "old", "SHARDS", 2), "cannot change them"),
        (("HISTORY.STORE", "s", "FILTER", "old"), "overlaps with 'old' of store 'old'"),
        (("HISTORY.UNSTORE", "s"), "there is no store 's'"),
        (("HISTORY.APPEND", "s", "t", "m"), "there is no store 's'"),
        (("HISTORY.APPEND", "old", "t", "m"), "does not select the topic 't'"),
        (("HISTORY.APPEND", "old", "+", "m"), "INVALIDTOPIC"),
        (("HISTORY.REPLAY", "t"), "NOSTORE no store keeps topics"),
        (("HISTORY.REPLAY", "old", "STORE", "s"), "there is no store 's'"),
        (("HISTORY.REPLAY", "old", "CURSOR", "h1-"), "CURSOR is invalid; expected the unchanged cursor"),
        (("HISTORY.REPLAY", "old", "SHARD", 1), "SHARD is 1; expected 0 to 0"),
        (("HISTORY.REPLAY", "old", "FROM", "then"), "FROM is 'then'"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    client: redis.Redis, command: tuple[str | int, ...], error: str
) -> None:
    store(client, "old", "old")
    with unchanged(client):
        assert error in str(error_of(client, *command))


def test_a_store_is_removed_with_all_that_it_has(client: redis.Redis) -> None:
    store(client, "s", "a/#", shards=3)
    store(client, "other", "b/#")
    append(client, "other", "b", "stays")
    before = names(client)
    for number in range(700):
        append(client, "s", f"a/{number}", "m")
    assert client.execute_command("HISTORY.UNSTORE", "s") == b"OK"
    assert set(names(client)) == set(before) - {b"{s}_history_store"}
    publish(client, "a/1", "m")
    assert [entry.pair for entry in replay_all(client, "b")] == [(b"b", b"stays")]


@pytest.mark.parametrize("how", ["del", "set", "rename", "expire", "flush", "hset"])
def test_a_policy_that_others_remove_is_gone(client: redis.Redis, how: str) -> None:
    store(client, "s", "a")
    key = "{s}_history_store"
    match how:
        case "del":
            client.delete(key)
        case "set":
            client.set(key, "x")
        case "rename":
            client.rename(key, "other")
        case "expire":
            client.pexpire(key, 0)
        case "flush":
            client.flushall()
        case "hset":
            client.hset(key, "shards", "none")
    before = names(client)
    publish(client, "a", "m")
    assert names(client) == before
    assert client.execute_command("HISTORY.STORES") == []


def test_a_policy_comes_back_with_its_key(client: redis.Redis) -> None:
    store(client, "s", "a")
    dump = client.dump("{s}_history_store") or b""
    client.flushall()
    client.restore("{s}_history_store", 0, dump)
    publish(client, "a", "m")
    assert [entry.pair for entry in replay_all(client, "a")] == [(b"a", b"m")]


def test_each_database_has_its_own_policies(server: Server, client: redis.Redis) -> None:
    store(client, "s", "a")
    with server.client(db=1) as other:
        publish(other, "a", "m")
        assert other.dbsize() == 0
        client.swapdb(0, 1)
        publish(other, "a", "m")
        assert [entry.pair for entry in replay_all(other, "a")] == [(b"a", b"m")]
        assert_indexes_hold(other)
