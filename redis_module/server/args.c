/* args.c - reads command arguments. */
#include "server/args.h"

#include "topic/session_key.h"
#include "server/errors.h"
#include "server/slots.h"

args args_begin(server_ctx *ctx, server_string **argv, int argc) {
    return (args){.ctx = ctx, .argv = argv, .argc = argc, .at = 1};
}

bool args_left(const args *a) {
    return a->at < a->argc;
}

bool args_take_word(args *a, const char *word) {
    if (!args_left(a)) return false;
    if (a->looked_at != a->at) {
        a->word = slice_of(a->argv[a->at]);
        a->looked_at = a->at;
    }
    if (!slice_is(a->word, word)) return false;
    a->at++;
    return true;
}

bool args_string(args *a, const char *name, server_string **string) {
    if (!args_left(a)) {
        reply_error(a->ctx, ERROR_ARGUMENT_MISSING, name);
        return false;
    }
    *string = a->argv[a->at++];
    return true;
}

bool args_number(args *a, const char *name, long long min, long long max, long long *number) {
    server_string *text;
    if (!args_string(a, name, &text)) return false;
    if (number_of(text, min, max, number)) return true;
    reply_error(a->ctx, ERROR_NUMBER_INVALID, name, shown(text), min, max);
    return false;
}

bool args_session_key(args *a, server_string **key) {
    if (!args_string(a, "the session key", key)) return false;
    hmq_slice name = slice_of(*key);
    if (hmq_session_key_check((const char *)name.data, name.len)) return slots_check_session(a->ctx, name);
    reply_error(a->ctx, ERROR_SESSION_KEY_INVALID, shown(*key));
    return false;
}

bool args_end(const args *a) {
    if (!args_left(a)) return true;
    reply_error(a->ctx, ERROR_ARGUMENT_UNEXPECTED, shown(a->argv[a->at]));
    return false;
}
