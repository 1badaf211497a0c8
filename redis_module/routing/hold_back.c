/* hold_back.c - remembers clients with a temporarily refused publish, by a hash of their client ids. */
#include "routing/hold_back.h"

#include "server/session_keys.h"

#define CLIENTS 16384U /* places; the last client of a place is remembered */

static struct {
    uint64_t client;
    long long until_ms;
} held[CLIENTS];
static long long any_until_ms; /* no client is held back after this time */

/* 0: the publish has no client, or QoS 0 and is never sent again. */
static uint64_t client_of(const hmq_record *record) {
    return record->publisher.len == 0 || record->qos == 0 ? 0 : client_hash(record->publisher) | 1U;
}

static bool sends_retry(const publish_plan *plan) {
    return plan->from.epoch > 0;
}

static void hold(uint64_t client, long long ms) {
    long long until_ms = sv.Milliseconds() + ms;
    held[(client >> 1) % CLIENTS].client = client;
    held[(client >> 1) % CLIENTS].until_ms = until_ms;
    if (any_until_ms < until_ms) any_until_ms = until_ms;
}

void hold_back_begin(const publish_plan *plan) {
    uint64_t client = client_of(&plan->record);
    if (client != 0) hold(client, sends_retry(plan) ? HOLD_BACK_MOST_MS : HOLD_BACK_MS);
}

bool hold_back_is_active(const publish_plan *plan) {
    if (any_until_ms == 0) return false; /* the usual case costs nothing */
    long long now_ms = sv.Milliseconds();
    if (now_ms > any_until_ms) {
        any_until_ms = 0;
        return false;
    }
    uint64_t client = client_of(&plan->record);
    if (client == 0 || held[(client >> 1) % CLIENTS].client != client ||
        held[(client >> 1) % CLIENTS].until_ms < now_ms)
        return false;
    if (plan->is_retry) {
        held[(client >> 1) % CLIENTS].client = 0;
        return false;
    }
    if (!sends_retry(plan)) hold(client, HOLD_BACK_MS);
    return true;
}
