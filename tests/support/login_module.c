/* login_module.c - a module that logs clients in by itself: LOGIN.AS <user>. */
#include <stddef.h>

typedef struct ctx ctx;
typedef struct string string;
typedef int (*handler)(ctx *, string **, int);

#define EXPORTED __attribute__((visibility("default")))
#define API_VERSION 1

static int (*get_api)(const char *, void *);
static void (*set_attributes)(ctx *, const char *, int, int);
static int (*create_command)(ctx *, const char *, handler, const char *, int, int, int);
static int (*authenticate)(ctx *, const char *, size_t, void (*)(unsigned long, void *), void *, unsigned long *);
static const char *(*text_of)(const string *, size_t *);
static int (*reply)(ctx *, const char *);
static int (*reply_error)(ctx *, const char *);

static int login_as(ctx *c, string **argv, int argc) {
    size_t len;
    const char *user = argc == 2 ? text_of(argv[1], &len) : NULL;
    if (user == NULL || authenticate(c, user, len, NULL, NULL, NULL) != 0) return reply_error(c, "ERR no such user");
    return reply(c, "OK");
}

EXPORTED int RedisModule_OnLoad(ctx *c, string **argv, int argc);

int RedisModule_OnLoad(ctx *c, string **argv, int argc) {
    (void)argv, (void)argc;
    get_api = *(int (**)(const char *, void *))(void *)c;
    get_api("RedisModule_SetModuleAttribs", (void *)&set_attributes);
    get_api("RedisModule_CreateCommand", (void *)&create_command);
    get_api("RedisModule_AuthenticateClientWithACLUser", (void *)&authenticate);
    get_api("RedisModule_StringPtrLen", (void *)&text_of);
    get_api("RedisModule_ReplyWithSimpleString", (void *)&reply);
    get_api("RedisModule_ReplyWithError", (void *)&reply_error);
    set_attributes(c, "login", 1, API_VERSION);
    return create_command(c, "LOGIN.AS", login_as, "fast no-auth", 0, 0, 0);
}
