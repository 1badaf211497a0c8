/* queue_limit.c - keeps a queue within its limit: expired references first, then the oldest messages. */
#include "queue_parts.h"

#include <string.h>

#define NAME_MAX_BYTES 1024 /* longer session keys take the heap */
/* Queues at their limit that are remembered as free of expired references. */
#define CALM_MAX_SESSIONS 100000

/* Database and session key -> long long: no message in the queue expires before (ms since 1970).  Queues at their limit
 * would be searched for expired references by each ADD otherwise.  Only a hint: forgetting it costs one search. */
static server_dict *calm_until;

typedef struct calm_name {
    uint8_t *bytes;
    size_t len;
    uint8_t small[NAME_MAX_BYTES];
} calm_name;

static void calm_name_make(calm_name *name, int db, hmq_slice session) {
    name->len = sizeof db + session.len;
    name->bytes = name->len <= sizeof name->small ? name->small : sv.Alloc(name->len);
    memcpy(name->bytes, &db, sizeof db);
    memcpy(name->bytes + sizeof db, session.data, session.len);
}

static void calm_name_free(calm_name *name) {
    if (name->bytes != name->small) sv.Free(name->bytes);
}

static long long *calm_find(int db, hmq_slice session) {
    calm_name name;
    if (calm_until == NULL) return NULL;
    calm_name_make(&name, db, session);
    long long *known = sv.DictGetC(calm_until, name.bytes, name.len, NULL);
    calm_name_free(&name);
    return known;
}

void queue_forget_hints(void) {
    if (calm_until == NULL) return;
    server_dict_iter *iter = sv.DictIteratorStartC(calm_until, "^", NULL, 0);
    void *until;
    while (sv.DictNextC(iter, NULL, &until)) sv.Free(until);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, calm_until);
    calm_until = NULL;
}

static void calm_set(int db, hmq_slice session, long long until_ms) {
    if (calm_until != NULL && sv.DictSize(calm_until) >= CALM_MAX_SESSIONS) queue_forget_hints();
    if (calm_until == NULL) calm_until = sv.CreateDict(NULL);
    long long *known = calm_find(db, session);
    if (known == NULL) {
        calm_name name;
        calm_name_make(&name, db, session);
        known = sv.Alloc(sizeof *known);
        sv.DictSetC(calm_until, name.bytes, name.len, known);
        calm_name_free(&name);
    }
    *known = until_ms;
}

void queue_message_gone(int db, hmq_slice session) {
    long long *known = calm_find(db, session);
    if (known != NULL) *known = 0;
}

void queue_expires_from(queue *q, long long soonest_ms) {
    long long *known = calm_find(sv.GetSelectedDb(q->ctx), q->session);
    if (known != NULL && soonest_ms < *known) *known = soonest_ms;
}

/* Removes all references whose message is gone, unless it is known that there are none. */
static long long remove_expired(queue *q, const session_facts *facts) {
    const long long *known = calm_find(sv.GetSelectedDb(q->ctx), q->session);
    if (known != NULL && sv.Milliseconds() < *known) return 0;
    size_t length = queue_length(q), gone = 0;
    long long begun_ms = sv.Milliseconds();
    server_string **members = sv.Alloc(length * sizeof *members);
    size_t found = queue_collect_oldest(q, 0, members, length);
    size_t in_flight = queue_count_up_to(q, facts->sent, length);
    size_t may_expire = queue_count_up_to(q, facts->expiring, length);
    long long earliest = INT64_MAX;
    for (size_t i = 0; i < found; i++) {
        long long expire_ms = queue_message_expiry(q, members[i], i >= in_flight && i < may_expire);
        if (expire_ms != 0) {
            if (expire_ms < earliest) earliest = expire_ms;
            sv.FreeString(NULL, members[i]);
        } else {
            members[gone++] = members[i];
        }
    }
    if (gone > 0) queue_remove_members(q, members, gone);
    queue_free_members(members, gone);
    sv.Free(members);
    slow_step("holdmq-queue-search", begun_ms);
    calm_set(sv.GetSelectedDb(q->ctx), q->session, earliest);
    return (long long)gone;
}

size_t queue_make_room(queue *q, const session_facts *facts, size_t count, size_t limit, queue_result *result) {
    size_t room = count < limit ? count : limit;
    if (queue_length(q) + room <= limit) return room;
    result->expired += remove_expired(q, facts);
    size_t length = queue_length(q);
    if (length + room <= limit) return room;
    result->trimmed += (long long)queue_remove_oldest(q, facts->sent, length + room - limit);
    length = queue_length(q);
    return length >= limit ? 0 : length + room <= limit ? room : limit - length;
}
