"""Wills: chapters 3.1.2.5 to 3.1.2.7 and, in 5.0, 3.1.3.2."""

import time
from collections.abc import Callable

import pytest

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import PUBLISH, Peer
from tests.bridge.packets import Will
from tests.support import BridgeProcess, Server
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakePeer = Callable[..., Peer]
MakeBridge = Callable[..., BridgeProcess]

GONE = Will("will", b"gone", 1)


def delayed(seconds: int) -> Will:
    """A will that waits."""
    return Will("will", b"gone", 1, properties=p.number(p.WILL_DELAY, seconds))


def watching(make: Callable[..., Peer], *first: int) -> Peer:
    """A client that hears wills."""
    watcher = make(*first)
    watcher.wants(("will/#", 2 | (0x08 if watcher.version == 5 else 0)))
    return watcher


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_published_as_it_says(peer: MakePeer, qos: int, retain: bool) -> None:
    watcher = watching(peer)
    peer("c1", will=Will("will", b"gone", qos, retain)).close()
    got = watcher.message()
    assert (got.topic, got.payload, got.qos) == ("will", b"gone", qos)  # [MQTT-3.1.2-8, -12]
    later = watching(peer).arrived()
    assert [message.payload for message in later if message.kind == PUBLISH] == ([b"gone"] if retain else [])
    # 3.1.1: [MQTT-3.1.2-16, -17], 5.0: [MQTT-3.1.2-14, -15]


def test_an_empty_will_is_a_message(peer: MakePeer) -> None:
    watcher = watching(peer)
    peer("c1", will=Will("will", b"", 1)).close()
    assert watcher.message().payload == b""


def test_a_disconnect_takes_the_will_back(peer: MakePeer) -> None:
    watcher = watching(peer)
    peer("c1", will=GONE, lasting=60).leave()
    peer("c1", lasting=60).close()  # and no later end of the connection brings it
    assert watcher.arrived() == []  # [MQTT-3.14.4-3, 3.1.2-10]


def test_a_will_is_published_once(peer: MakePeer) -> None:
    watcher = watching(peer)
    peer("c1", will=GONE, lasting=60).close()
    assert watcher.message().payload == b"gone"
    peer("c1", lasting=60).vanish()
    peer("c1", lasting=60, clean=True).leave()
    assert watcher.arrived() == []  # [MQTT-3.1.2-10]


def test_without_a_will_nothing_is_published(peer: MakePeer) -> None:
    watcher = watching(peer)
    peer("c1").close()
    peer("c2", lasting=60).close()
    assert watcher.arrived() == []  # 3.1.1: [MQTT-3.1.2-12]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x36\x00", id="a malformed packet"),
        pytest.param(packets.publish("a/#"), id="a wildcard in a topic"),
        pytest.param(b"\x20\x02\0\0", id="a packet of a server"),
    ],
)
def test_a_fault_of_the_client_does_not_take_the_will_back(peer: MakePeer, data: bytes) -> None:
    watcher = watching(peer)
    peer("c1", will=GONE).send(data)
    assert watcher.message().payload == b"gone"


def test_the_will_of_a_client_that_is_taken_over_is_published(peer: MakePeer) -> None:
    watcher = watching(peer)
    first = peer("c1", will=GONE, lasting=60)
    peer("c1", will=Will("will", b"of the second", 1), lasting=60)
    assert watcher.message().payload == b"gone"
    first.close()
    assert watcher.arrived() == []  # that of the second one is in force


def test_a_will_reaches_a_session_that_is_away(peer: MakePeer) -> None:
    watcher = peer("w", lasting=60)
    watcher.wants(("will", 1))
    watcher.leave()
    witness = watching(peer)
    peer("c1", will=GONE).close()
    assert witness.message().payload == b"gone"
    assert peer("w", lasting=60).messages(1) == [b"gone"]


def test_a_killed_process_publishes_the_wills_of_its_clients(
    peer: MakePeer, server: Server, bridge: MakeBridge
) -> None:
    doomed = bridge(server, arguments=["--lease-s", "2"])
    watcher = watching(peer)
    peer("c1", will=GONE, port=doomed.port)
    peer("c2", will=Will("will/2", b"gone, too", 2), lasting=60, port=doomed.port)
    doomed.kill()
    assert {watcher.message().payload for _ in range(2)} == {b"gone", b"gone, too"}
    assert watcher.arrived() == []


# ---- 5.0 -------------------------------------------------------------------------------------------------------------


def test_a_disconnect_may_ask_for_the_will(join: Connect) -> None:
    watcher = watching(join, 5)
    join(5, "c1", will=GONE).leave(0x04)
    assert watcher.message().payload == b"gone"


def test_a_will_has_the_properties_of_a_message_in_their_order(join: Connect) -> None:
    properties = (
        p.number(p.PAYLOAD_FORMAT, 1)
        + p.number(p.MESSAGE_EXPIRY, 100)
        + p.string(p.CONTENT_TYPE, "text/plain")
        + p.string(p.RESPONSE_TOPIC, "answer")
        + p.string(p.CORRELATION_DATA, b"\0\1")
        + p.pair("b", "1")
        + p.pair("a", "2")
        + p.pair("b", "3")
    )
    watcher = watching(join, 5)
    join(5, "c1", will=Will("will", b"gone", 1, properties=properties)).close()
    got = watcher.message().properties
    assert 90 <= got.pop(p.MESSAGE_EXPIRY) <= 100
    assert got == {
        p.PAYLOAD_FORMAT: 1,
        p.CONTENT_TYPE: b"text/plain",
        p.RESPONSE_TOPIC: b"answer",
        p.CORRELATION_DATA: b"\0\1",
        p.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")],
    }  # [MQTT-3.1.3-10]


def test_a_delayed_will_comes_after_its_delay(join: Connect) -> None:
    watcher = watching(join, 5)
    client = join(5, "c1", lasting=60, will=delayed(1))
    began = time.monotonic()
    client.close()
    assert watcher.message().payload == b"gone"  # [MQTT-3.1.2-8]
    assert time.monotonic() - began > 0.9


def test_a_client_that_is_back_in_time_has_no_will_published(join: Connect) -> None:
    watcher = watching(join, 5)
    join(5, "c1", lasting=60, will=delayed(2)).vanish()
    join(5, "c1", lasting=60)
    watcher.expect_silence(2.5)  # [MQTT-3.1.3-9]


def test_a_takeover_keeps_a_delayed_will_back(join: Connect) -> None:
    watcher = watching(join, 5)
    first = join(5, "c1", lasting=60, will=delayed(2))
    join(5, "c1", lasting=60)
    first.expect_refused(0x8E)
    watcher.expect_silence(2.5)  # the same


def test_the_end_of_the_session_does_not_wait_for_the_delay(join: Connect) -> None:
    watcher = watching(join, 5)
    join(5, "c1", will=delayed(60)).close()
    join(5, "c2", lasting=1, will=delayed(60)).close()
    assert watcher.messages(2) == [b"gone", b"gone"]


def test_a_clean_start_ends_the_session_and_brings_its_will(join: Connect) -> None:
    watcher = watching(join, 5)
    join(5, "c1", lasting=60, will=delayed(60)).vanish()
    join(5, "c1", clean=True)
    assert watcher.message().payload == b"gone"


def test_a_delayed_will_is_published_though_its_process_was_killed(
    join: Connect, server: Server, bridge: MakeBridge
) -> None:
    doomed = bridge(server, arguments=["--lease-s", "2"])
    watcher = watching(join, 5)
    join(5, "c1", lasting=60, will=delayed(1), port=doomed.port)
    doomed.kill()
    assert watcher.message().payload == b"gone"
