"""The laws of the codec for MQTT 5.0: round trips, bytes in any portions, rubbish; and what the encoders refuse."""

import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core import mqtt
from holdmq.core._binding import ffi, lib
from holdmq.core.mqtt import (
    NO_PROPERTIES,
    WILL,
    Auth,
    Connack,
    Connect,
    Disconnect,
    InvalidPacketError,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolError,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.core.mqtt import codec
from tests.core.mqtt.codec import byte_by_byte, wire
from tests.core.mqtt.test_mqtt import booleans, filters, packet_ids, payloads, strings, topics
from tests.core.mqtt.test_mqtt5_reasons import TABLE as REASONS
from tests.core.mqtt.test_mqtt5_reasons import TYPES
from tests.core.mqtt.test_mqtt5_wire import FAULTS, PACKETS
from tests.core.support import copy, heap_bytes, written


def some(**fields: Any) -> Any:
    """Properties with any of these fields."""
    return st.builds(Properties, **{name: st.none() | values for name, values in fields.items()}, user_properties=pairs)


def reasons(letter: str) -> Any:
    """The reason codes of a packet type."""
    return st.sampled_from([code for code, letters in REASONS.items() if letter in letters])


flags, shorts, longs, positive = (
    st.integers(0, 1),
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(1, 65535),
)
pairs = st.lists(st.tuples(strings, strings), max_size=3).map(tuple)
identifiers = st.integers(1, 268435455)
content = {
    "payload_format_indicator": flags,
    "message_expiry_interval": longs,
    "content_type": strings,
    "response_topic": topics,
    "correlation_data": payloads,
}
opening = {
    "session_expiry_interval": longs,
    "authentication_method": strings,
    "receive_maximum": positive,
    "topic_alias_maximum": shorts,
    "maximum_packet_size": st.integers(1, 2**32 - 1),
}
names = ("maximum_qos", "retain_available", "wildcard_subscription_available", "subscription_identifiers_available")
accepting = dict.fromkeys([*names, "shared_subscription_available"], flags)
said = some(reason_string=strings)
published = st.builds(
    lambda properties, identifiers: replace(properties, subscription_identifiers=tuple(identifiers)),
    some(**content, topic_alias=positive),
    st.lists(identifiers, max_size=2),
)


def publish(fields: tuple[bytes, bytes, int, bool, bool, int, Properties]) -> Publish:
    """A PUBLISH that may be: without a topic only with an alias, without an identifier and DUP with QoS 0."""
    topic, payload, qos, retain, dup, packet_id, properties = fields
    if properties.topic_alias is None and not topic:
        topic = b"t"
    return Publish(topic, payload, qos, retain, dup and qos > 0, packet_id if qos else 0, properties)


publishes = st.tuples(
    st.just(b"") | topics, payloads, st.integers(0, 2), booleans, booleans, packet_ids, published
).map(publish)
wills = st.builds(
    Will,
    topic=topics,
    payload=payloads,
    qos=st.integers(0, 2),
    retain=booleans,
    properties=some(**content, will_delay_interval=longs),
)
connects = st.builds(
    Connect,
    client_id=strings,
    clean=booleans,
    keep_alive_s=shorts,
    will=st.none() | wills,
    username=st.none() | strings,
    password=st.none() | st.binary(max_size=10),
    level=st.just(5),
    properties=some(**opening, request_problem_information=flags, request_response_information=flags),
)
connack_properties = some(
    **opening,
    **accepting,
    assigned_client_identifier=strings,
    authentication_data=payloads,
    server_keep_alive=shorts,
    response_information=strings,
    server_reference=strings,
    reason_string=strings,
)
subscriptions = st.builds(
    Subscription,
    topic_filter=filters,
    qos=st.integers(0, 2),
    valid=st.just(True),
    no_local=booleans,
    retain_as_published=booleans,
    retain_handling=st.integers(0, 2),
).filter(lambda entry: not (entry.no_local and entry.topic_filter.startswith(b"$share/")))
packets = st.one_of(
    connects,
    st.builds(Connack, session_present=booleans, code=st.just(0), properties=connack_properties),
    st.builds(Connack, session_present=st.just(False), code=reasons("C"), properties=said),
    publishes,
    st.builds(Puback, packet_id=packet_ids, reason_code=reasons("4"), properties=said),
    st.builds(Pubrec, packet_id=packet_ids, reason_code=reasons("5"), properties=said),
    st.builds(Pubrel, packet_id=packet_ids, reason_code=reasons("6"), properties=said),
    st.builds(Pubcomp, packet_id=packet_ids, reason_code=reasons("7"), properties=said),
    st.builds(
        Subscribe,
        packet_id=packet_ids,
        subscriptions=st.lists(subscriptions, min_size=1, max_size=5),
        properties=st.builds(
            Properties, subscription_identifiers=st.just(()) | st.tuples(identifiers), user_properties=pairs
        ),
    ),
    st.builds(
        Suback,
        packet_id=packet_ids,
        codes=st.lists(reasons("S"), min_size=1, max_size=5),
        properties=said,
    ),
    st.builds(
        Unsubscribe,
        packet_id=packet_ids,
        topic_filters=st.lists(filters, min_size=1, max_size=5),
        properties=st.builds(Properties, user_properties=pairs),
    ),
    st.builds(
        Unsuback,
        packet_id=packet_ids,
        codes=st.lists(reasons("U"), min_size=1, max_size=5),
        properties=said,
    ),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(
        Disconnect,
        reason_code=reasons("D"),
        properties=some(session_expiry_interval=longs, reason_string=strings, server_reference=strings),
    ),
    st.builds(Auth),
    st.builds(
        Auth,
        reason_code=reasons("A"),
        properties=st.builds(
            Properties,
            authentication_method=strings,
            authentication_data=st.none() | payloads,
            reason_string=st.none() | strings,
            user_properties=pairs,
        ),
    ),
)


def encode(packet: Packet) -> bytes:
    """The packet as MQTT 5.0 has it."""
    return mqtt.encode(packet, version=5)


def decode(data: bytes) -> mqtt.Decoded:
    """The packets of MQTT 5.0 in these bytes."""
    return mqtt.decode_many(data, version=5)


c_packet = partial(codec.c_packet, version=5)


# ---- round trips ----


@given(st.lists(packets, max_size=5))
def test_what_is_encoded_is_decoded_to_the_same_packets(sent: list[Packet]) -> None:
    data = b"".join(map(encode, sent))
    assert decode(data) == (sent, len(data), None)


@given(packets)
def test_a_decoded_packet_encodes_to_the_same_bytes_in_c(packet: Packet) -> None:
    data = encode(packet)
    result, decoded, _keep = c_packet(data)
    assert result == len(data) == lib.hmq_mqtt_size(decoded, 5)
    assert written(result, lambda out, room: lib.hmq_mqtt_encode(decoded, 5, ffi.cast("uint8_t *", out), room)) == data


@given(connects)
def test_a_connect_is_taken_apart_and_put_together_in_c(connect: Connect) -> None:
    _, packet, _keep = c_packet(encode(connect))
    parts = ffi.new("hmq_mqtt_connect *")
    assert lib.hmq_mqtt_read_connect(packet, parts) == lib.HMQ_MQTT_OK
    body = copy(packet.payload.data, packet.payload.len)
    assert lib.hmq_mqtt_connect_size(parts) == len(body)
    assert (
        written(len(body), lambda out, room: lib.hmq_mqtt_encode_connect(parts, ffi.cast("uint8_t *", out), room))
        == body
    )


@given(
    st.one_of(connects.map(lambda connect: (connect.properties, 1)), wills.map(lambda will: (will.properties, WILL)))
)
def test_properties_by_themselves_come_back(what: tuple[Properties, int]) -> None:
    properties, place = what
    assert mqtt.decode_properties(mqtt.encode_properties(properties, place)) == properties


@given(packets)
def test_what_only_5_0_has_is_left_out_for_3_1_1(packet: Packet) -> None:
    if isinstance(packet, Connect | Connack | Subscribe | Suback | Auth):
        return  # a level, codes or options of their own
    if isinstance(packet, Publish) and not packet.topic:
        return
    data = mqtt.encode(packet, version=4)
    found = mqtt.decode_many(data).packets
    plain: dict[str, Any] = {"properties": NO_PROPERTIES, "reason_code": 0, "codes": []}
    plain = {name: value for name, value in plain.items() if hasattr(packet, name)}
    assert found == [replace(packet, **plain)]


# ---- bytes as they come ----


@given(st.lists(packets, min_size=1, max_size=3))
def test_byte_by_byte_gives_the_same_packets(sent: list[Packet]) -> None:
    assert byte_by_byte(b"".join(map(encode, sent)), decode) == sent


@given(packets, st.binary(max_size=20))
def test_a_truncated_packet_waits_and_trailing_bytes_are_left_alone(packet: Packet, behind: bytes) -> None:
    data = encode(packet)
    for size in range(len(data)):
        assert c_packet(data[:size])[0] == 0
    assert c_packet(data + behind)[0] == len(data)


@pytest.mark.parametrize("text", [text for text, _ in PACKETS])
def test_a_body_that_is_cut_at_any_position_is_refused_or_another_packet(text: str) -> None:
    data = wire(text)
    for size in range(len(data) - 2):
        result, packet, _keep = c_packet(data[:1] + bytes([size]) + data[2 : 2 + size])
        assert result == 2 + size or result < 0
        if result > 0:
            assert 0 < lib.hmq_mqtt_size(packet, 5) <= result


def test_a_batch_larger_than_one_call_is_complete() -> None:
    properties = Properties(user_properties=((b"k", b"v"),))
    sent = [Publish(b"a/b", str(n).encode(), 1, packet_id=n + 1, properties=properties) for n in range(1000)]
    data = b"".join(map(encode, sent))
    assert decode(data + b"\x30") == (sent, len(data), None)


# ---- rubbish ----

first_bytes = st.sampled_from([bytes([kind << 4 | flags]) for kind in range(16) for flags in (0, 2, 11)])


@given(first_bytes, st.binary(max_size=60))
def test_any_bytes_are_a_packet_or_a_fault_and_never_more(first: bytes, rest: bytes) -> None:
    data = first + bytes([len(rest)]) + rest
    result, packet, _keep = c_packet(data)
    assert result == len(data) or result < 0
    if result > 0:
        size = lib.hmq_mqtt_size(packet, 5)
        again = written(size, lambda out, room: lib.hmq_mqtt_encode(packet, 5, ffi.cast("uint8_t *", out), room))
        assert size == len(data) or (first[0] >> 4 in TYPES.values() and size < len(data))
        assert decode(again).packets == decode(data).packets


@given(st.sampled_from([wire(text) for text, _ in PACKETS] + [wire(text) for text, _, _ in FAULTS]), st.data())
def test_changed_packets_are_decoded_or_refused(original: bytes, data: st.DataObject) -> None:
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for version in (5, mqtt.ANY_VERSION):
        found, consumed, error = mqtt.decode_many(changed, version=version)
        assert consumed <= len(changed)
        assert error is None or str(error)
        five = version == 5 or bool(found and isinstance(found[0], Connect) and found[0].level == 5)
        if five:
            assert decode(b"".join(map(encode, found))).packets == found


# ---- refusals of the encoders ----

LONG = bytes(65536)


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"", b""),  # neither a topic nor an alias
        Publish(b"", b"", properties=Properties(content_type=b"t")),
        Publish(b"a", b"", qos=3, packet_id=1),
        Publish(b"a", b"", qos=1),
        Publish(b"a", b"", packet_id=1),
        Publish(b"a", b"", dup=True),
        Publish(b"a", b"", qos=256, packet_id=1),
        Publish(LONG, b""),
        Publish(b"a", b"", properties=Properties(topic_alias=0)),
        Publish(b"a", b"", properties=Properties(receive_maximum=1)),
        Publish(b"a", b"", properties=Properties(content_type=b"\xff")),
        Publish(b"a", b"", properties=Properties(content_type=LONG)),
        Publish(b"a", b"", properties=Properties(response_topic=b"+")),
        Publish(b"a", b"", properties=Properties(subscription_identifiers=(0,))),
        Publish(b"a", b"", properties=Properties(message_expiry_interval=2**32)),
        Publish(b"a", b"", properties=Properties(message_expiry_interval=-1)),
        Publish(b"a", b"", properties=Properties(message_expiry_interval="x")),  # type: ignore[arg-type]
        Publish(b"a", b"", properties=Properties(content_type="t")),  # type: ignore[arg-type]
        Publish(b"a", b"", properties=Properties(user_properties=((b"k", "v"),))),  # type: ignore[arg-type]
        Publish(b"a", b"", properties=Properties(user_properties=[(b"k", b"v")])),  # type: ignore[arg-type]
        Publish(b"a", b"", properties=Properties(user_properties=((b"k", LONG),))),
        Puback(0, 0x10),
        Puback(1, 0x92),
        Puback(1, 256),
        Pubrec(65536, 0x10),
        Pubrel(1, 0x80),
        Pubcomp(1, 1),
        Puback(1, 0, Properties(topic_alias=1)),
        Connack(True, 0x80),
        Connack(False, 1),
        Connack(False, 0, Properties(maximum_qos=2)),
        Suback(1, []),
        Suback(1, [3]),
        Suback(1, [256]),
        Unsuback(1, []),
        Unsuback(1, [1]),
        Unsuback(0, [0]),
        Subscribe(1, []),
        Subscribe(1, [Subscription(b"a", 3)]),
        Subscribe(1, [Subscription(b"a", retain_handling=3)]),
        Subscribe(1, [Subscription(b"a", retain_handling=4)]),
        Subscribe(1, [Subscription(b"a")], Properties(subscription_identifiers=(1, 2))),
        Unsubscribe(1, []),
        Disconnect(1),
        Auth(1),
        Auth(0x18),
        Auth(0x18, Properties(authentication_data=b"d")),
        Connect(b"a", level=5, properties=Properties(authentication_data=b"d")),
        Connect(b"a", level=5, properties=Properties(topic_alias=1)),
        Connect(b"a", level=5, will=Will(b"", b"")),
        Connect(b"a", level=5, will=Will(b"w", b"", properties=Properties(topic_alias=1))),
        Connect(b"a", level=6),
    ],
    ids=lambda packet: repr(packet)[:60],
)
def test_a_packet_that_mqtt_forbids_is_not_encoded(packet: Packet) -> None:
    with pytest.raises(InvalidPacketError):
        encode(packet)


def test_3_1_1_has_no_auth_and_no_subscription_options() -> None:
    for packet in (Auth(), Subscribe(1, [Subscription(b"a", no_local=True)])):
        with pytest.raises(InvalidPacketError):
            mqtt.encode(packet)


@pytest.mark.parametrize("version", [0, 3, 6, 255])
def test_no_packet_is_encoded_for_another_version(version: int) -> None:
    for packet in (Publish(b"a", b""), Disconnect(), Suback(1, [0]), Puback(1, 0x10)):
        with pytest.raises(InvalidPacketError):
            mqtt.encode(packet, version=version)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": 0},
        {"type": 16},
        {"type": lib.HMQ_MQTT_PUBLISH},
        {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "properties": (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING)},
        {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "properties": (ffi.NULL, 2**64 - 1)},
        {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "payload": (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING - 3)},
        {"type": lib.HMQ_MQTT_UNSUBACK, "packet_id": 1},
        {"type": lib.HMQ_MQTT_AUTH, "packet_id": 1},
    ],
    ids=str,
)
def test_a_packet_that_cannot_be_is_not_written_in_c(fields: dict[str, Any]) -> None:
    packet = ffi.new("hmq_mqtt_packet *", fields)
    assert lib.hmq_mqtt_size(packet, 5) == 0
    assert lib.hmq_mqtt_encode(packet, 5, heap_bytes(bytes(64)), 64) == 0


def test_the_largest_publish_has_its_size() -> None:
    payload = (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING - 4)
    packet = ffi.new("hmq_mqtt_packet *", {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "payload": payload})
    assert lib.hmq_mqtt_size(packet, 5) == mqtt.MAX_PACKET_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"level": 5, "properties": (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING)},
        {"level": 5, "properties": (ffi.NULL, 2**64 - 1)},
        {"level": 5, "will_properties": (ffi.NULL, 2)},  # without a will
        {"level": 4, "clean": True, "properties": (ffi.NULL, 2)},
        {"level": 4, "clean": True, "has_will": True, "will_topic": (ffi.NULL, 1), "will_properties": (ffi.NULL, 2)},
    ],
    ids=str,
)
def test_a_connect_that_cannot_be_has_no_size(fields: dict[str, Any]) -> None:
    assert lib.hmq_mqtt_connect_size(ffi.new("hmq_mqtt_connect *", fields)) == 0


def test_a_refused_property_is_named() -> None:
    with pytest.raises(InvalidPacketError, match=r"2\.2\.2\.2.*receive_maximum=1"):
        mqtt.encode_properties(Properties(receive_maximum=1), PacketType.PUBLISH)
    with pytest.raises(InvalidPacketError, match=r"topic_alias is 65536"):
        mqtt.encode_properties(Properties(topic_alias=65536), PacketType.PUBLISH)


def test_a_protocol_error_survives_pickling() -> None:
    error = mqtt.decode_many(wire("10 0f 0004 'MQTT' 06 02 003c 00 0002 'me'"), version=mqtt.ANY_VERSION).error
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert isinstance(copied, ProtocolError)
    assert error is not None
    assert (copied.code, copied.level, copied.reason_code, str(copied)) == (error.code, 6, 0x84, str(error))
