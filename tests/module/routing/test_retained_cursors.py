"""Retained messages are handed over page by page: all of them, once, in order with what is published meanwhile."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq.core import Record
from tests.module.sessions_support import Session, assert_indexes_hold, publish
from tests.support import Server, eventually
from tests.support.ratio import least_ratio

MANY = 1500
TAKEN_S = 30.0
PAUSED_MS = 100


@pytest.fixture
def session(client: redis.Redis) -> Session:
    made = Session(client)
    made.open(expiry=1000)
    return made


def retain(client: redis.Redis, *topics: str, payload: str = "kept", qos: int = 1) -> None:
    pipe = client.pipeline(transaction=False)
    for topic in topics:
        pipe.execute_command("TOPIC.PUBLISH", topic, payload, "QOS", qos, "RETAIN")
    pipe.execute()


def take(session: Session) -> list[Record]:
    """The messages of the queue, acknowledged."""
    entries = session.fetch(count=10_000, size=1 << 30).entries
    if entries:
        session.ack(*(entry.packet_id for entry in entries))
    return [Record.decode(entry.value) for entry in entries]


def take_all(session: Session) -> list[Record]:
    """All that comes until no cursor is left; a page may find nothing, and the next one comes a moment later."""
    found: list[Record] = []
    deadline = time.monotonic() + TAKEN_S
    while (page := take(session)) or (session.client.exists(session.name("cursors")) and time.monotonic() < deadline):
        found += page
    return found


def topics_of(records: list[Record]) -> list[str]:
    return [bytes(record.topic).decode() for record in records]


def pending(client: redis.Redis) -> bool:
    return bool(client.exists("{c}_cursors"))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_come_once_in_pages_whatever_the_queue_may_hold(session: Session, client: redis.Redis, qos: int) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names, qos=2)
    client.config_set("holdmq.session-limit", "400")
    session.subscribe(("a/#", qos))
    assert pending(client)
    assert 0 < len(session.fetch(count=10_000, size=1 << 30).entries) <= 100
    got = take_all(session)
    client.config_set("holdmq.session-limit", "10000")
    assert topics_of(got) == names
    assert {(record.qos, record.retain) for record in got} == {(qos, True)}
    assert not pending(client)


def test_few_leave_no_trace(session: Session, client: redis.Redis) -> None:
    retain(client, "a", "b", "c")
    session.subscribe(("#", 1))
    assert not pending(client)
    assert topics_of(take_all(session)) == ["a", "b", "c"]


def test_a_filter_that_is_named_often_hands_over_once(session: Session, client: redis.Redis) -> None:
    retain(client, *(f"t/{number}" for number in range(2000)))
    session.subscribe(*[("#", 1)] * 1000)
    assert client.execute_command("PING")
    assert len(take_all(session)) == 2000


def test_no_page_stops_the_server(session: Session, client: redis.Redis) -> None:
    for letter in "abcdefghij":
        retain(client, f"img/{letter}", payload="x" * 1_000_000)
    session.subscribe(("img/#", 1))
    assert len(session.fetch(count=10_000, size=1 << 30).entries) == 1  # a page has about 256 KiB
    assert topics_of(take_all(session)) == [f"img/{letter}" for letter in "abcdefghij"]


@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "+",
        "+/+",
        "a/#",
        "a/+",
        "a/+/c",
        "+/b",
        "+/b/#",
        "a//c",
        "/#",
        "+/+/+",
        "$x/#",
        "$x/+",
        "b",
        "a/b/c/d",
        "a-b/#",
    ],
)
def test_a_walk_finds_what_the_filter_matches(session: Session, client: redis.Redis, topic_filter: str) -> None:
    levels = ["a", "b", "c", "", "a-b", "a!", "$x", "é", "a b"]
    rng = random.Random(7)
    names = {"/".join(rng.choice(levels) for _ in range(rng.randint(1, 4))) for _ in range(400)} - {""}
    retain(client, *names)
    session.subscribe((topic_filter, 1))
    got = topics_of(take_all(session))
    assert len(got) == len(set(got))
    assert set(got) == {name for name in names if matches(topic_filter, name)}
    listed = client.execute_command("TOPIC.RETAINED", topic_filter)
    assert {topic.decode() for topic in listed} == set(got)


def matches(topic_filter: str, name: str) -> bool:
    """A model."""
    wanted, given = topic_filter.split("/"), name.split("/")
    if name.startswith("$") and wanted[0] in ("#", "+"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(given) or level not in ("+", given[at]):
            return False
    return len(wanted) == len(given)


def test_a_filter_that_matches_one_in_a_thousand_finds_it(session: Session, client: redis.Redis) -> None:
    retain(client, *(f"{number}/{'x' if number % 1000 == 7 else 'y'}" for number in range(5000)))
    session.subscribe(("+/x", 1))
    found: list[Record] = []
    for _ in range(100):
        found += take(session)
        if not pending(client):
            break
        client.ping()  # pages that find nothing are read in turns of the event loop
    assert len(found + take_all(session)) == 5


# --- What is published meanwhile --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos", "retained"), [(0, True), (1, True), (1, False)])
def test_what_is_published_meanwhile_comes_after_what_was_retained(
    session: Session, client: redis.Redis, qos: int, retained: bool
) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names, payload="old", qos=qos)
    session.subscribe(("a/#", 1))
    chosen = names[3], names[700], names[MANY - 1]
    for name in chosen:
        publish(client, name, "new", qos=qos, retain=retained)
        publish(client, name, "newer", qos=qos, retain=retained)
    publish(client, "a/unknown", "first", qos=qos, retain=retained)
    got = take_all(session)
    for name in chosen:
        assert [bytes(one.payload) for one in got if bytes(one.topic).decode() == name] == [b"old", b"new", b"newer"]
    assert [bytes(one.payload) for one in got if one.topic == b"a/unknown"] == [b"first"]
    assert sorted(set(topics_of(got))) == sorted([*names, "a/unknown"])
    assert len(got) == MANY + 2 * len(chosen) + 1


def test_beyond_the_topics_that_are_noted_the_latest_message_still_comes_once(
    session: Session, client: redis.Redis
) -> None:
    names = [f"a/{number:05}" for number in range(3000)]
    retain(client, *names, payload="old")
    session.subscribe(("a/#", 1))
    changed = names[300:2500]
    retain(client, *changed, payload="new")
    got = take_all(session)
    for name in (changed[0], changed[1500], changed[-1]):
        payloads = [bytes(one.payload) for one in got if bytes(one.topic).decode() == name]
        assert payloads[-1] == b"new"
        assert payloads.count(b"new") <= 2
    assert set(topics_of(got)) == set(names)
    assert not pending(client)


def test_beyond_the_topics_that_are_noted_a_retained_message_is_not_repeated(
    session: Session, client: redis.Redis
) -> None:
    names = [f"a/{number:05}" for number in range(3000)]
    retain(client, *names, payload="old")
    session.subscribe(("a/#", 1))
    pipe = client.pipeline(transaction=False)
    for name in names[300:1400]:
        pipe.execute_command("TOPIC.PUBLISH", name, "live", "QOS", 1)
    for number in range(3):
        pipe.execute_command("TOPIC.PUBLISH", names[2000], f"live {number}", "QOS", 1)
    pipe.execute()
    got = take_all(session)
    payloads = {name: [bytes(one.payload) for one in got if bytes(one.topic).decode() == name] for name in names}
    assert payloads[names[300]] == [b"old", b"live"]
    assert sorted(payloads[names[2000]]) == [b"live 0", b"live 1", b"live 2", b"old"]
    assert all(kept.count(b"old") == 1 for kept in payloads.values())


def test_topics_without_a_retained_message_need_no_note(session: Session, client: redis.Redis) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names, payload="old")
    session.subscribe(("a/#", 1))
    for number in range(3):
        publish(client, f"a/live/{number}", "live", qos=1)
    fields: list[Any] = client.hkeys(session.name("cursors"))
    noted = [field for field in fields if field.startswith(b"topic:")]
    publish(client, names[-1], "new", qos=1, retain=True)
    assert noted == []
    assert client.hexists(session.name("cursors"), f"topic:{names[-1]}")
    assert len(take_all(session)) == MANY + 4


def test_what_is_taken_away_meanwhile_is_not_handed_over(session: Session, client: redis.Redis) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names)
    session.subscribe(("a/#", 1))
    client.delete("{a/01400}_retained")
    retain(client, "a/01401", payload="")
    got = topics_of(take_all(session))
    assert "a/01400" not in got
    assert got.count("a/01401") == 2  # what was retained, and that it is no more


def test_a_subscription_that_is_made_again_begins_again(session: Session, client: redis.Redis) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names)
    session.subscribe(("a/#", 1))
    take(session)
    publish(client, names[-1], "new", qos=1, retain=True)
    session.subscribe(("a/#", 0))
    got = take_all(session)
    assert topics_of(got)[-MANY:] == names
    assert not pending(client)


def test_of_a_subscription_that_ended_no_more_is_handed_over(session: Session, client: redis.Redis) -> None:
    retain(client, *(f"a/{number:05}" for number in range(MANY)))
    session.subscribe(("a/#", 1))
    session.unsubscribe("a/#")
    assert not pending(client)
    assert 0 < len(take_all(session)) < MANY


# --- The life of a cursor ---------------------------------------------------------------------------------------------


def test_it_outlives_a_reload_and_nothing_comes_twice(session: Session, client: redis.Redis) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names)
    session.subscribe(("a/#", 1))
    got = take(session)
    publish(client, names[-1], "new", qos=1, retain=True)
    client.execute_command("DEBUG", "RELOAD")
    got += take_all(session)
    assert sorted(topics_of(got)) == sorted([*names, names[-1]])


def test_a_page_that_was_due_while_writing_was_paused_comes_afterwards(session: Session, client: redis.Redis) -> None:
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names)
    session.subscribe(("a/#", 1))
    page = session.fetch(count=10_000, size=1 << 30)
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SESSION.ACK", session.key, *page.packet_ids)
    pipe.execute_command("CLIENT", "PAUSE", PAUSED_MS, "WRITE")
    pipe.zcard(session.name("messages"))
    assert pipe.execute()[-1] == 0
    eventually(lambda: client.zcard(session.name("messages")) > 0, TAKEN_S)
    assert topics_of(take_all(session)) == names[len(page.entries) :]


def test_a_replica_that_is_promoted_continues(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client = primary.client()
    session = Session(client)
    session.open(expiry=1000)
    names = [f"a/{number:05}" for number in range(MANY)]
    retain(client, *names)
    session.subscribe(("a/#", 1))
    got = take(session)
    client.wait(1, 5000)
    promoted = replica.client()
    promoted.replicaof("NO", "ONE")
    got += take_all(Session(promoted))
    assert topics_of(got) == names
    assert_indexes_hold(promoted)


def test_it_ends_with_its_session(session: Session, client: redis.Redis) -> None:
    retain(client, *(f"a/{number:05}" for number in range(MANY)))
    session.subscribe(("a/#", 1))
    assert client.pexpiretime("{c}_cursors") == client.pexpiretime("{c}_session")
    session.drop()
    assert session.keys() <= {b"{c}_last_packet_id"}


def test_one_that_others_wrote_is_followed_or_forgotten(session: Session, client: redis.Redis) -> None:
    retain(client, *(f"a/{number:05}" for number in range(10)))
    session.subscribe(("a/#", 1))
    take_all(session)
    client.hset("{c}_cursors", mapping={"filter:a/#": "1 1 5 a/00007", "filter:": "x", "topic:a/00008": "1", "z": "?"})
    assert topics_of(take_all(session)) == []  # nothing was acknowledged yet
    session.fetch()
    assert topics_of(take_all(session)) == ["a/00009"]
    client.delete("{c}_cursors")
    client.set("{c}_cursors", "x")
    assert_indexes_hold(client)
    client.delete("{c}_cursors")


def test_many_filters_beside_retained_messages_take_no_longer_each_than_a_few(client: redis.Redis) -> None:
    """Each filter is looked up among those that the session has."""
    retain(client, "kept")

    def took(count: int) -> float:
        client.config_resetstat()
        words = [word for number in range(count) for word in (f"f/{number}", 1)]
        client.execute_command("SESSION.SUBSCRIBE", "{many}", *words)
        stats = {name.lower(): value for name, value in client.info("commandstats").items()}
        usec = stats["cmdstat_session.subscribe"]["usec"]
        client.execute_command("SESSION.DROP", "{many}")
        return float(usec)

    assert least_ratio(lambda: took(20_000), lambda: took(1000), below=60) < 60  # quadratic: 400


def usec_of(client: redis.Redis, command: str) -> int:
    stats = {name.lower(): value for name, value in client.info("commandstats").items()}
    return int(stats[f"cmdstat_{command}"]["usec"])


def subscribe_behind(client: redis.Redis, key: str, *filters: str) -> None:
    """Subscribes to a filter with a page to be acknowledged first: the cursors of all others stay at the beginning."""
    client.execute_command("SESSION.OPEN", key, "OWNER", "o", "EXPIRY", 1000)
    client.execute_command("SESSION.SUBSCRIBE", key, "first/#", 1)
    for start in range(0, len(filters), 1000):
        words = [word for name in filters[start : start + 1000] for word in (name, 1)]
        client.execute_command("SESSION.SUBSCRIBE", key, *words)


def test_a_publish_to_a_session_with_many_cursors_costs_what_it_matches(client: redis.Redis) -> None:
    retain(client, *(f"first/{number:04}" for number in range(1000)))
    many = [f"many/{number}" for number in range(20_000)]
    subscribe_behind(client, "{many}", *many)
    subscribe_behind(client, "{few}", "few/1")
    assert client.hlen("{many}_cursors") == 20_001

    def took(topic: str) -> float:
        retain(client, topic)
        client.config_resetstat()
        pipe = client.pipeline(transaction=False)
        for _ in range(200):
            pipe.execute_command("TOPIC.PUBLISH", topic, "m", "QOS", 1)
        pipe.execute()
        return usec_of(client, "topic.publish")

    assert least_ratio(lambda: took("many/7"), lambda: took("few/1"), below=4) < 4  # comparing all: 100


def test_of_many_cursors_those_that_match_are_handed_over_before_a_publish(client: redis.Redis) -> None:
    """In the order of the subscriptions, whether few or many cursors stand, and whichever have ended."""
    names = [f"first/{number:04}" for number in range(MANY)]
    retain(client, *names)
    retain(client, "a/b", payload="old")
    session = Session(client)
    filters = ["a/+", *(f"f/{number}" for number in range(60)), "a/b", "#", *(f"g/{number}" for number in range(60))]
    subscribe_behind(client, "{c}", *filters)
    for topic_filter in filters[1:40]:
        session.unsubscribe(topic_filter)
    session.subscribe(("a/+", 0))  # again: it is the last one now
    publish(client, "a/b", "new", qos=1)
    got = take_all(session)
    assert [(record.qos, bytes(record.payload)) for record in got if record.topic == b"a/b"] == [
        *((1, b"old"), (1, b"old"), (0, b"old"), (1, b"new"))
    ]
    assert not pending(client)
    assert_indexes_hold(client)


def overlapping(levels: int) -> list[str]:
    return ["/".join("+" if bits >> at & 1 else "x" for at in range(levels)) for bits in range(1 << levels)]


@pytest.mark.parametrize("retained", [False, True])
def test_a_publish_hands_over_a_bounded_number_of_copies(client: redis.Redis, retained: bool) -> None:
    """However many filters of one session match its topic: else one subscriber makes the publishes of others long."""
    retain(client, *(f"first/{number:04}" for number in range(1000)))
    topic = "/".join("x" * 10)
    retain(client, topic, payload="old" + "x" * 2_000)
    filters = overlapping(10)
    assert len(filters) == 1024
    session = Session(client)
    subscribe_behind(client, "{c}", *filters)
    before = client.zcard("{c}_messages")
    client.config_resetstat()
    publish(client, topic, "new", qos=1, retain=retained)
    assert client.zcard("{c}_messages") == before + 1
    got = [bytes(record.payload[:3]) for record in take_all(session) if record.topic == topic.encode()]
    assert got.count(b"new") == 1
    if retained:  # it has replaced the older message
        assert got == [b"new"]
    else:
        assert got.count(b"old") == len(filters)
    assert not pending(client)
