"""Retained messages: chapter 3.3.1 of both versions."""

import time
from collections.abc import Callable

import pytest

from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import PUBLISH, Peer
from tests.support import BridgeProcess, Server
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakePeer = Callable[..., Peer]


def kept(peer: MakePeer, topic_filter: str = "#", options: int = 2) -> list[tuple[str, bytes, int]]:
    """What a new subscriber is sent."""
    watcher = peer()
    watcher.wants((topic_filter, options))
    got = watcher.arrived()
    assert all(message.retain for message in got if message.kind == PUBLISH)  # 3.1.1: [MQTT-3.3.1-8]
    watcher.leave()
    return sorted((message.topic, message.payload, message.qos) for message in got if message.kind == PUBLISH)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_retained_message_with_its_qos_waits_for_new_subscribers(peer: MakePeer, qos: int) -> None:
    sender = peer()
    sender.tell("a", b"old", qos=1, retain=True)
    sender.tell("a", b"new", qos=qos, retain=True)
    assert kept(peer) == [("a", b"new", qos)]  # 3.1.1: [MQTT-3.3.1-5, -6, -7], 5.0: [MQTT-3.3.1-5]
    assert kept(peer, options=0) == [("a", b"new", 0)]


def test_a_message_that_is_not_retained_changes_nothing(peer: MakePeer) -> None:
    sender = peer()
    sender.tell("a", b"kept", retain=True)
    sender.tell("a", b"live")
    sender.tell("a", b"")
    assert kept(peer) == [("a", b"kept", 1)]  # 3.1.1: [MQTT-3.3.1-12], 5.0: [MQTT-3.3.1-8]


def test_an_empty_retained_message_is_delivered_and_removes_what_was_there(peer: MakePeer) -> None:
    sender, live = peer(), peer()
    live.wants(("a", 1))
    sender.tell("a", b"kept", retain=True)
    sender.tell("a", b"", retain=True)
    got = [live.message(), live.message()]
    assert [(message.payload, message.retain) for message in got] == [(b"kept", False), (b"", False)]
    assert kept(peer) == []  # 3.1.1: [MQTT-3.3.1-10, -11], 5.0: [MQTT-3.3.1-6, -7]


def test_a_present_subscriber_gets_a_retained_message_without_the_retain_flag(peer: MakePeer) -> None:
    live, sender = peer(), peer()
    live.wants(("a", 1))
    sender.tell("a", b"x", retain=True)
    assert not live.message().retain  # 3.1.1: [MQTT-3.3.1-9], 5.0: [MQTT-3.3.1-12]


def test_a_filter_brings_all_topics_that_match(peer: MakePeer) -> None:
    sender = peer()
    for topic in ("a", "a/b", "a/b/c", "b", "$own/a"):
        sender.tell(topic, topic.encode(), retain=True)
    assert [topic for topic, _, _ in kept(peer, "a/#")] == ["a", "a/b", "a/b/c"]
    assert [topic for topic, _, _ in kept(peer, "+")] == ["a", "b"]
    assert [topic for topic, _, _ in kept(peer, "#")] == ["a", "a/b", "a/b/c", "b"]
    assert [topic for topic, _, _ in kept(peer, "$own/+")] == ["$own/a"]


@pytest.mark.parametrize(("handling", "expected"), [(0, [True, True]), (1, [True, False]), (2, [False, False])])
def test_retain_handling_says_when_they_are_sent(join: Connect, handling: int, expected: list[bool]) -> None:
    sender, receiver = join(5), join(5)
    sender.tell("a", b"kept", retain=True)
    for is_sent in expected:
        receiver.wants(("a", handling << 4 | 1))
        got = receiver.arrived()
        assert [message.payload for message in got] == ([b"kept"] if is_sent else [])  # [MQTT-3.3.1-9, -10, -11]


def test_retain_handling_knows_the_subscriptions_of_the_session(join: Connect) -> None:
    join(5).tell("a", b"kept", retain=True)
    receiver = join(5, "c1", lasting=60)
    receiver.wants(("a", 0x10 | 1))
    assert receiver.message().payload == b"kept"
    receiver.leave()
    receiver = join(5, "c1", lasting=60)
    receiver.wants(("a", 0x10 | 1))
    assert receiver.arrived() == []
    receiver.drops("a")
    receiver.wants(("a", 0x10 | 1))
    assert receiver.message().payload == b"kept"


def test_a_retained_message_keeps_its_properties_and_what_is_left_of_its_expiry(join: Connect) -> None:
    properties = p.number(p.MESSAGE_EXPIRY, 100) + p.string(p.CONTENT_TYPE, "t") + p.pair("b", "1") + p.pair("a", "2")
    join(5).tell("a", b"kept", retain=True, properties=properties)
    receiver = join(5)
    receiver.wants(("a", 1), properties=p.number(p.SUBSCRIPTION_ID, 5))
    got = receiver.message().properties
    assert 90 <= got.pop(p.MESSAGE_EXPIRY) <= 100
    assert got == {p.CONTENT_TYPE: b"t", p.USER_PROPERTY: [("b", "1"), ("a", "2")], p.SUBSCRIPTION_ID: [5]}


def test_a_retained_message_ends_with_its_expiry(join: Connect) -> None:
    join(5).tell("a", b"short", retain=True, properties=p.number(p.MESSAGE_EXPIRY, 1))
    join(5).tell("b", b"long", retain=True, properties=p.number(p.MESSAGE_EXPIRY, 60))
    time.sleep(1.2)  # the passing of time is what is tested
    receiver = join(5)
    receiver.wants(("#", 1))
    assert [got.payload for got in receiver.arrived()] == [b"long"]  # [MQTT-3.3.2-5]


def test_retained_messages_are_the_same_on_every_process(
    peer: MakePeer, server: Server, bridge: Callable[..., BridgeProcess]
) -> None:
    other = bridge(server)
    for number in range(10):
        sender = peer(port=other.port)
        sender.tell(f"t/{number}", b"%d" % number, retain=True)
    assert [payload for _, payload, _ in kept(peer, "t/+")] == [b"%d" % number for number in range(10)]
