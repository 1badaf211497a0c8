/* publish_producer.h - PRODUCER of TOPIC.PUBLISH and CHANNEL.(S)PUBLISH: a repeated publish is not published again.
 *
 * A producer numbers its publishes: chunks 0, 1, 2 ... of an epoch, each larger than the one before.  A process that
 * takes over as the producer uses a larger epoch.  The last number is in a string that ends a week after its last
 * use:
 *
 *     {<id>}_producer             STRING  "<epoch> <chunk>"    of TOPIC.PUBLISH
 *     {<digits>}_published{<id>}  STRING  the same             of TOPIC.MPUBLISH with SLOTS (routing/publish_slots.h)
 *     {<channel>}_producer{<id>}  STRING  the same             of a channel (server/channel_keys.h)
 *
 * Invariant: it is written in the atomic step that publishes, so neither exists without the other. */
#ifndef HMQ_PUBLISH_PRODUCER_H
#define HMQ_PUBLISH_PRODUCER_H

#include "server/args.h"
#include "server/state.h"

#define PUBLISH_PRODUCER_ID_MAX 255

typedef struct publish_producer {
    server_string *id; /* NULL: not given */
    long long epoch, chunk;
    bool follows; /* AFTER was given, for a channel: */
    long long after; /* ... the chunk that must have been published */
    server_string *key; /* the key of the last number; belongs to the caller */
} publish_producer;

/* Reads PRODUCER and its values if that is the next argument (*taken).  False after replying an error. */
bool publish_producer_parse(args *a, publish_producer *by, bool *taken);

/* Reads AFTER and its value if that is the next argument. */
bool publish_producer_parse_after(args *a, publish_producer *by);

/* The id alone. */
bool publish_producer_parse_id(args *a, publish_producer *by);

/* The key for TOPIC.PUBLISH.  The caller frees it. */
server_string *publish_producer_key(hmq_slice id);

typedef enum producer_chunk { PRODUCER_CHUNK_NEW, PRODUCER_CHUNK_KNOWN, PRODUCER_CHUNK_REFUSED } producer_chunk;
/* PRODUCER_CHUNK_REFUSED after replying an error. */
producer_chunk publish_producer_judge(server_ctx *ctx, const publish_producer *by);
/* The last number of the epoch, 0 if the producer has none; by->chunk is not looked at.  False after replying an error. */
bool publish_producer_last(server_ctx *ctx, const publish_producer *by, uint64_t *last);
/* After PRODUCER_CHUNK_NEW. */
void publish_producer_note(server_ctx *ctx, const publish_producer *by);
/* Makes the note end at this time, if it says no more than `by` and would end later; true if so. */
bool publish_producer_end(server_ctx *ctx, const publish_producer *by, long long end_ms);

#endif
