"""The bounds of a queue, and what happens to a message beyond them: holdmq.session-bytes, holdmq.session-overflow."""

import random
import time
from collections.abc import Callable, Sequence

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Inbox,
    Session,
    Will,
    assert_indexes_hold,
    error_of,
    payloads,
    publish,
    retained_topics,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

KB = 1000
MOST_SEARCHED = 2000  # references at once


def opened(
    client: redis.Redis,
    name: str = "c",
    *options: str | int,
    filters: tuple[str, ...] = ("t/#",),
) -> Session:
    """A session that was opened with these options."""
    session = Session(client, f"{{{name}}}")
    client.execute_command("SESSION.OPEN", session.key, "OWNER", "bridge", "EXPIRY", 600, *options)
    if filters:
        session.subscribe(*[(topic_filter, 2) for topic_filter in filters])
    return session


def got(session: Session) -> list[bytes]:
    """The payloads in its queue."""
    return payloads(session.fetch_all())


def bytes_of(session: Session) -> int:
    """What its messages have, counted key by key."""
    client = session.client
    names: list[bytes] = client.execute_command("ZRANGE", session.name("messages"), 0, -1)
    return sum(len(client.get(name) or b"") for name in names)


def assert_counts(session: Session) -> None:
    """SESSION.INFO tells the bytes that the messages have."""
    assert session.info()["bytes"] == bytes_of(session)


# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_a_queue_takes_no_more_than_its_bytes(client: redis.Redis) -> None:
    client.config_set("holdmq.session-bytes", 100 * KB)
    session = opened(client)
    for i in range(200):
        publish(client, "t/x", f"{i:03}" + "x" * 997)
        assert i % 20 != 0 or bytes_of(session) <= 100 * KB
    numbers = [int(payload[:3]) for payload in got(session)]
    assert numbers == list(range(200 - len(numbers), 200))
    assert len(numbers) >= 95
    assert session.info()["dropped"] == 200 - len(numbers)


def test_few_large_messages_are_bounded_as_well(client: redis.Redis) -> None:
    client.config_set("holdmq.session-bytes", 100 * KB)
    session = opened(client)
    for _ in range(10):
        publish(client, "t/x", "x" * 30 * KB)
    assert len(got(session)) == 3
    assert_counts(session)


def test_a_message_larger_than_the_queue_is_not_stored_and_drops_no_other(client: redis.Redis) -> None:
    client.config_set("holdmq.session-bytes", 100 * KB)
    session = opened(client)
    publish(client, "t/x", "small")
    publish(client, "t/x", "x" * 101 * KB)
    assert got(session) == [b"small"]
    assert session.info()["dropped"] == 1


def test_a_session_has_a_bound_of_its_own(client: redis.Redis) -> None:
    own, other = opened(client, "own", "MAXBYTES", 10 * KB), opened(client, "other")
    for _ in range(20):
        publish(client, "t/x", "x" * KB)
    assert (len(got(own)), len(got(other))) == (9, 20)
    opened(client, "own", filters=())
    publish(client, "t/x", "x" * KB)
    assert len(got(own)) == 10, "the next OPEN says it anew"


def test_no_bound_is_a_bound_of_zero(client: redis.Redis) -> None:
    client.config_set("holdmq.session-bytes", 0)
    session = opened(client)
    for _ in range(5):
        publish(client, "t/x", "x" * 1000 * KB)
    assert len(got(session)) == 5


def test_messages_in_flight_stay_when_the_bytes_are_used_up(client: redis.Redis) -> None:
    session = opened(client, "c", "MAXBYTES", 10 * KB)
    epoch = session.info()["epoch"]
    for i in range(9):
        publish(client, "t/x", f"{i}" + "x" * 999)
    session.sent(session.info()["last_serial"], epoch=epoch)
    publish(client, "t/x", "new" + "x" * 2000)
    assert [payload[:1] for payload in got(session)] == [b"%d" % i for i in range(9)]
    assert session.info()["dropped"] == 1


def test_expired_messages_leave_the_count(client: redis.Redis) -> None:
    session = opened(client, "c", "MAXBYTES", 100 * KB)
    for i in range(90):
        publish(client, "t/x", f"{i:02}" + "x" * 998)
    for packet_id in range(1, 41):
        session.expire_message(packet_id)
    eventually(lambda: publish(client, "t/x", "y" * KB) == 1 and len(got(session)) >= 55, what="room for more")
    for _ in range(30):
        publish(client, "t/x", "y" * KB)
    kept = got(session)
    assert [payload[:2] for payload in kept[:50]] == [b"%d" % i for i in range(40, 90)]
    assert session.info()["dropped"] == 0
    assert_counts(session)


def test_the_count_survives_a_restart_a_reload_and_a_promotion(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    session = opened(client, "c", "MAXBYTES", 100 * KB)
    for i in range(150):
        publish(client, "t/x", f"{i:03}" + "x" * 997)
    before = got(session)
    client.execute_command("DEBUG", "RELOAD")
    server.kill()
    server.start()
    client = server.client()
    session = Session(client, "{c}")
    assert got(session) == before
    publish(client, "t/x", "150" + "x" * 997)
    assert len(got(session)) == len(before)
    replica = fresh_server(replica_of=server)
    wait_for_replica(client, replica.client())
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    promoted = Session(replica.client(), "{c}")
    publish(replica.client(), "t/x", "151" + "x" * 997)
    assert len(got(promoted)) == len(before)
    assert_counts(promoted)
    assert_indexes_hold(replica.client())


def test_the_count_equals_a_recount_whatever_happens(client: redis.Redis) -> None:
    random_ = random.Random(16)
    session = opened(client, "c", "MAXBYTES", 60 * KB)
    epoch = session.info()["epoch"]
    for _ in range(150):
        ids = session.fetch(count=1000).packet_ids
        match random_.randrange(8):
            case 0 if ids:
                session.ack(*random_.sample(ids, random_.randint(1, len(ids))), epoch=epoch)
            case 1 if ids:
                session.release(random_.choice(ids), epoch=epoch)
            case 2 if ids:
                session.expire_message(random_.choice(ids))
            case 3 if ids:
                client.delete(session.message(random_.choice(ids)))
            case 4:
                session.add(*["y" * random_.randint(0, 3 * KB) for _ in range(random_.randint(1, 30))])
            case _:
                publish(client, "t/x", "x" * random_.choice([10, KB, 10 * KB]), ttl=random_.choice([None, 1000]))
        assert bytes_of(session) <= 60 * KB
        assert_indexes_hold(client)
        assert_counts(session)


def searched(client: redis.Redis) -> int:
    """References that were looked at so far."""
    return int(client.info("holdmq")["holdmq_queue_references_searched"])


def test_a_queue_that_fills_up_is_looked_through_once_when_it_is_short(client: redis.Redis) -> None:
    session = opened(client)
    before = searched(client)
    for _ in range(5):
        session.add(*["x"] * 1000)
    session.add(*["x"] * 1000, limit=4000)
    assert searched(client) - before <= 1000
    assert client.zcard(session.name("messages")) == 4000
    assert_counts(session)


def test_many_long_queues_that_may_hold_expired_messages_are_searched_a_part_at_a_time(client: redis.Redis) -> None:
    sessions = [opened(client, f"c{i}") for i in range(8)]
    for session in sessions:
        for _ in range(4):
            session.add(*["x"] * 1000)
    client.config_set("holdmq.session-limit", 4000)
    for session in sessions:
        session.expire_message(3000)
    looks = 0
    while any(client.zscore(session.name("messages"), session.message(3000)) for session in sessions):
        before = searched(client)
        publish(client, "t/x", "y")
        assert searched(client) - before <= 3 * MOST_SEARCHED  # a server that does not run meanwhile may search more
        looks += 1
        assert looks < 400, "an expired reference is not found"
    for session in sessions:
        assert_counts(session)


def test_publishes_of_one_command_stay_within_the_bytes(client: redis.Redis) -> None:
    session = opened(client, "c", "MAXBYTES", 10 * KB)
    records = [core.Record(topic=b"t/x", payload=b"%02d" % i + b"x" * 998, qos=1).encode() for i in range(50)]
    client.execute_command("TOPIC.MPUBLISH", "RECORD", *records)
    assert [payload[:2] for payload in got(session)] == [b"%d" % i for i in range(41, 50)]


# --- Policies ---------------------------------------------------------------------------------------------------------


def fill(client: redis.Redis, topic: str = "t/x", count: int = 3) -> None:
    """Publish numbers, as many as fill a queue of that limit."""
    client.config_set("holdmq.session-limit", count)
    for i in range(count):
        publish(client, topic, str(i))


@pytest.mark.parametrize("how", ["setting", "session"])
def test_drop_newest_keeps_what_is_queued(client: redis.Redis, how: str) -> None:
    if how == "setting":
        client.config_set("holdmq.session-overflow", "drop-newest")
    options: tuple[str, ...] = ("OVERFLOW", "drop-newest") if how == "session" else ()
    session = opened(client, "c", *options)
    fill(client)
    assert publish(client, "t/x", "3") == 0
    assert got(session) == [b"0", b"1", b"2"]
    assert session.info()["dropped"] == 1
    assert session.info()["overflow"] == b"drop-newest"


def test_drop_newest_of_a_batch_keeps_its_first(client: redis.Redis) -> None:
    session = opened(client, "c", "OVERFLOW", "drop-newest", filters=())
    added = session.add("0", "1", "2", limit=2)
    assert [packet_id > 0 for packet_id in added.packet_ids] == [True, True, False]
    assert added.trimmed == 1


REFUSING = pytest.mark.parametrize(("policy", "code"), [("refuse", "QUOTA"), ("wait", "QUEUEFULL")])
EITHER = pytest.mark.parametrize("policy", ["refuse", "wait"])


@REFUSING
@pytest.mark.parametrize("by", ["messages", "bytes"])
def test_a_full_queue_that_refuses_has_nothing_stored_anywhere(
    client: redis.Redis, policy: str, code: str, by: str
) -> None:
    for name in ("a", "z"):
        opened(client, name)
    bounds: list[str | int] = ["MAXBYTES", 2 * KB] if by == "bytes" else []
    full = opened(client, "m", "OVERFLOW", policy, *bounds)
    if by == "messages":
        fill(client)
    else:
        publish(client, "t/x", "x" * 1900)
    with unchanged(client):
        error = error_of(client, "TOPIC.PUBLISH", "t/x", "x" * 200, "QOS", 1, "RETAIN")
        assert error is not None
        assert error.startswith(code)
        assert "{m}" in error
        error = error_of(client, "TOPIC.MPUBLISH", "RECORD", record("x" * 200), record("y" * 200))
        assert error is not None
        assert error.startswith(code)
    assert retained_topics(client) == []
    full.ack(1, epoch=full.info()["epoch"])
    assert publish(client, "t/x", "x" * 200) == 3
    assert full.info()["dropped"] == 0


def record(payload: str) -> bytes:
    """A message to t/x with QoS 1."""
    return core.Record(topic=b"t/x", payload=payload.encode(), qos=1).encode()


def test_refusing_comes_before_waiting(client: redis.Redis) -> None:
    opened(client, "a", "OVERFLOW", "wait")
    opened(client, "b", "OVERFLOW", "refuse")
    fill(client)
    error = error_of(client, "TOPIC.PUBLISH", "t/x", "3", "QOS", 1)
    assert error is not None
    assert error.startswith("QUOTA")


def test_publishes_after_a_refused_one_wait_for_its_retry(client: redis.Redis) -> None:
    """Whatever the time until they come: a busy machine delays commands that are under way."""
    full = opened(client, "m", "OVERFLOW", "wait")
    fill(client)
    epoch = opened(client, "p", filters=()).info()["epoch"]
    sent = ("QOS", "1", "FROM", "p", "EPOCH", str(epoch))
    refused = error_of(client, "TOPIC.PUBLISH", "t/x", "first", *sent)
    assert refused is not None
    assert refused.startswith("QUEUEFULL")
    full.ack(1, 2, epoch=full.info()["epoch"])
    begun = time.monotonic()
    while time.monotonic() < begun + 0.3:  # many times the pause between two commands
        later = error_of(client, "TOPIC.PUBLISH", "t/x", "second", *sent)
        assert later is not None
        assert later.startswith("an earlier publish of the client was temporarily refused")
        time.sleep(0.05)
    assert client.execute_command("TOPIC.PUBLISH", "t/x", "first", *sent, "RETRY") == 1
    assert client.execute_command("TOPIC.PUBLISH", "t/x", "second", *sent) == 1
    assert got(full)[-2:] == [b"first", b"second"]


@EITHER
def test_only_publishes_that_would_be_stored_in_the_full_queue_are_refused(
    client: redis.Redis, server: Server, policy: str
) -> None:
    full = opened(client, "m", "OVERFLOW", policy, filters=("t/#",))
    other = opened(client, "z", filters=("u/#",))
    fill(client)
    assert publish(client, "u/x", "passes") == 1
    with Inbox(server, full.key) as inbox:
        assert publish(client, "t/x", "of QoS 0", qos=0) == 1
        assert len(inbox.take()) == 1
    assert got(other) == [b"passes"]
    assert got(full) == [b"0", b"1", b"2"]


@REFUSING
def test_a_command_of_many_publishes_has_those_refused_that_find_no_room(
    client: redis.Redis, policy: str, code: str
) -> None:
    full = opened(client, "m", "OVERFLOW", policy)
    other = opened(client, "z", filters=("u/#",))
    client.config_set("holdmq.session-limit", 3)
    topics = ["t/x", "u/x", "t/x", "t/x", "t/x", "u/x"]
    words = [("TOPIC.PUBLISH", topic, str(i), "QOS", "1") for i, topic in enumerate(topics)]
    replies = client.execute_command("TOPIC.PIPELINE", pipeline_of(words))
    assert [code in str(reply) for reply in replies] == [False, False, False, False, True, False]
    assert got(full) == [b"0", b"2", b"3"]
    assert got(other) == [b"1", b"5"]


def pipeline_of(commands: Sequence[tuple[str, ...]]) -> bytes:
    """The argument of TOPIC.PIPELINE."""
    return b"".join(
        b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        for words in commands
    )


@REFUSING
def test_a_batch_that_has_no_room_is_refused_as_a_whole(client: redis.Redis, policy: str, code: str) -> None:
    session = opened(client, "c", "OVERFLOW", policy, filters=())
    session.add("0", limit=3)
    with unchanged(client):
        error = error_of(client, "SESSION.ADD", session.key, "LIMIT", 3, "MESSAGES", "1", "2", "3")
        assert error is not None
        assert error.startswith(code)
    assert session.add("1", "2", limit=3).trimmed == 0


@EITHER
def test_expired_messages_make_room_in_a_queue_that_refuses(client: redis.Redis, policy: str) -> None:
    session = opened(client, "c", "OVERFLOW", policy)
    fill(client)
    session.expire_message(1)
    assert publish(client, "t/x", "3") == 1
    assert got(session) == [b"1", b"2", b"3"]


@EITHER
def test_a_will_that_finds_no_room_is_dropped(client: redis.Redis, policy: str) -> None:
    full = opened(client, "m", "OVERFLOW", policy)
    Session(client, "{w}").open("bridge", expiry=0, will=Will(topic="t/x", payload="gone"))
    fill(client)
    Session(client, "{w}").close(Session(client, "{w}").info()["epoch"], will=True)
    assert got(full) == [b"0", b"1", b"2"]
    assert full.info()["dropped"] == 1


@REFUSING
def test_a_group_whose_queue_is_full_refuses_by_the_setting(client: redis.Redis, policy: str, code: str) -> None:
    client.config_set("holdmq.session-overflow", policy)
    member = opened(client, "m", filters=("$share/g/t/#",))
    member.close(member.info()["epoch"])
    fill(client)
    error = error_of(client, "TOPIC.PUBLISH", "t/x", "3", "QOS", 1)
    assert error is not None
    assert error.startswith(code)
    assert "$share/g/t/#" in error


def test_dropped_messages_are_counted_and_the_session_is_named_once(fresh_server: MakeServer) -> None:
    server = fresh_server()
    client = server.client()
    session = opened(client, "named-once")
    before = client.info("holdmq")["holdmq_session_trimmed"]
    fill(client)
    for i in range(100):
        publish(client, "t/x", str(i))
    assert session.info()["dropped"] == 100
    assert client.info("holdmq")["holdmq_session_trimmed"] == before + 100
    assert server.log_text().count("queue of the session '{named-once}' is full") == 1


def test_the_number_of_dropped_messages_continues_with_the_session(client: redis.Redis) -> None:
    session = opened(client, "c")
    fill(client)
    for i in range(10):
        publish(client, "t/x", str(i))
    opened(client, "c")
    assert session.info()["dropped"] == 10
    client.execute_command("SESSION.OPEN", session.key, "OWNER", "bridge", "EXPIRY", 600, "CLEAN")
    assert session.info()["dropped"] == 0


def test_an_invalid_policy_is_refused_with_the_valid_ones(client: redis.Redis) -> None:
    with unchanged(client):
        error = error_of(client, "SESSION.OPEN", "{c}", "OWNER", "b", "OVERFLOW", "drop-all")
        assert error == "OVERFLOW is 'drop-all'; expected drop-oldest, drop-newest, refuse or wait"
        error = error_of(client, "CONFIG", "SET", "holdmq.session-overflow", "drop-all")
        assert error is not None
        assert "expected drop-oldest, drop-newest, refuse or wait" in error
        assert client.config_get("holdmq.session-overflow") == {"holdmq.session-overflow": "drop-oldest"}
