"""A client that is told of changed keys is also told of those that the module changes for the client's own commands."""

from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    held_key,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient

HELD = held_key("ch")
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def deliver_held(client: redis.Redis) -> None:
    """What is handed over leaves the list."""
    set_policies(client, "* deliver=held ttl=0")


def sound_output(client: redis.Redis, connection: RawClient) -> None:
    """The server's count of the connection's output is right: some servers stop where it is not."""
    large = bytes(MEGABYTE)
    connection.send("PING", large)
    assert connection.read() in (large.decode(), large, [b"pong", large])
    identity = connection.call("CLIENT", "ID")
    assert isinstance(identity, int)
    [described] = client.client_list(client_id=[str(identity)])
    assert (described["oll"], described["omem"]) == ("0", "0")


def told(connection: RawClient) -> list[Any]:
    """What was told: the channel and text of messages, and keys that are not valid any more."""
    lists = [value for value in connection.pending() if isinstance(value, list)]
    return [value[1] if value[0] == b"invalidate" else (value[-2], value[-1]) for value in lists]


def event(name: str) -> tuple[bytes, bytes]:
    return b"__keyevent@0__:" + name.encode(), HELD.encode()


def test_a_publisher_that_tracks_the_held_list_is_told_of_its_own_messages(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "first")
    publisher = raw(protocol=3)
    publisher.call("CLIENT", "TRACKING", "ON")
    for number in range(1, 4):
        assert len(publisher.call("LRANGE", HELD, 0, -1)) == number  # type: ignore[arg-type]
        publisher.send("PUBLISH", "ch", "m")
        assert told(publisher) == [[HELD.encode()]]
    sound_output(client, publisher)


def test_a_publisher_that_listens_for_key_events_hears_those_of_its_own_messages(
    client: redis.Redis, raw: MakeRaw
) -> None:
    client.config_set("notify-keyspace-events", "EA")
    publisher = raw(protocol=3)
    subscribe(publisher, "__keyevent@0__:*", command="PSUBSCRIBE")
    for _ in range(3):
        publisher.send("PUBLISH", "ch", "m")
        assert told(publisher) == [event("rpush")]
    sound_output(client, publisher)


def test_a_subscriber_that_listens_for_key_events_hears_those_of_its_hand_off(
    client: redis.Redis, raw: MakeRaw
) -> None:
    """The server evicts for SUBSCRIBE, so that the hand-off comes with the next command."""
    for number in range(3):
        client.publish("ch", b"%d" % number)
    client.set("filler", bytes(MEGABYTE), ex=1000)
    client.config_set("notify-keyspace-events", "Elg")
    client.config_set("maxmemory-policy", "volatile-lru")
    subscriber = raw(protocol=3)
    subscribe(subscriber, "__keyevent@0__:*", command="PSUBSCRIBE")
    limit = client.info("memory")["used_memory"] - MEGABYTE // 2
    subscriber.send_all(("CONFIG", "SET", "maxmemory", limit), ("SUBSCRIBE", "ch"), ("PING",))
    came = told(subscriber)
    if serves_each(client):  # else it is not the channel's only listener, and gets nothing
        assert [pair for pair in came if pair[0] == b"ch"][1:] == [(b"ch", b"0"), (b"ch", b"1"), (b"ch", b"2")]
        assert [pair for pair in came if pair[1] == HELD.encode()] == [event("lpop"), event("del")]
    client.config_set("maxmemory", 0)
    sound_output(client, subscriber)
