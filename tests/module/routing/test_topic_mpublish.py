"""TOPIC.MPUBLISH publishes many messages in one step: each as TOPIC.PUBLISH does, and once for each number."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import replay_all, store
from tests.module.sessions_support import (
    Session,
    assert_same_keys,
    payloads,
    snapshot,
    unchanged,
    wait_for_replica,
)
from tests.support import Server


def record(topic: str, payload: str = "m", **facts: Any) -> bytes:
    """A published message."""
    return core.Record(topic=topic.encode(), payload=payload.encode(), **facts).encode()


def bring(client: redis.Redis, after: int, *numbered: tuple[int, bytes], epoch: int = 1) -> list[int]:
    """TOPIC.MPUBLISH by a producer."""
    words = [word for pair in numbered for word in pair]
    reply: list[int] = client.execute_command("TOPIC.MPUBLISH", "PRODUCER", "job", epoch, after, "RECORD", *words)
    return reply


def test_each_message_is_published_as_if_it_came_alone(client: redis.Redis) -> None:
    store(client, "s", "a/#")
    session = Session(client)
    session.subscribe(("a/+", 2), ("b", 1))
    properties = b"\x03\x00\x01x"
    facts: dict[str, Any] = {"publisher": b"dev", "properties": properties}
    messages = [
        record("a/1", "x", qos=2, time_ms=5_000, expires_ms=65_000, **facts),
        record("b", "y", qos=1, retain=True),
        record("nobody", "z"),
    ]
    begin_ms = time.time() * 1000
    assert client.execute_command("TOPIC.MPUBLISH", "RECORD", *messages) == [3, 0, 2]
    kept = core.Record.decode(replay_all(client, "#")[0].record)
    assert (kept.topic, kept.payload, kept.qos, kept.publisher, kept.properties) == (
        b"a/1",
        b"x",
        2,
        b"dev",
        properties,
    )
    assert begin_ms - 1000 < kept.time_ms < begin_ms + 60_000
    assert kept.expires_ms - kept.time_ms == 60_000
    queued = [core.Record.decode(entry.value) for entry in session.fetch().entries]
    assert [(one.topic, one.payload, one.qos) for one in queued] == [(b"a/1", b"x", 2), (b"b", b"y", 1)]
    assert client.execute_command("TOPIC.RETAINED", "#") == [b"b"]


def test_a_producer_may_send_again_from_any_message_on(client: redis.Redis) -> None:
    session = Session(client)
    session.subscribe(("t", 1))
    messages = [(number, record("t", str(number), qos=1)) for number in (1, 2, 5, 6, 9)]
    assert bring(client, 0, *messages[:3]) == [3, 0, 3]
    assert bring(client, 0, *messages[:2]) == [0, 2, 0]
    assert bring(client, 2, *messages[2:]) == [2, 1, 2]
    with unchanged(client):
        assert bring(client, 0, *messages) == [0, 5, 0]
    assert payloads(session.fetch().entries) == [b"1", b"2", b"5", b"6", b"9"]
    assert bring(client, 0, (1, record("t", "new", qos=1)), epoch=2) == [1, 0, 1]
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^FENCED"):
        bring(client, 9, (10, record("t")))


def test_nothing_passes_a_message_that_was_refused(client: redis.Redis) -> None:
    """Several commands are on their way; what follows the refused one must not be published before it."""
    store(client, "s", "a/#")
    client.set("{a/bad}_retained", "of another type")
    first = [(1, record("a/1", "1")), (2, record("a/bad", "2", retain=True)), (3, record("a/1", "3"))]
    behind = (4, record("a/1", "4"))
    with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
        bring(client, 0, *first)
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^GAP .* number 3 of the producer 'job'.* is 1"):
        bring(client, 3, behind)
    client.delete("{a/bad}_retained")
    assert bring(client, 0, *first) == [2, 1, 0]
    assert bring(client, 3, behind) == [1, 0, 0]
    assert [core.Record.decode(entry.record).payload for entry in replay_all(client, "#")] == [b"1", b"2", b"3", b"4"]


GOOD = record("t")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((GOOD, GOOD), "RECORD is missing"),
        (("PRODUCER", "p", 1, 0, "RECORD"), "RECORD has 0 records; expected 1 to 10000"),
        (("RECORD", *[GOOD] * 10_001), "RECORD has 10001 records"),
        (("RECORD", GOOD, b"rubbish"), "message 2 is not a published message"),
        (("RECORD", GOOD, core.Record(type=core.RecordType.PUBREL).encode()), "message 2 is not a published message"),
        (("RECORD", record("t", share=b"$share/g/t")), "message 1 has a share"),
        (("RECORD", GOOD, record("t/+")), "the topic 't/\\+'"),
        (("PRODUCER", "p", 1, 0, "RECORD", 1), "RECORD is followed by 1 arguments; expected pairs"),
        (("PRODUCER", "p", 1, 0, "RECORD", 0, GOOD), "the number of message 1 is '0'; expected a whole number from 1"),
        (("PRODUCER", "p", 1, 7, "RECORD", 7, GOOD), "the number of message 1 is '7'; expected a whole number from 8"),
        (
            ("PRODUCER", "p", 1, 0, "RECORD", 2, GOOD, 2, GOOD),
            "the number of message 2 is '2'; expected a whole number from 3",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "-",
)
def test_wrong_arguments_are_named_and_nothing_is_published(
    client: redis.Redis, words: tuple[Any, ...], error: str
) -> None:
    store(client, "s", "#")
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        client.execute_command("TOPIC.MPUBLISH", *words)


def test_a_replica_and_a_killed_server_have_the_messages_and_how_far_the_producer_came(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(aof=True)
    replica = fresh_server(replica_of=primary, module=False)
    client = primary.client()
    wait_for_replica(client, replica.client())
    store(client, "s", "#")
    messages = [(number, record("t", str(number))) for number in range(1, 301)]
    assert bring(client, 0, *messages) == [300, 0, 0]
    wait_for_replica(client, replica.client())
    want = snapshot(client)
    assert_same_keys(snapshot(replica.client()), want)
    primary.kill()
    primary.start()
    assert_same_keys(snapshot(primary.client()), want)
    assert bring(primary.client(), 0, *messages) == [0, 300, 0]
