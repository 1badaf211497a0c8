/* fan_out_programs.h - what programs, which name no session, may have pending of publishes to many sessions.
 *
 * Of each user of the server, and of all.  What was pending at a restart does not count: its user is not known. */
#ifndef HMQ_FAN_OUT_PROGRAMS_H
#define HMQ_FAN_OUT_PROGRAMS_H

#include "server/state.h"

typedef struct program_loads program_loads;

program_loads *program_loads_new(void);
void program_loads_free(program_loads *loads);

/* `program`: of whom, as program_loads_have_room says; 0: of no program, and nothing changes.  `bytes`: of messages, and of
 * the lists of their sessions. */
void program_loads_add(program_loads *loads, uint64_t program, size_t count, size_t bytes);
void program_loads_remove(program_loads *loads, uint64_t program, size_t count, size_t bytes);

/* May the program that runs a command have one more pending?  *program is set to its user; to 0, after replying QUEUEFULL, if
 * it may not. */
bool program_loads_have_room(server_ctx *ctx, const program_loads *loads, size_t bytes, uint64_t *program);

#endif
