"""Sessions that TBMQ left behind: their queues hold its JSON, and clients of either version get what is in them."""

import base64
import json
import time
from typing import Any

import pytest
import redis

from tests.bridge import packets5 as p
from tests.bridge.conformance.peer import PUBLISH, PUBREL, Peer
from tests.support import eventually


def queued(client: redis.Redis, name: str, *messages: dict[str, Any]) -> None:
    """A queue as TBMQ writes it: a sorted set of references, a string each, the last identifier."""
    for packet_id, more in enumerate(messages, 1):
        message = {
            "clientId": "publisher",
            "topicName": f"europe/ua/kyiv/{packet_id}",
            "time": int(time.time() * 1000),
            "qos": 1,
            "packetId": packet_id,
            "packetType": "PUBLISH",
            "payload": base64.b64encode(b"message %d" % packet_id).decode(),
            "retained": False,
            **more,
        }
        key = f"{{{name}}}_messages_{packet_id}"
        client.set(key, json.dumps(message).replace("/", "\\/"), ex=604800)  # as cjson writes it
        client.zadd(f"{{{name}}}_messages", {key: packet_id})
    client.set(f"{{{name}}}_last_packet_id", len(messages))


def test_what_tbmq_had_queued_is_delivered_in_order_and_then_gone(
    client: redis.Redis,
    peer: Any,
    version: int,
) -> None:
    properties = {"userProperties": {"props": [{"k": "a", "v": "b"}]}, "contentType": "text/plain"}
    queued(client, "c1", {}, {"qos": 2}, {"msgExpiryInterval": 60, **properties}, {"qos": 2, "retained": True})
    receiver: Peer = peer("c1", lasting=60)
    assert receiver.connack.present
    got = [receiver.message() for _ in range(4)]
    assert [(m.topic, m.payload, m.qos, m.pid) for m in got] == [
        (f"europe/ua/kyiv/{n}", b"message %d" % n, 2 - n % 2, n) for n in range(1, 5)
    ]
    if version == 5:
        assert got[2].properties[p.USER_PROPERTY] == [("a", "b")]
        assert got[2].properties[p.CONTENT_TYPE] == b"text/plain"
        assert 55 <= got[2].properties[p.MESSAGE_EXPIRY] <= 60
    eventually(lambda: client.keys("{c1}_messages*") == [], what="an empty queue")
    receiver.wants(("a", 1))
    receiver.tell("a", b"new", pid=9)
    assert receiver.message().pid == 5  # the identifiers go on


def test_an_exchange_that_tbmq_had_released_is_completed(client: redis.Redis, peer: Any) -> None:
    queued(client, "c1", {"qos": 2, "packetType": "PUBREL", "payload": ""}, {})
    receiver: Peer = peer("c1", lasting=60)
    assert receiver.read(PUBREL).pid == 1
    receiver.answer(0x70, 1)
    assert receiver.message().payload == b"message 2"
    eventually(lambda: client.keys("{c1}_messages*") == [], what="an empty queue")


@pytest.mark.parametrize("text", ["{}", '{"packetType":"PUBLISH"}', '{"packetType":"PUBLISH","topicName":"a/#"}'])
def test_what_cannot_be_read_holds_up_nothing(client: redis.Redis, peer: Any, text: str) -> None:
    queued(client, "c1", {}, {})
    client.set("{c1}_messages_1", text)
    receiver: Peer = peer("c1", lasting=60)
    got = receiver.read(PUBLISH)
    assert (got.pid, got.payload) == (2, b"message 2")
    receiver.answer(0x40, 2)
    assert receiver.tell("nobody", b"x", qos=2, pid=3) in (0, 0x10)
