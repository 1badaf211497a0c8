/* command_slot.h - which keys the running command may open.
 *
 * From Redis 7.4 and Valkey 8.0 on, a node of a cluster keeps the keys of each slot apart.  While a client's command
 * runs that names a key, the server looks up every key in the slot of that key: a key of another slot seems to be
 * missing, and what is written is never found again.  (With "enable-debug-assert yes", Valkey stops.)  In a
 * transaction or script this applies to all of its commands, also to those without a key.
 *
 *     SESSION.CLOSE {c} ──► keys of {c}'s slot ──reply──► work in other slots, in its order ──► replicated as one step
 *
 * Invariants:
 *  1. Commands with a key announce it here, and open keys of other slots neither for reading nor for writing.
 *  2. Their work in other slots is done after them, in the same step of the server and in the same transaction for
 *     replicas and the append-only file: no reader sees the one without the other.
 *  3. Commands whose keys lie in many slots, and whose reply reports what was done there, are refused in a
 *     transaction or script, and change nothing. */
#ifndef HMQ_COMMAND_SLOT_H
#define HMQ_COMMAND_SLOT_H

#include "server/state.h"

/* Runs the handler of a command whose first argument is a key. */
int command_slot_run(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc);
/* ... of a command without a key that opens keys of many slots: refused in a transaction or script. */
int command_slot_run_many_slots(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc);
/* ... of a command without a key that opens none. */
int command_slot_run_keyless(server_command_handler handler, server_ctx *ctx, server_string **argv, int argc);

/* Are there keys that the running command may not open? */
bool command_slot_is_bound(void);
/* If so, the key whose slot it may read and write; len 0: it may open no key. */
hmq_slice command_slot_key(void);
/* May the keys of this key's slot be opened now, in a command or before it? */
bool command_slot_allows(hmq_slice key);
/* May the keys of all slots be opened now? */
bool command_slot_allows_all(void);

/* Does the work after the running command if that is bound to a slot, else now, and then calls release(data). */
void command_slot_after(server_ctx *ctx, server_job work, void *data, server_free release);

#endif
