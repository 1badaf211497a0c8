"""The reason codes of MQTT 5.0: which a packet may have (table 2-6), and which one tells a fault (section 4.13)."""

from holdmq.core._binding import ffi, lib

# Reason code -> the packets that may have it, in the order of table 2-6; C CONNACK, 4..7 PUBACK..PUBCOMP, S SUBACK,
# U UNSUBACK, D DISCONNECT, A AUTH.
TABLE = {
    0x00: "C4567SUDA",
    0x01: "S",
    0x02: "S",
    0x04: "D",
    0x10: "45",
    0x11: "U",
    0x18: "A",
    0x19: "A",
    0x80: "C45SUD",
    0x81: "CD",
    0x82: "CD",
    0x83: "C45SUD",
    0x84: "C",
    0x85: "C",
    0x86: "C",
    0x87: "C45SUD",
    0x88: "C",
    0x89: "CD",
    0x8A: "C",
    0x8B: "D",
    0x8C: "CD",
    0x8D: "D",
    0x8E: "D",
    0x8F: "SUD",
    0x90: "C45D",
    0x91: "45SU",
    0x92: "67",
    0x93: "D",
    0x94: "D",
    0x95: "CD",
    0x96: "D",
    0x97: "C45SD",
    0x98: "D",
    0x99: "C45D",
    0x9A: "CD",
    0x9B: "CD",
    0x9C: "CD",
    0x9D: "CD",
    0x9E: "SD",
    0x9F: "CD",
    0xA0: "D",
    0xA1: "SD",
    0xA2: "SD",
}
TYPES = {"C": 2, "4": 4, "5": 5, "6": 6, "7": 7, "S": 9, "U": 11, "D": 14, "A": 15}


def test_a_packet_type_has_the_reason_codes_of_the_table_and_no_others() -> None:
    expected = {(TYPES[letter], code) for code, letters in TABLE.items() for letter in letters}
    found = {(kind, code) for kind in range(256) for code in range(256) if lib.hmq_mqtt_reason_is_known(kind, code)}
    assert found == expected


FAULTS = {
    0x81: "BAD_TYPE BAD_FLAGS BAD_QOS BAD_LENGTH TRUNCATED TRAILING NOT_UTF8 NUL BAD_CONNECT_FLAGS BAD_WILL_FLAGS "
    "BAD_WILL_QOS BAD_PASSWORD_FLAG TOPIC_EMPTY BAD_OPTIONS NOT_MINIMAL UNKNOWN_PROPERTY MISPLACED_PROPERTY",
    0x82: "BAD_DUP BAD_PACKET_ID NO_SUBSCRIPTIONS NO_UNSUBSCRIPTIONS BAD_CONNACK BAD_SUBACK BAD_UNSUBACK NO_CONNECT "
    "REPEATED_PROPERTY BAD_PROPERTY_VALUE NO_AUTH_METHOD NO_TOPIC BAD_REASON BAD_SUBSCRIPTION SHARED_NO_LOCAL",
    0x83: "BAD_VERSION",
    0x84: "BAD_PROTOCOL_NAME BAD_PROTOCOL_LEVEL",
    0x85: "BAD_CLIENT_ID",
    0x8F: "BAD_PLUS BAD_HASH",
    0x90: "TOPIC_WILDCARD TOPIC_TOO_DEEP BAD_RESPONSE_TOPIC",
    0x94: "BAD_TOPIC_ALIAS",
    0x95: "TOO_LARGE CONNECT_TOO_LARGE",
    0x97: "TOO_MANY_FILTERS TOO_MANY_USER_PROPERTIES",
}


def test_every_fault_has_its_reason() -> None:
    expected = {getattr(lib, f"HMQ_MQTT_{name}"): reason for reason, names in FAULTS.items() for name in names.split()}
    numbers = [getattr(lib, name) for name in dir(lib) if name.startswith("HMQ_MQTT_")]
    faults = {number for number in numbers if isinstance(number, int) and number < 0}
    assert {fault: lib.hmq_mqtt_error_reason(fault) for fault in faults} == expected
    assert lib.hmq_mqtt_error_reason(lib.HMQ_MQTT_OK) == 0
    for unknown in (min(faults) - 1, 1):
        assert lib.hmq_mqtt_error_reason(ffi.cast("hmq_mqtt_error", unknown)) == 0x80  # unspecified
