/* judging_pending.c - the list of publishes whose queues are judged. */
#include "routing/judging_pending.h"

#include <string.h>

#include "server/session_keys.h"

#define JUDGINGS_MAX 64U
#define OWN_MAX 16U /* of a user */

judgings *judgings_new(void) {
    judgings *all = sv.Calloc(1, sizeof *all);
    all->list = sv.Calloc(JUDGINGS_MAX, sizeof *all->list);
    return all;
}

static void release(judging *j) {
    sv.FreeString(NULL, j->publisher);
    sv.FreeString(NULL, j->topic);
    if (j->by != NULL) sv.FreeString(NULL, j->by);
    sv.Free(j);
}

void judgings_free(judgings *all) {
    for (size_t i = 0; i < all->count; i++) release(all->list[i]);
    sv.Free(all->list);
    sv.Free(all);
}

bool judging_is_of(const judging *j, hmq_slice publisher) {
    return hmq_slice_equal(slice_of(j->publisher), publisher);
}

judging *judging_find(const judgings *all, hmq_slice publisher, hmq_slice topic) {
    for (size_t i = 0; i < all->count; i++) {
        if (judging_is_of(all->list[i], publisher) && hmq_slice_equal(slice_of(all->list[i]->topic), topic))
            return all->list[i];
    }
    return NULL;
}

judging *judging_add(judgings *all, const hmq_record *record, uint64_t owner) {
    static uint64_t last_number;
    size_t own = 0;
    for (size_t i = 0; i < all->count; i++) own += all->list[i]->owner == owner;
    if (all->count == JUDGINGS_MAX || own >= OWN_MAX) return NULL;
    judging *j = sv.Calloc(1, sizeof *j);
    j->publisher = sv.CreateString(NULL, (const char *)record->publisher.data, record->publisher.len);
    j->topic = sv.CreateString(NULL, (const char *)record->topic.data, record->topic.len);
    j->owner = owner;
    j->number = ++last_number;
    all->list[all->count++] = j;
    return j;
}

void judging_remove(judgings *all, judging *j) {
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (all->list[i] != j) all->list[kept++] = all->list[i];
    }
    all->count = kept;
    release(j);
}

void judging_remove_old(judgings *all) {
    long long now_ms = sv.Milliseconds();
    for (size_t i = all->count; i > 0; i--) {
        if (now_ms - all->list[i - 1]->asked_ms > JUDGING_KEPT_MS) judging_remove(all, all->list[i - 1]);
    }
}
