"""Conversations with a real bridge on a real server: exact bytes out, exact bytes expected."""

import time
from collections.abc import Callable

import pytest
import redis

from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]

# ---- CONNECT ---------------------------------------------------------------------------------------------------------


def test_a_client_connects_and_says_goodbye(broker: BridgeProcess) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("c1"))
        client.expect(packets.connack())
        client.send(packets.DISCONNECT)
        client.expect_closed()


def test_an_unknown_protocol_level_is_answered_with_code_1(broker: BridgeProcess) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", level=3))
        client.expect(packets.connack(1))  # [MQTT-3.1.2-2]
        client.expect_closed()


def test_an_empty_client_id_with_a_persistent_session_is_answered_with_code_2(broker: BridgeProcess) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("", clean=False))
        client.expect(packets.connack(2))  # [MQTT-3.1.3-8]
        client.expect_closed()


def test_a_second_connect_closes_the_connection(talk: Connect) -> None:
    client = talk("c1")
    client.send(packets.connect("c1"))
    client.expect_closed()  # [MQTT-3.1.0-2]


def test_a_connection_without_a_connect_is_closed(server: Server, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--connect-timeout-s", "0.5"])
    with Talk(made.port) as client:
        client.expect_closed()
    with Talk(made.port) as client:
        began = time.monotonic()
        trickle(client, packets.connect("slow" * 25))
        assert time.monotonic() - began < 15.0  # all of it takes twenty seconds


def test_credentials_and_a_will_are_read(broker: BridgeProcess) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", will=Will("w", b"x", 1, retain=True), username="u", password=b"p"))
        client.expect(packets.connack())


def test_strange_client_ids_are_sessions_of_their_own(talk: Connect) -> None:
    names = ["{a}", "a}b{", "%7Ba", "mit Leerzeichen", "ümläut", "{", "}", "%"]
    for name in names:
        client = talk(name, clean=False)
        client.subscribe((f"to/{names.index(name)}", 1))
        client.disconnect()
    sender = talk()
    for index in range(len(names)):
        sender.publish(f"to/{index}", b"%d" % index)
    for index, name in enumerate(names):
        client = talk(name, clean=False, present=True)
        assert client.read_publish().payload == b"%d" % index


# ---- keep-alive ------------------------------------------------------------------------------------------------------


def test_a_ping_is_answered(talk: Connect) -> None:
    client = talk()
    client.send(packets.PINGREQ)
    client.expect(packets.PINGRESP)


def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives_and_its_will_published(
    broker: BridgeProcess, talk: Connect
) -> None:
    watcher = talk()
    watcher.subscribe(("will/+", 1))
    with Talk(broker.port) as client:
        began = time.monotonic()
        client.send(packets.connect("mute", keep_alive=1, will=Will("will/mute", b"gone", 1)))
        client.expect(packets.connack())
        client.expect_closed()
        assert time.monotonic() - began > 1.4  # [MQTT-3.1.2-24]
    assert watcher.read_publish().topic == "will/mute"


def test_pings_keep_a_client_alive(broker: BridgeProcess) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("alive", keep_alive=2))
        client.expect(packets.connack())
        for _ in range(7):  # in small steps: the sum is what counts
            client.expect_silence(0.5)
            client.send(packets.PINGREQ)
            client.expect(packets.PINGRESP)


@pytest.mark.parametrize("keep_alive", [2, 0])
def test_a_packet_that_is_never_completed_is_not_a_sign_of_life(
    server: Server, bridge: MakeBridge, keep_alive: int
) -> None:
    made = bridge(server, arguments=["--max-keep-alive-s", "2"])  # for a packet of who has no keep-alive
    with Talk(made.port) as client:
        began = time.monotonic()
        client.send(packets.connect("slow", keep_alive=keep_alive))
        client.expect(packets.connack())
        trickle(client, packets.publish("a", b"x" * 100))
        assert 2.9 < time.monotonic() - began < 15.0  # as above
    with Talk(made.port) as client:
        client.send(packets.connect("quick", keep_alive=keep_alive))
        client.expect(packets.connack())
        for _ in range(7):
            client.send(packets.PINGREQ[:1])
            client.expect_silence(0.5)
            client.send(packets.PINGREQ[1:])
            client.expect(packets.PINGRESP)


def test_anyone_who_spoke_while_the_bridge_was_kept_from_running_was_not_silent(
    server: Server, bridge: MakeBridge
) -> None:
    made = bridge(server)
    with Talk(made.port) as client:
        client.send(packets.connect("patient", keep_alive=1))
        client.expect(packets.connack())
        made.pause()
        for _ in range(2):
            time.sleep(0.9)  # the time itself is what is tested
            client.send(packets.PINGREQ)
        made.resume()
        client.expect(packets.PINGRESP, packets.PINGRESP)


def trickle(client: Talk, packet: bytes) -> None:
    """Sends a packet byte by byte, until the connection is closed."""
    for at in range(len(packet)):
        try:
            client.send(packet[at : at + 1])
            client.expect_silence(0.2)
        except (ConnectionError, AssertionError):
            return
    raise AssertionError("all of it was taken")


# ---- publish and subscribe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_smaller_qos_of_publish_and_subscription_is_delivered(
    talk: Connect, published: int, subscribed: int
) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("a/b", subscribed))
    sender.publish("a/b", b"hello", qos=published)
    got = receiver.read_publish()
    assert (got.topic, got.payload, got.qos, got.retain, got.dup) == (
        "a/b",
        b"hello",
        min(published, subscribed),
        False,
        False,
    )


def test_a_subscription_is_granted_the_qos_that_it_asks_for(talk: Connect) -> None:
    client = talk()
    client.send(packets.subscribe(3, ("a", 0), ("b", 1), ("c", 2)))
    client.expect(packets.suback(3, 0, 1, 2))


def test_a_qos_2_message_goes_its_four_steps_to_the_subscriber(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.send(packets.subscribe(3, ("a", 2)))
    receiver.expect(packets.suback(3, 2))
    sender.send(packets.publish("a", b"x", qos=2, pid=7))
    sender.expect(packets.pubrec(7))
    sender.send(packets.pubrel(7))
    sender.expect(packets.pubcomp(7))
    got = receiver.read_publish()
    assert (got.payload, got.qos, got.dup) == (b"x", 2, False)
    receiver.send(packets.pubrec(got.pid))
    receiver.expect(packets.pubrel(got.pid))
    receiver.send(packets.pubcomp(got.pid))
    receiver.expect_nothing()


@pytest.mark.parametrize("clean", [True, False])
def test_a_repeated_qos_2_publish_is_delivered_once(talk: Connect, clean: bool) -> None:
    receiver, sender = talk(), talk("sender", clean=clean)
    receiver.subscribe(("a", 1))
    sender.send(packets.publish("a", b"x", qos=2, pid=7))
    sender.expect(packets.pubrec(7))
    sender.send(packets.publish("a", b"x", qos=2, pid=7, dup=True))
    sender.expect(packets.pubrec(7))
    sender.send(packets.pubrel(7))
    sender.expect(packets.pubcomp(7))
    assert receiver.read_publish().payload == b"x"
    receiver.expect_nothing()


def test_a_client_receives_what_it_publishes_itself(talk: Connect) -> None:
    client = talk()
    client.subscribe(("a", 1))
    client.send(packets.publish("a", b"x", qos=1, pid=5))
    first, second = client.read_packet(), client.read_packet()
    assert {first[0] >> 4, second[0] >> 4} == {3, 4}  # the PUBLISH and its PUBACK


def test_an_empty_payload_is_delivered(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("a", 1))
    sender.publish("a", b"")
    assert receiver.read_publish().payload == b""


def test_a_large_payload_is_delivered_whole(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("a", 1))
    payload = bytes(range(256)) * 2000
    sender.publish("a", payload)
    assert receiver.read_publish().payload == payload


@pytest.mark.parametrize(
    ("topic_filter", "matching", "other"),
    [
        ("a/+/c", ["a/b/c", "a//c"], ["a/b/d", "a/b/c/d", "a/c"]),
        ("a/#", ["a", "a/b", "a/b/c"], ["b/a", "aa"]),
        ("#", ["a", "/a"], ["$own/x"]),
        ("+/+", ["a/b", "/b"], ["a", "a/b/c", "$x/y"]),
        ("/+", ["/a"], ["a", "a/b"]),
        ("$x/#", ["$x/y", "$x"], ["x/y"]),
    ],
)
def test_wildcards_match_as_the_standard_says(
    talk: Connect, topic_filter: str, matching: list[str], other: list[str]
) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe((topic_filter, 1))
    for topic in other:
        sender.publish(topic, b"no")
    for topic in matching:
        sender.publish(topic, b"yes")
    assert [receiver.read_publish().topic for _ in matching] == matching
    receiver.expect_nothing()


def test_overlapping_subscriptions_bring_one_copy_with_the_largest_qos(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("a/#", 0), ("a/+", 1), ("a/b", 0))
    sender.publish("a/b", b"x")
    assert receiver.read_publish().qos == 1
    receiver.expect_nothing()


def test_after_unsubscribe_nothing_comes(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("a", 1), ("b", 1))
    receiver.send(packets.unsubscribe(9, "a", "never"))
    receiver.expect(packets.unsuback(9))
    sender.publish("a", b"no")
    sender.publish("b", b"yes")
    assert receiver.read_publish().topic == "b"
    receiver.expect_nothing()


def test_many_publishes_in_one_write_are_acknowledged_and_delivered_in_order(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("n", 1))
    count = 1000  # ten times the window
    sender.send(*(packets.publish("n", b"%d" % n, qos=1, pid=n) for n in range(1, count + 1)))
    sender.expect(*(packets.puback(n) for n in range(1, count + 1)))
    assert [int(receiver.read_publish().payload) for _ in range(count)] == list(range(1, count + 1))
    receiver.expect_nothing()


def test_no_more_than_the_window_is_unacknowledged(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("n", 1))
    for number in range(1, 151):
        sender.publish("n", b"%d" % number, pid=number)
    got = [receiver.read_publish(acknowledge=False) for _ in range(100)]
    receiver.expect_nothing()
    receiver.send(*(packets.puback(published.pid) for published in got))
    assert [int(receiver.read_publish().payload) for _ in range(50)] == list(range(101, 151))


# ---- retained --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_a_new_subscriber_gets_the_retained_message(talk: Connect, qos: int) -> None:
    sender = talk()
    sender.publish("r/1", b"old", qos=1, retain=True)
    sender.publish("r/1", b"kept", qos=qos, pid=2, retain=True)
    sender.send(packets.PINGREQ)
    sender.expect(packets.PINGRESP)
    receiver = talk()
    receiver.send(packets.subscribe(1, ("r/+", 1)))
    answers = [receiver.read_packet(), receiver.read_packet()]
    assert packets.suback(1, 1) in answers
    (data,) = (answer for answer in answers if answer[0] >> 4 == 3)
    got = packets.read_publish(data)
    assert (got.payload, got.qos, got.retain) == (b"kept", qos, True)


def test_a_live_message_is_not_marked_as_retained(talk: Connect) -> None:
    receiver, sender = talk(), talk()
    receiver.subscribe(("r", 1))
    sender.publish("r", b"x", retain=True)
    assert not receiver.read_publish().retain  # [MQTT-3.3.1-9]


def test_an_empty_retained_message_removes_it(talk: Connect) -> None:
    sender = talk()
    sender.publish("r", b"x", retain=True)
    sender.publish("r", b"", retain=True)
    receiver = talk()
    receiver.subscribe(("r", 1))
    receiver.expect_nothing()


# ---- wills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_client_vanishes(broker: BridgeProcess, talk: Connect, qos: int) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone", qos)))
        client.expect(packets.connack())
    got = watcher.read_publish()
    assert (got.payload, got.qos) == (b"gone", min(qos, 1))  # of the subscription


def test_a_disconnect_keeps_the_will_back(broker: BridgeProcess, talk: Connect) -> None:
    watcher = talk()
    watcher.subscribe(("will", 1))
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone")))
        client.expect(packets.connack())
        client.disconnect()
    watcher.expect_nothing()


def test_a_retained_will_waits_for_later_subscribers(broker: BridgeProcess, talk: Connect) -> None:
    with Talk(broker.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone", 1, retain=True)))
        client.expect(packets.connack())

    def sees_it() -> bool:
        watcher = talk()
        watcher.subscribe(("will", 1))
        return any(packet[0] == 0x33 for packet in watcher.collect())  # PUBLISH, QoS 1, retain

    eventually(sees_it)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(packets.publish("a/#", b"x"), id="a wildcard in a topic"),
        pytest.param(packets.publish("", b"x"), id="an empty topic"),
        pytest.param(packets.publish("a", b"x", qos=1, pid=0), id="identifier 0"),
        pytest.param(packets.packet(0x30, packets.text(b"\xff\xfe")), id="a topic that is not UTF-8"),
        pytest.param(packets.subscribe(1, ("a/#/b", 0)), id="a bad filter"),
        pytest.param(b"\xf0\x00", id="a reserved type"),
        pytest.param(packets.packet(0x30, b"x" * 2_000_000)[:100], id="the beginning of a packet that is too large"),
    ],
)
def test_bad_input_closes_this_connection_and_no_other(talk: Connect, data: bytes) -> None:
    other, client = talk(), talk()
    client.send(data)
    client.expect_closed()
    other.expect_nothing()


def test_a_topic_of_too_many_levels_closes_the_connection(talk: Connect) -> None:
    client = talk()
    client.send(packets.publish("/".join("x" * 200), b"x", qos=1, pid=1))
    client.expect_closed()


def test_a_session_of_another_type_is_answered_as_unavailable(client: redis.Redis, broker: BridgeProcess) -> None:
    client.set("{c1}_session", "no hash")
    with Talk(broker.port) as talk:
        talk.send(packets.connect("c1", clean=False))
        talk.expect(packets.connack(3))
        talk.expect_closed()
