/* matching.h - the sessions and groups that match one publish: in one step, or in many.
 *
 * A session with several matching filters is found once: with the largest QoS, and with all identifiers.
 *
 * In steps, subscriptions may change between them.  A session that subscribed before the first step and stays is found.  One
 * that subscribes later may be found.  One that is found is held, so that its memory stays (index/filters.h). */
#ifndef HMQ_MATCHING_H
#define HMQ_MATCHING_H

#include "topic/record.h"
#include "topic/trie.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/shares.h"
#include "routing/delivery.h"

/* What a session costs besides its filters, in the units of hmq_trie_match_some: some 300 ns, with what is done for it. */
#define MATCHING_SESSION_UNITS 8U

typedef struct match {
    indexed_session *session;
    uint8_t qos;
    bool retain_as_published;
    uint32_t identifiers; /* place of the first in matching.identifiers, plus 1; 0: none */
} match;

typedef struct match_identifier match_identifier;

/* All zero: one that begins.  The arrays are kept for the next begin. */
typedef struct matching {
    bool in_steps;
    match *list;
    size_t count, room;
    share **shares; /* the groups that match in one step */
    size_t share_count, share_room;
    server_string **groups; /* the filters of those that match in steps */
    server_dict *known_groups;
    match_identifier *identifiers;
    size_t identifier_count, identifier_room;
    uint32_t *chosen; /* the identifiers of the match that is being delivered */
    uint64_t mark;
    size_t released; /* of the sessions, then of the groups: memory that is not held any more */
    const indexed_session *publisher; /* NULL if it has no subscriptions */
    size_t *left;
} matching;

void matching_begin(matching *m, bool in_steps);
/* Finds more, from *place on, until *left is used up.  True: all are found.  In one step, what was found stays valid while the
 * sessions are pinned. */
bool matching_find(matching *m, const index_t *index, const hmq_record *record, hmq_trie_place *place, size_t *left);
/* In steps: the next session or group is not needed any more.  With many, this does not fit into one step. */
void matching_release(matching *m);
/* Frees what was found in steps. */
void matching_end(matching *m);

/* In steps, when all are found: is match `n` to be delivered?  False: its session ended, or began anew and is another match,
 * which gets what this one had.  To be asked once for each, in their order. */
bool matching_counts(matching *m, const index_t *index, size_t n);

/* The form in which the session of a match gets the message; valid until the next call. */
delivery_how matching_how(matching *m, const match *to, const hmq_record *record);

#endif
