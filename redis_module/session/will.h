/* will.h - the will of a session: kept as fields of {c}_session, published some time after the connection is lost.
 *
 *     will_topic, will_payload, will_qos, will_retain (0/1), will_delay (s), will_ttl (s, empty: none), will_properties
 *     will_due      ms since 1970: when the will of a lost connection is published
 *
 * MQTT 5.0 section 3.1.2.5 and 3.1.3.2.2.  The time to live counts from the publication.  Either all fields exist or
 * none. */
#ifndef HMQ_WILL_H
#define HMQ_WILL_H

#include "server/args.h"
#include "server/state.h"

#define WILL_STRINGS 3

typedef struct will {
    bool given;
    server_string *strings[WILL_STRINGS]; /* topic, payload, properties (NULL: none) */
    long long qos, delay_s;
    bool expires;
    long long ttl_s; /* if it expires */
    bool retain;
    server_string *identity; /* the user for whom it counts if it is retained (routing/quota.h), NULL: none */
    long long most_retained; /* the maximum of this user, -1: the setting's */
    bool owned; /* the strings are freed by will_end */
} will;

/* Reads the next argument if it is one of the words of a will (*taken).  False after replying an error. */
bool will_parse(args *a, will *w, bool *taken);
/* All options were read: false after replying an error if they do not fit together. */
bool will_check(server_ctx *ctx, const will *w);

/* Replaces the fields in the open hash; w->given false: removes them.  Replicated; the caller notifies. */
void will_write(server_ctx *ctx, server_key *hash, server_string *name, const will *w);
/* It will be published at this time. */
void will_set_due(server_ctx *ctx, hmq_slice session, long long due_ms);
void will_forget(server_ctx *ctx, hmq_slice session);

/* False if the session has none.  After true: will_end. */
bool will_read(server_ctx *ctx, hmq_slice session, will *w);
void will_end(will *w);

/* Publishes it to all sessions that match, and as a retained message; after the running command if that may not open
 * their keys. */
void will_publish(server_ctx *ctx, hmq_slice session, const will *w);

#endif
