"""Messages of QoS 0 that come faster than their link takes them wait in the queue, and push nothing out."""

from collections.abc import Callable

import pytest
import redis

from holdmq.core import Delivery, DeliveryKind, Record
from tests.module.sessions_support import Session, publish
from tests.support import RawClient
from tests.support.raw import Push

LARGE = "x" * 100_000


class Link:
    """A connection that owns the session {c} and listens to its inbox."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        raw.call("CLIENT", "SETNAME", "link")
        raw.call("SESSION.OWNER", "link", "LEASE", "100")
        raw.call("SESSION.OPEN", "{c}", "OWNER", "link", "EXPIRY", "100")
        raw.call("SUBSCRIBE", "{c}_inbox")

    def read(self, count: int) -> list[Delivery]:
        """The next pushes."""
        found = []
        for _ in range(count):
            push = self.raw.read()
            assert isinstance(push, Push)
            assert isinstance(push[2], bytes)
            found.append(Delivery.decode(push[2]))
        return found


@pytest.fixture
def link(raw: Callable[..., RawClient]) -> Link:
    return Link(raw(protocol=3))


@pytest.fixture
def session(client: redis.Redis, link: Link) -> Session:  # noqa: ARG001 (the session is open)
    made = Session(client)
    made.subscribe(("t/#", 0))
    return made


def flood(client: redis.Redis, count: int = 300) -> None:
    """More than a link that does not read takes; each message says its number."""
    for number in range(count):
        publish(client, "t/x", f"{number:04}" + LARGE)


def numbers(values: list[bytes]) -> list[int]:
    """What the messages say."""
    return [int(bytes(Record.decode(value).payload[:4])) for value in values]


def waits(client: redis.Redis) -> bool:
    return client.hexists("{c}_session", "qos0_until")


def test_what_the_link_does_not_take_waits_in_its_order(session: Session, client: redis.Redis, link: Link) -> None:
    flood(client)
    got = link.read(300)
    pushed = [one for one in got if one.kind == DeliveryKind.TRANSIENT]
    queued = session.fetch(count=1000, size=1 << 30)
    assert 0 < len(pushed) < 300
    assert got[: len(pushed)] == pushed
    assert numbers([one.record for one in pushed]) + numbers(queued.values) == list(range(300))
    assert {one.qos for one in got} == {0}
    assert {Record.decode(value).qos for value in queued.values} == {0}
    assert waits(client)


def test_while_a_message_of_qos_0_is_queued_later_ones_are_queued_too(
    session: Session, client: redis.Redis, link: Link
) -> None:
    flood(client)
    link.read(300)
    publish(client, "t/y", "small")
    (small,) = link.read(1)
    assert (small.kind, small.qos, bytes(Record.decode(small.record).payload)) == (DeliveryKind.QUEUED, 0, b"small")
    waiting = session.fetch(count=1000, size=1 << 30).packet_ids
    session.ack(*waiting[:-1])
    publish(client, "t/y", "behind it")
    assert link.read(1)[0].kind == DeliveryKind.QUEUED
    session.ack(*session.fetch(count=1000, size=1 << 30).packet_ids)
    assert not waits(client)
    publish(client, "t/y", "at once")
    assert link.read(1)[0].kind == DeliveryKind.TRANSIENT


def test_it_is_known_after_a_reload_and_ends_when_the_messages_are_gone_by_others(
    session: Session, client: redis.Redis, link: Link
) -> None:
    flood(client)
    link.read(300)
    client.execute_command("DEBUG", "RELOAD")
    assert link.read(1)[0].kind == DeliveryKind.DROPPED  # for a moment nothing was there
    publish(client, "t/y", "small")
    assert link.read(1)[0].kind == DeliveryKind.QUEUED
    assert session.fetch().entries
    client.delete("{c}_messages")
    publish(client, "t/y", "at once")
    assert link.read(1)[0].kind == DeliveryKind.TRANSIENT
    assert not waits(client)


def test_it_pushes_no_message_out_of_a_full_queue(session: Session, client: redis.Redis) -> None:
    client.config_set("holdmq.session-limit", "10")
    before = client.info("holdmq")
    session.subscribe(("kept", 1))
    for number in range(5):
        publish(client, "kept", f"{number}", qos=1)
    flood(client)
    entries = [Record.decode(value) for value in session.fetch(count=1000, size=1 << 30).values]
    assert [entry.qos for entry in entries] == [1] * 5 + [0] * 5
    after = client.info("holdmq")
    assert after["holdmq_qos0_queued"] - before["holdmq_qos0_queued"] == 5
    assert after["holdmq_qos0_dropped"] > before["holdmq_qos0_dropped"]
    client.config_set("holdmq.session-limit", "10000")


def test_nothing_of_it_waits_for_a_client_that_has_gone(session: Session, client: redis.Redis) -> None:
    epoch = int(client.hget("{c}_session", "epoch") or 0)
    client.execute_command("SESSION.CLOSE", "{c}", "EPOCH", epoch)
    flood(client, 10)
    assert session.fetch().entries == []


def test_a_clean_session_begins_without_queued_messages_of_qos_0(session: Session, client: redis.Redis) -> None:
    flood(client)
    session.open(clean=True, expiry=100)
    assert not waits(client)
    assert session.fetch().entries == []
