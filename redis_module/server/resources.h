/* resources.h - the server's memory and disk: determined at load, checked once a second; publishes are refused before
 * the disk is full.  While messages are stored, free disk is checked every 10 ms.
 *
 *     memory_limit   the least of maxmemory, the limits of the process's control groups and the machine's memory
 *     memory_used    of that: used_memory if the limit is maxmemory, else what the process has resident
 *     disk           the one with the server's folder; free: the bytes that this user may still write
 *
 *     free disk   ...─────┬──────────────────────────┬──────────────────┬─── 0
 *                 enough  │ scarce: a warning        │ holdmq.min-free-disk: storing is refused
 *                         └ four times that, or the size of the append-only file, which a rewrite writes again
 *
 * On a full disk, a server that syncs each write ends, and others refuse every write.  Only a server with an append-only
 * file refuses here, and only commands that store messages; commands that remove them still work.  When memory is full,
 * the server itself refuses (OOM), if maxmemory is below the limit of the control group; otherwise it warns at load. */
#ifndef HMQ_RESOURCES_H
#define HMQ_RESOURCES_H

#include "server/state.h"

/* 0: not known. */
typedef struct resources {
    unsigned long long memory_limit, memory_used, disk_total, disk_free;
} resources;

/* Logs what the server has. */
void resources_start(server_ctx *ctx);

/* As of the last check. */
resources resources_read(void);

/* Is storing temporarily refused? */
bool resources_are_short(void);
/* The same; counts a refusal if so. */
bool resources_refuse(void);
/* The error text of a refusal; valid until the next check. */
const char *resources_refusal(void);
/* Replies that error.  Always returns SERVER_OK. */
int resources_reply_refusal(server_ctx *ctx);

#endif
