/* member_notes.c - the groups that a client's session notes, and the end of their member sessions. */
#include "session/member_notes.h"

#include <stdio.h>
#include <string.h>

#include "topic/session_key.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/index.h"
#include "session/outbox.h"

#define FIELD "members"
#define LENGTH_BYTES 2
#define MARK 0xFC
#define CLAIM_BYTES 24 /* the mark, a number and a space */

/* ---- the field --------------------------------------------------------------------------------------------- */

/* Takes the next filter from the list; false at its end, or if another program wrote something else. */
static bool take_filter(hmq_slice *list, hmq_slice *filter) {
    if (list->len < LENGTH_BYTES) return false;
    size_t len = (size_t)list->data[0] | (size_t)list->data[1] << 8;
    if (list->len - LENGTH_BYTES < len) return false;
    *filter = (hmq_slice){list->data + LENGTH_BYTES, len};
    *list = (hmq_slice){list->data + LENGTH_BYTES + len, list->len - LENGTH_BYTES - len};
    return true;
}

/* Where a filter is in the list, with its length; len 0: nowhere.  `count`: how many filters there are. */
static hmq_slice find(hmq_slice list, hmq_slice wanted, size_t *count) {
    hmq_slice found = {0}, filter;
    for (*count = 0; take_filter(&list, &filter); ++*count) {
        if (filter.len == wanted.len && memcmp(filter.data, wanted.data, filter.len) == 0)
            found = (hmq_slice){filter.data - LENGTH_BYTES, filter.len + LENGTH_BYTES};
    }
    return found;
}

/* The hash of an opened session, open for writing, with its list (NULL: it has none); NULL: nobody has opened it. */
static server_key *open_hash(server_ctx *ctx, server_string *name, server_string **list) {
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int is_opened = 0;
    if (sv.KeyType(hash) == SERVER_HASH)
        sv.HashGet(hash, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "epoch", &is_opened, NULL);
    *list = NULL;
    if (is_opened) {
        sv.HashGet(hash, SERVER_HASH_CFIELDS, FIELD, list, NULL);
        return hash;
    }
    sv.CloseKey(hash);
    return NULL;
}

/* Writes the list, or removes it if it is empty. */
static void write_list(server_ctx *ctx, server_key *hash, server_string *name, hmq_slice list) {
    if (list.len > 0) {
        server_string *value = sv.CreateString(NULL, (const char *)list.data, list.len);
        sv.HashSet(hash, SERVER_HASH_CFIELDS, FIELD, value, NULL);
        replicate(ctx, "HSET", "scs", name, FIELD, value);
        sv.FreeString(NULL, value);
    } else {
        sv.HashSet(hash, SERVER_HASH_CFIELDS, FIELD, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, FIELD);
    }
    index_notify(ctx, SERVER_NOTIFY_HASH, list.len > 0 ? "hset" : "hdel", name);
}

static void add(server_ctx *ctx, server_key *hash, server_string *name, hmq_slice list, hmq_slice filter) {
    size_t len = list.len + LENGTH_BYTES + filter.len;
    uint8_t *longer = sv.Alloc(len), *end = longer + list.len;
    if (list.len > 0) memcpy(longer, list.data, list.len);
    end[0] = (uint8_t)(filter.len & 0xFF);
    end[1] = (uint8_t)(filter.len >> 8);
    memcpy(end + LENGTH_BYTES, filter.data, filter.len);
    write_list(ctx, hash, name, (hmq_slice){longer, len});
    sv.Free(longer);
}

static void cut(server_ctx *ctx, server_key *hash, server_string *name, hmq_slice list, hmq_slice gone) {
    size_t before = (size_t)(gone.data - list.data), after = list.len - before - gone.len;
    uint8_t *shorter = sv.Alloc(list.len);
    memcpy(shorter, list.data, before);
    memcpy(shorter + before, gone.data + gone.len, after);
    write_list(ctx, hash, name, (hmq_slice){shorter, before + after});
    sv.Free(shorter);
}

void member_notes_set(server_ctx *ctx, hmq_slice session, hmq_slice filter, bool noted) {
    if (!can.cluster) return;
    size_t count;
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION), *text;
    server_key *hash = open_hash(ctx, name, &text);
    if (hash != NULL) {
        hmq_slice list = text == NULL ? (hmq_slice){0} : slice_of(text);
        hmq_slice at = find(list, filter, &count);
        if (noted && at.len == 0 && count < MEMBERS_MOST)
            add(ctx, hash, name, list, filter);
        else if (!noted && at.len > 0)
            cut(ctx, hash, name, list, at);
        if (text != NULL) sv.FreeString(NULL, text);
        sv.CloseKey(hash);
    }
    sv.FreeString(NULL, name);
}

/* ---- the end ----------------------------------------------------------------------------------------------- */

/* The key of the member is that of the group after the client's, without its braces. */
static void put_end(server_ctx *ctx, hmq_slice session, hmq_slice filter, long long epoch) {
    server_string *group = session_key_of(filter);
    hmq_slice client = {session.data + 1, session.len - 2}, key = slice_of(group);
    uint8_t *text = sv.Alloc(CLAIM_BYTES + client.len + 1 + key.len), *at = text;
    *at++ = MARK;
    at += sprintf((char *)at, "%lld ", epoch);
    at = mempcpy(at, client.data, client.len);
    *at++ = ':';
    at = mempcpy(at, key.data, key.len);
    outbox_put_end(ctx, session, (hmq_slice){text, (size_t)(at - text)});
    sv.Free(text);
    sv.FreeString(NULL, group);
}

void member_notes_end(server_ctx *ctx, hmq_slice session, long long epoch) {
    if (!can.cluster || epoch == 0) return;
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION), *text;
    server_key *hash = open_hash(ctx, name, &text);
    if (text != NULL) write_list(ctx, hash, name, (hmq_slice){0});
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    if (text == NULL) return;
    hmq_slice list = slice_of(text), filter;
    bool has_tag = session.len > 2 && session.data[0] == '{' && session.data[session.len - 1] == '}';
    while (has_tag && take_filter(&list, &filter)) put_end(ctx, session, filter, epoch);
    sv.FreeString(NULL, text);
}
