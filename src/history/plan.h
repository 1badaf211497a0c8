/* plan.h - finds the possible places of the messages of a topic filter, and scans them.
 *
 * PLAN: lists, for a filter and a pattern set, the patterns that can have a matching topic, and for each pattern the slots
 * whose level the filter fixes, with the hash.  A slot that is not listed is a wildcard of the filter.
 *
 *      filter   devices/42/#       set   #   devices/+/pressure   devices/+/temperature
 *      plan     #: slot 0 = hash("devices"), slot 1 = hash("42")
 *               devices/+/pressure: slot 0 = hash("42")
 *               devices/+/temperature: slot 0 = hash("42")
 *
 * SCAN: for one pattern in one epoch, the caller passes the posting lists of the fixed slots, as strings, one per existing
 * page.  The scan yields the numbers that are in all slots.  Without a fixed slot every message of the pattern is a
 * candidate, and there is nothing to scan: read the log.
 *
 * Invariants:
 *  1. Every message that matches the filter is a candidate of the plan's pattern that its topic has.  (The converse is
 *     false: hashes collide.  The reader checks each candidate with hmq_topic_matches.)
 *  2. A scan yields each number once, in ascending order, and does not end before the last one that is in all slots.  A
 *     number that another list does not have only advances the search.
 *  3. A call reads at most the entries of the budget (but at least one per list), plus a block or two per list to find its
 *     place.  When the budget is used up, it returns where to continue, always beyond where it began.
 *  4. A plan depends on filter, set and seed alone, a scan on the lists: the only state to keep between two calls is a
 *     number.
 *
 * Order: slots are searched from the smallest list to the largest.  The rarest level leads, and the others confirm, skipping
 * whole blocks.  A plan is at most as long as the set; building it visits the nodes that the filter can reach. */
#ifndef HMQ_HISTORY_PLAN_H
#define HMQ_HISTORY_PLAN_H

#include "base/base.h"
#include "base/hash.h"
#include "history/patterns.h"
#include "history/postings.h"

/* cffi-begin */
typedef struct hmq_plan_slot {
    uint32_t hash;  /* of the filter's level; hmq_index_place_of finds its place */
    uint8_t slot;
    uint8_t bits;   /* of the hash */
} hmq_plan_slot;

typedef struct hmq_plan_pattern {
    uint32_t pattern;
    uint32_t fixed;           /* slots below */
    hmq_plan_slot slots[17];
} hmq_plan_pattern;

/* Called per pattern of a plan, in no particular order; false ends it. */
typedef bool (*hmq_plan_visit)(void *context, const hmq_plan_pattern *pattern);

/* Visits the plan of a valid filter (not a $share one).  False if a visit ended it. */
bool hmq_plan_each(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                   hmq_plan_visit visit, void *context);

/* The same into an array.  Returns the number of patterns, which may exceed the capacity. */
size_t hmq_plan_collect(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                        hmq_plan_pattern *out, size_t capacity);

/* One list of a scan: a page of one fixed slot.  Made by hmq_scan_list_open, else opaque. */
typedef struct hmq_scan_list {
    hmq_postings postings;
    uint64_t next;  /* a lower bound of its remaining numbers */
    uint8_t slot;
    uint8_t state;
} hmq_scan_list;

/* The list of a fixed slot in a page (0 .. HMQ_INDEX_MAX_PAGES - 1).  The string (of no bytes, if the key does not
 * exist) stays where it is while the scan lives. */
void hmq_scan_list_open(hmq_scan_list *list, const hmq_plan_slot *slot, unsigned page, const uint8_t *data, size_t len);

/* The state of a scan.  Made by hmq_scan_begin; opaque otherwise. */
typedef struct hmq_scan {
    hmq_scan_list *lists;
    uint32_t slots;
    uint32_t starts[18];  /* the lists of slot i begin here, and end where those of slot i + 1 begin */
    uint8_t order[17];    /* slots, from the one with the smallest lists on */
} hmq_scan;

/* Begins a scan over these lists, which the caller owns.  Every fixed slot has at least one, and the lists of a slot are
 * adjacent.  False if there are no lists, or more than 17 slots. */
bool hmq_scan_begin(hmq_scan *scan, hmq_scan_list *lists, uint32_t count);

/* The first number >= at_least (which must not decrease from call to call) that is in all slots.  FOUND, END, CORRUPT, or
 * LIMIT: *budget entries were read, and nothing below *number (> at_least) is a candidate. */
hmq_postings_result hmq_scan_next(hmq_scan *scan, uint64_t at_least, uint64_t *number, uint64_t *budget);
/* cffi-end */

#endif
