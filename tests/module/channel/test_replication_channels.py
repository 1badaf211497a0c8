"""Channels on replicas, in the append-only file and in snapshots: equal data with and without the module.

Each file of data that the module caused must load in a server without the module, and a replica must end up equal
whether it has the module or not.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from holdmq.server import find_module
from tests.module.channels_support import (
    TTL_SLACK,
    MakeRaw,
    MakeServer,
    digest,
    held,
    held_key,
    information,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient, ReplyError, Server, ServerKind, eventually


def caught_up(primary: redis.Redis, replica: redis.Redis) -> bool:
    """Whether the replica has applied all that the primary has sent."""
    sent = primary.info("replication")["master_repl_offset"]
    state = replica.info("replication")
    return bool(state["master_link_status"] == "up" and state["slave_repl_offset"] >= sent)


def equal(primary: redis.Redis, replica: redis.Redis) -> bool:
    """Whether both hold the same keys, values and expiry times."""
    eventually(lambda: caught_up(primary, replica), what="a replica that has what its primary has")
    return bool(digest(primary) == digest(replica) and expiries(primary) == expiries(replica))


def expiries(client: redis.Redis) -> dict[str | bytes, int]:
    """When each key expires."""
    return {key: client.execute_command("PEXPIRETIME", key) for key in client.keys("*")}


@dataclass
class Pair:
    """A primary and its replica, both with the module."""

    primary: Server
    replica: Server


@pytest.fixture(scope="module")
def shared_pair(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The pair that the tests of the file share."""
    primary = Server(server_kind, tmp_path_factory.mktemp("primary"))
    replica = Server(server_kind, tmp_path_factory.mktemp("replica"), replica_of=primary)
    try:
        primary.start()
        replica.start()
        yield Pair(primary, replica)
    finally:
        replica.close()
        primary.close()


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """A primary with a replica that follows it, both empty and with their default settings."""
    replica = shared_pair.replica.client()
    settings = {name: replica.config_get(name)[name] for name in ("holdmq.policies", "replica-read-only")}
    yield shared_pair
    shared_pair.primary.check()
    shared_pair.replica.check()
    shared_pair.primary.reset()  # flushes the replica, too
    for name, value in settings.items():
        replica.config_set(name, str(value))
    replica.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


@pytest.fixture
def primary(pair: Pair) -> redis.Redis:
    """A client of the primary."""
    return pair.primary.client()


@pytest.fixture
def replica(pair: Pair) -> redis.Redis:
    """A client of the replica."""
    return pair.replica.client()


def publish_in_transaction(client: redis.Redis, *publishes: tuple[str, str]) -> None:
    """Publish channel and message pairs in one transaction."""
    pipeline = client.pipeline(transaction=True)
    for channel, message in publishes:
        pipeline.publish(channel, message)
    pipeline.execute()


def some_of_everything(client: redis.Redis, server: Server) -> None:
    """Hold, trim, keep last messages, hand over, from commands, transactions and scripts."""
    set_policies(client, "short:* maxlen=3 ttl=100 last=on", "ever:* ttl=0", "held:* deliver=held", "*")
    for number in range(8):
        for channel in ("short:a", "short:{tag}", "ever:a", "held:a", "held:b", "plain", "\x00\r\n"):
            client.publish(channel, f"{number}" * 10)
    publish_in_transaction(client, ("plain", "in MULTI"), ("short:b", "in MULTI"))
    client.eval("redis.call('PUBLISH', 'plain', 'in EVAL') redis.call('PUBLISH', 'ever:b', 'in EVAL')", 0)
    with RawClient(server.port) as subscriber:
        assert len(messages(subscribe(subscriber, "held:a"))) == 8
        assert client.publish("held:a", "heard") == 1
        assert client.publish("short:a", "unheard") == 0
    eventually(lambda: client.pubsub_numsub("held:a") == [(b"held:a", 0)])
    client.publish("held:a", "unheard again")


# --- Equal data -------------------------------------------------------------------------------------------------------


def test_a_replica_ends_up_equal(pair: Pair, primary: redis.Redis, replica: redis.Redis) -> None:
    some_of_everything(primary, pair.primary)
    assert equal(primary, replica)
    assert primary.dbsize() > 8
    for client in (primary, replica):
        assert client.execute_command("HOLDMQ.CHECK") == []


def test_a_replica_without_the_module_ends_up_equal(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(module=False, replica_of=primary)
    some_of_everything(primary.client(), primary)
    assert equal(primary.client(), replica.client())


def test_a_replica_that_comes_later_gets_what_is_held(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    some_of_everything(primary.client(), primary)
    replica = fresh_server(replica_of=primary)
    assert equal(primary.client(), replica.client())
    assert messages(subscribe(raw(replica), "plain")) == [b"in EVAL"]
    assert replica.client().execute_command("HOLDMQ.CHECK") == []


def test_a_replica_that_alone_has_the_module_leaves_its_data_alone(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server(module=False)
    replica = fresh_server(replica_of=primary)
    client = primary.client()
    listener = raw(replica)
    subscribe(listener, "news")
    for channel in ("news", "nobody", "x"):
        client.publish(channel, "m")
    publish_in_transaction(client, ("nobody", "m"), ("news", "n"))
    client.eval("return redis.call('PUBLISH', 'nobody', 'm')", 0)
    client.rpush(held_key("list"), "m")
    client.set("k", "v")
    assert equal(client, replica.client())
    assert sorted(replica.client().keys("*")) == [held_key("list").encode(), b"k"]
    assert messages(listener.pending()) == [b"m", b"n"]
    assert messages(subscribe(raw(replica), "list")) == [b"m"]
    assert equal(client, replica.client())


def test_time_does_not_pull_primary_and_replica_apart(primary: redis.Redis, replica: redis.Redis) -> None:
    set_policies(primary, "* ttl=100 last=on")
    primary.publish("ch", "m")
    eventually(lambda: caught_up(primary, replica))
    now_ms = time.time_ns() // 1_000_000
    [on_primary, on_replica] = [client.pexpiretime(held_key("ch")) for client in (primary, replica)]
    assert on_primary == on_replica
    assert now_ms < on_primary <= now_ms + 100_000 * (TTL_SLACK + 1) // TTL_SLACK + 1
    primary.flushall()
    set_policies(primary, "* ttl=1 last=on")
    primary.publish("ch", "m")
    eventually(lambda: primary.dbsize() == 0 and replica.dbsize() == 0)
    assert equal(primary, replica)


# --- Pub/sub through replicas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["* hold=unheard", "* hold=all", "* last=on", "* hold=none", "other"])
def test_subscribers_of_a_replica_hear_each_publish_of_the_primary_once(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw, rule: str
) -> None:
    set_policies(primary, rule)
    set_policies(replica, rule)
    here, there = raw(pair.primary), raw(pair.replica)
    subscribe(here, "other")
    subscribe(there, "ch", "other")
    assert primary.publish("ch", "one") == 0  # only its own receivers are counted
    primary.publish("other", "two")
    publish_in_transaction(primary, ("ch", "three"), ("ch", "four"))
    primary.eval("redis.call('PUBLISH', 'ch', 'five')", 0)
    primary.execute_command("CHANNEL.PUBLISH", "ch", "six")
    eventually(lambda: caught_up(primary, replica))
    assert messages(there.pending()) == [b"one", b"two", b"three", b"four", b"five", b"six"]
    assert messages(here.pending()) == [b"two"]
    assert equal(primary, replica)


def test_subscribers_of_a_replica_that_was_cut_off_hear_what_was_published_meanwhile(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw
) -> None:
    listener = raw(pair.replica)
    subscribe(listener, "ch")
    full = replica_syncs(primary)
    for start in (0, 10, 20):
        primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
        for number in range(start, start + 10):
            primary.publish("ch", number)
        eventually(lambda: caught_up(primary, replica))
    assert messages(listener.pending()) == [b"%d" % number for number in range(30)]
    assert replica_syncs(primary) == full  # it came back by continuing where it was
    assert equal(primary, replica)


def replica_syncs(client: redis.Redis) -> int:
    """How often a replica had to be given everything."""
    return int(client.info("stats")["sync_full"])


def test_shard_channels_are_heard_on_a_replica_too(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw
) -> None:
    there = raw(pair.replica)
    subscribe(there, "ch", command="SSUBSCRIBE")
    primary.execute_command("SPUBLISH", "ch", "one")
    primary.execute_command("CHANNEL.SPUBLISH", "ch", "two")
    eventually(lambda: caught_up(primary, replica))
    assert messages(there.pending()) == [b"one", b"two"]
    assert equal(primary, replica)


def test_a_hand_off_on_the_primary_is_not_heard_on_the_replica(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw
) -> None:
    set_policies(primary, "* deliver=held")
    primary.publish("ch", "held")
    there = raw(pair.replica)
    there.send("SUBSCRIBE", "ch")
    there.pending()
    assert messages(subscribe(raw(pair.primary), "ch")) == [b"held"]
    assert equal(primary, replica)
    assert there.pending() == []
    assert replica.dbsize() == 0


def test_a_publish_on_a_replica_reaches_its_subscribers_and_holds_nothing(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw
) -> None:
    listener = raw(pair.replica)
    subscribe(listener, "ch")
    for command in ("PUBLISH", "CHANNEL.PUBLISH"):
        assert replica.execute_command(command, "ch", "m") == 1
        assert replica.execute_command(command, "nobody", "m") == 0
    assert replica.execute_command("SPUBLISH", "nobody", "m") == 0
    assert messages(listener.pending()) == [b"m", b"m"]
    assert equal(primary, replica)
    assert replica.dbsize() == 0


def test_a_writable_replica_holds_nothing_of_its_own(pair: Pair, primary: redis.Redis, replica: redis.Redis) -> None:
    replica.config_set("replica-read-only", "no")
    replica.publish("nobody", "m")
    assert pair.replica.process.running
    assert equal(primary, replica)


@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_new_subscriber_of_a_replica_gets_the_last_message_and_changes_nothing(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw, command: str, name: str, protocol: int
) -> None:
    primary.publish("ch", "one")
    primary.publish("ch", "two")
    eventually(lambda: caught_up(primary, replica))
    changes = replica.info("persistence")["rdb_changes_since_last_save"]
    subscriber = raw(pair.replica, protocol)
    assert messages(subscribe(subscriber, name, command=command)) == [b"two"]
    second = raw(pair.replica, protocol)
    assert messages(subscribe(second, name, command=command)) == ([b"two"] if serves_each(replica) else [])
    assert replica.info("persistence")["rdb_changes_since_last_save"] == changes
    assert held(replica, "ch") == [b"one", b"two"]
    assert equal(primary, replica)
    primary.publish("ch", "live")
    eventually(lambda: caught_up(primary, replica))
    assert messages(subscriber.pending()) == [b"live"]


@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_a_replica_never_takes_a_backlog_out(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw, command: str, name: str
) -> None:
    for client in (primary, replica):
        set_policies(client, "* deliver=held")
    for number in range(10):
        primary.publish("ch", number)
    eventually(lambda: caught_up(primary, replica))
    assert messages(subscribe(raw(pair.replica), name, command=command)) in ([], [b"9"])
    assert equal(primary, replica)
    assert messages(subscribe(raw(pair.primary), name, command=command)) == [b"%d" % number for number in range(10)]
    assert equal(primary, replica)
    assert replica.dbsize() == 0


def test_the_last_message_can_be_read_on_a_replica(primary: redis.Redis, replica: redis.Redis) -> None:
    primary.publish("ch", "m")
    eventually(lambda: caught_up(primary, replica))
    assert replica.execute_command("CHANNEL.LAST", "ch") == b"m"
    assert replica.execute_command("CHANNEL.POLICY", "ch")[0] == b"*"


def test_what_has_expired_is_not_handed_over_on_a_replica(
    pair: Pair, primary: redis.Redis, replica: redis.Redis, raw: MakeRaw
) -> None:
    primary.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")  # the replica is not told
    try:
        set_policies(primary, "* ttl=1")
        primary.publish("ch", "m")
        eventually(lambda: caught_up(primary, replica))
        eventually(lambda: replica.execute_command("CHANNEL.LAST", "ch") is None)
        assert subscribe(raw(pair.replica), "ch") == []
        assert subscribe(raw(pair.replica), "c*", command="PSUBSCRIBE") == []
    finally:
        primary.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")


# --- Changing roles ---------------------------------------------------------------------------------------------------


def test_a_promoted_replica_holds_and_hands_over(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, promoted = primary.client(), replica.client()
    for server_client in (client, promoted):
        set_policies(server_client, "* deliver=held")
    for number in range(10):
        client.publish("ch", number)
    assert client.wait(1, 10_000) == 1
    primary.kill()
    promoted.replicaof("NO", "ONE")
    assert promoted.publish("ch", "after") == 0
    assert messages(subscribe(raw(replica), "c*", command="PSUBSCRIBE")) == [
        *[b"%d" % number for number in range(10)],
        b"after",
    ]
    assert promoted.dbsize() == 0
    assert promoted.execute_command("HOLDMQ.CHECK") == []


def test_a_primary_that_becomes_a_replica_stops_holding(fresh_server: MakeServer) -> None:
    old, new = fresh_server(), fresh_server()
    client = old.client()
    client.publish("ch", "lost by the change of roles")
    new.client().publish("ch2", "m")
    client.replicaof("127.0.0.1", new.port)
    eventually(lambda: client.info("replication")["master_link_status"] == "up")
    assert client.publish("nobody", "m") == 0
    assert equal(new.client(), client)
    assert client.keys("*") == [held_key("ch2").encode()]
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert information(client)["held_lists"] == 1


def test_a_held_message_is_covered_by_wait(primary: redis.Redis, replica: redis.Redis) -> None:
    for number in range(20):
        primary.publish("ch", number)
        assert primary.wait(1, 10_000) == 1
        assert replica.lrange("ch", -1, -1) == [b"%d" % number]


def test_a_stale_replica_that_serves_nothing_answers_as_usual(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, config=["replica-serve-stale-data no"])
    primary.kill()
    client = replica.client()
    eventually(lambda: client.info("replication")["master_link_status"] == "down")
    connection = raw(replica)
    assert connection.call("PUBLISH", "ch", "m") == 0  # PUBLISH is served by a stale replica
    assert connection.call("CHANNEL.PUBLISH", "ch", "m") == 0
    connection.send_all(("SUBSCRIBE", "ch"), ("UNSUBSCRIBE", "ch"))
    assert connection.read_many(2) == [[b"subscribe", b"ch", 1], [b"unsubscribe", b"ch", 0]]
    with pytest.raises(ReplyError, match="MASTERDOWN"):
        raw(replica).call("CHANNEL.LAST", "ch")


# --- Append-only file and snapshots -----------------------------------------------------------------------------------


def test_held_messages_survive_a_crash_in_the_append_only_file(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    some_of_everything(client, server)
    client.config_rewrite()  # the policies
    before, times = digest(client), expiries(client)
    server.kill()
    server.restart()
    client = server.client()
    assert digest(client) == before
    assert expiries(client) == times
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert messages(subscribe(raw(server), "plain")) == [b"in EVAL"]
    assert len(subscribe(raw(server), "short:*", command="PSUBSCRIBE")) == 3


def test_each_acknowledged_message_survives_a_crash(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    publisher = raw(server)
    acknowledged = 0
    publisher.send_all(*[("PUBLISH", "ch", number) for number in range(5000)])
    while acknowledged < 500:
        assert publisher.read() == 0
        acknowledged += 1
    server.kill()
    server.restart()
    kept = held(server.client(), "ch")
    assert kept == [b"%d" % number for number in range(len(kept))]
    assert len(kept) >= acknowledged


def test_with_a_replica_the_append_only_file_holds_no_publish_either(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    replica = fresh_server(replica_of=server)
    listener = raw(replica)
    subscribe(listener, "plain")
    some_of_everything(server.client(), server)
    assert equal(server.client(), replica.client())
    assert messages(listener.pending()) == [
        *[b"%d" % number * 10 for number in range(8)],
        b"in MULTI",
        b"in EVAL",
    ]
    text = b"".join(path.read_bytes() for path in (server.directory / "appendonlydir").iterdir())
    assert b"RPUSH" in text
    assert b"PUBLISH" not in text


# --- While loading ----------------------------------------------------------------------------------------------------


def test_a_loading_server_serves_publish_and_subscribe_and_loses_nothing(
    fresh_server: MakeServer, raw: MakeRaw
) -> None:
    server = fresh_server(config=["key-load-delay 10000", "loading-process-events-interval-bytes 1024"])
    client = server.client()
    set_policies(client, "* deliver=held")
    for number in range(2000):
        client.rpush(f"filler:{number}", bytes(100))
    client.publish("ch", "held")
    publisher, subscriber, reloader = raw(server), raw(server), raw(server)
    reloader.timeout_s = 30
    reloader.send("DEBUG", "RELOAD")
    eventually(lambda: client.info("persistence")["loading"] == 1)
    assert publisher.call("PUBLISH", "nobody", "m") == 0
    assert publisher.call("CHANNEL.PUBLISH", "nobody", "m") == 0
    subscriber.send("SUBSCRIBE", "ch")
    assert client.info("persistence")["loading"] == 1
    client.config_set("key-load-delay", 0)  # it would take 20 seconds
    assert reloader.read() == "OK"
    assert held(client, "nobody") == []
    heard = messages(subscriber.pending())
    assert heard + held(client, "ch") == [b"held"]
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert client.publish("nobody", "m") == 0
    assert held(client, "nobody") == [b"m"]


@pytest.mark.parametrize("rewritten", [False, True])
def test_the_append_only_file_loads_in_a_server_without_the_module(fresh_server: MakeServer, rewritten: bool) -> None:
    server = fresh_server(aof=True, config=["appendfsync always", "aof-use-rdb-preamble no"])
    client = server.client()
    some_of_everything(client, server)
    if rewritten:
        client.bgrewriteaof()
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"] and rewritten_once(server))
        client.publish("plain", "behind the rewrite")
    before, times = digest(client), expiries(client)
    server.kill()
    text = b"".join(path.read_bytes() for path in (server.directory / "appendonlydir").iterdir())
    for name in (b"CHANNEL.", b"channel.", b"PUBLISH", b"HOLDMQ"):
        assert name not in text
    server.restart(module=False)
    client = server.client()
    assert digest(client) == before
    assert expiries(client) == times


def rewritten_once(server: Server) -> bool:
    """Whether the append-only file has its second base."""
    return any(".2.base" in path.name for path in (server.directory / "appendonlydir").iterdir())


def test_a_snapshot_loads_in_a_server_without_the_module_and_back(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(config=["dbfilename held.rdb"])
    client = server.client()
    some_of_everything(client, server)
    before, times = digest(client), expiries(client)
    client.save()
    server.kill()
    server.restart(module=False)
    client = server.client()
    assert digest(client) == before
    assert expiries(client) == times
    client.rpush(held_key("plain"), "by hand")
    client.save()
    server.kill()
    server.restart(module=True)
    client = server.client()
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert messages(subscribe(raw(server), "plain")) == [b"by hand"]
    client.publish("plain2", "m")
    assert client.execute_command("HOLDMQ.CHECK") == []


def test_a_module_that_is_loaded_at_runtime_knows_what_is_there(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(module=False)
    client = server.client()
    client.rpush(held_key("ch"), "m")
    client.rpush("list", "an application's")
    listener = raw(server)
    subscribe(listener, "old")
    client.module_load(str(find_module()))
    assert client.execute_command("HOLDMQ.CHECK") == []
    assert client.publish("old", "m") == 1
    assert client.publish("new", "m") == 0
    assert held(client, "new") == [b"m"]
    came = subscribe(raw(server), "*", command="PSUBSCRIBE")
    assert sorted(value[2] for value in came) == [b"ch", b"new"]
    assert messages(listener.pending()) == [b"m"]


def test_reloads_one_after_the_other_change_nothing(primary: redis.Redis, pair: Pair) -> None:
    some_of_everything(primary, pair.primary)
    before = digest(primary)
    for _ in range(3):
        primary.execute_command("DEBUG", "RELOAD")
        assert digest(primary) == before
        assert primary.execute_command("HOLDMQ.CHECK") == []


def test_a_replica_serves_while_it_loads_beside_its_data(fresh_server: MakeServer) -> None:
    """With repl-diskless-load swapdb a replica that fell behind serves its former data until it has the new ones."""
    config = ["repl-diskless-sync yes", "repl-diskless-sync-delay 0", "repl-backlog-size 16384"]
    primary = fresh_server(config=config)
    aside = ["repl-diskless-load swapdb", "loading-process-events-interval-bytes 1024"]
    replica = fresh_server(config=aside, replica_of=primary)
    writer, reader = primary.client(), replica.client()
    writer.publish("former", "m")
    eventually(lambda: information(reader)["held_lists"] == 1)
    pid = reader.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        writer.execute_command("CLIENT", "KILL", "TYPE", "replica")
        writer.flushall()
        pipeline = writer.pipeline(transaction=False)
        for number in range(1000):
            pipeline.publish(f"new{number}", bytes(100))
        pipeline.execute()
        writer.config_set("rdb-key-save-delay", 3000)  # three seconds in all
    finally:
        os.kill(pid, signal.SIGCONT)
    served = []

    def loaded() -> bool:
        assert reader.execute_command("HOLDMQ.CHECK") == []
        if reader.info("persistence")["async_loading"] == 1:
            served.append(reader.lrange("former", 0, -1))
        return bool(information(reader)["held_lists"] == 1000)

    eventually(loaded, 30)
    assert [b"m"] in served, "the replica did not serve while it loaded"
    assert reader.lrange("former", 0, -1) == []
    assert reader.execute_command("HOLDMQ.CHECK") == []
