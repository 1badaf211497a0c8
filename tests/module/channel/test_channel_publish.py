"""What a publish keeps: in which list, for how long, when not, and that the write is like any other write."""

import time
from typing import Any

import pytest
import redis

from holdmq import core
from holdmq.core import ChannelKey
from tests.module.channels_support import (
    TTL_SLACK,
    MakeRaw,
    Part,
    answers,
    held,
    held_key,
    information,
    kept_last,
    last_key,
    set_policies,
    subscribe,
)
from tests.support import Push, RawClient, ReplyError, Server, Status, eventually

WEEK_S = 604800
MEGABYTE = 1 << 20
HELD, LAST = held_key("ch"), last_key("ch")


# --- Whether a message is kept ----------------------------------------------------------------------------------------


def test_messages_without_a_receiver_are_in_the_channels_list(client: redis.Redis) -> None:
    assert [client.publish("ch", text) for text in ("one", "two", "three")] == [0, 0, 0]
    assert held(client, "ch") == [b"one", b"two", b"three"]
    assert client.keys("*") == [HELD.encode()]
    assert client.type(HELD) == b"list"


def test_a_message_with_a_receiver_is_delivered_and_not_held(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    assert subscribe(subscriber, "ch") == []
    assert client.publish("ch", "live") == 1
    assert subscriber.pending() == [[b"message", b"ch", b"live"]]
    assert client.dbsize() == 0


def test_a_pattern_subscriber_is_a_receiver(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    assert subscribe(subscriber, "c*", command="PSUBSCRIBE") == []
    assert client.publish("ch", "live") == 1
    assert subscriber.pending() == [[b"pmessage", b"c*", b"ch", b"live"]]
    assert client.dbsize() == 0


def test_the_reply_counts_each_subscription_that_heard(client: redis.Redis, raw: MakeRaw) -> None:
    one, two = raw(), raw(protocol=3)
    subscribe(one, "ch")
    subscribe(one, "c*", "?h", command="PSUBSCRIBE")
    subscribe(two, "ch")
    assert client.publish("ch", "m") == 4
    assert client.execute_command("CHANNEL.PUBLISH", "ch", "m") == 4


def test_messages_are_held_again_when_the_last_subscriber_has_gone(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    client.publish("ch", "heard")
    subscriber.close()
    eventually(lambda: client.publish("ch", "unheard") == 0)
    assert held(client, "ch") == [b"unheard"]


def test_the_name_of_the_command_may_be_written_in_any_case(client: redis.Redis) -> None:
    for name in ("PUBLISH", "publish", "PubLish", "channel.publish"):
        assert client.execute_command(name, "ch", name) == 0
    assert held(client, "ch") == [b"PUBLISH", b"publish", b"PubLish", b"channel.publish"]


def test_hold_none_keeps_nothing(client: redis.Redis) -> None:
    set_policies(client, "* hold=none")
    assert client.publish("ch", "m") == 0
    assert client.dbsize() == 0


def test_hold_all_keeps_what_was_received_too(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* hold=all")
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert client.publish("ch", "heard") == 1
    assert subscriber.pending() == [[b"message", b"ch", b"heard"]]
    subscriber.close()
    eventually(lambda: client.pubsub_numsub("ch") == [(b"ch", 0)])
    assert client.publish("ch", "unheard") == 0
    assert held(client, "ch") == [b"heard", b"unheard"]


def test_a_channel_that_no_rule_matches_is_left_alone(client: redis.Redis) -> None:
    set_policies(client, "news:* hold=all")
    client.config_resetstat()
    assert client.publish("other", "m") == 0
    assert client.dbsize() == 0
    commands = client.info("commandstats")
    assert "cmdstat_publish" in commands
    assert "cmdstat_channel.publish" not in commands  # not even under another name


def test_no_policy_at_all_keeps_nothing(client: redis.Redis) -> None:
    set_policies(client)
    assert client.publish("ch", "m") == 0
    assert client.execute_command("CHANNEL.PUBLISH", "ch", "m") == 0
    assert client.dbsize() == 0


def test_without_interception_only_the_explicit_command_holds(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("holdmq.intercept", "no")
    assert client.publish("ch", "stock") == 0
    assert client.dbsize() == 0
    assert client.execute_command("CHANNEL.PUBLISH", "ch", "explicit") == 0
    assert client.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"explicit"]
    assert client.lrange("ch", 0, -1) == []
    assert subscribe(raw(), "ch") == []
    client.config_set("holdmq.intercept", "yes")
    assert client.publish("ch2", "held") == 0
    assert held(client, "ch2") == [b"held"]


def test_a_key_of_the_application_under_the_channels_name_stays_as_it_is(client: redis.Redis) -> None:
    client.set("string", "s")
    client.hset("hash", "f", "v")
    client.zadd("zset", {"m": 1})
    client.rpush("list", "job")
    names = ("string", "hash", "zset", "list")
    before = {name: client.dump(name) for name in names}
    for name in names:
        assert client.publish(name, "one") == 0
        assert client.execute_command("CHANNEL.PUBLISH", name, "two") == 0
        assert client.execute_command("CHANNEL.RANGE", name, 0, -1) == [b"one", b"two"]
    assert {name: client.dump(name) for name in names} == before


def test_a_key_of_another_type_in_the_place_of_the_list_stays_as_it_is(client: redis.Redis) -> None:
    client.set(HELD, "mine")
    skipped = information(client)["channel_not_held_wrongtype"]
    assert client.publish("ch", "m") == client.execute_command("CHANNEL.PUBLISH", "ch", "m") == 0
    assert client.get(HELD) == b"mine"
    assert information(client)["channel_not_held_wrongtype"] - skipped == 2


# --- The last message -------------------------------------------------------------------------------------------------


def test_last_on_keeps_the_last_message_heard_or_not(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* last=on")
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert [client.publish("ch", text) for text in ("one", "two")] == [1, 1]
    assert kept_last(client, "ch") == [b"two"]
    assert held(client, "ch") == []
    subscriber.close()
    eventually(lambda: client.publish("ch", "three") == 0)
    assert kept_last(client, "ch") == [b"three"]
    assert held(client, "ch") == [b"three"]


def test_last_on_works_for_a_channel_that_holds_nothing(client: redis.Redis) -> None:
    set_policies(client, "* hold=none last=on ttl=100")
    assert client.publish("ch", "one") == 0
    assert client.publish("ch", "two") == 0
    assert kept_last(client, "ch") == [b"two"]
    assert client.execute_command("CHANNEL.LEN", "ch") == 0
    assert 99_000 <= client.pttl(LAST) <= 100_000 + 100_000 // TTL_SLACK
    assert client.execute_command("CHANNEL.LAST", "ch") == b"two"


@pytest.mark.parametrize(
    ("channel", "key"),
    [
        ("ch", "holdmq:last:{ch}"),
        ("a{b", "holdmq:last:{a{b}"),
        ("100%", "holdmq:last:{100%}"),
        ("{ch", "holdmq:last:{{ch}"),
        ("news{eu}", "holdmq:last::news{eu}"),  # its own hash tag keeps it in the slot of the channel
    ],
)
def test_the_last_message_lies_in_the_slot_of_its_channel(client: redis.Redis, channel: str, key: str) -> None:
    set_policies(client, "* hold=none last=on")
    client.publish(channel, "m")
    assert client.keys("*") == [key.encode()]
    assert client.execute_command("CHANNEL.LAST", channel) == b"m"


def test_a_key_of_another_type_under_the_name_of_the_last_message_stays_as_it_is(client: redis.Redis) -> None:
    set_policies(client, "* last=on")
    client.set(LAST, "mine")
    assert client.publish("ch", "m") == 0
    assert client.get(LAST) == b"mine"
    assert held(client, "ch") == [b"m"]


# --- How much and how long --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maxlen", [1, 3])
def test_maxlen_keeps_the_newest(client: redis.Redis, maxlen: int) -> None:
    set_policies(client, f"* maxlen={maxlen}")
    trimmed = information(client)["channel_trimmed"]
    for number in range(10):
        client.publish("ch", number)
    assert held(client, "ch") == [b"%d" % number for number in range(10)][-maxlen:]
    assert information(client)["channel_trimmed"] - trimmed == 10 - maxlen


def test_a_smaller_maxlen_takes_effect_with_the_next_message(client: redis.Redis) -> None:
    for number in range(10):
        client.publish("ch", number)
    set_policies(client, "* maxlen=2")
    client.publish("ch", 10)
    assert held(client, "ch") == [b"9", b"10"]


def test_the_default_keeps_10000_messages_for_a_week(client: redis.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(10_001):
        pipeline.publish("ch", number)
    assert set(pipeline.execute()) == {0}
    assert held(client, "ch") == [b"%d" % number for number in range(1, 10_001)]
    assert WEEK_S - 5 <= client.ttl(HELD) <= WEEK_S + WEEK_S // TTL_SLACK


@pytest.mark.parametrize("ttl_s", [3, 64, 3600, WEEK_S])
def test_a_list_lives_at_least_its_ttl_and_at_most_a_64th_longer(client: redis.Redis, ttl_s: int) -> None:
    set_policies(client, f"* ttl={ttl_s}")
    for _ in range(3):
        before_ms = time.time_ns() // 1_000_000
        client.publish("ch", "m")
        after_ms = time.time_ns() // 1_000_000 + 1
        expires_ms = client.pexpiretime(HELD)
        assert before_ms + ttl_s * 1000 - 1 <= expires_ms <= after_ms + ttl_s * 1000 * (TTL_SLACK + 1) // TTL_SLACK + 1


def test_each_message_prolongs_the_life_of_the_list(client: redis.Redis) -> None:
    set_policies(client, "* ttl=3")
    client.publish("ch", "one")
    first = client.pexpiretime(HELD)

    def prolonged() -> bool:
        now_ms = time.time_ns() // 1_000_000
        client.publish("ch", "more")
        assert client.pexpiretime(HELD) >= now_ms + 2999
        return bool(client.pexpiretime(HELD) > first + 100)

    eventually(prolonged)
    assert held(client, "ch")[0] == b"one"


def test_a_list_that_nobody_reads_expires(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* ttl=1 last=on")
    client.publish("ch", "m")
    eventually(lambda: client.exists(HELD, LAST) == 0)
    assert client.execute_command("CHANNEL.LAST", "ch") is None
    assert subscribe(raw(), "ch") == []


def test_ttl_0_is_forever(client: redis.Redis) -> None:
    set_policies(client, "* ttl=0 last=on")
    client.publish("ch", "m")
    assert client.ttl(HELD) == -1
    assert client.ttl(LAST) == -1


def test_a_changed_ttl_takes_effect_with_the_next_message(client: redis.Redis) -> None:
    client.publish("ch", "m")
    set_policies(client, "* ttl=0")
    client.publish("ch", "m")
    assert client.ttl(HELD) == -1
    set_policies(client, "* ttl=100")
    client.publish("ch", "m")
    assert 99 <= client.ttl(HELD) <= 102
    set_policies(client, "* ttl=10")
    client.publish("ch", "m")
    assert 9 <= client.ttl(HELD) <= 11


# --- Any bytes, any size, any database --------------------------------------------------------------------------------

NAMES = [b"", b"\x00", b"\r\n", b"\xff\xfe\x00\r\n*", "кошка 🐈".encode(), b" ", b'"quoted"', b"a" * 16_384, b"%s%n"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("last", ["on", "off"])
def test_channel_names_and_messages_are_any_bytes(client: redis.Redis, raw: MakeRaw, name: bytes, last: str) -> None:
    set_policies(client, f"* last={last}")
    for message in (b"first", b"", name):
        assert client.publish(name, message) == 0
    assert held(client, name) == [b"first", b"", name]
    assert client.execute_command("CHANNEL.LAST", name) == name
    assert subscribe(raw(), name) == [[b"message", name, name]]


def test_a_number_stays_as_it_was_written(client: redis.Redis, raw: MakeRaw) -> None:
    for text in ("1", "-0", "007", "1e3", "9223372036854775807", "9223372036854775808"):
        client.publish("ch", text)
        assert client.execute_command("CHANNEL.LAST", "ch") == text.encode()
    set_policies(client, "* deliver=held")
    assert [m[-1] for m in subscribe(raw(), "ch")] == [
        b"1", b"-0", b"007", b"1e3", b"9223372036854775807", b"9223372036854775808"
    ]  # fmt: skip


def test_a_message_of_a_megabyte_is_held_and_handed_over(client: redis.Redis, raw: MakeRaw) -> None:
    message = bytes(range(256)) * (MEGABYTE // 256)
    assert client.publish("ch", message) == 0
    assert held(client, "ch") == [message]
    assert subscribe(raw(), "ch") == [[b"message", b"ch", message]]


def test_a_message_is_held_in_the_database_of_its_publisher(server: Server, client: redis.Redis) -> None:
    other = server.client(db=3)
    assert other.publish("ch", "three") == 0
    assert client.dbsize() == 0
    assert held(other, "ch") == [b"three"]
    assert other.execute_command("CHANNEL.LAST", "ch") == b"three"
    assert client.execute_command("CHANNEL.LAST", "ch") is None
    assert information(client)["held_lists"] == 1


# --- From transactions, scripts and functions -------------------------------------------------------------------------


def test_a_publish_in_a_transaction_is_held(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw()
    assert answers(
        connection,
        ["MULTI"],
        ["PUBLISH", "ch", "one"],
        ["SET", "k", "v"],
        ["PUBLISH", "ch", "two"],
        ["CHANNEL.LEN", "ch"],
    ) == [Status("OK"), *[Status("QUEUED")] * 4]
    assert client.dbsize() == 0
    assert connection.call("EXEC") == [0, Status("OK"), 0, 2]
    assert held(client, "ch") == [b"one", b"two"]


@pytest.mark.parametrize("end", ["DISCARD", "RESET"])
def test_a_transaction_that_is_given_up_holds_nothing(client: redis.Redis, raw: MakeRaw, end: str) -> None:
    connection = raw()
    answers(connection, ["MULTI"], ["PUBLISH", "ch", "m"], [end])
    assert client.dbsize() == 0


def test_a_transaction_that_is_refused_holds_nothing(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw()
    answers(connection, ["WATCH", "w"], ["MULTI"], ["PUBLISH", "ch", "m"])
    client.set("w", "changed")
    assert connection.call("EXEC") is None
    answers(connection, ["MULTI"], ["PUBLISH", "ch", "m"], ["PUBLISH", "ch"])
    with pytest.raises(ReplyError, match="EXECABORT"):
        connection.call("EXEC")
    assert client.execute_command("CHANNEL.LEN", "ch") == 0


SCRIPT = "return {redis.call('PUBLISH', KEYS[1], ARGV[1]), redis.pcall('publish', KEYS[1], ARGV[2])}"
LIBRARY = (
    "#!lua name=held\n"
    "redis.register_function('tell', function(keys, args) return redis.call('PUBLISH', keys[1], args[1]) end)\n"
)


def held_by_script(client: redis.Redis) -> list[bytes]:
    """What the channel holds whose name a script gave as one of its keys: LRANGE does not show it."""
    assert client.lrange("ch", 0, -1) == []
    return list(client.execute_command("CHANNEL.RANGE", "ch", 0, -1))


def test_a_publish_in_a_script_is_held(client: redis.Redis) -> None:
    assert client.eval(SCRIPT, 1, "ch", "one", "two") == [0, 0]
    assert client.evalsha(client.script_load(SCRIPT), 1, "ch", "three", "four") == [0, 0]
    assert held_by_script(client) == [b"one", b"two", b"three", b"four"]


def test_a_publish_in_a_script_reaches_subscribers(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert client.eval(SCRIPT, 1, "ch", "one", "two") == [1, 1]
    assert [value[-1] for value in subscriber.pending() if isinstance(value, list)] == [b"one", b"two"]
    assert client.dbsize() == 0


def test_a_publish_in_a_function_is_held(client: redis.Redis) -> None:
    client.function_load(LIBRARY)
    assert client.fcall("tell", 1, "ch", "one") == 0
    assert held_by_script(client) == [b"one"]


def test_a_publish_in_a_script_in_a_transaction_is_held(client: redis.Redis) -> None:
    client.function_load(LIBRARY)
    pipeline = client.pipeline(transaction=True)
    pipeline.eval(SCRIPT, 1, "ch", "one", "two")
    pipeline.fcall("tell", 1, "ch", "three")
    pipeline.publish("ch", "four")
    assert pipeline.execute() == [[0, 0], 0, 0]
    assert held_by_script(client) == [b"one", b"two", b"three", b"four"]


def test_a_script_sees_what_its_publish_held(client: redis.Redis) -> None:
    script = "redis.call('PUBLISH', ARGV[1], 'm') return redis.call('CHANNEL.RANGE', ARGV[1], 0, -1)"
    assert client.eval(script, 0, "ch") == [b"m"]
    assert held(client, "ch") == [b"m"]


# --- The write is one to the channel's list, and to no key of the application -----------------------------------------


@pytest.mark.parametrize(
    ("command", "got"),
    [
        (("BLPOP", "ch", HELD, 10), [HELD.encode(), b"m"]),
        (("BRPOP", "other", "ch", HELD, 10), [HELD.encode(), b"m"]),
        (("BLMOVE", HELD, "to", "LEFT", "RIGHT", 10), b"m"),
        (("BLMPOP", 10, 2, "ch", HELD, "LEFT"), [HELD.encode(), [b"m"]]),
    ],
)
@pytest.mark.parametrize("how", ["direct", "MULTI", "EVAL"])
def test_a_waiter_for_the_list_wakes_on_a_held_message_and_one_for_the_name_does_not(
    client: redis.Redis, raw: MakeRaw, command: tuple[Part, ...], got: object, how: str
) -> None:
    waiter, application = raw(), raw()
    waiter.send(*command)
    application.send("BLPOP", "ch", 10)
    eventually(lambda: client.info("clients")["blocked_clients"] == 2)
    if how == "direct":
        assert client.publish("ch", "m") == 0
    elif how == "MULTI":
        assert answers(raw(), ["MULTI"], ["PUBLISH", "ch", "m"], ["EXEC"])[-1] == [0]
    else:
        assert client.eval("return redis.call('PUBLISH', 'ch', 'm')", 0) == 0
    assert waiter.read() == got
    assert client.exists(HELD) == 0
    client.rpush("ch", "job")
    assert application.read() == [b"ch", b"job"]


def test_a_publish_fails_no_transaction_that_watches_the_channels_name(client: redis.Redis, raw: MakeRaw) -> None:
    watcher, other = raw(), raw()
    answers(watcher, ["WATCH", "ch"], ["MULTI"], ["PING"])
    answers(other, ["WATCH", HELD], ["MULTI"], ["PING"])
    client.publish("ch", "held")
    assert watcher.call("EXEC") == [Status("PONG")]
    assert other.call("EXEC") is None


def test_a_held_message_invalidates_what_a_tracking_client_read_of_the_list(client: redis.Redis, raw: MakeRaw) -> None:
    client.publish("ch", "one")
    tracker = raw(protocol=3)
    tracker.call("CLIENT", "TRACKING", "ON")
    tracker.call("LRANGE", HELD, 0, -1)
    tracker.call("EXISTS", "ch")
    client.publish("ch", "two")
    assert tracker.pending() == [Push([b"invalidate", [HELD.encode()]])]


def key_events(listener: RawClient) -> list[tuple[bytes, bytes]]:
    """The events that the listener heard: event and key."""
    found = []
    for value in listener.pending():
        assert isinstance(value, list)
        channel, key = value[-2], value[-1]
        found.append((channel.removeprefix(b"__keyevent@0__:"), key))
    return found


def test_what_a_publish_writes_is_reported_as_keyspace_events(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* maxlen=1 ttl=100 last=on")
    client.config_set("notify-keyspace-events", "EA")
    listener = raw()
    subscribe(listener, "__keyevent@0__:*", command="PSUBSCRIBE")
    client.publish("ch", "one")
    events = key_events(listener)
    assert [event for event in events if event[1] == HELD.encode()] == [
        (b"rpush", HELD.encode()),
        (b"expire", HELD.encode()),
    ]
    assert [event for event in events if event[1] == LAST.encode()] == [
        (b"rpush", LAST.encode()),
        (b"expire", LAST.encode()),
    ]
    client.publish("ch", "two")
    assert sorted(key_events(listener)) == sorted(
        [
            (b"rpush", HELD.encode()),
            (b"ltrim", HELD.encode()),
            (b"rpush", LAST.encode()),
            (b"ltrim", LAST.encode()),
        ]
    )
    subscriber = raw()
    subscribe(subscriber, "ch")
    key_events(listener)
    mark = core.channel_key("ch", ChannelKey.HEARD)
    client.publish("ch", "heard")
    assert key_events(listener) == [
        (b"rpush", LAST.encode()),
        (b"ltrim", LAST.encode()),
        (b"rpush", mark),
        (b"expire", mark),
    ]
    client.publish("ch", "heard, too")
    assert key_events(listener) == [(b"rpush", LAST.encode()), (b"ltrim", LAST.encode())]


def test_events_are_not_held_whatever_the_policy(client: redis.Redis) -> None:
    set_policies(client, "* hold=all last=on")
    client.config_set("notify-keyspace-events", "KEA")
    client.set("k", "v")
    client.publish("ch", "m")
    client.delete("k")
    assert sorted(client.keys("*")) == [HELD.encode(), LAST.encode()]


def test_a_received_message_changes_no_key(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("notify-keyspace-events", "EA")
    listener, subscriber = raw(), raw()
    subscribe(listener, "__key*__:*", command="PSUBSCRIBE")
    subscribe(subscriber, "ch")
    dirty = client.info("persistence")["rdb_changes_since_last_save"]
    assert client.publish("ch", "m") == 1
    assert listener.pending() == []
    assert client.info("persistence")["rdb_changes_since_last_save"] == dirty


def test_held_messages_count_as_changes_for_the_next_save(client: redis.Redis) -> None:
    before = client.info("persistence")["rdb_changes_since_last_save"]
    client.publish("ch", "m")
    assert client.info("persistence")["rdb_changes_since_last_save"] > before


def test_what_is_done_to_the_list_by_hand_is_what_a_subscriber_gets(client: redis.Redis, raw: MakeRaw) -> None:
    set_policies(client, "* deliver=held")
    client.publish("ch", "one")
    client.rpush(HELD, "two", "three")
    client.lrem(HELD, 1, "two")
    client.rename(HELD, held_key("moved"))
    assert subscribe(raw(), "ch") == []
    assert [m[-1] for m in subscribe(raw(), "moved")] == [b"one", b"three"]
    assert client.dbsize() == 0


# --- At the limit of memory -------------------------------------------------------------------------------------------


def leave_no_memory(client: redis.Redis) -> None:
    """From now on there is no memory left, and nothing may be evicted."""
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        client.set("k", "v")


@pytest.fixture
def full_client(client: redis.Redis) -> redis.Redis:
    """A client of a server without memory."""
    leave_no_memory(client)
    return client


@pytest.mark.parametrize("command", ["PUBLISH", "CHANNEL.PUBLISH"])
def test_without_memory_a_message_that_must_be_held_is_refused(full_client: redis.Redis, command: str) -> None:
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full_client.execute_command(command, "ch", "m")
    assert full_client.keys("*") == []


def test_without_memory_the_error_is_the_servers_own(client: redis.Redis, raw: MakeRaw) -> None:
    leave_no_memory(client)
    set_reply, publish_reply = answers(raw(), ["SET", "k", "v"], ["PUBLISH", "ch", "m"])
    assert publish_reply == set_reply
    assert set_reply.startswith("-OOM ")


def test_without_memory_a_message_that_is_heard_goes_its_way(full_client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert full_client.publish("ch", "m") == 1
    assert subscriber.pending() == [[b"message", b"ch", b"m"]]


def test_without_memory_a_channel_that_holds_nothing_goes_its_way(full_client: redis.Redis) -> None:
    set_policies(full_client, "* hold=none")
    assert full_client.publish("ch", "m") == 0


@pytest.mark.parametrize("rule", ["* hold=all", "* hold=none last=on", "* hold=unheard last=on"])
def test_without_memory_nobody_hears_what_would_have_to_be_kept(
    full_client: redis.Redis, raw: MakeRaw, rule: str
) -> None:
    subscriber = raw()
    subscribe(subscriber, "ch")
    set_policies(full_client, rule)
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full_client.publish("ch", "m")
    assert subscriber.pending() == []
    assert full_client.keys("*") == []


def test_without_memory_a_publish_in_a_transaction_or_script_is_refused_too(client: redis.Redis, raw: MakeRaw) -> None:
    connection = raw()
    answers(connection, ["MULTI"], ["PUBLISH", "ch", "m"], ["PING"])
    leave_no_memory(client)
    replies = connection.call("EXEC")
    assert isinstance(replies, list)
    assert isinstance(replies[0], ReplyError)
    assert str(replies[0]).startswith("OOM ")
    assert replies[1] == Status("PONG")
    reply = connection.call("EVAL", "return redis.pcall('PUBLISH', 'ch', 'm').err", 0)
    assert isinstance(reply, bytes)
    assert reply.startswith(b"OOM ")
    assert client.keys("*") == []


def test_a_publish_is_held_again_when_there_is_memory(full_client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full_client.publish("ch", "refused")
    full_client.config_set("maxmemory", 0)
    assert full_client.publish("ch", "kept") == 0
    assert held(full_client, "ch") == [b"kept"]


def test_held_messages_are_evicted_like_any_key_and_the_server_continues(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("maxmemory-policy", "allkeys-random")
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + 2 * MEGABYTE)
    evicted = client.info("stats")["evicted_keys"]
    for number in range(200):
        assert client.publish(f"ch{number}", bytes(50_000)) == 0
    assert client.info("stats")["evicted_keys"] > evicted
    client.config_set("maxmemory", 0)
    left = {pair[0] for pair in map(core.channel_of_key, client.keys("*")) if pair is not None}
    assert 0 < len(left) < 200
    assert information(client)["held_lists"] == len(left)
    reader = raw()
    heard = {value[2] for value in subscribe(reader, "ch*", command="PSUBSCRIBE")}

    def all_heard() -> bool:  # so many bytes are handed over in parts
        more: list[Any] = [*reader.pending()]
        heard.update(value[2] for value in more)
        return heard == left

    eventually(all_heard)


# --- Refused like a stock write that would not last -------------------------------------------------------------------


def test_a_message_is_not_held_when_too_few_replicas_would_get_it(client: redis.Redis, raw: MakeRaw) -> None:
    client.config_set("min-replicas-to-write", 1)
    set_reply, publish_reply = answers(raw(), ["SET", "k", "v"], ["PUBLISH", "ch", "m"])
    assert publish_reply == set_reply
    assert set_reply.startswith("-NOREPLICAS")
    assert client.dbsize() == 0
    subscriber = raw()
    subscribe(subscriber, "ch")
    assert client.publish("ch", "heard") == 1
    assert subscriber.pending() == [[b"message", b"ch", b"heard"]]


def test_a_publish_by_a_subscriber_is_held_in_resp3(client: redis.Redis, raw: MakeRaw) -> None:
    subscriber = raw(protocol=3)
    subscribe(subscriber, "news")
    assert subscriber.call("PUBLISH", "ch", "m") == 0
    assert held(client, "ch") == [b"m"]
