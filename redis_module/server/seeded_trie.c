/* seeded_trie.c - makes tries with a secret seed. */
#include "server/seeded_trie.h"

#include <sys/random.h>

#include "server/state.h"

hmq_trie *seeded_trie_new(void) {
    hmq_trie *trie = hmq_trie_new(&server_allocator);
    uint64_t random[2] = {(uint64_t)sv.Milliseconds(), (uint64_t)(uintptr_t)trie};
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random) hmq_trie_seed(trie, random[0], random[1]);
    return trie;
}
