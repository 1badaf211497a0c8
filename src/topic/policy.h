/* policy.h - channel policies: which channels hold which messages, for how long, and what a new subscriber gets.
 *
 * The text of a policy is a list of rules, separated by ';' (or a line feed); the first match wins:
 *
 *      <glob> [hold=none|unheard|all] [last=on|off] [maxlen=<n>] [ttl=<seconds>] [deliver=none|last|held]
 *
 * The defaults of a rule are hold=unheard last=off maxlen=10000 ttl=604800 deliver=last; with hold=none and last=off,
 * deliver is none.  A glob may be in double quotes, with \" and \\ inside, if it contains a blank, ';' or '"'.  A
 * channel that no rule matches is not touched at all. */
#ifndef HMQ_POLICY_H
#define HMQ_POLICY_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_POLICY_MAX_RULES 256
#define HMQ_POLICY_MAX_LENGTH 4294967295
#define HMQ_POLICY_MAX_CHANNEL_BYTES 16384 /* a longer name matches no rule, which bounds the cost of a publish */
#define HMQ_POLICY_MAX_TTL_S 3155760000 /* a hundred years, in seconds */

typedef enum hmq_hold { HMQ_HOLD_NONE = 0, HMQ_HOLD_UNHEARD = 1, HMQ_HOLD_ALL = 2 } hmq_hold;
typedef enum hmq_deliver { HMQ_DELIVER_NONE = 0, HMQ_DELIVER_LAST = 1, HMQ_DELIVER_HELD = 2 } hmq_deliver;

typedef struct hmq_rule {
    hmq_slice glob;      /* points into the policy's own copy */
    hmq_hold hold;
    bool last;
    uint64_t maxlen;     /* messages, 1 .. HMQ_POLICY_MAX_LENGTH */
    uint64_t ttl_s;      /* seconds after the last message, 0: no expiry */
    hmq_deliver deliver;
} hmq_rule;

typedef struct hmq_policy hmq_policy;

/* NULL for an invalid text or out of memory; then error (if capacity is not 0) holds a NUL-terminated sentence that
 * names the rule, the fault and what is accepted.  Empty text is a policy without rules. */
hmq_policy *hmq_policy_parse(const hmq_allocator *allocator, const char *text, size_t len, char *error,
                             size_t capacity);
void hmq_policy_free(hmq_policy *policy);

/* The first rule whose glob matches the channel, NULL if none does or the name is too long.  Lives as long as the policy. */
const hmq_rule *hmq_policy_find(const hmq_policy *policy, const char *channel, size_t len);

size_t hmq_policy_count(const hmq_policy *policy);
const hmq_rule *hmq_policy_rule(const hmq_policy *policy, size_t index);
/* cffi-end */

#endif
