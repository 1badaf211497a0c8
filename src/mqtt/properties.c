/* properties.c - the properties of MQTT 5.0; mqtt/properties.h has the drawing and the contract.
 *
 * One table has the rules for each identifier; everything else follows from the kind of its value. */
#include "mqtt/properties.h"

#include "mqtt/reader.h"
#include "mqtt/writer.h"

/* ---- the table ---- */

#define AT(place) (1U << (place))
#define PUBLISHED (AT(HMQ_MQTT_PUBLISH) | AT(HMQ_MQTT_WILL))
#define OPENING (AT(HMQ_MQTT_CONNECT) | AT(HMQ_MQTT_CONNACK))
#define ACKNOWLEDGED (AT(HMQ_MQTT_PUBACK) | AT(HMQ_MQTT_PUBREC) | AT(HMQ_MQTT_PUBREL) | AT(HMQ_MQTT_PUBCOMP))
#define GRANTED (AT(HMQ_MQTT_SUBACK) | AT(HMQ_MQTT_UNSUBACK))
#define ENDING (AT(HMQ_MQTT_DISCONNECT) | AT(HMQ_MQTT_AUTH))
#define ASKED (AT(HMQ_MQTT_SUBSCRIBE) | AT(HMQ_MQTT_UNSUBSCRIBE))
#define FLAG 0, 1
#define SHORT 0, UINT16_MAX
#define LONG 0, UINT32_MAX
#define NO_NUMBER 0, 0

/* In the order of table 2-4: kind of the value, smallest and largest number, in which packets.  Ranges: the section of
 * the property (3.1.2.11, 3.2.2.3, 3.3.2.3, 3.8.2.1). */
static const struct property {
    uint8_t kind;
    uint32_t least, most;
    uint32_t places;
} properties_known[] = {
    [HMQ_MQTT_PAYLOAD_FORMAT] = {HMQ_MQTT_BYTE, FLAG, PUBLISHED},
    [HMQ_MQTT_MESSAGE_EXPIRY] = {HMQ_MQTT_FOUR_BYTES, LONG, PUBLISHED},
    [HMQ_MQTT_CONTENT_TYPE] = {HMQ_MQTT_TEXT, NO_NUMBER, PUBLISHED},
    [HMQ_MQTT_RESPONSE_TOPIC] = {HMQ_MQTT_TEXT, NO_NUMBER, PUBLISHED},
    [HMQ_MQTT_CORRELATION_DATA] = {HMQ_MQTT_BINARY, NO_NUMBER, PUBLISHED},
    [HMQ_MQTT_SUBSCRIPTION_ID] = {HMQ_MQTT_VARIABLE, 1, HMQ_MQTT_MAX_REMAINING,
                                  AT(HMQ_MQTT_PUBLISH) | AT(HMQ_MQTT_SUBSCRIBE)},
    [HMQ_MQTT_SESSION_EXPIRY] = {HMQ_MQTT_FOUR_BYTES, LONG, OPENING | AT(HMQ_MQTT_DISCONNECT)},
    [HMQ_MQTT_ASSIGNED_CLIENT_ID] = {HMQ_MQTT_TEXT, NO_NUMBER, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_SERVER_KEEP_ALIVE] = {HMQ_MQTT_TWO_BYTES, SHORT, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_AUTH_METHOD] = {HMQ_MQTT_TEXT, NO_NUMBER, OPENING | AT(HMQ_MQTT_AUTH)},
    [HMQ_MQTT_AUTH_DATA] = {HMQ_MQTT_BINARY, NO_NUMBER, OPENING | AT(HMQ_MQTT_AUTH)},
    [HMQ_MQTT_REQUEST_PROBLEM] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNECT)},
    [HMQ_MQTT_WILL_DELAY] = {HMQ_MQTT_FOUR_BYTES, LONG, AT(HMQ_MQTT_WILL)},
    [HMQ_MQTT_REQUEST_RESPONSE] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNECT)},
    [HMQ_MQTT_RESPONSE_INFORMATION] = {HMQ_MQTT_TEXT, NO_NUMBER, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_SERVER_REFERENCE] = {HMQ_MQTT_TEXT, NO_NUMBER, AT(HMQ_MQTT_CONNACK) | AT(HMQ_MQTT_DISCONNECT)},
    [HMQ_MQTT_REASON_STRING] = {HMQ_MQTT_TEXT, NO_NUMBER, AT(HMQ_MQTT_CONNACK) | ACKNOWLEDGED | GRANTED | ENDING},
    [HMQ_MQTT_RECEIVE_MAXIMUM] = {HMQ_MQTT_TWO_BYTES, 1, UINT16_MAX, OPENING},
    [HMQ_MQTT_TOPIC_ALIAS_MAXIMUM] = {HMQ_MQTT_TWO_BYTES, SHORT, OPENING},
    [HMQ_MQTT_TOPIC_ALIAS] = {HMQ_MQTT_TWO_BYTES, 1, UINT16_MAX, AT(HMQ_MQTT_PUBLISH)},
    [HMQ_MQTT_MAXIMUM_QOS] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_RETAIN_AVAILABLE] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_USER_PROPERTY] = {HMQ_MQTT_PAIR, NO_NUMBER,
                                PUBLISHED | OPENING | ACKNOWLEDGED | ASKED | GRANTED | ENDING},
    [HMQ_MQTT_MAXIMUM_PACKET_SIZE] = {HMQ_MQTT_FOUR_BYTES, 1, UINT32_MAX, OPENING},
    [HMQ_MQTT_WILDCARD_AVAILABLE] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_SUBSCRIPTION_ID_AVAILABLE] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNACK)},
    [HMQ_MQTT_SHARED_AVAILABLE] = {HMQ_MQTT_BYTE, FLAG, AT(HMQ_MQTT_CONNACK)},
};
#define KNOWN (sizeof properties_known / sizeof properties_known[0])

static const struct property *find(uint8_t id) {
    static const struct property none = {HMQ_MQTT_NO_PROPERTY, NO_NUMBER, 0};
    return id < KNOWN ? &properties_known[id] : &none;
}

hmq_mqtt_property_kind hmq_mqtt_kind_of_property(uint8_t id) {
    return (hmq_mqtt_property_kind)find(id)->kind;
}

/* ---- reading ---- */

/* An identifier is a variable byte integer (section 2.2.2.2), but no known one needs more than one byte. */
static void take_property(reader *in, hmq_mqtt_property *property) {
    *property = (hmq_mqtt_property){.id = take_byte(in)};
    property->kind = find(property->id)->kind;
    switch (property->kind) {
    case HMQ_MQTT_BYTE: property->number = take_byte(in); break;
    case HMQ_MQTT_TWO_BYTES: property->number = take_short(in); break;
    case HMQ_MQTT_FOUR_BYTES: property->number = take_long(in); break;
    case HMQ_MQTT_VARIABLE: property->number = take_variable(in); break;
    case HMQ_MQTT_PAIR: property->name = take_binary(in); /* fall through */
    case HMQ_MQTT_TEXT:
    case HMQ_MQTT_BINARY: property->value = take_binary(in); break;
    default: fail(in, HMQ_MQTT_UNKNOWN_PROPERTY);
    }
}

bool hmq_mqtt_next_property(hmq_slice properties, size_t *at, hmq_mqtt_property *property) {
    if (*at >= properties.len) return false;
    reader in = {properties.data + *at, properties.len - *at, HMQ_MQTT_OK, NULL};
    take_property(&in, property);
    if (in.error) return false;
    *at = properties.len - in.left;
    return true;
}

/* ---- checking ---- */

static hmq_mqtt_error check_text(hmq_slice text) {
    hmq_utf8_error error = hmq_utf8_check(text.data, text.len);
    if (error == HMQ_UTF8_OK) return HMQ_MQTT_OK;
    return error == HMQ_UTF8_NUL ? HMQ_MQTT_NUL : HMQ_MQTT_NOT_UTF8;
}

/* A topic name with any number of levels: the server publishes nothing to it. */
static hmq_mqtt_error check_response_topic(hmq_slice topic) {
    hmq_topic_error error = hmq_topic_check_name((const char *)topic.data, topic.len);
    return error == HMQ_TOPIC_EMPTY || error == HMQ_TOPIC_WILDCARD ? HMQ_MQTT_BAD_RESPONSE_TOPIC : HMQ_MQTT_OK;
}

static hmq_mqtt_error check_number(uint8_t id, uint32_t number) {
    const struct property *known = find(id);
    if (number >= known->least && number <= known->most) return HMQ_MQTT_OK;
    return id == HMQ_MQTT_TOPIC_ALIAS ? HMQ_MQTT_BAD_TOPIC_ALIAS : HMQ_MQTT_BAD_PROPERTY_VALUE;
}

static hmq_mqtt_error check_value(const hmq_mqtt_property *property) {
    hmq_mqtt_error error = HMQ_MQTT_OK;
    switch (property->kind) {
    case HMQ_MQTT_BINARY: return HMQ_MQTT_OK;
    case HMQ_MQTT_PAIR: error = check_text(property->name); /* fall through */
    case HMQ_MQTT_TEXT:
        if (!error) error = check_text(property->value);
        if (!error && property->id == HMQ_MQTT_RESPONSE_TOPIC) error = check_response_topic(property->value);
        return error;
    default: return check_number(property->id, property->number);
    }
}

static bool may_repeat(uint8_t id, uint8_t place) {
    return id == HMQ_MQTT_USER_PROPERTY || (id == HMQ_MQTT_SUBSCRIPTION_ID && place == HMQ_MQTT_PUBLISH);
}

#define SEEN(id) (UINT64_C(1) << (id))

/* Sections 3.1.2.11.10 and 3.15.2.2.2. */
static bool lacks_auth_method(uint64_t seen, uint8_t place) {
    if (seen & SEEN(HMQ_MQTT_AUTH_METHOD)) return false;
    return place == HMQ_MQTT_AUTH || (place == HMQ_MQTT_CONNECT && seen & SEEN(HMQ_MQTT_AUTH_DATA));
}

/* The number of user properties so far, and their bytes. */
typedef struct user_properties {
    uint32_t count;
    size_t bytes;
} user_properties;

static bool exceeds_limit(user_properties *seen, const hmq_mqtt_property *property, const hmq_mqtt_limits *limits) {
    if (limits == NULL || property->id != HMQ_MQTT_USER_PROPERTY) return false;
    seen->count++;
    seen->bytes += property->name.len + property->value.len;
    return (limits->max_user_properties > 0 && seen->count > limits->max_user_properties) ||
           (limits->max_user_property_bytes > 0 && seen->bytes > limits->max_user_property_bytes);
}

static hmq_mqtt_error check_properties(hmq_slice properties, uint8_t place, const hmq_mqtt_limits *limits) {
    reader in = {properties.data, properties.len, HMQ_MQTT_OK, limits};
    user_properties of_user = {0};
    uint64_t seen = 0;
    while (in.left) {
        hmq_mqtt_property property;
        take_property(&in, &property);
        if (in.error) return in.error;
        if (!(find(property.id)->places & AT(place & 15))) return HMQ_MQTT_MISPLACED_PROPERTY;
        if (seen & SEEN(property.id) && !may_repeat(property.id, place)) return HMQ_MQTT_REPEATED_PROPERTY;
        seen |= SEEN(property.id);
        if (exceeds_limit(&of_user, &property, limits)) return HMQ_MQTT_TOO_MANY_USER_PROPERTIES;
        hmq_mqtt_error error = check_value(&property);
        if (error) return error;
    }
    return lacks_auth_method(seen, place) ? HMQ_MQTT_NO_AUTH_METHOD : HMQ_MQTT_OK;
}

hmq_mqtt_error hmq_mqtt_check_properties(hmq_slice properties, uint8_t place) {
    return check_properties(properties, place, NULL);
}

hmq_slice hmq_mqtt_take_properties(reader *in, uint8_t place) {
    hmq_slice properties = take(in, take_variable(in));
    if (properties.len == 0 || in->error) return properties;
    hmq_mqtt_error error = check_properties(properties, place, in->limits);
    if (error) fail(in, error);
    return properties;
}

/* ---- writing ---- */

static size_t number_size(uint8_t kind, uint32_t number) {
    switch (kind) {
    case HMQ_MQTT_BYTE: return 1;
    case HMQ_MQTT_TWO_BYTES: return 2;
    case HMQ_MQTT_FOUR_BYTES: return 4;
    case HMQ_MQTT_VARIABLE: return variable_size(number);
    default: return 0;
    }
}

size_t hmq_mqtt_put_number(uint8_t id, uint32_t number, uint8_t *out, size_t capacity) {
    size_t size = number_size(find(id)->kind, number);
    if (size == 0 || 1 + size > capacity || check_number(id, number)) return 0;
    *out++ = id;
    switch (find(id)->kind) {
    case HMQ_MQTT_BYTE: *out = (uint8_t)number; break;
    case HMQ_MQTT_TWO_BYTES: put_short(out, number); break;
    case HMQ_MQTT_FOUR_BYTES: put_long(out, number); break;
    default: put_variable(out, number);
    }
    return 1 + size;
}

size_t hmq_mqtt_put_value(uint8_t id, hmq_slice value, uint8_t *out, size_t capacity) {
    uint8_t kind = find(id)->kind;
    if ((kind != HMQ_MQTT_TEXT && kind != HMQ_MQTT_BINARY) || value.len > SHORT_MAX) return 0;
    if (3 + value.len > capacity) return 0;
    *out++ = id;
    put_text(out, value);
    return 3 + value.len;
}

size_t hmq_mqtt_put_user_property(hmq_slice name, hmq_slice value, uint8_t *out, size_t capacity) {
    if (name.len > SHORT_MAX || value.len > SHORT_MAX || 5 + name.len + value.len > capacity) return 0;
    *out++ = HMQ_MQTT_USER_PROPERTY;
    put_text(put_text(out, name), value);
    return 5 + name.len + value.len;
}

size_t hmq_mqtt_put_property(const hmq_mqtt_property *property, uint8_t *out, size_t capacity) {
    switch (find(property->id)->kind) {
    case HMQ_MQTT_PAIR: return hmq_mqtt_put_user_property(property->name, property->value, out, capacity);
    case HMQ_MQTT_TEXT:
    case HMQ_MQTT_BINARY: return hmq_mqtt_put_value(property->id, property->value, out, capacity);
    default: return hmq_mqtt_put_number(property->id, property->number, out, capacity);
    }
}

/* ---- passing on ---- */

/* Is it passed to subscribers?  If not, the server uses it itself: it goes into *out. */
static bool is_passed(const hmq_mqtt_property *property, hmq_mqtt_publish_properties *out) {
    switch (property->id) {
    case HMQ_MQTT_TOPIC_ALIAS: out->topic_alias = (uint16_t)property->number; return false;
    case HMQ_MQTT_MESSAGE_EXPIRY:
        out->has_message_expiry = true;
        out->message_expiry_s = property->number;
        return false;
    case HMQ_MQTT_WILL_DELAY: out->will_delay_s = property->number; return false;
    case HMQ_MQTT_SUBSCRIPTION_ID: out->subscription_ids++; return false;
    default: return true;
    }
}

/* Extends the run of passed properties.  A second run, after a gap, makes `passed` empty for good. */
static void pass(hmq_mqtt_publish_properties *out, const uint8_t *from, size_t len) {
    if (out->passed_len == 0) {
        out->passed = (hmq_slice){from, len};
    } else if (out->contiguous && out->passed.data + out->passed.len == from) {
        out->passed.len += len;
    } else {
        out->contiguous = false;
        out->passed = (hmq_slice){NULL, 0};
    }
    out->passed_len += len;
}

hmq_mqtt_error hmq_mqtt_split_publish_properties(hmq_slice properties, hmq_mqtt_publish_properties *out) {
    reader in = {properties.data, properties.len, HMQ_MQTT_OK, NULL};
    *out = (hmq_mqtt_publish_properties){.contiguous = true};
    while (in.left) {
        const uint8_t *from = in.at;
        hmq_mqtt_property property;
        take_property(&in, &property);
        if (in.error) return in.error;
        if (!(find(property.id)->places & PUBLISHED)) return HMQ_MQTT_MISPLACED_PROPERTY;
        if (is_passed(&property, out)) pass(out, from, (size_t)(in.at - from));
    }
    return HMQ_MQTT_OK;
}

size_t hmq_mqtt_copy_passed(hmq_slice properties, uint8_t *out, size_t capacity) {
    hmq_mqtt_publish_properties consumed = {0};
    hmq_mqtt_property property;
    size_t at = 0, from = 0, size = 0;
    for (; hmq_mqtt_next_property(properties, &at, &property); from = at) {
        if (!is_passed(&property, &consumed)) continue;
        if (at - from > capacity - size) return 0;
        memcpy(out + size, properties.data + from, at - from);
        size += at - from;
    }
    return size;
}
