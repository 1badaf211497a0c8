"""A pattern over very many held channels is handed over in parts: others are served in between, nothing comes twice."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.module.channels_support import (
    MakeRaw,
    busy,
    held_key,
    serves_each,
    set_policies,
)
from tests.support import RawClient, ReplyError, eventually
from tests.support.ratio import least_ratio

MANY = 200_000
FEW = 20_000  # still far more than one turn hands over
LARGE = 1000  # bytes: FEW of them are more than all buffers take, so that a walk stands until its subscriber reads
PARTS = 100  # in which a test reads, and asks in between
TURNS = 5  # at least, between which others are served: on a machine that stands still now and then
WAIT_S = 60.0


def fill(client: redis.Redis, count: int, size: int = 0) -> None:
    """Keep a message in each of so many channels: its number, and blanks up to this size."""
    client.execute_command("CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0")
    script = """
        for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
            local text = i .. string.rep(' ', ARGV[3] - string.len(i))
            redis.call('RPUSH', string.format('holdmq:held:{ch:%06d}', i), text)
        end
    """
    for first in range(0, count, 10_000):
        client.eval(script, 0, first, min(first + 10_000, count) - 1, size)


def name(number: int) -> bytes:
    """A filled channel."""
    return b"ch:%06d" % number


def begin(connection: RawClient, *patterns: str) -> None:
    """Subscribe, and read the confirmations."""
    connection.send("PSUBSCRIBE", *patterns)
    values: list[Any] = connection.read_many(len(patterns))
    assert [value[0] for value in values] == [b"psubscribe"] * len(patterns)


def channels(connection: RawClient, count: int) -> list[bytes]:
    """The channels of so many messages, in their order."""
    values: list[Any] = connection.read_many(count)
    assert {value[0] for value in values} == {b"pmessage"}
    return [value[2] for value in values]


@pytest.mark.parametrize("rule", ["* deliver=last", "* deliver=held"])
def test_each_channel_comes_once_while_others_are_served(client: redis.Redis, raw: MakeRaw, rule: str) -> None:
    set_policies(client, rule)
    if "held" in rule:
        fill(client, FEW, LARGE)
    else:
        fill(client, MANY)
    count = client.dbsize()
    before = handed_over(client)
    subscriber = raw()
    begin(subscriber, "ch:*")
    came: list[bytes] = []
    seen = set()  # how far the walk was whenever another one was served
    for _ in range(PARTS):
        seen.add(handed_over(client) - before)
        came += channels(subscriber, count // PARTS)
    if "held" in rule:  # backlogs that must wait for room in the buffers come in no order of their channels
        came.sort()
    assert came == [name(number) for number in range(count)]
    assert subscriber.pending() == []
    assert len(seen - {0, count}) > TURNS
    assert client.dbsize() == (0 if "held" in rule else count)


@pytest.mark.parametrize("rule", ["* deliver=last", "* deliver=held", "* hold=all deliver=last", "* last=on"])
def test_a_later_message_comes_after_what_its_channel_held(client: redis.Redis, raw: MakeRaw, rule: str) -> None:
    set_policies(client, rule)
    fill(client, FEW, LARGE)
    subscriber = raw()
    begin(subscriber, "ch:*")
    last = FEW - 1
    assert client.publish(name(last), "later") == 1
    assert client.publish(name(0), "later") == 1
    values: list[Any] = subscriber.read_many(FEW + 2)
    assert [value[3].strip() for value in values if value[2] == name(last)] == [b"%d" % last, b"later"]
    assert [value[3].strip() for value in values if value[2] == name(0)] == [b"0", b"later"]
    assert [value[2] for value in values].index(name(last)) < FEW - 1  # it did not wait for the others
    assert len({value[2] for value in values}) == FEW
    assert subscriber.pending() == []


def test_a_message_to_a_channel_that_holds_nothing_comes_once(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* hold=all deliver=last")
    fill(client, FEW)
    subscriber = raw()
    begin(subscriber, "ch:*")
    assert client.publish("ch:new", "new") == 1
    values: list[Any] = subscriber.read_many(FEW + 1)
    assert [value[3] for value in values if value[2] == b"ch:new"] == [b"new"]
    assert subscriber.pending() == []


def test_several_patterns_and_subscribers_get_all_of_theirs(client: redis.Redis, raw: MakeRaw) -> None:
    if not serves_each(client):  # then only the first pattern of the only subscriber is served
        subscriber = raw()
        fill(client, FEW)
        begin(subscriber, "ch:0*", "ch:*")  # a publish reaches both
        assert channels(subscriber, 2 * FEW)[::2] == [name(number) for number in range(FEW)]
        assert subscriber.pending() == []
        return
    set_policies(client, "* deliver=last")
    fill(client, FEW)
    subscribers = [raw() for _ in range(3)]
    for subscriber in subscribers:
        begin(subscriber, "ch:0*", "*9")
    for subscriber in subscribers:
        values: list[Any] = subscriber.read_many(FEW + FEW // 10)
        assert [value[2] for value in values if value[1] == b"ch:0*"] == [name(number) for number in range(FEW)]
        assert [value[2] for value in values if value[1] == b"*9"] == [name(number) for number in range(9, FEW, 10)]
        assert subscriber.pending() == []


def test_a_killed_subscriber_ends_the_hand_off_and_the_next_one_gets_all(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=last")
    fill(client, FEW)
    first = raw()
    begin(first, "ch:*")
    client.client_kill_filter(_type="pubsub")
    eventually(lambda: client.pubsub_numpat() == 0, WAIT_S, "an end of the subscription")
    given = handed_over(client)
    second = raw()
    begin(second, "ch:*")
    assert channels(second, FEW) == [name(number) for number in range(FEW)]
    assert handed_over(client) == given + FEW


def handed_over(client: redis.Redis) -> int:
    """How many messages were given to new subscribers."""
    return int(client.info("holdmq")["holdmq_handed_over"])


@pytest.mark.parametrize("words", [["PUNSUBSCRIBE", "ch:*"], ["PUNSUBSCRIBE"]])
def test_a_client_that_unsubscribes_gets_no_more_and_who_subscribes_again_gets_all(
    client: redis.Redis, raw: MakeRaw, words: list[str]
) -> None:
    set_policies(client, "* deliver=last")
    fill(client, FEW, LARGE)
    subscriber = raw()
    subscriber.send("PSUBSCRIBE", "ch:*")
    subscriber.send(*words)
    values: list[Any] = []
    while not values or values[-1][0] != b"punsubscribe":
        values.append(subscriber.read())
    assert len(values) < FEW
    assert subscriber.pending() == []
    begin(subscriber, "ch:*")
    assert channels(subscriber, FEW) == [name(number) for number in range(FEW)]
    assert subscriber.pending() == []


def test_a_subscriber_that_reads_nothing_is_given_no_more_than_its_buffer_takes(
    client: redis.Redis, raw: MakeRaw
) -> None:
    set_policies(client, "* deliver=last")
    client.execute_command("CONFIG", "SET", "client-output-buffer-limit", "pubsub 4mb 2mb 60")
    pipeline = client.pipeline(transaction=False)
    for number in range(2000):
        pipeline.rpush(held_key(name(number).decode()), b"x" * 10_000)
    pipeline.execute()
    subscriber = raw()
    begin(subscriber, "ch:*")
    assert client.ping()
    assert channels(subscriber, 2000) == [name(number) for number in range(2000)]
    assert client.pubsub_numpat() == 1  # it was not cut off


def test_flushed_channels_are_passed_over(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=last")
    fill(client, FEW)
    subscriber = raw()
    begin(subscriber, "ch:*")
    client.flushall()
    client.publish("ch:x", "end")
    values: list[Any] = []
    while not values or values[-1][3] != b"end":
        values.append(subscriber.read())
    assert [value[2] for value in values[:-1]] == [name(number) for number in range(len(values) - 1)]
    assert subscriber.pending() == []


# --- Others are served meanwhile --------------------------------------------------------------------------------------

HELD_CHANNELS = 3000
PATTERN_COUNT = 4001
LONGEST_S = 3.0  # of a PING while much else runs, and while Redis 7.0 compares each pattern with all others


def longest_ping_s(connection: RawClient, until: Callable[[], bool]) -> float:
    """The longest that a PING took, up to the time when it is true."""
    longest = 0.0
    over = False
    while not over:
        over = until()
        begun = time.perf_counter()
        connection.call("PING")
        longest = max(longest, time.perf_counter() - begun)
    return longest


@pytest.mark.parametrize("how", ["one by one", "in one command"])
def test_thousands_of_patterns_of_a_client_that_does_not_read_keep_nobody_waiting(
    client: redis.Redis, raw: MakeRaw, how: str
) -> None:
    set_policies(client, "* deliver=last")
    fill(client, HELD_CHANNELS, LARGE)
    patterns = [f"*{number}*" if number > 0 else "*" for number in range(PATTERN_COUNT)]
    silent, other = raw(), raw()
    if how == "one by one":
        silent.send_all(*[("PSUBSCRIBE", pattern) for pattern in patterns])
    else:
        silent.send("PSUBSCRIBE", *patterns)
    turns = iter(range(2000))

    def done() -> bool:
        return next(turns, None) is None and client.pubsub_numpat() == PATTERN_COUNT

    assert longest_ping_s(other, done) < LONGEST_S


@pytest.mark.usefixtures("server")
def test_subscribing_in_a_transaction_takes_time_in_proportion(raw: MakeRaw) -> None:
    def duration_s(count: int) -> float:
        subscriber = raw()
        begun = time.perf_counter()
        subscriber.send_all(("MULTI",), *[("SUBSCRIBE", f"{count}:{number}") for number in range(count)], ("DISCARD",))
        subscriber.read_many(count + 2)
        return time.perf_counter() - begun

    assert least_ratio(lambda: duration_s(16_000), lambda: duration_s(1000), below=16 * 4) < 16 * 4


def test_a_publish_that_is_refused_while_a_script_runs_continues_no_walk(client: redis.Redis, raw: MakeRaw) -> None:
    """What a script reads does not change while it runs."""
    set_policies(client, "* deliver=held")
    fill(client, FEW, LARGE)
    subscriber, publisher = raw(), raw()
    begin(subscriber, "ch:*")
    with busy(client, raw()):
        publisher.send("PUBLISH", name(FEW - 1), "m")
        assert isinstance(publisher.read(), ReplyError)
    assert client.llen(f"holdmq:held:{{ch:{FEW - 1:06d}}}") == 1
