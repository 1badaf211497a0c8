/* commands.c - the one table that declares the module's commands; the reference in docs/commands.md is checked against it.
 *
 * If you add a command: a row here, its section in docs/commands.md, its method in pyclient, its tests in tests/module. */
#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "channel/channel.h"
#include "channel/read.h"
#include "channel/store.h"
#include "command_access.h"
#include "server/command_slot.h"
#include "session/owner.h"
#include "session/session.h"
#include "session/import.h"
#include "session/queue.h"
#include "routing/publish.h"
#include "session/subscribe.h"
#include "session/deliver.h"

#define SINCE "0.1.0"

#define KEY_READ (SERVER_KEY_RO | SERVER_KEY_ACCESS)
#define KEY_WRITE (SERVER_KEY_RW | SERVER_KEY_ACCESS | SERVER_KEY_UPDATE)

/* Arguments for COMMAND DOCS. */
#define KEY_ARG {"key", SERVER_ARG_KEY, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL}
#define ARG(name, type, flags) {name, type, -1, NULL, NULL, NULL, flags, NULL, NULL, NULL}
#define OPTION(name, type, token) {name, type, -1, token, NULL, NULL, SERVER_ARG_OPTIONAL, NULL, NULL, NULL}
#define NEEDED(name, type, token) {name, type, -1, token, NULL, NULL, 0, NULL, NULL, NULL}
#define NEEDED_MULTIPLE(name, type, token)                                                                             \
    {name, type, -1, token, NULL, NULL, SERVER_ARG_MULTIPLE | SERVER_ARG_MULTIPLE_TOKEN, NULL, NULL, NULL}
#define SWITCH(name, token) {name, SERVER_ARG_TOKEN, -1, token, NULL, NULL, SERVER_ARG_OPTIONAL, NULL, NULL, NULL}
#define SLOTS_ARG {"slots", SERVER_ARG_BLOCK, -1, "SLOTS", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, slots_args, NULL}
#define END_ARGS {0}

static server_command_arg filter_and_options[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                                  ARG("options", SERVER_ARG_STRING, 0), END_ARGS};

static server_command_arg producer_args[] = {ARG("producer", SERVER_ARG_STRING, 0),
                                             ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg add_producer_args[] = {ARG("producer", SERVER_ARG_STRING, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0),
                                                 OPTION("after", SERVER_ARG_INTEGER, "AFTER"), END_ARGS};

static server_command_arg chunk_args[] = {ARG("id", SERVER_ARG_STRING, 0), ARG("epoch", SERVER_ARG_INTEGER, 0),
                                          ARG("chunk", SERVER_ARG_INTEGER, 0), END_ARGS};
#define CHUNK_ARG                                                                                                      \
    {"producer", SERVER_ARG_BLOCK, -1, "PRODUCER", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, chunk_args, NULL}

static server_command_arg channel_chunk_args[] = {ARG("id", SERVER_ARG_STRING, 0), ARG("epoch", SERVER_ARG_INTEGER, 0),
                                                  ARG("chunk", SERVER_ARG_INTEGER, 0),
                                                  OPTION("after", SERVER_ARG_INTEGER, "AFTER"), END_ARGS};
#define CHANNEL_CHUNK_ARG                                                                                              \
    {"producer", SERVER_ARG_BLOCK, -1, "PRODUCER", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, channel_chunk_args, NULL}
static server_command_arg publish_args[] = {ARG("channel", SERVER_ARG_STRING, 0), ARG("message", SERVER_ARG_STRING, 0),
                                            CHANNEL_CHUNK_ARG, END_ARGS};
static server_command_arg spublish_args[] = {ARG("shardchannel", SERVER_ARG_STRING, 0),
                                             ARG("message", SERVER_ARG_STRING, 0), CHANNEL_CHUNK_ARG, END_ARGS};
static server_command_arg channel_args[] = {ARG("channel", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg channel_key_args[] = {{"channel", SERVER_ARG_KEY, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL},
                                                END_ARGS};
static server_command_arg channel_range_args[] = {{"channel", SERVER_ARG_KEY, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL},
                                                  ARG("start", SERVER_ARG_INTEGER, 0),
                                                  ARG("stop", SERVER_ARG_INTEGER, 0),
                                                  END_ARGS};
static server_command_arg channel_read_args[] = {
    {"channel", SERVER_ARG_KEY, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL},
    ARG("command", SERVER_ARG_STRING, 0),
    ARG("argument", SERVER_ARG_STRING, SERVER_ARG_OPTIONAL | SERVER_ARG_MULTIPLE),
    END_ARGS};
static server_command_arg dryrun_start_args[] = {OPTION("seconds", SERVER_ARG_INTEGER, "SECONDS"),
                                                 OPTION("policies", SERVER_ARG_STRING, "POLICIES"), END_ARGS};
static server_command_arg dryrun_report_args[] = {OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                                  OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg key_args[] = {KEY_ARG, END_ARGS};
static server_command_arg add_args[] = {
    KEY_ARG,
    OPTION("limit", SERVER_ARG_INTEGER, "LIMIT"),
    OPTION("seconds", SERVER_ARG_INTEGER, "TTL"),
    {"producer", SERVER_ARG_BLOCK, -1, "PRODUCER", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, add_producer_args, NULL},
    SWITCH("messages", "MESSAGES"),
    SWITCH("expiring", "EXPIRING"),
    ARG("payload", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE),
    END_ARGS};
static server_command_arg import_message_args[] = {
    ARG("packet-id", SERVER_ARG_INTEGER, 0), ARG("serial", SERVER_ARG_INTEGER, 0), ARG("state", SERVER_ARG_INTEGER, 0),
    ARG("ttl-ms", SERVER_ARG_INTEGER, 0),    ARG("value", SERVER_ARG_STRING, 0),   END_ARGS};
static server_command_arg import_args[] = {
    KEY_ARG,
    SWITCH("merge", "MERGE"),
    OPTION("limit", SERVER_ARG_INTEGER, "LIMIT"),
    OPTION("packet-id", SERVER_ARG_INTEGER, "LASTID"),
    {"producer", SERVER_ARG_BLOCK, -1, "PRODUCER", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, producer_args, NULL},
    NEEDED("count", SERVER_ARG_INTEGER, "MESSAGES"),
    {"message", SERVER_ARG_BLOCK, -1, NULL, NULL, NULL, SERVER_ARG_OPTIONAL | SERVER_ARG_MULTIPLE, NULL,
     import_message_args, NULL},
    END_ARGS};
static server_command_arg fetch_args[] = {KEY_ARG,
                                          OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                          OPTION("serial", SERVER_ARG_INTEGER, "AFTER"),
                                          OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                          OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                          OPTION("window", SERVER_ARG_INTEGER, "WINDOW"),
                                          SWITCH("inflight", "INFLIGHT"),
                                          SWITCH("packed", "PACKED"),
                                          SWITCH("bounded", "BOUNDED"),
                                          END_ARGS};
static server_command_arg ack_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                        OPTION("next", SERVER_ARG_INTEGER, "NEXT"),
                                        ARG("packet-id", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg packet_ids_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                               ARG("packet-id", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg packet_id_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                              ARG("packet-id", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg sent_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                         ARG("serial", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg drop_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"), END_ARGS};
static server_command_arg will_args[] = {ARG("topic", SERVER_ARG_STRING, 0),
                                         ARG("payload", SERVER_ARG_STRING, 0),
                                         OPTION("will-qos", SERVER_ARG_INTEGER, "WILLQOS"),
                                         SWITCH("will-retain", "WILLRETAIN"),
                                         OPTION("will-delay", SERVER_ARG_INTEGER, "WILLDELAY"),
                                         OPTION("will-ttl", SERVER_ARG_INTEGER, "WILLTTL"),
                                         OPTION("will-properties", SERVER_ARG_STRING, "WILLPROPERTIES"),
                                         END_ARGS};
static server_command_arg open_args[] = {
    KEY_ARG,
    NEEDED("name", SERVER_ARG_STRING, "OWNER"),
    SWITCH("clean", "CLEAN"),
    OPTION("expiry", SERVER_ARG_INTEGER, "EXPIRY"),
    OPTION("lease", SERVER_ARG_INTEGER, "LEASE"),
    OPTION("bytes", SERVER_ARG_INTEGER, "MAXBYTES"),
    OPTION("policy", SERVER_ARG_STRING, "OVERFLOW"),
    OPTION("user-sessions", SERVER_ARG_INTEGER, "USERSESSIONS"),
    OPTION("user-bytes", SERVER_ARG_INTEGER, "USERBYTES"),
    OPTION("user-retained", SERVER_ARG_INTEGER, "USERRETAINED"),
    OPTION("token", SERVER_ARG_STRING, "ATTEMPT"),
    OPTION("identity", SERVER_ARG_STRING, "IDENTITY"),
    OPTION("former-identity", SERVER_ARG_STRING, "ADOPT"),
    SWITCH("replace", "REPLACE"),
    {"will", SERVER_ARG_BLOCK, -1, "WILL", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, will_args, NULL},
    END_ARGS};
static server_command_arg list_args[] = {OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                         OPTION("count", SERVER_ARG_INTEGER, "COUNT"), SWITCH("connected", "CONNECTED"),
                                         END_ARGS};
static server_command_arg owner_args[] = {ARG("name", SERVER_ARG_STRING, 0),
                                          NEEDED("seconds", SERVER_ARG_INTEGER, "LEASE"), END_ARGS};
static server_command_arg touch_args[] = {KEY_ARG, NEEDED("epoch", SERVER_ARG_INTEGER, "EPOCH"), END_ARGS};
static server_command_arg close_args[] = {KEY_ARG,
                                          NEEDED("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                          OPTION("expiry", SERVER_ARG_INTEGER, "EXPIRY"),
                                          OPTION("serial", SERVER_ARG_INTEGER, "SENT"),
                                          SWITCH("will", "WILL"),
                                          END_ARGS};
static server_command_arg subscribe_args[] = {
    KEY_ARG,
    OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
    {"subscription", SERVER_ARG_BLOCK, -1, NULL, NULL, NULL, SERVER_ARG_MULTIPLE, NULL, filter_and_options, NULL},
    END_ARGS};
static server_command_arg session_replay_args[] = {KEY_ARG,
                                                   OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                   OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                                   OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                   OPTION("visit", SERVER_ARG_INTEGER, "VISIT"),
                                                   OPTION("queue", SERVER_ARG_INTEGER, "QUEUE"),
                                                   END_ARGS};
static server_command_arg unsubscribe_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                ARG("filter", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg deliver_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                            ARG("record", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg range_args[] = {ARG("first", SERVER_ARG_INTEGER, 0), ARG("last", SERVER_ARG_INTEGER, 0),
                                          END_ARGS};
static server_command_arg slots_args[] = {
    ARG("count", SERVER_ARG_INTEGER, 0),
    {"range", SERVER_ARG_BLOCK, -1, NULL, NULL, NULL, SERVER_ARG_MULTIPLE, NULL, range_args, NULL},
    END_ARGS};
static server_command_arg topic_publish_args[] = {ARG("topic", SERVER_ARG_STRING, 0),
                                                  ARG("payload", SERVER_ARG_STRING, 0),
                                                  OPTION("qos", SERVER_ARG_INTEGER, "QOS"),
                                                  SWITCH("retain", "RETAIN"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "TTL"),
                                                  OPTION("client-id", SERVER_ARG_STRING, "FROM"),
                                                  OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                  OPTION("packet-id", SERVER_ARG_INTEGER, "PACKET"),
                                                  OPTION("bytes", SERVER_ARG_STRING, "PROPERTIES"),
                                                  CHUNK_ARG,
                                                  SLOTS_ARG,
                                                  END_ARGS};
static server_command_arg mpublish_producer_args[] = {ARG("id", SERVER_ARG_STRING, 0),
                                                      ARG("epoch", SERVER_ARG_INTEGER, 0),
                                                      ARG("after", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg topic_mpublish_args[] = {
    {"producer", SERVER_ARG_BLOCK, -1, "PRODUCER", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, mpublish_producer_args, NULL},
    SLOTS_ARG,
    NEEDED_MULTIPLE("record", SERVER_ARG_STRING, "RECORD"),
    END_ARGS};
static server_command_arg topic_pipeline_args[] = {ARG("commands", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg commit_args[] = {
    ARG("id", SERVER_ARG_STRING, 0),
    ARG("epoch", SERVER_ARG_INTEGER, 0),
    ARG("number", SERVER_ARG_INTEGER, 0),
    NEEDED("n", SERVER_ARG_INTEGER, "SLOTS"),
    {"range", SERVER_ARG_BLOCK, -1, NULL, NULL, NULL, SERVER_ARG_MULTIPLE, NULL, range_args, NULL},
    END_ARGS};
static server_command_arg retained_args[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                             OPTION("count", SERVER_ARG_INTEGER, "COUNT"), SWITCH("values", "VALUES"),
                                             SLOTS_ARG, END_ARGS};

static server_command_arg history_store_args[] = {ARG("name", SERVER_ARG_STRING, 0),
                                                  NEEDED_MULTIPLE("filter", SERVER_ARG_STRING, "FILTER"),
                                                  OPTION("n", SERVER_ARG_INTEGER, "SHARDS"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "AGE"),
                                                  OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                  OPTION("holdbytes", SERVER_ARG_INTEGER, "HOLDBYTES"),
                                                  OPTION("levels", SERVER_ARG_INTEGER, "LEVELS"),
                                                  OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                  OPTION("learn", SERVER_ARG_INTEGER, "LEARN"),
                                                  OPTION("seed", SERVER_ARG_STRING, "SEED"),
                                                  OPTION("changed", SERVER_ARG_INTEGER, "CHANGED"),
                                                  END_ARGS};
static server_command_arg history_name_args[] = {ARG("store", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg history_append_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                   ARG("topic", SERVER_ARG_STRING, 0),
                                                   ARG("payload", SERVER_ARG_STRING, 0),
                                                   OPTION("qos", SERVER_ARG_INTEGER, "QOS"),
                                                   SWITCH("retain", "RETAIN"),
                                                   OPTION("seconds", SERVER_ARG_INTEGER, "TTL"),
                                                   OPTION("client-id", SERVER_ARG_STRING, "FROM"),
                                                   OPTION("bytes", SERVER_ARG_STRING, "PROPERTIES"),
                                                   CHUNK_ARG,
                                                   OPTION("shard", SERVER_ARG_INTEGER, "SHARD"),
                                                   END_ARGS};
static server_command_arg history_import_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                   ARG("shard", SERVER_ARG_INTEGER, 0),
                                                   CHUNK_ARG,
                                                   {.name = "record",
                                                    .type = SERVER_ARG_STRING,
                                                    .key_spec_index = -1,
                                                    .token = "RECORD",
                                                    .flags = SERVER_ARG_MULTIPLE},
                                                   END_ARGS};
static server_command_arg history_replay_args[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                                   OPTION("store", SERVER_ARG_STRING, "STORE"),
                                                   OPTION("ms", SERVER_ARG_STRING, "FROM"),
                                                   OPTION("sequence", SERVER_ARG_INTEGER, "SEQ"),
                                                   OPTION("ms", SERVER_ARG_INTEGER, "TO"),
                                                   OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                                   OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                   OPTION("visit", SERVER_ARG_INTEGER, "VISIT"),
                                                   OPTION("shard", SERVER_ARG_INTEGER, "SHARD"),
                                                   OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                                   END_ARGS};

static server_command_arg history_info_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 OPTION("shard", SERVER_ARG_INTEGER, "SHARD"), END_ARGS};
static server_command_arg history_check_args[] = {
    ARG("store", SERVER_ARG_STRING, 0),           ARG("shard", SERVER_ARG_INTEGER, 0),
    OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"), OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
    OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg history_seq_args[] = {ARG("store", SERVER_ARG_STRING, 0), ARG("shard", SERVER_ARG_INTEGER, 0),
                                                ARG("ms", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_columns_args[] = {ARG("n", SERVER_ARG_INTEGER, 0),
                                                    ARG("column", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg history_range_args[] = {
    ARG("store", SERVER_ARG_STRING, 0),
    ARG("shard", SERVER_ARG_INTEGER, 0),
    ARG("from", SERVER_ARG_INTEGER, 0),
    ARG("to", SERVER_ARG_INTEGER, 0),
    OPTION("filter", SERVER_ARG_STRING, "FILTER"),
    {"columns", SERVER_ARG_BLOCK, -1, "COLUMNS", NULL, NULL, SERVER_ARG_OPTIONAL, NULL, history_columns_args, NULL},
    OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
    OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
    OPTION("visit", SERVER_ARG_INTEGER, "VISIT"),
    SWITCH("packed", "PACKED"),
    SWITCH("expired", "EXPIRED"),
    END_ARGS};

static server_command_arg history_get_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                OPTION("shard", SERVER_ARG_INTEGER, "SHARD"),
                                                OPTION("generation", SERVER_ARG_INTEGER, "GENERATION"), END_ARGS};
static server_command_arg history_propose_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                    OPTION("percent", SERVER_ARG_INTEGER, "MARGIN"), END_ARGS};
static server_command_arg history_prepare_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                    ARG("generation", SERVER_ARG_INTEGER, 0),
                                                    ARG("text", SERVER_ARG_STRING, 0),
                                                    OPTION("shards", SERVER_ARG_INTEGER, "SHARDS"),
                                                    OPTION("shard", SERVER_ARG_INTEGER, "SHARD"),
                                                    END_ARGS};
static server_command_arg history_commit_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                   ARG("generation", SERVER_ARG_INTEGER, 0),
                                                   OPTION("shard", SERVER_ARG_INTEGER, "SHARD"), END_ARGS};

static server_command_arg history_trim_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 ARG("shard", SERVER_ARG_INTEGER, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_mark_args[] = {ARG("shard", SERVER_ARG_INTEGER, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_hold_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 ARG("reader", SERVER_ARG_STRING, 0),
                                                 {"watermark", SERVER_ARG_BLOCK, -1, NULL, NULL, NULL,
                                                  SERVER_ARG_OPTIONAL | SERVER_ARG_MULTIPLE, NULL, history_mark_args,
                                                  NULL},
                                                 SWITCH("release", "RELEASE"),
                                                 END_ARGS};

typedef struct command {
    const char *name; /* <command>, or <command>|<subcommand> behind it */
    server_command_handler handler;
    const char *flags;
    const char *categories; /* from 7.2 */
    int arity; /* negative: at least */
    uint64_t key_flags; /* of the first argument; 0: it is no key */
    const char *summary;
    const char *complexity;
    server_command_arg *args;
} command;

/* Those of commands whose first argument is a key, of those without one that open keys of many slots, or none. */
#define RUN_BY(how, prefix, handler)                                                                                   \
    static int prefix##_##handler(server_ctx *ctx, server_string **argv, int argc) {                                   \
        return how(handler, ctx, argv, argc);                                                                          \
    }
#define KEYED(handler) RUN_BY(command_slot_run, keyed, handler)
#define WIDE(handler) RUN_BY(command_slot_run_wide, wide, handler)
#define KEYLESS(handler) RUN_BY(command_slot_run_keyless, keyless, handler)
KEYED(channel_spublish_command)
KEYED(channel_last_command)
KEYED(channel_range_command)
KEYED(channel_len_command)
KEYED(channel_key_command)
KEYED(session_add_command)
KEYED(session_import_command)
KEYED(session_fetch_command)
KEYED(session_ack_command)
KEYED(session_release_command)
KEYED(session_receive_command)
KEYED(session_complete_command)
KEYED(session_sent_command)
KEYED(session_last_command)
KEYED(session_info_command)
KEYED(session_drop_command)
KEYED(guarded_session_open)
KEYED(session_owner_command)
KEYED(session_touch_command)
KEYED(session_close_command)
KEYED(guarded_session_subscribe)
KEYED(session_unsubscribe_command)
KEYED(session_subscriptions_command)
KEYED(session_deliver_command)
KEYED(guarded_session_replay)
KEYED(store_internal_command)
KEYED(channel_alias_command)
WIDE(guarded_session_list)
WIDE(guarded_topic_publish)
WIDE(topic_pipeline_command)
WIDE(guarded_topic_mpublish)
WIDE(guarded_topic_commit)
WIDE(guarded_topic_retained)
WIDE(guarded_history_store)
WIDE(guarded_history_stores)
WIDE(guarded_history_unstore)
WIDE(guarded_history_trim)
WIDE(guarded_history_hold)
WIDE(guarded_history_append)
WIDE(guarded_history_import)
WIDE(guarded_history_replay)
WIDE(guarded_history_info)
WIDE(guarded_history_seq)
WIDE(guarded_history_range)
WIDE(guarded_history_check)
WIDE(guarded_history_patterns_get)
WIDE(guarded_history_patterns_stats)
WIDE(guarded_history_patterns_propose)
WIDE(guarded_history_patterns_prepare)
WIDE(guarded_history_patterns_commit)
WIDE(guarded_history_patterns_abort)
WIDE(guarded_index_check)
KEYLESS(channel_publish_command)

/* CHANNEL.(S)PUBLISH stands in for (S)PUBLISH, so it has the flags of those: what it stores is its own affair (no "write",
 * or a replica would refuse what PUBLISH may; no "pubsub", which client libraries take for a mode). */
static const command table[] = {
    {"CHANNEL.PUBLISH", keyless_channel_publish_command,
     "may-replicate fast allow-loading allow-stale getchannels-api no-monitor no-slowlog", "pubsub fast", -3, 0,
     "Publishes a message; keeps it as the channel's policy says.", "O(N+M) with N subscribers and M patterns",
     publish_args},
    {"CHANNEL.SPUBLISH", keyed_channel_spublish_command,
     "may-replicate fast allow-loading allow-stale getchannels-api no-monitor no-slowlog", "pubsub fast", -3,
     SERVER_KEY_RW | SERVER_KEY_NOT_KEY,
     "Publishes a message to a shard channel; keeps it as the channel's policy says.", "O(N) with N subscribers",
     spublish_args},
    {"CHANNEL.LAST", keyed_channel_last_command, "readonly fast", "read fast", 2, KEY_READ,
     "The last message that a channel keeps.", "O(1)", channel_key_args},
    {"CHANNEL.RANGE", keyed_channel_range_command, "readonly", "read slow", 4, KEY_READ,
     "Messages that a channel holds, by their place.", "O(S+N) with S messages before the first and N of the range",
     channel_range_args},
    {"CHANNEL.LEN", keyed_channel_len_command, "readonly fast", "read fast", 2, KEY_READ,
     "How many messages a channel holds.", "O(1)", channel_key_args},
    {"CHANNEL.KEY", keyed_channel_key_command, "readonly fast allow-loading allow-stale", "read fast", 2,
     SERVER_KEY_RO | SERVER_KEY_NOT_KEY, "The name of the list that holds a channel's messages.", "O(1)", channel_args},
    {"CHANNEL.POLICY", channel_policy_command, "readonly fast allow-loading allow-stale", "read fast", 2, 0,
     "The policy rule that holds for a channel.", "O(R) with R rules", channel_args},
    {"CHANNEL.DRYRUN", NULL, "", "slow", -2, 0, "Shows which channels a policy would hold.", "O(1)", NULL},
    {"CHANNEL.DRYRUN|START", guarded_dryrun_start, "readonly admin", "admin slow dangerous", -2, 0,
     "Begins to count, by channel, the messages that a policy would hold.",
     "O(C) with C channels of the dry run before", dryrun_start_args},
    {"CHANNEL.DRYRUN|STOP", guarded_dryrun_stop, "readonly admin fast", "admin fast dangerous", 2, 0,
     "Ends the dry run; its report stays.", "O(1)", NULL},
    {"CHANNEL.DRYRUN|REPORT", guarded_dryrun_report, "readonly admin", "admin slow dangerous", -2, 0,
     "A page of what the dry run has counted.", "O(N) with N channels of the page", dryrun_report_args},
    {"SESSION.ADD", keyed_session_add_command, "write deny-oom fast", "write fast", -3, KEY_WRITE,
     "Appends messages to a session's queue.",
     "O(N log M) with N payloads and M messages in the queue; O(M) more where the limit is reached", add_args},
    {"SESSION.IMPORT", keyed_session_import_command, "write deny-oom", "write", -4, KEY_WRITE,
     "Puts a queue from elsewhere into a session, as it was there.", "O(N log M) with N messages and M in the queue",
     import_args},
    {"SESSION.FETCH", keyed_session_fetch_command, "write", "write", -2, KEY_WRITE,
     "A page of a session's queue, oldest first.", "O(log M + N) with N messages of the page", fetch_args},
    {"SESSION.ACK", keyed_session_ack_command, "write fast", "write fast", -3, KEY_WRITE,
     "Removes acknowledged messages from a session's queue.", "O(N log M) with N identifiers", ack_args},
    {"SESSION.RELEASE", keyed_session_release_command, "write fast", "write fast", -3, KEY_WRITE,
     "PUBREC was received: drops the payloads, keeps identifiers and expiry.", "O(N log M) with N identifiers",
     packet_ids_args},
    {"SESSION.RECEIVE", keyed_session_receive_command, "write deny-oom fast", "write fast", -3, KEY_WRITE,
     "Is this incoming QoS 2 message new?", "O(log N) with N identifiers not yet completed", packet_id_args},
    {"SESSION.COMPLETE", keyed_session_complete_command, "write fast", "write fast", -3, KEY_WRITE,
     "PUBREL was received: forgets incoming QoS 2 identifiers.", "O(K log N) with K identifiers", packet_ids_args},
    {"SESSION.SENT", keyed_session_sent_command, "write fast", "write fast", -3, KEY_WRITE,
     "Messages up to a serial were handed to the client.", "O(1); O(N) with N messages that have a TTL", sent_args},
    {"SESSION.LAST", keyed_session_last_command, "readonly fast", "read fast", 2, KEY_READ,
     "The packet identifier handed out last.", "O(1)", key_args},
    {"SESSION.INFO", keyed_session_info_command, "readonly fast", "read fast", 2, KEY_READ,
     "What a session has and who owns it.", "O(log M)", key_args},
    {"SESSION.DROP", keyed_session_drop_command, "write", "write", -2, KEY_WRITE, "Removes all that a session has.",
     "O(M)", drop_args},
    {"SESSION.OPEN", keyed_guarded_session_open, "write deny-oom getchannels-api", "write", -4, KEY_WRITE,
     "Takes a session over, or creates it.", "O(1); O(M) with CLEAN", open_args},
    {"SESSION.LIST", wide_guarded_session_list, "readonly", "read slow admin dangerous", -1, 0,
     "A page of the opened sessions of the database.", "O(N log S) with N sessions of the page and S in all",
     list_args},
    {"SESSION.OWNER", keyed_session_owner_command, "write fast", "write fast", 4, SERVER_KEY_RW | SERVER_KEY_NOT_KEY,
     "The heartbeat of an owner of sessions.", "O(1)", owner_args},
    {"SESSION.TOUCH", keyed_session_touch_command, "write fast", "write fast", 4, KEY_WRITE,
     "Renews the lease of an open session.", "O(1)", touch_args},
    {"SESSION.CLOSE", keyed_session_close_command, "write", "write", -4, KEY_WRITE,
     "The connection of a session is gone.",
     "O(1); O(M) if the session ends, or with M messages of shared subscriptions that were not handed out", close_args},
    {"SESSION.SUBSCRIBE", keyed_guarded_session_subscribe, "write deny-oom getchannels-api", "write", -4, KEY_WRITE,
     "Subscribes a session to topic filters.", "O(N) with N filters, and what retained messages they match",
     subscribe_args},
    {"SESSION.UNSUBSCRIBE", keyed_session_unsubscribe_command, "write fast", "write fast", -3, KEY_WRITE,
     "Ends subscriptions of a session.", "O(N) with N filters", unsubscribe_args},
    {"SESSION.SUBSCRIPTIONS", keyed_session_subscriptions_command, "readonly", "read", 2, KEY_READ,
     "The subscriptions of a session.", "O(N) with N filters", key_args},
    {"SESSION.DELIVER", keyed_session_deliver_command, "write deny-oom", "write", -3, KEY_WRITE,
     "Delivers messages to a session, as a publish that matches does.", "O(N log M) with N messages and M in the queue",
     deliver_args},
    {"SESSION.REPLAY", keyed_guarded_session_replay, "write deny-oom", "write", -2, KEY_WRITE,
     "Reads history on for the subscriptions of a session that replay it.",
     "O(V log N + R S) with V messages visited, N in the store, R replays and S shards", session_replay_args},
    {"TOPIC.PUBLISH", wide_guarded_topic_publish, "write deny-oom getchannels-api", "write pubsub", -3, 0,
     "Publishes to all sessions whose filters match the topic.",
     "O(L + S log M) with L levels and S sessions that match", topic_publish_args},
    {"TOPIC.PIPELINE", wide_topic_pipeline_command, "write deny-oom", "write pubsub", 2, 0,
     "Runs many TOPIC.PUBLISH as one command.", "O(N (L + S log M)) with N publishes, each as of TOPIC.PUBLISH",
     topic_pipeline_args},
    {"TOPIC.MPUBLISH", wide_guarded_topic_mpublish, "write deny-oom", "write pubsub", -3, 0,
     "Publishes many messages in one step.", "O(N (L + S log M)) with N messages, each as of TOPIC.PUBLISH",
     topic_mpublish_args},
    {"TOPIC.COMMIT", wide_guarded_topic_commit, "write", "write slow", -8, 0,
     "Notes that all slots of a cluster have what a producer published.", "O(S) with S slots", commit_args},
    {"TOPIC.RETAINED", wide_guarded_topic_retained, "readonly getchannels-api", "read", -2, 0,
     "Topics with a retained message that a filter matches, or the messages.",
     "O(N) with N topics that the filter reaches", retained_args},
    {"HISTORY.STORE", wide_guarded_history_store, "write deny-oom getchannels-api", "write slow admin dangerous", -4, 0,
     "Makes or changes a policy of history: which topics are kept, for how long.", "O(F) with F filters of all stores",
     history_store_args},
    {"HISTORY.STORES", wide_guarded_history_stores, "readonly", "read slow admin dangerous", 1, 0,
     "The policies of history.", "O(F) with F filters of all stores", NULL},
    {"HISTORY.UNSTORE", wide_guarded_history_unstore, "write", "write slow admin dangerous", 2, 0,
     "Removes a store with all its messages.", "O(N) with N keys of the store", history_name_args},
    {"HISTORY.TRIM", wide_guarded_history_trim, "write fast", "write fast admin dangerous", 4, 0,
     "Gives away what a shard has up to a sequence number.", "O(R + log E) with R readers that hold and E epochs",
     history_trim_args},
    {"HISTORY.HOLD", wide_guarded_history_hold, "write fast", "write fast admin dangerous", -3, 0,
     "Says up to where a reader has read: nothing above is dropped.", "O(S) with S shards", history_hold_args},
    {"HISTORY.APPEND", wide_guarded_history_append, "write deny-oom fast getchannels-api", "write fast", -4, 0,
     "Keeps a message in history without publishing it.", "O(L) with L indexed levels of the topic",
     history_append_args},
    {"HISTORY.IMPORT", wide_guarded_history_import, "write deny-oom", "write slow", -5, 0,
     "Keeps many messages of one shard in one step.", "O(N) with N records", history_import_args},
    {"HISTORY.REPLAY", wide_guarded_history_replay, "readonly getchannels-api", "read", -2, 0,
     "Messages of the past whose topics a filter matches, in their order.",
     "O(V log N) with V messages visited and N in the store", history_replay_args},
    {"HISTORY.INFO", wide_guarded_history_info, "readonly", "read", -2, 0, "What a store has, shard by shard.",
     "O(S log E) with S shards and E epochs", history_info_args},
    {"HISTORY.SEQ", wide_guarded_history_seq, "readonly", "read", 4, 0,
     "The sequence number of a shard's first message at a time or later.", "O(log N) with N messages of the shard",
     history_seq_args},
    {"HISTORY.RANGE", wide_guarded_history_range, "readonly getchannels-api", "read", -5, 0,
     "The messages of a shard between two sequence numbers, column by column.",
     "O(V log P) with V messages visited and P patterns", history_range_args},
    {"HISTORY.CHECK", wide_guarded_history_check, "readonly admin", "admin slow dangerous", -3, 0,
     "Compares the posting lists and marks of an epoch with its logs.",
     "O(N log M) with N messages and entries compared, M of the epoch", history_check_args},
    {"HISTORY.PATTERNS", NULL, "", "slow", -2, 0, "The pattern sets of a store.", "O(1)", NULL},
    {"HISTORY.PATTERNS|GET", wide_guarded_history_patterns_get, "readonly", "read slow admin dangerous", -3, 0,
     "The pattern set of a generation.", "O(N) with N bytes of it", history_get_args},
    {"HISTORY.PATTERNS|STATS", wide_guarded_history_patterns_stats, "readonly", "read slow admin dangerous", -3, 0,
     "How many messages each pattern of the present set has.", "O(S * E * P) with S shards, E epochs, P patterns",
     history_info_args},
    {"HISTORY.PATTERNS|PROPOSE", wide_guarded_history_patterns_propose, "readonly", "read slow admin dangerous", -3, 0,
     "A pattern set learned from a sample of the store and from the filters of its readers.",
     "O(N + F * T) with N messages and T topics of the sample, F filters", history_propose_args},
    {"HISTORY.PATTERNS|PREPARE", wide_guarded_history_patterns_prepare, "write deny-oom", "write slow admin dangerous",
     -5, 0, "Checks and keeps the pattern set of the next generation.", "O(N log P) with N bytes and P patterns",
     history_prepare_args},
    {"HISTORY.PATTERNS|COMMIT", wide_guarded_history_patterns_commit, "write deny-oom", "write slow admin dangerous",
     -4, 0, "Switches to the pattern set that was prepared.", "O(S * N log P) with S shards, N bytes and P patterns",
     history_commit_args},
    {"HISTORY.PATTERNS|ABORT", wide_guarded_history_patterns_abort, "write", "write slow admin dangerous", -3, 0,
     "Forgets the pattern set that was prepared.", "O(S) with S shards", history_info_args},
    {"HOLDMQ.INTERNAL", keyed_store_internal_command, "write deny-oom no-monitor no-slowlog", "dangerous", 2, KEY_WRITE,
     "A part of other commands.", "O(N) with N messages", key_args},
    {"HOLDMQ.READ", keyed_channel_alias_command, "readonly no-monitor no-slowlog", "read", -3, KEY_READ,
     "A list command on a channel's name.", "O(N) with N messages that are read or passed", channel_read_args},
    {"HOLDMQ.CHECK", wide_guarded_index_check, "readonly admin", "admin slow dangerous", 1, 0,
     "Compares the in-memory indexes with a rebuild.", "O(N) with N keys", NULL},
};

static bool describe(server_ctx *ctx, const command *c) {
    static const server_command_info_version version = {1, sizeof(server_command_history), sizeof(server_key_spec),
                                                        sizeof(server_command_arg)};
    server_key_spec specs[2] = {{0}, {0}};
    specs[0].flags = c->key_flags;
    specs[0].begin_search_type = SERVER_BEGIN_INDEX;
    specs[0].begin.index.position = 1;
    specs[0].find_keys_type = SERVER_FIND_RANGE;
    specs[0].find.range.last = 0;
    specs[0].find.range.step = 1;
    specs[0].notes = "the keys of a session share its hash tag; the names behind it are derived";
    server_command_info info = {.version = &version,
                                .summary = c->summary,
                                .complexity = c->complexity,
                                .since = SINCE,
                                .arity = c->arity,
                                .key_specs = c->key_flags != 0 ? specs : NULL,
                                .args = c->args};
    server_command *registered = sv.GetCommand(ctx, c->name);
    if (registered == NULL || sv.SetCommandInfo(registered, &info) != SERVER_OK) return false;
    return sv.SetCommandACLCategories == NULL || sv.SetCommandACLCategories(registered, c->categories) == SERVER_OK;
}

/* A name with '|' is that of a subcommand; its command stands before it in the table and has no handler. */
static bool create(server_ctx *ctx, const command *c) {
    int key = c->key_flags != 0 ? 1 : 0;
    const char *bar = strchr(c->name, '|');
    if (bar == NULL) return sv.CreateCommand(ctx, c->name, c->handler, c->flags, key, key, key) == SERVER_OK;
    char parent[64];
    snprintf(parent, sizeof parent, "%.*s", (int)(bar - c->name), c->name);
    server_command *container = sv.GetCommand(ctx, parent);
    return container != NULL &&
           sv.CreateSubcommand(container, bar + 1, c->handler, c->flags, key, key, key) == SERVER_OK;
}

const char *commands_start(server_ctx *ctx) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!create(ctx, &table[i]) || !describe(ctx, &table[i])) return table[i].name;
    }
    return NULL;
}
