/* publish_slots.c - remembers the last message of a producer in each slot. */
#include "routing/publish_slots.h"

#include <stdio.h>

#include "topic/session_key.h"
#include "topic/slot.h"
#include "index/filters.h"
#include "index/shares.h"

#define MOST_MEMBERS 64 /* members of a group whose slots are examined */
#define DIGITS_MAX 12

/* ---- keys -------------------------------------------------------------------------------------------------- */

server_string *publish_slots_key(unsigned slot, hmq_slice id) {
    char name[DIGITS_MAX + sizeof "{}_published" + (size_t)PUBLISH_PRODUCER_ID_MAX * 3 + 2];
    size_t len = (size_t)snprintf(name, sizeof name, "{%u}_published", hmq_slot_tag(slot));
    len += hmq_session_key_encode((const char *)id.data, id.len, name + len, sizeof name - len);
    return sv.CreateString(NULL, name, len);
}

/* ---- one command ------------------------------------------------------------------------------------------- */

static struct {
    slots_option *asked;
    const publish_producer *by;
    uint64_t command; /* its number, from 1 on */
    uint64_t judged[HMQ_SLOTS]; /* the last command that checked the slot */
    bool served[HMQ_SLOTS];
    uint64_t last[HMQ_SLOTS]; /* number of the producer's last message there */
    uint16_t touched[HMQ_SLOTS]; /* served slots */
    size_t count;
} now;

void publish_slots_begin(slots_option *asked, const publish_producer *by) {
    now.asked = asked;
    now.by = by;
    now.command++;
    now.count = 0;
}

/* False after replying that the note is invalid. */
static bool read_last(server_ctx *ctx, unsigned slot, uint64_t *last) {
    publish_producer here = *now.by;
    *last = 0;
    if (here.id == NULL) return true;
    here.key = publish_slots_key(slot, slice_of(here.id));
    bool usable = publish_producer_last(ctx, &here, last);
    sv.FreeString(NULL, here.key);
    return usable;
}

static bool look_at(server_ctx *ctx, unsigned slot) {
    bool served = slots_option_verdict(now.asked, slot) == SLOT_USE;
    now.last[slot] = 0;
    if (served && !read_last(ctx, slot, &now.last[slot])) return false;
    now.judged[slot] = now.command;
    now.served[slot] = served;
    if (served) now.touched[now.count++] = (uint16_t)slot;
    return true;
}

static bool has(uint64_t last, uint64_t number) {
    return now.by->id != NULL && number <= last;
}

target publish_slots_judge(server_ctx *ctx, unsigned slot, uint64_t number) {
    if (now.judged[slot] != now.command && !look_at(ctx, slot)) return TARGET_REFUSED;
    if (!now.served[slot]) return TARGET_NOT_NOW;
    return has(now.last[slot], number) ? TARGET_KNOWN : TARGET_NEW;
}

/* Is the slot served, and what is the last message in it?  A group that was reached through another slot is not reached
 * again through this one.  False after replying an error. */
static bool look_at_member(server_ctx *ctx, unsigned slot, bool *served, uint64_t *last) {
    target here = publish_slots_judge(ctx, slot, 0);
    if (here == TARGET_REFUSED) return false;
    *served = here != TARGET_NOT_NOW;
    *last = now.last[slot];
    return *served || slots_state(slot) != SLOT_SERVED || read_last(ctx, slot, last);
}

/* Stores in the group the last message of its members' slots; false after replying an error. */
static bool look_at_share(server_ctx *ctx, share *s) {
    const indexed_session *member = NULL;
    size_t members = sv.DictSize(s->members);
    s->served = false;
    s->had = 0;
    for (size_t i = 0; i < members && i < MOST_MEMBERS; i++) {
        bool served;
        uint64_t last;
        member = share_next_member(s, member == NULL ? NULL : member->key);
        if (!look_at_member(ctx, member->slot, &served, &last)) return false;
        s->served = s->served || served;
        if (last > s->had) s->had = last;
    }
    s->judged = now.command;
    return true;
}

target publish_slots_judge_share(server_ctx *ctx, share *s, uint64_t number) {
    if (s->judged != now.command && !look_at_share(ctx, s)) return TARGET_REFUSED;
    if (!s->served) return TARGET_NOT_NOW;
    return has(s->had, number) ? TARGET_KNOWN : TARGET_NEW;
}

void publish_slots_note(server_ctx *ctx, uint64_t number) {
    if (now.by->id == NULL) return;
    publish_producer here = *now.by;
    here.chunk = (long long)number;
    for (size_t i = 0; i < now.count; i++) {
        unsigned slot = now.touched[i];
        if (now.last[slot] >= number) continue;
        here.key = publish_slots_key(slot, slice_of(here.id));
        publish_producer_note(ctx, &here);
        sv.FreeString(NULL, here.key);
    }
}
