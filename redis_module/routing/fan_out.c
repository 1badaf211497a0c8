/* fan_out.c - publishes that are delivered in steps: their hashes, what may be pending, and the steps. */
#include "routing/fan_out.h"

#include <string.h>

#include "topic/topic.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/resources.h"
#include "server/session_keys.h"
#include "server/timers.h"
#include "server/turns.h"
#include "index/check.h"
#include "queue/queue.h"
#include "routing/fan_out_pending.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "routing/step_budget.h"

#define DIRECT_COST 256U   /* of deliveries in the step of one publish */
#define CURSOR_COST 4U     /* of a session that is handed an older message of the topic first */
/* That match in one command before those of each publisher are counted, and then of one: some milliseconds. */
#define OWN_FILTERS 25000U
#define PUBLISHER_BUCKETS 64U
#define CHUNK_COST 128U
#define BYTES_PER_COST 16384U /* a message of this size takes as long as one more delivery */
#define STEP_US 1000U
/* The server writes delivered messages to the links of bridges a little in each turn: after this many bytes the next step waits
 * PAUSE_MS, so that many short turns come between. */
#define STEP_BYTES (512U << 10)
#define PAUSE_MS 4

#define FAN_OUTS_MAX 256U
#define OWN_CHUNKS_MAX 128U
#define OWN_CHUNKS_MAX_QOS0 2048U /* these are not sent again: what is refused is lost */
#define LOOKS_MOST 10000U /* at filters, for one publish */
#define RECORD_BYTES_MAX (64U << 20) /* of all pending messages, or of one */

#define RECORD_FIELD "record"
#define OLDER_FIELD "1" /* or the first chunk, if there is no older message */
#define SECOND_FIELD "2"
#define OLDER_BYTE 0x80 /* before the retained message; no chunk begins with it */

/* ---- which publishes --------------------------------------------------------------------------------------- */

static struct {
    bool runs;
    size_t all_filters; /* that matched until they were too many for one publisher */
    size_t filters[PUBLISHER_BUCKETS]; /* that matched since then for each publisher, by a hash of its client id */
} command;

void fan_out_command_begin(void) {
    command.runs = true;
    step_budget_begin();
    if (command.all_filters > OWN_FILTERS) memset(command.filters, 0, sizeof command.filters);
    command.all_filters = 0;
}

void fan_out_command_end(void) {
    command.runs = false;
    step_budget_end();
}

static size_t cost_of(size_t record_bytes) {
    return 1 + record_bytes / BYTES_PER_COST;
}

static size_t most_in_chunk(const index_t *index, const hmq_record *record) {
    size_t cost = cost_of(hmq_record_size(record));
    if (sv.DictSize(index->cursors) > 0) cost += CURSOR_COST;
    size_t most = CHUNK_COST / cost;
    return most < 1 ? 1 : most;
}

static size_t *filters_of(const hmq_record *record) {
    return &command.filters[client_hash(record->publisher) % PUBLISHER_BUCKETS];
}

bool fan_out_is_used_up(const hmq_record *record) {
    return command.runs && record->publisher.len > 0 && command.all_filters > OWN_FILTERS &&
           *filters_of(record) > OWN_FILTERS;
}

fan_out_way fan_out_way_of(const index_t *index, const hmq_record *record, size_t sessions, size_t cursors,
                           size_t filters) {
    if (command.all_filters <= OWN_FILTERS)
        command.all_filters += filters;
    else
        *filters_of(record) += filters;
    if (can.cluster || sessions == 0) return FAN_OUT_NOT;
    if (fan_out_pends(index, record->topic)) return FAN_OUT;
    size_t bytes = hmq_record_size(record), cost = sessions * cost_of(bytes) + cursors * CURSOR_COST;
    if (cost > DIRECT_COST && sessions > 1) return FAN_OUT;
    bool is_patient = record->publisher.len > 0 && record->qos > 0;
    size_t units = sessions * step_units(bytes, record->qos);
    if (sessions == 1 || step_budget_allows(units, is_patient)) return FAN_OUT_NOT;
    return is_patient ? FAN_OUT_LATER : FAN_OUT;
}

void fan_out_ahead_begin(fan_out_ahead *ahead, const index_t *index) {
    *ahead = (fan_out_ahead){.index = index, .looks = LOOKS_MOST};
}

/* Without looking once it has looked at many: then each may be for the session. */
static bool may_be_for(fan_out_ahead *ahead, const indexed_session *session, hmq_slice topic) {
    size_t filters = sv.DictSize(session->filters);
    if (filters > ahead->looks) return true;
    ahead->looks -= filters;
    return index_session_matches(session, topic);
}

static bool is_for_group(hmq_slice group, const fan_out *f) {
    hmq_slice inner, topic = slice_of(f->topic);
    return share_is(group, &inner) &&
           hmq_topic_matches((const char *)inner.data, inner.len, (const char *)topic.data, topic.len);
}

void fan_out_ahead_of(fan_out_ahead *ahead, const indexed_session *session, hmq_slice group) {
    ahead->messages = ahead->bytes = 0;
    if (!fan_out_any(ahead->index)) return;
    server_dict_iter *iter = sv.DictIteratorStartC(ahead->index->fan_outs->by_name, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) {
        const fan_out *f = value;
        if (session != NULL ? !may_be_for(ahead, session, slice_of(f->topic)) : !is_for_group(group, f)) continue;
        ahead->messages++;
        ahead->bytes += f->record_bytes;
    }
    sv.DictIteratorStop(iter);
}

/* Whose publish was accepted, until it is written; 0: a client's. */
static uint64_t accepted_program;

bool fan_out_has_room(server_ctx *ctx, const index_t *index, const hmq_record *record, size_t sessions,
                      fan_out_way way) {
    const fan_outs *all = index->fan_outs;
    accepted_program = 0;
    size_t pending = sv.DictSize(all->by_name);
    if (way == FAN_OUT_LATER) {
        reply_error(ctx, ERROR_PIPELINE_LONG);
        return false;
    }
    if (record->publisher.len == 0)
        return program_loads_have_room(ctx, all->programs, hmq_record_size(record), &accepted_program);
    if (pending == 0) return true;
    size_t more = sessions / most_in_chunk(index, record) + 1,
           own = fan_out_chunks_of(all, fan_out_owner(index, record->publisher));
    size_t most = record->qos == 0 ? OWN_CHUNKS_MAX_QOS0 : OWN_CHUNKS_MAX;
    bool has_room = all->of_clients < FAN_OUTS_MAX && all->record_bytes + hmq_record_size(record) <= RECORD_BYTES_MAX &&
                    (own == 0 || own + more <= most);
    if (has_room) return true;
    counters.fan_outs_delayed++;
    reply_error(ctx, ERROR_FAN_OUTS_PENDING, pending);
    return false;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

/* Is a step to be made at the end of this turn, or of one that comes by itself? */
static bool due;

static void wake(void) {
    due = true;
    turns_request_another();
}

static void on_pause_over(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    due = true;
    turns_request();
}

static module_timer pause_timer = {.fire = on_pause_over};

static void add_pair(fan_out_writer *w, server_string *field, server_string *value) {
    if (w->pair_count + 2 > w->pair_room) {
        w->pair_room = w->pair_room == 0 ? 32 : w->pair_room * 2;
        w->pairs = sv.Realloc(w->pairs, w->pair_room * sizeof *w->pairs);
    }
    w->pairs[w->pair_count++] = field;
    w->pairs[w->pair_count++] = value;
}

/* The field with the retained message of before. */
static void add_older(fan_out_writer *w, hmq_slice encoded) {
    uint8_t *bytes = sv.Alloc(encoded.len + 1);
    bytes[0] = OLDER_BYTE;
    if (encoded.len > 0) memcpy(bytes + 1, encoded.data, encoded.len);
    server_string *field = sv.CreateString(NULL, OLDER_FIELD, sizeof OLDER_FIELD - 1);
    add_pair(w, field, sv.CreateString(NULL, (const char *)bytes, encoded.len + 1));
    sv.Free(bytes);
}

static bool is_older(const server_string *value) {
    hmq_slice bytes = value == NULL ? (hmq_slice){NULL, 0} : slice_of(value);
    return bytes.len > 0 && bytes.data[0] == OLDER_BYTE;
}

void fan_out_begin(fan_out_writer *w, server_ctx *ctx, index_t *index, const hmq_record *record,
                   const server_string *older) {
    *w = (fan_out_writer){
        .ctx = ctx, .index = index, .record = record, .most = most_in_chunk(index, record), .has_older = older != NULL};
    size_t size = hmq_record_size(record);
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(record, bytes, size);
    server_string *field = sv.CreateString(NULL, RECORD_FIELD, sizeof RECORD_FIELD - 1);
    add_pair(w, field, sv.CreateString(NULL, (const char *)bytes, size));
    sv.Free(bytes);
    if (older != NULL) add_older(w, slice_of(older));
}

static void put(fan_out_writer *w, const void *bytes, size_t len) {
    if (w->bytes + len > w->room) {
        w->room = (w->bytes + len) * 2;
        w->chunk = sv.Realloc(w->chunk, w->room);
    }
    if (len > 0) memcpy(w->chunk + w->bytes, bytes, len);
    w->bytes += len;
}

static void put_number(fan_out_writer *w, uint32_t number) {
    uint8_t bytes[4] = {(uint8_t)number, (uint8_t)(number >> 8), (uint8_t)(number >> 16), (uint8_t)(number >> 24)};
    put(w, bytes, sizeof bytes);
}

static void end_chunk(fan_out_writer *w) {
    server_string *field = sv.CreateStringFromLongLong(NULL, (long long)(w->pair_count / 2));
    add_pair(w, field, sv.CreateString(NULL, (const char *)w->chunk, w->bytes));
    w->bytes = w->sessions = 0;
}

/* In a chunk: a byte with QoS (bits 0-1) and retain flag (bit 2), or with bit 3 for a group; length and bytes of the session's
 * key, or of the group's filter; how many identifiers, and these.  Numbers have 4 bytes, little endian. */
#define RETAIN_BIT 4U
#define GROUP_BIT 8U

static void add_target(fan_out_writer *w, uint8_t flags, hmq_slice key, const delivery_how *how) {
    put(w, &flags, 1);
    put_number(w, (uint32_t)key.len);
    put(w, key.data, key.len);
    put_number(w, (uint32_t)how->identifier_count);
    for (size_t i = 0; i < how->identifier_count; i++) put_number(w, how->identifiers[i]);
    if (++w->sessions == w->most) end_chunk(w);
}

void fan_out_add_group(fan_out_writer *w, const share *group) {
    add_target(w, GROUP_BIT, slice_of(group->filter), &(delivery_how){0});
}

void fan_out_add(fan_out_writer *w, const indexed_session *session, const delivery_how *how) {
    add_target(w, (uint8_t)(how->qos | (how->retain ? RETAIN_BIT : 0)), slice_of(session->key), how);
}

void fan_out_end(fan_out_writer *w) {
    if (w->sessions > 0) end_chunk(w);
    fan_outs *all = w->index->fan_outs;
    server_string *name = sv.CreateStringPrintf(NULL, FAN_OUT_PREFIX "%016llx", all->last_number + 1);
    server_key *hash = sv.OpenKey(w->ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) != SERVER_EMPTY) sv.DeleteKey(hash); /* somebody else's: the name is the module's own */
    for (size_t i = 0; i < w->pair_count; i += 2)
        sv.HashSet(hash, SERVER_HASH_NONE, w->pairs[i], w->pairs[i + 1], NULL);
    sv.CloseKey(hash);
    replicate(w->ctx, "HSET", "sv", name, w->pairs, w->pair_count);
    index_notify(w->ctx, SERVER_NOTIFY_HASH, "hset", name);
    size_t others = 1 + w->has_older, bytes = 0;
    for (size_t i = 0; i < others; i++) bytes += slice_of(w->pairs[2 * i + 1]).len;
    size_t chunks = w->pair_count / 2 - others, chunk_bytes = chunks == 0 ? 0 : slice_of(w->pairs[2 * others + 1]).len;
    const fan_out sizes = {.chunks = chunks,
                           .has_older = w->has_older,
                           .record_bytes = bytes,
                           .chunk_bytes = chunk_bytes,
                           .program = accepted_program};
    fan_out_remember(w->index, slice_of(name), w->record, &sizes);
    accepted_program = 0;
    counters.fan_outs++;
    for (size_t i = 0; i < w->pair_count; i++) sv.FreeString(NULL, w->pairs[i]);
    sv.FreeString(NULL, name);
    sv.Free(w->pairs);
    sv.Free(w->chunk);
    if (pause_timer.armed) return;
    due = true;
    turns_request();
}

/* ---- delivering -------------------------------------------------------------------------------------------- */

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static bool read_number(reader *r, uint32_t *number) {
    if (r->end - r->at < 4) return false;
    *number = (uint32_t)r->at[0] | (uint32_t)r->at[1] << 8 | (uint32_t)r->at[2] << 16 | (uint32_t)r->at[3] << 24;
    r->at += 4;
    return true;
}

/* One session of a chunk.  The caller frees the identifiers.  False: the bytes are not what this module writes. */
static bool read_target(reader *r, bool *is_group, hmq_slice *key, delivery_how *how, uint32_t **identifiers) {
    uint32_t len, count;
    *identifiers = NULL;
    if (r->at == r->end || (*r->at & ~(GROUP_BIT | RETAIN_BIT | 3U)) != 0 || (*r->at & 3U) == 3) return false;
    *is_group = (*r->at & GROUP_BIT) != 0;
    *how = (delivery_how){.qos = *r->at & 3U, .retain = (*r->at & RETAIN_BIT) != 0, .in_steps = true};
    r->at++;
    if (!read_number(r, &len) || (size_t)(r->end - r->at) < len) return false;
    *key = (hmq_slice){r->at, len};
    r->at += len;
    if (!read_number(r, &count) || (size_t)(r->end - r->at) / 4 < count) return false;
    if (count > 0) *identifiers = sv.Alloc(count * sizeof **identifiers);
    for (uint32_t i = 0; i < count; i++) read_number(r, &(*identifiers)[i]);
    how->identifiers = *identifiers;
    how->identifier_count = count;
    return true;
}

/* Is it the session that subscribed?  It may have ended meanwhile, and another one have begun under its key. */
static bool is_meant(server_ctx *ctx, index_t *index, const indexed_session *session, const hmq_record *record) {
    if (session == NULL || !index_session_lives(ctx, index, session)) return false;
    return session->since_ms < record->time_ms || index_session_matches(session, record->topic);
}

static size_t step_bytes; /* of what was delivered in this step */

/* `older`: the retained message of before (without a topic: there was none); NULL if no cursors stood. */
static void deliver_chunk(server_ctx *ctx, index_t *index, hmq_slice chunk, message *m, const hmq_record *older) {
    reader r = {chunk.data, chunk.data + chunk.len};
    hmq_slice key;
    delivery_how how;
    uint32_t *identifiers;
    bool is_group;
    index_pin(index, INDEX_SESSIONS);
    queue_words_begin();
    while (read_target(&r, &is_group, &key, &how, &identifiers)) {
        const indexed_session *session =
            is_group ? NULL : sv.DictGetC(index->sessions, (void *)(uintptr_t)key.data, key.len, NULL);
        share *group = is_group ? share_find(index->shares, key) : NULL;
        if (group != NULL) {
            share_deliver(ctx, index, group, m);
            step_bytes += m->record.payload.len;
        } else if (is_meant(ctx, index, session, &m->record)) {
            if (older != NULL) retained_cursors_reach_late(ctx, index, session, &m->record, how.qos, older);
            deliver(ctx, session, m, &how);
            step_bytes += m->record.payload.len;
        }
        sv.Free(identifiers);
    }
    sv.Free(identifiers);
    queue_words_end(ctx);
    index_unpin(index, INDEX_SESSIONS);
}

/* Takes the last chunk out of the hash, and reads the message and the one of before (NULL: none was kept).  False: it holds
 * no chunk. */
static bool take_chunk(server_ctx *ctx, fan_outs *all, fan_out *f, server_string **record, server_string **older,
                       server_string **chunk) {
    server_string *field = NULL;
    *record = *older = *chunk = NULL;
    server_key *hash = sv.OpenKey(ctx, f->name, SERVER_READ | SERVER_WRITE);
    size_t left = sv.KeyType(hash) == SERVER_HASH ? sv.ValueLength(hash) : 0;
    size_t others = 1 + f->has_older;
    if (left > others) {
        field = sv.CreateStringFromLongLong(NULL, (long long)left - 1);
        sv.HashGet(hash, SERVER_HASH_NONE, field, chunk, NULL);
        sv.HashGet(hash, SERVER_HASH_CFIELDS, RECORD_FIELD, record, NULL);
        if (f->has_older) sv.HashGet(hash, SERVER_HASH_CFIELDS, OLDER_FIELD, older, NULL);
    }
    bool is_usable = *chunk != NULL && *record != NULL, is_last = left <= others + 1 || !is_usable;
    if (!is_last) sv.HashSet(hash, SERVER_HASH_NONE, field, SERVER_HASH_DELETE, NULL);
    sv.CloseKey(hash);
    if (is_last) {
        if (left > 0) keyspace_drop(ctx, sv.HoldString(NULL, f->name));
        fan_out_forget(all, f);
    } else {
        replicate(ctx, "HDEL", "ss", f->name, field);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", f->name);
        fan_out_chunk_done(all, f);
    }
    if (field != NULL) sv.FreeString(NULL, field);
    return is_usable;
}

static bool has_expired(const hmq_record *record) {
    return record->expires_ms > 0 && record->expires_ms <= sv.Milliseconds() && !hmq_record_has_zero_ttl(record);
}

static void step(server_ctx *ctx, index_t *index, fan_out *f) {
    server_string *bytes, *chunk, *older;
    hmq_record record, before;
    index->fan_outs->last_owner = f->owner;
    if (take_chunk(ctx, index->fan_outs, f, &bytes, &older, &chunk)) {
        hmq_slice text = slice_of(bytes);
        if (hmq_record_decode(text.data, text.len, &record) == 0 && !has_expired(&record)) {
            message m;
            message_begin(&m, &record, record.time_ms);
            hmq_slice kept = is_older(older) ? slice_of(older) : (hmq_slice){NULL, 0};
            bool had_any = kept.len > 1 && hmq_record_decode(kept.data + 1, kept.len - 1, &before) == 0;
            if (!had_any) before = (hmq_record){0};
            deliver_chunk(ctx, index, slice_of(chunk), &m, kept.len > 0 ? &before : NULL);
            message_end(&m);
        }
    }
    if (bytes != NULL) sv.FreeString(NULL, bytes);
    if (chunk != NULL) sv.FreeString(NULL, chunk);
    if (older != NULL) sv.FreeString(NULL, older);
}

/* True if something is left. */
static bool serve(server_ctx *ctx, int db, uint64_t until_us) {
    sv.SelectDb(ctx, db);
    index_t *index = index_of(ctx);
    for (fan_out *f = fan_out_next(index->fan_outs); f != NULL; f = fan_out_next(index->fan_outs)) {
        if (monotonic_us() >= until_us || step_bytes > STEP_BYTES) return true;
        step(ctx, index, f);
    }
    return false;
}

/* A chunk adds a copy for each of its sessions: where the server would refuse a publish, pending ones wait, too. */
static bool may_store(void) {
    int flags = sv.GetContextFlags(detached);
    bool may_write = (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING));
    return may_write && !(flags & SERVER_CTX_OOM) && !resources_are_short() && !sv.AvoidReplicaTraffic();
}

void fan_out_before_sleep(void) {
    static int first_db;
    if (!due) return;
    due = false;
    if (!may_store()) return; /* the module's clock resumes them */
    int databases = index_databases();
    uint64_t until_us = monotonic_us() + STEP_US;
    step_bytes = 0;
    bool is_left = false;
    for (int i = 0; i < databases; i++) {
        int db = (first_db + i) % databases;
        if (index_exists(db) && fan_out_any(index_peek(db)) && serve(detached, db, until_us)) is_left = true;
    }
    first_db = (first_db + 1) % (databases == 0 ? 1 : databases);
    sv.SelectDb(detached, 0);
    if (is_left && step_bytes > STEP_BYTES)
        timers_arm(detached, &pause_timer, PAUSE_MS);
    else if (is_left)
        wake();
}

bool fan_out_any_due(void) {
    return due;
}

bool fan_out_is_pending(void) {
    return due || pause_timer.armed;
}

void fan_out_resume(const index_t *index) {
    if (!fan_out_any(index) || due || pause_timer.armed) return;
    turns_request();
    wake();
}

/* ---- the index --------------------------------------------------------------------------------------------- */

static void make(index_t *index) {
    index->fan_outs = fan_outs_new();
}

static void release(index_t *index) {
    fan_outs_free(index->fan_outs);
}

static bool is_name(hmq_slice name) {
    return name.len == FAN_OUT_NAME_LEN && memcmp(name.data, FAN_OUT_PREFIX, sizeof FAN_OUT_PREFIX - 1) == 0;
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    fan_out *known = fan_out_find(index->fan_outs, name);
    if (known != NULL) fan_out_forget(index->fan_outs, known);
    server_string *key = sv.CreateString(NULL, (const char *)name.data, name.len), *bytes = NULL;
    server_key *hash = sv.OpenKey(ctx, key, SERVER_READ | SERVER_OPEN_NOTOUCH);
    size_t fields = hash != NULL && sv.KeyType(hash) == SERVER_HASH ? sv.ValueLength(hash) : 0;
    server_string *first = NULL, *second = NULL;
    if (fields > 1)
        sv.HashGet(hash, SERVER_HASH_CFIELDS, RECORD_FIELD, &bytes, OLDER_FIELD, &first, SECOND_FIELD, &second, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, key);
    bool has_older = is_older(first);
    size_t older_bytes = has_older ? slice_of(first).len : 0, others = 1 + has_older;
    const server_string *chunk = has_older ? second : first;
    size_t chunk_bytes = chunk == NULL ? 0 : slice_of(chunk).len;
    if (first != NULL) sv.FreeString(NULL, first);
    if (second != NULL) sv.FreeString(NULL, second);
    if (bytes == NULL) return;
    hmq_slice text = slice_of(bytes);
    hmq_record record;
    if (hmq_record_decode(text.data, text.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH && fields > others) {
        const fan_out sizes = {.chunks = fields - others,
                               .has_older = has_older,
                               .record_bytes = text.len + older_bytes,
                               .chunk_bytes = chunk_bytes};
        fan_out_remember(index, name, &record, &sizes);
    }
    sv.FreeString(NULL, bytes);
}

static void compare(const fan_outs *a, const fan_outs *b, index_differ differ, void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->by_name, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) {
        const fan_out *f = value, *other = fan_out_find(b, slice_of(f->name));
        if (other == NULL || other->chunks != f->chunks || fan_out_bytes(other) != fan_out_bytes(f) ||
            other->has_older != f->has_older)
            differ(context, "fan-out in the index but not in the keys, or different", slice_of(f->name));
    }
    sv.DictIteratorStop(iter);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    compare(kept->fan_outs, rebuilt->fan_outs, differ, context);
    compare(rebuilt->fan_outs, kept->fan_outs, differ, context);
}

const index_kind fan_outs_kind = {
    .make = make,
    .release = release,
    .is_key = is_name,
    .refresh = refresh,
    .check = check,
};
