/* cursor.c - where a page of ROUTE.EXPORT ends. */
#include "cluster/cursor.h"

#include <stdio.h>
#include <string.h>

#include "topic/slot.h"
#include "topic/topic.h"
#include "server/slots.h"

#define END "0"
#define HEAD_MAX_BYTES (SLOTS_NODE_ID_BYTES + 64)

/* Steps over the next part, which ends at a colon or at the end of the text. */
static hmq_slice next_part(hmq_slice *text) {
    const uint8_t *colon = text->len > 0 ? memchr(text->data, ':', text->len) : NULL;
    hmq_slice part = {text->data, colon == NULL ? text->len : (size_t)(colon - text->data)};
    size_t used = part.len + (colon == NULL ? 0 : 1);
    *text = (hmq_slice){text->data + used, text->len - used};
    return part;
}

static bool next_number(hmq_slice *text, long long most, long long *number) {
    hmq_slice part = next_part(text);
    *number = 0;
    if (part.len == 0) return false;
    for (size_t i = 0; i < part.len; i++) {
        int digit = part.data[i] - '0';
        if (digit < 0 || digit > 9 || *number > (most - digit) / 10) return false;
        *number = *number * 10 + digit;
    }
    return true;
}

bool route_cursor_read(hmq_slice text, route_cursor *cursor) {
    long long slot, vanished;
    *cursor = (route_cursor){.is_end = true};
    if (slice_is(text, END)) return true;
    cursor->is_end = false;
    cursor->node = next_part(&text);
    if (cursor->node.len != SLOTS_NODE_ID_BYTES) return false;
    if (!next_number(&text, INT64_MAX, &cursor->generation) || !next_number(&text, HMQ_SLOTS - 1, &slot)) return false;
    cursor->slot = (unsigned)slot;
    if (text.len == 0) return true;
    if (!next_number(&text, UINT32_MAX, &vanished)) return false;
    cursor->is_within = true;
    cursor->vanished = (uint32_t)vanished;
    cursor->filter = text;
    return text.len > 0 && text.len <= HMQ_TOPIC_MAX_BYTES;
}

server_string *route_cursor_text(const route_cursor *cursor) {
    char head[HEAD_MAX_BYTES];
    if (cursor->is_end) return sv.CreateString(NULL, END, sizeof END - 1);
    int len = snprintf(head, sizeof head, "%.*s:%lld:%u", (int)cursor->node.len, (const char *)cursor->node.data,
                       cursor->generation, cursor->slot);
    if (!cursor->is_within) return sv.CreateString(NULL, head, (size_t)len);
    len += snprintf(head + len, sizeof head - (size_t)len, ":%u:", cursor->vanished);
    uint8_t *text = sv.Alloc((size_t)len + cursor->filter.len);
    memcpy(text, head, (size_t)len);
    memcpy(text + len, cursor->filter.data, cursor->filter.len);
    server_string *made = sv.CreateString(NULL, (const char *)text, (size_t)len + cursor->filter.len);
    sv.Free(text);
    return made;
}
