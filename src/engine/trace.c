/* trace.c - notes the times of sampled publishes and deliveries, for spans that the owner makes of them.
 *
 *      publish     began ──command handed out──► sent ──reply──► answered ──PUBACK handed out──► over
 *      delivery    began ──PUBLISH handed out──► sent ──PUBACK, PUBREC──► answered, over        (QoS 0: over when sent)
 *
 * Everything else in the engine runs as if there were no traces.  A command in the log carries the number of its trace.
 * Deliveries are found in the list of their connection, by serial.  A trace that is over waits in `done` for the owner.
 *
 * Invariants
 *  1. A trace is in one list: the free ones, those of its connection, or the done ones.
 *  2. A number is never used twice: a command that outlives its trace finds none.
 *  3. At most `rate` traces of each of three sources begin per second (and that many at once), and none is older than
 *     HMQ_TRACE_MOST_MS after hmq_engine_take_traces.  So the table is not full while the owner takes them.  If it is,
 *     nothing is traced.
 *  4. Nothing that a client sends decides more than whether its message is traced: an identifier is copied, a topic is
 *     cut, everything else of a context is ignored.
 *
 * Memory: one table, made by hmq_engine_trace.  O(1) for a publish; for a delivery O(traces of its connection), at most
 * the table's size. */
#include "base/hex.h"
#include "engine/internal.h"

#define SOURCES 3 /* buckets: publishes by chance, publishes with a context, deliveries */
#define TABLE_S (HMQ_TRACE_MOST_MS / 1000 + 2) /* a burst, and the time until the owner takes them */
#define INDEX_BITS 16
_Static_assert(SOURCES * TABLE_S * HMQ_TRACE_MOST_RATE < 1 << INDEX_BITS, "an index fits");

#define CONTEXT_BYTES ((size_t)55) /* 00-<32>-<16>-<2> */
#define NAME "traceparent"
#define NAME_BYTES (sizeof NAME - 1)
#define PROPERTY_BYTES (1 + 2 + NAME_BYTES + 2 + CONTEXT_BYTES)
#define SAMPLED 1U

enum { CHANCE = 0, ASKED = 1, DELIVERY = 2 };

typedef enum stage { STAGE_FREE = 0, STAGE_WAITING, STAGE_IN_OUTPUT, STAGE_UNACKNOWLEDGED, STAGE_DONE } stage;

typedef struct trace {
    hmq_engine_trace_row row;
    hmq_conn conn;
    uint64_t generation, logged_generation;
    uint64_t serial; /* of a delivery; 0: it is of no queue */
    uint32_t before, after; /* in its list: index + 1, 0: none */
    uint8_t stage;
    uint32_t logged_link;
    bool is_in_logged;
} trace;

typedef struct trace_list {
    uint32_t first, last; /* index + 1 */
} trace_list;

struct traces {
    hmq_engine_tracing settings;
    uint64_t chance;  /* the state of the generator */
    uint64_t counter; /* of identifiers */
    bucket buckets[SOURCES];
    uint32_t room, used, live;
    trace_list free, done;
    uint32_t logged_count;
    uint16_t *logged; /* indexes of traces whose commands are not handed out yet */
    trace *table;
};

/* ---- the table --------------------------------------------------------------------------------------------------- */

bool hmq_engine_trace(hmq_engine *e, const hmq_engine_tracing *tracing) {
    struct traces *t = e->allocator.alloc(sizeof *t);
    if (t == NULL) return false;
    *t = (struct traces){.settings = *tracing, .chance = tracing->seed[0]};
    if (t->settings.rate == 0) t->settings.rate = 1;
    if (t->settings.rate > HMQ_TRACE_MOST_RATE) t->settings.rate = HMQ_TRACE_MOST_RATE;
    for (size_t i = 0; i < SOURCES; i++) t->buckets[i] = (bucket){.rate = t->settings.rate, .tokens = t->settings.rate};
    t->room = SOURCES * TABLE_S * t->settings.rate;
    t->table = e->allocator.alloc(t->room * (sizeof *t->table + sizeof *t->logged));
    if (t->table == NULL) {
        e->allocator.release(t);
        return false;
    }
    t->logged = (uint16_t *)(void *)(t->table + t->room);
    e->traces = t;
    return true;
}

void hmq_trace_free(hmq_engine *e) {
    e->allocator.release(e->traces->table);
    e->allocator.release(e->traces);
    e->traces = NULL;
}

static uint32_t number_of(const struct traces *t, const trace *one) {
    return (uint32_t)(one - t->table) + 1;
}

static trace *at_number(const struct traces *t, uint32_t number) {
    hmq_assert(number > 0 && number <= t->used);
    return &t->table[number - 1];
}

static void append(const struct traces *t, trace_list *list, trace *one) {
    one->before = list->last;
    one->after = 0;
    if (list->last != 0)
        at_number(t, list->last)->after = number_of(t, one);
    else
        list->first = number_of(t, one);
    list->last = number_of(t, one);
}

/* NULL: the list is empty. */
static trace *take_first(const struct traces *t, trace_list *list) {
    if (list->first == 0) return NULL;
    trace *one = at_number(t, list->first);
    list->first = one->after;
    if (one->after == 0)
        list->last = 0;
    else
        at_number(t, one->after)->before = 0;
    return one;
}

/* NULL: the table is full. */
static trace *take_free(struct traces *t) {
    trace *one = take_first(t, &t->free);
    if (one == NULL && t->used < t->room) {
        one = &t->table[t->used++];
        *one = (trace){0};
    }
    return one;
}

/* Puts it in front of the connection's others. */
static void join(struct traces *t, connection *c, trace *one) {
    one->before = 0;
    one->after = c->traces;
    if (c->traces != 0) at_number(t, c->traces)->before = number_of(t, one);
    c->traces = number_of(t, one);
    t->live++;
}

static void finish(struct traces *t, connection *c, trace *one, int64_t now_ns) {
    one->row.ended_ns = now_ns;
    one->stage = STAGE_DONE;
    if (one->before == 0)
        c->traces = one->after;
    else
        at_number(t, one->before)->after = one->after;
    if (one->after != 0) at_number(t, one->after)->before = one->before;
    append(t, &t->done, one);
    t->live--;
}

static int64_t now_of(const struct traces *t) {
    return t->settings.clock_ns();
}

/* ---- identifiers ------------------------------------------------------------------------------------------------- */

static void put_random(struct traces *t, uint8_t *out, size_t bytes) {
    const hmq_hash_seed seed = {t->settings.seed[0], t->settings.seed[1]};
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        t->counter++;
        uint64_t value = hmq_hash_text(&seed, (const char *)&t->counter, sizeof t->counter) | 1; /* 0 is invalid */
        memcpy(out + at, &value, sizeof value);
    }
}

/* A number of [0, 1): the generator SplitMix64 (Steele, Lea and Flood, 2014). */
static double chance(struct traces *t) {
    uint64_t value = t->chance += UINT64_C(0x9E3779B97F4A7C15);
    value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((value ^ value >> 31) >> 11) * 0x1p-53;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

typedef struct context {
    bool is_valid, is_sampled;
    uint8_t trace_id[16], span_id[8];
} context;

/* False: it is not a hexadecimal number, or `must_differ` and 0. */
static bool read_hex(const uint8_t *text, uint8_t *out, size_t bytes, bool must_differ) {
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++) {
        int high = hmq_hex_digit(text[2 * i]), low = hmq_hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
        any |= out[i];
    }
    return any != 0 || !must_differ;
}

/* A later version may be longer; its first four fields have the same places. */
static bool has_length_of(uint8_t version, hmq_slice value) {
    return value.len == CONTEXT_BYTES || (version > 0 && value.len > CONTEXT_BYTES && value.data[CONTEXT_BYTES] == '-');
}

static bool parse(hmq_slice value, context *out) {
    uint8_t version, flags;
    if (value.len < CONTEXT_BYTES || value.data[2] != '-' || value.data[35] != '-' || value.data[52] != '-')
        return false;
    if (!read_hex(value.data, &version, 1, false) || version == 0xFF || !has_length_of(version, value)) return false;
    if (!read_hex(value.data + 3, out->trace_id, 16, true) || !read_hex(value.data + 36, out->span_id, 8, true) ||
        !read_hex(value.data + 53, &flags, 1, false))
        return false;
    out->is_sampled = flags & SAMPLED;
    return true;
}

static bool is_context(const hmq_mqtt_property *property) {
    return property->id == HMQ_MQTT_USER_PROPERTY && property->name.len == NAME_BYTES &&
           memcmp(property->name.data, NAME, NAME_BYTES) == 0;
}

/* O(properties). */
static context context_of(hmq_slice properties) {
    hmq_mqtt_property property;
    context found = {0};
    uint32_t count = 0;
    for (size_t at = 0; hmq_mqtt_next_property(properties, &at, &property);) {
        if (is_context(&property) && ++count == 1) found.is_valid = parse(property.value, &found);
    }
    if (count != 1) found.is_valid = false;
    return found;
}

static uint8_t *put_hex(uint8_t *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        *out++ = (uint8_t)digits[bytes[i] >> 4];
        *out++ = (uint8_t)digits[bytes[i] & 15];
    }
    return out;
}

static void put_context(uint8_t *out, const hmq_engine_trace_row *row) {
    uint8_t text[CONTEXT_BYTES + 1], *end = text;
    memcpy(end, "00-", 3);
    end = put_hex(end + 3, row->trace_id, sizeof row->trace_id);
    *end++ = '-';
    end = put_hex(end, row->span_id, sizeof row->span_id);
    memcpy(end, "-01", 3);
    hmq_mqtt_put_user_property((hmq_slice){(const uint8_t *)NAME, NAME_BYTES}, (hmq_slice){text, CONTEXT_BYTES}, out,
                               PROPERTY_BYTES);
}

/* Removes contexts from the properties; returns the bytes that are left. */
static size_t remove_contexts(uint8_t *properties, size_t len) {
    hmq_mqtt_property property;
    size_t kept = 0;
    for (size_t at = 0, from = 0; hmq_mqtt_next_property((hmq_slice){properties, len}, &at, &property); from = at) {
        if (is_context(&property)) continue;
        memmove(properties + kept, properties + from, at - from);
        kept += at - from;
    }
    return kept;
}

/* The trace's own context takes the place of others.  Without memory, the message stays as it is. */
static void add_context(hmq_engine *e, const trace *one, hmq_slice all, hmq_mqtt_publish_properties *properties) {
    uint8_t *room = hmq_bytes_room(&e->allocator, &e->scratch, PROPERTY_BYTES + properties->passed_len);
    if (room == NULL) return;
    put_context(room, &one->row);
    size_t len = hmq_mqtt_copy_passed(all, room + PROPERTY_BYTES, properties->passed_len);
    len = PROPERTY_BYTES + remove_contexts(room + PROPERTY_BYTES, len);
    properties->passed = (hmq_slice){room, len};
    properties->passed_len = len;
    properties->contiguous = true;
}

/* ---- publishes --------------------------------------------------------------------------------------------------- */

/* A new trace of the connection; NULL: there are too many. */
static trace *begin(hmq_engine *e, connection *c, const context *parent, int source) {
    struct traces *t = e->traces;
    trace *one = hmq_bucket_take(&t->buckets[source], e->now_ms) ? take_free(t) : NULL;
    if (one == NULL) {
        e->count.traces_limited++;
        return NULL;
    }
    uint64_t generation = one->generation + 1;
    *one = (trace){.generation = generation,
                   .logged_generation = one->logged_generation,
                   .logged_link = one->logged_link,
                   .is_in_logged = one->is_in_logged,
                   .conn = c->handle,
                   .stage = STAGE_WAITING};
    one->row = (hmq_engine_trace_row){.kind = source == DELIVERY ? HMQ_TRACE_DELIVERY : HMQ_TRACE_PUBLISH,
                                      .has_parent = parent->is_valid,
                                      .sessions = -1,
                                      .began_ns = now_of(t)};
    if (parent->is_valid) {
        memcpy(one->row.trace_id, parent->trace_id, sizeof one->row.trace_id);
        memcpy(one->row.parent_id, parent->span_id, sizeof one->row.parent_id);
    } else {
        put_random(t, one->row.trace_id, sizeof one->row.trace_id);
    }
    put_random(t, one->row.span_id, sizeof one->row.span_id);
    join(t, c, one);
    return one;
}

/* Returns the length of the whole text. */
static uint16_t copy_cut(uint8_t *out, size_t room, hmq_slice text) {
    size_t len = text.len < room ? text.len : room;
    if (len > 0) memcpy(out, text.data, len);
    return (uint16_t)text.len;
}

static void describe(hmq_engine_trace_row *row, const connection *c, hmq_slice topic) {
    row->topic_len = copy_cut(row->topic, sizeof row->topic, topic);
    row->client_id_len = copy_cut(row->client_id, sizeof row->client_id, hmq_conn_client_id(c));
}

uint64_t hmq_trace_publish(hmq_engine *e, connection *c, const hmq_mqtt_packet *p,
                           hmq_mqtt_publish_properties *properties) {
    struct traces *t = e->traces;
    context parent = {0};
    if (properties->passed_len > 0) parent = context_of(p->properties);
    if (parent.is_valid ? !parent.is_sampled : chance(t) >= t->settings.sample) return 0;
    trace *one = begin(e, c, &parent, parent.is_valid ? ASKED : CHANCE);
    if (one == NULL) return 0;
    one->row.qos = p->qos;
    one->row.retain = p->retain;
    one->row.payload_bytes = p->payload.len;
    put_random(t, one->row.server_span_id, sizeof one->row.server_span_id);
    describe(&one->row, c, p->topic);
    if (t->settings.adds_context) add_context(e, one, p->properties, properties);
    return (one->generation << INDEX_BITS | (number_of(t, one) - 1)) << 1;
}

/* NULL: its trace is over. */
static trace *of_token(const struct traces *t, uint64_t token) {
    uint64_t number = TRACE_OF(token), index = number & ((1U << INDEX_BITS) - 1);
    if (number == 0 || index >= t->used) return NULL;
    trace *one = &t->table[index];
    bool is_it = one->generation == number >> INDEX_BITS && one->stage != STAGE_FREE && one->stage != STAGE_DONE;
    return is_it ? one : NULL;
}

void hmq_trace_logged(hmq_engine *e, const engine_link *l, const awaited *entry) {
    struct traces *t = e->traces;
    trace *one = entry->kind == COMMAND_PUBLISH ? of_token(t, entry->token) : NULL;
    if (one == NULL) return;
    one->logged_generation = one->generation;
    one->logged_link = l->number;
    if (!one->is_in_logged) t->logged[t->logged_count++] = (uint16_t)(number_of(t, one) - 1);
    one->is_in_logged = true;
}

void hmq_trace_commands_handed_out(hmq_engine *e, const engine_link *l) {
    struct traces *t = e->traces;
    if (t->logged_count == 0) return;
    int64_t now_ns = now_of(t);
    const uint32_t count = t->logged_count;
    t->logged_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t index = t->logged[i];
        trace *one = &t->table[index];
        if (one->logged_link != l->number) { /* it waits for the output of its own link */
            t->logged[t->logged_count++] = index;
            continue;
        }
        one->is_in_logged = false;
        if (one->logged_generation != one->generation || one->stage != STAGE_WAITING) continue;
        if (one->row.sent_ns == 0) one->row.sent_ns = now_ns;
        if (one->row.attempts < UINT8_MAX) one->row.attempts++;
    }
}

void hmq_trace_replied(hmq_engine *e, const awaited *entry, const hmq_resp_item *reply) {
    trace *one = entry->kind == COMMAND_PUBLISH ? of_token(e->traces, entry->token) : NULL;
    if (one == NULL) return;
    one->row.answered_ns = now_of(e->traces);
    if (reply->type == ':') one->row.sessions = reply->number;
}

void hmq_trace_answered(hmq_engine *e, connection *c, const awaited *entry, hmq_engine_trace_outcome outcome) {
    trace *one = of_token(e->traces, entry->token);
    if (one == NULL) return;
    one->row.outcome = (uint8_t)outcome;
    if (entry->qos > 0 && c->phase == PHASE_OPEN)
        one->stage = STAGE_IN_OUTPUT;
    else
        finish(e->traces, c, one, now_of(e->traces));
}

/* ---- deliveries -------------------------------------------------------------------------------------------------- */

/* The connection's delivery with this serial in this stage; NULL: none. */
static trace *find(const struct traces *t, const connection *c, uint64_t serial, stage of) {
    for (uint32_t number = c->traces; number != 0; number = at_number(t, number)->after) {
        trace *one = at_number(t, number);
        if (one->row.kind == HMQ_TRACE_DELIVERY && one->stage == of && one->serial == serial) return one;
    }
    return NULL;
}

void hmq_trace_arrived(hmq_engine *e, connection *c, const hmq_record *record, uint64_t serial, bool was_queued) {
    struct traces *t = e->traces;
    if (record->type != HMQ_RECORD_PUBLISH || record->properties.len == 0) return;
    const context parent = context_of(record->properties);
    if (!parent.is_valid || !parent.is_sampled) return;
    if (serial != 0 && find(t, c, serial, STAGE_WAITING) != NULL) return; /* it came once more after a loss */
    trace *one = begin(e, c, &parent, DELIVERY);
    if (one == NULL) return;
    one->serial = serial;
    one->row.qos = serial == 0 ? 0 : record->qos;
    one->row.was_queued = was_queued;
    one->row.payload_bytes = record->payload.len;
    describe(&one->row, c, record->topic);
    if (serial == 0) one->stage = STAGE_IN_OUTPUT;
}

void hmq_trace_delivered(hmq_engine *e, connection *c, uint64_t serial) {
    trace *one = find(e->traces, c, serial, STAGE_WAITING);
    if (one != NULL) one->stage = STAGE_IN_OUTPUT;
}

void hmq_trace_skipped(hmq_engine *e, connection *c, uint64_t serial) {
    trace *one = find(e->traces, c, serial, STAGE_WAITING);
    if (one == NULL) return;
    one->row.outcome = HMQ_TRACE_SKIPPED;
    finish(e->traces, c, one, now_of(e->traces));
}

void hmq_trace_acknowledged(hmq_engine *e, connection *c, uint64_t serial) {
    trace *one = find(e->traces, c, serial, STAGE_UNACKNOWLEDGED);
    if (one == NULL) return;
    one->row.answered_ns = now_of(e->traces);
    finish(e->traces, c, one, one->row.answered_ns);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static void handed_out(struct traces *t, connection *c, trace *one, int64_t now_ns) {
    if (one->stage != STAGE_IN_OUTPUT) return;
    if (one->row.kind == HMQ_TRACE_DELIVERY) one->row.sent_ns = now_ns;
    if (one->row.kind == HMQ_TRACE_DELIVERY && one->row.qos > 0)
        one->stage = STAGE_UNACKNOWLEDGED;
    else
        finish(t, c, one, now_ns);
}

void hmq_trace_handed_out(hmq_engine *e, connection *c) {
    struct traces *t = e->traces;
    int64_t now_ns = now_of(t);
    for (uint32_t number = c->traces, after; number != 0; number = after) {
        trace *one = at_number(t, number);
        after = one->after;
        handed_out(t, c, one, now_ns);
    }
}

static void end_early(struct traces *t, connection *c, trace *one, hmq_engine_trace_outcome outcome, int64_t now_ns) {
    if (one->row.outcome == HMQ_TRACE_DONE) one->row.outcome = (uint8_t)outcome;
    finish(t, c, one, now_ns);
}

void hmq_trace_forget(hmq_engine *e, connection *c) {
    int64_t now_ns = now_of(e->traces);
    while (c->traces != 0) end_early(e->traces, c, at_number(e->traces, c->traces), HMQ_TRACE_LOST, now_ns);
}

/* Also after the clock was set back. */
static bool is_late(const trace *one, int64_t now_ns) {
    bool is_live = one->stage != STAGE_FREE && one->stage != STAGE_DONE;
    int64_t age_ns = now_ns - one->row.began_ns;
    return is_live && (age_ns < 0 || age_ns > HMQ_TRACE_MOST_MS * INT64_C(1000000));
}

static void end_late(hmq_engine *e) {
    struct traces *t = e->traces;
    int64_t now_ns = now_of(t);
    for (uint32_t i = 0; t->live > 0 && i < t->used; i++) {
        if (is_late(&t->table[i], now_ns))
            end_early(t, hmq_engine_find(e, t->table[i].conn), &t->table[i], HMQ_TRACE_LATE, now_ns);
    }
}

uint32_t hmq_engine_take_traces(hmq_engine *e, hmq_engine_trace_row *rows, uint32_t most) {
    struct traces *t = e->traces;
    uint32_t count = 0;
    if (t == NULL) return 0;
    end_late(e);
    while (count < most) {
        trace *one = take_first(t, &t->done);
        if (one == NULL) break;
        rows[count++] = one->row;
        one->stage = STAGE_FREE;
        append(t, &t->free, one);
    }
    return count;
}
