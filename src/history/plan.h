/* plan.h - where the messages of a topic filter can be, and going through them.
 *
 * PLAN: from a filter and a pattern set, the patterns that can have a topic which matches, and for each the slots whose
 * level the filter fixes, with its hash.  This is the filter's mask: a slot that is not listed is a wildcard's.
 *
 *      filter   devices/42/#       set   #   devices/+/pressure   devices/+/temperature
 *      plan     #: slot 0 = hash("devices"), slot 1 = hash("42")
 *               devices/+/pressure: slot 0 = hash("42")
 *               devices/+/temperature: slot 0 = hash("42")
 *
 * SCAN: for one pattern in one epoch, the caller hands in the posting lists of the fixed slots, as strings, one for
 * each page that exists; the scan yields the numbers that stand in all slots.  Without a fixed slot every message of the
 * pattern is a candidate, and there is nothing to scan: read the log.
 *
 * Laws:
 *  1. Every message that matches the filter is a candidate of the plan's pattern that its topic has.  (The contrary does
 *     not hold: hashes collide.  The reader checks each candidate with hmq_topic_matches.)
 *  2. A scan yields each number once, ascending, and never ends before the last that stands in all slots.  The first
 *     number of one list that is missing in another only moves the search on.
 *  3. A call looks at no more entries than the budget says (but one of each list at least), plus a block or two of each
 *     list to find its place; when they are used up it says from where to go on, always further than where it began.
 *  4. A plan depends on filter, set and seed alone, a scan on the lists: the only state to keep between two calls is a
 *     number.
 *
 * Order: slots are sought from the smallest list to the largest: the rare level leads, the others only confirm, each
 * skipping by blocks.  A plan is at most as long as the set; making it visits the nodes that the filter can reach. */
#ifndef HMQ_HISTORY_PLAN_H
#define HMQ_HISTORY_PLAN_H

#include "base/base.h"
#include "base/hash.h"
#include "history/patterns.h"
#include "history/postings.h"

/* cffi-begin */
typedef struct hmq_plan_slot {
    uint32_t hash;  /* of the level that the filter has there; hmq_index_place_of says where it stands */
    uint8_t slot;
    uint8_t bits;   /* of the hash */
} hmq_plan_slot;

typedef struct hmq_plan_pattern {
    uint32_t pattern;
    uint32_t fixed;           /* slots below */
    hmq_plan_slot slots[17];
} hmq_plan_pattern;

/* Called for each pattern of a plan, in no order that is promised; false ends it. */
typedef bool (*hmq_plan_visit)(void *context, const hmq_plan_pattern *pattern);

/* Visits the plan of a valid filter (not a $share one).  False if a visit ended it. */
bool hmq_plan_each(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                   hmq_plan_visit visit, void *context);

/* The same into an array.  Returns how many there are, which may be more than capacity. */
size_t hmq_plan_collect(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                        hmq_plan_pattern *out, size_t capacity);

/* One list of a scan: a page of one fixed slot.  Made by hmq_scan_list_open, else opaque. */
typedef struct hmq_scan_list {
    hmq_postings postings;
    uint64_t next;  /* no number that it still has is below */
    uint8_t slot;
    uint8_t state;
} hmq_scan_list;

/* The list of a fixed slot in a page (0 .. HMQ_INDEX_MAX_PAGES - 1).  The string (of no bytes, if the key does not
 * exist) stays where it is while the scan lives. */
void hmq_scan_list_open(hmq_scan_list *list, const hmq_plan_slot *slot, unsigned page, const uint8_t *data, size_t len);

/* Where a scan is.  Made by hmq_scan_begin, else opaque. */
typedef struct hmq_scan {
    hmq_scan_list *lists;
    uint32_t slots;
    uint32_t starts[18];  /* the lists of slot i begin here, and end where those of slot i + 1 begin */
    uint8_t order[17];    /* slots, from the one with the smallest lists on */
} hmq_scan;

/* Begins a scan over these lists, which stay the caller's: every fixed slot has one at least, those of one slot stand
 * side by side.  False if there is none, or of more than 17 slots. */
bool hmq_scan_begin(hmq_scan *scan, hmq_scan_list *lists, uint32_t count);

/* The first number >= at_least (which must not go down from call to call) that stands in all slots.
 * FOUND, END, CORRUPT, or LIMIT: *budget entries were looked at, nothing below *number (> at_least) is a candidate. */
hmq_postings_result hmq_scan_next(hmq_scan *scan, uint64_t at_least, uint64_t *number, uint64_t *budget);
/* cffi-end */

#endif
