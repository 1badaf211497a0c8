/* tbmq.c - finds and replaces top-level members of a JSON object without parsing the rest. */
#include "topic/tbmq.h"

#include <stdio.h>
#include <string.h>

#include "topic/tbmq_scan.h"

/* The three members that a change needs; .data is NULL for a missing one. */
typedef struct found {
    hmq_slice type, packet_id, payload;
    const char *close; /* the object's closing brace */
} found;

/* Does the text contain the name of the member that every such message has?  Most JSON of devices does not even contain
 * its capital letter, which memchr finds quickly. */
static bool may_have_type(const char *json, size_t len) {
    static const char name[] = "packetType";
    const size_t before = 6, from_letter = sizeof name - 1 - before;
    const char *end = json + len;
    for (const char *at = json; at < end && (at = memchr(at, 'T', (size_t)(end - at))) != NULL; at++) {
        if ((size_t)(at - json) >= before && (size_t)(end - at) >= from_letter &&
            memcmp(at - before, name, sizeof name - 1) == 0)
            return true;
    }
    return false;
}

static bool scan(const char *json, size_t len, found *f) {
    scanner s = {json, json + len};
    member m;
    *f = (found){{NULL, 0}, {NULL, 0}, {NULL, 0}, NULL};
    if (!may_have_type(json, len)) return false;
    if (!take(&s, '{')) return false;
    do {
        if (!next_member(&s, &m)) return false;
        if (equals(m.name, "packetType"))
            f->type = m.value;
        else if (equals(m.name, "packetId"))
            f->packet_id = m.value;
        else if (equals(m.name, "payload"))
            f->payload = m.value;
    } while (take(&s, ','));
    skip_blank(&s);
    f->close = s.at;
    if (!take(&s, '}')) return false;
    skip_blank(&s);
    return s.at == s.end && f->type.data != NULL;
}

bool hmq_tbmq_is(const char *json, size_t len) {
    found f;
    return scan(json, len, &f);
}

bool hmq_tbmq_is_released(const char *json, size_t len) {
    found f;
    return scan(json, len, &f) && equals(f.type, "\"PUBREL\"");
}

/* One replacement: the bytes from..to of the input become `text`. */
typedef struct edit {
    const char *from, *to;
    const char *text;
} edit;

static size_t apply(const char *json, size_t len, edit *edits, size_t count, char *out, size_t capacity) {
    size_t used = 0;
    const char *at = json;
    if (count == 2 && edits[1].from < edits[0].from) {
        edit first = edits[1];
        edits[1] = edits[0];
        edits[0] = first;
    }
    for (size_t i = 0; i <= count; i++) {
        const char *to = i < count ? edits[i].from : json + len;
        const char *text = i < count ? edits[i].text : "";
        size_t kept = (size_t)(to - at), added = strlen(text);
        if (capacity - used < kept + added) return 0;
        memcpy(out + used, at, kept);
        memcpy(out + used + kept, text, added);
        used += kept + added;
        if (i < count) at = edits[i].to;
    }
    return used;
}

static edit replace(hmq_slice value, const char *text) {
    const char *from = (const char *)value.data;
    return (edit){from, from + value.len, text};
}

size_t hmq_tbmq_with_packet_id(const char *json, size_t len, uint16_t packet_id, char *out, size_t capacity) {
    found f;
    char text[24];
    if (!scan(json, len, &f)) return 0;
    snprintf(text, sizeof text, f.packet_id.data != NULL ? "%u" : ",\"packetId\":%u", (unsigned)packet_id);
    edit set = f.packet_id.data != NULL ? replace(f.packet_id, text) : (edit){f.close, f.close, text};
    return apply(json, len, &set, 1, out, capacity);
}

size_t hmq_tbmq_released(const char *json, size_t len, char *out, size_t capacity) {
    found f;
    if (!scan(json, len, &f)) return 0;
    edit edits[2] = {replace(f.type, "\"PUBREL\""), {NULL, NULL, NULL}};
    if (f.payload.data != NULL) edits[1] = replace(f.payload, "\"\"");
    return apply(json, len, edits, f.payload.data != NULL ? 2 : 1, out, capacity);
}
