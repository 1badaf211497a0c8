/* api.h - the part of the server's module API that HoldMQ uses, in HoldMQ's own words.
 *
 * A server gives a module nothing but a look-up function.  SERVER_API below is the table of what is looked up:
 * name, first server version that has it, signature.  Functions marked OPTIONAL may be missing: they are then NULL and
 * must be tested before use; INFO holdmq says what that switches off.  The numbers and layouts are those of
 * the public module ABI (module API version 1), which Redis and Valkey share up to 7.2. */
#ifndef HMQ_SERVER_API_H
#define HMQ_SERVER_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opaque things of the server. */
typedef struct server_ctx server_ctx;
typedef struct server_key server_key;
typedef struct server_string server_string;
typedef struct server_reply server_reply;
typedef struct server_dict server_dict;
typedef struct server_dict_iter server_dict_iter;
typedef struct server_filter server_filter;
typedef struct server_filter_ctx server_filter_ctx;
typedef struct server_info_ctx server_info_ctx;
typedef struct server_info_data server_info_data;
typedef struct server_command server_command;
typedef struct server_scan_cursor server_scan_cursor;
typedef struct server_user server_user;

#define SERVER_OK 0
#define SERVER_ERR 1
#define SERVER_API_VERSION 1

/* OpenKey modes. */
#define SERVER_READ (1 << 0)
#define SERVER_WRITE (1 << 1)
#define SERVER_OPEN_NOTOUCH (1 << 16) /* from 7.2: no LRU update */
#define SERVER_OPEN_NONOTIFY (1 << 17) /* from 7.2, like the next two: no event for a key that does not exist */
#define SERVER_OPEN_NOSTATS (1 << 18)
#define SERVER_OPEN_NOEXPIRE (1 << 19)

/* KeyType. */
enum {
    SERVER_EMPTY = 0,
    SERVER_STRING = 1,
    SERVER_LIST = 2,
    SERVER_HASH = 3,
    SERVER_SET = 4,
    SERVER_ZSET = 5,
    SERVER_STREAM = 7
};

/* ListPush, ListPop. */
enum { SERVER_LIST_HEAD = 0, SERVER_LIST_TAIL = 1 };

/* CallReplyType. */
enum {
    SERVER_REPLY_UNKNOWN = -1,
    SERVER_REPLY_STRING = 0,
    SERVER_REPLY_ERROR = 1,
    SERVER_REPLY_INTEGER = 2,
    SERVER_REPLY_ARRAY = 3,
    SERVER_REPLY_NULL = 4
};

#define SERVER_POSTPONED_LEN (-1)
#define SERVER_NO_EXPIRE (-1)

/* ZsetAdd flags, in and out. */
#define SERVER_ZADD_NX (1 << 1)
#define SERVER_ZADD_NOP (1 << 4)

/* HashSet, HashGet flags; SERVER_HASH_DELETE as a value removes the field. */
#define SERVER_HASH_NONE 0
#define SERVER_HASH_CFIELDS (1 << 2)
#define SERVER_HASH_EXISTS (1 << 3)
#define SERVER_HASH_COUNT_ALL (1 << 4) /* HashSet counts existing fields that were set or deleted, too */
#define SERVER_HASH_DELETE ((server_string *)(intptr_t)1)

/* StreamIteratorStart flags. */
#define SERVER_STREAM_REVERSE (1 << 1) /* from the last id down to the first */

/* The two halves of a stream's id. */
typedef struct server_stream_id {
    uint64_t first;
    uint64_t second;
} server_stream_id;

/* GetContextFlags. */
#define SERVER_CTX_LUA (1 << 0)
#define SERVER_CTX_MULTI (1 << 1)
#define SERVER_CTX_MASTER (1 << 2)
#define SERVER_CTX_REPLICA (1 << 3)
#define SERVER_CTX_READONLY (1 << 4)
#define SERVER_CTX_CLUSTER (1 << 5)
#define SERVER_CTX_AOF (1 << 6) /* also while the append-only file is being created */
#define SERVER_CTX_OOM (1 << 10)
#define SERVER_CTX_REPLICATED (1 << 12)
#define SERVER_CTX_LOADING (1 << 13)
#define SERVER_CTX_ASYNC_LOADING (1 << 23)
#define SERVER_CTX_RESP3 (1 << 22)

/* Classes of keyspace notifications. */
#define SERVER_NOTIFY_GENERIC (1 << 2)
#define SERVER_NOTIFY_STRING (1 << 3)
#define SERVER_NOTIFY_LIST (1 << 4)
#define SERVER_NOTIFY_HASH (1 << 6)
#define SERVER_NOTIFY_ZSET (1 << 7)
#define SERVER_NOTIFY_EXPIRED (1 << 8)
#define SERVER_NOTIFY_EVICTED (1 << 9)
#define SERVER_NOTIFY_STREAM (1 << 10)
#define SERVER_NOTIFY_LOADED (1 << 12)

/* Server events and their sub-events. */
#define SERVER_EVENT_ROLE_CHANGED 0
#define SERVER_EVENT_FLUSHDB 2
#define SERVER_EVENT_LOADING 3
#define SERVER_EVENT_CLIENT_CHANGE 4
#define SERVER_EVENT_SHUTDOWN 5
#define SERVER_EVENT_REPLICA_CHANGE 6
#define SERVER_EVENT_MODULE_CHANGE 9
#define SERVER_EVENT_SWAPDB 11
#define SERVER_EVENT_REPL_ASYNC_LOAD 14
#define SERVER_EVENT_EVENTLOOP 15
#define SERVER_ROLE_NOW_MASTER 0
#define SERVER_FLUSHDB_END 1
#define SERVER_ASYNC_LOAD_STARTED 0
#define SERVER_ASYNC_LOAD_ABORTED 1
#define SERVER_ASYNC_LOAD_COMPLETED 2
#define SERVER_LOADING_ENDED 3
#define SERVER_LOADING_FAILED 4
#define SERVER_CLIENT_DISCONNECTED 1
#define SERVER_EVENTLOOP_BEFORE_SLEEP 0
#define SERVER_EVENTLOOP_READABLE 1

typedef struct server_event {
    uint64_t id;
    uint64_t version;
} server_event;

typedef struct server_flush_info {
    uint64_t version;
    int32_t sync;
    int32_t db; /* -1: all */
} server_flush_info;

typedef struct server_module_info {
    uint64_t version;
    const char *name;
    int32_t module_version;
} server_module_info;

typedef struct server_swapdb_info {
    uint64_t version;
    int32_t first;
    int32_t second;
} server_swapdb_info;

#define SERVER_CLIENT_PUBSUB (1 << 1)
#define SERVER_CLIENT_BLOCKED (1 << 2)
#define SERVER_CLIENT_MULTI (1 << 5)

typedef struct server_client_info {
    uint64_t version; /* set to 1 before the call */
    uint64_t flags;
    uint64_t id;
    char address[46];
    uint16_t port;
    uint16_t db;
} server_client_info;

#define SERVER_FILTER_NOSELF (1 << 0) /* not for this module's own Call */

/* Module options. */
#define SERVER_OPTION_HANDLE_IO_ERRORS (1 << 0)
#define SERVER_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED (1 << 1)
#define SERVER_OPTION_HANDLE_REPL_ASYNC_LOAD (1 << 2)
#define SERVER_OPTION_VALKEY_ATOMIC_SLOT_MIGRATION (1 << 5) /* Valkey from 9.0 only */

/* Configuration flags. */
#define SERVER_CONFIG_DEFAULT 0

/* SetCommandInfo: documentation, arity and key specs of a command (from 7.0). */
enum {
    SERVER_ARG_STRING,
    SERVER_ARG_INTEGER,
    SERVER_ARG_DOUBLE,
    SERVER_ARG_KEY,
    SERVER_ARG_PATTERN,
    SERVER_ARG_UNIX_TIME,
    SERVER_ARG_TOKEN,
    SERVER_ARG_ONEOF,
    SERVER_ARG_BLOCK
};
#define SERVER_ARG_OPTIONAL (1 << 0)
#define SERVER_ARG_MULTIPLE (1 << 1)
#define SERVER_ARG_MULTIPLE_TOKEN (1 << 2)

typedef struct server_command_arg {
    const char *name;
    int type;
    int key_spec_index; /* -1: not a key */
    const char *token;
    const char *summary;
    const char *since;
    int flags;
    const char *deprecated_since;
    struct server_command_arg *subargs;
    const char *display_text;
} server_command_arg;

typedef struct server_command_history {
    const char *since;
    const char *changes;
} server_command_history;

#define SERVER_KEY_RO (1ULL << 0)
#define SERVER_KEY_RW (1ULL << 1)
#define SERVER_KEY_OW (1ULL << 2)
#define SERVER_KEY_RM (1ULL << 3)
#define SERVER_KEY_ACCESS (1ULL << 4)
#define SERVER_KEY_UPDATE (1ULL << 5)
#define SERVER_KEY_INSERT (1ULL << 6)
#define SERVER_KEY_DELETE (1ULL << 7)
#define SERVER_KEY_NOT_KEY (1ULL << 8) /* only decides about the command's node in a cluster */
enum { SERVER_BEGIN_INDEX = 2, SERVER_FIND_RANGE = 2 };

typedef struct server_key_spec {
    const char *notes;
    uint64_t flags;
    int begin_search_type;
    union {
        struct {
            int position;
        } index;
        struct {
            const char *keyword;
            int start;
        } keyword;
    } begin;
    int find_keys_type;
    union {
        struct {
            int last;
            int step;
            int limit;
        } range;
        struct {
            int count_index;
            int first;
            int step;
        } count;
    } find;
} server_key_spec;

typedef struct server_command_info_version {
    int version;
    size_t history_bytes;
    size_t key_spec_bytes;
    size_t arg_bytes;
} server_command_info_version;

typedef struct server_command_info {
    const server_command_info_version *version;
    const char *summary;
    const char *complexity;
    const char *since;
    server_command_history *history;
    const char *tips;
    int arity;
    server_key_spec *key_specs; /* ends with an empty one */
    server_command_arg *args;   /* ends with an empty one */
} server_command_info;

/* Channel flags (getchannels-api, ACLCheckChannelPermissions). */
#define SERVER_CHANNEL_PATTERN (1ULL << 0) /* must be equal to a pattern of the user */
#define SERVER_CHANNEL_PUBLISH (1ULL << 1)
#define SERVER_CHANNEL_SUBSCRIBE (1ULL << 2)

/* Reasons in the ACL log. */
#define SERVER_ACL_LOG_COMMAND 1
#define SERVER_ACL_LOG_KEY 2
#define SERVER_ACL_LOG_CHANNEL 3

/* Callbacks. */
typedef int (*server_command_handler)(server_ctx *ctx, server_string **argv, int argc);
typedef void (*server_filter_handler)(server_filter_ctx *filter);
typedef void (*server_event_handler)(server_ctx *ctx, server_event event, uint64_t sub, void *data);
typedef int (*server_notify_handler)(server_ctx *ctx, int type, const char *event, server_string *key);
typedef void (*server_job)(server_ctx *ctx, void *data);
typedef void (*server_one_shot)(void *data);
typedef void (*server_file_handler)(int file, void *data, int mask);
typedef void (*server_free)(void *data);
typedef void (*server_timer)(server_ctx *ctx, void *data);
typedef void (*server_info_handler)(server_info_ctx *info, int for_crash_report);
typedef void (*server_scan_visit)(server_ctx *ctx, server_string *name, server_key *key, void *data);
typedef void (*server_scan_key_visit)(server_key *key, server_string *field, server_string *value, void *data);
typedef server_string *(*server_config_get_string)(const char *name, void *data);
typedef int (*server_config_set_string)(const char *name, server_string *value, void *data, server_string **error);
typedef long long (*server_config_get_number)(const char *name, void *data);
typedef int (*server_config_set_number)(const char *name, long long value, void *data, server_string **error);
typedef int (*server_config_get_bool)(const char *name, void *data);
typedef int (*server_config_set_bool)(const char *name, int value, void *data, server_string **error);
typedef int (*server_config_apply)(server_ctx *ctx, void *data, server_string **error);

/* X(need, since, result, name, arguments): every function of the module API that HoldMQ uses. */
#define SERVER_API(X)                                                                                                  \
    X(REQUIRED, "4.0", void *, Alloc, (size_t bytes))                                                                  \
    X(REQUIRED, "4.0", void *, Calloc, (size_t count, size_t bytes))                                                   \
    X(REQUIRED, "4.0", void *, Realloc, (void *old, size_t bytes))                                                     \
    X(REQUIRED, "4.0", void, Free, (void *memory))                                                                     \
    X(REQUIRED, "4.0", int, SetModuleAttribs, (server_ctx *, const char *name, int version, int api))                  \
    X(REQUIRED, "4.0", int, IsModuleNameBusy, (const char *name))                                                      \
    X(REQUIRED, "6.0", void, SetModuleOptions, (server_ctx *, int options))                                            \
    X(REQUIRED, "4.0", int, CreateCommand,                                                                             \
      (server_ctx *, const char *name, server_command_handler, const char *flags, int first, int last, int step))      \
    X(REQUIRED, "7.0", int, CreateSubcommand,                                                                          \
      (server_command *, const char *name, server_command_handler, const char *flags, int first, int last, int step))  \
    X(REQUIRED, "7.0", server_command *, GetCommand, (server_ctx *, const char *name))                                 \
    X(REQUIRED, "7.0", int, SetCommandInfo, (server_command *, const server_command_info *))                           \
    X(OPTIONAL, "7.2", int, SetCommandACLCategories, (server_command *, const char *categories))                       \
    X(REQUIRED, "4.0", int, WrongArity, (server_ctx *))                                                                \
    X(REQUIRED, "4.0", int, ReplyWithLongLong, (server_ctx *, long long))                                              \
    X(REQUIRED, "4.0", int, ReplyWithError, (server_ctx *, const char *error))                                         \
    X(REQUIRED, "4.0", int, ReplyWithSimpleString, (server_ctx *, const char *))                                       \
    X(REQUIRED, "4.0", int, ReplyWithArray, (server_ctx *, long length))                                               \
    X(REQUIRED, "7.0", int, ReplyWithMap, (server_ctx *, long length))                                                 \
    X(REQUIRED, "4.0", void, ReplySetArrayLength, (server_ctx *, long length))                                         \
    X(REQUIRED, "7.0", void, ReplySetMapLength, (server_ctx *, long length))                                           \
    X(REQUIRED, "4.0", int, ReplyWithStringBuffer, (server_ctx *, const char *, size_t length))                        \
    X(REQUIRED, "5.0", int, ReplyWithCString, (server_ctx *, const char *))                                            \
    X(REQUIRED, "4.0", int, ReplyWithString, (server_ctx *, server_string *))                                          \
    X(REQUIRED, "4.0", int, ReplyWithNull, (server_ctx *))                                                             \
    X(REQUIRED, "4.0", int, ReplyWithCallReply, (server_ctx *, server_reply *))                                        \
    X(REQUIRED, "4.0", server_string *, CreateString, (server_ctx *, const char *, size_t length))                     \
    X(REQUIRED, "4.0", server_string *, CreateStringFromLongLong, (server_ctx *, long long))                           \
    X(REQUIRED, "4.0", server_string *, CreateStringPrintf, (server_ctx *, const char *format, ...))                   \
    X(REQUIRED, "4.0", void, FreeString, (server_ctx *, server_string *))                                              \
    X(REQUIRED, "4.0", void, RetainString, (server_ctx *, server_string *))                                            \
    X(REQUIRED, "6.2", server_string *, HoldString, (server_ctx *, server_string *))                                   \
    X(REQUIRED, "4.0", const char *, StringPtrLen, (const server_string *, size_t *length))                            \
    X(REQUIRED, "4.0", int, StringToLongLong, (const server_string *, long long *))                                    \
    X(REQUIRED, "4.0", server_reply *, Call, (server_ctx *, const char *command, const char *format, ...))             \
    X(REQUIRED, "4.0", void, FreeCallReply, (server_reply *))                                                          \
    X(REQUIRED, "4.0", int, CallReplyType, (server_reply *))                                                           \
    X(REQUIRED, "4.0", long long, CallReplyInteger, (server_reply *))                                                  \
    X(REQUIRED, "4.0", size_t, CallReplyLength, (server_reply *))                                                      \
    X(REQUIRED, "4.0", server_reply *, CallReplyArrayElement, (server_reply *, size_t index))                          \
    X(REQUIRED, "4.0", const char *, CallReplyStringPtr, (server_reply *, size_t *length))                             \
    X(REQUIRED, "4.0", int, Replicate, (server_ctx *, const char *command, const char *format, ...))                   \
    X(REQUIRED, "4.0", int, ReplicateVerbatim, (server_ctx *))                                                         \
    X(REQUIRED, "4.0", int, GetSelectedDb, (server_ctx *))                                                             \
    X(REQUIRED, "4.0", int, SelectDb, (server_ctx *, int db))                                                          \
    X(REQUIRED, "4.0", int, GetContextFlags, (server_ctx *))                                                           \
    X(REQUIRED, "4.0", long long, Milliseconds, (void))                                                                \
    X(REQUIRED, "4.0", unsigned long long, GetClientId, (server_ctx *))                                                \
    X(REQUIRED, "6.0", int, GetClientInfoById, (void *info, uint64_t id))                                              \
    X(OPTIONAL, "7.0", server_string *, GetClientNameById, (server_ctx *, uint64_t id))                                \
    X(REQUIRED, "6.2", server_string *, GetClientUserNameById, (server_ctx *, uint64_t id))                            \
    X(REQUIRED, "7.0", server_user *, GetModuleUserFromUserName, (server_string * name))                               \
    X(REQUIRED, "6.0", void, FreeModuleUser, (server_user *))                                                          \
    X(REQUIRED, "7.0", int, ACLCheckCommandPermissions, (server_user *, server_string * *argv, int argc))              \
    X(REQUIRED, "7.0", int, ACLCheckKeyPermissions, (server_user *, server_string * key, int flags))                   \
    X(REQUIRED, "7.0", int, ACLCheckChannelPermissions, (server_user *, server_string * channel, int flags))           \
    X(REQUIRED, "7.0", void, ACLAddLogEntry, (server_ctx *, server_user *, server_string * object, int reason))        \
    X(REQUIRED, "7.0", int, IsChannelsPositionRequest, (server_ctx *))                                                 \
    X(REQUIRED, "7.0", void, ChannelAtPosWithFlags, (server_ctx *, int position, int flags))                           \
    X(REQUIRED, "4.0", server_key *, OpenKey, (server_ctx *, server_string * name, int mode))                          \
    X(REQUIRED, "4.0", void, CloseKey, (server_key *))                                                                 \
    X(REQUIRED, "4.0", int, KeyType, (server_key *))                                                                   \
    X(REQUIRED, "4.0", size_t, ValueLength, (server_key *))                                                            \
    X(REQUIRED, "7.0", int, KeyExists, (server_ctx *, server_string * name))                                           \
    X(REQUIRED, "4.0", int, DeleteKey, (server_key *))                                                                 \
    X(REQUIRED, "4.0", int, UnlinkKey, (server_key *))                                                                 \
    X(REQUIRED, "6.2", long long, GetAbsExpire, (server_key *))                                                        \
    X(REQUIRED, "6.2", int, SetAbsExpire, (server_key *, long long expire_ms))                                         \
    X(REQUIRED, "4.0", int, StringSet, (server_key *, server_string *))                                                \
    X(REQUIRED, "4.0", int, StringTruncate, (server_key *, size_t length))                                             \
    X(REQUIRED, "4.0", char *, StringDMA, (server_key *, size_t *length, int mode))                                    \
    X(REQUIRED, "4.0", int, ListPush, (server_key *, int where, server_string *))                                      \
    X(REQUIRED, "4.0", server_string *, ListPop, (server_key *, int where))                                            \
    X(REQUIRED, "7.0", server_string *, ListGet, (server_key *, long index))                                           \
    X(REQUIRED, "4.0", int, ZsetAdd, (server_key *, double score, server_string *member, int *flags))                  \
    X(REQUIRED, "4.0", int, ZsetScore, (server_key *, server_string * member, double *score))                          \
    X(REQUIRED, "4.0", int, ZsetRem, (server_key *, server_string * member, int *deleted))                             \
    X(REQUIRED, "4.0", void, ZsetRangeStop, (server_key *))                                                            \
    X(REQUIRED, "4.0", int, ZsetFirstInScoreRange, (server_key *, double min, double max, int min_open, int max_open)) \
    X(REQUIRED, "4.0", int, ZsetLastInScoreRange, (server_key *, double min, double max, int min_open, int max_open))  \
    X(REQUIRED, "4.0", server_string *, ZsetRangeCurrentElement, (server_key *, double *score))                        \
    X(REQUIRED, "4.0", int, ZsetRangeNext, (server_key *))                                                             \
    X(REQUIRED, "4.0", int, ZsetRangeEndReached, (server_key *))                                                       \
    X(REQUIRED, "4.0", int, HashSet, (server_key *, int flags, ...))                                                   \
    X(REQUIRED, "4.0", int, HashGet, (server_key *, int flags, ...))                                                   \
    X(REQUIRED, "6.2", int, StreamAdd,                                                                                 \
      (server_key *, int flags, server_stream_id *, server_string **argv, long fields))                                \
    X(REQUIRED, "6.2", int, StreamIteratorStart,                                                                       \
      (server_key *, int flags, server_stream_id *first, server_stream_id *last))                                      \
    X(REQUIRED, "6.2", int, StreamIteratorStop, (server_key *))                                                        \
    X(REQUIRED, "6.2", int, StreamIteratorNextID, (server_key *, server_stream_id *, long *fields))                    \
    X(REQUIRED, "6.2", int, StreamIteratorNextField, (server_key *, server_string * *field, server_string * *value))   \
    X(REQUIRED, "4.0", int, PublishMessage, (server_ctx *, server_string * channel, server_string * message))          \
    X(REQUIRED, "7.0", int, PublishMessageShard, (server_ctx *, server_string * channel, server_string * message))     \
    X(REQUIRED, "6.0", int, SignalModifiedKey, (server_ctx *, server_string * key))                                    \
    X(REQUIRED, "6.0", int, NotifyKeyspaceEvent, (server_ctx *, int type, const char *event, server_string *key))      \
    X(REQUIRED, "6.0", int, GetNotifyKeyspaceEvents, (void))                                                           \
    X(REQUIRED, "4.0", int, SubscribeToKeyspaceEvents, (server_ctx *, int types, server_notify_handler))               \
    X(REQUIRED, "6.0", int, SubscribeToServerEvent, (server_ctx *, server_event, server_event_handler))                \
    X(REQUIRED, "6.2", int, AvoidReplicaTraffic, (void))                                                               \
    X(REQUIRED, "7.0", int, EventLoopAdd, (int file, int mask, server_file_handler, void *data))                       \
    X(REQUIRED, "7.0", int, EventLoopDel, (int file, int mask))                                                        \
    X(REQUIRED, "7.0", int, EventLoopAddOneShot, (server_one_shot, void *data))                                        \
    X(REQUIRED, "5.0", uint64_t, CreateTimer, (server_ctx *, long long period_ms, server_timer, void *data))           \
    X(REQUIRED, "5.0", int, StopTimer, (server_ctx *, uint64_t timer, void **data))                                    \
    X(OPTIONAL, "7.2", int, AddPostNotificationJob, (server_ctx *, server_job, void *data, server_free))               \
    X(REQUIRED, "5.0", server_filter *, RegisterCommandFilter, (server_ctx *, server_filter_handler, int flags))       \
    X(REQUIRED, "5.0", int, UnregisterCommandFilter, (server_ctx *, server_filter *))                                  \
    X(REQUIRED, "5.0", int, CommandFilterArgsCount, (server_filter_ctx *))                                             \
    X(REQUIRED, "5.0", server_string *, CommandFilterArgGet, (server_filter_ctx *, int position))                      \
    X(REQUIRED, "5.0", int, CommandFilterArgReplace, (server_filter_ctx *, int position, server_string *))             \
    X(REQUIRED, "5.0", int, CommandFilterArgInsert, (server_filter_ctx *, int position, server_string *))              \
    X(OPTIONAL, "7.2", unsigned long long, CommandFilterGetClientId, (server_filter_ctx *))                            \
    X(REQUIRED, "5.0", server_dict *, CreateDict, (server_ctx *))                                                      \
    X(REQUIRED, "5.0", void, FreeDict, (server_ctx *, server_dict *))                                                  \
    X(REQUIRED, "5.0", uint64_t, DictSize, (server_dict *))                                                            \
    X(REQUIRED, "5.0", int, DictSetC, (server_dict *, const void *key, size_t length, void *value))                    \
    X(REQUIRED, "5.0", int, DictReplaceC, (server_dict *, const void *key, size_t length, void *value))                \
    X(REQUIRED, "5.0", void *, DictGetC, (server_dict *, const void *key, size_t length, int *missing))                \
    X(REQUIRED, "5.0", int, DictDelC, (server_dict *, const void *key, size_t length, void *old))                      \
    X(REQUIRED, "5.0", server_dict_iter *, DictIteratorStartC,                                                         \
      (server_dict *, const char *op, const void *key, size_t length))                                                 \
    X(REQUIRED, "5.0", int, DictIteratorReseekC, (server_dict_iter *, const char *op, void *key, size_t length))       \
    X(REQUIRED, "5.0", void, DictIteratorStop, (server_dict_iter *))                                                   \
    X(REQUIRED, "5.0", void *, DictNextC, (server_dict_iter *, size_t *length, void **value))                          \
    X(REQUIRED, "6.0", server_scan_cursor *, ScanCursorCreate, (void))                                                 \
    X(REQUIRED, "6.0", void, ScanCursorDestroy, (server_scan_cursor *))                                                \
    X(REQUIRED, "6.0", int, Scan, (server_ctx *, server_scan_cursor *, server_scan_visit, void *data))                 \
    X(REQUIRED, "6.0", int, ScanKey, (server_key *, server_scan_cursor *, server_scan_key_visit, void *data))          \
    X(REQUIRED, "6.0", server_info_data *, GetServerInfo, (server_ctx *, const char *section))                         \
    X(REQUIRED, "6.0", void, FreeServerInfo, (server_ctx *, server_info_data *))                                       \
    X(REQUIRED, "6.0", const char *, ServerInfoGetFieldC, (server_info_data *, const char *field))                     \
    X(REQUIRED, "6.0", int, RegisterInfoFunc, (server_ctx *, server_info_handler))                                     \
    X(REQUIRED, "6.0", int, InfoAddSection, (server_info_ctx *, const char *name))                                     \
    X(REQUIRED, "6.0", int, InfoAddFieldCString, (server_info_ctx *, const char *name, const char *value))             \
    X(REQUIRED, "6.0", int, InfoAddFieldULongLong, (server_info_ctx *, const char *name, unsigned long long value))    \
    X(REQUIRED, "7.0", int, RegisterStringConfig,                                                                      \
      (server_ctx *, const char *name, const char *initial, unsigned flags, server_config_get_string,                  \
       server_config_set_string, server_config_apply, void *data))                                                     \
    X(REQUIRED, "7.0", int, RegisterNumericConfig,                                                                     \
      (server_ctx *, const char *name, long long initial, unsigned flags, long long min, long long max,                \
       server_config_get_number, server_config_set_number, server_config_apply, void *data))                           \
    X(REQUIRED, "7.0", int, RegisterBoolConfig,                                                                        \
      (server_ctx *, const char *name, int initial, unsigned flags, server_config_get_bool, server_config_set_bool,    \
       server_config_apply, void *data))                                                                               \
    X(REQUIRED, "7.0", int, LoadConfigs, (server_ctx *))                                                               \
    X(REQUIRED, "6.0", server_ctx *, GetDetachedThreadSafeContext, (server_ctx *))                                     \
    X(REQUIRED, "4.0", void, FreeThreadSafeContext, (server_ctx *))                                                    \
    X(REQUIRED, "4.0", void, Log, (server_ctx *, const char *level, const char *format, ...))                          \
    X(REQUIRED, "5.0", void, LatencyAddSample, (const char *event, long long ms))                                      \
    X(REQUIRED, "6.0", int, GetServerVersion, (void))

/* The functions found, as sv.OpenKey(...) and so on. */
struct server_api {
#define SERVER_API_FIELD(need, since, result, name, arguments) result(*name) arguments;
    SERVER_API(SERVER_API_FIELD)
#undef SERVER_API_FIELD
};
extern struct server_api sv;

/* Looks all of them up.  NULL if every required one is there, else the name of the first that is missing. */
const char *server_api_load(server_ctx *ctx, const char **missing_since);

/* Does the server have this function?  (For functions that are only probed.) */
bool server_api_has(const char *name);

/* Is it a Valkey server?  (Its version number reads 7.2.4 to modules.) */
bool server_is_valkey(void);

#endif
