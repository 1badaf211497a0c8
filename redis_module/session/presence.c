/* presence.c - announces clients that come and go. */
#include "session/presence.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/command_slot.h"
#include "cluster/answer.h"
#include "routing/publish.h"
#include "session/member.h"
#include "session/outbox.h"

#define CHANNEL "holdmq:presence"
#define TOPIC_BEGIN "$SYS/clients/"
#define MOST_ESCAPED 6 /* \u00XX */

/* Writes a JSON string without its quotes; bytes that are not UTF-8 become the characters of their numbers. */
static char *put_text(char *out, hmq_slice text) {
    bool plain = hmq_utf8_check(text.data, text.len) != HMQ_UTF8_ILL_FORMED;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];
        if (c == '"' || c == '\\')
            *out++ = '\\', *out++ = (char)c;
        else if (c < 0x20 || c == 0x7F || (c >= 0x80 && !plain))
            out += sprintf(out, "\\u%04x", c);
        else
            *out++ = (char)c;
    }
    return out;
}

static server_string *json_of(const presence *what, hmq_slice client, long long now_ms) {
    hmq_slice owner = what->owner == NULL ? (hmq_slice){0} : slice_of(what->owner);
    char *text = sv.Alloc(MOST_ESCAPED * (client.len + owner.len) + strlen(what->reason) + 256), *at = text;
    at = put_text(stpcpy(at, "{\"client\": \""), client);
    at += sprintf(at, "\", \"event\": \"%s\", \"time\": %lld, \"owner\": \"",
                  what->connected ? "connected" : "disconnected", now_ms);
    at = put_text(at, owner);
    at += sprintf(at, "\", \"epoch\": %lld, \"reason\": \"%s\"}", what->epoch, what->reason);
    server_string *json = sv.CreateString(NULL, text, (size_t)(at - text));
    sv.Free(text);
    return json;
}

static char *put_level(char *out, hmq_slice client) {
    for (size_t i = 0; i < client.len; i++) {
        char c = (char)client.data[i];
        if (c == '/' || c == '+' || c == '#' || c == '%')
            out += sprintf(out, "%%%02X", c);
        else
            *out++ = c;
    }
    return out;
}

static void publish(server_ctx *ctx, const presence *what, hmq_slice client, const server_string *json,
                    long long now_ms) {
    char *topic = sv.Alloc(3 * client.len + 64), *at = put_level(stpcpy(topic, TOPIC_BEGIN), client);
    at = stpcpy(at, what->connected ? "/connected" : "/disconnected");
    size_t len = (size_t)(at - topic);
    if (hmq_topic_check_name(topic, len) ==
        HMQ_TOPIC_OK) { /* an id that is not UTF-8, or too long, cannot be in a topic */
        hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                             .qos = 1,
                             .time_ms = now_ms,
                             .topic = {(const uint8_t *)topic, len},
                             .payload = slice_of(json)};
        /* Every client that comes and goes would fill the outbox, although hardly anybody listens. */
        if (route_reaches_nobody(ctx, record.topic) || !outbox_put(ctx, what->session, &record))
            topic_publish(ctx, &record, &(quota_claim){.most = -1});
    }
    sv.Free(topic);
}

static void publish_change(server_ctx *ctx, const presence *what) {
    char *id = sv.Alloc(what->session.len);
    int64_t len = hmq_session_key_decode((const char *)what->session.data, what->session.len, id, what->session.len);
    if (len > 0) {
        hmq_slice client = {(const uint8_t *)id, (size_t)len};
        long long now_ms = sv.Milliseconds();
        server_string *json = json_of(what, client, now_ms);
        server_string *channel = sv.CreateString(NULL, CHANNEL, sizeof CHANNEL - 1);
        publish(ctx, what, client, json, now_ms);
        sv.PublishMessage(ctx, channel, json);
        sv.FreeString(NULL, channel);
        sv.FreeString(NULL, json);
    }
    sv.Free(id);
}

/* Announced after the command. */
typedef struct pending {
    server_string *session, *owner; /* the owner's may be NULL */
    presence what;
} pending;

static void publish_pending(server_ctx *ctx, void *data) {
    const pending *p = data;
    publish_change(ctx, &p->what);
}

static void release_pending(void *data) {
    pending *p = data;
    sv.FreeString(NULL, p->session);
    if (p->owner != NULL) sv.FreeString(NULL, p->owner);
    sv.Free(p);
}

static server_string *copy_of(hmq_slice text) {
    return sv.CreateString(NULL, (const char *)text.data, text.len);
}

void presence_announce(server_ctx *ctx, const presence *what) {
    if (!settings.presence || member_is(what->session)) return; /* the client's own session announces it */
    if (!command_slot_is_bound()) {
        publish_change(ctx, what);
        return;
    }
    pending *p = sv.Alloc(sizeof *p);
    *p = (pending){copy_of(what->session), what->owner == NULL ? NULL : copy_of(slice_of(what->owner)), *what};
    p->what.session = slice_of(p->session);
    p->what.owner = p->owner;
    command_slot_after(ctx, publish_pending, p, release_pending);
}
