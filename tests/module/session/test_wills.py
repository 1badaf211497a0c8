"""Wills: kept with the session, published when the connection is lost for long enough, whoever dies meanwhile."""

import time
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    Will,
    assert_indexes_hold,
    error_of,
    names,
    now_ms,
    payloads,
    retained_topics,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

LATE_MS = 1500  # a will is due within a second
SLACK_MS = 5000  # ... but not on a machine that is busy


@pytest.fixture
def session(client: redis.Redis) -> Session:
    """The session that has a will."""
    return Session(client)


@pytest.fixture
def heir(client: redis.Redis) -> Session:
    """Subscribed to wills."""
    heir = Session(client, "{heir}")
    heir.subscribe(("will/#", 2))
    return heir


def wills(heir: Session) -> list[bytes]:
    """What the heir got."""
    return payloads(heir.fetch().entries)


def published(client: redis.Redis) -> int:
    """How many wills were published since the server started."""
    return int(client.info("holdmq")["holdmq_wills_published"])


def will_fields(client: redis.Redis) -> list[bytes]:
    """The fields of a will that stand in the hash."""
    fields: list[bytes] = client.execute_command("HKEYS", "{c}_session")
    return sorted(field for field in fields if field.startswith(b"will_"))


# --- Closing ----------------------------------------------------------------------------------------------------------


def test_the_will_is_in_the_hash_of_the_session(session: Session, client: redis.Redis) -> None:
    session.open(will=Will("will/c", b"\x00gone", 2, retain=True, delay=5, ttl=60, properties=b"\x01\x01"), expiry=10)
    fields: dict[bytes, bytes] = client.execute_command("HGETALL", "{c}_session")
    assert {name: value for name, value in fields.items() if name.startswith(b"will")} == {
        b"will_topic": b"will/c",
        b"will_payload": b"\x00gone",
        b"will_qos": b"2",
        b"will_retain": b"1",
        b"will_delay": b"5",
        b"will_ttl": b"60",
        b"will_properties": b"\x01\x01",
    }


@pytest.mark.parametrize("expiry", [0, 60])
def test_a_connection_that_is_lost_publishes_the_will_in_the_same_step(
    session: Session, heir: Session, client: redis.Redis, expiry: int
) -> None:
    before, start = published(client), now_ms(client)
    epoch = session.open(will=Will("will/c", "gone", 2, ttl=60, properties=b"\x01\x01"), expiry=expiry).epoch
    session.close(epoch, will=True)
    (entry,) = heir.fetch().entries
    record = core.Record.decode(entry.value)
    assert record == core.Record(
        qos=2,
        time_ms=record.time_ms,
        expires_ms=record.time_ms + 60_000,
        topic=b"will/c",
        publisher=b"c",
        properties=b"\x01\x01",
        payload=b"gone",
    )
    assert start <= record.time_ms <= now_ms(client)
    assert published(client) == before + 1
    assert session.info()["exists"] == (expiry > 0)
    assert expiry == 0 or will_fields(client) == []


@pytest.mark.parametrize("expiry", [0, 60])
def test_a_connection_that_is_closed_in_order_discards_the_will(
    session: Session, heir: Session, client: redis.Redis, expiry: int
) -> None:
    epoch = session.open(will=Will("will/c"), expiry=expiry).epoch
    session.close(epoch)
    assert wills(heir) == []
    assert names(client, "{c}*") == [] if expiry == 0 else will_fields(client) == []


def test_a_session_without_a_will_is_closed_normally_with_will(session: Session, heir: Session) -> None:
    session.close(session.open(expiry=60).epoch, will=True)
    assert wills(heir) == []
    assert session.info()["connected"] == 0


def test_a_retained_will_is_kept(session: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c", "gone", retain=True), expiry=60).epoch
    session.close(epoch, will=True)
    assert retained_topics(client) == [b"will/c"]
    assert client.hmget("{will/c}_retained", "payload", "publisher") == [b"gone", b"c"]


def test_a_retained_will_under_a_key_of_another_type_is_published_all_the_same(
    session: Session, heir: Session, client: redis.Redis
) -> None:
    client.set("{will/c}_retained", "no hash")
    epoch = session.open(will=Will("will/c", "gone", retain=True), expiry=60).epoch
    assert session.close(epoch, will=True) == b"OK"
    assert wills(heir) == [b"gone"]


def test_a_session_that_ends_does_not_get_its_own_will_and_one_that_stays_does(
    session: Session, client: redis.Redis
) -> None:
    epoch = session.open(will=Will("will/c"), expiry=60).epoch
    session.subscribe(("will/#", 1))
    session.close(epoch, will=True)
    assert wills(session) == [b"gone"]
    session.close(session.open(will=Will("will/c")).epoch, 0, will=True)
    assert names(client, "{c}*") == []


def test_each_opening_replaces_the_will(session: Session, heir: Session, client: redis.Redis) -> None:
    session.close(session.open(will=Will("will/1", delay=5, ttl=7), expiry=60).epoch)
    epoch = session.open(will=Will("will/2", "second"), expiry=60).epoch
    assert client.hmget("{c}_session", "will_topic", "will_delay", "will_ttl") == [b"will/2", b"0", b""]
    session.close(epoch, will=True)
    assert wills(heir) == [b"second"]
    session.open(expiry=60)
    assert will_fields(client) == []


# --- Delays -----------------------------------------------------------------------------------------------------------


def test_a_will_with_a_delay_comes_after_it(session: Session, heir: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c", delay=3, ttl=60), expiry=60).epoch
    lost = now_ms(client)
    session.close(epoch, will=True)
    assert wills(heir) == []
    eventually(lambda: wills(heir) == [b"gone"], what="the will")
    record = core.Record.decode(heir.fetch().values[0])
    assert 3000 <= record.time_ms - lost <= 3000 + SLACK_MS
    assert record.expires_ms == record.time_ms + 60_000  # counted from its publication
    assert will_fields(client) == []
    assert session.info()["exists"] == 1
    assert 50_000 <= client.pttl("{c}_session") <= 60_000


def test_a_will_with_a_delay_comes_when_the_session_ends_if_that_is_sooner(
    session: Session, heir: Session, client: redis.Redis
) -> None:
    epoch = session.open(will=Will("will/c", delay=60), expiry=1).epoch
    session.subscribe(("x", 1))
    session.add("m")
    lost = now_ms(client)
    session.close(epoch, will=True)
    eventually(lambda: wills(heir) == [b"gone"], what="the will")
    assert 1000 <= core.Record.decode(heir.fetch().values[0]).time_ms - lost <= 1000 + SLACK_MS
    assert names(client, "{c}*") == []


def test_a_session_that_comes_back_in_time_drops_its_will(session: Session, heir: Session, client: redis.Redis) -> None:
    before = published(client)
    epoch = session.open(will=Will("will/c", delay=3), expiry=60).epoch
    session.close(epoch, will=True)
    due = now_ms(client) + 3000
    assert session.open(expiry=60).present == 1
    assert will_fields(client) == []
    eventually(lambda: now_ms(client) > due + LATE_MS, what="the time of the will")
    assert wills(heir) == []
    assert published(client) == before


def test_a_clean_start_ends_the_session_whose_will_waits_and_so_publishes_it(session: Session, heir: Session) -> None:
    epoch = session.open(will=Will("will/c", delay=60), expiry=60).epoch
    session.close(epoch, will=True)
    assert session.open(clean=True).present == 0
    assert wills(heir) == [b"gone"]


def test_dropping_a_session_publishes_its_will(session: Session, heir: Session) -> None:
    session.open(will=Will("will/c", delay=60), expiry=60)
    session.drop()
    assert wills(heir) == [b"gone"]


def test_from_its_end_on_nobody_finds_the_session_though_its_keys_exist(
    session: Session, heir: Session, client: redis.Redis
) -> None:
    epoch = session.open(will=Will("will/c", delay=60), expiry=3).epoch
    session.close(epoch, will=True)
    end = int(client.hget("{c}_session", "ends") or 0)
    client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # the module does nothing now
    try:
        eventually(lambda: now_ms(client) > end, what="the end of the session")
        assert client.exists("{c}_session")
        info = session.info()
        assert (info["exists"], info["owner"], info["epoch"], info["ttl_ms"]) == (0, None, 0, -1)
        assert not client.exists("{heir}_messages")
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    eventually(lambda: wills(heir) == [b"gone"], what="the will")
    assert not client.exists("{c}_session")


def test_opening_a_session_that_is_over_ends_it_first(session: Session, heir: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c", delay=60), expiry=50).epoch
    session.add("m")
    session.close(epoch, will=True)
    client.hset("{c}_session", "ends", now_ms(client) - 1)
    opened = session.open(expiry=60)
    assert opened.present == 0
    assert opened.epoch > epoch
    assert wills(heir) == [b"gone"]
    assert session.fetch().entries == []


def test_a_will_that_many_wait_for_comes_for_each(client: redis.Redis, heir: Session) -> None:
    for number in range(500):
        session = Session(client, f"{{c{number}}}")
        session.close(session.open(will=Will("will/c", str(number), delay=1), expiry=60).epoch, will=True)
    eventually(lambda: len(heir.fetch(count=1000).entries) == 500, what="all wills")
    assert sorted(int(payload) for payload in payloads(heir.fetch(count=1000).entries)) == list(range(500))


# --- Takeover ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "clean", "comes"), [(0, False, True), (0, True, True), (60, True, True), (60, False, False)]
)
def test_a_takeover_publishes_the_will_of_the_connection_before_unless_it_is_delayed(
    session: Session, heir: Session, client: redis.Redis, delay: int, clean: bool, comes: bool
) -> None:
    session.open("bridge-1", will=Will("will/c", "first", delay=delay), expiry=60)
    epoch = session.open("bridge-2", clean=clean, will=Will("will/c", "second"), expiry=60).epoch
    assert wills(heir) == ([b"first"] if comes else [])
    assert client.hget("{c}_session", "will_payload") == b"second"
    session.close(epoch, will=True)
    assert wills(heir)[-1] == b"second"


# --- Lost owners ------------------------------------------------------------------------------------------------------


def test_a_session_with_a_will_whose_lease_is_over_is_lost(
    session: Session, heir: Session, client: redis.Redis
) -> None:
    epoch = session.open(will=Will("will/c"), expiry=60, lease=1).epoch
    session.add("m")
    eventually(lambda: wills(heir) == [b"gone"], what="the will")
    info = session.info()
    assert (info["connected"], info["exists"]) == (0, 1)
    assert 55_000 < info["ttl_ms"] <= 60_000
    assert session.fetch().states == [1]  # it may have been handed out
    assert (error_of(client, "SESSION.TOUCH", "{c}", "EPOCH", epoch) or "").startswith("FENCED")


def test_touching_keeps_a_session_with_a_will_alive(session: Session, heir: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c"), expiry=60, lease=2).epoch
    end = now_ms(client) + 3500
    while now_ms(client) < end:
        session.touch(epoch)
        time.sleep(0.1)
    assert wills(heir) == []
    assert session.info()["connected"] == 1


# --- Restarts and replicas --------------------------------------------------------------------------------------------


def test_a_will_is_published_though_the_server_was_down_when_it_was_due(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True)
    client = server.client()
    Session(client, "{heir}").subscribe(("will/#", 1))
    for key, expiry in (("{delayed}", 60), ("{ended}", 1)):
        session = Session(client, key)
        session.add("m")
        session.close(session.open(will=Will(f"will/{key}", key, delay=1), expiry=expiry).epoch, will=True)
    due = now_ms(client) + 1000
    server.stop()
    eventually(lambda: time.time() * 1000 > due + 500, what="the time of the wills")
    server.start()
    client = server.client()
    eventually(lambda: sorted(wills(Session(client, "{heir}"))) == [b"{delayed}", b"{ended}"], what="both wills")
    assert Session(client, "{delayed}").info()["exists"] == 1
    assert names(client, "{ended}*") == []
    assert_indexes_hold(client)


def test_a_replica_waits_until_it_is_promoted(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary)
    client, follower = primary.client(), replica.client()
    Session(client, "{heir}").subscribe(("will/#", 1))
    session = Session(client)
    session.close(session.open(will=Will("will/c", delay=2), expiry=60).epoch, will=True)
    due = now_ms(client) + 2000
    wait_for_replica(client, follower)
    assert_indexes_hold(follower)
    primary.kill()
    eventually(lambda: now_ms(follower) > due + 300, what="the time of the will")
    assert published(follower) == 0
    follower.execute_command("REPLICAOF", "NO", "ONE")
    eventually(lambda: wills(Session(follower, "{heir}")) == [b"gone"], what="the will")
    assert_indexes_hold(follower)


def test_a_replica_has_the_same_keys_after_wills(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    replica = fresh_server(replica_of=primary, module=False)
    client, follower = primary.client(), replica.client()
    heir = Session(client, "{heir}")
    heir.subscribe(("will/#", 1))
    for number, (delay, expiry) in enumerate(((0, 0), (0, 60), (1, 60), (60, 1), (60, 60))):
        session = Session(client, f"{{c{number}}}")
        epoch = session.open(will=Will("will/c", str(number), delay=delay, retain=True), expiry=expiry).epoch
        session.close(epoch, will=True)
    eventually(lambda: len(wills(heir)) == 4, what="the wills that are due")
    wait_for_replica(client, follower)
    assert snapshot(follower) == snapshot(client)


def test_a_reload_forgets_no_will(session: Session, heir: Session, client: redis.Redis) -> None:
    session.close(session.open(will=Will("will/c", delay=1), expiry=60).epoch, will=True)
    client.execute_command("DEBUG", "RELOAD")
    assert_indexes_hold(client)
    eventually(lambda: wills(heir) == [b"gone"], what="the will")


def test_at_the_memory_limit_a_will_waits_until_there_is_memory(
    session: Session, heir: Session, client: redis.Redis
) -> None:
    epochs = []
    for key, expiry in (("{c}", 60), ("{d}", 0)):
        epochs.append(Session(client, key).open(will=Will("will/c", key), expiry=expiry).epoch)
    client.config_set("maxmemory", 1)
    try:
        assert session.close(epochs[0], will=True) == b"OK"
        assert Session(client, "{d}").close(epochs[1], will=True) == b"OK"
        assert wills(heir) == []
    finally:
        client.config_set("maxmemory", 0)
    eventually(lambda: sorted(wills(heir)) == [b"{c}", b"{d}"], what="the wills")
    assert not client.exists("{d}_session")


# --- Transactions, databases, foreign hands ---------------------------------------------------------------------------


@pytest.mark.usefixtures("heir")
def test_inside_a_transaction_a_will_is_published_with_the_rest(session: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c"), expiry=60).epoch
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("SESSION.CLOSE", "{c}", "EPOCH", epoch, "WILL")
        pipe.execute_command("SESSION.FETCH", "{heir}")
        _, page = pipe.execute()
    assert len(page[0]) == 1


def test_wills_are_published_in_the_database_of_their_session(server: Server) -> None:
    for db in (0, 3):
        client = server.client(db=db)
        Session(client, "{heir}").subscribe(("will/#", 1))
        session = Session(client)
        session.close(session.open(will=Will("will/c", str(db), delay=1), expiry=60).epoch, will=True)
    for db in (0, 3):
        heir = Session(server.client(db=db), "{heir}")
        eventually(lambda heir=heir, db=db: wills(heir) == [str(db).encode()], what="the will")  # type: ignore[misc]


def test_a_will_that_others_wrote_or_spoiled_does_no_harm(session: Session, heir: Session, client: redis.Redis) -> None:
    epoch = session.open(will=Will("will/c", delay=1), expiry=60).epoch
    client.hset("{c}_session", mapping={"will_topic": "not/#/valid", "will_qos": "9"})
    assert session.close(epoch, will=True) == b"OK"
    client.hset(
        "{d}_session", mapping={"epoch": 5, "ends": 1, "will_topic": "will/d", "will_payload": "by hand", "will_qos": 1}
    )
    eventually(lambda: wills(heir) == [b"by hand"], what="the will")
    assert not client.exists("{d}_session")


def test_a_deadline_under_foreign_types_is_put_off(session: Session, client: redis.Redis) -> None:
    client.set("{c}_messages", "no sorted set")
    client.hset("{c}_session", mapping={"epoch": 5, "ends": 1})
    assert session.client.ping()
    client.delete("{c}_session", "{c}_messages")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("WILLQOS", 1), "WILL is missing; expected, with options of a will, WILL <topic> <payload>"),
        (("WILLRETAIN",), "WILL is missing"),
        (("WILL", "t"), "the payload of WILL is missing"),
        (("WILL", "a/+", "m"), "the topic of WILL 'a/+': "),
        (("WILL", "", "m"), "the topic of WILL '': "),
        (("WILL", "t", "m", "WILLQOS", 3), "WILLQOS is '3'; expected a whole number from 0 to 2"),
        (("WILL", "t", "m", "WILLDELAY", -1), "WILLDELAY is '-1'; expected a whole number from 0 to 4294967295"),
        (("WILL", "t", "m", "WILLTTL", -1), "WILLTTL is '-1'; expected a whole number from 0 to 4294967295"),
        (("WILL", "t", "m", "WILLPROPERTIES"), "WILLPROPERTIES is missing"),
        (("WILL", "t", "m", "WILLS"), "unexpected argument 'WILLS'"),
    ],
)
def test_a_will_that_cannot_be_is_refused(client: redis.Redis, words: tuple[str | int, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, "SESSION.OPEN", "{c}", "OWNER", "o", *words) or "")
