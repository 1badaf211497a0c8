/* export.h - ROUTE.EXPORT: the routes of this node's sessions, for a node that answers.
 *
 *     ROUTE.EXPORT <node> <generation> [CURSOR <cursor>] [COUNT <count>]
 *     reply: [[filter, slot, filter, slot ...], [first, last, first, last ...] slots, cursor of the next page]
 *
 * The first page notes the generation in `homes`, in the step in which it reads.  From then on this generation must be
 * told of each new subscription.  So subscriptions that arrive while pages are read need not be in the pages.
 *
 * The order is that of the slots.  A slot that fits into one page is complete as of that step.  A longer slot continues
 * in the next page.  It is complete if it was served from its first page to its last, and none of its routes vanished
 * unnoticed (own.h).  Otherwise it begins again, or is left out if it is no longer served.  The slots of a page are
 * those that are complete with it. */
#ifndef HMQ_ROUTE_EXPORT_H
#define HMQ_ROUTE_EXPORT_H

#include "server/state.h"

int route_export_command(server_ctx *ctx, server_string **argv, int argc);

#endif
