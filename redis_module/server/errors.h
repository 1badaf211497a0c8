/* errors.h - every error that the module's commands reply: one table, one way to reply.
 *
 * The text begins with a stable upper-case code; the rest names the argument and says what was expected. */
#ifndef HMQ_ERRORS_H
#define HMQ_ERRORS_H

#include "topic/topic.h"
#include "server/state.h"

/* X(identifier, code) */
#define HMQ_ERROR_CODES(X)                                                                                             \
    X(ERROR_SYNTAX, "ERR")                                                                                             \
    X(ERROR_WRONGTYPE, "WRONGTYPE")                                                                                    \
    X(ERROR_INVALIDTOPIC, "INVALIDTOPIC")                                                                              \
    X(ERROR_FENCED, "FENCED")                                                                                          \
    X(ERROR_IDENTITY, "IDENTITY")                                                                                      \
    X(ERROR_NOSESSION, "NOSESSION")                                                                                    \
    X(ERROR_NOSTORE, "NOSTORE")                                                                                        \
    X(ERROR_FULL, "FULL")                                                                                              \
    X(ERROR_NOTEMPTY, "NOTEMPTY")                                                                                      \
    X(ERROR_STALE, "STALE")                                                                                            \
    X(ERROR_WRONGSTORE, "WRONGSTORE")                                                                                  \
    X(ERROR_TRYAGAIN, "TRYAGAIN")                                                                                      \
    X(ERROR_MOVED, "MOVED")                                                                                            \
    X(ERROR_CLUSTERDOWN, "CLUSTERDOWN")                                                                                \
    X(ERROR_QUOTA, "QUOTA")                                                                                            \
    X(ERROR_QUEUEFULL, "QUEUEFULL")                                                                                    \
    X(ERROR_OOM, "OOM")                                                                                                \
    X(ERROR_NOPERM, "NOPERM")                                                                                          \
    X(ERROR_GAP, "GAP")                                                                                                \
    X(ERROR_HELD, "HELD")                                                                                              \
    X(ERROR_HOLDLOST, "HOLDLOST")

enum error_code {
#define HMQ_ERROR_ID(id, code) id,
    HMQ_ERROR_CODES(HMQ_ERROR_ID)
#undef HMQ_ERROR_ID
};

/* Replies "<CODE> <text>"; always returns SERVER_OK, so that a handler can end with it.  Bytes of user input in the
 * arguments must have been made printable with shown(). */
int reply_error(server_ctx *ctx, enum error_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A printable, quoted, shortened copy of user input for an error text; valid until the fourth next call. */
const char *shown(const server_string *argument);
const char *shown_slice(hmq_slice bytes);

/* "WRONGTYPE the key <name> holds the wrong kind of value: <expected> expected" */
int reply_wrong_type(server_ctx *ctx, const server_string *key, const char *expected);

/* "INVALIDTOPIC <what> <shown>: <why>" */
int reply_invalid_topic(server_ctx *ctx, const char *what, const server_string *topic, hmq_topic_error error);

/* The server's own words, for a write that memory does not allow. */
int reply_out_of_memory(server_ctx *ctx);

#endif
