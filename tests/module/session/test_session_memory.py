"""What sessions leave in memory: what an ended one had is cleared away, and no command leaks however often it runs."""

from collections.abc import Callable

import redis

from tests.module.sessions_support import (
    Session,
    assert_indexes_hold,
    error_of,
    expire_now,
    names,
    publish,
    retained_topics,
    snapshot,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]


def end(session: Session) -> None:
    """Let an opened session reach its end now."""
    for suffix in ("session", "subscriptions", "received", "producers", "messages"):
        if session.client.exists(session.name(suffix)):
            expire_now(session.client, session.name(suffix))


# --- Sweeping ---------------------------------------------------------------------------------------------------------


def test_the_messages_of_an_ended_session_are_cleared_away_however_many(client: redis.Redis) -> None:
    session = Session(client)
    session.open()
    session.add(*(str(number) for number in range(30_000)), limit=65535)
    session.ack(*range(100, 5000, 3))
    end(session)
    eventually(lambda: client.dbsize() == 0, what="a database without keys")


def test_clearing_away_leaves_other_sessions_and_databases_alone(server: Server) -> None:
    client, other_db = server.client(), server.client(db=1)
    alike = [Session(client, "{cc}"), Session(client, "p{c}"), Session(other_db, "{c}")]
    for session in [Session(client), *alike]:
        session.open(expiry=100)
        session.add(*(str(number) for number in range(50)))
    client.set("{c}_messages_", "mine")
    client.set("{c}_messages_x", "mine")
    end(Session(client))
    eventually(lambda: not client.exists("{c}_last_packet_id"), what="the end of the sweep")
    assert Session(client).keys() == {b"{c}_messages_", b"{c}_messages_x"}
    for session in alike:
        assert len(session.fetch(count=100).entries) == 50


def test_a_session_that_is_opened_again_while_the_old_one_is_cleared_away_keeps_what_is_its_own(
    client: redis.Redis,
) -> None:
    session = Session(client)
    session.open()
    session.add(*(str(number) for number in range(20_000)), limit=65535)
    end(session)
    session.open(expiry=100)
    session.subscribe(("t", 1))
    first = session.add("new", limit=65535)
    publish(client, "t", "also new")
    second = session.fetch().packet_ids[-1]
    eventually(lambda: len(names(client, "{c}_messages_*")) == 2, what="two messages")
    page = session.fetch()
    assert page.packet_ids == [*first.packet_ids, second]
    assert page.values[0] == b"new"
    assert session.add("newer", limit=65535).packet_ids[0] not in page.packet_ids


def test_a_flush_or_swap_in_the_middle_of_clearing_away_does_no_harm(server: Server, client: redis.Redis) -> None:
    other = server.client(db=1)
    Session(other).open(expiry=100)
    Session(other).add(*(str(number) for number in range(100)))
    for change in (("FLUSHALL",), ("SWAPDB", 0, 1)):
        session = Session(client)
        session.open()
        session.add(*(str(number) for number in range(20_000)), limit=65535)
        end(session)
        client.execute_command(*change)
        for some in (client, other):
            assert_indexes_hold(some)
            for queue in names(some, "*_messages"):
                key = Session(some, queue.removesuffix(b"_messages"))
                assert len(key.fetch_all()) == some.zcard(queue)


def test_what_is_cleared_away_is_cleared_on_replicas_too(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client, follower = primary.client(), replica.client()
    session = Session(client)
    session.open()
    session.add(*(str(number) for number in range(5000)))
    end(session)
    eventually(lambda: client.dbsize() == 0, what="a primary without keys")
    wait_for_replica(client, follower)
    eventually(lambda: follower.dbsize() == 0, what="a replica without keys")


def test_a_replica_clears_nothing_away_by_itself(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, follower = primary.client(), replica.client()
    session = Session(client)
    session.open()
    session.add(*(str(number) for number in range(3000)))
    end(session)
    eventually(lambda: client.dbsize() == 0, what="a primary without keys")
    wait_for_replica(client, follower)
    eventually(lambda: snapshot(follower) == {}, what="a replica without keys")
    assert_indexes_hold(follower)


# --- Leaks ------------------------------------------------------------------------------------------------------------


def one_of_each(client: redis.Redis, number: int) -> None:
    """Every command with its options, its errors, and the ways around it; leaves nothing."""
    session, big = Session(client), b"x" * 200
    epoch = session.open("o", expiry=60).epoch
    session.subscribe(("t/#", 1), ("t/+", 2), ("u/#", 0), epoch=epoch)
    session.subscribe(("t/#", 2))
    publish(client, "t/1", big, qos=2, publisher="c", properties=big)
    publish(client, "t/2", big, qos=1, retain=True, ttl=100)
    publish(client, f"u/{number}", big, qos=1, retain=True)
    session.subscribe(("+/+", 1))
    session.add(big, big, big, ttl=50, limit=4)
    session.add_expiring((50, big), ("", b'{"packetType":"PUBLISH","payload":"eA==","packetId":0}'))
    session.add_once("p", number + 1, big, big)
    session.add_once("p", number + 1, big, big)
    session.fetch(window=3, epoch=epoch)
    session.fetch(in_flight=True)
    session.fetch(after=2, count=2, size=100)
    session.release(*session.fetch(count=2).packet_ids)
    session.ack_next(2, *session.fetch(count=2).packet_ids)
    session.receive(7)
    session.complete(7)
    session.sent(session.info()["last_serial"])
    session.subscriptions()
    retained_topics(client)
    client.execute_command("HOLDMQ.CHECK")
    for command in (
        ("SESSION.ADD", "{c}", "TTL", 0, big),
        ("SESSION.ADD", "no key", big),
        ("SESSION.FETCH", "{c}", "EPOCH", 1),
        ("SESSION.SUBSCRIBE", "{c}", "a", 1, "a/#/b", 1),
        ("SESSION.ACK", "{c}", 1, "x"),
        ("SESSION.ACK", "{c}", *range(1, 100), 70000),
        ("TOPIC.PUBLISH", "a/+", big),
        ("TOPIC.PUBLISH", "a", big, "QOS", 5),
    ):
        assert error_of(client, *command) is not None
    client.hset("{h}_subscriptions", mapping={"t/#": "1", "bad/#/x": "1"})
    publish(client, "t/9", big, qos=1)
    client.rename("{h}_subscriptions", "{i}_subscriptions")
    publish(client, "t/9", big, qos=1)
    publish(client, "t/2", "", retain=True)
    publish(client, f"u/{number}", "", retain=True)
    session.unsubscribe("t/+", "nothing")
    session.open("p", clean=True)
    session.close(session.open("q", expiry=9).epoch, 5)
    session.drop()
    client.flushdb()


def used(client: redis.Redis) -> int:
    """The memory that the server's data takes, bytes."""
    info = client.info("memory")
    return int(info["used_memory"]) - int(info["mem_clients_normal"])


def growth(client: redis.Redis, rounds: int) -> int:
    """By how many bytes memory has grown after so many rounds, once what is freed in the background is freed."""
    before = used(client)
    for number in range(rounds):
        one_of_each(client, number)
    seen = [used(client) - before]

    def settled() -> bool:
        seen.append(used(client) - before)
        return seen[-1] == seen[-2]

    eventually(settled, what="memory that no longer changes")
    return seen[-1]


def test_no_command_leaks_memory(fresh_server: MakeServer) -> None:
    server = fresh_server()
    client = server.client()
    client.config_set("slowlog-log-slower-than", -1)  # on a busy machine its entries would be taken for a leak
    for number in range(100):
        one_of_each(client, number)
    # A leak shows each time; what the server itself allocates once (a table that grows) does not.
    assert min(growth(client, 250) for _ in range(3)) < 250 * 16
