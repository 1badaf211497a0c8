/* engine_log.c - the commands that have no reply yet: their bytes, whom the replies belong to, and what is sent again.
 *
 *      log      | PUBLISH of A | ACK of B | PUBLISH of A | FETCH of C |        bytes, oldest first
 *      awaited  | A, id 7      | B, 3     | A, id 8      | C          |        one entry for each
 *                                                  ^ unwritten
 *
 * The bytes stay until the reply is there, so that a publish can be sent again as it was: after a loss of the server, or
 * when it was refused for now.  It then waits in its connection's `again`: entry and bytes, one after the other.  What
 * the client sends meanwhile waits in `later`; what comes out of the log is older than that, whenever it comes.
 *
 * Laws
 *  1. A connection's commands go out in the order again, later: nothing new goes into the log while these hold anything,
 *     and they go out only when nothing of the connection is in the log.  (Behind a refused command also those that
 *     succeeded are sent again: so the last word on a topic stays the publisher's last word, and the answers stay in
 *     order.  Of QoS 2 and of completions the server knows that it had them.)
 *  2. A publish of QoS 0 that was written is never sent again.
 *  3. The commands of a connection that ended are not sent again. */
#include "engine_internal.h"

uint8_t *hmq_log_room(hmq_engine *e, size_t most) {
    return hmq_bytes_room(&e->allocator, &e->log, most);
}

bool hmq_log_add(hmq_engine *e, const awaited *entry) {
    if (!hmq_bytes_append(&e->allocator, &e->awaited, entry, sizeof *entry)) return false;
    hmq_bytes_wrote(&e->log, entry->len);
    e->unwritten += entry->len;
    e->count.commands_sent++;
    return true;
}

static bool keep(hmq_engine *e, hmq_bytes *kept, const awaited *entry, const uint8_t *bytes) {
    uint8_t *room = hmq_bytes_room(&e->allocator, kept, sizeof *entry + entry->len);
    if (room == NULL) return false;
    memcpy(room, entry, sizeof *entry);
    memcpy(room + sizeof *entry, bytes, entry->len);
    hmq_bytes_wrote(kept, sizeof *entry + entry->len);
    return true;
}

static bool keeps_anything(const connection *c) {
    return c->again.len > 0 || c->later.len > 0;
}

bool hmq_log_add_client(hmq_engine *e, connection *c, const awaited *entry) {
    bool kept = !e->up || c->publishes.waits || keeps_anything(c);
    const uint8_t *bytes = hmq_bytes_at(&e->log) + e->log.len;
    if (!(kept ? keep(e, &c->later, entry, bytes) : hmq_log_add(e, entry))) return false;
    c->outstanding++;
    c->under_way += !kept;
    return true;
}

size_t hmq_log_count(const hmq_engine *e) {
    return e->awaited.len / sizeof(awaited);
}

static const awaited *head(const hmq_engine *e) {
    return e->awaited.len == 0 ? NULL : (const awaited *)(const void *)hmq_bytes_at(&e->awaited);
}

void hmq_log_drop_head(hmq_engine *e) {
    hmq_bytes_drop(&e->log, head(e)->len);
    hmq_bytes_drop(&e->awaited, sizeof(awaited));
}

static bool head_is_written(const hmq_engine *e) {
    return e->log.len - e->unwritten >= head(e)->len;
}

const awaited *hmq_log_head(const hmq_engine *e) {
    return head(e) != NULL && head_is_written(e) ? head(e) : NULL;
}

hmq_slice hmq_engine_server_output(const hmq_engine *e) {
    if (e->unwritten == 0) return (hmq_slice){NULL, 0};
    return (hmq_slice){hmq_bytes_at(&e->log) + (e->log.len - e->unwritten), e->unwritten};
}

void hmq_engine_server_written(hmq_engine *e, size_t bytes) {
    e->unwritten -= bytes < e->unwritten ? bytes : e->unwritten;
}

void hmq_log_confirmed(hmq_engine *e) {
    const awaited *entry = hmq_log_head(e);
    if (entry == NULL || entry->kind != COMMAND_SILENT) return;
    if (--((awaited *)(void *)hmq_bytes_at(&e->awaited))->token == 0) hmq_log_drop_head(e);
}

bool hmq_log_keep_head(hmq_engine *e, connection *c) {
    awaited entry = *head(e);
    entry.token = 1;
    return keep(e, &c->again, &entry, hmq_bytes_at(&e->log));
}

/* Into the log, which has the room. */
static void send_kept(hmq_engine *e, connection *c, hmq_bytes *kept) {
    while (kept->len > 0) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(kept), sizeof entry);
        memcpy(hmq_bytes_at(&e->log) + e->log.len, hmq_bytes_at(kept) + sizeof entry, entry.len);
        hmq_log_add(e, &entry);
        c->under_way++;
        hmq_bytes_drop(kept, sizeof entry + entry.len);
    }
    hmq_bytes_free(&e->allocator, kept);
}

void hmq_log_send_again(hmq_engine *e, connection *c) {
    if (!e->up || c->under_way > 0) return;
    if (keeps_anything(c)) { /* and so `outstanding` of them */
        bool fits = hmq_bytes_room(&e->allocator, &e->log, c->again.len + c->later.len) != NULL &&
                    hmq_bytes_room(&e->allocator, &e->awaited, c->outstanding * sizeof(awaited)) != NULL;
        if (!fits) {
            hmq_engine_wants_time(e, c);
            return;
        }
        send_kept(e, c, &c->again);
        send_kept(e, c, &c->later);
    }
    c->publishes.waits = false;
}

static size_t qos0_among(const hmq_bytes *kept) {
    size_t count = 0;
    for (size_t at = 0; at < kept->len;) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(kept) + at, sizeof entry);
        count += entry.kind == COMMAND_PUBLISH && entry.qos == 0;
        at += sizeof entry + entry.len;
    }
    return count;
}

size_t hmq_log_kept_qos0(const connection *c) {
    return qos0_among(&c->again) + qos0_among(&c->later);
}

static bool is_use(const awaited *entry, const connection *c, uint16_t packet_id) {
    return entry->conn == c->handle && entry->kind <= COMMAND_COMPLETE && entry->packet_id == packet_id;
}

static bool is_among(const hmq_bytes *kept, const connection *c, uint16_t packet_id) {
    awaited entry;
    for (size_t at = 0; at < kept->len; at += sizeof entry + entry.len) {
        memcpy(&entry, hmq_bytes_at(kept) + at, sizeof entry);
        if (is_use(&entry, c, packet_id)) return true;
    }
    return false;
}

bool hmq_log_uses(const hmq_engine *e, const connection *c, uint16_t packet_id) {
    const awaited *entries = head(e);
    for (size_t i = 0; c->under_way > 0 && i < hmq_log_count(e); i++)
        if (is_use(&entries[i], c, packet_id)) return true;
    return is_among(&c->again, c, packet_id) || is_among(&c->later, c, packet_id);
}

/* One command whose reply will not come. */
static void lose(hmq_engine *e, const awaited *lost, const uint8_t *bytes, bool written) {
    connection *c = hmq_engine_find(e, lost->conn);
    awaited entry = *lost;
    if (c == NULL || c->phase != PHASE_OPEN || entry.kind > COMMAND_COMPLETE) return;
    if (written && entry.kind == COMMAND_PUBLISH && entry.qos == 0) { /* in doubt */
        c->outstanding--;
        e->count.publishes_dropped_qos0++;
        return;
    }
    entry.token |= written;
    if (!keep(e, &c->again, &entry, bytes)) hmq_engine_no_memory(e, c);
}

void hmq_log_lost(hmq_engine *e) {
    size_t at = 0, written = e->log.len - e->unwritten;
    for (size_t i = 0; i < hmq_log_count(e); i++) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(&e->awaited) + i * sizeof entry, sizeof entry);
        lose(e, &entry, hmq_bytes_at(&e->log) + at, at < written);
        at += entry.len;
    }
    hmq_bytes_clear(&e->log);
    hmq_bytes_clear(&e->awaited);
    e->unwritten = 0;
}
