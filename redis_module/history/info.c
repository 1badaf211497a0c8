/* info.c - HISTORY.INFO and HISTORY.SEQ: describes a shard, and finds the sequence number of a time. */
#include <inttypes.h>

#include "base/little_endian.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "server/reply.h"
#include "history/epoch.h"
#include "history/history.h"
#include "history/policy_write.h"
#include "history/read.h"
#include "history/slots.h"
#include "history/switch.h"
#include "history/visible.h"

#define STORE_FIELDS 3 /* besides those of the policy */
#define SHARD_FIELDS 11
#define MAX_MS 9007199254740LL /* in microseconds still at most 2^53 - 1, which all languages represent exactly */

static int reply_corrupt(server_ctx *ctx, const history_shard *state) {
    return reply_error(ctx, ERROR_HISTORY_FOREIGN, shown_slice(state->store->name), state->shard);
}

/* ---- what a shard has -------------------------------------------------------------------------------------- */

typedef struct held {
    struct held *next;
    server_string *reader, *value;
} held;

/* Read before the reply begins: opening an expired key causes an event, and a server before 7.2 may push it to this client
 * in the middle of the reply. */
typedef struct shard_facts {
    history_shard state;
    uint64_t first, first_us, trimmed, bytes;
    held *holds;
} shard_facts;

static server_string *copy_of(const server_string *text) {
    hmq_slice bytes = slice_of(text);
    return sv.CreateString(NULL, (const char *)bytes.data, bytes.len);
}

static void take_hold(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    shard_facts *f = data;
    held *one = sv.Alloc(sizeof *one);
    *one = (held){f->holds, copy_of(field), copy_of(value)};
    f->holds = one;
}

static void take_holds(server_ctx *ctx, shard_facts *f) {
    server_string *name = history_key(f->state.store, f->state.shard, "_holds");
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(hash) == SERVER_HASH) {
        server_scan_cursor *cursor = sv.ScanCursorCreate();
        while (sv.ScanKey(hash, cursor, take_hold, f)) {}
        sv.ScanCursorDestroy(cursor);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

static void forget_holds(shard_facts *f) {
    while (f->holds != NULL) {
        held *one = f->holds;
        f->holds = one->next;
        sv.FreeString(NULL, one->reader);
        sv.FreeString(NULL, one->value);
        sv.Free(one);
    }
}

/* The id of an epoch's first message, if there is a mark for it. */
static bool marked_time(server_ctx *ctx, const history_shard *state, const history_epoch *epoch, uint64_t *time_us) {
    server_string *name = history_key(state->store, state->shard, "_%" PRIu32 "_marks", epoch->epoch);
    server_key *key;
    hmq_slice marks;
    bool found = history_open_string(ctx, name, SERVER_READ, &key, &marks) && marks.len >= HMQ_MARK_BYTES &&
                 hmq_load64(marks.data + 8) == epoch->first;
    if (found) *time_us = hmq_load64(marks.data);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return found;
}

/* The time of the first message from this number on; 0 if there is none. */
static bool time_at(server_ctx *ctx, const history_shard *state, uint64_t sequence, uint64_t *time_us) {
    history_epoch epoch;
    history_entry entry;
    uint64_t budget = 0;
    *time_us = 0;
    if (sequence > state->last.sequence) return true;
    if (!history_epoch_of_sequence(ctx, state, sequence, &epoch)) return false;
    if (sequence <= epoch.first && marked_time(ctx, state, &epoch, time_us)) return true;
    history_reader *reader = history_reader_open(ctx, state, &epoch, (hmq_slice){NULL, 0}, sequence);
    if (reader == NULL) return false;
    history_step step = history_reader_next(reader, &entry, &budget);
    if (step == HISTORY_FOUND) *time_us = entry.time_us;
    history_reader_close(reader);
    return step != HISTORY_CORRUPT;
}

static bool take_facts(server_ctx *ctx, shard_facts *f, uint64_t now_us) {
    history_epoch epoch;
    const history_shard *s = &f->state;
    f->first = 1;
    f->first_us = f->trimmed = f->bytes = 0;
    if (!s->exists) return true;
    if (!history_epoch_read(ctx, s, s->oldest, &epoch)) return false;
    f->trimmed = epoch.first - 1 > s->trimmed ? epoch.first - 1 : s->trimmed;
    f->bytes = s->before + s->bytes - epoch.before;
    return history_visible(ctx, s, now_us, 1, &f->first) && time_at(ctx, s, f->first, &f->first_us);
}

/* ---- replies ----------------------------------------------------------------------------------------------- */

/* Replies the watermark of each reader (HISTORY.HOLD). */
static void reply_holds(server_ctx *ctx, const held *list) {
    long count = 0;
    long long sequence;
    sv.ReplyWithCString(ctx, "holds");
    sv.ReplyWithMap(ctx, SERVER_POSTPONED_LEN);
    for (; list != NULL; list = list->next, count++) {
        sv.ReplyWithString(ctx, list->reader);
        if (sv.StringToLongLong(list->value, &sequence) == SERVER_OK)
            sv.ReplyWithLongLong(ctx, sequence);
        else
            sv.ReplyWithString(ctx, list->value);
    }
    sv.ReplySetMapLength(ctx, count);
}

static void reply_shard(server_ctx *ctx, const shard_facts *f) {
    const history_shard *s = &f->state;
    sv.ReplyWithMap(ctx, SHARD_FIELDS);
    reply_field(ctx, "shard", s->shard);
    reply_field(ctx, "first", f->first);
    reply_field(ctx, "last", s->last.sequence);
    reply_field(ctx, "first_time", f->first_us);
    reply_field(ctx, "last_time", s->last.time_us);
    reply_field(ctx, "bytes", f->bytes);
    reply_field(ctx, "epoch", s->epoch);
    reply_field(ctx, "oldest_epoch", s->oldest);
    reply_field(ctx, "generation", history_generation(s));
    reply_field(ctx, "trimmed", f->trimmed);
    reply_holds(ctx, f->holds);
}

static void reply_store(server_ctx *ctx, const history_store *store, uint32_t generation) {
    history_reply_policy(ctx, store, STORE_FIELDS);
    reply_field(ctx, "spread", store->spread);
    reply_field(ctx, "generation", generation);
    sv.ReplyWithCString(ctx, "shard");
}

/* ---- HISTORY.INFO ------------------------------------------------------------------------------------------ */

/* Reads one shard, or all on this node; false after replying an error. */
static bool take_shards(args *a, const history_store *store, shard_facts *facts, unsigned *count) {
    *count = 0;
    if (args_take_word(a, "SHARD")) {
        *count = 1;
        return history_take_shard(a, store, &facts[0].state) && args_end(a);
    }
    if (!args_end(a)) return false;
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (!history_is_here(a->ctx, store, shard)) continue;
        if (!history_open_shard(a->ctx, store, shard, &facts[(*count)++].state)) return false;
    }
    return true;
}

int history_info_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 2) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    shard_facts facts[HISTORY_SHARDS_MAX];
    const history_store *store = history_take_store(&a, history_shard_option(&a));
    if (store == NULL) return SERVER_OK;
    unsigned count, known = 0;
    if (!take_shards(&a, store, facts, &count)) return SERVER_OK;
    uint64_t now_us = clock_us();
    uint32_t generation = 1;
    for (; known < count && take_facts(ctx, &facts[known], now_us); known++) {
        facts[known].holds = NULL;
        take_holds(ctx, &facts[known]);
        if (history_generation(&facts[known].state) > generation) generation = history_generation(&facts[known].state);
    }
    if (known < count) reply_corrupt(ctx, &facts[known].state);
    if (known == count) {
        reply_store(ctx, store, generation);
        sv.ReplyWithArray(ctx, count);
        for (unsigned i = 0; i < count; i++) reply_shard(ctx, &facts[i]);
    }
    for (unsigned i = 0; i < known; i++) forget_holds(&facts[i]);
    return SERVER_OK;
}

/* ---- HISTORY.SEQ ------------------------------------------------------------------------------------------- */

int history_seq_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 4) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a, 2);
    history_shard state;
    long long ms;
    uint64_t visible, sequence;
    if (store == NULL || !history_take_shard(&a, store, &state) || !args_number(&a, "the time", 0, MAX_MS, &ms))
        return SERVER_OK;
    if (!history_sequence_at(ctx, &state, (uint64_t)ms * 1000, &sequence) ||
        !history_visible(ctx, &state, clock_us(), sequence, &visible))
        return reply_corrupt(ctx, &state);
    return sv.ReplyWithLongLong(ctx, (long long)(visible > sequence ? visible : sequence));
}
