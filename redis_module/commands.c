/* commands.c - the one table of the module's commands; docs/commands/ is generated from it, or checked against it.
 *
 * If you add a command: a row here, its entry in docs/commands/ (tools/command_pages.py), its method in pyclient, its
 * tests in tests/module. */
#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "server/command_slot.h"
#include "server/errors.h"
#include "server/resources.h"
#include "cluster/answer.h"
#include "cluster/confirm.h"
#include "cluster/export.h"
#include "cluster/feed.h"
#include "cluster/refusals.h"
#include "cluster/removal.h"
#include "routing/publish.h"
#include "session/deliver.h"
#include "session/import.h"
#include "session/owner.h"
#include "session/queue.h"
#include "session/session.h"
#include "session/subscribe.h"
#include "session/subscriptions.h"
#include "channel/channel.h"
#include "channel/read.h"
#include "channel/store.h"
#include "command_access.h"

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
#define GROUP(name, type, token, flags, args) {name, type, -1, token, NULL, NULL, flags, NULL, args, NULL}
#define BLOCK(name, token, args) GROUP(name, SERVER_ARG_BLOCK, token, SERVER_ARG_OPTIONAL, args)
#define REPEATED_BLOCK(name, args) GROUP(name, SERVER_ARG_BLOCK, NULL, SERVER_ARG_MULTIPLE, args)
#define ONE_OF(name, args) GROUP(name, SERVER_ARG_ONEOF, NULL, SERVER_ARG_OPTIONAL, args)
#define WORD(name, token) {name, SERVER_ARG_TOKEN, -1, token, NULL, NULL, 0, NULL, NULL, NULL}
#define SLOTS_ARG BLOCK("slots", "SLOTS", slots_args)
#define END_ARGS {0}

static server_command_arg filter_and_options[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                                  ARG("options", SERVER_ARG_STRING, 0), END_ARGS};

static server_command_arg producer_args[] = {ARG("producer", SERVER_ARG_STRING, 0),
                                             ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg add_producer_args[] = {ARG("producer", SERVER_ARG_STRING, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0),
                                                 OPTION("previous", SERVER_ARG_INTEGER, "AFTER"), END_ARGS};

static server_command_arg chunk_args[] = {ARG("id", SERVER_ARG_STRING, 0), ARG("epoch", SERVER_ARG_INTEGER, 0),
                                          ARG("chunk", SERVER_ARG_INTEGER, 0), END_ARGS};
#define CHUNK_ARG BLOCK("producer", "PRODUCER", chunk_args)

static server_command_arg channel_chunk_args[] = {ARG("id", SERVER_ARG_STRING, 0), ARG("epoch", SERVER_ARG_INTEGER, 0),
                                                  ARG("chunk", SERVER_ARG_INTEGER, 0),
                                                  OPTION("previous", SERVER_ARG_INTEGER, "AFTER"), END_ARGS};
#define CHANNEL_CHUNK_ARG BLOCK("producer", "PRODUCER", channel_chunk_args)
static server_command_arg publish_args[] = {ARG("channel", SERVER_ARG_STRING, 0), ARG("message", SERVER_ARG_STRING, 0),
                                            CHANNEL_CHUNK_ARG, END_ARGS};
static server_command_arg spublish_args[] = {ARG("shardchannel", SERVER_ARG_STRING, 0),
                                             ARG("message", SERVER_ARG_STRING, 0), CHANNEL_CHUNK_ARG, END_ARGS};
static server_command_arg queued_spublish_args[] = {ARG("shardchannel", SERVER_ARG_STRING, 0),
                                                    ARG("message", SERVER_ARG_STRING, 0), END_ARGS};
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
static server_command_arg add_alike_args[] = {SWITCH("messages", "MESSAGES"),
                                              ARG("payload", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg add_pair_args[] = {ARG("seconds", SERVER_ARG_INTEGER, 0),
                                             ARG("payload", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg add_expiring_args[] = {REPEATED_BLOCK("pair", add_pair_args), END_ARGS};
static server_command_arg add_payload_args[] = {GROUP("alike", SERVER_ARG_BLOCK, NULL, 0, add_alike_args),
                                                GROUP("expiring", SERVER_ARG_BLOCK, "EXPIRING", 0, add_expiring_args),
                                                END_ARGS};
static server_command_arg add_args[] = {KEY_ARG,
                                        OPTION("limit", SERVER_ARG_INTEGER, "LIMIT"),
                                        OPTION("seconds", SERVER_ARG_INTEGER, "TTL"),
                                        BLOCK("producer", "PRODUCER", add_producer_args),
                                        GROUP("payloads", SERVER_ARG_ONEOF, NULL, 0, add_payload_args),
                                        END_ARGS};
static server_command_arg import_message_args[] = {
    ARG("packet-id", SERVER_ARG_INTEGER, 0), ARG("serial", SERVER_ARG_INTEGER, 0), ARG("state", SERVER_ARG_INTEGER, 0),
    ARG("ttl-ms", SERVER_ARG_INTEGER, 0),    ARG("value", SERVER_ARG_STRING, 0),   END_ARGS};
static server_command_arg import_args[] = {
    KEY_ARG,
    SWITCH("merge", "MERGE"),
    OPTION("limit", SERVER_ARG_INTEGER, "LIMIT"),
    OPTION("packet-id", SERVER_ARG_INTEGER, "LASTID"),
    BLOCK("producer", "PRODUCER", producer_args),
    NEEDED("count", SERVER_ARG_INTEGER, "MESSAGES"),
    GROUP("message", SERVER_ARG_BLOCK, NULL, SERVER_ARG_OPTIONAL | SERVER_ARG_MULTIPLE, import_message_args),
    END_ARGS};
static server_command_arg fetch_part_args[] = {NEEDED("serial", SERVER_ARG_INTEGER, "AFTER"),
                                               NEEDED("window", SERVER_ARG_INTEGER, "WINDOW"),
                                               WORD("inflight", "INFLIGHT"), END_ARGS};
static server_command_arg fetch_args[] = {KEY_ARG,
                                          OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                          ONE_OF("part", fetch_part_args),
                                          OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                          OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                          SWITCH("packed", "PACKED"),
                                          SWITCH("bounded", "BOUNDED"),
                                          END_ARGS};
static server_command_arg ack_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                        OPTION("count", SERVER_ARG_INTEGER, "NEXT"),
                                        ARG("packet-id", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg packet_ids_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                               ARG("packet-id", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg packet_id_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                              ARG("packet-id", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg sent_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                         OPTION("messages", SERVER_ARG_INTEGER, "WINDOW"),
                                         ARG("serial", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg drop_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                         OPTION("claim", SERVER_ARG_INTEGER, "CLAIM"), END_ARGS};
static server_command_arg will_args[] = {ARG("topic", SERVER_ARG_STRING, 0),
                                         ARG("payload", SERVER_ARG_STRING, 0),
                                         OPTION("qos", SERVER_ARG_INTEGER, "WILLQOS"),
                                         SWITCH("will-retain", "WILLRETAIN"),
                                         OPTION("seconds", SERVER_ARG_INTEGER, "WILLDELAY"),
                                         OPTION("seconds", SERVER_ARG_INTEGER, "WILLTTL"),
                                         OPTION("bytes", SERVER_ARG_STRING, "WILLPROPERTIES"),
                                         END_ARGS};
static server_command_arg identity_args[] = {ARG("identity", SERVER_ARG_STRING, 0),
                                             OPTION("former-identity", SERVER_ARG_STRING, "ADOPT"),
                                             SWITCH("replace", "REPLACE"), END_ARGS};
static server_command_arg open_args[] = {KEY_ARG,
                                         NEEDED("name", SERVER_ARG_STRING, "OWNER"),
                                         SWITCH("clean", "CLEAN"),
                                         OPTION("seconds", SERVER_ARG_INTEGER, "EXPIRY"),
                                         OPTION("seconds", SERVER_ARG_INTEGER, "LEASE"),
                                         OPTION("epoch", SERVER_ARG_INTEGER, "CLAIM"),
                                         OPTION("bytes", SERVER_ARG_INTEGER, "MAXBYTES"),
                                         OPTION("policy", SERVER_ARG_STRING, "OVERFLOW"),
                                         OPTION("messages", SERVER_ARG_INTEGER, "WINDOW"),
                                         OPTION("sessions", SERVER_ARG_INTEGER, "USERSESSIONS"),
                                         OPTION("bytes", SERVER_ARG_INTEGER, "USERBYTES"),
                                         OPTION("messages", SERVER_ARG_INTEGER, "USERRETAINED"),
                                         OPTION("token", SERVER_ARG_STRING, "ATTEMPT"),
                                         BLOCK("identity", "IDENTITY", identity_args),
                                         BLOCK("will", "WILL", will_args),
                                         END_ARGS};
static server_command_arg list_args[] = {OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                         OPTION("count", SERVER_ARG_INTEGER, "COUNT"), SWITCH("connected", "CONNECTED"),
                                         END_ARGS};
static server_command_arg owner_args[] = {ARG("name", SERVER_ARG_STRING, 0),
                                          NEEDED("seconds", SERVER_ARG_INTEGER, "LEASE"), END_ARGS};
static server_command_arg touch_args[] = {KEY_ARG, NEEDED("epoch", SERVER_ARG_INTEGER, "EPOCH"), END_ARGS};
static server_command_arg close_args[] = {KEY_ARG,
                                          NEEDED("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                          OPTION("seconds", SERVER_ARG_INTEGER, "EXPIRY"),
                                          OPTION("serial", SERVER_ARG_INTEGER, "SENT"),
                                          SWITCH("will", "WILL"),
                                          END_ARGS};
static server_command_arg subscribe_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                              SWITCH("routes", "ROUTES"),
                                              REPEATED_BLOCK("subscription", filter_and_options), END_ARGS};
static server_command_arg subscriptions_args[] = {KEY_ARG, OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                                  OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg session_replay_args[] = {KEY_ARG,
                                                   OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                   OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                                   OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                   OPTION("visit", SERVER_ARG_INTEGER, "VISIT"),
                                                   OPTION("queue", SERVER_ARG_INTEGER, "QUEUE"),
                                                   END_ARGS};
static server_command_arg unsubscribe_args[] = {KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                ARG("filter", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg place_args[] = {ARG("filter", SERVER_ARG_STRING, 0), ARG("from", SERVER_ARG_STRING, 0),
                                          ARG("to", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg deliver_args[] = {
    KEY_ARG, OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"), BLOCK("place", "RETAINED", place_args),
    ARG("record", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE | SERVER_ARG_OPTIONAL), END_ARGS};
static server_command_arg range_args[] = {ARG("first", SERVER_ARG_INTEGER, 0), ARG("last", SERVER_ARG_INTEGER, 0),
                                          END_ARGS};
static server_command_arg slots_args[] = {ARG("count", SERVER_ARG_INTEGER, 0), REPEATED_BLOCK("range", range_args),
                                          END_ARGS};
static server_command_arg node_and_generation[] = {ARG("node", SERVER_ARG_STRING, 0),
                                                   ARG("generation", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg publisher_args[] = {ARG("client-id", SERVER_ARG_STRING, 0),
                                              OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                              OPTION("packet-id", SERVER_ARG_INTEGER, "PACKET"), END_ARGS};
static server_command_arg topic_publish_args[] = {ARG("topic", SERVER_ARG_STRING, 0),
                                                  ARG("payload", SERVER_ARG_STRING, 0),
                                                  OPTION("qos", SERVER_ARG_INTEGER, "QOS"),
                                                  SWITCH("retain", "RETAIN"),
                                                  SWITCH("retry", "RETRY"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "TTL"),
                                                  BLOCK("publisher", "FROM", publisher_args),
                                                  OPTION("bytes", SERVER_ARG_STRING, "PROPERTIES"),
                                                  CHUNK_ARG,
                                                  SLOTS_ARG,
                                                  BLOCK("home", "HOME", node_and_generation),
                                                  END_ARGS};
static server_command_arg mpublish_producer_args[] = {ARG("id", SERVER_ARG_STRING, 0),
                                                      ARG("epoch", SERVER_ARG_INTEGER, 0),
                                                      ARG("previous", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg mpublish_message_args[] = {ARG("number", SERVER_ARG_INTEGER, SERVER_ARG_OPTIONAL),
                                                     ARG("record", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg topic_mpublish_args[] = {
    BLOCK("producer", "PRODUCER", mpublish_producer_args), SLOTS_ARG,
    GROUP("message", SERVER_ARG_BLOCK, "RECORD", SERVER_ARG_MULTIPLE, mpublish_message_args), END_ARGS};
static server_command_arg topic_pipeline_args[] = {ARG("commands", SERVER_ARG_STRING, 0), END_ARGS};
static server_command_arg commit_args[] = {ARG("id", SERVER_ARG_STRING, 0), ARG("epoch", SERVER_ARG_INTEGER, 0),
                                           ARG("number", SERVER_ARG_INTEGER, 0),
                                           GROUP("slots", SERVER_ARG_BLOCK, "SLOTS", 0, slots_args), END_ARGS};
static server_command_arg retained_args[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                             OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                             OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                             SWITCH("values", "VALUES"),
                                             SLOTS_ARG,
                                             END_ARGS};

static server_command_arg match_args[] = {ARG("topic", SERVER_ARG_STRING, 0),
                                          OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                          OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};

static server_command_arg page_args[] = {OPTION("cursor", SERVER_ARG_STRING, "CURSOR"),
                                         OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};

static server_command_arg history_store_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                  NEEDED_MULTIPLE("filter", SERVER_ARG_STRING, "FILTER"),
                                                  OPTION("shards", SERVER_ARG_INTEGER, "SHARDS"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "AGE"),
                                                  OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                  OPTION("bytes", SERVER_ARG_INTEGER, "HOLDBYTES"),
                                                  OPTION("levels", SERVER_ARG_INTEGER, "LEVELS"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "EPOCH"),
                                                  OPTION("seconds", SERVER_ARG_INTEGER, "LEARN"),
                                                  OPTION("seed", SERVER_ARG_STRING, "SEED"),
                                                  OPTION("ms", SERVER_ARG_INTEGER, "CHANGED"),
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
static server_command_arg history_import_args[] = {
    ARG("store", SERVER_ARG_STRING, 0), ARG("shard", SERVER_ARG_INTEGER, 0), CHUNK_ARG,
    GROUP("record", SERVER_ARG_STRING, "RECORD", SERVER_ARG_MULTIPLE, NULL), END_ARGS};
static server_command_arg history_start_args[] = {NEEDED("start", SERVER_ARG_STRING, "FROM"),
                                                  NEEDED("sequence", SERVER_ARG_INTEGER, "SEQ"),
                                                  NEEDED("cursor", SERVER_ARG_STRING, "CURSOR"), END_ARGS};
static server_command_arg history_replay_args[] = {ARG("filter", SERVER_ARG_STRING, 0),
                                                   OPTION("store", SERVER_ARG_STRING, "STORE"),
                                                   ONE_OF("start", history_start_args),
                                                   OPTION("ms", SERVER_ARG_INTEGER, "TO"),
                                                   OPTION("count", SERVER_ARG_INTEGER, "COUNT"),
                                                   OPTION("bytes", SERVER_ARG_INTEGER, "BYTES"),
                                                   OPTION("visit", SERVER_ARG_INTEGER, "VISIT"),
                                                   OPTION("shard", SERVER_ARG_INTEGER, "SHARD"),
                                                   END_ARGS};

static server_command_arg history_info_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 OPTION("shard", SERVER_ARG_INTEGER, "SHARD"), END_ARGS};
static server_command_arg history_place_args[] = {NEEDED("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                  NEEDED("cursor", SERVER_ARG_STRING, "CURSOR"), END_ARGS};
static server_command_arg history_check_args[] = {
    ARG("store", SERVER_ARG_STRING, 0), ARG("shard", SERVER_ARG_INTEGER, 0), ONE_OF("place", history_place_args),
    OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg history_seq_args[] = {ARG("store", SERVER_ARG_STRING, 0), ARG("shard", SERVER_ARG_INTEGER, 0),
                                                ARG("ms", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_columns_args[] = {ARG("count", SERVER_ARG_INTEGER, 0),
                                                    ARG("column", SERVER_ARG_STRING, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg history_range_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                  ARG("shard", SERVER_ARG_INTEGER, 0),
                                                  ARG("from", SERVER_ARG_INTEGER, 0),
                                                  ARG("to", SERVER_ARG_INTEGER, 0),
                                                  OPTION("filter", SERVER_ARG_STRING, "FILTER"),
                                                  BLOCK("columns", "COLUMNS", history_columns_args),
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
static server_command_arg history_scope_args[] = {NEEDED("shards", SERVER_ARG_INTEGER, "SHARDS"),
                                                  NEEDED("shard", SERVER_ARG_INTEGER, "SHARD"), END_ARGS};
static server_command_arg history_prepare_args[] = {
    ARG("store", SERVER_ARG_STRING, 0), ARG("generation", SERVER_ARG_INTEGER, 0), ARG("text", SERVER_ARG_STRING, 0),
    ONE_OF("scope", history_scope_args), END_ARGS};
static server_command_arg history_commit_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                   ARG("generation", SERVER_ARG_INTEGER, 0),
                                                   OPTION("shard", SERVER_ARG_INTEGER, "SHARD"), END_ARGS};

static server_command_arg history_trim_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 ARG("shard", SERVER_ARG_INTEGER, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_mark_args[] = {ARG("shard", SERVER_ARG_INTEGER, 0),
                                                 ARG("sequence", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg history_change_args[] = {REPEATED_BLOCK("watermark", history_mark_args),
                                                   WORD("release", "RELEASE"), END_ARGS};
static server_command_arg history_hold_args[] = {ARG("store", SERVER_ARG_STRING, 0),
                                                 ARG("reader", SERVER_ARG_STRING, 0),
                                                 ONE_OF("change", history_change_args), END_ARGS};

static server_command_arg route_export_args[] = {
    ARG("node", SERVER_ARG_STRING, 0), ARG("generation", SERVER_ARG_INTEGER, 0),
    OPTION("cursor", SERVER_ARG_STRING, "CURSOR"), OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg route_pair_args[] = {ARG("filter", SERVER_ARG_STRING, 0), ARG("slot", SERVER_ARG_INTEGER, 0),
                                               END_ARGS};
static server_command_arg route_add_args[] = {REPEATED_BLOCK("route", route_pair_args), END_ARGS};
static server_command_arg route_feed_args[] = {
    ARG("node", SERVER_ARG_STRING, 0),
    ARG("generation", SERVER_ARG_INTEGER, 0),
    ARG("cursor", SERVER_ARG_STRING, 0),
    ARG("next", SERVER_ARG_STRING, 0),
    SLOTS_ARG,
    GROUP("route", SERVER_ARG_BLOCK, "ROUTES", SERVER_ARG_OPTIONAL | SERVER_ARG_MULTIPLE, route_pair_args),
    END_ARGS};
static server_command_arg known_args[] = {ARG("node", SERVER_ARG_STRING, 0), ARG("generation", SERVER_ARG_INTEGER, 0),
                                          ARG("version", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg route_check_args[] = {KEY_ARG, ARG("topic", SERVER_ARG_STRING, 0),
                                                OPTION("epoch", SERVER_ARG_INTEGER, "EPOCH"),
                                                BLOCK("known", "KNOWN", known_args), END_ARGS};
static server_command_arg check_args[] = {ARG("key", SERVER_ARG_STRING, 0), ARG("topic", SERVER_ARG_STRING, 0),
                                          ARG("epoch", SERVER_ARG_INTEGER, 0), ARG("version", SERVER_ARG_INTEGER, 0),
                                          END_ARGS};
static server_command_arg route_mcheck_args[] = {ARG("node", SERVER_ARG_STRING, 0),
                                                 ARG("generation", SERVER_ARG_INTEGER, 0),
                                                 REPEATED_BLOCK("check", check_args), END_ARGS};
static server_command_arg route_del_args[] = {ARG("filter", SERVER_ARG_STRING, 0), ARG("slot", SERVER_ARG_INTEGER, 0),
                                              ARG("generation", SERVER_ARG_INTEGER, 0),
                                              ARG("token", SERVER_ARG_INTEGER, 0), END_ARGS};
static server_command_arg route_confirm_args[] = {
    ARG("filter", SERVER_ARG_STRING, 0), ARG("slot", SERVER_ARG_INTEGER, 0), ARG("serial", SERVER_ARG_INTEGER, 0),
    REPEATED_BLOCK("home", node_and_generation), END_ARGS};
static server_command_arg outbox_read_args[] = {OPTION("slot", SERVER_ARG_INTEGER, "SLOT"),
                                                OPTION("after", SERVER_ARG_INTEGER, "AFTER"),
                                                OPTION("count", SERVER_ARG_INTEGER, "COUNT"), END_ARGS};
static server_command_arg outbox_ack_args[] = {ARG("slot", SERVER_ARG_INTEGER, 0), ARG("number", SERVER_ARG_INTEGER, 0),
                                               END_ARGS};
static server_command_arg route_resume_args[] = {ARG("slot", SERVER_ARG_INTEGER, SERVER_ARG_MULTIPLE), END_ARGS};
static server_command_arg route_renew_args[] = {ARG("generation", SERVER_ARG_INTEGER, 0), END_ARGS};

typedef struct command {
    const char *name; /* <command>, or <command>|<subcommand> after it */
    const char *since;
    server_command_handler handler;
    const char *flags;
    const char *categories; /* from 7.2 */
    int arity; /* negative: at least */
    uint64_t key_flags; /* of the first argument; 0: it is not a key */
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
#define WIDE(handler) RUN_BY(command_slot_run_many_slots, wide, handler)
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
WIDE(guarded_topic_match)
WIDE(guarded_topic_groups)
WIDE(guarded_channel_list)
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
WIDE(guarded_route_export)
WIDE(guarded_route_unused)
WIDE(guarded_route_info)
WIDE(guarded_route_confirm)
WIDE(guarded_route_mcheck)
WIDE(guarded_outbox_read)
WIDE(guarded_outbox_ack)
WIDE(guarded_index_check)
KEYED(guarded_route_check)
KEYLESS(channel_publish_command)
KEYLESS(guarded_route_resume)

/* Commands that store messages are refused before the disk is full (server/resources.h). */
#define STORES(handler)                                                                                                \
    static int stores_##handler(server_ctx *ctx, server_string **argv, int argc) {                                     \
        if (!sv.IsChannelsPositionRequest(ctx) && resources_refuse()) return resources_reply_refusal(ctx);             \
        return handler(ctx, argv, argc);                                                                               \
    }
STORES(keyed_session_add_command)
STORES(keyed_session_import_command)
STORES(keyed_session_deliver_command)
STORES(wide_guarded_topic_publish)
STORES(wide_topic_pipeline_command)
STORES(wide_guarded_topic_mpublish)
STORES(wide_guarded_history_append)
STORES(wide_guarded_history_import)

/* CHANNEL.(S)PUBLISH replaces (S)PUBLISH, so it has their flags.  (Not "write", or a replica would refuse what
 * PUBLISH may do; not "pubsub", which client libraries take for a mode.)  HOLDMQ.SPUBLISH, which no library sends, has
 * that flag, too: EXEC asks for it while a slot moves. */
static const command table[] = {
    {"CHANNEL.PUBLISH", "0.1.0", keyless_channel_publish_command,
     "may-replicate fast allow-loading allow-stale getchannels-api no-monitor no-slowlog", "pubsub fast", -3, 0,
     "Publishes a message and keeps it as the channel's policy says.", "O(N+M) with N subscribers and M patterns",
     publish_args},
    {"CHANNEL.SPUBLISH", "0.1.0", keyed_channel_spublish_command,
     "may-replicate fast allow-loading allow-stale getchannels-api no-monitor no-slowlog", "pubsub fast", -3,
     SERVER_KEY_RW | SERVER_KEY_NOT_KEY,
     "Publishes a message to a shard channel and keeps it as the channel's policy says.", "O(N) with N subscribers",
     spublish_args},
    {"HOLDMQ.SPUBLISH", "0.2.0", keyed_channel_spublish_command,
     "may-replicate fast allow-loading allow-stale getchannels-api no-monitor no-slowlog pubsub", "pubsub fast", 3,
     SERVER_KEY_RW | SERVER_KEY_NOT_KEY, "Internal: a SPUBLISH that was queued in a transaction.",
     "O(N) with N subscribers", queued_spublish_args},
    {"CHANNEL.LAST", "0.1.0", keyed_channel_last_command, "readonly fast", "read fast", 2, KEY_READ,
     "Returns the most recent message that a channel keeps.", "O(1)", channel_key_args},
    {"CHANNEL.RANGE", "0.2.0", keyed_channel_range_command, "readonly", "read slow", 4, KEY_READ,
     "Returns a range of the messages that a channel holds.", "O(S+N) with S messages before the range and N in it",
     channel_range_args},
    {"CHANNEL.LEN", "0.2.0", keyed_channel_len_command, "readonly fast", "read fast", 2, KEY_READ,
     "Returns the number of messages that a channel holds.", "O(1)", channel_key_args},
    {"CHANNEL.KEY", "0.2.0", keyed_channel_key_command, "readonly fast allow-loading allow-stale", "read fast", 2,
     SERVER_KEY_RO | SERVER_KEY_NOT_KEY, "Returns the name of the list that holds a channel's messages.", "O(1)",
     channel_args},
    {"CHANNEL.POLICY", "0.1.0", channel_policy_command, "readonly fast allow-loading allow-stale", "read fast", 2, 0,
     "Returns the policy rule that applies to a channel.", "O(R) with R rules", channel_args},
    {"CHANNEL.LIST", "0.2.0", wide_guarded_channel_list, "readonly", "read slow admin dangerous", -1, 0,
     "Returns a page of the channels that have kept messages.",
     "O(N log C) with N channels in the page and C in the database", page_args},
    {"CHANNEL.DRYRUN", "0.2.0", NULL, "", "slow", -2, 0, "Counts the messages that a list of policies would hold.",
     "O(1)", NULL},
    {"CHANNEL.DRYRUN|START", "0.2.0", guarded_dryrun_start, "readonly admin", "admin slow dangerous", -2, 0,
     "Starts to count, per channel, the messages that a list of policies would hold.",
     "O(C) with C channels of the previous dry run", dryrun_start_args},
    {"CHANNEL.DRYRUN|STOP", "0.2.0", guarded_dryrun_stop, "readonly admin fast", "admin fast dangerous", 2, 0,
     "Ends the dry run and keeps its counts.", "O(1)", NULL},
    {"CHANNEL.DRYRUN|REPORT", "0.2.0", guarded_dryrun_report, "readonly admin", "admin slow dangerous", -2, 0,
     "Returns a page of what the dry run counted.", "O(N) with N channels in the page", dryrun_report_args},
    {"SESSION.ADD", "0.1.0", stores_keyed_session_add_command, "write deny-oom fast", "write fast", -3, KEY_WRITE,
     "Appends messages to a session's queue.",
     "O(N log M) with N payloads and M messages in the queue; O(M) more where the limit is reached", add_args},
    {"SESSION.IMPORT", "0.1.0", stores_keyed_session_import_command, "write deny-oom", "write", -4, KEY_WRITE,
     "Writes a queue from another system into a session, with its identifiers and states.",
     "O(N log M) with N messages and M in the queue", import_args},
    {"SESSION.FETCH", "0.1.0", keyed_session_fetch_command, "write", "write", -2, KEY_WRITE,
     "Returns a page of a session's queue, oldest message first.",
     "O(log M + N) with N messages in the page and M in the queue", fetch_args},
    {"SESSION.ACK", "0.1.0", keyed_session_ack_command, "write fast", "write fast", -3, KEY_WRITE,
     "Removes acknowledged messages from a session's queue.",
     "O(N log M) with N identifiers and M messages in the queue", ack_args},
    {"SESSION.RELEASE", "0.1.0", keyed_session_release_command, "write fast", "write fast", -3, KEY_WRITE,
     "Records a PUBREC: drops the payloads and keeps the packet identifiers.",
     "O(N log M) with N identifiers and M messages in the queue", packet_ids_args},
    {"SESSION.RECEIVE", "0.1.0", keyed_session_receive_command, "write deny-oom fast", "write fast", -3, KEY_WRITE,
     "Records an incoming QoS 2 message and returns whether it is new.",
     "O(log N) with N identifiers not yet completed", packet_id_args},
    {"SESSION.COMPLETE", "0.1.0", keyed_session_complete_command, "write fast", "write fast", -3, KEY_WRITE,
     "Records a PUBREL: forgets packet identifiers of incoming QoS 2 messages.",
     "O(K log N) with K identifiers and N not yet completed", packet_ids_args},
    {"SESSION.SENT", "0.1.0", keyed_session_sent_command, "write fast", "write fast", -3, KEY_WRITE,
     "Marks the messages up to a serial as in flight.", "O(1); O(N) with N messages that have a TTL", sent_args},
    {"SESSION.LAST", "0.1.0", keyed_session_last_command, "readonly fast", "read fast", 2, KEY_READ,
     "Returns the packet identifier that was assigned last.", "O(1)", key_args},
    {"SESSION.INFO", "0.1.0", keyed_session_info_command, "readonly fast", "read fast", 2, KEY_READ,
     "Returns the state of a session.", "O(log M) with M messages in the queue", key_args},
    {"SESSION.DROP", "0.1.0", keyed_session_drop_command, "write", "write", -2, KEY_WRITE,
     "Removes a session with all its data.", "O(M) with M messages in the queue", drop_args},
    {"SESSION.OPEN", "0.1.0", keyed_guarded_session_open, "write deny-oom getchannels-api", "write", -4, KEY_WRITE,
     "Takes over a session, or creates it.", "O(1); O(M) with CLEAN and M messages in the queue", open_args},
    {"SESSION.LIST", "0.1.0", wide_guarded_session_list, "readonly", "read slow admin dangerous", -1, 0,
     "Returns a page of the sessions in the database.", "O(N log S) with N sessions in the page and S in the database",
     list_args},
    {"SESSION.OWNER", "0.1.0", keyed_session_owner_command, "write fast", "write fast", 4,
     SERVER_KEY_RW | SERVER_KEY_NOT_KEY, "Renews the heartbeat of a process that owns sessions.", "O(1)", owner_args},
    {"SESSION.TOUCH", "0.1.0", keyed_session_touch_command, "write fast", "write fast", 4, KEY_WRITE,
     "Renews the lease of an open session.", "O(1)", touch_args},
    {"SESSION.CLOSE", "0.1.0", keyed_session_close_command, "write", "write", -4, KEY_WRITE,
     "Ends the connection of a session.",
     "O(1); O(M) if the session ends, or with M messages of shared subscriptions that were not handed out", close_args},
    {"SESSION.SUBSCRIBE", "0.1.0", keyed_guarded_session_subscribe, "write deny-oom getchannels-api", "write", -4,
     KEY_WRITE, "Subscribes a session to topic filters.",
     "O(N + R) with N filters and R matching retained messages in the first page", subscribe_args},
    {"SESSION.UNSUBSCRIBE", "0.1.0", keyed_session_unsubscribe_command, "write fast", "write fast", -3, KEY_WRITE,
     "Removes subscriptions from a session.", "O(N) with N filters", unsubscribe_args},
    {"SESSION.SUBSCRIPTIONS", "0.1.0", keyed_session_subscriptions_command, "readonly", "read", -2, KEY_READ,
     "Returns the subscriptions of a session.", "O(N) with N filters in the page", subscriptions_args},
    {"SESSION.DELIVER", "0.1.0", stores_keyed_session_deliver_command, "write deny-oom", "write", -2, KEY_WRITE,
     "Delivers messages to one session, as a matching publish does.", "O(N log M) with N messages and M in the queue",
     deliver_args},
    {"SESSION.REPLAY", "0.1.0", keyed_guarded_session_replay, "write deny-oom", "write", -2, KEY_WRITE,
     "Delivers the next messages of history to the subscriptions that replay it.",
     "O(V log N + R S) with V messages visited, N in the store, R replays and S shards", session_replay_args},
    {"TOPIC.PUBLISH", "0.1.0", stores_wide_guarded_topic_publish, "write deny-oom getchannels-api", "write pubsub", -3,
     0, "Publishes a message to all sessions with a matching subscription.",
     "O(L + S log M) with L levels, S matching sessions and M messages in each queue", topic_publish_args},
    {"TOPIC.PIPELINE", "0.1.0", stores_wide_topic_pipeline_command, "write deny-oom", "write pubsub", 2, 0,
     "Runs many TOPIC.PUBLISH as one command.", "O(N (L + S log M)) with N publishes, each as of TOPIC.PUBLISH",
     topic_pipeline_args},
    {"TOPIC.MPUBLISH", "0.1.0", stores_wide_guarded_topic_mpublish, "write deny-oom", "write pubsub", -3, 0,
     "Publishes many messages in one step.", "O(N (L + S log M)) with N messages, each as of TOPIC.PUBLISH",
     topic_mpublish_args},
    {"TOPIC.COMMIT", "0.1.0", wide_guarded_topic_commit, "write", "write slow", -8, 0,
     "Records that all slots of a cluster have the messages of a producer.", "O(S) with S slots", commit_args},
    {"TOPIC.RETAINED", "0.1.0", wide_guarded_topic_retained, "readonly getchannels-api", "read", -2, 0,
     "Returns the topics whose retained messages match a filter, or the messages.",
     "O(N) with N topics that the filter reaches", retained_args},
    {"TOPIC.MATCH", "0.2.0", wide_guarded_topic_match, "readonly", "read slow admin dangerous", -2, 0,
     "Returns a page of the subscriptions that a topic matches.",
     "O(L + V + N) with L levels, V matching subscriptions up to the end of the page and N in it", match_args},
    {"TOPIC.GROUPS", "0.2.0", wide_guarded_topic_groups, "readonly", "read slow admin dangerous", -1, 0,
     "Returns a page of the groups of shared subscriptions.",
     "O(N log G) with N groups in the page and G in the database", page_args},
    {"HISTORY.STORE", "0.1.0", wide_guarded_history_store, "write deny-oom getchannels-api",
     "write slow admin dangerous", -4, 0, "Creates or changes a store: which topics it keeps, and for how long.",
     "O(F) with F filters of all stores", history_store_args},
    {"HISTORY.STORES", "0.1.0", wide_guarded_history_stores, "readonly", "read slow admin dangerous", 1, 0,
     "Returns the settings of the stores.", "O(F) with F filters of all stores", NULL},
    {"HISTORY.UNSTORE", "0.1.0", wide_guarded_history_unstore, "write", "write slow admin dangerous", 2, 0,
     "Removes a store with all its messages.", "O(N) with N keys of the store", history_name_args},
    {"HISTORY.TRIM", "0.1.0", wide_guarded_history_trim, "write fast", "write fast admin dangerous", 4, 0,
     "Removes the messages of a shard up to a sequence number.",
     "O(R + log E) with R readers that hold messages and E epochs", history_trim_args},
    {"HISTORY.HOLD", "0.1.0", wide_guarded_history_hold, "write fast", "write fast admin dangerous", -3, 0,
     "Records how far a reader has read; later messages are kept for it.", "O(S) with S shards", history_hold_args},
    {"HISTORY.APPEND", "0.1.0", stores_wide_guarded_history_append, "write deny-oom fast getchannels-api", "write fast",
     -4, 0, "Stores a message in history without publishing it.", "O(L) with L indexed levels of the topic",
     history_append_args},
    {"HISTORY.IMPORT", "0.1.0", stores_wide_guarded_history_import, "write deny-oom", "write slow", -5, 0,
     "Stores many messages of one shard in one step.", "O(N) with N records", history_import_args},
    {"HISTORY.REPLAY", "0.1.0", wide_guarded_history_replay, "readonly getchannels-api", "read", -2, 0,
     "Returns stored messages that a topic filter matches, in order.",
     "O(V log N) with V messages visited and N in the store", history_replay_args},
    {"HISTORY.INFO", "0.1.0", wide_guarded_history_info, "readonly", "read", -2, 0,
     "Returns the state of a store and of its shards.", "O(S log E) with S shards and E epochs", history_info_args},
    {"HISTORY.SEQ", "0.1.0", wide_guarded_history_seq, "readonly", "read", 4, 0,
     "Returns the sequence number of a shard's first message at a time or later.",
     "O(log N) with N messages in the shard", history_seq_args},
    {"HISTORY.RANGE", "0.1.0", wide_guarded_history_range, "readonly getchannels-api", "read", -5, 0,
     "Returns the messages of a shard between two sequence numbers, column by column.",
     "O(V log P) with V messages visited and P patterns", history_range_args},
    {"HISTORY.CHECK", "0.1.0", wide_guarded_history_check, "readonly admin", "admin slow dangerous", -3, 0,
     "Compares the index of an epoch with its messages.",
     "O(N log M) with N messages and index entries compared and M in the epoch", history_check_args},
    {"HISTORY.PATTERNS", "0.1.0", NULL, "", "slow", -2, 0, "Reads and changes the pattern sets of a store.", "O(1)",
     NULL},
    {"HISTORY.PATTERNS|GET", "0.1.0", wide_guarded_history_patterns_get, "readonly", "read slow admin dangerous", -3, 0,
     "Returns the pattern set of a generation.", "O(N) with N bytes of text", history_get_args},
    {"HISTORY.PATTERNS|STATS", "0.1.0", wide_guarded_history_patterns_stats, "readonly", "read slow admin dangerous",
     -3, 0, "Returns the number of messages per pattern of the current set.",
     "O(S * E * P) with S shards, E epochs and P patterns", history_info_args},
    {"HISTORY.PATTERNS|PROPOSE", "0.1.0", wide_guarded_history_patterns_propose, "readonly",
     "read slow admin dangerous", -3, 0,
     "Learns a pattern set from a sample of the store and from the filters of its readers.",
     "O(N + F * T) with N messages and T topics in the sample and F filters", history_propose_args},
    {"HISTORY.PATTERNS|PREPARE", "0.1.0", wide_guarded_history_patterns_prepare, "write deny-oom",
     "write slow admin dangerous", -5, 0, "Checks the pattern set of the next generation and keeps it.",
     "O(N log P) with N bytes of text and P patterns", history_prepare_args},
    {"HISTORY.PATTERNS|COMMIT", "0.1.0", wide_guarded_history_patterns_commit, "write deny-oom",
     "write slow admin dangerous", -4, 0, "Switches to the pattern set that was prepared.",
     "O(S * N log P) with S shards, N bytes of text and P patterns", history_commit_args},
    {"HISTORY.PATTERNS|ABORT", "0.1.0", wide_guarded_history_patterns_abort, "write", "write slow admin dangerous", -3,
     0, "Discards the pattern set that was prepared.", "O(S) with S shards", history_info_args},
    {"ROUTE.CHECK", "0.2.0", keyed_guarded_route_check, "write fast getchannels-api", "write fast", -3, KEY_WRITE,
     "Returns the slots of a cluster that have subscribers of a topic.",
     "O(L + R) with L levels and R matching routes; O(1) if nothing has changed", route_check_args},
    {"ROUTE.MCHECK", "0.2.0", wide_guarded_route_mcheck, "write fast", "write fast", -7, 0,
     "Runs many ROUTE.CHECK as one command.", "O(N (L + R)) with N checks, each as of ROUTE.CHECK", route_mcheck_args},
    {"ROUTE.INFO", "0.2.0", wide_guarded_route_info, "readonly", "read slow admin dangerous", 1, 0,
     "Returns a summary of the routes that a node knows.", "O(N) with N nodes", NULL},
    {"ROUTE.ADD", "0.2.0", guarded_route_add, "write deny-oom", "write slow admin dangerous", -3, 0,
     "Adds routes to a node: slots that have subscribers of filters.", "O(N) with N routes", route_add_args},
    {"ROUTE.EXPORT", "0.2.0", wide_guarded_route_export, "write", "write slow admin dangerous", -3, 0,
     "Returns a page of the filters that sessions of this node subscribe to, with their slots.",
     "O(N log R + S) with N routes in the page, R of this node, and S slots", route_export_args},
    {"ROUTE.FEED", "0.2.0", guarded_route_feed, "write deny-oom", "write slow admin dangerous", -5, 0,
     "Gives a node a page of another node's routes.", "O(N) with N routes", route_feed_args},
    {"ROUTE.CONFIRM", "0.2.0", wide_guarded_route_confirm, "write", "write slow admin dangerous", -6, 0,
     "Notes which nodes know a route of a session of this node.", "O(N) with N nodes", route_confirm_args},
    {"ROUTE.TOKEN", "0.2.0", guarded_route_token, "write", "write slow admin dangerous", 3, 0,
     "Returns the token of a route, which changes when the route is added again.", "O(1)", route_pair_args},
    {"ROUTE.UNUSED", "0.2.0", wide_guarded_route_unused, "write", "write slow admin dangerous", 3, 0,
     "Returns whether no session of a slot subscribes to a filter.", "O(1)", route_pair_args},
    {"ROUTE.DEL", "0.2.0", guarded_route_del, "write", "write slow admin dangerous", 5, 0,
     "Removes a route that was not added again since its token was read.", "O(1)", route_del_args},
    {"ROUTE.DROPHOME", "0.2.0", guarded_route_drophome, "write", "write slow admin dangerous", 3, 0,
     "Forgets that routes were exported to a node that has lost its slots.", "O(N) with N nodes", node_and_generation},
    {"ROUTE.RENEW", "0.2.0", guarded_route_renew, "write", "write slow admin dangerous", 2, 0,
     "Gives a node a higher generation; it forgets the routes of other nodes.", "O(1)", route_renew_args},
    {"ROUTE.RESUME", "0.2.0", keyless_guarded_route_resume, "write fast", "write fast", -2, 0,
     "Lets slots take publishes of this connection again.", "O(N) with N slots", route_resume_args},
    {"OUTBOX.READ", "0.2.0", wide_guarded_outbox_read, "readonly", "read slow admin dangerous", -1, 0,
     "Returns wills and presence messages that are to be published to all nodes of a cluster.",
     "O(S + N) with S slots and N messages", outbox_read_args},
    {"OUTBOX.ACK", "0.2.0", wide_guarded_outbox_ack, "write", "write slow admin dangerous", 3, 0,
     "Removes messages of a slot's outbox that all nodes have.", "O(N) with N messages", outbox_ack_args},
    {"HOLDMQ.INTERNAL", "0.2.0", keyed_store_internal_command, "write deny-oom no-monitor no-slowlog", "dangerous", 2,
     KEY_WRITE, "Internal: writes to a channel's list.", "O(N) with N messages", key_args},
    {"HOLDMQ.READ", "0.2.0", keyed_channel_alias_command, "readonly no-monitor no-slowlog", "read", -3, KEY_READ,
     "Reads a channel's list under the name of the channel.", "O(N) with N messages that are read or skipped",
     channel_read_args},
    {"HOLDMQ.CHECK", "0.1.0", wide_guarded_index_check, "readonly admin", "admin slow dangerous", 1, 0,
     "Compares the in-memory indexes with the keys.", "O(N) with N keys", NULL},
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
    specs[0].notes = "the keys of a session share its hash tag; their names are derived from it";
    server_command_info info = {.version = &version,
                                .summary = c->summary,
                                .complexity = c->complexity,
                                .since = c->since,
                                .arity = c->arity,
                                .key_specs = c->key_flags != 0 ? specs : NULL,
                                .args = c->args};
    server_command *registered = sv.GetCommand(ctx, c->name);
    if (registered == NULL || sv.SetCommandInfo(registered, &info) != SERVER_OK) return false;
    return sv.SetCommandACLCategories == NULL || sv.SetCommandACLCategories(registered, c->categories) == SERVER_OK;
}

/* A name with '|' is that of a subcommand; its command is before it in the table and has no handler. */
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
