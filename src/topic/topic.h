/* topic.h - MQTT topic names and topic filters: are they valid, do they match.
 *
 * Pure functions over (pointer, length); nothing is copied or kept.  Rules: MQTT 3.1.1 section 4.7 and 1.5.3,
 * MQTT 5.0 section 4.7, 4.8.2 ($share) and 1.5.4.  Levels are separated by '/', may be empty, are compared
 * byte by byte. */
#ifndef HMQ_TOPIC_H
#define HMQ_TOPIC_H

#include "base/base.h"

/* cffi-begin */
/* Maximum bytes of a name or filter: its length has two bytes [MQTT-4.7.3-3]. */
#define HMQ_TOPIC_MAX_BYTES 65535
/* Maximum levels of a name or filter.  MQTT sets no limit; EMQX has the same default.  It bounds every walk. */
#define HMQ_TOPIC_MAX_LEVELS 128

typedef enum hmq_topic_error {
    HMQ_TOPIC_OK = 0,
    HMQ_TOPIC_EMPTY = 1,      /* no bytes at all [MQTT-4.7.3-1] */
    HMQ_TOPIC_TOO_LONG = 2,   /* more than HMQ_TOPIC_MAX_BYTES */
    HMQ_TOPIC_TOO_DEEP = 3,   /* more than HMQ_TOPIC_MAX_LEVELS */
    HMQ_TOPIC_NUL = 4,        /* contains U+0000 [MQTT-4.7.3-2] */
    HMQ_TOPIC_NOT_UTF8 = 5,   /* ill-formed UTF-8, surrogates included [MQTT-1.5.3-1; 5.0: 1.5.4-1] */
    HMQ_TOPIC_WILDCARD = 6,   /* a name with '+' or '#' [MQTT-3.3.2-2] */
    HMQ_TOPIC_BAD_PLUS = 7,   /* '+' beside other characters of its level [MQTT-4.7.1-3; 5.0: -2] */
    HMQ_TOPIC_BAD_HASH = 8,   /* '#' not alone in the last level [MQTT-4.7.1-2; 5.0: -1] */
    HMQ_TOPIC_BAD_SHARE = 9   /* "$share/" without a group or filter, wildcard in the group [MQTT-4.8.2-1, -2] */
} hmq_topic_error;

/* May a message be published to this name?  Names that begin with '$' are valid. */
hmq_topic_error hmq_topic_check_name(const char *name, size_t len);

/* May a client subscribe to this filter?  A filter "$share/<group>/<filter>" is checked as such. */
hmq_topic_error hmq_topic_check_filter(const char *filter, size_t len);

/* What was wrong; after a semicolon, what is accepted.  Without a full stop; never NULL. */
const char *hmq_topic_error_text(hmq_topic_error error);

/* Does a valid filter (not a $share one) match a valid name?  "a/#" matches "a"; a wildcard in the first level
 * never matches a name that begins with '$' [MQTT-4.7.2-1]. */
bool hmq_topic_matches(const char *filter, size_t filter_len, const char *name, size_t name_len);

/* Does every name that the filter `inner` matches also match the filter `outer`?  (Both valid, none a $share one.) */
bool hmq_topic_covers(const char *outer, size_t outer_len, const char *inner, size_t inner_len);

/* Splits a valid "$share/<group>/<filter>".  True and both slices set if it is one, else false. */
bool hmq_topic_split_share(const char *filter, size_t len, hmq_slice *group, hmq_slice *inner);
/* cffi-end */

#endif
