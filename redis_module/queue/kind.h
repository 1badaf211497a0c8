/* kind.h - queues as a kind of the index: HOLDMQ.CHECK compares what is remembered of them. */
#ifndef HMQ_QUEUE_KIND_H
#define HMQ_QUEUE_KIND_H

#include "index/index.h"

extern const index_kind queues_kind;

#endif
