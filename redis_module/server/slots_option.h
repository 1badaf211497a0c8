/* slots_option.h - the option SLOTS of TOPIC.PUBLISH and TOPIC.RETAINED.  In a cluster a client sends the command to every
 * node, with the slots that it believes that node to have.  The reply lists the slots that were not served.
 *
 *     SLOTS <count> <first> <last> [<first> <last> ...]
 *     reply: [<the command's own reply>, [[first, last, "host:port"], ...]]      the slots that were not served
 *
 * So each slot is served once, whatever moves in the meantime.  For slots that were not served, the client repeats the
 * command at the given address, or later if the address is empty.
 *
 * A moving slot need not stop all others.  Each of its keys is either here or at the target.  If no key here
 * concerns the command, the client only has to ask the target afterwards, because keys move in one direction. */
#ifndef HMQ_SLOTS_OPTION_H
#define HMQ_SLOTS_OPTION_H

#include "server/args.h"
#include "server/slots.h"

typedef struct slots_option {
    bool given;
    bool blocks; /* a key in a moving slot was needed */
    unsigned blocked_slot; /* ... the first such slot */
    unsigned first, last; /* if given: all that are asked for are between these */
    hmq_slot_set asked; /* if given */
    hmq_slot_set blocked; /* if given */
} slots_option;

void slots_option_begin(slots_option *option);
/* Reads the arguments after the word SLOTS.  False after replying an error. */
bool slots_option_parse(args *a, slots_option *option);

typedef enum slot_verdict {
    SLOT_USE, /* it is for this command, and not moving */
    SLOT_WAIT, /* it is moving, or the cluster is down: not now (noted) */
    SLOT_LEAVE, /* it is not among those of this command, or another node's */
} slot_verdict;

/* May this command use the keys of this slot? */
slot_verdict slots_option_verdict(slots_option *option, unsigned slot);

/* Is the slot for this command, and are its keys, or some of them, on this node? */
bool slots_option_lists(const slots_option *option, unsigned slot);

/* Replies the array of slots that were not served. */
void slots_option_reply_unserved(server_ctx *ctx, const slots_option *option);

#endif
