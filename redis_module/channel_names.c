/* channel_names.c - builds and reads the names of the keys that belong to a channel. */
#include "channel_names.h"

#include <string.h>

#include "../src/session_key.h"

/* Does the name have a hash tag, as the cluster understands it: '{', at least one byte, '}'? */
static bool has_hash_tag(hmq_slice name) {
    const uint8_t *open = memchr(name.data, '{', name.len);
    if (open == NULL) return false;
    const uint8_t *close = memchr(open, '}', name.len - (size_t)(open - name.data));
    return close != NULL && close > open + 1;
}

/* The three forms (channel_names.h); the third for a '}' that makes no tag: encoded, and so in another slot. */
typedef struct name_form {
    hmq_slice last, producer; /* what stands behind the channel */
} name_form;
#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}
static const name_form tagged_form = {TEXT(":last"), TEXT(":producer")};
static const name_form plain_form = {TEXT("_last"), TEXT("_producer")};
static const name_form encoded_form = {TEXT("_last%"), TEXT("_producer%")};

static const name_form *form_of(hmq_slice channel) {
    if (has_hash_tag(channel)) return &tagged_form;
    return memchr(channel.data, '}', channel.len) == NULL ? &plain_form : &encoded_form;
}

bool channel_names_share_slot(hmq_slice channel) {
    return form_of(channel) != &encoded_form;
}

/* The channel as its form has it, `behind`, and `more` bytes of room; *len how long it is so far. */
static char *begin_name(hmq_slice channel, const name_form *form, hmq_slice behind, size_t more, size_t *len) {
    size_t most = channel.len * 3 + 2;
    char *name = sv.Alloc(most + behind.len + more);
    if (form == &encoded_form) {
        *len = hmq_session_key_encode((const char *)channel.data, channel.len, name, most);
    } else {
        size_t brace = form == &plain_form ? 1 : 0;
        if (brace == 1) name[0] = '{', name[channel.len + 1] = '}';
        memcpy(name + brace, channel.data, channel.len);
        *len = channel.len + 2 * brace;
    }
    memcpy(name + *len, behind.data, behind.len);
    *len += behind.len;
    return name;
}

static server_string *end_name(char *name, size_t len) {
    server_string *key = sv.CreateString(NULL, name, len);
    sv.Free(name);
    return key;
}

server_string *channel_last_key(hmq_slice channel) {
    size_t len;
    const name_form *form = form_of(channel);
    char *name = begin_name(channel, form, form->last, 0, &len);
    return end_name(name, len);
}

server_string *channel_producer_key(hmq_slice channel, hmq_slice producer) {
    size_t len, room = producer.len * 3 + 2;
    const name_form *form = form_of(channel);
    char *name = begin_name(channel, form, form->producer, room, &len);
    len += hmq_session_key_encode((const char *)producer.data, producer.len, name + len, room);
    return end_name(name, len);
}

static bool ends_with(hmq_slice name, hmq_slice end) {
    return name.len > end.len && memcmp(name.data + name.len - end.len, end.data, end.len) == 0;
}

/* What stands before the suffix, decoded; -1 if the form is not this one. */
static int64_t decode_last_key(hmq_slice name, const name_form *form, char *channel, size_t capacity) {
    if (!ends_with(name, form->last)) return -1;
    hmq_slice base = {name.data, name.len - form->last.len};
    if (form == &encoded_form) return hmq_session_key_decode((const char *)base.data, base.len, channel, capacity);
    if (form == &plain_form) {
        if (base.len < 2 || base.data[0] != '{' || base.data[base.len - 1] != '}') return -1;
        base = (hmq_slice){base.data + 1, base.len - 2};
    }
    if (base.len > capacity) return -1;
    memcpy(channel, base.data, base.len);
    return (int64_t)base.len;
}

bool channel_of_last_key(hmq_slice name, char *channel, size_t capacity, size_t *len) {
    static const name_form *const forms[] = {&tagged_form, &plain_form, &encoded_form};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        int64_t decoded = decode_last_key(name, forms[i], channel, capacity);
        *len = decoded < 0 ? 0 : (size_t)decoded;
        if (decoded >= 0 && form_of((hmq_slice){(const uint8_t *)channel, *len}) == forms[i]) return true;
    }
    return false;
}
