"""What a link carries, with a real Mosquitto on the other side."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from holdmq.core import mqtt
from tests.bridge.uplink.support import TIMEOUT_S, LinkProcess, Local, Mosquitto, Remote, payloads
from tests.support import embedded_kinds, eventually

server_kinds = embedded_kinds

MakeMosquitto = Callable[..., Mosquitto]
MakeRemote = Callable[..., Remote]
MakeLink = Callable[..., LinkProcess]

VERSIONS = ["5.0", "3.1.1"]


@pytest.mark.parametrize("protocol", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_out_keeps_qos_and_payload_and_puts_the_prefixes(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str, qos: int
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("plant-7/#")
    uplink(local, broker, [f"sensors/# out {qos} site/ plant-7/"], protocol=protocol)
    for number in range(50):
        local.publish(f"site/sensors/{number % 3}", b"\0%d\xff" % number, qos=qos)
        local.publish("other/sensors", b"not this one", qos=qos)
    eventually(lambda: len(there.messages) >= 50, TIMEOUT_S)
    assert payloads(there.messages) == [b"\0%d\xff" % number for number in range(50)]
    assert [message.topic for message in there.messages] == [f"plant-7/sensors/{number % 3}" for number in range(50)]
    assert {message.qos for message in there.messages} == {qos}
    eventually(lambda: local.waiting() == 0, TIMEOUT_S, "an empty queue")


@pytest.mark.parametrize("protocol", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_in_keeps_qos_and_payload_and_puts_the_prefixes(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str, qos: int
) -> None:
    broker = mosquitto()
    local.listen("todo/#")
    uplink(local, broker, ["jobs/+ in 2 todo/ plant-7/"], protocol=protocol)
    there = remote(broker.port)
    sent = {there.publish(f"plant-7/jobs/{number % 3}", b"\0%d\xff" % number, qos) for number in range(50)}
    there.publish("plant-7/jobs/a/b", b"not this one", qos)
    there.wait_acknowledged(sent)
    received = local.received if qos else local.heard
    eventually(lambda: len(received()) >= 50, TIMEOUT_S)
    assert payloads(received()) == [b"\0%d\xff" % number for number in range(50)]
    assert [message.topic for message in received()] == [f"todo/jobs/{number % 3}" for number in range(50)]
    assert {message.qos for message in received()} == {qos}
    assert {message.publisher for message in received()} == {"link:up"}


@pytest.mark.parametrize("protocol", VERSIONS)
def test_a_link_with_both_directions_carries_each_message_once_without_an_echo(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("#")
    local.listen("#")
    uplink(local, broker, ["# both 2"], protocol=protocol)
    sent = set()
    for number in range(30):
        local.publish("here", b"%d" % number, qos=2)
        sent.add(there.publish("there", b"%d" % number, 2))
    there.wait_acknowledged(sent)
    local.publish("here", b"last", qos=2)
    there.wait_acknowledged({there.publish("there", b"last", 2)})
    expected = [b"%d" % number for number in range(30)] + [b"last"]

    def heard() -> list[list[bytes]]:
        sides = (local.received(), there.messages)
        return [payloads(m for m in side if m.topic == topic) for side in sides for topic in ("here", "there")]

    # Each side hears its own messages, too, in their time: those from the other side tell nothing about them.
    eventually(lambda: all(b"last" in way for way in heard()), TIMEOUT_S, "the last message on all four ways")
    assert heard() == [expected] * 4


def test_lines_with_a_smaller_qos_bound_it_on_both_ways(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up/#")
    local.listen("down/#")
    uplink(local, broker, ["up/# out 1", "down/# in 1"])
    local.publish("up/a", b"1", qos=2)
    there.publish("down/a", b"2", 2)
    eventually(lambda: there.messages, TIMEOUT_S)
    eventually(local.received, TIMEOUT_S)
    assert [message.qos for message in there.messages] == [1]
    assert [message.qos for message in local.messages] == [1]


@pytest.mark.parametrize("protocol", VERSIONS)
def test_retain_flags_are_kept_on_both_ways(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink, protocol: str
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    local.publish("up/before", b"b", retain=True)
    there.wait_acknowledged({there.publish("down/before", b"b", retain=True)})
    witness = remote(broker.port, "witness")
    witness.listen("up/#")
    uplink(local, broker, ["up/# out 1", "down/# in 1"], protocol=protocol)
    local.publish("up/live", b"l", retain=True)
    local.publish("up/plain", b"p")
    there.publish("down/live", b"l", retain=True)
    there.wait_acknowledged({there.publish("down/plain", b"p")})
    local.listen("down/#")
    eventually(lambda: set(local.hold.topics.retained("down/#")) == {"down/before", "down/live"}, TIMEOUT_S)
    wanted = {"up/before", "up/live", "up/plain"}
    eventually(lambda: not wanted - {m.topic for m in witness.messages}, TIMEOUT_S, "all that is published here, there")
    there.listen("up/#")
    eventually(lambda: {m.topic for m in there.messages if m.retain} >= {"up/before", "up/live"}, TIMEOUT_S)
    assert not [m.topic for m in there.messages if m.retain and m.topic == "up/plain"]
    local.publish("up/live", b"", retain=True)
    there.publish("down/live", b"", retain=True)
    eventually(lambda: local.hold.topics.retained("down/#") == ("down/before",), TIMEOUT_S)


def test_properties_and_expiry_are_kept(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up")
    local.listen("down")
    uplink(local, broker, ["up out 1", "down in 1"])
    sent = mqtt.Properties(
        payload_format_indicator=1,
        content_type=b"text/plain",
        response_topic=b"answers",
        correlation_data=b"\0\1",
        user_properties=((b"a", b"1"), (b"a", b"2")),
    )
    local.publish("up", b"x", properties=mqtt.encode_properties(sent, mqtt.PacketType.PUBLISH), ttl=100)
    eventually(lambda: there.messages, TIMEOUT_S)
    got: Any = there.messages[0].properties
    assert got is not None
    assert (got.PayloadFormatIndicator, got.ContentType, got.ResponseTopic) == (1, "text/plain", "answers")
    assert (got.CorrelationData, got.UserProperty[:2]) == (b"\0\1", [("a", "1"), ("a", "2")])
    assert 90 <= got.MessageExpiryInterval <= 100
    there.publish("down", b"x", properties=publish_properties(sent))
    eventually(local.received, TIMEOUT_S)
    message = local.messages[0]
    back = mqtt.decode_properties(message.properties)
    assert replace(back, user_properties=back.user_properties[:2]) == sent
    assert message.expires_ms is not None
    assert 80_000 <= message.expires_ms - message.time_ms <= 100_000


def publish_properties(wanted: mqtt.Properties) -> Properties:
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call] # paho declares no types here
    made.PayloadFormatIndicator = wanted.payload_format_indicator
    made.MessageExpiryInterval = 100
    made.ContentType = "text/plain"
    made.ResponseTopic = "answers"
    made.CorrelationData = wanted.correlation_data
    made.UserProperty = [("a", "1"), ("a", "2")]
    return made


def test_a_message_that_expired_while_the_other_broker_was_away_does_not_go_out(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    there.listen("up")
    link = uplink(local, broker, ["up out 1"])
    link.stop()
    local.publish("up", b"soon gone", ttl=1)
    local.publish("up", b"stays")
    eventually(lambda: local.hold.session("link:up").fetch().expired, TIMEOUT_S, "the expiry")
    link.start()
    eventually(lambda: there.messages, TIMEOUT_S)
    assert payloads(there.messages) == [b"stays"]


def test_the_state_of_the_link_is_retained_on_both_sides(
    local: Local, mosquitto: MakeMosquitto, remote: MakeRemote, uplink: MakeLink
) -> None:
    broker = mosquitto()
    there = remote(broker.port)
    link = uplink(local, broker, ["up out 1"], client_id="plant-7", lease_s=2)

    def here(state: bytes) -> bool:
        message = local.hold.topics.retained_message("$SYS/broker/connection/up/state")
        return message is not None and message.payload == state

    there.listen("$SYS/broker/connection/plant-7/state")
    eventually(lambda: payloads(there.messages)[-1:] == [b"1"], TIMEOUT_S)
    eventually(lambda: here(b"1"), TIMEOUT_S)
    link.kill()
    eventually(lambda: payloads(there.messages)[-1:] == [b"0"], TIMEOUT_S, "the will there")
    eventually(lambda: here(b"0"), TIMEOUT_S, "the will here")
    link.start()
    eventually(lambda: here(b"1") and payloads(there.messages)[-1:] == [b"1"], TIMEOUT_S)
    broker.kill()
    eventually(lambda: here(b"0"), TIMEOUT_S, "that the other broker is away")
    broker.start()
    eventually(lambda: here(b"1"), TIMEOUT_S)
    link.stop()
    eventually(lambda: here(b"0"), TIMEOUT_S, "the end in order")
