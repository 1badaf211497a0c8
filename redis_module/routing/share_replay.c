/* share_replay.c - a group that reads history. */
#include "routing/share_replay.h"

#include <string.h>

#include "server/errors.h"
#include "server/numbers.h"
#include "index/shares.h"
#include "routing/delivery.h"
#include "routing/replays.h"
#include "routing/share.h"
#include "routing/share_replay_keys.h"

#define PAGE 200
#define PAGE_BYTES (256 << 10)
#define COMPLAINTS_MS 60000

/* ---- reading on -------------------------------------------------------------------------------------------- */

typedef struct reading {
    server_ctx *ctx;
    index_t *index;
    share *s;
    long long count, bytes; /* remaining */
    bool blocked;           /* no member has room */
    bool transient;         /* a message of QoS 0 was given: only time limits those */
} reading;

static bool take(void *context, unsigned shard, const history_entry *entry) {
    (void)shard;
    reading *r = context;
    if (r->count <= 0 || r->bytes <= 0) return false;
    if (entry == NULL) return true;
    const hmq_record *record = &entry->record;
    message m;
    message_begin(&m, record, sv.Milliseconds());
    r->blocked = !share_deliver_if_room(r->ctx, r->index, r->s, &m);
    message_end(&m);
    if (r->blocked) return false;
    r->transient = r->transient || record->qos == 0;
    r->count--;
    r->bytes -= (long long)(record->payload.len + record->topic.len + record->properties.len);
    counters.replayed++;
    return true;
}

/* There is no command to reply to: errors are logged, at a limited rate. */
static void complain(const share *s, const char *what) {
    static long long next_ms;
    long long now_ms = sv.Milliseconds();
    if (now_ms < next_ms) return;
    next_ms = now_ms + COMPLAINTS_MS;
    sv.Log(detached, "warning", "the replay of %s is stuck: another program changed %s", shown(s->filter), what);
}

/* Reads the shards from the first one on.  True: all were read to their ends. */
static bool read_shards(const reading *r, history_page *page, session_replay *replay, size_t *next) {
    size_t stopped = 0;
    history_page_end result = history_page_read_all(page, replay->cursors, replay->shards, &stopped);
    if (result == HISTORY_PAGE_CORRUPT || result == HISTORY_PAGE_ERROR) complain(r->s, "its history");
    *next = stopped + 1;
    return result == HISTORY_PAGE_END;
}

static bool read_on(reading *r, server_string *value) {
    session_replay replay;
    hmq_slice key = slice_of(r->s->key), inner;
    if (!session_replay_read(r->index, value, &replay)) {
        complain(r->s, "its position");
        return false;
    }
    if (replay.store == NULL || !share_is(slice_of(r->s->filter), &inner)) {
        counters.replays_ended++;
        share_replay_write(r->ctx, r->index, key, r->s->filter, NULL);
        return false;
    }
    history_page page = {.ctx = r->ctx,
                         .store = replay.store,
                         .filter = inner,
                         .to_us = UINT64_MAX,
                         .now_us = clock_us(),
                         .take = take,
                         .context = r};
    size_t next = 0;
    history_page_allow(&page, 0, r->count);
    bool end = read_shards(r, &page, &replay, &next);
    counters.replays_missed += page.missed;
    server_string *text = end ? NULL : session_replay_text(&replay, next);
    if (text == NULL || !hmq_slice_equal(slice_of(text), slice_of(value)))
        share_replay_write(r->ctx, r->index, key, r->s->filter, text);
    if (text != NULL) sv.FreeString(NULL, text);
    return !end && !r->blocked && !r->transient && page.visited > 0;
}

bool share_replay_on(server_ctx *ctx, index_t *index, share *s) {
    if (can.cluster || !share_replays(index, slice_of(s->filter)))
        return false; /* in a cluster, history is on other nodes */
    server_string *value = session_replays_get(ctx, slice_of(s->key), s->filter);
    reading r = {.ctx = ctx, .index = index, .s = s, .count = PAGE, .bytes = PAGE_BYTES};
    bool more = value != NULL && read_on(&r, value);
    if (value != NULL) sv.FreeString(NULL, value);
    return more;
}
