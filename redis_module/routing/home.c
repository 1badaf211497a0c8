/* home.c - HOME of TOPIC.PUBLISH. */
#include "routing/home.h"

#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "server/slots.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/primaries.h"
#include "cluster/refusals.h"
#include "routing/publisher_epochs.h"

#define FEW_SLOTS 32 /* checked one by one */

typedef struct slot_list {
    hmq_slot_set set;
    bool any; /* false: the set is empty */
} slot_list;

/* Of the running command. */
static struct {
    uint64_t connection;
    unsigned first, last; /* words of the slots that it names */
    slot_list moved, waiting, refused, fenced; /* by their reasons */
    slot_list new_epoch; /* slots that have not seen the publisher's epoch */
} now;

static void add(slot_list *list, unsigned slot) {
    hmq_slot_set_add(&list->set, slot, slot);
    list->any = true;
}

static void clear(slot_list *list) {
    if (list->any) memset(list, 0, sizeof *list);
}

static void remove_slot(hmq_slot_set *set, unsigned slot) {
    set->words[slot / 64] &= ~(1ULL << (slot % 64));
}

static void begin(const slots_option *slots) {
    now.first = slots->first / 64;
    now.last = slots->last / 64;
    clear(&now.moved);
    clear(&now.waiting);
    clear(&now.refused);
    clear(&now.fenced);
    clear(&now.new_epoch);
}

/* The remaining slots of those that the command names. */
static unsigned count_of(const hmq_slot_set *slots) {
    unsigned count = 0;
    for (unsigned i = now.first; i <= now.last; i++) count += (unsigned)__builtin_popcountll(slots->words[i]);
    return count;
}

/* ---- options ------------------------------------------------------------------------------------------------ */

bool publish_home_parse(args *a, publish_home *home, bool *taken) {
    *taken = args_take_word(a, "HOME");
    if (!*taken) return true;
    home->given = true;
    if (!can.cluster) {
        reply_error(a->ctx, ERROR_CLUSTER_ONLY, "HOME", "HOME");
        return false;
    }
    return route_begin_look(a) && route_node(a, &home->node) && route_generation(a, &home->n);
}

bool publish_home_check(server_ctx *ctx, const publish_home *home, const slots_option *slots, const publisher *from) {
    if (!home->given) return true;
    if (!slots->given) {
        reply_error(ctx, ERROR_HOME_NEEDS_SLOTS);
        return false;
    }
    begin(slots);
    if (from->epoch != 0 && from->client_id.len == 0) {
        reply_error(ctx, ERROR_PUBLISHER_MISSING);
    } else if (from->epoch != 0 && count_of(&slots->asked) > HOME_EPOCH_SLOTS_MOST) {
        reply_error(ctx, ERROR_HOME_SLOTS_COUNT, count_of(&slots->asked), HOME_EPOCH_SLOTS_MOST);
    } else if ((now.connection = refusals_connection(ctx)) == 0) {
        reply_error(ctx, ERROR_ROUTES_CONNECTION, "HOME");
    } else {
        return true;
    }
    return false;
}

/* ---- judging ------------------------------------------------------------------------------------------------ */

/* May the answer of this generation be used here?  False after replying why not. */
static bool check_home(server_ctx *ctx, const publish_home *home) {
    long long known = homes_of(home->node);
    bool has_slots = primaries_include(home->node);
    if (known == home->n && has_slots) return true;
    if (known > home->n)
        reply_error(ctx, ERROR_ROUTES_GENERATION_OVER, home->n, shown_slice(home->node), known);
    else if (!has_slots)
        reply_error(ctx, ERROR_HOME_WITHOUT_SLOTS, shown_slice(home->node));
    else
        reply_error(ctx, ERROR_HOME_UNKNOWN, home->n, shown_slice(home->node));
    return false;
}

/* Those slots of a word of `asked` that are not served now. */
static uint64_t unserved(unsigned word, uint64_t asked, const hmq_slot_set *served) {
    uint64_t away = 0;
    if (served != NULL) return asked & ~served->words[word];
    for (; asked != 0; asked &= asked - 1) {
        if (slots_state(word * 64 + (unsigned)__builtin_ctzll(asked)) != SLOT_SERVED) away |= asked & -asked;
    }
    return away;
}

static void add_unserved(unsigned slot, bool is_up) {
    bool elsewhere = is_up && slots_state(slot) == SLOT_ELSEWHERE;
    add(elsewhere ? &now.moved : &now.waiting, slot);
}

/* The slots of `asked` that are served here and were not refused before are left in it; the others get their reasons. */
static void sort_slots(hmq_slot_set *asked) {
    const hmq_slot_set *before = refusals_of(now.connection);
    const hmq_slot_set *served = count_of(asked) > FEW_SLOTS ? slots_served(asked) : NULL;
    bool is_up = slots_cluster_is_up();
    for (unsigned i = now.first; i <= now.last; i++) {
        uint64_t refused = before == NULL ? 0 : asked->words[i] & before->words[i];
        uint64_t left = asked->words[i] & ~refused, away = is_up ? unserved(i, left, served) : left;
        asked->words[i] = left & ~away;
        now.refused.set.words[i] = refused;
        now.refused.any = now.refused.any || refused != 0;
        for (; away != 0; away &= away - 1) add_unserved(i * 64 + (unsigned)__builtin_ctzll(away), is_up);
    }
}

/* False after replying an error. */
static bool sort_epoch(server_ctx *ctx, hmq_slot_set *asked, unsigned slot, const publisher *from) {
    switch (publisher_epoch_judge(ctx, slot, from->client_id, from->epoch)) {
    case EPOCH_SEEN: return true;
    case EPOCH_NEW: add(&now.new_epoch, slot); return true;
    case EPOCH_REFUSED: return false;
    case EPOCH_FENCED: break;
    }
    counters.fenced++;
    add(&now.fenced, slot);
    remove_slot(asked, slot);
    return true;
}

/* Removes the slots that have seen a later epoch. */
static bool sort_epochs(server_ctx *ctx, hmq_slot_set *asked, const publisher *from) {
    for (unsigned i = now.first; i <= now.last; i++) {
        for (uint64_t left = asked->words[i]; left != 0; left &= left - 1) {
            if (!sort_epoch(ctx, asked, i * 64 + (unsigned)__builtin_ctzll(left), from)) return false;
        }
    }
    return true;
}

static void remember(const slot_list *list) {
    if (list->any) refusals_add(now.connection, &list->set);
}

home_verdict publish_home_judge(server_ctx *ctx, const publish_home *home, slots_option *slots, const publisher *from) {
    if (!check_home(ctx, home)) {
        refusals_add(now.connection, &slots->asked);
        return HOME_REPLIED;
    }
    sort_slots(&slots->asked);
    bool is_right = from->epoch == 0 || sort_epochs(ctx, &slots->asked, from);
    remember(&now.moved);
    remember(&now.waiting);
    remember(&now.fenced);
    if (!is_right) return HOME_REPLIED;
    if (count_of(&slots->asked) > 0) return HOME_TAKES;
    publish_home_end(ctx, slots, from, 0);
    return HOME_REPLIED;
}

/* ---- replying ----------------------------------------------------------------------------------------------- */

typedef struct replying {
    server_ctx *ctx;
    long ranges;
} replying;

/* Replies the slots of the list from `first` to `last`, and removes them from it. */
static void reply_slots(replying *r, slot_list *list, unsigned first, unsigned last, const char *reason) {
    if (!list->any) return;
    for (unsigned slot = first; slot <= last; slot++) {
        if (list->set.words[slot / 64] == 0) {
            slot |= 63; /* the loop continues after the word */
            continue;
        }
        if (!hmq_slot_set_has(&list->set, slot)) continue;
        unsigned end = slot;
        while (end < last && hmq_slot_set_has(&list->set, end + 1)) end++;
        sv.ReplyWithArray(r->ctx, 3);
        sv.ReplyWithLongLong(r->ctx, slot);
        sv.ReplyWithLongLong(r->ctx, end);
        sv.ReplyWithCString(r->ctx, reason);
        r->ranges++;
        for (; slot < end; slot++) remove_slot(&list->set, slot);
        remove_slot(&list->set, end);
    }
}

static void reply_moved(void *context, unsigned first, unsigned last, const char *address) {
    char reason[sizeof "MOVED " + SLOTS_ADDRESS_MAX_BYTES];
    snprintf(reason, sizeof reason, "MOVED %s", address);
    reply_slots(context, &now.moved, first, last, reason);
}

/* Slots that were served before the publish, and not during it: the cluster has just gone down. */
static void add_blocked(const slots_option *slots) {
    for (unsigned slot = slots->first; slots->blocks && slot <= slots->last; slot++) {
        if (!hmq_slot_set_has(&slots->blocked, slot)) continue;
        add(&now.waiting, slot);
        remove_slot(&now.new_epoch.set, slot);
    }
    if (slots->blocks) remember(&now.waiting);
}

static void note_epochs(server_ctx *ctx, const publisher *from) {
    for (unsigned i = now.first; now.new_epoch.any && i <= now.last; i++) {
        for (uint64_t left = now.new_epoch.set.words[i]; left != 0; left &= left - 1)
            publisher_epoch_note(ctx, i * 64 + (unsigned)__builtin_ctzll(left), from->client_id, from->epoch);
    }
}

void publish_home_end(server_ctx *ctx, const slots_option *slots, const publisher *from, long long reached) {
    replying r = {.ctx = ctx};
    add_blocked(slots);
    note_epochs(ctx, from);
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, reached);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    if (now.moved.any) slots_each_owned(reply_moved, &r);
    reply_slots(&r, &now.moved, slots->first, slots->last, "TRYAGAIN"); /* nobody has them */
    reply_slots(&r, &now.waiting, slots->first, slots->last, "TRYAGAIN");
    reply_slots(&r, &now.refused, slots->first, slots->last, "REFUSED");
    reply_slots(&r, &now.fenced, slots->first, slots->last, "FENCED");
    sv.ReplySetArrayLength(ctx, r.ranges);
}
