/* replicate.c - the stock commands that bring queued messages to the append-only file and to replicas.
 *
 * A word of a replicated command costs about 0.1 us, three quarters of it for making and freeing the text.  So
 * storing is cheap if there are few words.  Messages that one command stores, for any sessions, are written as one
 * MSETEX (Valkey 9.1, Redis 8.4) with two words per message, where SET needs five:
 *
 *     SET <key> <message> PXAT <ms>              a message by itself, or with replicas, or in a cluster
 *     MSETEX <n> <key> <message> ... PXAT <ms>   several that expire at the same moment, for the append-only file
 *
 * Replicas get SET because one may be an older server that does not know MSETEX.  A cluster gets SET because a
 * command may not span slots. */
#include "queue/parts.h"

#include "server/replication.h"

#define TOGETHER_MOST 512 /* messages of one MSETEX */

/* Words that are the same for most messages: made once, and shared by the commands that use them. */
static struct {
    server_string *pxat, *expire;
    long long expire_ms;
} expiry_words;

static struct {
    server_string *words[2 * TOGETHER_MOST]; /* key, message */
    size_t count;                            /* messages */
    long long expire_ms;
    unsigned depth; /* of queue_replicate_begin */
} together;

static void set_expiry_words(long long expire_ms) {
    if (expiry_words.pxat == NULL) expiry_words.pxat = sv.CreateString(NULL, "PXAT", 4);
    if (expiry_words.expire != NULL && expiry_words.expire_ms == expire_ms) return;
    if (expiry_words.expire != NULL) sv.FreeString(NULL, expiry_words.expire);
    expiry_words.expire = sv.CreateStringFromLongLong(NULL, expire_ms);
    expiry_words.expire_ms = expire_ms;
}

void queue_replicate_now(server_ctx *ctx) {
    size_t n = together.count;
    if (n == 0) return;
    server_string **words = together.words;
    set_expiry_words(together.expire_ms);
    if (n == 1)
        sv.Replicate(ctx, "SET", "ssss", words[0], words[1], expiry_words.pxat, expiry_words.expire);
    else
        sv.Replicate(ctx, "MSETEX", "lvss", (long long)n, words, 2 * n, expiry_words.pxat, expiry_words.expire);
    for (size_t i = 0; i < 2 * n; i++) sv.FreeString(NULL, words[i]);
    together.count = 0;
}

static bool is_only_for_file(void) {
    return can.set_many && !replication_is_needed_with(0);
}

void queue_replicate_message(queue *q, server_string *member, server_string *value, long long expire_ms) {
    if (!q->taken) {
        sv.ReplicateVerbatim(q->ctx); /* counts as a change (server/replication.h) */
    } else if (together.depth == 0) {
        set_expiry_words(expire_ms);
        sv.Replicate(q->ctx, "SET", "ssss", member, value, expiry_words.pxat, expiry_words.expire);
    } else {
        bool full = together.count == TOGETHER_MOST || (together.count > 0 && together.expire_ms != expire_ms);
        if (full || !is_only_for_file()) queue_replicate_now(q->ctx);
        together.expire_ms = expire_ms;
        together.words[2 * together.count] = sv.HoldString(NULL, member);
        together.words[2 * together.count + 1] = sv.HoldString(NULL, value);
        together.count++;
    }
}

void queue_replicate_begin(void) {
    together.depth++;
}

void queue_replicate_end(server_ctx *ctx) {
    if (--together.depth == 0) queue_replicate_now(ctx);
}
