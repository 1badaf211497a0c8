/* publish.h - routes each publish to all subscribers of its topic; the commands TOPIC.*.
 *
 *     {<topic>}_retained   HASH  topic, payload, qos, time (ms), publisher, properties; expires with the message (routing/retained.h)
 *
 * A publish is one atomic step.  It writes the retained message, then the queue and the inbox of each matching session.  If
 * many sessions match, it writes the list of the sessions instead (routing/fan_out.h). */
#ifndef HMQ_MODULE_TOPIC_H
#define HMQ_MODULE_TOPIC_H

#include "topic/record.h"
#include "server/slots_option.h"
#include "server/state.h"
#include "routing/quota.h"

/* Publishes a message of the module itself (a will), without a reply, to the sessions that this server serves.  `by`: the
 * user for whom a retained message counts. */
long long topic_publish(server_ctx *ctx, const hmq_record *record, const quota_claim *by);

/* Publishes a message of TOPIC.MPUBLISH.  Returns the number of sessions it reached; or -1 after replying an error: nothing
 * has been changed then.  Not in a cluster. */
long long topic_publish_one(server_ctx *ctx, const hmq_record *record);

/* Publishes a message of TOPIC.PIPELINE that only goes to sessions.  Its deliveries are gathered (routing/delivery.h), and
 * *reached increases when they are settled.  False if the message needs more than that: nothing was done, and the caller
 * must settle the gathered deliveries before it runs the command. */
bool topic_publish_gathered(server_ctx *ctx, const hmq_record *record, long long *reached);
/* The same in a cluster, to sessions in these slots, which are served. */
bool topic_publish_gathered_to(server_ctx *ctx, const hmq_record *record, slots_option *slots, long long *reached);

/* Publishes a message in a cluster, to those targets in the slots of publish_slots_begin that do not have it yet.  Adds the
 * sessions that it reached. */
typedef enum topic_part {
    TOPIC_PART_PUBLISHED,
    TOPIC_PART_KNOWN, /* all targets here already have it */
    TOPIC_PART_NONE, /* it has no targets here */
    TOPIC_PART_REFUSED, /* after replying an error; nothing has been changed */
} topic_part;
topic_part topic_publish_part(server_ctx *ctx, const hmq_record *record, uint64_t number, long long *reached);

int topic_publish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_pipeline_command(server_ctx *ctx, server_string **argv, int argc);
int topic_mpublish_command(server_ctx *ctx, server_string **argv, int argc);
int topic_commit_command(server_ctx *ctx, server_string **argv, int argc);
int topic_retained_command(server_ctx *ctx, server_string **argv, int argc);

#endif
