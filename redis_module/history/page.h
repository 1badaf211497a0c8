/* page.h - reads in one shard from a cursor, and hands over what a filter matches, until a budget is used up.
 *
 * HISTORY.REPLAY replies the messages, SESSION.REPLAY delivers them.  The taker must not write to keys of history,
 * because the reader points into them (history/read.h).
 *
 * Cost: the visited messages, and O(log n) to find the place. */
#ifndef HMQ_HISTORY_PAGE_H
#define HMQ_HISTORY_PAGE_H

#include "history/cursor.h"
#include "history/read.h"

#define HISTORY_VISITS_OF_A_MESSAGE 10 /* default: messages visited per message that may be delivered */
#define HISTORY_POSTINGS_OF_A_VISIT 4  /* entries of posting lists that cost about what reading a message does */

typedef enum history_page_end {
    HISTORY_PAGE_END,     /* nothing is left in the shard */
    HISTORY_PAGE_LIMIT,   /* the budget is used up, or the taker has no room */
    HISTORY_PAGE_CORRUPT, /* at the cursor's sequence number is an entry that no writer can have made */
    HISTORY_PAGE_SWITCH,  /* at the cursor begins a generation after `generation` */
    HISTORY_PAGE_ERROR,   /* a key of the shard has the wrong type; replied if `reply` is set */
} history_page_end;

/* May one more message be looked at?  (`entry` NULL), or: takes it, if there is room; false if there is none. */
typedef bool (*history_page_take)(void *context, unsigned shard, const history_entry *entry);

typedef struct history_page {
    server_ctx *ctx;
    const history_store *store;
    hmq_slice filter;
    uint64_t from_us, to_us, now_us; /* from 0: the earliest; to UINT64_MAX: no end */
    long long visits;                /* that are left */
    uint64_t budget;                 /* entries of posting lists that are left */
    uint32_t generation;             /* nothing after this one is read; 0: all */
    uint64_t visited, missed;        /* out, added up; missed: numbers that retention removed before they were read */
    bool reply;                      /* errors of types are replied */
    history_page_take take;
    void *context;
} history_page;

/* Begins a page (the filter counts as used).  `visits` 0: what `count` messages are worth. */
void history_page_allow(history_page *p, long long visits, long long count);

/* Finds where to read a shard, after what retention removed or hides: moves a cursor that is before it, and finds the
 * place of one that has not begun (sequence 0).  False if the shard is corrupt. */
bool history_page_start(history_page *p, const history_shard *state, hmq_cursor *cursor);

/* Reads from the cursor, which moves past all that was handled. */
history_page_end history_page_read(history_page *p, hmq_cursor *cursor);

/* The same for several shards, in the order of their cursors, but one generation on all of them before the next:
 * where a topic moved from one shard to another with a generation, its order is that of publishing.  END: all were
 * read to their ends; else *stopped is the cursor at which the page ended. */
history_page_end history_page_read_all(history_page *p, hmq_cursor *cursors, size_t count, size_t *stopped);

#endif
