"""The module's own commands for channels: replies, errors, what they declare of themselves, INFO, and unloading."""

from typing import Any

import pytest
import redis

from holdmq.server import find_module
from tests.module.channels_support import (
    MakeRaw,
    answers,
    held,
    held_key,
    information,
    kept_last,
    set_policies,
    subscribe,
)
from tests.support import ReplyError, Server, ServerKind

# How many arguments, the name among them; options may follow those of publishing.
COMMANDS = {"CHANNEL.PUBLISH": 3, "CHANNEL.SPUBLISH": 3, "CHANNEL.LAST": 2, "CHANNEL.POLICY": 2}
COMMANDS |= {"CHANNEL.RANGE": 4, "CHANNEL.LEN": 2, "CHANNEL.KEY": 2}
WITH_OPTIONS = {"CHANNEL.PUBLISH", "CHANNEL.SPUBLISH"}


# --- CHANNEL.PUBLISH and CHANNEL.SPUBLISH -----------------------------------------------------------------------------


def test_channel_publish_does_what_an_intercepted_publish_does(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* maxlen=2 ttl=100 last=on")
    for message in ("one", "two", "three"):
        assert client.publish("a", message) == client.execute_command("CHANNEL.PUBLISH", "b", message) == 0
    assert held(client, "a") == held(client, "b") == [b"two", b"three"]
    assert kept_last(client, "a") == kept_last(client, "b") == [b"three"]
    assert abs(client.pttl(held_key("a")) - client.pttl(held_key("b"))) < 2000
    subscriber = raw()
    subscribe(subscriber, "b")
    assert client.execute_command("CHANNEL.PUBLISH", "b", "live") == 1
    assert subscriber.pending() == [[b"message", b"b", b"live"]]
    assert held(client, "b") == [b"two", b"three"]


def test_a_shard_channel_holds_what_no_shard_subscriber_hears(client: redis.Redis, raw: MakeRaw) -> None:
    listener = raw()
    subscribe(listener, "ch")
    subscribe(listener, "*", command="PSUBSCRIBE")
    assert client.execute_command("SPUBLISH", "ch", "one") == 0  # global subscribers do not hear shard channels
    assert client.execute_command("CHANNEL.SPUBLISH", "ch", "two") == 0
    assert listener.pending() == []
    assert held(client, "ch") == [b"one", b"two"]
    subscriber = raw()
    subscriber.send("SSUBSCRIBE", "ch2")
    assert subscriber.read() == [b"ssubscribe", b"ch2", 1]
    assert client.execute_command("SPUBLISH", "ch2", "live") == 1
    assert client.execute_command("CHANNEL.SPUBLISH", "ch2", "live") == 1
    assert subscriber.pending() == [[b"smessage", b"ch2", b"live"]] * 2
    assert client.execute_command("CHANNEL.LEN", "ch2") == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_number_of_arguments_is_an_error(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    connection = raw()
    for count in (0, COMMANDS[command] - 2, *((COMMANDS[command], 100) if command not in WITH_OPTIONS else ())):
        [reply] = answers(connection, [command, *["x"] * count])
        assert reply.lower() == f"-err wrong number of arguments for '{command.lower()}' command"
    assert client.dbsize() == 0


# --- CHANNEL.LAST -----------------------------------------------------------------------------------------------------


def test_channel_last_is_nil_for_a_channel_that_keeps_nothing(client: redis.Redis, raw: MakeRaw) -> None:
    assert raw(protocol=2).call("CHANNEL.LAST", "ch") is None
    assert raw(protocol=3).call("CHANNEL.LAST", "ch") is None
    assert client.execute_command("CHANNEL.LEN", "ch") == 0


def test_channel_last_removes_nothing_and_changes_nothing(client: redis.Redis) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "one")
    client.publish("ch", "two")
    dump = client.dump("ch")
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    for _ in range(3):
        assert client.execute_command("CHANNEL.LAST", "ch") == b"two"
    assert client.dump("ch") == dump
    assert client.info("persistence")["rdb_changes_since_last_save"] == changes


def test_channel_last_prefers_the_last_message_to_the_last_that_was_not_heard(
    client: redis.Redis, raw: MakeRaw
) -> None:
    set_policies(client, "* last=on")
    client.publish("ch", "unheard")
    subscriber = raw()
    subscribe(subscriber, "ch")
    client.publish("ch", "heard")
    assert held(client, "ch") == [b"unheard"]
    assert client.execute_command("CHANNEL.LAST", "ch") == b"heard"


def test_channel_last_falls_back_to_the_list(client: redis.Redis) -> None:
    client.publish("ch", "before")
    set_policies(client, "* last=on")
    assert client.execute_command("CHANNEL.LAST", "ch") == b"before"


def test_channel_last_of_a_key_that_is_not_a_list_is_an_error_that_names_it(client: redis.Redis, raw: MakeRaw) -> None:
    client.set(held_key("ch"), "v")
    with pytest.raises(ReplyError, match=r"^WRONGTYPE .*ch.*list"):
        raw().call("CHANNEL.LAST", "ch")
    set_policies(client, "* last=on")
    client.publish("ch", "m")
    assert client.execute_command("CHANNEL.LAST", "ch") == b"m"
    assert client.get(held_key("ch")) == b"v"


def test_channel_last_works_in_scripts_that_may_only_read(client: redis.Redis) -> None:
    client.publish("ch", "m")
    assert client.eval_ro("return redis.call('CHANNEL.LAST', KEYS[1])", 1, "ch") == b"m"


# --- What the commands declare of themselves --------------------------------------------------------------------------


def command_information(client: redis.Redis, name: str) -> dict[str, Any]:
    """COMMAND INFO of one command."""
    [information] = client.execute_command("COMMAND", "INFO", name).values()
    return dict(information)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_info_has_the_arity(server: Server, name: str) -> None:
    arity = -COMMANDS[name] if name in WITH_OPTIONS else COMMANDS[name]
    assert command_information(server.client(decode_responses=True), name)["arity"] == arity


def test_a_rewritten_publish_is_declared_like_the_stock_one(server: Server) -> None:
    client = server.client(decode_responses=True)
    for stock, own in (("PUBLISH", "CHANNEL.PUBLISH"), ("SPUBLISH", "CHANNEL.SPUBLISH")):
        flags = set(command_information(client, own)["flags"])
        assert flags & {"loading", "stale", "fast"} == {"loading", "stale", "fast"}
        assert not flags & {"write", "denyoom", "admin", "noscript", "pubsub", "readonly"}
        info = command_information(client, stock)
        assert command_information(client, own)["first_key_pos"] == info["first_key_pos"]
        assert command_information(client, own)["last_key_pos"] == info["last_key_pos"]


def test_the_commands_are_in_the_categories_of_their_kind(server: Server, server_kind: ServerKind) -> None:
    client = server.client(decode_responses=True)
    if server_kind.version < (7, 2):  # a module cannot set them there
        assert command_information(client, "CHANNEL.PUBLISH")["acl_categories"] == []
        return
    for name, categories in (
        ("CHANNEL.PUBLISH", {"@pubsub", "@fast"}),
        ("CHANNEL.SPUBLISH", {"@pubsub", "@fast"}),
        ("CHANNEL.LAST", {"@read", "@fast"}),
        ("CHANNEL.POLICY", {"@read", "@fast"}),
    ):
        assert set(command_information(client, name)["acl_categories"]) == categories


@pytest.mark.usefixtures("server")
def test_the_keys_of_the_commands_can_be_asked_for(raw: MakeRaw) -> None:
    connection = raw()
    assert connection.call("COMMAND", "GETKEYS", "CHANNEL.LAST", "ch") == [b"ch"]
    assert connection.call("COMMAND", "GETKEYSANDFLAGS", "CHANNEL.LAST", "ch") == [[b"ch", ["RO", "access"]]]
    for name in ("CHANNEL.PUBLISH", "CHANNEL.POLICY"):
        arguments = ["x"] * (COMMANDS[name] - 1)
        with pytest.raises(ReplyError, match="no key arguments"):
            connection.call("COMMAND", "GETKEYS", name, *arguments)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("server")
def test_command_docs_describe_each_command(raw: MakeRaw, name: str) -> None:
    documents = raw(protocol=3).call("COMMAND", "DOCS", name)
    assert isinstance(documents, dict)
    [(found, document)] = documents.items()
    assert found.decode().upper() == name
    assert isinstance(document, dict)
    for field in (b"summary", b"complexity", b"since"):
        assert len(document[field]) > 3
    assert document[b"module"] == b"holdmq"
    arguments = [argument[b"name"] for argument in document[b"arguments"]]
    if name == "CHANNEL.RANGE":
        assert arguments == [b"channel", b"start", b"stop"]
        return
    channel = b"shardchannel" if name == "CHANNEL.SPUBLISH" else b"channel"  # as the stock command calls it
    assert arguments == [channel, b"message", b"producer"][: COMMANDS[name] - 1 + (name in WITH_OPTIONS)]


@pytest.mark.usefixtures("server")
def test_no_command_of_the_module_has_two_dots_or_is_missing_here(raw: MakeRaw) -> None:
    names = raw().call("COMMAND", "LIST", "FILTERBY", "MODULE", "holdmq")
    assert isinstance(names, list)
    channels = {name.upper().decode() for name in names if name.upper().startswith(b"CHANNEL.")}
    # CHANNEL.LIST takes no channel: tests/module/routing/test_topic_groups.py.
    assert {name for name in channels if not name.startswith("CHANNEL.DRYRUN")} == {*COMMANDS, "CHANNEL.LIST"}
    assert all(name.count(b".") == 1 for name in names)


# --- INFO -------------------------------------------------------------------------------------------------------------


def test_info_counts_what_happened(client: redis.Redis, raw: MakeRaw) -> None:
    before = information(client)
    set_policies(client, "* maxlen=2")
    for number in range(3):
        client.publish("ch", number)
    client.set(held_key("string"), "v")
    client.publish("string", "m")
    client.set("key", "v")
    client.publish("key", "m")
    subscribe(raw(), "ch")
    client.publish("ch", "heard")
    after = information(client)
    grown = {name: after[name] - before[name] for name in after if isinstance(after[name], int)}
    assert grown["channel_published"] == 6
    assert grown["channel_held"] == 4
    assert grown["channel_trimmed"] == 1
    assert grown["channel_not_held_wrongtype"] == 1
    assert grown["channel_stepped_aside"] == 1
    assert grown["channel_superseded"] == 1
    assert grown["handed_over"] == 1
    assert grown["held_lists"] == 2


def test_info_shows_the_mode(client: redis.Redis, server_kind: ServerKind) -> None:
    info = information(client)
    exact = "yes" if server_kind.hands_off_exactly else "no"
    assert info["server_family"] == server_kind.family
    assert info["client_in_filter"] == info["post_command_jobs"] == info["direct_push"] == exact
    assert info["handoff"] == ("every-subscriber" if server_kind.hands_off_exactly else "first-subscriber")
    client.config_set("holdmq.intercept", "no")
    assert information(client)["handoff"] == "off"


def test_the_stock_sections_of_info_are_as_usual(client: redis.Redis) -> None:
    assert client.info()["redis_version"]
    assert "holdmq_handoff" not in client.info()
    assert any(module["name"] == "holdmq" for module in client.info("modules")["modules"])


# --- Loading and unloading --------------------------------------------------------------------------------------------


def test_unloading_is_refused_and_everything_continues(client: redis.Redis) -> None:
    client.publish("ch", "m")
    with pytest.raises(redis.ResponseError):  # by the server, since a timer of the module runs, or by the module
        client.module_unload("holdmq")
    assert client.execute_command("CHANNEL.LAST", "ch") == b"m"
    client.publish("ch", "n")
    assert held(client, "ch") == [b"m", b"n"]


def test_loading_twice_is_refused_and_everything_continues(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError):
        client.module_load(str(find_module()))
    client.publish("ch", "m")
    assert held(client, "ch") == [b"m"]
