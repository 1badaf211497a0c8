/* fan_out.h - a publish to many sessions is delivered in steps, so that no step of the server is long.
 *
 *     holdmq:fan-out:<number>   HASH   record         the message, as published
 *                                      1, 2, ... n    a chunk each: sessions that have not got it, and how each gets it
 *                                      1              instead, if there were cursors (routing/retained_cursors.h): the retained
 *                                                     message that the topic had before
 *
 *                                      unmatched      as long as the sessions are still to be found
 *
 *      TOPIC.PUBLISH ──few sessions──► their queues, in the same step
 *               └──────many──────────► the hash ──end of each turn, a millisecond──► a chunk: their queues; the field goes
 *
 * Invariants:
 *  1. The hash is written in the step of the publish, and a chunk's field is removed in the step that delivers it.  So what
 *     was acknowledged outlives a restart and a failover, and no session gets a message twice.
 *  2. A publish to a topic with a pending fan-out is a fan-out, too, and those of one topic are delivered in their order.  So
 *     each session gets the messages of a topic in the order of the publishes.
 *  3. Chunks are delivered one of each user in turn.  A user may have OWN_CHUNKS_MAX pending chunks, or one fan-out of any
 *     size; beyond, publishes of the user's clients are temporarily refused (QUEUEFULL).  Programs without a
 *     session have limits for each user of the server, and for all: 10,000 publishes, 64 MiB; 40,000, 256 MiB.  What was
 *     pending at a restart does not count.
 *  4. No step is made while the server is out of memory or short of disk: what is pending waits, as publishes do.
 *  5. What is in memory is a pure function of the hashes.
 *  6. No chunk is delivered as long as the field "unmatched" is there.  It goes in the step that writes the last chunk.  After
 *     a restart in between, the sessions are found again.  One fan-out at a time finds its sessions.
 *  7. A session whose cursor has not reached the topic gets the earlier retained message in the step that delivers the
 *     publish.  (Versions that do not know this field take it for a chunk without sessions.)
 *
 * The sessions are those that subscribed when the message was published.  One that ended since is skipped.  If they are found
 * in later steps, one that subscribed since may get the message, too, and one that removed its subscription may not.
 *
 * Not in a cluster: there the slots of sessions move. */
#ifndef HMQ_FAN_OUT_H
#define HMQ_FAN_OUT_H

#include "topic/record.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/shares.h"
#include "routing/delivery.h"
#include "routing/fan_out_write.h"

/* How a publish is delivered. */
typedef enum fan_out_way {
    FAN_OUT_NOT,   /* in its own step */
    FAN_OUT,       /* in later steps */
    FAN_OUT_UNMATCHED, /* the same, and its sessions are found in later steps, too */
    FAN_OUT_LATER, /* refused: its command has delivered enough, and its publisher must send it again */
} fan_out_way;
/* `sessions`: number of sessions and groups.  `cursors`: number of these sessions that have cursors.  `units`: what the
 * search of the trie took (topic/trie.h).  `is_whole`: it found all. */
fan_out_way fan_out_decide(const index_t *index, const hmq_record *record, size_t sessions, size_t cursors,
                           size_t units, bool is_whole);

/* The units that the match of a publish may take in its step: few once publishes to many sessions have taken half of the
 * running command's time.  One that needs more is FAN_OUT_LATER then. */
size_t fan_out_match_units(const hmq_record *record);

/* Have matches taken too long for this publisher in the running command?  Then the publish is not matched: its way is
 * FAN_OUT_LATER, and a message of QoS 0 is dropped. */
bool fan_out_is_used_up(const hmq_record *record);

/* May the publish go this way, which is not FAN_OUT_NOT?  False after replying QUEUEFULL or TRYAGAIN; nothing was changed. */
bool fan_out_has_room(server_ctx *ctx, const index_t *index, const hmq_record *record, size_t sessions,
                      fan_out_way way);

/* A fan-out is written: begin, add each session (routing/fan_out_write.h), end. */

/* `older`: what retained_encoded returned before the publish changed it; NULL if there are no cursors. */
void fan_out_begin(fan_out_writer *w, server_ctx *ctx, index_t *index, const hmq_record *record,
                   const server_string *older);
void fan_out_end(fan_out_writer *w);
/* Instead of sessions: these are found in later steps (routing/fan_out_search.h). */
void fan_out_end_unmatched(fan_out_writer *w);

/* Have all queues that refuse room for a publish whose sessions are not found yet (routing/judging.h)?  False after replying an
 * error: one has none, or they are still being judged. */
bool fan_out_is_judged(server_ctx *ctx, index_t *index, const hmq_record *record);

/* A command of many publishes delivers a bounded number of messages in its step. */
void fan_out_command_begin(void);
void fan_out_command_end(void);

/* Delivers pending chunks, for a millisecond. */
void fan_out_before_sleep(void);
/* Are chunks to be delivered in later turns? */
bool fan_out_any_due(void);
/* The same, or after a pause? */
bool fan_out_is_pending(void);
/* The index may have pending fan-outs, of before a restart or a promotion: they are delivered from now on. */
void fan_out_resume(const index_t *index);

extern const index_kind fan_outs_kind;

#endif
