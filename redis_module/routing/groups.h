/* groups.h - TOPIC.GROUPS: the groups of shared subscriptions, for tools. */
#ifndef HMQ_ROUTING_GROUPS_H
#define HMQ_ROUTING_GROUPS_H

#include "server/state.h"

int topic_groups_command(server_ctx *ctx, server_string **argv, int argc);

#endif
