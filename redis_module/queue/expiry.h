/* expiry.h - messages with an expiry of their own: what TTL of TOPIC.PUBLISH means for a queue.
 *
 *        stored ------------> own expiry ---- grace ---> the key's expiry
 *           queued: handed out | expired: nobody gets it, counted as expired
 *        in flight: the key lives on for the default time to live, whatever its record says
 *
 * MQTT 5.0 section 3.3.2.3.3: a message expires only as long as its delivery has not begun.  Whoever holds the client's
 * connection may have begun it before this server hears of that (SESSION.SENT): hence the grace.
 *
 * Invariants:
 *  1. Only publish records with an expiry are concerned; other values expire with their keys.
 *  2. No message with a serial behind the field `expiring` of the session's hash has an expiry of its own: the field runs
 *     ahead by EXPIRING_AHEAD serials, so that it is written seldom, and what is beyond it is not looked at.
 *  3. A message in flight, or released, does not end before the default time to live. */
#ifndef HMQ_QUEUE_EXPIRY_H
#define HMQ_QUEUE_EXPIRY_H

#define QUEUE_EXPIRY_GRACE_MS 10000

#endif
