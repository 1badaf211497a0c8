/* slots_option.h - the option SLOTS of TOPIC.PUBLISH and TOPIC.RETAINED: in a cluster a client asks every node, each for
 * the slots that it takes to be that node's, and is told which of them were not served.
 *
 *     SLOTS <count> <first> <last> [<first> <last> ...]
 *     reply: [<what the command replies>, [[first, last, "host:port"], ...]]      the slots that were not served
 *
 * So each slot is served once, whatever moves meanwhile: what was not served here is asked for again, elsewhere (if an
 * address is given: there, now) or later (if it is empty), and what was served is not.
 *
 * Why a slot that is on its way need not stop everybody: what it has is either here or at its target.  If nothing here
 * concerns the command, the target knows the rest, provided that it is asked afterwards: keys go only one way. */
#ifndef HMQ_SLOTS_OPTION_H
#define HMQ_SLOTS_OPTION_H

#include "server/args.h"
#include "server/slots.h"

typedef struct slots_option {
    bool given;
    bool blocks; /* something in a slot on its way was to be used */
    unsigned blocked_slot; /* ... the first such slot */
    hmq_slot_set asked; /* if given */
    hmq_slot_set blocked; /* if given */
} slots_option;

void slots_option_begin(slots_option *option);
/* Reads what stands behind the word SLOTS; false after replying an error. */
bool slots_option_parse(args *a, slots_option *option);

typedef enum slot_verdict {
    SLOT_USE, /* it is for this command and at rest */
    SLOT_WAIT, /* it is on its way, or the cluster is down: not now (noted) */
    SLOT_LEAVE, /* it is not for this command, or another node's */
} slot_verdict;

/* May this command use what lies in this slot? */
slot_verdict slots_option_verdict(slots_option *option, unsigned slot);

/* Is the slot for this command, and its keys, or some of them, rightly here? */
bool slots_option_lists(const slots_option *option, unsigned slot);

/* Replies the array of what was not served. */
void slots_option_reply_unserved(server_ctx *ctx, const slots_option *option);

#endif
