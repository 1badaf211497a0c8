"""What one user may have: sessions, retained messages, bytes in queues; and how all share the bytes of a database."""

import random
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    Will,
    assert_indexes_hold,
    error_of,
    expire_now,
    publish,
    retained_topics,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]
ALICE, BOB, ANONYMOUS = "user:alice", "user:bob", "anonymous"
KB = "x" * 1000
SPARE = 100  # bytes of a record beside its payload, at most


def opened(client: redis.Redis, name: str, user: str | None, *options: str | int, expiry: int = 60) -> Session:
    """A session of the user."""
    session = Session(client, f"{{{name}}}")
    who = ["IDENTITY", user] if user else []
    client.execute_command("SESSION.OPEN", session.key, "OWNER", "b", "EXPIRY", expiry, *who, *options)
    return session


def refusal(client: redis.Redis, name: str, user: str, *options: str | int) -> str | None:
    """Why the user may not open the session, None if he may."""
    return error_of(client, "SESSION.OPEN", f"{{{name}}}", "OWNER", "b", "EXPIRY", 60, "IDENTITY", user, *options)


def counted(client: redis.Redis, name: str) -> int:
    """A counter of INFO holdmq."""
    return int(client.info("holdmq")[f"holdmq_{name}"])


def retain(client: redis.Redis, topic: str, publisher: str, payload: str = "1") -> str | None:
    """Publish it as retained; why that was refused, None if it was not."""
    return error_of(client, "TOPIC.PUBLISH", topic, payload, "QOS", 1, "RETAIN", "FROM", publisher)


def holders(client: redis.Redis) -> dict[bytes, object]:
    """For whom each retained message counts."""
    return {topic: client.hget(b"{" + topic + b"}_retained", "identity") for topic in retained_topics(client)}


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_too_many_of_a_user_is_refused_and_nobody_else_notices(client: redis.Redis) -> None:
    client.config_set("holdmq.max-sessions-per-user", 2)
    sessions = [opened(client, name, ALICE) for name in "ab"]
    before = counted(client, "user_sessions_refused")
    with unchanged(client):
        error = refusal(client, "c", ALICE)
    assert error == (
        "QUOTA the session '{c}' cannot be opened; 'user:alice' already has 2, and holdmq.max-sessions-per-user is 2"
    )
    assert counted(client, "user_sessions_refused") == before + 1
    assert refusal(client, "c", BOB) is None
    assert sessions[0].open("b2", clean=True).present == 0  # the operator's own program: nobody's session
    assert refusal(client, "b", ALICE, "CLEAN") is None
    assert refusal(client, "d", ALICE) is None  # a is nobody's now
    sessions[1].drop()
    assert refusal(client, "e", ALICE) is None
    assert refusal(client, "f", ALICE) is not None


def test_anyone_who_takes_a_session_from_another_user_needs_room_for_it(client: redis.Redis) -> None:
    client.config_set("holdmq.max-sessions-per-user", 1)
    opened(client, "of-alice", ALICE)
    opened(client, "of-nobody", ANONYMOUS)
    for options in [("ADOPT", ANONYMOUS), ("REPLACE",)]:
        with unchanged(client):
            error = refusal(client, "of-nobody", ALICE, *options)
        assert error is not None
        assert error.startswith("QUOTA")
    assert refusal(client, "second", ANONYMOUS) is not None
    assert refusal(client, "of-nobody", BOB, "ADOPT", ANONYMOUS) is None
    assert refusal(client, "second", ANONYMOUS) is None
    assert refusal(client, "third", BOB) is not None


def test_a_bound_of_a_users_own_precedes_the_setting(client: redis.Redis) -> None:
    client.config_set("holdmq.max-sessions-per-user", 1)
    for name in "abc":
        assert refusal(client, name, ALICE, "USERSESSIONS", 3) is None
    assert refusal(client, "d", ALICE, "USERSESSIONS", 3) == (
        "QUOTA the session '{d}' cannot be opened; 'user:alice' already has 3, and its own maximum is 3"
    )
    assert refusal(client, "d", ALICE, "USERSESSIONS", 0) is None
    assert refusal(client, "a", ALICE) is None  # what is there stays


def test_sessions_that_end_make_room(client: redis.Redis) -> None:
    client.config_set("holdmq.max-sessions-per-user", 2)
    for name in "ab":
        opened(client, name, ALICE)
    expire_now(client, "{a}_session")
    assert refusal(client, "c", ALICE) is None
    client.delete("{b}_session")
    assert refusal(client, "d", ALICE) is None
    client.hset("{d}_session", "identity", BOB)
    assert refusal(client, "e", ALICE) is None
    assert refusal(client, "f", ALICE) is not None
    client.flushall()
    assert refusal(client, "f", ALICE) is None


@pytest.mark.parametrize("word", ["USERSESSIONS", "USERBYTES", "USERRETAINED"])
@pytest.mark.parametrize("number", ["-1", "x", str(2**40 + 1), "9" * 30])
def test_an_invalid_bound_is_refused(client: redis.Redis, word: str, number: str) -> None:
    with unchanged(client):
        error = refusal(client, "a", ALICE, word, number)
    assert error is not None
    assert error.startswith(f"{word} is")


@pytest.mark.parametrize(
    "name", ["max-sessions-per-user", "max-retained-per-user", "max-queue-bytes-per-user", "max-queue-bytes"]
)
def test_the_settings_have_bounds(client: redis.Redis, name: str) -> None:
    for number in (-1, 2**40 + 1):
        assert error_of(client, "CONFIG", "SET", f"holdmq.{name}", number) is not None
    client.config_set(f"holdmq.{name}", 2**40)
    opened(client, "a", ALICE, "USERBYTES", 2**40, "USERSESSIONS", 2**40, "USERRETAINED", 2**40).add(KB)


# ---- retained messages -----------------------------------------------------------------------------------------------


def test_a_retained_message_too_many_of_a_user_is_refused_under_whatever_client_id(client: redis.Redis) -> None:
    client.config_set("holdmq.max-retained-per-user", 2)
    for name in "abc":
        opened(client, name, ALICE)
    opened(client, "bobs", BOB)
    assert retain(client, "t/1", "a") is None
    assert retain(client, "t/2", "b") is None
    before = counted(client, "user_retained_refused")
    with unchanged(client):
        assert retain(client, "t/3", "c") == (
            "QUOTA no retained message of 't/3' can be stored; 'user:alice' already has 2, and "
            "holdmq.max-retained-per-user is 2"
        )
        record = core.Record(topic=b"t/3", payload=b"1", qos=1, retain=True, publisher=b"c").encode()
        assert "QUOTA" in str(error_of(client, "TOPIC.MPUBLISH", "RECORD", record))
    assert counted(client, "user_retained_refused") == before + 2
    assert retain(client, "t/1", "c", "replaced") is None
    assert retain(client, "t/3", "bobs") is None
    assert retain(client, "t/4", "nobody") is None
    assert retain(client, "t/2", "c", "") is None
    assert retain(client, "t/5", "c") is None
    assert holders(client) == {b"t/1": ALICE.encode(), b"t/3": BOB.encode(), b"t/4": None, b"t/5": ALICE.encode()}


def test_a_replaced_message_counts_for_the_user_who_replaced_it_if_there_is_room(client: redis.Redis) -> None:
    client.config_set("holdmq.max-retained-per-user", 2)
    opened(client, "a", ALICE)
    opened(client, "b", BOB)
    for topic, publisher in [("1", "a"), ("2", "a"), ("3", "b")]:
        assert retain(client, topic, publisher) is None
    assert retain(client, "1", "b") is None
    assert holders(client) == {b"1": BOB.encode(), b"2": ALICE.encode(), b"3": BOB.encode()}
    assert retain(client, "2", "b") is None  # Bob has no room: it goes on to count for Alice
    assert holders(client)[b"2"] == ALICE.encode()
    assert client.hget("{2}_retained", "publisher") == b"b"
    assert retain(client, "4", "a") is None
    assert retain(client, "5", "a") is not None  # two users who take turns have no more than each has
    assert retain(client, "4", "nobody") is None
    assert holders(client)[b"4"] is None


def test_a_will_counts_for_the_user_of_its_session(client: redis.Redis) -> None:
    opened(client, "other", ALICE)
    for number in range(4):
        session = Session(client, f"{{d{number}}}")
        will = Will(topic=f"will/{number}", retain=True)
        bounds = ["IDENTITY", ALICE, "USERRETAINED", 2]
        reply = client.execute_command("SESSION.OPEN", session.key, "OWNER", "b", *bounds, *will.words)
        session.close(reply[0], will=True)
    assert holders(client) == {b"will/0": ALICE.encode(), b"will/1": ALICE.encode()}
    client.config_set("holdmq.max-retained-per-user", 2)
    assert retain(client, "t", "other") is not None


def test_retained_messages_that_expire_or_are_deleted_make_room(client: redis.Redis) -> None:
    opened(client, "a", ALICE, "USERRETAINED", 1)
    assert retain(client, "1", "a") is None
    expire_now(client, "{1}_retained")
    assert retain(client, "2", "a") is None
    client.delete("{2}_retained")
    assert retain(client, "3", "a") is None
    client.hset("{3}_retained", "identity", BOB)
    assert retain(client, "4", "a") is None
    assert retain(client, "5", "a") is not None


# ---- bytes in queues -------------------------------------------------------------------------------------------------


def test_a_user_without_room_loses_its_own_messages_and_no_other_user_does(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 5000 + SPARE)
    hoarder, second = opened(client, "a1", ALICE), opened(client, "a2", ALICE)
    other = opened(client, "b", BOB)
    before = counted(client, "user_bytes_full")
    for number in range(5):
        hoarder.add(f"{number}{KB[1:]}")
    assert counted(client, "user_bytes_full") == before
    added = second.add(KB)
    assert (added.packet_ids, added.trimmed) == ([0], 1)  # it has nothing that could go for it
    assert hoarder.add(f"5{KB[1:]}").trimmed == 1
    assert [value[:1] for value in hoarder.fetch().values] == [b"1", b"2", b"3", b"4", b"5"]
    assert other.add(KB).trimmed == 0
    assert counted(client, "user_bytes_full") == before + 2
    hoarder.ack(2, 3)
    assert second.add(KB).trimmed == 0
    assert second.add(KB).trimmed == 0
    assert second.add(KB).trimmed == 1


@pytest.mark.parametrize(("policy", "code"), [("refuse", "QUOTA"), ("wait", "QUEUEFULL")])
def test_a_publish_for_several_sessions_of_a_user_without_room_for_all_is_stored_for_none(
    client: redis.Redis, policy: str, code: str
) -> None:
    sessions = [opened(client, name, ALICE, "OVERFLOW", policy, "USERBYTES", 2000 + SPARE) for name in "abc"]
    for session in sessions:
        session.subscribe(("t", 1))
    with unchanged(client):
        error = error_of(client, "TOPIC.PUBLISH", "t", KB, "QOS", 1)
    assert error is not None
    assert error.startswith(code)
    sessions[2].unsubscribe("t")
    assert publish(client, "t", KB) == 2
    assert str(error_of(client, "SESSION.ADD", "{c}", "MESSAGES", KB)).startswith(code)


def test_drop_newest_drops_what_a_user_has_no_room_for(client: redis.Redis) -> None:
    session = opened(client, "a", ALICE, "OVERFLOW", "drop-newest", "USERBYTES", 2500)
    assert session.add("1" + KB, "2" + KB, "3" + KB).trimmed == 1
    assert [value[:1] for value in session.fetch().values] == [b"1", b"2"]


def test_a_bound_below_the_present_use_removes_nothing(client: redis.Redis) -> None:
    session, other = opened(client, "a", ALICE), opened(client, "other", ALICE)
    session.add(*[KB] * 10)
    retained = [f"t/{number}" for number in range(5)]
    for topic in retained:
        assert retain(client, topic, "a") is None
    client.config_set("holdmq.max-queue-bytes-per-user", 3000)
    client.config_set("holdmq.max-retained-per-user", 1)
    client.config_set("holdmq.max-sessions-per-user", 1)
    assert other.add(KB).trimmed in (0, 1)  # until the queue of the other has been counted
    eventually(lambda: other.add(KB).trimmed == 1, what="a count of the first queue")
    assert session.add(KB).trimmed == 1  # one goes for one
    assert len(session.fetch_all()) == 10
    assert len(retained_topics(client)) == 5
    assert refusal(client, "a", ALICE) is None
    session.ack(*[entry.packet_id for entry in session.fetch_all()])
    other.ack(*[entry.packet_id for entry in other.fetch_all()])
    assert session.add(KB, KB).trimmed == 0


def test_messages_of_qos_0_push_nothing_out_for_a_user_without_room(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 2000 + SPARE)
    session = opened(client, "a", ALICE)
    session.add("1" + KB)
    session.add("2" + KB[SPARE:])
    session.subscribe(("t", 1))
    publish(client, "t", KB, qos=0)
    assert [value[:1] for value in session.fetch().values] == [b"1", b"2"]


def test_an_import_has_the_room_that_its_user_has(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 3000)
    opened(client, "a", ALICE).add(KB)
    target = opened(client, "b", ALICE)
    messages = [part for number in range(4) for part in (0, 0, 0, 0, f"{number}{KB[1:]}")]
    reply = client.execute_command("SESSION.IMPORT", target.key, "MESSAGES", 4, *messages)
    assert (reply[0], reply[4]) == (2, 2)
    assert [value[:1] for value in target.fetch().values] == [b"2", b"3"]


def test_messages_that_expire_make_room(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 3000)
    full, other = opened(client, "a", ALICE), opened(client, "b", ALICE)
    full.add(*[KB] * 3)
    assert other.add(KB).trimmed == 1
    full.expire_message(1)
    eventually(lambda: other.add(KB).trimmed == 0, what="room")
    assert full.add(KB).trimmed == 1
    client.delete(full.name("messages"))
    eventually(lambda: other.add(KB).trimmed == 0, what="room of a queue that somebody deleted")


def test_an_expiring_session_gives_its_users_bytes_back(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 3000)
    opened(client, "a", ALICE).add(*[KB] * 3)
    expire_now(client, "{a}_session")
    assert opened(client, "b", ALICE).add(*[KB] * 3).trimmed == 0


def test_a_session_takes_its_bytes_along_to_another_user(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes-per-user", 3000)
    opened(client, "a", ANONYMOUS).add(*[KB] * 3)
    second = opened(client, "b", ANONYMOUS)
    assert second.add(KB).trimmed == 1
    opened(client, "a", ALICE, "ADOPT", ANONYMOUS)
    assert second.add(KB).trimmed == 0
    assert opened(client, "c", ALICE).add(KB).trimmed == 1


def test_a_group_passes_over_members_whose_user_has_no_room(client: redis.Redis) -> None:
    full = opened(client, "a", ALICE, "USERBYTES", 2000)
    other = opened(client, "b", BOB)
    full.add(KB, KB[SPARE:])
    for member in (full, other):
        member.subscribe(("$share/g/t", 1))
    for _ in range(6):
        assert publish(client, "t", KB) == 1
    assert (full.info()["messages"], other.info()["messages"]) == (2, 6)
    other.unsubscribe("$share/g/t")
    assert publish(client, "t", KB) == 1  # it waits for the group
    assert full.info()["messages"] == 2
    full.ack(1, 2)
    eventually(lambda: full.info()["messages"] >= 1, what="what waited")


# ---- the bytes of a database -----------------------------------------------------------------------------------------


def fill(session: Session) -> int:
    """Add to it until something is dropped; how many messages it has then."""
    while session.add(KB).trimmed == 0:
        pass
    return int(session.info()["messages"])


def test_the_user_with_most_meets_the_bound_of_the_database_first(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes", 60_000)
    greedy = opened(client, "a1", ALICE)
    assert fill(greedy) == 30  # one queue: as much as is left free
    before = counted(client, "queue_bytes_full")
    assert before >= 1
    assert fill(opened(client, "a2", ALICE)) == 10  # one user: twice as much as is left free
    assert fill(opened(client, "a3", ALICE)) == 0
    assert fill(opened(client, "b", BOB)) == 10
    assert fill(Session(client, "{c}")) > 10  # of nobody, and never opened: only its own bounds
    assert fill(opened(client, "d", None)) == 5
    assert counted(client, "queue_bytes_full") > before
    assert len(greedy.fetch_all()) == 30


def test_the_queues_of_groups_count_for_the_database(client: redis.Redis) -> None:
    client.config_set("holdmq.max-queue-bytes", 60_000)
    member = opened(client, "a", ALICE)
    member.subscribe(("$share/g/t", 1))
    member.close(member.info()["epoch"])
    for _ in range(100):
        publish(client, "t", KB)
    waiting = Session(client, "{$share/g/t}")
    assert 25 <= waiting.info()["messages"] <= 29
    assert 25 <= fill(opened(client, "b", BOB)) // 1 + 10 <= 30
    member.unsubscribe("$share/g/t")
    assert fill(opened(client, "c", "user:carol")) > 10


# ---- through everything that happens to keys -------------------------------------------------------------------------


def test_usage_survives_restart_and_promotion(
    fresh_server: MakeServer,
) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary)
    with primary.client() as first, replica.client() as second:
        for one in (first, second):
            one.config_set("holdmq.max-sessions-per-user", 2)
            one.config_set("holdmq.max-retained-per-user", 1)
            one.config_set("holdmq.max-queue-bytes-per-user", 3000)
        opened(first, "a", ALICE).add(*[KB] * 3)
        opened(first, "b", ALICE)
        assert retain(first, "t", "a") is None
        wait_for_replica(first, second)
        second.replicaof("NO", "ONE")
        assert_indexes_hold(second)
        assert_full(second)
    primary.restart()
    with primary.client() as again:
        again.config_set("holdmq.max-sessions-per-user", 2)
        again.config_set("holdmq.max-retained-per-user", 1)
        again.config_set("holdmq.max-queue-bytes-per-user", 3000)
        assert_full(again)


def assert_full(client: redis.Redis) -> None:
    """Alice has all that she may have, as in the test above."""
    assert refusal(client, "c", ALICE) is not None
    assert refusal(client, "b", ALICE) is None
    assert retain(client, "u", "b") is not None
    assert retain(client, "t", "b") is None
    eventually(lambda: Session(client, "{b}").add(KB).trimmed == 1, what="the count of the first queue")
    assert Session(client, "{a}").add(KB).trimmed == 1
    assert_indexes_hold(client)


@pytest.mark.parametrize("seed", range(3))
def test_usage_is_what_a_recount_finds_after_anything(client: redis.Redis, server: Server, seed: int) -> None:
    """The index, and the sums of bytes, are compared with a recount from the keys: by HOLDMQ.CHECK."""
    rng = random.Random(seed)
    settings = ["holdmq.max-queue-bytes-per-user", "holdmq.max-queue-bytes", "holdmq.max-retained-per-user"]
    client.config_set("holdmq.max-queue-bytes-per-user", 20_000)
    client.config_set("holdmq.max-retained-per-user", 4)
    with server.client(db=1) as elsewhere:
        for step in range(250):
            happen(rng, client, settings)
            if step % 60 == 59:
                client.swapdb(0, 1)
            if step % 10 == 0:
                assert client.execute_command("HOLDMQ.CHECK") == []
                assert elsewhere.execute_command("HOLDMQ.CHECK") == []
        elsewhere.flushdb()
    client.flushall()
    client.config_set("holdmq.max-queue-bytes", 0)
    assert fill(opened(client, "last", ALICE, "USERBYTES", 3000)) == 3


def happen(rng: random.Random, client: redis.Redis, settings: list[str]) -> None:
    """One of what clients, programs, time and operators do."""
    name = rng.choice("abcdef")
    session = Session(client, f"{{{name}}}")

    def open_it() -> None:
        options = rng.choice([(), ("REPLACE",), ("CLEAN",), ("ADOPT", ANONYMOUS), ("USERBYTES", 5000)])
        refusal(client, name, rng.choice([ALICE, BOB, ANONYMOUS]), *options)

    def add() -> None:
        session.add(*["x" * rng.randrange(1, 2000) for _ in range(rng.randrange(1, 5))])

    def subscribe() -> None:
        error_of(client, "SESSION.SUBSCRIBE", session.key, rng.choice(["t/#", "$share/g/t/#", "u"]), 1)

    def publish_it() -> None:
        retained = rng.choice([[], ["RETAIN"]])
        payload = "y" * rng.randrange(3000)
        error_of(client, "TOPIC.PUBLISH", f"t/{rng.randrange(8)}", payload, "QOS", 1, *retained, "FROM", name)

    def acknowledge() -> None:
        entries = session.fetch(count=5).entries
        if entries:
            session.ack(*[entry.packet_id for entry in entries])

    def delete() -> None:
        client.delete(rng.choice(client.keys("*") or ["none"]))

    def expire() -> None:
        pattern = rng.choice([b"*", session.name("messages_*")])
        names = client.keys(pattern) or ["none"]
        client.pexpire(rng.choice(names), 1)

    def configure() -> None:
        client.config_set(rng.choice(settings), rng.choice([0, 3000, 20_000]))

    often: list[Callable[[], object]] = [open_it, add, publish_it, expire]
    rng.choice([*often, *often, subscribe, acknowledge, session.drop, delete, configure])()
