/* sort.c - heap sort over items of any size.  Pure. */
#include "base/sort.h"

#include <string.h>

typedef struct heap {
    uint8_t *items;
    size_t size;
    hmq_compare compare;
} heap;

static uint8_t *at(const heap *h, size_t index) {
    return h->items + index * h->size;
}

static void swap(const heap *h, size_t a, size_t b) {
    uint8_t kept[HMQ_SORT_MAX_SIZE];
    memcpy(kept, at(h, a), h->size);
    memmove(at(h, a), at(h, b), h->size);
    memcpy(at(h, b), kept, h->size);
}

static void sift_down(const heap *h, size_t index, size_t count) {
    for (size_t child; (child = 2 * index + 1) < count; index = child) {
        if (child + 1 < count && h->compare(at(h, child), at(h, child + 1)) < 0) child++;
        if (h->compare(at(h, index), at(h, child)) >= 0) return;
        swap(h, index, child);
    }
}

void hmq_sort(void *items, size_t count, size_t size, hmq_compare compare) {
    heap h = {.items = items, .size = size, .compare = compare};
    for (size_t i = count / 2; i-- > 0;) sift_down(&h, i, count);
    for (size_t end = count; end-- > 1;) {
        swap(&h, 0, end);
        sift_down(&h, 0, end);
    }
}
