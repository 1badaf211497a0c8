/* resp.c - the reader and the writers of base/resp.h. */
#include "base/resp.h"

#include <string.h>

#include "base/decimal.h"

/* Reads the line at *at up to its CRLF, and moves *at past it.  0: incomplete. */
static int read_line(const uint8_t *data, size_t len, size_t *at, hmq_slice *line) {
    const uint8_t *begin = data + *at;
    const uint8_t *end = memchr(begin, '\r', len - *at);
    if (end == NULL || (size_t)(end - data) + 1 >= len) return 0;
    if (end[1] != '\n') return -1;
    *line = (hmq_slice){begin, (size_t)(end - begin)};
    *at = (size_t)(end - data) + 2;
    return 1;
}

static bool read_number(hmq_slice line, int64_t *number) {
    size_t i = 0;
    bool negative = line.len > 0 && line.data[0] == '-';
    const uint64_t most = (uint64_t)INT64_MAX + negative;
    uint64_t value = 0;
    for (i = negative; i < line.len; i++) {
        uint8_t digit = (uint8_t)(line.data[i] - '0');
        if (digit > 9 || value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *number = (int64_t)(negative ? 0 - value : value);
    return line.len > (size_t)negative;
}

/* 1: read; 0: incomplete; -1: not RESP. */
static int read_item(const uint8_t *data, size_t len, size_t *at, hmq_resp_item *item) {
    if (*at >= len) return 0;
    size_t next = *at + 1;
    hmq_slice line;
    int read = read_line(data, len, &next, &line);
    if (read <= 0) return read;
    *item = (hmq_resp_item){.type = data[*at], .text = line};
    switch (item->type) {
    case '+':
    case '-':
    case '_':
    case ',':
    case '#':
    case '(': break;
    case ':':
        if (!read_number(line, &item->number)) return -1;
        break;
    case '*':
    case '>':
    case '~':
    case '%':
    case '|':
        if (!read_number(line, &item->number) || item->number < -1 || item->number > HMQ_RESP_MAX) return -1;
        break;
    case '$':
    case '!':
    case '=':
        if (!read_number(line, &item->number) || item->number < -1 || item->number > HMQ_RESP_MAX) return -1;
        if (item->number >= 0) {
            size_t size = (size_t)item->number;
            if (len - next < size + 2) return 0;
            if (data[next + size] != '\r' || data[next + size + 1] != '\n') return -1;
            item->text = (hmq_slice){data + next, size};
            next += size + 2;
        }
        break;
    default: return -1;
    }
    *at = next;
    return 1;
}

bool hmq_resp_next(const uint8_t *data, size_t len, size_t *at, hmq_resp_item *item) {
    return read_item(data, len, at, item) == 1;
}

int64_t hmq_resp_measure_more(const uint8_t *data, size_t len, hmq_resp_progress *progress) {
    size_t at = progress->at;
    uint64_t left = at == 0 ? 1 : progress->left;
    *progress = (hmq_resp_progress){0};
    while (left > 0) {
        hmq_resp_item item;
        size_t before = at;
        int read = read_item(data, len, &at, &item);
        if (read == 0) *progress = (hmq_resp_progress){before, left};
        if (read <= 0) return read;
        left--;
        if (strchr("*>~", item.type) != NULL && item.number > 0) left += (uint64_t)item.number;
        if (item.type == '%' && item.number > 0) left += 2 * (uint64_t)item.number;
        if (item.type == '|')
            left += 2 * (uint64_t)(item.number < 0 ? 0 : item.number) + 1; /* and the value that it describes */
    }
    return (int64_t)at;
}

int64_t hmq_resp_measure(const uint8_t *data, size_t len) {
    hmq_resp_progress progress = {0};
    return hmq_resp_measure_more(data, len, &progress);
}

static uint8_t *put_crlf(uint8_t *out) {
    out[0] = '\r';
    out[1] = '\n';
    return out + 2;
}

uint8_t *hmq_resp_put_header(uint8_t *out, uint8_t type, uint64_t count) {
    *out++ = type;
    return put_crlf(out + hmq_decimal_put(count, (char *)out));
}

uint8_t *hmq_resp_put_text(uint8_t *out, const void *text, size_t len) {
    out = hmq_resp_put_header(out, '$', len);
    if (len > 0) memcpy(out, text, len);
    return put_crlf(out + len);
}

uint8_t *hmq_resp_put_number(uint8_t *out, uint64_t number) {
    char digits[HMQ_DECIMAL_MAX];
    return hmq_resp_put_text(out, digits, hmq_decimal_put(number, digits));
}
