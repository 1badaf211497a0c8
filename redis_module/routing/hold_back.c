/* hold_back.c - remembers clients whose publishes were refused for now, by a hash of their client ids. */
#include "routing/hold_back.h"

#include "base/hash.h"

#define CLIENTS 1024U /* of those whose ids fall into one place, the last one is remembered */

static struct {
    uint64_t client;
    long long until_ms;
} held[CLIENTS];
static long long any_until_ms; /* nobody is held back after this */

/* 0: a publish of nobody, or of QoS 0, which nobody sends again. */
static uint64_t client_of(const hmq_record *record) {
    static const hmq_hash_seed seed = {0, 0};
    if (record->publisher.len == 0 || record->qos == 0) return 0;
    return hmq_hash_text(&seed, (const char *)record->publisher.data, record->publisher.len) | 1U;
}

static void hold(uint64_t client) {
    long long until_ms = sv.Milliseconds() + HOLD_BACK_MS;
    held[(client >> 1) % CLIENTS].client = client;
    held[(client >> 1) % CLIENTS].until_ms = any_until_ms = until_ms;
}

void hold_back_begin(const hmq_record *record) {
    uint64_t client = client_of(record);
    if (client != 0) hold(client);
}

bool hold_back_refuses(const hmq_record *record) {
    if (any_until_ms == 0) return false; /* the usual case costs nothing */
    long long now_ms = sv.Milliseconds();
    if (now_ms > any_until_ms) {
        any_until_ms = 0;
        return false;
    }
    uint64_t client = client_of(record);
    if (client == 0 || held[(client >> 1) % CLIENTS].client != client ||
        held[(client >> 1) % CLIENTS].until_ms < now_ms)
        return false;
    hold(client);
    return true;
}
