/* expiry.h - messages with an expiry of their own: the effect of TTL of TOPIC.PUBLISH on a queue.
 *
 *        stored ------------> own expiry ---- grace ---> the key's expiry
 *           queued: handed out | expired: not handed out, counted as expired
 *        in flight: the key lives for the default time to live, whatever its record says
 *
 * MQTT 5.0 section 3.3.2.3.3: a message expires only before its delivery has begun.  A bridge may have begun it
 * before this server hears of that (SESSION.SENT): hence the grace.
 *
 * Invariants:
 *  1. This applies only to publish records with an expiry; other values expire with their keys.
 *  2. No message with a serial above the field `expiring` of the session's hash has an expiry of its own.  The field
 *     runs ahead by EXPIRING_AHEAD serials, so that it is rarely written, and messages above it are not examined.
 *  3. A message in flight, or released, does not end before the default time to live. */
#ifndef HMQ_QUEUE_EXPIRY_H
#define HMQ_QUEUE_EXPIRY_H

#define QUEUE_EXPIRY_GRACE_MS 10000

#endif
