/* fan_out_search.c - one step of finding and writing the sessions of an unmatched fan-out. */
#include "routing/fan_out_search.h"

#include "server/keyspace.h"
#include "server/replication.h"
#include "routing/fan_out_write.h"
#include "routing/share_replay_keys.h"

/* In a step. */
#define FIND_UNITS 8192U /* topic/trie.h */
#define WRITE_MOST 1024U /* sessions and groups */
#define REMOVE_MOST 64U  /* chunks of before a restart */

static void drop(server_ctx *ctx, fan_outs *all, fan_out *f) {
    keyspace_drop(ctx, sv.HoldString(NULL, f->name));
    fan_out_forget(all, f);
}

static size_t first_chunk(const fan_out *f) {
    return FIRST_CHUNK + f->has_older;
}

/* Removes chunks of a search that a restart ended: their fields are numbered without a gap.  False: some are left. */
static bool remove_written(server_ctx *ctx, const fan_out *f) {
    server_key *hash = sv.OpenKey(ctx, f->name, SERVER_READ | SERVER_WRITE);
    size_t fields = sv.ValueLength(hash), others = 2 + f->has_older, removed = 0;
    for (; fields > others && removed < REMOVE_MOST; fields--, removed++) {
        size_t chunks = fields - others;
        server_string *field = sv.CreateStringFromLongLong(NULL, (long long)(first_chunk(f) + chunks - 1));
        sv.HashSet(hash, SERVER_HASH_NONE, field, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "ss", f->name, field);
        sv.FreeString(NULL, field);
    }
    sv.CloseKey(hash);
    if (removed > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", f->name);
    return fields <= others;
}

/* False: others keep something else under its name. */
static bool is_there(server_ctx *ctx, const fan_out *f) {
    return index_type_of(ctx, slice_of(f->name)) == SERVER_HASH;
}

/* NULL: the hash is not what this module wrote. */
static server_string *record_of(server_ctx *ctx, const fan_out *f) {
    server_string *record = NULL;
    server_key *hash = sv.OpenKey(ctx, f->name, SERVER_READ);
    sv.HashGet(hash, SERVER_HASH_CFIELDS, FAN_OUT_RECORD_FIELD, &record, NULL);
    sv.CloseKey(hash);
    return record;
}

static void remove_unmatched(server_ctx *ctx, const fan_out *f) {
    server_string *field = sv.CreateString(NULL, FAN_OUT_UNMATCHED_FIELD, sizeof FAN_OUT_UNMATCHED_FIELD - 1);
    server_key *hash = sv.OpenKey(ctx, f->name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, field, SERVER_HASH_DELETE, NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HDEL", "ss", f->name, field);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", f->name);
    sv.FreeString(NULL, field);
}

static void add(fan_out_writer *w, fan_out_search *s, size_t n) {
    matching *found = &s->found;
    if (n >= found->count) {
        hmq_slice group = slice_of(found->groups[n - found->count]);
        if (!share_replays(w->index, group)) fan_out_add_group(w, group); /* else it reads the message from history */
    } else if (matching_counts(found, w->index, n)) {
        delivery_how how = matching_how(found, &found->list[n], w->record);
        fan_out_add(w, found->list[n].session, &how);
    }
}

/* Writes the next ones.  Each step fills its last chunk as far as it has sessions. */
static void write_some(server_ctx *ctx, index_t *index, fan_out_search *s, const hmq_record *record) {
    fan_out *f = s->of;
    fan_out_writer w;
    size_t all = s->found.count + s->found.share_count, most = s->written + WRITE_MOST;
    fan_out_write_begin(&w, ctx, index, record, first_chunk(f) + s->chunks);
    for (; s->written < all && s->written < most; s->written++) {
        add(&w, s, s->written);
        matching_release(&s->found);
    }
    fan_out_write(&w, f->name);
    if (s->chunks == 0) s->chunk_bytes = w.chunk_bytes;
    s->chunks += w.chunks;
    fan_out_write_end(&w);
    if (s->written < all) return;
    size_t chunks = s->chunks, chunk_bytes = s->chunk_bytes;
    fan_out_search_end(index->fan_outs);
    if (chunks == 0) {
        drop(ctx, index->fan_outs, f);
        return;
    }
    remove_unmatched(ctx, f);
    fan_out_matched(index->fan_outs, f, chunks, chunk_bytes);
}

static void find_some(index_t *index, fan_out_search *s, const hmq_record *record) {
    size_t left = FIND_UNITS;
    index_pin(index, INDEX_SESSIONS);
    s->is_whole = matching_find(&s->found, index, record, &s->place, &left);
    index_unpin(index, INDEX_SESSIONS);
}

static bool has_expired(const server_string *bytes) {
    hmq_record record;
    hmq_slice text = slice_of(bytes);
    return hmq_record_decode(text.data, text.len, &record) == 0 && fan_out_has_expired(&record);
}

/* False: nothing is to be found at present, or ever. */
static bool begin(server_ctx *ctx, fan_outs *all, fan_out *f) {
    if (all->search != NULL) return true;
    if (!remove_written(ctx, f)) return false;
    server_string *bytes = record_of(ctx, f);
    bool has_any = bytes != NULL && !has_expired(bytes);
    if (has_any)
        fan_out_search_begin(all, f, bytes);
    else
        drop(ctx, all, f);
    if (bytes != NULL && !has_any) sv.FreeString(NULL, bytes);
    return has_any;
}

void fan_out_search_step(server_ctx *ctx, index_t *index, fan_out *f) {
    fan_outs *all = index->fan_outs;
    hmq_record record;
    if (all->search != NULL) f = all->search->of;
    if (!is_there(ctx, f)) {
        fan_out_forget(all, f);
        return;
    }
    if (!begin(ctx, all, f)) return;
    fan_out_search *s = all->search;
    hmq_slice bytes = slice_of(s->record);
    if (hmq_record_decode(bytes.data, bytes.len, &record) != 0)
        drop(ctx, all, f);
    else if (!s->is_whole)
        find_some(index, s, &record);
    else
        write_some(ctx, index, s, &record);
}
