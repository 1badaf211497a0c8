/* learner.h - learns from topics which of their levels vary, and proposes a pattern set.
 *
 * The learner keeps a trie of what was published. Each node knows how many messages went through it, ended there, or got
 * lost below it; its concrete children are a list.  When there are more than `max_children`, they become one child '+':
 * the subtrees below are merged, node by node, counts added (and may in turn have too many children).  From then on new
 * levels there only go into a sketch that knows how many different ones there were, within a few tenths.
 *
 *      devices ── 1 ── temperature                     devices ── + (100,003 different) ── temperature
 *              ├─ 2 ── temperature, pressure    ──►                                     └─ pressure
 *              └─ ... 100,001 more
 *
 * Invariants:
 *  1. Counts are sums: what a merged subtree counts is what its parts counted.
 *  2. At most max_nodes nodes.  When they are used up, max_children is halved for this learner and every list above it
 *     merged, until at most half of the nodes are in use; with 0 nothing concrete is left but levels that begin with '$'.
 *  3. Levels at the root that begin with '$' are never merged, because no wildcard may take them; at most max_children.
 *  4. What it proposes is a function of what it was told, in that order: no clock, no random numbers.
 *
 * PROPOSAL: the trie is read once more with thresholds from max_children down to 0 (a level with more different children
 * becomes '+', except children that alone have at least hot_percent of its messages, which stay concrete), each
 * threshold giving a pattern set; bits are chosen so that four hashes come to one value.  Each set gets a cost:
 *
 *      opened   logs that a filter opens, of those that have messages, mean over the log of filters by weight
 *      read     messages that a reader visits for each one that it returns, mean over the same
 *      bytes    index bytes a message, mean over messages
 *      cost     = opened + read + bytes / 2
 *
 * in the unit "messages read": opening a log costs about what a message costs.  `opened`, `read` and `bytes` are measured
 * on a sample of topics (those with the smallest hashes: uniform over topics, each with its messages), by asking the
 * set itself.  Without filters each topic of the sample asks for itself.
 *
 * Memory: nodes and sample are the learner's, from its allocator; proposing takes as much again for a moment.
 * Cost: observe O(levels * max_children) at worst, a list being searched with what was asked for last in front;
 * merging is O(nodes merged), each topic level is merged away once.  Propose: O(nodes) for each threshold, and
 * O(filters * sample). */
#ifndef HMQ_HISTORY_LEARNER_H
#define HMQ_HISTORY_LEARNER_H

#include "base/base.h"
#include "history/patterns.h"

/* cffi-begin */
typedef struct hmq_learner_options {
    uint32_t levels;        /* to be indexed, 1 .. 16 */
    uint32_t max_children;  /* 1 .. 10000 */
    uint32_t max_nodes;     /* 1000 .. 10000000 */
    uint32_t max_patterns;  /* of a proposal, 1 .. HMQ_PATTERNS_MAX */
    uint32_t sample;        /* topics kept to measure costs, 1 .. 100000 */
    uint32_t hot_percent;   /* 1 .. 100: share of its level's messages that keeps a child concrete; 101: never */
} hmq_learner_options;

/* 8 levels, 100 children, 100,000 nodes, 256 patterns, 1,024 topics, 20 percent. */
hmq_learner_options hmq_learner_defaults(void);

bool hmq_learner_options_fit(const hmq_learner_options *options);

typedef struct hmq_learner hmq_learner;

/* NULL if an option is out of range or there is no memory. */
hmq_learner *hmq_learner_new(const hmq_allocator *allocator, const hmq_learner_options *options);
void hmq_learner_free(hmq_learner *learner);

/* So many messages were published to this valid topic name.  False if memory was lacking: they are then counted as far
 * down the trie as there was memory for. */
bool hmq_learner_observe(hmq_learner *learner, const char *name, size_t len, uint64_t messages);

/* Messages it was told of, nodes in use, bytes taken from its allocator. */
uint64_t hmq_learner_messages(const hmq_learner *learner);
uint32_t hmq_learner_nodes(const hmq_learner *learner);
size_t hmq_learner_bytes(const hmq_learner *learner);

/* The set for this threshold (or the learner's own, if that is lower by now): *set is the caller's, NULL if it would have
 * more than max_patterns.  False if there is no memory. */
bool hmq_learner_patterns(const hmq_learner *learner, uint32_t max_children, hmq_patterns **set);

/* A filter that readers asked for (valid, not a $share one), and how often. */
typedef struct hmq_filter_use {
    hmq_slice filter;
    uint64_t weight;
} hmq_filter_use;

typedef struct hmq_patterns_cost {
    double opened;
    double read;
    double bytes;
    double cost;
} hmq_patterns_cost;

/* What a set costs, by the learner's sample.  False if there is no memory, or nothing was observed. */
bool hmq_learner_cost(const hmq_learner *learner, const hmq_patterns *set, const hmq_filter_use *filters, size_t count,
                      hmq_patterns_cost *cost);

typedef enum hmq_proposal {
    HMQ_PROPOSAL_NEW = 0,   /* *set is better than the present one by the margin */
    HMQ_PROPOSAL_KEEP = 1,  /* it is not, or is the same */
    HMQ_PROPOSAL_NOTHING_OBSERVED = 2,
    HMQ_PROPOSAL_NO_MEMORY = 3
} hmq_proposal;

/* The cheapest of the sets, if it costs at least margin_percent (0 .. 100) less than the present set.  NEW: *set is the
 * caller's.  Else *set is NULL.  NEW and KEEP: costs[0] is that of the present set, costs[1] of the best one. */
hmq_proposal hmq_learner_propose(const hmq_learner *learner, const hmq_patterns *present, const hmq_filter_use *filters,
                                 size_t count, uint32_t margin_percent, hmq_patterns **set, hmq_patterns_cost *costs);
/* cffi-end */

/* What it is told is a sample, evenly drawn, of so many messages: a level of which nearly every message has another value
 * has as many more values, and gets bits for them. */
void hmq_learner_is_sample_of(hmq_learner *learner, uint64_t messages);

#endif
