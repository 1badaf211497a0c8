/* share_replay_keys.h - the position of a group that reads history (routing/share_replay.h), below shares. */
#ifndef HMQ_SHARE_REPLAY_KEYS_H
#define HMQ_SHARE_REPLAY_KEYS_H

#include "index/index.h"

/* Does the group read history now? */
bool share_replays(const index_t *index, hmq_slice filter);

/* Is it the name of such a key?  Reads the key again. */
bool share_replay_is_key(hmq_slice name);
void share_replay_refresh(server_ctx *ctx, index_t *index, hmq_slice name);

/* A group without members begins at this position: `value` is that of session_replay_begin. */
void share_replay_begin(server_ctx *ctx, index_t *index, server_string *filter, server_string *value);

/* The group is over. */
void share_replay_end(server_ctx *ctx, index_t *index, hmq_slice filter);

/* Sets the group's position; NULL: it no longer reads history. */
void share_replay_write(server_ctx *ctx, index_t *index, hmq_slice key, server_string *filter, server_string *value);

extern const index_kind share_replays_kind;

#endif
