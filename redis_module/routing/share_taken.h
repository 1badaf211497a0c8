/* share_taken.h - messages of groups that are taken out of a queue, to be delivered to another member. */
#ifndef HMQ_SHARE_TAKEN_H
#define HMQ_SHARE_TAKEN_H

#include "topic/record.h"
#include "server/state.h"
#include "queue/queue.h"
#include "routing/delivery.h"

/* Is this message taken? */
typedef bool (*share_selector)(const void *selector_context, uint64_t serial, const hmq_record *record);

typedef struct share_taken {
    uint16_t packet_id;
    server_string *record;
} share_taken;

typedef struct share_takes {
    share_selector selects; /* NULL: all are taken */
    const void *selector_context;
    size_t count, room;
    share_taken *list;
} share_takes;

/* Visits a queue (queue_walk) with one of them as context. */
void share_take(void *takes, uint64_t serial, uint16_t packet_id, const char *value, size_t len);
void share_takes_free(share_takes *t);
/* Removes the first `count` of them from the queue: they are in another one now. */
void share_takes_remove(queue *q, const share_takes *t, size_t count);

/* Makes a message of a record from a queue, without the properties of its last member.  False: it has expired. */
bool share_message_again(message *m, const server_string *bytes, hmq_record *record);

#endif
