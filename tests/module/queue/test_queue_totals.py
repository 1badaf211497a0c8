"""What INFO tells of the queues of all sessions and shares: how many messages wait, the longest queue, who is away.

The server counts in passes, a second apart, and tells the last whole one: each claim waits until it says so.
"""

from collections.abc import Callable
from typing import NamedTuple

import redis

from tests.module.sessions_support import Session, expire_now, publish, wait_for_replica
from tests.support import Server, eventually

MakeServer = Callable[..., Server]
MANY = 1000  # sessions: some hundred are looked at in a step


class Told(NamedTuple):
    """What INFO says."""

    messages: int | None
    longest: int | None
    away: int


def told(client: redis.Redis) -> Told:
    """Now; None for what the server has not counted yet."""
    info = client.info("holdmq")
    longest = info.get("holdmq_longest_queue_messages")
    return Told(info.get("holdmq_queued_messages"), longest, info["holdmq_sessions_away"])


def comes_to_tell(client: redis.Redis, messages: int, longest: int, away: int) -> None:
    """Wait until the server says so."""
    want = Told(messages, longest, away)

    def says() -> bool:
        assert told(client) == want
        return True

    eventually(says, what=f"{want}")


def test_what_is_added_and_acknowledged_is_counted(client: redis.Redis) -> None:
    one, two = Session(client, "{one}"), Session(client, "{two}")
    epoch = one.open(expiry=60).epoch
    two.open(expiry=60)
    one.add("a", "b", "c")
    two.subscribe(("t", 1))
    for _ in range(5):
        publish(client, "t", "m", qos=1)
    comes_to_tell(client, 8, 5, 0)
    two.ack(1, 2, 3)
    one.close(epoch)
    comes_to_tell(client, 5, 3, 1)
    one.open(expiry=60)
    comes_to_tell(client, 5, 3, 0)


def test_a_session_that_only_subscribes_is_counted_once_it_was_never_opened(client: redis.Redis) -> None:
    Session(client, "{opened}").open(expiry=60)
    for name in ("{opened}", "{subscribed}"):
        Session(client, name).subscribe(("t", 1))
    publish(client, "t", "m", qos=1)
    comes_to_tell(client, 2, 1, 0)


def test_the_queues_of_shares_whose_members_are_away_are_counted(client: redis.Redis) -> None:
    member = Session(client, "{member}")
    epoch = member.open(expiry=60).epoch
    filters = [f"$share/g{number}/t/{number % 2}" for number in range(250)]  # more than a step looks at
    member.subscribe(*((topic_filter, 1) for topic_filter in filters))
    member.close(epoch)
    for topic in ("t/0", "t/0", "t/1"):
        publish(client, topic, "m", qos=1)
    comes_to_tell(client, 125 * 2 + 125, 2, 1)
    publish(client, "t/1", "m", qos=1)
    publish(client, "t/1", "m", qos=1)
    comes_to_tell(client, 125 * 2 + 125 * 3, 3, 1)
    member.drop()
    comes_to_tell(client, 0, 0, 0)


def test_queues_that_end_without_a_command_of_the_module_are_counted_no_more(client: redis.Redis) -> None:
    sessions = [Session(client, f"{{{name}}}") for name in ("dropped", "deleted", "expired", "renamed", "stays")]
    for number, session in enumerate(sessions, 1):
        session.close(session.open(expiry=60).epoch)
        session.add(*["m"] * number)
    dropped, deleted, expired, renamed, _ = sessions
    comes_to_tell(client, 15, 5, 5)
    dropped.drop()
    client.unlink(*deleted.keys())
    expire_now(client, expired.name("messages"))
    client.rename(renamed.name("messages"), "elsewhere")
    comes_to_tell(client, 5, 5, 3)
    client.set(expired.name("messages"), "no queue, but longer than five bytes")
    client.rename("elsewhere", renamed.name("messages"))
    comes_to_tell(client, 9, 5, 3)
    client.flushall()
    comes_to_tell(client, 0, 0, 0)


def test_many_sessions_in_two_databases_are_counted_over_many_steps(server: Server, client: redis.Redis) -> None:
    for database in (client, server.client(db=3)):
        with database.pipeline(transaction=False) as pipe:
            for number in range(MANY):
                pipe.execute_command("SESSION.OPEN", f"{{s{number}}}", "OWNER", "o")
                pipe.execute_command("SESSION.ADD", f"{{s{number}}}", *["m"] * (1 + number % 3))
                pipe.execute_command("SESSION.SUBSCRIBE", f"{{s{number}}}", f"t/{number}", 1)
            pipe.execute()
    comes_to_tell(client, 2 * sum(1 + number % 3 for number in range(MANY)), 3, 0)


def test_a_restart_and_a_replica_count_the_same(fresh_server: MakeServer) -> None:
    primary = fresh_server(aof=True, config=["appendfsync always"])
    client = primary.client()
    session = Session(client)
    session.close(session.open(expiry=600).epoch)
    session.add("a", "b")
    primary.restart()
    client = primary.client()
    comes_to_tell(client, 2, 2, 1)
    replica = fresh_server(replica_of=primary)
    Session(client).add("c")
    wait_for_replica(client, replica.client())
    comes_to_tell(replica.client(), 3, 3, 1)
    replica.client().replicaof("NO", "ONE")
    Session(replica.client()).ack(1)
    comes_to_tell(replica.client(), 2, 2, 1)


def test_the_figures_say_how_old_they_are(client: redis.Redis) -> None:
    def young() -> bool:
        return bool(client.info("holdmq").get("holdmq_queued_messages_age_seconds", 99) <= 1)

    eventually(young)
    with client.pipeline() as pipe:  # nothing is counted while the server stands still
        pipe.execute_command("DEBUG", "SLEEP", "2.5")
        pipe.info("holdmq")
        assert pipe.execute()[1]["holdmq_queued_messages_age_seconds"] >= 2
    eventually(young)


def test_counting_is_neither_a_hit_nor_a_miss(server: Server, client: redis.Redis) -> None:
    session, empty = Session(client), Session(client, "{e}")
    session.open(expiry=60)
    empty.open(expiry=60)
    session.add("a")
    before = hits_and_misses(client)
    comes_to_tell(client, 1, 1, 0)
    if server.kind.version >= (7, 2):
        assert hits_and_misses(client) == before
    else:  # the server knows no other reading
        eventually(lambda: hits_and_misses(client) > before)


def hits_and_misses(client: redis.Redis) -> tuple[int, int]:
    """Of keys, since the start."""
    stats = client.info("stats")
    return stats["keyspace_hits"], stats["keyspace_misses"]
