/* internal.h - what the files of the index share: index/index.c (what it is), index/events.c (how it is notified of changes),
 * index/check.c (whether it is right).  No other file includes it. */
#ifndef HMQ_INDEX_INTERNAL_H
#define HMQ_INDEX_INTERNAL_H

#include "index/index.h"

/* The watcher; its functions may be NULL. */
extern index_watcher index_watched_by;

/* The index of a database, made if there is none. */
index_t *index_at(int db);
index_t *index_new(void);
/* A separate index, made from all keys of the context's database.  The caller frees it. */
index_t *index_rebuild(server_ctx *ctx);
void index_free(index_t *index);

/* The database became empty. */
void index_reset(int db);
void index_swap(int a, int b);
/* Sets whether a new index begins with a scan. */
void index_scan_new(bool scans);
/* All databases will be scanned again. */
void index_mark_all_stale(void);
/* The same, and nothing that was known is still valid: all keys are different ones. */
void index_forget_all(void);

void index_register(const index_kind *const *kinds);
const index_kind *const *index_kinds(void);

/* Must the key be read to know what to do about its name? */
bool index_needs_look(hmq_slice name, bool expired);
/* Calls the kinds that hear of all names. */
void index_name_used(server_ctx *ctx, index_t *index, hmq_slice name, index_use use);
/* A key of any type may have this name now. */
void index_key_appeared(server_ctx *ctx, index_t *index, hmq_slice name);

#endif
