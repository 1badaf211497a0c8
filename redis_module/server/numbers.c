/* numbers.c - reads numbers, and clocks. */
#include "server/numbers.h"

#include <time.h>

#include "history/ids.h"

uint64_t clock_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

bool number_of(const server_string *text, long long min, long long max, long long *number) {
    return text != NULL && sv.StringToLongLong(text, number) == SERVER_OK && *number >= min && *number <= max;
}

long long number_or_default(const server_string *text, long long max, long long otherwise) {
    long long number;
    return number_of(text, 0, max, &number) ? number : otherwise;
}

long long number_in_field(server_key *hash, const char *field, long long max, long long otherwise) {
    server_string *text = NULL;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, field, &text, NULL);
    long long number = number_or_default(text, max, otherwise);
    if (text != NULL) sv.FreeString(NULL, text);
    return number;
}

bool numbers_read(hmq_slice text, uint64_t *numbers, size_t count) {
    size_t at = 0;
    for (size_t i = 0; i < count; i++, at++) {
        size_t begun = at;
        for (numbers[i] = 0; at < text.len && text.data[at] >= '0' && text.data[at] <= '9'; at++) {
            if (numbers[i] > (HMQ_ID_MAX - 9) / 10) return false;
            numbers[i] = numbers[i] * 10 + (uint64_t)(text.data[at] - '0');
        }
        bool last = i + 1 == count;
        if (at == begun || last != (at == text.len) || (!last && text.data[at] != ' ')) return false;
    }
    return true;
}

uint64_t monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}
