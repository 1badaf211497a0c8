/* errors.c - replies the errors of error_table.h. */
#include "server/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ERROR_MAX_BYTES 1024
#define SHOWN_MAX_INPUT 64
#define SHOWN_BUFFERS 4

int reply_error(server_ctx *ctx, const char *error, ...) {
    char text[ERROR_MAX_BYTES];
    va_list arguments;
    va_start(arguments, error);
    vsnprintf(text, sizeof text, error, arguments);
    va_end(arguments);
    sv.ReplyWithError(ctx, text);
    return SERVER_OK;
}

const char *shown_slice(hmq_slice bytes) {
    static char buffers[SHOWN_BUFFERS][SHOWN_MAX_INPUT * 4 + 8];
    static unsigned next;
    char *out = buffers[next++ % SHOWN_BUFFERS];
    size_t n = bytes.len < SHOWN_MAX_INPUT ? bytes.len : SHOWN_MAX_INPUT;
    char *at = out;
    *at++ = '\'';
    for (size_t i = 0; i < n; i++) {
        uint8_t c = bytes.data[i];
        if (c >= 0x20 && c < 0x7f && c != '\'' && c != '\\') {
            *at++ = (char)c;
        } else {
            snprintf(at, 5, "\\x%02x", c);
            at += 4;
        }
    }
    memcpy(at, n < bytes.len ? "'..." : "'", n < bytes.len ? 5 : 2);
    return out;
}

const char *shown(const server_string *argument) {
    return shown_slice(slice_of(argument));
}

int reply_wrong_type(server_ctx *ctx, const server_string *key, const char *expected) {
    return reply_error(ctx, ERROR_WRONG_TYPE, shown(key), expected);
}

int reply_invalid_topic(server_ctx *ctx, const char *what, const server_string *topic, hmq_topic_error error) {
    return reply_error(ctx, ERROR_TOPIC_INVALID, what, shown(topic), hmq_topic_error_text(error));
}

int reply_out_of_memory(server_ctx *ctx) {
    return reply_error(ctx, ERROR_OUT_OF_MEMORY);
}
