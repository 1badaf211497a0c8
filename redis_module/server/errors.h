/* errors.h - replies errors.  All errors, with their codes and texts, are in error_table.h. */
#ifndef HMQ_ERRORS_H
#define HMQ_ERRORS_H

#include "topic/topic.h"
#include "server/error_table.h"
#include "server/state.h"

/* Each error's name is its format, "<CODE> <text>", so that the compiler checks the arguments. */
#define HMQ_ERROR_FORMAT(name, code, text) static const char name[] __attribute__((unused)) = code " " text;
HMQ_ERRORS(HMQ_ERROR_FORMAT)
#undef HMQ_ERROR_FORMAT

/* Replies an error of the table.  Always returns SERVER_OK, so that a handler can end with it.  Bytes of the user among
 * the arguments must have been made printable with shown(). */
int reply_error(server_ctx *ctx, const char *error, ...) __attribute__((format(printf, 2, 3)));

/* A printable, quoted, shortened copy of user input for an error text; valid until the fourth call after this one. */
const char *shown(const server_string *argument);
const char *shown_slice(hmq_slice bytes);

/* ERROR_WRONG_TYPE: `expected` names the kind of value that the key may hold. */
int reply_wrong_type(server_ctx *ctx, const server_string *key, const char *expected);

/* ERROR_TOPIC_INVALID: `what` names the argument. */
int reply_invalid_topic(server_ctx *ctx, const char *what, const server_string *topic, hmq_topic_error error);

/* ERROR_OUT_OF_MEMORY, for a write that memory does not allow. */
int reply_out_of_memory(server_ctx *ctx);

#endif
