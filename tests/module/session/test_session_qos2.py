"""QoS 2 both ways: SESSION.RELEASE for what goes out, RECEIVE and COMPLETE for what comes in."""

import pytest
import redis

from holdmq import core
from tests.module.sessions_support import Session, now_ms, publish, unchanged
from tests.support import eventually

QUEUED, IN_FLIGHT, RELEASED = 0, 1, 2


@pytest.fixture
def session(client: redis.Redis) -> Session:
    return Session(client)


def test_a_released_message_keeps_its_place_identifier_and_time_and_loses_its_payload(
    session: Session, client: redis.Redis
) -> None:
    session.subscribe(("t", 2))
    publish(client, "t", "a" * 100, qos=2, ttl=100)
    publish(client, "t", "b" * 100, qos=2)
    first = core.Record.decode(session.fetch(window=1).values[0])
    ends = client.execute_command("PEXPIRETIME", "{c}_messages_1")
    assert session.release(1) == 1
    page = session.fetch()
    assert (page.packet_ids, page.serials, page.states) == ([1, 2], [1, 2], [RELEASED, QUEUED])
    assert core.Record.decode(page.values[0]) == core.Record(core.RecordType.PUBREL, time_ms=first.time_ms)
    assert client.execute_command("PEXPIRETIME", "{c}_messages_1") == ends
    assert session.ack(1) == 1
    assert session.fetch().packet_ids == [2]


def test_a_release_counts_what_was_there(session: Session, client: redis.Redis) -> None:
    session.add("a", "b", "c")
    session.expire_message(2)
    assert session.release(1, 3) == 2
    with unchanged(client):
        assert session.release(99) == 0
        assert session.release(2) == 0
        assert Session(client, "{nobody}").release(1) == 0
    assert session.release(1) == 1
    assert session.fetch().states == [RELEASED, RELEASED]


def test_a_released_message_is_still_in_flight(session: Session) -> None:
    session.add("a", "b", "c")
    session.fetch(window=2)
    session.release(1)
    assert session.fetch(in_flight=True).states == [RELEASED, IN_FLIGHT]
    assert session.fetch(window=2).entries == []
    session.ack(1)
    assert session.fetch(window=2).values == [b"c"]


def test_an_incoming_identifier_is_new_until_it_is_completed(session: Session, client: redis.Redis) -> None:
    assert session.receive(7) == 1
    assert session.receive(8) == 1
    with unchanged(client):
        assert session.receive(7) == 0
    assert session.complete(7, 99) == 1
    with unchanged(client):
        assert session.complete(7) == 0
    assert session.receive(7) == 1
    assert session.receive(8) == 0
    assert session.complete(7, 8, 7) == 2
    assert client.dbsize() == 0


def test_incoming_and_outgoing_identifiers_are_different_things(session: Session) -> None:
    session.add("a", "b")
    assert session.receive(1) == 1
    assert session.ack(1) == 1
    assert session.receive(1) == 0
    assert session.complete(2) == 0
    assert session.fetch().packet_ids == [2]


def test_all_identifiers_may_be_received(session: Session, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for packet_id in range(1, 65536):
            pipe.execute_command("SESSION.RECEIVE", "{c}", packet_id)
        assert sum(pipe.execute()) == 65535
    assert session.receive(1) == 0
    assert session.complete(*range(1, 65536)) == 65535


def test_received_identifiers_end_with_the_session(session: Session, client: redis.Redis) -> None:
    epoch = session.open(expiry=50, lease=40).epoch
    session.receive(1, epoch=epoch)
    assert client.execute_command("PEXPIRETIME", "{c}_received") == client.execute_command("PEXPIRETIME", "{c}_session")
    session.close(epoch, 1)
    eventually(lambda: client.dbsize() == 0)
    assert session.receive(1) == 1


def test_received_identifiers_of_a_session_that_nobody_opened_end_too(session: Session, client: redis.Redis) -> None:
    session.receive(1)
    client.config_set("holdmq.session-ttl", 100)
    session.receive(2)
    assert client.execute_command("PEXPIRETIME", "{c}_received") > now_ms(client)


def test_received_identifiers_outlast_a_takeover_but_not_a_clean_start(session: Session) -> None:
    session.open(expiry=50)
    session.receive(1)
    session.open(expiry=50)
    assert session.receive(1) == 0
    session.open(expiry=50, clean=True)
    assert session.receive(1) == 1
