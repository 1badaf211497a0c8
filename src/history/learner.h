/* learner.h - learns from topics which of their levels vary, and proposes a pattern set.
 *
 * The learner keeps a trie of published topics.  Each node counts the messages that passed it, ended there, or were not
 * followed below it; its concrete children are a list.  More than `max_children` children become one child '+': their
 * subtrees are merged node by node and counts are added (and the result may again have too many children).  Further levels
 * only enter a sketch, which estimates the number of different ones within a few tenths.
 *
 *      devices ── 1 ── temperature                     devices ── + (100,003 different) ── temperature
 *              ├─ 2 ── temperature, pressure    ──►                                     └─ pressure
 *              └─ ... 100,001 more
 *
 * Invariants:
 *  1. Counts are sums: a merged subtree has the sum of the counts of its parts.
 *  2. There are at most max_nodes nodes.  When they are used up, max_children is halved for this learner and every longer
 *     list is merged, until at most half of the nodes are in use.  With 0 only levels that begin with '$' stay concrete.
 *  3. Levels at the root that begin with '$' are never merged, because no wildcard may match them; at most max_children.
 *  4. A proposal is a function of the observed topics in their order: no clock, no random numbers.
 *
 * PROPOSAL: the trie is read with thresholds from max_children down to 0.  A level with more different children becomes
 * '+', except for children that alone have at least hot_percent of its messages: they stay concrete.  Each threshold
 * yields a pattern set; its bits give four hashes per value.  Each set has a cost:
 *
 *      opened   logs that a filter opens, of those that have messages, mean over the log of filters by weight
 *      read     messages that a reader visits for each one that it returns, mean over the same
 *      bytes    index bytes per message, mean over messages
 *      cost     = opened + read + bytes / 2
 *
 * in the unit "messages read": opening a log costs about as much as reading a message.  `opened`, `read` and `bytes` are measured
 * on a sample of topics (those with the smallest hashes: uniform over topics, each with its messages), with the
 * set itself.  Without filters each topic of the sample is its own filter.
 *
 * Memory: the learner owns nodes and sample, from its allocator; a proposal temporarily needs the same amount again.
 * Cost: observe O(levels * max_children) at worst (the most recent child of a list is first); merging O(merged nodes),
 * and each level is merged once.  Propose: O(nodes) per threshold, and O(filters * sample). */
#ifndef HMQ_HISTORY_LEARNER_H
#define HMQ_HISTORY_LEARNER_H

#include "base/base.h"
#include "history/patterns.h"

/* cffi-begin */
typedef struct hmq_learner_options {
    uint32_t levels;        /* indexed levels, 1 .. 16 */
    uint32_t max_children;  /* 1 .. 10000 */
    uint32_t max_nodes;     /* 1000 .. 10000000 */
    uint32_t max_patterns;  /* of a proposal, 1 .. HMQ_PATTERNS_MAX */
    uint32_t sample;        /* topics kept to measure costs, 1 .. 100000 */
    uint32_t hot_percent;   /* 1 .. 100: share of its level's messages that keeps a child concrete; 101: never */
} hmq_learner_options;

/* 8 levels, 100 children, 100,000 nodes, 256 patterns, 1,024 topics, 20 percent. */
hmq_learner_options hmq_learner_defaults(void);

bool hmq_learner_options_are_valid(const hmq_learner_options *options);

typedef struct hmq_learner hmq_learner;

/* NULL if an option is out of range or there is no memory. */
hmq_learner *hmq_learner_new(const hmq_allocator *allocator, const hmq_learner_options *options);
void hmq_learner_free(hmq_learner *learner);

/* Counts messages to this valid topic name.  False if memory was lacking: they are counted as far down the trie as memory
 * allowed. */
bool hmq_learner_observe(hmq_learner *learner, const char *name, size_t len, uint64_t messages);

/* Observed messages; nodes in use; bytes taken from the allocator. */
uint64_t hmq_learner_messages(const hmq_learner *learner);
uint32_t hmq_learner_nodes(const hmq_learner *learner);
size_t hmq_learner_bytes(const hmq_learner *learner);

/* Builds the set for this threshold (or for the learner's own, if that is lower).  The caller owns *set; NULL if it would
 * have more than max_patterns.  False if memory was lacking. */
bool hmq_learner_patterns(const hmq_learner *learner, uint32_t max_children, hmq_patterns **set);

/* A filter of readers (valid, not a $share one), and how often it was used. */
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

/* The cost of a set on the learner's sample.  False if memory was lacking, or nothing was observed. */
bool hmq_learner_cost(const hmq_learner *learner, const hmq_patterns *set, const hmq_filter_use *filters, size_t count,
                      hmq_patterns_cost *cost);

typedef enum hmq_proposal {
    HMQ_PROPOSAL_NEW = 0,   /* *set is better than the current one by the margin */
    HMQ_PROPOSAL_KEEP = 1,  /* no set is, or it is the same */
    HMQ_PROPOSAL_NOTHING_OBSERVED = 2,
    HMQ_PROPOSAL_NO_MEMORY = 3
} hmq_proposal;

/* Proposes the cheapest set, if it costs at least margin_percent (0 .. 100) less than the current set.  NEW: the caller owns
 * *set.  Otherwise *set is NULL.  NEW and KEEP: costs[0] is that of the current set, costs[1] of the best one. */
hmq_proposal hmq_learner_propose(const hmq_learner *learner, const hmq_patterns *present, const hmq_filter_use *filters,
                                 size_t count, uint32_t margin_percent, hmq_patterns **set, hmq_patterns_cost *costs);
/* cffi-end */

/* The observed messages are a uniform sample of `messages`.  A level with another value in nearly every message then has
 * proportionally more values, and gets bits for them. */
void hmq_learner_is_sample_of(hmq_learner *learner, uint64_t messages);

#endif
