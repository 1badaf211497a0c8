"""PUBLISH and its answers at each QoS, in both directions: chapters 3.3 to 3.7, 4.3, 4.5 and 4.6."""

from collections.abc import Callable

import pytest

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, Peer
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakePeer = Callable[..., Peer]

# ---- what is delivered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_a_message_comes_with_the_smaller_qos_and_new(peer: MakePeer, published: int, subscribed: int) -> None:
    receiver, sender = peer(), peer()
    assert receiver.wants(("a", subscribed)) == [subscribed]
    assert sender.tell("a", b"x", qos=published, pid=77) == 0
    got = receiver.message()
    assert (got.payload, got.qos, got.dup) == (b"x", min(published, subscribed), False)  # [MQTT-3.8.4-6, -8]
    assert bool(got.pid) is (got.qos > 0)  # [MQTT-2.3.1-4, -5, 2.2.1-2, -4]


def test_dup_is_the_senders_own_affair(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    for qos in (1, 2):
        sender.tell("a", b"%d" % qos, qos=qos, dup=True)
    assert [(got.payload, got.dup) for got in (receiver.message(), receiver.message())] == [
        (b"1", False),
        (b"2", False),
    ]  # [MQTT-3.3.1-3]


def test_a_qos_0_publish_with_dup_is_refused(peer: MakePeer) -> None:
    sender = peer()
    sender.say("a", b"x", dup=True)
    sender.expect_refused(0x81, 0x82)  # [MQTT-3.3.1-2]


def test_topics_and_payloads_arrive_byte_for_byte(peer: MakePeer) -> None:
    topics = ["/", "a//b", "A", "a", "\ufeffa", "e\u0301", "\u00e9", "a b", "\U0001f600", "x" * 65535]
    receiver, sender = peer(), peer()
    receiver.wants(("#", 1))
    for number, topic in enumerate(topics):
        sender.tell(topic, bytes([number]) * number)
    got = [receiver.message() for _ in topics]
    assert [message.topic for message in got] == topics  # [MQTT-1.5.3-3, 1.5.4-3, 3.3.2-3, 4.7.3-3]
    assert [message.payload for message in got] == [bytes([n]) * n for n in range(len(topics))]


def test_topics_that_look_alike_are_others(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("e\u0301", 1), ("a/b", 1))
    for topic in ("\u00e9", "a/b/", "/a/b", "a//b", "A/b", " a/b"):
        sender.tell(topic, b"no")
    assert receiver.arrived() == []  # [MQTT-4.7.3-4]


def test_messages_of_one_sender_arrive_in_their_order_at_each_qos(peer: MakePeer) -> None:
    receivers, sender = [peer() for _ in range(3)], peer()
    for qos, receiver in enumerate(receivers):
        receiver.wants(("#", qos))
    sender.send(
        *(
            p.publish(f"t/{n % 3}", b"%d" % n, qos=1 + n % 2, pid=n)
            if sender.version == 5
            else packets.publish(f"t/{n % 3}", b"%d" % n, qos=1 + n % 2, pid=n)
            for n in range(1, 61)
        )
    )
    for receiver in receivers:
        got = [receiver.message() for _ in range(60)]
        for topic in range(3):  # [MQTT-4.6.0-5, -6]
            assert [int(m.payload) for m in got if m.topic == f"t/{topic}"] == [
                n for n in range(1, 61) if n % 3 == topic
            ]


# ---- towards the server ----------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_publishes(peer: MakePeer) -> None:
    sender = peer()
    for number in range(1, 41):
        sender.say("a", b"x", qos=1 + number % 2, pid=number)
    got = [sender.read() for _ in range(40)]
    assert [(a.kind, a.pid) for a in got] == [(PUBREC if n % 2 else PUBACK, n) for n in range(1, 41)]  # [MQTT-4.6.0-2]
    for number in range(1, 41, 2):
        sender.answer(0x62, number)
    assert [(a.kind, a.pid) for a in (sender.read() for _ in range(20))] == [(PUBCOMP, n) for n in range(1, 41, 2)]


def test_after_its_puback_an_identifier_is_a_new_message_whatever_dup_says(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 1))
    sender.tell("a", b"1", qos=1, pid=9)
    sender.tell("a", b"2", qos=1, pid=9, dup=True)
    assert receiver.messages(2) == [b"1", b"2"]  # 3.1.1: [MQTT-4.3.2-2], 5.0: [MQTT-4.3.2-5]


def test_until_its_pubrel_an_identifier_of_qos_2_is_the_same_message(peer: MakePeer) -> None:
    receiver, sender = peer(), peer("sender")
    receiver.wants(("a", 2))
    for dup in (False, True, True):
        sender.say("a", b"1", qos=2, pid=9, dup=dup)
        got = sender.read(PUBREC)
        assert (got.pid, got.code) == (9, 0)  # 5.0: [MQTT-4.3.3-10]
    sender.answer(0x62, 9)
    assert sender.read(PUBCOMP).pid == 9
    sender.tell("a", b"2", qos=2, pid=9)  # 5.0: [MQTT-4.3.3-12]
    assert receiver.messages(2) == [b"1", b"2"]  # 3.1.1: [MQTT-4.3.3-2]
    assert receiver.arrived() == []


def test_a_pubrel_that_comes_again_is_answered_again(peer: MakePeer) -> None:
    sender = peer()
    sender.tell("a", b"x", qos=2, pid=9)
    sender.answer(0x62, 9)
    got = sender.read(PUBCOMP)
    assert (got.pid, got.code) == (9, 0)  # 5.0: [MQTT-4.3.3-11]


def test_the_server_delivers_a_qos_2_message_before_its_pubrel(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 1))
    sender.say("a", b"x", qos=2, pid=9)
    assert sender.read(PUBREC).pid == 9
    assert receiver.message().payload == b"x"  # method B of section 4.3.3


def test_a_pubrel_need_not_wait_for_its_pubrec(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    for number in range(1, 6):
        sender.say("a", b"%d" % number, qos=2, pid=7)
        sender.answer(0x62, 7)
    assert [(got.kind, got.pid, got.code) for got in (sender.read() for _ in range(10))] == [
        (PUBREC, 7, 0),
        (PUBCOMP, 7, 0),
    ] * 5
    assert receiver.messages(5) == [b"1", b"2", b"3", b"4", b"5"]


# ---- towards the client ----------------------------------------------------------------------------------------------


def test_identifiers_in_use_are_not_given_again(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    for number in range(1, 41):
        sender.tell("a", b"x", qos=1 + number % 2, pid=number)
    held = [receiver.message(finish=False) for _ in range(40)]
    assert len({got.pid for got in held}) == 40  # [MQTT-2.3.1-4, 2.2.1-4, 4.3.2-1, 4.3.3-1]
    assert all(got.pid for got in held)


def test_a_pubrec_is_answered_with_pubrel_however_often_it_comes(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"x", qos=2)
    got = receiver.message(finish=False)
    for _ in range(2):
        receiver.answer(0x50, got.pid)
        release = receiver.read(PUBREL)
        assert (release.pid, release.code) == (got.pid, 0)  # 5.0: [MQTT-4.3.3-4], 3.1.1: [MQTT-4.3.3-1]
    receiver.answer(0x70, got.pid)
    assert receiver.arrived() == []


def test_a_message_is_sent_once_in_a_connection(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"1", qos=1)
    sender.tell("a", b"2", qos=2)
    assert [receiver.message(finish=False).payload for _ in range(2)] == [b"1", b"2"]
    receiver.expect_silence(0.3)  # no PUBLISH and no PUBREL again while the connection lasts: 5.0 [MQTT-4.4.0-1]


def test_an_answer_to_nothing_harms_nothing(peer: MakePeer) -> None:
    client = peer()
    client.answer(0x40, 5)
    client.answer(0x70, 6)
    assert client.arrived() == []
    client.answer(0x50, 7)
    release = client.read(PUBREL)
    assert (release.pid, release.code) == (7, 0x92 if client.version == 5 else 0)
    client.wants(("a", 1))
    client.tell("a", b"x")
    assert client.message().payload == b"x"


@pytest.mark.parametrize(("qos", "wrong"), [(1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)])
def test_an_answer_that_the_qos_does_not_have_ends_the_connection_and_not_the_exchange(
    join: Connect, qos: int, wrong: int
) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 2))
    sender.tell("a", b"x", qos=qos)
    got = receiver.message(finish=False)
    receiver.answer(wrong, got.pid)
    receiver.expect_refused(0x82)  # section 4.3, [MQTT-4.13.1-1]
    receiver = join(5, "c1", lasting=60)
    again = receiver.message()
    assert (again.pid, again.dup, again.payload) == (got.pid, True, b"x")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refusing_answer_ends_the_exchange(join: Connect, qos: int) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 2))
    sender.tell("a", b"1", qos=qos)
    got = receiver.message(finish=False)
    receiver.answer(0x40 if qos == 1 else 0x50, got.pid, 0x83)
    assert receiver.arrived() == []  # no PUBREL
    receiver.leave()
    receiver = join(5, "c1", lasting=60)
    sender.tell("a", b"2", qos=qos)
    assert receiver.message().payload == b"2"  # the first one did not come again [MQTT-4.4.0-2]


def test_a_reason_that_the_packet_does_not_have_is_malformed(join: Connect) -> None:
    for first in (0x40, 0x50, 0x62, 0x70):
        client = join(5)
        client.answer(first, 1, 0x8F)
        client.expect_refused(0x81, 0x82)  # [MQTT-3.4.2-1, 3.5.2-1, 3.6.2-1, 3.7.2-1]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_learns_whether_anybody_listens(join: Connect, qos: int) -> None:
    receiver, sender = join(5), join(5)
    assert sender.tell("a", b"x", qos=qos) == 0x10
    receiver.wants(("a", 0))
    assert sender.tell("a", b"x", qos=qos) == 0


@pytest.mark.parametrize("first", [0x60, 0x61, 0x63, 0x72, 0x42, 0x52], ids=hex)
def test_an_answer_with_other_flags_is_refused(peer: MakePeer, first: int) -> None:
    client = peer()
    client.send(bytes([first, 2, 0, 1]))
    client.expect_refused(0x81)  # [MQTT-3.6.1-1, 2.2.2-1, 2.2.2-2, 2.1.3-1]


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70], ids=hex)
def test_identifier_0_is_refused(peer: MakePeer, first: int) -> None:
    client = peer()
    client.send(bytes([first, 2, 0, 0]))
    client.expect_refused(0x81, 0x82)  # [MQTT-2.3.1-1, 2.2.1-3]


def test_a_question_with_the_identifier_of_a_publish_under_way_is_refused_with_0x91(join: Connect) -> None:
    client = join(5)
    client.send(p.publish("a", b"x", qos=1, pid=7) + p.subscribe(7, ("a", 1), ("b", 1)))
    assert client.until(SUBACK).codes == [0x91, 0x91]
    assert client.until(PUBACK).pid == 7
    assert client.wants(("a", 1), ("b", 1), pid=7) == [1, 1]
    client.send(p.publish("c", b"x", qos=2, pid=7) + p.unsubscribe(7, "a"))
    assert client.until(UNSUBACK).codes == [0x91]
    assert client.until(PUBREC).pid == 7
    assert client.drops("a", "b", pid=8) == [0, 0]


@pytest.mark.parametrize("kind", [0x20, 0x90, 0xB0, 0xD0], ids=["CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"])
def test_a_packet_that_only_a_server_sends_is_refused(peer: MakePeer, kind: int) -> None:
    client = peer()
    body = {0x20: b"\0\0", 0x90: b"\0\1\0", 0xB0: b"\0\1", 0xD0: b""}[kind]
    if client.version == 5:
        body = {0x20: b"\0\0\0", 0x90: b"\0\1\0\0", 0xB0: b"\0\1\0\0", 0xD0: b""}[kind]
    client.send(packets.packet(kind, body))
    client.expect_refused(0x82)  # [MQTT-4.8.0-1, 4.13.1-1]


def test_everything_that_came_before_a_fault_is_processed(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 1))
    data = p.publish("a", b"x", qos=1, pid=1) if sender.version == 5 else packets.publish("a", b"x", qos=1, pid=1)
    sender.send(data, b"\x36\x00")
    assert receiver.message().payload == b"x"
    if sender.version == 5:
        assert sender.until(14).code == 0x81


def test_a_publish_to_several_is_delivered_to_each(peer: MakePeer) -> None:
    receivers, sender = [peer() for _ in range(5)], peer()
    away = peer("away", lasting=60)
    away.wants(("a/#", 2))
    away.leave()
    for qos, receiver in enumerate(receivers):
        receiver.wants(("a/+", qos % 3))
    sender.tell("a/b", b"x", qos=2)
    assert [receiver.read(PUBLISH).qos for receiver in receivers] == [0, 1, 2, 0, 1]
    assert peer("away", lasting=60).message().payload == b"x"  # [MQTT-4.5.0-1]
