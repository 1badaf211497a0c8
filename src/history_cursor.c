/* history_cursor.c - writes and reads the text that history_cursor.h describes.  Pure; any text is safe. */
#include "history_cursor.h"

#include <string.h>

#include "hash.h"

#define FIELDS 8

static const char version[] = "h1";
#define VERSION_LEN (sizeof version - 1)
static const unsigned most_digits[FIELDS] = {8, 8, 4, 16, 16, 8, 8, 16};

static size_t put_hex(char *out, uint64_t number, unsigned least_digits) {
    unsigned digits = 1;
    while (digits < 16 && number >> (4 * digits)) digits++;
    if (digits < least_digits) digits = least_digits;
    for (unsigned i = 0; i < digits; i++) out[i] = "0123456789abcdef"[number >> (4 * (digits - 1 - i)) & 15];
    return digits;
}

static uint64_t check_of(const char *text, size_t len) {
    return hmq_hash_text(&(hmq_hash_seed){0, 0}, text, len) >> 48;
}

size_t hmq_cursor_encode(const hmq_cursor *cursor, char out[HMQ_CURSOR_MAX_BYTES]) {
    const uint64_t fields[FIELDS] = {cursor->generation, cursor->epoch,  cursor->shard,  cursor->sequence,
                                     cursor->time_us,    cursor->writer, cursor->before, cursor->begun};
    size_t len = VERSION_LEN;
    memcpy(out, version, VERSION_LEN);
    for (unsigned i = 0; i < FIELDS; i++) {
        out[len++] = '-';
        len += put_hex(out + len, fields[i], 1);
    }
    uint64_t check = check_of(out, len);
    out[len++] = '-';
    return len + put_hex(out + len, check, 4);
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "-<number>" in the form in which it is written. */
static bool take_hex(const char **at, const char *end, unsigned digits_most, uint64_t *number) {
    if (*at == end || **at != '-') return false;
    const char *from = ++*at;
    *number = 0;
    for (; *at < end && digit_of(**at) >= 0; ++*at) {
        if (*at - from == (ptrdiff_t)digits_most) return false;
        *number = *number << 4 | (uint64_t)digit_of(**at);
    }
    return *at > from && (*from != '0' || *at == from + 1);
}

int hmq_cursor_decode(const char *text, size_t len, hmq_cursor *cursor) {
    uint64_t fields[FIELDS];
    if (len < VERSION_LEN || memcmp(text, version, VERSION_LEN) != 0) return -1;
    const char *at = text + VERSION_LEN, *end = text + len;
    for (unsigned i = 0; i < FIELDS; i++)
        if (!take_hex(&at, end, most_digits[i], &fields[i])) return -1;
    *cursor = (hmq_cursor){.generation = (uint32_t)fields[0],
                           .epoch = (uint32_t)fields[1],
                           .shard = (uint16_t)fields[2],
                           .sequence = fields[3],
                           .time_us = fields[4],
                           .writer = (uint32_t)fields[5],
                           .before = (uint32_t)fields[6],
                           .begun = fields[7]};
    char again[HMQ_CURSOR_MAX_BYTES];
    size_t written = hmq_cursor_encode(cursor, again);
    return written == len && memcmp(again, text, len) == 0 ? 0 : -1;
}
