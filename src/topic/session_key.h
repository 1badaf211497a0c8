/* session_key.h - the one place that builds the names of keys and channels of sessions and topics.
 *
 * A client id becomes a session key `{<encoded id>}`: the braces are the hash tag that keeps all keys of a session in
 * one slot of a cluster.  `{`, `}` and `%` in an id are percent-encoded (%7B %7D %25), all other characters stay, so
 * that ordinary ids are readable and no id can break the tag.  A key prefix may precede the brace (TBMQ's cache
 * prefix). */
#ifndef HMQ_SESSION_KEY_H
#define HMQ_SESSION_KEY_H

#include "base/base.h"

/* cffi-begin */
/* Suffixes of the session key. */
#define HMQ_SUFFIX_COUNT 10
typedef enum hmq_suffix {
    HMQ_SUFFIX_MESSAGES = 0,       /* "_messages"  sorted set: member <key>_messages_<packet id>, score serial */
    HMQ_SUFFIX_LAST_PACKET_ID = 1, /* "_last_packet_id"  string, decimal */
    HMQ_SUFFIX_SUBSCRIPTIONS = 2,  /* "_subscriptions"  hash, filter -> options */
    HMQ_SUFFIX_SESSION = 3,        /* "_session"  hash: owner, epoch, expiry ... */
    HMQ_SUFFIX_RECEIVED = 4,       /* "_received"  incoming QoS 2 identifiers not yet released */
    HMQ_SUFFIX_INBOX = 5,          /* "_inbox"  channel to the process that holds the client's connection */
    HMQ_SUFFIX_PRODUCERS = 6,      /* "_producers"  hash, producer -> its last batch and the reply */
    HMQ_SUFFIX_REPLAYS = 7,        /* "_replays"  hash, filter -> the position of the subscription in history */
    HMQ_SUFFIX_CURSORS = 8,        /* "_cursors"  hash, filter -> the last retained message that was delivered */
    HMQ_SUFFIX_PLACES = 9          /* "_places"  hash, filter -> the same in a cluster, as the deliverer wrote it */
} hmq_suffix;

/* NUL-terminated text of the suffix; its length in *len (may be NULL). */
const char *hmq_suffix_text(hmq_suffix suffix, size_t *len);

/* Writes `{<encoded id>}` to out (capacity in bytes; 3 * id_len + 2 always suffices).  Returns the length, 0 if it does
 * not fit or the id is empty ("{}" is not a hash tag: the whole key would decide the slot). */
size_t hmq_session_key_encode(const char *id, size_t id_len, char *out, size_t capacity);

/* The client id of a session key, without the prefix.  Returns its length; -1 if the key is not a session key, the encoding
 * is invalid, or the id does not fit. */
int64_t hmq_session_key_decode(const char *key, size_t key_len, char *out, size_t capacity);

/* Is this a session key: [prefix without '{'] '{' one or more bytes without braces '}'? */
bool hmq_session_key_check(const char *key, size_t key_len);

/* If name is <session key><suffix>, the length of the session key, else 0. */
size_t hmq_session_key_of(const char *name, size_t len, hmq_suffix suffix);

/* Writes `<key>_messages_<packet id>`.  Returns the length, 0 if it does not fit (key_len + 16 always suffices). */
size_t hmq_message_key(const char *key, size_t key_len, uint16_t packet_id, char *out, size_t capacity);

/* The packet identifier at the end of a message key of this session; 0 for any other key. */
uint16_t hmq_message_key_packet_id(const char *key, size_t key_len, const char *name, size_t len);

/* Retained messages: `{<encoded topic>}_retained`, a hash (redis_module/routing/retained.h).  The same rules as above. */
size_t hmq_retained_key(const char *topic, size_t topic_len, char *out, size_t capacity);
/* The topic of a retained key: its length, or -1. */
int64_t hmq_retained_topic(const char *key, size_t key_len, char *out, size_t capacity);
/* cffi-end */

#endif
