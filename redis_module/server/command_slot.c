/* command_slot.c - which keys the running command may open. */
#include "server/command_slot.h"

#include "server/awake.h"
#include "server/errors.h"
#include "server/slots.h"
#include "server/turns.h"

#define KEYS_BY_SLOT 0x070200 /* older servers do not keep slots apart; Valkey reports a later version to modules */

static struct {
    bool binds;
    hmq_slice key;
} now;

static bool keeps_slots_apart(void) {
    return can.cluster && can.post_jobs && (can.valkey || can.version >= KEYS_BY_SLOT);
}

static int run_bound(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc, hmq_slice key) {
    now.binds = true;
    now.key = key;
    int result = handler(ctx, argv, argc);
    now.binds = false;
    return result;
}

int command_slot_run(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc) {
    awake_now();
    turns_request();
    bool binds = keeps_slots_apart() && argc > 1 && !now.binds; /* else it is part of a command that does */
    return binds ? run_bound(handler, ctx, argv, argc, slice_of(argv[1])) : handler(ctx, argv, argc);
}

/* Then another of the commands may name a key. */
static bool is_in_transaction_or_script(server_ctx *ctx) {
    return keeps_slots_apart() && (sv.GetContextFlags(ctx) & (SERVER_CTX_MULTI | SERVER_CTX_LUA)) != 0;
}

int command_slot_run_many_slots(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc) {
    awake_now();
    turns_request();
    if (!is_in_transaction_or_script(ctx) || sv.IsChannelsPositionRequest(ctx)) return handler(ctx, argv, argc);
    return reply_error(ctx, ERROR_COMMAND_SPANS_SLOTS, shown(argv[0]));
}

int command_slot_run_keyless(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc) {
    awake_now();
    turns_request();
    bool binds = !now.binds && is_in_transaction_or_script(ctx);
    return binds ? run_bound(handler, ctx, argv, argc, (hmq_slice){0}) : handler(ctx, argv, argc);
}

bool command_slot_is_bound(void) {
    return now.binds;
}

hmq_slice command_slot_key(void) {
    return now.binds ? now.key : (hmq_slice){0};
}

bool command_slot_allows_all(void) {
    return !now.binds && !is_in_transaction_or_script(detached);
}

bool command_slot_allows(hmq_slice key) {
    if (!now.binds) return command_slot_allows_all();
    return now.key.len > 0 && slots_of_key(now.key) == slots_of_key(key);
}

/* The server refuses the job only while it loads, and on read-only replicas.  No client's command
 * writes there. */
void command_slot_after(server_ctx *ctx, server_job work, void *data, server_free release) {
    if (now.binds && sv.AddPostNotificationJob(ctx, work, data, release) == SERVER_OK) return;
    work(ctx, data);
    release(data);
}
