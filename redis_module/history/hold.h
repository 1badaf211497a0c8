/* hold.h - readers that hold a watermark: what a reader has not read yet is not dropped.
 *
 *     {<store>/<shard>}_history_holds   HASH   reader -> "<sequence number read up to>", or "lost <number>"
 *
 * Invariants:
 *  1. A watermark never goes back, but down to the last number of a shard that lost messages with a primary.
 *  2. What is above the lowest watermark of a shard is dropped neither by HISTORY.TRIM nor by retention, until what
 *     readers hold back exceeds the store's HOLDBYTES.  Then retention goes on, and who had not read what it takes is
 *     lost: he holds nothing back any more and is told so until he releases.
 *  3. A value that nobody can have written holds everything back, as 0 does.
 *
 * Cost: O(readers of the shard). */
#ifndef HMQ_HISTORY_HOLD_H
#define HMQ_HISTORY_HOLD_H

#include "history/shard.h"

#define HISTORY_READERS_MAX 64 /* of a shard */
#define HISTORY_READER_MAX 256 /* bytes of a name */

typedef struct history_hold {
    bool lost;
    uint64_t sequence; /* up to here all was read */
} history_hold;

/* The key; the caller frees it. */
server_string *history_holds_key(const history_shard *state);

history_hold history_hold_parse(const server_string *value);

/* The lowest watermark that holds; UINT64_MAX if none does (*reader is NULL then).  The caller frees *reader, which may
 * be NULL itself. */
uint64_t history_holds_lowest(server_ctx *ctx, const history_shard *state, server_string **reader);

/* Everything up to and including this number is being dropped: who has not read so far is lost.  Logged and counted. */
void history_holds_lose(server_ctx *ctx, const history_shard *state, uint64_t sequence);

/* A shard was made: who holds the first one back holds this one, too, from its beginning. */
void history_holds_begin(server_ctx *ctx, const history_store *store, unsigned shard);

/* The shard has no messages above this number (they were lost, and will be given again): nobody has read them. */
void history_holds_lower(server_ctx *ctx, const history_shard *state, uint64_t last);

int history_hold_command(server_ctx *ctx, server_string **argv, int argc);
int history_trim_command(server_ctx *ctx, server_string **argv, int argc);

#endif
