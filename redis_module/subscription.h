/* subscription.h - the options of one subscription, as they stand in {c}_subscriptions and in the index.
 *
 *     text      byte, or byte:identifier       the options byte of MQTT 5.0 section 3.8.3.1, and the subscription
 *                                              identifier 1..268435455 of section 3.8.2.1.2
 *     packed    identifier << 4 | byte & 15    what matching needs: QoS, no local, retain as published, the identifier */
#ifndef HMQ_SUBSCRIPTION_H
#define HMQ_SUBSCRIPTION_H

#include "module.h"

#define SUBSCRIPTION_QOS 3u
#define SUBSCRIPTION_NO_LOCAL 4u
#define SUBSCRIPTION_RETAIN_AS_PUBLISHED 8u
#define SUBSCRIPTION_RETAIN_HANDLING_SHIFT 4
#define SUBSCRIPTION_IDENTIFIER_SHIFT 4
#define SUBSCRIPTION_MAX_IDENTIFIER 268435455LL
#define SUBSCRIPTION_MOST_IDENTIFIER_BYTES 5 /* of one property: its name and a variable byte integer */

typedef struct subscription {
    uint8_t options;     /* reserved bits 0 */
    uint32_t identifier; /* 0: none */
} subscription;

/* False if the text says nothing that can be. */
bool subscription_read(const server_string *text, subscription *s);
/* The same; false after replying an error. */
bool subscription_parse(server_ctx *ctx, const server_string *text, subscription *s);

uint32_t subscription_pack(subscription s);
static inline uint32_t subscription_identifier(uint32_t packed) {
    return packed >> SUBSCRIPTION_IDENTIFIER_SHIFT;
}

/* Writes the identifier as a property of a PUBLISH (MQTT 5.0 section 3.3.2.3.8); returns its bytes. */
size_t subscription_write_property(uint32_t identifier, uint8_t *out);
/* How many bytes of such properties the properties begin with. */
size_t subscription_property_bytes(hmq_slice properties);

#endif
