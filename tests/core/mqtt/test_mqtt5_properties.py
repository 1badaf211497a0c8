"""The properties of MQTT 5.0 in C: the table of the standard, every fault, and what a PUBLISH passes on.

The table is written from table 2-4 of the standard, the bytes by hand.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core._binding import ffi, lib
from tests.core.mqtt.codec import wire
from tests.core.support import copy, heap_bytes, slice_of, text_of, written

WILL = 0
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = range(8, 12)
DISCONNECT, AUTH = 14, 15
PUBLISHED = {PUBLISH, WILL}
REASONED = {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}

# Identifier, an example, where it may stand, values out of range.
FLAG = ["02", "ff"]
TABLE: list[tuple[int, str, set[int], list[str]]] = [
    (0x01, "01", PUBLISHED, FLAG),
    (0x02, "00000000", PUBLISHED, []),
    (0x03, "0002 'me'", PUBLISHED, []),
    (0x08, "0003 'a/b'", PUBLISHED, []),
    (0x09, "0003 00ff80", PUBLISHED, []),
    (0x0B, "ffffff7f", {PUBLISH, SUBSCRIBE}, ["00"]),
    (0x11, "ffffffff", {CONNECT, CONNACK, DISCONNECT}, []),
    (0x12, "0002 'id'", {CONNACK}, []),
    (0x13, "0000", {CONNACK}, []),
    (0x15, "0001 'm'", {CONNECT, CONNACK, AUTH}, []),
    (0x16, "0002 00ff", {CONNECT, CONNACK, AUTH}, []),
    (0x17, "00", {CONNECT}, FLAG),
    (0x18, "ffffffff", {WILL}, []),
    (0x19, "01", {CONNECT}, FLAG),
    (0x1A, "0001 'r'", {CONNACK}, []),
    (0x1C, "0001 's'", {CONNACK, DISCONNECT}, []),
    (0x1F, "0003 'why'", REASONED, []),
    (0x21, "0001", {CONNECT, CONNACK}, ["0000"]),
    (0x22, "0000", {CONNECT, CONNACK}, []),
    (0x23, "ffff", {PUBLISH}, ["0000"]),
    (0x24, "01", {CONNACK}, FLAG),
    (0x25, "00", {CONNACK}, FLAG),
    (0x26, "0001 'k' 0001 'v'", {*range(16)} - {12, 13}, []),
    (0x27, "00000001", {CONNECT, CONNACK}, ["00000000"]),
    (0x28, "01", {CONNACK}, FLAG),
    (0x29, "01", {CONNACK}, FLAG),
    (0x2A, "00", {CONNACK}, FLAG),
]
IDS = [f"{row[0]:02x}" for row in TABLE]
KNOWN = {row[0] for row in TABLE}


def check(data: bytes, place: int) -> int:
    """The verdict of the check on a block of exactly this size."""
    properties, _keep = slice_of(data)
    return int(lib.hmq_mqtt_check_properties(properties, place))


def with_method(place: int) -> bytes:
    """The authentication method without which an AUTH, or authentication data, is none."""
    return wire("15 0001 'm'") if place == AUTH else b""


def read(data: bytes) -> list[tuple[int, int, bytes, bytes]]:
    """What the iterator finds: identifier, number, name, value."""
    properties, _keep = slice_of(data)
    at, found = ffi.new("size_t *"), ffi.new("hmq_mqtt_property *")
    result = []
    while lib.hmq_mqtt_next_property(properties, at, found):
        assert found.kind == lib.hmq_mqtt_kind_of_property(found.id) != lib.HMQ_MQTT_NO_PROPERTY
        result.append((found.id, found.number, text_of(found.name), text_of(found.value)))
    assert at[0] <= len(data)
    return result


# ---- the table ----


@pytest.mark.parametrize(("identifier", "example", "places", "beyond"), TABLE, ids=IDS)
def test_a_property_is_accepted_where_the_standard_has_it_and_nowhere_else(
    identifier: int, example: str, places: set[int], beyond: list[str]
) -> None:
    del beyond
    data = bytes([identifier]) + wire(example)
    for place in range(16):
        method = b"" if identifier == 0x15 else with_method(place)
        if identifier == 0x16 and place == CONNECT:
            method = wire("15 0001 'm'")
        expected = lib.HMQ_MQTT_OK if place in places else lib.HMQ_MQTT_MISPLACED_PROPERTY
        assert check(method + data, place) == expected


@pytest.mark.parametrize(("identifier", "example", "places", "beyond"), TABLE, ids=IDS)
def test_a_property_occurs_once(identifier: int, example: str, places: set[int], beyond: list[str]) -> None:
    del beyond
    data = bytes([identifier]) + wire(example)
    for place in places:
        many = identifier == 0x26 or (identifier == 0x0B and place == PUBLISH)
        method = b"" if identifier == 0x15 else with_method(place)
        if identifier == 0x16:
            method = wire("15 0001 'm'")
        assert check(method + data * 2, place) == (lib.HMQ_MQTT_OK if many else lib.HMQ_MQTT_REPEATED_PROPERTY)


@pytest.mark.parametrize(("identifier", "example", "places", "beyond"), TABLE, ids=IDS)
def test_a_property_has_a_value_of_its_range(
    identifier: int, example: str, places: set[int], beyond: list[str]
) -> None:
    del example
    expected = lib.HMQ_MQTT_BAD_TOPIC_ALIAS if identifier == 0x23 else lib.HMQ_MQTT_BAD_PROPERTY_VALUE
    for value in beyond:
        for place in places:
            assert check(bytes([identifier]) + wire(value), place) == expected


@pytest.mark.parametrize(("identifier", "example", "places", "beyond"), TABLE, ids=IDS)
def test_a_property_that_is_cut_is_not_a_property(
    identifier: int, example: str, places: set[int], beyond: list[str]
) -> None:
    del beyond
    data = bytes([identifier]) + wire(example)
    for size in range(1, len(data)):
        assert check(data[:size], min(places)) == lib.HMQ_MQTT_TRUNCATED
        assert read(data[:size]) == []
    assert len(read(data)) == 1


def test_an_identifier_that_is_not_in_the_table_is_not_a_property() -> None:
    for identifier in set(range(256)) - KNOWN:
        data = bytes([identifier]) + bytes(8)
        assert check(data, CONNECT) == lib.HMQ_MQTT_UNKNOWN_PROPERTY
        assert read(data) == []
        assert lib.hmq_mqtt_kind_of_property(identifier) == lib.HMQ_MQTT_NO_PROPERTY
    assert {name for name in range(256) if lib.hmq_mqtt_kind_of_property(name)} == KNOWN


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("03 0001 ff", "NOT_UTF8"),  # [MQTT-3.3.2-19]
        ("03 0001 00", "NUL"),
        ("08 0001 ff", "NOT_UTF8"),  # [MQTT-3.3.2-13]
        ("08 0001 '+'", "BAD_RESPONSE_TOPIC"),
        ("08 0003 'a/#'", "BAD_RESPONSE_TOPIC"),
        ("08 0000", "BAD_RESPONSE_TOPIC"),
        ("26 0001 ff 0000", "NOT_UTF8"),  # [MQTT-1.5.7-1]
        ("26 0001 'k' 0001 c0", "NOT_UTF8"),
        ("26 0001 00 0001 'v'", "NUL"),
        ("0b 8000", "NOT_MINIMAL"),
        ("0b 818000", "NOT_MINIMAL"),
        ("0b 80808000", "NOT_MINIMAL"),
        ("0b 80808080 01", "BAD_LENGTH"),
        ("01 01 00", "UNKNOWN_PROPERTY"),
    ],
)
def test_a_value_that_cannot_be_is_named(text: str, fault: str) -> None:
    assert check(wire(text), PUBLISH) == getattr(lib, f"HMQ_MQTT_{fault}")


def test_a_response_topic_may_be_deeper_than_our_topics() -> None:
    topic = b"/" * 200
    assert check(b"\x08" + len(topic).to_bytes(2, "big") + topic, PUBLISH) == lib.HMQ_MQTT_OK


def test_authentication_needs_a_method() -> None:
    data, method = wire("16 0001 00"), wire("15 0001 'm'")
    for place in (CONNECT, AUTH):
        assert check(data, place) == lib.HMQ_MQTT_NO_AUTH_METHOD
        assert check(data + method, place) == lib.HMQ_MQTT_OK
    assert check(wire("26 0000 0000"), AUTH) == lib.HMQ_MQTT_NO_AUTH_METHOD
    assert check(wire("26 0000 0000"), CONNECT) == lib.HMQ_MQTT_OK


# ---- reading and writing ----


@pytest.mark.parametrize(
    ("text", "number", "name", "value"),
    [
        ("01 01", 1, b"", b""),
        ("21 0102", 258, b"", b""),
        ("11 01020304", 16909060, b"", b""),
        ("0b 7f", 127, b"", b""),
        ("0b 8001", 128, b"", b""),
        ("0b ff7f", 16383, b"", b""),
        ("0b 808001", 16384, b"", b""),
        ("0b ffff7f", 2097151, b"", b""),
        ("0b 80808001", 2097152, b"", b""),
        ("0b ffffff7f", 268435455, b"", b""),
        ("03 0002 'me'", 0, b"", b"me"),
        ("09 0002 00ff", 0, b"", b"\x00\xff"),
        ("26 0001 'k' 0002 'vv'", 0, b"k", b"vv"),
    ],
)
def test_a_property_is_read_and_written_as_the_standard_draws_it(
    text: str, number: int, name: bytes, value: bytes
) -> None:
    data = wire(text)
    assert read(data) == [(data[0], number, name, value)]
    (name_slice, _name), (value_slice, _value) = slice_of(name), slice_of(value)
    fields = {"id": data[0], "number": number, "name": name_slice, "value": value_slice}
    property_ = ffi.new("hmq_mqtt_property *", fields)

    def put(out: Any, room: int) -> int:
        return int(lib.hmq_mqtt_put_property(property_, ffi.cast("uint8_t *", out), room))

    assert written(len(data), put) == data


def number_put(identifier: int, number: int) -> int:
    """Bytes written for a number where there is room enough."""
    return int(lib.hmq_mqtt_put_number(identifier, number, heap_bytes(bytes(16)), 16))


def test_a_number_out_of_its_range_is_not_written() -> None:
    assert number_put(lib.HMQ_MQTT_PAYLOAD_FORMAT, 2) == 0
    assert number_put(lib.HMQ_MQTT_TOPIC_ALIAS, 65536) == 0
    assert number_put(lib.HMQ_MQTT_TOPIC_ALIAS, 0) == 0
    assert number_put(lib.HMQ_MQTT_SUBSCRIPTION_ID, 268435456) == 0
    assert number_put(lib.HMQ_MQTT_SUBSCRIPTION_ID, 0) == 0
    assert number_put(lib.HMQ_MQTT_CONTENT_TYPE, 1) == 0
    assert number_put(4, 1) == 0
    assert number_put(lib.HMQ_MQTT_SUBSCRIPTION_ID, 268435455) == 5


def test_a_text_out_of_its_range_is_not_written() -> None:
    (short, _a), (long, _b), out = slice_of(b"x"), slice_of(bytes(65536)), heap_bytes(bytes(140000))
    assert lib.hmq_mqtt_put_value(lib.HMQ_MQTT_CONTENT_TYPE, long, out, 140000) == 0
    assert lib.hmq_mqtt_put_value(lib.HMQ_MQTT_TOPIC_ALIAS, short, out, 140000) == 0
    assert lib.hmq_mqtt_put_value(lib.HMQ_MQTT_USER_PROPERTY, short, out, 140000) == 0
    assert lib.hmq_mqtt_put_user_property(short, long, out, 140000) == 0
    assert lib.hmq_mqtt_put_user_property(long, short, out, 140000) == 0
    assert lib.hmq_mqtt_put_user_property(short, short, out, 140000) == 7


# ---- what a PUBLISH passes on ----

PASSED = [
    "01 01",
    "03 0001 't'",
    "08 0001 'r'",
    "09 0001 ff",
    "26 0001 'a' 0000",
    "26 0001 'b' 0000",
    "26 0001 'a' 0000",
]
CONSUMED = ["02 0000003c", "23 0005", "0b 01", "0b 8001"]


@given(st.permutations(PASSED + CONSUMED), st.integers(0, 11))
def test_a_publish_is_taken_apart_and_the_rest_keeps_its_bytes_and_order(texts: list[str], count: int) -> None:
    taken = texts[:count]
    parts = [wire(text) for text in taken]
    data = b"".join(parts)
    passed = [text in PASSED for text in taken]
    expected = b"".join(part for part, is_passed in zip(parts, passed, strict=True) if is_passed)
    properties, block = slice_of(data)
    split = ffi.new("hmq_mqtt_publish_properties *")
    assert lib.hmq_mqtt_check_properties(properties, PUBLISH) == lib.HMQ_MQTT_OK
    assert lib.hmq_mqtt_split_publish_properties(properties, split) == lib.HMQ_MQTT_OK
    assert split.topic_alias == (5 if "23 0005" in taken else 0)
    assert (split.has_message_expiry, split.message_expiry_s) == (
        ("02 0000003c" in taken),
        60 * ("02 0000003c" in taken),
    )
    assert split.subscription_ids == ("0b 01" in taken) + ("0b 8001" in taken)
    assert split.will_delay_s == 0
    runs = sum(now and not before for before, now in zip([False, *passed], passed, strict=False))
    assert split.contiguous == (runs <= 1)
    assert split.passed_len == len(expected)
    if split.contiguous:
        assert text_of(split.passed) == expected
        assert split.passed.len == 0 or block <= split.passed.data < block + len(data)
    else:
        assert split.passed.len == 0

    def copy_passed(out: Any, room: int) -> int:
        return int(lib.hmq_mqtt_copy_passed(properties, ffi.cast("uint8_t *", out), room))

    assert copy_passed(block, 0) == 0
    assert not expected or written(len(expected), copy_passed) == expected


def test_a_will_says_how_long_it_waits() -> None:
    properties, _keep = slice_of(wire("18 00000102 03 0001 't'"))
    split = ffi.new("hmq_mqtt_publish_properties *")
    assert lib.hmq_mqtt_split_publish_properties(properties, split) == lib.HMQ_MQTT_OK
    assert (split.will_delay_s, text_of(split.passed)) == (258, wire("03 0001 't'"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("04 00", "UNKNOWN_PROPERTY"),
        ("21 0001", "MISPLACED_PROPERTY"),
        ("02 0000", "TRUNCATED"),
        ("0b 80", "TRUNCATED"),
    ],
)
def test_what_was_never_checked_is_safe_to_take_apart(text: str, fault: str) -> None:
    properties, _keep = slice_of(wire(f"23 0007 {text}"))
    split = ffi.new("hmq_mqtt_publish_properties *")
    assert lib.hmq_mqtt_split_publish_properties(properties, split) == getattr(lib, f"HMQ_MQTT_{fault}")
    assert split.topic_alias == 7


@given(st.binary(max_size=40), st.integers(0, 15))
def test_any_bytes_are_properties_or_a_fault(data: bytes, place: int) -> None:
    properties, _keep = slice_of(data)
    verdict = check(data, place)
    found = read(data)
    if verdict == lib.HMQ_MQTT_OK and data:
        assert found
        again = b""
        for identifier, number, name, value in found:
            (name_slice, _name), (value_slice, _value) = slice_of(name), slice_of(value)
            fields = {"id": identifier, "number": number, "name": name_slice, "value": value_slice}
            one = ffi.new("hmq_mqtt_property *", fields)
            out = heap_bytes(bytes(64))
            again += copy(out, lib.hmq_mqtt_put_property(one, out, 64))
        assert again == data
    lib.hmq_mqtt_split_publish_properties(properties, ffi.new("hmq_mqtt_publish_properties *"))


# ---- PUBLISH from its parts ----

NO_PROPERTIES, TOPIC, PAYLOAD = slice_of(b""), slice_of(b"a/b"), slice_of(b"hi")


@pytest.mark.parametrize(
    ("text", "fields"),
    # topic, payload, QoS, retain, dup, packet id, properties, expiry, alias
    [
        ("30 08 0003 'a/b' 00 'hi'", (b"a/b", b"hi", 0, False, False, 0, b"", -1, 0)),
        ("3b 0f 0003 'a/b' 0102 05 02 00000000 'hi'", (b"a/b", b"hi", 1, True, True, 258, b"", 0, 0)),
        (
            "34 13 0003 'a/b' ffff 0a 02 0000003c 23 0001 01 01 'h'",
            (b"a/b", b"h", 2, False, False, 65535, b"\x01\x01", 60, 1),
        ),
        ("30 08 0000 03 23 ffff 'hi'", (b"", b"hi", 0, False, False, 0, b"", -1, 65535)),
        ("30 09 0001 'a' 05 02 ffffffff", (b"a", b"", 0, False, False, 0, b"", 2**32 - 1, 0)),
    ],
)
def test_a_publish_is_written_from_its_parts(text: str, fields: tuple[Any, ...]) -> None:
    topic, payload, qos, retain, dup, packet_id, properties, expiry, alias = fields
    (t, _t), (p, _p), (q, _q) = slice_of(topic), slice_of(payload), slice_of(properties)
    data = wire(text)

    def write(out: Any, room: int) -> int:
        target = ffi.cast("uint8_t *", out)
        return int(lib.hmq_mqtt_encode_publish5(t, p, qos, retain, dup, packet_id, q, expiry, alias, target, room))

    assert lib.hmq_mqtt_publish5_size(t, p, qos, q, expiry, alias) == len(data)
    assert written(len(data), write) == data
    packet, source = ffi.new("hmq_mqtt_packet *"), heap_bytes(data)
    for size in range(len(data)):
        assert lib.hmq_mqtt_decode(heap_bytes(data[:size]), size, 5, 1000, packet) == 0
    assert lib.hmq_mqtt_decode(source, len(data), 5, 1000, packet) == len(data)
    assert (packet.qos, packet.retain, packet.dup, packet.packet_id, packet.version) == (qos, retain, dup, packet_id, 5)
    assert (text_of(packet.topic), text_of(packet.payload)) == (topic, payload)
    split = ffi.new("hmq_mqtt_publish_properties *")
    assert lib.hmq_mqtt_split_publish_properties(packet.properties, split) == lib.HMQ_MQTT_OK
    assert (split.topic_alias, text_of(split.passed)) == (alias, properties)
    assert (split.message_expiry_s if split.has_message_expiry else -1) == expiry


@pytest.mark.parametrize(
    "change",
    [
        {"topic": b""},  # neither a name nor an alias
        {"topic": bytes(65536)},
        {"expiry": 2**32},
        {"qos": 3, "packet_id": 1},
        {"qos": 1},
        {"packet_id": 1},
        {"dup": True},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_publish_out_of_range_is_not_written(change: dict[str, Any]) -> None:
    given_fields = {"topic": b"a", "qos": 0, "dup": False, "packet_id": 0, "expiry": -1, **change}
    (t, _t), (p, _p), (q, _q) = slice_of(given_fields["topic"]), slice_of(b""), slice_of(b"")
    out = heap_bytes(bytes(70000))
    arguments = (
        given_fields["qos"],
        False,
        given_fields["dup"],
        given_fields["packet_id"],
        q,
        given_fields["expiry"],
        0,
    )
    assert lib.hmq_mqtt_encode_publish5(t, p, *arguments, out, 70000) == 0


def test_a_publish_larger_than_mqtt_allows_has_no_size() -> None:
    def size(properties: int, payload: int) -> int:
        parts = [ffi.new("hmq_slice *", (ffi.NULL, length))[0] for length in (1, properties, payload)]
        return int(lib.hmq_mqtt_publish5_size(parts[0], parts[2], 0, parts[1], -1, 0))

    most = lib.HMQ_MQTT_MAX_REMAINING
    assert size(0, most - 4) == lib.HMQ_MQTT_MAX_BYTES
    assert size(0, most - 3) == 0
    assert size(most, most) == 0
    assert size(most + 1, 0) == size(0, 2**64 - 1) == size(2**64 - 1, 0) == 0
