/* command_access.h - checks what the arguments of each command name (topics, filters, sessions, stores) against the
 * user's ACL before the command runs.  The handlers in commands.c are the guarded_ ones where a command names more
 * than its key.
 *
 * A topic is what PUBLISH and SUBSCRIBE name, so channel patterns decide about it.  A filter with wildcards matches
 * topics that nobody has named yet: it needs a channel pattern that is equal to it, as a pattern of PSUBSCRIBE does,
 * or allchannels.  Key patterns decide about keys (of sessions, stores, producers).
 *
 * The server gets the topics and filters that are arguments (getchannels-api), and checks them with the command and
 * its keys: in MULTI when the command is queued, in scripts as their callers', for ACL DRYRUN and in the ACL log.
 * The module checks what only it can read: records, shared subscriptions, the filters of a store, keys that are built
 * from a name.  For a user with all rights, the cost is one look at what is remembered of the client (server/access.h). */
#ifndef HMQ_COMMAND_ACCESS_H
#define HMQ_COMMAND_ACCESS_H

#include "server/state.h"
#include "history/store.h"

/* X(name): name_command is guarded by guarded_name. */
#define GUARDED_COMMANDS(X)                                                                                            \
    X(dryrun_start)                                                                                                    \
    X(dryrun_stop)                                                                                                     \
    X(dryrun_report)                                                                                                   \
    X(session_open)                                                                                                    \
    X(session_list)                                                                                                    \
    X(session_subscribe)                                                                                               \
    X(session_replay)                                                                                                  \
    X(topic_publish)                                                                                                   \
    X(topic_mpublish)                                                                                                  \
    X(topic_commit)                                                                                                    \
    X(topic_retained)                                                                                                  \
    X(topic_match)                                                                                                     \
    X(topic_groups)                                                                                                    \
    X(channel_list)                                                                                                    \
    X(history_store)                                                                                                   \
    X(history_stores)                                                                                                  \
    X(history_unstore)                                                                                                 \
    X(history_trim)                                                                                                    \
    X(history_hold)                                                                                                    \
    X(history_append)                                                                                                  \
    X(history_import)                                                                                                  \
    X(history_replay)                                                                                                  \
    X(history_info)                                                                                                    \
    X(history_seq)                                                                                                     \
    X(history_range)                                                                                                   \
    X(history_check)                                                                                                   \
    X(history_patterns_get)                                                                                            \
    X(history_patterns_stats)                                                                                          \
    X(history_patterns_propose)                                                                                        \
    X(history_patterns_prepare)                                                                                        \
    X(history_patterns_commit)                                                                                         \
    X(history_patterns_abort)                                                                                          \
    X(route_check)                                                                                                     \
    X(route_mcheck)                                                                                                    \
    X(route_info)                                                                                                      \
    X(route_add)                                                                                                       \
    X(route_export)                                                                                                    \
    X(route_feed)                                                                                                      \
    X(route_confirm)                                                                                                   \
    X(route_token)                                                                                                     \
    X(route_unused)                                                                                                    \
    X(route_del)                                                                                                       \
    X(route_drophome)                                                                                                  \
    X(route_renew)                                                                                                     \
    X(route_resume)                                                                                                    \
    X(outbox_read)                                                                                                     \
    X(outbox_ack)                                                                                                      \
    X(index_check)

#define DECLARE_GUARDED(name) int guarded_##name(server_ctx *ctx, server_string **argv, int argc);
GUARDED_COMMANDS(DECLARE_GUARDED)
#undef DECLARE_GUARDED

#endif
