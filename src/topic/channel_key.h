/* channel_key.h - the one place that builds the names of the keys that keep messages of channels.
 *
 *     the channel has                       kind held
 *     a hash tag of its own                 holdmq:held::<channel>
 *     bytes, none of them '}'               holdmq:held:{<channel>}
 *     anything else                         holdmq:held:%{<number>}<encoded>
 *
 * All are in the channel's slot: the number is the smallest whose digits are in it (hmq_slot_tag).  Encoded are `{`, `}` and
 * `%`, as %7B %7D %25.  The prefix is the module's own: an application's key never has the name of a channel's key.  No two
 * channels share a name. */
#ifndef HMQ_CHANNEL_KEY_H
#define HMQ_CHANNEL_KEY_H

#include "base/base.h"

/* cffi-begin */
/* A list each. */
#define HMQ_CHANNEL_KEY_KINDS 4
typedef enum hmq_channel_key_kind {
    HMQ_CHANNEL_HELD = 0,  /* "held"   the messages, oldest first */
    HMQ_CHANNEL_LAST = 1,  /* "last"   the most recent message, heard or not (policy last=on) */
    HMQ_CHANNEL_HEARD = 2, /* "heard"  a mark: a later message was heard, or not kept */
    HMQ_CHANNEL_ASIDE = 3  /* "aside"  a mark: the application uses the channel's name for a key */
} hmq_channel_key_kind;

/* Writes the name to out (capacity in bytes; 3 * channel_len + 40 always suffices).  The length, 0 if it does not fit. */
size_t hmq_channel_key_encode(const char *channel, size_t channel_len, hmq_channel_key_kind kind, char *out,
                              size_t capacity);

/* The channel of a name: its length and the kind, or -1 if the name is not one of these or does not fit. */
int64_t hmq_channel_key_decode(const char *name, size_t len, hmq_channel_key_kind *kind, char *out, size_t capacity);
/* cffi-end */

#endif
