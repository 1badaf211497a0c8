/* mqtt_load_frames.h - the client's side of a WebSocket (RFC 6455), as much as a load generator needs: without I/O.
 *
 * Each packet of MQTT goes as a message of its own, masked, as client libraries do it.  Like mqtt_load_wire.h it is not
 * shared with the broker. */
#ifndef MQTT_LOAD_FRAMES_H
#define MQTT_LOAD_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_REQUEST_BYTES 512
#define FRAMES_GROWTH 4 /* a packet of 2 bytes becomes a frame of 8; those of others grow less */

typedef struct frames_state {
    bool is_open;       /* the request was accepted */
    size_t answer_len;  /* of the answer, what came of it */
    uint8_t answer_end; /* how much of its end, an empty line, came last */
    uint8_t header[10]; /* of a frame, what came of it */
    size_t header_len;
    bool is_data; /* else what is left is a control frame's */
    uint64_t left;
} frames_state;

/* The request for the WebSocket at this path; its size, 0: it does not fit. */
size_t frames_put_request(char out[FRAMES_REQUEST_BYTES], const char *path);
/* Moves what is MQTT to the front of `data`; returns how much that is.  -1: refused, closed, or no frames of a server. */
int64_t frames_read(frames_state *state, uint8_t *data, size_t len);
/* Puts each packet into a frame; `out` has FRAMES_GROWTH * len.  Returns the size of the frames. */
size_t frames_put_packets(uint8_t *out, const uint8_t *packets, size_t len);

#endif
