/* hold.h - readers that hold a watermark: messages that a reader has not read yet are not dropped.
 *
 *     {<store>/<shard>}_history_holds   HASH   reader -> "<sequence number read up to>", or "lost <number>"
 *
 * Invariants:
 *  1. A watermark never moves back, except to the last number of a shard that lost messages with a primary.
 *  2. Messages above the lowest watermark of a shard are dropped neither by HISTORY.TRIM nor by retention, until
 *     readers hold back more than the store's HOLDBYTES.  Then retention continues, and a reader that has not read
 *     what it removes is lost: it holds nothing back from then on, and gets an error until it releases.
 *  3. A value that no command can have written holds everything back, as 0 does.
 *
 * Cost: O(readers of the shard). */
#ifndef HMQ_HISTORY_HOLD_H
#define HMQ_HISTORY_HOLD_H

#include "history/shard.h"

#define HISTORY_READERS_MAX 64 /* of a shard */
#define HISTORY_READER_MAX 256 /* bytes of a name */

typedef struct history_hold {
    bool lost;
    uint64_t sequence; /* everything up to here was read */
} history_hold;

/* The key; the caller frees it. */
server_string *history_holds_key(const history_shard *state);

history_hold history_hold_parse(const server_string *value);

/* The lowest watermark that holds; UINT64_MAX if none does (*reader is NULL then).  The caller frees *reader. */
uint64_t history_holds_lowest(server_ctx *ctx, const history_shard *state, server_string **reader);

/* Everything up to and including this number is being dropped: readers that have not read it are lost.  Logged and
 * counted. */
void history_holds_mark_lost(server_ctx *ctx, const history_shard *state, uint64_t sequence);

/* A shard was created: readers that hold the first one hold this one, too, from its beginning. */
void history_holds_begin(server_ctx *ctx, const history_store *store, unsigned shard);

/* The shard has no messages above this number (they were lost, and their numbers will be reused): nobody has read
 * them. */
void history_holds_lower(server_ctx *ctx, const history_shard *state, uint64_t last);

int history_hold_command(server_ctx *ctx, server_string **argv, int argc);
int history_trim_command(server_ctx *ctx, server_string **argv, int argc);

#endif
