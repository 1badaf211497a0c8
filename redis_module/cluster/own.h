/* own.h - the routes of this node: which slots have subscribers of which filter.  Shards of history count as subscribers of
 * the filters of their store.
 *
 *     slot (2 bytes, big endian), filter  ->  how many subscriptions of sessions and shards in the slot have it
 *                                             and, once somebody asked, a note (cluster/confirm.h)
 *
 * Invariants:
 *  1. It is a part of the index (index/index.h), made from the same keys: what a command changes is changed in the same
 *     step, and HOLDMQ.CHECK compares with a rebuild.  A shared subscription counts for the filter after its group.
 *  2. It has what the keys on this node say, whoever has the slot.  Whoever exports asks for the slot (server/slots.h).
 *  3. `vanished` of a slot is raised when subscriptions go that no command of the module removed: the slot may be on its
 *     way to another node.  As long as it is the same, a walk through the slot may continue where it stopped.
 *  4. A note is not a function of the keys.  It goes with its route, and is empty in a rebuilt index.
 *
 * Only in a cluster.  Each change costs O(bytes of the filter).  Freeing it costs O(routes). */
#ifndef HMQ_OWN_ROUTES_H
#define HMQ_OWN_ROUTES_H

#include "index/index.h"

extern const struct index_kind own_routes_kind;

/* To be called before the index starts. */
void own_routes_start(void);

size_t own_routes_count(const own_routes *routes);
bool own_routes_has(const own_routes *routes, hmq_slice filter, unsigned slot);
uint32_t own_routes_vanished(const own_routes *routes, unsigned slot);

/* What confirm.c keeps for a route; all 0 at first. */
typedef struct own_note {
    uint64_t serial;
    uint64_t confirmed; /* marks of homes.h */
    uint32_t era, view; /* in which the serial was given */
} own_note;
/* The note of a route, valid until the route changes.  NULL: there is no such route, or without `make` no note. */
own_note *own_routes_note(own_routes *routes, hmq_slice filter, unsigned slot, bool make);

/* A walk from a slot on, or from after one of its filters, in the order of slots.  Nothing may change meanwhile. */
typedef struct own_routes_walk {
    server_dict_iter *iter;
    unsigned slot; /* of the present route */
    hmq_slice filter; /* valid until the next step */
} own_routes_walk;
void own_routes_walk_begin(own_routes_walk *walk, const own_routes *routes, unsigned slot, hmq_slice after);
bool own_routes_walk_next(own_routes_walk *walk);
/* Skips the rest of the slots before this one. */
void own_routes_walk_skip_to(own_routes_walk *walk, unsigned slot);
void own_routes_walk_end(own_routes_walk *walk);

#endif
