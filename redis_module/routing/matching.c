/* matching.c - collects what the trie finds for a publish. */
#include "routing/matching.h"

#include "server/memory.h"
#include "server/session_keys.h"
#include "index/subscription.h"

/* The subscription identifiers of one match, as a list. */
struct match_identifier {
    uint32_t identifier;
    uint32_t next; /* as in a match */
};

void matching_begin(matching *m, bool in_steps) {
    static uint64_t last_mark;
    m->in_steps = in_steps;
    m->count = m->share_count = m->identifier_count = 0;
    m->mark = ++last_mark;
    if (in_steps) m->known_groups = sv.CreateDict(NULL);
}

void matching_release(matching *m) {
    if (m->released < m->count) {
        index_session_release(m->list[m->released].session);
    } else {
        server_string *group = m->groups[m->released - m->count];
        hmq_slice name = slice_of(group);
        sv.DictDelC(m->known_groups, (void *)(uintptr_t)name.data, name.len, NULL);
        sv.FreeString(NULL, group);
    }
    m->released++;
}

void matching_end(matching *m) {
    for (; m->released < m->count; m->released++) index_session_release(m->list[m->released].session);
    for (; m->released < m->count + m->share_count; m->released++)
        sv.FreeString(NULL, m->groups[m->released - m->count]);
    sv.FreeDict(NULL, m->known_groups);
    sv.Free(m->groups);
    sv.Free(m->list);
    sv.Free(m->identifiers);
    sv.Free(m->chosen);
    *m = (matching){0};
}

static void add_identifier(matching *m, match *to, uint32_t identifier) {
    if (identifier == 0) return;
    size_t room = m->identifier_room, used = m->identifier_count;
    m->identifiers = array_reserve(m->identifiers, &m->identifier_room, used, 1, 64, sizeof *m->identifiers);
    if (m->identifier_room > room) m->chosen = sv.Realloc(m->chosen, m->identifier_room * sizeof *m->chosen);
    m->identifiers[m->identifier_count++] = (match_identifier){identifier, to->identifiers};
    to->identifiers = (uint32_t)m->identifier_count;
}

static void add_share(matching *m, share *s) {
    hmq_slice name = slice_of(s->filter);
    if (m->in_steps && sv.DictSetC(m->known_groups, (void *)(uintptr_t)name.data, name.len, m) != SERVER_OK) return;
    if (m->in_steps)
        m->groups = array_reserve(m->groups, &m->share_room, m->share_count, 1, 16, sizeof *m->groups);
    else
        m->shares = array_reserve(m->shares, &m->share_room, m->share_count, 1, 16, sizeof *m->shares);
    if (m->in_steps)
        m->groups[m->share_count++] = sv.HoldString(NULL, s->filter);
    else
        m->shares[m->share_count++] = s;
}

/* One more target. */
static void spend(const matching *m) {
    *m->left = *m->left > MATCHING_SESSION_UNITS ? *m->left - MATCHING_SESSION_UNITS : 0;
}

/* One session with several filters: one copy, the largest QoS. */
static void join(matching *m, match *to, uint8_t qos, bool as_published, uint32_t identifier) {
    if (qos > to->qos) to->qos = qos;
    to->retain_as_published |= as_published;
    add_identifier(m, to, identifier);
}

static bool take_match(void *context, uint64_t subscriber, uint32_t options) {
    matching *m = context;
    if (share_is_tagged(subscriber)) {
        spend(m);
        add_share(m, share_of(subscriber));
        return true;
    }
    indexed_session *session = (indexed_session *)(uintptr_t)subscriber;
    if (session->is_gone) return true;
    if ((options & SUBSCRIPTION_NO_LOCAL) && session == m->publisher) return true;
    uint8_t qos = options & SUBSCRIPTION_QOS;
    bool as_published = (options & SUBSCRIPTION_RETAIN_AS_PUBLISHED) != 0;
    session_mark *mark = m->in_steps ? &session->in_steps : &session->match;
    if (mark->number == m->mark) {
        join(m, &m->list[mark->slot], qos, as_published, subscription_identifier(options));
        return true;
    }
    spend(m);
    m->list = array_reserve(m->list, &m->room, m->count, 1, 64, sizeof *m->list);
    *mark = (session_mark){m->mark, (uint32_t)m->count};
    if (m->in_steps) index_session_hold(session);
    m->list[m->count] = (match){session, qos, as_published, 0};
    add_identifier(m, &m->list[m->count++], subscription_identifier(options));
    return true;
}

static const indexed_session *session_of_client(const index_t *index, hmq_slice client_id) {
    hmq_slice key = session_key_text(client_id);
    return key.len == 0 ? NULL : sv.DictGetC(index->sessions, (void *)(uintptr_t)key.data, key.len, NULL);
}

bool matching_find(matching *m, const index_t *index, const hmq_record *record, hmq_trie_place *place, size_t *left) {
    m->publisher = session_of_client(index, record->publisher);
    m->left = left;
    const char *topic = (const char *)record->topic.data;
    return hmq_trie_match_some(index->filters, topic, record->topic.len, place, left, take_match, m);
}

bool matching_counts(matching *m, const index_t *index, size_t n) {
    match *to = &m->list[n];
    if (!to->session->is_gone) return true;
    hmq_slice key = slice_of(to->session->key);
    indexed_session *now = sv.DictGetC(index->sessions, (void *)(uintptr_t)key.data, key.len, NULL);
    if (now == NULL) return false;
    if (now->in_steps.number != m->mark) {
        now->in_steps = (session_mark){m->mark, (uint32_t)n};
        return true;
    }
    match *other = &m->list[now->in_steps.slot];
    if (now->in_steps.slot <= n) return false; /* an earlier match was delivered */
    join(m, other, to->qos, to->retain_as_published, 0);
    for (uint32_t at = to->identifiers; at != 0; at = m->identifiers[at - 1].next)
        add_identifier(m, other, m->identifiers[at - 1].identifier);
    return false;
}

/* Copies the identifiers to m->chosen, in the order in which they were found; returns their number. */
static size_t gather_identifiers(matching *m, const match *to) {
    size_t count = 0;
    for (uint32_t at = to->identifiers; at != 0; at = m->identifiers[at - 1].next) count++;
    size_t place = count;
    for (uint32_t at = to->identifiers; at != 0; at = m->identifiers[at - 1].next)
        m->chosen[--place] = m->identifiers[at - 1].identifier;
    return count;
}

delivery_how matching_how(matching *m, const match *to, const hmq_record *record) {
    return (delivery_how){.qos = to->qos < record->qos ? to->qos : record->qos,
                          .retain = to->retain_as_published && record->retain,
                          .identifiers = m->chosen,
                          .identifier_count = gather_identifiers(m, to)};
}
