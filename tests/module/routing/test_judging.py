"""Publishes to many sessions of which some may refuse: all queues are judged before the answer, and no step is long."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import redis

from tests.module.routing.test_fan_out import (
    DELIVERED_S,
    deep_filters,
    keys_of,
    pipeline_of,
    processor_ns,
    queued,
    settle,
    subscribe,
    subscribe_deep,
)
from tests.module.sessions_support import Session, assert_indexes_hold, subscribe_in_vain
from tests.support import Server, eventually
from tests.support.ratio import least_ratio

MakeServer = Callable[..., Server]

MANY = 2000  # more than are judged in the step of a publish
LEVELS = 10
DEEP = "/".join(map(str, range(LEVELS)))
JUDGED = "still checking whether the queues"  # in the answer of a publish that is to be sent again
PAUSE_S = 0.03  # of a publisher that was refused: longer than it is held back


def is_judged_later(reply: object) -> bool:
    is_held_back = isinstance(reply, redis.exceptions.TryAgainError)
    return is_held_back or (str(reply).startswith("QUEUEFULL ") and JUDGED in str(reply))


def is_temporary(reply: object) -> bool:
    return str(reply).startswith("QUEUEFULL ") or isinstance(reply, redis.exceptions.TryAgainError)


def answer(client: redis.Redis, *words: str | bytes | int) -> object:
    """The reply, or the error as a value."""
    pipe = client.pipeline(transaction=False)
    pipe.execute_command(*words)
    (reply,) = pipe.execute(raise_on_error=False)
    return reply


def publish(client: redis.Redis, topic: str, payload: str | bytes = "m", *options: str | int) -> object:
    """Sends a publish of QoS 1 until its queues are judged; the last reply."""
    words = ("TOPIC.PUBLISH", topic, payload, "QOS", 1, *options)
    last: list[object] = []

    def send() -> bool:
        last[:] = [answer(client, *words)]
        if is_judged_later(last[0]):
            time.sleep(PAUSE_S)  # as a bridge does: nothing is taken from a client that does not pause
        return not is_judged_later(last[0])

    eventually(send, DELIVERED_S)
    return last[0]


def is_stored(client: redis.Redis, topic: str, payload: str) -> bool:
    return isinstance(publish(client, topic, payload, "FROM", "p"), int)


@pytest.fixture
def limits(client: redis.Redis) -> Iterator[Callable[[str, str | int], None]]:
    """Sets a setting until the test ends."""
    before: dict[str, str] = {}

    def change(name: str, value: str | int) -> None:
        (now,) = client.config_get(name).values()
        before.setdefault(name, str(now))
        client.config_set(name, value)

    yield change
    for name, value in before.items():
        client.config_set(name, value)


def lengths(client: redis.Redis, keys: Sequence[str]) -> list[int]:
    """The number of messages in each queue."""
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.zcard(f"{key}_messages")
    return list(pipe.execute())


def open_with(client: redis.Redis, key: str, policy: str, *filters: str) -> Session:
    client.execute_command("SESSION.OPEN", key, "OWNER", "b", "EXPIRY", 600, "OVERFLOW", policy)
    session = Session(client, key)
    for name in filters or ("a/#",):
        session.subscribe((name, 1))
    return session


@pytest.fixture
def many(client: redis.Redis) -> Iterator[list[str]]:
    keys = keys_of(MANY)
    subscribe(client, keys, ("a/#", 1))
    yield keys
    settle(client)
    assert_indexes_hold(client)


# ---- steps ----


def us_of_publish(client: redis.Redis, topic: str) -> float:
    """The step of a publish alone, in microseconds, whatever it answers."""
    took = []
    for _ in range(10):
        client.config_resetstat()
        answer(client, "TOPIC.PUBLISH", topic, "m", "QOS", 1)
        stats = {name.lower(): value for name, value in client.info("commandstats").items()}
        took.append(float(stats["cmdstat_topic.publish"]["usec_per_call"]))
        settle(client)
    return min(took)


@pytest.mark.parametrize("policy", ["refuse", "wait"])
def test_however_many_sessions_may_refuse_the_step_of_a_publish_is_short(
    client: redis.Redis, limits: Callable[[str, str], None], policy: str
) -> None:
    limits("holdmq.session-overflow", policy)
    subscribe(client, keys_of(1000), ("a/#", 1))
    few = us_of_publish(client, "a/b")
    subscribe(client, keys_of(20_000), ("a/#", 1))
    assert us_of_publish(client, "a/b") < 4 * few


@pytest.mark.parametrize("policy", ["refuse", "wait"])
def test_however_many_filters_match_beside_one_that_refuses_the_step_of_a_publish_is_short(
    client: redis.Redis, policy: str
) -> None:
    open_with(client, "{picky}", policy, "elsewhere")
    subscribe_deep(client, keys_of(30))
    few = us_of_publish(client, DEEP)
    subscribe_deep(client, [f"{{more{number}}}" for number in range(270)])
    assert us_of_publish(client, DEEP) < 4 * few


def test_however_many_levels_are_searched_in_vain_the_step_of_a_publish_is_short(client: redis.Redis) -> None:
    chosen = random.Random(1)

    open_with(client, "{picky}", "refuse", "elsewhere")
    topic = "/".join("a" * 127)
    subscribe_in_vain(client, chosen, 400)
    few = us_of_publish(client, topic)
    subscribe_in_vain(client, chosen, 7600)
    assert us_of_publish(client, topic) < 4 * few


def test_however_many_publishes_are_pending_the_step_of_a_publish_that_may_be_refused_is_short(
    server: Server,
) -> None:
    """What is on its way to each queue is counted for it."""
    client = server.client(socket_timeout=DELIVERED_S)  # of a transaction, or of a FLUSHALL with all that is pending
    open_with(client, "{picky}", "refuse", "elsewhere", "b/#")
    keys = keys_of(300)
    subscribe(client, keys, ("a/#", 0), ("b/#", 1))

    def took(count: int) -> int:
        """Of a transaction: nothing is delivered in it."""
        pipe = client.pipeline(transaction=True)
        for number in range(count):
            pipe.execute_command("TOPIC.PUBLISH", f"a/{number}", "m")
        pipe.execute_command("CONFIG", "RESETSTAT")
        pipe.execute_command("TOPIC.PUBLISH", "b/1", "m", "QOS", 1)
        pipe.info("commandstats")
        *_, stats = pipe.execute(raise_on_error=False)
        client.flushall()
        open_with(client, "{picky}", "refuse", "elsewhere", "b/#")
        subscribe(client, keys, ("a/#", 0), ("b/#", 1))
        return int({name.lower(): value for name, value in stats.items()}["cmdstat_topic.publish"]["usec"])

    assert least_ratio(lambda: took(9000), lambda: took(200), below=4) < 4


def test_others_are_served_while_queues_are_checked(
    client: redis.Redis, server: Server, limits: Callable[[str, str], None]
) -> None:
    limits("holdmq.session-overflow", "refuse")
    keys = keys_of(20_000)
    subscribe(client, keys, ("a/#", 1))
    other = server.client()
    longest = 0.0
    assert is_judged_later(answer(client, "TOPIC.PUBLISH", "a/b", "m", "QOS", 1))
    for _ in range(40):
        begun = time.monotonic()
        other.ping()
        longest = max(longest, time.monotonic() - begun)
    assert publish(client, "a/b") != 0
    settle(client)
    assert longest < 0.1
    assert [client.zcard(f"{key}_messages") for key in (keys[0], keys[-1])] == [1, 1]


def processor_ns_of_pipeline(client: redis.Redis, publishers: int) -> int:
    """Processor time for publishes of so many clients, each to many sessions, as one command."""
    words = [(f"a/{number}", "m", "QOS", "1", "FROM", f"p{number}") for number in range(publishers)]
    took = []
    for _ in range(5):
        before_ns = processor_ns(client)
        client.execute_command("TOPIC.PIPELINE", pipeline_of(*words))
        took.append(processor_ns(client) - before_ns)
        settle(client)
        time.sleep(PAUSE_S)
    return min(took)


@pytest.mark.parametrize("policy", ["drop-oldest", "refuse"])
def test_a_pipeline_of_many_clients_that_publish_to_many_sessions_ends_early(
    client: redis.Redis, limits: Callable[[str, str], None], policy: str
) -> None:
    limits("holdmq.session-overflow", policy)
    subscribe(client, keys_of(850), ("a/#", 1))
    few = processor_ns_of_pipeline(client, 20)
    assert processor_ns_of_pipeline(client, 200) < 4 * few
    subscribe(client, ["{few}"], ("narrow", 1))
    wide = [(f"a/{n}", "m", "QOS", "1", "FROM", f"p{n}") for n in range(200)]
    quiet = ("narrow", "m", "QOS", "1", "FROM", "quiet")
    *replies, served = client.execute_command("TOPIC.PIPELINE", pipeline_of(*wide, quiet))
    assert served == 1
    taken = [reply for reply in replies if reply == 850]
    assert 0 < len(taken) < 200
    assert all(is_temporary(reply) for reply in replies if reply != 850)


# ---- answers ----


@pytest.mark.parametrize("policy", ["refuse", "wait"])
def test_a_publish_that_one_of_many_refuses_reaches_nobody_and_one_that_is_taken_reaches_all(
    client: redis.Redis, many: list[str], limits: Callable[[str, int], None], policy: str
) -> None:
    open_with(client, "{zzz}", policy, "a/#", "own")
    limits("holdmq.session-limit", 2)
    for _ in range(2):
        assert answer(client, "TOPIC.PUBLISH", "own", "before", "QOS", 1) == 1
    refused = publish(client, "a/b", "first", "FROM", "p")
    waits = "QUEUEFULL the queue of the session '{zzz}' is full"
    assert str(refused).startswith("QUOTA " if policy == "refuse" else waits)
    settle(client)
    assert queued(client, [*many[:3], many[-1]]) == [[]] * 4
    limits("holdmq.session-limit", 3)
    time.sleep(PAUSE_S)
    assert isinstance(publish(client, "a/b", "second", "FROM", "p"), int)
    settle(client)
    assert lengths(client, many) == [1] * MANY
    assert queued(client, many[::100]) == [[b"second"]] * 20
    assert [entry[-6:] for entry in queued(client, ["{zzz}"])[0]] == [b"before", b"before", b"second"]


def test_of_many_that_may_refuse_each_is_checked(
    client: redis.Redis, many: list[str], limits: Callable[[str, str | int], None]
) -> None:
    limits("holdmq.session-overflow", "refuse")
    limits("holdmq.session-limit", 1)
    for full in (many[0], many[MANY // 2], many[-1]):
        client.execute_command("SESSION.SUBSCRIBE", full, "own", 1)
        assert answer(client, "TOPIC.PUBLISH", "own", "m", "QOS", 1) == 1
        assert str(publish(client, "a/b")).startswith("QUOTA ")
        assert queued(client, [full]) == [[b"m"]]
        Session(client, full).ack(1)
        client.execute_command("SESSION.UNSUBSCRIBE", full, "own")
    assert isinstance(publish(client, "a/b"), int)
    settle(client)
    assert lengths(client, many) == [1] * MANY


@pytest.mark.parametrize("policy", ["refuse", "wait"])
@pytest.mark.parametrize("bound", [("holdmq.session-limit", 10), ("holdmq.session-bytes", 1100)])
def test_whatever_is_taken_meanwhile_leaves_room_for_what_was_checked(
    client: redis.Redis,
    many: list[str],
    limits: Callable[[str, str | int], None],
    policy: str,
    bound: tuple[str, int],
) -> None:
    """Publishes to many and to the one session, of several publishers, in any order: all that are taken arrive."""
    open_with(client, "{picky}", policy, "a/#", "one/#")
    limits(*bound)
    chosen = random.Random(7)
    left = [("a", number) for number in range(8)] + [("one", number) for number in range(8)]
    taken: list[bytes] = []
    tries = 0
    while left and tries < 120:
        tries += 1
        kind, number = chosen.choice(left)
        payload = f"{kind}{number:089}"
        reply = answer(client, "TOPIC.PUBLISH", f"{kind}/{number}", payload, "QOS", 1, "FROM", f"{kind}{number}")
        if isinstance(reply, int):
            taken.append(payload.encode())
            left.remove((kind, number))
        else:
            assert is_temporary(reply) or str(reply).startswith("QUOTA ")
            time.sleep(0.005)
    settle(client)
    assert 5 < len(taken) <= 10
    assert sorted(queued(client, ["{picky}"])[0]) == sorted(taken)
    assert all(reply == [] or set(reply) <= set(taken) for reply in queued(client, many[::50]))


def test_bytes_of_a_user_are_checked_for_all_of_its_queues_together(
    client: redis.Redis, limits: Callable[[str, str | int], None]
) -> None:
    keys = keys_of(2000)
    pipe = client.pipeline(transaction=False)
    for key in keys:
        words = ("SESSION.OPEN", key, "OWNER", "b", "EXPIRY", 600, "IDENTITY", "user:u", "OVERFLOW", "refuse")
        pipe.execute_command(*words)
        pipe.execute_command("SESSION.SUBSCRIBE", key, "a/#", 1, "+/b", 1)
    pipe.execute()
    limits("holdmq.max-queue-bytes-per-user", 1900 * 1000)
    assert str(publish(client, "a/b", "x" * 980)).startswith("QUOTA ")
    assert queued(client, keys[:1]) == [[]]
    limits("holdmq.max-queue-bytes-per-user", 2100 * 1000)
    assert isinstance(publish(client, "a/b", "x" * 980), int)
    settle(client)
    assert lengths(client, keys) == [1] * len(keys)


def test_a_session_with_many_filters_is_checked_by_its_largest_quality(
    client: redis.Redis, limits: Callable[[str, str | int], None]
) -> None:
    names = deep_filters(1000)
    pipe = client.pipeline(transaction=False)
    for key in keys_of(30):
        pipe.execute_command("SESSION.SUBSCRIBE", key, *(word for name in names for word in (name, 0)))
    pipe.execute()
    open_with(client, "{picky}", "refuse", "own")
    for name in names:
        client.execute_command("SESSION.SUBSCRIBE", "{picky}", name, 1 if name == names[500] else 0)
    limits("holdmq.session-limit", 1)
    assert answer(client, "TOPIC.PUBLISH", "own", "m", "QOS", 1) == 1
    assert str(publish(client, DEEP)).startswith("QUOTA ")
    Session(client, "{picky}").ack(1)
    assert isinstance(publish(client, DEEP, "then"), int)
    settle(client)
    assert queued(client, ["{picky}"]) == [[b"then"]]


def test_a_full_queue_among_very_many_filters_is_found_before_anything_is_stored(
    client: redis.Redis, limits: Callable[[str, str | int], None]
) -> None:
    crowd = keys_of(60)
    subscribe_deep(client, crowd)
    limits("holdmq.session-limit", 1)
    limits("holdmq.session-overflow", "refuse")
    client.execute_command("SESSION.SUBSCRIBE", crowd[-1], "full", 1)
    assert answer(client, "TOPIC.PUBLISH", "full", "m", "QOS", 1) == 1
    assert str(publish(client, DEEP)).startswith("QUOTA ")
    settle(client)
    assert queued(client, crowd) == [[]] * 59 + [[b"m"]]
    limits("holdmq.session-limit", 2)
    assert isinstance(publish(client, DEEP), int)
    settle(client)
    assert queued(client, crowd) == [[b"m"]] * 59 + [[b"m", b"m"]]


def test_a_group_that_refuses_is_checked_with_many_sessions(
    client: redis.Redis, many: list[str], limits: Callable[[str, str | int], None]
) -> None:
    limits("holdmq.session-overflow", "refuse")
    Session(client, "{member}").subscribe(("$share/g/a/#", 1))
    limits("holdmq.session-limit", 1)
    assert isinstance(publish(client, "a/b", "first"), int)
    settle(client)
    pipe = client.pipeline(transaction=False)
    for key in many:
        pipe.execute_command("SESSION.ACK", key, 1)
    pipe.execute()
    assert str(publish(client, "a/b", "second")).startswith("QUOTA ")
    settle(client)
    assert lengths(client, many) == [0] * MANY


def test_a_client_holds_back_what_it_published_after_a_publish_that_is_checked(
    client: redis.Redis, many: list[str]
) -> None:
    open_with(client, "{picky}", "refuse")
    words = [(f"a/{number}", str(number), "QOS", "1", "FROM", "p") for number in range(5)]
    replies = client.execute_command("TOPIC.PIPELINE", pipeline_of(*words))
    assert is_judged_later(replies[0])
    assert all(is_temporary(reply) for reply in replies[1:])
    for number in range(5):
        time.sleep(PAUSE_S)
        eventually(partial(is_stored, client, f"a/{number}", str(number)), DELIVERED_S)
    settle(client)
    assert queued(client, [many[0], "{picky}"]) == [[b"0", b"1", b"2", b"3", b"4"]] * 2


# ---- ends ----


def test_of_what_was_checked_nothing_stays_after_its_database_was_emptied(client: redis.Redis, many: list[str]) -> None:
    open_with(client, "{picky}", "refuse")
    for _ in range(3):
        assert is_judged_later(answer(client, "TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "FROM", "p"))
        client.flushall()
        subscribe(client, many, ("a/#", 1))
        open_with(client, "{picky}", "refuse")
    time.sleep(PAUSE_S)
    assert isinstance(publish(client, "a/b", "m", "FROM", "p"), int)
    settle(client)
    assert queued(client, [many[0], "{picky}"]) == [[b"m"]] * 2


def test_who_publishes_something_else_gives_its_room_back(
    client: redis.Redis, many: list[str], limits: Callable[[str, str | int], None]
) -> None:
    open_with(client, "{picky}", "wait", "a/#", "one")
    limits("holdmq.session-limit", 1)
    assert is_judged_later(answer(client, "TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "FROM", "p"))
    assert str(answer(client, "TOPIC.PUBLISH", "one", "m", "QOS", 1, "FROM", "q")).startswith("QUEUEFULL ")
    time.sleep(PAUSE_S)
    assert answer(client, "TOPIC.PUBLISH", "nobody", "m", "QOS", 1, "FROM", "p") == 0
    assert answer(client, "TOPIC.PUBLISH", "one", "m", "QOS", 1, "FROM", "q") == 1
    settle(client)
    assert queued(client, ["{picky}"]) == [[b"m"]]
    del many


def test_many_who_never_send_again_keep_nobody_out(client: redis.Redis, many: list[str]) -> None:
    """Each user has few that are judged."""
    open_with(client, "{picky}", "wait")
    for number in range(300):
        key = f"{{p{number}}}"
        client.execute_command("SESSION.OPEN", key, "OWNER", "b", "EXPIRY", 600, "IDENTITY", "user:greedy")
        assert is_temporary(answer(client, "TOPIC.PUBLISH", f"a/{number}", "m", "QOS", 1, "FROM", f"p{number}"))
    client.execute_command("SESSION.OPEN", "{modest}", "OWNER", "b", "EXPIRY", 600, "IDENTITY", "user:modest")
    assert isinstance(publish(client, "a/b", "m", "FROM", "modest"), int)
    settle(client)
    assert queued(client, many[:2]) == [[b"m"]] * 2


def test_a_server_that_restarts_judges_again(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"])
    client = server.client()
    keys: Sequence[str] = keys_of(MANY)
    subscribe(client, keys, ("a/#", 1))
    open_with(client, "{picky}", "refuse")
    assert is_judged_later(answer(client, "TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "FROM", "p"))
    server.kill()
    server.restart()
    client = server.client()
    assert is_judged_later(answer(client, "TOPIC.PUBLISH", "a/b", "m", "QOS", 1, "FROM", "p"))
    time.sleep(PAUSE_S)
    assert isinstance(publish(client, "a/b", "m", "FROM", "p"), int)
    settle(client)
    assert queued(client, [keys[0], "{picky}"]) == [[b"m"]] * 2
    assert_indexes_hold(client)
