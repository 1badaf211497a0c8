"""Subscription identifiers, and no local, retain as published and retain handling once more, as MQTT 5.0 has them."""

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import (
    Inbox,
    Session,
    assert_indexes_hold,
    error_of,
    publish,
    snapshot,
    unchanged,
)
from tests.support import Server

NO_LOCAL = 4
AS_PUBLISHED = 8
IF_NEW, NEVER = 16, 32
LARGEST = 268435455


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def identifiers(properties: bytes) -> tuple[list[int], bytes]:
    """The subscription identifiers at the front of properties (MQTT 5.0 section 3.3.2.3.8), and the rest."""
    found = []
    while properties[:1] == b"\x0b":
        value, at = 0, 1
        while True:
            value |= (properties[at] & 0x7F) << (7 * (at - 1))
            at += 1
            if not properties[at - 1] & 0x80:
                break
        found.append(value)
        properties = properties[at:]
    return found, properties


def received(session: Session) -> list[tuple[list[int], bytes]]:
    """Identifiers and other properties of each message in the queue."""
    return [identifiers(core.Record.decode(value).properties) for value in session.fetch().values]


@pytest.mark.parametrize("identifier", [1, 127, 128, 16383, 16384, 2097151, 2097152, LARGEST])
def test_a_copy_carries_the_identifier_in_front_of_the_publishers_properties(
    session: Session, client: redis.Redis, identifier: int
) -> None:
    session.subscribe(("a/#", f"1:{identifier}"))
    publish(client, "a/b", "m", properties=b"\x01\x01")
    publish(client, "a/b", "m")
    assert received(session) == [([identifier], b"\x01\x01"), ([identifier], b"")]
    assert client.hget("{c}_subscriptions", "a/#") == f"1:{identifier}".encode()


def test_a_session_gets_one_copy_with_the_identifiers_of_all_that_match(session: Session, client: redis.Redis) -> None:
    session.subscribe(("a/b", "1:7"), ("a/+", "2:300"), ("a/#", 0), ("#", "0:7"), ("b", "2:9"))
    publish(client, "a/b", "m", qos=2)
    (entry,) = session.fetch().entries
    record = core.Record.decode(entry.value)
    assert record.qos == 2
    found, rest = identifiers(record.properties)
    assert sorted(found) == [7, 7, 300]
    assert rest == b""


def test_each_session_gets_its_own_identifiers(server: Server, client: redis.Redis) -> None:
    options = ["1:1", "1", "1:2", "2:2", "0:1", "1:1"]
    sessions = [Session(client, f"{{c{number}}}") for number in range(len(options))]
    for each, text in zip(sessions, options, strict=True):
        each.subscribe(("t", text))
    with Inbox(server, "{c4}") as inbox:
        publish(client, "t", "m", qos=2, properties=b"\x01\x01")
        transient = inbox.take_one()
    assert transient.kind == core.DeliveryKind.TRANSIENT
    assert identifiers(transient.message().properties) == ([1], b"\x01\x01")
    got = [received(each) for each in sessions]
    expected = [([int(text.partition(":")[2])] if ":" in text else [], b"\x01\x01") for text in options]
    assert got == [[one] if number != 4 else [] for number, one in enumerate(expected)]


def test_the_inbox_carries_what_the_queue_holds(server: Server, session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", "1:5"))
    with Inbox(server) as inbox:
        publish(client, "t", "m")
        assert inbox.take_one().record == session.fetch().values[0]


def test_a_retained_message_carries_the_identifier_of_the_subscription(session: Session, client: redis.Redis) -> None:
    publish(client, "t", "m", retain=True, properties=b"\x01\x01")
    session.subscribe(("t", "1:5"), ("+", "1:6"))
    assert received(session) == [([5], b"\x01\x01"), ([6], b"\x01\x01")]


def test_subscribing_again_replaces_the_identifier(session: Session, client: redis.Redis) -> None:
    for options in ("1:5", "1:6", "1"):
        session.subscribe(("t", options))
        publish(client, "t", "m")
    assert received(session) == [([5], b""), ([6], b""), ([], b"")]


def test_identifiers_are_known_after_a_reload_and_when_others_wrote_them(session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", f"1:{LARGEST}"))
    client.hset("{d}_subscriptions", mapping={"t": "2:9", "u": "1:0", "v": "1:268435456", "w": "1:", "x": ":1"})
    for _ in range(2):
        assert_indexes_hold(client)
        publish(client, "t", "m")
        for topic in "uvwx":
            assert publish(client, topic, "m") == 0
        before = snapshot(client)
        client.execute_command("DEBUG", "RELOAD")
        assert snapshot(client) == before
    assert received(session) == [([LARGEST], b"")] * 2
    assert received(Session(client, "{d}")) == [([9], b"")] * 2


@pytest.mark.parametrize(
    "options", ["1:0", "1:268435456", "1:", ":1", "1:x", "1:1:1", "3:1", "48:1", "1:01", "01", "1 "]
)
def test_options_that_cannot_be_are_refused(session: Session, client: redis.Redis, options: str) -> None:
    with unchanged(client):
        error = error_of(client, "SESSION.SUBSCRIBE", session.key, "t", options)
    assert error is not None
    assert error.startswith(f"options is '{options}'; expected a byte of subscription options")


# --- The other options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published_by", ["c", "other", None])
def test_with_no_local_the_clients_own_messages_do_not_come_back_retained_ones_included(
    session: Session, client: redis.Redis, published_by: str | None
) -> None:
    publish(client, "t", "retained", retain=True, publisher=published_by)
    session.subscribe(("t", 1 | NO_LOCAL))
    publish(client, "t", "live", publisher=published_by)
    assert len(session.fetch().entries) == (0 if published_by == "c" else 2)


def test_without_no_local_on_another_filter_the_message_comes(session: Session, client: redis.Redis) -> None:
    session.subscribe(("t", f"{1 | NO_LOCAL}:1"), ("+", "1:2"))
    publish(client, "t", "m", publisher="c")
    assert received(session) == [([2], b"")]


@pytest.mark.parametrize("as_published", [0, AS_PUBLISHED])
def test_a_retained_message_that_a_subscription_is_sent_is_marked_so_always(
    session: Session, client: redis.Redis, as_published: int
) -> None:
    publish(client, "t", "m", retain=True)
    session.subscribe(("t", 1 | as_published))
    assert core.Record.decode(session.fetch().values[0]).retain


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 2]), (IF_NEW, [1, 1]), (NEVER, [0, 0])])
def test_retain_handling_says_when_retained_messages_are_sent(
    session: Session, client: redis.Redis, handling: int, counts: list[int]
) -> None:
    publish(client, "t", "m", retain=True)
    for count in counts:
        session.subscribe(("t", 1 | handling))
        assert len(session.fetch().entries) == count
