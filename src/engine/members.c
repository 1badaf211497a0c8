/* members.c - further sessions of a client: members of groups over a cluster (engine.h, "members").
 *
 *      client's connection ──► socket, output, window, aliases, rules; its own session
 *        └── members ──► each a session: queue, link, epoch, messages in flight
 *
 * Invariants
 *  1. Two messages that the client has not acknowledged never have one packet identifier on the connection.
 *  2. All sessions of a client together have at most `window` of the client unacknowledged.
 *  3. A member whose client has gone sends nothing.
 *
 * O(members of the client): a message that is sent or acknowledged while it has some. */
#include "engine/internal.h"

#define PACKET_IDS 65535U
#define OWN_IDS (PACKET_IDS - HMQ_MEMBER_BLOCKS * HMQ_MEMBER_IDS)
#define FIRST_OF_MEMBERS (OWN_IDS + 1U)

/* ---- joining and leaving ---- */

static void unlink_from(connection *client, const connection *member) {
    connection **place = &client->members;
    while (*place != member) place = &(*place)->next_member;
    *place = member->next_member;
}

void hmq_members_forget(hmq_engine *e, connection *c) {
    if (c->client != NULL) {
        unlink_from(c->client, c);
        hmq_members_acknowledged(e, c->client); /* what it had in the window is free */
    }
    for (connection *m = c->members; m != NULL; m = m->next_member) {
        m->client = NULL;
        m->phase = PHASE_ENDED;
    }
    if (c->placed != NULL) e->allocator.release(c->placed);
    c->placed = NULL;
}

bool hmq_members_may_join(const connection *client, uint8_t block) {
    if (client->phase != PHASE_OPEN || client->is_member || block >= HMQ_MEMBER_BLOCKS) return false;
    for (const connection *m = client->members; m != NULL; m = m->next_member)
        if (m->block == block) return false;
    return true;
}

bool hmq_members_prepare(hmq_engine *e, connection *c) {
    c->placed = e->allocator.alloc(HMQ_MEMBER_IDS * sizeof *c->placed);
    if (c->placed != NULL) memset(c->placed, 0, HMQ_MEMBER_IDS * sizeof *c->placed);
    return c->placed != NULL;
}

void hmq_members_add(connection *client, connection *c, uint8_t block) {
    c->is_member = true;
    c->block = block;
    c->client = client;
    c->next_member = client->members;
    client->members = c;
}

/* ---- packet identifiers ---- */

static uint16_t place_of(uint16_t packet_id) {
    return (uint16_t)((packet_id - 1U) % HMQ_MEMBER_IDS);
}

uint16_t hmq_members_wire_id(const hmq_engine *e, const connection *c, uint16_t packet_id) {
    if (e->settings.cluster == 0 || packet_id == 0) return packet_id;
    if (c->is_member) return (uint16_t)(FIRST_OF_MEMBERS + c->block * (unsigned)HMQ_MEMBER_IDS + place_of(packet_id));
    return packet_id <= OWN_IDS ? packet_id : (uint16_t)(packet_id - OWN_IDS);
}

static bool is_unacknowledged(const connection *c, uint16_t packet_id) {
    const inflight_entry *entry = packet_id == 0 ? NULL : hmq_inflight_find(&c->inflight, packet_id);
    return entry != NULL && inflight_is_unacknowledged(entry->state);
}

/* The identifier of the client's session that has the same one on the connection; 0: there is none. */
static uint16_t twin_of(uint16_t packet_id) {
    if (packet_id > OWN_IDS) return (uint16_t)(packet_id - OWN_IDS);
    return packet_id <= PACKET_IDS - OWN_IDS ? (uint16_t)(packet_id + OWN_IDS) : 0;
}

static bool place_is_free(const hmq_engine *e, const connection *c, uint16_t packet_id) {
    if (e->settings.cluster == 0) return true;
    return !is_unacknowledged(c, c->is_member ? c->placed[place_of(packet_id)] : twin_of(packet_id));
}

void hmq_members_sent(connection *c, uint16_t packet_id) {
    if (c->is_member) c->placed[place_of(packet_id)] = packet_id;
}

connection *hmq_members_session(const hmq_engine *e, connection *c, uint16_t wire_id, uint16_t *packet_id) {
    *packet_id = wire_id;
    if (e->settings.cluster == 0) return c;
    if (wire_id < FIRST_OF_MEMBERS) {
        uint16_t twin = twin_of(wire_id);
        if (is_unacknowledged(c, twin)) *packet_id = twin;
        return c;
    }
    unsigned at = wire_id - FIRST_OF_MEMBERS;
    *packet_id = 0;
    for (connection *m = c->members; m != NULL; m = m->next_member) {
        if (m->block != at / HMQ_MEMBER_IDS) continue;
        *packet_id = m->placed[at % HMQ_MEMBER_IDS];
        return m;
    }
    return c;
}

void hmq_members_release(hmq_engine *e, connection *c, uint16_t packet_id) {
    hmq_client_answer(e, c, HMQ_MQTT_PUBREL, hmq_members_wire_id(e, c, packet_id), 0);
}

/* ---- the window ---- */

static uint32_t all_unacknowledged(const connection *client) {
    uint32_t count = client->inflight.unacknowledged;
    for (const connection *m = client->members; m != NULL; m = m->next_member) count += m->inflight.unacknowledged;
    return count;
}

/* Does another session wait that has fewer messages at the client, and may send? */
static bool goes_first(const connection *other, const connection *c) {
    return other != c && other->ready_count > 0 && other->link->up && other->inflight.count < other->places &&
           other->inflight.unacknowledged < c->inflight.unacknowledged;
}

/* The last places of the window go to the sessions in turn, so that one with many messages does not keep the others from
 * theirs.  Whoever waits has its chance with the next acknowledgement. */
static bool has_turn(const connection *client, const connection *c, uint32_t room) {
    uint32_t sessions = 1;
    bool yields = goes_first(client, c);
    for (const connection *m = client->members; m != NULL; m = m->next_member, sessions++)
        yields = yields || goes_first(m, c);
    return !yields || room > sessions;
}

bool hmq_members_have_room(const hmq_engine *e, connection *c, uint16_t packet_id) {
    const connection *client = hmq_client_of(c);
    if (client->members != NULL) {
        uint32_t used = all_unacknowledged(client);
        if (used >= client->window || !has_turn(client, c, client->window - used)) return false;
    }
    return place_is_free(e, c, packet_id);
}

void hmq_members_acknowledged(hmq_engine *e, connection *c) {
    connection *client = hmq_client_of(c);
    if (client->ready_count > 0) hmq_engine_schedule_flush(e, client);
    for (connection *m = client->members; m != NULL; m = m->next_member)
        if (m->ready_count > 0) hmq_engine_schedule_flush(e, m);
}

/* ---- the socket ---- */

void hmq_members_flush(hmq_engine *e, connection *c) {
    for (connection *m = c->members; m != NULL; m = m->next_member)
        if (m->ready_count > 0 || m->behind) hmq_engine_schedule_flush(e, m);
}
