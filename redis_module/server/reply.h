/* reply.h - parts of replies that several commands share. */
#ifndef HMQ_REPLY_H
#define HMQ_REPLY_H

#include "server/api.h"

/* A field of a map whose value is a number. */
static inline void reply_field(server_ctx *ctx, const char *name, uint64_t number) {
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithLongLong(ctx, (long long)number);
}

#endif
