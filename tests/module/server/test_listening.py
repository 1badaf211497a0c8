"""The module listens to an event of the server only while it needs it, and misses none that matters."""

from collections.abc import Callable, Sequence

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    held,
    information,
    messages,
    subscribe,
)
from tests.module.sessions_support import Session, payloads, publish, wait_for_replica
from tests.support import Server, eventually

NONE = 0
POLICY = ['holdmq.policies "*"']
FUNCTION = "#!lua name=lib\nredis.register_function('{0}', function() return redis.call({1}) end)"
Words = Sequence[Part]


def events(client: redis.Redis) -> int:
    """How many kinds of events the server reports to the module."""
    return int(information(client)["server_events"])


def put_in_use(client: redis.Redis) -> None:
    """Let the module keep a message of a channel and a session, and wait until it listens to nothing."""
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    eventually(lambda: events(client) == NONE, what="a module that listens to nothing")


def by_script(client: redis.Redis, words: Words) -> None:
    client.eval("return redis.call(unpack(ARGV))", 0, *map(str, words))


def by_function(client: redis.Redis, words: Words) -> None:
    called = ", ".join(repr(str(word)) for word in words)
    client.function_load(FUNCTION.format("run_it", called))
    client.fcall("run_it", 0)


def by_transaction(client: redis.Redis, words: Words) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command(*words)
        pipe.execute()


def after_a_pause(client: redis.Redis, words: Words) -> None:
    """The command arrives while writes are paused, and runs later."""
    client.client_pause(200, all=False)
    client.execute_command(*words)


def by_itself(client: redis.Redis, words: Words) -> None:
    client.execute_command(*words)


WAYS: dict[str, Callable[[redis.Redis, Words], None]] = {
    "by itself": by_itself,
    "by a script": by_script,
    "by a function": by_function,
    "in a transaction": by_transaction,
    "after a pause": after_a_pause,
}


def check_empty(client: redis.Redis, what: str) -> None:
    """Nothing is known in the database of what `put_in_use` made, and new things are."""
    if "SWAPDB" not in what:
        assert information(client)["held_lists"] == 0, what
    assert held(client, "ch") == []
    assert publish(client, "a/b", "m") == 0
    assert client.publish("ch", "again") == 0
    assert held(client, "ch") == [b"again"]


def test_a_server_that_holds_messages_listens_to_no_event(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(config=['holdmq.policies "orders:new"'])
    client, subscriber = server.client(), raw(server)
    assert events(client) == 0
    client.publish("orders:new", "held")
    assert subscribe(subscriber, "other") == []
    eventually(lambda: events(client) == NONE, what="a module that listens to nothing")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", [("FLUSHALL",), ("FLUSHDB", "ASYNC"), ("flushdb",)], ids=" ".join)
def test_a_database_that_is_emptied_is_noticed(fresh_server: MakeServer, way: str, words: Words) -> None:
    client = fresh_server(config=POLICY).client()
    put_in_use(client)
    WAYS[way](client, words)
    check_empty(client, way)


@pytest.mark.parametrize("way", WAYS)
def test_databases_that_are_swapped_are_noticed(fresh_server: MakeServer, way: str) -> None:
    client = fresh_server(config=POLICY).client()
    put_in_use(client)
    WAYS[way](client, ("SWAPDB", 0, 1))
    assert held(client, "ch") == []
    assert publish(client, "a/b", "m") == 0
    client.swapdb(0, 1)
    assert held(client, "ch") == [b"held"]
    assert publish(client, "a/b", "m") == 1


@pytest.mark.parametrize("words", [("FLUSHALL",), ("SWAPDB", 0, 1)], ids=lambda words: words[0])
def test_a_command_that_was_queued_before_anything_was_kept_is_noticed(
    fresh_server: MakeServer, raw: MakeRaw, words: Words
) -> None:
    server = fresh_server(config=POLICY)
    client, queues = server.client(), raw(server)
    assert answers(queues, ["MULTI"], words) == ["OK", "QUEUED"]
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    eventually(lambda: information(client)["turns_heard"] > 20, what="a module that follows")
    assert answers(queues, ["EXEC"]) == [["OK"]]
    check_empty(client, str(words[0]))


@pytest.mark.parametrize("name", ["FLUSHALL", "SWAPDB"])
def test_a_renamed_command_is_noticed(fresh_server: MakeServer, name: str) -> None:
    client = fresh_server(config=[*POLICY, f"rename-command {name} renamed"]).client()
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    eventually(lambda: events(client) == 1, what="a module that listens to the command's event")
    client.execute_command("renamed", *([0, 1] if name == "SWAPDB" else []))
    check_empty(client, name)


def test_a_restarted_server_listens_to_nothing_again(fresh_server: MakeServer) -> None:
    """While it loads its file it listens to more: the commands in it pass no filter."""
    server = fresh_server(aof=True, config=[*POLICY, "appendfsync always", "aof-use-rdb-preamble no"])
    client = server.client()
    client.publish("before", "flushed")
    client.flushall()
    put_again(client)
    server.restart()
    client = server.client()
    eventually(lambda: events(client) == NONE, what="a module that listens to nothing")
    assert information(client)["held_lists"] == 1
    assert held(client, "ch") == [b"held"]
    assert publish(client, "a/b", "m") == 1
    client.flushall()
    check_empty(client, "after the restart")


def put_again(client: redis.Redis) -> None:
    """What `put_in_use` makes, on a server that has seen FLUSHALL."""
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))


def test_a_heard_channel_holds_its_messages_once_its_subscriber_is_gone(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(config=POLICY)
    client, subscriber = server.client(), raw(server)
    put_in_use(client)
    assert subscribe(subscriber, "news") == []
    assert client.publish("news", "heard") == 1
    assert client.publish("news", "heard, too") == 1
    assert messages(subscriber.pending()) == [b"heard", b"heard, too"]
    eventually(lambda: events(client) == 1, what="a module that listens to clients that go")
    subscriber.close()
    eventually(lambda: client.pubsub_numsub("news") == [(b"news", 0)])
    assert client.publish("news", "held") == 0
    assert held(client, "news") == [b"held"]


def wait_for_link(copy: redis.Redis) -> None:
    """Until the replica receives what its primary writes."""
    eventually(lambda: copy.info("replication").get("master_link_status") == "up", 20, "a replica with a link")


def make_replica(copy: redis.Redis, of: Server, how: str) -> None:
    """As an operator does, or as Sentinel does."""
    if how == "a transaction":
        with copy.pipeline(transaction=True) as pipe:
            pipe.execute_command("SLAVEOF", "127.0.0.1", of.port)
            pipe.execute()
    else:
        copy.execute_command(how, "127.0.0.1", of.port)


@pytest.mark.parametrize("how", ["REPLICAOF", "slaveof", "a transaction"])
def test_a_primary_in_use_that_becomes_a_replica_follows_all_data(fresh_server: MakeServer, how: str) -> None:
    primary, former = fresh_server(config=POLICY), fresh_server(config=POLICY)
    client, copy = primary.client(), former.client()
    put_in_use(copy)
    copy.publish("lost", "its own")
    client.publish("ch", "of the primary")
    make_replica(copy, primary, how)
    wait_for_link(copy)
    wait_for_replica(client, copy)
    assert held(copy, "lost") == []
    assert held(copy, "ch") == [b"of the primary"]
    client.swapdb(0, 1)
    client.swapdb(0, 1)
    client.flushall()
    wait_for_replica(client, copy)
    assert information(copy)["held_lists"] == 0
    client.publish("ch", "later")
    wait_for_replica(client, copy)
    as_replica = events(copy)
    copy.replicaof("NO", "ONE")
    assert held(copy, "ch") == [b"later"]
    eventually(lambda: events(copy) < as_replica, what="a primary that listens to less than a replica")
    copy.flushall()
    check_empty(copy, "after the promotion")


def test_both_servers_know_of_a_failover(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server(config=POLICY)
    client = primary.client()
    put_in_use(client)
    replica = fresh_server(config=[*POLICY, f"replicaof 127.0.0.1 {primary.port}"])
    copy = replica.client()
    wait_for_link(copy)
    client.set("k", 1)
    wait_for_replica(client, copy)
    eventually(lambda: client.info("replication")["slave0"]["state"] == "online", what="a replica that may take over")
    client.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
    eventually(lambda: copy.role()[0] == b"master" and client.role()[0] == b"slave", what="a failover")
    assert publish(copy, "a/b", "m") == 1
    assert payloads(Session(copy).fetch().entries) == [b"m"]
    assert messages(subscribe(raw(replica), "ch")) == [b"held"]
    wait_for_link(client)
    copy.flushall()
    copy.publish("other", "of the new primary")
    eventually(lambda: held(client, "other") == [b"of the new primary"], what="a message on the replica")
    assert information(client)["held_lists"] == 1
    client.replicaof("NO", "ONE")
    assert client.publish("other", "here") == 0
    assert held(client, "other") == [b"of the new primary", b"here"]
