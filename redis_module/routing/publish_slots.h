/* publish_slots.h - which messages of a producer each slot has, when the producer publishes to the nodes of a
 * cluster.
 *
 * A message has targets: sessions, groups of $share, the retained message, a shard of history.  Each is in a slot,
 * and the slot knows the producer's last number there:
 *
 *     {<digits>}_published{<id>}   STRING  "<epoch> <number>"    the digits put the key into the slot
 *
 * Invariants:
 *  1. It is written in the step that publishes, so a target has what its slot's note says, wherever the slot moves.
 *  2. Slots without a target of these messages have no note, because nothing can be repeated there.
 *  3. A slot is judged once in a command: it is served for all messages from the first that needs it, or for none.
 *
 * One command at a time: its judgements are kept in 240 KiB that are never returned.  Writing costs O(slots touched);
 * the first use on a server finds the digits (O(slots), some ms). */
#ifndef HMQ_PUBLISH_SLOTS_H
#define HMQ_PUBLISH_SLOTS_H

#include "server/slots_option.h"
#include "index/shares.h"
#include "routing/publish_producer.h"

typedef enum target {
    TARGET_NEW,     /* the message is to go there */
    TARGET_KNOWN,   /* it has been there */
    TARGET_NOT_NOW, /* the slot is not for this command, of another node, or moving */
    TARGET_REFUSED, /* after replying why */
} target;

/* Begins a command; both arguments must live until it ends.  by->id may be NULL: then nothing is known or noted. */
void publish_slots_begin(slots_option *asked, const publish_producer *by);

/* A target in this slot, of the message with this number. */
target publish_slots_judge(server_ctx *ctx, unsigned slot, uint64_t number);

/* A group: it has the messages that any of its members' slots has (of the first 64 members), and all of these are
 * noted. */
target publish_slots_judge_share(server_ctx *ctx, share *s, uint64_t number);

/* Everything up to this number has been published in the slots that were judged to be served. */
void publish_slots_note(server_ctx *ctx, uint64_t number);

/* The key of a slot's note.  The caller frees it. */
server_string *publish_slots_key(unsigned slot, hmq_slice id);

#endif
