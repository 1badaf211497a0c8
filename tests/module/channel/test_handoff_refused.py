"""A subscription that is refused, or comes in an awkward moment, loses no held message and gives none to others."""

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    Part,
    answers,
    held,
    held_key,
    information,
    knows_clients,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient, ReplyError, Server, eventually

MEGABYTE = 1 << 20
SUBSCRIBES = pytest.mark.parametrize("command", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])


@pytest.fixture(autouse=True)
def deliver_held(client: redis.Redis) -> None:
    """The policy of this file: what is handed over leaves the list, so that a loss shows."""
    set_policies(client, "* deliver=held")


def logged_in(connection: RawClient, client: redis.Redis, name: str, *rules: str) -> RawClient:
    """Make a user with these rules, and log the connection in as that user."""
    client.execute_command("ACL", "SETUSER", name, "on", "nopass", *rules)
    connection.call("AUTH", name, "any")
    return connection


@SUBSCRIBES
@pytest.mark.parametrize(
    "rules", [["~*", "&ok", "+@all"], ["~*", "&*", "+@all", "-@pubsub"]], ids=["channel", "command"]
)
def test_anyone_who_may_not_subscribe_gets_nothing_and_others_neither(
    client: redis.Redis, raw: MakeRaw, command: str, rules: list[str]
) -> None:
    client.publish("ch", "held")
    bystander = raw()
    subscribe(bystander, "bystanding")
    stranger = logged_in(raw(), client, "stranger", *rules)
    for _ in range(3):
        [reply] = answers(stranger, [command, "ch"])
        assert reply.startswith("-NOPERM")
    assert client.ping()
    other = raw()
    assert subscribe(other, "other") == []
    assert stranger.pending() == other.pending() == bystander.pending() == []
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(other, "ch")) == [b"held"]


@SUBSCRIBES
def test_a_refused_subscription_followed_by_a_granted_one_hands_over_only_the_second(
    client: redis.Redis, raw: MakeRaw, command: str
) -> None:
    client.publish("secret", "held")
    client.publish("ok", "held")
    stranger = logged_in(raw(), client, "stranger", "~*", "&ok", "+@all")
    stranger.send_all((command, "secret"), (command, "ok"), ("PING",))
    refusal, *rest = stranger.pending()
    assert isinstance(refusal, ReplyError)
    assert messages(rest) == ([b"held"] if command != "SSUBSCRIBE" or serves_each(client) else [])
    assert held(client, "secret") == [b"held"]


def test_of_several_channels_one_that_is_forbidden_refuses_all(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("secret", "held")
    client.publish("ok", "held")
    stranger = logged_in(raw(), client, "stranger", "~*", "&ok", "+@all")
    [reply] = answers(stranger, ["SUBSCRIBE", "ok", "secret"])
    assert reply.startswith("-NOPERM")
    assert stranger.pending() == []
    assert held(client, "ok") == held(client, "secret") == [b"held"]
    assert messages(subscribe(stranger, "ok")) == [b"held"]


def test_rights_that_are_withdrawn_between_multi_and_exec_hand_nothing_over(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("secret", "held")
    client.publish("ok", "held")
    stranger = logged_in(raw(protocol=3), client, "stranger", "~*", "&ok", "&secret", "+@all")
    answers(stranger, ["MULTI"], ["SUBSCRIBE", "secret"], ["SUBSCRIBE", "ok"])
    client.execute_command("ACL", "SETUSER", "stranger", "resetchannels", "&ok")
    stranger.send("EXEC")
    [replies, *rest] = stranger.pending()
    assert isinstance(replies, list)
    assert isinstance(replies[0], ReplyError)
    assert replies[1] == [b"subscribe", b"ok", 1]
    expected = [[b"message", b"ok", b"held"]] if knows_clients(client) else []
    assert rest == expected
    assert held(client, "secret") == [b"held"]


@SUBSCRIBES
def test_anyone_who_is_not_logged_in_gets_nothing(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    client.publish("ch", "held")
    client.config_set("requirepass", "a secret")
    stranger = raw()
    [reply] = answers(stranger, [command, "ch"])
    assert reply.startswith("-NOAUTH")
    answers(stranger, ["AUTH", "a secret"])
    assert stranger.pending() == []
    client.config_set("requirepass", "")
    assert held(client, "ch") == [b"held"]


@SUBSCRIBES
def test_a_script_cannot_subscribe_and_nothing_is_handed_over(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    client.publish("ch", "held")
    connection = raw()
    script = f"return redis.pcall('{command}', 'ch')"
    runs: list[list[Part]] = [["EVAL", script, 0], ["MULTI"], ["EVAL", script, 0], ["EXEC"]]
    for run in runs:
        [reply] = answers(connection, run)
        assert "message" not in str(reply)
    assert connection.pending() == []
    other = raw()
    assert subscribe(other, "other") == []
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(other, "ch")) == [b"held"]


def test_a_script_that_tried_to_subscribe_and_then_publishes_hands_nothing_over(
    client: redis.Redis, raw: MakeRaw
) -> None:
    client.publish("ch", "held")
    other = raw()
    subscribe(other, "other")
    script = "redis.pcall('SUBSCRIBE', 'ch') return redis.call('PUBLISH', 'other', 'm')"
    assert client.eval(script, 0) == 1
    assert other.pending() == [[b"message", b"other", b"m"]]
    assert held(client, "ch") == [b"held"]


@pytest.mark.parametrize("arguments", [(), ("",)])
@SUBSCRIBES
def test_a_subscription_to_nothing_hands_nothing_over(
    client: redis.Redis, raw: MakeRaw, command: str, arguments: tuple[Part, ...]
) -> None:
    client.publish("ch", "held")
    connection = raw()
    connection.send(command, *arguments)
    assert messages(connection.pending()) == []
    assert held(client, "ch") == [b"held"]


# --- Killed in between ------------------------------------------------------------------------------------------------


def test_a_subscriber_that_vanishes_leaves_nothing_behind(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=last")
    client.publish("ch", "held")
    for number in range(50):
        connection = raw(protocol=2 + number % 2)
        connection.send_all(("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*"))
        connection.close()
    eventually(lambda: client.info("clients")["connected_clients"] == 1)
    assert client.pubsub_numsub("ch") == [(b"ch", 0)]
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(raw(), "ch")) == [b"held"]


def test_a_subscriber_that_is_killed_by_another_hands_nothing_to_others(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=last")
    client.publish("ch", "held")
    for _ in range(20):
        victim, killer, bystander = raw(), raw(), raw()
        identity = victim.call("CLIENT", "ID")
        assert isinstance(identity, int)
        subscribe(bystander, "bystanding")
        victim.send("SUBSCRIBE", "ch")
        killer.send_all(("CLIENT", "KILL", "ID", identity), ("PUBLISH", "bystanding", "m"))
        killer.read_many(2)
        assert messages(bystander.pending()) == [b"m"]
        for connection in (victim, killer, bystander):
            connection.close()
        eventually(lambda: client.pubsub_numsub("bystanding") == [(b"bystanding", 0)])
    assert held(client, "ch") == [b"held"]


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_eviction_right_before_a_subscription_does_not_disturb_its_hand_off(client: redis.Redis, raw: MakeRaw) -> None:
    rounds, size = 40, 100_000
    set_policies(client, "* deliver=held ttl=0")  # no expiry, so that only the fillers may be evicted
    for number in range(rounds):
        client.publish(f"ch{number}", "held")
    client.config_set("maxmemory-policy", "volatile-lru")
    filler = raw(protocol=3)
    for number in range(10):
        filler.call("SET", f"filler:before{number}", bytes(size), "EX", 1000)
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    evicted = client.info("stats")["evicted_keys"]
    if serves_each(client):  # one connection, so that no other command comes between
        for number in range(rounds):
            filler.send_all(("SET", f"filler:{number}", bytes(size), "EX", 1000), ("SUBSCRIBE", f"ch{number}"))
        came: list[object] = []

        def have_come() -> bool:
            came.extend(messages(filler.pending()))
            return len(came) >= rounds

        eventually(have_come)  # what a turn of the event loop has no time for comes in the next one
        assert came == [b"held"] * rounds
    else:
        for number in range(rounds):
            subscriber = raw()
            subscriber.send_all(("SET", f"filler:{number}", bytes(size), "EX", 1000), ("SUBSCRIBE", f"ch{number}"))
            assert messages(subscriber.pending()) == [b"held"]
    assert client.info("stats")["evicted_keys"] - evicted >= 10
    client.config_set("maxmemory", 0)
    assert client.exists(held_key("ch")) == 0


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_subscription_for_which_the_server_evicts_gets_its_backlog_before_the_next_command(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    set_policies(client, "* deliver=held ttl=0")
    subscriber = raw(protocol=protocol)
    for number in range(10):
        client.publish("ch", b"%d" % number)
    client.set("filler", bytes(MEGABYTE), ex=1000)
    client.config_set("maxmemory-policy", "volatile-lru")
    limit = client.info("memory")["used_memory"] - MEGABYTE // 2
    subscriber.send_all(("CONFIG", "SET", "maxmemory", limit), ("SUBSCRIBE", "ch"), ("PING",))
    assert subscriber.read() == "OK"
    assert subscriber.read_message()[0] == b"subscribe"
    texts = [b"%d" % number for number in range(10)]
    assert messages(subscriber.pending()) == texts
    client.config_set("maxmemory", 0)
    assert client.exists("filler", held_key("ch")) == 0


def test_a_subscription_for_which_the_held_list_itself_is_evicted_gets_nothing(
    client: redis.Redis, raw: MakeRaw
) -> None:
    client.publish("ch", bytes(MEGABYTE))
    client.config_set("maxmemory-policy", "allkeys-lru")
    connection = raw()
    client.config_set("maxmemory", client.info("memory")["used_memory"] - MEGABYTE // 2)
    came = messages(subscribe(connection, "ch"))
    eventually(lambda: client.exists(held_key("ch")) == 0)
    assert came in ([], [bytes(MEGABYTE)])
    client.config_set("maxmemory", 0)
    assert information(client)["held_lists"] == 0
    assert client.publish("ch", "live") == 1
    assert messages(connection.pending()) == [b"live"]


def test_without_memory_a_subscription_is_served_or_refused_as_a_whole(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    connection = raw()
    connection.send("SUBSCRIBE", "ch")
    values = connection.pending()
    client.config_set("maxmemory", 0)
    if isinstance(values[0], ReplyError):  # newer servers refuse SUBSCRIBE without memory
        assert len(values) == 1
        assert held(client, "ch") == [b"held"]
    else:
        assert messages(values) == [b"held"]
        assert client.dbsize() == 0


# --- Writes that are paused -------------------------------------------------------------------------------------------


def test_while_writes_are_paused_no_backlog_is_taken_out(client: redis.Redis, raw: MakeRaw) -> None:
    texts = [b"%d" % number for number in range(10)]
    client.rpush(held_key("ch"), *texts)
    subscriber = raw()
    client.client_pause(60_000, all=False)
    try:
        subscriber.send("SUBSCRIBE", "ch")
        assert subscriber.read() == [b"subscribe", b"ch", 1]
        for _ in range(20):
            client.ping()
            assert held(client, "ch") == texts
    finally:
        client.client_unpause()
    assert messages(subscriber.read_many(10)) == texts
    assert client.dbsize() == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_a_subscription_that_waited_for_paused_clients_gets_its_hand_off(
    client: redis.Redis, raw: MakeRaw, command: str, name: str, protocol: int
) -> None:
    client.publish("ch", "held")
    subscriber, other = raw(protocol=protocol), raw()
    client.client_pause(200, all=True)  # nobody can end it, not even CLIENT UNPAUSE
    subscriber.send_all((command, name), ("PING",))  # what comes next must not come between
    other.send("PING")
    assert other.read() == "PONG"
    assert subscriber.read_message()[:2] == [command.lower().encode(), name.encode()]
    assert messages(subscriber.pending()) == [b"held"]
    assert client.dbsize() == 0


def test_while_writes_are_paused_a_publish_waits_as_on_a_stock_server(client: redis.Redis, raw: MakeRaw) -> None:
    publisher = raw()
    client.client_pause(60_000, all=False)
    try:
        publisher.send("PUBLISH", "ch", "m")
        for _ in range(20):
            client.ping()
            assert client.exists(held_key("ch")) == 0
    finally:
        client.client_unpause()
    assert publisher.read() == 0
    assert held(client, "ch") == [b"m"]


# --- Interception switched off, a server that reloads ---------------------------------------------------------------


@SUBSCRIBES
def test_without_interception_nothing_is_handed_over(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    client.publish("ch", "held")
    client.config_set("holdmq.intercept", "no")
    assert subscribe(raw(), "ch", command=command) == []
    assert client.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"held"]


def test_a_loading_server_hands_over_when_it_has_loaded(server: Server, client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    client.execute_command("DEBUG", "RELOAD")
    assert messages(subscribe(raw(), "ch")) == [b"held"]
    assert server.process.running
