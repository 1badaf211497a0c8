/* table.h - as the node that answers: the routes of the whole cluster, by which a topic's slots are found.
 *
 *     filter  ->  {slot: token}          in a trie
 *     covered     the slots whose routes were fed
 *     generation  n: another one after each loss of what the table knew; it only grows
 *     version     of a topic: raised by each change of a route whose filter may match it
 *
 * Invariants:
 *  1. A route is a member of a set, never a count.  Adding one that exists gives it a new token; feeding it does not.
 *  2. A token was given to no other route of this generation (until four billion were).
 *  3. A topic has the same slots as long as generation and version are the same.
 *  4. A slot that a page of a feed covers in part counts only when the pages before it were fed.
 *
 * Owns a trie of at most holdmq.max-route-bytes; adding and looking up cost what the trie's functions do.  Forgetting is
 * O(1): what was forgotten is freed in steps of half a millisecond (server/timers.h), and some of it with each route that
 * is added, so that both together take hardly more than the one did. */
#ifndef HMQ_ROUTE_TABLE_H
#define HMQ_ROUTE_TABLE_H

#include "topic/slot.h"
#include "server/state.h"

long long table_generation(void);
/* Forgets everything; the next generation is higher than the last, and than `above`. */
void table_forget(long long above);

/* ROUTE.ADD: adds the route, or renews its token.  False if the bytes do not suffice. */
bool table_add(hmq_slice filter, unsigned slot);
/* ROUTE.FEED: adds the route unless it exists. */
bool table_feed(hmq_slice filter, unsigned slot);
void table_mark_covered(const hmq_slot_set *slots);
/* A page ends, or begins, within a slot: at this cursor. */
void table_feed_note_end(hmq_slice cursor);
bool table_feed_continues(hmq_slice cursor);

/* 0: there is no such route. */
uint32_t table_token(hmq_slice filter, unsigned slot);
void table_remove(hmq_slice filter, unsigned slot);

const hmq_slot_set *table_covered_slots(void);
unsigned table_covered_count(void);
unsigned long long table_version(hmq_slice topic);
/* The slots with a route that matches the topic.  All slots, if very many filters are to be searched: a publish may go where
 * nobody gets it. */
void table_match(hmq_slice topic, hmq_slot_set *slots);

size_t table_routes(void);
size_t table_bytes(void);
/* What was forgotten and is not freed yet. */
size_t table_forgotten_bytes(void);

/* Replies an array: first, last, first, last ... of the slots in the set, or of those that are not in it. */
void reply_ranges(server_ctx *ctx, const hmq_slot_set *set, bool are_in);

#endif
