/* scan.c - finds the numbers that are in the lists of all fixed slots.
 *
 *      slot a  (small)   12 ........ 40 ...... 77 ..... 103
 *      slot b            7 12 13 .. 39 .. 52 .. 77 78 .. 110
 *      candidates        12                    77
 *
 * The next number of a slot is the smallest of its pages.  The search asks each slot in order for its next number >= n.  A
 * larger number becomes n, and the search restarts with the first slot.  When all slots have n, it is a candidate.
 *
 * Invariant of a list: `next` only increases.  KNOWN: it is the next number; UNKNOWN: a lower bound of it. */
#include "history/index.h"
#include "history/plan.h"

enum { UNKNOWN, KNOWN, ENDED };

void hmq_scan_list_open(hmq_scan_list *list, const hmq_plan_slot *slot, unsigned page, const uint8_t *data,
                        size_t len) {
    hmq_index_place place = hmq_index_place_of(slot->hash, slot->bits, page);
    *list = (hmq_scan_list){.slot = slot->slot};
    (void)hmq_postings_open(&list->postings, data, len, place.fragment_bits, place.fragment); /* it is in range */
}

static uint64_t slot_bytes(const hmq_scan *scan, uint32_t slot) {
    uint64_t bytes = 0;
    for (uint32_t i = scan->starts[slot]; i < scan->starts[slot + 1]; i++) bytes += scan->lists[i].postings.len;
    return bytes;
}

/* Insertion sort: there are few slots. */
static void put_in_order(hmq_scan *scan) {
    uint64_t bytes[HMQ_PATTERNS_MAX_SLOTS];
    for (uint32_t i = 0; i < scan->slots; i++) {
        uint64_t own = slot_bytes(scan, i);
        uint32_t at = i;
        for (; at > 0 && bytes[at - 1] > own; at--) {
            bytes[at] = bytes[at - 1];
            scan->order[at] = scan->order[at - 1];
        }
        bytes[at] = own;
        scan->order[at] = (uint8_t)i;
    }
}

bool hmq_scan_begin(hmq_scan *scan, hmq_scan_list *lists, uint32_t count) {
    *scan = (hmq_scan){.lists = lists};
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && lists[i].slot == lists[i - 1].slot) continue;
        if (scan->slots == HMQ_PATTERNS_MAX_SLOTS) return false;
        scan->starts[scan->slots++] = i;
    }
    scan->starts[scan->slots] = count;
    put_in_order(scan);
    return scan->slots > 0;
}

/* Advances a list to its next number >= at_least, within the budget. */
static hmq_postings_result advance_list(hmq_scan_list *list, uint64_t at_least, uint64_t *budget) {
    if (list->state == ENDED) return HMQ_POSTINGS_END;
    if (list->state == KNOWN && list->next >= at_least) return HMQ_POSTINGS_FOUND;
    uint64_t from = list->next > at_least ? list->next : at_least;
    hmq_postings_result result = hmq_postings_seek(&list->postings, from, &list->next, budget);
    list->state = result == HMQ_POSTINGS_FOUND ? KNOWN : result == HMQ_POSTINGS_LIMIT ? UNKNOWN : ENDED;
    return result;
}

/* The next number >= at_least of a slot. */
static hmq_postings_result slot_next(hmq_scan *scan, uint32_t slot, uint64_t at_least, uint64_t *number,
                                     uint64_t *budget) {
    uint64_t known = UINT64_MAX, bound = UINT64_MAX;
    for (uint32_t i = scan->starts[slot]; i < scan->starts[slot + 1]; i++) {
        hmq_scan_list *list = &scan->lists[i];
        hmq_postings_result result = advance_list(list, at_least, budget);
        if (result == HMQ_POSTINGS_CORRUPT) return result;
        if (result == HMQ_POSTINGS_FOUND && list->next < known) known = list->next;
        if (result == HMQ_POSTINGS_LIMIT && list->next < bound) bound = list->next;
    }
    *number = known < bound ? known : bound;
    if (*number == UINT64_MAX) return HMQ_POSTINGS_END;
    return known <= bound ? HMQ_POSTINGS_FOUND : HMQ_POSTINGS_LIMIT;
}

hmq_postings_result hmq_scan_next(hmq_scan *scan, uint64_t at_least, uint64_t *number, uint64_t *budget) {
    uint64_t candidate = at_least;
    for (uint32_t i = 0; i < scan->slots;) {
        hmq_postings_result result = slot_next(scan, scan->order[i], candidate, number, budget);
        if (result != HMQ_POSTINGS_FOUND) return result;
        bool agrees = i == 0 || *number == candidate;
        candidate = *number;
        if (!agrees && *budget == 0) return HMQ_POSTINGS_LIMIT;
        i = agrees ? i + 1 : 0;
    }
    return HMQ_POSTINGS_FOUND;
}
