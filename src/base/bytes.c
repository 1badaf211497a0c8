/* bytes.c - the queue of bytes of base/bytes.h. */
#include "base/bytes.h"

#define FIRST_BYTES 256U

static bool grow(const hmq_allocator *allocator, hmq_bytes *bytes, size_t needed) {
    size_t capacity = bytes->capacity < FIRST_BYTES ? FIRST_BYTES : bytes->capacity;
    while (capacity < needed) {
        if (capacity > SIZE_MAX / 2) return false;
        capacity *= 2;
    }
    uint8_t *data = allocator->alloc(capacity);
    if (data == NULL) return false;
    if (bytes->data != NULL) {
        memcpy(data, bytes->data + bytes->head, bytes->len);
        allocator->release(bytes->data);
    }
    *bytes = (hmq_bytes){data, 0, bytes->len, capacity};
    return true;
}

uint8_t *hmq_bytes_room(const hmq_allocator *allocator, hmq_bytes *bytes, size_t extra) {
    if (extra > SIZE_MAX - bytes->len) return NULL;
    if (bytes->data == NULL || bytes->capacity - bytes->head - bytes->len < extra) {
        if (bytes->data != NULL && bytes->head >= bytes->len && bytes->capacity - bytes->len >= extra) {
            if (bytes->len > 0) memmove(bytes->data, bytes->data + bytes->head, bytes->len);
            bytes->head = 0;
        } else if (!grow(allocator, bytes, bytes->len + extra)) {
            return NULL;
        }
    }
    return bytes->data == NULL ? NULL : bytes->data + bytes->head + bytes->len;
}

void hmq_bytes_free(const hmq_allocator *allocator, hmq_bytes *bytes) {
    if (bytes->data != NULL) allocator->release(bytes->data);
    *bytes = (hmq_bytes){0};
}
