/* ticks.c - wakes readers that wait for more messages of a store. */
#include "history/ticks.h"

#include <inttypes.h>
#include <string.h>

#include "server/push.h"
#include "server/turns.h"

#define STORES_OF_A_TURN 8 /* above this, notices are sent immediately */

/* A store that got messages in this turn. */
typedef struct ticking {
    char name[HISTORY_NAME_MAX]; /* a copy: the store may be removed */
    size_t len;
    uint64_t shards; /* a bit per shard with new messages */
    uint64_t last[HISTORY_SHARDS_MAX];
} ticking;

_Static_assert(HISTORY_SHARDS_MAX <= 64, "a bit for each shard");

static ticking turn[STORES_OF_A_TURN];
static size_t count;

/* In a cluster a publish goes to all nodes: it is skipped without a subscriber. */
static bool somebody_listens(server_string *channel) {
    return !can.cluster || push_channel_subscribers(PUSH_CHANNEL, channel) != 0 || push_pattern_count() != 0;
}

static void publish_tick(server_ctx *ctx, const ticking *t) {
    server_string *channel = sv.CreateStringPrintf(NULL, "holdmq:history:%.*s", (int)t->len, t->name);
    bool heard = somebody_listens(channel);
    for (uint64_t left = t->shards; left != 0 && heard; left &= left - 1) {
        unsigned shard = (unsigned)__builtin_ctzll(left);
        server_string *text = sv.CreateStringPrintf(NULL, "%u %" PRIu64, shard, t->last[shard]);
        heard = sv.PublishMessage(ctx, channel, text) > 0;
        sv.FreeString(NULL, text);
    }
    sv.FreeString(NULL, channel);
}

void history_ticks_before_sleep(server_ctx *ctx) {
    for (size_t i = 0; i < count; i++) publish_tick(ctx, &turn[i]);
    count = 0;
}

void history_tick(server_ctx *ctx, const history_store *store, unsigned shard, uint64_t sequence) {
    size_t i = 0;
    turns_request();
    while (i < count && (turn[i].len != store->name.len || memcmp(turn[i].name, store->name.data, turn[i].len) != 0))
        i++;
    if (i == STORES_OF_A_TURN) {
        history_ticks_before_sleep(ctx);
        i = 0;
    }
    ticking *t = &turn[i];
    if (i == count) {
        count++;
        t->len = store->name.len;
        memcpy(t->name, store->name.data, t->len);
        t->shards = 0;
    }
    t->shards |= UINT64_C(1) << shard;
    t->last[shard] = sequence;
}
