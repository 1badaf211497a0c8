/* keys.h - checks the types of keys.
 *
 * A key that does not exist is NULL if it was opened for reading, and of the type SERVER_EMPTY if it was opened for
 * writing.  The server's KeyType returns SERVER_EMPTY for both, so NULL needs no test. */
#ifndef HMQ_KEYS_H
#define HMQ_KEYS_H

#include "server/state.h"

/* What an error calls a type: "a hash". */
const char *key_type_name(int type);

/* Is the opened key of this type, or missing? */
static inline bool key_may_be(server_key *key, int type) {
    int found = sv.KeyType(key);
    return found == type || found == SERVER_EMPTY;
}

/* The same; false after replying WRONGTYPE. */
bool key_check(server_ctx *ctx, server_key *key, const server_string *name, int type);

/* Opens a key of this type, which may be new.  NULL after replying WRONGTYPE. */
server_key *key_open_to_write(server_ctx *ctx, server_string *name, int type);

/* The type of the key with this name; `mode` is that of OpenKey. */
int key_type_of(server_ctx *ctx, server_string *name, int mode);

/* Is the key with this name of this type, or missing?  False after replying WRONGTYPE. */
bool key_check_name(server_ctx *ctx, server_string *name, int type);

#endif
