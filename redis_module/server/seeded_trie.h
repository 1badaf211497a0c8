/* seeded_trie.h - a trie (topic/trie.h) in which clients cannot choose levels that collide. */
#ifndef HMQ_SEEDED_TRIE_H
#define HMQ_SEEDED_TRIE_H

#include "topic/trie.h"

hmq_trie *seeded_trie_new(void);

#endif
