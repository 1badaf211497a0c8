/* bytes.c - how many bytes a queue holds. */
#include "queue/bytes.h"

#include <math.h>

#include "queue/look.h"
#include "queue/notes.h"

#define SMALL_QUEUE 64
#define SAMPLE 4096 /* messages that are counted in one step for INFO: some 3 ms */

typedef struct counted {
    size_t references, bytes, gone;
} counted;

/* The first `most` references. */
static counted count_some(queue *q, size_t most) {
    counted all = {0};
    if (queue_length(q) == 0) return all;
    long long begun_ms = sv.Milliseconds();
    sv.ZsetFirstInScoreRange(q->messages, -INFINITY, INFINITY, 0, 0);
    for (; all.references < most && !sv.ZsetRangeEndReached(q->messages); sv.ZsetRangeNext(q->messages)) {
        all.references++;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, NULL);
        bool there = false;
        if (queue_packet_id_of(q->session, member) != 0) all.bytes += queue_value_bytes(q, member, &there);
        all.gone += !there;
        sv.FreeString(NULL, member);
    }
    sv.ZsetRangeStop(q->messages);
    slow_step("holdmq-queue-count", begun_ms);
    return all;
}

static counted count_all(queue *q) {
    return count_some(q, SIZE_MAX);
}

size_t queue_count_bytes(queue *q) {
    return count_all(q).bytes;
}

static bool is_current(const queue_note *note, const queue *q) {
    return note != NULL && note->is_counted && note->length == queue_length(q);
}

size_t queue_bytes_before(queue *q, size_t count, size_t largest, size_t bound) {
    const queue_note *note = queue_note_find(q);
    if (is_current(note, q)) return note->bytes;
    bool is_small = queue_length(q) + count <= SMALL_QUEUE && largest <= bound / SMALL_QUEUE;
    if (is_small && (note == NULL || !note->is_counted)) return 0;
    queue_look_continue(q, NULL);
    note = queue_note_find(q);
    return is_current(note, q) ? note->bytes : 0;
}

size_t queue_bytes(queue *q) {
    const queue_note *note = queue_note_find(q);
    bool is_long = queue_length(q) > SAMPLE;
    if (is_current(note, q) && (note->unknown == 0 || is_long)) return note->bytes;
    counted first = count_some(q, SAMPLE);
    return is_long ? (size_t)((double)first.bytes / (double)first.references * (double)queue_length(q)) : first.bytes;
}

void queue_notes_check(server_ctx *ctx, void (*differ)(void *context, const char *what, hmq_slice name),
                       void *context) {
    server_string **list;
    size_t count = queue_notes_names(sv.GetSelectedDb(ctx), &list);
    for (size_t i = 0; i < count; i++) {
        queue q;
        bool usable = queue_open(&q, ctx, slice_of(list[i]), SERVER_READ);
        counted now = usable ? count_all(&q) : (counted){0};
        const queue_note *note = queue_note_find(&q);
        bool compares = usable && is_current(note, &q);
        bool differs = compares && (note->unknown + now.gone > 0 ? note->bytes < now.bytes : note->bytes != now.bytes);
        if (differs) differ(context, "the bytes of a queue differ from those of its messages", q.session);
        queue_close(&q);
        sv.FreeString(NULL, list[i]);
    }
    sv.Free(list);
}
