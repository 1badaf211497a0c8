/* channel_keys.c - builds and reads the names of the keys that belong to a channel. */
#include "server/channel_keys.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/memory.h"

#define SMALL_NAME 256

/* Does the name have a hash tag, as the cluster understands it: '{', at least one byte, '}'? */
static bool has_hash_tag(hmq_slice name) {
    const uint8_t *open = memchr(name.data, '{', name.len);
    if (open == NULL) return false;
    const uint8_t *close = memchr(open, '}', name.len - (size_t)(open - name.data));
    return close != NULL && close > open + 1;
}

bool channel_producer_shares_slot(hmq_slice channel) {
    return has_hash_tag(channel) || memchr(channel.data, '}', channel.len) == NULL;
}

server_string *channel_key(hmq_slice channel, hmq_channel_key_kind kind) {
    char small[SMALL_NAME];
    size_t capacity = channel.len * 3 + 40;
    char *name = scratch_alloc(small, sizeof small, capacity);
    size_t len = hmq_channel_key_encode((const char *)channel.data, channel.len, kind, name, capacity);
    server_string *key = sv.CreateString(NULL, name, len);
    scratch_free(name, small);
    return key;
}

server_string *channel_of_key(hmq_slice name, hmq_channel_key_kind *kind) {
    char small[SMALL_NAME];
    char *channel = scratch_alloc(small, sizeof small, name.len);
    int64_t len = hmq_channel_key_decode((const char *)name.data, name.len, kind, channel, name.len);
    server_string *found = len < 0 ? NULL : sv.CreateString(NULL, channel, (size_t)len);
    scratch_free(channel, small);
    return found;
}

server_string *channel_producer_key(hmq_slice channel, hmq_slice producer) {
    size_t capacity = channel.len * 3 + producer.len * 3 + 32, len = 0;
    char *name = sv.Alloc(capacity);
    const char *middle = "_producer";
    if (!channel_producer_shares_slot(channel)) {
        middle = "_producer%";
        len = hmq_session_key_encode((const char *)channel.data, channel.len, name, capacity);
    } else {
        bool braces = memchr(channel.data, '}', channel.len) == NULL;
        if (!braces) middle = ":producer";
        if (braces) name[len++] = '{';
        memcpy(name + len, channel.data, channel.len);
        len += channel.len;
        if (braces) name[len++] = '}';
    }
    memcpy(name + len, middle, strlen(middle));
    len += strlen(middle);
    len += hmq_session_key_encode((const char *)producer.data, producer.len, name + len, capacity - len);
    server_string *key = sv.CreateString(NULL, name, len);
    sv.Free(name);
    return key;
}
