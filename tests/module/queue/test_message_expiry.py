"""TTL of TOPIC.PUBLISH in a queue: it ends what waits, never what is in flight."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    DEFAULT_TTL_S,
    Inbox,
    Session,
    Will,
    assert_indexes_hold,
    now_ms,
    payloads,
    publish,
    snapshot,
    unchanged,
)
from tests.support import Server, eventually

GRACE_MS = 10_000
DEFAULT_MS = DEFAULT_TTL_S * 1000
NEVER = 32


@pytest.fixture
def session(client: redis.Redis) -> Session:
    """Subscribed to everything."""
    session = Session(client)
    session.subscribe(("#", 2 | NEVER))
    return session


def ends(client: redis.Redis, packet_id: int = 1) -> int:
    """When the key of a message ends, ms since 1970."""
    return int(client.execute_command("PEXPIRETIME", f"{{c}}_messages_{packet_id}"))


def record(session: Session, packet_id: int = 1) -> core.Record:
    """A stored message, read past the commands."""
    value = session.client.get(session.message(packet_id))
    assert isinstance(value, bytes)
    return core.Record.decode(value)


def wait_past(client: redis.Redis, session: Session, packet_id: int = 1) -> None:
    """Wait until a message is past its own expiry."""
    expires_ms = record(session, packet_id).expires_ms
    eventually(lambda: now_ms(client) > expires_ms, what="the expiry of a message")


def counted(client: redis.Redis) -> int:
    """INFO: references found whose message had expired."""
    return int(client.info("holdmq")["holdmq_session_expired"])


# --- What waits for nobody --------------------------------------------------------------------------------------------


def test_a_time_to_live_of_0_is_for_connected_sessions_only(session: Session, client: redis.Redis) -> None:
    assert publish(client, "t", "now", ttl=0) == 0
    assert client.keys() == [b"{c}_subscriptions"]
    epoch = session.open(expiry=60).epoch
    assert publish(client, "t", "now", ttl=0) == 1
    assert record(session).expires_ms == record(session).time_ms
    session.close(epoch)
    assert publish(client, "t", "now", ttl=0) == 0
    assert session.fetch().entries == []


def test_a_time_to_live_of_0_puts_nothing_into_the_queue_of_a_group(client: redis.Redis) -> None:
    session = Session(client)
    session.subscribe(("$share/g/t", 1))
    assert publish(client, "t", "now", ttl=0) == 0
    epoch = session.open(expiry=60).epoch
    assert publish(client, "t", "now", ttl=0) == 1
    session.close(epoch)
    assert publish(client, "t", "now", ttl=0) == 0
    assert not client.exists("{$share/g/t}_messages")


def test_a_retained_message_with_a_time_to_live_of_0_removes_the_former_one(client: redis.Redis) -> None:
    publish(client, "t", "old", retain=True)
    publish(client, "t", "now", retain=True, ttl=0)
    assert client.keys() == []
    assert_indexes_hold(client)


@pytest.mark.parametrize(("ttl", "stored"), [(None, b""), (0, b"0"), (60, b"60")])
def test_a_will_distinguishes_a_time_to_live_of_0_from_none(
    server: Server, client: redis.Redis, ttl: int | None, stored: bytes
) -> None:
    heir = Session(client, "{heir}")
    heir.open()
    heir.subscribe(("will/#", 1))
    session = Session(client)
    epoch = session.open(will=Will("will/c", ttl=ttl)).epoch
    assert client.hget("{c}_session", "will_ttl") == stored
    with Inbox(server, "{heir}") as inbox:
        session.close(epoch, will=True)
        message = inbox.take_one().message()
    assert message.expires_ms == (0 if ttl is None else message.time_ms + ttl * 1000)


# --- What waits -------------------------------------------------------------------------------------------------------


def test_the_key_of_a_message_outlives_its_expiry_by_ten_seconds(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "short", ttl=50)
    publish(client, "t", "longer than messages live", ttl=DEFAULT_TTL_S + 60)
    assert ends(client, 1) == record(session, 1).expires_ms + GRACE_MS
    assert ends(client, 2) == record(session, 2).time_ms + DEFAULT_MS


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"after": 0, "count": 1}], ids=["fetch", "window", "page"])
def test_a_queued_message_past_its_expiry_is_handed_out_by_nobody(
    session: Session, client: redis.Redis, options: dict[str, Any]
) -> None:
    before = counted(client)
    publish(client, "t", "short", ttl=1)
    publish(client, "t", "lives")
    publish(client, "t", "short, too", ttl=1)
    wait_past(client, session, 3)
    page = session.fetch(**options)
    assert payloads(page.entries) == [b"lives"]
    assert page.more == 0
    session.fetch()
    assert counted(client) - before == 2
    assert client.zcard("{c}_messages") == 1
    assert not client.exists("{c}_messages_1", "{c}_messages_3")


def test_the_message_after_an_acknowledged_one_is_the_next_that_has_not_expired(
    session: Session, client: redis.Redis
) -> None:
    publish(client, "t", "first")
    session.fetch(window=1)
    publish(client, "t", "short", ttl=1)
    publish(client, "t", "lives")
    wait_past(client, session, 2)
    removed, page = session.ack_next(1, 1)
    assert (removed, payloads(page.entries), page.expired) == (1, [b"lives"], 1)


def test_at_the_limit_messages_past_their_expiry_go_first_and_count_as_expired(
    session: Session, client: redis.Redis
) -> None:
    client.config_set("holdmq.session-limit", 3)
    before = client.info("holdmq")
    publish(client, "t", "lives")
    publish(client, "t", "short", ttl=3)
    publish(client, "t", "short", ttl=3)
    publish(client, "t", "newest")
    assert client.zcard("{c}_messages") == 3
    wait_past(client, session, 3)
    publish(client, "t", "newer")
    after = client.info("holdmq")
    assert payloads(session.fetch().entries) == [b"newest", b"newer"]
    assert after["holdmq_session_trimmed"] - before["holdmq_session_trimmed"] == 1  # the first, when all were live
    assert after["holdmq_session_expired"] - before["holdmq_session_expired"] == 2


def test_at_the_limit_messages_in_flight_stay_past_their_expiry(session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 2)
    publish(client, "t", "in flight", ttl=3)
    session.fetch(window=1)
    publish(client, "t", "waits", ttl=1)
    wait_past(client, session, 2)
    publish(client, "t", "newest")
    assert payloads(session.fetch().entries) == [b"in flight", b"newest"]


def test_looking_at_a_queue_without_expired_messages_writes_nothing(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "lives", ttl=500)
    with unchanged(client):
        assert payloads(session.fetch().entries) == [b"lives"]


# --- What is in flight ------------------------------------------------------------------------------------------------


def by_window(session: Session, epoch: int) -> None:
    session.fetch(window=1, epoch=epoch)


def by_next(session: Session, epoch: int) -> None:
    session.ack_next(1, 60000, epoch=epoch)


def by_sent(session: Session, epoch: int) -> None:
    session.sent(1, epoch=epoch)


def by_close(session: Session, epoch: int) -> None:
    session.close(epoch, 60, sent=1)


def by_takeover(session: Session, epoch: int) -> None:
    assert epoch
    session.open("bridge-2", expiry=60)


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "never opened"])
@pytest.mark.parametrize("begin", [by_window, by_next, by_sent, by_close, by_takeover])
def test_a_message_in_flight_is_past_its_expiry_still_there(
    session: Session, client: redis.Redis, begin: Callable[[Session, int], None], opened: bool
) -> None:
    if not opened and begin in (by_close, by_takeover):
        return  # only who opened a session closes it
    epoch = session.open(expiry=60).epoch if opened else 0
    before = now_ms(client)
    publish(client, "t", "m", qos=2, ttl=2)
    begin(session, epoch)
    assert ends(client) >= before + DEFAULT_MS
    wait_past(client, session)
    assert payloads(session.fetch(in_flight=True).entries) == [b"m"]
    assert payloads(session.fetch().entries) == [b"m"]
    assert session.release(1) == 1
    assert ends(client) >= before + DEFAULT_MS
    assert session.fetch(in_flight=True).states == [2]
    if not opened:  # nothing that leads to the message ends before it
        ways = [key.expires_ms for name, key in snapshot(client).items() if not name.endswith(b"_subscriptions")]
        assert len(ways) == 4
        assert min(ways) >= before + DEFAULT_MS
    assert session.ack(1) == 1


def test_a_message_released_before_anybody_called_it_sent_does_not_expire(
    session: Session, client: redis.Redis
) -> None:
    before = now_ms(client)
    publish(client, "t", "m", qos=2, ttl=1)
    wait_past(client, session)
    assert session.release(1) == 1
    assert ends(client) >= before + DEFAULT_MS
    assert session.fetch().states == [2]


def test_only_what_is_in_flight_is_kept(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "a", ttl=3)
    publish(client, "t", "b", ttl=3)
    session.sent(1)
    assert ends(client, 2) == record(session, 2).expires_ms + GRACE_MS
    wait_past(client, session, 2)
    assert payloads(session.fetch().entries) == [b"a"]


def test_a_hundred_messages_come_to_be_in_flight_in_one_step(session: Session, client: redis.Redis) -> None:
    before = now_ms(client)
    for number in range(300):
        publish(client, "t", str(number), ttl=3 if number % 3 else None)
    session.sent(300)
    assert all(ends(client, packet_id) >= before + DEFAULT_MS for packet_id in range(1, 301))


@pytest.mark.usefixtures("session")
def test_the_mark_of_messages_with_an_expiry_is_rarely_written(client: redis.Redis) -> None:
    publish(client, "t", "plain")
    assert client.hget("{c}_session", "expiring") is None
    publish(client, "t", "m", ttl=50)
    first = client.hget("{c}_session", "expiring")
    for _ in range(100):
        publish(client, "t", "m", ttl=50)
    assert client.hget("{c}_session", "expiring") == first == b"257"
    for _ in range(200):
        publish(client, "t", "m", ttl=50)
    assert int(client.hget("{c}_session", "expiring") or 0) > 300


# --- Other values -----------------------------------------------------------------------------------------------------


def test_the_ttl_of_an_added_value_stays_what_it_is(session: Session, client: redis.Redis) -> None:
    before = now_ms(client)
    session.add("a", ttl=50)
    session.add_expiring((60, "b"))
    stood = [ends(client, 1), ends(client, 2)]
    session.fetch(window=2)
    assert [ends(client, 1), ends(client, 2)] == stood
    assert 50_000 <= stood[0] - before < 60_000 <= stood[1] - before < 70_000
    session.release(1)
    assert ends(client, 1) == stood[0]


def test_an_added_record_expires_as_it_says(session: Session, client: redis.Redis) -> None:
    now = now_ms(client)
    old = core.Record(qos=1, time_ms=now, expires_ms=now + 1, topic=b"t", payload=b"old")
    new = core.Record(qos=1, time_ms=now, expires_ms=now + 1_000_000, topic=b"t", payload=b"new")
    session.add(old.encode(), new.encode())
    wait_past(client, session, 1)
    page = session.fetch()
    assert (payloads(page.entries), page.expired) == ([b"new"], 1)


def test_a_retained_message_ends_when_it_expires(session: Session, client: redis.Redis) -> None:
    publish(client, "r", "m", retain=True, ttl=50)
    assert client.execute_command("PEXPIRETIME", "{r}_retained") == record(session).expires_ms
