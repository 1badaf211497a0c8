/* session_hash.c - reads the hash {c}_session for the queue. */
#include "index/session_hash.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/numbers.h"
#include "server/session_keys.h"
#include "index/index.h"
#include "index/overflow.h"
#include "index/sessions.h"

/* The number of a field, which is released; 0 also for a value that is not a valid number. */
static uint64_t take_number(server_string *field, long long max) {
    uint64_t number = (uint64_t)number_or_default(field, max, 0);
    if (field != NULL) sv.FreeString(NULL, field);
    return number;
}

/* Reads them from the hash, which costs a tenth of a delivery to a session. */
static void take_facts(server_key *key, session_facts *facts) {
    server_string *round = NULL, *sent = NULL, *expiring = NULL, *policy = NULL, *max_bytes = NULL, *dropped = NULL,
                  *gives = NULL;
    int opened = 0;
    overflow own;
    sv.HashGet(key, SERVER_HASH_CFIELDS, "round", &round, "sent", &sent, "expiring", &expiring, "overflow", &policy,
               "max_bytes", &max_bytes, "dropped", &dropped, "gives", &gives, NULL);
    sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "epoch", &opened, NULL);
    facts->exists = true;
    facts->opened = opened != 0;
    facts->round = take_number(round, QUEUE_MAX_SERIAL / HMQ_PACKET_ID_MAX - 1);
    facts->sent = take_number(sent, QUEUE_MAX_SERIAL);
    facts->expiring = take_number(expiring, QUEUE_MAX_SERIAL);
    facts->gives_back_from = take_number(gives, QUEUE_MAX_SERIAL);
    facts->max_bytes = take_number(max_bytes, OVERFLOW_MAX_BYTES);
    facts->dropped = take_number(dropped, QUEUE_MAX_SERIAL);
    facts->has_overflow = policy != NULL && overflow_of(slice_of(policy), &own);
    if (facts->has_overflow) facts->overflow = (uint8_t)own;
    if (policy != NULL) sv.FreeString(NULL, policy);
}

/* `entry`: where the facts are remembered; NULL: nowhere. */
static session_facts read_facts(server_ctx *ctx, hmq_slice session, session_entry *entry) {
    session_facts facts = {.usable = true, .expire_ms = SERVER_NO_EXPIRE};
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    int type = sv.KeyType(key);
    facts.usable = type == SERVER_HASH || type == SERVER_EMPTY;
    if (type == SERVER_HASH) {
        if (entry != NULL && entry->facts_known)
            facts = entry->facts;
        else
            take_facts(key, &facts);
        facts.expire_ms = sv.GetAbsExpire(key);
        if (entry != NULL) entry->facts = facts, entry->facts_known = true;
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return facts;
}

session_facts session_facts_read(server_ctx *ctx, hmq_slice session) {
    return read_facts(ctx, session, index_opened(ctx, session));
}

static bool session_facts_hold(server_ctx *ctx, const session_entry *entry) {
    if (!entry->facts_known) return true;
    session_facts now = read_facts(ctx, slice_of(entry->key), NULL);
    return now.exists == entry->facts.exists && now.opened == entry->facts.opened && now.round == entry->facts.round &&
           now.sent == entry->facts.sent && now.expiring == entry->facts.expiring &&
           now.has_overflow == entry->facts.has_overflow && now.overflow == entry->facts.overflow &&
           now.max_bytes == entry->facts.max_bytes && now.gives_back_from == entry->facts.gives_back_from &&
           now.dropped == entry->facts.dropped;
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)rebuilt;
    hmq_slice after = {0};
    for (session_entry *e; (e = session_index_next(kept->opened, after)) != NULL; after = slice_of(e->key)) {
        if (!session_facts_hold(ctx, e)) differ(context, "the session's hash holds other facts", slice_of(e->key));
    }
}

const index_kind session_facts_kind = {.check = check};
