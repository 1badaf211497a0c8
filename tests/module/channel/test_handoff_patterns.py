"""A new pattern subscriber gets what each matching channel holds, as pmessage, each channel once per pattern."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    held,
    held_key,
    kept_last,
    last_key,
    serves_each,
    set_policies,
    subscribe,
)
from tests.support import eventually

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
NAMES = [
    "a", "abc", "abcd", "a*c", "a?c", "a[b]c", "a\\c", "axc", "news", "news:", "news:eu", "news:eu:1", "news:us",
    "NEWS:eu", "sensor/1/t", "sensor/2/t", "sensor/10/h", "é", "{a}b", "x}y", "100%", " ", "ab\ncd",
]  # fmt: skip
PATTERNS = [
    "*", "a", "abc", "a*", "*c", "a?c", "a[a-z]c", "a[^x]c", "a\\*c", "a\\?c", "a\\[b\\]c", "a\\\\c", "news:*",
    "news*", "news:eu", "*:eu*", "[nN]*", "sensor/?/t", "sensor/*", "*/*/*", "??", "{a}*",
    "{*}", "*}*", "*%", " ", "ab*cd", "none*",
]  # fmt: skip


def heard(values: list[Any]) -> list[tuple[bytes, bytes, bytes]]:
    """The pattern, channel and payload of each pmessage; fails if anything else came."""
    assert all(value[0] == b"pmessage" for value in values)
    return [(value[1], value[2], value[3]) for value in values]


@pytest.mark.parametrize("rule", ["* deliver=last", "* last=on", "* hold=none last=on"])
def test_a_pattern_gets_the_channels_that_match_it_and_no_others(client: redis.Redis, raw: MakeRaw, rule: str) -> None:
    for name in NAMES:
        client.set(name, "v")
    every = {name.encode() for name in NAMES}
    matching = {pattern: every.intersection(client.keys(pattern)) for pattern in PATTERNS}  # as the server matches
    client.flushall()
    set_policies(client, rule)
    for name in NAMES:
        client.publish(name, f"in {name}")
    for pattern in PATTERNS:
        subscriber = raw()
        came = heard(subscribe(subscriber, pattern, command="PSUBSCRIBE"))
        expected = [(pattern.encode(), name, b"in " + name) for name in matching[pattern]]
        assert sorted(came) == sorted(expected), pattern
        subscriber.close()
        eventually(lambda: client.pubsub_numpat() == 0)


@contextmanager
def interrupted(pid: int) -> Iterator[None]:
    """The process is stopped for 4 ms after each millisecond: longer than one step of a hand-off may take."""
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.001):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.004)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_few_channels_come_before_the_next_reply_though_the_server_is_kept_from_running(
    client: redis.Redis, raw: MakeRaw
) -> None:
    for number in range(900):
        client.rpush(held_key(f"sensor/{number}"), "m")
    subscriber = raw()
    with interrupted(client.info("server")["process_id"]):
        for _ in range(50):
            assert len(subscribe(subscriber, "sensor/*", command="PSUBSCRIBE")) == 900
            subscriber.send("PUNSUBSCRIBE", "sensor/*")
            assert subscriber.read() == [b"punsubscribe", b"sensor/*", 0]


@PROTOCOLS
@pytest.mark.parametrize("rule", ["* deliver=last", "* deliver=held", "* last=on"])
def test_a_thousand_channels_are_each_handed_over_once(
    client: redis.Redis, raw: MakeRaw, rule: str, protocol: int
) -> None:
    set_policies(client, rule)
    names = [f"sensor/{number}" for number in range(1000)]
    random.Random(1).shuffle(names)
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.publish(name, f"of {name}")
        pipeline.publish(f"other/{name}", "x")
    pipeline.execute()
    subscriber = raw(protocol=protocol)
    subscriber.send("PSUBSCRIBE", "sensor/*")
    assert subscriber.read() == [b"psubscribe", b"sensor/*", 1]
    came = heard(subscriber.read_many(1000))  # some of them, perhaps, in later turns of the server's loop
    assert subscriber.pending() == []
    assert sorted(came) == sorted((b"sensor/*", name.encode(), f"of {name}".encode()) for name in names)
    left = 0 if "held" in rule else 1000
    assert len(client.keys("holdmq:held:{sensor/*")) == left
    assert len(client.keys("holdmq:held:{other/*")) == 1000


def test_each_of_several_patterns_gets_its_own_messages(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("abc", "m")
    client.publish("axc", "n")
    came = heard(subscribe(raw(), "a*", "ab*", "z*", "*c", command="PSUBSCRIBE"))
    assert sorted(came) == [
        (b"*c", b"abc", b"m"),
        (b"*c", b"axc", b"n"),
        (b"a*", b"abc", b"m"),
        (b"a*", b"axc", b"n"),
        (b"ab*", b"abc", b"m"),
    ]


def test_a_pattern_that_is_named_twice_in_one_command_is_served_once(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("abc", "m")
    subscriber = raw()
    subscriber.send("PSUBSCRIBE", "a*", "a*")
    values = subscriber.pending()
    assert values.count([b"pmessage", b"a*", b"abc", b"m"]) == 1
    assert len(values) == 3


def test_a_client_that_subscribes_again_to_the_same_pattern_gets_nothing_again(
    client: redis.Redis, raw: MakeRaw
) -> None:
    client.publish("abc", "m")
    subscriber = raw()
    assert len(subscribe(subscriber, "a*", command="PSUBSCRIBE")) == 1
    assert subscribe(subscriber, "a*", command="PSUBSCRIBE") == []


def test_a_second_pattern_subscriber_is_served_too(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("abc", "m")
    first, second = raw(), raw()
    assert heard(subscribe(first, "a*", command="PSUBSCRIBE")) == [(b"a*", b"abc", b"m")]
    came = heard(subscribe(second, "*c", command="PSUBSCRIBE"))
    assert came == ([(b"*c", b"abc", b"m")] if serves_each(client) else [])
    assert first.pending() == []


def test_a_subscriber_of_the_channel_gets_the_pattern_hand_off_too(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("abc", "m")
    subscriber = raw()
    assert subscribe(subscriber, "abc") == [[b"message", b"abc", b"m"]]
    came = heard(subscribe(subscriber, "a*", command="PSUBSCRIBE"))
    assert came == ([(b"a*", b"abc", b"m")] if serves_each(client) else [])


def test_a_channel_with_both_lists_is_handed_over_once_and_with_its_newest(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* last=on")
    first = raw()
    client.publish("ch", "unheard")
    subscribe(first, "ch")
    client.publish("ch", "heard")
    first.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert held(client, "ch") == [b"unheard"]
    assert kept_last(client, "ch") == [b"heard"]
    assert heard(subscribe(raw(), "*", command="PSUBSCRIBE")) == [(b"*", b"ch", b"heard")]


def test_a_last_message_stays_where_it_is_when_the_backlog_is_handed_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* last=on deliver=held")
    client.publish("ch", "one")
    client.publish("ch", "two")
    assert heard(subscribe(raw(), "*", command="PSUBSCRIBE")) == [(b"*", b"ch", b"one"), (b"*", b"ch", b"two")]
    assert client.keys("*") == [last_key("ch").encode()]
    assert client.execute_command("CHANNEL.LAST", "ch") == b"two"


@pytest.mark.parametrize("length", [1, 1000, 1015, 1016, 1017, 1018, 1024, 1030, 16_384])
@pytest.mark.parametrize("rule", ["* hold=none last=on", "* last=on", "* hold=unheard"])
def test_channels_with_names_of_any_length_are_handed_over(
    client: redis.Redis, raw: MakeRaw, rule: str, length: int
) -> None:
    set_policies(client, rule)
    name = b"x" * length
    client.publish(name, "m")
    assert heard(subscribe(raw(), "x*", command="PSUBSCRIBE")) == [(b"x*", name, b"m")]


def test_a_list_that_was_held_before_last_was_on_is_handed_over_too(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "m")
    set_policies(client, "* last=on")
    assert heard(subscribe(raw(), "c*", command="PSUBSCRIBE")) == [(b"c*", b"ch", b"m")]


def test_two_channels_never_share_their_last_message(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* hold=none last=on")
    names = ["x", "{x}", "{{x}}", "%7Bx%7D", "{%7Bx%7D}", "x}", "{x", "{}x", "a{x}", "a{x}b"]
    for name in names:
        client.publish(name, f"of {name}")
    assert {name: client.execute_command("CHANNEL.LAST", name) for name in names} == {
        name: f"of {name}".encode() for name in names
    }
    came = heard(subscribe(raw(), "*", command="PSUBSCRIBE"))
    assert sorted(came) == sorted((b"*", name.encode(), f"of {name}".encode()) for name in names)


def test_only_channels_whose_policy_delivers_are_handed_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "quiet:* deliver=none", "all:* deliver=held", "none:* hold=none", "last:*")
    for name in ("quiet:1", "all:1", "none:1", "last:1", "other:1"):
        client.rpush(held_key(name), "one", "two")
    came = heard(subscribe(raw(), "*", command="PSUBSCRIBE"))
    assert sorted(came) == [(b"*", b"all:1", b"one"), (b"*", b"all:1", b"two"), (b"*", b"last:1", b"two")]
    assert sorted(client.keys("*")) == [held_key(name).encode() for name in ("last:1", "none:1", "other:1", "quiet:1")]


def test_keys_that_came_and_went_by_any_command_are_followed(client: redis.Redis, raw: MakeRaw) -> None:
    client.rpush(held_key("pushed"), "m")
    client.rpush(held_key("renamed-from"), "m")
    client.rename(held_key("renamed-from"), held_key("renamed-to"))
    client.rpush(held_key("copied-from"), "m")
    client.copy(held_key("copied-from"), held_key("copied-to"))
    client.restore(held_key("restored"), 0, client.dump(held_key("pushed")) or b"")
    client.rpush(held_key("stored-from"), "b", "a")
    client.sort(held_key("stored-from"), alpha=True, store=held_key("stored-to"))
    client.lmove(held_key("copied-from"), held_key("moved-to"))
    client.rpush(held_key("overwritten"), "m")
    client.set(held_key("overwritten"), "v")
    client.rpush(held_key("expired"), "m")
    client.pexpire(held_key("expired"), 1)
    client.rpush(held_key("unlinked"), "m")
    client.unlink(held_key("unlinked"))
    client.rpush(held_key("popped"), "m")
    client.rpop(held_key("popped"))
    client.rpush(held_key("trimmed"), "m")
    client.ltrim(held_key("trimmed"), 5, 6)
    client.rpush(held_key("away"), "m")
    client.move(held_key("away"), 7)
    eventually(lambda: client.exists(held_key("expired")) == 0)
    came = heard(subscribe(raw(), "*", command="PSUBSCRIBE"))
    names = sorted(channel for _, channel, _ in came)
    assert names == [b"copied-to", b"moved-to", b"pushed", b"renamed-to", b"restored", b"stored-from", b"stored-to"]


@pytest.mark.parametrize("how", ["FLUSHDB", "FLUSHALL", "SWAPDB"])
def test_a_flushed_or_swapped_database_is_followed(client: redis.Redis, raw: MakeRaw, how: str) -> None:
    client.publish("ch", "m")
    client.execute_command(*([how] if how != "SWAPDB" else ["SWAPDB", 0, 1]))
    first = raw()
    assert subscribe(first, "*", command="PSUBSCRIBE") == []
    first.close()
    if how == "SWAPDB":
        eventually(lambda: client.pubsub_numpat() == 0)
        client.execute_command("SWAPDB", 0, 1)
        assert heard(subscribe(raw(), "*", command="PSUBSCRIBE")) == [(b"*", b"ch", b"m")]
    client.publish("ch2", "n")


def test_a_reload_is_followed(client: redis.Redis, raw: MakeRaw) -> None:
    for number in range(50):
        client.publish(f"ch{number}", "m")
    client.execute_command("DEBUG", "RELOAD")
    came = heard(subscribe(raw(), "ch*", command="PSUBSCRIBE"))
    assert sorted(channel for _, channel, _ in came) == sorted(f"ch{number}".encode() for number in range(50))


def test_a_pattern_of_many_stars_does_not_stop_the_server(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("a" * 500, "m")
    subscriber = raw()
    assert subscribe(subscriber, "*a" * 100 + "b", command="PSUBSCRIBE") == []
    assert len(subscribe(subscriber, "*a" * 100, command="PSUBSCRIBE")) == (1 if serves_each(client) else 0)


def test_a_literal_prefix_is_looked_up_and_not_searched_for(client: redis.Redis, raw: MakeRaw) -> None:
    client.eval("for i = 1, 100000 do redis.call('RPUSH', 'holdmq:held:{sensor/' .. i .. '/t}', 'm') end", 0)

    def duration_s(pattern: str) -> float:
        subscriber = raw()
        start = time.perf_counter()
        subscriber.send("PSUBSCRIBE", pattern)
        came = subscriber.read_many(11)
        duration = time.perf_counter() - start
        assert len(heard(came[1:])) == 10
        subscriber.close()
        eventually(lambda: client.pubsub_numpat() == 0)
        return duration

    searched = min(duration_s("*/9999?/t") for _ in range(5))
    found = min(duration_s("sensor/9999?/t") for _ in range(5))
    assert found < searched / 5
