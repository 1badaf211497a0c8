"""TOPIC.PUBLISH … RETAIN and TOPIC.RETAINED: the last message of a topic, kept for those who come later."""

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    assert_indexes_hold,
    expire_now,
    matches,
    now_ms,
    payloads,
    publish,
    retained_topics,
    snapshot,
    unchanged,
)
from tests.support import Server


def handed_over(client: redis.Redis, topic_filter: str = "#") -> list[core.Record]:
    """What a new subscriber gets."""
    session = Session(client, "{newcomer}")
    session.subscribe((topic_filter, 2))
    records = [core.Record.decode(entry.value) for entry in session.fetch_all()]
    session.drop()
    return records


def test_the_last_retained_message_of_a_topic_is_kept(client: redis.Redis) -> None:
    publish(client, "t", "first", qos=1, retain=True)
    publish(client, "t", "not retained", qos=1)
    assert [record.payload for record in handed_over(client)] == [b"first"]
    publish(client, "t", "second", qos=2, retain=True, publisher="dev")
    (record,) = handed_over(client)
    assert (record.payload, record.qos, record.publisher) == (b"second", 2, b"dev")
    assert retained_topics(client) == [b"t"]


def test_what_a_newer_message_does_not_have_is_not_left_from_the_older(client: redis.Redis) -> None:
    publish(client, "t", "a", qos=2, retain=True, ttl=100, publisher="dev", properties=b"\x01\x01")
    publish(client, "t", "b", qos=1, retain=True)
    (record,) = handed_over(client)
    assert (record.payload, record.qos, record.publisher, record.properties) == (b"b", 1, b"", b"")
    assert record.expires_ms == 0
    (key,) = client.keys("*_retained")
    assert client.ttl(key) == -1


def test_an_empty_payload_removes_the_retained_message(client: redis.Redis) -> None:
    publish(client, "t", "kept", qos=1, retain=True)
    publish(client, "t", "", qos=1, retain=True)
    assert retained_topics(client) == []
    assert snapshot(client) == {}
    with unchanged(client):
        publish(client, "t", "", qos=1, retain=True)


def test_a_retained_publish_reaches_those_who_are_there(client: redis.Redis) -> None:
    session = Session(client)
    session.subscribe(("t", 1))
    assert publish(client, "t", "m", retain=True) == 1
    assert publish(client, "t", "", retain=True) == 1
    assert payloads(session.fetch().entries) == [b"m", b""]


def test_a_retained_message_expires_with_its_ttl_and_not_without(client: redis.Redis) -> None:
    publish(client, "short", "m", retain=True, ttl=100)
    publish(client, "long", "m", retain=True)
    (short,) = client.keys("{short}_*")
    (long,) = client.keys("{long}_*")
    assert now_ms(client) + 99_000 < client.execute_command("PEXPIRETIME", short) <= now_ms(client) + 100_000
    assert client.ttl(long) == -1
    expire_now(client, short)
    assert retained_topics(client) == [b"long"]


def test_the_key_of_a_retained_message_is_the_topic_in_braces(client: redis.Redis) -> None:
    for topic in ("a/b", "{", "a}b", "%7B", "100%", "_retained", "ä"):
        publish(client, topic, topic, qos=1, retain=True)
        assert client.exists(core.retained_key(topic))
    assert len(retained_topics(client)) == client.dbsize() == 7
    assert sorted(record.topic for record in handed_over(client)) == retained_topics(client)


def test_topics_are_found_by_filter(client: redis.Redis) -> None:
    topics = ["a", "a/b", "a/b/c", "a//c", "/a", "b/b", "$SYS/a", "$SYS", "ä/b"]
    for topic in topics:
        publish(client, topic, "m", retain=True)
    for topic_filter in (
        "#",
        "+",
        "a/#",
        "a/+",
        "+/b",
        "a/+/c",
        "/#",
        "$SYS/#",
        "$SYS/+",
        "+/a",
        "a/b",
        "nothing",
        "ä/+",
    ):
        want = sorted(topic.encode() for topic in topics if matches(topic_filter, topic))
        assert retained_topics(client, topic_filter) == want, topic_filter
        assert sorted(record.topic for record in handed_over(client, topic_filter) if record.qos == 1) == want


def test_count_bounds_the_topics_that_are_listed(client: redis.Redis) -> None:
    for number in range(1100):
        publish(client, f"t/{number}", "m", retain=True, qos=0)
    assert len(retained_topics(client)) == 1000
    assert len(retained_topics(client, count=3)) == 3
    assert set(retained_topics(client, count=3)) < {f"t/{number}".encode() for number in range(1100)}
    assert len(retained_topics(client, count=1_000_000)) == 1100
    with unchanged(client):
        retained_topics(client, "t/+", count=5)


def test_databases_keep_retained_messages_of_their_own(server: Server, client: redis.Redis) -> None:
    second = server.client(db=2)
    publish(client, "t", "in 0", qos=1, retain=True)
    assert retained_topics(second) == []
    publish(second, "u", "in 2", qos=1, retain=True)
    assert retained_topics(second) == [b"u"]
    assert [record.payload for record in handed_over(client)] == [b"in 0"]


def test_a_retained_message_that_somebody_deletes_or_spoils_is_not_handed_over(client: redis.Redis) -> None:
    for topic in ("deleted", "renamed", "overwritten", "spoilt", "kept"):
        publish(client, topic, topic, qos=1, retain=True)
    client.delete(core.retained_key("deleted"))
    client.rename(core.retained_key("renamed"), core.retained_key("moved/here"))
    client.set(core.retained_key("overwritten"), "no message")
    client.hset(core.retained_key("spoilt"), "qos", "9")
    assert_indexes_hold(client)
    handed = {record.topic for record in handed_over(client)}
    assert handed <= {b"kept", b"moved/here"}
    assert b"kept" in handed
    assert b"deleted" not in retained_topics(client)
    assert handed_over(client, "renamed") == []


def test_a_retained_message_is_never_handed_over_under_another_topic_than_its_key_says(client: redis.Redis) -> None:
    publish(client, "a/b", "m", qos=1, retain=True)
    client.rename(core.retained_key("a/b"), core.retained_key("c/d"))
    assert handed_over(client, "a/#") == []
    assert [record.topic for record in handed_over(client, "c/#")] in ([], [b"c/d"])
    assert retained_topics(client) in ([], [b"c/d"])


def test_a_wrong_type_under_the_key_refuses_the_publish_and_changes_nothing(client: redis.Redis) -> None:
    Session(client).subscribe(("t", 1))
    client.rpush(core.retained_key("t"), "precious")
    for payload in ("m", ""):
        with unchanged(client), pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .*\{t\}_retained"):
            publish(client, "t", payload, retain=True)
    assert publish(client, "t", "m") == 1
