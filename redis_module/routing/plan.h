/* plan.h - the plan of a publish, read once from its words, for every command that publishes.
 *
 *     TOPIC.PUBLISH ─────┐
 *     TOPIC.PIPELINE ────┼──► plan ──► carry_out (routing/publish.c)
 *     TOPIC.MPUBLISH ────┤
 *     wills, presence ───┘ */
#ifndef HMQ_PUBLISH_PLAN_H
#define HMQ_PUBLISH_PLAN_H

#include "topic/record.h"
#include "server/slots_option.h"
#include "server/state.h"
#include "routing/publish_producer.h"
#include "routing/publisher.h"
#include "routing/quota.h"

#define TOPIC_TTL_MAX_S 4294967295LL /* message expiry interval of MQTT 5.0 */

/* The handling of a refused publish (no room, a limit, a key of another type). */
typedef enum plan_origin {
    PLAN_OF_COMMAND, /* an error is replied, and nothing is done */
    PLAN_GATHERED, /* nothing is done: it runs again as a command.  Its deliveries are gathered (routing/delivery.h) */
    PLAN_OF_MODULE, /* a will, presence: refused parts are skipped, the rest is done */
} plan_origin;

typedef struct publish_plan {
    hmq_record record;
    publisher from;
    plan_origin origin;
    quota_claim by; /* the user for whom a retained message counts */
    bool keeps_retained; /* this node writes the retained message ... */
    bool keeps_history; /* ... and the history */
    bool is_retry; /* its publisher has all replies to earlier publishes (routing/hold_back.h) */
} publish_plan;

/* The plan of a record that is published on this server: everything is written here. */
publish_plan plan_of_record(const hmq_record *record);

/* Reads the topic and the payload.  Options may follow. */
publish_plan plan_of_words(hmq_slice topic, hmq_slice payload, long long now_ms);

typedef enum plan_option {
    PLAN_OPTION_READ,
    PLAN_OPTION_UNKNOWN, /* the word is none of QOS, RETAIN, RETRY, TTL, PROPERTIES, FROM, EPOCH, PACKET */
    PLAN_OPTION_INVALID, /* its value is missing or invalid */
} plan_option;

/* Reads the option at words[*at] and advances *at.  `ctx`: replies the error of an invalid option; NULL: replies nothing. */
plan_option plan_read_option(server_ctx *ctx, publish_plan *plan, const hmq_slice *words, size_t count, size_t *at);

#endif
