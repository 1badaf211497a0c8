"""What a held PUBLISH does to others: keys of the application are left alone, the channel's own list is a key like any.

The table of docs/existing-server.md says the same; a test each.
"""

from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    answers,
    held_key,
    set_policies,
    subscribe,
)
from tests.support import RawClient, eventually

LIST = held_key("ch")


def hold(client: redis.Redis) -> None:
    """Publishes so that the message is held."""
    length = client.llen(LIST)
    assert client.publish("ch", "m") == 0
    assert client.llen(LIST) == length + 1


@pytest.mark.parametrize(("key", "result"), [("ch", [b"OK"]), (LIST, None)])
def test_it_aborts_only_who_watches_the_channels_own_list(
    client: redis.Redis, raw: MakeRaw, key: str, result: Any
) -> None:
    connection = raw()
    answers(connection, ["WATCH", key])
    hold(client)
    came = answers(connection, ["MULTI"], ["SET", "k", "v"], ["EXEC"])[-1]
    assert (came if result is None else [str(item).encode() for item in came]) == result


def test_it_does_not_feed_a_client_blocked_on_the_channels_name(client: redis.Redis, raw: MakeRaw) -> None:
    waiting = raw()
    waiting.send("BLPOP", "ch", 0)
    eventually(lambda: client.info("clients")["blocked_clients"] == 1)
    hold(client)
    assert client.info("clients")["blocked_clients"] == 1
    client.rpush("ch", "job")
    assert waiting.read() == [b"ch", b"job"]
    assert client.llen(LIST) == 1


def test_it_feeds_a_client_blocked_on_the_channels_own_list(client: redis.Redis, raw: MakeRaw) -> None:
    waiting = raw()
    waiting.send("BLPOP", LIST, 0)
    eventually(lambda: client.info("clients")["blocked_clients"] == 1)
    assert client.publish("ch", "m") == 0
    assert waiting.read() == [LIST.encode(), b"m"]
    assert client.exists(LIST) == 0


def invalidated(connection: RawClient) -> list[Any]:
    return [value[1] for value in lists(connection) if value[0] == b"invalidate"]


def lists(connection: RawClient) -> list[list[Any]]:
    """What came, without strings and numbers."""
    return [value for value in connection.pending() if isinstance(value, list)]


def test_it_invalidates_what_a_client_has_read_of_the_channels_own_list(client: redis.Redis, raw: MakeRaw) -> None:
    client.set("k", "v")
    tracking = raw(protocol=3)
    answers(tracking, ["CLIENT", "TRACKING", "ON"], ["GET", "k"], ["GET", "ch"], ["LRANGE", LIST, 0, -1])
    hold(client)
    assert invalidated(tracking) == [[LIST.encode()]]


def test_broadcast_tracking_names_the_channels_own_list(client: redis.Redis, raw: MakeRaw) -> None:
    every, application = raw(protocol=3), raw(protocol=3)
    answers(every, ["CLIENT", "TRACKING", "ON", "BCAST"])
    answers(application, ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "ch"])
    hold(client)
    assert {key for keys in invalidated(every) for key in keys} == {LIST.encode()}
    assert invalidated(application) == []


def test_its_keyspace_events_name_the_channels_own_list(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("notify-keyspace-events", "KA")
    listener = raw()
    subscribe(listener, "__keyspace@0__:*", command="PSUBSCRIBE")
    hold(client)
    events = [(value[2], value[3]) for value in listener.pending() if isinstance(value, list)]
    assert {name for name, _ in events} == {f"__keyspace@0__:{LIST}".encode()}
    assert {event for _, event in events} == {b"rpush", b"expire"}


def test_it_replicates_as_commands_on_the_channels_own_list(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    set_policies(primary.client(), "* maxlen=1")
    replica = fresh_server(replica_of=primary)
    watcher = raw(replica)
    watcher.send("MONITOR")
    watcher.read()
    hold_twice = primary.client()
    hold_twice.publish("ch", "m")
    hold_twice.publish("ch", "n")
    eventually(lambda: replica.client().lrange(LIST, 0, -1) == [b"n"])
    words = [line.partition("] ")[2].replace('"', "").split() for line in map(str, watcher.pending())]
    seen = [line for line in words if line and line[0].upper() in {"RPUSH", "LTRIM", "LPOP", "PEXPIREAT", "DEL"}]
    assert {line[1] for line in seen} == {LIST}
    assert {line[0].upper() for line in seen} >= {"RPUSH", "PEXPIREAT"}


def test_it_is_refused_for_lack_of_memory_and_nobody_hears_it(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "kept hold=all; none hold=none; *")
    listener = raw()
    subscribe(listener, "kept", "heard")
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", max(1, used // 2))
    for channel in ("unheard", "kept"):
        with pytest.raises(redis.exceptions.OutOfMemoryError, match="used memory > 'maxmemory'"):
            client.publish(channel, "m")
    assert client.publish("none", "m") == 0
    assert client.publish("heard", "m") == 1
    client.config_set("maxmemory", 0)
    assert [value[1:] for value in lists(listener)] == [[b"heard", b"m"]]
    assert client.dbsize() == 0


def test_a_script_in_which_it_is_refused_ends_there_and_a_transaction_continues(
    client: redis.Redis, raw: MakeRaw
) -> None:
    connection = raw()
    answers(connection, ["SET", "a", "v"], ["SET", "b", "v"], ["MULTI"], ["DEL", "a"], ["PUBLISH", "ch", "m"])
    client.config_set("maxmemory", 1)
    [[deleted, refusal]] = answers(connection, ["EXEC"])
    script = "redis.call('DEL', KEYS[1]) {}('PUBLISH', 'ch', 'm') return redis.call('EXISTS', KEYS[1])"
    for call, kept in (("redis.pcall", 0), ("redis.call", "-OOM")):
        [reply] = answers(connection, ["EVAL", script.format(call), 1, "b"])
        assert reply == kept or str(reply).startswith(str(kept))
    client.config_set("maxmemory", 0)
    assert (deleted, refusal[:4]) == (1, "-OOM")
    assert client.exists("a", "b", LIST) == 0


def test_it_is_refused_where_the_server_refuses_writes(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        client.publish("ch", "m")
    client.config_set("min-replicas-to-write", 0)
    assert client.dbsize() == 0


def test_its_list_is_counted_listed_and_flushed_like_any_key(client: redis.Redis) -> None:
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    hold(client)
    assert client.dbsize() == 1
    assert client.keys("*") == list(client.scan_iter("*")) == [client.randomkey()] == [LIST.encode()]
    assert client.keys("ch*") == []
    assert 0 < client.ttl(LIST) <= 604800 * 65 // 64
    assert client.info("persistence")["rdb_changes_since_last_save"] > changes
    client.flushdb()
    assert client.execute_command("CHANNEL.LEN", "ch") == 0


@pytest.mark.parametrize("policies", ["", "other", "* hold=none"])
def test_a_message_that_no_policy_holds_has_none_of_these_effects(
    client: redis.Redis, raw: MakeRaw, policies: str
) -> None:
    set_policies(client, policies)
    every = raw(protocol=3)
    answers(every, ["CLIENT", "TRACKING", "ON", "BCAST"])
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    client.config_set("min-replicas-to-write", 1)
    assert client.publish("ch", "m") == 0
    client.config_set("min-replicas-to-write", 0)
    assert client.dbsize() == 0
    assert client.info("persistence")["rdb_changes_since_last_save"] == changes
    assert invalidated(every) == []
    assert subscribe(raw(), "ch") == []
