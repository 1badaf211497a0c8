"""TOPIC.PUBLISH and CHANNEL.(S)PUBLISH … PRODUCER: what is sent again after a lost reply is not published again."""

from collections.abc import Callable

import pytest
import redis

from tests.module.channels_support import MakeRaw, held, last_key, set_policies, subscribe
from tests.module.sessions_support import (
    Session,
    assert_same_keys,
    payloads,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import RawClient, ReplyError, Server

WEEK_MS = 7 * 24 * 3600 * 1000
MOST = 2**53 - 1
COMMANDS = ["TOPIC.PUBLISH", "CHANNEL.PUBLISH", "CHANNEL.SPUBLISH"]
KEYS = {
    "TOPIC.PUBLISH": "{job}_producer",
    "CHANNEL.PUBLISH": "{t}_producer{job}",
    "CHANNEL.SPUBLISH": "{t}_producer{job}",
}


def publish(client: redis.Redis, command: str, payload: str, epoch: int, chunk: int, producer: str = "job") -> int:
    """Publish to `t`, by a producer."""
    options = ("QOS", 1) if command == "TOPIC.PUBLISH" else ()
    return int(client.execute_command(command, "t", payload, *options, "PRODUCER", producer, epoch, chunk))


def received(client: redis.Redis, command: str) -> list[bytes]:
    """What waits for somebody: in the session that subscribed, or in the channel's list."""
    return payloads(Session(client).fetch().entries) if command == "TOPIC.PUBLISH" else held(client, "t")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_chunk_is_published_once(client: redis.Redis, command: str) -> None:
    Session(client).subscribe(("t", 1))
    reached = 1 if command == "TOPIC.PUBLISH" else 0
    assert publish(client, command, "a", 1, 0) == reached
    assert publish(client, command, "b", 1, 5) == reached
    with unchanged(client):
        for chunk in (5, 4, 0):
            assert publish(client, command, "again", 1, chunk) == -1
    assert publish(client, command, "c", 1, 6) == reached
    assert publish(client, command, "d", 2, 0) == reached  # a new epoch begins anew
    assert publish(client, command, "e", 2, MOST, producer="other") == reached
    assert received(client, command) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_chunk_is_refused_if_the_chunk_before_it_is_not_stored(client: redis.Redis, command: str) -> None:
    def follow(epoch: int, chunk: int, after: int) -> int:
        words = ("PRODUCER", "job", epoch, chunk, "AFTER", after)
        return int(client.execute_command(command, "t", str(chunk), *words))

    with (
        unchanged(client),
        pytest.raises(redis.ResponseError, match=r"^GAP the chunk follows number 0 of the producer"),
    ):
        follow(1, 1, 0)
    publish(client, command, "0", 1, 0)
    assert (follow(1, 1, 0), follow(1, 1, 0), follow(1, 5, 1)) == (0, -1, 0)
    for epoch, after in ((1, 6), (2, 5)):  # a new epoch begins anew
        with unchanged(client), pytest.raises(redis.ResponseError, match=r"^GAP"):
            follow(epoch, 9, after)
    assert received(client, command) == [b"0", b"1", b"5"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_producer_whose_place_was_taken_is_fenced(client: redis.Redis, command: str) -> None:
    publish(client, command, "new", 7, 0)
    with (
        unchanged(client),
        pytest.raises(redis.ResponseError, match=r"^FENCED the epoch is 6; the producer 'job' already has epoch 7"),
    ):
        publish(client, command, "old", 6, 100)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_known_of_a_producer_ends_a_week_after_its_last_use(client: redis.Redis, command: str) -> None:
    for chunk in (1, 2):
        publish(client, command, "a", 3, chunk)
        assert WEEK_MS - 60_000 < client.pttl(KEYS[command]) <= WEEK_MS
        client.pexpire(KEYS[command], 5000)
    assert client.get(KEYS[command]) == b"3 2"


def test_a_repetition_is_not_heard_either(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* hold=all last=on")
    listener = raw()
    subscribe(listener, "t")
    assert publish(client, "CHANNEL.PUBLISH", "once", 1, 1) == 1
    assert publish(client, "CHANNEL.PUBLISH", "once", 1, 1) == -1
    assert listener.pending() == [[b"message", b"t", b"once"]]
    assert held(client, "t") == client.lrange(last_key("t"), 0, -1) == [b"once"]


@pytest.mark.parametrize(
    ("channel", "producer", "key"),
    [
        ("{tag}x", "{y}", "{tag}x:producer{%7By%7D}"),
        ("a}b", "p", "{a%7Db}_producer%{p}"),
        ("a{b", "100%", "{a{b}_producer{100%25}"),
    ],
)
def test_channels_and_producers_of_any_name_have_keys_of_their_own(
    client: redis.Redis, channel: str, producer: str, key: str
) -> None:
    assert client.execute_command("CHANNEL.PUBLISH", channel, "m", "PRODUCER", producer, 1, 1) == 0
    assert client.get(key) == b"1 1"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("rest", "error"),
    [
        (("PRODUCER",), "the id of PRODUCER is missing"),
        (("PRODUCER", "", 1, 1), "the id of PRODUCER has 0 bytes; expected 1 to 255"),
        (("PRODUCER", "x" * 256, 1, 1), "the id of PRODUCER has 256 bytes"),
        (("PRODUCER", "p", -1, 1), "the epoch of PRODUCER is '-1'"),
        (("PRODUCER", "p", 1), "the chunk of PRODUCER is missing"),
        (("PRODUCER", "p", 1, MOST + 1), "the chunk of PRODUCER is '9007199254740992'"),
        (("PRODUCER", "p", 1, 1, "x"), "unexpected argument 'x'"),
        (("x",), "unexpected argument 'x'"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "-",
)
def test_wrong_producers_are_refused_by_name(
    server: Server, client: redis.Redis, command: str, rest: tuple[str | int, ...], error: str
) -> None:
    with RawClient(server.port) as raw, unchanged(client), pytest.raises(ReplyError, match=f"^ERR {error}"):
        raw.call(command, "t", "m", *rest)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_others_wrote_is_named_and_nothing_is_published(client: redis.Redis, command: str) -> None:
    for write in (("SET", KEYS[command], "x"), ("RPUSH", KEYS[command], "x")):
        client.delete(KEYS[command])
        client.execute_command(*write)
        with unchanged(client), pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .*_producer"):
            publish(client, command, "m", 1, 1)


def test_without_memory_or_the_right_to_write_nothing_is_published(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server()
    client = server.client()
    client.execute_command("ACL", "SETUSER", "u", "on", "nopass", "+@all", "&*", "~t", "~{job}_producer")
    with RawClient(server.port) as raw:
        raw.call("AUTH", "u", "x")
        with pytest.raises(ReplyError, match=r"^NOPERM .*\{t\}_producer\{job\}"):
            raw.call("CHANNEL.PUBLISH", "t", "m", "PRODUCER", "job", 1, 1)
    client.config_set("maxmemory", 1)
    for command in COMMANDS:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            publish(client, command, "m", 1, 1)
    assert snapshot(client) == {}


def test_a_chunk_is_known_on_a_replica_and_after_a_crash(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    replica = fresh_server(replica_of=server)
    client = server.client()
    Session(client).subscribe(("t", 1))
    for command in COMMANDS:
        publish(client, command, "m", 4, 2, producer=command)
    want = snapshot(client)
    wait_for_replica(client, replica.client())
    assert_same_keys(snapshot(replica.client()), want)
    with pytest.raises(redis.ResponseError, match="PRODUCER is not accepted by a replica"):
        publish(replica.client(), "CHANNEL.PUBLISH", "m", 4, 3)
    server.kill()
    server.restart()
    client = server.client()
    assert_same_keys(snapshot(client), want)
    for command in COMMANDS:
        assert publish(client, command, "m", 4, 2, producer=command) == -1
