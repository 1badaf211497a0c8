/* fan_out.c - publishes that are delivered in steps: their hashes, what is remembered of these, and the steps. */
#include "routing/fan_out.h"

#include <stdlib.h>
#include <string.h>

#include "topic/topic.h"
#include "server/access.h"
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
#include "routing/quota.h"
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
#define OWN_LOOKS 8U /* at fan-outs of an owner in turn, whose topics may have earlier ones of others */
#define LOOKS_MOST 10000U /* at filters, for one publish */
#define RECORD_BYTES_MAX (64U << 20) /* of all pending messages, or of one */

#define PREFIX "holdmq:fan-out:"
#define PREFIX_LEN (sizeof PREFIX - 1)
#define NAME_LEN (PREFIX_LEN + 16)
#define RECORD_FIELD "record"
#define OLDER_FIELD "1" /* or the first chunk, if there is no older message */
#define SECOND_FIELD "2"
#define OLDER_BYTE 0x80 /* before the retained message; no chunk begins with it */

/* Pending publishes of programs, which name no session: of one user of the server, and of all.  The bytes are those of the
 * messages and of the lists of sessions. */
#define PROGRAM_FAN_OUTS_MAX 10000U
#define PROGRAM_BYTES_MAX ((size_t)64 << 20)
#define ALL_PROGRAMS 4U /* times as many */
#define LOGGED_EVERY_MS 60000

#define NO_CLIENT 0 /* the owner of what a program published */

typedef struct fan_out {
    server_string *name, *topic;
    uint64_t owner; /* a hash of the user, or of the client, that published */
    size_t chunks; /* left */
    bool has_older; /* the retained message of before is in the hash */
    size_t record_bytes;
    size_t chunk_bytes; /* of the first chunk, which is delivered last */
    uint64_t program; /* a hash of the user whose program published; 0: none did, or it is not known since a restart */
} fan_out;

/* What programs have published that is pending. */
typedef struct fan_out_load {
    size_t fan_outs, bytes;
} fan_out_load;

struct fan_outs {
    server_dict *by_name; /* in the order of the publishes */
    server_dict *by_topic; /* topic, a zero, name: those of a topic in the order of their publishes */
    server_dict *by_owner; /* owner, name: those of an owner in the order of their publishes */
    size_t chunks; /* of all */
    size_t of_clients, record_bytes; /* how many clients published, and the bytes of these */
    server_dict *by_program; /* the load of a user's programs, by the hash of the user */
    fan_out_load of_programs; /* of all */
    unsigned long long last_number;
    uint64_t last_owner; /* whose chunk was delivered last */
};

/* ---- in memory --------------------------------------------------------------------------------------------- */

/* The key in by_topic; len 0 of `name`: what those of the topic begin with. */
static server_string *topic_key(hmq_slice topic, hmq_slice name) {
    size_t len = topic.len + 1 + name.len;
    char *bytes = sv.Alloc(len);
    memcpy(bytes, topic.data, topic.len);
    bytes[topic.len] = '\0'; /* in no topic */
    if (name.len > 0) memcpy(bytes + topic.len + 1, name.data, name.len);
    server_string *key = sv.CreateString(NULL, bytes, len);
    sv.Free(bytes);
    return key;
}

static bool is_name(hmq_slice name) {
    return name.len == NAME_LEN && memcmp(name.data, PREFIX, PREFIX_LEN) == 0;
}

#define OWNER_KEY_LEN (8 + NAME_LEN)

/* The key in by_owner. */
static void owner_key(unsigned char *key, uint64_t owner, hmq_slice name) {
    for (int i = 0; i < 8; i++) key[i] = (unsigned char)(owner >> (56 - 8 * i));
    memset(key + 8, 0, NAME_LEN);
    if (name.len > 0) memcpy(key + 8, name.data, name.len < NAME_LEN ? name.len : NAME_LEN);
}

static fan_out *find(const fan_outs *all, hmq_slice name) {
    return sv.DictGetC(all->by_name, (void *)(uintptr_t)name.data, name.len, NULL);
}

/* ---- what programs have published ---------------------------------------------------------------------------- */

static fan_out_load load_of(const fan_outs *all, uint64_t program) {
    const fan_out_load *load = sv.DictGetC(all->by_program, &program, sizeof program, NULL);
    return load == NULL ? (fan_out_load){0} : *load;
}

static void add_load(fan_outs *all, uint64_t program, size_t count, size_t bytes) {
    if (program == 0) return;
    fan_out_load *load = sv.DictGetC(all->by_program, &program, sizeof program, NULL);
    if (load == NULL) sv.DictSetC(all->by_program, &program, sizeof program, load = sv.Calloc(1, sizeof *load));
    load->fan_outs += count, load->bytes += bytes;
    all->of_programs.fan_outs += count, all->of_programs.bytes += bytes;
}

static void remove_load(fan_outs *all, uint64_t program, size_t count, size_t bytes) {
    fan_out_load *load = program == 0 ? NULL : sv.DictGetC(all->by_program, &program, sizeof program, NULL);
    if (load == NULL) return;
    load->fan_outs -= count, load->bytes -= bytes;
    all->of_programs.fan_outs -= count, all->of_programs.bytes -= bytes;
    if (load->fan_outs > 0) return;
    sv.DictDelC(all->by_program, &program, sizeof program, NULL);
    sv.Free(load);
}

static size_t bytes_of(const fan_out *f) {
    return f->record_bytes + f->chunks * f->chunk_bytes;
}

static bool is_too_much(const fan_out_load *load, size_t times, size_t more_bytes) {
    return load->fan_outs > 0 &&
           (load->fan_outs >= PROGRAM_FAN_OUTS_MAX * times || load->bytes + more_bytes > PROGRAM_BYTES_MAX * times);
}

static void refuse_program(server_ctx *ctx, const char *who, const fan_out_load *load, size_t times) {
    static long long logged_ms;
    long long now_ms = sv.Milliseconds();
    counters.fan_outs_refused++;
    reply_error(ctx, ERROR_PROGRAM_FAN_OUTS_PENDING, load->fan_outs, who, load->bytes, PROGRAM_FAN_OUTS_MAX * times,
                PROGRAM_BYTES_MAX * times);
    if (logged_ms > 0 && now_ms - logged_ms < LOGGED_EVERY_MS) return;
    logged_ms = now_ms;
    sv.Log(ctx, "warning",
           "%zu publishes of %s to many sessions are pending, with %zu bytes: further ones are refused; "
           "logged at most once in %d s",
           load->fan_outs, who, load->bytes, LOGGED_EVERY_MS / 1000);
}

/* The program whose publish is accepted, until it is written. */
static uint64_t accepted_program;

/* May a program publish one more?  False after replying QUEUEFULL. */
static bool program_has_room(server_ctx *ctx, const fan_outs *all, const hmq_record *record) {
    server_string *user = access_user_of_runner(ctx);
    uint64_t program = user == NULL ? 1 : client_hash(slice_of(user)) | 1U;
    fan_out_load own = load_of(all, program);
    size_t bytes = hmq_record_size(record);
    bool is_own = is_too_much(&own, 1, bytes);
    bool has_room = !is_own && !is_too_much(&all->of_programs, ALL_PROGRAMS, bytes);
    if (is_own)
        refuse_program(ctx, user == NULL ? "an unknown user" : shown(user), &own, 1);
    else if (!has_room)
        refuse_program(ctx, "all programs", &all->of_programs, ALL_PROGRAMS);
    if (user != NULL) sv.FreeString(NULL, user);
    accepted_program = has_room ? program : 0;
    return has_room;
}

/* ---- pending fan-outs ---------------------------------------------------------------------------------------- */

static void forget(fan_outs *all, fan_out *f) {
    remove_load(all, f->program, 1, bytes_of(f));
    hmq_slice name = slice_of(f->name);
    server_string *key = topic_key(slice_of(f->topic), name);
    sv.DictDelC(all->by_topic, (void *)(uintptr_t)slice_of(key).data, slice_of(key).len, NULL);
    sv.FreeString(NULL, key);
    unsigned char of_owner[OWNER_KEY_LEN];
    owner_key(of_owner, f->owner, name);
    sv.DictDelC(all->by_owner, of_owner, sizeof of_owner, NULL);
    all->chunks -= f->chunks;
    if (f->owner != NO_CLIENT) all->of_clients--, all->record_bytes -= f->record_bytes;
    sv.DictDelC(all->by_name, (void *)(uintptr_t)name.data, name.len, NULL);
    sv.FreeString(NULL, f->name);
    sv.FreeString(NULL, f->topic);
    sv.Free(f);
}

static uint64_t owner_of(const index_t *index, hmq_slice client_id) {
    hmq_slice identity = quota_of_client(index, client_id).identity;
    return identity.len > 0 ? client_hash(identity) : client_id.len > 0 ? client_hash(client_id) : NO_CLIENT;
}

static fan_out *remember(index_t *index, hmq_slice name, const hmq_record *record, size_t record_bytes, bool has_older,
                         size_t chunks, size_t chunk_bytes) {
    fan_outs *all = index->fan_outs;
    fan_out *f = sv.Calloc(1, sizeof *f);
    *f = (fan_out){.name = sv.CreateString(NULL, (const char *)name.data, name.len),
                   .topic = sv.CreateString(NULL, (const char *)record->topic.data, record->topic.len),
                   .owner = owner_of(index, record->publisher),
                   .chunks = chunks,
                   .has_older = has_older,
                   .record_bytes = record_bytes,
                   .chunk_bytes = chunk_bytes};
    sv.DictSetC(all->by_name, (void *)(uintptr_t)name.data, name.len, f);
    server_string *key = topic_key(record->topic, name);
    sv.DictSetC(all->by_topic, (void *)(uintptr_t)slice_of(key).data, slice_of(key).len, f);
    sv.FreeString(NULL, key);
    unsigned char of_owner[OWNER_KEY_LEN];
    owner_key(of_owner, f->owner, name);
    sv.DictSetC(all->by_owner, of_owner, sizeof of_owner, f);
    all->chunks += chunks;
    if (f->owner != NO_CLIENT) all->of_clients++, all->record_bytes += record_bytes;
    unsigned long long number = strtoull((const char *)slice_of(f->name).data + PREFIX_LEN, NULL, 16);
    if (number > all->last_number) all->last_number = number;
    return f;
}

/* The oldest pending one of this topic; NULL: there is none.  O(log n). */
static const fan_out *oldest_of(const fan_outs *all, hmq_slice topic) {
    server_string *prefix = topic_key(topic, (hmq_slice){0});
    hmq_slice begins = slice_of(prefix), key;
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_topic, ">=", (void *)(uintptr_t)begins.data, begins.len);
    void *value;
    key.data = sv.DictNextC(iter, &key.len, &value);
    bool found = key.data != NULL && key.len > begins.len && memcmp(key.data, begins.data, begins.len) == 0;
    sv.DictIteratorStop(iter);
    sv.FreeString(NULL, prefix);
    return found ? value : NULL;
}

/* Is one of this topic pending that was published before `than` (NULL: at all)? */
static bool has_earlier(const fan_outs *all, hmq_slice topic, const fan_out *than) {
    const fan_out *oldest = oldest_of(all, topic);
    return oldest != NULL && oldest != than;
}

bool fan_out_pends(const index_t *index, hmq_slice topic) {
    return sv.DictSize(index->fan_outs->by_name) > 0 && oldest_of(index->fan_outs, topic) != NULL;
}

fan_out_pending fan_out_count(const index_t *index) {
    return (fan_out_pending){sv.DictSize(index->fan_outs->by_name), index->fan_outs->chunks};
}

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
    accepted_program = 0;
    if (command.all_filters <= OWN_FILTERS)
        command.all_filters += filters;
    else
        *filters_of(record) += filters;
    if (can.cluster || sessions == 0) return FAN_OUT_NOT;
    if (sv.DictSize(index->fan_outs->by_name) > 0 && has_earlier(index->fan_outs, record->topic, NULL)) return FAN_OUT;
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
    if (sv.DictSize(ahead->index->fan_outs->by_name) == 0) return;
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

/* Of a client, which has few. */
static size_t chunks_of(const fan_outs *all, uint64_t owner) {
    unsigned char from[OWNER_KEY_LEN];
    owner_key(from, owner, (hmq_slice){0});
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_owner, ">=", from, sizeof from);
    size_t chunks = 0, len;
    void *value;
    while (sv.DictNextC(iter, &len, &value) != NULL && ((const fan_out *)value)->owner == owner)
        chunks += ((const fan_out *)value)->chunks;
    sv.DictIteratorStop(iter);
    return chunks;
}

bool fan_out_has_room(server_ctx *ctx, const index_t *index, const hmq_record *record, size_t sessions,
                      fan_out_way way) {
    const fan_outs *all = index->fan_outs;
    size_t pending = sv.DictSize(all->by_name);
    if (way == FAN_OUT_LATER) {
        reply_error(ctx, ERROR_PIPELINE_LONG);
        return false;
    }
    if (record->publisher.len == 0) return program_has_room(ctx, all, record);
    if (pending == 0) return true;
    size_t more = sessions / most_in_chunk(index, record) + 1, own = chunks_of(all, owner_of(index, record->publisher));
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
    server_string *name = sv.CreateStringPrintf(NULL, PREFIX "%016llx", all->last_number + 1);
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
    fan_out *f = remember(w->index, slice_of(name), w->record, bytes, w->has_older, chunks, chunk_bytes);
    f->program = accepted_program;
    accepted_program = 0;
    add_load(all, f->program, 1, bytes_of(f));
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
        forget(all, f);
    } else {
        replicate(ctx, "HDEL", "ss", f->name, field);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", f->name);
        all->chunks--;
        f->chunks--;
        remove_load(all, f->program, 0, f->chunk_bytes);
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

/* The oldest of the first owner from `from` on, up to `last`, whose topic has no earlier one; NULL: there is none.  Only the
 * oldest few of an owner are looked at.  The oldest of all is found: no earlier one has its topic. */
static fan_out *next_between(const fan_outs *all, uint64_t from, uint64_t last) {
    for (;;) {
        unsigned char key[OWNER_KEY_LEN];
        owner_key(key, from, (hmq_slice){0});
        server_dict_iter *iter = sv.DictIteratorStartC(all->by_owner, ">=", key, sizeof key);
        fan_out *found = NULL;
        uint64_t owner = 0;
        size_t len, looks = 0;
        void *value;
        while (found == NULL && looks < OWN_LOOKS && sv.DictNextC(iter, &len, &value) != NULL) {
            fan_out *f = value;
            if (looks++ == 0) owner = f->owner;
            if (f->owner != owner) break;
            if (owner <= last && !has_earlier(all, slice_of(f->topic), f)) found = f;
        }
        sv.DictIteratorStop(iter);
        if (found != NULL || looks == 0 || owner >= last) return found;
        from = owner + 1;
    }
}

/* That of the next owner in turn. */
static fan_out *next(const fan_outs *all) {
    uint64_t served = all->last_owner;
    fan_out *after = served < UINT64_MAX ? next_between(all, served + 1, UINT64_MAX) : NULL;
    return after != NULL ? after : next_between(all, 0, served);
}

/* True if something is left. */
static bool serve(server_ctx *ctx, int db, uint64_t until_us) {
    sv.SelectDb(ctx, db);
    index_t *index = index_of(ctx);
    for (fan_out *f = next(index->fan_outs); f != NULL; f = next(index->fan_outs)) {
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
        if (index_exists(db) && sv.DictSize(index_peek(db)->fan_outs->by_name) > 0 && serve(detached, db, until_us))
            is_left = true;
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
    if (sv.DictSize(index->fan_outs->by_name) == 0 || due || pause_timer.armed) return;
    turns_request();
    wake();
}

/* ---- the index --------------------------------------------------------------------------------------------- */

static void make(index_t *index) {
    index->fan_outs = sv.Calloc(1, sizeof *index->fan_outs);
    index->fan_outs->by_name = sv.CreateDict(NULL);
    index->fan_outs->by_topic = sv.CreateDict(NULL);
    index->fan_outs->by_owner = sv.CreateDict(NULL);
    index->fan_outs->by_program = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->fan_outs->by_name, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) {
        fan_out *f = value;
        sv.FreeString(NULL, f->name);
        sv.FreeString(NULL, f->topic);
        sv.Free(f);
    }
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, index->fan_outs->by_name);
    sv.FreeDict(NULL, index->fan_outs->by_topic);
    sv.FreeDict(NULL, index->fan_outs->by_owner);
    iter = sv.DictIteratorStartC(index->fan_outs->by_program, "^", NULL, 0);
    while (sv.DictNextC(iter, &len, &value) != NULL) sv.Free(value);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, index->fan_outs->by_program);
    sv.Free(index->fan_outs);
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    fan_out *known = find(index->fan_outs, name);
    if (known != NULL) forget(index->fan_outs, known);
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
    if (hmq_record_decode(text.data, text.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH && fields > others)
        remember(index, name, &record, text.len + older_bytes, has_older, fields - others, chunk_bytes);
    sv.FreeString(NULL, bytes);
}

static void compare(const fan_outs *a, const fan_outs *b, index_differ differ, void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->by_name, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) {
        const fan_out *f = value, *other = find(b, slice_of(f->name));
        if (other == NULL || other->chunks != f->chunks || bytes_of(other) != bytes_of(f) ||
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
