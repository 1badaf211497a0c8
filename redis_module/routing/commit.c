/* commit.c - TOPIC.COMMIT: a producer's messages are in all slots of a cluster, so the notes of the slots
 * (routing/publish_slots.h) may expire.  One note for all slots stays, as on a single server.
 *
 *     {<id>}_producer              "<epoch> <number>"    written if the number is higher than before
 *     {<digits>}_published{<id>}   of each slot: expires in ten minutes, unless its number is higher
 *
 * The ten minutes protect another publisher with the same name that has not seen the commit yet.
 *
 * O(slots in the command): about 2 ms for a third of all slots. */
#include "server/args.h"
#include "server/errors.h"
#include "routing/publish.h"
#include "routing/publish_slots.h"

#define LEFT_MS (10LL * 60 * 1000)
#define MAX_NUMBER 9007199254740991LL

typedef struct commit {
    publish_producer by;
    slots_option slots;
} commit;

static bool parse(args *a, commit *c) {
    if (!publish_producer_parse_id(a, &c->by) || !args_number(a, "epoch", 0, MAX_NUMBER, &c->by.epoch) ||
        !args_number(a, "number", 1, MAX_NUMBER, &c->by.chunk))
        return false;
    if (args_take_word(a, "SLOTS")) return slots_option_parse(a, &c->slots) && args_end(a);
    reply_error(a->ctx, ERROR_COMMIT_SLOTS_MISSING);
    return false;
}

/* Writes the note for all slots, if this node has its slot and the command names it.  False after replying an error. */
static bool note(server_ctx *ctx, commit *c, bool *noted) {
    uint64_t last;
    server_string *name = publish_producer_key(slice_of(c->by.id));
    bool usable = true;
    c->by.key = name;
    *noted = slots_option_verdict(&c->slots, slots_of_key(slice_of(name))) == SLOT_USE;
    if (*noted) usable = publish_producer_last(ctx, &c->by, &last);
    if (*noted && usable && last < (uint64_t)c->by.chunk) publish_producer_note(ctx, &c->by);
    sv.FreeString(NULL, name);
    return usable;
}

static long long end_notes(server_ctx *ctx, commit *c) {
    long long ended = 0, end_ms = sv.Milliseconds() + LEFT_MS;
    for (unsigned slot = 0; slot < HMQ_SLOTS; slot++) {
        if (!hmq_slot_set_has(&c->slots.asked, slot) || slots_state(slot) != SLOT_SERVED) continue;
        c->by.key = publish_slots_key(slot, slice_of(c->by.id));
        ended += publish_producer_end(ctx, &c->by, end_ms);
        sv.FreeString(NULL, c->by.key);
    }
    return ended;
}

int topic_commit_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 8) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    commit c = {.by = {0}};
    bool noted;
    slots_option_begin(&c.slots);
    if (!parse(&a, &c)) return SERVER_OK;
    slots_served(&c.slots.asked);
    if (!note(ctx, &c, &noted)) return SERVER_OK;
    long long ended = end_notes(ctx, &c);
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, noted);
    sv.ReplyWithLongLong(ctx, ended);
    slots_option_reply_unserved(ctx, &c.slots);
    return SERVER_OK;
}
