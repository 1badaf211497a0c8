/* judging_pending.h - which publishes have their queues judged (routing/judging.h), in the order in which they began.
 *
 * In memory only: after a restart, or if the database is emptied, they begin anew. */
#ifndef HMQ_JUDGING_PENDING_H
#define HMQ_JUDGING_PENDING_H

#include "topic/record.h"
#include "topic/trie.h"
#include "queue/queue.h"
#include "server/state.h"

#define JUDGING_KEPT_MS 10000 /* longer than a bridge pauses before it sends again */

typedef struct judging {
    server_string *publisher, *topic; /* publisher: empty if a program publishes */
    uint64_t owner; /* a hash of the user */
    size_t bytes; /* of the message */
    uint64_t number; /* what its queues are marked with */
    hmq_trie_place place;
    bool is_over; /* `status` is that of all queues */
    queue_status status;
    server_string *by; /* the session that has no room; NULL: all have */
    long long asked_ms; /* when the publish was last sent */
} judging;

typedef struct judgings {
    judging **list;
    size_t count;
} judgings;

judgings *judgings_new(void);
void judgings_free(judgings *all);

bool judging_is_of(const judging *j, hmq_slice publisher);
/* NULL: none. */
judging *judging_find(const judgings *all, hmq_slice publisher, hmq_slice topic);
/* NULL: this user, or all, have too many. */
judging *judging_add(judgings *all, const hmq_record *record, uint64_t owner);
void judging_remove(judgings *all, judging *j);
/* Those whose publish was not sent again. */
void judging_remove_old(judgings *all);

/* Is the room that it found kept for it? */
static inline bool judging_is_room_kept(const judging *j) {
    return j->status == QUEUE_OK && sv.Milliseconds() - j->asked_ms <= JUDGING_KEPT_MS;
}

#endif
