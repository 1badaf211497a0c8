/* quota.c - limits the number of sessions and retained messages. */
#include "routing/quota.h"

#include "server/errors.h"
#include "server/session_keys.h"
#include "index/sessions.h"
#include "index/usage.h"
#include "routing/retained.h"

static void log_refusal(server_ctx *ctx, usage_user *user, const char *what, size_t has, long long most) {
    if (!quota_may_log(user)) return;
    sv.Log(ctx, "warning",
           "%s has %zu %s, and its limit is %lld: further ones are refused; logged at most once in %d s",
           shown(user->name), has, what, most, QUOTA_LOGGED_EVERY_S);
}

static long long bound_of(const quota_claim *by, long long setting) {
    return by->most >= 0 ? by->most : setting;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

static bool allows_in_total(server_ctx *ctx, hmq_slice session) {
    size_t count = session_index_count(index_of(ctx)->opened);
    if (settings.max_sessions == 0 || count < (size_t)settings.max_sessions) return true;
    if (session_index_find(index_of(ctx)->opened, session) != NULL) return true; /* it is counted already */
    counters.sessions_refused++;
    reply_error(ctx, ERROR_SESSIONS_QUOTA, shown_slice(session), count, settings.max_sessions);
    return false;
}

static bool allows_of_user(server_ctx *ctx, hmq_slice session, const quota_claim *by) {
    long long most = bound_of(by, settings.max_sessions_per_user);
    if (by->identity.len == 0 || most == 0) return true;
    const index_t *index = index_of(ctx);
    usage_user *user = usage_find(index->usage, by->identity);
    if (user == NULL || user->sessions < (size_t)most) return true;
    const session_entry *entry = session_index_find(index->opened, session);
    if (entry != NULL && entry->user == user) return true; /* it is counted already */
    counters.user_sessions_refused++;
    log_refusal(ctx, user, "sessions", user->sessions, most);
    reply_error(ctx, ERROR_USER_SESSIONS_QUOTA, shown_slice(session), shown_slice(by->identity), user->sessions,
                by->most >= 0 ? "its own maximum" : "holdmq.max-sessions-per-user", most);
    return false;
}

bool quota_allows_session(server_ctx *ctx, hmq_slice session, bool exists, const quota_claim *by) {
    return (exists || allows_in_total(ctx, session)) && allows_of_user(ctx, session, by);
}

/* ---- retained messages ------------------------------------------------------------------------------------- */

quota_claim quota_of_client(const index_t *index, hmq_slice client_id) {
    quota_claim nobody = {.most = -1};
    hmq_slice key = session_key_text(client_id);
    const session_entry *entry = key.len == 0 ? NULL : session_index_find(index->opened, key);
    if (entry == NULL || entry->user == NULL) return nobody;
    return (quota_claim){slice_of(entry->user->name), entry->user_retained};
}

/* The user who has no room for another retained message; NULL: there is room. */
static usage_user *full_user(const index_t *index, const quota_claim *by) {
    long long most = bound_of(by, settings.max_retained_per_user);
    usage_user *user = most == 0 ? NULL : usage_find(index->usage, by->identity);
    return user != NULL && user->retained >= (size_t)most ? user : NULL;
}

static bool refuse_total(server_ctx *ctx, size_t count, hmq_slice topic, bool reply) {
    counters.retained_refused++;
    if (reply) reply_error(ctx, ERROR_RETAINED_QUOTA, shown_slice(topic), count, settings.max_retained);
    return false;
}

static bool refuse_user(server_ctx *ctx, usage_user *user, hmq_slice topic, const quota_claim *by, bool reply) {
    long long most = bound_of(by, settings.max_retained_per_user);
    counters.user_retained_refused++;
    log_refusal(ctx, user, "retained messages", user->retained, most);
    if (reply)
        reply_error(ctx, ERROR_USER_RETAINED_QUOTA, shown_slice(topic), shown(user->name), user->retained,
                    by->most >= 0 ? "its own maximum" : "holdmq.max-retained-per-user", most);
    return false;
}

bool quota_allows_retained(server_ctx *ctx, const index_t *index, hmq_slice topic, const quota_claim *by, bool reply) {
    size_t count = sv.DictSize(index->retained_keys);
    bool is_full = settings.max_retained > 0 && count >= (size_t)settings.max_retained;
    usage_user *user = full_user(index, by);
    if ((!is_full && user == NULL) || retained_is_known(index, topic)) return true;
    return is_full ? refuse_total(ctx, count, topic, reply) : refuse_user(ctx, user, topic, by, reply);
}

hmq_slice quota_retained_user(const index_t *index, hmq_slice topic, const quota_claim *by) {
    const usage_user *full = full_user(index, by), *holder;
    if (full == NULL || !retained_find(index, topic, &holder)) return by->identity;
    return holder == NULL ? (hmq_slice){0} : slice_of(holder->name);
}
