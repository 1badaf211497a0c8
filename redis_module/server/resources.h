/* resources.h - what memory and disk the server has: found out at load, looked at once a second, refused before it is used up.
 * Free disk is looked at every 10 ms while messages are stored.
 *
 *     memory_limit   the least of maxmemory, the limits of the process's control groups and the machine's memory
 *     memory_used    of that: used_memory if the limit is maxmemory, else what the process has resident
 *     disk           the one that holds the server's folder; free is what this user may still write
 *
 *     free disk   ...─────┬──────────────────────────┬──────────────────┬─── 0
 *                 enough  │ scarce: a warning        │ holdmq.min-free-disk: what would be stored is refused
 *                         └ four times that, or the size of the append-only file, which a rewrite writes once more
 *
 * A full disk ends a server that syncs each write, and lets others refuse every write.  Only a server with an append-only file
 * refuses here, and only commands that store messages: what removes them goes on.  Full memory the server refuses itself (OOM),
 * as far as maxmemory is below the limit of the control group; that it is not is said at load. */
#ifndef HMQ_RESOURCES_H
#define HMQ_RESOURCES_H

#include "server/state.h"

/* 0: not known. */
typedef struct resources {
    unsigned long long memory_limit, memory_used, disk_total, disk_free;
} resources;

/* Says in the server's log what there is. */
void resources_start(server_ctx *ctx);

/* As of the last look. */
resources resources_read(void);

/* Is storing temporarily refused? */
bool resources_are_short(void);
/* The same, and counts one refusal if it is. */
bool resources_refuse(void);
/* The error of that; valid until the next look. */
const char *resources_refusal(void);
/* Replies it.  Always returns SERVER_OK. */
int resources_reply_refusal(server_ctx *ctx);

#endif
