"""SESSION.IMPORT: a whole queue comes into a session in one step, as it was where it comes from."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    assert_same_keys,
    now_ms,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.module.tbmq_scripts import TbmqSession
from tests.support import RawClient, ReplyError, Server

MOST_MESSAGES = 10_000
MAX_PACKET_ID = 65535
QUEUED, IN_FLIGHT, RELEASED = 0, 1, 2

Message = tuple[int, int, int, int, bytes | str]


class Imported(NamedTuple):
    """Reply of SESSION.IMPORT."""

    stored: int
    last_serial: int
    last_packet_id: int
    changed: list[list[int]]
    trimmed: int
    new: int


def words(*messages: Message) -> list[Any]:
    return ["MESSAGES", len(messages), *(word for message in messages for word in message)]


def take(session: Session, *messages: Message, options: tuple[str | int, ...] = ()) -> Imported:
    reply = session.client.execute_command("SESSION.IMPORT", session.key, *options, *words(*messages))
    return Imported(*reply)


def queued(packet_id: int, serial: int = 0, value: bytes | str | None = None, ttl_ms: int = 60_000) -> Message:
    return (packet_id, serial, QUEUED, ttl_ms, value if value is not None else f"m{packet_id}")


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


# --- As it was ------------------------------------------------------------------------------------------------------


def test_a_queue_keeps_its_identifiers_serials_order_and_times_to_live(session: Session, client: redis.Redis) -> None:
    before_ms = now_ms(client)
    messages = [(65534, 65534), (65535, 65535), (1, 65536), (7, 65542)]
    got = take(session, *(queued(packet_id, serial) for packet_id, serial in messages), options=("LASTID", 9))
    assert got == (4, 65542, 9, [], 0, 1)
    entries = session.fetch().entries
    assert [(entry.packet_id, entry.serial) for entry in entries] == messages
    assert [entry.value for entry in entries] == [b"m65534", b"m65535", b"m1", b"m7"]
    for packet_id, _ in messages:
        assert 60_000 <= client.execute_command("PEXPIRETIME", session.message(packet_id)) - before_ms < 70_000
    # What comes next goes on behind: identifiers after the last one, serials only grow, also once all is gone.
    session.ack(65534, 65535, 1, 7)
    added = session.add("next")
    assert added.packet_ids == [10]
    assert added.serial > 65542


def test_an_import_leaves_the_same_keys_as_adding_the_messages(session: Session, client: redis.Redis) -> None:
    values = [f"message {number}" for number in range(50)]
    session.add(*values, ttl=60)
    want = {name: (key.kind, key.value) for name, key in snapshot(client).items()}
    client.flushdb()
    take(session, *(queued(number, number, value) for number, value in enumerate(values, 1)))
    assert {name: (key.kind, key.value) for name, key in snapshot(client).items()} == want
    assert all(key.expires_ms > 0 for key in snapshot(client).values())


def test_messages_without_identifier_and_serial_get_the_next_ones(session: Session) -> None:
    session.add("a", "b")
    session.ack(1, 2)
    assert take(session, queued(0), queued(0)) == (2, 4, 4, [], 0, 1)
    assert session.fetch().packet_ids == [3, 4]


def test_what_was_in_flight_and_released_still_is(session: Session, client: redis.Redis) -> None:
    record = core.Record(topic=b"t", payload=b"x" * 1000, qos=2, time_ms=5).encode()
    states = [(1, IN_FLIGHT), (2, RELEASED), (3, IN_FLIGHT), (4, QUEUED), (5, RELEASED), (6, QUEUED)]
    take(session, *((packet_id, packet_id, state, 60_000, record) for packet_id, state in states))
    page = session.fetch()
    assert list(zip(page.packet_ids, page.states, strict=True)) == states
    released = core.Record.decode(page.entries[1].value)
    assert (released.type, released.time_ms) == (core.RecordType.PUBREL, 5)
    assert client.strlen(session.message(2)) < 100
    assert session.fetch(in_flight=True).packet_ids == [1, 2, 3]
    assert session.fetch(window=4).packet_ids == [4]


def test_messages_of_tbmq_stay_such_with_their_identifier_inside(session: Session, client: redis.Redis) -> None:
    tbmq = TbmqSession(client)
    before = [json.dumps(tbmq.message(str(number)), separators=(",", ":")) for number in range(3)]
    take(session, (5, 5, RELEASED, 60_000, before[0]), (6, 6, QUEUED, 60_000, before[1]), queued(7, 7, before[2]))
    assert client.zrange(session.name("messages"), 0, -1, withscores=True) == [
        (session.message(packet_id), float(packet_id)) for packet_id in (5, 6, 7)
    ]
    stored = [json.loads(entry.value) for entry in session.fetch().entries]
    assert [(one["packetType"], one["packetId"]) for one in stored] == [("PUBREL", 5), ("PUBLISH", 6), ("PUBLISH", 7)]
    assert stored[2] == json.loads(before[2]) | {"packetId": 7}
    assert [message["packetId"] for message in tbmq.fetch()] == [5, 6, 7]


def test_a_whole_queue_comes_in_one_step_and_a_longer_one_in_several(session: Session) -> None:
    options = ("MERGE", "LIMIT", 65535)
    for start in (1, MOST_MESSAGES + 1):
        batch = [queued(packet_id, packet_id) for packet_id in range(start, start + MOST_MESSAGES)]
        assert take(session, *batch, options=options).stored == MOST_MESSAGES
    entries = session.fetch_all()
    assert [entry.packet_id for entry in entries] == list(range(1, 2 * MOST_MESSAGES + 1))


def test_only_the_last_identifier_may_be_brought_along(session: Session, client: redis.Redis) -> None:
    assert take(session, options=("LASTID", 500)) == (0, 0, 500, [], 0, 1)
    assert client.pttl("{c}_last_packet_id") > 0
    assert session.add("next").packet_ids == [501]


# --- Where something is already -------------------------------------------------------------------------------------


def test_a_session_that_has_messages_is_left_alone(session: Session, client: redis.Redis) -> None:
    session.add("there")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^NOTEMPTY .*'\{c\}'"):
        take(session, queued(9))
    session.expire_message(1)
    assert take(session, queued(9, 9)).stored == 1
    assert session.fetch().values == [b"m9"]


def test_a_merge_appends_and_reports_identifiers_that_it_changed(session: Session) -> None:
    session.add("a", "b", "c")
    got = take(session, queued(3, 3), queued(4, 4), queued(2, 5), queued(4, 6), queued(9, 70_000), options=("MERGE",))
    assert got.stored == 5
    page = session.fetch()
    assert page.values == [b"a", b"b", b"c", b"m3", b"m4", b"m2", b"m4", b"m9"]
    assert len(set(page.packet_ids)) == 8
    assert page.packet_ids[4] == 4  # was free, and kept for the message that brought it
    assert page.serials == sorted(set(page.serials))
    assert page.serials[-1] == got.last_serial == 70_000
    new = dict(zip(range(8), page.packet_ids, strict=True))
    assert got.changed == [[3, new[3]], [2, new[5]], [4, new[6]]]


def test_nothing_queued_counts_as_handed_out_because_of_a_merge(session: Session) -> None:
    session.add("queued")
    take(session, (5, 5, IN_FLIGHT, 60_000, "was in flight"), options=("MERGE",))
    assert session.fetch().states == [QUEUED, QUEUED]
    assert session.fetch(window=9).values == [b"queued", b"was in flight"]


@pytest.mark.parametrize("seed", range(3))
def test_identifiers_are_never_given_twice_and_serials_only_grow(session: Session, seed: int) -> None:
    chance = random.Random(seed)
    last_serial, living = 0, set[int]()
    for _ in range(12):
        near = chance.choice((1, 65500, chance.randrange(1, 65000)))
        batch = []
        serial = chance.choice((0, last_serial, chance.randrange(1, 200_000)))
        for number in range(chance.randrange(40)):
            packet_id = chance.choice((0, (near + number) % MAX_PACKET_ID + 1, chance.randrange(1, MAX_PACKET_ID)))
            serial += 1
            batch.append(queued(packet_id, chance.choice((0, serial))))
        got = take(session, *batch, options=("MERGE", "LASTID", chance.choice((0, near)), "LIMIT", 65535))
        assert got.stored == len(batch)
        entries = session.fetch_all()
        new = entries[len(living) :]
        assert all(entry.serial > last_serial for entry in new)
        assert not {entry.packet_id for entry in new} & living
        assert len({entry.packet_id for entry in entries}) == len(entries)
        gone = {entry.packet_id for entry in entries if chance.random() < 0.5}
        session.ack(*gone, 1)
        living = {entry.packet_id for entry in entries} - gone - {1}
        last_serial = max(last_serial, session.add("live").serial)
        living.add(session.last())


def test_beyond_the_limit_the_oldest_that_are_not_in_flight_are_left_out(session: Session) -> None:
    session.add("there")
    batch: list[Message] = [(11, 11, RELEASED, 60_000, ""), *(queued(packet_id) for packet_id in (12, 13, 14))]
    got = take(session, *batch, options=("MERGE", "LIMIT", 3))
    assert (got.stored, got.trimmed) == (3, 2)
    page = session.fetch()
    assert page.packet_ids == [11, 13, 14]
    assert page.states == [RELEASED, QUEUED, QUEUED]


def test_an_opened_session_takes_a_queue_that_ends_with_it(session: Session, client: redis.Redis) -> None:
    session.open(expiry=30, lease=10)
    take(session, queued(5, 5, ttl_ms=10**9))
    end = client.execute_command("PEXPIRETIME", "{c}_session")
    assert client.execute_command("PEXPIRETIME", "{c}_messages") == end
    assert session.fetch(window=5).packet_ids == [5]


# --- Once -----------------------------------------------------------------------------------------------------------


def test_a_call_that_is_sent_again_stores_nothing(session: Session, client: redis.Redis) -> None:
    first, second = ("PRODUCER", "job", 1), ("MERGE", "PRODUCER", "job", 2)
    assert take(session, queued(1, 1), options=first).new == 1
    assert take(session, queued(2, 2), options=second).new == 1
    with unchanged(client):
        assert take(session, queued(2, 2), options=second) == (0, 2, 2, [], 0, 0)
        assert take(session, queued(1, 1), options=first)[-1] == 0
    assert session.fetch().packet_ids == [1, 2]


# --- Refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        (("MESSAGES", 1), "MESSAGES 1 is followed by 0 arguments; expected 5"),
        (("MESSAGES", 1, 1, 1, 0, 0, "a", "b"), "MESSAGES 1 is followed by 6 arguments"),
        (("MESSAGES", -1), "MESSAGES is '-1'"),
        (("MESSAGES", 10_001, *["1"] * 5 * 10_001), "MESSAGES is '10001'; expected a whole number from 0 to 10000"),
        (("LIMIT", 5), "MESSAGES is missing"),
        (("LIMIT", 0, "MESSAGES", 0), "LIMIT is '0'"),
        (("LASTID", 65536, "MESSAGES", 0), "LASTID is '65536'"),
        (("PRODUCER", "p", 0, "MESSAGES", 0), "the sequence of PRODUCER is '0'"),
        (("TTL", 5, "MESSAGES", 0), "unexpected argument 'TTL'"),
        (("MESSAGES", 2, 1, 1, 0, 0, "a", 65536, 2, 0, 0, "b"), "the packet-id of message 2 is '65536'"),
        (("MESSAGES", 1, 1, -1, 0, 0, "a"), "the serial of message 1 is '-1'"),
        (("MESSAGES", 1, 1, 2**52 + 1, 0, 0, "a"), "the serial of message 1"),
        (("MESSAGES", 1, 1, 1, 3, 0, "a"), "the state of message 1 is '3'"),
        (("MESSAGES", 1, 1, 1, 0, -5, "a"), "the ttl-ms of message 1 is '-5'"),
        (
            ("MESSAGES", 2, 1, 5, 0, 0, "a", 2, 5, 0, 0, "b"),
            "the serial of message 2 is 5; expected more than .* message 1",
        ),
        (("MESSAGES", 2, 1, 1, 0, 0, "a", 2, 2, 1, 0, "b"), "the state of message 2 is 1 .in flight"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "-",
)
def test_what_cannot_be_is_refused_by_name(
    server: Server, session: Session, client: redis.Redis, rest: tuple[Any, ...], error: str
) -> None:
    with RawClient(server.port) as raw, unchanged(client), pytest.raises(ReplyError, match=f"^ERR .*{error}"):
        raw.call("SESSION.IMPORT", session.key, *rest)


@pytest.mark.parametrize("name", ["messages", "last_packet_id", "session", "producers"])
def test_a_key_of_another_type_is_named(session: Session, client: redis.Redis, name: str) -> None:
    client.rpush(session.name(name), "x")
    with unchanged(client), pytest.raises(redis.ResponseError, match=rf"^WRONGTYPE .*\{{c\}}_{name}"):
        take(session, queued(1, 1), options=("PRODUCER", "p", 1))


def test_without_memory_nothing_is_imported(fresh_server: Callable[..., Server]) -> None:
    client = fresh_server().client()
    client.config_set("maxmemory", 1)
    before = snapshot(client)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        take(Session(client), queued(1, 1))
    assert_same_keys(snapshot(client), before)


# --- Kept -----------------------------------------------------------------------------------------------------------


def test_replicas_and_the_append_only_file_hold_the_same_without_the_module(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(aof=True)
    replica = fresh_server(replica_of=server, module=False)
    client = server.client()
    session = Session(client)
    session.add("there")
    batch = [(packet_id, packet_id, IN_FLIGHT, 10**6, "x") for packet_id in range(1, 1500)]
    take(session, *batch, options=("MERGE", "LASTID", 4, "PRODUCER", "p", 1))
    other = Session(client, "{other}")
    take(other, (3, 70_000, RELEASED, 10**6, "x"), (4, 0, QUEUED, 10**6, "y"), options=("LIMIT", 10))
    take(other, queued(4), options=("MERGE", "LIMIT", 2))
    want = snapshot(client)
    wait_for_replica(client, replica.client())
    assert_same_keys(snapshot(replica.client()), want)
    server.kill()
    server.restart(module=False)
    assert_same_keys(snapshot(server.client()), want)
