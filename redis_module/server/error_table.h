/* error_table.h - every error that the commands reply: name, code, text.
 *
 * A text has one form: what was wrong, with the value; after a semicolon, what is accepted or what to do.  It is a
 * printf format; bytes of the user are made printable first (shown() of errors.h).  The code is interface: clients
 * branch on it, and docs/troubleshooting.md has an entry for each.  tests/module/server/test_error_table.py checks the form,
 * that each entry is used, and that no other error is replied. */
#ifndef HMQ_ERROR_TABLE_H
#define HMQ_ERROR_TABLE_H

#include <inttypes.h>

/* The server's own texts, which clients may know. */
#define HMQ_ERRORS_OF_SERVER(X)                                                                                        \
    X(ERROR_OUT_OF_MEMORY, "OOM", "command not allowed when used memory > 'maxmemory'.")                               \
    X(ERROR_CHANNEL_DENIED, "NOPERM", "this user has no permissions to run the '%s' command on this channel")          \
    X(ERROR_SLOT_MOVED, "MOVED", "%u %s")                                                                              \
    X(ERROR_SLOT_UNSERVED, "CLUSTERDOWN", "Hash slot not served")                                                      \
    X(ERROR_CLUSTER_DOWN, "CLUSTERDOWN", "The cluster is down")

/* Commands that store messages. */
#define HMQ_ERRORS_OF_STORING(X)                                                                                       \
    X(ERROR_DISK_SHORT, "QUOTA",                                                                                       \
      "the disk of the append-only file has %llu bytes free; expected at least %lld (holdmq.min-free-disk)")

/* Any command. */
#define HMQ_ERRORS_OF_ARGUMENTS(X)                                                                                     \
    X(ERROR_ARGUMENT_MISSING, "ERR", "%s is missing at the end of the command")                                        \
    X(ERROR_ARGUMENT_UNEXPECTED, "ERR", "unexpected argument %s")                                                      \
    X(ERROR_NUMBER_INVALID, "ERR", "%s is %s; expected a whole number from %lld to %lld")                              \
    X(ERROR_PAGE_CURSOR_INVALID, "ERR", "CURSOR is %s; expected 0, or the cursor of the previous reply")               \
    X(ERROR_SESSION_KEY_INVALID, "ERR",                                                                                \
      "the session key is %s; expected {<client id>}, with '{', '}' and '%%' of the client id percent-encoded")        \
    X(ERROR_TOPIC_INVALID, "INVALIDTOPIC", "%s %s: %s")                                                                \
    X(ERROR_FILTER_SHARED, "INVALIDTOPIC",                                                                             \
      "the topic filter %s is that of a shared subscription; expected an ordinary topic filter")                       \
    X(ERROR_WRONG_TYPE, "WRONGTYPE", "the key %s holds the wrong kind of value; expected %s")                          \
    X(ERROR_KEY_READ_DENIED, "NOPERM", "the user may not read the key %s")                                             \
    X(ERROR_KEY_WRITE_DENIED, "NOPERM", "the user may not write the key %s")                                           \
    X(ERROR_TOPIC_DENIED, "NOPERM", "%s has no permissions to access the %s %s; expected a channel pattern %s it")     \
    X(ERROR_KEY_DENIED, "NOPERM", "%s has no permissions to access the key %s")                                        \
    X(ERROR_ALL_KEYS_DENIED, "NOPERM", "%s has no permissions to read every key")                                      \
    X(ERROR_COMMAND_DENIED, "NOPERM",                                                                                  \
      "%s has no permissions to run %s; expected the right to run REPLICAOF, or no '+@all'")                           \
    X(ERROR_CLUSTER_ONLY, "ERR", "%s is accepted by nodes of a cluster only, and this server is not one; omit %s")     \
    X(ERROR_COMMAND_SPANS_SLOTS, "ERR",                                                                                \
      "%s cannot be part of a transaction or script in a cluster, because it uses keys of other slots; send "          \
      "it alone")

/* Numbers that a producer gives its messages. */
#define HMQ_ERRORS_OF_PRODUCERS(X)                                                                                     \
    X(ERROR_PRODUCER_ID_LENGTH, "ERR", "the id of PRODUCER has %zu bytes; expected 1 to %d")                           \
    X(ERROR_PRODUCER_FENCED, "FENCED", "the epoch is %" PRIu64 "; the producer %s already has epoch %" PRIu64)         \
    X(ERROR_PRODUCER_STATE_CHANGED, "WRONGTYPE", "another program changed the state of the producer %s")               \
    X(ERROR_PRODUCER_ON_REPLICA, "ERR",                                                                                \
      "PRODUCER is not accepted by a replica, which stores nothing of its own; send the command to the primary")       \
    X(ERROR_PRODUCER_NEEDS_SPUBLISH, "ERR",                                                                            \
      "PRODUCER is not accepted here in a cluster; use CHANNEL.SPUBLISH and a channel that has a hash tag or "         \
      "no '}'")                                                                                                        \
    X(ERROR_PRODUCER_NEEDS_MPUBLISH, "ERR",                                                                            \
      "PRODUCER is not accepted here in a cluster, where no node knows the chunks that others published; use "         \
      "TOPIC.MPUBLISH, SESSION.ADD, HISTORY.APPEND or CHANNEL.SPUBLISH")                                               \
    X(ERROR_CHUNK_GAP, "GAP",                                                                                          \
      "the chunk follows number %lld of the producer %s, which is not stored here; publish that chunk first")          \
    X(ERROR_MESSAGES_GAP, "GAP",                                                                                       \
      "the messages follow number %lld of the producer %s, whose last number here is %" PRIu64                         \
      "; publish those between them first")                                                                            \
    X(ERROR_BATCH_GAP, "GAP",                                                                                          \
      "the batch follows number %lld of the producer %s, whose last number here is %lld; add the messages "            \
      "between them first")                                                                                            \
    X(ERROR_BATCH_SIZE, "ERR", "too many payloads with PRODUCER: %zu (maximum %d)")                                    \
    X(ERROR_SHARD_PRODUCERS, "FULL", "too many producers of the shard (maximum %d)")                                   \
    X(ERROR_SESSION_PRODUCERS, "FULL", "too many producers of the session %s (maximum %d)")

/* CHANNEL.* */
#define HMQ_ERRORS_OF_CHANNELS(X)                                                                                      \
    X(ERROR_CHANNEL_MOVING, "TRYAGAIN", "slot %u of the channel %s is moving to another node; try again")              \
    X(ERROR_DRYRUN_WITHOUT_INTERCEPTION, "ERR",                                                                        \
      "holdmq.intercept is no, so no PUBLISH is seen; run CONFIG SET holdmq.intercept yes first")                      \
    X(ERROR_DRYRUN_ON_REPLICA, "ERR",                                                                                  \
      "this server is a replica, which holds no messages back; start the dry run on its primary")                      \
    X(ERROR_DRYRUN_NOT_STARTED, "ERR", "no dry run was started; run CHANNEL.DRYRUN START first")                       \
    X(ERROR_POLICIES_INVALID, "ERR", "POLICIES: %s")                                                                   \
    X(ERROR_LIST_COMMAND_UNKNOWN, "ERR", "the list command is %s; expected LRANGE, LLEN or LINDEX")                    \
    X(ERROR_LIST_COMMAND_REFUSED, "ERR", "the server does not run %s here")                                            \
    X(ERROR_INTERNAL_COMMAND, "ERR", "HOLDMQ.INTERNAL is part of other commands; it cannot be sent")

/* Stores of history and their policies. */
#define HMQ_ERRORS_OF_STORES(X)                                                                                        \
    X(ERROR_STORE_UNKNOWN, "NOSTORE", "there is no store %s")                                                          \
    X(ERROR_STORE_UNKNOWN_OF_FILTER, "NOSTORE", "no store keeps topics of the filter %s")                              \
    X(ERROR_STORE_AMBIGUOUS, "ERR", "%zu stores keep topics of the filter %s; expected STORE with one of them")        \
    X(ERROR_STORE_NAME_INVALID, "ERR", "the store is %s; expected 1 to %d letters, digits, '-', '_' or '.'")           \
    X(ERROR_STORES_COUNT, "ERR", "too many stores (maximum %d)")                                                       \
    X(ERROR_STORE_BEING_REMOVED, "TRYAGAIN", "the store %s is still being removed; try again")                         \
    X(ERROR_STORE_FILTER_MISSING, "ERR", "FILTER is missing; expected at least one topic filter")                      \
    X(ERROR_STORE_FILTERS_COUNT, "ERR", "too many filters (maximum %d)")                                               \
    X(ERROR_STORE_FILTERS_OVERLAP, "ERR",                                                                              \
      "FILTER %s overlaps with %s of store %s; a topic can belong to one store only")                                  \
    X(ERROR_STORE_SHAPE_FIXED, "ERR", "SHARDS and LEVELS of store %s are %u and %u; HISTORY.STORE cannot change them") \
    X(ERROR_STORE_SHARDS_MISSING, "ERR",                                                                               \
      "SHARDS is missing; expected, for a new store in a cluster, the same number on each node")                       \
    X(ERROR_STORE_EPOCH_SHORT, "ERR", "EPOCH is %lld; expected at least 1/%d of AGE, which is %lld")                   \
    X(ERROR_SEED_INVALID, "ERR", "SEED is %s; expected %d hexadecimal digits (0-9, a-f)")                              \
    X(ERROR_SEED_MISSING, "ERR",                                                                                       \
      "SEED is missing; expected %d hexadecimal digits, the same on each node of the cluster")                         \
    X(ERROR_SEED_DIFFERS, "ERR", "SEED differs from that of the existing store %s; expected the same, or none")        \
    X(ERROR_RANDOM_NOT_READY, "TRYAGAIN", "the system has no random numbers yet; try again")

/* Messages of history. */
#define HMQ_ERRORS_OF_HISTORY(X)                                                                                       \
    X(ERROR_HISTORY_FOREIGN, "WRONGTYPE", "another program changed the history of store %s, shard %u")                 \
    X(ERROR_HISTORY_FOREIGN_PART, "WRONGTYPE", "another program changed the history of store %s, shard %u: %s")        \
    X(ERROR_HISTORY_FOREIGN_AT, "WRONGTYPE",                                                                           \
      "another program changed the history of store %s, shard %u, at sequence number %" PRIu64)                        \
    X(ERROR_HISTORY_FOREIGN_EPOCHS, "WRONGTYPE", "another program changed the epochs of store %s")                     \
    X(ERROR_HISTORY_CHANGING, "TRYAGAIN", "the log of the history changed while it was read; try again")               \
    X(ERROR_HISTORY_REFUSED, "ERR", "history of store %s, shard %u: %s")                                               \
    X(ERROR_SHARD_MOVING, "TRYAGAIN", "slot %u of store %s, shard %u, is moving to another node; try again")           \
    X(ERROR_SHARD_INVALID, "ERR", "SHARD is %lld; expected 0 to %u")                                                   \
    X(ERROR_SHARD_MISSING, "ERR", "SHARD is missing; expected, in a cluster, one shard of store %s, 0 to %u")          \
    X(ERROR_SHARD_REPEATED, "ERR", "shard %lld is given twice; expected each shard once")                              \
    X(ERROR_TOPIC_OF_OTHER_STORE, "ERR",                                                                               \
      "the store %s does not select the topic %s; expected a topic that one of its filters matches")                   \
    X(ERROR_TOPIC_OF_OTHER_SHARD, "ERR", "SHARD is %lld; the topic %s belongs to shard %u")                            \
    X(ERROR_RECORD_INVALID, "ERR", "record %zu %s; expected %s")                                                       \
    X(ERROR_RECORD_OF_OTHER_STORE, "ERR",                                                                              \
      "record %zu: the store %s does not select the topic %s; expected a topic that one of its filters matches")       \
    X(ERROR_RECORD_OF_OTHER_SHARD, "ERR",                                                                              \
      "record %zu: the topic %s belongs to shard %u, not to shard %u; send it to that shard")                          \
    X(ERROR_RECORDS_MISSING, "ERR", "RECORD is missing; expected at least one record")                                 \
    X(ERROR_RECORDS_COUNT, "ERR", "RECORD has %zu records; expected 1 to %d")

/* Reading history. */
#define HMQ_ERRORS_OF_READING(X)                                                                                       \
    X(ERROR_CURSOR_INVALID, "ERR", "CURSOR %s")                                                                        \
    X(ERROR_CURSOR_OF_OTHER_STORE, "WRONGSTORE",                                                                       \
      "CURSOR is of %s store %s (id %" PRIx32 "), not of the store %s (id %" PRIx32                                    \
      ")%s; expected a cursor of the latter, FROM or SEQ")                                                             \
    X(ERROR_CURSOR_WITHOUT_STORE, "WRONGSTORE",                                                                        \
      "CURSOR was written by an earlier release without the name of its store, and its shard %u is not known "         \
      "to be of the store %s; expected a cursor of that store, FROM (the cursor's time is %" PRIu64 ") or SEQ")        \
    X(ERROR_SEQ_NEEDS_SHARD, "ERR", "SEQ is given without SHARD; expected both, because the store %s has %u shards")   \
    X(ERROR_COLUMN_UNKNOWN, "ERR",                                                                                     \
      "the column is %s; expected sequence, time, topic, payload, qos, retain, publisher, properties, "                \
      "published, expires, pattern or generation")                                                                     \
    X(ERROR_COLUMN_REPEATED, "ERR", "the column %s is given twice; expected each column once")                         \
    X(ERROR_READER_NAME_LENGTH, "ERR", "the reader has a name of %zu bytes; expected 1 to %d")                         \
    X(ERROR_READERS_COUNT, "FULL", "too many readers that hold messages of shard %u (maximum %d)")                     \
    X(ERROR_SEQUENCE_HIGH, "ERR",                                                                                      \
      "the sequence number of shard %lld is %lld; expected at most %" PRIu64 ", the last one")                         \
    X(ERROR_SEQUENCE_LOW, "ERR",                                                                                       \
      "the sequence number of shard %lld is %lld; expected at least %" PRIu64                                          \
      ", because a watermark never moves back")                                                                        \
    X(ERROR_HOLD_LOST, "HOLDLOST",                                                                                     \
      "the reader %s held back more than HOLDBYTES of store %s, and in shard %u the messages %" PRIu64 " to %" PRIu64  \
      " are gone; use RELEASE, then begin again")                                                                      \
    X(ERROR_TRIM_HELD, "HELD",                                                                                         \
      "the reader %s has not yet read the messages after %" PRIu64 " of shard %u; wait for it, or release it")

/* HISTORY.PATTERNS */
#define HMQ_ERRORS_OF_PATTERNS(X)                                                                                      \
    X(ERROR_PATTERNS_INVALID, "ERR", "the pattern set: %s")                                                            \
    X(ERROR_PATTERNS_LEVELS, "ERR", "the pattern set has levels=%" PRIu32 "; expected %u, as the store %s")            \
    X(ERROR_PATTERNS_UNKNOWN, "ERR",                                                                                   \
      "store %s, shard %u, has no pattern set of generation %" PRIu32 "; HISTORY.INFO shows the generation")           \
    X(ERROR_PATTERNS_FOREIGN, "WRONGTYPE", "another program changed the pattern set of store %s, shard %u")            \
    X(ERROR_PREPARED_FOREIGN, "WRONGTYPE",                                                                             \
      "another program changed the prepared pattern set of store %s, shard %u%s%s")                                    \
    X(ERROR_GENERATION_STALE, "STALE",                                                                                 \
      "store %s, shard %u: the generation is %" PRIu32 "; expected to prepare the next one, %" PRIu32)                 \
    X(ERROR_SWITCH_STALE, "STALE", "store %s, shard %u: %s %lld; it cannot switch to generation %" PRIu32)             \
    X(ERROR_SPREAD_AND_SHARD, "ERR", "SHARDS and SHARD are both given; expected one of them")                          \
    X(ERROR_SPREAD_IN_CLUSTER, "ERR",                                                                                  \
      "SHARDS is not accepted in a cluster, where the shards of a store switch one by one; omit SHARDS")               \
    X(ERROR_SPREAD_PARTIAL, "ERR",                                                                                     \
      "SHARD is given, but the prepared set spreads topics over %u shards, which all switch at once; omit SHARD")      \
    X(ERROR_SPREAD_DIFFERS, "STALE",                                                                                   \
      "store %s: shards 0 and %u were prepared with different numbers of shards; prepare all shards at once")          \
    X(ERROR_LEARNING_MEMORY, "OOM", "not enough memory to learn patterns")

/* SESSION.* */
#define HMQ_ERRORS_OF_SESSIONS(X)                                                                                      \
    X(ERROR_SESSION_UNKNOWN, "NOSESSION", "the session %s was not opened, or has expired")                             \
    X(ERROR_SESSION_FENCED, "FENCED", "EPOCH is %lld; the session %s has a newer owner, with epoch %lld")              \
    X(ERROR_SESSION_MOVING, "TRYAGAIN", "slot %u of the session %s is moving to another node; try again")              \
    X(ERROR_SESSION_LEAVING, "TRYAGAIN",                                                                               \
      "messages of the session %s are moving to other members of its groups; try again")                               \
    X(ERROR_SESSION_KEY_OF_GROUP, "ERR",                                                                               \
      "the session key %s is that of a group; expected another client id, or for a member "                            \
      "<client>:{$share/<group>/<filter>} with CLAIM <epoch>")                                                         \
    X(ERROR_CLAIM_OF_NO_MEMBER, "ERR",                                                                                 \
      "CLAIM is given for the session %s; expected it only for a member of a group, "                                  \
      "<client>:{$share/<group>/<filter>}")                                                                            \
    X(ERROR_CLAIM_OLDER, "FENCED",                                                                                     \
      "CLAIM is %lld; a later connection of the client has the member %s, with claim %lld")                            \
    X(ERROR_EPOCH_MISSING, "ERR", "EPOCH is missing; expected EPOCH <epoch> after the session key")                    \
    X(ERROR_OWNER_MISSING, "ERR", "OWNER is missing; expected OWNER <name>")                                           \
    X(ERROR_OWNER_NAME_LENGTH, "ERR", "the owner's name has %zu bytes; expected 1 to %d")                              \
    X(ERROR_OWNER_NAME_SLOT, "ERR",                                                                                    \
      "the owner's name is %s; expected, in a cluster, a hash tag whose slot is on the node that has the sessions")    \
    X(ERROR_LEASE_MISSING, "ERR", "LEASE is missing; expected LEASE <seconds> after the owner's name")                 \
    X(ERROR_ATTEMPT_LENGTH, "ERR", "ATTEMPT has %zu bytes; expected a token of 1 to %d")                               \
    X(ERROR_IDENTITY_LENGTH, "ERR", "%s has %zu bytes; expected a name of 1 to %d")                                    \
    X(ERROR_IDENTITY_MISSING, "ERR", "IDENTITY is missing; expected, with %s, IDENTITY <name>")                        \
    X(ERROR_IDENTITY_DIFFERS, "IDENTITY", "the session %s belongs to %s, not to %s; REPLACE drops it")                 \
    X(ERROR_OVERFLOW_INVALID, "ERR", "OVERFLOW is %s; expected %s")                                                    \
    X(ERROR_WILL_MISSING, "ERR", "WILL is missing; expected, with options of a will, WILL <topic> <payload>")          \
    X(ERROR_SESSIONS_QUOTA, "QUOTA",                                                                                   \
      "the session %s cannot be opened: there are already %zu sessions (maximum %lld, holdmq.max-sessions)")           \
    X(ERROR_USER_SESSIONS_QUOTA, "QUOTA", "the session %s cannot be opened; %s already has %zu, and %s is %lld")

/* Messages of a session. */
#define HMQ_ERRORS_OF_QUEUES(X)                                                                                        \
    X(ERROR_QUEUE_WAITS, "QUEUEFULL", "the queue of the session %s is full; try again later")                          \
    X(ERROR_QUEUE_REFUSES, "QUOTA", "the queue of the session %s is full, and refuses messages; nothing was stored")   \
    X(ERROR_PACKET_ID_INVALID, "ERR",                                                                                  \
      "packet-id is %s; expected first-last, both from 1 to %d, the smaller one first")                                \
    X(ERROR_PACKET_ID_MISSING, "ERR", "packet-id is missing; expected at least one")                                   \
    X(ERROR_PACKET_IDS_COUNT, "ERR", "too many packet identifiers in the ranges (maximum %d)")                         \
    X(ERROR_PACKET_IDS_USED, "FULL", "the session %s uses all 65535 packet identifiers; acknowledge messages first")   \
    X(ERROR_PAYLOAD_MISSING, "ERR", "payload is missing; expected at least one payload")                               \
    X(ERROR_EXPIRING_PAIRS, "ERR", "EXPIRING is followed by %d arguments; expected pairs of seconds and payload")      \
    X(ERROR_WINDOW_COMBINED, "ERR",                                                                                    \
      "WINDOW is given with AFTER or INFLIGHT; expected WINDOW alone, which begins after the messages in flight")      \
    X(ERROR_DELIVERED_INVALID, "ERR",                                                                                  \
      "the message %s is not the record of a published message; expected a record as TOPIC.MPUBLISH takes it")         \
    X(ERROR_PLACE_LENGTH, "ERR", "the place of RETAINED has %zu bytes; expected at most %d")                           \
    X(ERROR_PLACE_STALE, "STALE",                                                                                      \
      "the place of RETAINED is %s; another one of the filter %s is kept in the session %s, or none")                  \
    X(ERROR_DELIVERED_MISSING, "ERR", "record is missing; expected at least one message")                              \
    X(ERROR_IMPORT_MESSAGES_MISSING, "ERR",                                                                            \
      "MESSAGES is missing; expected MESSAGES <n> and %d arguments for each message")                                  \
    X(ERROR_IMPORT_MESSAGES_COUNT, "ERR",                                                                              \
      "MESSAGES %lld is followed by %d arguments; expected %lld, packet-id serial state ttl-ms value for each "        \
      "message")                                                                                                       \
    X(ERROR_IMPORT_NUMBER, "ERR", "the %s of message %zu is %s; expected a whole number from 0 to %lld")               \
    X(ERROR_IMPORT_SERIALS, "ERR", "the serial of message %zu is %llu; expected more than that of message %zu, %llu")  \
    X(ERROR_IMPORT_STATES, "ERR",                                                                                      \
      "the state of message %zu is 1 (in flight), but that of the earlier message %zu is 0 (queued); expected "        \
      "messages in flight first")                                                                                      \
    X(ERROR_IMPORT_NOT_EMPTY, "NOTEMPTY", "the session %s has messages; expected an empty one, or MERGE")

/* Subscriptions, and the history that they read. */
#define HMQ_ERRORS_OF_SUBSCRIPTIONS(X)                                                                                 \
    X(ERROR_SUBSCRIBE_PAIRS, "ERR", "%d arguments follow the session key; expected pairs of filter and options")       \
    X(ERROR_SUBSCRIBE_ROUTES_COUNT, "ERR",                                                                             \
      "%d pairs follow ROUTES; expected at most %d; subscribe to the others with another command")                     \
    X(ERROR_UNSUBSCRIBE_FILTERS, "ERR", "filter is missing; expected at least one topic filter")                       \
    X(ERROR_SUBSCRIPTIONS_CURSOR_OVER, "STALECURSOR",                                                                  \
      "CURSOR is %s, which this server has not replied since it started; begin again with CURSOR 0")                   \
    X(ERROR_SUBSCRIPTIONS_TOO_MANY, "ERR",                                                                             \
      "the session has more subscriptions than one step lists: %zu were found; read pages with CURSOR 0")              \
    X(ERROR_OPTIONS_INVALID, "ERR",                                                                                    \
      "options is %s; expected a byte of subscription options (QoS 0 to 2, 4 no local, 8 retain as published, "        \
      "16 or 32 retain handling), or with an identifier <byte>:<1 to 268435455>; to replay history, append "           \
      "@earliest, @now or @<ms since 1970>, and for an application a ! at the end")                                    \
    X(ERROR_OPTIONS_OF_SHARE, "ERR", "options is %s for the shared subscription %s; expected options without %s")      \
    X(ERROR_NOTE_OF_NO_GROUP, "ERR", "options is %s for the filter %s; expected & only with a filter $share/...")      \
    X(ERROR_REPLAY_STORE_PARTIAL, "ERR",                                                                               \
      "the filter %s has topics that the store %s does not keep; expected, to replay history, a filter within "        \
      "one store")                                                                                                     \
    X(ERROR_REPLAY_IN_CLUSTER, "ERR",                                                                                  \
      "the filter %s replays history, which a cluster does not support; expected a server without a cluster")          \
    X(ERROR_REPLAYS_IN_CLUSTER, "ERR",                                                                                 \
      "%zu subscriptions of the session %s replay history, which a cluster does not support; use "                     \
      "SESSION.UNSUBSCRIBE, or a server without a cluster")                                                            \
    X(ERROR_REPLAYS_COUNT, "FULL",                                                                                     \
      "%zu subscriptions of the session %s already read history; %zu more exceed the maximum of %d")                   \
    X(ERROR_REPLAY_FAILED, "WRONGTYPE", "%s")

/* TOPIC.* */
#define HMQ_ERRORS_OF_TOPICS(X)                                                                                         \
    X(ERROR_PUBLISH_INVALID, "ERR",                                                                                     \
      "publish %zu %s; expected at most %d whole TOPIC.PUBLISH commands, as RESP arrays")                               \
    X(ERROR_PIPELINE_LONG, "TRYAGAIN",                                                                                  \
      "the command has taken its share of the server's time (4 ms), or compared too many filters; try again")           \
    X(ERROR_PUBLISHER_HELD_BACK, "TRYAGAIN",                                                                            \
      "an earlier publish of the client was temporarily refused; send that one again first, then this one")             \
    X(ERROR_FAN_OUTS_PENDING, "QUEUEFULL", "too many publishes to many sessions are pending (%zu); try again later")    \
    X(ERROR_QUEUES_JUDGED, "QUEUEFULL",                                                                                 \
      "the server is still checking whether the queues of many sessions have room; send the publish again soon")        \
    X(ERROR_PROGRAM_FAN_OUTS_PENDING, "QUEUEFULL",                                                                      \
      "%zu publishes of %s to many sessions are pending, with %zu bytes (maximum %zu, or %zu bytes); try again later")  \
    X(ERROR_PUBLISH_MOVING, "TRYAGAIN", "slot %u, which the publish needs, is moving to another node; try again")       \
    X(ERROR_RETAINED_ELSEWHERE, "ERR",                                                                                  \
      "RETAIN: the retained message of %s belongs to slot %u of another node; publish to all nodes of the "             \
      "cluster, with SLOTS")                                                                                            \
    X(ERROR_HISTORY_ELSEWHERE, "ERR",                                                                                   \
      "the history of %s belongs to slot %u of another node; publish to all nodes of the cluster, with SLOTS")          \
    X(ERROR_PUBLISHER_ID_LENGTH, "ERR", "FROM has %zu bytes; expected a client id of at most 65535 bytes")              \
    X(ERROR_PUBLISHER_MISSING, "ERR", "FROM is missing; expected, with EPOCH or PACKET, FROM <client id>")              \
    X(ERROR_PACKET_NEEDS_QOS2, "ERR",                                                                                   \
      "PACKET is given with QOS %lld; expected QOS 2, since repetitions of others are published")                       \
    X(ERROR_PACKET_AND_SLOTS, "ERR",                                                                                    \
      "PACKET and SLOTS are both given; expected one of them, because a retry with PACKET would publish "               \
      "nothing for the remaining slots")                                                                                \
    X(ERROR_MESSAGE_INVALID, "ERR", "message %zu %s; expected %s")                                                      \
    X(ERROR_MESSAGE_NUMBER, "ERR", "the number of message %zu is %s; expected a whole number from %lld to %lld")        \
    X(ERROR_MESSAGE_PAIRS, "ERR", "RECORD is followed by %d arguments; expected pairs of number and record")            \
    X(ERROR_MPUBLISH_SLOTS_MISSING, "ERR",                                                                              \
      "SLOTS is missing; expected, in a cluster, the slots for which this node is to publish")                          \
    X(ERROR_MPUBLISH_RECORD_MISSING, "ERR",                                                                             \
      "RECORD is missing; expected [PRODUCER <id> <epoch> <after>] [SLOTS <n> <first> <last> ...] RECORD and "          \
      "messages")                                                                                                       \
    X(ERROR_COMMIT_SLOTS_MISSING, "ERR", "SLOTS is missing after the number; expected SLOTS <n> <first> <last> ...")    \
    X(ERROR_RETAINED_QUOTA, "QUOTA",                                                                                    \
      "no retained message of %s can be stored: there are already %zu (maximum %lld, holdmq.max-retained)")             \
    X(ERROR_RETAINED_TOO_LONG, "ERR",                                                                                   \
      "the filter %s needs more than one step: %zu topics were found, and there may be more; read pages with CURSOR 0") \
    X(ERROR_USER_RETAINED_QUOTA, "QUOTA", "no retained message of %s can be stored; %s already has %zu, and %s is %lld")

/* ROUTE.* */
#define HMQ_ERRORS_OF_ROUTES(X)                                                                                        \
    X(ERROR_ROUTES_WITHOUT_CLUSTER, "ERR",                                                                             \
      "only nodes of a cluster keep routes, and this server is not one; send ROUTE commands to a node of a cluster")   \
    X(ERROR_ROUTES_DATABASE, "ERR", "the database is %d; expected 0, because only database 0 has routes")              \
    X(ERROR_ROUTES_NODE_INVALID, "ERR",                                                                                \
      "node is %s; expected the id of a node, 40 hexadecimal digits, as CLUSTER MYID replies it")                      \
    X(ERROR_ROUTES_NODE_UNKNOWN, "UNKNOWN",                                                                            \
      "the node %s has no slots, as this node sees the cluster; expected the id of a primary that has some")           \
    X(ERROR_ROUTES_NODE_LIVES, "UNKNOWN",                                                                              \
      "the node %s has slots, as this node sees the cluster; expected the id of a node that has none")                 \
    X(ERROR_ROUTES_NO_SLOTS, "UNKNOWN", "this node has no slots; ask a primary that has some")                         \
    X(ERROR_ROUTES_GENERATION_OVER, "STALEHOME",                                                                       \
      "the generation %lld of the node %s is not its current one; expected %lld")                                      \
    X(ERROR_ROUTES_CURSOR_OVER, "STALECURSOR",                                                                         \
      "CURSOR belongs to an export that this node does not know or has forgotten; begin again with CURSOR 0")          \
    X(ERROR_ROUTES_GAP, "GAP",                                                                                         \
      "the page begins at cursor %s, and the page before it was not fed; begin again with CURSOR 0")                   \
    X(ERROR_ROUTES_PAIRS, "ERR", "%d arguments remain; expected pairs of filter and slot, at most %d")                 \
    X(ERROR_ROUTES_GENERATIONS, "ERR",                                                                                 \
      "%d arguments remain; expected pairs of node and generation, at least one and at most %d")                       \
    X(ERROR_ROUTES_CONNECTION, "ERR",                                                                                  \
      "%s belongs to a connection, and none sent this command; send it from a client, outside scripts")                \
    X(ERROR_HOME_UNKNOWN, "NOHOME",                                                                                    \
      "this node has not exported its routes to generation %lld of the node %s; run ROUTE.EXPORT first")               \
    X(ERROR_HOME_WITHOUT_SLOTS, "NOHOME",                                                                              \
      "the node %s has no slots, as this node sees the cluster; ask the node of the publisher again")                  \
    X(ERROR_HOME_NEEDS_SLOTS, "ERR", "SLOTS is missing; expected, with HOME, the slots from the reply of the node")    \
    X(ERROR_HOME_SLOTS_COUNT, "ERR",                                                                                   \
      "SLOTS has %u slots; expected, with HOME and EPOCH, at most %d; publish to the others with another command")     \
    X(ERROR_ROUTES_BYTES, "QUOTA", "the routes take %zu bytes; expected less than %lld (holdmq.max-route-bytes)")      \
    X(ERROR_ROUTES_HOMES_COUNT, "FULL",                                                                                \
      "routes were exported to too many nodes (maximum %d); remove those that are gone with ROUTE.DROPHOME")           \
    X(ERROR_ROUTES_MISSING, "NOROUTES",                                                                                \
      "this node knows the routes of %u of %d slots; first feed it the slots that ROUTE.INFO calls uncovered")         \
    X(ERROR_ROUTES_STOOD_STILL, "TRYAGAIN",                                                                            \
      "this node did not run for %lld ms, longer than cluster-node-timeout, and may have been replaced; try again "    \
      "when most primaries have answered it")                                                                          \
    X(ERROR_ROUTES_CHECKS, "ERR",                                                                                      \
      "%d arguments remain; expected session key, topic, epoch and version for each check, at most %d checks")         \
    X(ERROR_ROUTES_CHECKS_LONG, "TRYAGAIN",                                                                            \
      "the command has taken its share of the server's time (%d ms); ask for this topic again")                        \
    X(ERROR_ROUTE_MOVING, "TRYAGAIN", "slot %u is moving to another node; try again")

#define HMQ_ERRORS(X)                                                                                                  \
    HMQ_ERRORS_OF_SERVER(X)                                                                                            \
    HMQ_ERRORS_OF_STORING(X)                                                                                           \
    HMQ_ERRORS_OF_ARGUMENTS(X)                                                                                         \
    HMQ_ERRORS_OF_PRODUCERS(X)                                                                                         \
    HMQ_ERRORS_OF_CHANNELS(X)                                                                                          \
    HMQ_ERRORS_OF_STORES(X)                                                                                            \
    HMQ_ERRORS_OF_HISTORY(X)                                                                                           \
    HMQ_ERRORS_OF_READING(X)                                                                                           \
    HMQ_ERRORS_OF_PATTERNS(X)                                                                                          \
    HMQ_ERRORS_OF_SESSIONS(X)                                                                                          \
    HMQ_ERRORS_OF_QUEUES(X)                                                                                            \
    HMQ_ERRORS_OF_SUBSCRIPTIONS(X)                                                                                     \
    HMQ_ERRORS_OF_TOPICS(X)                                                                                            \
    HMQ_ERRORS_OF_ROUTES(X)

#endif
