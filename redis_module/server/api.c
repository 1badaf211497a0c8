/* api.c - finds the functions of the module API by name. */
#include "server/api.h"

struct server_api sv;

typedef int (*lookup_function)(const char *name, void *function);
static lookup_function lookup;

/* The module ABI: the first word of the context that OnLoad gets is the look-up function. */
static void find_lookup(server_ctx *ctx) {
    lookup = *(lookup_function *)(void *)ctx;
}

typedef struct api_entry {
    const char *name;
    const char *since;
    bool required;
    void *slot;
} api_entry;

#define REQUIRED true
#define OPTIONAL false
#define SERVER_API_ENTRY(need, since, result, name, arguments) {"RedisModule_" #name, since, need, (void *)&sv.name},
static const api_entry entries[] = {SERVER_API(SERVER_API_ENTRY)};
#undef SERVER_API_ENTRY
#undef REQUIRED
#undef OPTIONAL

const char *server_api_load(server_ctx *ctx, const char **missing_since) {
    find_lookup(ctx);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (lookup(entries[i].name, entries[i].slot) == SERVER_OK) continue;
        *(void **)entries[i].slot = NULL;
        if (!entries[i].required) continue;
        *missing_since = entries[i].since;
        return entries[i].name;
    }
    return NULL;
}

bool server_api_has(const char *name) {
    void *found = NULL;
    return lookup(name, (void *)&found) == SERVER_OK && found != NULL;
}

bool server_is_valkey(void) {
    return server_api_has("ValkeyModule_Alloc");
}
