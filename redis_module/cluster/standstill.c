/* standstill.c - notices that this node stood still, and that the majority answers again. */
#include "cluster/standstill.h"

#include <string.h>
#include <time.h>

#include "server/memory.h"
#include "server/numbers.h"
#include "server/slots.h"

#define SHORT_US 100000 /* a gap that is not a standstill, whatever the setting: an idle server's turn takes as long */
#define LOOK_US 10000
#define UNKNOWN_TIMEOUT_MS 1000 /* if the setting cannot be read: too short is safe */

/* A primary, while there is doubt. */
typedef struct peer {
    char id[SLOTS_NODE_ID_BYTES];
    long long pong_ms; /* its last answer */
    unsigned owed; /* answers that it still has to give */
} peer;

static struct {
    uint64_t boot_us, wall_us; /* when this node was last seen running; 0: not yet */
    bool doubts;
    long long since_ms, stood_ms; /* if it doubts */
    uint64_t looked_us;
    peer *peers;
    size_t count, room;
} now;

/* ---- clocks ------------------------------------------------------------------------------------------------- */

static uint64_t boot_us(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_BOOTTIME, &time) != 0) return monotonic_us();
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static long long node_timeout_ms(void) {
    server_reply *reply = sv.Call(detached, "CONFIG", "cc", "GET", "cluster-node-timeout");
    hmq_slice text = {NULL, 0};
    uint64_t ms = UNKNOWN_TIMEOUT_MS;
    if (reply != NULL && sv.CallReplyLength(reply) == 2)
        text.data = (const uint8_t *)sv.CallReplyStringPtr(sv.CallReplyArrayElement(reply, 1), &text.len);
    if (text.data != NULL && !numbers_read(text, &ms, 1)) ms = UNKNOWN_TIMEOUT_MS;
    if (reply != NULL) sv.FreeCallReply(reply);
    return (long long)ms;
}

/* The time since the last call, in microseconds. */
static uint64_t gap_us(void) {
    uint64_t boot = boot_us(), wall = clock_us(), gap = 0;
    if (now.boot_us != 0 && boot > now.boot_us) gap = boot - now.boot_us;
    if (now.wall_us != 0 && wall > now.wall_us && wall - now.wall_us > gap) gap = wall - now.wall_us;
    now.boot_us = boot;
    now.wall_us = wall;
    return gap;
}

/* ---- the others --------------------------------------------------------------------------------------------- */

static peer *find(hmq_slice id) {
    for (size_t i = 0; i < now.count; i++) {
        if (memcmp(now.peers[i].id, id.data, SLOTS_NODE_ID_BYTES) == 0) return &now.peers[i];
    }
    return NULL;
}

static void add_peer(void *context, const slots_node *node) {
    (void)context;
    if (!node->has_slots || node->is_self) return;
    now.peers = array_reserve(now.peers, &now.room, now.count, 1, 16, sizeof *now.peers);
    peer *p = &now.peers[now.count++];
    *p = (peer){.pong_ms = node->pong_ms, .owed = node->ping_ms != 0 ? 2 : 1};
    memcpy(p->id, node->id.data, SLOTS_NODE_ID_BYTES);
}

typedef struct votes {
    size_t primaries, heard;
} votes;

static void count_vote(void *context, const slots_node *node) {
    votes *v = context;
    if (!node->has_slots) return;
    v->primaries++;
    peer *p = node->is_self ? NULL : find(node->id);
    if (p != NULL && node->pong_ms > now.since_ms && node->pong_ms != p->pong_ms && node->pong_ms % 1000 != 0) {
        p->pong_ms = node->pong_ms;
        if (p->owed > 0) p->owed--;
    }
    v->heard += node->is_self || (p != NULL && p->owed == 0);
}

/* Has the majority answered?  Must be called repeatedly, because each call counts the answers since the previous one. */
static void look(void) {
    votes v = {0};
    uint64_t at_us = monotonic_us();
    if (at_us - now.looked_us < LOOK_US) return;
    now.looked_us = at_us;
    slots_each_node(count_vote, &v);
    now.doubts = 2 * v.heard <= v.primaries;
}

static void observe(void) {
    uint64_t gap = gap_us();
    if (gap >= SHORT_US && (long long)(gap / 1000) > node_timeout_ms()) {
        now.doubts = true;
        now.since_ms = (long long)(now.wall_us / 1000);
        now.stood_ms = (long long)(gap / 1000);
        now.looked_us = now.count = 0;
        slots_each_node(add_peer, NULL);
    }
    if (now.doubts) look();
}

void standstill_before_sleep(void) {
    if (can.cluster) observe();
}

bool standstill_may_be_replaced(long long *stood_ms) {
    observe();
    *stood_ms = now.stood_ms;
    return now.doubts;
}
