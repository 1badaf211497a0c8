"""A guest in a server: whatever an application does with the names of channels, it gets the stock answers."""

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
    messages,
    serves_each,
    set_policies,
    stock,
    subscribe,
)
from tests.support import RawClient, Server, ServerKind, eventually

STEPS = 400
NAMES = ["jobs", "events", "{tag}:wait", "paused"]
POLICIES = ["*", "* hold=all last=on", "* deliver=held ttl=100", "* hold=none last=on maxlen=1"]


# --- The application's keys -------------------------------------------------------------------------------------------


def application_command(choose: random.Random) -> list[Part]:
    """A command of an application that uses the names of channels for keys; its reply depends on nothing else."""
    name, other = choose.choice(NAMES), choose.choice(NAMES)
    value = f"v{choose.randrange(5)}"
    commands: list[list[Part]] = [
        ["PUBLISH", name, value], ["PUBLISH", name, value], ["PUBLISH", name, value], ["SPUBLISH", name, value],
        ["EVAL", "return redis.call('PUBLISH', KEYS[1], ARGV[1])", 1, name, value],
        ["EVAL", "redis.call('PUBLISH', KEYS[1], 'e') return redis.pcall('ZADD', KEYS[1], 1, 'j')", 1, name],
        ["EVAL", "return redis.pcall('LRANGE', KEYS[1], 0, -1)", 1, name],
        ["SET", name, value], ["SET", name, value, "NX"], ["GET", name], ["GETSET", name, value], ["APPEND", name, "x"],
        ["LPUSH", name, value], ["RPUSH", name, value], ["LPUSHX", name, value], ["RPOP", name], ["LPOP", name, 2],
        ["LMOVE", name, other, "LEFT", "RIGHT"], ["BRPOP", name, "0.001"], ["BLPOP", name, other, "0.001"],
        ["LINSERT", name, "BEFORE", value, "x"], ["LREM", name, 1, value], ["LPOS", name, value],
        ["LTRIM", name, 0, 2], ["ZADD", name, 1, value], ["ZRANGE", name, 0, -1], ["HSET", name, "f", value],
        ["HGETALL", name], ["SADD", name, value], ["SCARD", name], ["XLEN", name], ["TYPE", name], ["EXISTS", name],
        ["DEL", name], ["UNLINK", name, other], ["TTL", name], ["PERSIST", name], ["EXPIRE", name, 1000],
        ["RENAME", name, other], ["RENAMENX", name, other], ["COPY", name, other], ["OBJECT", "ENCODING", name],
        ["SORT", name, "ALPHA"], ["KEYS", name], ["TOUCH", name], ["STRLEN", name], ["MEMORY", "USAGE", "no"],
        ["WATCH", name], ["UNWATCH"], ["MULTI"], ["EXEC"], ["DISCARD"],
    ]  # fmt: skip
    return choose.choice(commands)


LIST_READS: list[list[Part]] = [["LRANGE", 0, -1], ["LLEN"], ["LINDEX", -1]]


def list_read(choose: random.Random, name: str) -> list[Part]:
    """One of the three commands that show what is held where nobody uses the name."""
    command, *arguments = choose.choice(LIST_READS)
    return [command, name, *arguments]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_application_gets_the_replies_of_a_stock_server(
    server_kind: ServerKind, server: Server, tmp_path: Path, raw: MakeRaw, policy: str
) -> None:
    """The same commands on two servers.  Lists are read too, of names that the application has used for a list."""
    set_policies(server.client(), policy)
    choose = random.Random(policy)
    with stock(server_kind, tmp_path / "stock") as other:
        ours, theirs = [raw(), raw()], [raw(other), raw(other)]
        for name in NAMES:  # the application uses all of them
            for connection in (ours[0], theirs[0]):
                answers(connection, ["RPUSH", name, "begin"], ["DEL", name])
        for step in range(STEPS):
            command = application_command(choose)
            if choose.random() < 0.2:
                command = list_read(choose, choose.choice(NAMES))
            at = choose.randrange(2)
            assert answers(ours[at], command) == answers(theirs[at], command), (step, command)
        for ending in (["DISCARD"], *(["TYPE", name] for name in NAMES)):
            assert answers(ours[0], ending) == answers(theirs[0], ending)


def test_a_script_that_publishes_to_the_name_of_its_key_continues(client: redis.Redis) -> None:
    script = "redis.call('publish',KEYS[1],'e') return redis.call('zadd',KEYS[1],1,'j')"
    for name, kept in (("bull:q:completed", []), ("jobs:q:completed", [b"e"])):  # Bull's are not held by default
        assert client.eval(script, 1, name) == 1
        assert client.zrange(name, 0, -1) == [b"j"]
        assert client.execute_command("CHANNEL.RANGE", name, 0, -1) == kept


def test_a_held_list_steps_aside_for_the_application_and_is_still_handed_over(
    client: redis.Redis, raw: MakeRaw
) -> None:
    before = information(client)["channel_stepped_aside"]
    client.publish("work", "held")
    assert held(client, "work") == [b"held"]
    client.rpush("work", "job")
    assert client.lrange("work", 0, -1) == [b"job"]
    assert client.rpop("work") == b"job"
    assert (client.llen("work"), client.lrange("work", 0, -1), client.lindex("work", 0)) == (0, [], None)
    eventually(lambda: information(client)["channel_stepped_aside"] == before + 1)
    assert client.execute_command("CHANNEL.RANGE", "work", 0, -1) == [b"held"]
    assert client.execute_command("CHANNEL.LAST", "work") == b"held"
    assert messages(subscribe(raw(), "work")) == [b"held"]


@pytest.mark.parametrize("how", ["AOF", "RDB", "replica"])
def test_what_stepped_aside_stays_aside_after_a_restart_and_on_a_replica(fresh_server: MakeServer, how: str) -> None:
    server = fresh_server(aof=how == "AOF", config=["appendfsync always"] if how == "AOF" else [])
    client = server.client()
    client.publish("work", "held")
    client.publish("free", "held")
    client.rpush("work", "job")
    client.rpop("work")
    eventually(lambda: information(client)["channel_stepped_aside"] == 1)
    if how == "replica":
        reader = fresh_server(replica_of=server).client()
        eventually(lambda: reader.execute_command("CHANNEL.LEN", "work") == 1)
    else:
        if how == "RDB":
            client.save()
        server.kill()
        server.restart()
        reader = server.client()
    assert (reader.llen("work"), reader.lrange("work", 0, -1)) == (0, [])
    assert reader.execute_command("CHANNEL.RANGE", "work", 0, -1) == [b"held"]
    assert reader.lrange("free", 0, -1) == [b"held"]


def test_a_list_of_a_name_that_was_a_list_before_is_not_shown(client: redis.Redis) -> None:
    client.rpush("jobs", "j")
    client.rpop("jobs")
    client.publish("jobs", "wake up")
    assert client.llen("jobs") == 0
    assert client.execute_command("CHANNEL.RANGE", "jobs", 0, -1) == [b"wake up"]


def test_an_application_that_makes_the_key_in_a_transaction_reads_its_own(client: redis.Redis) -> None:
    client.publish("tx", "held")
    pipeline = client.pipeline(transaction=True)
    pipeline.lpush("tx", "own")
    pipeline.lrange("tx", 0, -1)
    assert pipeline.execute() == [1, [b"own"]]


def test_lists_that_were_kept_under_the_channels_name_are_the_applications(client: redis.Redis, raw: MakeRaw) -> None:
    client.rpush("ch", "of an older version")
    assert subscribe(raw(), "ch") == []
    assert client.lrange("ch", 0, -1) == [b"of an older version"]
    client.rename("ch", client.execute_command("CHANNEL.KEY", "ch"))
    assert messages(subscribe(raw(), "c*", command="PSUBSCRIBE")) == (
        [b"of an older version"] if serves_each(client) else []
    )


# --- A hand-over never goes back in time ------------------------------------------------------------------------------


def test_a_newcomer_gets_nothing_that_is_older_than_what_was_heard(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "A")
    first = raw()
    assert messages(subscribe(first, "ch")) == [b"A"]
    assert client.publish("ch", "B") == 1
    assert subscribe(raw(), "ch") == []
    assert subscribe(raw(), "c*", command="PSUBSCRIBE") == []
    assert client.execute_command("CHANNEL.LAST", "ch") is None
    assert held(client, "ch") == [b"A"]


@pytest.mark.parametrize("how", ["MULTI", "EVAL", "CHANNEL.PUBLISH"])
def test_a_message_that_was_heard_in_any_way_supersedes_what_was_held(
    client: redis.Redis, raw: MakeRaw, how: str
) -> None:
    client.publish("ch", "A")
    first = raw()
    subscribe(first, "ch")
    if how == "MULTI":
        assert answers(raw(), ["MULTI"], ["PUBLISH", "ch", "B"], ["EXEC"])[-1] == [1]
    elif how == "EVAL":
        assert client.eval("return redis.call('PUBLISH', 'ch', 'B')", 0) == 1
    else:
        assert client.execute_command("CHANNEL.PUBLISH", "ch", "B") == 1
    assert subscribe(raw(), "ch") == []


@pytest.mark.parametrize("how", ["PUBLISH", "MULTI", "EVAL", "CHANNEL.PUBLISH"])
def test_a_message_that_no_rule_holds_supersedes_what_an_earlier_policy_held(
    client: redis.Redis, raw: MakeRaw, how: str
) -> None:
    client.publish("ch", "A")
    set_policies(client, "")
    if how == "MULTI":
        assert answers(raw(), ["MULTI"], ["PUBLISH", "ch", "B"], ["EXEC"])[-1] == [0]
    elif how == "EVAL":
        assert client.eval("return redis.call('PUBLISH', 'ch', 'B')", 0) == 0
    else:
        assert client.execute_command(how, "ch", "B") == 0
    set_policies(client, "*")
    assert subscribe(raw(), "ch") == []
    assert held(client, "ch") == [b"A"]


@pytest.mark.parametrize("rule", ["*", "* hold=all", "* last=on", "* hold=none last=on"])
def test_a_message_that_is_held_in_another_database_supersedes_what_was_held(
    server: Server, client: redis.Redis, raw: MakeRaw, rule: str
) -> None:
    set_policies(client, rule)
    server.client(db=5).publish("ch", "A")
    client.publish("ch", "B")
    other = raw()
    other.call("SELECT", "5")
    if serves_each(client):
        assert subscribe(other, "ch") == []
    assert server.client(db=5).execute_command("CHANNEL.LAST", "ch") is None
    assert client.execute_command("CHANNEL.LAST", "ch") == b"B"
    server.client(db=5).publish("ch", "C")
    assert client.execute_command("CHANNEL.LAST", "ch") is None


def test_the_next_message_that_is_held_is_handed_over_again(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "A")
    first = raw()
    subscribe(first, "ch")
    client.publish("ch", "B")
    first.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert client.publish("ch", "C") == 0
    assert messages(subscribe(raw(), "ch")) == [b"C"]
    assert held(client, "ch") == [b"A", b"C"]


def test_what_is_heard_costs_one_write_at_the_transition_and_none_after(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "A")
    first = raw()
    subscribe(first, "ch")
    client.publish("ch", "B")
    dirty = client.info("persistence")["rdb_changes_since_last_save"]
    for number in range(10):
        assert client.publish("ch", number) == 1
    assert client.info("persistence")["rdb_changes_since_last_save"] == dirty


def test_that_it_was_superseded_outlives_a_restart(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    server.client().publish("ch", "A")
    first = raw(server)
    subscribe(first, "ch")
    server.client().publish("ch", "B")
    server.kill()
    server.restart()
    assert subscribe(raw(server), "ch") == []
    assert server.client().lrange("ch", 0, -1) == [b"A"]


def test_with_last_on_a_newcomer_gets_what_was_heard(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* last=on")
    client.publish("ch", "A")
    first = raw()
    subscribe(first, "ch")
    client.publish("ch", "B")
    assert messages(subscribe(raw(), "c*", command="PSUBSCRIBE")) == ([b"B"] if serves_each(client) else [])


# --- Silence ----------------------------------------------------------------------------------------------------------


def monitored(watcher: RawClient) -> list[str]:
    """What MONITOR shows, without time, database and address."""
    lines = [str(line) for line in watcher.pending()]
    return [line.partition("] ")[2] for line in lines if '"PING"' not in line]


def statistics(client: redis.Redis) -> dict[str, int]:
    """How often each command of the server itself was called."""
    found = client.info("commandstats")
    return {name: found[name]["calls"] for name in found if "." not in name}


CONVERSATION: list[list[Part]] = [
    ["PUBLISH", "ch", "unheard"], ["PUBLISH", "ch", "unheard, too"], ["SET", "k", "v"], ["PUBLISH", "other", "m"],
    ["PUBLISH", "listened", "heard"], ["PUBLISH", "listened", "heard again"], ["PUBLISH", "pattern:1", "heard"],
    ["MULTI"], ["PUBLISH", "ch", "m"], ["PUBLISH", "listened", "m"], ["EXEC"],
    ["EVAL", "return redis.call('PUBLISH', 'ch', 'm')", 0],
    ["EVAL", "redis.call('SET', 'k', 'w') return redis.call('PUBLISH', 'listened', 'm')", 0],
    ["LRANGE", "k2", 0, -1], ["SPUBLISH", "shard", "m"],
]  # fmt: skip


def watched(server: Server, raw: MakeRaw) -> tuple[list[str], dict[str, int], list[list[str]]]:
    """What MONITOR, INFO commandstats and SLOWLOG show of the conversation."""
    client, watcher, speaker, listener = server.client(), raw(server), raw(server), raw(server)
    subscribe(listener, "listened")
    subscribe(listener, "pattern:*", command="PSUBSCRIBE")
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    client.config_resetstat()
    watcher.send("MONITOR")
    watcher.read()
    answers(speaker, *CONVERSATION)
    lines = [line for line in monitored(watcher) if "HELLO" not in line and "SETINFO" not in line]
    calls = {
        name: count
        for name, count in statistics(client).items()
        if not name.startswith(("cmdstat_config", "cmdstat_slowlog"))
    }
    client.config_set("slowlog-log-slower-than", -1)
    slow = [entry["command"].decode().split() for entry in client.slowlog_get(100)]
    mine = [
        words for words in reversed(slow) if words[0].upper() not in {"CONFIG", "SLOWLOG", "INFO", "PING", "MONITOR"}
    ]
    watcher.close()
    return [line.lower() for line in lines], calls, mine


@pytest.mark.parametrize("policies", ["", "* hold=none", "*", "* hold=all last=on"])
def test_monitoring_shows_the_applications_traffic_and_nothing_else(
    server_kind: ServerKind, fresh_server: MakeServer, tmp_path: Path, raw: MakeRaw, policies: str
) -> None:
    ours = fresh_server()
    set_policies(ours.client(), policies)
    with stock(server_kind, tmp_path / "stock") as theirs:
        (lines, calls, slow), expected = watched(ours, raw), watched(theirs, raw)
    if (
        not server_kind.hands_off_exactly
    ):  # whose command it is is not known there: the rights of all users are looked up
        calls.pop("cmdstat_acl|users", None)
        slow = [words for words in slow if words[:2] != ["ACL", "USERS"]]
    assert lines == expected[0]
    assert calls == expected[1]
    assert slow == expected[2]


# Subscriptions beside channels that keep something, and commands that make the module look again at what it knows.
SUBSCRIBING: list[list[Part]] = [
    ["SUBSCRIBE", "free"], ["PSUBSCRIBE", "fr*"], ["SSUBSCRIBE", "shard"], ["SUBSCRIBE", "more", "and more", "free"],
    ["UNSUBSCRIBE", "free"], ["UNSUBSCRIBE"], ["PUNSUBSCRIBE"], ["SUNSUBSCRIBE"], ["MULTI"], ["SUBSCRIBE", "free"],
    ["PSUBSCRIBE", "f*"], ["EXEC"], ["RESET"], ["SUBSCRIBE", "kept"], ["PSUBSCRIBE", "*"], ["RESET"],
]  # fmt: skip
MEANWHILE: list[list[Part]] = [
    ["PUBLISH", "free", "m"], ["SPUBLISH", "shard", "m"], ["PUBLISH", "more", "m"], ["CLUSTER", "INFO"],
    ["CONFIG", "GET", "maxmemory"],
]  # fmt: skip


def shown_of_subscribing(server: Server, raw: MakeRaw, policies: str) -> list[list[Any]]:
    """What MONITOR, SLOWLOG and INFO commandstats show of it."""
    client, watcher, subscriber, other = server.client(), raw(server), raw(server), raw(server)
    if server.module:
        set_policies(client, "* deliver=none")
        client.publish("kept", "m")
        set_policies(client, policies)
    client.config_set("slowlog-max-len", 10_000)
    watcher.send("MONITOR")
    watcher.read()
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    client.config_resetstat()
    for command in SUBSCRIBING:
        subscriber.send_all(tuple(command), ("ECHO", "next") if command == ["RESET"] else ("PING",))
        assert subscriber.read() is not None
        answers(other, *MEANWHILE)
    calls = {name: count for name, count in statistics(client).items() if not name.startswith("cmdstat_acl")}
    slow = [entry["command"].split()[:2] for entry in client.slowlog_get(10_000)]
    return [
        sorted(line.lower() for line in monitored(watcher)),
        sorted(calls.items()),
        sorted(words for words in slow if words[0].upper() not in {b"ACL", b"SLOWLOG"}),
    ]


def test_the_list_of_clients_shows_which_commands_were_the_modules_own(client: redis.Redis, raw: MakeRaw) -> None:
    """docs/existing-server.md says so."""
    queues, publishes, reads = raw(), raw(), raw()
    identities = [str(connection.call("CLIENT", "ID")) for connection in (queues, publishes, reads)]
    queues.send_all(("MULTI",), ("PUBLISH", "ch", "m"))
    assert queues.read_many(2) == ["OK", "QUEUED"]
    assert publishes.call("PUBLISH", "ch", "m") == 0
    reads.call("LRANGE", "ch", 0, -1)
    commands = [client.client_list(client_id=[str(identity)])[0]["cmd"].upper() for identity in identities]
    if knows_clients(client):
        assert commands == ["CHANNEL.PUBLISH", "PUBLISH", "HOLDMQ.READ"]
    else:
        assert commands[:2] == ["CHANNEL.PUBLISH", "CHANNEL.PUBLISH"]


def test_a_held_message_counts_as_one_or_two_commands_more(client: redis.Redis, raw: MakeRaw) -> None:
    """docs/existing-server.md says so."""
    publisher, asks = raw(), raw()

    def more(*commands: tuple[Part, ...]) -> int:
        counts = []
        for _ in range(2):
            text = asks.call("INFO", "stats")
            assert isinstance(text, bytes)
            counts.append(int(text.split(b"total_commands_processed:")[1].split()[0]))
            if len(counts) == 1:
                answers(publisher, *commands)
        return counts[1] - counts[0] - 1 - len(commands)

    more(("PUBLISH", "ch", "m"))  # before 7.2 it asks for the rights of all users
    assert more(("PUBLISH", "ch", "m")) in (1, 2)
    if knows_clients(client):
        assert more(("MULTI",), ("PUBLISH", "ch", "m"), ("EXEC",)) in (1, 2)
    assert more(("SET", "k", "v")) == 0


@pytest.mark.parametrize("policies", ["", "* hold=none", "* deliver=none", "* hold=all last=on deliver=none"])
def test_monitoring_shows_nothing_of_how_subscriptions_are_followed(
    server_kind: ServerKind, fresh_server: MakeServer, tmp_path: Path, raw: MakeRaw, policies: str
) -> None:
    ours = shown_of_subscribing(fresh_server(), raw, policies)
    with stock(server_kind, tmp_path / "stock") as theirs:
        assert ours == shown_of_subscribing(theirs, raw, policies)


def test_subscribing_where_nothing_is_kept_asks_nobody(
    server_kind: ServerKind, fresh_server: MakeServer, tmp_path: Path, raw: MakeRaw
) -> None:
    """The default policy, which hands over what is held: but there is nothing."""
    shown = []
    with stock(server_kind, tmp_path / "stock") as theirs:
        for server in (fresh_server(), theirs):
            watcher, listener = raw(server), raw(server)
            subscribe(listener, "any")
            subscribe(raw(server), "an?", command="PSUBSCRIBE")
            watcher.send("MONITOR")
            watcher.read()
            for command, *names in (
                ["SUBSCRIBE", "any"],
                ["SUBSCRIBE", "a", "b"],
                ["PSUBSCRIBE", "a*"],
                ["SSUBSCRIBE", "s"],
            ):
                subscribe(raw(server), *names, command=command)
                subscribe(listener, *names, command=command)
            server.client().publish("any", "m")
            shown.append([line for line in monitored(watcher) if "SETINFO" not in line and "HELLO" not in line])
    assert shown[0] == shown[1]


def test_what_was_paused_is_shown_if_it_is_held(server_kind: ServerKind, server: Server, raw: MakeRaw) -> None:
    """Stock Valkey 8.0 and Redis 8.0 leave commands that were paused out of MONITOR."""
    client, watcher, publisher = server.client(), raw(server), raw(server)
    omits = server_kind.name in {"valkey-8.0", "redis-8.0"}
    watcher.send("MONITOR")
    watcher.read()
    for policies, shown in (("", not omits), ("*", True)):
        client.config_set("holdmq.policies", policies)
        watcher.pending()
        client.client_pause(60_000, all=False)
        try:
            publisher.send("PUBLISH", "ch", "m")
            eventually(lambda: any("b" in entry["flags"] for entry in client.client_list()), what="a client that waits")
        finally:
            client.client_unpause()
        assert publisher.read() == 0
        published = [line for line in monitored(watcher) if not line.startswith('"CLIENT"')]
        assert published == (['"PUBLISH" "ch" "m"'] if shown else [])


def test_a_message_that_nobody_can_hear_is_the_publishers_own_publish(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server()
    client = server.client()
    if not serves_each(client):
        return  # before 7.2 it is not known whose command it is, and the module publishes
    watcher, speaker = raw(server), raw(server)
    watcher.send("MONITOR")
    watcher.read()
    answers(speaker, ["PUBLISH", "ch", "m"], ["PUBLISH", "ch", "n"])
    lines = [str(line) for line in watcher.pending() if b"PUBLISH" in str(line).encode()]
    assert len(lines) == 2
    assert all("127.0.0.1:" in line for line in lines)
    assert "cmdstat_channel.publish" not in {name.lower() for name in client.info("commandstats")}
    assert client.execute_command("CHANNEL.LEN", "ch") == 2


def test_an_idle_server_runs_no_command(fresh_server: MakeServer) -> None:
    client = fresh_server(config=["hz 100"]).client()
    client.config_resetstat()
    start = client.info("stats")["total_commands_processed"]
    uptime = client.info("server")["lru_clock"]
    eventually(lambda: client.info("server")["lru_clock"] > uptime)  # a second, and so ten times of the server's cron
    calls: dict[str, Any] = statistics(client)
    assert set(calls) <= {"cmdstat_info", "cmdstat_config|resetstat"}
    assert client.info("stats")["total_commands_processed"] >= start


def test_a_module_with_nothing_to_do_is_told_of_no_turn_of_the_event_loop(fresh_server: MakeServer) -> None:
    client = fresh_server(config=["hz 100"]).client()

    def turns_of_commands() -> int:
        before: int = information(client)["turns_heard"]
        for number in range(50):
            client.set("k", number)
            client.get("k")
        return int(information(client)["turns_heard"]) - before

    eventually(lambda: turns_of_commands() == 0)
    client.publish("ch", "held")
    assert turns_of_commands() > 0
    eventually(lambda: turns_of_commands() == 0)


def look_ups(client: redis.Redis) -> tuple[int, int]:
    """What the server counts of keys that were looked for."""
    statistic = client.info("stats")
    return statistic["keyspace_hits"], statistic["keyspace_misses"]


@pytest.mark.parametrize("policies", ["", "*", "* deliver=held", "* hold=all last=on"])
def test_the_modules_own_look_ups_are_neither_counted_nor_announced(
    client: redis.Redis, raw: MakeRaw, policies: str
) -> None:
    set_policies(client, policies)
    client.config_set("notify-keyspace-events", "KEAm")
    client.set("{taken}key", "v")
    client.rpush("jobs", "j")
    for name in ("{taken}key", "jobs", "free"):
        client.publish(name, "m")
    if not policies:
        client.execute_command("CHANNEL.DRYRUN", "START", "SECONDS", 60, "POLICIES", "*")
    before, listener, speaker = look_ups(client), raw(), raw()
    subscribe(listener, "__key*__:*", command="PSUBSCRIBE")
    for _ in range(3):
        answers(
            speaker,
            *(["PUBLISH", name, "m"] for name in ("{taken}key", "jobs", "free", "new")),
            ["MULTI"], ["PUBLISH", "free", "m"], ["EXEC"],
            ["EVAL", "return redis.call('PUBLISH', 'free', 'm')", 0],
        )  # fmt: skip
    subscriber = raw()
    subscribe(subscriber, "free", "other")
    subscribe(subscriber, "fre*", command="PSUBSCRIBE")
    assert look_ups(client) == before
    assert client.llen("jobs") == 1  # beside which something is held
    assert look_ups(client) == (before[0] + 1, before[1])
    told = [value for value in messages(listener.pending()) if not value.startswith(b"holdmq:")]
    assert not {b"keymiss", b"free", b"new", b"jobs", b"{taken}key", b"other"} & set(told)


def test_looking_through_all_keys_again_is_not_counted(client: redis.Redis) -> None:
    for number in range(20):
        client.publish(f"ch{number}", "m")
    client.rpush("{a}jobs", "j")
    pipeline = client.pipeline(transaction=True)
    pipeline.execute_command("COPY", "{a}jobs", "{a}copied", "DB", 1)  # of which Valkey tells modules another database
    assert pipeline.execute() == [1]
    before = look_ups(client)
    client.publish("ch0", "m")
    assert look_ups(client) == before
    client.execute_command("DEBUG", "RELOAD")
    before = look_ups(client)
    client.publish("ch0", "m")
    assert look_ups(client) == before
