"""A module with an empty policy sees no command of the application until somebody uses it, and then misses nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from holdmq.server import find_module
from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    held_key,
    knows_clients,
    last_key,
    messages,
    sees_commands,
    serves_each,
    set_policies,
    stock,
    subscribe,
)
from tests.module.sessions_support import Session, payloads, publish, wait_for_replica
from tests.support import ServerKind, Status, eventually

EMPTY = ['holdmq.policies ""']
Use = Callable[[redis.Redis], Any]


def application(client: redis.Redis) -> None:
    """What an application does that has nothing to do with HoldMQ."""
    client.publish("ch", "m")
    client.set("k", 1)
    client.rpush("ch", "job")
    client.hset("h", "f", 1)
    client.eval("return redis.call('PUBLISH', KEYS[1], 'm')", 1, "ch")
    with client.pipeline(transaction=True) as pipe:
        pipe.set("k", 2)
        pipe.publish("ch", "m")
        pipe.execute()
    client.swapdb(0, 1)
    client.swapdb(0, 1)
    client.flushall()


def restore_a_session(client: redis.Redis) -> None:
    client.hset("{s}_subscriptions", "a/#", 1)


def restore_a_list(client: redis.Redis) -> None:
    client.rpush(held_key("ch"), "m")


USES: dict[str, Use] = {
    "a policy": lambda client: set_policies(client, "orders:*"),
    "a dry run": lambda client: client.execute_command("CHANNEL.DRYRUN", "START", "SECONDS", 60),
    "a command": lambda client: client.execute_command("HOLDMQ.CHECK"),
    "a command of a script": lambda client: client.eval("return redis.call('CHANNEL.LEN', KEYS[1])", 1, "ch"),
    "a session's key": restore_a_session,
    "a channel's list": restore_a_list,
}


@pytest.mark.parametrize("use", USES)
def test_the_module_sees_no_command_before_it_is_used(fresh_server: MakeServer, use: str) -> None:
    client = fresh_server(config=EMPTY).client()
    application(client)
    assert not sees_commands(client)
    USES[use](client)
    assert sees_commands(client)


def test_a_module_with_a_policy_sees_commands_from_the_start(fresh_server: MakeServer) -> None:
    client = fresh_server().client()
    assert sees_commands(client)


@pytest.mark.parametrize("aof", [True, False], ids=["AOF", "RDB"])
def test_what_was_kept_wakes_the_module_after_a_restart(fresh_server: MakeServer, raw: MakeRaw, aof: bool) -> None:
    server = fresh_server(aof=aof, config=[*EMPTY, *(["appendfsync always"] if aof else [])])
    client = server.client()
    set_policies(client, "*")
    client.publish("ch", "held")
    client.save()
    set_policies(client, "")
    server.restart()
    client = server.client()
    eventually(lambda: sees_commands(client), what="a module that has seen what was loaded")
    assert client.lrange("ch", 0, -1) == [b"held"]
    set_policies(client, "*")
    assert messages(subscribe(raw(server), "ch")) == [b"held"]


CROWD = 600
"""More clients than the module looks at when it wakes."""


@pytest.mark.parametrize("others", [0, CROWD])
def test_clients_that_came_before_are_known_when_the_policy_is_set(
    fresh_server: MakeServer, raw: MakeRaw, others: int
) -> None:
    """As when the module is loaded into a running server: it has seen no MULTI, SUBSCRIBE and MONITOR."""
    server = fresh_server(config=EMPTY)
    _crowd = [raw(server) for _ in range(others)]
    client, queues, subscriber, monitor = server.client(), raw(server), raw(server), raw(server)
    assert queues.call("MULTI") == "OK"
    assert subscribe(subscriber, "other") == []
    assert monitor.call("MONITOR") == "OK"
    set_policies(client, "* hold=all")
    assert answers(queues, ["PUBLISH", "ch", "m"], ["DISCARD"]) == ["QUEUED", "OK"]
    [refusal] = answers(subscriber, ["PUBLISH", "ch", "m"])
    refused = "publish" if knows_clients(client) else "CHANNEL.PUBLISH"
    assert refusal.startswith(f"-ERR Can't execute '{refused}'")
    monitor.send("PUBLISH", "ch", "m")
    while isinstance(reply := monitor.read(), Status):
        pass
    assert str(reply).startswith("ERR Replica can't interact with the keyspace")
    assert client.keys() == []


def test_of_many_clients_each_is_looked_at_when_it_matters(fresh_server: MakeServer, raw: MakeRaw) -> None:
    """The first use of the module is a short step, however many clients are connected."""
    server = fresh_server(config=EMPTY)
    crowd = [raw(server) for _ in range(CROWD)]
    client, untouching = server.client(), raw(server)
    client.rpush("jobs", "m")
    assert untouching.call("CLIENT", "NO-TOUCH", "ON") == "OK" if serves_each(client) else True
    client.config_resetstat()
    set_policies(client, "*")
    assert "cmdstat_client|list" not in client.info("commandstats")
    for _ in range(3):
        assert [one.call("PUBLISH", "ch", "m") for one in (crowd[0], crowd[-1])] == [0, 0]
    assert untouching.call("PUBLISH", "ch", "m") == 0
    assert client.llen("ch") == 7
    lists = client.info("commandstats").get("cmdstat_client|list", {"calls": 0})["calls"]
    assert lists <= 4  # one for each client that published, and one for this one


def test_a_transaction_of_one_of_many_clients_is_noticed(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(config=EMPTY)
    _crowd = [raw(server) for _ in range(CROWD)]
    client, queues = server.client(), raw(server)
    queued: list[list[Part]] = [["MULTI"], ["SUBSCRIBE", "ch"], ["PUBLISH", "ch", "m"]]
    assert answers(queues, *queued)[0] == "OK"
    set_policies(client, "*")
    assert client.publish("ch", "held") == 0
    queues.send("EXEC")
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 1)], what="a subscriber")
    assert client.publish("ch", "heard") == 1
    queues.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)], what="no subscriber")
    assert client.publish("ch", "held again") == 0
    assert client.lrange("ch", 0, -1)[-1:] == [b"held again"]


@pytest.mark.parametrize("others", [0, CROWD])
def test_a_subscriber_that_came_before_keeps_a_message_from_being_held(
    fresh_server: MakeServer, raw: MakeRaw, others: int
) -> None:
    server = fresh_server(config=EMPTY)
    _crowd = [raw(server) for _ in range(others)]
    client, subscriber = server.client(), raw(server)
    assert subscribe(subscriber, "ch") == []
    set_policies(client, "*")
    assert client.publish("ch", "heard") == 1
    assert messages(subscriber.pending()) == [b"heard"]
    subscriber.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert client.publish("ch", "held") == 0
    assert client.lrange("ch", 0, -1) == [b"held"]


@pytest.mark.parametrize("awake", [False, True], ids=["asleep", "awake"])
def test_the_first_command_of_all_may_be_that_of_a_script(fresh_server: MakeServer, raw: MakeRaw, awake: bool) -> None:
    """A script has the rights of the user who runs it, although the module has not seen the EVAL."""
    server = fresh_server(config=EMPTY)
    client, other = server.client(), raw(server)
    assert other.call("PING") == "PONG"
    client.execute_command("ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*", "resetchannels", "&mine/*")
    limited = raw(server)
    assert limited.call("AUTH", "u", "any") == Status("OK")
    if awake:
        client.execute_command("HOLDMQ.CHECK")
    serves = serves_each(client)  # else nobody knows who runs a script
    script = "return redis.call('TOPIC.PUBLISH', ARGV[1], 'm')"
    if serves:
        assert answers(limited, ["EVAL", script, 0, "mine/1"]) == [0]
    refusal = str(answers(limited, ["EVAL", script, 0, "yours/1"])[0])
    assert "permissions" in refusal or "can't publish to the channel" in refusal  # the second is 7.0's
    assert answers(other, ["EVAL", script, 0, "yours/1"]) == [0] if serves else True


def test_a_replica_that_came_before_gets_what_the_first_command_writes(fresh_server: MakeServer) -> None:
    primary = fresh_server(config=EMPTY)
    replica = fresh_server(config=[*EMPTY, f"replicaof 127.0.0.1 {primary.port}"])
    client, copy = primary.client(), replica.client()
    client.set("k", 1)
    wait_for_replica(client, copy)
    assert not sees_commands(client)
    Session(client).add("first")
    wait_for_replica(client, copy)
    assert copy.keys("{c}_messages_*") == [b"{c}_messages_1"]
    set_policies(client, "*")
    client.publish("ch", "held")
    wait_for_replica(client, copy)
    assert copy.lrange(held_key("ch"), 0, -1) == [b"held"]


@pytest.mark.parametrize("how", ["script", "transaction", "copy", "pause"])
def test_the_module_wakes_in_the_middle_of_anything(fresh_server: MakeServer, raw: MakeRaw, how: str) -> None:
    """A key that wakes it is written where no command of a client runs by itself."""
    server = fresh_server(config=EMPTY)
    client, other = server.client(), raw(server)
    if how == "script":
        client.eval(
            "redis.call('HSET', KEYS[1], 'a/#', 1) return redis.call('PUBLISH', 'x', 'm')", 1, "{c}_subscriptions"
        )
    elif how == "transaction":
        queued: list[list[Part]] = [["MULTI"], ["HSET", "{c}_subscriptions", "a/#", 1], ["SUBSCRIBE", "y"], ["EXEC"]]
        assert answers(other, *queued)[-1][0] == 1
    elif how == "copy":
        client.hset("h", "a/#", 1)
        client.copy("h", "{c}_subscriptions")
    else:
        client.client_pause(500)
        other.send("HSET", "{c}_subscriptions", "a/#", 1)
    eventually(lambda: sees_commands(client), what="a module that is awake")
    assert publish(client, "a/b", "m") == 1
    assert payloads(Session(client).fetch().entries) == [b"m"]


def test_a_policy_that_is_set_while_clients_are_paused_holds_what_comes_then(
    fresh_server: MakeServer, raw: MakeRaw
) -> None:
    server = fresh_server(config=EMPTY)
    client, other = server.client(), raw(server)
    client.client_pause(2000, all=False)
    other.send("PUBLISH", "ch", "m")  # it waits, and the module has not seen it
    set_policies(client, "*")
    client.client_unpause()
    assert other.read() == 0
    eventually(lambda: client.publish("ch", "n") == 0 and client.llen("ch") >= 1, what="a message that is held")


def test_a_replica_that_was_the_primary_of_itself_is_awake(fresh_server: MakeServer) -> None:
    """A sleeping server is made a replica: keys that are loaded beside the served ones are not taken for these."""
    primary = fresh_server(config=EMPTY)
    replica = fresh_server(config=[*EMPTY, "repl-diskless-load swapdb"])
    client, copy = primary.client(), replica.client()
    session = Session(client)
    session.subscribe(("a/#", 1))
    copy.replicaof("127.0.0.1", primary.port)
    eventually(lambda: copy.hgetall("{c}_subscriptions"), what="a replica that has the session")
    copy.replicaof("NO", "ONE")
    assert publish(copy, "a/b", "m") == 1
    assert payloads(Session(copy).fetch().entries) == [b"m"]


@pytest.mark.parametrize("kind", ["held", "last"])
def test_a_sleeping_replica_knows_what_it_loaded_beside_its_data(fresh_server: MakeServer, kind: str) -> None:
    asleep = ['holdmq.policies ""', "repl-diskless-load swapdb"]
    primary = fresh_server(config=asleep)
    writer = primary.client()
    writer.rpush(held_key("ch") if kind == "held" else last_key("ch"), "m")
    replica = fresh_server(config=asleep)
    reader = replica.client()
    reader.replicaof("127.0.0.1", primary.port)
    eventually(lambda: reader.info("replication")["master_link_status"] == "up", 20, "a replica that has loaded")
    set_policies(reader, "* last=on")
    assert reader.execute_command("CHANNEL.LAST", "ch") == b"m"
    assert reader.execute_command("HOLDMQ.CHECK") == []


def test_a_database_that_is_emptied_or_swapped_after_the_first_use_is_noticed(fresh_server: MakeServer) -> None:
    client = fresh_server(config=EMPTY).client()
    Session(client).subscribe(("a/#", 1))
    client.swapdb(0, 1)
    assert publish(client, "a/b", "m") == 0
    client.swapdb(0, 1)
    assert publish(client, "a/b", "m") == 1
    client.flushdb()
    assert publish(client, "a/b", "m") == 0


def test_a_sleeping_module_can_be_unloaded_and_loaded_again(server_kind: ServerKind, tmp_path: Path) -> None:
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client = server.client()
        load = ["MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", ""]
        for _ in range(3):
            client.execute_command(*load)
            application(client)
            client.rpush("orders", "j")
            client.execute_command("MODULE", "UNLOAD", "holdmq")
            application(client)
            assert "holdmq" not in str(client.info("modules"))
        client.execute_command(*load)
        set_policies(client, "*")
        client.publish("ch-1", "held")
        assert client.lrange("ch-1", 0, -1) == [b"held"]
        with pytest.raises(redis.ResponseError):
            client.execute_command("MODULE", "UNLOAD", "holdmq")


def test_a_module_that_keeps_nothing_does_not_listen_to_the_event_loop(fresh_server: MakeServer) -> None:
    """It has a policy for another channel, so it sees commands, but nothing to follow."""
    client = fresh_server(config=['holdmq.policies "orders:new"']).client()
    assert sees_commands(client)
    for number in range(20):
        client.set("k", number)
        client.publish("other", "m")
    assert client.info("holdmq")["holdmq_turns_heard"] == 0
    client.publish("orders:new", "held")
    assert client.lrange("orders:new", 0, -1) == [b"held"]
    eventually(lambda: client.info("holdmq")["holdmq_turns_heard"] > 0, what="a module that follows")
    client.flushall()
    assert client.lrange("orders:new", 0, -1) == []
    assert client.publish("orders:new", "again") == 0
    assert client.lrange("orders:new", 0, -1) == [b"again"]


def test_a_module_that_keeps_nothing_is_not_unloaded(server_kind: ServerKind, tmp_path: Path) -> None:
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client = server.client()
        client.execute_command("MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", "orders:new")
        for _ in range(2):
            with pytest.raises(redis.ResponseError):
                client.execute_command("MODULE", "UNLOAD", "holdmq")
        client.publish("orders:new", "held")
        assert client.lrange("orders:new", 0, -1) == [b"held"]


def test_data_that_is_loaded_again_is_known(fresh_server: MakeServer) -> None:
    """DEBUG RELOAD, of a server that was told so by nothing but the command."""
    client = fresh_server(config=['holdmq.policies "*"', "enable-debug-command yes"]).client()
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    eventually(lambda: client.info("holdmq")["holdmq_turns_heard"] > 0, what="a module that follows")
    for _ in range(2):
        client.execute_command("DEBUG", "RELOAD")
        assert client.lrange("ch", 0, -1) == [b"held"]
        assert publish(client, "a/b", "m") == 1


def test_a_load_that_was_queued_before_the_module_woke_is_noticed(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(config=[*EMPTY, "enable-debug-command yes"])
    client, queues = server.client(), raw(server)
    queued: list[list[Part]] = [["MULTI"], ["DEBUG", "RELOAD"], ["FLUSHALL"], ["PUBLISH", "ch", "m"]]
    assert answers(queues, *queued)[0] == "OK"
    set_policies(client, "*")
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    assert len(answers(queues, ["EXEC"])[0]) == len(queued) - 1
    assert publish(client, "a/b", "m") == 0
    assert client.publish("ch", "again") == 0
    assert client.lrange("ch", 0, -1)[-1:] == [b"again"]


@pytest.mark.parametrize("policy", ["", "orders:new"], ids=["asleep", "awake"])
def test_a_stop_of_a_module_that_keeps_nothing_is_clean(fresh_server: MakeServer, policy: str) -> None:
    server = fresh_server(config=[f'holdmq.policies "{policy}"'])
    server.stop()
    assert "ready to exit" in server.log_text()
    assert "Failed to unload" not in server.log_text()


def test_a_module_that_is_loaded_into_a_running_server_sleeps(server_kind: ServerKind, tmp_path: Path) -> None:
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client = server.client()
        client.rpush("jobs", "j")
        client.execute_command("MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", "")
        application(client)
        assert not sees_commands(client)
        set_policies(client, "orders")
        client.publish("orders", "held")
        assert client.lrange("orders", 0, -1) == [b"held"]
