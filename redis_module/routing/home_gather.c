/* home_gather.c - judges publishes with HOME for TOPIC.PIPELINE. */
#include "routing/home_gather.h"

#include <string.h>

#include "server/args.h"
#include "server/slots.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/primaries.h"
#include "cluster/refusals.h"
#include "routing/home.h"
#include "routing/publisher_epochs.h"

#define HOME_WORDS 3U
#define DIGITS_MOST 18U

/* The last publish that all of its slots took, in this command. */
static struct {
    bool any;
    hmq_slice bytes; /* of its words from SLOTS on, as they were sent */
    hmq_slice client_id;
    long long epoch;
    slots_option slots;
} last;

void home_gather_begin(void) {
    last.any = false;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static bool read_number(hmq_slice text, long long most, long long *number) {
    *number = 0;
    if (text.len == 0 || text.len > DIGITS_MOST || (text.data[0] == '0' && text.len > 1)) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        *number = *number * 10 + (text.data[i] - '0');
    }
    return *number <= most;
}

static bool read_ranges(const hmq_slice *words, size_t count, slots_option *slots) {
    slots_option_begin(slots);
    slots->given = true;
    slots->first = HMQ_SLOTS - 1;
    slots->last = 0;
    memset(&slots->asked, 0, sizeof slots->asked);
    memset(&slots->blocked, 0, sizeof slots->blocked);
    for (size_t i = 0; i < count; i += 2) {
        long long first, end;
        if (!read_number(words[i], HMQ_SLOTS - 1, &first) || !read_number(words[i + 1], HMQ_SLOTS - 1, &end) ||
            end < first)
            return false;
        if ((unsigned)first < slots->first) slots->first = (unsigned)first;
        if ((unsigned)end > slots->last) slots->last = (unsigned)end;
        hmq_slot_set_add(&slots->asked, (unsigned)first, (unsigned)end);
    }
    return true;
}

/* SLOTS <count> <first> <last> ... HOME <node> <generation>, and nothing else. */
static bool read_all(const hmq_slice *words, size_t count, slots_option *slots, hmq_slice *node, long long *n) {
    long long ranges;
    if (count < 2 + HOME_WORDS || !slice_is(words[0], "SLOTS") || !read_number(words[1], HMQ_SLOTS, &ranges))
        return false;
    if (ranges < 1 || count != 2 + 2 * (size_t)ranges + HOME_WORDS) return false;
    const hmq_slice *home = words + count - HOME_WORDS;
    *node = home[1];
    return slice_is(home[0], "HOME") && read_number(home[2], INT64_MAX - 1, n) &&
           read_ranges(words + 2, 2 * (size_t)ranges, slots);
}

/* ---- judging ------------------------------------------------------------------------------------------------ */

static bool takes_slot(server_ctx *ctx, unsigned slot, const hmq_slot_set *refused, const publisher *from) {
    if (refused != NULL && hmq_slot_set_has(refused, slot)) return false;
    if (slots_state(slot) != SLOT_SERVED) return false;
    return from->epoch == 0 || publisher_epoch_seen(ctx, slot, from->client_id, from->epoch);
}

static bool take_all(server_ctx *ctx, const slots_option *slots, const publisher *from) {
    const hmq_slot_set *refused = refusals_of(refusals_connection(ctx));
    unsigned count = 0;
    for (unsigned i = slots->first / 64; i <= slots->last / 64; i++) {
        for (uint64_t left = slots->asked.words[i]; left != 0; left &= left - 1) {
            if (++count > HOME_EPOCH_SLOTS_MOST) return false;
            if (!takes_slot(ctx, i * 64 + (unsigned)__builtin_ctzll(left), refused, from)) return false;
        }
    }
    return true;
}

slots_option *home_gather_slots(server_ctx *ctx, const hmq_slice *words, size_t count, size_t at,
                                const publisher *from) {
    if (at >= count) return NULL;
    const hmq_slice bytes = {words[at].data, (size_t)(words[count - 1].data - words[at].data) + words[count - 1].len};
    if (last.any && last.epoch == from->epoch && hmq_slice_equal(last.bytes, bytes) &&
        hmq_slice_equal(last.client_id, from->client_id))
        return &last.slots;
    hmq_slice node;
    long long n;
    last.any = false;
    if (refusals_connection(ctx) == 0 || (from->epoch != 0 && from->client_id.len == 0)) return NULL;
    if (!read_all(words + at, count - at, &last.slots, &node, &n) || !route_look(ctx)) return NULL;
    if (homes_of(node) != n || !primaries_include(node) || !slots_cluster_is_up()) return NULL;
    if (!take_all(ctx, &last.slots, from)) return NULL;
    last.any = true;
    last.bytes = bytes;
    last.client_id = from->client_id;
    last.epoch = from->epoch;
    return &last.slots;
}
