/* mqtt_load_frames.c - see mqtt_load_frames.h.  Section numbers are those of RFC 6455. */
#include "mqtt_load_frames.h"

#include <stdio.h>
#include <string.h>

#include "mqtt_load_wire.h"

#define FINAL_BINARY 0x82
#define CONTROL 0x08
#define CLOSE 0x08
#define OPCODE 0x0f
#define MASKED 0x80
#define KEY_BYTES 4

static const char accepted[] = "HTTP/1.1 101 ";
static const uint8_t key[KEY_BYTES] = {0x9d, 0x3a, 0xc5, 0x71};

size_t frames_put_request(char out[FRAMES_REQUEST_BYTES], const char *path) {
    int len = snprintf(out, FRAMES_REQUEST_BYTES,
                       "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                       "Sec-WebSocket-Protocol: mqtt\r\n\r\n",
                       path);
    return len < FRAMES_REQUEST_BYTES ? (size_t)len : 0;
}

/* Bytes of the answer (4.2.2); -1: it is another. */
static int64_t read_answer(frames_state *state, const uint8_t *data, size_t len) {
    static const char end[] = "\r\n\r\n";
    size_t at = 0;
    while (at < len && !state->is_open) {
        uint8_t byte = data[at++];
        if (state->answer_len < sizeof accepted - 1 && byte != (uint8_t)accepted[state->answer_len]) return -1;
        state->answer_len++;
        state->answer_end = byte == (uint8_t)end[state->answer_end] ? state->answer_end + 1U : byte == '\r';
        state->is_open = state->answer_end == sizeof end - 1;
    }
    return (int64_t)at;
}

static size_t length_bytes(uint8_t second) {
    return second == 127 ? 8 : second == 126 ? 2 : 0;
}

/* Bytes of a header (5.2); -1: no server sends it, or it is a close frame's. */
static int64_t read_header(frames_state *state, const uint8_t *data, size_t len) {
    size_t at = 0, size = 2;
    while (at < len && state->header_len < size) {
        state->header[state->header_len++] = data[at++];
        if (state->header_len >= 2) size = 2 + length_bytes(state->header[1]);
    }
    if (state->header_len < size) return (int64_t)at;
    uint8_t opcode = state->header[0] & OPCODE;
    if (state->header[1] & MASKED || opcode == CLOSE) return -1;
    state->is_data = !(opcode & CONTROL);
    state->left = size == 2 ? state->header[1] : 0;
    for (size_t i = 2; i < size; i++) state->left = state->left << 8 | state->header[i];
    state->header_len = 0;
    return (int64_t)at;
}

int64_t frames_read(frames_state *state, uint8_t *data, size_t len) {
    size_t at = 0, kept = 0;
    while (at < len) {
        size_t part = state->left < len - at ? (size_t)state->left : len - at;
        if (part > 0) {
            if (state->is_data) memmove(data + kept, data + at, part);
            if (state->is_data) kept += part;
            state->left -= part;
            at += part;
            continue;
        }
        int64_t used =
            state->is_open ? read_header(state, data + at, len - at) : read_answer(state, data + at, len - at);
        if (used < 0) return -1;
        at += (size_t)used;
    }
    return (int64_t)kept;
}

static size_t put_frame(uint8_t *out, const uint8_t *packet, size_t len) {
    size_t size = 1, length_size = len < 126 ? 0 : len <= UINT16_MAX ? 2 : 8;
    out[0] = FINAL_BINARY;
    out[size++] = (uint8_t)(MASKED | (length_size == 0 ? len : length_size == 2 ? 126U : 127U));
    for (size_t i = length_size; i > 0; i--) out[size++] = (uint8_t)(len >> 8 * (i - 1));
    memcpy(out + size, key, KEY_BYTES);
    size += KEY_BYTES;
    for (size_t i = 0; i < len; i++) out[size + i] = packet[i] ^ key[i % KEY_BYTES];
    return size + len;
}

size_t frames_put_packets(uint8_t *out, const uint8_t *packets, size_t len) {
    size_t size = 0;
    wire_packet packet;
    for (size_t at = 0; at < len;) {
        int64_t used = wire_next(packets + at, len - at, &packet);
        if (used <= 0) break; /* not reached: only whole packets are put into a connection */
        size += put_frame(out + size, packets + at, (size_t)used);
        at += (size_t)used;
    }
    return size;
}
