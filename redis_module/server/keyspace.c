/* keyspace.c - announces the module's own changes of keys, and is notified of changes by others. */
#include "server/keyspace.h"

#include <string.h>

#include "server/awake.h"
#include "server/listening.h"
#include "server/replication.h"

static bool own_write; /* the module itself causes the notification that is under way */
static keyspace_listener listener;

/* Modules that do not count as others: this one, and the scripting engine that comes with Valkey. */
static bool is_ignored_module(hmq_slice module) {
    return slice_is(module, HMQ_MODULE_NAME) || (can.valkey && slice_is(module, "lua"));
}

static void on_module_change(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub;
    const server_module_info *info = data;
    if (!is_ignored_module((hmq_slice){(const uint8_t *)info->name, strlen(info->name)})) can.has_other_modules = true;
}

static void look_for_modules(void) {
    server_reply *modules = sv.Call(detached, "MODULE", "c", "LIST");
    can.has_other_modules = modules == NULL;
    for (size_t i = 0; modules != NULL && i < sv.CallReplyLength(modules); i++) {
        hmq_slice name = {NULL, 0};
        server_reply *text = sv.CallReplyArrayElement(sv.CallReplyArrayElement(modules, i), 1); /* after "name" */
        if (text != NULL) name.data = (const uint8_t *)sv.CallReplyStringPtr(text, &name.len);
        if (name.data == NULL || !is_ignored_module(name)) can.has_other_modules = true;
    }
    if (modules != NULL) sv.FreeCallReply(modules);
}

/* The server creates a context for each listener, this module included.  So the event is announced only if another listener
 * may want it. */
void index_notify_others(server_ctx *ctx, int type, const char *event, server_string *key) {
    sv.SignalModifiedKey(ctx, key);
    if (!can.has_other_modules && !(sv.GetNotifyKeyspaceEvents() & type)) return;
    own_write = true;
    sv.NotifyKeyspaceEvent(ctx, type, event, key);
    own_write = false;
}

void index_notify(server_ctx *ctx, int type, const char *event, server_string *key) {
    if (type & (SERVER_NOTIFY_HASH | SERVER_NOTIFY_GENERIC)) listener.written(ctx, key);
    index_notify_others(ctx, type, event, key);
}

static int on_key_event(server_ctx *ctx, int type, const char *event, server_string *key) {
    if (!own_write) listener.changed(ctx, type, event, key);
    return SERVER_OK;
}

/* ---- removing a key ---------------------------------------------------------------------------------------- */

typedef void (*notifier)(server_ctx *ctx, int type, const char *event, server_string *key);

static bool drop_key(server_ctx *ctx, server_string *name, notifier notify) {
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool there = sv.KeyType(key) != SERVER_EMPTY;
    if (there) {
        sv.UnlinkKey(key);
        replicate(ctx, "UNLINK", "s", name);
        notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return there;
}

bool keyspace_drop(server_ctx *ctx, server_string *name) {
    return drop_key(ctx, name, index_notify);
}

bool keyspace_drop_past(server_ctx *ctx, server_string *name) {
    return drop_key(ctx, name, index_notify_others);
}

void keyspace_note_module_command(void) {
    static event_listener changes = {
        .event = SERVER_EVENT_MODULE_CHANGE, .handler = on_module_change, .is_early = true};
    if (!changes.is_wanted) listening_set(&changes, true);
}

static void wake(void) {
    look_for_modules();
    if (!can.module_command) keyspace_note_module_command(), awake_follow();
}

void keyspace_start(server_ctx *ctx, keyspace_listener who) {
    listener = who;
    sv.SubscribeToKeyspaceEvents(ctx,
                                 SERVER_NOTIFY_GENERIC | SERVER_NOTIFY_LIST | SERVER_NOTIFY_HASH |
                                     SERVER_NOTIFY_EXPIRED | SERVER_NOTIFY_EVICTED | SERVER_NOTIFY_LOADED,
                                 on_key_event);
    awake_add(wake);
}
