"""CHANNEL.DRYRUN: which channels a policy would hold is shown on live traffic, and nothing is held for it."""

import random
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    held,
    information,
    knows_clients,
    set_policies,
    subscribe,
)
from tests.support import Server, eventually

MOST_CHANNELS = 10000
MOST_BYTES = 4 << 20
ROW = ("channel", "rule", "hold", "unheard", "messages", "bytes", "last_ms", "key")


def start(client: redis.Redis, policies: str | None = None, seconds: int = 600) -> None:
    given = [] if policies is None else ["POLICIES", policies]
    assert client.execute_command("CHANNEL.DRYRUN", "START", "SECONDS", seconds, *given) == b"OK"


def page(client: redis.Redis, *options: Part) -> tuple[bytes, list[dict[str, Any]], dict[str, Any]]:
    cursor, rows, summary = client.execute_command("CHANNEL.DRYRUN", "REPORT", *options)
    fields = {name.decode(): value for name, value in zip(summary[::2], summary[1::2], strict=True)}
    return cursor, [dict(zip(ROW, row, strict=True)) for row in rows], fields


def report(client: redis.Redis) -> dict[str, dict[str, Any]]:
    """The rows by channel."""
    cursor, found = b"0", {}
    while True:
        cursor, rows, _ = page(client, "CURSOR", cursor, "COUNT", 7)
        found.update({row["channel"].decode("latin1"): row for row in rows})
        if cursor == b"0":
            return found


def counts(client: redis.Redis) -> dict[str, tuple[int, int]]:
    """Of each channel, how many messages would be held, and how many were not heard."""
    return {name: (row["messages"], row["unheard"]) for name, row in report(client).items()}


def summary(client: redis.Redis) -> dict[str, Any]:
    return page(client)[2]


def test_it_shows_what_would_be_held_and_holds_nothing(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "control:* hold=none; news* ttl=60; jobs hold=all")
    for channel, message in (("news", "abc"), ("news", "de"), ("jobs", "x"), ("control:1", "y"), ("other", "z")):
        assert client.publish(channel, message) == 0
    rows = report(client)
    assert {name: (row["rule"], row["hold"], row["messages"], row["bytes"]) for name, row in rows.items()} == {
        "news": (b"news*", b"unheard", 2, 5),
        "jobs": (b"jobs", b"all", 1, 1),
        "control:1": (b"control:*", b"none", 0, 0),
        "other": (None, b"none", 0, 0),
    }
    assert all(row["unheard"] >= 1 and row["key"] == 0 for row in rows.values())
    now = client.time()
    assert all(0 <= now[0] * 1000 + 1000 - row["last_ms"] < 60_000 for row in rows.values())
    told = summary(client)
    assert (told["messages"], told["bytes"], told["channels"], told["running"]) == (3, 6, 4, 1)
    assert told["policies"] == b"control:* hold=none; news* ttl=60; jobs hold=all"
    assert client.dbsize() == 0
    assert information(client)["dry_run"] == "yes"


@pytest.mark.parametrize("policies", ["", "jobs hold=unheard"])
def test_it_writes_nothing_to_the_data_and_to_the_append_only_file(
    fresh_server: MakeServer, raw: MakeRaw, policies: str
) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    set_policies(client, policies)
    listener = raw(server)
    subscribe(listener, "heard")
    client.set("own", "v")
    written = sum(path.stat().st_size for path in Path(server.directory).rglob("*.aof"))
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    start(client, "* hold=all last=on")
    for channel in ("a", "heard", "own"):
        client.publish(channel, "m")
    assert client.eval("return redis.call('PUBLISH', 'b', 'm')", 0) == 0
    assert counts(client) == {"a": (1, 1), "heard": (1, 0), "own": (1, 1), "b": (1, 1)}
    client.execute_command("CHANNEL.DRYRUN", "STOP")
    assert client.info("persistence")["rdb_changes_since_last_save"] == changes
    assert sum(path.stat().st_size for path in Path(server.directory).rglob("*.aof")) == written
    assert client.keys() == [b"own"]


def test_a_replica_receives_what_it_would_receive_without_a_dry_run(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    set_policies(primary.client(), "")
    replica = fresh_server(replica_of=primary)
    listener = raw(replica)
    subscribe(listener, "ch")
    start(primary.client(), "*")
    primary.client().publish("ch", "m")
    assert listener.read() == [b"message", b"ch", b"m"]
    assert replica.client().dbsize() == 0
    with pytest.raises(redis.ResponseError, match=r"replica.*primary"):
        start(replica.client())


def test_a_message_that_is_heard_is_not_counted(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "")
    listener, by_pattern = raw(), raw()
    subscribe(listener, "ch")
    subscribe(by_pattern, "p*", command="PSUBSCRIBE")
    start(client, "*")
    for _ in range(3):
        assert client.publish("ch", "m") == 1
        assert client.publish("pat", "m") == 1
        assert client.publish("nobody", "m") == 0
    listener.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert client.publish("ch", "m") == 0
    assert counts(client) == {"nobody": (3, 3), "ch": (1, 1)}


def test_a_policy_that_keeps_what_is_heard_is_tried_too(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "")
    subscribe(raw(), "all", "last", "unheard")
    for channel in ("all", "last", "unheard"):
        client.publish(channel, "before")
    start(client, "all hold=all; last hold=none last=on; *")
    for channel in ("all", "last", "unheard"):
        assert client.publish(channel, "m") == 1
    assert counts(client) == {"all": (1, 0), "last": (1, 0)}


def test_each_way_of_publishing_is_counted_once(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "")
    start(client, "*")
    connection = raw()
    assert answers(connection, ["MULTI"], ["PUBLISH", "multi", "m"], ["EXEC"])[-1] == [0]
    assert answers(connection, ["PUBLISH", "plain", "m"], ["SPUBLISH", "shard", "m"]) == [0, 0]
    assert answers(connection, ["EVAL", "return redis.call('PUBLISH', 'script', 'm')", 0]) == [0]
    assert answers(connection, ["CHANNEL.PUBLISH", "own", "m"]) == [0]
    subscribe(connection, "somebody")
    other = raw()
    assert answers(other, ["PUBLISH", "with a subscriber elsewhere", "m"]) == [0]
    names = ["multi", "plain", "shard", "script", "own", "with a subscriber elsewhere"]
    assert counts(client) == dict.fromkeys(names, (1, 1))


def test_a_key_of_the_application_is_shown(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "*")
    client.set("now", "v")
    for name in ("now", "later", "gone", "never", "elsewhere"):
        if name == "gone":
            client.rpush(name, "job")
        client.publish(name, "m")
    client.delete("gone")
    client.hset("later", "f", "v")
    client.execute_command("SELECT", 3)
    client.set("elsewhere", "v")
    client.execute_command("SELECT", 0)
    assert {name: row["key"] for name, row in report(client).items()} == {
        "now": 1, "later": 1, "gone": 1, "never": 0, "elsewhere": 0,
    }  # fmt: skip


def test_what_is_held_meanwhile_is_held_as_usual(client: redis.Redis) -> None:
    set_policies(client, "jobs*")
    start(client, "news*")
    client.publish("jobs", "j")
    client.publish("news", "n")
    assert held(client, "jobs") == [b"j"]
    assert held(client, "news") == []
    assert counts(client) == {"jobs": (0, 1), "news": (1, 1)}


def test_without_policies_it_tries_the_servers_own_or_the_default(client: redis.Redis) -> None:
    default = client.config_get("holdmq.policies")["holdmq.policies"]
    set_policies(client, "mine*")
    start(client)
    assert summary(client)["policies"] == b"mine*"
    set_policies(client, "")
    start(client)
    assert summary(client)["policies"].decode() == default
    client.publish("rq:pubsub:1", "m")
    client.publish("news", "m")
    assert counts(client) == {"rq:pubsub:1": (0, 1), "news": (1, 1)}


def random_traffic(connection: Any, listener: Any, seed: int) -> list[Any]:
    choose = random.Random(seed)
    replies: list[Any] = []
    for _ in range(300):
        name = f"{choose.choice('abc')}{choose.randrange(3)}"
        kind = choose.randrange(8)
        if kind == 0:
            listener.send(choose.choice(["SUBSCRIBE", "UNSUBSCRIBE"]), name)
            listener.pending()
        elif kind == 1:
            listener.send(choose.choice(["PSUBSCRIBE", "PUNSUBSCRIBE"]), name[0] + "*")
            listener.pending()
        elif kind == 2:
            replies += answers(connection, ["MULTI"], ["PUBLISH", name, "m"], ["PUBLISH", name, "n"], ["EXEC"])
        elif kind == 3:
            replies += answers(connection, ["EVAL", "return redis.call('PUBLISH', ARGV[1], 'm')", 0, name])
        else:
            replies += answers(connection, ["PUBLISH", name, "m" * choose.randrange(5)])
    return replies


@pytest.mark.parametrize("policies", ["* deliver=none", "a* hold=none; b* hold=all deliver=none; * deliver=none"])
def test_it_foretells_what_the_same_traffic_leaves_when_it_is_held(
    fresh_server: MakeServer, raw: MakeRaw, policies: str
) -> None:
    tried, real = fresh_server(), fresh_server()
    set_policies(tried.client(), "")
    set_policies(real.client(), policies)
    start(tried.client(), policies)
    replies = [random_traffic(raw(server), raw(server), 7) for server in (tried, real)]
    assert replies[0] == replies[1]
    foretold = {name: row["messages"] for name, row in report(tried.client()).items() if row["messages"]}
    client = real.client()
    names = [f"{letter}{number}" for letter in "abc" for number in range(3)]
    lengths = {name: client.execute_command("CHANNEL.LEN", name) for name in names}
    assert foretold == {name: length for name, length in lengths.items() if length}
    assert foretold


def test_the_report_is_bounded_in_channels_and_says_what_it_left_out(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "left*; kept*")
    for number in range(0, MOST_CHANNELS, 1000):
        pipeline = client.pipeline(transaction=False)
        for at in range(number, number + 1000):
            pipeline.publish(f"kept:{at}", "m")
        pipeline.execute()
    client.publish("left", "four")
    client.publish("kept:0", "m")
    told = summary(client)
    assert (told["channels"], told["messages"]) == (MOST_CHANNELS, MOST_CHANNELS + 2)
    assert (told["left_out_messages"], told["left_out_bytes"]) == (1, 4)
    cursor, rows, _ = page(client, "COUNT", 1000)
    assert len(rows) == 1000
    assert cursor != b"0"
    assert page(client, "CURSOR", cursor, "COUNT", 1)[1][0]["channel"] > rows[-1]["channel"]


def test_the_report_is_bounded_in_bytes(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "*")
    before = client.info("memory")["used_memory"]
    long = "n" * 16_000  # a name beyond 16,384 bytes would match no rule
    for number in range(500):
        client.publish(f"{number}:{long}", "m")
    told = summary(client)
    assert told["channels"] < MOST_BYTES // 16_000 + 1
    assert told["channels"] + told["left_out_messages"] == told["messages"] == 500
    assert told["left_out_messages"] > 0
    assert client.info("memory")["used_memory"] - before < 2 * MOST_BYTES
    start(client, "*")
    assert client.info("memory")["used_memory"] - before < MOST_BYTES


def test_it_ends_by_itself_or_by_stop_and_its_report_stays(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "*", seconds=1)
    client.publish("ch", "m")
    eventually(lambda: summary(client)["running"] == 0)
    assert summary(client)["lasted_ms"] == 1000
    client.publish("ch", "after the end")
    assert client.execute_command("CHANNEL.DRYRUN", "STOP") == 0
    assert counts(client) == {"ch": (1, 1)}
    start(client, "*")
    assert counts(client) == {}
    assert client.execute_command("CHANNEL.DRYRUN", "STOP") == 1
    client.publish("ch", "after the end")
    assert counts(client) == {}
    assert information(client)["dry_run"] == "no"


def test_messages_that_could_not_be_held_for_want_of_rights_are_reported(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "")
    client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "resetchannels", "&*", "-@all", "+publish")
    client.execute_command("ACL", "SETUSER", "keyless", "on", "nopass", "&*", "+@all", "resetkeys")
    start(client, "*")
    for user in ("narrow", "keyless"):
        connection = raw()
        assert answers(connection, ["AUTH", user, ""], ["PUBLISH", "ch", "m"]) == ["OK", 0]
    told = summary(client)
    assert told["passed_over"] + told["denied"] == 2
    assert told["messages"] == 0
    if knows_clients(client):
        assert (told["passed_over"], told["denied"]) == (1, 1)
    client.execute_command("ACL", "DELUSER", "narrow", "keyless")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["START", "SECONDS", "0"], "SECONDS"),
        (["START", "SECONDS", "2592001"], "SECONDS"),
        (["START", "SECONDS"], "SECONDS"),
        (["START", "POLICIES", "a hold=some"], "POLICIES.*hold=some"),
        (["START", "POLICIES", "x" * 65537], "POLICIES.*65536"),
        (["START", "NOW"], "NOW|syntax|expected"),
        (["STOP", "NOW"], "wrong number of arguments"),
        (["REPORT", "COUNT", "1001"], "COUNT"),
        (["REPORT", "CURSOR", "x"], "CURSOR.*expected"),
        (["PAUSE"], "(?i)unknown subcommand"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(client: redis.Redis, words: list[str], error: str) -> None:
    set_policies(client, "")
    start(client, "*")
    client.publish("ch", "m")
    with pytest.raises(redis.ResponseError, match=error):
        client.execute_command("CHANNEL.DRYRUN", *words)
    assert counts(client) == {"ch": (1, 1)}


def test_a_report_needs_a_start_and_a_start_needs_interception(fresh_server: MakeServer) -> None:
    client = fresh_server().client()
    with pytest.raises(redis.ResponseError, match="START first"):
        client.execute_command("CHANNEL.DRYRUN", "REPORT")
    assert client.execute_command("CHANNEL.DRYRUN", "STOP") == 0
    client.config_set("holdmq.intercept", "no")
    with pytest.raises(redis.ResponseError, match=r"holdmq\.intercept is no"):
        client.execute_command("CHANNEL.DRYRUN", "START")


def test_only_administrators_may_run_it(client: redis.Redis, raw: MakeRaw) -> None:
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "&*", "+@all", "-@dangerous", "-@admin")
    connection = raw()
    refused = answers(connection, ["AUTH", "reader", ""], ["CHANNEL.DRYRUN", "START"], ["CHANNEL.DRYRUN", "REPORT"])
    if knows_clients(client):  # categories of a module's commands: from 7.2 on
        assert [reply.split()[0] for reply in refused[1:]] == ["-NOPERM", "-NOPERM"]
    client.execute_command("ACL", "DELUSER", "reader")


def test_names_of_any_bytes_are_paged_through(client: redis.Redis) -> None:
    set_policies(client, "")
    start(client, "*")
    names: list[bytes] = [b"", b"0", b">", b"\xff\x00", *(b"n%d" % number for number in range(20))]
    for name in names:
        client.publish(name, "m")
    assert sorted(report(client)) == sorted(name.decode("latin1") for name in names)


def test_monitoring_shows_the_applications_publish(server: Server, client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "")
    start(client, "*")
    client.config_resetstat()
    watcher, speaker = raw(), raw()
    watcher.send("MONITOR")
    watcher.read()
    answers(speaker, ["PUBLISH", "ch", "m"], ["MULTI"], ["PUBLISH", "ch", "n"], ["EXEC"])
    lines = [str(line) for line in watcher.pending() if "publish" in str(line).lower()]
    assert len(lines) == 2
    assert all("channel." not in line.lower() for line in lines)
    assert client.info("commandstats")["cmdstat_publish"]["calls"] == 2
    assert server.process.running
