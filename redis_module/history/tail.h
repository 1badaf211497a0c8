/* tail.h - the messages that posting lists and marks of a shard's current epoch still lack, and how they are added.
 *
 * A message of a topic with four levels is an entry of five lists: five keys to find and to extend.  So entries are
 * collected in memory and written many at a time: sorted by list, each list opened once and extended once.
 *
 *      messages     1 ......................... indexed  indexed+1 ............. last
 *                   in logs, lists and marks             the tail: in logs alone (and here, for the lists)
 *
 * Invariants:
 *  1. The tail is a function of the keys: the messages of the logs after `sequence` of the shard's hash, which is
 *     written in the same step as lists and marks.  So whatever happens between two flushes, no entry is lost or
 *     comes twice.
 *  2. A flush checks everything that can be wrong before it writes anything.
 *
 * Cost: adding O(slots); a flush O(entries), and reading each list's last block. */
#ifndef HMQ_HISTORY_TAIL_H
#define HMQ_HISTORY_TAIL_H

#include "history/patterns.h"
#include "history/plan.h"
#include "history/shard.h"

/* The length of a tail: longer in a large epoch, whose slots have more lists, so that each list gets some entries. */
#define HISTORY_TAIL_MIN 1024
#define HISTORY_TAIL_MAX 4096
#define HISTORY_TAIL_PART 64 /* in between, this part of the epoch */
/* From this number of entries on, a tail has at most HISTORY_TAIL_MIN messages: topics of many levels have one entry
 * per level. */
#define HISTORY_TAIL_ENTRIES 16384

typedef struct history_posting {
    uint64_t list; /* pattern, slot, page and group in one number: unlike for unlike lists */
    uint64_t number : 48; /* in the epoch, 1 is the first */
    uint64_t fragment_bits : 8;
    uint32_t fragment;
    uint32_t next; /* scratch of a flush: the next one in the same list */
} history_posting;

typedef struct history_tail {
    history_posting *postings;
    size_t count, room;
    hmq_message_id *marks;
    size_t mark_count, mark_room;
} history_tail;

/* Empty; keeps its memory. */
void history_tail_clear(history_tail *tail);
void history_tail_free(history_tail *tail);

/* Adds a message of this pattern, which had this many messages in the epoch before.  Those of a pattern come in their
 * order, or backwards, and are reversed afterwards. */
void history_tail_add(history_tail *tail, const history_shard *state, const hmq_pattern *pattern,
                      const hmq_topic_place *place, uint64_t before, hmq_message_id id);

/* Reverses all postings from this place on. */
void history_tail_reverse(history_tail *tail, size_t begun);

/* Calls for each message that has postings; those of a pattern in their order. */
typedef void (*history_tail_visit)(void *context, uint32_t pattern, uint64_t number, const history_posting *postings,
                                   size_t count);
void history_tail_each(const history_tail *tail, history_tail_visit visit, void *context);
/* Is a message with these postings in the lists of this slot and hash? */
bool history_tail_has(const history_posting *postings, size_t count, const hmq_plan_slot *slot);

/* Opens the lists of the tail.  False after replying (if `reply`) what is wrong with one: nothing was written.  One
 * flush at a time.  Only history_flush_write may change keys until history_flush_end, which must follow in either
 * case. */
bool history_flush_begin(server_ctx *ctx, const history_shard *state, const history_tail *tail, bool reply);
/* Writes them, each with APPEND for replicas and the append-only file.  Returns how many bytes. */
uint64_t history_flush_write(server_ctx *ctx);
void history_flush_end(void);

#endif
