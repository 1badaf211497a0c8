/* publish.h - routing: what is published to a topic goes to all that subscribe to it; the commands TOPIC.*.
 *     {<topic>}_retained   HASH  topic, payload, qos, time (ms), publisher, properties; expires with the message (routing/retained.h)
 *
 * A publish is one atomic step: retained message, then for each session that matches, its queue and its inbox; or the list of
 * the sessions, if there are many (routing/fan_out.h). */
#ifndef HMQ_MODULE_TOPIC_H
#define HMQ_MODULE_TOPIC_H

#include "topic/record.h"
#include "server/state.h"
#include "routing/quota.h"

/* Publishes what the module itself has to say (a will), without a reply: as far as this server serves who gets it.  `by`: for
 * whom a retained message counts. */
long long topic_publish(server_ctx *ctx, const hmq_record *record, const quota_claim *by);

/* A message of TOPIC.MPUBLISH: how many sessions it reached, or -1 after replying why it could not be published; nothing
 * has been changed then.  Not in a cluster. */
long long topic_publish_one(server_ctx *ctx, const hmq_record *record);

/* A message of TOPIC.PIPELINE for sessions alone: its deliveries are gathered (routing/delivery.h), and *reached grows when they are
 * settled.  False, and nothing was done, if more is to be done with it: settle what was gathered before that. */
bool topic_publish_gathered(server_ctx *ctx, const hmq_record *record, long long *reached);

/* The same in a cluster, to the targets in the slots of publish_slots_begin that have not got it; the sessions that it
 * reached are added. */
typedef enum topic_part {
    TOPIC_PART_PUBLISHED,
    TOPIC_PART_KNOWN, /* what it concerns here has it */
    TOPIC_PART_NONE, /* it concerns nothing here */
    TOPIC_PART_REFUSED, /* after replying why; nothing has been changed */
} topic_part;
topic_part topic_publish_part(server_ctx *ctx, const hmq_record *record, uint64_t number, long long *reached);

int topic_publish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_pipeline_command(server_ctx *ctx, server_string **argv, int argc);
int topic_mpublish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_commit_command(server_ctx *ctx, server_string **argv, int argc);
int topic_retained_command(server_ctx *ctx, server_string **argv, int argc);

#endif
