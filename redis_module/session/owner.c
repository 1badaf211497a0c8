/* owner.c - the processes that own sessions. */
#include "session/owner.h"

#include <string.h>

#include "server/access.h"
#include "server/args.h"
#include "server/command_slot.h"
#include "server/departures.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "index/session_state.h"
#include "index/sessions.h"
#include "session/life.h"
#include "session/outbox.h"

#define PREFIX "holdmq_owner:"
#define PREFIX_BYTES (sizeof PREFIX - 1)
#define MAX_NAME_BYTES 1024
#define MAX_LEASE_S 4294967295LL
#define LOOK_AGAIN_MS 60000 /* a key without expiry, or of another type: made by another program */

static uint64_t period = 1; /* of service */

static server_string *key_of(hmq_slice name) {
    char text[PREFIX_BYTES + MAX_NAME_BYTES];
    size_t len = name.len <= MAX_NAME_BYTES ? name.len : MAX_NAME_BYTES;
    memcpy(text, PREFIX, PREFIX_BYTES);
    memcpy(text + PREFIX_BYTES, name.data, len);
    return sv.CreateString(NULL, text, PREFIX_BYTES + len);
}

bool owner_is_key(hmq_slice key, hmq_slice *name) {
    if (key.len <= PREFIX_BYTES || memcmp(key.data, PREFIX, PREFIX_BYTES) != 0) return false;
    *name = (hmq_slice){key.data + PREFIX_BYTES, key.len - PREFIX_BYTES};
    return name->len <= MAX_NAME_BYTES;
}

/* The content of an owner's key. */
typedef struct beat {
    bool there;
    long long lease_s;
    long long expire_ms; /* SERVER_NO_EXPIRE: none */
} beat;

static beat read_beat(server_ctx *ctx, hmq_slice name) {
    beat b = {.expire_ms = SERVER_NO_EXPIRE};
    if (name.len > MAX_NAME_BYTES) return b;
    server_string *key_name = key_of(name);
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    int type = sv.KeyType(key);
    b.there = type != SERVER_EMPTY;
    if (b.there) b.expire_ms = sv.GetAbsExpire(key);
    if (type == SERVER_STRING) {
        size_t len;
        const char *digits = sv.StringDMA(key, &len, SERVER_READ);
        server_string *text = sv.CreateString(NULL, digits, len);
        if (!number_of(text, 1, MAX_LEASE_S, &b.lease_s)) b.lease_s = 0;
        sv.FreeString(NULL, text);
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    return b;
}

long long owner_lease(server_ctx *ctx, hmq_slice name) {
    return read_beat(ctx, name).lease_s;
}

bool owner_is_readable(hmq_slice name) {
    if (!command_slot_is_bound()) return true;
    server_string *key = key_of(name);
    bool is_readable = command_slot_allows(slice_of(key));
    sv.FreeString(NULL, key);
    return is_readable;
}

/* ---- SESSION.OWNER ----------------------------------------------------------------------------------------- */

static bool check_name(server_ctx *ctx, const server_string *name, server_string *key) {
    size_t len = slice_of(name).len;
    if (len == 0 || len > MAX_NAME_BYTES) {
        reply_error(ctx, ERROR_OWNER_NAME_LENGTH, len, MAX_NAME_BYTES);
        return false;
    }
    if (can.cluster && slots_of_key(slice_of(name)) != slots_of_key(slice_of(key))) {
        reply_error(ctx, ERROR_OWNER_NAME_SLOT, shown(name));
        return false;
    }
    if (access_may_write(ctx, key)) return true;
    reply_error(ctx, ERROR_KEY_WRITE_DENIED, shown(key));
    return false;
}

static void write_heartbeat(server_ctx *ctx, server_key *key, server_string *name, long long lease_s,
                            long long expire_ms) {
    server_string *text = sv.CreateStringFromLongLong(NULL, lease_s);
    sv.StringSet(key, text);
    sv.SetAbsExpire(key, expire_ms);
    replicate(ctx, "SET", "sscl", name, text, "PXAT", expire_ms);
    index_notify(ctx, SERVER_NOTIFY_STRING, "set", name);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "expire", name);
    sv.FreeString(NULL, text);
}

static owner_entry *note_beat(session_index *sessions, hmq_slice name, long long lease_s, long long expire_ms) {
    owner_entry *owner = session_index_make_owner(sessions, name);
    outbox_expect_reader();
    owner->lease_s = lease_s;
    owner->grace_ms = 0;
    if (owner->lost_epoch == 0) session_index_arm_owner(sessions, owner, expire_ms + 1);
    return owner;
}

/* ---- the owner's connection -------------------------------------------------------------------------------- */

static void note_link(server_ctx *ctx, owner_entry *owner) {
    uint64_t client = sv.GetClientId(ctx);
    server_string *name = sv.GetClientNameById == NULL || client == 0 ? NULL : sv.GetClientNameById(detached, client);
    hmq_slice own = slice_of(owner->name), borne = name == NULL ? (hmq_slice){0} : slice_of(name);
    bool is_named = name != NULL && hmq_slice_equal(borne, own);
    if (is_named) departures_expect();
    owner->link = is_named ? client : 0;
    owner->link_gone_ms = 0;
    if (name != NULL) sv.FreeString(NULL, name);
}

static void link_gone(session_index *sessions, owner_entry *owner, void *data) {
    (void)sessions;
    if (owner->link != *(const uint64_t *)data) return;
    owner->link = 0;
    owner->link_gone_ms = sv.Milliseconds();
}

void owner_client_gone(uint64_t client) {
    for (int db = 0; db < index_databases(); db++) {
        if (index_exists(db)) session_index_each_owner(index_peek(db)->opened, link_gone, &client);
    }
}

/* It was removed on purpose, so there is no further lease. */
static void count_absence(session_index *sessions, hmq_slice name) {
    owner_entry *owner = session_index_owner(sessions, name);
    if (owner == NULL || owner->lease_s == 0) return;
    owner->grace_ms = 0;
    session_index_arm_owner(sessions, owner, sv.Milliseconds());
}

static void end_heartbeat(server_ctx *ctx, session_index *sessions, server_key *key, server_string *key_name,
                          hmq_slice name) {
    if (sv.KeyType(key) != SERVER_EMPTY) {
        sv.DeleteKey(key);
        replicate(ctx, "UNLINK", "s", key_name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", key_name);
    }
    count_absence(sessions, name);
}

int session_owner_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *name;
    long long lease_s;
    if (argc != 4) return sv.WrongArity(ctx);
    if (!args_string(&a, "name", &name)) return SERVER_OK;
    if (!args_take_word(&a, "LEASE")) return reply_error(ctx, ERROR_LEASE_MISSING);
    if (!args_number(&a, "LEASE", 0, MAX_LEASE_S, &lease_s)) return SERVER_OK;
    server_string *key_name = key_of(slice_of(name));
    if (check_name(ctx, name, key_name)) {
        server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_WRITE);
        session_index *sessions = index_of(ctx)->opened;
        long long expire_ms = sv.Milliseconds() + lease_s * 1000;
        if (key_check(ctx, key, key_name, SERVER_STRING)) {
            if (lease_s > 0) write_heartbeat(ctx, key, key_name, lease_s, expire_ms);
            if (lease_s > 0) {
                owner_entry *owner = note_beat(sessions, slice_of(name), lease_s, expire_ms);
                owner->heard = period;
                note_link(ctx, owner);
            }
            if (lease_s == 0) end_heartbeat(ctx, sessions, key, key_name, slice_of(name));
            sv.ReplyWithSimpleString(ctx, "OK");
        }
        sv.CloseKey(key);
    }
    sv.FreeString(NULL, key_name);
    return SERVER_OK;
}

/* ---- the owner's key --------------------------------------------------------------------------------------- */

void owner_key_changed(server_ctx *ctx, session_index *sessions, hmq_slice name) {
    beat b = read_beat(ctx, name);
    if (b.lease_s > 0) {
        note_beat(sessions, name, b.lease_s, b.expire_ms == SERVER_NO_EXPIRE ? sv.Milliseconds() : b.expire_ms);
        return;
    }
    count_absence(sessions, name);
}

/* Handles an owner that is lost.  Returns when to look again, 0: never. */
static long long next_look(const beat *b) {
    if (!b->there) return 0;
    return b->expire_ms == SERVER_NO_EXPIRE ? sv.Milliseconds() + LOOK_AGAIN_MS : b->expire_ms + 1;
}

/* The first session after the cursor that was opened before the loss; NULL at the end. */
static session_entry *next_lost(const owner_entry *owner) {
    hmq_slice after = owner->cursor == NULL ? (hmq_slice){0} : slice_of(owner->cursor);
    server_dict_iter *iter = after.len == 0 ? sv.DictIteratorStartC(owner->sessions, "^", NULL, 0)
                                            : sv.DictIteratorStartC(owner->sessions, ">", after.data, after.len);
    void *entry = NULL;
    while (sv.DictNextC(iter, NULL, &entry) != NULL && ((session_entry *)entry)->epoch >= owner->lost_epoch)
        entry = NULL;
    sv.DictIteratorStop(iter);
    return entry;
}

static void lose(server_ctx *ctx, session_index *sessions, hmq_slice session) {
    session_state state;
    session_state_peek(ctx, session, &state);
    bool here = slots_state(slots_of_key(session)) == SLOT_SERVED;
    if (here && state.exists && state.connected && session_types_are_valid(ctx, session))
        session_mark_lost(ctx, session, &state);
    else
        session_index_refresh(ctx, sessions, session);
    session_state_free(&state);
}

void owner_do_due(server_ctx *ctx, session_index *sessions, owner_entry *owner, long long until_ms) {
    long long now_ms = sv.Milliseconds();
    beat b = read_beat(ctx, slice_of(owner->name));
    bool in_grace = !b.there && now_ms < owner->grace_ms;
    if (owner->lost_epoch == 0 && (b.there || owner->lease_s == 0 || in_grace)) {
        session_index_arm_owner(sessions, owner, in_grace ? owner->grace_ms : next_look(&b));
        session_index_settle_owner(sessions, owner);
        return;
    }
    if (owner->lost_epoch == 0) {
        owner->lost_epoch = session_next_epoch(0);
        counters.owners_lost++;
        sv.Log(ctx, "notice", "the lease of the session owner %s has run out; it has %llu sessions", shown(owner->name),
               (unsigned long long)sv.DictSize(owner->sessions));
    }
    session_index_arm_owner(sessions, owner, now_ms); /* it exists until its last session is closed */
    for (session_entry *entry; (entry = next_lost(owner)) != NULL;) {
        if (owner->cursor != NULL) sv.FreeString(NULL, owner->cursor);
        owner->cursor = sv.HoldString(NULL, entry->key);
        lose(ctx, sessions, slice_of(owner->cursor));
        if (sv.Milliseconds() >= until_ms) return;
    }
    if (owner->cursor != NULL) sv.FreeString(NULL, owner->cursor);
    owner->cursor = NULL;
    owner->lost_epoch = 0;
    if (!b.there) owner->lease_s = 0;
    session_index_arm_owner(sessions, owner, next_look(&b));
    session_index_settle_owner(sessions, owner);
}

void owner_period_ends(void) {
    period++;
}

static void renew(session_index *sessions, owner_entry *owner, void *data) {
    (void)data;
    if (owner->lease_s == 0) return;
    outbox_expect_reader();
    if (owner->heard == period) return;
    owner->grace_ms = sv.Milliseconds() + owner->lease_s * 1000;
    session_index_arm_owner(sessions, owner, owner->grace_ms);
}

void owner_renew_all(session_index *sessions) {
    session_index_each_owner(sessions, renew, NULL);
}

/* Once between two heartbeats: a server that is stopped repeatedly must not keep dead sessions connected. */
static void renew_once(session_index *sessions, owner_entry *owner, void *data) {
    (void)data;
    if (owner->lease_s == 0 || owner->lost_epoch != 0 || owner->grace_ms != 0) return;
    owner->grace_ms = sv.Milliseconds() + owner->lease_s * 1000;
    session_index_arm_owner(sessions, owner, owner->grace_ms);
}

void owner_renew_after_pause(session_index *sessions) {
    session_index_each_owner(sessions, renew_once, NULL);
}

/* ---- the kind ---------------------------------------------------------------------------------------------- */

static bool is_key(hmq_slice key) {
    hmq_slice name;
    return owner_is_key(key, &name);
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice key) {
    hmq_slice name;
    if (owner_is_key(key, &name)) owner_key_changed(ctx, index->opened, name);
}

/* The index knows when an owner's key expires; the deadline decides whether that counts. */
const index_kind owners_kind = {.is_key = is_key, .refresh = refresh, .foresees_expiry = true};
