/* args.h - reads command arguments; each failure replies an error that names the argument and what was expected. */
#ifndef HMQ_ARGS_H
#define HMQ_ARGS_H

#include "server/numbers.h"
#include "server/state.h"

/* The arguments of one command and how far they were read. */
typedef struct args args;
struct args {
    server_ctx *ctx;
    server_string **argv;
    int argc;
    int at;
    int looked_at;  /* the position of `word`, 0: none yet */
    hmq_slice word; /* the argument there: it is compared with many words */
};

args args_begin(server_ctx *ctx, server_string **argv, int argc); /* begins after the command's name */
bool args_left(const args *a);
/* If the next argument is this word (in any case): steps over it, and returns true. */
bool args_take_word(args *a, const char *word);
/* Steps over the next argument, a whole number min..max; false after replying an error that calls it `name`. */
bool args_number(args *a, const char *name, long long min, long long max, long long *number);
/* Steps over the next argument; false after replying an error if there is none. */
bool args_string(args *a, const char *name, server_string **string);
/* Steps over the session key; false after replying an error, also if its slot is moving (server/slots.h). */
bool args_session_key(args *a, server_string **key);
/* False after replying an error if anything is left. */
bool args_end(const args *a);

#endif
