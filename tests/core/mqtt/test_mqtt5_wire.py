"""MQTT 5.0 on the wire: every packet type byte by byte as the standard draws it, and every fault by its statement.

The bytes are written by hand from the standard, not by the codec.
"""

from typing import Any

import pytest

from holdmq.core import mqtt
from holdmq.core._binding import lib
from holdmq.core.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
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

METHOD = Properties(authentication_method=b"m")
WHY = Properties(reason_string=b"no", user_properties=((b"k", b"v"), (b"k", b"w")))

PACKETS: list[tuple[str, Any]] = [
    # 3.1: name, level 5, flags, keep alive 60 s, no properties, client id
    ("10 0f 0004 'MQTT' 05 02 003c 00 0002 'me'", Connect(b"me", True, 60, level=5)),
    # 3.1.2.12, the example of the standard: flags 1100 1110, session expiry 10 s
    (
        "10 1f 0004 'MQTT' 05 ce 000a 05 11 0000000a 0000 00 0001 'w' 0001 'x' 0001 'u' 0001 'p'",
        Connect(b"", True, 10, Will(b"w", b"x", 1), b"u", b"p", 5, Properties(session_expiry_interval=10)),
    ),
    # 3.1.3.1: a client id of zero bytes also without clean start; 3.1.2.9: a password without a user name
    ("10 10 0004 'MQTT' 05 40 0000 00 0000 0001 'p'", Connect(b"", False, password=b"p", level=5)),
    # all that a CONNECT and a will may have
    (
        (
            "10 53 0004 'MQTT' 05 36 0000 21"
            "  11 ffffffff 15 0001 'm' 16 0001 00 17 00 19 01 21 0001 22 000a 26 0000 0000 27 00000100"
            "  0002 'me'"
            "  1d 01 01 02 00000009 03 0001 't' 08 0001 'r' 09 0001 ff 18 00000005 26 0000 0000"
            "  0001 'w' 0000"
        ),
        Connect(
            b"me",
            will=Will(
                b"w",
                b"",
                2,
                True,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=9,
                    content_type=b"t",
                    response_topic=b"r",
                    correlation_data=b"\xff",
                    will_delay_interval=5,
                    user_properties=((b"", b""),),
                ),
            ),
            level=5,
            properties=Properties(
                session_expiry_interval=0xFFFFFFFF,
                authentication_method=b"m",
                authentication_data=b"\0",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=1,
                topic_alias_maximum=10,
                user_properties=((b"", b""),),
                maximum_packet_size=256,
            ),
        ),
    ),
    # 3.2: session present, accepted; refused; with all that it may have
    ("20 03 01 00 00", Connack(True, 0)),
    ("20 03 00 87 00", Connack(False, 0x87)),
    (
        (
            "20 3f 00 00 3c"
            "  11 00000001 12 0001 'i' 13 0002 15 0001 'm' 16 0001 'd' 1a 0001 'r' 1c 0001 's' 1f 0001 'w' 21 0003"
            "  22 0004 24 01 25 00 26 0001 'k' 0001 'v' 27 00000005 28 00 29 01 2a 00"
        ),
        Connack(
            False,
            0,
            Properties(
                session_expiry_interval=1,
                assigned_client_identifier=b"i",
                server_keep_alive=2,
                authentication_method=b"m",
                authentication_data=b"d",
                response_information=b"r",
                server_reference=b"s",
                reason_string=b"w",
                receive_maximum=3,
                topic_alias_maximum=4,
                maximum_qos=1,
                retain_available=0,
                user_properties=((b"k", b"v"),),
                maximum_packet_size=5,
                wildcard_subscription_available=0,
                subscription_identifiers_available=1,
                shared_subscription_available=0,
            ),
        ),
    ),
    # 3.3.2.4, the example of the standard: topic a/b, identifier 10, no properties
    ("32 08 0003 'a/b' 000a 00", Publish(b"a/b", b"", 1, packet_id=10)),
    ("31 08 0003 'a/b' 00 'hi'", Publish(b"a/b", b"hi", retain=True)),
    # 3.3.2.3.4: an alias stands for the topic
    ("30 08 0000 03 23 0005 'hi'", Publish(b"", b"hi", properties=Properties(topic_alias=5))),
    # 3.3.2.3.8: several subscription identifiers; order and repetition of user properties are kept
    (
        "3c 1e 0001 't' 0007 18 02 0000003c 0b 01 0b 8001 23 0001 26 0001 'b' 0000 26 0000 0000",
        Publish(
            b"t",
            b"",
            2,
            dup=True,
            packet_id=7,
            properties=Properties(
                message_expiry_interval=60,
                subscription_identifiers=(1, 128),
                topic_alias=1,
                user_properties=((b"b", b""), (b"", b"")),
            ),
        ),
    ),
    # 3.4 .. 3.7: success without reason and properties, a reason alone, both
    ("40 02 0102", Puback(258)),
    ("40 03 0001 10", Puback(1, 0x10)),
    ("40 17 0001 97 13 1f 0002 'no' 26 0001 'k' 0001 'v' 26 0001 'k' 0001 'w'", Puback(1, 0x97, WHY)),
    ("50 02 0001", Pubrec(1)),
    ("50 03 ffff 91", Pubrec(65535, 0x91)),
    ("62 02 0001", Pubrel(1)),
    ("62 03 0001 92", Pubrel(1, 0x92)),
    ("70 02 0001", Pubcomp(1)),
    ("70 09 0001 00 05 1f 0002 'no'", Pubcomp(1, 0, Properties(reason_string=b"no"))),
    # 3.8.3, the example of the standard: a/b with QoS 1, c/d with QoS 2
    ("82 0f 000a 00 0003 'a/b' 01 0003 'c/d' 02", Subscribe(10, [Subscription(b"a/b", 1), Subscription(b"c/d", 2)])),
    # 3.8.3.1: no local, retain as published, retain handling
    (
        "82 15 000a 02 0b 07 0001 'a' 2e 0001 'b' 04 0001 'c' 08 0001 'd' 10",
        Subscribe(
            10,
            [
                Subscription(b"a", 2, True, True, True, 2),
                Subscription(b"b", no_local=True),
                Subscription(b"c", retain_as_published=True),
                Subscription(b"d", retain_handling=1),
            ],
            Properties(subscription_identifiers=(7,)),
        ),
    ),
    # 3.9.3: a code for each
    ("90 07 000a 00 01 80 00 a2", Suback(10, [1, 0x80, 0, 0xA2])),
    # 3.10.3, the example of the standard
    ("a2 0d 000a 00 0003 'a/b' 0003 'c/d'", Unsubscribe(10, [b"a/b", b"c/d"])),
    (
        "a2 0d 000a 07 26 0001 'k' 0001 'v' 0001 'a'",
        Unsubscribe(10, [b"a"], Properties(user_properties=((b"k", b"v"),))),
    ),
    # 3.11.3
    ("b0 06 000a 00 00 11 8f", Unsuback(10, [0, 0x11, 0x8F])),
    ("c0 00", Pingreq()),
    ("d0 00", Pingresp()),
    # 3.14: nothing, a reason, both
    ("e0 00", Disconnect()),
    ("e0 01 04", Disconnect(4)),
    ("e0 07 00 05 11 00000000", Disconnect(0, Properties(session_expiry_interval=0))),
    ("e0 06 9d 04 1c 0001 's'", Disconnect(0x9D, Properties(server_reference=b"s"))),
    # 3.15
    ("f0 00", Auth()),
    ("f0 06 18 04 15 0001 'm'", Auth(0x18, METHOD)),
    (
        "f0 0a 19 08 15 0001 'm' 16 0001 'd'",
        Auth(0x19, Properties(authentication_method=b"m", authentication_data=b"d")),
    ),
]


@pytest.mark.parametrize(("text", "packet"), PACKETS, ids=[text for text, _ in PACKETS])
def test_a_packet_is_on_the_wire_what_the_standard_draws(text: str, packet: Any) -> None:
    assert mqtt.decode_many(wire(text), version=5) == ([packet], len(wire(text)), None)
    assert mqtt.encode(packet, version=5) == wire(text)


@pytest.mark.parametrize(
    ("text", "packet"),
    [
        # 3.4.2.1: a reason and no property length, or one of zero; both may be left out, and are when we write
        ("40 03 0001 00", Puback(1)),
        ("40 04 0001 00 00", Puback(1)),
        ("50 04 0001 10 00", Pubrec(1, 0x10)),
        ("62 04 0001 92 00", Pubrel(1, 0x92)),
        ("70 03 0001 00", Pubcomp(1)),
        ("e0 01 00", Disconnect()),
        ("e0 02 00 00", Disconnect()),
        ("e0 02 8e 00", Disconnect(0x8E)),
    ],
)
def test_what_says_nothing_may_be_there_and_is_left_out_by_us(text: str, packet: Any) -> None:
    assert mqtt.decode_many(wire(text), version=5) == ([packet], len(wire(text)), None)
    assert len(mqtt.encode(packet, version=5)) < len(wire(text))


# ---- faults ----

# Bytes, fault, the statement that its text must name.
FAULTS = [
    ("00 00", "BAD_TYPE", "2.1.2"),
    ("41 02 0001", "BAD_FLAGS", "MQTT-2.1.3-1"),
    ("60 02 0001", "BAD_FLAGS", "MQTT-2.1.3-1"),  # [MQTT-3.6.1-1]
    ("80 07 0001 00 0001 'a' 00", "BAD_FLAGS", "MQTT-2.1.3-1"),  # [MQTT-3.8.1-1]
    ("a0 06 0001 00 0001 'a'", "BAD_FLAGS", "MQTT-2.1.3-1"),  # [MQTT-3.10.1-1]
    ("e1 00", "BAD_FLAGS", "MQTT-2.1.3-1"),  # [MQTT-3.14.1-1]
    ("f2 00", "BAD_FLAGS", "MQTT-2.1.3-1"),  # [MQTT-3.15.1-1]
    ("36 08 0003 'a/b' 000a 00", "BAD_QOS", "MQTT-3.3.1-4"),
    ("38 06 0003 'a/b' 00", "BAD_DUP", "MQTT-3.3.1-2"),
    # lengths
    ("30 80808080 01", "BAD_LENGTH", "1.5.5"),
    ("c0 8000", "NOT_MINIMAL", "MQTT-1.5.5-1"),
    ("30 868000 0003 'a/b' 00", "NOT_MINIMAL", "MQTT-1.5.5-1"),
    ("30 07 0003 'a/b' 8000", "NOT_MINIMAL", "MQTT-1.5.5-1"),
    ("30 0a 0003 'a/b' 80808080 01", "BAD_LENGTH", "1.5.5"),
    # fields that end beyond the packet
    ("30 05 0003 'a/b'", "TRUNCATED", "beyond the end"),  # [MQTT-2.2.2-1]: a length of zero has to be there
    ("30 06 0003 'a/b' 01", "TRUNCATED", "beyond the end"),
    ("30 06 0003 'a/b' 80", "TRUNCATED", "beyond the end"),
    ("30 07 0003 'a/b' 01 01", "TRUNCATED", "beyond the end"),
    ("20 02 00 00", "TRUNCATED", "beyond the end"),
    ("40 01 00", "TRUNCATED", "beyond the end"),
    ("40 05 0001 00 05 1f", "TRUNCATED", "beyond the end"),
    ("82 02 0001", "TRUNCATED", "beyond the end"),
    ("90 02 0001", "TRUNCATED", "beyond the end"),
    ("b0 02 0001", "TRUNCATED", "beyond the end"),
    ("10 0e 0004 'MQTT' 05 02 003c 0002 'me'", "TRUNCATED", "beyond the end"),
    ("10 12 0004 'MQTT' 05 06 003c 00 0002 'me' 03 18 00", "TRUNCATED", "beyond the end"),
    # bytes behind the last field
    ("20 04 00 00 00 00", "TRAILING", "after its last field"),
    ("40 05 0001 00 00 00", "TRAILING", "after its last field"),
    ("c0 01 00", "TRAILING", "after its last field"),
    ("e0 03 00 00 00", "TRAILING", "after its last field"),
    ("f0 07 18 04 15 0001 'm' 00", "TRAILING", "after its last field"),
    ("10 10 0004 'MQTT' 05 02 003c 00 0002 'me' 00", "TRAILING", "after its last field"),
    # strings
    ("30 04 0001 ff 00", "NOT_UTF8", "MQTT-1.5.4-1"),
    ("30 04 0001 00 00", "NUL", "MQTT-1.5.4-2"),
    ("30 08 0001 'a' 04 03 0001 ff", "NOT_UTF8", "MQTT-1.5.4-1"),
    ("10 0f 0004 'MQTT' 05 02 003c 00 0002 'm' 00", "NUL", "MQTT-1.5.4-2"),
    # CONNECT
    ("10 0f 0004 'MQTt' 05 02 003c 00 0002 'me'", "BAD_PROTOCOL_NAME", "MQTT-3.1.2-1"),
    ("10 0f 0004 'MQTT' 06 02 003c 00 0002 'me'", "BAD_PROTOCOL_LEVEL", "MQTT-3.1.2-2"),
    ("10 0e 0004 'MQTT' 04 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", "MQTT-3.1.2-2"),
    ("10 0f 0004 'MQTT' 05 03 003c 00 0002 'me'", "BAD_CONNECT_FLAGS", "MQTT-3.1.2-3"),
    ("10 0f 0004 'MQTT' 05 0a 003c 00 0002 'me'", "BAD_WILL_FLAGS", "MQTT-3.1.2-11"),
    ("10 0f 0004 'MQTT' 05 22 003c 00 0002 'me'", "BAD_WILL_FLAGS", "-13"),
    ("10 15 0004 'MQTT' 05 1e 003c 00 0002 'me' 00 0001 'w' 0000", "BAD_WILL_QOS", "MQTT-3.1.2-12"),
    ("10 14 0004 'MQTT' 05 06 003c 00 0002 'me' 00 0000 0000", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    ("10 15 0004 'MQTT' 05 06 003c 00 0002 'me' 00 0001 '#' 0000", "TOPIC_WILDCARD", "MQTT-3.3.2-2"),
    ("10 12 0004 'MQTT' 05 02 003c 03 21 0000 0002 'me'", "BAD_PROPERTY_VALUE", "3.1.2.11"),
    ("10 12 0004 'MQTT' 05 02 003c 03 23 0001 0002 'me'", "MISPLACED_PROPERTY", "2.2.2.2"),
    ("10 18 0004 'MQTT' 05 06 003c 00 0002 'me' 03 21 0001 0001 'w' 0000", "MISPLACED_PROPERTY", "2.2.2.2"),
    ("10 13 0004 'MQTT' 05 02 003c 04 16 0001 00 0002 'me'", "NO_AUTH_METHOD", "3.1.2.11.10"),
    # identifiers
    ("32 08 0003 'a/b' 0000 00", "BAD_PACKET_ID", "MQTT-2.2.1-3"),
    ("40 02 0000", "BAD_PACKET_ID", "MQTT-2.2.1-3"),
    ("82 07 0000 00 0001 'a' 00", "BAD_PACKET_ID", "MQTT-2.2.1-3"),
    ("b0 04 0000 00 00", "BAD_PACKET_ID", "MQTT-2.2.1-3"),
    # PUBLISH
    ("30 03 0000 00", "NO_TOPIC", "3.3.2.1"),
    ("30 05 0000 02 01 01", "NO_TOPIC", "3.3.2.1"),
    ("30 04 0001 '+' 00", "TOPIC_WILDCARD", "MQTT-3.3.2-2"),
    ("30 06 0000 03 23 0000", "BAD_TOPIC_ALIAS", "MQTT-3.3.2-8"),
    ("30 08 0001 'a' 04 08 0001 '#'", "BAD_RESPONSE_TOPIC", "MQTT-3.3.2-14"),
    ("30 06 0001 'a' 02 04 00", "UNKNOWN_PROPERTY", "2.2.2.2"),
    ("30 08 0001 'a' 04 01 00 01 00", "REPEATED_PROPERTY", "2.2.2.2"),
    ("30 06 0001 'a' 02 0b 00", "BAD_PROPERTY_VALUE", "3.3.2.3"),
    # reason codes
    ("40 03 0001 92", "BAD_REASON", "MQTT-3.4.2-1"),
    ("50 03 0001 01", "BAD_REASON", "MQTT-3.5.2-1"),
    ("62 03 0001 80", "BAD_REASON", "MQTT-3.6.2-1"),
    ("70 03 0001 10", "BAD_REASON", "MQTT-3.7.2-1"),
    ("e0 01 01", "BAD_REASON", "MQTT-3.14.2-1"),
    ("f0 06 01 04 15 0001 'm'", "BAD_REASON", "MQTT-3.15.2-1"),
    ("f0 01 18", "NO_AUTH_METHOD", "3.15.2.2.2"),
    ("f0 02 00 00", "NO_AUTH_METHOD", "3.15.2.2.2"),
    ("20 03 00 01 00", "BAD_CONNACK", "-8"),
    ("20 03 02 00 00", "BAD_CONNACK", "MQTT-3.2.2-1"),
    ("20 03 01 80 00", "BAD_CONNACK", "-6"),
    # SUBSCRIBE, UNSUBSCRIBE and their answers
    ("82 07 0001 00 0001 'a' 40", "BAD_OPTIONS", "MQTT-3.8.3-5"),
    ("82 07 0001 00 0001 'a' 80", "BAD_OPTIONS", "MQTT-3.8.3-5"),
    ("82 07 0001 00 0001 'a' 03", "BAD_SUBSCRIPTION", "3.8.3.1"),
    ("82 07 0001 00 0001 'a' 30", "BAD_SUBSCRIPTION", "3.8.3.1"),
    ("82 10 0001 00 000a '$share/g/a' 04", "SHARED_NO_LOCAL", "MQTT-3.8.3-4"),
    ("82 08 0001 00 0002 'a+' 00", "BAD_PLUS", "MQTT-4.7.1-2"),
    ("a2 07 0001 00 0002 'a#'", "BAD_HASH", "MQTT-4.7.1-1"),
    ("a2 05 0001 00 0000", "TOPIC_EMPTY", "MQTT-4.7.3-1"),
    ("82 03 0001 00", "NO_SUBSCRIPTIONS", "MQTT-3.8.3-2"),
    ("a2 03 0001 00", "NO_UNSUBSCRIPTIONS", "MQTT-3.10.3-2"),
    ("82 0b 0001 04 0b 01 0b 02 0001 'a' 00", "REPEATED_PROPERTY", "2.2.2.2"),
    ("90 03 0001 00", "BAD_SUBACK", "MQTT-3.9.3-2"),
    ("90 04 0001 00 03", "BAD_SUBACK", "MQTT-3.9.3-2"),
    ("b0 03 0001 00", "BAD_UNSUBACK", "MQTT-3.11.3-2"),
    ("b0 05 0001 00 00 01", "BAD_UNSUBACK", "MQTT-3.11.3-2"),
]


@pytest.mark.parametrize(("text", "fault", "statement"), FAULTS, ids=[f"{fault} {text}" for text, fault, _ in FAULTS])
def test_a_fault_is_named_with_the_statement_it_violates(text: str, fault: str, statement: str) -> None:
    error = refused(text, fault, statement, version=5)
    assert error.reason_code == lib.hmq_mqtt_error_reason(error.code) >= 0x80


def test_every_fault_of_this_version_has_its_example() -> None:
    numbers = {name: getattr(lib, name) for name in dir(lib) if name.startswith("HMQ_MQTT_")}
    faults = {
        name.removeprefix("HMQ_MQTT_") for name, number in numbers.items() if isinstance(number, int) and number < 0
    }
    of_the_other = {"BAD_PASSWORD_FLAG", "BAD_CLIENT_ID"}
    elsewhere = {"BAD_VERSION", "TOO_LARGE", "TOPIC_TOO_DEEP", "NO_CONNECT"}
    of_limits = {"CONNECT_TOO_LARGE", "TOO_MANY_FILTERS", "TOO_MANY_USER_PROPERTIES"}  # test_engine_limits.py
    assert faults - of_the_other - elsewhere - of_limits == {fault for _, fault, _ in FAULTS}
    assert_texts_differ(faults)


def test_limits_of_ours_refuse_an_entry_and_not_the_packet() -> None:
    deep = "/" * 128
    data = mqtt.encode_subscribe(1, [("a", 1), (deep, 0x2C), ("$share/g", 6)], version=5)
    expected = [
        Subscription(b"a", 1),
        Subscription(deep.encode(), 0, False, True, True, 2),
        Subscription(b"$share/g", 2, False, True),
    ]
    assert mqtt.decode_many(data, version=5).packets == [Subscribe(1, expected)]
    error = mqtt.decode_many(mqtt.encode_publish(deep, b"", version=5), version=5).error
    assert error is not None
    assert error.code == lib.HMQ_MQTT_TOPIC_TOO_DEEP
    assert error.reason_code == 0x90


def test_a_packet_that_is_too_large_is_reported_by_its_header() -> None:
    error = mqtt.decode_many(wire("30 ff01"), version=5, max_packet_bytes=257).error
    assert error is not None
    assert (error.code, error.reason_code, error.level) == (lib.HMQ_MQTT_TOO_LARGE, 0x95, 0)


# ---- the beginning of a connection ----

THREE = "10 0e 0004 'MQTT' 04 02 003c 0002 'me'"
FIVE = "10 0f 0004 'MQTT' 05 02 003c 00 0002 'me'"


def test_a_connection_speaks_the_version_that_its_connect_says() -> None:
    three = wire(THREE) + wire("82 06 0001 0001 'a' 01 40 02 0001 e0 00")
    assert mqtt.decode_many(three, version=mqtt.ANY_VERSION) == mqtt.decode_many(three)
    five = wire(FIVE) + wire("82 07 0001 00 0001 'a' 2d 40 03 0001 10 e0 01 04 f0 00")
    found = mqtt.decode_many(five, version=mqtt.ANY_VERSION)
    assert found == mqtt.decode_many(five, version=5)
    assert (len(found.packets), found.consumed, found.error) == (5, len(five), None)
    many = wire(FIVE) + wire("c0 00") * 1000 + wire("e0 01 04")
    assert mqtt.decode_many(many, version=mqtt.ANY_VERSION).packets[-1] == Disconnect(4)


def test_a_connection_begins_with_a_connect() -> None:
    for text in ("c0 00", "30 05 0003 'a/b'", "f0 00", "e0 00"):
        error = mqtt.decode_many(wire(text), version=mqtt.ANY_VERSION).error
        assert error is not None
        assert (error.code, error.level, error.reason_code) == (lib.HMQ_MQTT_NO_CONNECT, 0, 0x82)
        assert "MQTT-3.1.0-1" in str(error)
    for text in ("00", "01 00"):
        error = mqtt.decode_many(wire(text), version=mqtt.ANY_VERSION).error
        assert error is not None
        assert error.code == lib.HMQ_MQTT_BAD_TYPE


@pytest.mark.parametrize(
    ("text", "fault", "level", "connack", "reason"),
    [
        ("10 10 0006 'MQIsdp' 03 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", 3, 1, 0x84),  # MQTT 3.1
        ("10 0e 0004 'MQTT' 03 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", 3, 1, 0x84),
        ("10 0f 0004 'MQTT' 06 02 003c 00 0002 'me'", "BAD_PROTOCOL_LEVEL", 6, 1, 0x84),
        ("10 0f 0006 'MQIsdp' 05 02 003c 00 0002 'm'", "BAD_PROTOCOL_LEVEL", 5, 1, 0x84),
        ("10 0f 0004 'MQTT' 85 02 003c 00 0002 'me'", "BAD_PROTOCOL_LEVEL", 0x85, 1, 0x84),  # 5.0 has no such bit
        ("10 10 0006 'MQIsdp' 83 02 003c 0002 'me'", "BAD_PROTOCOL_LEVEL", 0x83, 1, 0x84),
        ("10 0c 0004 'MQTT' 84 00 0000 0000", "BAD_CLIENT_ID", 4, 2, 0x85),
        ("10 0c 0004 'MQTT' 04 00 0000 0000", "BAD_CLIENT_ID", 4, 2, 0x85),
        ("10 10 0004 'MQTT' 04 42 003c 0002 'me' 0000", "BAD_PASSWORD_FLAG", 4, 0, 0x81),
        ("10 12 0004 'MQTT' 05 02 003c 03 21 0000 0002 'me'", "BAD_PROPERTY_VALUE", 5, 0, 0x82),
        ("10 0f 0004 'HTTP' 05 02 003c 00 0002 'me'", "BAD_PROTOCOL_NAME", 0, 0, 0x84),
        ("10 03 0004 'M'", "TRUNCATED", 0, 0, 0x81),
    ],
)
def test_a_connect_is_refused_in_its_own_tongue(text: str, fault: str, level: int, connack: int, reason: int) -> None:
    error = mqtt.decode_many(wire(text), version=mqtt.ANY_VERSION).error
    assert error is not None
    assert error.code == getattr(lib, f"HMQ_MQTT_{fault}")
    assert (error.level, error.connack_code, error.reason_code) == (level, connack, reason)
