"""An intercepted command answers like the stock one: the same bytes as from a server without the module."""

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    Part,
    answers,
    held,
    information,
    knows_clients,
    set_policies,
    subscribe,
)
from tests.support import RawClient, Server, Status, eventually

Conversation = Sequence[tuple[Part, ...]]

LIBRARY = (
    "#!lua name=held\n"
    "redis.register_function('tell', function(keys, args) return redis.call('PUBLISH', keys[1], args[1]) end)\n"
    "redis.register_function{function_name='tell_ro', flags={'no-writes'},\n"
    "  callback=function(keys, args) return redis.call('PUBLISH', keys[1], args[1]) end}\n"
)

# Conversations on one connection; what they say of the module's own effects (LRANGE) is not in them.
CONVERSATIONS: dict[str, Conversation] = {
    "publish": [("PUBLISH", "ch", "m")],
    "arity": [("PUBLISH",), ("PUBLISH", "ch"), ("PUBLISH", "ch", "m", "n"), ("SPUBLISH", "ch"), ("publish", "x")],
    "arity of subscribe": [("SUBSCRIBE",), ("PSUBSCRIBE",), ("SSUBSCRIBE",)],
    "unknown": [("PUBLISHX", "ch", "m"), ("CHANNEL", "ch"), ("",), ("SUBSCRIBED", "ch")],
    "wrong type": [("SET", "s", "v"), ("PUBLISH", "s", "m"), ("HSET", "h", "f", "v"), ("PUBLISH", "h", "m")],
    "transaction": [("MULTI",), ("PUBLISH", "ch", "m"), ("PUBLISH", "ch", ""), ("SPUBLISH", "ch", "m"), ("EXEC",)],
    "transaction with a mistake": [("MULTI",), ("PUBLISH", "ch"), ("PUBLISH", "ch", "m"), ("EXEC",)],
    "discard": [("MULTI",), ("PUBLISH", "ch", "m"), ("DISCARD",), ("EXEC",)],
    "subscribe": [("SUBSCRIBE", "a", "b", "a"), ("UNSUBSCRIBE", "a"), ("UNSUBSCRIBE",), ("PING",)],
    "psubscribe": [("PSUBSCRIBE", "a*", "b*", "a*"), ("PUNSUBSCRIBE", "b*"), ("PUNSUBSCRIBE",), ("PING",)],
    "ssubscribe": [("SSUBSCRIBE", "a", "b", "a"), ("SUNSUBSCRIBE", "b"), ("SUNSUBSCRIBE",), ("PING",)],
    "subscribe in a transaction": [("MULTI",), ("SUBSCRIBE", "a"), ("SET", "k", "v"), ("EXEC",)],
    "nothing subscribed": [("UNSUBSCRIBE",), ("PUNSUBSCRIBE", "a"), ("SUNSUBSCRIBE", "a", "b")],
    "script": [("EVAL", "return redis.call('PUBLISH', KEYS[1], ARGV[1])", 1, "ch", "m")],
    "script with a mistake": [
        ("EVAL", "return redis.call('PUBLISH', 'ch')", 0),
        ("EVAL", "return redis.pcall('PUBLISH', 'ch', 'm', 'n')", 0),
    ],
    "script that subscribes": [
        ("EVAL", "return redis.call('SUBSCRIBE', 'ch')", 0),
        ("EVAL", "return redis.pcall('PSUBSCRIBE', 'c*')", 0),
        ("EVAL", "return redis.pcall('SSUBSCRIBE', 'ch')", 0),
    ],
    "script that may only read": [("EVAL_RO", "return redis.call('PUBLISH', 'ch', 'm')", 0)],
    "function": [
        ("FUNCTION", "LOAD", LIBRARY),
        ("FCALL", "tell", 1, "ch", "m"),
        ("FCALL", "tell_ro", 1, "ch", "m"),
        ("FCALL_RO", "tell_ro", 1, "ch", "m"),
    ],
    "no reply": [("CLIENT", "REPLY", "SKIP"), ("PUBLISH", "ch", "m"), ("PUBLISH", "ch", "n")],
    "reset": [("SUBSCRIBE", "a"), ("RESET",), ("PUBLISH", "a", "m")],
    "tracking": [("CLIENT", "CACHING", "YES"), ("PUBLISH", "ch", "m")],
}


def with_types(value: Any) -> Any:
    """A reply together with its types on the wire, so that two that compare equal came as the same bytes."""
    if isinstance(value, list):
        return type(value).__name__, [with_types(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(with_types(key), with_types(item)) for key, item in value.items()]
    return type(value).__name__, str(value)


def spoken(connection: RawClient, conversation: Conversation) -> list[Any]:
    """All that a conversation brings back when it is sent in one go."""
    connection.send_all(*conversation)
    return [with_types(value) for value in connection.pending()]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_goes_as_with_a_stock_server(
    stock_server: Server, raw: MakeRaw, name: str, protocol: int
) -> None:
    stock_server.reset()
    conversation = CONVERSATIONS[name]
    assert spoken(raw(protocol=protocol), conversation) == spoken(raw(stock_server, protocol), conversation)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_conversation_with_a_subscriber_goes_as_with_a_stock_server(
    stock_server: Server, raw: MakeRaw, protocol: int
) -> None:
    stock_server.reset()
    conversation = [("PUBLISH", "ch", "m"), ("PUBLISH", "ch2", "m"), ("SPUBLISH", "ch", "m"), ("PUBSUB", "CHANNELS")]
    replies = []
    for to in (None, stock_server):
        subscriber = raw(to, protocol)
        subscribe(subscriber, "ch")
        subscribe(subscriber, "c*", command="PSUBSCRIBE")
        subscribe(subscriber, "ch", command="SSUBSCRIBE")
        replies.append((spoken(raw(to, protocol), conversation), with_types(subscriber.pending())))
    assert replies[0] == replies[1]


@pytest.mark.parametrize("command", ["PUBLISH", "SPUBLISH"])
def test_a_subscriber_in_resp2_may_not_publish(
    stock_server: Server, client: redis.Redis, raw: MakeRaw, command: str
) -> None:
    replies = []
    for to in (None, stock_server):
        connection = raw(to)
        subscribe(connection, "other")
        replies.append(answers(connection, [command, "ch", "m"], [command, "ch"], ["CHANNEL.LAST", "ch"]))
    own, expected = replies
    assert own[0].startswith("-ERR Can't execute '")
    if knows_clients(client):  # without its id the filter cannot tell a subscriber from others
        assert own[0] == expected[0]
    assert own[1] == expected[1]
    assert client.dbsize() == 0


@pytest.mark.parametrize("command", ["PUBLISH", "SPUBLISH"])
def test_a_subscriber_in_resp2_may_not_publish_when_it_came_unseen(
    server: Server, stock_server: Server, client: redis.Redis, raw: MakeRaw, command: str
) -> None:
    """It came while interception was switched off.  With hold=all a message is held before the server runs PUBLISH."""
    replies = []
    for to in (server, stock_server):
        connection = raw(to)
        if to is server:
            client.config_set("holdmq.intercept", "no")
        subscribe(connection, "other")
        if to is server:
            client.config_set("holdmq.intercept", "yes")
            set_policies(client, "* hold=all")
        replies.append(answers(connection, [command, "ch", "m"]))
    own, expected = replies
    if knows_clients(client):
        assert own == expected
    assert client.dbsize() == 0


@pytest.mark.parametrize("command", ["PUBLISH", "SPUBLISH"])
def test_a_message_of_a_monitor_is_refused_and_not_held(
    stock_server: Server, client: redis.Redis, raw: MakeRaw, command: str
) -> None:
    replies = []
    for to in (None, stock_server):
        connection = raw(to)
        assert connection.call("MONITOR") == "OK"
        connection.send(command, "ch", "m")
        while isinstance(reply := connection.read(), Status):
            pass
        replies.append(str(reply))
    assert replies[0] == replies[1]
    assert replies[0].startswith("ERR Replica can't interact with the keyspace")
    assert client.dbsize() == 0


@pytest.mark.parametrize("command", ["PUBLISH", "SUBSCRIBE", "PSUBSCRIBE", "CHANNEL.PUBLISH", "CHANNEL.LAST"])
def test_anyone_who_is_not_logged_in_is_turned_away(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    client.config_set("requirepass", "a secret")
    stranger = raw()
    arguments = {"PUBLISH": ["ch", "m"], "CHANNEL.PUBLISH": ["ch", "m"]}.get(command, ["ch"])
    assert answers(stranger, [command, *arguments]) == ["-NOAUTH Authentication required."]
    client.config_set("requirepass", "")
    assert client.dbsize() == 0


def test_invalidations_reach_a_resp2_client_through_its_subscription(client: redis.Redis, raw: MakeRaw) -> None:
    listener, reader = raw(), raw()
    identity = listener.call("CLIENT", "ID")
    assert isinstance(identity, int)
    assert subscribe(listener, "__redis__:invalidate") == []
    reader.call("CLIENT", "TRACKING", "ON", "REDIRECT", identity)
    reader.call("GET", "k")
    client.set("k", "v")
    assert listener.read() == [b"message", b"__redis__:invalidate", [b"k"]]
    assert client.keys("*") == [b"k"]


def test_an_inline_command_is_served(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw()
    connection.send_bytes(b"publish ch 'a b'\r\nPUBLISH ch c\r\n")
    assert connection.read_many(2) == [0, 0]
    assert held(client, "ch") == [b"a b", b"c"]


def test_the_slow_log_shows_the_arguments_in_their_places(client: redis.Redis) -> None:
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    client.publish("ch", "m")
    client.config_set("slowlog-log-slower-than", 10_000_000)
    entries = [entry["command"].split() for entry in client.slowlog_get(10)]
    [entry] = [entry for entry in entries if entry[0].upper().endswith(b"PUBLISH")]
    assert entry[1:] == [b"ch", b"m"]


def test_a_publish_leaves_no_memory_behind(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    pipeline = client.pipeline(transaction=False)

    def publish_many() -> int:
        for _ in range(2000):
            pipeline.publish("ch", "m" * 100)
        pipeline.execute()
        subscriber.pending()
        return int(client.info("memory")["used_memory"])

    first = publish_many()
    eventually(lambda: publish_many() < first + 200_000, what="a publish that leaves no memory behind")
    assert information(client)["held_lists"] == 0


def test_a_rule_for_other_channels_does_not_change_a_byte(
    stock_server: Server, client: redis.Redis, raw: MakeRaw
) -> None:
    stock_server.reset()
    set_policies(client, "none-of-these hold=all")
    for conversation in CONVERSATIONS.values():
        assert spoken(raw(protocol=3), conversation) == spoken(raw(stock_server, 3), conversation)
