/* packet_ids.c - reads the packet identifiers at the end of a command. */
#include "packet_ids.h"

#include "../src/packet_id.h"
#include "errors.h"

bool packet_ids_parse(args *a, packet_id_list *list) {
    list->count = (size_t)(a->argc - a->at);
    if (list->count == 0) {
        reply_error(a->ctx, ERROR_SYNTAX, "packet-id is missing: at least one expected");
        return false;
    }
    list->ids = list->count <= sizeof list->small / sizeof list->small[0] ? list->small
                                                                          : sv.Alloc(list->count * sizeof *list->ids);
    for (size_t i = 0; i < list->count; i++) {
        long long packet_id;
        if (!args_number(a, "packet-id", 1, HMQ_PACKET_ID_MAX, &packet_id)) {
            packet_ids_free(list);
            return false;
        }
        list->ids[i] = (uint16_t)packet_id;
    }
    return true;
}

void packet_ids_free(packet_id_list *list) {
    if (list->ids != list->small) sv.Free(list->ids);
}
