"""A new subscriber gets what its channels hold: after the confirmation, before any later message, exactly once."""

import socket
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    answers,
    held,
    held_key,
    information,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import Push, Server, ServerKind, Status, eventually
from tests.support.raw import encoded

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
RULES = pytest.mark.parametrize("rule", ["* deliver=last", "* deliver=held", "* last=on"])


def nobody_listens(client: redis.Redis, *channels: str) -> bool:
    """Whether the server has noticed that all subscribers have gone."""
    counts = client.pubsub_numsub(*channels)
    return all(count == 0 for _, count in counts) and client.pubsub_numpat() == 0


# --- Order ------------------------------------------------------------------------------------------------------------


def bytes_of(server: Server, protocol: int, *commands: tuple[str, ...]) -> bytes:
    """What the server writes back to commands that come in one packet, up to the answer of a PING."""
    end = b"the end"
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        if protocol == 3:
            connection.sendall(encoded("HELLO", 3) + encoded("ECHO", "greeted"))
            while not received.endswith(b"greeted\r\n"):
                received += connection.recv(65536)
        received = b""
        connection.sendall(b"".join(encoded(*command) for command in commands) + encoded("PING", end))
        while not received.endswith(end + b"\r\n"):
            data = connection.recv(65536)
            assert data, f"the server closed the connection behind {received!r}"
            received += data
    return received


@RULES
@PROTOCOLS
def test_the_hand_off_adds_one_message_after_the_confirmation_and_changes_no_other_byte(
    server: Server, stock_server: Server, client: redis.Redis, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    client.publish("ch", "held")
    commands = [("SUBSCRIBE", "ch"), ("PING",)] if protocol == 2 else [
        ("SUBSCRIBE", "ch"), ("PUBLISH", "ch", "live"), ("PING",)
    ]  # fmt: skip
    mark = b"*" if protocol == 2 else b">"
    confirmation = mark + b"3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"
    message = mark + b"3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$4\r\nheld\r\n"
    without = bytes_of(stock_server, protocol, *commands)
    assert without.startswith(confirmation)
    assert bytes_of(server, protocol, *commands) == confirmation + message + without[len(confirmation) :]


@RULES
@PROTOCOLS
def test_the_same_holds_for_a_pattern(
    server: Server, stock_server: Server, client: redis.Redis, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    client.publish("ch", "held")
    commands = [("PSUBSCRIBE", "c?"), ("PING",)] if protocol == 2 else [
        ("PSUBSCRIBE", "c?"), ("PUBLISH", "ch", "live"), ("PING",)
    ]  # fmt: skip
    mark = b"*" if protocol == 2 else b">"
    confirmation = mark + b"3\r\n$10\r\npsubscribe\r\n$2\r\nc?\r\n:1\r\n"
    message = mark + b"4\r\n$8\r\npmessage\r\n$2\r\nc?\r\n$2\r\nch\r\n$4\r\nheld\r\n"
    without = bytes_of(stock_server, protocol, *commands)
    assert without.startswith(confirmation)
    assert bytes_of(server, protocol, *commands) == confirmation + message + without[len(confirmation) :]


@RULES
@PROTOCOLS
def test_the_same_holds_for_a_shard_channel(
    server: Server, stock_server: Server, client: redis.Redis, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    client.execute_command("SPUBLISH", "ch", "held")
    mark = b"*" if protocol == 2 else b">"
    confirmation = mark + b"3\r\n$10\r\nssubscribe\r\n$2\r\nch\r\n:1\r\n"
    message = mark + b"3\r\n$8\r\nsmessage\r\n$2\r\nch\r\n$4\r\nheld\r\n"
    without = bytes_of(stock_server, protocol, ("SSUBSCRIBE", "ch"), ("PING",))
    assert without.startswith(confirmation)
    if not serves_each(client):  # a server before 7.2: the message waits
        message = b""
    assert (
        bytes_of(server, protocol, ("SSUBSCRIBE", "ch"), ("PING",))
        == confirmation + message + without[len(confirmation) :]
    )


def test_in_resp3_a_handed_over_message_is_a_push(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    subscriber = raw(protocol=3)
    subscriber.send("SUBSCRIBE", "ch")
    values = subscriber.pending()
    assert [type(value) for value in values] == [Push, Push]


@PROTOCOLS
def test_a_message_of_another_client_comes_after_the_hand_off(client: redis.Redis, raw: MakeRaw, protocol: int) -> None:
    set_policies(client, "* deliver=held")
    for number in range(20):
        channel = f"ch{number}"
        client.publish(channel, "held")
        subscriber = raw(protocol=protocol)
        subscriber.send("SUBSCRIBE", channel)
        client.publish(channel, "live")  # before or behind the SUBSCRIBE, but never before "held"
        assert messages(subscriber.pending()) == [b"held", b"live"]
        assert client.exists(held_key(channel)) == 0


@RULES
@PROTOCOLS
def test_several_channels_of_one_command_are_all_served_in_their_order(
    client: redis.Redis, raw: MakeRaw, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    for channel in ("c", "a", "b"):
        client.publish(channel, f"held in {channel}")
    subscriber = raw(protocol=protocol)
    subscriber.send_all(("SUBSCRIBE", "a", "empty", "b", "c"), ("PING",))
    values = [value for value in subscriber.pending() if isinstance(value, list) and value[0] != b"pong"]
    confirmations = [value[1:] for value in values if value[0] == b"subscribe"]
    assert confirmations == [[b"a", 1], [b"empty", 2], [b"b", 3], [b"c", 4]]
    heard = [value for value in values if value[0] == b"message"]
    assert heard == [[b"message", name, b"held in " + name] for name in (b"a", b"b", b"c")]
    for message in heard:
        confirmation = next(value for value in values if value[:2] == [b"subscribe", message[1]])
        assert values.index(confirmation) < values.index(message)


@RULES
@PROTOCOLS
def test_a_channel_that_is_named_twice_in_one_command_is_served_once(
    client: redis.Redis, raw: MakeRaw, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    client.publish("a", "held")
    client.publish("b", "held")
    subscriber = raw(protocol=protocol)
    subscriber.send("SUBSCRIBE", "a", "b", "a", "b", "a")
    values = subscriber.pending()
    assert [value[1] for value in values if value[0] == b"message"] == [b"a", b"b"]  # type: ignore[index]
    assert len(values) == 7


@PROTOCOLS
def test_a_subscriber_of_one_channel_gets_the_hand_off_of_the_next(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    for channel in ("a", "b", "c"):
        client.publish(channel, "held")
    subscriber = raw(protocol=protocol)
    for name in (b"a", b"b", b"c"):
        assert subscribe(subscriber, name) == [[b"message", name, b"held"]]


@PROTOCOLS
def test_a_client_that_subscribes_again_to_the_same_channel_gets_nothing_again(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    client.publish("ch", "held")
    subscriber = raw(protocol=protocol)
    assert messages(subscribe(subscriber, "ch")) == [b"held"]
    for _ in range(3):
        assert subscribe(subscriber, "ch") == []
    assert client.publish("ch", "live") == 1
    assert messages(subscriber.pending()) == [b"live"]


@PROTOCOLS
def test_a_client_that_subscribes_to_an_old_and_a_new_channel_gets_what_the_new_one_holds(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    client.publish("old", "held")
    client.publish("new", "held")
    subscriber = raw(protocol=protocol)
    subscribe(subscriber, "old")
    assert subscribe(subscriber, "old", "new") == [[b"message", b"new", b"held"]]


@PROTOCOLS
def test_anyone_who_leaves_and_comes_back_gets_the_last_message_again(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    client.publish("ch", "held")
    subscriber = raw(protocol=protocol)
    for _ in range(3):
        assert subscribe(subscriber, "ch") == [[b"message", b"ch", b"held"]]
        subscriber.send("UNSUBSCRIBE", "ch")
        assert subscriber.pending() == [[b"unsubscribe", b"ch", 0]]
    assert held(client, "ch") == [b"held"]


def test_the_last_message_goes_to_each_new_subscriber_and_to_nobody_else(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    first, second, third = raw(), raw(protocol=3), raw()
    assert subscribe(first, "ch") == [[b"message", b"ch", b"held"]]
    expected = [[b"message", b"ch", b"held"]] if serves_each(client) else []
    assert subscribe(second, "ch") == expected
    assert subscribe(third, "ch") == expected
    assert first.pending() == second.pending() == third.pending() == []
    assert held(client, "ch") == [b"held"]


@RULES
def test_a_hand_off_is_heard_by_no_pattern_subscriber(client: redis.Redis, raw: MakeRaw, rule: str) -> None:
    set_policies(client, rule)
    listener = raw()
    subscribe(listener, "c*", command="PSUBSCRIBE")
    client.rpush(held_key("ch"), "held")  # with a listener a publish would not be held
    came = subscribe(raw(), "ch")
    assert listener.pending() == []
    if serves_each(client):
        assert came == [[b"message", b"ch", b"held"]]
    else:
        assert came == []
        assert held(client, "ch") == [b"held"]


@RULES
def test_a_hand_off_to_a_pattern_is_heard_by_no_subscriber_of_the_channel(
    client: redis.Redis, raw: MakeRaw, rule: str
) -> None:
    set_policies(client, rule)
    listener = raw()
    subscribe(listener, "ch")
    client.rpush(held_key("ch"), "held")
    came = subscribe(raw(), "c*", command="PSUBSCRIBE")
    assert listener.pending() == []
    if serves_each(client):
        assert came == [[b"pmessage", b"c*", b"ch", b"held"]]
    else:
        assert came == []
        assert held(client, "ch") == [b"held"]


@pytest.mark.parametrize("rule", ["* deliver=none", "* hold=none", "other"])
@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_a_policy_that_delivers_nothing_hands_nothing_over(
    client: redis.Redis, raw: MakeRaw, rule: str, command: str, name: str
) -> None:
    client.publish("ch", "held")
    set_policies(client, rule)
    assert subscribe(raw(), name, command=command) == []
    assert held(client, "ch") == [b"held"]


def test_deliver_last_hands_over_the_last_one_of_many_and_removes_nothing(client: redis.Redis, raw: MakeRaw) -> None:
    for number in range(5):
        client.publish("ch", number)
    assert messages(subscribe(raw(), "ch")) == [b"4"]
    assert held(client, "ch") == [b"0", b"1", b"2", b"3", b"4"]


def test_with_last_on_the_last_message_that_was_heard_is_handed_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* last=on")
    client.publish("ch", "unheard")
    first = raw()
    assert messages(subscribe(first, "ch")) == [b"unheard"]
    client.publish("ch", "heard")
    assert messages(first.pending()) == [b"heard"]
    first.close()
    eventually(lambda: nobody_listens(client, "ch"))
    assert held(client, "ch") == [b"unheard"]
    assert messages(subscribe(raw(), "ch")) == [b"heard"]


def test_a_key_of_another_type_hands_nothing_over_and_stays(client: redis.Redis, raw: MakeRaw) -> None:
    client.set("ch", "v")
    client.hset("ch2", "f", "v")
    assert subscribe(raw(), "ch", "ch2") == []
    assert subscribe(raw(), "ch*", command="PSUBSCRIBE") == []
    assert client.get("ch") == b"v"


def test_the_hand_off_comes_from_the_database_of_the_subscriber(
    server: Server, client: redis.Redis, raw: MakeRaw
) -> None:
    """The channel's most recent message, if it is there; else nothing."""
    client.publish("ch", "zero")
    server.client(db=5).publish("ch", "five")
    subscriber = raw()
    assert subscribe(subscriber, "ch") == []
    subscriber.close()
    eventually(lambda: nobody_listens(client, "ch"))
    other = raw()
    other.call("SELECT", "5")
    came = messages(subscribe(other, "ch"))
    if serves_each(client):
        assert came == [b"five"]
    else:  # a server before 7.2 does not tell whose command it is: database 0 is what it can know
        assert came == []


@PROTOCOLS
def test_unsubscribing_right_after_does_not_change_what_is_handed_over(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    subscriber = raw(protocol=protocol)
    subscriber.send_all(("SUBSCRIBE", "ch"), ("UNSUBSCRIBE", "ch"))
    assert subscriber.pending() == [[b"subscribe", b"ch", 1], [b"message", b"ch", b"held"], [b"unsubscribe", b"ch", 0]]
    assert client.dbsize() == 0


@pytest.mark.parametrize("command", ["RESET", "QUIT"])
def test_resetting_or_leaving_right_after_loses_nothing(client: redis.Redis, raw: MakeRaw, command: str) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "held")
    subscriber = raw()
    subscriber.send_all(("SUBSCRIBE", "ch"), (command,))
    assert subscriber.read_many(2) == [[b"subscribe", b"ch", 1], [b"message", b"ch", b"held"]]
    assert client.dbsize() == 0


def test_commands_of_a_subscriber_in_resp2_still_work(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert subscriber.call("PING") == [b"pong", b""]
    assert subscriber.call("PING", "x") == [b"pong", b"x"]
    assert subscriber.call("RESET") == Status("RESET")
    assert subscriber.call("GET", "none") is None


def test_redis_py_gets_the_hand_off_as_an_ordinary_message(client: redis.Redis) -> None:
    client.publish("ch", "held")
    heard: list[dict[str, Any]] = []
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(ch=heard.append)
        pubsub.psubscribe("p*")
        eventually(lambda: pubsub.get_message(timeout=0.01) is None and len(heard) == 1)
    assert heard == [{"type": "message", "pattern": None, "channel": b"ch", "data": b"held"}]


# --- Twice at once ----------------------------------------------------------------------------------------------------


def test_of_two_that_subscribe_at_once_each_message_goes_to_one(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    for round_number in range(20):
        channel = f"ch{round_number}"
        for number in range(10):
            client.publish(channel, number)
        one, two = raw(), raw(protocol=3)
        one.send("SUBSCRIBE", channel)
        two.send("SUBSCRIBE", channel)
        heard = [messages(one.pending()), messages(two.pending())]
        assert sorted(heard) == [[], [b"%d" % number for number in range(10)]]
        assert client.exists(held_key(channel)) == 0
        one.close()
        two.close()


def test_a_hundred_subscribers_at_once_are_each_served(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "held")
    subscribers = [raw(protocol=2 + number % 2) for number in range(100)]
    for subscriber in subscribers:
        subscriber.send("SUBSCRIBE", "ch")
    heard = [messages(subscriber.pending()) for subscriber in subscribers]
    if serves_each(client):
        assert heard == [[b"held"]] * 100
    else:
        assert sorted(heard) in ([[]] * 99 + [[b"held"]], [[]] * 100)
    assert held(client, "ch") == [b"held"]


@pytest.mark.parametrize("command", ["SUBSCRIBE", "PSUBSCRIBE"])
def test_a_subscription_to_fifty_thousand_names_does_not_stop_the_server(
    server_kind: ServerKind, client: redis.Redis, raw: MakeRaw, command: str
) -> None:
    slow_itself = command == "PSUBSCRIBE" and server_kind.version < (
        7,
        2,
    )  # such a server compares all pairs of patterns
    names = [f"name:{number}" for number in range(5_000 if slow_itself else 50_000)]
    client.publish(names[-1], "held")
    subscriber = raw()  # waits for a reply no longer than its usual timeout
    subscriber.send(command, *names)
    confirmations = subscriber.read_many(len(names))
    assert confirmations[-1] == [command.lower().encode(), names[-1].encode(), len(names)]
    assert messages([subscriber.read()]) == [b"held"]


@pytest.mark.parametrize("threads", [2])
def test_with_io_threads_the_order_is_the_same(fresh_server: MakeServer, raw: MakeRaw, threads: int) -> None:
    server = fresh_server(config=[f"io-threads {threads}"])
    client = server.client()
    assert server.client(decode_responses=True).config_get("io-threads") == {"io-threads": str(threads)}
    for number in range(30):
        client.publish(f"ch{number}", "held")
    subscribers = [raw(server, 3) for _ in range(30)]
    for number, subscriber in enumerate(subscribers):
        subscriber.send_all(("SUBSCRIBE", f"ch{number}"), ("PUBLISH", f"ch{number}", "live"), ("PING", "end"))
    for subscriber in subscribers:
        assert messages(subscriber.pending()) == [b"held", b"live"]


# --- Nothing lost, nothing twice --------------------------------------------------------------------------------------


@PROTOCOLS
def test_a_subscriber_that_comes_and_goes_hears_each_message_once_in_order(
    client: redis.Redis, raw: MakeRaw, protocol: int
) -> None:
    set_policies(client, "* deliver=held")
    total, window = 6000, 40
    publisher = raw()
    publisher.timeout_s = 60
    publisher.send_all(*[("PUBLISH", "ch", number) for number in range(total)])
    heard: list[Any] = []
    subscriber = raw(protocol=protocol)
    while len(heard) < total:
        subscriber.send("SUBSCRIBE", "ch")
        values = [subscriber.read_message()]
        assert values == [[b"subscribe", b"ch", 1]]
        values += [subscriber.read_message() for _ in range(min(window, total - len(heard)))]
        subscriber.send("UNSUBSCRIBE", "ch")
        while values[-1][0] != b"unsubscribe":
            values.append(subscriber.read_message())
        heard += messages(values)
    assert heard == [b"%d" % number for number in range(total)]
    replies = publisher.read_many(total)
    assert set(replies) <= {0, 1}
    assert client.dbsize() == 0
    assert information(client)["held_lists"] == 0
    assert answers(publisher, ["PUBLISH", "ch", "end"]) == [0]
