/* retained_topics.h - the topics that have a retained message, in an order that a filter can follow.
 *
 *     a      a NUL b      a NUL b NUL c      a!      a-b      b          a dictionary: encoded topic -> name of the key
 *
 * The level separator is encoded as NUL, which no topic contains and which sorts before all characters of a level.
 * So the topics below a prefix are adjacent, and one step skips all of them.
 *
 * A walk is a page: it looks at a bounded number of topics, returns where it stopped, and keeps nothing of the
 * dictionary.  So a walk can continue after any change.  It sees every topic that existed all the time exactly once.
 *
 * A page costs O(topics looked at * log n); whole subtrees that cannot match are one step. */
#ifndef HMQ_RETAINED_TOPICS_H
#define HMQ_RETAINED_TOPICS_H

#include "topic/topic.h"
#include "server/state.h"

/* Where a walk is: after this (encoded) topic. */
typedef struct retained_position {
    uint8_t bytes[HMQ_TOPIC_MAX_BYTES];
    size_t len; /* 0: before the first */
} retained_position;

/* The position after a topic, and the topic of a position. */
void retained_position_set(retained_position *position, hmq_slice topic);
server_string *retained_position_topic(const retained_position *position);
bool retained_position_is_before(const retained_position *position, hmq_slice topic);

#define RETAINED_PAGE 32

typedef struct retained_page {
    server_string *keys[RETAINED_PAGE]; /* of the topics that match, in their order; the caller frees them */
    size_t count;
    size_t room;   /* in: keys that the page may find, at most RETAINED_PAGE */
    size_t visits; /* in and out: topics that the page may still look at; a long one counts more than once */
    bool end;      /* no topic after the position matches */
} retained_page;

/* The next topics after the position that the (valid) filter matches.  The position moves to the last topic that was
 * looked at. */
void retained_topics_walk(server_dict *topics, hmq_slice filter, retained_position *position, retained_page *page);

/* Entries: the value is the name of the key. */
void retained_topics_set(server_dict *topics, hmq_slice topic, server_string *key);
void retained_topics_remove(server_dict *topics, hmq_slice topic);
server_string *retained_topics_find(server_dict *topics, hmq_slice topic);

#endif
