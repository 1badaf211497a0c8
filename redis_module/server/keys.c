/* keys.c - checks the types of keys. */
#include "server/keys.h"

#include "server/errors.h"

const char *key_type_name(int type) {
    switch (type) {
    case SERVER_STRING: return "a string";
    case SERVER_LIST: return "a list";
    case SERVER_HASH: return "a hash";
    case SERVER_SET: return "a set";
    case SERVER_ZSET: return "a sorted set";
    case SERVER_STREAM: return "a stream";
    default: return "another type";
    }
}

bool key_check(server_ctx *ctx, server_key *key, const server_string *name, int type) {
    if (key_may_be(key, type)) return true;
    reply_wrong_type(ctx, name, key_type_name(type));
    return false;
}

int key_type_of(server_ctx *ctx, server_string *name, int mode) {
    server_key *key = sv.OpenKey(ctx, name, mode);
    int type = sv.KeyType(key);
    if (key != NULL) sv.CloseKey(key);
    return type;
}

bool key_check_name(server_ctx *ctx, server_string *name, int type) {
    int found = key_type_of(ctx, name, SERVER_READ);
    if (found == type || found == SERVER_EMPTY) return true;
    reply_wrong_type(ctx, name, key_type_name(type));
    return false;
}

server_key *key_open_to_write(server_ctx *ctx, server_string *name, int type) {
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (key_check(ctx, key, name, type)) return key;
    sv.CloseKey(key);
    return NULL;
}
