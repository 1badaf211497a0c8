"""SESSION.OWNER: a process that stops beating loses all of its sessions, and none of their messages."""

import time
from collections.abc import Callable

import pytest
import redis

from tests.module.sessions_support import (
    Inbox,
    Session,
    Will,
    assert_indexes_hold,
    error_of,
    now_ms,
    payloads,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

KEY = "holdmq_owner:bridge-1"
ATTEMPTS = 5  # to see a loss on its way: it is over in a moment, and the test may not run just then


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def beat(client: redis.Redis, lease: int, name: str = "bridge-1") -> None:
    """SESSION.OWNER."""
    assert client.execute_command("SESSION.OWNER", name, "LEASE", lease) == b"OK"


def connected(client: redis.Redis, key: str = "{c}") -> int:
    """Whether the session's connection stands."""
    return int(Session(client, key).info()["connected"])


def lost(client: redis.Redis) -> int:
    """How many owners were lost since the server started."""
    return int(client.info("holdmq")["holdmq_owners_lost"])


def test_a_heartbeat_is_a_plain_string_that_expires(session: Session, client: redis.Redis) -> None:
    assert session.info()["exists"] == 0
    before = now_ms(client)
    beat(client, 30)
    assert client.get(KEY) == b"30"
    assert before + 30_000 <= client.execute_command("PEXPIRETIME", KEY) <= now_ms(client) + 30_000
    beat(client, 60)
    assert client.get(KEY) == b"60"
    assert 50 < client.ttl(KEY) <= 60
    beat(client, 0)
    assert not client.exists(KEY)


def test_the_sessions_of_an_owner_that_beats_do_not_end(session: Session, client: redis.Redis) -> None:
    beat(client, 60)
    epoch = session.open("bridge-1", expiry=1, lease=1, will=Will()).epoch
    session.add("m")
    session.subscribe(("t", 1))
    assert session.info()["ttl_ms"] == -1
    assert {client.pttl(session.name(name)) for name in ("session", "subscriptions", "messages")} == {-1}
    assert session.touch(epoch) == b"OK"
    assert session.info()["ttl_ms"] == -1
    session.close(epoch, 50)
    assert 40_000 < session.info()["ttl_ms"] <= 50_000


def test_when_the_heartbeat_stops_the_sessions_are_closed_as_lost(
    server: Server, session: Session, client: redis.Redis
) -> None:
    before = lost(client)
    heir = Session(client, "{heir}")
    heir.subscribe(("will", 1))
    with Inbox(server) as inbox:
        beat(client, 3)
        epoch = session.open("bridge-1", expiry=60, will=Will()).epoch
        session.add("m")
        other = Session(client, "{other}")
        other.open("bridge-2", expiry=60)
        inbox.take()
        eventually(lambda: connected(client) == 0, what="the loss of the owner")
        notice = inbox.take_one()
    info = session.info()
    assert notice.serial == info["epoch"] > epoch
    assert 50_000 < info["ttl_ms"] <= 60_000
    assert session.fetch().states == [1]
    assert payloads(heir.fetch().entries) == [b"gone"]
    assert (error_of(client, "SESSION.ACK", "{c}", "EPOCH", epoch, 1) or "").startswith("FENCED")
    assert connected(client, "{other}") == 1
    assert lost(client) == before + 1
    beat(client, 0, "bridge-2")  # it never beat
    assert connected(client, "{other}") == 1


def test_the_delay_of_a_will_counts_from_the_loss(session: Session, client: redis.Redis) -> None:
    heir = Session(client, "{heir}")
    heir.subscribe(("will", 1))
    beat(client, 3)
    session.open("bridge-1", expiry=60, will=Will(delay=3))
    eventually(lambda: connected(client) == 0, what="the loss of the owner")
    assert heir.fetch().entries == []
    eventually(lambda: payloads(heir.fetch().entries) == [b"gone"], what="the will")


@pytest.mark.parametrize("how", ["LEASE 0", "DEL", "UNLINK", "RENAME"])
def test_an_owner_ends_at_once_when_its_key_goes(session: Session, client: redis.Redis, how: str) -> None:
    beat(client, 1000)
    session.open("bridge-1", expiry=60)
    if how == "LEASE 0":
        beat(client, 0)
    elif how == "RENAME":
        client.rename(KEY, "elsewhere")
    else:
        client.execute_command(how, KEY)
    eventually(lambda: connected(client) == 0, what="the loss of the owner")


def test_an_owner_that_beats_in_time_loses_nothing(session: Session, client: redis.Redis) -> None:
    beat(client, 2)
    session.open("bridge-1", expiry=60)
    end = now_ms(client) + 3500
    while now_ms(client) < end:
        beat(client, 2)
        time.sleep(0.1)
    assert connected(client) == 1
    eventually(lambda: connected(client) == 0, what="the loss of the owner")


def test_thousands_of_sessions_are_closed_while_others_are_served(client: redis.Redis) -> None:
    most = 0
    for _ in range(ATTEMPTS):
        client.flushall()
        beat(client, 1000)
        pipe = client.pipeline(transaction=False)
        for number in range(3000):
            pipe.execute_command("SESSION.OPEN", f"{{c{number}}}", "OWNER", "bridge-1", "EXPIRY", number % 2 * 60)
            pipe.execute_command("SESSION.ADD", f"{{c{number}}}", "m")
        pipe.execute()
        sizes = [client.dbsize()]  # half of the sessions go with their end
        beat(client, 0)
        while sizes[-1] > 1500 * 4 or any(connected(client, f"{{c{n}}}") for n in (1, 1499, 2999)):
            sizes.append(client.dbsize())
        assert_indexes_hold(client)
        assert sum(connected(client, f"{{c{number}}}") for number in range(3000)) == 0
        on_the_way = set(sizes) - {sizes[0], sizes[0] - 1, sizes[-1]}  # one less: the heartbeat's own key
        most = max(most, len(on_the_way))
        if most > 3:
            break
    assert most > 3


def test_an_owner_that_takes_the_name_again_keeps_its_sessions(session: Session, client: redis.Redis) -> None:
    beat(client, 1000)
    session.open("bridge-1", expiry=60)
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.OWNER", "bridge-1", "LEASE", 0)
        pipe.execute()
    eventually(lambda: connected(client) == 0, what="the loss of the owner")
    beat(client, 1000)
    session.open("bridge-1", expiry=60)
    end = now_ms(client) + 500
    eventually(lambda: now_ms(client) > end, what="half a second")
    assert connected(client) == 1


def test_after_a_restart_an_owner_has_its_lease_once_more(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    for name in ("bridge-1", "bridge-2"):
        beat(client, 3, name)
        Session(client, f"{{{name}}}").open(name, expiry=60)
    server.stop()
    gone = time.time() + 3.5
    eventually(lambda: time.time() > gone, what="the end of both leases")
    started = time.time()  # the lease begins later, however long the test waits after the start
    server.start()
    client = server.client()
    assert not client.exists("holdmq_owner:bridge-1")
    assert_indexes_hold(client)
    assert connected(client, "{bridge-1}") == connected(client, "{bridge-2}") == 1
    beat(client, 60, "bridge-2")
    eventually(lambda: connected(client, "{bridge-1}") == 0, what="the loss of the owner")
    assert time.time() - started >= 3
    assert connected(client, "{bridge-2}") == 1
    assert_indexes_hold(client)


def test_after_a_stop_of_the_server_an_owner_has_its_lease_once_more_and_no_third_time(
    fresh_server: MakeServer,
) -> None:
    server = fresh_server()
    client = server.client()
    for name in ("bridge-1", "bridge-2"):
        beat(client, 2, name)
        Session(client, f"{{{name}}}").open(name, expiry=60)
    stand_still(server, 2.5)
    assert not client.exists("holdmq_owner:bridge-1")
    assert lost(client) == 0
    beat(client, 2, "bridge-2")
    stand_still(server, 2.5)  # bridge-2 could not be heard, bridge-1 was given its time
    eventually(lambda: lost(client) == 1, what="the loss of the owner")
    assert connected(client, "{bridge-1}") == 0
    assert connected(client, "{bridge-2}") == 1
    eventually(lambda: connected(client, "{bridge-2}") == 0, what="the loss of the other one, that stays silent")
    assert_indexes_hold(client)


def stand_still(server: Server, seconds: float) -> None:
    """SIGSTOP, for so long."""
    server.pause()
    end = time.time() + seconds
    eventually(lambda: time.time() > end, what="the end of the standstill")
    server.resume()


def test_while_the_server_refuses_writes_no_lease_runs_out_and_then_each_owner_has_its_lease_once_more(
    fresh_server: MakeServer,
) -> None:
    server = fresh_server()
    client = server.client()
    beat(client, 2)
    Session(client).open("bridge-1", expiry=60)
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        beat(client, 2)
    end = now_ms(client) + 4000
    eventually(lambda: now_ms(client) > end, what="the end of two leases")
    assert (connected(client), lost(client)) == (1, 0)
    accepted = now_ms(client)
    client.config_set("min-replicas-to-write", 0)
    eventually(lambda: lost(client) == 1, what="the loss of an owner that stays silent")
    assert now_ms(client) - accepted >= 2000
    assert connected(client) == 0
    assert_indexes_hold(client)


def test_after_a_promotion_an_owner_has_its_lease_once_more(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, follower = primary.client(), replica.client()
    beat(client, 3)
    Session(client).open("bridge-1", expiry=60)
    wait_for_replica(client, follower)
    primary.kill()
    end = now_ms(follower) + 3500
    eventually(lambda: now_ms(follower) > end, what="the end of the lease")
    assert connected(follower) == 1
    promoted = now_ms(follower)  # the lease begins later
    follower.execute_command("REPLICAOF", "NO", "ONE")
    eventually(lambda: connected(follower) == 0, what="the loss of the owner")
    assert now_ms(follower) - promoted >= 3000
    assert_indexes_hold(follower)


def test_a_replica_has_the_same_keys_after_a_loss(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client, follower = primary.client(), replica.client()
    beat(client, 100)
    for number in range(20):
        session = Session(client, f"{{c{number}}}")
        session.open("bridge-1", expiry=number % 3 * 60, will=Will(delay=number % 2) if number % 4 else None)
        session.add("m")
    beat(client, 0)
    eventually(lambda: not any(connected(client, f"{{c{number}}}") for number in range(20)), what="the loss")
    wait_for_replica(client, follower)
    eventually(lambda: snapshot(follower) == snapshot(client), what="the same keys")


def test_the_heartbeat_is_taken_at_the_memory_limit(session: Session, client: redis.Redis) -> None:
    assert session.info()["exists"] == 0
    client.config_set("maxmemory", 1)
    try:
        beat(client, 60)
    finally:
        client.config_set("maxmemory", 0)


def test_an_owner_needs_the_right_to_its_key(client: redis.Redis, server: Server) -> None:
    client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~{*", "&*", "+@all")
    limited = redis.Redis(port=server.port, username="limited", password="any")  # noqa: S106
    with unchanged(client), pytest.raises(redis.exceptions.NoPermissionError):
        limited.execute_command("SESSION.OWNER", "bridge-1", "LEASE", 5)
    client.execute_command("ACL", "SETUSER", "limited", "~holdmq_owner:*")
    assert limited.execute_command("SESSION.OWNER", "bridge-1", "LEASE", 5) == b"OK"
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("", "LEASE", 5), "the owner's name has 0 bytes; expected 1 to 1024"),
        (("x" * 1025, "LEASE", 5), "the owner's name has 1025 bytes"),
        (("x", "FOR", 5), "LEASE is missing; expected LEASE <seconds> after the owner's name"),
        (("x", "LEASE", -1), "LEASE is '-1'; expected a whole number from 0 to 4294967295"),
        (("x", "LEASE"), "wrong number of arguments"),
        (("x", "LEASE", 5, 5), "wrong number of arguments"),
    ],
)
def test_a_heartbeat_that_cannot_be_is_refused(client: redis.Redis, words: tuple[str | int, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, "SESSION.OWNER", *words) or "")


def test_a_key_of_another_type_is_left_alone(session: Session, client: redis.Redis) -> None:
    client.rpush(KEY, "no string")
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .*; expected a string"):
        beat(client, 5)
    assert session.open("bridge-1", expiry=60, lease=60).present == 0
    assert session.info()["ttl_ms"] > 0
