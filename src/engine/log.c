/* log.c - the commands without a reply: their bytes, whom the replies belong to, and which are sent again.
 *
 *      log      | PUBLISH of A | ACK of B | PUBLISH of A | FETCH of C |        bytes, oldest first
 *      awaited  | A, id 7      | B, 3     | A, id 8      | C          |        one entry per command
 *                                                  ^ unwritten
 *
 * Publishes at the end of the log that were not handed out yet are a run.  A run ends with another command, at a bound, or
 * when the output is taken.  Two or more publishes then get a frame, which belongs to the first and the last entry:
 *
 *      log      | *2 TOPIC.PIPELINE $n  PUBLISH of A  | PUBLISH of B | PUBLISH of A  CRLF | ACK of B | PUBLISH of B
 *      awaited  | A, id 7; batch 3, before            | B            | A, id 8; after     | B, 3     | B
 *                                                                                                    ^ run
 * In every other respect they are separate commands.
 *
 * There is one log for each link to the server.  A connection has commands in the log of its own link only.
 *
 * The bytes stay until the reply arrives, so that a publish can be sent again: after a loss of the server, or after a
 * temporary refusal.  It then waits in `again` of its connection: each entry is followed by its bytes.  Commands that the
 * client sends meanwhile wait in `later`; they are newer than everything that returns from the log.  The first publish that
 * is sent again gets the word RETRY: no earlier command is under way that the server should refuse.
 *
 * Invariants
 *  1. A connection's kept commands are sent first from `again`, then from `later`.  While either holds anything, no new
 *     command of the connection enters the log, and kept ones enter it only when it holds none of the connection.  (All
 *     commands after a refused one are sent again, also those that succeeded: the last message on a topic stays the
 *     publisher's last one, and the answers stay in order.  The server recognizes repeated QoS 2 publishes and
 *     completions.)  After QUEUEFULL only a few are sent at first, then twice as many, and so on.
 *  2. A written publish of QoS 0 is never sent again, unless the server replied that it does not know the command.
 *  3. The commands of a connection that ended are not sent again.
 *  4. A suspect enters the log only when it holds no command of the same connection and no other suspect. */
#include "engine/internal.h"

#define PIPELINE_BYTES 16384U /* of publishes in one command: fewer than 65536 fit */
#define FRAME_BYTES ((size_t)40) /* room for the frame around them */

/* A publish to many sessions takes the server long.  One command should make at most `copies_most` copies, so that other
 * clients get their turn.  The server refuses publishes that would take it more than some milliseconds
 * (routing/step_budget.h), and then the publisher pauses.  So the engine learns what the server can make in this time:
 * how many it made of a command that it refused in part is a little too much, and commands without refusals raise it
 * slowly. */
#define COPIES_LEAST 64.0
#define COPIES_MOST 1024.0
#define RUN_SPARE 1.25 /* so that the publishes of one client fit into one command */
#define COPIES_MORE 0.5 /* after each command that made at least half of `copies_most` */

void hmq_log_learn_copies(engine_link *l, double copies, bool is_refused) {
    double learnt = is_refused ? copies * 0.75 : l->copies_most + (copies * 2 >= l->copies_most ? COPIES_MORE : 0);
    if (is_refused && learnt > l->copies_most) return; /* for another reason */
    l->copies_most = learnt < COPIES_LEAST ? COPIES_LEAST : learnt > COPIES_MOST ? COPIES_MOST : learnt;
}

/* ---- runs ---- */

/* The unwritten bytes are the end of the log, and the run is the end of the unwritten bytes.  All bytes have an entry. */
static void check(const hmq_engine *e, const engine_link *l) {
    hmq_assert(l->run_bytes <= l->unwritten && l->unwritten <= l->log.len);
    hmq_assert((l->run == 0) == (l->run_bytes == 0));
    hmq_assert((l->awaited.len == 0) == (l->log.len == 0));
    hmq_assert(e->log_bytes >= l->log.len && e->log_commands >= hmq_log_count(l));
    (void)e;
    (void)l;
}

static awaited *entry_at(const engine_link *l, size_t index) {
    return (awaited *)(void *)hmq_bytes_at(&l->awaited) + index;
}

/* Copies that this publish is likely to make. */
static double copies_of(const hmq_engine *e, const awaited *entry) {
    const connection *c = hmq_engine_find(e, entry->conn);
    return c == NULL || c->reach < 1 ? 1 : (double)c->reach;
}

/* Writes *2 TOPIC.PIPELINE $bytes; returns its end. */
static uint8_t *put_frame(uint8_t *out, size_t bytes) {
    out = hmq_resp_put_header(out, '*', 2);
    out = hmq_resp_put_text(out, "TOPIC.PIPELINE", 14);
    return hmq_resp_put_header(out, '$', bytes);
}

/* Ends the run.  Two or more publishes get their frame, for which there is room.  `following`: bytes of a command after the
 * run that is about to be added. */
void hmq_log_seal(hmq_engine *e, engine_link *l, size_t following) {
    size_t bytes = l->run_bytes;
    uint32_t count = l->run;
    l->run_bytes = l->run = 0;
    l->run_copies = 0;
    if (count < 2 || l->unpipelined) return;
    uint8_t frame[FRAME_BYTES];
    size_t before = (size_t)(put_frame(frame, bytes) - frame);
    uint8_t *end = hmq_bytes_at(&l->log) + l->log.len, *begin = end - bytes;
    memmove(end + before + 2, end, following);
    memmove(begin + before, begin, bytes);
    memcpy(begin, frame, before);
    memcpy(end + before, "\r\n", 2);
    awaited *last = entry_at(l, hmq_log_count(l) - 1), *first = last - (count - 1);
    first->batch = (uint16_t)count;
    first->before = (uint8_t)before;
    last->after = 2;
    hmq_bytes_written(&l->log, before + 2);
    e->log_bytes += before + 2;
    l->unwritten += before + 2;
}

/* Appends this publish to the run, or begins another run with it. */
static void extend(hmq_engine *e, engine_link *l, const awaited *entry) {
    double copies = copies_of(e, entry);
    bool fits = !l->unpipelined && l->run < e->settings.max_pipeline && l->run_bytes + entry->len <= PIPELINE_BYTES &&
                l->run_copies + copies <= l->copies_most * RUN_SPARE;
    if (!fits) hmq_log_seal(e, l, entry->len);
    l->run++;
    l->run_copies += copies;
    l->run_bytes += entry->len;
}

/* ---- suspects ---- */

/* A publish without a reply may be the reason for a loss of the server: it pushes too much, or takes too long.  After
 * these losses it is sent by itself, so that it alone is blamed for the next one. */
#define LOSSES_TOGETHER 2

static bool is_suspect(const awaited *entry) {
    return entry->kind == COMMAND_PUBLISH && entry->losses >= LOSSES_TOGETHER;
}

void hmq_log_suspect_done(engine_link *l) {
    l->suspect_under_way = false;
}

/* ---- the log ---- */

/* Includes room for the frame of the run before these commands, and of the run that they end with. */
uint8_t *hmq_log_room(hmq_engine *e, engine_link *l, size_t most) {
    if (most > SIZE_MAX - 2 * FRAME_BYTES) return NULL;
    return hmq_bytes_room(&e->allocator, &l->log, most + 2 * FRAME_BYTES);
}

bool hmq_log_add(hmq_engine *e, engine_link *l, const awaited *entry) {
    if (hmq_bytes_room(&e->allocator, &l->awaited, sizeof *entry) == NULL) return false;
    if ((entry->kind == COMMAND_PUBLISH && !entry->alone) || entry->kind == COMMAND_VISIT)
        extend(e, l, entry);
    else
        hmq_log_seal(e, l, entry->len);
    hmq_bytes_append(&e->allocator, &l->awaited, entry, sizeof *entry);
    hmq_bytes_written(&l->log, entry->len);
    l->unwritten += entry->len;
    e->log_bytes += entry->len;
    e->log_commands++;
    e->count.commands_sent++;
    if (e->traces != NULL && entry->kind != COMMAND_VISIT) hmq_trace_logged(e, l, entry);
    if (hmq_confirm_needs(e, entry)) l->wait_due = true;
    check(e, l);
    return true;
}

static bool keep(hmq_engine *e, hmq_bytes *kept, const awaited *entry, const uint8_t *bytes) {
    uint8_t *room = hmq_bytes_room(&e->allocator, kept, sizeof *entry + entry->len);
    if (room == NULL) return false;
    memcpy(room, entry, sizeof *entry);
    memcpy(room + sizeof *entry, bytes, entry->len);
    hmq_bytes_written(kept, sizeof *entry + entry->len);
    return true;
}

/* One connection's publishes in the log make at most `copies_most` copies; further publishes wait for replies.  So a
 * client that publishes to many sessions delays nobody, and no later publish overtakes a refused one. */
static bool has_enough_copies(const connection *c) {
    return (double)c->under_way * (double)c->reach >= c->link->copies_most;
}

static bool keeps_anything(const connection *c) {
    return c->again.len > 0 || c->later.len > 0;
}

bool hmq_log_add_client(hmq_engine *e, connection *c, const awaited *entry) {
    engine_link *l = c->link;
    bool kept = !l->up || c->publishes.waits || c->next != NULL || keeps_anything(c) || has_enough_copies(c);
    const uint8_t *bytes = hmq_bytes_at(&l->log) + l->log.len;
    if (!(kept ? keep(e, &c->later, entry, bytes) : hmq_log_add(e, l, entry))) return false;
    c->outstanding++;
    c->under_way += !kept;
    c->under_way_bytes += kept ? 0 : entry->len;
    return true;
}

size_t hmq_log_count(const engine_link *l) {
    return l->awaited.len / sizeof(awaited);
}

static awaited *head(const engine_link *l) {
    return l->awaited.len == 0 ? NULL : entry_at(l, 0);
}

static size_t bytes_of(const awaited *entry) {
    return (size_t)entry->before + entry->len + entry->after;
}

void hmq_log_drop_head(hmq_engine *e, engine_link *l) {
    const size_t bytes = bytes_of(entry_at(l, 0));
    e->log_bytes -= bytes;
    e->log_commands--;
    hmq_bytes_drop(&l->log, bytes);
    hmq_bytes_drop(&l->awaited, sizeof(awaited));
    check(e, l);
}

/* Together with all publishes in the same command. */
static bool head_is_written(const engine_link *l) {
    size_t bytes = bytes_of(head(l));
    for (uint16_t i = 1; l->unwritten > 0 && i < head(l)->batch; i++) bytes += bytes_of(entry_at(l, i));
    return l->log.len - l->unwritten >= bytes;
}

const awaited *hmq_log_head(const engine_link *l) {
    return head(l) != NULL && head_is_written(l) ? head(l) : NULL;
}

hmq_slice hmq_log_head_command(const engine_link *l) {
    return (hmq_slice){hmq_bytes_at(&l->log) + head(l)->before, head(l)->len};
}

void hmq_engine_server_written(hmq_engine *e, uint32_t link, size_t bytes) {
    engine_link *l = hmq_engine_link(e, link);
    if (l == NULL) return;
    size_t handed_out = l->unwritten - l->run_bytes;
    l->unwritten -= bytes < handed_out ? bytes : handed_out;
    check(e, l);
}

void hmq_log_confirmed(hmq_engine *e, engine_link *l) {
    const awaited *entry = hmq_log_head(l);
    if (entry == NULL || entry->kind != COMMAND_SILENT) return;
    if (--head(l)->token == 0) hmq_log_drop_head(e, l);
}

/* Keeps a command to be sent again, without its frame. */
static bool keep_to_resend(hmq_engine *e, connection *c, const awaited *sent, const uint8_t *bytes, bool seen) {
    awaited entry = *sent;
    entry.token |= seen;
    hmq_assert(c->handle == entry.conn && c->phase == PHASE_OPEN); /* invariant 3 */
    entry.batch = entry.before = entry.after = 0;
    entry.alone = false;
    return keep(e, &c->again, &entry, bytes + sent->before);
}

bool hmq_log_keep_head(hmq_engine *e, connection *c, bool seen) {
    const engine_link *l = c->link;
    return keep_to_resend(e, c, head(l), hmq_bytes_at(&l->log), seen);
}

/* Moves all kept commands to `later`, in their order: commands that return from the log are older. */
static bool move_kept_to_later(hmq_engine *e, connection *c) {
    if (c->again.len == 0) return true;
    if (c->later.len > 0 && !hmq_bytes_append(&e->allocator, &c->again, hmq_bytes_at(&c->later), c->later.len))
        return false;
    hmq_bytes_free(&e->allocator, &c->later);
    c->later = c->again;
    c->again = (hmq_bytes){0};
    return true;
}

#define RETRY_MOST 1024 /* publishes; once this many were accepted, all are sent */

/* A publish that may be held back, with those after it, until RETRY says that all replies are here. */
static bool is_retried(const connection *c, const awaited *entry) {
    bool was_refused = c->publishes.pause_ms > 0 || entry->losses > 0;
    return was_refused && entry->kind == COMMAND_PUBLISH && entry->qos > 0;
}

#define RETRY "RETRY"
#define RETRY_BYTES ((size_t)16) /* the word, and one more digit of the number of words */

/* The command with RETRY as its last word; returns its end. */
static uint8_t *put_with_retry(uint8_t *out, const uint8_t *command, size_t len) {
    static const char word[] = "$5\r\n" RETRY "\r\n";
    const size_t word_len = sizeof word - 1;
    hmq_resp_item item;
    size_t at = 0;
    bool is_there = len > word_len && memcmp(command + len - word_len, word, word_len) == 0;
    hmq_resp_next(command, len, &at, &item);
    if (!is_there) out = hmq_resp_put_header(out, '*', (size_t)item.number + 1);
    if (is_there) at = 0;
    memcpy(out, command + at, len - at);
    out += len - at;
    if (!is_there) memcpy(out, word, word_len);
    return is_there ? out : out + word_len;
}

/* Moves `later` into the log, which has room: all of it, or the part before a suspect, or one suspect.  Only a few after a
 * refusal. */
static void send_kept(hmq_engine *e, connection *c) {
    engine_link *l = c->link;
    uint32_t most = c->publishes.most == 0 ? UINT32_MAX : c->publishes.most;
    bool begins_again = true; /* nothing of the connection is in the log: all replies are here */
    if (c->publishes.most > 0) c->publishes.most = most >= RETRY_MOST ? 0 : most * 2;
    for (bool continues = true; continues && most > 0 && c->later.len > 0 && !has_enough_copies(c); most--) {
        awaited entry;
        memcpy(&entry, hmq_bytes_at(&c->later), sizeof entry);
        entry.alone = is_suspect(&entry);
        if (entry.alone && (c->under_way > 0 || l->suspect_under_way)) return; /* invariant 4 */
        const uint32_t kept_len = entry.len;
        const uint8_t *kept = hmq_bytes_at(&c->later) + sizeof entry;
        uint8_t *out = hmq_bytes_at(&l->log) + l->log.len;
        if (begins_again && is_retried(c, &entry)) {
            entry.len = (uint32_t)(put_with_retry(out, kept, kept_len) - out);
            begins_again = false;
        } else {
            memcpy(out, kept, kept_len);
        }
        hmq_log_add(e, l, &entry);
        c->under_way++;
        c->under_way_bytes += entry.len;
        hmq_bytes_drop(&c->later, sizeof entry + kept_len);
        l->suspect_under_way |= entry.alone;
        continues = !entry.alone;
    }
    if (c->later.len > 0) return;
    hmq_bytes_free(&e->allocator, &c->later);
    c->publishes.most = 0;
}

/* The commands of the connection in the log.  O(log). */
static inline size_t count_under_way(const connection *c) {
    const engine_link *l = c->link;
    size_t count = 0;
    for (size_t i = 0; i < hmq_log_count(l); i++)
        count += entry_at(l, i)->conn == c->handle && entry_at(l, i)->kind <= COMMAND_COMPLETE;
    return count;
}

void hmq_log_send_again(hmq_engine *e, connection *c) {
    engine_link *l = c->link;
    if (!l->up || c->under_way > 0 || c->next != NULL) return;
    hmq_assert(count_under_way(c) == 0); /* invariant 1 */
    if (keeps_anything(c)) { /* `outstanding` is their number; a frame holds two or more */
        size_t most = c->again.len + c->later.len + RETRY_BYTES + (size_t)c->outstanding / 2 * FRAME_BYTES;
        bool fits = hmq_log_room(e, l, most) != NULL &&
                    hmq_bytes_room(&e->allocator, &l->awaited, c->outstanding * sizeof(awaited)) != NULL &&
                    move_kept_to_later(e, c);
        if (!fits) {
            hmq_engine_schedule_wake(e, c);
            return;
        }
        send_kept(e, c);
        if (c->under_way == 0) hmq_engine_schedule_wake(e, c); /* a suspect of another client is in the log */
    }
    c->publishes.waits = false;
}

bool hmq_log_may_resend(const connection *c) {
    return c->under_way == 0 && !c->publishes.waits && keeps_anything(c);
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

bool hmq_log_uses(const connection *c, uint16_t packet_id) {
    const engine_link *l = c->link;
    for (size_t i = 0; c->under_way > 0 && i < hmq_log_count(l); i++)
        if (is_use(entry_at(l, i), c, packet_id)) return true;
    return is_among(&c->again, c, packet_id) || is_among(&c->later, c, packet_id) || hmq_confirm_uses(c, packet_id);
}

/* One command will get no reply. */
static void lose(hmq_engine *e, const awaited *lost, const uint8_t *bytes, bool written) {
    connection *c = hmq_engine_find(e, lost->conn);
    if (c == NULL || c->phase != PHASE_OPEN || lost->kind > COMMAND_COMPLETE) return;
    if (written && lost->kind == COMMAND_PUBLISH && lost->qos == 0) { /* the server may have taken it */
        c->outstanding--;
        e->count.publishes_dropped_qos0++;
        if (TRACE_OF(lost->token) != 0) hmq_trace_answered(e, c, lost, HMQ_TRACE_LOST);
        return;
    }
    awaited entry = *lost;
    if (written && lost->kind == COMMAND_PUBLISH) entry.losses++;
    if (entry.losses >= HMQ_PUBLISH_ATTEMPTS)
        hmq_publish_abandon(e, c, &entry, bytes + lost->before);
    else if (!keep_to_resend(e, c, &entry, bytes, written))
        hmq_engine_no_memory(e, c);
}

void hmq_log_each(hmq_engine *e, engine_link *l, log_visit *visit) {
    const size_t written = l->log.len - l->unwritten;
    for (size_t i = 0, at = 0; i < hmq_log_count(l); i++) {
        const awaited *entry = entry_at(l, i);
        visit(e, l, entry, hmq_bytes_at(&l->log) + at + entry->before, at < written);
        at += bytes_of(entry);
    }
}

void hmq_log_lost(hmq_engine *e, engine_link *l) {
    size_t at = 0, written = l->log.len - l->unwritten;
    for (size_t i = 0; i < hmq_log_count(l); i++) {
        const awaited *entry = entry_at(l, i);
        lose(e, entry, hmq_bytes_at(&l->log) + at, at < written);
        at += bytes_of(entry);
    }
    e->log_bytes -= l->log.len;
    e->log_commands -= hmq_log_count(l);
    hmq_bytes_clear(&l->log);
    hmq_bytes_clear(&l->awaited);
    l->unwritten = l->run_bytes = l->run = 0;
    l->run_copies = 0;
    l->suspect_under_way = false;
}
