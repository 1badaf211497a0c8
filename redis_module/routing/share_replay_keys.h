/* share_replay_keys.h - the place of a group that reads history (routing/share_replay.h), below shares. */
#ifndef HMQ_SHARE_REPLAY_KEYS_H
#define HMQ_SHARE_REPLAY_KEYS_H

#include "index/index.h"

/* Does the group read history now? */
bool share_replays(const index_t *index, hmq_slice filter);

/* Is that the name of such a key?  Reads it anew. */
bool share_replay_is_key(hmq_slice name);
void share_replay_refresh(server_ctx *ctx, index_t *index, hmq_slice name);

/* A group that has no member yet begins there: `value` is of session_replay_begin. */
void share_replay_begin(server_ctx *ctx, index_t *index, server_string *filter, server_string *value);

/* The group is over. */
void share_replay_end(server_ctx *ctx, index_t *index, hmq_slice filter);

/* The group is there now; NULL: it does not read history any more. */
void share_replay_write(server_ctx *ctx, index_t *index, hmq_slice key, server_string *filter, server_string *value);

extern const index_kind share_replays_kind;

#endif
