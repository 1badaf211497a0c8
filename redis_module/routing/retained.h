/* retained.h - the retained message of a topic: one hash that any client can read.
 *
 *     {<topic>}_retained   HASH  topic, payload, qos, time (ms since 1970), publisher, properties, identity
 *
 * `identity` exists only if the message counts for a user (routing/quota.h).  Versions that do not know the field leave it
 * unchanged.
 *
 * It expires with the message's own expiry, and never without one (MQTT 3.1.1 section 3.3.1.3). */
#ifndef HMQ_RETAINED_H
#define HMQ_RETAINED_H

#include "topic/record.h"
#include "server/state.h"
#include "index/index.h"
#include "index/usage.h"

#define RETAINED_FIELDS 6

typedef struct retained_message {
    hmq_record record; /* points into the fields */
    server_string *fields[RETAINED_FIELDS];
} retained_message;

/* Keeps the record as its topic's retained message; an empty payload removes it.  False after replying WRONGTYPE. */
/* `identity`: the user for whom it counts; len 0: none. */
bool retained_write(server_ctx *ctx, index_t *index, const hmq_record *record, hmq_slice identity);

/* The slot of the key in which a topic's message is kept. */
unsigned retained_slot(hmq_slice topic);
/* Is the topic's key free, or a hash? */
bool retained_may_write(server_ctx *ctx, hmq_slice topic);

/* False if the key has expired or is no retained message.  After true: retained_read_end. */
bool retained_read(server_ctx *ctx, server_string *key, retained_message *message);
/* The same without the payload, in a time that does not depend on its size: the record's is empty. */
bool retained_read_head(server_ctx *ctx, server_string *key, retained_message *message);
void retained_read_end(retained_message *message);
/* The topic's message as an encoded record; empty: it has none.  The caller frees it. */
server_string *retained_encoded(server_ctx *ctx, const index_t *index, hmq_slice topic);

/* Does the topic have a retained message, as far as the index knows? */
bool retained_is_known(const index_t *index, hmq_slice topic);
/* The same, and the user for whom it counts (NULL: none). */
bool retained_find(const index_t *index, hmq_slice topic, const usage_user **user);

#endif
