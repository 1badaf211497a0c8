/* websocket.c - see mqtt/websocket.h.  Section numbers are those of RFC 6455. */
#include "mqtt/websocket.h"

#include <string.h>

#include "base/utf8.h"

enum {
    FIN = 0x80,
    RESERVED = 0x70,
    OPCODE = 0x0F,
    CONTROL = 0x08, /* this bit of an opcode: a control frame (5.5) */
    MASKED = 0x80,
    LENGTH = 0x7F,
    LENGTH_16 = 126,
    LENGTH_64 = 127,
    KEY_BYTES = 4,
    MAX_HEADER_BYTES = 14,
    MAX_CONTROL_BYTES = 125, /* 5.5 */
    FIRST_HEAD_BYTES = 512   /* most requests fit */
};

enum { CONTINUATION = 0x0, TEXT = 0x1, BINARY = 0x2, CLOSE = 0x8, PING = 0x9, PONG = 0xA };

enum { NO_STATUS = 0, PROTOCOL_ERROR = 1002, UNSUPPORTED_DATA = 1003, INVALID_DATA = 1007, TOO_BIG = 1009 }; /* 7.4.1 */

struct hmq_websocket {
    const hmq_allocator *allocator;
    uint64_t max_message_bytes, message_bytes;
    uint64_t left; /* of the frame's payload */
    uint8_t phase, fault;
    uint8_t opcode; /* of the frame */
    bool final; /* is it the last of its message? */
    bool in_payload; /* false: its header is read */
    bool in_message; /* a message has begun, but not its last fragment */
    bool pong_owed, close_owed, close_sent;
    uint8_t header_len, control_len, pong_len;
    uint16_t close_code; /* of the pending close frame */
    uint8_t key[KEY_BYTES]; /* rotated so that key[0] belongs to the next byte */
    uint8_t header[MAX_HEADER_BYTES];
    uint8_t control[MAX_CONTROL_BYTES], pong[MAX_CONTROL_BYTES];
    uint8_t *head;
    size_t head_len, head_room;
};

const char *hmq_websocket_fault_text(int fault) {
    switch (fault) {
    case HMQ_WEBSOCKET_RESERVED_BIT: return "a reserved bit is set (RFC 6455, 5.2)";
    case HMQ_WEBSOCKET_UNKNOWN_OPCODE: return "an unknown opcode (RFC 6455, 5.2)";
    case HMQ_WEBSOCKET_UNMASKED: return "a frame without a mask (RFC 6455, 5.1)";
    case HMQ_WEBSOCKET_FRAGMENTED_CONTROL: return "a fragmented control frame (RFC 6455, 5.5)";
    case HMQ_WEBSOCKET_LONG_CONTROL: return "a control frame above 125 bytes (RFC 6455, 5.5)";
    case HMQ_WEBSOCKET_BAD_LENGTH: return "a length of 2^63 or more, or not in its shortest form (RFC 6455, 5.2)";
    case HMQ_WEBSOCKET_STRAY_CONTINUATION: return "a continuation without a beginning (RFC 6455, 5.4)";
    case HMQ_WEBSOCKET_INTERLEAVED: return "a new message within a fragmented one (RFC 6455, 5.4)";
    case HMQ_WEBSOCKET_TEXT: return "a text message [MQTT-6.0.0-1]";
    case HMQ_WEBSOCKET_TOO_BIG: return "a message above ws_max_frame_bytes";
    case HMQ_WEBSOCKET_BAD_CLOSE: return "a close frame with a bad status code (RFC 6455, 7.4)";
    case HMQ_WEBSOCKET_BAD_REASON: return "a close frame whose reason is not UTF-8 (RFC 6455, 5.5.1)";
    default: return "no fault";
    }
}

uint16_t hmq_websocket_fault_code(int fault) {
    switch (fault) {
    case HMQ_WEBSOCKET_NO_FAULT: return NO_STATUS;
    case HMQ_WEBSOCKET_TEXT: return UNSUPPORTED_DATA;
    case HMQ_WEBSOCKET_TOO_BIG: return TOO_BIG;
    case HMQ_WEBSOCKET_BAD_REASON: return INVALID_DATA;
    default: return PROTOCOL_ERROR;
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

hmq_websocket *hmq_websocket_new(uint64_t max_message_bytes, const hmq_allocator *allocator) {
    hmq_websocket *ws = allocator->alloc(sizeof *ws);
    if (ws == NULL) return NULL;
    memset(ws, 0, sizeof *ws);
    ws->allocator = allocator;
    ws->max_message_bytes = max_message_bytes;
    return ws;
}

static void free_head(hmq_websocket *ws) {
    if (ws->head != NULL) ws->allocator->release(ws->head);
    ws->head = NULL;
    ws->head_len = ws->head_room = 0;
}

void hmq_websocket_free(hmq_websocket *ws) {
    free_head(ws);
    ws->allocator->release(ws);
}

hmq_websocket_phase hmq_websocket_state(const hmq_websocket *ws) {
    return (hmq_websocket_phase)ws->phase;
}

hmq_websocket_fault hmq_websocket_failure(const hmq_websocket *ws) {
    return (hmq_websocket_fault)ws->fault;
}

/* ---- the request (4.2.1) ---------------------------------------------------------------------------------------- */

static bool head_room(hmq_websocket *ws, size_t extra) {
    size_t needed = ws->head_len + extra, room = ws->head_room == 0 ? FIRST_HEAD_BYTES : ws->head_room;
    if (needed <= ws->head_room) return true;
    while (room < needed) room *= 2;
    if (room > HMQ_WEBSOCKET_MAX_HEAD_BYTES) room = HMQ_WEBSOCKET_MAX_HEAD_BYTES;
    uint8_t *grown = ws->allocator->resize(ws->head, room);
    if (grown == NULL) return false;
    ws->head = grown;
    ws->head_room = room;
    return true;
}

/* Examines only the new bytes, and the three before them. */
static bool has_end(const hmq_websocket *ws, size_t looked) {
    for (size_t at = looked < 3 ? 0 : looked - 3; at + 4 <= ws->head_len; at++)
        if (memcmp(ws->head + at, "\r\n\r\n", 4) == 0) return true;
    return false;
}

/* A client that does not begin with GET (MQTT or TLS on this port) is refused immediately. */
static bool may_be_a_request(const hmq_websocket *ws) {
    static const char method[] = "GET ";
    size_t len = ws->head_len < sizeof method - 1 ? ws->head_len : sizeof method - 1;
    return memcmp(ws->head, method, len) == 0;
}

static void read_head(hmq_websocket *ws, const uint8_t *data, size_t len) {
    size_t looked = ws->head_len, room = HMQ_WEBSOCKET_MAX_HEAD_BYTES - looked;
    if (len > room) len = room;
    if (!head_room(ws, len)) {
        ws->phase = HMQ_WEBSOCKET_OVER;
        return;
    }
    memcpy(ws->head + looked, data, len);
    ws->head_len += len;
    if (ws->head_len == HMQ_WEBSOCKET_MAX_HEAD_BYTES || !may_be_a_request(ws) || has_end(ws, looked))
        ws->phase = HMQ_WEBSOCKET_ASKED;
}

hmq_slice hmq_websocket_request(const hmq_websocket *ws) {
    return ws->phase == HMQ_WEBSOCKET_ASKED ? (hmq_slice){ws->head, ws->head_len} : (hmq_slice){NULL, 0};
}

void hmq_websocket_answered(hmq_websocket *ws, bool accepted) {
    free_head(ws);
    if (ws->phase == HMQ_WEBSOCKET_ASKED) ws->phase = accepted ? HMQ_WEBSOCKET_OPEN : HMQ_WEBSOCKET_OVER;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void finish(hmq_websocket *ws, uint16_t code) {
    ws->phase = HMQ_WEBSOCKET_OVER;
    ws->close_owed = !ws->close_sent;
    ws->close_code = code;
}

static void fail(hmq_websocket *ws, hmq_websocket_fault fault) {
    ws->fault = (uint8_t)fault;
    finish(ws, hmq_websocket_fault_code(fault));
}

/* Those of 7.4.1 that may be sent, those registered since (1012 to 1014), and those of libraries and applications (7.4.2). */
static bool is_status(unsigned code) {
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code <= 4999);
}

/* 5.5.1 */
static void take_close(hmq_websocket *ws) {
    unsigned code = ws->control_len >= 2 ? (unsigned)ws->control[0] << 8 | ws->control[1] : NO_STATUS;
    if (ws->control_len == 1 || (ws->control_len >= 2 && !is_status(code))) {
        fail(ws, HMQ_WEBSOCKET_BAD_CLOSE);
    } else if (ws->control_len > 2 && hmq_utf8_check(ws->control + 2, ws->control_len - 2U) == HMQ_UTF8_ILL_FORMED) {
        fail(ws, HMQ_WEBSOCKET_BAD_REASON);
    } else {
        finish(ws, (uint16_t)code);
    }
}

/* ---- frames in (5.2 to 5.5) ------------------------------------------------------------------------------------- */

static hmq_websocket_fault control_fault(bool final, uint8_t opcode, uint8_t length) {
    if (opcode > PONG) return HMQ_WEBSOCKET_UNKNOWN_OPCODE;
    if (!final) return HMQ_WEBSOCKET_FRAGMENTED_CONTROL;
    return length > MAX_CONTROL_BYTES ? HMQ_WEBSOCKET_LONG_CONTROL : HMQ_WEBSOCKET_NO_FAULT;
}

/* Checks the first two bytes of a frame. */
static hmq_websocket_fault start_fault(const hmq_websocket *ws) {
    uint8_t first = ws->header[0], second = ws->header[1], opcode = first & OPCODE;
    if (first & RESERVED) return HMQ_WEBSOCKET_RESERVED_BIT;
    if (!(second & MASKED)) return HMQ_WEBSOCKET_UNMASKED;
    if (opcode & CONTROL) return control_fault(first & FIN, opcode, second & LENGTH);
    if (opcode > BINARY) return HMQ_WEBSOCKET_UNKNOWN_OPCODE;
    if (opcode == CONTINUATION) return ws->in_message ? HMQ_WEBSOCKET_NO_FAULT : HMQ_WEBSOCKET_STRAY_CONTINUATION;
    if (ws->in_message) return HMQ_WEBSOCKET_INTERLEAVED;
    return opcode == TEXT ? HMQ_WEBSOCKET_TEXT : HMQ_WEBSOCKET_NO_FAULT;
}

static size_t length_bytes(const hmq_websocket *ws) {
    uint8_t length = ws->header[1] & LENGTH;
    return length == LENGTH_64 ? 8 : length == LENGTH_16 ? 2 : 0;
}

/* The size of the header, as far as it is known. */
static size_t header_size(const hmq_websocket *ws) {
    return ws->header_len < 2 ? 2 : 2 + length_bytes(ws) + KEY_BYTES;
}

static bool read_length(const hmq_websocket *ws, uint64_t *length) {
    size_t size = length_bytes(ws);
    *length = size == 0 ? ws->header[1] & LENGTH : 0;
    for (size_t i = 0; i < size; i++) *length = *length << 8 | ws->header[2 + i];
    if (size == 8) return *length > UINT16_MAX && *length >> 63 == 0;
    return size == 0 || *length >= LENGTH_16;
}

/* The header is complete. */
static void begin_frame(hmq_websocket *ws) {
    uint64_t length;
    if (!read_length(ws, &length)) {
        fail(ws, HMQ_WEBSOCKET_BAD_LENGTH);
        return;
    }
    ws->opcode = ws->header[0] & OPCODE;
    ws->final = ws->header[0] & FIN;
    memcpy(ws->key, ws->header + ws->header_len - KEY_BYTES, KEY_BYTES);
    ws->header_len = ws->control_len = 0;
    ws->in_payload = true;
    ws->left = length;
    if (ws->opcode & CONTROL) return;
    if (length > ws->max_message_bytes - ws->message_bytes) {
        fail(ws, HMQ_WEBSOCKET_TOO_BIG);
        return;
    }
    ws->message_bytes += length;
    ws->in_message = true;
}

static size_t read_header(hmq_websocket *ws, const uint8_t *data, size_t len) {
    size_t used = 0;
    while (used < len && ws->header_len < header_size(ws)) {
        ws->header[ws->header_len++] = data[used++];
        hmq_websocket_fault fault = ws->header_len == 2 ? start_fault(ws) : HMQ_WEBSOCKET_NO_FAULT;
        if (fault == HMQ_WEBSOCKET_NO_FAULT) continue;
        fail(ws, fault);
        return used;
    }
    if (ws->header_len == header_size(ws)) begin_frame(ws);
    return used;
}

/* The payload is complete. */
static void end_frame(hmq_websocket *ws) {
    ws->in_payload = false;
    if (!(ws->opcode & CONTROL)) {
        if (!ws->final) return;
        ws->in_message = false;
        ws->message_bytes = 0;
    } else if (ws->opcode == PING) {
        ws->pong_owed = true;
        ws->pong_len = ws->control_len;
        memcpy(ws->pong, ws->control, ws->control_len);
    } else if (ws->opcode == CLOSE) {
        take_close(ws);
    }
}

/* 5.3.  `out` may overlap `in` if it does not begin after it. */
static void unmask(hmq_websocket *ws, uint8_t *out, const uint8_t *in, size_t len) {
    uint8_t key[2 * KEY_BYTES];
    uint64_t word, keys;
    size_t at = 0;
    memcpy(key, ws->key, KEY_BYTES);
    memcpy(key + KEY_BYTES, ws->key, KEY_BYTES);
    memcpy(&keys, key, sizeof keys);
    for (; at + sizeof word <= len; at += sizeof word) {
        memcpy(&word, in + at, sizeof word);
        word ^= keys;
        memcpy(out + at, &word, sizeof word);
    }
    for (; at < len; at++) out[at] = in[at] ^ key[at % KEY_BYTES];
    memcpy(ws->key, key + len % KEY_BYTES, KEY_BYTES);
}

/* Returns the number of MQTT bytes at `out`. */
static size_t read_payload(hmq_websocket *ws, uint8_t *out, const uint8_t *data, size_t len) {
    ws->left -= len;
    if (!(ws->opcode & CONTROL)) {
        unmask(ws, out, data, len);
        return len;
    }
    unmask(ws, ws->control + ws->control_len, data, len);
    ws->control_len = (uint8_t)(ws->control_len + len);
    return 0;
}

static size_t read_frames(hmq_websocket *ws, uint8_t *data, size_t len) {
    size_t at = 0, kept = 0;
    while (at < len && ws->phase == HMQ_WEBSOCKET_OPEN) {
        if (ws->in_payload) {
            size_t part = ws->left < len - at ? (size_t)ws->left : len - at;
            kept += read_payload(ws, data + kept, data + at, part);
            at += part;
        } else {
            at += read_header(ws, data + at, len - at);
        }
        if (ws->in_payload && ws->left == 0) end_frame(ws);
    }
    return kept;
}

size_t hmq_websocket_read(hmq_websocket *ws, uint8_t *data, size_t len) {
    if (ws->phase == HMQ_WEBSOCKET_OPEN) return read_frames(ws, data, len);
    if (ws->phase == HMQ_WEBSOCKET_HEAD) read_head(ws, data, len);
    return 0;
}

/* ---- frames out ------------------------------------------------------------------------------------------------- */

size_t hmq_websocket_header(uint8_t *out, uint64_t len) {
    size_t size = len < LENGTH_16 ? 0 : len <= UINT16_MAX ? 2 : 8;
    out[0] = FIN | BINARY;
    out[1] = (uint8_t)(size == 0 ? len : size == 2 ? LENGTH_16 : LENGTH_64);
    for (size_t i = 0; i < size; i++) out[2 + i] = (uint8_t)(len >> 8 * (size - 1 - i));
    return 2 + size;
}

static size_t put_close(hmq_websocket *ws, uint16_t code, uint8_t *out) {
    ws->close_owed = false;
    ws->close_sent = true;
    out[0] = FIN | CLOSE;
    out[1] = code == NO_STATUS ? 0 : 2;
    out[2] = (uint8_t)(code >> 8);
    out[3] = (uint8_t)code;
    return 2U + out[1];
}

size_t hmq_websocket_answer(hmq_websocket *ws, uint8_t *out) {
    size_t len = 0;
    if (ws->close_sent) return 0;
    if (ws->pong_owed) {
        out[len++] = FIN | PONG;
        out[len++] = ws->pong_len;
        memcpy(out + len, ws->pong, ws->pong_len);
        len += ws->pong_len;
        ws->pong_owed = false;
    }
    if (ws->close_owed) len += put_close(ws, ws->close_code, out + len);
    return len;
}

bool hmq_websocket_has_answer(const hmq_websocket *ws) {
    return !ws->close_sent && (ws->pong_owed || ws->close_owed);
}

size_t hmq_websocket_close(hmq_websocket *ws, uint16_t code, uint8_t *out) {
    bool closes = ws->phase == HMQ_WEBSOCKET_OPEN;
    ws->phase = HMQ_WEBSOCKET_OVER;
    return closes ? put_close(ws, code, out) : 0;
}
