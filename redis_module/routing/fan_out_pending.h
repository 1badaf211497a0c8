/* fan_out_pending.h - which fan-outs are pending, and which of them is delivered next.
 *
 * In memory: what is remembered of their hashes (routing/fan_out.h).  One exists as long as its hash has chunks. */
#ifndef HMQ_FAN_OUT_PENDING_H
#define HMQ_FAN_OUT_PENDING_H

#include "topic/record.h"
#include "index/index.h"
#include "routing/fan_out_programs.h"
#include "routing/judging_pending.h"
#include "routing/matching.h"

#define FAN_OUT_PREFIX "holdmq:fan-out:" /* of the hashes' names; 16 hexadecimal digits follow */
#define FAN_OUT_NAME_LEN (sizeof FAN_OUT_PREFIX - 1 + 16)

typedef struct fan_out {
    server_string *name, *topic;
    uint64_t owner; /* a hash of the user, or of the client, that published */
    size_t chunks;  /* left */
    bool is_unmatched; /* its sessions are still to be found: no chunks are known yet */
    bool has_older; /* the retained message of before is in the hash */
    size_t record_bytes;
    size_t chunk_bytes; /* of the first chunk, which is delivered last */
    uint64_t program; /* a hash of the user whose program published; 0: none did, or it is not known since a restart */
} fan_out;

/* Sessions that are being found in steps (routing/fan_out_search.h), for one fan-out at a time. */
typedef struct fan_out_search {
    fan_out *of;
    server_string *record;
    hmq_trie_place place;
    matching found;
    bool is_whole; /* all are found, and are now written into chunks */
    size_t written; /* of the sessions, then of the groups */
    size_t chunks, chunk_bytes; /* that are written; bytes of the first one */
} fan_out_search;

/* An unmatched fan-out counts for its owner as so many pending chunks. */
#define FAN_OUT_UNMATCHED_CHUNKS 128U

struct fan_outs {
    server_dict *by_name; /* in the order of the publishes */
    server_dict *by_topic; /* topic, a zero, name: those of a topic in the order of their publishes */
    server_dict *by_owner; /* owner, name: those of an owner in the order of their publishes */
    size_t chunks; /* of all */
    size_t of_clients, record_bytes; /* how many clients published, and the bytes of these */
    size_t all_bytes; /* of all messages */
    judgings *judged; /* publishes whose queues are judged before they are pending */
    fan_out_search *search; /* NULL: none */
    program_loads *programs;
    unsigned long long last_number;
    uint64_t last_owner; /* whose chunk was delivered last */
};

fan_outs *fan_outs_new(void);
void fan_outs_free(fan_outs *all);

fan_out *fan_out_find(const fan_outs *all, hmq_slice name);
/* The one with this name is not remembered yet. */
fan_out *fan_out_remember(index_t *index, hmq_slice name, const hmq_record *record, const fan_out *sizes);
void fan_out_forget(fan_outs *all, fan_out *f);
void fan_out_search_begin(fan_outs *all, fan_out *of, server_string *record);
void fan_out_search_end(fan_outs *all);
/* The sessions are found: the chunks are known now. */
void fan_out_matched(fan_outs *all, fan_out *f, size_t chunks, size_t chunk_bytes);

/* A chunk was delivered; others are left. */
void fan_out_chunk_done(fan_outs *all, fan_out *f);
/* Of the message, the older one and the chunks that are left. */
size_t fan_out_bytes(const fan_out *f);

/* Who publishes: 0 is a program. */
uint64_t fan_out_owner(const index_t *index, hmq_slice client_id);
/* Of a client, which has few pending ones. */
size_t fan_out_chunks_of(const fan_outs *all, uint64_t owner);

bool fan_out_any(const index_t *index);
size_t fan_out_count(const index_t *index);
/* Is one of this topic pending?  O(log n). */
bool fan_out_is_topic_pending(const index_t *index, hmq_slice topic);
/* The one whose chunk is delivered next: of the next owner in turn, and no earlier one has its topic.  NULL: none is
 * pending. */
fan_out *fan_out_next(const fan_outs *all);

#endif
