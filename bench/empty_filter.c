/* empty_filter.c - a module with a command filter that does nothing: what the server takes for the filter of any module.
 *
 *   loadmodule empty_filter.so          registers the filter
 *   loadmodule empty_filter.so none     registers nothing: what a loaded module costs without a filter */
#include <string.h>

#include "server/api.h"

#define NAME "empty_filter"
#define VERSION 1

typedef int (*lookup_function)(const char *name, void *function);

static void do_nothing(server_filter_ctx *filter) {
    (void)filter;
}

/* Registers the filter.  False if the server refuses. */
static bool start_filter(lookup_function lookup, server_ctx *ctx) {
    server_filter *(*start)(server_ctx *, server_filter_handler, int flags);
    if (lookup("RedisModule_RegisterCommandFilter", (void *)&start) != SERVER_OK) return false;
    return start(ctx, do_nothing, SERVER_FILTER_NOSELF) != NULL;
}

static bool is_without_filter(lookup_function lookup, server_string **argv, int argc) {
    const char *(*text_of)(const server_string *, size_t *length);
    if (argc == 0 || lookup("RedisModule_StringPtrLen", (void *)&text_of) != SERVER_OK) return false;
    return strcmp(text_of(argv[0], NULL), "none") == 0;
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(server_ctx *ctx, server_string **argv, int argc);

int RedisModule_OnLoad(server_ctx *ctx, server_string **argv, int argc) {
    lookup_function lookup = *(lookup_function *)(void *)ctx; /* by the module ABI: the first word of the context */
    void (*set_attributes)(server_ctx *, const char *name, int version, int api);
    if (lookup("RedisModule_SetModuleAttribs", (void *)&set_attributes) != SERVER_OK) return SERVER_ERR;
    set_attributes(ctx, NAME, VERSION, SERVER_API_VERSION);
    if (is_without_filter(lookup, argv, argc)) return SERVER_OK;
    return start_filter(lookup, ctx) ? SERVER_OK : SERVER_ERR;
}
