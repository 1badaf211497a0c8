/* counts.h - the learner's structures in memory: private to history/learner.c, history/propose.c, history/cost.c.
 *
 * A node represents the levels that lead to it.  Its concrete children are a list; `plus` is the child for all other levels.
 * A '+' node has a sketch of its different levels in place of a level of its own.  Nodes are never shared. */
#ifndef HMQ_HISTORY_COUNTS_H
#define HMQ_HISTORY_COUNTS_H

#include "base/hash.h"
#include "base/memory.h"
#include "history/learner.h"
#include "history/sketch.h"

typedef struct hmq_count_node {
    struct hmq_count_node *next; /* in the list of its parent */
    struct hmq_count_node *children;
    struct hmq_count_node *plus;
    uint64_t messages; /* that reached the node */
    uint64_t ends;     /* of these, topics that end here */
    uint64_t beyond;   /* and those whose next level is not followed: it is too deep, or no pattern can contain it */
    uint64_t hash;
    uint32_t child_count;
    uint16_t level_len;
    uint8_t level[]; /* or a sketch */
} hmq_count_node;

/* A topic of the sample. */
typedef struct hmq_sampled {
    uint64_t hash;
    uint64_t messages;
    uint16_t len;
    char name[];
} hmq_sampled;

struct hmq_learner {
    hmq_memory memory;
    hmq_learner_options options;
    uint64_t sample_of;    /* number of messages that the observed ones are a sample of; 0: all are observed */
    uint32_t max_children; /* the option, or less after nodes ran out */
    uint32_t node_count;
    hmq_count_node *root;
    uint32_t sample_count;
    hmq_sampled *sample[]; /* by hash, the smallest first */
};

static inline hmq_sketch *hmq_count_sketch(const hmq_count_node *plus) {
    return (hmq_sketch *)(uintptr_t)plus->level;
}

/* Is it a level that no wildcard may match? */
static inline bool hmq_count_is_dollar(uint32_t depth, const hmq_count_node *node) {
    return depth == 0 && node->level_len && node->level[0] == '$';
}

#endif
