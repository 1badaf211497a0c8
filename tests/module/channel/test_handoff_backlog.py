"""deliver=held hands the whole backlog over, in order, and takes it out of the list in the same step."""

import socket
import threading

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    answers,
    held,
    held_key,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient, Server, eventually
from tests.support.raw import encoded

KILOBYTE = 1 << 10
MEGABYTE = 1 << 20
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


@pytest.fixture(autouse=True)
def deliver_held(client: redis.Redis) -> None:
    """The policy of this file."""
    set_policies(client, "* hold=unheard maxlen=4294967295 deliver=held")


def fill(client: redis.Redis, channel: str, count: int, size: int = 0) -> list[bytes]:
    """Hold so many messages, which begin with their numbers; returns them."""
    texts = [b"%d " % number + bytes(size) for number in range(count)]
    for start in range(0, count, 500):
        client.rpush(held_key(channel), *texts[start : start + 500])
    return texts


def everything_heard(subscriber: RawClient, count: int) -> list[bytes]:
    """The payloads of the next `count` messages after the confirmation."""
    subscriber.timeout_s = 30
    assert subscriber.read_message()[0] in (b"subscribe", b"psubscribe")
    values = subscriber.read_many(count)
    return messages(values)


@PROTOCOLS
@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_ten_thousand_messages_come_in_order_and_leave_the_list(
    client: redis.Redis, raw: MakeRaw, protocol: int, command: str, name: str
) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(10_000):
        pipeline.publish("ch", number)
    pipeline.execute()
    subscriber = raw(protocol=protocol)
    subscriber.send(command, name)
    assert everything_heard(subscriber, 10_000) == [b"%d" % number for number in range(10_000)]
    assert subscriber.pending() == []
    assert client.dbsize() == 0


def test_the_backlog_is_gone_before_the_subscriber_can_ask_for_it(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch", 100)
    subscriber = raw(protocol=3)
    subscriber.send_all(("SUBSCRIBE", "ch"), ("LLEN", "ch"))
    values = [subscriber.read() for _ in range(102)]
    assert values[-1] == 0
    assert len(messages(values)) == 100


def test_the_next_subscriber_gets_nothing_of_it(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch", 10)
    first = raw()
    assert len(messages(subscribe(first, "ch"))) == 10
    assert subscribe(raw(), "ch") == []
    first.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 1)])
    client.rpush(held_key("ch"), "more")
    assert messages(subscribe(raw(), "ch")) == ([b"more"] if serves_each(client) else [])


def test_with_hold_all_the_next_subscriber_gets_what_others_heard(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* hold=all deliver=held")
    first = raw()
    subscribe(first, "ch")
    for number in range(5):
        assert client.publish("ch", number) == 1
    first.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert messages(subscribe(raw(), "ch")) == [b"0", b"1", b"2", b"3", b"4"]
    assert client.dbsize() == 0


def test_each_message_keeps_its_bytes(client: redis.Redis, raw: MakeRaw) -> None:
    texts = [b"", b"\x00", b"\r\n", b"1", b"007", bytes(range(256)), b"x" * 300_000, b"-1", b"$7\r\nmessage\r\n"]
    for text in texts:
        client.publish("ch", text)
    assert messages(subscribe(raw(), "ch")) == texts
    assert client.dbsize() == 0


def test_what_is_published_meanwhile_comes_after_the_backlog(client: redis.Redis, raw: MakeRaw) -> None:
    expected = fill(client, "ch", 3000, 100)
    publisher, subscriber = raw(), raw()
    subscriber.send("SUBSCRIBE", "ch")
    publisher.send_all(*[("PUBLISH", "ch", f"live {number}") for number in range(1000)])
    heard = everything_heard(subscriber, 4000)
    assert heard == expected + [b"live %d" % number for number in range(1000)]
    assert client.dbsize() == 0


def test_the_hand_off_is_reported_as_keyspace_events(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch", 10)
    client.config_set("notify-keyspace-events", "Elg")
    listener = raw()
    listener.send("SUBSCRIBE", "__keyevent@0__:lpop", "__keyevent@0__:del")
    listener.pending()
    assert len(messages(subscribe(raw(), "ch"))) == 10
    events = [(value[1], value[2]) for value in listener.pending()]  # type: ignore[index]
    assert events[-1] == (b"__keyevent@0__:del", held_key("ch").encode())
    assert set(events[:-1]) == {(b"__keyevent@0__:lpop", held_key("ch").encode())}


def test_the_hand_off_fails_a_watching_transaction(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch", 10)
    watcher = raw()
    answers(watcher, ["WATCH", held_key("ch")], ["MULTI"], ["PING"])
    subscribe(raw(), "ch")
    assert watcher.call("EXEC") is None


def test_the_hand_off_invalidates_what_a_tracking_client_read(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch", 10)
    tracker = raw(protocol=3)
    tracker.call("CLIENT", "TRACKING", "ON")
    tracker.call("LLEN", held_key("ch"))
    subscribe(raw(), "ch")
    assert tracker.read() == [b"invalidate", [held_key("ch").encode()]]


@pytest.mark.parametrize("limit", ["1mb 0 0", "0 512kb 1", "256kb 0 0"])
def test_an_output_buffer_limit_neither_cuts_the_subscriber_off_nor_loses_a_message(
    client: redis.Redis, raw: MakeRaw, limit: str
) -> None:
    client.config_set("client-output-buffer-limit", f"pubsub {limit}")
    expected = fill(client, "ch", 3000, KILOBYTE)
    subscriber = raw(protocol=3)
    subscriber.send("SUBSCRIBE", "ch")
    assert everything_heard(subscriber, 3000) == expected
    assert subscriber.call("PING") == "PONG"
    assert client.dbsize() == 0


def test_a_backlog_beyond_the_default_limits_is_handed_over_whole(client: redis.Redis, raw: MakeRaw) -> None:
    count = 40
    expected = fill(client, "ch", count, MEGABYTE)
    subscriber = raw()
    subscriber.send("SUBSCRIBE", "ch")
    assert everything_heard(subscriber, count) == expected
    client.publish("ch", "live")
    assert messages([subscriber.read()]) == [b"live"]
    assert client.dbsize() == 0


@pytest.mark.parametrize("limit", ["1mb 0 0", "32mb 8mb 60"])
def test_messages_of_very_different_sizes_are_handed_over_whole(client: redis.Redis, raw: MakeRaw, limit: str) -> None:
    client.config_set("client-output-buffer-limit", f"pubsub {limit}")
    large = 300 * KILOBYTE if limit.startswith("1mb") else MEGABYTE
    expected = []
    for number in range(40):
        expected += [b"%d small" % number, bytes(large), *[b"%d tiny" % number] * 10]
    for text in expected:
        client.rpush(held_key("ch"), text)
    subscriber = raw()
    subscriber.send("SUBSCRIBE", "ch")
    heard = everything_heard(subscriber, len(expected))
    assert [len(text) for text in heard] == [len(text) for text in expected]
    assert heard == expected
    assert client.dbsize() == 0


def test_a_reader_that_pauses_is_not_cut_off_and_gets_the_rest_when_it_reads_on(
    client: redis.Redis, raw: MakeRaw
) -> None:
    limit = 2 * MEGABYTE
    client.config_set("client-output-buffer-limit", f"pubsub {limit} 0 0")
    count = 20_000
    expected = fill(client, "ch", count, KILOBYTE)
    reader = raw()
    reader.send("SUBSCRIBE", "ch")
    eventually(lambda: client.llen("ch") < count)
    for _ in range(100):  # whatever happens meanwhile, what waits for the reader stays bounded
        [listed] = client.client_list(_type="pubsub")
        assert int(listed["omem"]) <= limit
    assert client.llen("ch") > 0
    assert client.publish("ch", "live") in (0, 1)
    assert everything_heard(reader, count + 1) == [*expected, b"live"]
    assert client.dbsize() == 0


def test_what_was_not_handed_over_yet_stays_when_the_reader_is_killed(client: redis.Redis, raw: MakeRaw) -> None:
    count = 40_000
    expected = fill(client, "ch", count, KILOBYTE)
    reader = raw()
    reader.send("SUBSCRIBE", "ch")
    eventually(lambda: client.llen("ch") < count)
    assert client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
    left = held(client, "ch")
    assert left == expected[-len(left) :]
    assert len(left) > 0
    following = raw()
    following.send("SUBSCRIBE", "ch")
    assert everything_heard(following, len(left)) == left
    assert client.dbsize() == 0


def test_others_are_served_while_a_large_backlog_is_handed_over(
    server: Server, client: redis.Redis, raw: MakeRaw
) -> None:
    count, piece = 500_000, 1000
    script = "for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], unpack(ARGV, 2)) end"
    client.eval(script, 1, held_key("ch"), count // piece, *["m"] * piece)
    assert client.llen("ch") == count
    size = len(encoded("message", "ch", "m")) * count
    with socket.create_connection(("127.0.0.1", server.port), 30) as reader:
        reader.sendall(encoded("SUBSCRIBE", "ch"))
        drain = threading.Thread(target=receive, args=(reader, size))
        drain.start()
        other, seen = raw(), [count]
        while seen[-1]:
            length = other.call("LLEN", "ch")
            assert isinstance(length, int)
            seen.append(length)
        drain.join()
    # Of a server that hands over all in one step, at most the beginning and the end are seen.
    assert len(set(seen)) > 5, "the server did nothing else while it handed over more than a fifth of the backlog"


def receive(connection: socket.socket, size: int) -> None:
    """Take at least so many bytes off a connection."""
    while size > 0:
        data = connection.recv(1 << 20)
        if not data:
            return
        size -= len(data)
