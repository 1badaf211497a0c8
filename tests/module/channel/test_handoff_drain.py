"""A backlog that is larger than its reader's buffer is handed over piece by piece; whatever happens meanwhile.

In each of these tests a reader has subscribed and does not read, so that the hand-off stands still half-way while
others publish, subscribe, change the list or go.  Before 7.2 the hand-off is a publish that only the reader hears: it
ends when another subscriber comes, and the rest stays.
"""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    MakeServer,
    answers,
    digest,
    held,
    held_key,
    messages,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import RawClient, eventually, reserve_port

COUNT, SIZE = 6_000, 2000
HELD = held_key("ch")
LIMIT = 1 << 20
TEXTS = [b"%d " % number + bytes(SIZE) for number in range(COUNT)]
HALF_WAY = (COUNT // 20, COUNT - 1)  # so many are in the list when the reader's buffers are full


@pytest.fixture(autouse=True)
def deliver_held(client: redis.Redis) -> None:
    """The policy of this file, and a small buffer for subscribers."""
    prepare(client)


def prepare(client: redis.Redis) -> None:
    """Set policy and buffer."""
    set_policies(client, "* hold=unheard maxlen=4294967295 deliver=held")
    client.config_set("client-output-buffer-limit", f"pubsub {LIMIT} 0 0")


def fill(client: redis.Redis, channel: str = "ch") -> None:
    """Hold the texts."""
    for start in range(0, COUNT, 500):
        client.rpush(held_key(channel), *TEXTS[start : start + 500])


def half_way(client: redis.Redis, channel: str = "ch") -> int:
    """Wait until the hand-off stands still; returns how many messages are still in the list."""
    lengths = [-1, -2]

    def still() -> bool:
        lengths.append(client.llen(held_key(channel)))
        client.ping()
        return lengths[-1] == lengths[-2] == lengths[-3]

    eventually(still, 20, "a hand-off that stands still")
    most = (
        HALF_WAY[1] if serves_each(client) else COUNT
    )  # before 7.2 one reader's full buffer holds up another channel's
    assert HALF_WAY[0] <= lengths[-1] <= most
    return lengths[-1]


def start_drain(client: redis.Redis, connection: RawClient, command: str = "SUBSCRIBE", name: str = "ch") -> int:
    """Fill the channel, subscribe and do not read; returns how many messages are still in the list."""
    fill(client)
    connection.timeout_s = 30
    connection.send(command, name)
    eventually(lambda: client.llen(HELD) < COUNT)
    return half_way(client)


def read_messages(reader: RawClient, count: int) -> list[Any]:
    """Read on until so many messages have come."""
    heard: list[Any] = []
    while len(heard) < count:
        heard += messages([reader.read()])
    return heard


def until_quiet(reader: RawClient) -> list[Any]:
    """All messages that come until none come any more."""
    heard: list[Any] = []
    while more := messages(reader.pending()):
        heard += more
    return heard


def numbers(texts: list[Any]) -> list[int]:
    """The numbers with which texts begin."""
    return [int(text.split()[0]) for text in texts]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(("command", "name"), [("SUBSCRIBE", "ch"), ("PSUBSCRIBE", "c*")])
def test_a_reader_that_reads_on_gets_everything_in_order(
    client: redis.Redis, raw: MakeRaw, command: str, name: str, protocol: int
) -> None:
    reader = raw(protocol=protocol)
    start_drain(client, reader, command, name)
    assert read_messages(reader, COUNT) == TEXTS
    assert client.dbsize() == 0
    assert client.publish("ch", "live") == 1
    assert messages(reader.pending()) == [b"live"]
    assert client.dbsize() == 0


def test_what_is_published_meanwhile_waits_behind(client: redis.Redis, raw: MakeRaw) -> None:
    reader = raw()
    start_drain(client, reader)
    for number in range(5):
        assert client.publish("ch", f"live {number}") == 1
    client.eval("return redis.call('PUBLISH', 'ch', 'live 5')", 0)
    assert read_messages(reader, COUNT + 6) == TEXTS + [b"live %d" % number for number in range(6)]
    assert client.dbsize() == 0
    assert reader.pending() == []


def test_what_is_published_meanwhile_goes_to_all(client: redis.Redis, raw: MakeRaw) -> None:
    reader, late = raw(), raw()
    start_drain(client, reader)
    subscribe(late, "ch")
    expected = [b"live %d" % number for number in range(6)]
    for text in expected:
        assert client.publish("ch", text) == 2
    if serves_each(client):
        assert late.pending() == []
        assert read_messages(reader, COUNT + 6) == TEXTS + expected
        eventually(lambda: client.exists(HELD) == 0)
        assert messages(late.pending()) == expected
    else:
        assert messages(late.pending()) == expected
        heard = until_quiet(reader)
        assert heard[-6:] == expected
        assert heard[:-6] + held(client, "ch") == TEXTS
    assert reader.pending() == []


def test_a_subscriber_that_comes_meanwhile_gets_nothing_of_the_backlog(client: redis.Redis, raw: MakeRaw) -> None:
    reader = raw()
    start_drain(client, reader)
    late, later = raw(), raw(protocol=3)
    assert subscribe(late, "ch") == []
    assert subscribe(later, "c*", command="PSUBSCRIBE") == []
    assert until_quiet(reader) + held(client, "ch") == TEXTS
    if serves_each(client):
        assert client.dbsize() == 0
    assert late.pending() == later.pending() == []


@pytest.mark.parametrize("how", ["close", "CLIENT KILL", "UNSUBSCRIBE", "UNSUBSCRIBE all", "RESET"])
def test_when_the_reader_goes_the_rest_stays_for_the_next(client: redis.Redis, raw: MakeRaw, how: str) -> None:
    reader = raw()
    start_drain(client, reader)
    if how == "close":
        reader.close()
    elif how == "CLIENT KILL":
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    else:
        command = {"UNSUBSCRIBE": ["UNSUBSCRIBE", "ch"], "UNSUBSCRIBE all": ["UNSUBSCRIBE"], "RESET": ["RESET"]}[how]
        reader.send(*command)
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    rest = held(client, "ch")
    assert rest == TEXTS[-len(rest) :]
    assert len(rest) >= HALF_WAY[0]
    assert client.publish("ch", "behind") == 0
    if how not in ("close", "CLIENT KILL"):  # what it was given stands before the end of its subscription
        taken = read_messages(reader, COUNT - len(rest))
        assert taken + rest == TEXTS
        assert messages(reader.pending()) == []
    following = raw()
    following.timeout_s = 30
    following.send("SUBSCRIBE", "ch")
    assert read_messages(following, len(rest) + 1) == [*rest, b"behind"]
    assert client.dbsize() == 0


@pytest.mark.parametrize("how", ["NOPERM", "DISCARD", "EXEC"])
def test_an_unsubscription_counts_when_the_server_carries_it_out(client: redis.Redis, raw: MakeRaw, how: str) -> None:
    reader = raw(protocol=3)
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "&*", "+@all")
    reader.call("AUTH", "reader", "any")
    start_drain(client, reader)
    if how == "NOPERM":
        client.execute_command("ACL", "SETUSER", "reader", "-unsubscribe")
        reader.send("UNSUBSCRIBE", "ch")
    else:
        reader.send_all(("MULTI",), ("UNSUBSCRIBE", "ch"), (how,))
    last = "unsubscribe" if how == "NOPERM" else how.lower()
    eventually(lambda: [line["cmd"] for line in client.client_list() if line["user"] == "reader"] == [last])
    if how == "EXEC":
        eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
        rest = held(client, "ch")
        assert rest == TEXTS[-len(rest) :]
    else:
        assert read_messages(reader, COUNT) == TEXTS
        assert client.publish("ch", "live") == 1
        assert messages(reader.pending()) == [b"live"]


def test_when_the_reader_goes_what_was_published_meanwhile_reaches_who_listens(
    client: redis.Redis, raw: MakeRaw
) -> None:
    reader, late = raw(), raw()
    start_drain(client, reader)
    subscribe(late, "ch")
    client.publish("ch", "live 0")
    client.publish("ch", "live 1")
    reader.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 1)])
    eventually(lambda: client.publish("ch", "live 2") == 1)
    heard: list[Any] = []

    def everything() -> bool:
        heard.extend(messages(late.pending()))
        return heard[-1:] == [b"live 2"]

    eventually(everything)
    assert heard[:2] == [b"live 0", b"live 1"]
    rest = held(client, "ch")
    assert rest == TEXTS[-len(rest) :]
    assert len(rest) >= HALF_WAY[0]


def changed(name: str) -> Callable[[redis.Redis], object]:
    """What somebody does to the list meanwhile."""
    changes: dict[str, Callable[[redis.Redis], object]] = {
        "DEL": lambda client: client.delete(HELD),
        "UNLINK": lambda client: client.unlink(HELD),
        "LTRIM": lambda client: client.ltrim(HELD, -10, -1),
        "LPOP": lambda client: client.lpop(HELD, 2000),
        "RPOP": lambda client: client.rpop(HELD, 2000),
        "LPUSH": lambda client: client.lpush(HELD, "999999 in front"),
        "RENAME": lambda client: client.rename(HELD, "other"),
        "SET": lambda client: client.set(HELD, "v"),
        "RENAME over": lambda client: (client.rpush("x", "1 x"), client.rename("x", HELD)),
        "PEXPIRE": lambda client: client.pexpire(HELD, 1),
        "FLUSHALL": lambda client: client.flushall(),
        "FLUSHDB": lambda client: client.flushdb(),
        "SWAPDB": lambda client: client.execute_command("SWAPDB", 0, 1),
        "MOVE": lambda client: client.move(HELD, 1),
        "RELOAD": lambda client: client.execute_command("DEBUG", "RELOAD"),
        "no policy": set_policies,
        "hold=none": lambda client: set_policies(client, "* hold=none"),
        "deliver=last": lambda client: set_policies(client, "* deliver=last"),
        "intercept no": lambda client: client.config_set("holdmq.intercept", "no"),
        "maxlen": lambda client: (
            client.config_set("holdmq.policies", "* maxlen=10 deliver=held"),
            client.publish("ch", "1 more"),
        ),
    }
    return changes[name]


CHANGES = [
    "DEL", "UNLINK", "LTRIM", "LPOP", "RPOP", "LPUSH", "RENAME", "SET", "RENAME over", "PEXPIRE", "FLUSHALL", "FLUSHDB",
    "SWAPDB", "MOVE", "RELOAD", "no policy", "hold=none", "deliver=last", "intercept no", "maxlen",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_happens_to_the_list_meanwhile_the_channel_continues(
    client: redis.Redis, raw: MakeRaw, change: str
) -> None:
    reader = raw()
    left = start_drain(client, reader)
    changed(change)(client)
    taken = COUNT - left
    heard = read_messages(reader, taken)
    assert heard == TEXTS[:taken]
    live: list[Any] = []

    def continues() -> bool:
        client.publish("ch", b"-1 live")
        live.extend(messages(reader.pending()))
        return live[-1:] == [b"-1 live"]

    eventually(continues, 20, "a channel on which live messages come again")
    rest = [number for number in numbers(live) if 0 <= number < COUNT]
    assert len(rest) == len(set(rest))  # none twice
    assert not set(rest) & set(range(taken)) - {1}
    in_order = sorted(rest)
    assert rest == in_order or change in ("LPUSH", "RENAME over", "maxlen")


def test_backlogs_of_many_channels_go_to_one_reader(client: redis.Redis, raw: MakeRaw) -> None:
    names = [f"ch{number}" for number in range(8)]
    for name in names:
        client.rpush(held_key(name), *[f"{name} {number} ".encode() + bytes(SIZE) for number in range(1500)])
    reader = raw(protocol=3)
    reader.timeout_s = 30
    reader.send("PSUBSCRIBE", "ch*")
    heard: dict[bytes, list[int]] = {name.encode(): [] for name in names}
    for _ in range(8 * 1500 + 1):
        value = reader.read_message()
        if value[0] == b"pmessage":
            assert isinstance(value[2], bytes)
            assert isinstance(value[3], bytes)
            heard[value[2]].append(int(value[3].split()[1]))
    assert heard == {name.encode(): list(range(1500)) for name in names}
    assert client.dbsize() == 0


def test_a_reader_of_a_drain_can_keep_giving_commands(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("second", "held")
    reader = raw(protocol=3)
    start_drain(client, reader)
    reader.send_all(("SUBSCRIBE", "second"), ("PUBLISH", "third", "m"), ("GET", "none"))
    heard: list[Any] = []
    while len(heard) < COUNT + 1:
        heard += messages([reader.read()])
    assert [text for text in heard if text != b"held"] == TEXTS
    assert held(client, "third") == [b"m"]


def test_without_memory_a_publish_meanwhile_is_refused_and_nothing_is_lost(client: redis.Redis, raw: MakeRaw) -> None:
    reader = raw()
    start_drain(client, reader)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    [reply] = answers(raw(), ["PUBLISH", "ch", "live"])
    client.config_set("maxmemory", 0)
    assert reply.startswith("-OOM")
    assert read_messages(reader, COUNT) == TEXTS
    assert reader.pending() == []


def test_a_list_that_is_evicted_meanwhile_ends_the_drain(client: redis.Redis, raw: MakeRaw) -> None:
    reader = raw()
    left = start_drain(client, reader)
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", 1)
    eventually(lambda: client.exists(HELD) == 0)
    client.config_set("maxmemory", 0)
    assert read_messages(reader, COUNT - left) == TEXTS[: COUNT - left]
    eventually(lambda: client.publish("ch", "live") == 1)
    assert messages(reader.pending())[-1:] == [b"live"]


def test_a_replica_is_equal_after_a_drain_with_publishes(fresh_server: MakeServer, raw: MakeRaw) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, copy = primary.client(), replica.client()
    prepare(client)
    listener = raw(replica)
    subscribe(listener, "ch")
    reader = raw(primary)
    start_drain(client, reader)
    for number in range(10):
        client.publish("ch", f"live {number}")
    expected = [b"live %d" % number for number in range(10)]
    assert read_messages(reader, COUNT + 10) == [*TEXTS, *expected]

    def equal() -> bool:
        return bool(digest(client) == digest(copy) and client.dbsize() == copy.dbsize() == 0)

    eventually(equal)
    assert messages(listener.read_many(10)) == expected
    assert listener.pending() == []


MOST_AHEAD = 1 << 20  # what a reader is given ahead of what it has read, in bytes


def test_a_crash_in_a_drain_loses_nothing_that_was_not_handed_over(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    prepare(client)
    reader = raw(server)
    left = start_drain(client, reader)
    client.publish("ch", "live")
    server.kill()
    heard = messages(until_closed(reader))
    server.restart()
    rest = held(server.client(), "ch")
    assert heard == TEXTS[: len(heard)]
    assert rest[-1] == b"live"
    assert 0 < len(rest) - 1 <= left
    assert rest[:-1] == TEXTS[1 - len(rest) :]
    lost = TEXTS[len(heard) : 1 - len(rest)]  # taken out, and not yet in the reader's hands when the server was killed
    assert sum(map(len, lost)) <= MOST_AHEAD


def until_closed(reader: RawClient) -> list[Any]:
    """All that comes before the connection ends."""
    values = []
    while True:
        try:
            values.append(reader.read())
        except ConnectionError:
            return values


def test_a_primary_that_becomes_a_replica_takes_nothing_out_any_more(fresh_server: MakeServer, raw: MakeRaw) -> None:
    server = fresh_server()
    client = server.client()
    prepare(client)
    reader = raw(server)
    start_drain(client, reader)
    with reserve_port() as nobody:
        client.replicaof("127.0.0.1", nobody.number)
        before = held(client, "ch")
        assert before == TEXTS[-len(before) :]
        heard = until_quiet(reader)
        assert heard == TEXTS[: COUNT - len(before)]
        assert held(client, "ch") == before
    client.replicaof("NO", "ONE")
    client.publish("ch", "-1 live")
    while not heard or heard[-1] != b"-1 live":
        heard += messages([reader.read()])
    rest = held(client, "ch")
    assert heard[:-1] + rest == TEXTS


def test_each_of_two_channels_is_drained_to_its_own_reader(client: redis.Redis, raw: MakeRaw) -> None:
    fill(client, "ch")
    fill(client, "ch2")
    one, two = raw(), raw(protocol=3)
    one.timeout_s = two.timeout_s = 30
    one.send("SUBSCRIBE", "ch")
    two.send("SUBSCRIBE", "ch2")
    half_way(client, "ch")
    half_way(client, "ch2")
    if serves_each(client):
        assert read_messages(two, COUNT) == TEXTS
        assert client.llen(HELD) >= HALF_WAY[0]
        assert read_messages(one, COUNT) == TEXTS
    else:  # which of the subscribers has room is not known there: who reads nothing holds the other up
        heard: tuple[list[Any], list[Any]] = ([], [])
        while min(map(len, heard)) < COUNT:
            heard[0].extend(messages(one.pending()))
            heard[1].extend(messages(two.pending()))
        assert heard == (TEXTS, TEXTS)
    assert client.dbsize() == 0


def test_a_reader_that_takes_nothing_for_too_long_no_longer_holds_the_others_up(
    client: redis.Redis, raw: MakeRaw
) -> None:
    reader, listener = raw(), raw()
    left = start_drain(client, reader)
    subscribe(listener, "ch")
    client.config_set("holdmq.drain-timeout", 1)  # not before: what comes after the end of the drain gets the backlog
    client.publish("ch", "live")
    eventually(lambda: messages(listener.pending()) == [b"live"], 20, "the live message at the other subscriber")
    rest = held(client, "ch")
    assert rest == TEXTS[len(TEXTS) - len(rest) :]
    assert 0 < len(rest) <= left
