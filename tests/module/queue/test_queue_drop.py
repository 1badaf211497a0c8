"""A long queue is dropped in one step, its messages some at a time: no step of the server is long."""

from collections.abc import Callable

import redis

from tests.module.sessions_support import Session, names, publish, wait_for_replica
from tests.support import Server, eventually

MESSAGES = 10_000
MOST_AT_ONCE = 1000


def long_one(client: redis.Redis, name: str = "a") -> Session:
    """A session with a full queue."""
    session = Session(client, f"{{{name}}}")
    session.open(expiry=600)
    for _ in range(MESSAGES // 1000):
        session.add(*["x" * 100] * 1000)
    return session


def strings(client: redis.Redis, name: str = "{a}") -> int:
    """How many messages of it there are."""
    return len(names(client, f"{name}_messages_*"))


def test_a_full_queue_goes_at_once_and_its_messages_in_steps(client: redis.Redis) -> None:
    session = long_one(client)
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SESSION.DROP", "{a}")
    pipe.execute_command("DBSIZE")
    pipe.execute_command("SESSION.FETCH", "{a}")
    dropped, left, page = pipe.execute()
    assert (dropped, left, page[0]) == (MESSAGES, MESSAGES, [])
    eventually(lambda: session.keys() == set(), what="the end of all messages")


def test_several_short_queues_in_one_step_are_as_one_long(client: redis.Redis) -> None:
    sessions = [Session(client, f"{{s{number}}}") for number in range(50)]
    for session in sessions:
        session.open(expiry=600)
        session.add(*["x"] * 100)
    pipe = client.pipeline(transaction=True)
    for session in sessions:
        pipe.execute_command("SESSION.DROP", session.key)
    pipe.execute_command("DBSIZE")
    *_, left = pipe.execute()
    assert left >= 50 * 100 - MOST_AT_ONCE
    eventually(lambda: client.dbsize() == 0, what="the end of all messages")


def test_the_queue_of_a_group_goes_so_too(client: redis.Redis) -> None:
    member = Session(client, "{m}")
    epoch = member.open(expiry=600).epoch
    member.subscribe(("$share/g/t", 1))
    member.close(epoch)
    for _ in range(2000):
        publish(client, "t", "waits")
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SESSION.DROP", "{m}")
    pipe.execute_command("EXISTS", "{$share/g/t}_messages")
    pipe.execute_command("EXISTS", "{$share/g/t}_messages_1")
    _, references, message = pipe.execute()
    assert (references, message) == (0, 1)
    eventually(lambda: client.dbsize() == 0, what="the end of all messages")


def test_a_session_that_is_opened_meanwhile_keeps_its_own(client: redis.Redis) -> None:
    session = long_one(client)
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SESSION.OPEN", "{a}", "OWNER", "b", "CLEAN", "EXPIRY", 600)
    pipe.execute_command("SESSION.ADD", "{a}", "MESSAGES", *[str(number) for number in range(500)])
    pipe.execute()
    session.ack(1, 2, 3)
    eventually(lambda: strings(client) == 497, what="the end of the former messages")
    assert [entry.value for entry in session.fetch_all()] == [str(number).encode() for number in range(3, 500)]


def test_a_key_that_is_not_a_message_stays(client: redis.Redis) -> None:
    session = long_one(client)
    client.delete(session.message(77))
    client.rpush(session.message(77), "somebody's")
    session.drop()
    eventually(lambda: session.keys() == {session.message(77)}, what="the end of all messages")


def test_a_replica_has_the_same(fresh_server: Callable[..., Server]) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary)
    with primary.client() as client, replica.client() as other:
        long_one(client).drop()
        eventually(lambda: client.dbsize() == 0, what="the end of all messages")
        wait_for_replica(client, other)
        assert other.dbsize() == 0
        primary.restart()
        assert client.dbsize() == 0
