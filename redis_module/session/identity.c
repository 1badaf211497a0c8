/* identity.c - the field `identity` of a session's hash. */
#include "session/identity.h"

#include <string.h>

#include "server/errors.h"
#include "server/replication.h"
#include "index/session_state.h"
#include "index/usage.h"

#define FIELD "identity"

static bool parse_name(args *a, const char *option, hmq_slice *name) {
    server_string *text;
    if (!args_string(a, option, &text)) return false;
    *name = slice_of(text);
    if (name->len >= 1 && name->len <= IDENTITY_MAX_BYTES) return true;
    reply_error(a->ctx, ERROR_IDENTITY_LENGTH, option, name->len, IDENTITY_MAX_BYTES);
    return false;
}

bool identity_parse(args *a, identity_claim *claim, bool *taken) {
    *taken = true;
    if (args_take_word(a, "IDENTITY")) return parse_name(a, "IDENTITY", &claim->name);
    if (args_take_word(a, "ADOPT")) return parse_name(a, "ADOPT", &claim->adopts);
    *taken = args_take_word(a, "REPLACE");
    if (*taken) claim->replaces = true;
    return true;
}

bool identity_check(server_ctx *ctx, const identity_claim *claim) {
    if (claim->name.len > 0 || (claim->adopts.len == 0 && !claim->replaces)) return true;
    reply_error(ctx, ERROR_IDENTITY_MISSING, claim->replaces ? "REPLACE" : "ADOPT");
    return false;
}

bool identity_differs(const session_state *state, const identity_claim *claim) {
    if (claim->name.len == 0 || !state->exists || state->identity == NULL) return false;
    hmq_slice owner = slice_of(state->identity);
    return !hmq_slice_equal(owner, claim->name) && !hmq_slice_equal(owner, claim->adopts);
}

int identity_refuse(server_ctx *ctx, hmq_slice session, const session_state *state, const identity_claim *claim) {
    counters.identities_refused++;
    return reply_error(ctx, ERROR_IDENTITY_DIFFERS, shown_slice(session), shown(state->identity),
                       shown_slice(claim->name));
}

void identity_write(server_ctx *ctx, server_key *key, server_string *name, const session_state *before,
                    const identity_claim *claim, bool is_new) {
    bool has_field = before->identity != NULL;
    if (claim->name.len > 0 && !(has_field && hmq_slice_equal(slice_of(before->identity), claim->name))) {
        server_string *text = sv.CreateString(NULL, (const char *)claim->name.data, claim->name.len);
        sv.HashSet(key, SERVER_HASH_CFIELDS, FIELD, text, NULL);
        replicate(ctx, "HSET", "scs", name, FIELD, text);
        sv.FreeString(NULL, text);
    } else if (claim->name.len == 0 && has_field && is_new) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, FIELD, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, FIELD);
    }
}
