/* internal.h - what the files of the index share: index/index.c (what it is), index/events.c (how it hears of changes),
 * index/check.c (whether it is right).  Nobody else includes it. */
#ifndef HMQ_INDEX_INTERNAL_H
#define HMQ_INDEX_INTERNAL_H

#include "index/index.h"

/* Who wants to know; its functions may be NULL. */
extern index_watcher index_watched_by;

/* The index of a database, made if there is none. */
index_t *index_at(int db);
index_t *index_new(void);
/* An index of its own, made from all keys of the context's database; the caller frees it. */
index_t *index_rebuild(server_ctx *ctx);
void index_free(index_t *index);

/* The database became empty. */
void index_reset(int db);
void index_swap(int a, int b);
/* Does an index that is made from now on begin with a scan? */
void index_scan_new(bool scans);
/* All databases are to be scanned anew. */
void index_doubt_all(void);
/* The same, and nothing of what was known holds: all keys are others. */
void index_forget_all(void);

void index_register(const index_kind *const *kinds);
const index_kind *const *index_kinds(void);

/* Is the name of a kind that only reading its key can judge? */
bool index_needs_look(hmq_slice name, bool expired);
/* Tells those whose business are all names. */
void index_name_used(server_ctx *ctx, index_t *index, hmq_slice name, index_use use);
/* A key of any type may have come to be under this name. */
void index_key_appeared(server_ctx *ctx, index_t *index, hmq_slice name);

#endif
