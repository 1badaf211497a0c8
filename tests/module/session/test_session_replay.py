"""Subscriptions that read history: SESSION.SUBSCRIBE … @start, SESSION.REPLAY, and what is left of them in the keys."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis

from holdmq import core
from tests.module import history_support as history
from tests.module.sessions_support import (
    Inbox,
    Session,
    assert_indexes_hold,
    error_of,
    expire_now,
    matches,
    now_ms,
    publish,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import RawClient, Server, eventually

MakeServer = Callable[..., Server]


class Replayed(NamedTuple):
    """Reply of SESSION.REPLAY, but for the stores."""

    delivered: int
    behind: int
    live: int
    missed: int


@pytest.fixture
def session(client: redis.Redis) -> Session:
    history.store(client, "h", "a/#", shards=2)
    return Session(client)


def replay(session: Session, **options: int | None) -> Replayed:
    """SESSION.REPLAY."""
    return Replayed(*session.client.execute_command("SESSION.REPLAY", session.key, *history.words(**options))[:4])


def stores_of(session: Session) -> list[bytes]:
    """The stores that SESSION.REPLAY names."""
    return list(session.client.execute_command("SESSION.REPLAY", session.key)[4])


def taken(session: Session) -> list[core.Record]:
    """Everything that is queued, taken out and acknowledged."""
    entries = session.fetch_all()
    for at in range(0, len(entries), 1000):
        session.ack(*(entry.packet_id for entry in entries[at : at + 1000]))
    return [core.Record.decode(entry.value) for entry in entries]


def told(records: list[core.Record]) -> list[bytes]:
    """Their payloads."""
    return [record.payload for record in records]


def options_of(session: Session) -> dict[bytes, bytes]:
    """The subscriptions as they stand."""
    return dict(session.client.execute_command("HGETALL", session.name("subscriptions")))


def ends(session: Session, suffix: str) -> int:
    """When a key of the session expires, ms since 1970."""
    return int(session.client.execute_command("PEXPIRETIME", session.name(suffix)))


def keep(client: redis.Redis, count: int, topic: str = "a/t", qos: int = 1) -> list[bytes]:
    """Publishes so many numbered messages; their payloads."""
    payloads = [f"{topic} {number}".encode() for number in range(count)]
    for payload in payloads:
        publish(client, topic, payload, qos=qos)
    return payloads


def count_of(client: redis.Redis, field: str) -> int:
    """A number of INFO holdmq."""
    return int(client.info("holdmq")[f"holdmq_{field}"])


# --- Reading, and becoming live ---------------------------------------------------------------------------------------


def test_a_replay_delivers_the_past_and_then_what_is_published(session: Session, client: redis.Redis) -> None:
    past = keep(client, 5)
    assert session.subscribe(("a/#", "1@earliest")) == [1]
    assert options_of(session) == {b"a/#": b"1@"}
    assert publish(client, "a/t", b"meanwhile") == 0
    assert replay(session) == (6, 0, 1, 0)
    assert options_of(session) == {b"a/#": b"1"}
    assert not client.exists(session.name("replays"))
    assert publish(client, "a/t", b"live") == 1
    assert told(taken(session)) == [*past, b"meanwhile", b"live"]


def test_a_replay_of_nothing_becomes_live_at_once(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a/x", "1@earliest"))
    assert replay(session) == (0, 0, 1, 0)
    assert publish(client, "a/x", b"m") == 1


def test_a_session_without_replays_has_nothing_to_read(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a/x", 1))
    with unchanged(client):
        assert replay(session) == (0, 0, 0, 0)


def test_a_replay_begins_at_its_time(session: Session, client: redis.Redis) -> None:
    keep(client, 3)
    begin = now_ms(client) + 2
    eventually(lambda: now_ms(client) > begin)
    later = keep(client, 2)
    session.subscribe(("a/#", f"1@{begin}"))
    replay(session)
    assert told(taken(session)) == later


def test_a_replay_from_now_is_an_ordinary_subscription(session: Session, client: redis.Redis) -> None:
    keep(client, 3)
    session.subscribe(("a/#", "1@now"))
    assert options_of(session) == {b"a/#": b"1"}
    assert publish(client, "a/t", b"m") == 1
    assert told(taken(session)) == [b"m"]


def test_an_application_reads_forever(session: Session, client: redis.Redis) -> None:
    past = keep(client, 3)
    session.subscribe(("a/#", "1@earliest!"))
    for _ in range(3):
        assert replay(session) == (len(past), 0, 0, 0)
        assert told(taken(session)) == past
        assert options_of(session) == {b"a/#": b"1@!"}
        past = [b"one more"]
        assert publish(client, "a/t", past[0]) == 0


def test_an_application_begins_now_and_continues_when_it_subscribes_again(
    session: Session, client: redis.Redis
) -> None:
    keep(client, 3)
    assert session.subscribe(("a/#", "1@!")) == [1]
    later = keep(client, 2)
    assert session.subscribe(("a/#", "2@!")) == [0]
    assert options_of(session) == {b"a/#": b"2@!"}
    assert replay(session).delivered == 2
    assert told(taken(session)) == later


def test_the_stores_that_a_session_reads_are_reported(session: Session, client: redis.Redis) -> None:
    history.store(client, "other", "b/#")
    assert stores_of(session) == []
    session.subscribe(("a/#", "1@!"), ("a/x", "1@!"), ("b/#", "1@earliest!"))
    assert sorted(stores_of(session)) == [b"h", b"other"]
    session.unsubscribe("a/#", "a/x")
    assert stores_of(session) == [b"other"]


def test_renewed_without_a_start_a_replay_continues_with_the_new_options(session: Session, client: redis.Redis) -> None:
    past = keep(client, 4, qos=2)
    session.subscribe(("a/#", "1@earliest"))
    assert replay(session, count=2) == (2, 1, 0, 0)
    assert session.subscribe(("a/#", "2:7")) == [0]
    assert options_of(session) == {b"a/#": b"2:7@"}
    replay(session)
    records = taken(session)
    assert told(records) == past
    assert [record.qos for record in records] == [1, 1, 2, 2]
    assert [record.properties for record in records] == [b"", b"", b"\x0b\x07", b"\x0b\x07"]


def test_another_start_begins_again(session: Session, client: redis.Redis) -> None:
    past = keep(client, 3)
    session.subscribe(("a/#", "1@earliest"))
    replay(session)
    session.subscribe(("a/#", "1@earliest"))
    assert publish(client, "a/t", b"m") == 0
    replay(session)
    assert told(taken(session)) == [*past, *past, b"m"]


def test_an_application_that_names_a_start_without_its_mark_becomes_live(session: Session, client: redis.Redis) -> None:
    keep(client, 2)
    session.subscribe(("a/#", "1@!"))
    session.subscribe(("a/#", "1@earliest"))
    assert replay(session) == (2, 0, 1, 0)


def test_unsubscribing_ends_a_replay(session: Session, client: redis.Redis) -> None:
    keep(client, 4)
    session.subscribe(("a/#", "1@earliest"), ("a/t", "1@!"))
    replay(session, count=1)
    assert session.unsubscribe("a/#", "a/t") == [1, 1]
    assert not client.exists(session.name("replays"))
    assert replay(session) == (0, 0, 0, 0)
    assert publish(client, "a/t", b"m") == 0


def test_a_dropped_or_clean_session_has_no_replays(session: Session, client: redis.Redis) -> None:
    session.open(expiry=100)
    session.subscribe(("a/#", "1@earliest"))
    assert ends(session, "replays") == ends(session, "subscriptions") > 0
    session.drop()
    assert session.keys() == set()
    session.open(expiry=100)
    session.subscribe(("a/#", "1@!"))
    session.open(clean=True, expiry=100)
    assert not client.exists(session.name("replays"))


def test_the_cursor_expires_with_the_subscription(session: Session) -> None:
    session.subscribe(("a/#", "1@!"))
    assert ends(session, "replays") == ends(session, "subscriptions") > 0
    epoch = session.open(expiry=100).epoch
    session.close(epoch, 50)
    assert ends(session, "replays") == ends(session, "session") > 0


# --- What is delivered ------------------------------------------------------------------------------------------------


def test_a_replay_delivers_as_a_publish_would(session: Session, server: Server, client: redis.Redis) -> None:
    publish(client, "a/0", b"zero", qos=0)
    publish(client, "a/0", b"one", qos=1, retain=True, publisher="other", properties=b"\x01\x01")
    publish(client, "a/0", b"own", qos=1, publisher="c")
    with Inbox(server) as inbox:
        session.subscribe(("a/0", f"{2 | 4 | 32}@earliest"))
        assert replay(session).delivered == 2
        zero, one = inbox.take()
    (entry,) = session.fetch_all()
    record = core.Record.decode(entry.value)
    assert (zero.qos, core.Record.decode(zero.record).payload) == (0, b"zero")
    assert (one.packet_id, one.serial) == (entry.packet_id, entry.serial)
    assert (record.qos, record.retain, record.properties, record.publisher) == (1, False, b"\x01\x01", b"other")


def test_retained_messages_are_handed_over_as_usual(session: Session, client: redis.Redis) -> None:
    publish(client, "a/r", b"kept", retain=True)
    session.subscribe(("a/r", "1@!"))
    (record,) = taken(session)
    assert (record.payload, record.retain) == (b"kept", True)
    session.subscribe(("a/+", f"{1 | 8}@earliest"))
    taken(session)
    assert replay(session).delivered == 1
    (record,) = taken(session)
    assert record.retain


def test_of_an_expiry_what_is_left_is_delivered(session: Session, client: redis.Redis) -> None:
    publish(client, "a/t", b"short", ttl=1)
    publish(client, "a/t", b"long", ttl=1000)
    (short, long) = history.replay(client, "a/#").entries
    session.subscribe(("a/#", "1@earliest"))
    eventually(lambda: now_ms(client) > short.message.expires_ms)
    replay(session)
    (record,) = taken(session)
    assert record == long.message
    assert record.expires_ms > 0


# --- Bounds -----------------------------------------------------------------------------------------------------------


def test_a_replay_fills_the_queue_no_further_than_asked(session: Session, client: redis.Redis) -> None:
    past = keep(client, 10)
    session.subscribe(("a/#", "1@earliest"))
    assert replay(session, queue=4) == (4, 2, 0, 0)
    with unchanged(client):
        assert replay(session, queue=4) == (0, 2, 0, 0)
    first = session.fetch(count=1)
    session.ack(*first.packet_ids)
    assert replay(session, queue=4) == (1, 2, 0, 0)
    got = told(taken(session))
    while not (page := replay(session, queue=4)).live:
        assert page.delivered > 0
        got += told(taken(session))
    assert [core.Record.decode(first.values[0]).payload, *got, *told(taken(session))] == past


def test_the_limit_of_the_queue_trims_nothing(session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 5)
    past = keep(client, 12)
    session.subscribe(("a/#", "1@earliest"))
    got = []
    while not (page := replay(session)).live:
        assert page == (5, 2, 0, 0)
        got += told(taken(session))
    assert got + told(taken(session)) == past


def test_a_page_has_no_more_than_asked(session: Session, client: redis.Redis) -> None:
    keep(client, 10)
    keep(client, 5, "a/u")
    session.subscribe(("a/t", "1@earliest"))
    assert replay(session, count=3) == (3, 1, 0, 0)
    assert replay(session, bytes=1) == (1, 1, 0, 0)
    assert replay(session, visit=1) == (1, 1, 0, 0)
    assert replay(session) == (5, 0, 1, 0)


def test_no_filter_of_a_session_waits_for_another(session: Session, client: redis.Redis) -> None:
    topics = [f"a/{number}" for number in range(8)]
    for topic in topics:
        keep(client, 30, topic)
    session.subscribe(*((topic, "1@earliest") for topic in topics))
    assert replay(session, count=80).delivered == 80
    got: dict[bytes, int] = defaultdict(int)
    for record in taken(session):
        got[record.topic] += 1
    assert sorted(got.values()) == [10] * len(topics)
    for _ in range(200):
        assert replay(session, count=1) == (1, 1, 0, 0) or got
        for record in taken(session):
            got[record.topic] += 1
        if min(got.values()) > 10:
            return
    raise AssertionError(f"a filter got nothing in 200 pages: {dict(got)}")


def test_a_session_has_so_many_replays_and_no_more(session: Session, client: redis.Redis) -> None:
    session.subscribe(*((f"a/{number}", "1@!") for number in range(64)))
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^FULL 64 subscriptions .* maximum of 64"):
        session.subscribe(("a/more", "1@earliest"))
    assert replay(session) == (0, 0, 0, 0)


# --- Refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic_filter", "options", "error"),
    [
        ("b/#", "1@earliest", r"^NOSTORE no store keeps topics of the filter .b/#."),
        ("#", "1@earliest", r"has topics that the store .h. does not keep"),
        ("a/#", "1@", r"^options is .1@.;"),
        ("a/#", "1@yesterday", r"^options is"),
        ("a/#", "1@-5", r"^options is"),
        ("a/#", "@earliest", r"^options is"),
        ("a/#", "1!", r"^options is"),
        ("$share/g/a/#", "1@earliest!", r"expected options without the ! of an application"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    session: Session, client: redis.Redis, topic_filter: str, options: str, error: str
) -> None:
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        session.subscribe(("a/fine", 1), (topic_filter, options))


def test_anyone_who_may_not_read_the_store_cannot_replay_it(
    session: Session, server: Server, client: redis.Redis
) -> None:
    keep(client, 2)
    client.acl_setuser("own", enabled=True, nopass=True, commands=["+@all"], keys=["{c}*"], channels=["*"], reset=True)
    own = Session(server.client(username="own", password=""))
    for options in ("1@earliest", "1@!"):
        with unchanged(client), pytest.raises(redis.ResponseError, match=r"may not read the key .{h/0}_history"):
            own.subscribe(("a/#", options))
    assert own.subscribe(("a/#", 1)) == [1]
    assert options_of(session) == {b"a/#": b"1"}


def test_only_the_owner_reads_on(session: Session, client: redis.Redis) -> None:
    keep(client, 2)
    old = session.open("one", expiry=100).epoch
    session.subscribe(("a/#", "1@earliest"), epoch=old)
    new = session.open("two", expiry=100).epoch
    assert (error_of(client, "SESSION.REPLAY", "{c}", "EPOCH", old) or "").startswith("FENCED")
    assert replay(session, epoch=new) == (2, 0, 1, 0)


def test_a_cursor_that_others_changed_is_named_and_stops_no_other(session: Session, client: redis.Redis) -> None:
    keep(client, 2)
    session.subscribe(("a/t", "1@earliest"), ("a/u", "1@!"))
    client.hset(session.name("replays"), "a/u", "nonsense")
    assert replay(session) == (2, 0, 1, 0)
    with pytest.raises(
        redis.ResponseError, match=r"^WRONGTYPE the replay of .a/u.: another program changed its cursor"
    ):
        replay(session)
    session.subscribe(("a/u", "1@!"))
    assert replay(session) == (0, 0, 0, 0)


@pytest.mark.parametrize("shards", [0, 1])
def test_a_replay_whose_store_is_gone_becomes_live(client: redis.Redis, shards: int) -> None:
    """Also if another one, with fewer shards, has its name now."""
    history.store(client, "h", "a/#", shards=3)
    session = Session(client)
    keep(client, 2)
    session.subscribe(("a/#", "1@earliest"), ("a/t", "1@!"))
    client.execute_command("HISTORY.UNSTORE", "h")
    if shards:
        history.store(client, "h", "a/#", shards=shards)
    before = count_of(client, "replays_ended")
    assert replay(session) == (0, 0, 2, 0)
    assert count_of(client, "replays_ended") == before + 2
    assert publish(client, "a/t", b"m") == 1


def form(cursor: bytes, *, with_store: bool) -> bytes:
    """Cursors as an earlier release wrote them, or as a reader of history has them."""
    cursors = [core.Cursor.decode(one) for one in cursor.split(b",")]
    return cursor if with_store else b",".join(one._replace(store=b"").encode() for one in cursors)


@pytest.mark.parametrize("with_store", [False, True])
def test_a_session_continues_from_a_place_in_either_form(
    session: Session, client: redis.Redis, with_store: bool
) -> None:
    past = keep(client, 5)
    session.subscribe(("a/#", "1@earliest"))
    cursor = history.replay(client, "a/#", count=3).cursor
    client.hset(session.name("replays"), "a/#", b"replay h " + form(cursor, with_store=with_store))
    assert replay(session) == (2, 0, 1, 0)
    assert told(taken(session)) == past[3:]


def test_a_place_of_a_store_that_was_created_again_gives_all_of_the_new_one(client: redis.Redis) -> None:
    session = Session(client)
    history.store(client, "h", "a/#")
    keep(client, 5)
    session.subscribe(("a/#", "1@earliest!"))
    assert replay(session).delivered == 5
    taken(session)
    client.execute_command("HISTORY.UNSTORE", "h")
    eventually(lambda: error_of(client, "HISTORY.STORE", "h", "FILTER", "a/#") is None, 5, "created again")
    new = keep(client, 9)
    assert replay(session).delivered == 9
    assert told(taken(session)) == new


def test_what_retention_removed_is_counted_and_the_rest_is_read(client: redis.Redis) -> None:
    history.store(client, "h", "a/#", age=3, epoch=1)
    session = Session(client)
    keep(client, 3)
    session.subscribe(("a/#", "1@earliest"))
    begin = now_ms(client)
    eventually(lambda: now_ms(client) > begin + 3100)
    later = keep(client, 2)
    before = count_of(client, "replays_missed")
    assert replay(session) == (2, 0, 1, 3)
    assert count_of(client, "replays_missed") == before + 3
    assert told(taken(session)) == later


# --- Waking -----------------------------------------------------------------------------------------------------------


def test_a_client_that_waits_for_more_is_woken_once_a_turn(
    session: Session, server: Server, client: redis.Redis
) -> None:
    with RawClient(server.port) as listener:
        listener.call("SUBSCRIBE", "holdmq:history:h")
        shard, sequence = keep_in_one_turn(client, 20)
        assert listener.read() == [b"message", b"holdmq:history:h", f"{shard} {sequence}".encode()]
        history.append(client, "h", "a/t", "m")
        assert listener.read() == [b"message", b"holdmq:history:h", f"{shard} {sequence + 1}".encode()]
        assert listener.pending() == []
    assert replay(session) == (0, 0, 0, 0)


def keep_in_one_turn(client: redis.Redis, count: int) -> tuple[int, int]:
    """Keeps messages of one topic in a transaction; shard and sequence number of the last."""
    with client.pipeline(transaction=True) as pipe:
        for number in range(count):
            pipe.execute_command("HISTORY.APPEND", "h", "a/t", f"{number}")
        place = history.Place(*pipe.execute()[-1])
    return place.shard, place.sequence


# --- Any schedule -----------------------------------------------------------------------------------------------------


class Reader:
    """A session whose messages are collected, and what it should have got: all of its filters since its start.

    Args:
        server: where.
        key: the session key.
        filters: topics and whether each is an application's.
    """

    def __init__(self, server: Server, key: str, filters: dict[str, bool]) -> None:
        self.session = Session(server.client(), key)
        self.inbox = Inbox(server, key)
        self.filters = filters
        self.got: dict[bytes, list[int]] = defaultdict(list)

    def reconnect(self, server: Server) -> None:
        """The server is another, or was started again."""
        self.close()
        self.session = Session(server.client(), self.session.key)
        self.inbox = Inbox(server, self.session.key)

    def close(self) -> None:
        """Listens no more."""
        self.inbox.__exit__()

    def begin(self) -> None:
        """Subscribes from the earliest."""
        self.session.subscribe(
            *((topic, "2@earliest!" if application else "2@earliest") for topic, application in self.filters.items())
        )

    def take(self, most: int) -> int:
        """Takes QoS 0 from the inbox, and some of the queue; how many."""
        for delivery in self.inbox.take():
            if delivery.qos == 0:
                self._note(core.Record.decode(delivery.record))
        entries = self.session.fetch(count=most).entries
        for entry in entries:
            self._note(core.Record.decode(entry.value))
        if entries:
            self.session.ack(*(entry.packet_id for entry in entries))
        return len(entries)

    def _note(self, record: core.Record) -> None:
        self.got[record.topic].append(int(record.payload))


TOPICS = {f"a/{name}/{qos}": qos for name in "xyz" for qos in range(3)}
READERS: dict[str, dict[str, bool]] = {
    "{all}": {"a/#": False},
    "{two}": {"a/x/+": False, "a/y/#": False},
    "{mixed}": {"a/x/1": True, "a/+/2": False},
    "{application}": {"a/#": True},
}


@pytest.fixture
def make_readers() -> Iterator[Callable[[Server], list[Reader]]]:
    """Makes all of them on a server; closes them at the end."""
    made: list[Reader] = []

    def make(server: Server) -> list[Reader]:
        made.extend(Reader(server, key, filters) for key, filters in READERS.items())
        return made

    yield make
    for reader in made:
        reader.close()


def step(chance: random.Random, client: redis.Redis, readers: list[Reader], counts: dict[str, int]) -> None:
    """A publish, or one command of one reader."""
    reader = chance.choice(readers)
    match chance.randrange(4):
        case 0 | 1:
            topic = chance.choice(list(TOPICS))
            publish(client, topic, str(counts[topic]), qos=TOPICS[topic])
            counts[topic] += 1
        case 2:
            bounds = {"count": chance.randint(1, 9), "visit": chance.randint(1, 30), "queue": chance.randint(1, 12)}
            replay(reader.session, **bounds, bytes=chance.choice([1, 30, 10**6]))
        case _:
            reader.take(chance.randint(1, 9))


def finish(readers: list[Reader]) -> None:
    """Everything is read and taken."""
    for reader in readers:
        for _ in range(1000):
            page = replay(reader.session)
            if not reader.take(1000) and not page.behind and not page.delivered:
                break
        reader.take(1000)


def assert_exactly_once_in_order(readers: list[Reader], counts: dict[str, int], qos: set[int]) -> None:
    """Each reader got all of each topic that it wants, in order."""
    for reader in readers:
        for topic, count in counts.items():
            wanted = any(matches(one, topic) for one in reader.filters) and TOPICS[topic] in qos
            if wanted or TOPICS[topic] in qos:
                assert reader.got[topic.encode()] == (list(range(count)) if wanted else []), (reader.session.key, topic)


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_delivers_each_message_once_and_in_the_order_of_its_topic(
    server: Server, client: redis.Redis, make_readers: Callable[[Server], list[Reader]], seed: int
) -> None:
    chance = random.Random(seed)
    history.store(client, "h", "a/#", shards=chance.choice([1, 3]))
    counts: dict[str, int] = dict.fromkeys(TOPICS, 0)
    readers = make_readers(server)
    for _ in range(chance.randint(0, 150)):
        step(chance, client, [*readers], counts)
    for reader in readers:
        reader.begin()
    for _ in range(600):
        step(chance, client, readers, counts)
    finish(readers)
    assert_exactly_once_in_order(readers, counts, {0, 1, 2})
    assert_indexes_hold(client)


@pytest.mark.parametrize("seed", [7])
def test_restarts_and_failovers_amid_replays_lose_nothing_and_repeat_nothing(
    fresh_server: MakeServer, make_readers: Callable[[Server], list[Reader]], seed: int
) -> None:
    chance = random.Random(seed)
    server = fresh_server(config=["appendonly yes", "appendfsync always"])
    history.store(server.client(), "h", "a/#", shards=2)
    counts: dict[str, int] = dict.fromkeys(TOPICS, 0)
    readers = make_readers(server)
    for reader in readers:
        reader.begin()
    for what in ("kill", "reload", "failover"):
        for _ in range(100):
            step(chance, server.client(), readers, counts)
        if what == "kill":
            server.kill()
            server.restart()
        elif what == "reload":
            server.client().execute_command("DEBUG", "RELOAD")
        else:
            replica = fresh_server(replica_of=server)
            for _ in range(50):
                step(chance, server.client(), readers, counts)
            wait_for_replica(server.client(), replica.client())
            before = snapshot(server.client())
            server.kill()
            server = replica
            server.client().execute_command("REPLICAOF", "NO", "ONE")
            assert snapshot(server.client()) == before
        for reader in readers:
            reader.reconnect(server)
        assert_indexes_hold(server.client())
    for _ in range(100):
        step(chance, server.client(), readers, counts)
    finish(readers)
    assert_exactly_once_in_order(readers, counts, {1, 2})
    assert_indexes_hold(server.client())


def test_an_expired_queue_leaves_the_place_in_history(session: Session, client: redis.Redis) -> None:
    past = keep(client, 3)
    session.subscribe(("a/#", "1@earliest!"))
    replay(session, count=2)
    expire_now(client, session.name("messages"))
    assert told(taken(session)) == []
    replay(session)
    assert told(taken(session)) == past[2:]


def test_ten_thousand_applications_cost_a_publish_nothing(session: Session, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(10_000):
            pipe.execute_command("SESSION.SUBSCRIBE", f"{{app{number}}}", "a/#", "1@!")
        pipe.execute()
    assert publish(client, "a/t", b"m") == 0
    assert count_of(client, "filters") == 0
    for number in (0, 5000, 9999):
        one = Session(client, f"{{app{number}}}")
        assert replay(one).delivered == 1
    assert replay(session).delivered == 0


def test_information_counts_what_was_replayed(session: Session, client: redis.Redis) -> None:
    before: Any = count_of(client, "replayed")
    keep(client, 3)
    session.subscribe(("a/#", "1@earliest"))
    replay(session)
    assert count_of(client, "replayed") == before + 3
