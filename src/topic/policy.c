/* policy.c - parses the text of a policy list and finds the rule for a channel.
 *
 * A policy is one allocation: the head, room for as many rules as the text has separators (at most
 * HMQ_POLICY_MAX_RULES), and room for the bytes of the globs, which are never longer than the text:
 *
 *      | hmq_policy | rule 1 | rule 2 | ... | glob bytes 1 | glob bytes 2 | ... |
 *
 * So nothing fails half-way, and one call frees everything.  Find is linear in the rules: the first match wins, lists are
 * short, and most globs fail at their first byte. */
#include "topic/policy.h"

#include <stdio.h>
#include <string.h>

#include "base/glob.h"

#define DEFAULT_MAXLEN 10000
#define DEFAULT_TTL_S 604800 /* a week */
#define QUOTED_BYTES 40      /* of the user's text in an error */

struct hmq_policy {
    const hmq_allocator *allocator;
    size_t count;
    hmq_rule rules[];
};

/* The text that is parsed, and the buffer for an error. */
typedef struct parser {
    const char *text;
    size_t len;
    size_t at;
    size_t rule; /* number of the current rule; the first is 1 */
    char *error;
    size_t capacity;
} parser;

/* ---- errors: always "rule <n>: '<what>' <what was wrong>; <what is accepted>" ---- */

/* The user's text in printable form, cut to QUOTED_BYTES. */
static void printable(hmq_slice text, char out[QUOTED_BYTES + 4]) {
    size_t len = text.len < QUOTED_BYTES ? text.len : QUOTED_BYTES;
    for (size_t i = 0; i < len; i++) out[i] = text.data[i] >= 0x20 && text.data[i] < 0x7F ? (char)text.data[i] : '?';
    memcpy(out + len, len < text.len ? "..." : "", len < text.len ? 4 : 1);
}

static bool mistake(const parser *in, hmq_slice what, const char *fault) {
    char shown[QUOTED_BYTES + 4];
    printable(what, shown);
    if (in->capacity) (void)snprintf(in->error, in->capacity, "rule %zu: '%s' %s", in->rule, shown, fault);
    return false;
}

/* ---- words ---- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_separator(char c) {
    return c == ';' || c == '\n';
}

static void skip_blanks(parser *in) {
    while (in->at < in->len && is_blank(in->text[in->at])) in->at++;
}

static bool at_end_of_rule(const parser *in) {
    return in->at == in->len || is_separator(in->text[in->at]);
}

static hmq_slice slice_of(const parser *in, size_t from, size_t to) {
    return (hmq_slice){(const uint8_t *)in->text + from, to - from};
}

/* Up to the next blank or separator. */
static hmq_slice plain_word(parser *in) {
    size_t from = in->at;
    while (!at_end_of_rule(in) && !is_blank(in->text[in->at])) in->at++;
    return slice_of(in, from, in->at);
}

static bool is_word(hmq_slice word, const char *text) {
    return word.len == strlen(text) && memcmp(word.data, text, word.len) == 0;
}

/* A glob in double quotes; writes its bytes to out (no longer than the source). */
static bool quoted_glob(parser *in, uint8_t *out, hmq_slice *glob) {
    size_t from = in->at++, size = 0;
    while (in->at < in->len && in->text[in->at] != '"') {
        char c = in->text[in->at++];
        bool escapes = c == '\\' && in->at < in->len && (in->text[in->at] == '"' || in->text[in->at] == '\\');
        out[size++] = (uint8_t)(escapes ? in->text[in->at++] : c);
    }
    if (in->at == in->len)
        return mistake(in, slice_of(in, from, in->len), "has no closing quote; expected \" after the glob");
    in->at++;
    if (!at_end_of_rule(in) && !is_blank(in->text[in->at]))
        return mistake(in, slice_of(in, from, in->at + 1),
                       "continues after its closing quote; expected a blank or ';' there");
    *glob = (hmq_slice){out, size};
    return true;
}

static bool plain_glob(parser *in, uint8_t *out, hmq_slice *glob) {
    hmq_slice word = plain_word(in);
    if (memchr(word.data, '"', word.len))
        return mistake(in, word, "contains a quote; expected the whole glob in quotes");
    memcpy(out, word.data, word.len);
    *glob = (hmq_slice){out, word.len};
    return true;
}

/* ---- options ---- */

/* Reads a decimal number from..to.  Ten digits at most, so that nothing overflows. */
static bool number(hmq_slice word, uint64_t from, uint64_t to, uint64_t *value) {
    if (word.len == 0 || word.len > 10) return false;
    uint64_t result = 0;
    for (size_t i = 0; i < word.len; i++) {
        if (word.data[i] < '0' || word.data[i] > '9') return false;
        result = result * 10 + (uint64_t)(word.data[i] - '0');
    }
    *value = result;
    return result >= from && result <= to;
}

static bool parse_hold(hmq_slice value, hmq_rule *rule) {
    rule->hold = is_word(value, "all") ? HMQ_HOLD_ALL : is_word(value, "none") ? HMQ_HOLD_NONE : HMQ_HOLD_UNHEARD;
    return rule->hold != HMQ_HOLD_UNHEARD || is_word(value, "unheard");
}

static bool parse_last(hmq_slice value, hmq_rule *rule) {
    rule->last = is_word(value, "on");
    return rule->last || is_word(value, "off");
}

static bool parse_maxlen(hmq_slice value, hmq_rule *rule) {
    return number(value, 1, HMQ_POLICY_MAX_LENGTH, &rule->maxlen);
}

static bool parse_ttl(hmq_slice value, hmq_rule *rule) {
    return number(value, 0, HMQ_POLICY_MAX_TTL_S, &rule->ttl_s);
}

static bool parse_deliver(hmq_slice value, hmq_rule *rule) {
    rule->deliver = is_word(value, "held")   ? HMQ_DELIVER_HELD
                    : is_word(value, "none") ? HMQ_DELIVER_NONE
                                             : HMQ_DELIVER_LAST;
    return rule->deliver != HMQ_DELIVER_LAST || is_word(value, "last");
}

enum { OPTION_HOLD, OPTION_LAST, OPTION_MAXLEN, OPTION_TTL, OPTION_DELIVER, OPTION_COUNT };

static const struct {
    const char *name;
    bool (*parse)(hmq_slice value, hmq_rule *rule);
    const char *fault;
} options[OPTION_COUNT] = {
    [OPTION_HOLD] = {"hold", parse_hold, "is invalid; expected hold=none, hold=unheard or hold=all"},
    [OPTION_LAST] = {"last", parse_last, "is invalid; expected last=on or last=off"},
    [OPTION_MAXLEN] = {"maxlen", parse_maxlen, "is invalid; expected maxlen=<messages>, 1 to 4294967295"},
    [OPTION_TTL] = {"ttl", parse_ttl, "is invalid; expected ttl=<seconds>, 0 (never) to 3155760000"},
    [OPTION_DELIVER] = {"deliver", parse_deliver, "is invalid; expected deliver=none, deliver=last or deliver=held"},
};

static bool parse_option(parser *in, hmq_rule *rule, unsigned *given) {
    hmq_slice word = plain_word(in);
    const uint8_t *equals = memchr(word.data, '=', word.len);
    hmq_slice name = {word.data, equals ? (size_t)(equals - word.data) : word.len};
    for (unsigned i = 0; equals && i < OPTION_COUNT; i++) {
        if (!is_word(name, options[i].name)) continue;
        if (*given & 1U << i) return mistake(in, word, "repeats an option; expected each option once per rule");
        *given |= 1U << i;
        hmq_slice value = {equals + 1, word.len - name.len - 1};
        return options[i].parse(value, rule) || mistake(in, word, options[i].fault);
    }
    return mistake(in, word, "is no option; expected hold=, last=, maxlen=, ttl= or deliver=");
}

/* ---- rules ---- */

/* A channel that keeps nothing has nothing to deliver.  That is its default, and asking for delivery is an error. */
static bool finish_rule(const parser *in, hmq_rule *rule, unsigned given) {
    if (rule->hold != HMQ_HOLD_NONE || rule->last || rule->deliver == HMQ_DELIVER_NONE) return true;
    if (given & 1U << OPTION_DELIVER)
        return mistake(in, rule->glob, "keeps nothing (hold=none last=off) but delivers; expected deliver=none");
    rule->deliver = HMQ_DELIVER_NONE;
    return true;
}

static bool parse_rule(parser *in, uint8_t *globs, hmq_rule *rule) {
    *rule = (hmq_rule){
        .hold = HMQ_HOLD_UNHEARD, .maxlen = DEFAULT_MAXLEN, .ttl_s = DEFAULT_TTL_S, .deliver = HMQ_DELIVER_LAST};
    bool quoted = in->text[in->at] == '"';
    if (!(quoted ? quoted_glob : plain_glob)(in, globs, &rule->glob)) return false;
    unsigned given = 0;
    for (skip_blanks(in); !at_end_of_rule(in); skip_blanks(in))
        if (!parse_option(in, rule, &given)) return false;
    return finish_rule(in, rule, given);
}

static bool parse_rules(parser *in, hmq_policy *policy, uint8_t *globs) {
    for (; in->at < in->len; in->at += in->at < in->len) { /* steps over the separator, if there is one */
        skip_blanks(in);
        if (at_end_of_rule(in)) continue;
        in->rule = policy->count + 1;
        if (policy->count == HMQ_POLICY_MAX_RULES)
            return mistake(in, plain_word(in), "is one rule too many; expected at most 256");
        hmq_rule *rule = &policy->rules[policy->count];
        if (!parse_rule(in, globs, rule)) return false;
        globs += rule->glob.len;
        policy->count++;
    }
    return true;
}

/* The number of rules that the text can hold, at most HMQ_POLICY_MAX_RULES. */
static size_t most_rules(const char *text, size_t len) {
    size_t count = 1;
    for (size_t i = 0; i < len && count < HMQ_POLICY_MAX_RULES; i++) count += is_separator(text[i]);
    return count;
}

hmq_policy *hmq_policy_parse(const hmq_allocator *allocator, const char *text, size_t len, char *error,
                             size_t capacity) {
    size_t rules_size = most_rules(text, len) * sizeof(hmq_rule);
    size_t size = sizeof(hmq_policy) + rules_size;
    hmq_policy *policy = len <= SIZE_MAX - size ? allocator->alloc(size + len) : NULL;
    if (!policy) {
        if (capacity) (void)snprintf(error, capacity, "out of memory for a policy of %zu bytes", len);
        return NULL;
    }
    policy->allocator = allocator;
    policy->count = 0;
    parser in = {.text = text, .len = len, .error = error, .capacity = capacity};
    if (parse_rules(&in, policy, (uint8_t *)policy + size)) return policy;
    hmq_policy_free(policy);
    return NULL;
}

void hmq_policy_free(hmq_policy *policy) {
    if (policy) policy->allocator->release(policy);
}

const hmq_rule *hmq_policy_find(const hmq_policy *policy, const char *channel, size_t len) {
    for (size_t i = 0; len <= HMQ_POLICY_MAX_CHANNEL_BYTES && i < policy->count; i++) {
        const hmq_rule *rule = &policy->rules[i];
        if (hmq_glob_matches((const char *)rule->glob.data, rule->glob.len, channel, len)) return rule;
    }
    return NULL;
}

size_t hmq_policy_count(const hmq_policy *policy) {
    return policy->count;
}

const hmq_rule *hmq_policy_rule(const hmq_policy *policy, size_t index) {
    return index < policy->count ? &policy->rules[index] : NULL;
}
