/* overflow.c - what happens to a message for a queue that has no room for it. */
#include "index/overflow.h"

static const char *const names[OVERFLOWS] = {"drop-oldest", "drop-newest", "refuse", "wait"};

const char *overflow_name(overflow policy) {
    return names[policy];
}

bool overflow_of(hmq_slice text, overflow *policy) {
    for (int i = 0; i < OVERFLOWS; i++) {
        if (!slice_is(text, names[i])) continue;
        *policy = (overflow)i;
        return true;
    }
    return false;
}

overflow overflow_of_session(const session_facts *facts) {
    return facts->has_overflow ? (overflow)facts->overflow : (overflow)settings.session_overflow;
}

size_t overflow_bytes_of(const session_facts *facts) {
    size_t bytes = facts->max_bytes > 0 ? (size_t)facts->max_bytes : (size_t)settings.session_bytes;
    return bytes == 0 ? SIZE_MAX : bytes;
}
