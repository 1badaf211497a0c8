"""Conversations in MQTT 5.0 with a real bridge on a real server."""

import time
from collections.abc import Callable

import pytest

from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk, Talk5
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
Connect5 = Callable[..., Talk5]

NO_MATCHING_SUBSCRIBERS = 0x10


def persistent(seconds: int = 60) -> bytes:
    """A session that outlives its connection."""
    return p.number(p.SESSION_EXPIRY, seconds)


# ---- CONNECT and DISCONNECT ------------------------------------------------------------------------------------------


def test_a_client_connects_and_says_goodbye(talk5: Connect5) -> None:
    client = talk5("c1")
    assert not client.connack.present
    assert client.connack.properties[p.RECEIVE_MAXIMUM] == 1000
    client.send(p.disconnect())
    client.expect_closed()


def test_a_client_without_an_id_comes_back_with_the_one_it_was_given(talk5: Connect5) -> None:
    client = talk5(properties=persistent())
    name = client.connack.properties[p.ASSIGNED_CLIENT_ID].decode()
    client.send(p.disconnect())
    client.expect_closed()
    assert talk5(name, clean=False, properties=persistent()).connack.present


def test_a_session_lives_as_long_as_its_expiry_interval(talk5: Connect5) -> None:
    client = talk5("c1", properties=persistent(1))
    client.granted(("a", 1))
    client.close()

    def is_gone() -> bool:
        again = talk5("c1", clean=False)  # without an interval: the session ends with this connection
        again.send(p.disconnect())
        again.expect_closed()
        return not again.connack.present

    eventually(is_gone)


def test_an_interval_in_disconnect_replaces_that_of_connect(talk5: Connect5) -> None:
    client = talk5("c1", properties=persistent())
    client.send(p.disconnect(0, persistent(0)))
    client.expect_closed()
    assert not talk5("c1", clean=False).connack.present


def test_a_second_connect_is_a_protocol_error(talk5: Connect5) -> None:
    client = talk5("c1")
    client.send(p.connect("c1"))
    client.expect_end(0x82)


def test_a_client_that_is_taken_over_is_notified(talk5: Connect5) -> None:
    first = talk5("c1", properties=persistent())
    talk5("c1", clean=False, properties=persistent())
    first.expect_end(0x8E)  # [MQTT-3.1.4-3]


def test_anyone_who_was_taken_over_without_a_notice_is_notified_when_the_server_refuses(
    server: Server, talk5: Connect5
) -> None:
    first = talk5("c1", properties=persistent())
    with server.client() as client:
        client.hincrby("{c1}_session", "epoch", 1)
    first.send(p.publish("a", b"x", qos=1, pid=1))
    first.expect_end(0x8E)


def test_anyone_who_hears_from_a_refusal_that_there_is_no_session_is_not_told_that_it_was_dropped(
    server: Server, talk5: Connect5
) -> None:
    first = talk5("c1")
    with server.client() as client:  # as the server does when the bridge's lease ran out, but for the notice
        client.execute_command("SESSION.CLOSE", "{c1}", "EPOCH", client.hget("{c1}_session", "epoch"))
    first.send(p.publish("a", b"x", qos=1, pid=1))
    first.expect_end(0x83)


def test_anyone_who_is_silent_for_too_long_is_notified(talk5: Connect5) -> None:
    began = time.monotonic()
    talk5("c1", keep_alive=1).expect_end(0x8D)
    assert time.monotonic() - began > 1.4


def test_the_server_may_choose_the_keep_alive(server: Server, bridge: MakeBridge, talk5: Connect5) -> None:
    made = bridge(server, arguments=["--max-keep-alive-s", "1"])
    client = talk5("c1", port=made.port, keep_alive=0)
    assert client.connack.properties[p.SERVER_KEEP_ALIVE] == 1
    client.expect_end(0x8D)


def test_a_bridge_that_shuts_down_says_so(server: Server, bridge: MakeBridge, talk5: Connect5) -> None:
    made = bridge(server)
    client = talk5("c1", port=made.port)
    assert made.stop() == 0
    client.expect_end(0x8B)


def test_a_faulty_connect_learns_what_is_wrong(broker: BridgeProcess) -> None:
    with Talk5(broker.port) as client:
        client.send(p.connect("c1", properties=p.number(p.RECEIVE_MAXIMUM, 0)))
        got = client.read(2)
        assert got.code == 0x82
        assert b"out of range" in got.properties[p.REASON_STRING]
        client.expect_closed()


def test_a_later_version_is_refused(broker: BridgeProcess) -> None:
    with Talk5(broker.port) as client:
        client.send(p.connect("c1").replace(b"MQTT\x05", b"MQTT\x06"))
        assert client.read(2).code == 0x84
        client.expect_closed()


# ---- PUBLISH ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_reach_the_subscriber_unchanged_and_in_their_order(talk5: Connect5, qos: int) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("a", 1))
    properties = (
        p.number(p.PAYLOAD_FORMAT, 1)
        + p.string(p.CONTENT_TYPE, "text/plain")
        + p.string(p.RESPONSE_TOPIC, "reply/here")
        + p.string(p.CORRELATION_DATA, b"\0\xff")
        + p.pair("b", "1")
        + p.pair("a", "2")
        + p.pair("b", "3")
    )
    sender.send(p.publish("a", b"x", qos=qos, pid=qos and 7, properties=properties))
    got = receiver.message()
    assert (got.topic, got.payload, got.qos) == ("a", b"x", min(qos, 1))
    assert got.properties == {
        p.PAYLOAD_FORMAT: 1,
        p.CONTENT_TYPE: b"text/plain",
        p.RESPONSE_TOPIC: b"reply/here",
        p.CORRELATION_DATA: b"\0\xff",
        p.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")],
    }


def test_a_client_of_the_older_version_gets_the_message_without_properties(talk: Connect, talk5: Connect5) -> None:
    old, sender = talk(), talk5()
    old.subscribe(("a", 1))
    sender.told("a", b"x", properties=p.pair("a", "b"))
    assert old.read_publish().payload == b"x"


def test_a_publisher_learns_that_nobody_listens(talk5: Connect5) -> None:
    sender = talk5()
    assert sender.told("a") == NO_MATCHING_SUBSCRIBERS
    talk5("c1").granted(("a", 1))
    assert sender.told("a") == 0


def test_a_qos_2_exchange_goes_both_ways(talk5: Connect5) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("a", 2))
    sender.send(p.publish("a", b"x", qos=2, pid=7))
    assert (sender.read(5).pid, receiver.read(3).qos) == (7, 2)
    sender.send(p.acknowledgement(0x62, 7))
    assert sender.read(7).pid == 7


def test_topic_aliases_stand_for_topics_on_the_way_in(talk5: Connect5) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("#", 1))
    sender.told("long/topic", b"1", properties=p.number(p.TOPIC_ALIAS, 3))
    sender.told("", b"2", properties=p.number(p.TOPIC_ALIAS, 3))
    sender.told("other", b"3", properties=p.number(p.TOPIC_ALIAS, 3))
    sender.told("", b"4", properties=p.number(p.TOPIC_ALIAS, 3))
    got = [receiver.message() for _ in range(4)]
    assert [(message.topic, message.payload) for message in got] == [
        ("long/topic", b"1"),
        ("long/topic", b"2"),
        ("other", b"3"),
        ("other", b"4"),
    ]
    assert all(message.properties == {} for message in got)


@pytest.mark.parametrize(
    ("alias", "code"), [(0, 0x94), (11, 0x94), (5, 0x82)], ids=["zero", "too large", "never given a topic"]
)
def test_a_topic_alias_that_cannot_be_ends_the_connection(talk5: Connect5, alias: int, code: int) -> None:
    sender = talk5()
    sender.send(p.publish("", b"x", qos=1, pid=1, properties=p.number(p.TOPIC_ALIAS, alias)))
    got = sender.read(14)
    assert got.code == code
    sender.expect_closed()


def test_topic_aliases_are_used_towards_a_client_that_allows_them(talk5: Connect5) -> None:
    receiver, sender = talk5(properties=p.number(p.ALIAS_MAXIMUM, 1)), talk5()
    receiver.granted(("#", 1))
    for topic in ("first", "first", "second", "first"):
        sender.told(topic, b"x")
    names: dict[int, str] = {}
    topics = []
    for _ in range(4):
        got = receiver.message()
        alias = got.properties.get(p.TOPIC_ALIAS, 0)
        assert alias <= 1  # [MQTT-3.1.2-26]
        if got.topic and alias:
            names[alias] = got.topic
        topics.append(got.topic or names[alias])
    assert topics == ["first", "first", "second", "first"]


def test_a_client_without_an_alias_maximum_gets_none(talk5: Connect5) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("#", 1))
    for _ in range(3):
        sender.told("a")
        got = receiver.message()
        assert (got.topic, got.properties) == ("a", {})


def test_the_receive_maximum_of_the_client_bounds_what_is_under_way_to_it(talk5: Connect5) -> None:
    receiver, sender = talk5(properties=p.number(p.RECEIVE_MAXIMUM, 2)), talk5()
    receiver.granted(("a", 1))
    for number in range(1, 6):
        sender.told("a", b"%d" % number, pid=number)
    got = [receiver.read(3), receiver.read(3)]
    receiver.expect_nothing()
    for message in got:
        receiver.send(packets.puback(message.pid))
    assert [receiver.message().payload for _ in range(3)] == [b"3", b"4", b"5"]


def test_a_client_that_sends_more_than_the_servers_receive_maximum_is_disconnected(
    server: Server, bridge: MakeBridge, talk5: Connect5
) -> None:
    made = bridge(server, arguments=["--receive-maximum", "2"])
    sender = talk5(port=made.port)
    assert sender.connack.properties[p.RECEIVE_MAXIMUM] == 2
    sender.send(*(p.publish("a", b"x", qos=2, pid=pid) for pid in (1, 2, 3)))
    sender.expect_end(0x93)


def test_a_packet_that_is_too_large_ends_the_connection(server: Server, bridge: MakeBridge, talk5: Connect5) -> None:
    made = bridge(server, arguments=["--max-packet-bytes", "1000"])
    sender = talk5(port=made.port)
    assert sender.connack.properties[p.MAXIMUM_PACKET] == 1000
    sender.send(p.publish("a", b"x" * 1000))
    sender.expect_end(0x95)


def test_a_message_larger_than_the_client_takes_is_left_out_and_holds_up_nothing(talk5: Connect5) -> None:
    properties = persistent() + p.number(p.MAXIMUM_PACKET, 100)
    receiver, sender = talk5("c1", properties=properties), talk5()
    receiver.granted(("a", 1))
    receiver.send(p.disconnect())
    receiver.expect_closed()
    for payload in (b"1", b"x" * 200, b"2"):
        sender.told("a", payload)
    receiver = talk5("c1", clean=False, properties=properties)
    sender.told("a", b"y" * 200)
    sender.told("a", b"3")
    assert [receiver.message().payload for _ in range(3)] == [b"1", b"2", b"3"]  # [MQTT-3.1.2-25]
    receiver.expect_nothing()


def test_a_message_is_delivered_with_what_is_left_of_its_expiry(talk5: Connect5) -> None:
    receiver, sender = talk5("c1", properties=persistent()), talk5()
    receiver.granted(("a", 1))
    receiver.send(p.disconnect())
    receiver.expect_closed()
    sender.told("a", b"x", properties=p.number(p.MESSAGE_EXPIRY, 100))
    time.sleep(1.1)  # the passing of time is what is tested
    receiver = talk5("c1", clean=False, properties=persistent())
    assert 90 <= receiver.message().properties[p.MESSAGE_EXPIRY] <= 99  # [MQTT-3.3.2-6]


def test_a_message_whose_time_is_over_is_not_delivered(talk5: Connect5) -> None:
    receiver, sender = talk5("c1", properties=persistent()), talk5()
    receiver.granted(("a", 1))
    receiver.send(p.disconnect())
    receiver.expect_closed()
    sender.told("a", b"old", properties=p.number(p.MESSAGE_EXPIRY, 1))
    sender.told("a", b"new")
    time.sleep(1.1)  # the same
    receiver = talk5("c1", clean=False, properties=persistent())
    assert receiver.message().payload == b"new"  # [MQTT-3.3.2-5]
    receiver.expect_nothing()


def test_a_request_finds_its_answer(talk5: Connect5) -> None:
    asker, answerer = talk5("asker", properties=p.number(p.REQUEST_RESPONSE, 1)), talk5()
    inbox = asker.connack.properties[p.RESPONSE_INFORMATION].decode()
    asker.granted((f"{inbox}/#", 1))
    answerer.granted(("questions", 1))
    properties = p.string(p.RESPONSE_TOPIC, f"{inbox}/1") + p.string(p.CORRELATION_DATA, b"42")
    asker.told("questions", b"?", properties=properties)
    question = answerer.message()
    topic = question.properties[p.RESPONSE_TOPIC].decode()
    data = question.properties[p.CORRELATION_DATA]
    answerer.told(topic, b"!", properties=p.string(p.CORRELATION_DATA, data))
    answer = asker.message()
    assert (answer.payload, answer.properties[p.CORRELATION_DATA]) == (b"!", b"42")


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(p.publish("a", properties=p.number(p.SUBSCRIPTION_ID, 1)), id="an identifier of a subscription"),
        pytest.param(p.publish("a", properties=p.number(p.MESSAGE_EXPIRY, 1) * 2), id="a property twice"),
        pytest.param(p.publish("", b"x"), id="no topic"),
        pytest.param(p.auth(), id="AUTH"),
        pytest.param(p.subscribe(1, ("$share/g/a", 5)), id="no local on a shared subscription"),
    ],
)
def test_a_protocol_error_is_named_and_ends_the_connection(talk5: Connect5, packet: bytes) -> None:
    client = talk5()
    client.send(packet)
    client.expect_end(0x82)


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        pytest.param(p.publish("a/#"), 0x90, id="a wildcard in a topic"),
        pytest.param(packets.packet(0x30, packets.text(b"\xff") + b"\0"), 0x81, id="no UTF-8"),
        pytest.param(b"\x36\x02\0\0", 0x81, id="QoS 3"),
        pytest.param(p.publish("a", properties=b"\x99"), 0x81, id="an unknown property"),
        pytest.param(p.publish("a", properties=p.number(p.RECEIVE_MAXIMUM, 1)), 0x81, id="a property of CONNECT"),
    ],
)
def test_a_malformed_packet_is_named_and_ends_the_connection(talk5: Connect5, packet: bytes, code: int) -> None:
    client = talk5()
    client.send(packet)
    client.expect_end(code)


# ---- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------------------------------


def test_every_filter_has_a_reason_of_its_own(talk5: Connect5) -> None:
    client = talk5()
    assert client.granted(("a", 0), ("/".join("x" * 200), 1), ("b", 2)) == [0, 0x8F, 2]


def test_an_unsubscribe_reports_which_filters_were_there(talk5: Connect5) -> None:
    client = talk5()
    client.granted(("a", 0))
    client.send(p.unsubscribe(7, "a", "b"))
    client.expect(p.unsuback(7, 0, 0x11))


def test_a_client_that_wants_no_messages_of_its_own_gets_none(talk5: Connect5) -> None:
    client, other = talk5("c1"), talk5()
    client.granted(("a", 0x05))
    client.told("a", b"own")
    other.told("a", b"other")
    assert client.message().payload == b"other"  # [MQTT-3.8.3-3]
    client.expect_nothing()


@pytest.mark.parametrize(("options", "retain"), [(0x01, False), (0x09, True)])
def test_retain_as_published(talk5: Connect5, options: int, retain: bool) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("a", options))
    sender.told("a", b"x", retain=True)
    assert receiver.message().retain is retain


@pytest.mark.parametrize(
    ("handling", "first", "second"), [(0, True, True), (1, True, False), (2, False, False)], ids=["each", "new", "no"]
)
def test_retain_handling(talk5: Connect5, handling: int, first: bool, second: bool) -> None:
    sender, receiver = talk5(), talk5()
    sender.told("a", b"kept", retain=True)
    for expected in (first, second):
        receiver.send(p.subscribe(1, ("a", handling << 4)))
        got = [receiver.read()]
        if got[0].kind == 3:  # it may come before the SUBACK
            got.append(receiver.read(9))
        got += [p.read(packet) for packet in receiver.collect()]
        assert [message.kind for message in got if message.kind != 9] == ([3] if expected else [])


def test_more_subscriptions_than_are_allowed_are_refused(server: Server, bridge: MakeBridge, talk5: Connect5) -> None:
    made = bridge(server, arguments=["--max-subscriptions", "2"])
    client = talk5("c1", port=made.port, properties=persistent())
    assert client.granted(("a", 1), ("b", 1), ("c", 1)) == [1, 1, 0x97]
    client.send(p.disconnect())
    client.expect_closed()
    client = talk5("c1", port=made.port, clean=False, properties=persistent())
    assert client.granted(("a", 1), ("b", 1), ("c", 1)) == [1, 1, 0x97]  # again: they are there


def test_a_message_has_the_identifiers_of_its_subscriptions(talk5: Connect5) -> None:
    receiver, sender = talk5(), talk5()
    receiver.granted(("a/#", 1), properties=p.number(p.SUBSCRIPTION_ID, 7))
    receiver.granted(("a/b", 1), properties=p.number(p.SUBSCRIPTION_ID, 300))
    receiver.granted(("a/+", 1))
    sender.told("a/b")
    assert sorted(receiver.message().properties[p.SUBSCRIPTION_ID]) == [7, 300]  # [MQTT-3.3.4-3]
    sender.told("a/c")
    assert receiver.message().properties[p.SUBSCRIPTION_ID] == [7]


def test_members_of_a_shared_subscription_share_the_messages_on_whatever_bridge_they_are(
    server: Server, bridge: MakeBridge, talk5: Connect5
) -> None:
    one, two = bridge(server), bridge(server)
    members = [talk5("m1", port=one.port), talk5("m2", port=two.port), talk5("m3", port=two.port)]
    for member in members:
        assert member.granted(("$share/g/a", 1)) == [1]
    sender = talk5(port=one.port)
    for number in range(30):
        assert sender.told("a", b"%d" % number) == 0
    got = [[p.read(packet).payload for packet in member.collect()] for member in members]
    assert sorted(int(payload) for payloads in got for payload in payloads) == list(range(30))
    assert all(got)


def test_what_a_member_of_a_shared_subscription_leaves_behind_goes_to_the_others(talk5: Connect5) -> None:
    lasting = p.number(p.RECEIVE_MAXIMUM, 2)
    leaver, stayer, sender = talk5("m1", properties=lasting), talk5("m2"), talk5()
    leaver.granted(("$share/g/a", 1))
    stayer.granted(("$share/g/a", 1))
    for number in range(20):
        sender.told("a", b"%d" % number)
    leaver.send(p.disconnect())
    got: set[int] = set()
    while len(got) < 20:
        got.add(int(stayer.message().payload))


# ---- versions side by side -------------------------------------------------------------------------------------------


def test_a_session_may_continue_in_another_version(talk: Connect, talk5: Connect5) -> None:
    sender = talk5()
    client: Talk = talk("c1", clean=False)
    client.subscribe(("a", 1))
    client.disconnect()
    sender.told("a", b"1", properties=p.pair("a", "b"))
    newer = talk5("c1", clean=False, properties=persistent())
    assert newer.connack.present
    got = newer.message()
    assert (got.payload, got.properties) == (b"1", {p.USER_PROPERTY: [("a", "b")]})
