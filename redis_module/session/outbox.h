/* outbox.h - in a cluster: wills and presence messages that wait for somebody who publishes them to all nodes, and ends of
 * member sessions (session/member_notes.h), which he drops.
 *
 *     {<digits>}_outbox   LIST   "<number> <total> <record or end>" each; the digits put it into the slot
 *
 *     number    that of the message in its slot; it grows, also after the list was empty: the clock in microseconds
 *     total     bytes of the records and ends from the oldest message, when it was written alone, up to this one
 *
 * The step that closes a session writes its message into the outbox of the session's slot.  A bridge or program reads it
 * (OUTBOX.READ), publishes it to all slots as the producer `outbox:<slot>` with this number, and removes it (OUTBOX.ACK).
 *
 * Invariants:
 *  1. Message and session change in the same step, and in the same slot: they are replicated and move together.
 *  2. A number is never given twice, and later messages have larger ones: a slot that has taken a message as of its producer
 *     takes it for known when it comes again.
 *  3. Only a slot that this node serves is read or written.
 *  4. A list has at most holdmq.outbox-bytes of records.  What does not fit is published as without an outbox, to the
 *     sessions of this node.
 *  5. Nothing is written unless a reader was expected within the last hour: without a bridge a message would wait for
 *     ever.  A reader is expected after each OUTBOX.READ and each heartbeat of an owner (session/owner.h), as bridges send
 *     them, and after a load or promotion with such an owner. */
#ifndef HMQ_OUTBOX_H
#define HMQ_OUTBOX_H

#include "topic/record.h"
#include "index/index.h"

extern const struct index_kind outboxes_kind;

/* Somebody is there who reads outboxes. */
void outbox_expect_reader(void);

/* Puts the message into the outbox of the session's slot.  False: there is none, nobody reads it, or the message does not fit. */
bool outbox_put(server_ctx *ctx, hmq_slice session, const hmq_record *record);

/* The same for the end of a member session.  If it cannot be put, the member stays until it expires. */
void outbox_put_end(server_ctx *ctx, hmq_slice session, hmq_slice end);

int outbox_read_command(server_ctx *ctx, server_string **argv, int argc);
int outbox_ack_command(server_ctx *ctx, server_string **argv, int argc);

#endif
