/* config.c - the module's settings. */
#include "config.h"

#include <string.h>

#include "server/awake.h"
#include "index/overflow.h"
#include "index/usage.h"
#include "queue/queue.h"
#include "channel/facts.h"

#define POLICIES_MAX_BYTES 65536
#define ERROR_MAX_BYTES 512
#define DEFAULT_SESSION_BYTES (100LL << 20)
#define DEFAULT_FREE_DISK (64LL << 20)
#define OUTBOX_MAX_BYTES (1LL << 30)
#define DEFAULT_OUTBOX_BYTES (256LL << 10)
#define DEFAULT_ROUTE_BYTES (1LL << 30)
#define MAX_DRAIN_TIMEOUT_S 86400

/* Channels that must never be held: control messages whose publishers do not need a receiver.  The first match wins;
 * channels that are not named here get the last rule. */
static const char control_channels[] =
    "__*__:* hold=none; "             /* keyspace events, sentinel, invalidation */
    "{*}_inbox hold=none; "           /* the sessions' own inboxes */
    "holdmq:presence hold=none; "     /* presence of clients */
    "/[0-9].* hold=none; "            /* kombu: fanout exchanges, /<database>.<exchange> */
    "/[0-9][0-9].* hold=none; "
    "*.pidbox* hold=none; "           /* kombu: remote control and its replies */
    "*celeryev* hold=none; "          /* Celery: events */
    "*celery-task-meta-* hold=none; " /* Celery: the result backend keeps the result itself */
    "*redisson_* hold=none; "         /* Redisson: locks, semaphores, latches */
    "*redisson__* hold=none; "
    "rq:pubsub:* hold=none; "         /* rq: worker commands */
    "*:internal:* hold=none; "        /* SignalR: acknowledgements, groups */
    "socket.io* hold=none; "          /* Socket.IO adapters; the other names end with those of namespace and room */
    "*#/*# hold=none; "
    "*socketio* hold=none; "          /* python-socketio, Flask-SocketIO */
    "*__group__* hold=none; "         /* Django channels: groups, and the channels of consumers */
    "*specific.????????????????????????????????* hold=none; "
    "*__Booksleeve_* hold=none; "     /* StackExchange.Redis: a new primary */
    "bull:* hold=none; "              /* Bull: global events; with another prefix what each process is told */
    "*:waiting@* hold=none; "
    "*:active@* hold=none; "
    "bq:* hold=none; "                /* Bee-Queue: events */
    "MOL.* hold=none; "               /* Moleculer: nodes that come, calls, events; MOL-<namespace> */
    "MOL-* hold=none; "
    "*.reply hold=none; "             /* NestJS: replies to requests */
    "taskiq hold=none; "              /* taskiq: tasks without acknowledgement */
    "_action_cable_internal hold=none; ";

static const char default_rule[] = " hold=unheard last=off maxlen=10000 ttl=604800 deliver=last";

static char *default_policies; /* lives as long as the module: the server keeps no copy before LoadConfigs */

/* ---- callbacks --------------------------------------------------------------------------------------------- */

static server_string *get_policies(const char *name, void *data) {
    (void)name, (void)data;
    return settings.policies;
}

static bool delivers(const hmq_policy *policy) {
    for (size_t i = 0; i < hmq_policy_count(policy); i++) {
        if (hmq_policy_rule(policy, i)->deliver != HMQ_DELIVER_NONE) return true;
    }
    return false;
}

static int set_policies(const char *name, server_string *value, void *data, server_string **error) {
    (void)name, (void)data;
    char text[ERROR_MAX_BYTES] = "the text is too long; expected at most 65536 bytes";
    hmq_slice policies = slice_of(value);
    hmq_policy *parsed = NULL;
    if (policies.len <= POLICIES_MAX_BYTES) {
        parsed = hmq_policy_parse(&server_allocator, (const char *)policies.data, policies.len, text, sizeof text);
    }
    if (parsed == NULL) {
        *error = sv.CreateString(NULL, text, strlen(text));
        return SERVER_ERR;
    }
    if (settings.policy != NULL) hmq_policy_free(settings.policy);
    if (settings.policies != NULL) sv.FreeString(NULL, settings.policies);
    settings.policy = parsed;
    settings.delivers = delivers(parsed);
    if (hmq_policy_count(parsed) > 0) awake_now();
    channel_facts_forget();
    settings.policies = sv.CreateString(NULL, (const char *)policies.data, policies.len);
    return SERVER_OK;
}

static int get_bool(const char *name, void *data) {
    (void)name;
    return *(bool *)data;
}

static int set_bool(const char *name, int value, void *data, server_string **error) {
    (void)name, (void)error;
    *(bool *)data = value != 0;
    return SERVER_OK;
}

static server_string *overflow_text; /* as the server shows it; valid until the next call */

static server_string *get_overflow(const char *name, void *data) {
    (void)name, (void)data;
    const char *text = overflow_name((overflow)settings.session_overflow);
    if (overflow_text != NULL) sv.FreeString(NULL, overflow_text);
    return overflow_text = sv.CreateString(NULL, text, strlen(text));
}

static int set_overflow(const char *name, server_string *value, void *data, server_string **error) {
    static const char expected[] = "expected " OVERFLOW_EXPECTED;
    (void)name, (void)data;
    overflow policy;
    if (overflow_of(slice_of(value), &policy)) {
        settings.session_overflow = (int)policy;
        return SERVER_OK;
    }
    *error = sv.CreateString(NULL, expected, sizeof expected - 1);
    return SERVER_ERR;
}

static long long get_number(const char *name, void *data) {
    (void)name;
    return *(long long *)data;
}

static int set_number(const char *name, long long value, void *data, server_string **error) {
    (void)name, (void)error;
    *(long long *)data = value;
    return SERVER_OK;
}

static bool register_quota(server_ctx *ctx, const char *name, long long *setting) {
    return sv.RegisterNumericConfig(ctx, name, 0, SERVER_CONFIG_DEFAULT, 0, QUOTA_MAX, get_number, set_number, NULL,
                                    setting) == SERVER_OK;
}

/* ---- load arguments ---------------------------------------------------------------------------------------- */

/* Appends the glob in double quotes; returns the end of the text. */
static char *append_quoted(char *at, hmq_slice glob) {
    *at++ = '"';
    for (size_t i = 0; i < glob.len; i++) {
        if (glob.data[i] == '"' || glob.data[i] == '\\') *at++ = '\\';
        *at++ = (char)glob.data[i];
    }
    *at++ = '"';
    *at = 0;
    return at;
}

/* The control channels, then one rule for each glob. */
static char *build_policies(server_string **globs, int count) {
    size_t size = sizeof control_channels + sizeof default_rule + 8;
    for (int i = 0; i < count; i++) size += 2 * slice_of(globs[i]).len + sizeof default_rule + 8;
    char *text = sv.Calloc(1, size);
    char *at = stpcpy(text, control_channels);
    if (count == 0) stpcpy(stpcpy(at, "*"), default_rule);
    for (int i = 0; i < count; i++) {
        if (i > 0) at = stpcpy(at, "; ");
        at = stpcpy(append_quoted(at, slice_of(globs[i])), default_rule);
    }
    return text;
}

const char *config_start(server_ctx *ctx, server_string **argv, int argc) {
    if (argc > 0 && (!slice_is(slice_of(argv[0]), "CHANNELS") || argc == 1)) {
        return "unknown load argument; expected CHANNELS <glob> [<glob> ...]";
    }
    default_policies = build_policies(argv + 1, argc > 0 ? argc - 1 : 0);
    settings.default_policies = sv.CreateString(NULL, default_policies, strlen(default_policies));
    bool registered =
        sv.RegisterBoolConfig(ctx, "intercept", 1, SERVER_CONFIG_DEFAULT, get_bool, set_bool, NULL,
                              &settings.intercept) == SERVER_OK &&
        sv.RegisterBoolConfig(ctx, "presence", 1, SERVER_CONFIG_DEFAULT, get_bool, set_bool, NULL,
                              &settings.presence) == SERVER_OK &&
        sv.RegisterStringConfig(ctx, "policies", default_policies, SERVER_CONFIG_DEFAULT, get_policies, set_policies,
                                NULL, NULL) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "session-limit", 10000, SERVER_CONFIG_DEFAULT, 1, QUEUE_MAX_LIMIT, get_number,
                                 set_number, NULL, &settings.session_limit) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "session-bytes", DEFAULT_SESSION_BYTES, SERVER_CONFIG_DEFAULT, 0,
                                 OVERFLOW_MAX_BYTES, get_number, set_number, NULL,
                                 &settings.session_bytes) == SERVER_OK &&
        sv.RegisterStringConfig(ctx, "session-overflow", overflow_name(OVERFLOW_DROP_OLDEST), SERVER_CONFIG_DEFAULT,
                                get_overflow, set_overflow, NULL, NULL) == SERVER_OK &&
        register_quota(ctx, "max-sessions", &settings.max_sessions) &&
        register_quota(ctx, "max-retained", &settings.max_retained) &&
        register_quota(ctx, "max-sessions-per-user", &settings.max_sessions_per_user) &&
        register_quota(ctx, "max-retained-per-user", &settings.max_retained_per_user) &&
        register_quota(ctx, "max-queue-bytes-per-user", &settings.max_queue_bytes_per_user) &&
        register_quota(ctx, "max-queue-bytes", &settings.max_queue_bytes) &&
        sv.RegisterNumericConfig(ctx, "outbox-bytes", DEFAULT_OUTBOX_BYTES, SERVER_CONFIG_DEFAULT, 0, OUTBOX_MAX_BYTES,
                                 get_number, set_number, NULL, &settings.outbox_bytes) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "max-route-bytes", DEFAULT_ROUTE_BYTES, SERVER_CONFIG_DEFAULT, 0, QUOTA_MAX,
                                 get_number, set_number, NULL, &settings.max_route_bytes) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "min-free-disk", DEFAULT_FREE_DISK, SERVER_CONFIG_DEFAULT, 0, QUOTA_MAX,
                                 get_number, set_number, NULL, &settings.min_free_disk) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "session-ttl", 604800, SERVER_CONFIG_DEFAULT, 1, QUEUE_MAX_TTL_S, get_number,
                                 set_number, NULL, &settings.session_ttl_s) == SERVER_OK &&
        sv.RegisterNumericConfig(ctx, "drain-timeout", 60, SERVER_CONFIG_DEFAULT, 1, MAX_DRAIN_TIMEOUT_S, get_number,
                                 set_number, NULL, &settings.drain_timeout_s) == SERVER_OK;
    if (!registered) return "the server refused to register the settings";
    if (sv.LoadConfigs(ctx) != SERVER_OK)
        return "a setting holdmq.* has a value that is not accepted (see the line above)";
    return NULL;
}
