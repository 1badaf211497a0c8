/* sealed.c - enciphers bytes that a client keeps for this server. */
#include "server/sealed.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "base/hex.h"
#include "server/errors.h"

#define TAG_DIGITS 16U
#define HEAD (1U + TAG_DIGITS)

static struct {
    hmq_hash_seed tag, stream;
} keys;
static bool has_keys;

static bool make_keys(void) {
    if (!has_keys) has_keys = getrandom(&keys, sizeof keys, 0) == (ssize_t)sizeof keys;
    return has_keys;
}

bool sealed_begin(server_ctx *ctx) {
    if (make_keys()) return true;
    reply_error(ctx, ERROR_RANDOM_NOT_READY);
    return false;
}

/* Enciphers, and deciphers. */
static void apply_stream(uint8_t *bytes, size_t len, uint64_t tag) {
    for (size_t i = 0; i < len; i += 8) {
        uint64_t place[2] = {tag, i};
        uint64_t word = hmq_hash_text(&keys.stream, (const char *)place, sizeof place);
        for (size_t k = 0; k < 8 && i + k < len; k++) bytes[i + k] ^= (uint8_t)(word >> (8 * k));
    }
}

static uint64_t tag_of(const uint8_t *bytes, size_t len) {
    return hmq_hash_text(&keys.tag, (const char *)bytes, len);
}

server_string *sealed_close(hmq_slice bytes) {
    static const char digits[] = "0123456789abcdef";
    uint64_t tag = tag_of(bytes.data, bytes.len);
    uint8_t *copy = sv.Alloc(bytes.len + 1);
    char *text = sv.Alloc(HEAD + 2 * bytes.len + 1);
    memcpy(copy, bytes.data, bytes.len);
    apply_stream(copy, bytes.len, tag);
    snprintf(text, HEAD + 1, "%c%016llx", SEALED_MARK, (unsigned long long)tag);
    for (size_t i = 0; i < bytes.len; i++) {
        text[HEAD + 2 * i] = digits[copy[i] >> 4];
        text[HEAD + 2 * i + 1] = digits[copy[i] & 15];
    }
    server_string *closed = sv.CreateString(NULL, text, HEAD + 2 * bytes.len);
    sv.Free(text);
    sv.Free(copy);
    return closed;
}

static bool has_digits_only(hmq_slice text) {
    for (size_t i = 1; i < text.len; i++)
        if (hmq_hex_digit(text.data[i]) < 0) return false;
    return true;
}

server_string *sealed_open(hmq_slice text) {
    if (!has_keys || text.len < HEAD || (text.len - HEAD) % 2 != 0) return NULL;
    if (text.data[0] != SEALED_MARK || !has_digits_only(text)) return NULL;
    uint64_t tag = 0;
    for (size_t i = 1; i < HEAD; i++) tag = tag << 4 | (uint64_t)hmq_hex_digit(text.data[i]);
    size_t len = (text.len - HEAD) / 2;
    uint8_t *bytes = sv.Alloc(len + 1);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(hmq_hex_digit(text.data[HEAD + 2 * i]) << 4 | hmq_hex_digit(text.data[HEAD + 2 * i + 1]));
    apply_stream(bytes, len, tag);
    server_string *opened = tag_of(bytes, len) == tag ? sv.CreateString(NULL, (const char *)bytes, len) : NULL;
    sv.Free(bytes);
    return opened;
}
