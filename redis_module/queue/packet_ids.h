/* packet_ids.h - the packet identifiers at the end of a command: one per argument, or first-last for a range.  (A
 * client acknowledges in order: a hundred identifiers are mostly one range.) */
#ifndef HMQ_PACKET_IDS_H
#define HMQ_PACKET_IDS_H

#include "server/args.h"

#define PACKET_IDS_MAX 1000000 /* in one command, with repetitions */

typedef struct packet_id_list {
    uint16_t *ids;
    size_t count;
    uint16_t small[64];
} packet_id_list;

/* Reads all remaining arguments, at least one.  False after replying an error.  Otherwise call packet_ids_free. */
bool packet_ids_parse(args *a, packet_id_list *list);
void packet_ids_free(packet_id_list *list);

#endif
