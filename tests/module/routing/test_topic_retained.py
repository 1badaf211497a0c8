"""TOPIC.PUBLISH … RETAIN and TOPIC.RETAINED: the last message of a topic, kept for those who come later."""

import random

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


def fill(client: redis.Redis, topics: list[str], payload: str = "m") -> None:
    pipe = client.pipeline(transaction=False)
    for topic in topics:
        pipe.execute_command("TOPIC.PUBLISH", topic, payload, "RETAIN")
    pipe.execute()


def page(client: redis.Redis, topic_filter: str, cursor: bytes, *words: object) -> tuple[bytes, list[bytes]]:
    following, entries = client.execute_command("TOPIC.RETAINED", topic_filter, "CURSOR", cursor, *words)
    return following, entries


def walk(client: redis.Redis, topic_filter: str, *words: object) -> list[list[bytes]]:
    """All pages."""
    cursor, pages = b"0", list[list[bytes]]()
    while cursor != b"0" or not pages:
        cursor, entries = page(client, topic_filter, cursor, *words)
        pages.append(entries)
    return pages


def us_of_retained(client: redis.Redis, *words: object) -> float:
    """What a command takes; an error is one of the replies that it may have."""
    took = []
    for _ in range(10):
        client.config_resetstat()
        client.execute_command("TOPIC.RETAINED", *words)
        stats = {name.lower(): value for name, value in client.info("commandstats").items()}
        took.append(float(stats["cmdstat_topic.retained"]["usec_per_call"]))
    return min(took)


MANY = [f"{number % 200}/{number}/x" for number in range(20_000)]


def test_pages_list_each_topic_once(client: redis.Redis) -> None:
    topics = [f"a/{number % 7}/{number}" for number in range(1300)] + ["b", "a", "$SYS/a", "ä/1"]
    fill(client, topics)
    for topic_filter in ("#", "+/+/+", "a/3/#", "$SYS/#", "a", "nothing", "+"):
        want = sorted(topic.encode() for topic in topics if matches(topic_filter, topic))
        for count in (1, 31, 32, 33, 1_000_000):
            if len(want) < 300 or count > 30:
                pages = walk(client, topic_filter, "COUNT", count)
                assert all(len(entries) <= count for entries in pages)
                assert sorted(topic for entries in pages for topic in entries) == want, (topic_filter, count)


def test_the_step_of_a_page_is_short_however_many_topics_do_not_match(client: redis.Redis) -> None:
    fill(client, MANY[:2000])
    few = us_of_retained(client, "+/+/nothing", "CURSOR", 0)
    fill(client, MANY)
    assert us_of_retained(client, "+/+/nothing", "CURSOR", 0) < 4 * few
    pages = walk(client, "+/+/nothing")
    assert len(pages) > 3
    assert pages == [[]] * len(pages)


def test_without_a_cursor_a_filter_that_needs_more_than_a_step_is_refused(client: redis.Redis) -> None:
    fill(client, MANY)
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"'\+/\+/nothing'.* CURSOR 0$"):
        client.execute_command("TOPIC.RETAINED", "+/+/nothing")
    with pytest.raises(redis.ResponseError, match="more than one step"):
        client.execute_command("TOPIC.RETAINED", "#", "COUNT", 1_000_000)
    assert len(retained_topics(client)) == 1000
    assert retained_topics(client, "7/+/x", count=1000) == sorted(
        topic.encode() for topic in MANY if topic.startswith("7/")
    )


def test_a_page_of_large_messages_ends_after_256_kib(client: redis.Redis) -> None:
    topics = [f"t/{number}" for number in range(40)]
    fill(client, topics, "x" * 100_000)
    pages = walk(client, "#", "VALUES", "COUNT", 1000)
    assert [len(entries) for entries in pages] == [3] * 13 + [1]
    found = [core.Record.decode(entry).topic.decode() for entries in pages for entry in entries]
    assert sorted(found) == sorted(topics)
    with pytest.raises(redis.ResponseError, match="more than one step"):
        client.execute_command("TOPIC.RETAINED", "#", "VALUES")
    assert len(client.execute_command("TOPIC.RETAINED", "#", "VALUES", "COUNT", 3)) == 3
    assert len(retained_topics(client)) == 40


def test_a_list_of_topics_takes_no_longer_for_large_messages(client: redis.Redis) -> None:
    """The payloads are not read: copying them took 2 ms a megabyte."""
    times = {}
    for size in (8 << 20, 16):  # the server's memory is warm when the small ones are measured
        for number in range(30):
            publish(client, f"t/{number}", "x" * size, retain=True)
        times[size] = min(us_of_retained(client, "t/#", "CURSOR", "0", "COUNT", 30) for _ in range(3))
    assert times[8 << 20] < 20 * times[16] + 1000, times
    assert len(client.execute_command("TOPIC.RETAINED", "t/#")) == 30


def test_topics_that_exist_all_the_time_are_listed_once_while_others_come_and_go(client: redis.Redis) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    stable = [f"{dice.choice('abc')}/{number}" for number in range(150)]
    others = [f"{dice.choice('abc')}/{number}/{dice.choice('xy')}" for number in range(150)]
    fill(client, stable)
    for _ in range(10):
        topic_filter = dice.choice(["#", "+/#", "a/#", "+/+", "+/+/x"])
        cursor, listed = b"0", list[bytes]()
        while not listed or cursor != b"0":
            cursor, entries = page(client, topic_filter, cursor, "COUNT", dice.randrange(1, 40))
            listed += entries or [b""]
            for topic in dice.sample(others, 20):
                publish(client, topic, dice.choice(["", "m"]), retain=True)
        found = [topic.decode() for topic in listed]
        want = sorted(topic for topic in stable if matches(topic_filter, topic))
        assert sorted(topic for topic in found if topic in set(stable)) == want, (seed, topic_filter)
        assert all(matches(topic_filter, topic) for topic in found if topic), (seed, topic_filter)


def test_a_cursor_that_no_reply_contained_is_refused(client: redis.Redis) -> None:
    fill(client, ["a", "b"])
    for cursor in ("", "1", "00", ">", ">a/+", ">a\0", "a", "=", "=00", "=" + "0" * 16, "=" + "0" * 18, "=" + "g" * 20):
        with unchanged(client), pytest.raises(redis.ResponseError, match=r"^CURSOR is .*; expected 0, or the cursor"):
            page(client, "#", cursor.encode())
    assert page(client, "#", b">a") == (b"0", [b"b"])


def test_a_cursor_does_not_tell_a_restricted_user_what_its_filter_may_not_read(
    server: Server, client: redis.Redis
) -> None:
    secret = [f"secret/{number}/x" for number in range(9000)]
    fill(client, [*secret, "a/b/nothing", "z/z/nothing"])
    word = "of-a-test"
    client.execute_command(
        "ACL", "SETUSER", "reader", "on", f">{word}", "resetchannels", "&+/+/nothing", "-@all", "+topic.retained"
    )
    reader = server.client(username="reader", password=word)
    cursor, listed, cursors = b"0", list[bytes](), list[bytes]()
    while cursor != b"0" or not cursors:
        cursor, entries = page(reader, "+/+/nothing", cursor)
        listed += entries
        cursors.append(cursor)
    assert listed == [b"a/b/nothing", b"z/z/nothing"]
    assert len(cursors) > 2
    assert all(
        cursor.startswith(b"=") and b"secret" not in bytes.fromhex(cursor[1:].decode()) for cursor in cursors[:-1]
    )
    assert any(cursor.startswith(b">secret/") for cursor in [page(client, "+/+/nothing", b"0")[0]])
    changed = bytearray(cursors[0])
    changed[-1] ^= 1
    with pytest.raises(redis.ResponseError, match=r"^CURSOR is "):
        page(reader, "+/+/nothing", bytes(changed))
