/* core_websocket.c - a WebSocket client that sends anything in any parts.
 *
 *      input: how it begins and in which parts it comes (one byte), bytes of the client
 *
 * Laws
 *  1. In whatever parts it comes, a stream means the same: the same MQTT, the same fault, the same close frame.
 *  2. Of a read no more is MQTT than came, and what is owed fits its room.
 *  3. When it is over nothing is read any more and nothing more is owed than one close frame.
 *  4. All memory goes back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/websocket.h"
#include "core_targets.h"

#define HOLDS(law)                                                                                                     \
    do {                                                                                                               \
        if (!(law)) {                                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #law);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#define MOST_MESSAGE_BYTES 300
#define BEGINS_OPEN 0x80 /* in the first byte; else it begins with its request */

static const char request[] = "GET / HTTP/1.1\r\n\r\n";

typedef struct outcome {
    uint8_t *mqtt;
    size_t mqtt_len;
    uint8_t answers[HMQ_WEBSOCKET_ANSWER_BYTES]; /* all that was owed at the end */
    size_t answers_len;
    int phase, fault;
} outcome;

static hmq_websocket *begin(bool open) {
    hmq_websocket *made = hmq_websocket_new(MOST_MESSAGE_BYTES, &hmq_libc_allocator);
    HOLDS(made != NULL);
    if (!open) return made;
    uint8_t bytes[sizeof request];
    memcpy(bytes, request, sizeof request);
    HOLDS(hmq_websocket_read(made, bytes, sizeof request - 1) == 0);
    hmq_websocket_answered(made, true);
    return made;
}

/* A part, from a block of its size. */
static void read_part(hmq_websocket *websocket, const uint8_t *data, size_t len, outcome *found) {
    uint8_t *part = malloc(len);
    HOLDS(part != NULL);
    memcpy(part, data, len);
    bool over = hmq_websocket_state(websocket) == HMQ_WEBSOCKET_OVER;
    size_t kept = hmq_websocket_read(websocket, part, len);
    HOLDS(kept <= len && (!over || kept == 0));
    memcpy(found->mqtt + found->mqtt_len, part, kept);
    found->mqtt_len += kept;
    free(part);
    if (hmq_websocket_state(websocket) != HMQ_WEBSOCKET_ASKED) return;
    HOLDS(hmq_websocket_request(websocket).len <= HMQ_WEBSOCKET_MAX_HEAD_BYTES);
    hmq_websocket_answered(websocket, false);
}

static outcome read_all(const uint8_t *data, size_t len, size_t piece, bool open) {
    hmq_websocket *websocket = begin(open);
    outcome found = {.mqtt = malloc(len + 1)};
    HOLDS(found.mqtt != NULL);
    for (size_t at = 0; at < len; at += piece)
        read_part(websocket, data + at, len - at < piece ? len - at : piece, &found);
    found.phase = hmq_websocket_state(websocket);
    found.fault = hmq_websocket_failure(websocket);
    HOLDS(found.fault == 0 || found.phase == HMQ_WEBSOCKET_OVER);
    HOLDS((hmq_websocket_fault_code(found.fault) == 0) == (found.fault == 0));
    HOLDS(hmq_websocket_fault_text(found.fault) != NULL);
    bool owed = hmq_websocket_has_answer(websocket);
    found.answers_len = hmq_websocket_answer(websocket, found.answers);
    HOLDS(owed == (found.answers_len > 0) && found.answers_len <= sizeof found.answers);
    HOLDS(!hmq_websocket_has_answer(websocket) &&
          hmq_websocket_answer(websocket, found.answers + found.answers_len) == 0);
    hmq_websocket_free(websocket);
    return found;
}

void fuzz_websocket(const uint8_t *data, size_t len) {
    if (len < 2) return;
    bool open = data[0] & BEGINS_OPEN;
    size_t piece = 1U + (data[0] & 0x1f);
    outcome whole = read_all(data + 1, len - 1, len - 1, open), parts = read_all(data + 1, len - 1, piece, open);
    HOLDS(whole.mqtt_len == parts.mqtt_len && memcmp(whole.mqtt, parts.mqtt, whole.mqtt_len) == 0);
    HOLDS(whole.phase == parts.phase && whole.fault == parts.fault);
    HOLDS(whole.answers_len == parts.answers_len && memcmp(whole.answers, parts.answers, whole.answers_len) == 0);
    free(whole.mqtt);
    free(parts.mqtt);
}
