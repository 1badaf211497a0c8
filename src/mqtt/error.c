/* error.c - the texts and reason codes of invalid packets; mqtt/mqtt.h has the contract.
 *
 * A text says what was wrong and, after a semicolon, what is accepted.  It names the statement that is violated; if the two
 * standards differ, that of 3.1.1 first, then that of 5.0.  The reason codes are those of 5.0, section 4.13: 0x81 malformed
 * packet if it cannot be read, 0x82 protocol error if it can be read but must not be sent, or a more specific one. */
#include "mqtt/mqtt.h"

#define MALFORMED 0x81
#define PROTOCOL_ERROR 0x82
#define OURS 0x83 /* implementation specific error */
#define BAD_VERSION 0x84
#define BAD_CLIENT_ID 0x85
#define BAD_FILTER 0x8F
#define BAD_TOPIC 0x90
#define BAD_ALIAS 0x94
#define TOO_LARGE 0x95
#define QUOTA_EXCEEDED 0x97

static const struct {
    const char *text;
    uint8_t reason;
} errors[] = {
    [-HMQ_MQTT_OK] = {"the packet is well-formed", 0},
    [-HMQ_MQTT_BAD_VERSION] = {"the codec has no such version; expected protocol level 4 (MQTT 3.1.1) or 5 (MQTT 5.0)",
                               OURS},
    [-HMQ_MQTT_BAD_TYPE] =
        {"the packet type is reserved; expected 1 to 15, in MQTT 3.1.1 1 to 14 (section 2.2.1; 2.1.2)", MALFORMED},
    [-HMQ_MQTT_BAD_FLAGS] =
        {"the flags of the fixed header are wrong; expected those of the packet type [MQTT-2.2.2-2; MQTT-2.1.3-1]",
         MALFORMED},
    [-HMQ_MQTT_BAD_QOS] = {"a PUBLISH has QoS 3; expected 0, 1 or 2 [MQTT-3.3.1-4]", MALFORMED},
    [-HMQ_MQTT_BAD_DUP] = {"a PUBLISH of QoS 0 has the DUP flag; expected it for QoS 1 and 2 only [MQTT-3.3.1-2]",
                           PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_LENGTH] =
        {"a variable byte integer, such as a remaining length, is too long; expected at most four bytes "
         "(section 2.2.3; 1.5.5)",
         MALFORMED},
    [-HMQ_MQTT_TOO_LARGE] =
        {"the packet is too large; expected at most the maximum packet size (section 3.2.2.3.6 of MQTT 5.0)",
         TOO_LARGE},
    [-HMQ_MQTT_TRUNCATED] =
        {"a field reaches beyond the end of its packet; expected all fields within the remaining length", MALFORMED},
    [-HMQ_MQTT_TRAILING] = {"the packet has bytes after its last field; expected none", MALFORMED},
    [-HMQ_MQTT_NOT_UTF8] = {"a string is invalid UTF-8; expected valid UTF-8 [MQTT-1.5.3-1; MQTT-1.5.4-1]", MALFORMED},
    [-HMQ_MQTT_NUL] = {"a string contains U+0000; expected no such character [MQTT-1.5.3-2; MQTT-1.5.4-2]", MALFORMED},
    [-HMQ_MQTT_BAD_PROTOCOL_NAME] = {"the protocol name of the CONNECT is unknown; expected MQTT [MQTT-3.1.2-1]",
                                     BAD_VERSION},
    [-HMQ_MQTT_BAD_PROTOCOL_LEVEL] =
        {"the protocol level of the CONNECT is not supported; expected 4 or 5 [MQTT-3.1.2-2]", BAD_VERSION},
    [-HMQ_MQTT_BAD_CONNECT_FLAGS] = {"the reserved bit of the CONNECT flags is set; expected 0 [MQTT-3.1.2-3]",
                                     MALFORMED},
    [-HMQ_MQTT_BAD_WILL_FLAGS] = {"a CONNECT without a will has a will QoS or will retain; expected 0 for both "
                                  "[MQTT-3.1.2-13, -15; MQTT-3.1.2-11, -13]",
                                  MALFORMED},
    [-HMQ_MQTT_BAD_WILL_QOS] = {"the will QoS is 3; expected 0, 1 or 2 [MQTT-3.1.2-14; MQTT-3.1.2-12]", MALFORMED},
    [-HMQ_MQTT_BAD_PASSWORD_FLAG] = {"a CONNECT has a password but no user name; expected a user name [MQTT-3.1.2-22]",
                                     MALFORMED},
    [-HMQ_MQTT_BAD_CLIENT_ID] =
        {"a CONNECT has neither a client id nor a clean session; expected one of them [MQTT-3.1.3-8]", BAD_CLIENT_ID},
    [-HMQ_MQTT_BAD_PACKET_ID] = {"the packet identifier is 0; expected 1 to 65535 [MQTT-2.3.1-1; MQTT-2.2.1-3, -4]",
                                 PROTOCOL_ERROR},
    [-HMQ_MQTT_TOPIC_EMPTY] = {"a topic name or filter is empty; expected at least one character [MQTT-4.7.3-1]",
                               MALFORMED},
    [-HMQ_MQTT_TOPIC_WILDCARD] = {"a topic name contains a wildcard; expected no + and no # [MQTT-3.3.2-2]", BAD_TOPIC},
    [-HMQ_MQTT_TOPIC_TOO_DEEP] = {"a topic name has too many levels; expected at most 128, the limit of this receiver",
                                  BAD_TOPIC},
    [-HMQ_MQTT_BAD_PLUS] =
        {"a + shares its level with other characters; expected + as a whole level [MQTT-4.7.1-3; MQTT-4.7.1-2]",
         BAD_FILTER},
    [-HMQ_MQTT_BAD_HASH] = {"a # is not the whole last level; expected # only there [MQTT-4.7.1-2; MQTT-4.7.1-1]",
                            BAD_FILTER},
    [-HMQ_MQTT_BAD_OPTIONS] = {"a SUBSCRIBE has reserved option bits or, in MQTT 3.1.1, QoS 3; expected QoS 0, 1 or 2 "
                               "[MQTT-3.8.3-4; MQTT-3.8.3-5]",
                               MALFORMED},
    [-HMQ_MQTT_NO_SUBSCRIPTIONS] =
        {"a SUBSCRIBE has no topic filter; expected at least one [MQTT-3.8.3-3; MQTT-3.8.3-2]", PROTOCOL_ERROR},
    [-HMQ_MQTT_NO_UNSUBSCRIPTIONS] = {"an UNSUBSCRIBE has no topic filter; expected at least one [MQTT-3.10.3-2]",
                                      PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_CONNACK] =
        {"a CONNACK has reserved bits or codes, or a session with a refusal; expected none of them "
         "[MQTT-3.2.2-4; MQTT-3.2.2-1, -6, -8]",
         PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_SUBACK] = {"a SUBACK has no return code, or a reserved one; expected 0, 1, 2 or 128 [MQTT-3.9.3-2]",
                              PROTOCOL_ERROR},
    [-HMQ_MQTT_NO_CONNECT] =
        {"the first packet of a connection is not a CONNECT; expected CONNECT first [MQTT-3.1.0-1]", PROTOCOL_ERROR},
    [-HMQ_MQTT_NOT_MINIMAL] = {"a variable byte integer has needless bytes; expected the shortest form [MQTT-1.5.5-1]",
                               MALFORMED},
    [-HMQ_MQTT_UNKNOWN_PROPERTY] = {"a property identifier is unknown; expected one of table 2-4 (section 2.2.2.2)",
                                    MALFORMED},
    [-HMQ_MQTT_MISPLACED_PROPERTY] =
        {"a property is in the wrong packet; expected one of this packet type (section 2.2.2.2)", MALFORMED},
    [-HMQ_MQTT_REPEATED_PROPERTY] = {"a property is repeated; expected it once (section 2.2.2.2)", PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_PROPERTY_VALUE] =
        {"the value of a property is out of range; expected one that its section lists (sections 3.1.2.11, 3.2.2.3, 3.3.2.3)",
         PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_TOPIC_ALIAS] = {"a topic alias is 0; expected 1 to 65535 [MQTT-3.3.2-8]", BAD_ALIAS},
    [-HMQ_MQTT_BAD_RESPONSE_TOPIC] =
        {"a response topic is empty or contains a wildcard; expected a topic name [MQTT-3.3.2-14]", BAD_TOPIC},
    [-HMQ_MQTT_NO_AUTH_METHOD] = {"authentication data, or an AUTH, has no authentication method; expected one "
                                  "(sections 3.1.2.11.10, 3.15.2.2.2)",
                                  PROTOCOL_ERROR},
    [-HMQ_MQTT_NO_TOPIC] =
        {"a PUBLISH has neither a topic name nor a topic alias; expected one of them (section 3.3.2.1)",
         PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_REASON] = {"the reason code is unknown; expected one of its packet type "
                              "[MQTT-3.4.2-1, MQTT-3.5.2-1, MQTT-3.6.2-1, MQTT-3.7.2-1, MQTT-3.14.2-1, MQTT-3.15.2-1]",
                              PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_UNSUBACK] =
        {"an UNSUBACK has no reason code, or an unknown one; expected one per topic filter [MQTT-3.11.3-2]",
         PROTOCOL_ERROR},
    [-HMQ_MQTT_BAD_SUBSCRIPTION] = {"a SUBSCRIBE has QoS 3 or retain handling 3; expected 0, 1 or 2 (section 3.8.3.1)",
                                    PROTOCOL_ERROR},
    [-HMQ_MQTT_TOO_MANY_FILTERS] =
        {"a SUBSCRIBE or UNSUBSCRIBE has too many topic filters; expected at most the limit of this receiver",
         QUOTA_EXCEEDED},
    [-HMQ_MQTT_TOO_MANY_USER_PROPERTIES] =
        {"a packet has too many or too long user properties; expected at most the limits of this receiver",
         QUOTA_EXCEEDED},
    [-HMQ_MQTT_CONNECT_TOO_LARGE] = {"the CONNECT is too large; expected at most the limit of this receiver",
                                     TOO_LARGE},
    [-HMQ_MQTT_SHARED_NO_LOCAL] = {"a shared subscription has the option no local; expected it without [MQTT-3.8.3-4]",
                                   PROTOCOL_ERROR},
};
#define ERROR_COUNT ((int)(sizeof errors / sizeof errors[0]))

const char *hmq_mqtt_error_text(hmq_mqtt_error error) {
    int index = -(int)error;
    return index >= 0 && index < ERROR_COUNT ? errors[index].text : "unknown MQTT error";
}

uint8_t hmq_mqtt_error_connack(hmq_mqtt_error error) {
    if (error == HMQ_MQTT_BAD_PROTOCOL_LEVEL) return 0x01; /* unacceptable protocol level */
    return error == HMQ_MQTT_BAD_CLIENT_ID ? 0x02 : 0; /* identifier rejected */
}

uint8_t hmq_mqtt_error_reason(hmq_mqtt_error error) {
    int index = -(int)error;
    return index >= 0 && index < ERROR_COUNT ? errors[index].reason : 0x80; /* unspecified error */
}

/* ---- reason codes by packet type ---- */

#define LOW(code) (UINT32_C(1) << (code))
#define HIGH(code) (UINT64_C(1) << ((code) - 0x80))
#define RANGE(first, last) ((HIGH(last) - HIGH(first)) | HIGH(last))

/* Table 2-6, and in CONNACK table 3-1, of 5.0.  Bit n of `low` is code n, of `high` 0x80 + n. */
static const struct {
    uint32_t low;
    uint64_t high;
} reasons[16] = {
    [HMQ_MQTT_CONNACK] = {LOW(0), RANGE(0x80, 0x8A) | HIGH(0x8C) | HIGH(0x90) | HIGH(0x95) | HIGH(0x97) |
                                      RANGE(0x99, 0x9D) | HIGH(0x9F)},
    [HMQ_MQTT_PUBACK] = {LOW(0) | LOW(0x10),
                         HIGH(0x80) | HIGH(0x83) | HIGH(0x87) | HIGH(0x90) | HIGH(0x91) | HIGH(0x97) | HIGH(0x99)},
    [HMQ_MQTT_PUBREC] = {LOW(0) | LOW(0x10),
                         HIGH(0x80) | HIGH(0x83) | HIGH(0x87) | HIGH(0x90) | HIGH(0x91) | HIGH(0x97) | HIGH(0x99)},
    [HMQ_MQTT_PUBREL] = {LOW(0), HIGH(0x92)},
    [HMQ_MQTT_PUBCOMP] = {LOW(0), HIGH(0x92)},
    [HMQ_MQTT_SUBACK] = {LOW(0) | LOW(1) | LOW(2), HIGH(0x80) | HIGH(0x83) | HIGH(0x87) | HIGH(0x8F) | HIGH(0x91) |
                                                       HIGH(0x97) | HIGH(0x9E) | HIGH(0xA1) | HIGH(0xA2)},
    [HMQ_MQTT_UNSUBACK] = {LOW(0) | LOW(0x11), HIGH(0x80) | HIGH(0x83) | HIGH(0x87) | HIGH(0x8F) | HIGH(0x91)},
    [HMQ_MQTT_DISCONNECT] = {LOW(0) | LOW(4),
                             RANGE(0x80, 0x83) | HIGH(0x87) | HIGH(0x89) | RANGE(0x8B, 0x90) | RANGE(0x93, 0xA2)},
    [HMQ_MQTT_AUTH] = {LOW(0) | LOW(0x18) | LOW(0x19), 0},
};

bool hmq_mqtt_reason_is_known(uint8_t type, uint8_t code) {
    if (type > HMQ_MQTT_AUTH) return false;
    if (code < 0x20) return reasons[type].low >> code & 1;
    return code >= 0x80 && code < 0xC0 && reasons[type].high >> (code - 0x80) & 1;
}
