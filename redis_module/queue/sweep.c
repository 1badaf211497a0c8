/* sweep.c - removes what an expired session left. */
#include "queue/sweep.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/slots.h"
#include "server/turns.h"
#include "index/session_hash.h"
#include "queue/queue.h"

#define NAMES_PER_TURN 1000
#define MOST_SWEEPS 100000 /* more are left to the strings' own expiry */
#define MOST_DROPPED 1000  /* messages that are removed with their queues in one turn */

typedef struct sweep {
    struct sweep *next;
    int db;
    uint16_t packet_id; /* the next to look at, downwards; 0: not begun */
    uint32_t looked, missed_in_a_row;
    bool dropped;       /* without a counter: another program may have one of that name by now */
    size_t left;        /* strings to be found */
    size_t len;
    uint8_t session[];
} sweep;

static sweep *first, **end = &first;
static size_t count;

static void append(const sweep *what, hmq_slice session) {
    sweep *s = sv.Alloc(sizeof *s + session.len);
    *s = *what;
    s->len = session.len;
    memcpy(s->session, session.data, session.len);
    *end = s;
    end = &s->next;
    count++;
    turns_request();
}

void sweep_note_expired(int db, hmq_slice session) {
    if (count < MOST_SWEEPS) append(&(sweep){.db = db, .left = SIZE_MAX}, session);
}

static size_t dropped; /* in this turn */

bool sweep_defer_removal(int db, hmq_slice session, size_t messages, long long last_packet_id) {
    turns_request();
    bool exceeds_limit = dropped + messages > MOST_DROPPED && last_packet_id > 0 && count < MOST_SWEEPS;
    if (exceeds_limit)
        append(&(sweep){.db = db, .packet_id = (uint16_t)last_packet_id, .dropped = true, .left = messages}, session);
    else
        dropped += messages;
    return exceeds_limit;
}

bool sweep_any_active(void) {
    return first != NULL;
}

static uint16_t before(uint16_t packet_id) {
    return packet_id <= 1 ? HMQ_PACKET_ID_MAX : (uint16_t)(packet_id - 1);
}

static void unlink_names(server_string **names, size_t n) {
    server_reply *reply = sv.Call(detached, "UNLINK", "!v", names, n);
    if (reply != NULL) sv.FreeCallReply(reply);
    for (size_t i = 0; i < n; i++) sv.FreeString(NULL, names[i]);
}

/* A key of another type belongs to another program. */
static bool is_message(server_string *name) {
    server_key *key = sv.OpenKey(detached, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool there = sv.KeyType(key) == SERVER_STRING;
    if (key != NULL) sv.CloseKey(key);
    return there;
}

/* Looks at up to *budget names; true if nothing is left to search. */
static bool look(sweep *s, queue *q, size_t *budget, server_string **found, size_t *n) {
    char *name = sv.Alloc(s->len + 16);
    while (*budget > 0 && s->left > 0 && s->looked < HMQ_PACKET_ID_MAX &&
           s->missed_in_a_row <= (uint32_t)settings.session_limit) {
        size_t len = hmq_message_key((const char *)s->session, s->len, s->packet_id, name, s->len + 16);
        server_string *key = sv.CreateString(NULL, name, len);
        double score;
        bool there = is_message(key);
        bool of_a_new_session = there && queue_length(q) > 0 && sv.ZsetScore(q->messages, key, &score) == SERVER_OK;
        if (there && !of_a_new_session)
            found[(*n)++] = key;
        else
            sv.FreeString(NULL, key);
        s->missed_in_a_row = there ? 0 : s->missed_in_a_row + 1;
        s->left -= there;
        s->packet_id = before(s->packet_id);
        s->looked++;
        (*budget)--;
    }
    sv.Free(name);
    return s->left == 0 || s->looked >= HMQ_PACKET_ID_MAX || s->missed_in_a_row > (uint32_t)settings.session_limit;
}

/* True when done. */
static bool go_on(sweep *s, size_t *budget) {
    hmq_slice session = {s->session, s->len};
    server_string *found[NAMES_PER_TURN];
    size_t n = 0;
    queue q;
    if (slots_state(slots_of_key(session)) != SLOT_SERVED)
        return true; /* messages of a moving slot are left to their own expiry */
    sv.SelectDb(detached, s->db);
    bool usable = queue_open(&q, detached, session, SERVER_READ);
    long long last = s->dropped ? s->packet_id : usable ? queue_last_packet_id(&q) : 0;
    bool done = last <= 0; /* a session that was never opened has no counter left by now */
    if (!done && usable) {
        if (s->looked == 0) s->packet_id = (uint16_t)last;
        done = look(s, &q, budget, found, &n);
        if (done && !s->dropped && queue_length(&q) == 0 && !session_facts_read(detached, session).exists)
            found[n++] = sv.HoldString(NULL, queue_counter_name(&q));
    }
    queue_close(&q);
    if (n > 0) unlink_names(found, n);
    sv.SelectDb(detached, 0);
    return done;
}

void sweep_before_sleep(void) {
    dropped = 0;
    if (first == NULL) return;
    bool master = (sv.GetContextFlags(detached) & (SERVER_CTX_MASTER | SERVER_CTX_READONLY | SERVER_CTX_LOADING)) ==
                  SERVER_CTX_MASTER;
    size_t budget = NAMES_PER_TURN - 1; /* the counter is not among them */
    while (first != NULL && budget > 0) {
        sweep *s = first;
        if (master && !go_on(s, &budget)) return;
        first = s->next;
        if (first == NULL) end = &first;
        sv.Free(s);
        count--;
    }
}
