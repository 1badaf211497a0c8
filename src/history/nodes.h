/* nodes.h - the layout of a pattern set in memory: private to history/patterns*.c and history/plan.c.
 *
 *      | hmq_patterns | shape of each pattern | node ... | child ... | canonical text |
 *
 * A node represents the levels that lead to it.  Its concrete children are `child_count` numbers of nodes from
 * children[first_child] on, in the order of their levels; NONE means that there is none. */
#ifndef HMQ_HISTORY_NODES_H
#define HMQ_HISTORY_NODES_H

#include "history/patterns.h"

#define HMQ_NONE UINT32_MAX

typedef struct hmq_pattern_node {
    hmq_slice level; /* of the edge that leads here; part of the text */
    uint32_t parent;
    uint32_t first_child;
    uint32_t child_count;
    uint32_t plus; /* node */
    uint32_t end;  /* pattern that ends here */
    uint32_t tail; /* pattern whose '#' is here */
} hmq_pattern_node;

typedef struct hmq_pattern_shape {
    hmq_pattern pattern;
    uint16_t plus_mask; /* bit i: level i is '+' */
    uint8_t depth;      /* levels before the '#', or all */
    bool tail;
} hmq_pattern_shape;

struct hmq_patterns {
    const hmq_allocator *allocator;
    uint32_t levels;
    uint32_t count;
    uint32_t node_count;
    hmq_slice text;
    hmq_pattern_shape *shapes;
    hmq_pattern_node *nodes; /* nodes[0] is the root */
    uint32_t *children;
};

/* The next node of a topic with this level at this depth: the concrete child, else '+', else NONE. */
uint32_t hmq_pattern_next(const hmq_patterns *set, uint32_t node, unsigned depth, hmq_slice level);

#endif
