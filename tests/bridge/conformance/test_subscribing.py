"""SUBSCRIBE, UNSUBSCRIBE and what they bring: chapters 3.8 to 3.11, 4.7 and 4.8 (shared subscriptions of 5.0)."""

from collections.abc import Callable

import pytest

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import PUBLISH, SUBACK, UNSUBACK, Peer
from tests.support import BridgeProcess, Server
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakePeer = Callable[..., Peer]
MakeBridge = Callable[..., BridgeProcess]

NO_LOCAL, AS_PUBLISHED = 0x04, 0x08
SHORT_LEASE = ["--lease-s", "2"]

# ---- SUBACK and UNSUBACK ---------------------------------------------------------------------------------------------


def test_an_answer_has_the_identifier_of_its_question_and_a_code_for_each_filter(peer: MakePeer) -> None:
    client = peer()
    for pid in (1, 2, 65535):
        assert client.wants(("a", 2), ("b", 0), ("c/#", 1), pid=pid) == [2, 0, 1]
        # [MQTT-3.8.4-1, -2, -5, -6, -7, 3.9.3-1, 2.3.1-7, 2.2.1-6]
        assert client.drops("c/#", "a", "never", pid=pid) == ([0, 0, 0x11] if client.version == 5 else [])
        # [MQTT-3.10.4-4, -5, -6, 3.11.3-1]


def test_one_packet_with_many_filters_is_many_subscriptions(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    assert receiver.wants(*((f"t/{n}", n % 3) for n in range(100))) == [n % 3 for n in range(100)]
    for number in (0, 50, 99):
        sender.tell(f"t/{number}", b"x", qos=2)
    assert [(got.topic, got.qos) for got in (receiver.message() for _ in range(3))] == [
        ("t/0", 0),
        ("t/50", 2),
        ("t/99", 0),
    ]
    receiver.drops(*(f"t/{n}" for n in range(1, 100)))
    sender.tell("t/50", b"no")
    sender.tell("t/0", b"yes")
    assert receiver.message().payload == b"yes"


def test_a_filter_that_cannot_be_served_is_refused_by_itself(peer: MakePeer) -> None:
    client = peer()
    deep = "/".join("x" * 200)
    refused = 0x8F if client.version == 5 else 0x80
    assert client.wants(("a", 1), (deep, 1), ("b", 1)) == [1, refused, 1]  # [MQTT-3.9.3-2]


FAULTY_SUBSCRIBES = [
    pytest.param([], id="no filter"),  # [MQTT-3.8.3-3, -2]
    pytest.param([("", 0)], id="an empty filter"),  # [MQTT-4.7.3-1]
    pytest.param([("a\0", 0)], id="NUL"),  # [MQTT-4.7.3-2]
    pytest.param([("a", 3)], id="QoS 3"),  # [MQTT-3.8.3-4]
    pytest.param([("a", 0x40)], id="a reserved bit"),  # [MQTT-3.8.3-4, -5]
    pytest.param([("a#", 0)], id="a hash beside other characters"),  # [MQTT-4.7.1-2, -1]
    pytest.param([("a/#/b", 0)], id="a hash in the middle"),
    pytest.param([("a+/b", 0)], id="a plus beside other characters"),  # [MQTT-4.7.1-3, -2]
]


@pytest.mark.parametrize("filters", FAULTY_SUBSCRIBES)
def test_a_subscribe_that_cannot_be_closes_the_connection(peer: MakePeer, filters: list[tuple[str, int]]) -> None:
    client = peer()
    client.send((p if client.version == 5 else packets).subscribe(1, *filters))
    client.expect_refused(0x81, 0x82, 0x8F)


@pytest.mark.parametrize("filters", [[], [""], ["a#"], ["a\0"]], ids=["none", "empty", "bad", "NUL"])
def test_an_unsubscribe_that_cannot_be_closes_the_connection(peer: MakePeer, filters: list[str]) -> None:
    client = peer()
    client.send((p if client.version == 5 else packets).unsubscribe(1, *filters))
    client.expect_refused(0x81, 0x82, 0x8F)  # [MQTT-3.10.3-1, -2]


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
@pytest.mark.parametrize("flags", [0, 1, 3, 0xA])
def test_other_flags_are_refused(peer: MakePeer, kind: str, flags: int) -> None:
    client = peer()
    make = p if client.version == 5 else packets
    data = make.subscribe(1, ("a", 0)) if kind == "SUBSCRIBE" else make.unsubscribe(1, "a")
    client.send(bytes([data[0] & 0xF0 | flags]) + data[1:])
    client.expect_refused(0x81)  # [MQTT-3.8.1-1, 3.10.1-1]


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
def test_filters_that_are_not_utf8_are_refused(peer: MakePeer, kind: str) -> None:
    client = peer()
    none = b"\0" if client.version == 5 else b""
    filters = packets.text(b"a/\xff") + (b"\0" if kind == "SUBSCRIBE" else b"")
    client.send(packets.packet(0x82 if kind == "SUBSCRIBE" else 0xA2, b"\0\1" + none + filters))
    client.expect_refused(0x81)  # [MQTT-3.8.3-1, 3.10.3-1]


def test_of_a_filter_that_is_named_twice_in_one_packet_the_last_counts(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    assert receiver.wants(("a", 2), ("a", 0)) == [2, 0]  # [MQTT-3.8.4-4, -5]
    sender.tell("a", b"x", qos=2)
    assert receiver.message().qos == 0
    assert receiver.arrived() == []


# ---- subscriptions ---------------------------------------------------------------------------------------------------


def test_the_same_filter_again_replaces_the_subscription_and_loses_nothing(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"kept", qos=2, retain=True)
    assert (receiver.message().qos, receiver.arrived()) == (2, [])
    receiver.wants(("a", 0))
    again = receiver.message()
    assert (again.payload, again.qos, again.retain) == (b"kept", 0, True)  # [MQTT-3.8.4-3, -4]
    for number in range(50):
        sender.say("a", b"%d" % number)
        if number % 10 == 0:
            receiver.send((p if receiver.version == 5 else packets).subscribe(9, ("a", number % 20 and 1)))
    sender.arrived()
    got = [message for message in receiver.arrived() if message.kind == PUBLISH and not message.retain]
    assert [int(message.payload) for message in got] == list(range(50))  # one copy of each


def test_a_subscription_is_removed_by_the_same_bytes_only(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a/+", 1), ("b", 1))
    receiver.drops("a/b", "a/#", "+", "B", "b/")
    sender.tell("a/b", b"1")
    sender.tell("b", b"2")
    assert receiver.messages(2) == [b"1", b"2"]  # [MQTT-3.10.4-1]
    receiver.drops("a/+", "b")
    sender.tell("a/b", b"no")
    sender.tell("b", b"no")
    assert receiver.arrived() == []  # [MQTT-3.10.4-2]


def test_a_delivery_that_began_before_the_unsubscribe_is_completed(peer: MakePeer) -> None:
    receiver, sender = peer("c1", lasting=60), peer()
    receiver.wants(("a", 2))
    sender.tell("a", b"1", qos=1)
    sender.tell("a", b"2", qos=2)
    one, two = receiver.message(finish=False), receiver.message(finish=False)
    receiver.drops("a")
    receiver.answer(0x50, two.pid)
    assert receiver.read(6).pid == two.pid  # [MQTT-3.10.4-3]
    receiver.vanish()
    receiver = peer("c1", lasting=60)
    got = receiver.arrived()
    assert sorted((packet.kind, packet.pid) for packet in got) == [(PUBLISH, one.pid), (6, two.pid)]


def test_overlapping_subscriptions_bring_the_largest_qos(peer: MakePeer) -> None:
    receiver, sender = peer(), peer()
    receiver.wants(("a/#", 0), ("a/+", 2), ("a/b", 1), ("+/b", 0))
    sender.tell("a/b", b"x", qos=2)
    assert receiver.message().qos == 2  # 3.1.1: [MQTT-3.3.5-1], 5.0: [MQTT-3.3.4-2]
    assert receiver.arrived() == []


def test_wildcards_in_front_do_not_see_topics_with_a_dollar(peer: MakePeer) -> None:
    receiver, other, sender = peer(), peer(), peer()
    receiver.wants(("#", 1), ("+/b", 1), ("+/#", 1))
    other.wants(("$own/#", 1), ("$own/+", 1))
    sender.tell("$own/b", b"x")
    assert receiver.arrived() == []  # [MQTT-4.7.2-1]
    assert other.message().payload == b"x"


# ---- options of 5.0 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_keeps_a_clients_own_messages_from_it(join: Connect, qos: int) -> None:
    client, other = join(5, "c1", lasting=60), join(5)
    client.wants(("a", 2 | NO_LOCAL))
    client.tell("a", b"own", qos=qos)
    other.tell("a", b"other", qos=qos)
    assert client.message().payload == b"other"  # [MQTT-3.8.3-3]
    client.leave()
    client = join(5, "c1", lasting=60)
    client.tell("a", b"own", qos=qos)
    assert client.arrived() == []


def test_no_local_on_a_shared_subscription_is_a_protocol_error(join: Connect) -> None:
    client = join(5)
    client.send(p.subscribe(1, ("$share/g/a", 1 | NO_LOCAL)))
    client.expect_refused(0x82)  # [MQTT-3.8.3-4]


@pytest.mark.parametrize("options", [0x00, AS_PUBLISHED])
@pytest.mark.parametrize("retain", [False, True])
def test_the_retain_flag_is_passed_on_where_it_is_asked_for(join: Connect, options: int, retain: bool) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("a", 1 | options))
    sender.tell("a", b"x", retain=retain)
    assert receiver.message().retain is (retain and options == AS_PUBLISHED)  # [MQTT-3.3.1-12, -13]


def test_the_retain_flag_waits_with_its_message(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    receiver.wants(("a", 1 | AS_PUBLISHED))
    receiver.leave()
    for retain in (True, False):
        sender.tell("a", b"x", retain=retain)
    receiver = join(5, "c1", lasting=60)
    assert [receiver.message().retain for _ in range(2)] == [True, False]


def test_subscription_identifiers_come_with_what_they_brought(join: Connect) -> None:
    receiver, sender = join(5, "c1", lasting=60), join(5)
    for topic_filter, identifier in (("a/#", 1), ("a/+", 268_435_455), ("a/b", 200), ("x", 7)):
        receiver.wants((topic_filter, 1), properties=p.number(p.SUBSCRIPTION_ID, identifier))
    receiver.wants(("+/b", 1))
    sender.tell("a/b", b"1")
    assert sorted(receiver.message().properties[p.SUBSCRIPTION_ID]) == [1, 200, 268_435_455]  # [MQTT-3.3.4-3, -4]
    receiver.wants(("a/+", 1), properties=p.number(p.SUBSCRIPTION_ID, 9))  # another one
    receiver.wants(("a/b", 1))  # and none
    receiver.leave()
    sender.tell("a/b", b"2")
    sender.tell("q/b", b"3")
    receiver = join(5, "c1", lasting=60)  # they are part of the session
    assert sorted(receiver.message().properties[p.SUBSCRIPTION_ID]) == [1, 9]
    assert receiver.message().properties == {}


@pytest.mark.parametrize(
    "identifier", [b"\x0b\0", b"\x0b\xff\xff\xff\xff\x01", b"\x0b\1\x0b\2"], ids=["0", "5 bytes", "two"]
)
def test_a_subscription_identifier_that_cannot_be_is_refused(join: Connect, identifier: bytes) -> None:
    client = join(5)
    client.send(p.subscribe(1, ("a", 1), properties=identifier))
    client.expect_refused(0x81, 0x82)


def test_answers_carry_nothing_that_was_not_asked_for(join: Connect) -> None:
    client = join(5, properties=p.number(p.REQUEST_PROBLEM, 0))
    client.send(p.subscribe(1, ("/".join("x" * 200), 1), properties=p.pair("a", "b")))
    got = client.read(SUBACK)
    assert (got.codes, got.properties) == ([0x8F], {})
    client.send(p.unsubscribe(2, "a"))
    got = client.read(UNSUBACK)
    assert (got.codes, got.properties) == ([0x11], {})
    client.say("a", b"x", qos=1, pid=3)
    assert client.read(4).properties == {}  # [MQTT-3.1.2-29]


# ---- shared subscriptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["$share/", "$share/g", "$share//a", "$share/g/", "$share/g+/a", "$share/g#/a"])
def test_a_share_that_cannot_be_is_refused(join: Connect, name: str) -> None:
    client = join(5)
    client.send(p.subscribe(1, (name, 1)))
    got = client.read()
    assert (got.kind, got.codes or got.code) in [(SUBACK, [0x8F]), (14, 0x8F), (14, 0x82), (14, 0x81)]


def test_a_group_gets_each_message_once_and_its_members_share_them_fairly(peer: MakePeer) -> None:
    members, alone, sender = [peer() for _ in range(4)], peer(), peer()
    for member in members:
        assert member.wants(("$share/g/a/+", 1)) == [1]  # [MQTT-4.8.2-1, -2]
    alone.wants(("a/b", 1))
    for number in range(80):
        sender.tell("a/b", b"%d" % number)
    got = [[int(message.payload) for message in member.arrived()] for member in members]
    assert sorted(number for numbers in got for number in numbers) == list(range(80))
    assert all(len(numbers) == 20 for numbers in got)
    assert all(numbers == sorted(numbers) for numbers in got)
    assert [int(payload) for payload in alone.messages(80)] == list(range(80))


def test_each_member_has_its_own_qos(peer: MakePeer) -> None:
    members, sender = [peer() for _ in range(3)], peer()
    for qos, member in enumerate(members):
        member.wants(("$share/g/a", qos))
    for _ in range(6):
        sender.tell("a", b"x", qos=2)
    for qos, member in enumerate(members):
        assert [message.qos for message in member.arrived()] == [qos] * 2  # [MQTT-4.8.2-3]


def test_what_a_member_was_not_handed_goes_to_the_others_when_it_leaves(join: Connect) -> None:
    one = p.number(p.RECEIVE_MAXIMUM, 1)
    leaver, stayer, sender = join(5, "m1", lasting=60, properties=one), join(5, "m2"), join(5)
    for member in (leaver, stayer):
        member.wants(("$share/g/a", 1))
    for number in range(20):
        sender.tell("a", b"%d" % number)
    held = leaver.message(finish=False)
    leaver.vanish()
    got = {int(payload) for payload in stayer.messages(19)}
    assert got == set(range(20)) - {int(held.payload)}
    again = join(5, "m1", lasting=60).message()
    assert (again.payload, again.pid, again.dup) == (held.payload, held.pid, True)


@pytest.mark.parametrize("lasting", [60, 0])
def test_a_qos_2_exchange_is_finished_by_its_member_or_by_nobody(join: Connect, lasting: int) -> None:
    first, second, sender = join(5, "m1", lasting=lasting), join(5, "m2"), join(5)
    first.wants(("$share/g/a", 2))
    sender.tell("a", b"x", qos=2)
    held = first.message(finish=False)
    second.wants(("$share/g/a", 2))
    first.vanish()
    sender.tell("a", b"y", qos=2)
    assert second.message().payload == b"y"
    assert second.arrived() == []  # [MQTT-4.8.2-5]
    if lasting:
        again = join(5, "m1", lasting=60).message()
        assert (again.payload, again.pid, again.dup) == (b"x", held.pid, True)  # [MQTT-4.8.2-4]


def test_what_a_member_refuses_goes_to_nobody_else(join: Connect) -> None:
    first, second, sender = join(5, "m1"), join(5, "m2"), join(5)
    for qos in (1, 2):
        first.wants(("$share/g/a", 2))
        sender.tell("a", b"x", qos=qos)
        got = first.message(finish=False)
        second.wants(("$share/g/a", 2))
        first.answer(0x40 if qos == 1 else 0x50, got.pid, 0x83)
        assert first.arrived() == []
        first.drops("$share/g/a")
        assert second.arrived() == []  # [MQTT-4.8.2-6]
        second.drops("$share/g/a")


def test_a_shared_subscription_brings_no_retained_messages(peer: MakePeer) -> None:
    sender, member = peer(), peer()
    sender.tell("a", b"kept", retain=True)
    member.wants(("$share/g/a", 1))
    assert member.arrived() == []


def test_a_killed_process_takes_nothing_from_a_group(join: Connect, server: Server, bridge: MakeBridge) -> None:
    doomed, safe = bridge(server, arguments=SHORT_LEASE), bridge(server)
    one = p.number(p.RECEIVE_MAXIMUM, 1)
    lost = join(5, "m1", port=doomed.port, properties=one)
    kept, sender = join(5, "m2", port=safe.port), join(5, port=safe.port)
    for member in (lost, kept):
        member.wants(("$share/g/a", 1))
    for number in range(10):
        sender.tell("a", b"%d" % number)
    lost.message(finish=False)
    doomed.kill()
    assert {int(payload) for payload in kept.messages(10)} == set(range(10))
