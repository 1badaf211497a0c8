/* fan_out_programs.c - counts of pending publishes, by user of the server. */
#include "routing/fan_out_programs.h"

#include "server/access.h"
#include "server/errors.h"
#include "server/session_keys.h"

/* Of one user. */
#define FAN_OUTS_MAX 10000U
#define BYTES_MAX ((size_t)64 << 20)
#define ALL_PROGRAMS 4U /* times as many */
#define LOGGED_EVERY_MS 60000

#define UNKNOWN_USER 1U

typedef struct load {
    size_t fan_outs, bytes;
} load;

struct program_loads {
    server_dict *by_user; /* by its hash */
    load all;
};

program_loads *program_loads_new(void) {
    program_loads *loads = sv.Calloc(1, sizeof *loads);
    loads->by_user = sv.CreateDict(NULL);
    return loads;
}

void program_loads_free(program_loads *loads) {
    server_dict_iter *iter = sv.DictIteratorStartC(loads->by_user, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) sv.Free(value);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, loads->by_user);
    sv.Free(loads);
}

static load *find(const program_loads *loads, uint64_t program) {
    return sv.DictGetC(loads->by_user, &program, sizeof program, NULL);
}

void program_loads_add(program_loads *loads, uint64_t program, size_t count, size_t bytes) {
    if (program == 0) return;
    load *own = find(loads, program);
    if (own == NULL) sv.DictSetC(loads->by_user, &program, sizeof program, own = sv.Calloc(1, sizeof *own));
    own->fan_outs += count, own->bytes += bytes;
    loads->all.fan_outs += count, loads->all.bytes += bytes;
}

void program_loads_remove(program_loads *loads, uint64_t program, size_t count, size_t bytes) {
    load *own = program == 0 ? NULL : find(loads, program);
    if (own == NULL) return;
    own->fan_outs -= count, own->bytes -= bytes;
    loads->all.fan_outs -= count, loads->all.bytes -= bytes;
    if (own->fan_outs > 0) return;
    sv.DictDelC(loads->by_user, &program, sizeof program, NULL);
    sv.Free(own);
}

static bool is_too_much(const load *l, size_t times, size_t more_bytes) {
    return l->fan_outs > 0 && (l->fan_outs >= FAN_OUTS_MAX * times || l->bytes + more_bytes > BYTES_MAX * times);
}

static void refuse(server_ctx *ctx, const char *who, const load *l, size_t times) {
    static long long logged_ms;
    long long now_ms = sv.Milliseconds();
    counters.fan_outs_refused++;
    reply_error(ctx, ERROR_PROGRAM_FAN_OUTS_PENDING, l->fan_outs, who, l->bytes, FAN_OUTS_MAX * times,
                BYTES_MAX * times);
    if (logged_ms > 0 && now_ms - logged_ms < LOGGED_EVERY_MS) return;
    logged_ms = now_ms;
    sv.Log(ctx, "warning",
           "%zu publishes of %s to many sessions are pending, with %zu bytes: further ones are refused; "
           "logged at most once in %d s",
           l->fan_outs, who, l->bytes, LOGGED_EVERY_MS / 1000);
}

bool program_loads_have_room(server_ctx *ctx, const program_loads *loads, size_t bytes, uint64_t *program) {
    server_string *user = access_user_of_runner(ctx);
    *program = user == NULL ? UNKNOWN_USER : client_hash(slice_of(user)) | 1U;
    const load *found = find(loads, *program);
    load own = found == NULL ? (load){0} : *found;
    bool is_own = is_too_much(&own, 1, bytes), has_room = !is_own && !is_too_much(&loads->all, ALL_PROGRAMS, bytes);
    if (is_own)
        refuse(ctx, user == NULL ? "an unknown user" : shown(user), &own, 1);
    else if (!has_room)
        refuse(ctx, "all programs", &loads->all, ALL_PROGRAMS);
    if (user != NULL) sv.FreeString(NULL, user);
    if (!has_room) *program = 0;
    return has_room;
}
