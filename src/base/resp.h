/* resp.h - the part of RESP that the engine needs: reads replies and pushes of RESP3, writes commands; private to the core.
 *
 * A reader first finds the end of a complete reply (hmq_resp_measure), then moves through its items.  Nothing recurses: a
 * reply of any depth is counted. */
#ifndef HMQ_RESP_H
#define HMQ_RESP_H

#include "base/base.h"

/* Maximum elements of an aggregate, and bytes of a string; the server's own limit is 512 MB. */
#define HMQ_RESP_MAX 536870912LL

typedef struct hmq_resp_item {
    uint8_t type; /* '+' '-' ':' '$' '*' '>' '%' '~' '_' ',' '#' '!' '=' '(' '|' */
    int64_t number; /* ':' value; '*' '>' '~' elements; '%' '|' pairs; -1: null */
    hmq_slice text; /* '+' '-' '$' '!' '=' and the other scalars: the text */
} hmq_resp_item;

/* Bytes of the first complete reply; 0: more are needed; -1: not RESP. */
int64_t hmq_resp_measure(const uint8_t *data, size_t len);

/* The progress of measuring an incomplete reply; all 0: not begun. */
typedef struct hmq_resp_progress {
    size_t at;
    uint64_t left; /* missing items */
} hmq_resp_progress;
/* The same, continuing where the last call stopped, with the same beginning of the data: a long reply in many parts is read
 * once.  *progress is reset unless more bytes are needed. */
int64_t hmq_resp_measure_more(const uint8_t *data, size_t len, hmq_resp_progress *progress);
/* Reads the next item (of an aggregate: its header) and advances *at.  False: not RESP, or incomplete. */
bool hmq_resp_next(const uint8_t *data, size_t len, size_t *at, hmq_resp_item *item);

/* Writers; each returns the end of its output.  They need the text's length + HMQ_RESP_OVERHEAD bytes. */
#define HMQ_RESP_OVERHEAD 28
uint8_t *hmq_resp_put_header(uint8_t *out, uint8_t type, uint64_t count);
uint8_t *hmq_resp_put_text(uint8_t *out, const void *text, size_t len);
uint8_t *hmq_resp_put_number(uint8_t *out, uint64_t number);

#endif
