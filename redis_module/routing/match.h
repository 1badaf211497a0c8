/* match.h - TOPIC.MATCH: which subscriptions a topic matches, for tools. */
#ifndef HMQ_ROUTING_MATCH_H
#define HMQ_ROUTING_MATCH_H

#include "server/state.h"

int topic_match_command(server_ctx *ctx, server_string **argv, int argc);

#endif
