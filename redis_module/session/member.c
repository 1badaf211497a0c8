/* member.c - members of groups over the nodes of a cluster: their keys and claims. */
#include "session/member.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "server/session_keys.h"
#include "index/session_state.h"

static const char group[] = "{$share/";
#define GROUP_LEN (sizeof group - 1)

static const uint8_t *group_in(hmq_slice session) {
    return memmem(session.data, session.len, group, GROUP_LEN);
}

bool member_is(hmq_slice session) {
    const uint8_t *at = group_in(session);
    return at != NULL && at - session.data >= 2 && at[-1] == ':';
}

bool member_check_open(server_ctx *ctx, hmq_slice session, long long claim) {
    bool is_member = member_is(session);
    if (is_member && claim > 0) return true;
    if (is_member || group_in(session) != NULL)
        reply_error(ctx, ERROR_SESSION_KEY_OF_GROUP, shown_slice(session));
    else if (claim > 0)
        reply_error(ctx, ERROR_CLAIM_OF_NO_MEMBER, shown_slice(session));
    else
        return true;
    return false;
}

bool member_check_drop(server_ctx *ctx, hmq_slice session, long long claim) {
    if (claim == 0 || member_is(session)) return true;
    reply_error(ctx, ERROR_CLAIM_OF_NO_MEMBER, shown_slice(session));
    return false;
}

bool member_check_claim(server_ctx *ctx, hmq_slice session, long long claim) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    long long former = sv.KeyType(key) == SERVER_HASH ? number_in_field(key, "claim", MAX_EPOCH, 0) : 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    if (former <= claim) return true;
    counters.fenced++;
    reply_error(ctx, ERROR_CLAIM_OLDER, claim, shown_slice(session), former);
    return false;
}
