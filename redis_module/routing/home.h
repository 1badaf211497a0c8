/* home.h - HOME of TOPIC.PUBLISH: a publish by the answer of a node of the cluster (ROUTE.CHECK).
 *
 *     TOPIC.PUBLISH <topic> <payload> ... SLOTS <count> <first> <last> ... HOME <node> <generation>
 *     reply: [<sessions reached>, [[first, last, reason], ...]]      the slots that did not take it
 *
 *     NOHOME, STALEHOME       an error, nothing was stored: the node that answered may lack subscribers of this node
 *     MOVED <host>:<port>     the slot is another node's
 *     TRYAGAIN                the slot is moving or has no node, or the cluster is down
 *     REFUSED                 it was refused before on this connection (cluster/refusals.h)
 *     FENCED                  it has seen a later epoch of the publisher (routing/publisher_epochs.h)
 *
 * Invariants:
 *  1. By the answer of a generation that this node did not export to, or of a node that has no slots by this node's view,
 *     nothing is stored.
 *  2. A slot that does not take the publish takes no later one on this connection, until ROUTE.RESUME.
 *  3. The other slots take it in this step, with the publisher's epoch.
 *
 * Judging costs O(slots named), and with EPOCH a look-up for each.  One command is judged at a time, in 10 KiB. */
#ifndef HMQ_PUBLISH_HOME_H
#define HMQ_PUBLISH_HOME_H

#include "server/args.h"
#include "server/slots_option.h"
#include "routing/publisher.h"

#define HOME_EPOCH_SLOTS_MOST 1024 /* slots that a publish with EPOCH may name: each is looked up, and may be written */

typedef struct publish_home {
    bool given;
    hmq_slice node;
    long long n;
} publish_home;

/* Steps over HOME and its values if that is the next argument (*taken).  False after replying an error. */
bool publish_home_parse(args *a, publish_home *home, bool *taken);
/* After all options: do they fit together?  False after replying an error. */
bool publish_home_check(server_ctx *ctx, const publish_home *home, const slots_option *slots, const publisher *from);

typedef enum home_verdict {
    HOME_REPLIED, /* an error, or that no slot takes it: nothing is to be published */
    HOME_TAKES, /* slots->asked has the slots that take it */
} home_verdict;
/* Which of the slots take the publish? */
home_verdict publish_home_judge(server_ctx *ctx, const publish_home *home, slots_option *slots, const publisher *from);

/* After the publish: notes the epoch, and replies. */
void publish_home_end(server_ctx *ctx, const slots_option *slots, const publisher *from, long long reached);

#endif
