/* drain.c - hands a channel's backlog over to one new subscriber, in slices. */
#include "channel/drain.h"

#include <string.h>

#include "server/channel_keys.h"
#include "server/name_set.h"
#include "server/turns.h"
#include "channel/store.h"

/* Messages taken from the list by one command: about a millisecond. */
#define SLICE_MESSAGES 500
#define MOST_DRAINS 10000 /* longer backlogs: the rest waits for the next subscriber */

typedef struct drain {
    struct drain *next;
    receiver to; /* owns the pattern */
    int db;
    server_string *channel;
    size_t left; /* of the backlog */
    long long moved_ms; /* when it last made progress */
    bool is_cancelled;   /* the receiver no longer wants it */
} drain;

static drain *drains;
static size_t drain_count;

/* ---- the list ---------------------------------------------------------------------------------------------- */

static server_key *open_held(server_string *channel) {
    server_string *name = channel_key(slice_of(channel), HMQ_CHANNEL_HELD);
    server_key *key = key_open_unseen(detached, name, false);
    sv.FreeString(NULL, name);
    return key;
}

static size_t list_length(server_string *channel) {
    server_key *key = open_held(channel);
    size_t length = sv.KeyType(key) == SERVER_LIST ? sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    return length;
}

/* How many messages at the head, of the first `most`, take at most `room` bytes. */
static size_t count_fitting(server_string *channel, size_t room, size_t overhead, size_t most) {
    server_key *key = open_held(channel);
    size_t count = 0, used = 0;
    bool is_list = sv.KeyType(key) == SERVER_LIST;
    while (is_list && count < most) {
        server_string *message = sv.ListGet(key, (long)count);
        if (message == NULL) break;
        used += slice_of(message).len + overhead;
        sv.FreeString(NULL, message);
        if (used > room) break;
        count++;
    }
    if (key != NULL) sv.CloseKey(key);
    return count;
}

/* ---- giving ------------------------------------------------------------------------------------------------ */

static void push_held(void *context, server_string *message) {
    drain *d = context;
    push(&d->to, d->channel, message);
}

static int to_all(const drain *d, server_string *message) {
    return push_to_all(detached, d->channel, message, d->to.kind == PUSH_SHARD);
}

static void publish(void *context, server_string *message) {
    to_all(context, message);
}

/* How many of the messages at the head may be sent now. */
static size_t fitting(const drain *d) {
    enum { OVERHEAD = 128 }; /* of a message on the wire and in the buffer */
    bool idle;
    size_t room = push_room(&d->to, &idle);
    size_t count = count_fitting(d->channel, room, slice_of(d->channel).len + OVERHEAD, SLICE_MESSAGES);
    return count == 0 && idle ? 1 : count;
}

/* Sends one slice.  True if nothing is left. */
static bool push_slice(drain *d) {
    size_t length = list_length(d->channel);
    if (length == 0) return true;
    size_t count = fitting(d);
    if (count == 0) return false;
    if (d->left > 0) {
        size_t got = store_pop(detached, d->channel, count < d->left ? count : d->left, push_held, d);
        d->left = got < d->left ? d->left - got : 0;
    } else {
        store_pop(detached, d->channel, count, publish, d);
    }
    return list_length(d->channel) == 0;
}

/* ---- the end of a drain ------------------------------------------------------------------------------------ */

/* Publishes the messages that were published since to all subscribers; they stay if there is none. */
static void release_rest(const drain *d) {
    size_t count = list_length(d->channel), at = d->left;
    int heard = 1; /* subscribers cannot change meanwhile: all or none are sent */
    for (; at < count && heard > 0; at++) {
        server_key *key = open_held(d->channel);
        server_string *message = key == NULL ? NULL : sv.ListGet(key, (long)at);
        if (key != NULL) sv.CloseKey(key);
        if (message == NULL) break;
        heard = to_all(d, message);
        sv.FreeString(NULL, message);
    }
    if (at > d->left && heard > 0) store_truncate(detached, d->channel, d->left);
}

/* The receiver is gone, or reads so little that the channel's other subscribers have waited long enough. */
static bool is_gone(const drain *d) {
    if (d->is_cancelled || sv.Milliseconds() - d->moved_ms > settings.drain_timeout_s * 1000) return true;
    if (d->to.client != 0) return push_subscriptions(d->to.client) <= 0 || push_is_closing(d->to.client);
    return d->to.kind == PUSH_PATTERN ? push_pattern_count() != 1
                                      : push_channel_subscribers(d->to.kind, d->channel) != 1;
}

static void drain_free(drain *d) {
    sv.FreeString(NULL, d->channel);
    if (d->to.pattern != NULL) sv.FreeString(NULL, d->to.pattern);
    sv.Free(d);
}

/* Removes the drain from the list and ends it. */
static void finish(drain **at, bool gone) {
    drain *d = *at;
    *at = d->next;
    drain_count--;
    if (gone && list_length(d->channel) > d->left) release_rest(d);
    drain_free(d);
}

/* ---- outside ----------------------------------------------------------------------------------------------- */

static drain *find(int db, hmq_slice channel) {
    for (drain *d = drains; d != NULL; d = d->next) {
        hmq_slice name = slice_of(d->channel);
        if (d->db == db && hmq_slice_equal(name, channel)) return d;
    }
    return NULL;
}

bool drain_any_active(void) {
    return drains != NULL;
}

bool drain_is_active(int db, hmq_slice channel) {
    return drains != NULL && find(db, channel) != NULL;
}

void drain_note_trimmed(int db, hmq_slice channel, size_t count) {
    drain *d = drains == NULL ? NULL : find(db, channel);
    if (d != NULL) d->left -= count < d->left ? count : d->left;
}

void drain_begin(const receiver *to, int db, server_string *channel) {
    if (drain_is_active(db, slice_of(channel)) || (to->client != 0 && push_is_closing(to->client))) return;
    drain *d = sv.Alloc(sizeof *d);
    *d = (drain){.to = *to,
                 .db = db,
                 .channel = sv.HoldString(NULL, channel),
                 .left = list_length(channel),
                 .moved_ms = sv.Milliseconds()};
    if (to->pattern != NULL) d->to.pattern = sv.HoldString(NULL, to->pattern);
    bool done = d->left == 0 || drain_count >= MOST_DRAINS;
    if (!done && !sv.AvoidReplicaTraffic()) done = push_slice(d);
    if (done) {
        drain_free(d);
        return;
    }
    d->next = drains;
    drains = d;
    drain_count++;
}

void drain_unsubscribes(uint64_t client, push_kind kind, server_string **names, int count) {
    if (drains == NULL) return;
    name_set set = name_set_of(names, count);
    for (drain *d = drains; d != NULL; d = d->next) {
        if (d->to.client != client || d->to.kind != kind) continue;
        if (count == 0 || name_set_has(&set, kind == PUSH_PATTERN ? d->to.pattern : d->channel)) d->is_cancelled = true;
    }
    name_set_free(&set);
}

void drain_forget_all(void) {
    while (drains != NULL) {
        drain *d = drains;
        drains = d->next;
        drain_free(d);
    }
    drain_count = 0;
}

void drain_before_sleep(void) {
    bool gave = false;
    long long begun_ms = drains == NULL ? 0 : sv.Milliseconds();
    int flags = drains == NULL ? 0 : sv.GetContextFlags(detached);
    if (drains != NULL && (!(flags & SERVER_CTX_MASTER) || (flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING)))) {
        drain_forget_all(); /* the data set is now another server's */
    }
    bool paused = drains != NULL && sv.AvoidReplicaTraffic(); /* CLIENT PAUSE, a failover: no writes now */
    for (drain *d = drains; paused && d != NULL; d = d->next) d->moved_ms = sv.Milliseconds();
    for (drain **at = &drains; *at != NULL && !paused;) {
        drain *d = *at;
        sv.SelectDb(detached, d->db);
        size_t before = list_length(d->channel);
        bool gone = is_gone(d), done = gone || push_slice(d);
        if (list_length(d->channel) != before) gave = true, d->moved_ms = sv.Milliseconds();
        if (done)
            finish(at, gone);
        else
            at = &d->next;
    }
    sv.SelectDb(detached, 0);
    if (drains != NULL) slow_step("holdmq-drain", begun_ms);
    /* A receiver that keeps up causes no event: turn again at once. */
    if (drains != NULL && gave) turns_request_another();
}
