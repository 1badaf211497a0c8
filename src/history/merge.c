/* merge.c - the heap that history/merge.h draws. */
#include "history/merge.h"

static bool comes_before(hmq_merge a, hmq_merge b) {
    return a.next != b.next ? a.next < b.next : a.source < b.source;
}

/* Moves the source at `at` down to its place. */
static void sink(hmq_merge *heap, size_t count, size_t at) {
    hmq_merge moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && comes_before(heap[child + 1], heap[child])) child++;
        if (!comes_before(heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

void hmq_merge_begin(hmq_merge *heap, size_t count) {
    for (size_t i = count / 2; i > 0; i--) sink(heap, count, i - 1);
}

void hmq_merge_restore_order(hmq_merge *heap, size_t count) {
    if (count > 1) sink(heap, count, 0);
}
