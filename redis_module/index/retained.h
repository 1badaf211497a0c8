/* retained.h - which topics of a database have a retained message. */
#ifndef HMQ_INDEX_RETAINED_H
#define HMQ_INDEX_RETAINED_H

#include "index/index.h"
#include "index/usage.h"

/* The field of a retained message's hash that names the user for whom it counts. */
#define RETAINED_IDENTITY "identity"

/* A retained message. */
typedef struct retained_entry {
    server_string *key;
    usage_user *user; /* the user for whom it counts (routing/quota.h); NULL: none */
} retained_entry;

/* `identity`: the user for whom it counts; len 0: none. */
void index_set_retained(index_t *index, hmq_slice key, hmq_slice identity);
void index_remove_retained(index_t *index, hmq_slice key);

extern const index_kind index_retained_kind;

#endif
