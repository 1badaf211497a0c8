/* notes.c - what is remembered of queues beside their keys. */
#include "queue/notes.h"

#include <string.h>

#include "server/memory.h"
#include "server/replication.h"
#include "queue/usage.h"

#define NAME_MAX_BYTES 1024 /* longer session keys take the heap */
#define MOST_NOTES 1000000

/* Database and session key -> queue_note. */
static server_dict *notes;
static unsigned long long noted_doubts; /* another role, or a load, ends all notes (server/replication.h) */

/* ---- finding ----------------------------------------------------------------------------------------------- */

typedef struct note_name {
    uint8_t *bytes;
    size_t len;
    uint8_t small[NAME_MAX_BYTES];
} note_name;

static void name_make(note_name *name, int db, hmq_slice session) {
    name->len = sizeof db + session.len;
    name->bytes = scratch_alloc(name->small, sizeof name->small, name->len);
    memcpy(name->bytes, &db, sizeof db);
    memcpy(name->bytes + sizeof db, session.data, session.len);
}

static void name_free(note_name *name) {
    scratch_free(name->bytes, name->small);
}

void queue_forget_hints(void) {
    if (notes == NULL) return;
    server_dict_iter *iter = sv.DictIteratorStartC(notes, "^", NULL, 0);
    void *note;
    while (sv.DictNextC(iter, NULL, &note)) sv.Free(note);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, notes);
    notes = NULL;
}

static queue_note *find(int db, hmq_slice session) {
    note_name name;
    if (notes != NULL && noted_doubts != replication_change_count()) queue_forget_hints();
    if (notes == NULL) return NULL;
    name_make(&name, db, session);
    queue_note *note = sv.DictGetC(notes, name.bytes, name.len, NULL);
    name_free(&name);
    return note;
}

queue_note *queue_note_find(const queue *q) {
    return notes == NULL ? NULL : find(sv.GetSelectedDb(q->ctx), q->session);
}

queue_note *queue_note_make(queue *q) {
    queue_note *note = queue_note_find(q);
    note_name name;
    if (note != NULL) return note;
    if (notes != NULL && sv.DictSize(notes) >= MOST_NOTES) queue_forget_hints();
    if (notes == NULL) notes = sv.CreateDict(NULL);
    noted_doubts = replication_change_count();
    note = sv.Calloc(1, sizeof *note);
    name_make(&name, sv.GetSelectedDb(q->ctx), q->session);
    sv.DictSetC(notes, name.bytes, name.len, note);
    name_free(&name);
    return note;
}

void queue_note_forget(queue *q) {
    note_name name;
    queue_note *note = NULL;
    if (notes == NULL) return;
    name_make(&name, sv.GetSelectedDb(q->ctx), q->session);
    sv.DictDelC(notes, name.bytes, name.len, &note);
    name_free(&name);
    sv.Free(note);
}

void queue_message_gone(int db, hmq_slice session) {
    queue_note *note = find(db, session);
    queue_usage_mark_stale(db, session);
    if (note == NULL) return;
    note->calm_until_ms = 0;
    note->unknown++;
    note->look.gone++;
}

/* ---- counting ---------------------------------------------------------------------------------------------- */

bool queue_note_counts(const queue *q) {
    const queue_note *note = queue_note_find(q);
    return note != NULL && note->is_counted;
}

void queue_note_added(queue *q, size_t count, size_t bytes) {
    queue_note *note = queue_note_find(q);
    queue_usage_added(q, count, bytes);
    if (note == NULL || !note->is_counted) return;
    note->length += count;
    note->bytes += bytes;
}

void queue_note_removed(queue *q, size_t count, size_t bytes, size_t unknown) {
    queue_note *note = queue_note_find(q);
    queue_usage_removed(q, count, bytes);
    if (note == NULL) return;
    if (queue_length(q) == 0) note->look.serial = 0;
    if (!note->is_counted) return;
    bool is_right = note->length >= count && note->bytes >= bytes;
    note->length -= is_right ? count : 0;
    note->bytes -= is_right ? bytes : 0;
    note->unknown += unknown;
    note->is_counted = is_right;
    if (is_right && note->length > 0) return;
    if (note->dropped > 0 || note->is_logged)
        note->is_counted = false;
    else
        queue_note_forget(q); /* the next use makes it again */
}

void queue_note_resized(queue *q, uint64_t serial, size_t before, size_t now) {
    queue_note *note = queue_note_find(q);
    queue_usage_resized(q, before, now);
    if (note == NULL) return;
    if (serial <= note->look.serial) note->look.bytes += now > before ? now - before : 0; /* never less */
    if (!note->is_counted) return;
    if (note->bytes < before)
        note->is_counted = false;
    else
        note->bytes += now - before;
}

void queue_note_leaving(queue *q, server_string *member) {
    double score;
    bool there;
    queue_note *note = queue_note_find(q);
    if (note == NULL || note->look.serial == 0 || sv.ZsetScore(q->messages, member, &score) != SERVER_OK) return;
    if (score > (double)note->look.serial) return;
    size_t bytes = queue_value_bytes(q, member, &there);
    note->look.bytes -= bytes < note->look.bytes ? bytes : note->look.bytes;
}

/* ---- listing ----------------------------------------------------------------------------------------------- */

/* The notes of one database, by session key; freed by the caller. */
size_t queue_notes_names(int db, server_string ***list) {
    size_t count = 0, len;
    const char *name;
    *list = notes == NULL ? NULL : sv.Alloc((size_t)sv.DictSize(notes) * sizeof **list);
    server_dict_iter *iter = notes == NULL ? NULL : sv.DictIteratorStartC(notes, ">=", &db, sizeof db);
    while (iter != NULL && (name = sv.DictNextC(iter, &len, NULL)) != NULL && memcmp(name, &db, sizeof db) == 0)
        (*list)[count++] = sv.CreateString(NULL, name + sizeof db, len - sizeof db);
    if (iter != NULL) sv.DictIteratorStop(iter);
    return count;
}
