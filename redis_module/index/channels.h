/* channels.h - which kinds of keys each channel of a database has, and whether the application uses a channel's name.
 *
 * The first is a function of the keyspace: `held` of index/index.h, a dictionary from the channel to the kinds of its
 * keys (one bit each).
 *
 * The second decides whether LRANGE <channel> shows held messages (channel/read.h): only if the application is not
 * known to use the channel's name for a key.  It is known to use it if
 *   - a key of that name exists,
 *   - a list of that name was changed since the server was started, or emptied by FLUSHALL (a Bloom filter, which sometimes
 *     reports another name, too),
 *   - the running script names it among its keys,
 *   - a key of that name was changed while a message was held: the channel is "claimed" until a mark in the keyspace
 *     (kind ASIDE) says so to replicas and after a restart. */
#ifndef HMQ_CHANNEL_INDEX_H
#define HMQ_CHANNEL_INDEX_H

#include "server/channel_keys.h"
#include "index/index.h"

#define KIND_BIT(kind) (1u << (kind))

/* The kinds of keys that the channel has. */
unsigned channel_index_kinds(const index_t *index, hmq_slice channel);
/* Does the channel hold messages, or have any key, in any database?  True if that is not known. */
bool channel_index_holds_anywhere(hmq_slice channel);
bool channel_index_keeps_nothing(void);
bool channel_index_keeps_anywhere(hmq_slice channel);
/* Does it hold messages, in any database, that LRANGE shows? */
bool channel_index_shows_anywhere(hmq_slice channel);
/* The module created or removed the key. */
void channel_index_set(index_t *index, hmq_slice channel, hmq_channel_key_kind kind, bool present);

/* Is it the name of a channel's key?  For other names this costs a comparison of seven bytes. */
bool channel_index_is_key(hmq_slice name);
/* A channel's key was created or removed. */
void channel_index_key_changed(index_t *index, hmq_slice name, bool present);

/* The application changed a key. */
void channel_index_name_used(index_t *index, hmq_slice name, bool is_list);
/* All databases are empty: forgets the names that were seen. */
void channel_index_forget_names(void);
/* A script that names these keys is about to run. */
void channel_index_script(server_string *const *keys, size_t count);

/* Is the application known to use the channel's name for a key? */
bool channel_index_is_used(server_ctx *ctx, const index_t *index, hmq_slice channel, server_string *name);
/* The same, but known from marks and claims alone. */
bool channel_index_is_marked_used(const index_t *index, hmq_slice channel);

/* Reads all of the keys again, because some may have expired unnoticed. */
void channel_index_look(server_ctx *ctx, index_t *index);

/* The mark of the channel has been written. */
void channel_index_unclaim(int db, hmq_slice channel);
/* The next claimed channel of the database that has no mark yet, NULL if there is none.  The caller frees it. */
server_string *channel_index_claimed(index_t *index);

extern const index_kind index_channels_kind;

#endif
