/* session_state.c - reads the hash {c}_session. */
#include "index/session_state.h"

#include "server/errors.h"
#include "server/keys.h"
#include "server/numbers.h"
#include "server/session_keys.h"
#include "index/overflow.h"
#include "index/session_facts.h"
#include "index/usage.h"

static bool take_refuses(server_key *key) {
    server_string *text = NULL;
    overflow policy;
    sv.HashGet(key, SERVER_HASH_CFIELDS, "overflow", &text, NULL);
    bool refuses = text != NULL && overflow_of(slice_of(text), &policy) && overflow_refuses(policy);
    if (text != NULL) sv.FreeString(NULL, text);
    return refuses;
}

static void take_state(server_key *key, session_state *state) {
    int has_will = 0;
    sv.HashGet(key, SERVER_HASH_CFIELDS, "owner", &state->owner, "identity", &state->identity, NULL);
    sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "will_topic", &has_will, NULL);
    state->epoch = number_in_field(key, "epoch", MAX_EPOCH, 0);
    state->connected = number_in_field(key, "connected", 1, 0) == 1;
    state->expiry_s = number_in_field(key, "expiry", MAX_EXPIRY_S, 0);
    state->lease_s = number_in_field(key, "lease", MAX_EXPIRY_S, 0);
    state->ends_ms = number_in_field(key, "ends", MAX_TIME_MS, 0);
    state->has_will = has_will != 0;
    state->will_due_ms = number_in_field(key, "will_due", MAX_TIME_MS, 0);
    state->shares = number_in_field(key, "shares", 1, 0) == 1;
    state->window = number_in_field(key, "window", 65535, 0);
    state->gives_back = number_in_field(key, "gives", QUEUE_MAX_SERIAL, 0) > 0;
    state->ending = number_in_field(key, "ending", 1, 0) == 1;
    state->qos0_until = (uint64_t)number_in_field(key, "qos0_until", QUEUE_MAX_SERIAL, 0);
    state->owner_lease_s = number_in_field(key, "owner_lease", MAX_EXPIRY_S, 0);
    state->refuses = take_refuses(key);
    state->user_bytes = number_in_field(key, "user_bytes", QUOTA_MAX, -1);
    state->user_retained = number_in_field(key, "user_retained", QUOTA_MAX, -1);
    state->expire_ms = sv.GetAbsExpire(key);
    state->over = state->ending || (state->ends_ms > 0 && state->ends_ms <= sv.Milliseconds());
    state->exists = state->epoch > 0 && !state->over;
}

/* False if the key holds something else. */
static bool read_state(server_ctx *ctx, server_string *name, session_state *state) {
    *state = (session_state){.expire_ms = SERVER_NO_EXPIRE, .user_bytes = -1, .user_retained = -1};
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool usable = key_may_be(key, SERVER_HASH);
    if (sv.KeyType(key) == SERVER_HASH) take_state(key, state);
    if (key != NULL) sv.CloseKey(key);
    return usable;
}

void session_state_peek(server_ctx *ctx, hmq_slice session, session_state *state) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    read_state(ctx, name, state);
    sv.FreeString(NULL, name);
}

bool session_state_read(server_ctx *ctx, hmq_slice session, session_state *state) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    bool usable = read_state(ctx, name, state);
    if (!usable) reply_wrong_type(ctx, name, "a hash");
    sv.FreeString(NULL, name);
    return usable;
}

long long session_state_due(const session_state *state) {
    if (state->gives_back || state->ending) return 1; /* at once */
    if (state->ends_ms == 0) return 0;
    if (state->connected) return state->ends_ms - state->expiry_s * 1000; /* the lease is over */
    bool will_first = state->will_due_ms > 0 && state->will_due_ms < state->ends_ms;
    return will_first ? state->will_due_ms : state->ends_ms;
}

void session_state_free(session_state *state) {
    if (state->owner != NULL) sv.FreeString(NULL, state->owner);
    if (state->identity != NULL) sv.FreeString(NULL, state->identity);
    state->owner = state->identity = NULL;
}

hmq_slice identity_of(const session_state *state) {
    hmq_slice name = state->identity == NULL ? (hmq_slice){0} : slice_of(state->identity);
    return name.len <= IDENTITY_MAX_BYTES ? name : (hmq_slice){0};
}
