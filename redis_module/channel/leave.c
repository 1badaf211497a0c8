/* leave.c - ends hand-overs to a client that unsubscribes. */
#include "channel/leave.h"

#include "server/departures.h"
#include "channel/drain.h"
#include "channel/pattern_walk.h"

/* A command that a transaction has queued. */
typedef struct queued {
    struct queued *next;
    uint64_t client;
    push_kind kind;
    int count;
    server_string *names[];
} queued;

static queued *waiting; /* the latest first: their order does not matter */

void leave_now(uint64_t client, push_kind kind, server_string **names, int count) {
    drain_unsubscribes(client, kind, names, count);
    walk_unsubscribes(client, kind, names, count);
}

void leave_later(uint64_t client, push_kind kind, server_string **names, int count) {
    departures_expect();
    queued *q = sv.Alloc(sizeof *q + (size_t)count * sizeof q->names[0]);
    *q = (queued){.next = waiting, .client = client, .kind = kind, .count = count};
    for (int i = 0; i < count; i++) q->names[i] = sv.HoldString(NULL, names[i]);
    waiting = q;
}

void leave_transaction(uint64_t client, bool exec) {
    for (queued **at = &waiting; *at != NULL;) {
        queued *q = *at;
        if (q->client != client) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        if (exec) leave_now(client, q->kind, q->names, q->count);
        for (int i = 0; i < q->count; i++) sv.FreeString(NULL, q->names[i]);
        sv.Free(q);
    }
}
