"""A hand-off inside MULTI/EXEC: one per subscription that EXEC really makes, none for one that it does not.

On servers whose filter does not know the client (before 7.2) a transaction hands nothing over, and the message waits.
"""

from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    Part,
    answers,
    busy,
    held,
    held_key,
    knows_clients,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient, ReplyError, Status, eventually

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
OK, QUEUED = Status("OK"), Status("QUEUED")


def transaction(connection: RawClient, *commands: tuple[Part, ...]) -> list[Any]:
    """Run a transaction, sent in one go; returns all that came after the last QUEUED."""
    connection.send_all(("MULTI",), *commands, ("EXEC",))
    values = connection.pending()
    assert values[: 1 + len(commands)] == [OK, *[QUEUED] * len(commands)]
    return values[1 + len(commands) :]


@PROTOCOLS
def test_a_subscription_in_a_transaction_gets_its_hand_off_after_the_reply(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    confirmation = [b"subscribe", b"ch", 1]
    message = [b"message", b"ch", b"held"]
    values = transaction(raw(protocol=protocol), ("SUBSCRIBE", "ch"), ("SET", "k", "v"))
    if knows_clients(client):
        assert values == [[confirmation, OK], message]
        assert client.exists(held_key("ch")) == 0
    else:
        assert values == [[confirmation, OK]]
        assert held(client, "ch") == [b"held"]


@PROTOCOLS
def test_a_publish_elsewhere_in_the_transaction_does_not_tear_its_reply(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    client.publish("ch", "held")
    values = transaction(raw(protocol=protocol), ("SUBSCRIBE", "ch"), ("PUBLISH", "other", "m"), ("SET", "k", "v"))
    assert values[0] == [[b"subscribe", b"ch", 1], 0, OK]
    assert values[1:] == ([[b"message", b"ch", b"held"]] if knows_clients(client) else [])
    assert held(client, "other") == [b"m"]


def flat(values: list[Any]) -> list[Any]:
    """Messages and confirmations, wherever they stand: in RESP2 a transaction's own messages stand in its reply."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list):
            found += [value] if value and isinstance(value[0], bytes) else flat(value)
    return found


@PROTOCOLS
def test_what_the_transaction_publishes_to_its_own_subscription_comes_after_the_hand_off(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    client.publish("ch", "held")
    values = transaction(raw(protocol=protocol), ("SUBSCRIBE", "ch"), ("PUBLISH", "ch", "live"))
    expected = [[b"subscribe", b"ch", 1], [b"message", b"ch", b"held"], [b"message", b"ch", b"live"]]
    if not knows_clients(client):
        del expected[1]
    assert flat(values) == expected
    assert held(client, "ch") == [b"held"]


@PROTOCOLS
def test_a_transaction_can_hold_and_then_subscribe(client: redis.Redis, raw: MakeRaw, protocol: int) -> None:
    set_policies(client, "* deliver=held")
    values = transaction(
        raw(protocol=protocol), ("PUBLISH", "ch", "one"), ("PUBLISH", "ch", "two"), ("SUBSCRIBE", "ch")
    )
    assert values[0] == [0, 0, [b"subscribe", b"ch", 1]]
    if knows_clients(client):
        assert messages(values) == [b"one", b"two"]
        assert client.dbsize() == 0
    else:
        assert held(client, "ch") == [b"one", b"two"]


@PROTOCOLS
def test_several_subscriptions_in_a_transaction_are_each_served_once(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    for channel in ("a", "b", "c"):
        client.publish(channel, f"in {channel}")
    values = transaction(
        raw(protocol=protocol), ("SUBSCRIBE", "a", "b"), ("PSUBSCRIBE", "c*"), ("SUBSCRIBE", "a"), ("PING",)
    )
    heard = [value for value in flat(values) if value[0] in (b"message", b"pmessage")]
    expected = [
        [b"message", b"a", b"in a"],
        [b"message", b"b", b"in b"],
        [b"pmessage", b"c*", b"c", b"in c"],
    ]
    assert heard == (expected if knows_clients(client) else [])


def test_a_subscription_that_the_transaction_takes_back_gets_nothing_or_all(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw(protocol=3)
    subscribe(connection, "other")  # UNSUBSCRIBE is for subscribers only, says Valkey 8.0
    values = transaction(connection, ("SUBSCRIBE", "ch"), ("UNSUBSCRIBE", "ch"))
    assert messages(flat(values)) + held(client, "ch") == [b"held"]
    assert [value for value in flat(values) if value[0] != b"message"] == [
        [b"subscribe", b"ch", 2],
        [b"unsubscribe", b"ch", 1],
    ]


@pytest.mark.parametrize("end", ["DISCARD", "RESET"])
def test_a_subscription_that_is_given_up_hands_nothing_over(client: redis.Redis, raw: MakeRaw, end: str) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw()
    answers(connection, ["MULTI"], ["SUBSCRIBE", "ch"], [end])
    assert connection.pending() == []
    assert held(client, "ch") == [b"held"]
    client.ping()
    assert messages(subscribe(connection, "ch")) == [b"held"]


def test_a_transaction_that_fails_its_watch_hands_nothing_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw()
    answers(connection, ["WATCH", "w"], ["MULTI"], ["SUBSCRIBE", "ch"])
    client.set("w", "changed")
    assert connection.call("EXEC") is None
    assert connection.pending() == []
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(connection, "ch")) == [b"held"]


def test_a_transaction_with_a_mistake_hands_nothing_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw()
    answers(connection, ["MULTI"], ["SUBSCRIBE", "ch"], ["SUBSCRIBE"])
    with pytest.raises(ReplyError, match="EXECABORT"):
        connection.call("EXEC")
    assert connection.pending() == []
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(connection, "ch")) == [b"held"]


def test_a_transaction_that_waits_gets_what_is_held_when_it_is_executed(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    connection = raw()
    answers(connection, ["MULTI"], ["SUBSCRIBE", "ch"])
    client.publish("ch", "held meanwhile")
    assert held(client, "ch") == [b"held meanwhile"]
    connection.send("EXEC")
    values = connection.pending()
    assert values[0] == [[b"subscribe", b"ch", 1]]
    if knows_clients(client):
        assert messages(values) == [b"held meanwhile"]
        assert client.exists(held_key("ch")) == 0
    else:
        assert held(client, "ch") == [b"held meanwhile"]


def test_a_client_that_goes_before_exec_takes_nothing(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    for _ in range(10):
        connection = raw()
        answers(connection, ["MULTI"], ["SUBSCRIBE", "ch"])
        connection.close()
    eventually(lambda: client.info("clients")["connected_clients"] == 1)
    assert held(client, "ch") == [b"held"]
    assert messages(subscribe(raw(), "ch")) == [b"held"]


def test_two_transactions_that_wait_do_not_take_each_others_place(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("a", "in a")
    client.publish("b", "in b")
    one, two = raw(), raw(protocol=3)
    answers(one, ["MULTI"], ["SUBSCRIBE", "a"])
    answers(two, ["MULTI"], ["SUBSCRIBE", "b"])
    answers(one, ["SUBSCRIBE", "b"])
    two.send("EXEC")
    second = two.pending()
    one.send("DISCARD")
    assert one.pending() == [OK]
    expected = [[b"message", b"b", b"in b"]] if knows_clients(client) else []
    assert second == [[[b"subscribe", b"b", 1]], *expected]


def test_a_client_that_ends_itself_in_the_transaction_loses_no_message(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw()
    identity = connection.call("CLIENT", "ID")
    assert isinstance(identity, int)
    connection.send_all(("MULTI",), ("SUBSCRIBE", "ch"), ("CLIENT", "KILL", "ID", identity, "SKIPME", "no"), ("EXEC",))
    heard = []
    try:
        while True:
            heard += messages(flat([connection.read()]))
    except ConnectionError:
        pass
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert heard + held(client, "ch") == [b"held"]


def test_a_transaction_serves_whoever_comes_next_too(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    first, second = raw(), raw()
    transaction(first, ("SUBSCRIBE", "ch"))
    assert messages(subscribe(second, "ch")) == ([b"held"] if serves_each(client) else [])
    assert first.pending() == []


@PROTOCOLS
def test_a_command_that_is_refused_for_a_slow_script_does_not_tear_the_reply_of_its_transaction(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    connection = raw(protocol=protocol)
    with busy(client, connection, ("MULTI",), ("SUBSCRIBE", "ch"), after=("EXEC",)):
        pass  # what waits until the script runs was refused
    values: list[Any] = connection.pending()
    assert values[:3] == [OK, QUEUED, QUEUED]
    [confirmation, killed], *rest = values[3:]
    assert confirmation == [b"subscribe", b"ch", 1]
    assert isinstance(killed, ReplyError)
    assert messages(rest) == ([b"held"] if knows_clients(client) else [])


@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_a_transaction_that_pauses_writes_subscribes_as_any_other(
    fresh_server: MakeServer, raw: MakeRaw, command: str, name: str
) -> None:
    """Before it is replicated, a server that has a replica stops if a module calls a command."""
    server = fresh_server()
    fresh_server(replica_of=server)
    client, connection = server.client(), raw(server, protocol=3)
    client.publish("ch", "held")
    connection.send_all(("MULTI",), ("CLIENT", "PAUSE", 60_000, "WRITE"), ("SET", "k", "v"), (command, name), ("EXEC",))
    came = connection.read_many(5)
    came += connection.pending()
    assert messages(came) == ([b"held"] if serves_each(client) else [])
    client.client_unpause()
    assert (client.get("k"), client.publish("ch", "live")) == (b"v", 1)
    assert messages(connection.pending())[-1:] == [b"live"]
