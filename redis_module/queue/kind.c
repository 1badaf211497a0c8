/* kind.c - what HOLDMQ.CHECK compares of queues. */
#include "queue/kind.h"

#include "queue/allowance.h"
#include "queue/bytes.h"

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)rebuilt;
    queue_notes_check(ctx, differ, context);
    queue_usage_check(ctx, kept, differ, context);
}

const index_kind queues_kind = {.check = check};
