/* places.h - in a cluster: how far the retained messages of a new subscription were handed over.
 *
 *     {c}_places   HASH   filter -> "<options> <place>"
 *
 *     options   those of the subscription, as SESSION.SUBSCRIBE got them
 *     place     a text of whoever hands the messages over (SESSION.DELIVER ... RETAINED); empty at the beginning
 *
 * Invariants:
 *  1. A place begins in the step that subscribes, if the session outlives its connection.
 *  2. It moves in the step that delivers messages, and only from the value that the deliverer names: a slower one, or one
 *     of an earlier subscription, moves nothing and delivers nothing.
 *  3. It ends with the last messages, the subscription or the session. */
#ifndef HMQ_PLACES_H
#define HMQ_PLACES_H

#include "server/args.h"

#define PLACE_BYTES 8192

/* The subscription with these options has no retained messages yet.  The key expires with the session, at `expire_ms`. */
void places_begin(server_ctx *ctx, hmq_slice session, server_string *filter, const server_string *options,
                  long long expire_ms);
void places_end(server_ctx *ctx, hmq_slice session, server_string *filter);

/* RETAINED <filter> <from> <to> of SESSION.DELIVER: the whole values; `to` empty: all were handed over. */
typedef struct place_move {
    server_string *filter, *from, *to; /* filter NULL: the option was not given */
} place_move;

/* Reads the option, if it is there.  False after replying an error. */
bool place_move_parse(args *a, place_move *move);
/* Has the place the value `from`?  False after replying STALE. */
bool place_move_check(server_ctx *ctx, hmq_slice session, const place_move *move);
void place_move_do(server_ctx *ctx, hmq_slice session, const place_move *move);

#endif
