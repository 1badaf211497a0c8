"""What is pushed to a connection that does not read: whole messages up to a bound, then headers."""

from collections.abc import Callable

import pytest
import redis

from holdmq.core import Delivery
from tests.module.sessions_support import Session, assert_indexes_hold, publish
from tests.support import RawClient
from tests.support.raw import Push

PAYLOAD = "x" * 100_000
LINK_BYTES = 4 << 20
SLACK_BYTES = 1 << 20


def output_of(client: redis.Redis, name: str) -> int:
    """Bytes in the server's output buffer for a connection."""
    return next(int(one["omem"]) for one in client.client_list() if one["name"] == name)


def deliveries(link: RawClient, count: int) -> list[Delivery]:
    """The next pushes to inboxes."""
    found = []
    for _ in range(count):
        push = link.read()
        assert isinstance(push, Push)
        assert isinstance(push[2], bytes)
        found.append(Delivery.decode(push[2]))
    return found


def test_a_link_that_does_not_read_gets_headers(client: redis.Redis, raw: Callable[..., RawClient]) -> None:
    link = raw(protocol=3)
    link.call("CLIENT", "SETNAME", "link")
    link.call("SESSION.OWNER", "link", "LEASE", "100")
    link.call("SESSION.OPEN", "{c}", "OWNER", "link", "EXPIRY", "100")
    link.call("SUBSCRIBE", "{c}_inbox")
    session = Session(client)
    session.subscribe(("t", 1))
    for _ in range(300):
        publish(client, "t", PAYLOAD, qos=1)
    assert output_of(client, "link") < LINK_BYTES + SLACK_BYTES
    got = deliveries(link, 300)
    assert [one.serial for one in got] == list(range(1, 301))
    headers = [one for one in got if not one.record]
    assert client.info("holdmq")["holdmq_pushed_headers"] == len(headers) > 0
    assert {one.previous - one.serial for one in headers} == {0}
    assert {one.serial - one.previous for one in got if one.record} == {1}
    publish(client, "t", PAYLOAD, qos=1)
    assert deliveries(link, 1)[0].record
    assert len(session.fetch(count=1000, size=1 << 30).entries) == 301
    assert_indexes_hold(client)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_one_publish_pushes_to_connections_of_no_owner_is_bounded(
    client: redis.Redis, raw: Callable[..., RawClient], qos: int
) -> None:
    link = raw(protocol=3)
    keys = [f"{{{number}}}" for number in range(60)]
    for key in keys:
        Session(client, key).subscribe(("t", qos))
        link.call("SUBSCRIBE", f"{key}_inbox")
    payload = "x" * 1_000_000
    publish(client, "t", payload, qos=qos)
    got = deliveries(link, len(keys))
    assert 1 <= sum(bool(one.record) for one in got) <= LINK_BYTES // len(payload) + 1
    assert all(Session(client, key).fetch(size=1 << 30).entries for key in keys)


def test_large_messages_leave_room_for_small_ones(client: redis.Redis, raw: Callable[..., RawClient]) -> None:
    """A small message is pushed whole, however many large ones another client sends."""
    link = raw(protocol=3)
    link.call("CLIENT", "SETNAME", "link")
    link.call("SESSION.OWNER", "link", "LEASE", "100")
    for key in ("{large}", "{small}"):
        link.call("SESSION.OPEN", key, "OWNER", "link", "EXPIRY", "100")
        link.call("SUBSCRIBE", f"{key}_inbox")
    Session(client, "{large}").subscribe(("l", 1))
    Session(client, "{small}").subscribe(("s", 1))
    for _ in range(100):
        publish(client, "l", PAYLOAD, qos=1)
    assert output_of(client, "link") < LINK_BYTES // 4 + SLACK_BYTES
    for _ in range(100):
        publish(client, "s", "x" * 1000, qos=1)
    got = deliveries(link, 200)
    large, small = got[:100], got[100:]
    assert not all(one.record for one in large)
    assert all(one.record for one in small)
