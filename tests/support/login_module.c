/* login_module.c - a module that logs clients in by itself: LOGIN.AS <user>; and that answers AUTH <user> later, when somebody
 * says LOGIN.FINISH (from 7.2 on). */
#include <stddef.h>
#include <string.h>

typedef struct ctx ctx;
typedef struct string string;
typedef int (*handler)(ctx *, string **, int);
typedef struct blocked blocked;
typedef int (*auth_callback)(ctx *, string *, string *, string **);
typedef int (*auth_reply)(ctx *, string *, string *, string **);

#define EXPORTED __attribute__((visibility("default")))
#define API_VERSION 1

static int (*get_api)(const char *, void *);
static void (*set_attributes)(ctx *, const char *, int, int);
static int (*create_command)(ctx *, const char *, handler, const char *, int, int, int);
static int (*authenticate)(ctx *, const char *, size_t, void (*)(unsigned long, void *), void *, unsigned long *);
static const char *(*text_of)(const string *, size_t *);
static int (*reply)(ctx *, const char *);
static int (*reply_error)(ctx *, const char *);

static void (*register_auth)(ctx *, auth_callback);
static blocked *(*block_on_auth)(ctx *, auth_reply, void (*)(ctx *, void *));
static int (*unblock)(blocked *, void *);

enum { HANDLED = 0, NOT_HANDLED = 1 };
static blocked *waiting;

static int finish_auth(ctx *c, string *user, string *password, string **error) {
    (void)password, (void)error;
    size_t len;
    const char *name = text_of(user, &len);
    return authenticate(c, name, len, NULL, NULL, NULL) == 0 ? HANDLED : NOT_HANDLED;
}

/* One at a time, and only with the password "later". */
static int begin_auth(ctx *c, string *user, string *password, string **error) {
    (void)user, (void)error;
    size_t len;
    const char *text = text_of(password, &len);
    if (waiting != NULL || len != 5 || memcmp(text, "later", 5) != 0) return NOT_HANDLED;
    waiting = block_on_auth(c, finish_auth, NULL);
    return HANDLED;
}

static int login_finish(ctx *c, string **argv, int argc) {
    (void)argv, (void)argc;
    if (waiting == NULL) return reply_error(c, "ERR nobody waits");
    unblock(waiting, NULL);
    waiting = NULL;
    return reply(c, "OK");
}

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
    get_api("RedisModule_RegisterAuthCallback", (void *)&register_auth);
    get_api("RedisModule_BlockClientOnAuth", (void *)&block_on_auth);
    get_api("RedisModule_UnblockClient", (void *)&unblock);
    set_attributes(c, "login", 1, API_VERSION);
    if (register_auth != NULL) register_auth(c, begin_auth);
    if (create_command(c, "LOGIN.FINISH", login_finish, "fast", 0, 0, 0) != 0) return 1;
    return create_command(c, "LOGIN.AS", login_as, "fast no-auth", 0, 0, 0);
}
