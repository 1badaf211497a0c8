/* resp.h - the part of RESP that the engine speaks: reads replies and pushes of RESP3, writes commands; private to the
 * core.
 *
 * Reading is a cursor over whole replies: hmq_resp_measure says where the first one ends, the others then walk inside it.
 * Nothing recurses; a reply of any depth is counted, not descended into. */
#ifndef HMQ_RESP_H
#define HMQ_RESP_H

#include "base/base.h"

/* Most elements and bytes of one aggregate or string that are believed; the server's own bound is 512 MB. */
#define HMQ_RESP_MAX 536870912LL

typedef struct hmq_resp_item {
    uint8_t type;   /* '+' '-' ':' '$' '*' '>' '%' '~' '_' ',' '#' '!' '=' '(' '|' */
    int64_t number; /* ':' value; '*' '>' '~' elements; '%' '|' pairs; -1: null */
    hmq_slice text; /* '+' '-' '$' '!' '=' and the other scalars: the text */
} hmq_resp_item;

/* Bytes of the first whole reply; 0: more are needed; -1: no RESP. */
int64_t hmq_resp_measure(const uint8_t *data, size_t len);

/* How far the measuring of a reply that is not whole has come; all 0: not begun. */
typedef struct hmq_resp_progress {
    size_t at;
    uint64_t left; /* items to come */
} hmq_resp_progress;
/* The same, from where the last call with the same beginning of the data stopped: a long reply that comes in many parts is
 * read once.  Unless more are needed, *progress is as at the beginning again. */
int64_t hmq_resp_measure_on(const uint8_t *data, size_t len, hmq_resp_progress *progress);
/* The next item (of an aggregate: its header), and moves *at behind it.  False: no RESP, or cut off. */
bool hmq_resp_next(const uint8_t *data, size_t len, size_t *at, hmq_resp_item *item);

/* Writers; each returns the place behind what it wrote.  Space: the text's length + HMQ_RESP_OVERHEAD. */
#define HMQ_RESP_OVERHEAD 28
uint8_t *hmq_resp_put_header(uint8_t *out, uint8_t type, uint64_t count);
uint8_t *hmq_resp_put_text(uint8_t *out, const void *text, size_t len);
uint8_t *hmq_resp_put_number(uint8_t *out, uint64_t number);

#endif
