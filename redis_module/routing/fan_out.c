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
#include "routing/fan_out_search.h"
#include "routing/fan_out_write.h"
#include "routing/judging.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "routing/step_budget.h"

#define DIRECT_COST 256U   /* of deliveries in the step of one publish */
/* The units of topic/trie.h take 30 to 60 ns each. */
#define DIRECT_UNITS 32768U /* for the match of one publish in its step */
#define ALL_UNITS 32768U    /* for those of one command before those of each publisher are counted ... */
#define OWN_UNITS 16384U    /* ... and then for those of one publisher ... */
#define LATE_UNITS 2048U    /* ... and of one publish */
#define HASTY_UNITS 128U    /* of one publish once half of the command's time is over: some ten sessions */
#define PUBLISHER_BUCKETS 64U
#define STEP_US 1000U
/* The server writes delivered messages to the links of bridges a little in each turn: after this many bytes the next step waits
 * PAUSE_MS, so that many short turns come between. */
#define STEP_BYTES (512U << 10)
#define PAUSE_MS 4

#define FAN_OUTS_MAX 256U
#define OWN_CHUNKS_MAX FAN_OUT_UNMATCHED_CHUNKS
#define OWN_CHUNKS_MAX_QOS0 2048U /* these are not sent again: what is refused is lost */
#define RECORD_BYTES_MAX (64U << 20) /* of all pending messages, or of one */

/* ---- which publishes --------------------------------------------------------------------------------------- */

static struct {
    bool runs;
    bool had_many; /* sessions, or matches: then its time is looked at */
    size_t all_units; /* of matches, until they were too many for one publisher */
    size_t units[PUBLISHER_BUCKETS]; /* since then, of each publisher, by a hash of its client id */
} command;

void fan_out_command_begin(void) {
    command.runs = true;
    command.had_many = false;
    step_budget_begin();
    if (command.all_units > ALL_UNITS) memset(command.units, 0, sizeof command.units);
    command.all_units = 0;
}

void fan_out_command_end(void) {
    command.runs = false;
    step_budget_end();
}

static size_t *units_of(const hmq_record *record) {
    return &command.units[client_hash(record->publisher) % PUBLISHER_BUCKETS];
}

bool fan_out_is_used_up(const hmq_record *record) {
    return command.runs && record->publisher.len > 0 && command.all_units > ALL_UNITS && *units_of(record) > OWN_UNITS;
}

/* Is half of the command's time over?  Then publishes to few sessions are still served, and larger ones must be sent again. */
static bool is_short_of_time(const hmq_record *record) {
    return command.runs && command.had_many && record->publisher.len > 0 && record->qos > 0 &&
           step_budget_is_half_over();
}

size_t fan_out_match_units(const hmq_record *record) {
    if (is_short_of_time(record)) return HASTY_UNITS;
    return command.runs && command.all_units > ALL_UNITS ? LATE_UNITS : DIRECT_UNITS;
}

static fan_out_way decide(const index_t *index, const hmq_record *record, size_t sessions, size_t cursors,
                          bool is_whole) {
    if (!is_whole) return FAN_OUT_UNMATCHED;
    if (can.cluster || sessions == 0) return FAN_OUT_NOT;
    if (fan_out_is_topic_pending(index, record->topic)) return FAN_OUT;
    if (sessions == 1) return FAN_OUT_NOT;
    size_t bytes = hmq_record_size(record), cost = sessions * fan_out_cost_of(bytes) + cursors * CURSOR_COST;
    if (cost > DIRECT_COST) return FAN_OUT;
    bool is_patient = record->publisher.len > 0 && record->qos > 0;
    size_t deliveries = sessions * step_units(bytes, record->qos);
    if (step_budget_allows(deliveries, is_patient)) return FAN_OUT_NOT;
    return is_patient ? FAN_OUT_LATER : FAN_OUT;
}

fan_out_way fan_out_decide(const index_t *index, const hmq_record *record, size_t sessions, size_t cursors,
                           size_t units, bool is_whole) {
    if (command.all_units <= ALL_UNITS)
        command.all_units += units;
    else
        *units_of(record) += units;
    fan_out_way way = decide(index, record, sessions, cursors, is_whole);
    if (way == FAN_OUT_NOT) return way;
    if (is_short_of_time(record)) return FAN_OUT_LATER;
    command.had_many = true;
    return way;
}

/* The owner whose publish was accepted and is not written yet; 0: a client. */
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
    size_t more = way == FAN_OUT_UNMATCHED ? FAN_OUT_UNMATCHED_CHUNKS
                                           : sessions / fan_out_most_in_chunk(index, record) + 1,
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

/* Is a step due at the end of this turn, or of the next turn that happens anyway? */
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

void fan_out_begin(fan_out_writer *w, server_ctx *ctx, index_t *index, const hmq_record *record,
                   const server_string *older) {
    fan_out_write_begin(w, ctx, index, record, older == NULL ? FIRST_CHUNK : FIRST_CHUNK + 1);
    fan_out_write_message(w, older);
}

static void end(fan_out_writer *w, bool is_unmatched) {
    fan_outs *all = w->index->fan_outs;
    server_string *name = sv.CreateStringPrintf(NULL, FAN_OUT_PREFIX "%016llx", all->last_number + 1);
    server_key *hash = sv.OpenKey(w->ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) != SERVER_EMPTY)
        sv.DeleteKey(hash); /* another program made it; the name belongs to the module */
    sv.CloseKey(hash);
    fan_out_write(w, name);
    const fan_out sizes = {.chunks = w->chunks,
                           .has_older = w->first > FIRST_CHUNK,
                           .is_unmatched = is_unmatched,
                           .record_bytes = w->message_bytes,
                           .chunk_bytes = w->chunk_bytes,
                           .program = accepted_program};
    fan_out_remember(w->index, slice_of(name), w->record, &sizes);
    accepted_program = 0;
    counters.fan_outs++;
    fan_out_write_end(w);
    sv.FreeString(NULL, name);
    if (pause_timer.armed) return;
    due = true;
    turns_request();
}

void fan_out_end(fan_out_writer *w) {
    end(w, false);
}

void fan_out_end_unmatched(fan_out_writer *w) {
    fan_out_write_unmatched(w);
    end(w, true);
}

bool fan_out_is_judged(server_ctx *ctx, index_t *index, const hmq_record *record) {
    judging_answer answer = judging_ask(ctx, index, record);
    if (answer == JUDGING_LATER && !pause_timer.armed) {
        due = true;
        turns_request();
    }
    return answer == JUDGING_ROOM;
}

/* ---- delivering -------------------------------------------------------------------------------------------- */

/* Is it the session that subscribed?  It may have ended meanwhile, and another one have begun under its key. */
static bool is_still_subscriber(server_ctx *ctx, index_t *index, const indexed_session *session,
                                const hmq_record *record) {
    if (session == NULL || !index_session_is_valid(ctx, index, session)) return false;
    return session->since_ms < record->time_ms || index_session_matches(session, record->topic);
}

static size_t step_bytes; /* of what was delivered in this step */

/* `older`: the retained message before the publish (without a topic: there was none); NULL if no session had cursors. */
static void deliver_chunk(server_ctx *ctx, index_t *index, hmq_slice chunk, message *m, const hmq_record *older) {
    fan_out_reader r = {chunk.data, chunk.data + chunk.len};
    hmq_slice key;
    delivery_how how;
    uint32_t *identifiers;
    bool is_group;
    index_pin(index, INDEX_SESSIONS);
    queue_replicate_begin();
    while (fan_out_read(&r, &is_group, &key, &how, &identifiers)) {
        const indexed_session *session =
            is_group ? NULL : sv.DictGetC(index->sessions, (void *)(uintptr_t)key.data, key.len, NULL);
        share *group = is_group ? share_find(index->shares, key) : NULL;
        if (group != NULL) {
            share_deliver(ctx, index, group, m);
            step_bytes += m->record.payload.len;
        } else if (is_still_subscriber(ctx, index, session, &m->record)) {
            if (older != NULL) retained_cursors_before_late_delivery(ctx, index, session, &m->record, how.qos, older);
            deliver(ctx, session, m, &how);
            step_bytes += m->record.payload.len;
        }
        sv.Free(identifiers);
    }
    sv.Free(identifiers);
    queue_replicate_end(ctx);
    index_unpin(index, INDEX_SESSIONS);
}

/* Takes the last chunk out of the hash, and reads the message and the earlier retained one (NULL: none).  False: the hash holds
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
        sv.HashGet(hash, SERVER_HASH_CFIELDS, FAN_OUT_RECORD_FIELD, record, NULL);
        if (f->has_older) sv.HashGet(hash, SERVER_HASH_CFIELDS, FAN_OUT_OLDER_FIELD, older, NULL);
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

static void step(server_ctx *ctx, index_t *index, fan_out *f) {
    server_string *bytes, *chunk, *older;
    hmq_record record, before;
    index->fan_outs->last_owner = f->owner;
    if (f->is_unmatched) {
        fan_out_search_step(ctx, index, f);
        return;
    }
    if (take_chunk(ctx, index->fan_outs, f, &bytes, &older, &chunk)) {
        hmq_slice text = slice_of(bytes);
        if (hmq_record_decode(text.data, text.len, &record) == 0 && !fan_out_has_expired(&record)) {
            message m;
            message_begin(&m, &record, record.time_ms);
            hmq_slice kept = fan_out_is_older(older) ? slice_of(older) : (hmq_slice){NULL, 0};
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
static bool judge(server_ctx *ctx, index_t *index, uint64_t until_us) {
    while (judging_is_under_way(index->fan_outs)) {
        if (monotonic_us() >= until_us) return true;
        judging_step(ctx, index);
    }
    return false;
}

/* The same. */
static bool serve(server_ctx *ctx, int db, uint64_t until_us) {
    sv.SelectDb(ctx, db);
    index_t *index = index_of(ctx);
    uint64_t now_us = monotonic_us(), half_us = now_us < until_us ? now_us + (until_us - now_us) / 2 : until_us;
    bool is_left = judge(ctx, index, fan_out_any(index) ? half_us : until_us);
    for (fan_out *f = fan_out_next(index->fan_outs); f != NULL; f = fan_out_next(index->fan_outs)) {
        if (monotonic_us() >= until_us || step_bytes > STEP_BYTES) return true;
        step(ctx, index, f);
    }
    return is_left;
}

/* A chunk adds a copy for each of its sessions.  So pending fan-outs wait while the server would refuse a publish. */
static bool may_store(void) {
    int flags = sv.GetContextFlags(detached);
    bool may_write = (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING));
    return may_write && !(flags & SERVER_CTX_OOM) && !resources_are_short() && !sv.AvoidReplicaTraffic();
}

static bool has_work(const index_t *index) {
    return fan_out_any(index) || judging_is_under_way(index->fan_outs);
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
        if (index_exists(db) && has_work(index_peek(db)) && serve(detached, db, until_us)) is_left = true;
    }
    first_db = (first_db + 1) % (databases == 0 ? 1 : databases);
    sv.SelectDb(detached, 0);
    if (is_left && step_bytes > STEP_BYTES)
        timers_arm(&pause_timer, PAUSE_MS);
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
    if (!has_work(index) || due || pause_timer.armed) return;
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
    int is_unmatched = 0;
    if (fields > 1) {
        sv.HashGet(hash, SERVER_HASH_CFIELDS, FAN_OUT_RECORD_FIELD, &bytes, FAN_OUT_OLDER_FIELD, &first,
                   FAN_OUT_SECOND_FIELD, &second, NULL);
        sv.HashGet(hash, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, FAN_OUT_UNMATCHED_FIELD, &is_unmatched, NULL);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, key);
    bool has_older = fan_out_is_older(first);
    size_t older_bytes = has_older ? slice_of(first).len : 0, others = 1 + has_older;
    const server_string *chunk = has_older ? second : first;
    size_t chunk_bytes = chunk == NULL ? 0 : slice_of(chunk).len;
    if (first != NULL) sv.FreeString(NULL, first);
    if (second != NULL) sv.FreeString(NULL, second);
    if (bytes == NULL) return;
    hmq_slice text = slice_of(bytes);
    hmq_record record;
    if (hmq_record_decode(text.data, text.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH && fields > others) {
        const fan_out sizes = {.chunks = is_unmatched ? 0 : fields - others,
                               .has_older = has_older,
                               .is_unmatched = is_unmatched != 0,
                               .record_bytes = text.len + older_bytes,
                               .chunk_bytes = is_unmatched ? 0 : chunk_bytes};
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
            other->has_older != f->has_older || other->is_unmatched != f->is_unmatched)
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
