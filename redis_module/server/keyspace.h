/* keyspace.h - changes of keys: the module announces its own to the server, and is notified of those by others. */
#ifndef HMQ_KEYSPACE_H
#define HMQ_KEYSPACE_H

#include "server/state.h"

/* A part of the module that keeps a function of keys in memory. */
typedef struct keyspace_listener {
    /* Another program changed a key: an event of the server. */
    void (*changed)(server_ctx *ctx, int type, const char *event, server_string *key);
    /* The module changed a hash, or created or removed a key. */
    void (*written)(server_ctx *ctx, server_string *key);
} keyspace_listener;

void keyspace_start(server_ctx *ctx, keyspace_listener listener);

/* A client sent MODULE: another module may be loaded. */
void keyspace_note_module_command(void);

/* The module changed the key: informs WATCH, client tracking and the listeners of keyspace events. */
void index_notify(server_ctx *ctx, int type, const char *event, server_string *key);
/* The same for a key of which nothing is kept in memory, or whose memory is up to date already. */
void index_notify_others(server_ctx *ctx, int type, const char *event, server_string *key);

/* Removes a key of any type, replicated and announced as by index_notify.  Releases the name.  False if the key did not
 * exist. */
bool keyspace_drop(server_ctx *ctx, server_string *name);
/* The same for a key of which the module keeps nothing in memory. */
bool keyspace_drop_past(server_ctx *ctx, server_string *name);

#endif
