/* check.h - compares an epoch's posting lists and marks with its logs, a part at a time.
 *
 *      logs     each message belongs to the pattern in whose log it is; its entries are in its lists, byte by byte as their
 *               writer makes them (history/tail.h) from the previous entries; its mark is right
 *      lists    their other entries: each is of a message of the log that belongs there
 *
 * for one pattern after the other; at the end, whether all numbers were there.  Compares what the epoch had when the
 * check began, whatever is added meanwhile.  The tail is in no list, so only its logs are checked.
 *
 * For finding defects, not for daily use.  A part costs O(count * slots * log n); memory: the lists of
 * `count` messages. */
#ifndef HMQ_HISTORY_CHECK_H
#define HMQ_HISTORY_CHECK_H

#include "history/shard.h"

/* The place of a check: all that it needs between two parts. */
typedef struct history_check_place {
    uint64_t epoch; /* 0: at its end */
    uint64_t last, indexed; /* of the messages that are compared, and of those that lists have */
    uint64_t pattern, part; /* part 0: the log; n + 1: the lists of slot n */
    uint64_t list;          /* of the slot, all pages counted */
    uint64_t next;          /* sequence number from which the log or list continues */
    uint64_t before;        /* messages of the log before it */
    uint64_t messages;      /* of all logs so far */
} history_check_place;

/* Calls with a sentence for each difference. */
typedef void (*history_report)(void *context, const char *sentence);

/* Begins with an epoch, at its first pattern. */
history_check_place history_check_begin(const history_shard *state, uint32_t epoch);

/* Compares up to `count` messages, entries or lists; any place is safe.  False if the epoch is not known, or has no pattern
 * set. */
bool history_check_continue(server_ctx *ctx, const history_shard *state, history_check_place *place, uint64_t count,
                            history_report report, void *context);

int history_check_command(server_ctx *ctx, server_string **argv, int argc);

#endif
