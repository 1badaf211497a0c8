/* engine_log.c - the commands that have no reply yet: their bytes, whom the replies belong to, and what is sent again.
 *
 *      log      | PUBLISH of A | ACK of B | PUBLISH of A | FETCH of C |        bytes, oldest first
 *      awaited  | A, id 7      | B, 3     | A, id 8      | C          |        one entry for each
 *                                                  ^ unwritten
 *
 * The bytes stay until the reply is there, so that a publish can be sent again as it was: after a loss of the server, or
 * when it was refused for now.  It then waits in its connection's `again`: entry and bytes, one after the other.
 *
 * Laws
 *  1. While `again` of a connection holds something, all that follows of this connection goes there, too: its order
 *     stays.  (Behind a refused publish also those of QoS 1 that succeeded are sent again, so that the last word on a
 *     topic stays the publisher's last word.)
 *  2. A publish of QoS 0 that was written is never sent again. */
#include "engine_internal.h"

uint8_t *log_room(hmq_engine *e, size_t most) {
    return hmq_bytes_room(&e->allocator, &e->log, most);
}

bool log_add(hmq_engine *e, const awaited *entry) {
    if (!hmq_bytes_append(&e->allocator, &e->awaited, entry, sizeof *entry)) return false;
    hmq_bytes_wrote(&e->log, entry->len);
    e->unwritten += entry->len;
    e->count.commands_sent++;
    return true;
}

static bool keep(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *bytes) {
    uint8_t *room = hmq_bytes_room(&e->allocator, &c->again, sizeof *entry + entry->len);
    if (room == NULL) return false;
    memcpy(room, entry, sizeof *entry);
    memcpy(room + sizeof *entry, bytes, entry->len);
    hmq_bytes_wrote(&c->again, sizeof *entry + entry->len);
    return true;
}

bool log_add_client(hmq_engine *e, connection *c, const awaited *entry) {
    bool kept = !e->up || c->stalled || c->again.len > 0;
    const uint8_t *bytes = hmq_bytes_at(&e->log) + e->log.len;
    if (!(kept ? keep(e, c, entry, bytes) : log_add(e, entry))) return false;
    c->outstanding++;
    c->under_way += !kept;
    return true;
}

size_t log_count(const hmq_engine *e) {
    return e->awaited.len / sizeof(awaited);
}

static const awaited *head(const hmq_engine *e) {
    return e->awaited.len == 0 ? NULL : (const awaited *)(const void *)hmq_bytes_at(&e->awaited);
}

void log_drop_head(hmq_engine *e) {
    hmq_bytes_drop(&e->log, head(e)->len);
    hmq_bytes_drop(&e->awaited, sizeof(awaited));
}

static bool head_is_written(const hmq_engine *e) {
    return e->log.len - e->unwritten >= head(e)->len;
}

const awaited *log_head(const hmq_engine *e) {
    return head(e) != NULL && head_is_written(e) ? head(e) : NULL;
}

hmq_slice log_head_bytes(const hmq_engine *e) {
    return (hmq_slice){hmq_bytes_at(&e->log), head(e)->len};
}

/* Commands without a reply are over as soon as they are written and nothing older is awaited. */
static void drop_silent(hmq_engine *e) {
    while (head(e) != NULL && head(e)->kind == COMMAND_SILENT && head_is_written(e)) log_drop_head(e);
}

hmq_slice hmq_engine_server_output(const hmq_engine *e) {
    if (e->unwritten == 0) return (hmq_slice){NULL, 0};
    return (hmq_slice){hmq_bytes_at(&e->log) + (e->log.len - e->unwritten), e->unwritten};
}

void hmq_engine_server_written(hmq_engine *e, size_t bytes) {
    e->unwritten -= bytes < e->unwritten ? bytes : e->unwritten;
    drop_silent(e);
}

bool log_keep_head(hmq_engine *e, connection *c) {
    return keep(e, c, head(e), hmq_bytes_at(&e->log));
}

void log_send_again(hmq_engine *e, connection *c) {
    if (!e->up || c->under_way > 0) return;
    c->stalled = false;
    while (c->again.len > 0) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(&c->again), sizeof entry);
        uint8_t *room = log_room(e, entry.len);
        if (room == NULL) return;
        memcpy(room, hmq_bytes_at(&c->again) + sizeof entry, entry.len);
        if (!log_add(e, &entry)) return;
        c->under_way++;
        hmq_bytes_drop(&c->again, sizeof entry + entry.len);
    }
    hmq_bytes_free(&e->allocator, &c->again);
}

static bool is_clients(uint8_t kind) {
    return kind <= COMMAND_COMPLETE;
}

/* One command whose reply will not come. */
static void lose(hmq_engine *e, const awaited *entry, const uint8_t *bytes, bool written) {
    connection *c = engine_find(e, entry->conn);
    if (c == NULL || !is_clients(entry->kind)) return;
    bool in_doubt = written && entry->kind == COMMAND_PUBLISH && entry->qos == 0;
    if (!in_doubt && keep(e, c, entry, bytes)) return;
    c->outstanding--;
    e->count.publishes_dropped_qos0 += in_doubt;
}

void log_lost(hmq_engine *e) {
    size_t at = 0, written = e->log.len - e->unwritten;
    for (size_t i = 0; i < log_count(e); i++) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(&e->awaited) + i * sizeof entry, sizeof entry);
        lose(e, &entry, hmq_bytes_at(&e->log) + at, at < written);
        at += entry.len;
    }
    hmq_bytes_clear(&e->log);
    hmq_bytes_clear(&e->awaited);
    e->unwritten = 0;
}
