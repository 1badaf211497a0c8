/* packet_ids.c - reads the packet identifiers at the end of a command. */
#include "queue/packet_ids.h"

#include <string.h>

#include "topic/packet_id.h"
#include "server/errors.h"

static void append_range(packet_id_list *list, size_t *room, unsigned first, unsigned last) {
    size_t needed = list->count + (last - first) + 1;
    if (needed > *room) {
        bool on_heap = list->ids != list->small;
        *room = needed * 2;
        uint16_t *grown = sv.Realloc(on_heap ? list->ids : NULL, *room * sizeof *grown);
        if (!on_heap) memcpy(grown, list->small, list->count * sizeof *grown);
        list->ids = grown;
    }
    for (unsigned id = first; id <= last; id++) list->ids[list->count++] = (uint16_t)id;
}

/* A packet identifier without sign and space; 0 if it is not one. */
static unsigned identifier_of(const uint8_t *digits, size_t len) {
    unsigned value = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9' || i == 5) return 0;
        value = value * 10 + (unsigned)(digits[i] - '0');
    }
    return value <= HMQ_PACKET_ID_MAX ? value : 0;
}

static bool parse_range(args *a, hmq_slice text, const uint8_t *dash, unsigned *first, unsigned *last) {
    size_t len = (size_t)(dash - text.data);
    *first = identifier_of(text.data, len);
    *last = identifier_of(dash + 1, text.len - len - 1);
    if (*first > 0 && *first <= *last) {
        a->at++;
        return true;
    }
    reply_error(a->ctx, ERROR_PACKET_ID_INVALID, shown(a->argv[a->at]), HMQ_PACKET_ID_MAX);
    return false;
}

static bool parse_one(args *a, unsigned *first, unsigned *last) {
    hmq_slice text = slice_of(a->argv[a->at]);
    const uint8_t *dash = text.len < 3 ? NULL : memchr(text.data + 1, '-', text.len - 1);
    if (dash != NULL) return parse_range(a, text, dash, first, last);
    long long packet_id;
    if (!args_number(a, "packet-id", 1, HMQ_PACKET_ID_MAX, &packet_id)) return false;
    *first = *last = (unsigned)packet_id;
    return true;
}

bool packet_ids_parse(args *a, packet_id_list *list) {
    size_t room = sizeof list->small / sizeof list->small[0];
    list->count = 0;
    list->ids = list->small;
    if (!args_left(a)) {
        reply_error(a->ctx, ERROR_PACKET_ID_MISSING);
        return false;
    }
    while (args_left(a)) {
        unsigned first, last;
        if (!parse_one(a, &first, &last)) {
            packet_ids_free(list);
            return false;
        }
        if (list->count + (last - first) >= PACKET_IDS_MAX) {
            reply_error(a->ctx, ERROR_PACKET_IDS_COUNT, PACKET_IDS_MAX);
            packet_ids_free(list);
            return false;
        }
        append_range(list, &room, first, last);
    }
    return true;
}

void packet_ids_free(packet_id_list *list) {
    if (list->ids != list->small) sv.Free(list->ids);
}
