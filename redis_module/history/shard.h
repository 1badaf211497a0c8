/* shard.h - the keys of a shard, and its state for writers and readers.
 *
 *     {<store>/<shard>}_history                  HASH    time, sequence: of the last message in lists and marks;
 *                                                        generation; epoch, first, begun: the current epoch, its first
 *                                                        sequence number and time; bytes: written in it, up to
 *                                                        `sequence`; before: in all epochs before it;
 *                                                        oldest: the first epoch that exists; trimmed: the number up to
 *                                                        which HISTORY.TRIM removed messages; dropping: the first epoch
 *                                                        that may still have keys; writer: who wrote the current epoch;
 *                                                        writers: "<writer> <first number> ...", the last
 *                                                        HISTORY_RUNS_MAX, each as in cursors
 *     {<store>/<shard>}_history_epochs           HASH    epoch -> "<generation> <first time> <first sequence> <before>"
 *     {<store>/<shard>}_history_producers        HASH    producer -> "<epoch> <chunk> <sequence> <time>"
 *     {<store>/<shard>}_history_<generation>_patterns, _history_<epoch>_marks, _history_<epoch>_<pattern>,
 *     _history_<epoch>_<pattern>_<slot>_<page>_<group>: docs/history.md
 *
 * Epochs are numbered 1, 2, 3 ...; those from `oldest` to `epoch` exist.  No reader sees those from `dropping` to
 * `oldest` - 1; their keys are being removed (history/drop.h).
 *
 * Bytes count the values, not the memory that the server needs around them.  `before` of an epoch is the sum of all
 * epochs before it since the shard began.  So the bytes between two epochs are one subtraction, whatever was dropped.
 *
 * The messages after `sequence` are the tail: they are in the logs, and are added to lists many at a time.  So the last
 * message of a shard follows from its keys (the logs of its current epoch); it is cached (history/live.h).  Parsed
 * pattern sets are cached together with their texts. */
#ifndef HMQ_HISTORY_SHARD_H
#define HMQ_HISTORY_SHARD_H

#include "history/ids.h"
#include "history/patterns.h"
#include "history/shard_state.h"

#define HISTORY_ENTRY_BYTES 12 /* of a log, beyond its value */

typedef struct history_epoch {
    uint32_t epoch, generation;
    uint64_t begun_us;
    uint64_t first;
    uint64_t before; /* bytes of all epochs before it */
} history_epoch;

/* "{<store>/<shard>}_history", followed by the formatted text. */
server_string *history_key(const history_store *store, unsigned shard, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The slot of these keys; 0 without a cluster. */
unsigned history_slot(hmq_slice store, unsigned shard);

/* Reads the hash alone: `last` is `indexed`.  Store and shard are set.  False if the hash is invalid. */
bool history_shard_load(server_ctx *ctx, server_string *name, history_shard *state);

/* Writes the indexed part, or everything if `whole`. */
void history_shard_write(server_ctx *ctx, const history_shard *state, bool whole);

/* The pattern set of a generation; valid until the next call.  NULL if the key does not hold one. */
const hmq_patterns *history_patterns(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation);
/* The same, held until it is released. */
typedef struct history_set {
    hmq_patterns *patterns;
    char *text; /* that it was parsed from */
    size_t len;
    unsigned holds;
} history_set;
history_set *history_set_hold(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation);
void history_set_release(history_set *set);
/* "#" alone. */
history_set *history_set_first(const history_store *store);
/* The set with which a store begins: "#" alone. */
void history_patterns_begin(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation);

/* This server as a primary that lost nothing: another number after a restart, a change of role, or a load.  A server
 * that writes a shard for the first time begins an epoch.  So numbers that were lost with another primary, or with
 * the end of a file, and are reused, are never of the epoch from which they were lost (history/page.h). */
uint64_t history_writer(void);

/* Opens a string and returns its bytes; {NULL, 0} if there is no key.  False if it has another type. */
bool history_open_string(server_ctx *ctx, server_string *name, int mode, server_key **key, hmq_slice *bytes);

#endif
