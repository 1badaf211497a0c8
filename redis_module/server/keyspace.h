/* keyspace.h - changes of keys: the module tells the server of its own, and hears of those of others. */
#ifndef HMQ_KEYSPACE_H
#define HMQ_KEYSPACE_H

#include "server/state.h"

/* Who keeps something in memory that is a function of keys. */
typedef struct keyspace_listener {
    /* Others changed a key: an event of the server. */
    void (*changed)(server_ctx *ctx, int type, const char *event, server_string *key);
    /* The module itself changed a hash, or what a key is. */
    void (*written)(server_ctx *ctx, server_string *key);
} keyspace_listener;

void keyspace_start(server_ctx *ctx, keyspace_listener listener);

/* The module itself changed the key: tells WATCH, client tracking and the listeners of keyspace events. */
void index_notify(server_ctx *ctx, int type, const char *event, server_string *key);
/* The same for a key of which the module remembers nothing, or that it remembers right already. */
void index_notify_others(server_ctx *ctx, int type, const char *event, server_string *key);

/* Removes a key, whatever it holds; replicated and told as by index_notify.  The name is released.  False if there was
 * none. */
bool keyspace_drop(server_ctx *ctx, server_string *name);
/* The same for a key of which the module remembers nothing. */
bool keyspace_drop_past(server_ctx *ctx, server_string *name);

#endif
