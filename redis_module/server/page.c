/* page.c - pages through names in their order. */
#include "server/page.h"

#include <string.h>

#include "server/errors.h"

#define DEFAULT_COUNT 100
#define BEGIN "0"
#define MARK '>' /* a name may be "0" */

static bool parse_cursor(args *a, page *p) {
    server_string *text;
    if (!args_string(a, "CURSOR", &text)) return false;
    hmq_slice cursor = slice_of(text);
    if (slice_is(cursor, BEGIN)) return true;
    if (cursor.len < 2 || cursor.data[0] != MARK) {
        reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown_slice(cursor));
        return false;
    }
    p->after = (hmq_slice){cursor.data + 1, cursor.len - 1};
    return true;
}

bool page_parse(args *a, page *p) {
    p->after = (hmq_slice){0};
    p->count = DEFAULT_COUNT;
    p->found = 0;
    p->has_more = false;
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!parse_cursor(a, p)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, PAGE_MOST, &p->count)) return false;
        } else {
            return args_end(a);
        }
    }
    return true;
}

void page_take(page *p, server_dict *names) {
    const char *op = p->after.len > 0 ? ">" : "^";
    server_dict_iter *iter = sv.DictIteratorStartC(names, op, (void *)(uintptr_t)p->after.data, p->after.len);
    size_t len, bytes = 0;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL && !p->has_more) {
        if (p->found == (size_t)p->count || bytes >= PAGE_NAME_BYTES) {
            p->has_more = true;
        } else {
            p->names[p->found++] = sv.CreateString(NULL, name, len);
            bytes += len;
        }
    }
    sv.DictIteratorStop(iter);
}

void page_reply_cursor(server_ctx *ctx, const page *p) {
    if (!p->has_more) {
        sv.ReplyWithStringBuffer(ctx, BEGIN, sizeof BEGIN - 1);
        return;
    }
    hmq_slice last = slice_of(p->names[p->found - 1]);
    char *cursor = sv.Alloc(last.len + 1);
    cursor[0] = MARK;
    memcpy(cursor + 1, last.data, last.len);
    sv.ReplyWithStringBuffer(ctx, cursor, last.len + 1);
    sv.Free(cursor);
}

void page_end(page *p) {
    for (size_t i = 0; i < p->found; i++) sv.FreeString(NULL, p->names[i]);
}
