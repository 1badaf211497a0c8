/* topic.h - routing: SESSION.SUBSCRIBE and its kin, TOPIC.PUBLISH, retained messages.
 *
 *     {c}_subscriptions    HASH  filter -> options (subscription.h)
 *     {<topic>}_retained   HASH  topic, payload, qos, time (ms), publisher, properties; expires with the message
 *
 * A publish is one atomic step: retained message, then for each session that matches, its queue and its inbox. */
#ifndef HMQ_MODULE_TOPIC_H
#define HMQ_MODULE_TOPIC_H

#include "../src/record.h"
#include "module.h"

/* Publishes what the module itself has to say (a will), without a reply: as far as this server serves who gets it. */
long long topic_publish(server_ctx *ctx, const hmq_record *record);

/* A message of TOPIC.MPUBLISH: how many sessions it reached, or -1 after replying why it could not be published; nothing
 * has been changed then.  Not in a cluster. */
long long topic_publish_one(server_ctx *ctx, const hmq_record *record);

int session_subscribe_command(server_ctx *ctx, server_string **argv, int argc);
int session_unsubscribe_command(server_ctx *ctx, server_string **argv, int argc);
int session_subscriptions_command(server_ctx *ctx, server_string **argv, int argc);
int session_deliver_command(server_ctx *ctx, server_string **argv, int argc);
int topic_publish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_mpublish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_retained_command(server_ctx *ctx, server_string **argv, int argc);

#endif
