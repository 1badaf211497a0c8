/* hand_over.c - hands over to one new subscriber what one channel holds. */
#include "channel/hand_over.h"

#include "server/access.h"
#include "channel/drain.h"
#include "channel/facts.h"
#include "channel/read.h"

size_t hand_over_channel(const receiver *to, server_string *channel) {
    const hmq_rule *rule = channel_rule(channel);
    if (rule == NULL || rule->deliver == HMQ_DELIVER_NONE) return 0;
    bool by_publish_to_pattern = to->client == 0 && to->kind == PUSH_PATTERN;
    if (by_publish_to_pattern && push_channel_subscribers(PUSH_CHANNEL, channel) != 0)
        return 0; /* others would hear it */
    bool master = (sv.GetContextFlags(detached) & (SERVER_CTX_MASTER | SERVER_CTX_READONLY)) == SERVER_CTX_MASTER;
    bool taking = rule->deliver == HMQ_DELIVER_HELD;
    if (!access_may_read(to->client, channel, taking)) return 0;
    if (taking) {
        if (master) drain_begin(to, sv.GetSelectedDb(detached), channel);
        return 0;
    }
    server_string *last = channel_last(detached, channel, rule);
    if (last == NULL) return 0;
    push(to, channel, last);
    size_t bytes = slice_of(last).len + slice_of(channel).len;
    sv.FreeString(NULL, last);
    return bytes;
}
