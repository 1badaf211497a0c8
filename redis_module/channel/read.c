/* read.c - reads what a channel holds. */
#include "channel/read.h"

#include "server/errors.h"
#include "index/channels.h"
#include "index/index.h"
#include "channel/facts.h"

/* ---- the last message -------------------------------------------------------------------------------------- */

static server_string *last_element(server_ctx *ctx, hmq_slice channel, hmq_channel_key_kind kind, bool *wrong_type) {
    server_string *name = channel_key(channel, kind);
    server_key *list = key_open_unseen(ctx, name, false);
    int type = sv.KeyType(list);
    server_string *last = type == SERVER_LIST ? sv.ListGet(list, -1) : NULL;
    *wrong_type = type != SERVER_LIST && type != SERVER_EMPTY;
    if (list != NULL) sv.CloseKey(list);
    sv.FreeString(NULL, name);
    return last;
}

static server_string *last_message(server_ctx *ctx, hmq_slice channel, const hmq_rule *rule, bool *wrong_type) {
    unsigned kinds = channel_index_kinds(index_of(ctx), channel);
    *wrong_type = false;
    if (rule != NULL && rule->last) {
        server_string *last = last_element(ctx, channel, HMQ_CHANNEL_LAST, wrong_type);
        if (last != NULL) return last;
    }
    return kinds & KIND_BIT(HMQ_CHANNEL_HEARD) ? NULL : last_element(ctx, channel, HMQ_CHANNEL_HELD, wrong_type);
}

server_string *channel_last(server_ctx *ctx, server_string *channel, const hmq_rule *rule) {
    bool wrong_type;
    return last_message(ctx, slice_of(channel), rule, &wrong_type);
}

int channel_last_command(server_ctx *ctx, server_string **argv, int argc) {
    bool wrong_type;
    if (argc != 2) return sv.WrongArity(ctx);
    server_string *last = last_message(ctx, slice_of(argv[1]), channel_rule_of(slice_of(argv[1])), &wrong_type);
    if (wrong_type && last == NULL) return reply_wrong_type(ctx, argv[1], "a list");
    if (last == NULL) return sv.ReplyWithNull(ctx);
    sv.ReplyWithString(ctx, last);
    sv.FreeString(NULL, last);
    return SERVER_OK;
}

/* ---- the held list ----------------------------------------------------------------------------------------- */

/* The server's own answer to a list command on the held list. */
static int reply_of(server_ctx *ctx, const char *command, server_string *name, server_string **argv, int argc) {
    server_reply *reply = sv.Call(ctx, command, "Esv", name, argv, (size_t)argc);
    if (reply == NULL) return reply_error(ctx, ERROR_LIST_COMMAND_REFUSED, command);
    sv.ReplyWithCallReply(ctx, reply);
    sv.FreeCallReply(reply);
    return SERVER_OK;
}

int channel_range_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 4) return sv.WrongArity(ctx);
    server_string *name = channel_key(slice_of(argv[1]), HMQ_CHANNEL_HELD);
    reply_of(ctx, "LRANGE", name, argv + 2, 2);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

int channel_len_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 2) return sv.WrongArity(ctx);
    server_string *name = channel_key(slice_of(argv[1]), HMQ_CHANNEL_HELD);
    reply_of(ctx, "LLEN", name, NULL, 0);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

int channel_key_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 2) return sv.WrongArity(ctx);
    server_string *name = channel_key(slice_of(argv[1]), HMQ_CHANNEL_HELD);
    sv.ReplyWithString(ctx, name);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

/* ---- list commands on the channel's name -------------------------------------------------------------------- */

bool channel_is_list_read(hmq_slice command, int argc) {
    return (argc == 4 && slice_is(command, "LRANGE")) || (argc == 2 && slice_is(command, "LLEN")) ||
           (argc == 3 && slice_is(command, "LINDEX"));
}

static bool shows(server_ctx *ctx, server_string *channel) {
    const index_t *index = index_of(ctx);
    hmq_slice name = slice_of(channel);
    return (channel_index_kinds(index, name) & KIND_BIT(HMQ_CHANNEL_HELD)) &&
           !channel_index_is_marked_used(index, name) && !key_exists_unseen(ctx, channel);
}

bool channel_shows_held(server_ctx *ctx, int db, server_string *channel) {
    sv.SelectDb(ctx, db);
    bool shown = shows(ctx, channel);
    sv.SelectDb(ctx, 0);
    return shown;
}

/* HOLDMQ.READ <name> <command> [<argument> ...] */
int channel_alias_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    if (!channel_is_list_read(slice_of(argv[2]), argc - 1))
        return reply_error(ctx, ERROR_LIST_COMMAND_UNKNOWN, shown(argv[2]));
    server_string *name =
        shows(ctx, argv[1]) ? channel_key(slice_of(argv[1]), HMQ_CHANNEL_HELD) : sv.HoldString(NULL, argv[1]);
    reply_of(ctx, sv.StringPtrLen(argv[2], NULL), name, argv + 3, argc - 3);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

/* ---- the policy -------------------------------------------------------------------------------------------- */

int channel_policy_command(server_ctx *ctx, server_string **argv, int argc) {
    static const char *const holds[] = {"none", "unheard", "all"};
    static const char *const delivers[] = {"none", "last", "held"};
    if (argc != 2) return sv.WrongArity(ctx);
    const hmq_rule *rule = channel_rule_of(slice_of(argv[1]));
    if (rule == NULL) return sv.ReplyWithNull(ctx);
    sv.ReplyWithArray(ctx, 6);
    sv.ReplyWithStringBuffer(ctx, (const char *)rule->glob.data, rule->glob.len);
    sv.ReplyWithCString(ctx, holds[rule->hold]);
    sv.ReplyWithCString(ctx, rule->last ? "on" : "off");
    sv.ReplyWithLongLong(ctx, (long long)rule->maxlen);
    sv.ReplyWithLongLong(ctx, (long long)rule->ttl_s);
    sv.ReplyWithCString(ctx, delivers[rule->deliver]);
    return SERVER_OK;
}
