/* slots.c - knows which slots this node serves, and which are moving. */
#include "server/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/errors.h"
#include "server/internals.h"
#include "server/listening.h"

#define REST_MS 1000   /* maximum age of the view */
#define MOVING_MS 100  /* ... while a slot is moving */
#define EVENT_SLOTS_MOVED 19 /* Valkey 9: a slot is moved as a whole; no other server has an event of this number */
#define FEW_SLOTS 32 /* are asked about in each command */

static struct {
    uint8_t states[HMQ_SLOTS]; /* slot_state */
    uint8_t before[HMQ_SLOTS]; /* in the view before */
    uint64_t number;           /* of the view */
    uint64_t changed[HMQ_SLOTS]; /* the view that found it in another state */
    hmq_slot_set served;
    bool owns;     /* some slot is this node's, moving or not */
    bool moving;   /* some slot is moving */
    bool doubtful; /* to be read again before the next use */
    long long read_ms;
    bool queued; /* a CLUSTER command waits in a transaction */
    bool works;
    long long works_ms; /* when `works` was read */
    char id[SLOTS_NODE_ID_BYTES]; /* of this node */
    size_t id_len;
} view;

static void (*watcher)(void);

static bool asking; /* the server is checking a slot for this file */

/* ---- CLUSTER NODES ----------------------------------------------------------------------------------------- */

/* One line:  <id> <host>:<port>@<bus>[,...] <flags> <primary> <ping> <pong> <epoch> <link> [<slots> ...]
 * Slots:     <n>  <first>-<last>  [<n>->-<id of the target>]  [<n>-<-<id of the source>] */
enum { FIELD_ID, FIELD_ADDRESS, FIELD_FLAGS, FIELD_PING = 4, FIELD_PONG, FIELD_SLOTS = 8 };

static hmq_slice next_part(hmq_slice *text, char separator) {
    const uint8_t *found = memchr(text->data, separator, text->len);
    hmq_slice part = {text->data, found == NULL ? text->len : (size_t)(found - text->data)};
    size_t used = part.len + (found == NULL ? 0 : 1);
    *text = (hmq_slice){text->data + used, text->len - used};
    return part;
}

static hmq_slice field_of(hmq_slice line, int number) {
    hmq_slice field = {line.data, 0};
    for (int i = 0; i <= number; i++) field = next_part(&line, ' ');
    return field;
}

static server_reply *read_nodes(hmq_slice *text) {
    server_reply *reply = sv.Call(detached, "CLUSTER", "c", "NODES");
    *text = (hmq_slice){(const uint8_t *)"", 0};
    if (reply != NULL && sv.CallReplyType(reply) == SERVER_REPLY_STRING)
        text->data = (const uint8_t *)sv.CallReplyStringPtr(reply, &text->len);
    return reply;
}

static bool is_self(hmq_slice flags) {
    return flags.len >= 6 && memmem(flags.data, flags.len, "myself", 6) != NULL;
}

static hmq_slice own_line(hmq_slice text) {
    while (text.len > 0) {
        hmq_slice line = next_part(&text, '\n');
        if (is_self(field_of(line, FIELD_FLAGS))) return line;
    }
    return text;
}

/* The number at the start of the text, which ends at a byte that is not a digit; HMQ_SLOTS if it is not a slot. */
static unsigned slot_number(hmq_slice text, size_t *used) {
    unsigned number = 0;
    size_t at = 0;
    for (; at < text.len && at < 5 && text.data[at] >= '0' && text.data[at] <= '9'; at++)
        number = number * 10 + (unsigned)(text.data[at] - '0');
    *used = at;
    return at == 0 || number > HMQ_SLOTS ? HMQ_SLOTS : number;
}

static void set_state(unsigned slot, slot_state state) {
    view.states[slot] = (uint8_t)state;
    view.owns = view.owns || state == SLOT_SERVED || state == SLOT_MIGRATING;
    if (state == SLOT_SERVED)
        view.served.words[slot / 64] |= 1ULL << (slot % 64);
    else
        view.served.words[slot / 64] &= ~(1ULL << (slot % 64));
}

/* Is the part "[<n>->-<id>]" (arrow "->-") or "[<n>-<-<id>]" (arrow "-<-")?  Then the slot and the other node's id. */
static bool is_moving(hmq_slice part, const char *arrow, unsigned *slot, hmq_slice *other) {
    size_t used;
    if (part.len < 2 || part.data[0] != '[') return false;
    hmq_slice inside = {part.data + 1, part.len - 2};
    *slot = slot_number(inside, &used);
    if (*slot == HMQ_SLOTS || inside.len < used + 3 || memcmp(inside.data + used, arrow, 3) != 0) return false;
    *other = (hmq_slice){inside.data + used + 3, inside.len - used - 3};
    return true;
}

static void take_part(hmq_slice part) {
    unsigned slot;
    hmq_slice other;
    size_t used;
    if (is_moving(part, "->-", &slot, &other)) {
        set_state(slot, SLOT_MIGRATING);
        view.moving = true;
    } else if (is_moving(part, "-<-", &slot, &other)) {
        set_state(slot, SLOT_IMPORTING);
        view.moving = true;
    } else if ((slot = slot_number(part, &used)) < HMQ_SLOTS) {
        unsigned last = slot;
        if (used < part.len && part.data[used] == '-')
            last = slot_number((hmq_slice){part.data + used + 1, part.len - used - 1}, &used);
        for (; slot <= last && slot < HMQ_SLOTS; slot++) set_state(slot, SLOT_SERVED);
    }
}

static void note_changes(void) {
    view.number++;
    if (memcmp(view.states, view.before, sizeof view.states) == 0) return;
    for (unsigned slot = 0; slot < HMQ_SLOTS; slot++) {
        if (view.states[slot] != view.before[slot]) view.changed[slot] = view.number;
    }
}

static void read_view(void) {
    hmq_slice text;
    server_reply *reply = read_nodes(&text);
    memcpy(view.before, view.states, sizeof view.before);
    memset(view.states, SLOT_ELSEWHERE, sizeof view.states);
    memset(&view.served, 0, sizeof view.served);
    view.moving = view.doubtful = view.owns = false;
    view.read_ms = sv.Milliseconds();
    hmq_slice line = own_line(text), id = field_of(line, FIELD_ID);
    view.id_len = id.len < sizeof view.id ? id.len : sizeof view.id;
    memcpy(view.id, id.data, view.id_len);
    for (int i = 0; i < FIELD_SLOTS; i++) next_part(&line, ' ');
    while (line.len > 0) take_part(next_part(&line, ' ')); /* moving slots are listed after the ranges */
    note_changes();
    if (reply != NULL) sv.FreeCallReply(reply);
}

/* ---- when the view is read again --------------------------------------------------------------------------- */

void slots_watch(void (*changes)(void)) {
    watcher = changes;
}

static void may_change(void) {
    if (watcher != NULL) watcher();
    view.doubtful = true;
}

void slots_note_command(bool in_transaction) {
    may_change();
    view.queued = view.queued || in_transaction;
}

void slots_note_exec(void) {
    if (view.queued) may_change();
}

static void on_slots_moved(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub, (void)data;
    may_change();
}

void slots_before_sleep(void) {
    if (!can.cluster || view.doubtful) return;
    view.doubtful = sv.Milliseconds() - view.read_ms >= (view.moving ? MOVING_MS : REST_MS);
}

void slots_start(server_ctx *ctx) {
    view.doubtful = true;
    static event_listener moves = {.event = EVENT_SLOTS_MOVED, .handler = on_slots_moved, .is_early = true};
    (void)ctx;
    if (can.cluster && can.valkey) listening_set(&moves, true); /* refused before 9.0 */
}

/* ---- asking the server ------------------------------------------------------------------------------------- */

bool slots_is_asking_server(void) {
    return asking;
}

/* The server checks the key of a command before it runs it, as for a client.  The handler opens no key. */
static bool call_is_allowed(unsigned slot) {
    char key[16];
    snprintf(key, sizeof key, "{%u}", hmq_slot_tag(slot));
    asking = true;
    server_reply *reply = sv.Call(detached, "HOLDMQ.INTERNAL", "c", key);
    asking = false;
    if (reply == NULL) return false;
    sv.FreeCallReply(reply);
    return true;
}

static bool server_serves(unsigned slot) {
    return internals_can_read_slots() ? internals_serve_slot(slot) : call_is_allowed(slot);
}

/* Slots of the view that the server has confirmed in this millisecond. */
static struct {
    hmq_slot_set slots;
    uint64_t view;
    long long ms;
} confirmed;

static bool serves_word(unsigned first, uint64_t slots) {
    if (internals_can_read_slots()) return internals_serve_slots(first, slots);
    for (; slots != 0; slots &= slots - 1) {
        if (!call_is_allowed(first + (unsigned)__builtin_ctzll(slots))) return false;
    }
    return true;
}

/* The slots of this word about which the server must be asked. */
static uint64_t unconfirmed_word(const hmq_slot_set *wanted, unsigned i, bool few) {
    return wanted->words[i] & view.served.words[i] & (few ? UINT64_MAX : ~confirmed.slots.words[i]);
}

/* Does the server serve all wanted slots that it serves according to the view? */
static bool server_serves_all(const hmq_slot_set *wanted) {
    unsigned count = 0;
    long long now_ms = sv.Milliseconds();
    for (unsigned i = 0; i < HMQ_SLOTS / 64; i++)
        count += (unsigned)__builtin_popcountll(wanted->words[i] & view.served.words[i]);
    bool few = count <= FEW_SLOTS;
    if (!few && !internals_can_read_slots()) return view.read_ms == now_ms;
    if (confirmed.ms != now_ms || confirmed.view != view.number) {
        memset(&confirmed.slots, 0, sizeof confirmed.slots);
        confirmed.ms = now_ms;
        confirmed.view = view.number;
    }
    for (unsigned i = 0; i < HMQ_SLOTS / 64; i++) {
        uint64_t word = unconfirmed_word(wanted, i, few);
        if (word == 0) continue;
        if (!serves_word(i * 64, word)) return false;
        confirmed.slots.words[i] |= word;
    }
    return true;
}

/* ---- asking ------------------------------------------------------------------------------------------------ */

slot_state slots_state_in_view(unsigned slot) {
    if (!can.cluster) return SLOT_SERVED;
    if (view.doubtful || (view.states[slot] != SLOT_SERVED && sv.Milliseconds() != view.read_ms)) read_view();
    return (slot_state)view.states[slot];
}

slot_state slots_state(unsigned slot) {
    slot_state state = slots_state_in_view(slot);
    if (state != SLOT_SERVED || !can.cluster || server_serves(slot)) return state;
    read_view();
    return (slot_state)view.states[slot];
}

static bool ask_whether_cluster_is_up(void) {
    server_reply *reply = sv.Call(detached, "CLUSTER", "c", "INFO");
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    bool works = text != NULL && memmem(text, len, "cluster_state:ok", 16) != NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return works;
}

bool slots_cluster_is_up(void) {
    if (!can.cluster) return true;
    long long now_ms = sv.Milliseconds();
    if (now_ms - view.works_ms < (view.works ? MOVING_MS : 1)) return view.works;
    view.works_ms = now_ms;
    return view.works = ask_whether_cluster_is_up();
}

static bool lacks_any(const hmq_slot_set *wanted) {
    uint64_t missing = 0;
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) missing |= wanted->words[i] & ~view.served.words[i];
    return missing != 0;
}

const hmq_slot_set *slots_served(const hmq_slot_set *wanted) {
    if (view.doubtful || (lacks_any(wanted) && sv.Milliseconds() != view.read_ms)) read_view();
    if (!server_serves_all(wanted)) read_view();
    return &view.served;
}

const hmq_slot_set *slots_served_so_far(void) {
    return &view.served;
}

static void copy_address(hmq_slice text, hmq_slice id, char address[SLOTS_ADDRESS_MAX_BYTES]) {
    while (text.len > 0) {
        hmq_slice line = next_part(&text, '\n'), first = next_part(&line, ' ');
        if (first.len != id.len || memcmp(first.data, id.data, id.len) != 0) continue;
        hmq_slice host_and_port = next_part(&line, '@');
        if (host_and_port.len >= SLOTS_ADDRESS_MAX_BYTES) return;
        memcpy(address, host_and_port.data, host_and_port.len);
        address[host_and_port.len] = 0;
        return;
    }
}

const char *slots_target(unsigned slot) {
    static char address[SLOTS_ADDRESS_MAX_BYTES];
    hmq_slice text, other;
    unsigned moving;
    server_reply *reply = read_nodes(&text);
    hmq_slice line = own_line(text);
    address[0] = 0;
    while (line.len > 0) {
        if (is_moving(next_part(&line, ' '), "->-", &moving, &other) && moving == slot)
            copy_address(text, other, address);
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    return address;
}

/* Is the part "<n>" or "<first>-<last>"? */
static bool is_range(hmq_slice part, unsigned *first, unsigned *last) {
    size_t used;
    *first = *last = slot_number(part, &used);
    if (*first == HMQ_SLOTS) return false;
    if (used < part.len && part.data[used] == '-')
        *last = slot_number((hmq_slice){part.data + used + 1, part.len - used - 1}, &used);
    return *last < HMQ_SLOTS;
}

void slots_each_owned(void (*take)(void *context, unsigned first, unsigned last, const char *address), void *context) {
    hmq_slice text;
    server_reply *reply = read_nodes(&text);
    while (text.len > 0) {
        char address[SLOTS_ADDRESS_MAX_BYTES] = "";
        unsigned first, last;
        hmq_slice line = next_part(&text, '\n');
        copy_address(line, field_of(line, FIELD_ID), address);
        for (int i = 0; i < FIELD_SLOTS; i++) next_part(&line, ' ');
        while (line.len > 0) {
            if (is_range(next_part(&line, ' '), &first, &last)) take(context, first, last, address);
        }
    }
    if (reply != NULL) sv.FreeCallReply(reply);
}

typedef struct owner_of {
    unsigned slot;
    char address[SLOTS_ADDRESS_MAX_BYTES];
} owner_of;

static void take_owner(void *context, unsigned first, unsigned last, const char *address) {
    owner_of *owner = context;
    if (owner->slot >= first && owner->slot <= last) memcpy(owner->address, address, sizeof owner->address);
}

const char *slots_owner(unsigned slot) {
    static owner_of owner;
    owner = (owner_of){.slot = slot};
    slots_each_owned(take_owner, &owner);
    return owner.address;
}

void slots_read_again(void) {
    read_view();
}

bool slots_owns_any(void) {
    if (view.doubtful) read_view();
    return view.owns;
}

hmq_slice slots_own_id(void) {
    if (view.doubtful) read_view();
    return (hmq_slice){(const uint8_t *)view.id, view.id_len};
}

static long long number_in(hmq_slice text) {
    long long number = 0;
    for (size_t i = 0; i < text.len && text.data[i] >= '0' && text.data[i] <= '9' && number <= INT64_MAX / 10 - 1; i++)
        number = number * 10 + (text.data[i] - '0');
    return number;
}

static unsigned number_of_slot(hmq_slice slots) {
    size_t used;
    const unsigned slot = slots.len > 0 ? slot_number(slots, &used) : HMQ_SLOTS;
    return slot < HMQ_SLOTS ? slot : 0;
}

void slots_each_node(void (*take)(void *context, const slots_node *node), void *context) {
    hmq_slice text;
    server_reply *reply = read_nodes(&text);
    while (text.len > 0) {
        hmq_slice line = next_part(&text, '\n'), slots = field_of(line, FIELD_SLOTS);
        slots_node node = {.id = field_of(line, FIELD_ID),
                           .is_self = is_self(field_of(line, FIELD_FLAGS)),
                           .has_slots = slots.len > 0 && slots.data[0] != '[', /* those on the way come last */
                           .slot = number_of_slot(slots),
                           .ping_ms = number_in(field_of(line, FIELD_PING)),
                           .pong_ms = number_in(field_of(line, FIELD_PONG))};
        if (node.id.len == SLOTS_NODE_ID_BYTES) take(context, &node);
    }
    if (reply != NULL) sv.FreeCallReply(reply);
}

typedef struct looked_for {
    hmq_slice id;
    bool has_slots;
} looked_for;

static void look_for(void *context, const slots_node *node) {
    looked_for *l = context;
    if (hmq_slice_equal(node->id, l->id)) l->has_slots = node->has_slots;
}

bool slots_node_has_any(hmq_slice id) {
    looked_for l = {.id = id};
    slots_each_node(look_for, &l);
    return l.has_slots;
}

uint64_t slots_view_number(void) {
    return can.cluster ? view.number : 0;
}

uint64_t slots_changed(unsigned slot) {
    return can.cluster ? view.changed[slot] : 0;
}

unsigned slots_of_key(hmq_slice key) {
    return can.cluster ? hmq_slot_of((const char *)key.data, key.len) : 0;
}

bool slots_check_session(server_ctx *ctx, hmq_slice session) {
    if (!can.cluster) return true;
    unsigned slot = slots_of_key(session);
    if (slots_state_in_view(slot) == SLOT_SERVED) return true;
    if (!(sv.GetContextFlags(ctx) & SERVER_CTX_MASTER)) return true; /* a replica serves reads of its primary's slots */
    reply_error(ctx, ERROR_SESSION_MOVING, slot, shown_slice(session));
    return false;
}

bool slots_reply_elsewhere(server_ctx *ctx, unsigned slot) {
    const char *address = slots_owner(slot);
    if (address[0] == 0)
        reply_error(ctx, ERROR_SLOT_UNSERVED);
    else
        reply_error(ctx, ERROR_SLOT_MOVED, slot, address);
    return false;
}
