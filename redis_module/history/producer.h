/* producer.h - the chunks of producers that write to a shard, each kept once.
 *
 * A producer numbers its chunks.  The shard stores the last one, with the place of its last message:
 *
 *     {<store>/<shard>}_history_producers   HASH   producer -> "<epoch> <chunk> <sequence> <time>"
 *
 * The same chunk again is answered as it was, an older one with sequence number 0; an older epoch is fenced. */
#ifndef HMQ_HISTORY_PRODUCER_H
#define HMQ_HISTORY_PRODUCER_H

#include "server/args.h"
#include "history/append.h"

typedef struct history_producer {
    server_string *id; /* NULL: not given */
    long long epoch, chunk;
} history_producer;

typedef enum history_chunk { HISTORY_NEW, HISTORY_REPEATED, HISTORY_REFUSED } history_chunk;

/* Reads the values after the word PRODUCER.  False after replying an error. */
bool history_producer_parse(args *a, history_producer *by);

/* Is the chunk new to the shard of the place?  If it is the last one, the place becomes the one that it got; an older one
 * leaves number and time as they are. */
history_chunk history_producer_check(server_ctx *ctx, const history_store *store, const history_producer *by,
                                     history_place *place);
/* It is the producer's last chunk now. */
void history_producer_remember(server_ctx *ctx, const history_store *store, const history_producer *by,
                               const history_place *place);

#endif
