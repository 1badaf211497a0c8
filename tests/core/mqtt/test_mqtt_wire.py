"""MQTT 3.1.1 on the wire: every packet type byte by byte as the standard draws it, and every fault by its statement.

The bytes are written by hand from the standard, not by the codec.
"""

from typing import Any

import pytest

from holdmq.core import mqtt
from holdmq.core._binding import ffi, lib
from holdmq.core.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
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
from tests.core.mqtt.codec import assert_texts_differ, refused, wire
from tests.core.support import heap_bytes

PACKETS = [
    # 3.1: name, level 4, flags, keep alive 60 s, client id
    ("10 0e 0004 'MQTT' 04 02 003c 0002 'me'", Connect(b"me", clean=True, keep_alive_s=60)),
    # 3.1.3.1: a client id of zero bytes, with clean session
    ("10 0c 0004 'MQTT' 04 02 0000 0000", Connect(b"", clean=True)),
    # 3.1.2.3, 3.1.3: all fields; flags 1110 1100: user name, password, will retain, will QoS 1, will, no clean session
    (
        "10 1f 0004 'MQTT' 04 ec 000a 0002 'me' 0003 'a/b' 0004 'gone' 0001 'u' 0001 'p'",
        Connect(b"me", False, 10, Will(b"a/b", b"gone", 1, True), b"u", b"p"),
    ),
    # 3.1.3.5: a user name, and a password and a will message that are binary and empty
    ("10 11 0004 'MQTT' 04 c2 0000 0001 'c' 0000 0000", Connect(b"c", username=b"", password=b"")),
    ("10 12 0004 'MQTT' 04 06 0000 0001 'c' 0001 'w' 0000", Connect(b"c", will=Will(b"w", b""))),
    # 3.2: session present, accepted; refused
    ("20 02 01 00", Connack(True, 0)),
    ("20 02 00 05", Connack(False, 5)),
    # 3.3: QoS 0 has no identifier; a payload of zero bytes is valid
    ("30 05 0003 'a/b'", Publish(b"a/b", b"")),
    ("31 07 0003 'a/b' 'hi'", Publish(b"a/b", b"hi", retain=True)),
    # 3.3.2.3, the example of the standard: topic a/b, identifier 10
    ("32 07 0003 'a/b' 000a", Publish(b"a/b", b"", qos=1, packet_id=10)),
    ("3d 09 0003 'a/b' ffff 'hi'", Publish(b"a/b", b"hi", qos=2, retain=True, dup=True, packet_id=65535)),
    # 3.4 .. 3.7
    ("40 02 0102", Puback(258)),
    ("50 02 0001", Pubrec(1)),
    ("62 02 0001", Pubrel(1)),
    ("70 02 ffff", Pubcomp(65535)),
    # 3.8.3, the example of the standard: a/b with QoS 1, c/d with QoS 2
    ("82 0e 000a 0003 'a/b' 01 0003 'c/d' 02", Subscribe(10, [Subscription(b"a/b", 1), Subscription(b"c/d", 2)])),
    # 3.9.3, the example of the standard
    ("90 05 000a 00 02 80", Suback(10, [0, 2, 0x80])),
    # 3.10.3, the example of the standard
    ("a2 0c 000a 0003 'a/b' 0003 'c/d'", Unsubscribe(10, [b"a/b", b"c/d"])),
    # 3.11 .. 3.14
    ("b0 02 000a", Unsuback(10)),
    ("c0 00", Pingreq()),
    ("d0 00", Pingresp()),
    ("e0 00", Disconnect()),
]


@pytest.mark.parametrize(("text", "packet"), PACKETS, ids=[text for text, _ in PACKETS])
def test_a_packet_is_on_the_wire_what_the_standard_draws(text: str, packet: Any) -> None:
    assert mqtt.decode_many(wire(text)) == ([packet], len(wire(text)), None)
    assert mqtt.encode(packet) == wire(text)


@pytest.mark.parametrize(
    ("remaining", "encoded"),
    # table 2.4: the first and the last value of each number of bytes
    [
        (4, "04"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2097151, "ffff7f"),
        (2097152, "80808001"),
    ],
)
def test_the_remaining_length_has_as_many_bytes_as_it_needs(remaining: int, encoded: str) -> None:
    payload = bytes(remaining - 3)
    data = b"\x30" + bytes.fromhex(encoded) + b"\x00\x01a" + payload
    assert mqtt.encode_publish(b"a", payload) == data
    assert mqtt.decode_many(data) == ([Publish(b"a", payload)], len(data), None)


def test_the_largest_packet_is_known_by_its_header() -> None:
    head = wire("30 ffffff7f 0001 'a'")
    packet = ffi.new("hmq_mqtt_packet *")
    assert lib.hmq_mqtt_decode(heap_bytes(head), len(head), 4, mqtt.MAX_PACKET_BYTES, packet) == 0
    assert packet.bytes == mqtt.MAX_PACKET_BYTES == 268435460
    error = lib.hmq_mqtt_decode(heap_bytes(head), len(head), 4, mqtt.MAX_PACKET_BYTES - 1, packet)
    assert error == lib.HMQ_MQTT_TOO_LARGE


# ---- faults ----

# Bytes, fault, the statement that its text must name.
FAULTS = [
    ("00 00", "BAD_TYPE", "section 2.2.1"),
    ("f0 00", "BAD_TYPE", "section 2.2.1"),
    ("11 0e 0004 'MQTT' 04 02 003c 0002 'me'", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("21 02 00 00", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("42 02 0001", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("52 02 0001", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("60 02 0001", "BAD_FLAGS", "MQTT-2.2.2-2"),  # [MQTT-3.6.1-1]
    ("72 02 0001", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("80 06 0001 0001 'a' 00", "BAD_FLAGS", "MQTT-2.2.2-2"),  # [MQTT-3.8.1-1]
    ("92 03 0001 00", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("a0 05 0001 0001 'a'", "BAD_FLAGS", "MQTT-2.2.2-2"),  # [MQTT-3.10.1-1]
    ("b2 02 0001", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("c1 00", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("d8 00", "BAD_FLAGS", "MQTT-2.2.2-2"),
    ("e1 00", "BAD_FLAGS", "MQTT-2.2.2-2"),  # [MQTT-3.14.1-1]
    ("36 07 0003 'a/b' 000a", "BAD_QOS", "MQTT-3.3.1-4"),
    ("38 05 0003 'a/b'", "BAD_DUP", "MQTT-3.3.1-2"),
    ("30 80808080 01", "BAD_LENGTH", "section 2.2.3"),
    # fields that end beyond the packet
    ("30 01 00", "TRUNCATED", "beyond the end"),
    ("30 04 0003 'a/'", "TRUNCATED", "beyond the end"),
    ("32 06 0003 'a/b' 00", "TRUNCATED", "beyond the end"),
    ("40 01 00", "TRUNCATED", "beyond the end"),
    ("40 00", "TRUNCATED", "beyond the end"),
    ("20 01 00", "TRUNCATED", "beyond the end"),
    ("82 05 0001 0001 'a'", "TRUNCATED", "beyond the end"),
    ("82 04 0001 0001", "TRUNCATED", "beyond the end"),
    ("a2 04 0001 0002", "TRUNCATED", "beyond the end"),
    ("10 00", "TRUNCATED", "beyond the end"),
    ("10 0d 0004 'MQTT' 04 02 003c 0002 'm'", "TRUNCATED", "beyond the end"),
    ("10 0e 0004 'MQTT' 04 82 003c 0002 'me'", "TRUNCATED", "beyond the end"),
    ("10 0e 0004 'MQTT' 04 06 003c 0002 'me'", "TRUNCATED", "beyond the end"),
    # bytes behind the last field
    ("40 03 0001 00", "TRAILING", "after its last field"),
    ("20 03 0000 00", "TRAILING", "after its last field"),
    ("b0 03 0001 00", "TRAILING", "after its last field"),
    ("c0 01 00", "TRAILING", "after its last field"),
    ("d0 01 00", "TRAILING", "after its last field"),
    ("e0 01 00", "TRAILING", "after its last field"),
    ("10 0f 0004 'MQTT' 04 02 003c 0002 'me' 00", "TRAILING", "after its last field"),
    # strings
    ("30 03 0001 ff", "NOT_UTF8", "MQTT-1.5.3-1"),
    ("30 05 0003 eda080", "NOT_UTF8", "MQTT-1.5.3-1"),  # a surrogate
    ("30 03 0001 00", "NUL", "MQTT-1.5.3-2"),
    ("10 0e 0004 'MQTT' 04 02 003c 0002 'm' ff", "NOT_UTF8", "MQTT-1.5.3-1"),  # [MQTT-3.1.3-4]
    ("10 0e 0004 'MQTT' 04 02 003c 0002 'm' 00", "NUL", "MQTT-1.5.3-2"),
    ("10 11 0004 'MQTT' 04 82 003c 0002 'me' 0001 c0", "NOT_UTF8", "MQTT-1.5.3-1"),  # [MQTT-3.1.3-11]
    ("10 13 0004 'MQTT' 04 06 003c 0002 'me' 0001 c0 0000", "NOT_UTF8", "MQTT-1.5.3-1"),  # [MQTT-3.1.3-10]
    ("82 06 0001 0001 fe 00", "NOT_UTF8", "MQTT-1.5.3-1"),  # [MQTT-3.8.3-1]
    ("a2 05 0001 0001 00", "NUL", "MQTT-1.5.3-2"),
    # CONNECT
    ("10 0e 0004 'MQTt' 04 02 003c 0002 'me'", "BAD_PROTOCOL_NAME", "MQTT-3.1.2-1"),
    ("10 0d 0003 'MQT' 04 02 003c 0002 'me'", "BAD_PROTOCOL_NAME", "MQTT-3.1.2-1"),
    ("10 0e 0004 'MQTT' 03 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", "MQTT-3.1.2-2"),
    ("10 0f 0004 'MQTT' 05 02 003c 00 0002 'me'", "BAD_PROTOCOL_LEVEL", "MQTT-3.1.2-2"),  # MQTT 5.0
    ("10 10 0006 'MQIsdp' 03 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", "MQTT-3.1.2-2"),  # MQTT 3.1
    ("10 0e 0004 'MQTT' 04 03 003c 0002 'me'", "BAD_CONNECT_FLAGS", "MQTT-3.1.2-3"),
    ("10 0e 0004 'MQTT' 04 0a 003c 0002 'me'", "BAD_WILL_FLAGS", "MQTT-3.1.2-13"),
    ("10 0e 0004 'MQTT' 04 22 003c 0002 'me'", "BAD_WILL_FLAGS", "MQTT-3.1.2-13, -15"),
    ("10 13 0004 'MQTT' 04 1e 003c 0002 'me' 0001 'w' 0000", "BAD_WILL_QOS", "MQTT-3.1.2-14"),
    ("10 10 0004 'MQTT' 04 42 003c 0002 'me' 0000", "BAD_PASSWORD_FLAG", "MQTT-3.1.2-22"),
    ("10 0c 0004 'MQTT' 04 00 0000 0000", "BAD_CLIENT_ID", "MQTT-3.1.3-8"),
    ("10 12 0004 'MQTT' 04 06 003c 0002 'me' 0000 0000", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    ("10 13 0004 'MQTT' 04 06 003c 0002 'me' 0001 '#' 0000", "TOPIC_WILDCARD", "MQTT-3.3.2-2"),
    # identifiers
    ("32 07 0003 'a/b' 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("40 02 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("50 02 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("62 02 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("70 02 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("82 06 0000 0001 'a' 00", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("90 03 0000 00", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("a2 05 0000 0001 'a'", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    ("b0 02 0000", "BAD_PACKET_ID", "MQTT-2.3.1-1"),
    # topics
    ("30 02 0000", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    ("30 03 0001 '+'", "TOPIC_WILDCARD", "MQTT-3.3.2-2"),
    ("30 05 0003 'a/#'", "TOPIC_WILDCARD", "MQTT-3.3.2-2"),
    ("82 05 0001 0000 00", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    ("82 07 0001 0002 'a+' 00", "BAD_PLUS", "MQTT-4.7.1-3"),
    ("82 08 0001 0003 '#/a' 00", "BAD_HASH", "MQTT-4.7.1-2"),
    ("a2 06 0001 0002 'a#'", "BAD_HASH", "MQTT-4.7.1-2"),
    ("a2 04 0001 0000", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    # SUBSCRIBE, UNSUBSCRIBE and their answers
    ("82 06 0001 0001 'a' 03", "BAD_OPTIONS", "MQTT-3.8.3-4"),
    ("82 06 0001 0001 'a' 04", "BAD_OPTIONS", "MQTT-3.8.3-4"),
    ("82 0a 0001 0001 'a' 00 0001 'b' 80", "BAD_OPTIONS", "MQTT-3.8.3-4"),
    ("82 02 0001", "NO_SUBSCRIPTIONS", "MQTT-3.8.3-3"),
    ("a2 02 0001", "NO_UNSUBSCRIPTIONS", "MQTT-3.10.3-2"),
    ("20 02 02 00", "BAD_CONNACK", "MQTT-3.2.2-4"),
    ("20 02 00 06", "BAD_CONNACK", "MQTT-3.2.2-4"),
    ("20 02 01 01", "BAD_CONNACK", "MQTT-3.2.2-4"),
    ("90 02 0001", "BAD_SUBACK", "MQTT-3.9.3-2"),
    ("90 03 0001 03", "BAD_SUBACK", "MQTT-3.9.3-2"),
    ("90 04 0001 00 81", "BAD_SUBACK", "MQTT-3.9.3-2"),
]


@pytest.mark.parametrize(("text", "fault", "statement"), FAULTS, ids=[f"{fault} {text}" for text, fault, _ in FAULTS])
def test_a_fault_is_named_with_the_statement_it_violates(text: str, fault: str, statement: str) -> None:
    refused(text, fault, statement, version=4)


def test_every_fault_has_its_example() -> None:
    codes = {name for name in dir(lib) if name.startswith("HMQ_MQTT_") and isinstance(getattr(lib, name), int)}
    faults = {name.removeprefix("HMQ_MQTT_") for name in codes if lib.HMQ_MQTT_NO_CONNECT < getattr(lib, name) < 0}
    elsewhere = {"BAD_VERSION", "TOO_LARGE", "TOPIC_TOO_DEEP"}
    assert faults - elsewhere == {fault for _, fault, _ in FAULTS}
    assert_texts_differ(faults)
    for unknown in (-1000, 1):
        assert ffi.string(lib.hmq_mqtt_error_text(ffi.cast("hmq_mqtt_error", unknown))) == b"unknown MQTT error"


@pytest.mark.parametrize(("text", "fault", "statement"), FAULTS, ids=[f"{fault} {text}" for text, fault, _ in FAULTS])
def test_only_two_faults_are_answered_before_the_connection_is_closed(text: str, fault: str, statement: str) -> None:
    del statement
    error = mqtt.decode_many(wire(text)).error
    assert error is not None
    # [MQTT-3.1.2-2]: 0x01 unacceptable protocol level; [MQTT-3.1.3-8]: 0x02 identifier rejected
    assert error.connack_code == {"BAD_PROTOCOL_LEVEL": 1, "BAD_CLIENT_ID": 2}.get(fault, 0)


def test_a_client_id_is_rejected_only_in_a_packet_that_is_otherwise_in_order() -> None:
    error = mqtt.decode_many(wire("10 0d 0004 'MQTT' 04 00 0000 0000 00")).error
    assert error is not None
    assert error.code == lib.HMQ_MQTT_TRAILING


def test_a_fault_in_the_fixed_header_is_reported_before_the_rest_has_come() -> None:
    for text, fault in [("00", "BAD_TYPE"), ("'G'", "BAD_FLAGS"), ("36", "BAD_QOS"), ("30 ffffffff", "BAD_LENGTH")]:
        error = mqtt.decode_many(wire(text)).error
        assert error is not None
        assert error.code == getattr(lib, f"HMQ_MQTT_{fault}")
    error = mqtt.decode_many(wire("30 ff01"), max_packet_bytes=257).error
    assert error is not None
    assert error.code == lib.HMQ_MQTT_TOO_LARGE
    assert mqtt.decode_many(wire("30 ff01"), max_packet_bytes=258) == ([], 0, None)


def test_limits_of_ours_refuse_an_entry_and_not_the_packet() -> None:
    deep = "/" * 128
    data = mqtt.encode_subscribe(1, [("a", 1), (deep, 0), ("$share/g", 2)])
    expected = [Subscription(b"a", 1), Subscription(deep.encode(), 0, False), Subscription(b"$share/g", 2, False)]
    assert mqtt.decode_many(data).packets == [Subscribe(1, expected)]
    error = mqtt.decode_many(mqtt.encode_publish(deep, b"")).error
    assert error is not None
    assert error.code == lib.HMQ_MQTT_TOPIC_TOO_DEEP


def test_other_versions_are_refused_by_name() -> None:
    packet = ffi.new("hmq_mqtt_packet *", {"type": lib.HMQ_MQTT_PINGREQ})
    consumed, error = ffi.new("size_t *"), ffi.new("hmq_mqtt_error *")
    for version in (1, 3, 6, 255):
        assert lib.hmq_mqtt_decode(heap_bytes(wire("c0 00")), 2, version, 100, packet) == lib.HMQ_MQTT_BAD_VERSION
        count = lib.hmq_mqtt_decode_many(heap_bytes(wire("c0 00")), 2, version, 100, packet, 1, consumed, error)
        assert (count, consumed[0], error[0]) == (0, 0, lib.HMQ_MQTT_BAD_VERSION)
        assert lib.hmq_mqtt_size(packet, version) == 0
        assert lib.hmq_mqtt_encode(packet, version, heap_bytes(bytes(10)), 10) == 0
