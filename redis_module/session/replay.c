/* replay.c - SESSION.REPLAY: reads history for the subscriptions of a session that replay it.
 *
 * Each subscription gets an equal part of the page; unused parts go to those after it.  The first is chosen at
 * random, so that small pages do not always go to the same.  A message is delivered as a publish would, in the step
 * that moves the cursor.
 *
 * Cost: the visited messages (at most VISIT), and for each subscription one look at each shard of its store. */
#include "session/replay.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "topic/session_key.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/filters.h"
#include "index/session_fence.h"
#include "queue/queue.h"
#include "history/filters.h"
#include "routing/delivery.h"
#include "routing/replays.h"

#define DEFAULT_COUNT 1000
#define MAX_COUNT 10000
#define DEFAULT_BYTES (1 << 20)
#define MAX_BYTES (64 << 20)
#define DEFAULT_QUEUE 1000
#define MAX_VISITS 10000000

/* The progress, as in the reply. */
enum { READ = 0, BEHIND = 1, FULL = 2 };

typedef struct replay_options {
    long long count, bytes, visits, queue; /* visits 0: not given */
} replay_options;

/* One command. */
typedef struct replaying {
    server_ctx *ctx;
    index_t *index;
    indexed_session to; /* key and inbox */
    server_string *subscriptions_name;
    long long count, bytes, visits; /* left for all subscriptions */
    size_t room;                    /* of the queue */
    long long delivered, live, missed;
    bool behind, full;
    hmq_slice stores[SESSION_REPLAYS_MAX]; /* names of those that are still read, each once */
    size_t store_count;
    server_string *error; /* another program changed a cursor or its history; NULL: none */
} replaying;

/* One subscription of it. */
typedef struct reading {
    replaying *all;
    subscription options;
    long long count, bytes; /* left of its part */
    bool full;              /* the queue takes no more */
} reading;

/* The subscriptions, collected: delivering writes to the session. */
typedef struct found {
    server_string *filter, *value;
} found;
typedef struct found_list {
    found list[SESSION_REPLAYS_MAX];
    size_t count;
} found_list;

static void break_off(replaying *all, const char *what, server_string *filter) {
    if (all->error == NULL) all->error = sv.CreateStringPrintf(NULL, "the replay of %s: %s", shown(filter), what);
}

/* ---- one message ------------------------------------------------------------------------------------------- */

static bool is_own(const replaying *all, hmq_slice publisher) {
    return session_key_is_of(slice_of(all->to.key), publisher);
}

/* False: the queue refuses it. */
static bool hand_over(reading *r, const hmq_record *record) {
    replaying *all = r->all;
    uint8_t most = r->options.options & SUBSCRIPTION_QOS;
    delivery_how how = {.qos = record->qos < most ? record->qos : most,
                        .retain = (r->options.options & SUBSCRIPTION_RETAIN_AS_PUBLISHED) != 0 && record->retain,
                        .identifiers = &r->options.identifier,
                        .identifier_count = r->options.identifier != 0};
    if (how.qos > 0 && all->room == 0) return false;
    message m;
    message_begin(&m, record, sv.Milliseconds());
    bool delivered = deliver(all->ctx, &all->to, &m, &how);
    message_end(&m);
    if (how.qos > 0 && !delivered) return false;
    if (how.qos > 0) all->room--;
    all->delivered++;
    r->count--;
    r->bytes -= (long long)(record->payload.len + record->topic.len + record->properties.len);
    return true;
}

static bool take(void *context, unsigned shard, const history_entry *entry) {
    (void)shard;
    reading *r = context;
    if (r->count <= 0 || r->bytes <= 0) return false;
    if (entry == NULL) return true;
    bool no_local = (r->options.options & SUBSCRIPTION_NO_LOCAL) != 0;
    if (no_local && is_own(r->all, entry->record.publisher)) return true;
    r->full = !hand_over(r, &entry->record);
    return !r->full;
}

/* ---- one subscription -------------------------------------------------------------------------------------- */

/* Its options; false if it does not (or no longer) read history. */
static bool read_options(const replaying *all, server_string *filter, subscription *options) {
    server_key *hash = sv.OpenKey(all->ctx, all->subscriptions_name, SERVER_READ);
    server_string *value = NULL;
    if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_NONE, filter, &value, NULL);
    bool right = value != NULL && subscription_read(value, options) && options->kind != SUBSCRIPTION_LIVE &&
                 options->kind != SUBSCRIPTION_NOTE;
    if (value != NULL) sv.FreeString(NULL, value);
    if (hash != NULL) sv.CloseKey(hash);
    return right;
}

/* From now on messages are routed to it. */
static void begin_live(replaying *all, server_string *filter, subscription options) {
    options.kind = SUBSCRIPTION_LIVE;
    server_string *text = subscription_text(options);
    server_key *hash = sv.OpenKey(all->ctx, all->subscriptions_name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, filter, text, NULL);
    replicate(all->ctx, "HSET", "sss", all->subscriptions_name, filter, text);
    index_notify(all->ctx, SERVER_NOTIFY_HASH, "hset", all->subscriptions_name);
    sv.CloseKey(hash);
    sv.FreeString(NULL, text);
    index_set_filter(all->index, slice_of(all->to.key), slice_of(filter), subscription_pack(options));
    session_replays_write(all->ctx, slice_of(all->to.key), filter, NULL);
    all->live++;
}

/* Continues with the shards, from the first one; the next page begins where it stopped.  True: all were read to their
 * ends. */
static bool read_shards(reading *r, history_page *page, session_replay *replay, server_string *filter, size_t *next) {
    size_t stopped = 0;
    history_page_end result = history_page_read_all(page, replay->cursors, replay->shards, &stopped);
    if (result == HISTORY_PAGE_END) return true;
    *next = stopped + 1;
    if (result == HISTORY_PAGE_LIMIT) {
        r->all->full = r->all->full || r->full;
        r->all->behind = r->all->behind || !r->full;
    } else {
        break_off(r->all, "another program changed its history", filter);
    }
    return false;
}

static void note_store(replaying *all, const history_store *store) {
    for (size_t i = 0; i < all->store_count; i++) {
        if (all->stores[i].data == store->name.data) return;
    }
    all->stores[all->store_count++] = store->name;
}

/* With one of `parts` equal parts of the rest of the page. */
static void read_on(replaying *all, const found *one, long long parts) {
    session_replay replay;
    reading r = {.all = all, .count = (all->count + parts - 1) / parts, .bytes = (all->bytes + parts - 1) / parts};
    if (!read_options(all, one->filter, &r.options)) return;
    if (!session_replay_read(all->index, one->value, &replay)) {
        break_off(all, "another program changed its cursor", one->filter);
        return;
    }
    if (replay.store == NULL) { /* its history is gone: from now on it gets live messages */
        counters.replays_ended++;
        begin_live(all, one->filter, r.options);
        return;
    }
    long long count = r.count, bytes = r.bytes, visits = (all->visits + parts - 1) / parts;
    history_page page = {.ctx = all->ctx,
                         .store = replay.store,
                         .filter = slice_of(one->filter),
                         .to_us = UINT64_MAX,
                         .now_us = clock_us(),
                         .take = take,
                         .context = &r};
    history_page_allow(&page, visits, 0);
    size_t next = 0;
    bool end = read_shards(&r, &page, &replay, one->filter, &next);
    all->count -= count - r.count;
    all->bytes -= bytes - r.bytes;
    all->visits -= (long long)page.visited;
    all->missed += (long long)page.missed;
    bool covered = history_store_covers(replay.store, page.filter);
    if (end && !covered) counters.replays_ended++;
    if (end && (replay.kind == SUBSCRIPTION_REPLAYS || !covered)) {
        begin_live(all, one->filter, r.options);
        return;
    }
    note_store(all, replay.store);
    server_string *text = session_replay_text(&replay, next);
    hmq_slice was = slice_of(one->value), is = slice_of(text);
    if (was.len != is.len || memcmp(was.data, is.data, is.len) != 0)
        session_replays_write(all->ctx, slice_of(all->to.key), one->filter, text);
    sv.FreeString(NULL, text);
}

/* ---- the command ------------------------------------------------------------------------------------------- */

static void collect(void *context, server_string *filter, server_string *value) {
    found_list *all = context;
    hmq_slice f = slice_of(filter), v = slice_of(value);
    if (all->count == SESSION_REPLAYS_MAX)
        return; /* another program wrote more of them: they wait until some are gone */
    all->list[all->count++] =
        (found){sv.CreateString(NULL, (const char *)f.data, f.len), sv.CreateString(NULL, (const char *)v.data, v.len)};
}

static void forget(found_list *all) {
    for (size_t i = 0; i < all->count; i++) {
        sv.FreeString(NULL, all->list[i].filter);
        sv.FreeString(NULL, all->list[i].value);
    }
}

static size_t random_below(size_t n) {
    static uint32_t state;
    if (state == 0 && (getrandom(&state, sizeof state, 0) != (ssize_t)sizeof state || state == 0)) state = 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5; /* xorshift: fair is enough */
    return n == 0 ? 0 : state % n;
}

/* The page is full before its turn: the next page decides whether there is more. */
static void leave(replaying *all, const found *one) {
    session_replay replay;
    all->behind = true;
    if (session_replay_read(all->index, one->value, &replay) && replay.store != NULL) note_store(all, replay.store);
}

static void read_all(replaying *all) {
    found_list filters = {.count = 0};
    session_replays_each(all->ctx, slice_of(all->to.key), collect, &filters);
    size_t first = random_below(filters.count);
    for (size_t i = 0; i < filters.count; i++) {
        const found *one = &filters.list[(first + i) % filters.count];
        if (all->count > 0 && all->bytes > 0 && all->visits > 0)
            read_on(all, one, (long long)(filters.count - i));
        else
            leave(all, one);
    }
    forget(&filters);
}

/* How many more messages its queue may take. */
static size_t room_of(server_ctx *ctx, hmq_slice session, long long most) {
    queue q;
    size_t limit = most < settings.session_limit ? (size_t)most : (size_t)settings.session_limit;
    size_t length = queue_open(&q, ctx, session, SERVER_READ) ? queue_length(&q) : limit;
    queue_close(&q);
    return length < limit ? limit - length : 0;
}

static bool parse_options(args *a, replay_options *o) {
    *o = (replay_options){.count = DEFAULT_COUNT, .bytes = DEFAULT_BYTES, .queue = DEFAULT_QUEUE};
    bool right = true;
    while (right && args_left(a)) {
        if (args_take_word(a, "COUNT"))
            right = args_number(a, "COUNT", 1, MAX_COUNT, &o->count);
        else if (args_take_word(a, "BYTES"))
            right = args_number(a, "BYTES", 1, MAX_BYTES, &o->bytes);
        else if (args_take_word(a, "VISIT"))
            right = args_number(a, "VISIT", 1, MAX_VISITS, &o->visits);
        else if (args_take_word(a, "QUEUE"))
            right = args_number(a, "QUEUE", 1, QUEUE_MAX_LIMIT, &o->queue);
        else
            right = args_end(a);
    }
    return right;
}

static int reply_replayed(replaying *all) {
    counters.replayed += (unsigned long long)all->delivered;
    counters.replays_missed += (unsigned long long)all->missed;
    if (all->error != NULL && all->delivered == 0 && all->live == 0) /* else the next page reports it */
        return reply_error(all->ctx, ERROR_REPLAY_FAILED, (const char *)slice_of(all->error).data);
    sv.ReplyWithArray(all->ctx, 5);
    sv.ReplyWithLongLong(all->ctx, all->delivered);
    sv.ReplyWithLongLong(all->ctx, all->behind ? BEHIND : all->full ? FULL : READ);
    sv.ReplyWithLongLong(all->ctx, all->live);
    sv.ReplyWithLongLong(all->ctx, all->missed);
    sv.ReplyWithArray(all->ctx, (long)all->store_count);
    for (size_t i = 0; i < all->store_count; i++)
        sv.ReplyWithStringBuffer(all->ctx, (const char *)all->stores[i].data, all->stores[i].len);
    return SERVER_OK;
}

/* Those of a session that was moved from a server without a cluster. */
static bool may_read_here(server_ctx *ctx, hmq_slice session) {
    found_list filters = {.count = 0};
    if (!can.cluster) return true;
    session_replays_each(ctx, session, collect, &filters);
    forget(&filters);
    if (filters.count > 0) reply_error(ctx, ERROR_REPLAYS_IN_CLUSTER, filters.count, shown_slice(session));
    return filters.count == 0;
}

int session_replay_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    replay_options o;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !parse_options(&a, &o))
        return SERVER_OK;
    hmq_slice session = slice_of(key);
    if (!session_check_types(ctx, session) || !may_read_here(ctx, session)) return SERVER_OK;
    replaying all = {.ctx = ctx,
                     .index = index_of(ctx),
                     .to = {.key = key, .inbox = session_key_name(session, HMQ_SUFFIX_INBOX)},
                     .subscriptions_name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS),
                     .count = o.count,
                     .bytes = o.bytes,
                     .visits = o.visits > 0 ? o.visits : o.count * HISTORY_VISITS_OF_A_MESSAGE,
                     .room = room_of(ctx, session, o.queue)};
    index_pin(all.index, INDEX_HISTORIES);
    read_all(&all);
    reply_replayed(&all);
    index_unpin(all.index, INDEX_HISTORIES);
    if (all.error != NULL) sv.FreeString(NULL, all.error);
    sv.FreeString(NULL, all.to.inbox);
    sv.FreeString(NULL, all.subscriptions_name);
    return SERVER_OK;
}
