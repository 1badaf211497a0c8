"""TOPIC.PUBLISH: one step from a topic to the queues and inboxes of all sessions that match."""

import random

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    DEFAULT_TTL_S,
    Inbox,
    Session,
    assert_routes_exactly,
    expected_qos,
    now_ms,
    payloads,
    publish,
    unchanged,
)
from tests.support import Server

NO_LOCAL = 4
AS_PUBLISHED = 8
NEVER = 32  # no retained messages at SUBSCRIBE


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


# --- What a session gets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_message_comes_with_the_smaller_qos_and_is_stored_unless_that_is_0(
    server: Server, session: Session, client: redis.Redis, published: int, subscribed: int
) -> None:
    session.add("older")
    session.subscribe(("a/#", subscribed))
    with Inbox(server) as inbox:
        assert publish(client, "a/b", "m", qos=published) == 1
        delivery = inbox.take_one()
    smaller = min(published, subscribed)
    assert (delivery.qos, delivery.retain) == (smaller, False)
    message = delivery.message()
    assert (message.topic, message.payload, message.retain) == (b"a/b", b"m", False)
    newest = session.fetch().entries[-1]
    if smaller == 0:
        assert delivery.kind == core.DeliveryKind.TRANSIENT
        assert newest.value == b"older"
    else:
        assert delivery.kind == core.DeliveryKind.QUEUED
        assert (delivery.packet_id, delivery.serial, delivery.previous) == (2, 2, 1)
        assert newest == (2, 2, 0, delivery.record)


@pytest.mark.parametrize("published", [1, 2])
@pytest.mark.parametrize("subscribed", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("as_published", [0, AS_PUBLISHED])
def test_a_fetched_message_reports_the_qos_and_retain_flag_of_its_delivery(
    session: Session, client: redis.Redis, published: int, subscribed: int, retain: bool, as_published: int
) -> None:
    session.subscribe(("t", subscribed | as_published))
    publish(client, "t", "m", qos=published, retain=retain)
    (entry,) = session.fetch().entries
    record = core.Record.decode(entry.value)
    assert record.qos == min(published, subscribed)
    assert record.retain == (retain and as_published > 0)


def test_the_retain_flag_is_passed_on_only_if_the_subscription_asks_for_it(
    server: Server, session: Session, client: redis.Redis
) -> None:
    session.subscribe(("plain", 1), ("kept", 1 | AS_PUBLISHED))
    with Inbox(server) as inbox:
        for topic in ("plain", "kept"):
            for retain in (False, True):
                publish(client, topic, "m", qos=1, retain=retain)
        assert [delivery.retain for delivery in inbox.take()] == [False, False, False, True]


def test_the_record_holds_all_that_was_published(session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 2))
    properties = b"\x03\x00\x04text\x01\x01"
    before = now_ms(client)
    publish(client, "t", b"\x00\xff", qos=2, ttl=100, publisher="dev/1 {}%", properties=properties)
    after = now_ms(client)
    publish(client, "t", "plain", qos=1)
    full, plain = (core.Record.decode(value) for value in session.fetch().values)
    assert before <= full.time_ms <= after
    assert full == core.Record(
        qos=2,
        time_ms=full.time_ms,
        expires_ms=full.time_ms + 100_000,
        topic=b"t",
        publisher=b"dev/1 {}%",
        properties=properties,
        payload=b"\x00\xff",
    )
    assert plain == core.Record(qos=1, time_ms=plain.time_ms, topic=b"t", payload=b"plain")


def test_the_options_may_come_in_any_order_and_case_and_qos_is_0_if_not_said(
    server: Server, session: Session, client: redis.Redis
) -> None:
    session.subscribe(("t", 2))
    with Inbox(server) as inbox:
        client.execute_command("TOPIC.PUBLISH", "t", "plain")
        client.execute_command(
            "TOPIC.PUBLISH", "t", "m", "properties", b"\x01\x01", "from", "x", "ttl", 9, "retain", "qos", 1
        )
        plain, full = inbox.take()
    assert (plain.kind, plain.qos) == (core.DeliveryKind.TRANSIENT, 0)
    assert full.qos == 1
    assert (full.message().publisher, full.message().properties) == (b"x", b"\x01\x01")
    assert 0 <= 9 - client.ttl("{t}_retained") <= 5


@pytest.mark.parametrize("payload", [b"", b"\xfa\xfb", b"QOS", b"x" * 300_000], ids=["empty", "magic", "word", "long"])
def test_any_payload_arrives(server: Server, session: Session, client: redis.Redis, payload: bytes) -> None:
    session.subscribe(("t", 1))
    with Inbox(server) as inbox:
        assert publish(client, "t", payload) == 1
        assert inbox.take_one().message().payload == payload
    assert payloads(session.fetch().entries) == [payload]


def test_deliveries_chain_by_the_serial_before_them(server: Server, session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 1))
    with Inbox(server) as inbox:
        publish(client, "t", "a")
        publish(client, "t", "b")
        session.ack(1)
        publish(client, "t", "c")
        session.ack(2, 3)
        publish(client, "t", "d")
        deliveries = inbox.take()
    assert [delivery.packet_id for delivery in deliveries] == [1, 2, 3, 4]
    assert [delivery.serial for delivery in deliveries] == [1, 2, 3, 4]
    assert [delivery.previous for delivery in deliveries] == [0, 1, 2, 0]


def test_messages_arrive_in_the_order_of_publishing(server: Server, session: Session, client: redis.Redis) -> None:
    session.subscribe(("#", 2))
    sent = [str(number).encode() for number in range(200)]
    with Inbox(server) as inbox:
        for number, payload in enumerate(sent):
            publish(client, f"t/{number % 7}", payload, qos=1 + number % 2)
        assert [delivery.message().payload for delivery in inbox.take()] == sent
    assert payloads(session.fetch_all()) == sent


# --- Times to live and limits -----------------------------------------------------------------------------------------


def test_a_message_leaves_the_queue_when_it_expires_and_after_the_default_ttl_at_the_latest(
    session: Session, client: redis.Redis
) -> None:
    session.subscribe(("t", 1))
    publish(client, "t", "short", ttl=100)
    publish(client, "t", "long", ttl=4294967295)
    publish(client, "t", "none")
    grace = 10  # see test_message_expiry.py
    for entry, seconds in zip(session.fetch().entries, (100 + grace, DEFAULT_TTL_S, DEFAULT_TTL_S), strict=True):
        record = core.Record.decode(entry.value)
        end = record.time_ms + seconds * 1000
        assert client.execute_command("PEXPIRETIME", session.message(entry.packet_id)) == end
    assert core.Record.decode(session.fetch().values[1]).expires_ms > now_ms(client) + 4_294_960_000_000


def test_the_limit_of_the_queue_holds(server: Server, session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", 3)
    session.subscribe(("t", 1))
    with Inbox(server) as inbox:
        for number in range(5):
            assert publish(client, "t", str(number)) == 1
        assert [delivery.previous for delivery in inbox.take()] == [0, 1, 2, 3, 4]
    assert payloads(session.fetch().entries) == [b"2", b"3", b"4"]


def test_a_message_for_which_there_is_no_room_reaches_nobody(
    server: Server, session: Session, client: redis.Redis
) -> None:
    client.config_set("holdmq.session-limit", 2)
    session.subscribe(("t", 1))
    publish(client, "t", "a")
    publish(client, "t", "b")
    client.execute_command("SESSION.SENT", "{c}", 2)  # what is in flight is never trimmed
    with Inbox(server) as inbox:
        with unchanged(client):
            assert publish(client, "t", "c") == 0
        assert inbox.take() == []
        session.ack(1)
        assert publish(client, "t", "d") == 1
        assert inbox.take_one().packet_id == 3
    assert payloads(session.fetch().entries) == [b"b", b"d"]


# --- Whom it reaches --------------------------------------------------------------------------------------------------


def test_the_reply_counts_the_sessions_that_store_or_hear_it(server: Server, client: redis.Redis) -> None:
    for name, qos in (("{a}", 0), ("{b}", 1), ("{c}", 2), ("{d}", 0)):
        Session(client, name).subscribe(("t", qos))
    assert publish(client, "t", "m", qos=1) == 2
    assert publish(client, "t", "m", qos=0) == 0
    with Inbox(server, "{a}"), Inbox(server, "{c}"):
        assert publish(client, "t", "m", qos=1) == 3
        assert publish(client, "t", "m", qos=0) == 2
    with unchanged(client):
        assert publish(client, "nobody", "m", qos=2) == 0
        assert publish(client, "t", "m", qos=0) == 0


def test_overlapping_filters_give_one_copy_with_the_largest_qos(
    server: Server, session: Session, client: redis.Redis
) -> None:
    session.subscribe(("a/b", 0), ("a/+", 2), ("#", 1), ("a/#", 0 | AS_PUBLISHED))
    with Inbox(server) as inbox:
        assert publish(client, "a/b", "m", qos=2) == 1
        assert inbox.take_one().qos == 2
        assert publish(client, "x", "n", qos=2) == 1
        assert inbox.take_one().qos == 1
    assert payloads(session.fetch().entries) == [b"m", b"n"]


def test_no_local_keeps_a_session_from_hearing_itself(server: Server, client: redis.Redis) -> None:
    me, other = Session(client, "{me}"), Session(client, "{other}")
    me.subscribe(("t", 1 | NO_LOCAL), ("also", 1))
    other.subscribe(("t", 1 | NO_LOCAL))
    with Inbox(server, "{me}") as inbox:
        assert publish(client, "t", "mine", qos=1, publisher="me") == 1
        assert publish(client, "t", "mine", qos=0, publisher="me") == 0
        assert inbox.take() == []
    assert publish(client, "t", "not mine", publisher="other") == 1
    assert publish(client, "t", "nobody's") == 2
    assert publish(client, "also", "mine too", publisher="me") == 1
    assert payloads(me.fetch().entries) == [b"not mine", b"nobody's", b"mine too"]
    assert payloads(other.fetch().entries) == [b"mine", b"nobody's"]


def test_no_local_of_one_filter_does_not_silence_another(session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", 2 | NO_LOCAL), ("#", 1))
    assert publish(client, "t", "mine", qos=2, publisher="c") == 1
    (record,) = [core.Record.decode(value) for value in session.fetch().values]
    assert record.payload == b"mine"


@pytest.mark.parametrize("client_id", ["a{b", "}", "%7B", "%"])
def test_no_local_knows_client_ids_that_are_encoded_in_keys(client: redis.Redis, client_id: str) -> None:
    session = Session(client, core.session_key(client_id))
    session.subscribe(("t", 1 | NO_LOCAL))
    assert publish(client, "t", "mine", publisher=client_id) == 0
    assert publish(client, "t", "other", publisher=client_id + "x") == 1


def test_wildcards_of_the_first_level_do_not_match_topics_that_begin_with_a_dollar(client: redis.Redis) -> None:
    for name, topic_filter in (
        ("{all}", "#"),
        ("{plus}", "+/x"),
        ("{sys}", "$SYS/#"),
        ("{one}", "$SYS/+"),
        ("{d}", "$d"),
    ):
        Session(client, name).subscribe((topic_filter, 1))
    assert_routes_exactly(client, ["$SYS/x", "$SYS", "$SYS/x/y", "$d", "$D", "a/$SYS", "/$SYS", "SYS/x"])


def test_levels_are_compared_byte_by_byte_and_may_be_empty(client: redis.Redis) -> None:
    filters = ["a", "A", "/a", "a/", "/", "+", "+/+", "/+", "//", "+/+/+", "#", "a/#", "/#", "ä", "a b"]
    for number, topic_filter in enumerate(filters):
        Session(client, f"{{s{number}}}").subscribe((topic_filter, 1))
    assert_routes_exactly(client, ["a", "A", "/a", "a/", "/", "//", "a/b", "ä", "a b", "///", " "])


def test_a_publish_reaches_exactly_the_sessions_whose_filters_match(client: redis.Redis) -> None:
    rng = random.Random(20261121)
    levels = ["a", "b", "c", "", "$s"]
    with client.pipeline(transaction=False) as pipe:
        for number in range(150):
            pairs: list[str | int] = []
            for _ in range(rng.randint(1, 5)):
                depth = rng.randint(1, 4)
                parts = [rng.choice([*levels, "+"]) for _ in range(depth)] + (["#"] if rng.random() < 0.3 else [])
                pairs += ["/".join(parts) or "a", rng.choice((0, 1, 2))]
            pipe.execute_command("SESSION.SUBSCRIBE", f"{{s{number}}}", "EPOCH", 0, *pairs)
        pipe.execute()
    topics = ["/".join(rng.choice(levels) for _ in range(rng.randint(1, 5))) or "a" for _ in range(15)]
    assert_routes_exactly(client, topics)


def test_the_deepest_and_longest_topics_are_routed(session: Session, client: redis.Redis) -> None:
    deep, long = "/".join("x" * 128), "y" * 65535
    session.subscribe((deep, 1), ("/".join("+" * 127) + "/#", 1), ("z/+", 1))
    assert publish(client, deep, "deep") == 1
    assert publish(client, "z/" + long[:65533], "long") == 1
    assert publish(client, long, "unheard") == 0
    assert [record.payload for record in map(core.Record.decode, session.fetch().values)] == [b"deep", b"long"]


def test_databases_do_not_hear_each_other(server: Server) -> None:
    first, second = server.client(), server.client(db=3)
    Session(first).subscribe(("t", 1))
    Session(second).subscribe(("u", 1))
    assert publish(second, "t", "m") == 0
    assert publish(first, "u", "m") == 0
    assert publish(first, "t", "m") == 1
    assert publish(second, "u", "m") == 1
    assert len(Session(first).fetch().entries) == len(Session(second).fetch().entries) == 1


def test_a_session_whose_queue_is_something_else_does_not_keep_the_others_from_theirs(client: redis.Redis) -> None:
    good, bad = Session(client, "{good}"), Session(client, "{bad}")
    for session in (good, bad):
        session.subscribe(("t", 1))
    client.rpush("{bad}_messages", "precious")
    assert publish(client, "t", "m") == 1
    assert payloads(good.fetch().entries) == [b"m"]
    assert client.lrange("{bad}_messages", 0, -1) == [b"precious"]
    assert not client.exists("{bad}_last_packet_id")


def test_a_subscription_counts_from_the_next_publish_on_and_changed_options_too(
    session: Session, client: redis.Redis
) -> None:
    assert publish(client, "t", "before", qos=2) == 0
    session.subscribe(("t", 0))
    assert publish(client, "t", "qos 0", qos=2) == 0
    session.subscribe(("t", 2))
    assert publish(client, "t", "qos 2", qos=2) == 1
    session.subscribe(("t", 1 | NO_LOCAL))
    assert publish(client, "t", "mine", qos=2, publisher="c") == 0
    assert payloads(session.fetch().entries) == [b"qos 2"]


def test_the_expected_reply_is_that_of_the_matcher_for_each_qos(server: Server, client: redis.Redis) -> None:
    filters = {"{a}": {"x/#": 2}, "{b}": {"x/+": 1, "+/y": 0}, "{c}": {"x/y": 0}}
    for name, subscriptions in filters.items():
        Session(client, name).subscribe(*subscriptions.items())
    inboxes = {name: Inbox(server, name) for name in filters}
    try:
        for topic in ("x/y", "x", "z/y", "x/y/z"):
            for qos in (0, 1, 2):
                want = {
                    name: granted for name in filters if (granted := expected_qos(filters[name], topic)) is not None
                }
                assert publish(client, topic, "m", qos=qos) == len(want)
                got = {name: [delivery.qos for delivery in inbox.take()] for name, inbox in inboxes.items()}
                assert got == {name: [min(qos, want[name])] if name in want else [] for name in filters}
    finally:
        for inbox in inboxes.values():
            inbox.__exit__()
