/* websocket.h - the server's side of one WebSocket (RFC 6455) that carries MQTT, without I/O.
 *
 *      client ──► hmq_websocket_read ──► HTTP head (once), then the stream of MQTT bytes, unmasked in place
 *      client ◄── hmq_websocket_header + bytes of MQTT, hmq_websocket_answer (pong, close), hmq_websocket_close
 *
 * A client's frame (5.2), as it is read:
 *
 *      offset  size     what
 *           0     1     FIN, RSV1-3 (0: no extension is agreed), opcode
 *           1     1     MASK (1: every client masks, 5.1), length up to 125, or 126, or 127
 *           2     0/2/8 length in network order, of the shortest form, below 2^63
 *         ...     4     masking key (5.3)
 *         ...     n     payload
 *
 * MQTT packets may be split across messages anywhere [MQTT-6.0.0-2], so payload is passed on as it arrives.  A text message
 * ends the connection [MQTT-6.0.0-1].
 *
 * Invariants
 *  1. Memory does not depend on the client.  It holds the HTTP head until it is answered (HMQ_WEBSOCKET_MAX_HEAD_BYTES at
 *     most) and the payload of one control frame, but nothing of a data frame.
 *  2. At most one pong is owed, for the most recent ping (5.5.3 allows that): pings that a client sends without reading
 *     cannot make the output grow.
 *  3. A frame that breaks a rule ends the reading at the first byte that shows it, without waiting for its payload.  All
 *     earlier payload has been passed on.
 *  4. At most one close frame is written, and nothing after it (5.5.1).
 *  5. A read is O(len): a frame has at least 6 bytes.
 *
 * Section numbers without a document are those of RFC 6455. */
#ifndef HMQ_WEBSOCKET_H
#define HMQ_WEBSOCKET_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_WEBSOCKET_MAX_HEAD_BYTES 8192 /* of the request; the default of nginx */
#define HMQ_WEBSOCKET_HEADER_BYTES 10 /* maximum that hmq_websocket_header writes */
#define HMQ_WEBSOCKET_ANSWER_BYTES 131 /* maximum of the other writers: a pong (2 + 125) and a close frame (2 + 2) */

typedef struct hmq_websocket hmq_websocket;

typedef enum hmq_websocket_phase {
    HMQ_WEBSOCKET_HEAD = 0, /* the head of the request is incomplete */
    HMQ_WEBSOCKET_ASKED =
        1, /* the head is complete or invalid: the owner answers it, then calls hmq_websocket_answered */
    HMQ_WEBSOCKET_OPEN = 2,
    HMQ_WEBSOCKET_OVER = 3 /* nothing more is read: the owner sends what is pending and closes the connection */
} hmq_websocket_phase;

/* A client's fault. */
typedef enum hmq_websocket_fault {
    HMQ_WEBSOCKET_NO_FAULT = 0,
    HMQ_WEBSOCKET_RESERVED_BIT = 1,
    HMQ_WEBSOCKET_UNKNOWN_OPCODE = 2,
    HMQ_WEBSOCKET_UNMASKED = 3,
    HMQ_WEBSOCKET_FRAGMENTED_CONTROL = 4,
    HMQ_WEBSOCKET_LONG_CONTROL = 5,
    HMQ_WEBSOCKET_BAD_LENGTH = 6,
    HMQ_WEBSOCKET_STRAY_CONTINUATION = 7,
    HMQ_WEBSOCKET_INTERLEAVED = 8,
    HMQ_WEBSOCKET_TEXT = 9,
    HMQ_WEBSOCKET_TOO_BIG = 10,
    HMQ_WEBSOCKET_BAD_CLOSE = 11,
    HMQ_WEBSOCKET_BAD_REASON = 12
} hmq_websocket_fault;

/* For logs, with the section; never NULL. */
const char *hmq_websocket_fault_text(int fault);
/* The status code (7.4.1) for the close frame; 0: no fault. */
uint16_t hmq_websocket_fault_code(int fault);

/* max_message_bytes: of one message, with all its fragments.  NULL when out of memory. */
hmq_websocket *hmq_websocket_new(uint64_t max_message_bytes, const hmq_allocator *allocator);
void hmq_websocket_free(hmq_websocket *websocket);

/* Takes bytes from the client.  Unmasks the MQTT bytes and moves them to the front of `data`; returns their number.  The
 * owner must then check the phase and send the bytes of hmq_websocket_answer. */
size_t hmq_websocket_read(hmq_websocket *websocket, uint8_t *data, size_t len);
hmq_websocket_phase hmq_websocket_state(const hmq_websocket *websocket);
hmq_websocket_fault hmq_websocket_failure(const hmq_websocket *websocket);

/* The request and any bytes after it (a client must send none, 4.1); empty unless ASKED.  Valid until it is answered. */
hmq_slice hmq_websocket_request(const hmq_websocket *websocket);
/* The owner has answered the request.  `accepted`: frames follow; otherwise nothing more is read. */
void hmq_websocket_answered(hmq_websocket *websocket, bool accepted);

/* Writes the header of a message in one frame with `len` bytes of MQTT.  Returns its size. */
size_t hmq_websocket_header(uint8_t *out, uint64_t len);
/* Writes the pending control frames: the pong, the answer to a close frame, the close frame after a fault.  Returns their
 * size; 0: none is pending. */
size_t hmq_websocket_answer(hmq_websocket *websocket, uint8_t *out);
bool hmq_websocket_has_answer(const hmq_websocket *websocket);
/* Writes our close frame with this status code; 0: none may be sent (not open, or one was sent).  The phase becomes OVER. */
size_t hmq_websocket_close(hmq_websocket *websocket, uint16_t code, uint8_t *out);
/* cffi-end */

#endif
