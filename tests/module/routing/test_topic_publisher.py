"""TOPIC.PUBLISH … FROM … EPOCH … PACKET: only the current owner publishes, and a QoS 2 message is published once."""

import pytest
import redis

from tests.module.sessions_support import (
    Session,
    epoch_after,
    error_of,
    names,
    now_ms,
    payloads,
    publish,
    snapshot,
    unchanged,
)
from tests.support import eventually

RECEIVED = "{dev}_received"


@pytest.fixture
def reader(client: redis.Redis) -> Session:
    """A session that gets all that is published."""
    session = Session(client, "{reader}")
    session.subscribe(("#", 2))
    return session


def received(client: redis.Redis) -> list[bytes]:
    """The identifiers that the publisher's session has noted."""
    return list(client.execute_command("ZRANGE", RECEIVED, 0, -1))


# --- The epoch --------------------------------------------------------------------------------------------------------


def test_a_publish_under_the_current_epoch_is_routed(client: redis.Redis, reader: Session) -> None:
    epoch = Session(client, "{dev}").open(expiry=60).epoch
    assert publish(client, "t", "m", publisher="dev", epoch=epoch) == 1
    assert payloads(reader.fetch().entries) == [b"m"]


@pytest.mark.parametrize("other", ["older", "newer"])
def test_a_publish_under_another_epoch_is_refused_and_changes_nothing(
    client: redis.Redis, reader: Session, other: str
) -> None:
    device = Session(client, "{dev}")
    first = device.open(expiry=60).epoch
    current = device.open(expiry=60).epoch
    epoch = first if other == "older" else epoch_after(current)
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^FENCED EPOCH is"):
        publish(client, "t", "m", qos=2, retain=True, publisher="dev", epoch=epoch, packet=1)
    assert reader.fetch().entries == []


def test_without_a_session_an_epoch_is_refused_and_0_is_not_asked(client: redis.Redis) -> None:
    with unchanged(client), pytest.raises(redis.ResponseError, match=r"^NOSESSION"):
        publish(client, "t", "m", publisher="dev", epoch=1)
    assert publish(client, "t", "m", publisher="dev", epoch=0) == 0


def test_the_session_is_found_however_its_id_is_written(client: redis.Redis) -> None:
    epoch = Session(client, "{a%7Bb%7D%25}").open(expiry=60).epoch
    assert publish(client, "t", "m", qos=2, publisher="a{b}%", epoch=epoch, packet=5) == 0
    assert client.zrange("{a%7Bb%7D%25}_received", 0, -1) == [b"5"]


# --- The packet identifier --------------------------------------------------------------------------------------------


def test_a_repeated_identifier_publishes_nothing_until_it_is_completed(client: redis.Redis, reader: Session) -> None:
    device = Session(client, "{dev}")
    epoch = device.open(expiry=60).epoch
    assert publish(client, "t", "first", qos=2, publisher="dev", epoch=epoch, packet=7) == 1
    with unchanged(client):
        assert publish(client, "t", "first", qos=2, retain=True, publisher="dev", epoch=epoch, packet=7) == -1
    assert publish(client, "t", "other", qos=2, publisher="dev", epoch=epoch, packet=8) == 1
    assert device.receive(7) == 0
    assert device.complete(7, epoch=epoch) == 1
    assert publish(client, "t", "second", qos=2, publisher="dev", epoch=epoch, packet=7) == 1
    assert payloads(reader.fetch().entries) == [b"first", b"other", b"second"]


def test_an_identifier_is_noted_though_nobody_is_reached(client: redis.Redis) -> None:
    assert publish(client, "t", "m", qos=2, publisher="dev", packet=7) == 0
    assert publish(client, "t", "m", qos=2, publisher="dev", packet=7) == -1
    assert received(client) == [b"7"]


def test_what_receive_noted_is_a_repetition(client: redis.Redis, reader: Session) -> None:
    Session(client, "{dev}").receive(7)
    assert publish(client, "t", "m", qos=2, publisher="dev", packet=7) == -1
    assert reader.fetch().entries == []


def test_the_identifiers_end_with_the_session(client: redis.Redis) -> None:
    device = Session(client, "{dev}")
    epoch = device.open(expiry=60).epoch
    publish(client, "t", "m", qos=2, publisher="dev", epoch=epoch, packet=7)
    assert client.execute_command("PEXPIRETIME", RECEIVED) == client.execute_command("PEXPIRETIME", "{dev}_session")
    device.close(epoch, 0)
    assert names(client, "{dev}*") == []


def test_the_identifiers_of_a_client_without_a_session_end_by_themselves(client: redis.Redis) -> None:
    before = now_ms(client)
    publish(client, "t", "m", qos=2, publisher="dev", packet=7)
    assert client.execute_command("PEXPIRETIME", RECEIVED) >= before + 604_800_000


def test_a_publish_that_is_refused_notes_nothing(client: redis.Redis) -> None:
    client.set("{t}_retained", "no hash")
    with unchanged(client):
        for topic, retain in (("t", True), ("a/+", False)):
            with pytest.raises(redis.ResponseError, match=r"^(WRONGTYPE|INVALIDTOPIC)"):
                publish(client, topic, "m", qos=2, retain=retain, publisher="dev", packet=7)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            publish(client, "t", "m", qos=2, publisher="dev", packet=7)
    finally:
        client.config_set("maxmemory", 0)
    assert received(client) == []
    assert publish(client, "t", "m", qos=2, publisher="dev", packet=7) == 0


def test_identifiers_under_a_key_of_another_type_are_an_error(client: redis.Redis) -> None:
    client.set(RECEIVED, "no sorted set")
    with (
        unchanged(client),
        pytest.raises(redis.ResponseError, match=r"^WRONGTYPE .*_received.*; expected a sorted set"),
    ):
        publish(client, "t", "m", qos=2, retain=True, publisher="dev", packet=7)
    assert publish(client, "t", "m", qos=2, publisher="dev") == 0


def test_inside_a_transaction_both_or_neither_happen(client: redis.Redis, reader: Session) -> None:
    with client.pipeline(transaction=True) as pipe:
        for _ in range(2):
            pipe.execute_command("TOPIC.PUBLISH", "t", "m", "QOS", 2, "FROM", "dev", "PACKET", 7)
        pipe.execute_command("SESSION.COMPLETE", "{dev}", 7)
        assert pipe.execute() == [1, -1, 1]
    assert payloads(reader.fetch().entries) == [b"m"]


# --- Replication ------------------------------------------------------------------------------------------------------


def test_a_repeated_publish_is_recognized_after_a_restart(client: redis.Redis, reader: Session) -> None:
    publish(client, "t", "m", qos=2, publisher="dev", packet=7)
    before = snapshot(client)
    client.execute_command("DEBUG", "RELOAD")
    eventually(lambda: snapshot(client) == before, what="the same keys")
    assert publish(client, "t", "m", qos=2, publisher="dev", packet=7) == -1
    assert payloads(reader.fetch().entries) == [b"m"]


# --- Syntax -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("EPOCH", 1), "FROM is missing; expected, with EPOCH or PACKET, FROM <client id>"),
        (("QOS", 2, "PACKET", 1), "FROM is missing"),
        (("QOS", 2, "FROM", "", "PACKET", 1), "FROM is missing"),
        (("FROM", "dev", "PACKET", 1), "PACKET is given with QOS 0; expected QOS 2"),
        (("QOS", 1, "FROM", "dev", "PACKET", 1), "PACKET is given with QOS 1; expected QOS 2"),
        (("FROM", "dev", "EPOCH"), "EPOCH is missing at the end"),
        (("FROM", "x" * 65536), "FROM has 65536 bytes"),
    ],
)
def test_options_that_cannot_be_are_refused(client: redis.Redis, words: tuple[str | int, ...], message: str) -> None:
    with unchanged(client):
        assert message in (error_of(client, "TOPIC.PUBLISH", "t", "m", *words) or "")
