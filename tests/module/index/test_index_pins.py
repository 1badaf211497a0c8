"""Keys that expire while an index is read: nobody is skipped, nobody reads what was freed.

Reading an expired key removes it, and what the module then learns used to change the index under its reader: after a
promotion each stored message asked for the current index.  Each test puts expired keys where a reader of the index
meets them, on a server that was promoted; the sanitized run of these tests shows what the assertions cannot.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module import history_support as history
from tests.module.channels_support import held_key, set_policies
from tests.module.sessions_support import (
    Inbox,
    Session,
    Will,
    assert_indexes_hold,
    listed_sessions,
    now_ms,
    payloads,
    publish,
    retained_topics,
)
from tests.support import RawClient, Server, eventually

MakeServer = Callable[..., Server]

FILTER = "$share/g/t/#"
GROUP = "{$share/g/t/#}"
MANY = 21

EXPIRING = pytest.mark.parametrize("expires", [["subscriptions"], ["session", "subscriptions"]], ids=["part", "whole"])


@pytest.fixture
def lazy_server(fresh_server: MakeServer) -> Server:
    """A server that removes expired keys only when somebody reads them."""
    server = fresh_server()
    server.client().execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    return server


@pytest.fixture
def promoted_server(lazy_server: Server) -> Server:
    """The same, once a replica."""
    client = lazy_server.client()
    client.execute_command("REPLICAOF", "127.0.0.1", 1)
    client.execute_command("REPLICAOF", "NO", "ONE")
    return lazy_server


@pytest.fixture
def promoted(promoted_server: Server) -> Iterator[redis.Redis]:
    """A client of it."""
    yield promoted_server.client()
    promoted_server.check_indexes()


def expire(client: redis.Redis, names: Sequence[bytes | str]) -> None:
    """Let the keys' time pass, without reading them."""
    end_ms = now_ms(client) + 100
    with client.pipeline(transaction=True) as together:
        for name in names:
            together.pexpireat(name, end_ms)
        assert together.execute() == [True] * len(names)
    eventually(lambda: now_ms(client) > end_ms, what="the end of the keys")


def subscriber(client: redis.Redis, name: str, *filters: str, expiry: int = 60) -> Session:
    """A connected session with these filters, QoS 1."""
    session = Session(client, f"{{{name}}}")
    session.open(f"bridge-{name}", expiry=expiry)
    session.subscribe(*[(topic_filter, 1) for topic_filter in filters])
    return session


def got(session: Session) -> list[bytes]:
    """The payloads in its queue."""
    return payloads(session.fetch_all())


def retain_many(client: redis.Redis, gone: Sequence[int], count: int) -> list[bytes]:
    """Retain so many messages, of which some expire; the payloads of the others."""
    for i in range(count):
        publish(client, f"r/x/{i}", str(i), retain=True)
    expire(client, [f"{{r/x/{i}}}_retained" for i in gone])
    return sorted(str(i).encode() for i in range(count) if i not in gone)


# --- Retained messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [False, True], ids=["few-expire", "most-expire"])
@pytest.mark.parametrize("count", [6, 17, 33, 65])
@pytest.mark.parametrize("topic_filter", ["#", "r/+/#"])
def test_a_new_subscriber_gets_each_retained_message_that_lives(
    promoted: redis.Redis, topic_filter: str, count: int, most: bool
) -> None:
    live = retain_many(promoted, [i for i in range(count) if (i % 8 == 3) != most], count)
    session = subscriber(promoted, "c", topic_filter)
    assert sorted(got(session)) == live


def test_retained_messages_that_expired_are_not_listed_and_hide_no_other(promoted: redis.Redis) -> None:
    live = retain_many(promoted, range(1, MANY), MANY)
    assert len(retained_topics(promoted, "#")) == len(live)


# --- Publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [None, 0, 60], ids=["lasting", "for-now", "expiring"])
def test_a_share_whose_last_member_expired(promoted: redis.Redis, ttl: int | None) -> None:
    subscriber(promoted, "m", FILTER)
    other = subscriber(promoted, "other", "t/#")
    expire(promoted, ["{m}_subscriptions"])
    publish(promoted, "t/x", "1", ttl=ttl)
    publish(promoted, "t/x", "2", ttl=ttl)
    assert got(other) == ([b"1", b"2"] if ttl != 0 else [])


def test_a_message_for_now_to_a_share_whose_last_member_expired(lazy_server: Server) -> None:
    client = lazy_server.client()
    subscriber(client, "m", FILTER, "t/#")
    listener = subscriber(client, "z", "t/#")
    expire(client, ["{m}_subscriptions"])
    with Inbox(lazy_server, listener.key) as inbox:
        assert publish(client, "t/x", "1", ttl=0) == 1
        assert len(inbox.take()) == 1
    assert_indexes_hold(client)


def test_a_publish_to_sessions_of_which_some_expired_reaches_the_others(promoted: redis.Redis) -> None:
    sessions = [subscriber(promoted, f"c{i}", "t/#", "+/x") for i in range(MANY)]
    expire(promoted, [session.name("subscriptions") for session in sessions[::2]])
    assert publish(promoted, "t/x", "1") == len(sessions[1::2])
    assert publish(promoted, "t/x", "2") == len(sessions[1::2])
    assert [got(session) for session in sessions[1::2]] == [[b"1", b"2"]] * len(sessions[1::2])


def pipeline_of(*commands: Sequence[str]) -> bytes:
    """The argument of TOPIC.PIPELINE."""
    return b"".join(
        b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
        for words in commands
    )


@pytest.mark.parametrize("ttl", [(), ("TTL", "0"), ("TTL", "60")], ids=["lasting", "for-now", "expiring"])
def test_publishes_that_are_gathered_reach_the_sessions_that_live(promoted: redis.Redis, ttl: tuple[str, ...]) -> None:
    sessions = [subscriber(promoted, f"c{i}", "t/#") for i in range(MANY)]
    shared = subscriber(promoted, "m", "$share/g/s/#")
    expire(promoted, [session.name("session") for session in sessions[::2]])
    expire(promoted, [session.name("subscriptions") for session in sessions[1::4]])
    publishes = [("TOPIC.PUBLISH", f"t/{i}", str(i), "QOS", "1", *ttl) for i in range(5)]
    publishes.insert(2, ("TOPIC.PUBLISH", "s/x", "s", "QOS", "1", *ttl))
    replies = promoted.execute_command("TOPIC.PIPELINE", pipeline_of(*publishes))
    living = [session for i, session in enumerate(sessions) if i % 4 == 3]
    assert all(reply >= (len(living) if not ttl or ttl[1] != "0" else 0) for reply in replies[:2])
    if not ttl or ttl[1] != "0":
        assert [got(session) for session in living] == [[b"0", b"1", b"2", b"3", b"4"]] * len(living)
        assert got(shared) == [b"s"]


def test_messages_of_one_command_reach_the_sessions_that_live(promoted: redis.Redis) -> None:
    sessions = [subscriber(promoted, f"c{i}", "t/#") for i in range(MANY)]
    expire(promoted, [session.name("subscriptions") for session in sessions[::2]])
    expire(promoted, [session.name("session") for session in sessions[1::4]])
    records = [core.Record(topic=f"t/{i}".encode(), payload=str(i).encode(), qos=1).encode() for i in range(5)]
    promoted.execute_command("TOPIC.MPUBLISH", "RECORD", *records)
    assert [got(session) for session in sessions[3::4]] == [[b"0", b"1", b"2", b"3", b"4"]] * len(sessions[3::4])


def test_wills_of_lost_sessions_reach_the_sessions_that_live(promoted: redis.Redis) -> None:
    watcher = subscriber(promoted, "w", "will")
    for i in range(MANY):
        Session(promoted, f"{{c{i}}}").open("lost", expiry=60, lease=1, will=Will(payload=str(i)))
        Session(promoted, f"{{c{i}}}").subscribe(("will", 1), (FILTER, 1), epoch=0)
    expire(promoted, [f"{{c{i}}}_subscriptions" for i in range(0, MANY, 3)])
    eventually(lambda: len(got(watcher)) == MANY, 20, "the wills of all")
    assert sorted(got(watcher)) == sorted(str(i).encode() for i in range(MANY))


# --- Shared subscriptions ---------------------------------------------------------------------------------------------


def queue_for_nobody(client: redis.Redis, count: int, name: str = "first") -> Session:
    """Messages in the group's own queue; the member that left them there, closed."""
    first = Session(client, f"{{{name}}}")
    epoch = first.open("bridge", expiry=600).epoch
    first.subscribe((FILTER, 1))
    first.close(epoch)
    for i in range(count):
        publish(client, "t/x", str(i))
    return first


@EXPIRING
def test_a_member_that_comes_gets_what_was_queued_while_others_expire(
    promoted: redis.Redis, expires: Sequence[str]
) -> None:
    first = queue_for_nobody(promoted, 10)
    others = [subscriber(promoted, f"m{i}", f"$share/h{i}/t/#") for i in range(5)]
    expire(promoted, [session.name(key) for session in [first, *others] for key in expires])
    came = subscriber(promoted, "z", FILTER, *[f"$share/h{i}/t/#" for i in range(5)])
    eventually(lambda: len(got(came)) == 10, 20, "the messages of the group")
    assert got(came) == [str(i).encode() for i in range(10)]
    assert promoted.exists(f"{GROUP}_messages") == 0


@pytest.mark.parametrize("how", ["unsubscribe", "drop", "close", "clean"])
@EXPIRING
def test_what_a_member_gives_back_goes_to_the_member_that_lives(
    promoted: redis.Redis, how: str, expires: Sequence[str]
) -> None:
    leaving = subscriber(promoted, "a", FILTER)
    for i in range(10):
        publish(promoted, "t/x", str(i))
    dead = [subscriber(promoted, f"d{i}", FILTER) for i in range(5)]
    heir = subscriber(promoted, "z", FILTER)
    expire(promoted, [session.name(key) for session in dead for key in expires])
    match how:
        case "unsubscribe":
            leaving.unsubscribe(FILTER)
        case "drop":
            leaving.drop()
        case "close":
            leaving.close(int(leaving.info()["epoch"]))
        case "clean":
            leaving.open("bridge-2", clean=True)
    eventually(lambda: len(got(heir)) == 10, 20, "the messages at the member that is left")
    assert got(heir) == [str(i).encode() for i in range(10)]


@pytest.mark.parametrize("how", ["unsubscribe", "drop"])
def test_a_group_whose_other_members_expired_ends_with_its_last(promoted: redis.Redis, how: str) -> None:
    leaving = subscriber(promoted, "a", FILTER)
    publish(promoted, "t/x", "1")
    dead = [subscriber(promoted, f"d{i}", FILTER) for i in range(5)]
    expire(promoted, [session.name("subscriptions") for session in dead])
    if how == "drop":
        leaving.drop()
    else:
        leaving.unsubscribe(FILTER)
    assert_indexes_hold(promoted)
    assert publish(promoted, "t/x", "2") == 0


# --- History ----------------------------------------------------------------------------------------------------------


def test_a_replay_delivers_while_policies_expire(promoted: redis.Redis) -> None:
    for i in range(10):
        history.store(promoted, f"h{i}", f"a{i}/#")
        publish(promoted, f"a{i}/x", str(i))
    session = Session(promoted, "{c}")
    session.open("bridge", expiry=60)
    session.subscribe(*[(f"a{i}/#", "1@earliest") for i in range(10)])
    expire(promoted, [f"{{h{i}}}_history_store" for i in range(1, 10)])
    stores = promoted.execute_command("SESSION.REPLAY", session.key)[4]
    assert all(len(name) == 2 for name in stores)
    assert b"0" in got(session)


def test_a_group_reads_history_while_members_and_policies_expire(promoted: redis.Redis) -> None:
    history.store(promoted, "h", "t/#")
    history.store(promoted, "g", "u/#")
    numbers = [str(i).encode() for i in range(100)]
    for number in numbers:
        publish(promoted, "t/x", number)
    dead = [subscriber(promoted, f"d{i}", f"$share/h{i}/t/#") for i in range(5)]
    reader = Session(promoted, "{z}")
    reader.open("bridge", expiry=60)
    keys = [session.name("subscriptions") for session in dead]
    expire(promoted, [*keys, "{g}_history_store"])
    reader.subscribe((FILTER, "1@earliest"))
    eventually(lambda: len(got(reader)) >= len(numbers), 20, "what history holds")
    assert set(got(reader)) == set(numbers)


# --- Reading the index as a whole -------------------------------------------------------------------------------------


def test_sessions_are_listed_while_some_expire(promoted: redis.Redis) -> None:
    sessions = [subscriber(promoted, f"c{i:02}", "t/#", FILTER) for i in range(MANY)]
    expire(promoted, [session.name("session") for session in sessions[::2]])
    expire(promoted, [session.name("subscriptions") for session in sessions[::3]])
    listed = listed_sessions(promoted)
    assert [row[4] for row in listed] == [session.key for session in sessions[1::2]]


def test_a_check_of_expired_keys_of_all_kinds_finds_no_difference(promoted: redis.Redis) -> None:
    for i in range(MANY):
        subscriber(promoted, f"c{i}", "t/#", FILTER, f"$share/g{i}/t")
        publish(promoted, f"r/{i}", "1", retain=True)
        promoted.rpush(f"list-{i}", "1")
    names = [name for name in promoted.keys("*") if b"1" in name]
    expire(promoted, names)
    assert_indexes_hold(promoted)
    assert_indexes_hold(promoted)


def test_totals_are_counted_while_sessions_expire(promoted: redis.Redis) -> None:
    sessions = [subscriber(promoted, f"c{i}", "t/#", f"$share/g{i}/t/#") for i in range(MANY)]
    publish(promoted, "t/x", "1")
    names = [session.name(suffix) for session in sessions[::2] for suffix in ("session", "subscriptions", "messages")]
    expire(promoted, names)
    publish(promoted, "t/x", "2")
    eventually(
        lambda: promoted.info("holdmq").get("holdmq_queued_messages", 0) >= 2 * len(sessions[1::2]),
        20,
        "a count of the queues",
    )


def test_a_flush_notifies_each_connected_session_while_others_expire(promoted_server: Server) -> None:
    client = promoted_server.client()
    client.config_set("holdmq.presence", "yes")
    sessions = [subscriber(client, f"c{i}", "$SYS/#", FILTER) for i in range(MANY)]
    expire(client, [session.name("session") for session in sessions[::2]])
    expire(client, [session.name("subscriptions") for session in sessions[::3]])
    with Inbox(promoted_server, "{c1}") as inbox:
        client.flushall()
        eventually(lambda: [d.kind for d in inbox.take()][-1:] == [core.DeliveryKind.DROPPED], what="the notice")
    assert_indexes_hold(client)


def test_a_pattern_subscriber_gets_what_is_held_while_lists_expire(promoted_server: Server) -> None:
    client = promoted_server.client()
    set_policies(client, "* deliver=last")
    for i in range(200):
        client.publish(f"held:{i:03}", str(i))
    expire(client, [held_key(f"held:{i:03}") for i in range(0, 200, 2)])
    with closing(RawClient(promoted_server.port)) as raw:
        raw.send("PSUBSCRIBE", "held:*")
        assert raw.read() == [b"psubscribe", b"held:*", 1]
        messages: list[Any] = raw.read_many(100)
        assert sorted(message[2] for message in messages) == [b"held:%03d" % i for i in range(1, 200, 2)]
        assert raw.pending() == []
    assert_indexes_hold(client)
