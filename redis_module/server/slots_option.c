/* slots_option.c - which slots a command is for, and which of them it did not serve. */
#include "server/slots_option.h"

#include <string.h>

#include "server/errors.h"

void slots_option_begin(slots_option *option) {
    option->given = option->blocks = false;
    option->blocked_slot = 0;
}

static bool parse_range(args *a, slots_option *option) {
    long long first, last;
    if (!args_number(a, "the first slot of a range", 0, HMQ_SLOTS - 1, &first)) return false;
    if (!args_number(a, "the last slot of a range", first, HMQ_SLOTS - 1, &last)) return false;
    if ((unsigned)first < option->first) option->first = (unsigned)first;
    if ((unsigned)last > option->last) option->last = (unsigned)last;
    hmq_slot_set_add(&option->asked, (unsigned)first, (unsigned)last);
    return true;
}

bool slots_option_parse(args *a, slots_option *option) {
    long long ranges;
    if (!can.cluster) {
        reply_error(a->ctx, ERROR_CLUSTER_ONLY, "SLOTS", "SLOTS");
        return false;
    }
    if (!args_number(a, "the number of ranges after SLOTS", 1, HMQ_SLOTS, &ranges)) return false;
    option->given = true;
    option->first = HMQ_SLOTS - 1;
    option->last = 0;
    memset(&option->asked, 0, sizeof option->asked);
    memset(&option->blocked, 0, sizeof option->blocked);
    for (; ranges > 0; ranges--) {
        if (!parse_range(a, option)) return false;
    }
    return true;
}

slot_verdict slots_option_verdict(slots_option *option, unsigned slot) {
    if (!can.cluster) return SLOT_USE;
    if (option->given && !hmq_slot_set_has(&option->asked, slot)) return SLOT_LEAVE;
    slot_state state = slots_state(slot);
    if (state == SLOT_SERVED && slots_cluster_is_up()) return SLOT_USE;
    if (state == SLOT_ELSEWHERE) return SLOT_LEAVE;
    if (!option->blocks) option->blocked_slot = slot;
    option->blocks = true;
    if (option->given) hmq_slot_set_add(&option->blocked, slot, slot);
    return SLOT_WAIT;
}

bool slots_option_lists(const slots_option *option, unsigned slot) {
    if (!option->given) return true;
    return hmq_slot_set_has(&option->asked, slot) && slots_state(slot) != SLOT_ELSEWHERE;
}

/* ---- what was not served ----------------------------------------------------------------------------------- */

typedef struct unserved {
    server_ctx *ctx;
    long ranges;
    unsigned first, last; /* of the range that is being gathered */
    bool gathering;
    char address[320];
} unserved;

static void end_range(unserved *u) {
    if (!u->gathering) return;
    sv.ReplyWithArray(u->ctx, 3);
    sv.ReplyWithLongLong(u->ctx, u->first);
    sv.ReplyWithLongLong(u->ctx, u->last);
    sv.ReplyWithCString(u->ctx, u->address);
    u->ranges++;
    u->gathering = false;
}

static void add_slot(unserved *u, unsigned slot, const char *address) {
    if (u->gathering && (slot != u->last + 1 || strcmp(address, u->address) != 0)) end_range(u);
    if (!u->gathering) {
        u->gathering = true;
        u->first = slot;
        strncpy(u->address, address, sizeof u->address - 1);
    }
    u->last = slot;
}

static void look_at(unserved *u, const slots_option *option, unsigned slot) {
    slot_state state = slots_state(slot);
    bool blocked = hmq_slot_set_has(&option->blocked, slot);
    if (state == SLOT_ELSEWHERE || blocked)
        add_slot(u, slot, "");
    else if (state == SLOT_MIGRATING)
        add_slot(u, slot, slots_target(slot));
}

void slots_option_reply_unserved(server_ctx *ctx, const slots_option *option) {
    unserved u = {.ctx = ctx};
    const hmq_slot_set *served = slots_served_so_far();
    hmq_slot_set missing;
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++)
        missing.words[i] = option->asked.words[i] & (~served->words[i] | option->blocked.words[i]);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (unsigned slot = 0; slot < HMQ_SLOTS; slot++) {
        if (missing.words[slot / 64] == 0)
            slot |= 63; /* the loop continues after the word */
        else if (hmq_slot_set_has(&missing, slot))
            look_at(&u, option, slot);
    }
    end_range(&u);
    sv.ReplySetArrayLength(ctx, u.ranges);
}
