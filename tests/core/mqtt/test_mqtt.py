"""The MQTT codec's laws: round trips, bytes in any portions, rubbish; and what the encoders refuse."""

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
    Connack,
    Connect,
    Disconnect,
    InvalidPacketError,
    Packet,
    Pingreq,
    Pingresp,
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
    encode,
)
from tests.core import models
from tests.core.mqtt import codec
from tests.core.mqtt.codec import byte_by_byte, wire
from tests.core.mqtt.test_mqtt_wire import FAULTS, PACKETS
from tests.core.support import copy, heap_bytes, written

packet_ids = st.integers(1, 65535)
topics = models.names.map(str.encode)
filters = models.filters.map(str.encode)
payloads = st.binary(max_size=200)
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10).map(str.encode)
booleans = st.booleans()

publishes = st.one_of(
    st.builds(Publish, topic=topics, payload=payloads, retain=booleans),
    st.builds(
        Publish,
        topic=topics,
        payload=payloads,
        qos=st.integers(1, 2),
        retain=booleans,
        dup=booleans,
        packet_id=packet_ids,
    ),
)
wills = st.builds(Will, topic=topics, payload=payloads, qos=st.integers(0, 2), retain=booleans)
connects = st.builds(
    Connect,
    client_id=strings,
    clean=booleans,
    keep_alive_s=st.integers(0, 65535),
    will=st.none() | wills,
    username=st.none() | strings,
    password=st.none() | st.binary(max_size=10),
).filter(lambda c: (c.client_id or c.clean) and (c.username is not None or c.password is None))
packets = st.one_of(
    connects,
    st.builds(Connack, session_present=booleans, code=st.just(0)),
    st.builds(Connack, session_present=st.just(False), code=st.integers(1, 5)),
    publishes,
    st.builds(Puback, packet_id=packet_ids),
    st.builds(Pubrec, packet_id=packet_ids),
    st.builds(Pubrel, packet_id=packet_ids),
    st.builds(Pubcomp, packet_id=packet_ids),
    st.builds(
        Subscribe,
        packet_id=packet_ids,
        subscriptions=st.lists(
            st.builds(Subscription, topic_filter=filters, qos=st.integers(0, 2), valid=st.just(True)),
            min_size=1,
            max_size=5,
        ),
    ),
    st.builds(
        Suback,
        packet_id=packet_ids,
        codes=st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=5),
    ),
    st.builds(Unsubscribe, packet_id=packet_ids, topic_filters=st.lists(filters, min_size=1, max_size=5)),
    st.builds(Unsuback, packet_id=packet_ids),
    st.builds(Pingreq),
    st.builds(Pingresp),
    st.builds(Disconnect),
)


c_packet = partial(codec.c_packet, version=4)


# ---- round trips ----


@given(st.lists(packets, max_size=5), st.sampled_from([bytes, bytearray, memoryview]))
def test_what_is_encoded_is_decoded_to_the_same_packets(sent: list[Packet], kind: Any) -> None:
    data = b"".join(map(encode, sent))
    assert mqtt.decode_many(kind(data)) == (sent, len(data), None)


@given(packets)
def test_a_decoded_packet_encodes_to_the_same_bytes_in_c(packet: Packet) -> None:
    data = encode(packet)
    result, decoded, _keep = c_packet(data)
    assert result == len(data) == lib.hmq_mqtt_size(decoded, 4)
    assert written(result, lambda out, room: lib.hmq_mqtt_encode(decoded, 4, ffi.cast("uint8_t *", out), room)) == data


@given(publishes)
def test_a_publish_from_its_parts_is_the_same_bytes(packet: Publish) -> None:
    data = encode(packet)
    topic, payload = heap_bytes(packet.topic), heap_bytes(packet.payload)

    def write(out: Any, room: int) -> int:
        return int(
            lib.hmq_mqtt_encode_publish(
                topic,
                len(packet.topic),
                payload,
                len(packet.payload),
                packet.qos,
                packet.retain,
                packet.dup,
                packet.packet_id,
                ffi.cast("uint8_t *", out),
                room,
            )
        )

    assert written(len(data), write) == data


@given(connects)
def test_a_connect_is_taken_apart_and_put_together_in_c(connect: Connect) -> None:
    _, packet, _keep = c_packet(encode(connect))
    parts = ffi.new("hmq_mqtt_connect *")
    assert lib.hmq_mqtt_read_connect(packet, parts) == lib.HMQ_MQTT_OK
    body = copy(packet.payload.data, packet.payload.len)
    assert (
        written(len(body), lambda out, room: lib.hmq_mqtt_encode_connect(parts, ffi.cast("uint8_t *", out), room))
        == body
    )


@given(filters, st.integers(0, 2), booleans)
def test_an_entry_is_written_as_it_is_read(topic_filter: bytes, qos: int, subscribe: bool) -> None:
    held = heap_bytes(topic_filter)
    entry = ffi.new("hmq_mqtt_entry *", {"filter": (held, len(topic_filter)), "options": qos if subscribe else 0})
    size = 2 + len(topic_filter) + subscribe
    data = written(
        size, lambda out, room: lib.hmq_mqtt_encode_entry(entry, subscribe, ffi.cast("uint8_t *", out), room)
    )
    kind = lib.HMQ_MQTT_SUBSCRIBE if subscribe else lib.HMQ_MQTT_UNSUBSCRIBE
    source = heap_bytes(data)
    packet = ffi.new("hmq_mqtt_packet *", {"type": kind, "payload": (source, len(data))})
    at, found = ffi.new("size_t *"), ffi.new("hmq_mqtt_entry *")
    assert lib.hmq_mqtt_next_entry(packet, at, found)
    assert (copy(found.filter.data, found.filter.len), found.options) == (topic_filter, qos if subscribe else 0)
    assert at[0] == size
    assert not lib.hmq_mqtt_next_entry(packet, at, found)
    packet.payload.len -= 1
    at[0] = 0
    assert not lib.hmq_mqtt_next_entry(packet, at, found)  # cut: no entry, nothing read behind


# ---- bytes as they come ----


@given(st.lists(packets, min_size=1, max_size=3))
def test_byte_by_byte_gives_the_same_packets(sent: list[Packet]) -> None:
    assert byte_by_byte(b"".join(map(encode, sent)), mqtt.decode_many) == sent


@given(packets, st.binary(max_size=20))
def test_a_truncated_packet_waits_and_trailing_bytes_are_left_alone(packet: Packet, behind: bytes) -> None:
    data = encode(packet)
    for size in range(len(data)):
        assert c_packet(data[:size])[0] == 0
    assert c_packet(data + behind)[0] == len(data)


def test_a_batch_larger_than_one_call_is_complete() -> None:
    sent = [Publish(b"a/b", str(number).encode(), 1, packet_id=number % 65535 + 1) for number in range(1000)]
    data = b"".join(map(encode, sent))
    assert mqtt.decode_many(data + b"\x30") == (sent, len(data), None)
    broken = mqtt.decode_many(data + b"\x00")
    assert broken[:2] == (sent, len(data))
    assert isinstance(broken.error, ProtocolError)


@given(st.lists(packets, max_size=6), st.integers(0, 7))
def test_a_batch_is_no_larger_than_its_capacity(sent: list[Packet], capacity: int) -> None:
    parts = list(map(encode, sent))
    data = b"".join(parts)
    found = ffi.new("hmq_mqtt_packet[]", capacity)
    consumed, error = ffi.new("size_t *"), ffi.new("hmq_mqtt_error *")
    count = lib.hmq_mqtt_decode_many(heap_bytes(data), len(data), 4, 10**6, found, capacity, consumed, error)
    assert count == min(capacity, len(sent))
    assert consumed[0] == sum(map(len, parts[:count]))
    assert error[0] == lib.HMQ_MQTT_OK
    assert [found[index].bytes for index in range(count)] == list(map(len, parts[:count]))


# ---- rubbish ----

first_bytes = st.sampled_from([bytes([kind << 4 | flags]) for kind in range(16) for flags in (0, 2, 11)])


@given(first_bytes, st.binary(max_size=60))
def test_any_bytes_are_a_packet_or_a_fault_and_never_more(first: bytes, rest: bytes) -> None:
    data = first + bytes([len(rest)]) + rest
    result, packet, _keep = c_packet(data)
    assert result == len(data) or result < 0
    if result > 0:
        again = written(result, lambda out, room: lib.hmq_mqtt_encode(packet, 4, ffi.cast("uint8_t *", out), room))
        assert again == data
        mqtt.decode_many(data)


@given(st.sampled_from([wire(text) for text, _ in PACKETS] + [wire(text) for text, _, _ in FAULTS]), st.data())
def test_changed_packets_are_decoded_or_refused(original: bytes, data: st.DataObject) -> None:
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    found, consumed, error = mqtt.decode_many(changed)
    assert consumed <= len(changed)
    assert sum(len(encode(packet)) for packet in found) <= consumed + 3 * len(found)  # a length may be written longer
    assert error is None or str(error)


# ---- refusals of the encoders ----


@pytest.mark.parametrize(
    "packet",
    [
        Publish(b"a", b"", qos=3, packet_id=1),
        Publish(b"a", b"", qos=-1),
        Publish(b"a", b"", qos=1),  # [MQTT-2.3.1-1]
        Publish(b"a", b"", packet_id=1),  # [MQTT-2.3.1-5]
        Publish(b"a", b"", qos=1, packet_id=65536),
        Publish(b"a", b"", dup=True),  # [MQTT-3.3.1-2]
        Publish(b"", b""),
        Publish(bytes(65536), b""),
        Puback(0),
        Pubrec(65536),
        Pubrel(0),
        Pubcomp(-1),
        Unsuback(0),
        Connack(True, 1),  # [MQTT-3.2.2-4]
        Connack(False, 6),
        Connack(False, 256),
        Suback(1, []),
        Suback(1, [3]),
        Suback(0, [0]),
        Subscribe(1, []),
        Subscribe(1, [Subscription(b"a", 3)]),
        Subscribe(1, [Subscription(b"a", 256)]),
        Subscribe(1, [Subscription(b"", 0)]),
        Subscribe(1, [Subscription(bytes(65536), 0)]),
        Subscribe(0, [Subscription(b"a", 0)]),
        Unsubscribe(1, []),
        Unsubscribe(1, [b""]),
        Unsubscribe(0, [b"a"]),
        Connect(b"", clean=False),  # [MQTT-3.1.3-7]
        Connect(b"a", password=b"p"),  # [MQTT-3.1.2-22]
        Connect(b"a", will=Will(b"", b"")),
        Connect(b"a", will=Will(b"w", b"", qos=3)),
        Connect(b"a", will=Will(b"w", bytes(65536))),
        Connect(b"a", keep_alive_s=65536),
        Connect(b"a", level=6),
        Connect(bytes(65536)),
        Connect(b"a", username=bytes(65536)),
        Connect(b"a", username=b"u", password=bytes(65536)),
    ],
    ids=lambda packet: repr(packet)[:80],
)
def test_a_packet_that_mqtt_forbids_is_not_encoded(packet: Packet) -> None:
    with pytest.raises(InvalidPacketError):
        encode(packet)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": 0},
        {"type": 15},
        {"type": 16},
        {"type": lib.HMQ_MQTT_PINGREQ, "packet_id": 1},
        {"type": lib.HMQ_MQTT_PUBACK, "packet_id": 1, "payload": (ffi.NULL, 1)},
        {"type": lib.HMQ_MQTT_CONNECT},
        {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "payload": (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING - 2)},
        {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "payload": (ffi.NULL, 2**64 - 1)},
    ],
    ids=str,
)
def test_a_packet_that_cannot_be_is_not_written_in_c(fields: dict[str, Any]) -> None:
    packet = ffi.new("hmq_mqtt_packet *", fields)
    assert lib.hmq_mqtt_size(packet, 4) == 0
    assert lib.hmq_mqtt_encode(packet, 4, heap_bytes(bytes(64)), 64) == 0


def test_the_largest_publish_has_its_size() -> None:
    payload = (ffi.NULL, lib.HMQ_MQTT_MAX_REMAINING - 3)
    packet = ffi.new("hmq_mqtt_packet *", {"type": lib.HMQ_MQTT_PUBLISH, "topic": (ffi.NULL, 1), "payload": payload})
    assert lib.hmq_mqtt_size(packet, 4) == mqtt.MAX_PACKET_BYTES


def test_a_publish_larger_than_the_scratch_buffer_is_encoded() -> None:
    packet = Publish(b"t" * 60000, b"x" * 100000, 2, packet_id=9)
    assert mqtt.decode_many(encode(packet)).packets == [packet]
    assert mqtt.decode_many(encode(replace(packet, topic=b"t"))).packets == [replace(packet, topic=b"t")]


def test_texts_may_be_str_and_payloads_any_bytes() -> None:
    expected = mqtt.encode_publish("é".encode(), b"hi")
    assert mqtt.encode_publish("é", memoryview(b"hi")) == mqtt.encode_publish("é", bytearray(b"hi")) == expected
    assert mqtt.encode_subscribe(1, [("é", 1)]) == mqtt.encode_subscribe(1, [("é".encode(), 1)])
    assert mqtt.encode_unsubscribe(1, ["é"]) == mqtt.encode_unsubscribe(1, ["é".encode()])


def test_a_protocol_error_survives_pickling() -> None:
    error = mqtt.decode_many(b"\x00").error
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert isinstance(copied, ProtocolError)
    assert error is not None
    assert (copied.code, copied.connack_code, str(copied)) == (error.code, error.connack_code, str(error))


def test_the_limits_are_those_of_the_standard() -> None:
    assert (mqtt.PROTOCOL_LEVEL, mqtt.PROTOCOL_LEVEL_5, mqtt.ANY_VERSION) == (4, 5, 0)
    assert (mqtt.MAX_PACKET_BYTES, mqtt.SUBACK_FAILURE) == (268435460, 0x80)
    assert [kind.value for kind in mqtt.PacketType] == list(range(1, 16))
