/* cursor.c - writes and reads the text that history/cursor.h describes.  Pure; any text is safe. */
#include "history/cursor.h"

#include <string.h>

#include "base/hash.h"
#include "base/hex.h"

#define FIELDS 8
#define VERSION_LEN 2
#define CHECK_LEN 5 /* with its '-' */

static const char without_store[] = "h1", with_store[] = "h2";
static const unsigned most_digits[FIELDS] = {8, 8, 4, 16, 16, 8, 8, 16};
static const char hex_digits[] = "0123456789abcdef";

static size_t put_hex(char *out, uint64_t number, unsigned least_digits) {
    unsigned digits = 1;
    while (digits < 16 && number >> (4 * digits)) digits++;
    if (digits < least_digits) digits = least_digits;
    for (unsigned i = 0; i < digits; i++) out[i] = hex_digits[number >> (4 * (digits - 1 - i)) & 15];
    return digits;
}

static uint64_t check_of(const char *text, size_t len) {
    return hmq_hash_text(&(hmq_hash_seed){0, 0}, text, len) >> 48;
}

static bool is_plain(uint8_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
}

static size_t put_name(char *out, const hmq_cursor_store *store) {
    size_t len = 0;
    for (unsigned i = 0; i < store->name_len; i++) {
        uint8_t c = (uint8_t)store->name[i];
        if (is_plain(c)) {
            out[len++] = (char)c;
            continue;
        }
        out[len++] = '%';
        len += put_hex(out + len, c, 2);
    }
    return len;
}

size_t hmq_cursor_encode(const hmq_cursor *cursor, const hmq_cursor_store *store, char *out) {
    const uint64_t fields[FIELDS] = {cursor->generation, cursor->epoch,  cursor->shard,  cursor->sequence,
                                     cursor->time_us,    cursor->writer, cursor->before, cursor->begun};
    bool named = store != NULL && store->name_len > 0;
    size_t len = VERSION_LEN;
    memcpy(out, named ? with_store : without_store, VERSION_LEN);
    for (unsigned i = 0; i < FIELDS; i++) {
        out[len++] = '-';
        len += put_hex(out + len, fields[i], 1);
    }
    if (named) {
        out[len++] = '-';
        len += put_hex(out + len, store->id, 1);
        out[len++] = '-';
        len += put_name(out + len, store);
    }
    uint64_t check = check_of(out, len);
    out[len++] = '-';
    return len + put_hex(out + len, check, 4);
}

/* Reads "-<number>" in its written form. */
static bool take_hex(const char **at, const char *end, unsigned digits_most, uint64_t *number) {
    if (*at == end || **at != '-') return false;
    const char *from = ++*at;
    *number = 0;
    for (; *at < end && hmq_hex_digit((uint8_t)**at) >= 0; ++*at) {
        if (*at - from == (ptrdiff_t)digits_most) return false;
        *number = *number << 4 | (uint64_t)hmq_hex_digit((uint8_t)**at);
    }
    return *at > from && (*from != '0' || *at == from + 1);
}

/* Reads "-<store id>-<store name>"; the name extends to `end`. */
static bool take_store(const char **at, const char *end, hmq_cursor_store *store) {
    uint64_t id;
    if (!take_hex(at, end, 8, &id) || *at == end || **at != '-') return false;
    store->id = (uint32_t)id;
    for (++*at; *at < end; ++*at) {
        if (store->name_len == HMQ_CURSOR_NAME_MAX) return false;
        int c = (uint8_t)**at;
        if (c == '%') {
            if (end - *at < 3 || hmq_hex_digit((uint8_t)(*at)[1]) < 0 || hmq_hex_digit((uint8_t)(*at)[2]) < 0)
                return false;
            c = hmq_hex_digit((uint8_t)(*at)[1]) << 4 | hmq_hex_digit((uint8_t)(*at)[2]);
            *at += 2;
        }
        store->name[store->name_len++] = (char)c;
    }
    return store->name_len > 0;
}

int hmq_cursor_decode(const char *text, size_t len, hmq_cursor *cursor, hmq_cursor_store *store) {
    uint64_t fields[FIELDS];
    *store = (hmq_cursor_store){.name_len = 0};
    if (len < VERSION_LEN + CHECK_LEN) return -1;
    bool named = memcmp(text, with_store, VERSION_LEN) == 0;
    if (!named && memcmp(text, without_store, VERSION_LEN) != 0) return -1;
    const char *at = text + VERSION_LEN, *end = text + len - CHECK_LEN;
    for (unsigned i = 0; i < FIELDS; i++)
        if (!take_hex(&at, end, most_digits[i], &fields[i])) return -1;
    if (named && !take_store(&at, end, store)) return -1;
    *cursor = (hmq_cursor){.generation = (uint32_t)fields[0],
                           .epoch = (uint32_t)fields[1],
                           .shard = (uint16_t)fields[2],
                           .sequence = fields[3],
                           .time_us = fields[4],
                           .writer = (uint32_t)fields[5],
                           .before = (uint32_t)fields[6],
                           .begun = fields[7]};
    /* Any other form than the written one, the check included, differs here. */
    char again[HMQ_CURSOR_STORE_MAX_BYTES];
    size_t written = hmq_cursor_encode(cursor, store, again);
    return written == len && memcmp(again, text, len) == 0 ? 0 : -1;
}
