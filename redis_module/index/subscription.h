/* subscription.h - the options of one subscription, as {c}_subscriptions and the index have them.
 *
 *     value     text, or text@, or text@!        @: it replays, and nothing is routed to it (routing/replays.h), with @!
 *                                              forever, without it until the replay has caught up
 *               text&block                     a note: another session of the client, in the slot of the group, is the
 *                                              member (session/member.h); nothing is routed to this one
 *     text      byte, or byte:identifier       the options byte of MQTT 5.0 section 3.8.3.1, and the subscription
 *                                              identifier 1..268435455 of section 3.8.2.1.2
 *     packed    identifier << 4 | byte & 15    what matching needs: QoS, no local, retain as published, the identifier
 */
#ifndef HMQ_SUBSCRIPTION_H
#define HMQ_SUBSCRIPTION_H

#include "server/state.h"

#define SUBSCRIPTION_QOS 3u
#define SUBSCRIPTION_NO_LOCAL 4u
#define SUBSCRIPTION_RETAIN_AS_PUBLISHED 8u
#define SUBSCRIPTION_RETAIN_HANDLING_SHIFT 4
#define SUBSCRIPTION_IDENTIFIER_SHIFT 4
#define SUBSCRIPTION_MOST_BLOCK 31
#define SUBSCRIPTION_MAX_IDENTIFIER 268435455LL
#define SUBSCRIPTION_MOST_IDENTIFIER_BYTES 5 /* of one property: its name and a variable byte integer */

typedef enum subscription_kind {
    SUBSCRIPTION_LIVE,        /* messages come as they are published */
    SUBSCRIPTION_REPLAYS,     /* they come from history until the replay has caught up */
    SUBSCRIPTION_APPLICATION, /* they always come from history */
    SUBSCRIPTION_NOTE,        /* of a member of a group over the nodes of a cluster: none come */
} subscription_kind;

typedef struct subscription {
    uint8_t options;     /* reserved bits 0 */
    uint32_t identifier; /* 0: none */
    subscription_kind kind;
    uint8_t block; /* of a note: which packet identifiers the member uses on the connection */
} subscription;

/* Reads the value of a field; false if it is not valid. */
bool subscription_read(const server_string *value, subscription *s);
/* The value. */
server_string *subscription_text(subscription s);

/* The argument of SESSION.SUBSCRIBE: the text, or text@<start>, each with a final ! for an application; or text&block. */
typedef struct subscription_request {
    subscription wanted;
    bool replay;       /* there is an @ */
    bool resumes;      /* @! without a start: from its last position, or from now if it is new */
    bool now;          /* @now */
    uint64_t from_ms;  /* 0: earliest */
} subscription_request;

/* False after replying an error. */
bool subscription_parse(server_ctx *ctx, const server_string *text, subscription_request *request);

uint32_t subscription_pack(subscription s);
static inline uint32_t subscription_identifier(uint32_t packed) {
    return packed >> SUBSCRIPTION_IDENTIFIER_SHIFT;
}

/* Writes the identifier as a property of a PUBLISH (MQTT 5.0 section 3.3.2.3.8); returns its bytes. */
size_t subscription_write_property(uint32_t identifier, uint8_t *out);
/* How many bytes of such properties the properties begin with. */
size_t subscription_property_bytes(hmq_slice properties);

/* Is it a valid topic filter, and, unless `may_share`, not that of a shared subscription?  False after replying an
 * error. */
bool subscription_check_filter(server_ctx *ctx, const server_string *filter, bool may_share);

#endif
