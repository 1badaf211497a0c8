"""Whether somebody hears a message is decided when it is published: in whatever way the last subscriber has left."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    answers,
    held,
    held_key,
    kept_last,
    knows_clients,
    messages,
    set_policies,
    subscribe,
)
from tests.support import RawClient, Status, eventually

Leave = Callable[[redis.Redis, RawClient], Any]


def warm(client: redis.Redis, subscriber: RawClient, channel: str = "ch") -> None:
    """Publish some messages that are heard."""
    for number in range(5):
        assert client.publish(channel, number) >= 1
    assert len(messages(subscriber.pending())) >= 5
    assert client.dbsize() == 0


def quit_and_wait(_: redis.Redis, subscriber: RawClient) -> None:
    """QUIT, until the connection is closed."""
    assert subscriber.call("QUIT") == Status("OK")
    subscriber.wait_closed()


def unsubscribe_in_transaction(_: redis.Redis, subscriber: RawClient) -> None:
    """UNSUBSCRIBE within MULTI/EXEC."""
    subscriber.send_all(("MULTI",), ("UNSUBSCRIBE", "ch"), ("EXEC",))
    subscriber.pending()


LEAVES: dict[str, Leave] = {
    "UNSUBSCRIBE": lambda _, s: s.call("UNSUBSCRIBE", "ch"),
    "UNSUBSCRIBE all": lambda _, s: s.call("unsubscribe"),
    "UNSUBSCRIBE among others": lambda _, s: answers(s, ["UNSUBSCRIBE", "x", "ch"]) + s.pending(),
    "RESET": lambda _, s: s.call("RESET"),
    "QUIT": quit_and_wait,
    "in a transaction": unsubscribe_in_transaction,
    "CLIENT KILL": lambda client, _: client.execute_command("CLIENT", "KILL", "TYPE", "pubsub"),
    "ACL SETUSER": lambda client, _: client.execute_command("ACL", "SETUSER", "listener", "resetchannels"),
    "ACL DELUSER": lambda client, _: client.execute_command("ACL", "DELUSER", "listener"),
}


@pytest.mark.parametrize("how", LEAVES)
def test_a_message_is_held_from_the_moment_in_which_the_last_subscriber_left(
    client: redis.Redis, raw: MakeRaw, how: str
) -> None:
    client.execute_command("ACL", "SETUSER", "listener", "on", "nopass", "~*", "&*", "+@all")
    subscriber = raw(protocol=3)
    subscriber.call("AUTH", "listener", "any")
    subscribe(subscriber, "ch")
    warm(client, subscriber)
    LEAVES[how](client, subscriber)
    if not knows_clients(client):  # there nothing is held as long as one user may not
        client.execute_command("ACL", "DELUSER", "listener")
    assert client.publish("ch", "unheard") == 0
    assert held(client, "ch") == [b"unheard"]


def test_a_message_is_held_when_the_subscriber_closed_its_connection(client: redis.Redis, raw: MakeRaw) -> None:
    for number in range(20):
        channel = f"ch{number}"
        subscriber = raw(protocol=2 + number % 2)
        subscribe(subscriber, channel)
        assert client.publish(channel, "heard") == 1
        subscriber.close()
        eventually(lambda channel=channel: client.publish(channel, "m") == 0)  # type: ignore[misc]
        assert held(client, channel) == [b"m"]


def test_a_message_is_held_from_the_moment_in_which_the_last_pattern_was_left(
    client: redis.Redis, raw: MakeRaw
) -> None:
    subscriber = raw(protocol=3)
    subscribe(subscriber, "c*", "?h", command="PSUBSCRIBE")
    warm(client, subscriber)
    subscriber.call("PUNSUBSCRIBE", "c*")
    assert client.publish("ch", "heard by one") == 1
    subscriber.call("PUNSUBSCRIBE", "?h")
    subscriber.pending()
    assert client.publish("ch", "unheard") == 0
    assert held(client, "ch") == [b"unheard"]


def test_a_shard_message_is_held_from_the_moment_in_which_the_last_subscriber_left(
    client: redis.Redis, raw: MakeRaw
) -> None:
    subscriber = raw(protocol=3)
    subscribe(subscriber, "ch", command="SSUBSCRIBE")
    for _ in range(5):
        assert client.execute_command("SPUBLISH", "ch", "heard") == 1
    subscriber.send("SUNSUBSCRIBE", "ch")
    subscriber.pending()
    assert client.execute_command("SPUBLISH", "ch", "unheard") == 0
    assert held(client, "ch") == [b"unheard"]


def test_coming_and_leaving_in_one_go_is_followed(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw(protocol=3)
    rounds = 50
    for number in range(rounds):
        connection.send_all(
            ("SUBSCRIBE", "ch"), ("PUBLISH", "ch", f"heard {number}"), ("UNSUBSCRIBE", "ch"), ("PUBLISH", "ch", number)
        )
    values = connection.pending()
    assert [value for value in values if isinstance(value, int)] == [1, 0] * rounds
    assert [text for text in messages(values) if text.startswith(b"heard")] == [b"heard %d" % n for n in range(rounds)]
    assert held(client, "ch") == [b"%d" % number for number in range(rounds)]


def test_a_publish_that_waited_in_a_transaction_is_held_if_nobody_hears_it_then(
    client: redis.Redis, raw: MakeRaw
) -> None:
    subscriber, publisher = raw(), raw()
    subscribe(subscriber, "ch")
    for _ in range(5):
        assert publisher.call("PUBLISH", "ch", "heard") == 1
    answers(publisher, ["MULTI"], ["PUBLISH", "ch", "unheard"])
    subscriber.pending()
    assert subscriber.call("RESET") == Status("RESET")
    assert publisher.call("EXEC") == [0]
    assert held(client, "ch") == [b"unheard"]


def test_a_publish_that_waited_for_paused_writes_is_held_if_nobody_hears_it_then(
    client: redis.Redis, raw: MakeRaw
) -> None:
    subscriber, publisher = raw(protocol=3), raw()
    subscribe(subscriber, "ch")
    for _ in range(5):
        assert publisher.call("PUBLISH", "ch", "heard") == 1
    client.client_pause(60_000, all=False)
    try:
        publisher.send("PUBLISH", "ch", "unheard")
        client.ping()
        subscriber.pending()
        subscriber.send("UNSUBSCRIBE", "ch")
        subscriber.pending()
    finally:
        client.client_unpause()
    assert publisher.read() == 0
    assert held(client, "ch") == [b"unheard"]


def asked(monitor: RawClient, *command: str) -> bytes:
    """The reply to a connection in MONITOR, which is not paused with the others."""
    monitor.send(*command)
    while isinstance(reply := monitor.read(), Status):
        pass
    assert isinstance(reply, bytes)
    return reply


def hold_up(monitor: RawClient, connection: RawClient, command: str, number: int) -> None:
    """Send a command while all clients are paused, and wait until so many of them are held up."""
    connection.send(*command.split())
    eventually(lambda: len(re.findall(rb" flags=\w*b", asked(monitor, "CLIENT", "LIST"))) == number)


@pytest.mark.parametrize("leave", ["UNSUBSCRIBE ch", "UNSUBSCRIBE", "RESET", "EXEC"])
def test_a_message_is_held_when_the_last_subscriber_left_by_a_command_that_a_pause_held_up(
    client: redis.Redis, raw: MakeRaw, leave: str
) -> None:
    subscriber, publisher, monitor = raw(protocol=3), raw(), raw()
    subscribe(subscriber, "ch")
    warm(client, subscriber)
    if leave == "EXEC":
        assert answers(subscriber, ["MULTI"], ["UNSUBSCRIBE", "ch"]) == ["OK", "QUEUED"]
    monitor.call("MONITOR")
    client.client_pause(60_000, all=True)
    hold_up(monitor, publisher, "PUBLISH ch heard", 1)
    hold_up(monitor, subscriber, leave, 2)
    monitor.send("CLIENT", "UNPAUSE")
    assert publisher.read() == 1
    subscriber.pending()
    assert [client.publish("ch", "a"), client.publish("ch", "b")] == [0, 0]
    assert held(client, "ch") == [b"a", b"b"]


def test_a_script_that_publishes_after_the_last_subscriber_left_holds(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw(protocol=3)
    subscribe(subscriber, "ch")
    script = "return redis.call('PUBLISH', 'ch', ARGV[1])"
    assert [client.eval(script, 0, "heard") for _ in range(5)] == [1] * 5
    subscriber.pending()
    subscriber.call("UNSUBSCRIBE", "ch")
    assert client.eval(script, 0, "unheard") == 0
    assert held(client, "ch") == [b"unheard"]


def test_a_policy_that_comes_while_somebody_listens_holds_from_then_on(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    warm(client, subscriber)
    set_policies(client, "* hold=all last=on")
    assert client.publish("ch", "kept") == 1
    assert held(client, "ch") == kept_last(client, "ch") == [b"kept"]
    set_policies(client, "*")
    assert client.publish("ch", "not kept") == 1
    assert held(client, "ch") == [b"kept"]


def test_thousands_of_channels_are_distinguished(client: redis.Redis, raw: MakeRaw) -> None:
    heard = [f"heard:{number}" for number in range(3000)]
    unheard = [f"unheard:{number}" for number in range(3000)]
    subscriber = raw()
    subscriber.send("SUBSCRIBE", *heard)
    subscriber.read_many(len(heard))
    for _ in range(2):
        pipeline = client.pipeline(transaction=False)
        for one, other in zip(heard, unheard, strict=True):
            pipeline.publish(one, "m")
            pipeline.publish(other, "m")
        assert pipeline.execute() == [1, 0] * 3000
    assert len(messages(subscriber.pending())) == 6000
    assert sorted(client.keys("*")) == sorted(held_key(name).encode() for name in unheard)


def test_channels_with_long_names_are_distinguished(client: redis.Redis, raw: MakeRaw) -> None:
    names = ["x" * length + end for length in (62, 63, 64, 65, 1000) for end in "ab"]
    subscriber = raw(protocol=3)
    subscribe(subscriber, *names[::2])
    for _ in range(3):
        assert [client.publish(name, "m") for name in names] == [1, 0] * 5
    subscriber.pending()
    subscriber.send("UNSUBSCRIBE")
    subscriber.pending()
    assert [client.publish(name, "m") for name in names] == [0] * 10
    assert [client.llen(name) for name in names] == [1, 4] * 5
    assert subscriber.call("PING") == Status("PONG")
