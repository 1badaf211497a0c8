"""Shared subscriptions: one member of each group gets a message, and none is lost or doubled as members come and go."""

import sys
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Inbox,
    Session,
    Will,
    assert_indexes_hold,
    error_of,
    names,
    now_ms,
    payloads,
    publish,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

FILTER = "$share/g/t/#"
GROUP = "{$share/g/t/#}"


def member(
    client: redis.Redis, name: str, options: int | str = 1, expiry: int = 60, topic_filter: str = FILTER
) -> Session:
    """A connected session with a shared subscription."""
    session = Session(client, f"{{{name}}}")
    session.open("bridge-1", expiry=expiry)
    session.subscribe((topic_filter, options))
    return session


def got(session: Session) -> list[bytes]:
    """The payloads in a session's queue."""
    return payloads(session.fetch_all())


def waiting(client: redis.Redis, key: str = GROUP) -> list[bytes]:
    """The payloads in a group's own queue."""
    return payloads(Session(client, key).fetch_all())


def publish_numbers(client: redis.Redis, start: int, stop: int, **options: int) -> list[bytes]:
    """Publishes a message for each number to t/x; the payloads."""
    for number in range(start, stop):
        publish(client, "t/x", str(number), **options)  # type: ignore[arg-type]
    return [str(number).encode() for number in range(start, stop)]


def epoch_of(session: Session) -> int:
    return int(session.info()["epoch"])


# --- One member -------------------------------------------------------------------------------------------------------


def test_connected_members_get_messages_in_turn(client: redis.Redis) -> None:
    members = [member(client, name) for name in "abc"]
    assert publish(client, "t/x", "0") == 1
    publish_numbers(client, 1, 9)
    assert [got(session) for session in members] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]


def test_each_group_and_each_filter_of_a_group_gets_the_message(client: redis.Redis) -> None:
    sessions = [
        member(client, "a", topic_filter="$share/g/t/#"),
        member(client, "b", topic_filter="$share/h/t/#"),
        member(client, "c", topic_filter="$share/g/t/+"),
    ]
    assert publish(client, "t/x", "m") == 3
    assert [got(session) for session in sessions] == [[b"m"]] * 3


def test_a_session_with_a_shared_and_an_ordinary_subscription_gets_both_copies(client: redis.Redis) -> None:
    session = member(client, "a", "1:5")
    session.subscribe(("t/x", "1:6"))
    publish(client, "t/x", "m", properties=b"\x01\x01")
    records = [core.Record.decode(value) for value in session.fetch().values]
    assert [(record.properties, record.share) for record in records] == [
        (b"\x0b\x06\x01\x01", b""),
        (b"\x0b\x05\x01\x01", FILTER.encode()),
    ]


def test_a_member_gets_its_own_qos_identifier_and_retain_flag(client: redis.Redis) -> None:
    members = [member(client, "a", "0:1"), member(client, "b", "1:2"), member(client, "c", "10:300")]
    for _ in members:
        publish(client, "t/x", "m", qos=2, retain=True)
    records = [core.Record.decode(value) for session in members[1:] for value in session.fetch().values]
    assert [(r.qos, r.retain, r.properties, r.share) for r in records[:1]] == [(1, False, b"\x0b\x02", FILTER.encode())]
    assert {(r.qos, r.retain) for r in records[1:]} <= {(2, True), (1, False)}


def test_a_record_names_its_share_in_the_inbox_as_in_the_queue(server: Server, client: redis.Redis) -> None:
    session = member(client, "a")
    with Inbox(server, "{a}") as inbox:
        publish(client, "t/x", "m")
        delivery = inbox.take_one()
    assert delivery.record == session.fetch().values[0]
    assert delivery.message().share == FILTER.encode()


def test_qos_0_goes_to_a_connected_member_that_hears_it_or_to_nobody(server: Server, client: redis.Redis) -> None:
    for name in "abc":
        member(client, name)
    assert publish(client, "t/x", "m", qos=0) == 0
    with Inbox(server, "{b}") as inbox:
        assert [publish(client, "t/x", str(number), qos=0) for number in range(5)] == [1] * 5
        assert [delivery.message().payload for delivery in inbox.take()] == [b"0", b"1", b"2", b"3", b"4"]
    assert not client.exists(f"{GROUP}_messages")


def test_members_that_are_away_are_skipped(client: redis.Redis) -> None:
    away, here = member(client, "a"), member(client, "b")
    away.close(epoch_of(away))
    published = publish_numbers(client, 0, 5)
    assert (got(away), got(here)) == ([], published)


def test_a_subscription_without_an_opened_session_is_a_member_that_is_away(client: redis.Redis) -> None:
    session = Session(client, "{a}")
    session.subscribe((FILTER, 1))
    publish(client, "t/x", "m")
    assert (got(session), waiting(client)) == ([], [b"m"])
    session.open(expiry=60)
    session.subscribe((FILTER, 1))
    assert got(session) == [b"m"]


# --- Fairness ---------------------------------------------------------------------------------------------------------


def test_a_hundred_members_share_evenly(client: redis.Redis) -> None:
    members = [member(client, f"m{number:03}") for number in range(100)]
    publish_numbers(client, 0, 1000)
    assert {len(got(session)) for session in members} == {10}


def test_a_member_with_more_than_its_window_unacknowledged_is_skipped_if_another_has_less(
    client: redis.Redis,
) -> None:
    slow, fast = member(client, "a"), member(client, "b")
    slow.fetch(window=2)
    fast.fetch(window=100)
    publish_numbers(client, 0, 20)
    assert (len(got(slow)), len(got(fast))) == (2, 18)
    fast.fetch(window=1)
    publish_numbers(client, 20, 24)  # both have more: to the one that has least
    assert (len(got(slow)), len(got(fast))) == (6, 18)


def test_a_member_whose_queue_is_full_is_skipped_and_with_none_left_the_message_waits(client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 3)
    members = [member(client, name) for name in "ab"]
    published = publish_numbers(client, 0, 8)
    assert sorted(got(members[0]) + got(members[1])) == published[:6]
    assert waiting(client) == published[6:]
    members[0].ack(*members[0].fetch().packet_ids)
    eventually(lambda: waiting(client) == [], what="the end of the wait")
    assert got(members[0]) == published[6:]


# --- Waiting ----------------------------------------------------------------------------------------------------------


def test_with_no_member_connected_messages_wait_and_come_in_order_to_the_next_one(client: redis.Redis) -> None:
    session = member(client, "a", "1:5")
    session.close(epoch_of(session))
    published = publish_numbers(client, 0, 1000, qos=2)
    assert waiting(client) == published
    assert Session(client, GROUP).info()["messages"] == 1000
    session.open(expiry=60)
    eventually(lambda: waiting(client) == [], what="the end of the wait")
    assert got(session) == published
    record = core.Record.decode(session.fetch(count=1).values[0])
    assert (record.qos, record.properties, record.share) == (1, b"\x0b\x05", FILTER.encode())


def test_what_is_published_while_something_waits_goes_after_it(client: redis.Redis) -> None:
    session = member(client, "a")
    session.close(epoch_of(session))
    published = publish_numbers(client, 0, 600)
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.OPEN", "{a}", "OWNER", "b", "EXPIRY", 60)
        for number in range(600, 700):
            pipe.execute_command("TOPIC.PUBLISH", "t/x", str(number), "QOS", 1)
        pipe.execute()
    published += [str(number).encode() for number in range(600, 700)]
    eventually(lambda: waiting(client) == [], what="the end of the wait")
    assert got(session) == published


def test_a_new_member_gets_what_waited(client: redis.Redis) -> None:
    first = member(client, "a")
    first.close(epoch_of(first))
    publish_numbers(client, 0, 3)
    assert got(member(client, "b")) == [b"0", b"1", b"2"]
    assert waiting(client) == []


def test_the_groups_queue_has_limit_and_expiry_as_a_sessions(client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 3)
    session = member(client, "a")
    session.close(epoch_of(session))
    publish_numbers(client, 0, 5)
    assert waiting(client) == [b"2", b"3", b"4"]
    publish(client, "t/x", "short", ttl=1)
    soon = now_ms(client) + 1001
    eventually(lambda: now_ms(client) > soon, what="the expiry")
    session.open(expiry=60)
    assert got(session) == [b"3", b"4"]
    assert waiting(client) == []


def test_a_group_without_members_gets_nothing(client: redis.Redis) -> None:
    session = member(client, "a")
    session.unsubscribe(FILTER)
    assert publish(client, "t/x", "m") == 0
    assert names(client, "{$share*") == []


# --- Leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["UNSUBSCRIBE", "DROP", "CLEAN", "EXPIRY 0", "expires"])
def test_the_groups_queue_ends_with_its_last_subscription(client: redis.Redis, how: str) -> None:
    first, last = member(client, "a"), member(client, "b")
    for session in (first, last):
        session.close(epoch_of(session))
    published = publish_numbers(client, 0, 5, ttl=1000)
    first.drop()
    assert waiting(client) == published
    last.open("bridge-1", expiry=60)
    last.fetch(window=2)
    if how == "UNSUBSCRIBE":
        last.unsubscribe(FILTER)
        last.drop()
    elif how == "DROP":
        last.drop()
    elif how == "CLEAN":
        last.open(clean=True)
        last.drop()
    else:
        last.close(epoch_of(last), 0 if how == "EXPIRY 0" else 1)
        eventually(lambda: not client.exists("{b}_session"), what="the end of the session")
    assert names(client, "*share*") == []
    assert got(member(client, "c")) == []


def two_with_messages(client: redis.Redis) -> tuple[Session, Session]:
    """Member a has 0, 2, 4, 6 (0 in flight with QoS 1, 2 in flight with QoS 2), member b has 1, 3, 5, 7."""
    a, b = member(client, "a", 2), member(client, "b", 2)
    for number in range(8):
        publish(client, "t/x", str(number), qos=2 if number == 2 else 1)
    a.fetch(window=2)
    return a, b


def test_a_member_that_disconnects_keeps_what_is_in_flight_and_gives_the_rest_to_others(client: redis.Redis) -> None:
    a, b = two_with_messages(client)
    a.close(epoch_of(a))
    assert (got(a), got(b)) == ([b"0", b"2"], [b"1", b"3", b"5", b"7", b"4", b"6"])


def test_what_a_closing_connection_was_handed_stays(client: redis.Redis) -> None:
    a, b = two_with_messages(client)
    a.close(epoch_of(a), sent=a.fetch().serials[2])
    assert (got(a), got(b)[4:]) == ([b"0", b"2", b"4"], [b"6"])


def test_a_member_that_unsubscribes_gives_back_what_it_got_through_that_share_only(client: redis.Redis) -> None:
    a, b = two_with_messages(client)
    a.subscribe(("t/own", 1), ("$share/h/t/own", 1))
    publish(client, "t/own", "own")
    assert a.unsubscribe(FILTER, "nothing") == [1, 0]
    assert sorted(got(a)) == [b"0", b"2", b"own", b"own"]
    assert got(b)[4:] == [b"4", b"6", b"own"] or got(b)[4:] == [b"own", b"4", b"6"]


@pytest.mark.parametrize("how", ["DROP", "CLEAN", "EXPIRY 0", "expires", "lost"])
def test_a_session_that_ends_gives_back_what_is_in_flight_with_qos_1_too(client: redis.Redis, how: str) -> None:
    a, b = two_with_messages(client)
    if how == "DROP":
        a.drop()
    elif how == "CLEAN":
        a.open(clean=True, expiry=60)
    elif how == "EXPIRY 0":
        a.close(epoch_of(a), 0)
    elif how == "expires":
        a.close(epoch_of(a), 3)
        assert got(b)[4:] == [b"4", b"6"]
        eventually(lambda: not client.exists("{a}_session"), what="the end of the session")
    else:
        a.open("bridge-2", lease=1)
        eventually(lambda: not client.exists("{a}_session"), what="the loss of the session")
    assert sorted(got(b)[4:]) == [b"0", b"4", b"6"]
    if how != "expires":
        assert got(b)[4:] == [b"0", b"4", b"6"]
    assert got(a) == []


def test_the_last_member_leaves_its_messages_to_the_group_in_order(client: redis.Redis) -> None:
    session = member(client, "a")
    published = publish_numbers(client, 0, 500)
    session.fetch(window=10)
    session.close(epoch_of(session))
    publish(client, "t/x", "500")
    eventually(lambda: waiting(client) == [*published[10:], b"500"], what="all but what is in flight")
    session.open(expiry=60)
    eventually(lambda: waiting(client) == [], what="the end of the wait")
    assert got(session) == [*published, b"500"]


def test_a_takeover_gives_nothing_away(client: redis.Redis) -> None:
    session, other = member(client, "a"), member(client, "b")
    publish_numbers(client, 0, 4)
    session.open("bridge-2", expiry=60)
    assert (got(session), got(other)) == ([b"0", b"2"], [b"1", b"3"])


def test_the_will_of_a_member_that_is_gone_goes_to_another(client: redis.Redis) -> None:
    a, b = member(client, "a"), member(client, "b")
    epoch = a.open(will=Will("t/will"), expiry=60).epoch
    a.close(epoch, will=True)
    assert (got(a), got(b)) == ([], [b"gone"])


def test_nothing_is_lost_or_given_twice_while_members_come_and_go(client: redis.Redis) -> None:
    everything: list[bytes] = []
    received: Counter[bytes] = Counter()
    names_of = "abcd"
    sessions = {name: member(client, name, 2) for name in names_of}
    for turn in range(40):
        name = names_of[turn % 4]
        session = sessions[name]
        everything += publish_numbers(client, turn * 10, turn * 10 + 10)
        if session.info()["connected"]:
            page = session.fetch(window=8)
            received.update(payloads(page.entries))
            session.ack(*page.packet_ids, 60000)
            session.close(epoch_of(session), turn % 3 * 60)
        else:
            sessions[name] = member(client, name, 2)
        assert_indexes_hold(client)
    for name in names_of:
        session = member(client, name, 2)
        eventually(lambda: waiting(client) == [], what="the end of the wait")
    for session in sessions.values():
        received.update(got(session))
    assert sorted(received) == sorted(everything)
    assert set(received.values()) == {1}


# --- Retained messages, syntax ----------------------------------------------------------------------------------------


def test_a_shared_subscription_gets_no_retained_messages(client: redis.Redis) -> None:
    publish(client, "t/x", "m", retain=True)
    assert got(member(client, "a")) == []


def test_subscriptions_are_listed_as_they_were_asked_for(client: redis.Redis) -> None:
    session = member(client, "a", "2:9")
    assert session.client.execute_command("SESSION.SUBSCRIPTIONS", "{a}") == {FILTER.encode(): b"2:9"}
    assert session.subscribe((FILTER, 1)) == [0]
    assert session.unsubscribe(FILTER) == [1]
    assert session.unsubscribe(FILTER) == [0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ("SESSION.SUBSCRIBE", "{a}", FILTER, 5),
            "options is '5' for the shared subscription '$share/g/t/#'; expected options without no local",
        ),
        (("SESSION.SUBSCRIBE", "{a}", "$share/g", 1), "INVALIDTOPIC"),
        (("SESSION.SUBSCRIBE", "{a}", "$share//t", 1), "INVALIDTOPIC"),
        (("SESSION.SUBSCRIBE", "{a}", "$share/g/", 1), "INVALIDTOPIC"),
        (("SESSION.SUBSCRIBE", "{a}", "$share/+/t", 1), "INVALIDTOPIC"),
        (("SESSION.OPEN", GROUP, "OWNER", "o"), "is that of a group"),
        (("TOPIC.RETAINED", FILTER), "expected an ordinary topic filter"),
    ],
)
def test_what_cannot_be_is_refused(client: redis.Redis, command: tuple[str | int, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, *command) or "")


# --- Restarts and replicas --------------------------------------------------------------------------------------------


def test_a_reload_keeps_members_and_what_waits(client: redis.Redis) -> None:
    a, b = two_with_messages(client)
    a.close(epoch_of(a))
    b.close(epoch_of(b))
    client.execute_command("DEBUG", "RELOAD")
    assert_indexes_hold(client)
    assert len(waiting(client)) == 6
    publish(client, "t/x", "8")
    b.open(expiry=60)
    assert sorted(got(b)) == [b"1", b"3", b"4", b"5", b"6", b"7", b"8"]


def test_a_restart_ends_sessions_that_ended_meanwhile_and_gives_their_messages_back(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    session, other = member(client, "a", expiry=1), Session(client, "{b}")
    other.subscribe((FILTER, 1))  # away
    publish_numbers(client, 0, 3)
    session.fetch(window=3)
    session.close(epoch_of(session))
    end = now_ms(client) + 1200
    server.stop()
    server.start()
    client = server.client()
    eventually(lambda: now_ms(client) > end, what="the end of the session")
    eventually(lambda: not client.exists("{a}_session"), what="the session to be ended")
    assert got(member(client, "b")) == [b"0", b"1", b"2"]
    assert_indexes_hold(client)


def test_a_replica_has_the_same_keys_and_continues(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica, plain = fresh_server(replica_of=primary), fresh_server(replica_of=primary, module=False)
    client = primary.client()
    a, b = two_with_messages(client)
    a.close(epoch_of(a))
    b.drop()
    for follower in (replica.client(), plain.client()):
        wait_for_replica(client, follower)
        eventually(lambda follower=follower: snapshot(follower) == snapshot(client), what="the same keys")  # type: ignore[misc]
    follower = replica.client()
    assert_indexes_hold(follower)
    primary.kill()
    follower.execute_command("REPLICAOF", "NO", "ONE")
    assert sorted(got(member(follower, "c"))) == [b"1", b"3", b"4", b"5", b"6", b"7"]


# ---- what it costs ---------------------------------------------------------------------------------------------------


def cost_of_subscribing(client: redis.Redis, session: Session, prefix: str) -> int:
    """Microseconds of one SESSION.SUBSCRIBE to 200 groups: the least of ten."""
    least = sys.maxsize
    for turn in range(10):
        groups = [(f"$share/g/{prefix}/{turn}/{number}", 1) for number in range(200)]
        client.config_resetstat()
        session.subscribe(*groups)
        least = min(least, client.info("commandstats")["cmdstat_SESSION.SUBSCRIBE"]["usec"])
    return least


def test_a_session_with_many_subscriptions_joins_groups_as_fast_as_one_with_few(client: redis.Redis) -> None:
    few, many = Session(client, "{few}"), Session(client, "{many}")
    for session in (few, many):
        session.open("bridge-1", expiry=60)
    for start in range(0, 20_000, 1000):
        many.subscribe(*[(f"other/{number}", 1) for number in range(start, start + 1000)])
    assert cost_of_subscribing(client, many, "many") < 10 * cost_of_subscribing(client, few, "few")
