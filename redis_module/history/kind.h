/* kind.h - history as a part of the index. */
#ifndef HMQ_HISTORY_KIND_H
#define HMQ_HISTORY_KIND_H

#include "index/index.h"

extern const index_kind history_kind;

#endif
