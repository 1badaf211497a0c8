"""SESSION.SUBSCRIBE, UNSUBSCRIBE, SUBSCRIPTIONS, and the retained messages that a new subscription is handed."""

import contextlib
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    DEFAULT_TTL_S,
    Entry,
    Inbox,
    Session,
    assert_indexes_hold,
    assert_routes_exactly,
    now_ms,
    payloads,
    publish,
    unchanged,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

NO_LOCAL = 4
AS_PUBLISHED = 8
IF_NEW = 16  # retain handling 1
NEVER = 32  # retain handling 2

LONG_FILTER = "/".join(["x"] * 127) + "/" + "y" * (65535 - 254)
FILTERS = [
    "a",
    "+",
    "#",
    "/",
    "//",
    "a//b",
    "+/+",
    "a/+/c/#",
    "$SYS/#",
    "$x",
    "ä/€/#",
    " ",
    "/".join("+" * 128),
    LONG_FILTER,
]


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def records(entries: list[Entry]) -> list[core.Record]:
    return [core.Record.decode(entry.value) for entry in entries]


# --- Subscribing ------------------------------------------------------------------------------------------------------


def test_a_filter_is_new_once_and_then_replaced(session: Session) -> None:
    assert session.subscribe(("a", 0), ("b/#", 1)) == [1, 1]
    assert session.subscribe(("b/#", 2), ("c", 1)) == [0, 1]
    assert session.subscriptions() == {b"a": 0, b"b/#": 2, b"c": 1}


def test_of_a_filter_named_twice_in_one_command_the_last_options_hold(session: Session, client: redis.Redis) -> None:
    assert session.subscribe(("a", 2), ("b", 1), ("a", 0)) == [1, 1, 0]
    assert session.subscriptions() == {b"a": 0, b"b": 1}
    assert publish(client, "a", "m", qos=2) == 0


def test_subscriptions_are_a_plain_hash(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a/+", 1), ("b", 2 | NO_LOCAL | AS_PUBLISHED | IF_NEW))
    assert client.hgetall("{c}_subscriptions") == {b"a/+": b"1", b"b": b"30"}


def test_subscriptions_of_nobody_are_empty(session: Session, client: redis.Redis) -> None:
    with unchanged(client):
        assert session.subscriptions() == {}


def test_every_valid_options_byte_is_kept(session: Session) -> None:
    valid = [qos | flags | handling for qos in (0, 1, 2) for flags in (0, 4, 8, 12) for handling in (0, 16, 32)]
    for options in valid:
        session.subscribe(("a", options))
        assert session.subscriptions() == {b"a": options}


@pytest.mark.parametrize("topic_filter", FILTERS, ids=lambda text: text[:20])
def test_every_valid_filter_is_kept_and_removed(session: Session, client: redis.Redis, topic_filter: str) -> None:
    assert session.subscribe((topic_filter, 1)) == [1]
    assert_indexes_hold(client)
    assert session.subscriptions() == {topic_filter.encode(): 1}
    assert session.unsubscribe(topic_filter) == [1]
    assert client.dbsize() == 0


def test_a_filter_called_epoch_needs_an_epoch_before_it(session: Session, client: redis.Redis) -> None:
    assert client.execute_command("SESSION.SUBSCRIBE", "{c}", "EPOCH", 0, "EPOCH", 1, "a", 1) == [1, 1]
    assert session.subscriptions() == {b"EPOCH": 1, b"a": 1}
    assert publish(client, "EPOCH", "m") == 1
    assert client.execute_command("SESSION.UNSUBSCRIBE", "{c}", "EPOCH", 0, "EPOCH") == [1]
    assert session.subscriptions() == {b"a": 1}


def test_without_an_epoch_the_filters_follow_the_key(session: Session, client: redis.Redis) -> None:
    assert client.execute_command("SESSION.SUBSCRIBE", "{c}", "a", 1, "b", 2) == [1, 1]
    assert client.execute_command("SESSION.UNSUBSCRIBE", "{c}", "a", "nowhere") == [1, 0]
    assert session.subscriptions() == {b"b": 2}


def test_subscriptions_of_a_session_that_nobody_opened_live_for_the_default_ttl(
    session: Session, client: redis.Redis
) -> None:
    session.subscribe(("a", 1))
    assert 0 <= DEFAULT_TTL_S - client.ttl("{c}_subscriptions") <= 5


def test_subscriptions_of_an_open_session_end_with_it(session: Session, client: redis.Redis) -> None:
    session.open(expiry=50, lease=50)
    session.subscribe(("a", 1))
    end = client.execute_command("PEXPIRETIME", "{c}_session")
    assert client.execute_command("PEXPIRETIME", "{c}_subscriptions") == end
    assert end <= now_ms(client) + 100_000


def test_a_thousand_filters_can_be_subscribed_and_unsubscribed_at_once(session: Session, client: redis.Redis) -> None:
    filters = [f"devices/{number}/+" for number in range(1000)]
    assert session.subscribe(*((topic_filter, 1) for topic_filter in filters)) == [1] * 1000
    assert session.info()["subscriptions"] == 1000
    assert_routes_exactly(client, ["devices/0/t", "devices/999/t", "devices/1000/t", "devices/5"])
    assert session.unsubscribe(*filters[:999]) == [1] * 999
    assert_routes_exactly(client, ["devices/0/t", "devices/999/t"])


# --- Listing ----------------------------------------------------------------------------------------------------------


def subscribe_many(client: redis.Redis, count: int) -> set[bytes]:
    """Subscribes {c} to d/0, d/1, ..."""
    script = """
        for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do redis.call('SESSION.SUBSCRIBE', KEYS[1], 'd/' .. n, 1) end
    """
    for start in range(0, count, 5_000):
        client.eval(script, 1, "{c}", start, min(start + 5_000, count) - 1)
    return {b"d/%d" % number for number in range(count)}


def page_of(client: redis.Redis, cursor: object, *words: object) -> tuple[bytes, dict[bytes, bytes]]:
    following, filters = client.execute_command("SESSION.SUBSCRIPTIONS", "{c}", "CURSOR", cursor, *words)
    return following, filters


def pages_of(client: redis.Redis, *words: object) -> list[dict[bytes, bytes]]:
    cursor, first = page_of(client, 0, *words)
    pages = [first]
    while cursor != b"0":
        cursor, filters = page_of(client, cursor, *words)
        pages.append(filters)
    return pages


def test_pages_list_every_filter_with_its_options(session: Session, client: redis.Redis) -> None:
    assert page_of(client, 0) == (b"0", {})
    session.subscribe(("a", 0), ("b/#", 2))
    assert page_of(client, 0) == (b"0", {b"a": b"0", b"b/#": b"2"})
    filters = subscribe_many(client, 5_000) | {b"a", b"b/#"}
    pages = pages_of(client, "COUNT", 100)
    assert len(pages) > 25
    assert set().union(*pages) == filters
    assert max(map(len, pages)) <= 200  # the server may return some more than COUNT, as SCAN does


def test_a_filter_that_is_there_during_the_whole_walk_is_listed(client: redis.Redis) -> None:
    filters = subscribe_many(client, 3_000)
    cursor, first = page_of(client, 0, "COUNT", 50)
    found = set(first)
    for number in range(1_000, 3_000):
        client.execute_command("SESSION.UNSUBSCRIBE", "{c}", f"d/{number}")
    while cursor != b"0":
        cursor, more = page_of(client, cursor, "COUNT", 50)
        found |= set(more)
    assert found <= filters
    assert found >= {b"d/%d" % number for number in range(1_000)}


def test_without_a_cursor_only_what_one_step_can_list_is_listed(session: Session, client: redis.Redis) -> None:
    filters = subscribe_many(client, 2_000)
    assert set(session.subscriptions()) == filters
    subscribe_many(client, 20_000)
    with pytest.raises(redis.ResponseError, match=r"more subscriptions than one step lists: .* CURSOR 0"):
        session.subscriptions()


def test_long_filters_end_a_page_early(client: redis.Redis) -> None:
    filters = {f"{number:04}" + "x" * 60_000 for number in range(200)}
    for topic_filter in filters:
        client.execute_command("SESSION.SUBSCRIBE", "{c}", topic_filter, 1)
    with pytest.raises(redis.ResponseError, match="more subscriptions than one step lists"):
        client.execute_command("SESSION.SUBSCRIPTIONS", "{c}")
    pages = pages_of(client, "COUNT", 10_000)
    assert set().union(*pages) == {topic_filter.encode() for topic_filter in filters}
    assert max(map(len, pages)) < 100


def usec_of_list(client: redis.Redis, *words: object) -> float:
    client.config_resetstat()
    with contextlib.suppress(redis.ResponseError):
        client.execute_command("SESSION.SUBSCRIPTIONS", "{c}", *words)
    return float(client.info("commandstats")["cmdstat_SESSION.SUBSCRIPTIONS"]["usec"])


def test_however_many_filters_a_session_has_no_step_that_lists_them_is_long(client: redis.Redis) -> None:
    subscribe_many(client, 100_000)
    cursors = [b"0"]
    while (cursor := page_of(client, cursors[-1], "COUNT", 10_000)[0]) != b"0":
        cursors.append(cursor)
    assert len(cursors) >= 10
    for cursor in (cursors[0], cursors[len(cursors) // 2], cursors[-1]):
        assert min(usec_of_list(client, "CURSOR", cursor, "COUNT", 10_000) for _ in range(20)) < 5_000
    assert min(usec_of_list(client) for _ in range(20)) < 5_000


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("CURSOR",), "CURSOR is missing"),
        (("CURSOR", "x"), "STALECURSOR CURSOR is 'x', .* begin again with CURSOR 0"),
        (("CURSOR", 7), "STALECURSOR"),
        (("CURSOR", 0, "COUNT", 0), "COUNT is '0'; expected a whole number from 1 to 10000"),
        (("CURSOR", 0, "COUNT", 10_001), "COUNT is .*; expected a whole number from 1 to 10000"),
        (("COUNT", 5), "unexpected argument 'COUNT'"),
        (("CURSOR", 0, "COUNT", 5, "more"), "unexpected argument 'more'"),
    ],
)
def test_a_wrong_page_is_refused(client: redis.Redis, words: tuple[object, ...], error: str) -> None:
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        client.execute_command("SESSION.SUBSCRIPTIONS", "{c}", *words)


def test_a_cursor_of_another_server_is_refused(client: redis.Redis, fresh_server: MakeServer) -> None:
    """Its hash has another order: a walk that continued there would miss filters."""
    subscribe_many(client, 3_000)
    cursor, _ = page_of(client, 0, "COUNT", 50)
    other = fresh_server().client()
    subscribe_many(other, 3_000)
    assert page_of(client, cursor)[1]
    with pytest.raises(redis.ResponseError, match="STALECURSOR"):
        page_of(other, cursor)


# --- Unsubscribing ----------------------------------------------------------------------------------------------------


def test_unsubscribing_reports_what_was_there(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a", 0), ("b/#", 1))
    with unchanged(client):
        assert session.unsubscribe("b", "A", "b/+") == [0, 0, 0]
    assert session.unsubscribe("a", "nowhere", "a") == [1, 0, 0]
    assert session.subscriptions() == {b"b/#": 1}


def test_the_last_unsubscribe_leaves_no_key(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a", 0), ("b", 1))
    assert session.unsubscribe("b", "a") == [1, 1]
    assert client.dbsize() == 0
    with unchanged(client):
        assert session.unsubscribe("a") == [0]


def test_nothing_arrives_after_an_unsubscribe_but_what_was_queued_stays(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a", 1), ("b", 1))
    assert publish(client, "a", "before") == 1
    session.unsubscribe("a")
    assert publish(client, "a", "after") == 0
    assert publish(client, "b", "other") == 1
    assert payloads(session.fetch().entries) == [b"before", b"other"]


# --- Retained messages at SUBSCRIBE -----------------------------------------------------------------------------------


def test_a_new_subscription_is_handed_the_retained_messages_that_match(
    server: Server, session: Session, client: redis.Redis
) -> None:
    for topic in ("a/1", "a/2", "a", "b/1", "$a/1"):
        publish(client, topic, f"kept {topic}", qos=1, retain=True)
    with Inbox(server) as inbox:
        session.subscribe(("a/#", 1))
        deliveries = inbox.take()
    assert sorted(delivery.message().payload for delivery in deliveries) == [b"kept a", b"kept a/1", b"kept a/2"]
    assert {(delivery.kind, delivery.qos, delivery.retain) for delivery in deliveries} == {
        (core.DeliveryKind.QUEUED, 1, True)
    }
    page = session.fetch()
    assert [entry.value for entry in page.entries] == [delivery.record for delivery in deliveries]
    assert page.serials == [delivery.serial for delivery in deliveries]
    assert page.packet_ids == [delivery.packet_id for delivery in deliveries] == [1, 2, 3]
    assert [delivery.previous for delivery in deliveries] == [0, 1, 2]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_retained_message_comes_with_the_smaller_qos(
    server: Server, session: Session, client: redis.Redis, published: int, subscribed: int
) -> None:
    publish(client, "t", "kept", qos=published, retain=True)
    with Inbox(server) as inbox:
        session.subscribe(("t", subscribed))
        delivery = inbox.take_one()
    smaller = min(published, subscribed)
    stored = smaller > 0
    assert delivery.qos == smaller
    assert delivery.retain
    assert delivery.kind == (core.DeliveryKind.QUEUED if stored else core.DeliveryKind.TRANSIENT)
    assert (delivery.packet_id, delivery.serial) == ((1, 1) if stored else (0, 0))
    message = delivery.message()
    assert (message.topic, message.payload, message.retain) == (b"t", b"kept", True)
    assert len(session.fetch().entries) == stored


def test_retain_handling_says_when_retained_messages_come(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "kept", qos=1, retain=True)

    def handed(options: int) -> int:
        before = len(session.fetch().entries)
        session.subscribe(("t", 1 | options))
        return len(session.fetch().entries) - before

    assert handed(NEVER) == 0
    assert handed(IF_NEW) == 0
    assert handed(0) == 1
    assert handed(0) == 1
    session.unsubscribe("t")
    assert handed(IF_NEW) == 1
    assert handed(IF_NEW) == 0
    assert handed(NEVER) == 0


def test_a_filter_named_twice_in_one_command_is_new_once(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "kept", qos=1, retain=True)
    session.subscribe(("t", 1 | IF_NEW), ("t", 1 | IF_NEW))
    assert len(session.fetch().entries) == 1


def test_each_new_filter_brings_its_retained_messages(session: Session, client: redis.Redis) -> None:
    publish(client, "a/1", "one", qos=1, retain=True)
    publish(client, "b/1", "two", qos=1, retain=True)
    session.subscribe(("a/+", 1), ("b/+", 1), ("c/+", 1))
    assert payloads(session.fetch().entries) == [b"one", b"two"]


def test_a_retained_message_that_expired_or_was_removed_is_not_handed_over(
    session: Session, client: redis.Redis
) -> None:
    publish(client, "t/short", "gone", qos=1, retain=True, ttl=1)
    publish(client, "t/removed", "gone", qos=1, retain=True)
    publish(client, "t/kept", "kept", qos=1, retain=True, ttl=100)
    publish(client, "t/removed", "", qos=1, retain=True)
    eventually(lambda: not client.exists("{t/short}_retained"))
    session.subscribe(("t/#", 1))
    (record,) = records(session.fetch().entries)
    assert (record.topic, record.payload) == (b"t/kept", b"kept")


def test_a_retained_message_keeps_its_time_publisher_properties_and_expiry(
    session: Session, client: redis.Redis
) -> None:
    before = now_ms(client)
    publish(client, "t", "kept", qos=2, retain=True, ttl=100, publisher="dev-1", properties=b"\x01\x01")
    after = now_ms(client)
    session.subscribe(("t", 2))
    (entry,) = session.fetch().entries
    record = core.Record.decode(entry.value)
    assert before <= record.time_ms <= after
    assert record.expires_ms == record.time_ms + 100_000
    assert (record.publisher, record.properties, record.qos) == (b"dev-1", b"\x01\x01", 2)
    assert (
        client.execute_command("PEXPIRETIME", session.message(entry.packet_id)) == record.expires_ms + 10_000
    )  # see test_message_expiry.py


def test_retained_and_other_messages_share_one_row_of_packet_ids(session: Session, client: redis.Redis) -> None:
    session.add("first")
    publish(client, "r", "second", qos=1, retain=True)
    session.subscribe(("r", 1))
    session.add("third")
    page = session.fetch()
    assert page.packet_ids == [1, 2, 3]
    assert session.ack(2) == 1
    assert session.fetch().values == [b"first", b"third"]


def test_a_refused_subscribe_hands_nothing_over(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "kept", qos=1, retain=True)
    session.open()
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^INVALIDTOPIC"):
        session.subscribe(("t", 1), ("t/#/x", 1))
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^FENCED"):
        session.subscribe(("t", 1), epoch=1)


def test_no_local_does_not_hold_back_a_retained_message_of_somebody_else(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "kept", qos=1, retain=True, publisher="other")
    session.subscribe(("t", 1 | NO_LOCAL))
    assert payloads(session.fetch().entries) == [b"kept"]
