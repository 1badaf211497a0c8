"""What both sides agree upon in MQTT 5.0: flow control, aliases, sizes, properties, reasons (3.1.2.11, 3.2.2, 4.9)."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conformance.conftest import Connect
from tests.bridge.conformance.peer import DISCONNECT, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Peer
from tests.bridge.packets import Will
from tests.support import BridgeProcess, Server
from tests.support.servers import embedded_kinds

server_kinds = embedded_kinds

MakeBridge = Callable[..., BridgeProcess]


def alias(number: int) -> bytes:
    """A topic alias."""
    return p.number(p.TOPIC_ALIAS, number)


# ---- flow control ----------------------------------------------------------------------------------------------------


def test_a_full_window_holds_back_nothing_but_messages_of_qos_1_and_2(join: Connect) -> None:
    receiver, sender = join(5, properties=p.number(p.RECEIVE_MAXIMUM, 2)), join(5)
    receiver.wants(("a", 2), ("zero", 0))
    for number in range(1, 4):
        sender.tell("a", b"%d" % number, qos=2)
    one, two = receiver.message(finish=False), receiver.message(finish=False)
    assert receiver.arrived() == []  # [MQTT-3.3.4-9, 4.9.0-1, -2]
    sender.tell("zero", b"x")
    assert receiver.message().qos == 0
    assert receiver.wants(("other", 1), pid=9) == [1]
    assert receiver.tell("away", b"x", qos=2, pid=1) == 0x10  # [MQTT-3.3.4-10, 4.9.0-3]
    receiver.answer(0x50, one.pid)
    assert receiver.read(PUBREL).pid == one.pid
    assert receiver.arrived() == []  # a PUBREC gives no place back
    receiver.answer(0x50, two.pid, 0x80)  # but one that refuses does
    assert receiver.message(finish=False).payload == b"3"
    receiver.answer(0x70, one.pid)
    assert receiver.arrived() == []


def test_an_exchange_counts_until_it_is_complete_on_the_way_in(
    server: Server, bridge: MakeBridge, join: Connect
) -> None:
    made = bridge(server, arguments=["--receive-maximum", "2"])
    sender = join(5, port=made.port)
    assert sender.connack.properties[p.RECEIVE_MAXIMUM] == 2
    for turn in range(5):  # places come back
        sender.say("a", b"x", qos=2, pid=1)
        sender.say("a", b"x", qos=2, pid=2)
        assert [sender.read().kind for _ in range(2)] == [PUBREC, PUBREC]
        sender.answer(0x62, 1)
        assert sender.read().kind == PUBCOMP
        sender.tell("a", b"%d" % turn, qos=1, pid=3)
        sender.answer(0x62, 2)
        assert sender.read().kind == PUBCOMP
    for pid in (1, 2):
        sender.say("a", b"x", qos=2, pid=pid)
        assert sender.read().kind == PUBREC  # which gives no place back
    sender.say("a", b"x", qos=2, pid=3)
    sender.expect_refused(0x93)  # [MQTT-3.3.4-7]


def test_receive_maximum_is_what_fits_into_the_clients_window_not_more_than_ours(join: Connect) -> None:
    receiver, sender = join(5, properties=p.number(p.RECEIVE_MAXIMUM, 65535)), join(5)
    receiver.wants(("a", 1))
    for number in range(120):
        sender.tell("a", b"%d" % number)
    first = receiver.arrived()
    assert len(first) == 100  # max_inflight of the bridge
    for got in first:
        receiver.answer(0x40, got.pid)
    assert receiver.messages(20) == [b"%d" % number for number in range(100, 120)]


# ---- topic aliases ---------------------------------------------------------------------------------------------------


def test_every_alias_up_to_the_servers_maximum_is_taken(join: Connect) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("#", 1))
    most = sender.connack.properties[p.ALIAS_MAXIMUM]
    for number in range(1, most + 1):
        sender.tell(f"t/{number}", b"1", properties=alias(number))
    for number in range(most, 0, -1):
        sender.tell("", b"2", properties=alias(number))
    got = [receiver.message() for _ in range(2 * most)]
    forth = [f"t/{number}" for number in range(1, most + 1)]
    assert [message.topic for message in got] == forth + forth[::-1]  # [MQTT-3.3.2-12]
    sender.say("t", b"x", properties=alias(most + 1))
    sender.expect_refused(0x94)  # [MQTT-3.2.2-17, 3.3.2-9]


def test_an_alias_does_not_outlive_its_connection(join: Connect) -> None:
    sender = join(5, "c1", lasting=60)
    sender.tell("a", b"x", properties=alias(1))
    sender.vanish()
    sender = join(5, "c1", lasting=60)
    sender.say("", b"x", qos=1, pid=1, properties=alias(1))
    sender.expect_refused(0x82)  # [MQTT-3.3.2-7], section 3.3.4


def test_the_server_uses_aliases_up_to_the_clients_maximum_and_names_the_topic_first(join: Connect) -> None:
    two = p.number(p.ALIAS_MAXIMUM, 2)
    receiver, sender = join(5, "c1", lasting=60, properties=two), join(5)
    receiver.wants(("#", 1))
    topics = [f"topic/{n % 3}" for n in range(9)]

    def heard(count: int) -> list[str]:
        names: dict[int, str] = {}
        seen = []
        for _ in range(count):
            got = receiver.message()
            number = got.properties.get(p.TOPIC_ALIAS, 0)
            assert 0 <= number <= 2  # [MQTT-3.1.2-26, 3.3.2-8, -11]
            if got.topic and number:
                names[number] = got.topic
            seen.append(got.topic or names[number])
        return seen

    for topic in topics:
        sender.tell(topic, b"x")
    assert heard(9) == topics
    receiver.leave()
    for topic in topics:
        sender.tell(topic, b"x")
    receiver = join(5, "c1", lasting=60, properties=two)
    assert heard(9) == topics  # a new connection begins without any [MQTT-3.3.2-7]


def test_a_message_left_out_for_its_size_leaves_no_alias_behind(join: Connect) -> None:
    both = p.number(p.ALIAS_MAXIMUM, 1) + p.number(p.MAXIMUM_PACKET, 100)
    receiver, sender = join(5, properties=both), join(5)
    receiver.wants(("#", 1))
    sender.tell("first/topic", b"x" * 100)
    sender.tell("first/topic", b"small")
    got = receiver.message()
    assert (got.topic, got.payload) == ("first/topic", b"small")


def test_without_a_maximum_there_are_no_aliases(join: Connect) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("#", 0))
    for _ in range(3):
        sender.tell("some/topic", b"x")
        got = receiver.message()
        assert (got.topic, got.properties) == ("some/topic", {})  # [MQTT-3.1.2-27]


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_a_packet_of_the_servers_maximum_is_taken_and_one_more_byte_is_not(
    server: Server, bridge: MakeBridge, join: Connect, version: int
) -> None:
    made = bridge(server, arguments=["--max-packet-bytes", "200"])
    receiver, sender = join(version, port=made.port), join(version, port=made.port)
    receiver.wants(("a", 0))
    room = 200 - 3 - 3 - (version == 5)  # fixed header, topic, properties
    sender.say("a", b"x" * room)
    assert len(receiver.message().payload) == room
    sender.say("a", b"x" * (room + 1))
    sender.expect_refused(0x95)  # [MQTT-3.2.2-15]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_larger_than_the_client_takes_is_left_out(join: Connect, qos: int) -> None:
    receiver, sender = join(5, "c1", properties=p.number(p.MAXIMUM_PACKET, 60)), join(5)
    receiver.wants(("a", 2))
    sender.tell("a", b"x" * 60, qos=qos)
    sender.tell("a", b"small", qos=qos, properties=p.pair("k", "v" * 60))  # properties count
    sender.tell("a", b"small", qos=qos)
    got = receiver.message()
    assert (got.payload, got.properties) == (b"small", {})  # [MQTT-3.1.2-24]
    assert receiver.arrived() == []


@pytest.mark.parametrize("most", [1, 4, 5, 12, 13, 23, 24, 52])
def test_no_packet_is_larger_than_a_small_client_takes(broker: BridgeProcess, most: int) -> None:
    with Peer(broker.port, 5) as client:
        client.send(p.connect("c1", properties=p.number(p.MAXIMUM_PACKET, most)))
        if most < 13:  # receive maximum and packet size have to be told
            if most >= 5:
                data = client.read_packet()
                assert (data[0], data[3], len(data)) == (0x20, 0x95, 5)
            client.expect_closed()
            return
        data = client.read_packet()
        assert (data[0], data[3], len(data) <= most) == (0x20, 0, True)  # [MQTT-3.1.2-24]
        filters = [f"t/{n}" for n in range(most - 5)]  # header 2, identifier 2, no properties 1
        for question in (
            p.subscribe(1, *((name, 0) for name in filters)),
            p.unsubscribe(2, *filters),
            p.publish("nobody", b"x", qos=1, pid=3),
            p.publish("nobody", b"x", qos=2, pid=4),
        ):
            client.send(question)
            assert len(client.read_packet()) <= most
        client.send(p.subscribe(5, *((name, 0) for name in [*filters, "t/more"])))
        data = client.read_packet()
        assert (data[0], data[2], len(data) <= most) == (0xE0, 0x95, True)
        client.expect_closed()


def test_a_disconnect_without_its_reason_string_if_that_does_not_fit(join: Connect) -> None:
    client = join(5, "c1", properties=p.number(p.MAXIMUM_PACKET, 20))
    client.send(p.connect("c1"))
    data = client.read_packet()
    assert (data[0], data[2], len(data) <= 20) == (0xE0, 0x82, True)  # [MQTT-3.14.2-3]
    client.expect_closed()


# ---- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_belongs_to_the_message_is_passed_on_byte_for_byte(join: Connect, qos: int) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("a", 2))
    pairs = [("b", "1"), ("", ""), ("a", "\U0001f600"), ("b", "1"), ("x" * 500, "y" * 500)]
    properties = (
        p.number(p.PAYLOAD_FORMAT, 1)
        + p.pair(*pairs[0])
        + p.string(p.CONTENT_TYPE, "text/\ufeff")
        + p.pair(*pairs[1])
        + p.string(p.RESPONSE_TOPIC, "answers/here")
        + b"".join(p.pair(*pair) for pair in pairs[2:])
        + p.string(p.CORRELATION_DATA, bytes(range(256)))
    )
    sender.tell("a", b"x", qos=qos, properties=properties)
    assert receiver.message().properties == {
        p.PAYLOAD_FORMAT: 1,  # [MQTT-3.3.2-4]
        p.CONTENT_TYPE: "text/\ufeff".encode(),  # [MQTT-3.3.2-20]
        p.RESPONSE_TOPIC: b"answers/here",  # [MQTT-3.3.2-15]
        p.CORRELATION_DATA: bytes(range(256)),  # [MQTT-3.3.2-16]
        p.USER_PROPERTY: pairs,  # [MQTT-3.3.2-17, -18]
    }


def test_what_belongs_to_the_connection_is_not_passed_on(join: Connect) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("a", 1))
    sender.tell("a", b"x", properties=alias(1))
    assert receiver.message().properties == {}


@pytest.mark.parametrize(
    ("properties", "codes"),
    [
        pytest.param(p.string(p.RESPONSE_TOPIC, "a/#"), (0x81, 0x82, 0x90), id="a wildcard in the response topic"),
        pytest.param(p.string(p.RESPONSE_TOPIC, b"\xff"), (0x81,), id="a response topic that is no text"),
        pytest.param(p.string(p.CONTENT_TYPE, b"\xff"), (0x81,), id="a content type that is no text"),
        pytest.param(b"\x26" + packets.text(b"\xff") + packets.text("v"), (0x81,), id="a name that is no text"),
        pytest.param(b"\x26" + packets.text("n") + packets.text(b"\xff"), (0x81,), id="a value that is no text"),
        pytest.param(b"\x01\x02", (0x81, 0x82), id="payload format 2"),
        pytest.param(p.number(p.SUBSCRIPTION_ID, 1), (0x82,), id="a subscription identifier"),  # [MQTT-3.3.4-6]
        pytest.param(alias(0), (0x94,), id="alias 0"),
    ],
)
def test_a_property_that_cannot_be_is_refused(join: Connect, properties: bytes, codes: tuple[int, ...]) -> None:
    client = join(5)
    client.say("a", b"x", properties=properties)
    client.expect_refused(*codes)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xc0\x80\x00", id="a length that is longer than it must be"),  # [MQTT-1.5.5-1]
        pytest.param(b"\x30\x80\x80\x80\x80\x01", id="a length of five bytes"),
        pytest.param(b"\x30\x03\0\1a", id="no property length"),  # [MQTT-2.2.2-1]
        pytest.param(b"\xf1\x00", id="AUTH with flags"),  # [MQTT-3.15.1-1]
        pytest.param(b"\x00\x00", id="packet type 0"),
    ],
)
def test_a_malformed_packet_is_named(join: Connect, data: bytes) -> None:
    client = join(5)
    client.send(data)
    client.expect_refused(0x81)  # [MQTT-4.13.1-1]


def test_a_client_of_3_1_1_is_closed_without_a_word_and_without_bytes_of_5_0(join: Connect) -> None:
    for data in (b"\xf0\x00", b"\x36\x00", b"\x30\x80\x80\x80\x80\x01", packets.publish("a", b"x", qos=1, pid=0)):
        client = join(4)
        client.send(data)
        client.expect_closed()  # [MQTT-4.8.0-1]


def test_a_disconnect_of_the_server_says_why_and_has_no_session_expiry(join: Connect) -> None:
    client = join(5, "c1", lasting=60)
    client.send(p.auth())
    got = client.read(DISCONNECT)
    assert (got.code, set(got.properties)) == (0x82, {p.REASON_STRING})  # [MQTT-3.14.2-2]
    client.expect_closed()


@pytest.mark.parametrize("code", [0x01, 0x03, 0x7F])
def test_a_disconnect_with_a_reason_that_it_does_not_have_is_refused(join: Connect, code: int) -> None:
    client = join(5)
    client.send(p.disconnect(code))
    client.expect_refused(0x81, 0x82)  # [MQTT-3.14.2-1]


def test_a_session_that_was_to_end_with_its_connection_cannot_be_prolonged(join: Connect) -> None:
    client = join(5, "c1")
    client.send(p.disconnect(0, p.number(p.SESSION_EXPIRY, 60)))
    client.expect_refused(0x82)


def test_a_small_client_gets_its_answers_without_trimmings(join: Connect) -> None:
    client = join(5, "c1", properties=p.number(p.MAXIMUM_PACKET, 30))
    assert client.wants(("a", 2)) == [2]
    assert client.tell("b", b"x") == 0x10
    client.send(p.subscribe(2, ("/".join("x" * 200), 1)))
    got = client.read(SUBACK)
    assert (got.codes, got.properties) == ([0x8F], {})  # [MQTT-3.9.2-1]


def test_what_waits_for_a_client_is_not_dropped_while_it_is_connected(join: Connect) -> None:
    one = p.number(p.RECEIVE_MAXIMUM, 1)
    receiver, sender = join(5, "c1", clean=False, properties=one), join(5)  # expiry 0
    receiver.wants(("a", 1))
    for number in range(30):
        sender.tell("a", b"%d" % number)
    assert receiver.messages(30) == [b"%d" % number for number in range(30)]  # [MQTT-4.1.0-1]


def test_request_and_response_find_each_other(join: Connect) -> None:
    asker, answerer = join(5, "asker", properties=p.number(p.REQUEST_RESPONSE, 1)), join(5)
    inbox = asker.connack.properties[p.RESPONSE_INFORMATION].decode()
    asker.wants((f"{inbox}/#", 1))
    answerer.wants(("question", 1))
    for number in range(3):
        data = p.string(p.CORRELATION_DATA, b"%d" % number)
        asker.tell("question", b"?", properties=p.string(p.RESPONSE_TOPIC, f"{inbox}/{number}") + data)
        question = answerer.message()
        answer = p.string(p.CORRELATION_DATA, question.properties[p.CORRELATION_DATA])
        answerer.tell(question.properties[p.RESPONSE_TOPIC].decode(), b"!", properties=answer)
        got = asker.message()
        assert (got.topic, got.properties[p.CORRELATION_DATA]) == (f"{inbox}/{number}", b"%d" % number)


def test_the_end_of_the_process_is_reported(server: Server, bridge: MakeBridge, join: Connect, version: int) -> None:
    made = bridge(server)
    client = join(version, "c1", lasting=60, port=made.port)
    client.wants(("a", 1))
    assert made.stop() == 0
    client.expect_refused(0x8B)
    assert join(version, "c1", lasting=60).connack.present


def test_packets_of_all_kinds_may_be_cut_anywhere(join: Connect, version: int) -> None:
    make = p if version == 5 else packets
    data = make.subscribe(1, ("a", 1)) + make.publish("a", b"x", qos=1, pid=2) + packets.PINGREQ
    client = join(version)
    for at in range(len(data)):
        client.send(data[at : at + 1])
    kinds = [client.read().kind for _ in range(4)]
    assert sorted(kinds) == [PUBLISH, 4, SUBACK, 13]


@pytest.mark.parametrize("interval", [0, 5, 60, 0xFFFFFFFF])
def test_connected_clients_learn_an_expiry_interval(join: Connect, interval: int) -> None:
    receiver, sender = join(5), join(5)
    receiver.wants(("a", 1))
    sender.tell("a", b"x", properties=p.number(p.MESSAGE_EXPIRY, interval))
    told = receiver.message().properties[p.MESSAGE_EXPIRY]
    assert max(0, interval - 5) <= told <= interval  # [MQTT-3.3.2-6]


def test_a_message_with_an_interval_of_0_waits_for_nobody(join: Connect) -> None:
    away, full, sender = join(5, "c1", lasting=60), join(5, properties=p.number(p.RECEIVE_MAXIMUM, 1)), join(5)
    away.wants(("a", 1))
    full.wants(("a", 1))
    away.leave()
    now = p.number(p.MESSAGE_EXPIRY, 0)
    sender.tell("a", b"kept")
    first = full.message(finish=False)
    sender.tell("a", b"old", retain=True)
    sender.tell("a", b"now", retain=True, properties=now)  # [MQTT-3.3.2-5]
    full.answer(0x40, first.pid)
    assert full.messages(1) == [b"old"]
    assert full.arrived() == []
    away = join(5, "c1", lasting=60)
    assert away.messages(2) == [b"kept", b"old"]
    assert away.arrived() == []
    away.wants(("+", 1))
    assert away.arrived() == []  # and is not retained


def test_a_message_without_an_interval_gets_that_of_the_settings_and_none_a_longer_one(
    bridge: MakeBridge, server: Server
) -> None:
    made = bridge(server, arguments=["--message-expiry-s", "50", "--max-message-expiry-s", "80"])
    peers = []

    def client(version: int, **more: Any) -> Peer:
        peers.append(Peer.open(made.port, version=version, **more))
        return peers[-1]

    receiver, old, new = client(5), client(4, will=Will("will", qos=1)), client(5)
    receiver.wants(("#", 1))
    long, short = p.number(p.MESSAGE_EXPIRY, 1000), p.number(p.MESSAGE_EXPIRY, 20)
    old.tell("a", b"x", retain=True)
    for properties in (b"", long, short):
        new.tell("a", properties=properties)
    old.close()
    told = [receiver.message().properties[p.MESSAGE_EXPIRY] for _ in range(5)]
    assert [round(seconds / 10) * 10 for seconds in told] == [50, 50, 80, 20, 50]
    for peer in peers:
        peer.close()
