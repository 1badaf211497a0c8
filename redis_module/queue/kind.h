/* kind.h - queues as a part of the index: what is remembered of them is checked with it. */
#ifndef HMQ_QUEUE_KIND_H
#define HMQ_QUEUE_KIND_H

#include "index/index.h"

extern const index_kind queues_kind;

#endif
