/* hold_command.c - HISTORY.HOLD: sets, creates and releases the watermarks of a reader.
 *
 * All shards (in a cluster: those of this node) are checked before the first one is written. */
#include <inttypes.h>

#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "history/history.h"
#include "history/hold.h"
#include "history/live.h"
#include "history/slots.h"
#include "history/visible.h"

typedef struct holding {
    server_ctx *ctx;
    const history_store *store;
    server_string *reader;
    struct {
        history_shard state;
        bool here;       /* the shard is on this node; otherwise no other field is set */
        bool is_held, is_named; /* the reader has a watermark; the command sets one */
        uint64_t sequence; /* the new watermark */
    } shards[HISTORY_SHARDS_MAX];
} holding;

static bool take_reader(args *a, server_string **reader) {
    if (!args_string(a, "the reader", reader)) return false;
    size_t len = slice_of(*reader).len;
    if (len >= 1 && len <= HISTORY_READER_MAX) return true;
    reply_error(a->ctx, ERROR_READER_NAME_LENGTH, len, HISTORY_READER_MAX);
    return false;
}

/* Reads the watermark of the reader in this shard.  False after replying an error. */
static bool read_hold(holding *h, unsigned shard, bool releases) {
    const history_shard *state = &h->shards[shard].state;
    server_string *name = history_holds_key(state), *value = NULL;
    server_key *hash = sv.OpenKey(h->ctx, name, SERVER_READ);
    bool right = key_check(h->ctx, hash, name, SERVER_HASH), is_hash = sv.KeyType(hash) == SERVER_HASH;
    if (is_hash) sv.HashGet(hash, SERVER_HASH_NONE, h->reader, &value, NULL);
    history_hold hold = value == NULL ? (history_hold){false, 0} : history_hold_parse(value);
    if (right && value == NULL && !releases && is_hash && sv.ValueLength(hash) >= HISTORY_READERS_MAX) {
        reply_error(h->ctx, ERROR_READERS_COUNT, shard, HISTORY_READERS_MAX);
        right = false;
    }
    h->shards[shard].is_held = value != NULL;
    h->shards[shard].sequence = hold.sequence;
    if (value != NULL) sv.FreeString(NULL, value);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    if (!right || !hold.lost || releases) return right;
    uint64_t first = 1;
    history_first_kept(h->ctx, state, &first);
    reply_error(h->ctx, ERROR_HOLD_LOST, shown(h->reader), shown_slice(h->store->name), shard, hold.sequence + 1,
                first - 1);
    return false;
}

static bool read_all(holding *h, bool releases) {
    for (unsigned shard = 0; shard < h->store->shards; shard++) {
        h->shards[shard].here = history_is_here(h->ctx, h->store, shard);
        if (!h->shards[shard].here) continue;
        if (!history_may_change(h->ctx, h->store, shard) ||
            !history_shard_read(h->ctx, h->store, shard, &h->shards[shard].state, true) ||
            !read_hold(h, shard, releases))
            return false;
    }
    return true;
}

/* ---- setting ----------------------------------------------------------------------------------------------- */

static bool take_pair(args *a, holding *h) {
    long long shard, sequence;
    if (!args_number(a, "the shard", 0, h->store->shards - 1, &shard) ||
        !history_check_here(a->ctx, h->store, (unsigned)shard) ||
        !args_number(a, "the sequence number", 0, INT64_MAX, &sequence))
        return false;
    uint64_t last = h->shards[shard].state.last.sequence, to = (uint64_t)sequence;
    uint64_t before = h->shards[shard].sequence < last ? h->shards[shard].sequence : last;
    if (h->shards[shard].is_named) {
        reply_error(a->ctx, ERROR_SHARD_REPEATED, shard);
    } else if (to > last) {
        reply_error(a->ctx, ERROR_SEQUENCE_HIGH, shard, sequence, last);
    } else if (h->shards[shard].is_held && to < before) {
        reply_error(a->ctx, ERROR_SEQUENCE_LOW, shard, sequence, before);
    } else {
        h->shards[shard].is_named = true;
        h->shards[shard].sequence = to;
        return true;
    }
    return false;
}

/* Creates a watermark in shards without one: all existing messages are held. */
static bool create(holding *h) {
    for (unsigned shard = 0; shard < h->store->shards; shard++) {
        uint64_t first;
        if (!h->shards[shard].here || h->shards[shard].is_held) continue;
        if (!history_first_kept(h->ctx, &h->shards[shard].state, &first)) {
            reply_error(h->ctx, ERROR_HISTORY_FOREIGN, shown_slice(h->store->name), shard);
            return false;
        }
        h->shards[shard].is_named = true;
        h->shards[shard].sequence = first - 1;
    }
    return true;
}

static void write_hold(holding *h, unsigned shard) {
    server_string *name = history_holds_key(&h->shards[shard].state);
    server_string *value = sv.CreateStringPrintf(NULL, "%" PRIu64, h->shards[shard].sequence);
    server_key *hash = sv.OpenKey(h->ctx, name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, h->reader, value, NULL);
    sv.CloseKey(hash);
    replicate(h->ctx, "HSET", "sss", name, h->reader, value);
    index_notify(h->ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, value);
    sv.FreeString(NULL, name);
}

static void set(holding *h) {
    long count = 0;
    sv.ReplyWithMap(h->ctx, SERVER_POSTPONED_LEN);
    for (unsigned shard = 0; shard < h->store->shards; shard++) {
        if (h->shards[shard].is_named) write_hold(h, shard);
        if (!h->shards[shard].is_named && !h->shards[shard].is_held) continue;
        sv.ReplyWithLongLong(h->ctx, shard);
        sv.ReplyWithLongLong(h->ctx, (long long)h->shards[shard].sequence);
        count++;
    }
    sv.ReplySetMapLength(h->ctx, count);
}

/* ---- releasing --------------------------------------------------------------------------------------------- */

static void release(holding *h) {
    for (unsigned shard = 0; shard < h->store->shards; shard++) {
        if (!h->shards[shard].is_held) continue;
        server_string *name = history_holds_key(&h->shards[shard].state);
        server_key *hash = sv.OpenKey(h->ctx, name, SERVER_READ | SERVER_WRITE);
        sv.HashSet(hash, SERVER_HASH_NONE, h->reader, SERVER_HASH_DELETE, NULL);
        sv.CloseKey(hash);
        replicate(h->ctx, "HDEL", "ss", name, h->reader);
        index_notify(h->ctx, SERVER_NOTIFY_HASH, "hdel", name);
        sv.FreeString(NULL, name);
    }
    sv.ReplyWithSimpleString(h->ctx, "OK");
}

/* ---- the command ------------------------------------------------------------------------------------------- */

int history_hold_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    holding h = {.ctx = ctx, .store = history_take_store(&a, 3)};
    if (h.store == NULL || !take_reader(&a, &h.reader)) return SERVER_OK;
    bool creates = !args_left(&a), releases = args_take_word(&a, "RELEASE");
    if ((creates || releases) && !history_check_not_moving(ctx, h.store)) return SERVER_OK;
    if ((releases && !args_end(&a)) || !read_all(&h, releases)) return SERVER_OK;
    while (!releases && args_left(&a)) {
        if (!take_pair(&a, &h)) return SERVER_OK;
    }
    if (creates && !create(&h)) return SERVER_OK;
    if (releases)
        release(&h);
    else
        set(&h);
    return SERVER_OK;
}
