/* export.h - ROUTE.EXPORT: the routes of this node's sessions, for a node that answers.
 *
 *     ROUTE.EXPORT <node> <generation> [CURSOR <cursor>] [COUNT <count>]
 *     reply: [[filter, slot, filter, slot ...], [first, last, first, last ...] slots, cursor of the next page]
 *
 * The first page notes the generation in `homes`, in the step in which it looks.  From then on a new subscription is told
 * that this generation must hear of it.  So what comes while pages are read need not be in them.
 *
 * The order is that of the slots.  A slot that is in one page is complete as of that step.  One that is longer continues
 * in the next page, and is complete if it was served from its first page to its last and nothing of it went away unseen
 * (own.h).  Otherwise it begins again, or, if it is no longer served, is left out.  The slots of a page are those that
 * are complete with it. */
#ifndef HMQ_ROUTE_EXPORT_H
#define HMQ_ROUTE_EXPORT_H

#include "server/state.h"

int route_export_command(server_ctx *ctx, server_string **argv, int argc);

#endif
