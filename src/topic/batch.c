/* batch.c - writes rows of columns as commands.  Records are written directly into the command, without a copy. */
#include "topic/batch.h"

#include <string.h>

#include "base/resp.h"
#include "topic/record.h"
#include "topic/session_key.h"

#define WORDS_BYTES 192  /* names of commands and options, and their numbers, of one command */
#define RECORD_EXTRA 64  /* a record's header, times and lengths */
#define FRAMES_BYTES (2 * (size_t)HMQ_RESP_OVERHEAD) /* around a text and the number or word before it */
#define FIELDS_OF_ROW 2 /* texts with such frames per row, at most */
#define KEY_BYTES 1024   /* longer client ids are encoded differently: see put_key */

/* ---- columns ----------------------------------------------------------------------------------------------- */

static bool is_there(const hmq_texts *column, size_t row) {
    if (column->offsets == NULL) return false;
    size_t bit = column->first_bit + row;
    return column->valid == NULL || (column->valid[bit / 8] >> (bit % 8) & 1) != 0;
}

/* Empty if there is no such column, or the row is null. */
static hmq_slice text_of(const hmq_texts *column, size_t row) {
    if (!is_there(column, row)) return (hmq_slice){NULL, 0};
    int32_t from = column->offsets[row];
    return (hmq_slice){column->data + from, (size_t)(column->offsets[row + 1] - from)};
}

static int64_t number_at(const int64_t *column, size_t row, int64_t otherwise) {
    return column == NULL ? otherwise : column[row];
}

static uint64_t number_of(const hmq_batch *b, size_t row) {
    return (uint64_t)(b->number != NULL ? b->number[row] : b->first_number + (int64_t)row);
}

static bool is_left_out(const hmq_batch *b, size_t row) {
    return b->life_s != NULL && b->life_s[row] == 0;
}

/* ---- grouping ---------------------------------------------------------------------------------------------- */

size_t hmq_batch_group_rows(const int32_t *code, size_t rows, size_t codes, size_t most, uint32_t *order,
                            hmq_batch_group *groups, uint32_t *places) {
    size_t count = 0;
    uint32_t at = 0;
    memset(places, 0, (codes + 1) * sizeof *places);
    for (size_t i = 0; i < rows; i++) places[code[i] + 1]++;
    for (size_t c = 0; c < codes; c++) {
        uint32_t left = places[c + 1];
        places[c + 1] = at + left;
        places[c] = at;
        while (left > 0) {
            uint32_t part = left < most ? left : (uint32_t)most;
            groups[count++] = (hmq_batch_group){at, part};
            at += part;
            left -= part;
        }
    }
    for (size_t i = 0; i < rows; i++) order[places[code[i]]++] = (uint32_t)i;
    return count;
}

/* ---- output ------------------------------------------------------------------------------------------------ */

static size_t bytes_of(const hmq_texts *column, size_t rows) {
    return column->offsets == NULL ? 0 : (size_t)(column->offsets[rows] - column->offsets[0]);
}

size_t hmq_batch_room(const hmq_batch *b, size_t words) {
    size_t texts = 3 * bytes_of(&b->client, b->rows) + bytes_of(&b->topic, b->rows) + bytes_of(&b->payload, b->rows) +
                   bytes_of(&b->publisher, b->rows) + bytes_of(&b->properties, b->rows);
    return texts + (b->rows + 1) * (words + WORDS_BYTES + RECORD_EXTRA + FIELDS_OF_ROW * FRAMES_BYTES);
}

typedef struct writer {
    uint8_t *begin, *at, *end;
} writer;

static bool has_room(const writer *w, size_t bytes) {
    return (size_t)(w->end - w->at) >= bytes;
}

static void put_word(writer *w, const char *word) {
    w->at = hmq_resp_put_text(w->at, word, strlen(word));
}

static void put_slice(writer *w, hmq_slice text) {
    w->at = hmq_resp_put_text(w->at, text.data, text.len);
}

typedef enum outcome { WRITTEN, NO_RECORD, NO_ROOM } outcome;

/* The record of a published message, framed. */
static outcome put_record(writer *w, const hmq_batch *b, size_t row, int64_t qos, int64_t expires_ms) {
    int64_t time_ms = number_at(b->time_ms, row, 0);
    qos = number_at(b->qos, row, qos);
    if (qos < 0 || qos > 2) return NO_RECORD;
    hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                         .qos = (uint8_t)qos,
                         .retain = number_at(b->retain, row, 0) != 0,
                         .time_ms = time_ms == 0 ? b->now_ms : time_ms,
                         .expires_ms = expires_ms,
                         .topic = text_of(&b->topic, row),
                         .publisher = text_of(&b->publisher, row),
                         .properties = text_of(&b->properties, row),
                         .payload = text_of(&b->payload, row)};
    size_t size = hmq_record_size(&record);
    if (size == 0) return NO_RECORD;
    if (!has_room(w, size + HMQ_RESP_OVERHEAD)) return NO_ROOM;
    w->at = hmq_resp_put_header(w->at, '$', size);
    w->at += hmq_record_encode(&record, w->at, size);
    *w->at++ = '\r';
    *w->at++ = '\n';
    return WRITTEN;
}

static int64_t failure(const hmq_batch *b, size_t row, outcome why) {
    return -1 - (int64_t)(why == NO_ROOM ? b->rows : row);
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

/* [prefix]{client id}, framed. */
static outcome put_key(writer *w, hmq_slice prefix, hmq_slice client) {
    char small[KEY_BYTES];
    size_t len = hmq_session_key_encode((const char *)client.data, client.len, small, sizeof small);
    if (len == 0 && client.len == 0) return NO_RECORD;
    size_t most = len > 0 ? len : 3 * client.len + 2;
    if (!has_room(w, prefix.len + most + FRAMES_BYTES)) return NO_ROOM;
    if (len == 0) { /* encodes it into the output first: the frame before it depends on its length */
        char *place = (char *)w->at + prefix.len + HMQ_RESP_OVERHEAD;
        len = hmq_session_key_encode((const char *)client.data, client.len, place, most);
        w->at = hmq_resp_put_header(w->at, '$', prefix.len + len);
        if (prefix.len > 0) memcpy(w->at, prefix.data, prefix.len);
        memmove(w->at + prefix.len, place, len);
    } else {
        w->at = hmq_resp_put_header(w->at, '$', prefix.len + len);
        if (prefix.len > 0) memcpy(w->at, prefix.data, prefix.len);
        memcpy(w->at + prefix.len, small, len);
    }
    w->at += prefix.len + len;
    *w->at++ = '\r';
    *w->at++ = '\n';
    return WRITTEN;
}

static outcome put_message(writer *w, const hmq_batch *b, size_t row, bool expiring) {
    hmq_slice payload = text_of(&b->payload, row);
    if (!has_room(w, payload.len + FRAMES_BYTES)) return NO_ROOM;
    if (expiring) {
        int64_t life_s = number_at(b->life_s, row, -1);
        if (life_s < 0)
            put_word(w, "");
        else
            w->at = hmq_resp_put_number(w->at, (uint64_t)life_s);
    }
    if (is_there(&b->topic, row)) return put_record(w, b, row, 1, number_at(b->expires_ms, row, 0));
    put_slice(w, payload);
    return WRITTEN;
}

/* The number of rows that are sent.  *expiring: one of them has its own time to live. */
static uint32_t count_sent(const hmq_batch *b, const uint32_t *order, uint32_t rows, bool *expiring) {
    uint32_t sent = 0;
    *expiring = false;
    for (uint32_t i = 0; i < rows; i++) {
        if (is_left_out(b, order[i])) continue;
        if (number_at(b->life_s, order[i], -1) > 0) *expiring = true;
        sent++;
    }
    return sent;
}

/* Returns 0, or the error. */
static int64_t put_group(writer *w, const hmq_batch *b, const hmq_batch_add *add, const uint32_t *order, uint32_t rows,
                         int64_t after, uint32_t *sent) {
    bool expiring;
    *sent = count_sent(b, order, rows, &expiring);
    if (*sent == 0) return 0;
    if (!has_room(w, WORDS_BYTES + add->producer.len + HMQ_RESP_OVERHEAD)) return failure(b, 0, NO_ROOM);
    size_t words = 3 + (add->limit > 0 ? 2U : 0U) + (add->producer.len > 0 ? after > 0 ? 5U : 3U : 0U);
    w->at = hmq_resp_put_header(w->at, '*', words + *sent * (expiring ? 2ULL : 1ULL));
    put_word(w, "SESSION.ADD");
    outcome result = put_key(w, add->prefix, text_of(&b->client, order[0]));
    if (result != WRITTEN) return failure(b, order[0], result);
    if (!has_room(w, WORDS_BYTES + add->producer.len)) return failure(b, 0, NO_ROOM);
    if (add->limit > 0) {
        put_word(w, "LIMIT");
        w->at = hmq_resp_put_number(w->at, (uint64_t)add->limit);
    }
    if (add->producer.len > 0) {
        put_word(w, "PRODUCER");
        put_slice(w, add->producer);
        w->at = hmq_resp_put_number(w->at, number_of(b, order[0]));
        if (after > 0) {
            put_word(w, "AFTER");
            w->at = hmq_resp_put_number(w->at, (uint64_t)after);
        }
    }
    put_word(w, expiring ? "EXPIRING" : "MESSAGES");
    for (uint32_t i = 0; i < rows; i++) {
        if (is_left_out(b, order[i])) continue;
        result = put_message(w, b, order[i], expiring);
        if (result != WRITTEN) return failure(b, order[i], result);
    }
    return 0;
}

int64_t hmq_batch_sessions(const hmq_batch *b, const hmq_batch_add *add, const uint32_t *order,
                           const hmq_batch_group *groups, size_t count, uint8_t *out, size_t capacity, uint64_t *ends,
                           uint32_t *sent) {
    writer w = {out, out, out + capacity};
    for (size_t g = 0; g < count; g++) {
        int64_t after = number_at(add->after, g, 0);
        int64_t failed = put_group(&w, b, add, order + groups[g].at, groups[g].rows, after, &sent[g]);
        if (failed < 0) return failed;
        ends[g] = (uint64_t)(w.at - w.begin);
    }
    return w.at - w.begin;
}

/* ---- topics ------------------------------------------------------------------------------------------------ */

/* The expiry of a message that is published at time_ms: the server converts both to its own clock. */
static int64_t end_of(const hmq_batch *b, size_t row) {
    int64_t life_s = number_at(b->life_s, row, -1), time_ms = number_at(b->time_ms, row, 0);
    return life_s < 0 ? 0 : (time_ms == 0 ? b->now_ms : time_ms) + life_s * 1000;
}

static void begin_publish(writer *w, const hmq_batch_publish *publish, uint32_t messages) {
    bool numbered = publish->producer.len > 0;
    w->at = hmq_resp_put_header(w->at, '*', 2 + (numbered ? 4 + 2 * (uint64_t)messages : messages));
    put_word(w, "TOPIC.MPUBLISH");
    if (numbered) {
        put_word(w, "PRODUCER");
        put_slice(w, publish->producer);
        w->at = hmq_resp_put_number(w->at, publish->epoch);
        w->at = hmq_resp_put_number(w->at, publish->after);
    }
    put_word(w, "RECORD");
}

int64_t hmq_batch_topics(const hmq_batch *b, hmq_batch_publish *publish, size_t from, size_t to, uint8_t *out,
                         size_t capacity, uint32_t *sent) {
    writer w = {out, out, out + capacity};
    *sent = 0;
    for (size_t row = from; row < to; row++) *sent += !is_left_out(b, row);
    if (*sent == 0) return 0;
    if (!has_room(&w, WORDS_BYTES + publish->producer.len)) return failure(b, 0, NO_ROOM);
    begin_publish(&w, publish, *sent);
    for (size_t row = from; row < to; row++) {
        if (is_left_out(b, row)) continue;
        if (!has_room(&w, HMQ_RESP_OVERHEAD)) return failure(b, row, NO_ROOM);
        if (publish->producer.len > 0) {
            publish->after = number_of(b, row);
            w.at = hmq_resp_put_number(w.at, publish->after);
        }
        outcome result = text_of(&b->topic, row).len == 0 ? NO_RECORD : put_record(&w, b, row, 0, end_of(b, row));
        if (result != WRITTEN) return failure(b, row, result);
    }
    return w.at - w.begin;
}
