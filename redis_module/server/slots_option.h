/* slots_option.h - the option SLOTS of TOPIC.PUBLISH and TOPIC.RETAINED.  In a cluster a client asks every node, each
 * for the slots that it believes to be that node's.  The reply lists the slots that were not served.
 *
 *     SLOTS <count> <first> <last> [<first> <last> ...]
 *     reply: [<what the command replies>, [[first, last, "host:port"], ...]]      the slots that were not served
 *
 * So each slot is served once, whatever moves meanwhile.  The client asks again for what was not served: at the
 * address, if there is one, or later, if it is empty.
 *
 * A moving slot need not stop all others.  Each of its keys is either here or at the target.  If nothing here
 * concerns the command, the target has the rest, provided that it is asked afterwards: keys move in one direction
 * only. */
#ifndef HMQ_SLOTS_OPTION_H
#define HMQ_SLOTS_OPTION_H

#include "server/args.h"
#include "server/slots.h"

typedef struct slots_option {
    bool given;
    bool blocks; /* something in a moving slot was needed */
    unsigned blocked_slot; /* ... the first such slot */
    hmq_slot_set asked; /* if given */
    hmq_slot_set blocked; /* if given */
} slots_option;

void slots_option_begin(slots_option *option);
/* Reads the arguments after the word SLOTS.  False after replying an error. */
bool slots_option_parse(args *a, slots_option *option);

typedef enum slot_verdict {
    SLOT_USE, /* it is for this command, and not moving */
    SLOT_WAIT, /* it is moving, or the cluster is down: not now (noted) */
    SLOT_LEAVE, /* it is not for this command, or of another node */
} slot_verdict;

/* May this command use the keys of this slot? */
slot_verdict slots_option_verdict(slots_option *option, unsigned slot);

/* Is the slot for this command, and are its keys, or some of them, on this node? */
bool slots_option_lists(const slots_option *option, unsigned slot);

/* Replies the array of slots that were not served. */
void slots_option_reply_unserved(server_ctx *ctx, const slots_option *option);

#endif
