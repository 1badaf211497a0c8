/* bytes.h - a queue of bytes: appended at the end, dropped from the front; private to the core.
 *
 *      data ──► [ dropped | head ........ content ........ | free ]
 *
 * The content is contiguous, so parsers and writers see one piece.  Appending is O(1) amortised: the content is moved to
 * the front only when at least as many bytes were dropped as are moved.  Pointers into it are valid until
 * the next append.  Empty: all zero; no memory is held until something is appended. */
#ifndef HMQ_BYTES_H
#define HMQ_BYTES_H

#include <string.h>

#include "base/assert.h"
#include "base/base.h"

typedef struct hmq_bytes {
    uint8_t *data;
    size_t head, len, capacity;
} hmq_bytes;

/* Room for `extra` more bytes after the content; NULL when out of memory (nothing has changed). */
uint8_t *hmq_bytes_room(const hmq_allocator *allocator, hmq_bytes *bytes, size_t extra);
void hmq_bytes_free(const hmq_allocator *allocator, hmq_bytes *bytes);

static inline uint8_t *hmq_bytes_at(const hmq_bytes *bytes) {
    return bytes->data + bytes->head;
}

/* `count` bytes were written into the room. */
static inline void hmq_bytes_written(hmq_bytes *bytes, size_t count) {
    hmq_assert(bytes->head + bytes->len + count <= bytes->capacity);
    bytes->len += count;
}

static inline bool hmq_bytes_append(const hmq_allocator *allocator, hmq_bytes *bytes, const void *data, size_t len) {
    uint8_t *room = hmq_bytes_room(allocator, bytes, len);
    if (room == NULL) return false;
    if (len > 0) memcpy(room, data, len);
    bytes->len += len;
    return true;
}

/* Drops bytes from the front; they stay readable until the next append. */
static inline void hmq_bytes_drop(hmq_bytes *bytes, size_t count) {
    hmq_assert(count <= bytes->len);
    bytes->len -= count;
    bytes->head = bytes->len == 0 ? 0 : bytes->head + count;
}

static inline void hmq_bytes_clear(hmq_bytes *bytes) {
    bytes->head = bytes->len = 0;
}

#endif
