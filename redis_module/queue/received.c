/* received.c - the packet identifiers of QoS 2 that were received and not completed. */
#include "queue/received.h"

#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/session_hash.h"

static server_string *member_of(uint16_t packet_id) {
    return sv.CreateStringFromLongLong(NULL, packet_id);
}

/* The set of received identifiers, open for writing; NULL after replying WRONGTYPE. */
server_key *qos2_open(server_ctx *ctx, hmq_slice session, server_string **name) {
    *name = session_key_name(session, HMQ_SUFFIX_RECEIVED);
    server_key *set = key_open_to_write(ctx, *name, SERVER_ZSET);
    if (set == NULL) sv.FreeString(NULL, *name);
    return set;
}

static bool is_known(server_key *set, uint16_t packet_id) {
    double score;
    if (sv.KeyType(set) == SERVER_EMPTY) return false;
    server_string *member = member_of(packet_id);
    bool known = sv.ZsetScore(set, member, &score) == SERVER_OK;
    sv.FreeString(NULL, member);
    return known;
}

static void note(server_ctx *ctx, server_key *set, server_string *name, hmq_slice session, uint16_t packet_id) {
    server_string *member = member_of(packet_id);
    bool new = sv.KeyType(set) == SERVER_EMPTY;
    long long now_ms = sv.Milliseconds();
    sv.ZsetAdd(set, (double)now_ms, member, NULL);
    replicate(ctx, "ZADD", "sls", name, now_ms, member);
    index_notify(ctx, SERVER_NOTIFY_ZSET, "zadd", name);
    session_facts facts = session_facts_read(ctx, session);
    long long expire_ms = facts.opened ? facts.expire_ms : now_ms + settings.session_ttl_s * 1000;
    if (new ? expire_ms != SERVER_NO_EXPIRE : expiry_is_later(expire_ms, sv.GetAbsExpire(set)))
        key_set_expiry(ctx, set, name, expire_ms);
    sv.FreeString(NULL, member);
}

qos2_status qos2_find_received(server_ctx *ctx, hmq_slice session, uint16_t packet_id) {
    server_string *name;
    server_key *set = qos2_open(ctx, session, &name);
    if (set == NULL) return QOS2_WRONG_TYPE;
    bool known = is_known(set, packet_id);
    sv.CloseKey(set);
    sv.FreeString(NULL, name);
    return known ? QOS2_RECEIVED : QOS2_NEW;
}

void qos2_mark_received(server_ctx *ctx, hmq_slice session, uint16_t packet_id) {
    server_string *name;
    server_key *set = qos2_open(ctx, session, &name);
    if (set == NULL) return;
    note(ctx, set, name, session, packet_id);
    sv.CloseKey(set);
    sv.FreeString(NULL, name);
}

bool qos2_complete(server_ctx *ctx, server_key *set, server_string *name, uint16_t packet_id) {
    int removed = 0;
    server_string *member = member_of(packet_id);
    if (sv.KeyType(set) == SERVER_ZSET) sv.ZsetRem(set, member, &removed);
    if (removed) {
        replicate(ctx, "ZREM", "ss", name, member);
        index_notify(ctx, SERVER_NOTIFY_ZSET, "zrem", name);
        if (sv.KeyType(set) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.FreeString(NULL, member);
    return removed != 0;
}
