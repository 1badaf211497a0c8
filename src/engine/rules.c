/* rules.c - what a client may publish, and which topics may be sent to it.
 *
 * Two ordered lists per connection; the first rule that matches a topic decides.  Deliveries are checked because a
 * message may have been queued when the client still had the right to its topic, or for another session's
 * subscription. */
#include "engine/internal.h"

#include "topic/topic.h"

/* If all rules are about topics that begin with a dollar, and the rest is allowed, only such topics can be denied. */
static void note_reach(rule_set *set) {
    set->can_deny = set->can_deny_all = set->denied_otherwise;
    for (size_t i = 0; i < set->count; i++) {
        hmq_slice filter = set->rules[i].filter;
        set->can_deny |= !set->rules[i].allow;
        set->can_deny_all |= filter.len == 0 || filter.data[0] != '$';
    }
}

bool hmq_rules_set(hmq_engine *e, rule_set *set, const hmq_engine_rule *rules, size_t count, bool denied_otherwise) {
    size_t bytes = 0;
    uint8_t *text = NULL;
    for (size_t i = 0; i < count; i++) bytes += rules[i].filter.len;
    hmq_engine_rule *copy = count == 0 ? NULL : e->allocator.alloc(count * sizeof *copy + bytes);
    if (count > 0 && copy == NULL) return false;
    for (size_t i = 0; i < count; i++) {
        if (i == 0) text = (uint8_t *)(copy + count);
        copy[i] = (hmq_engine_rule){rules[i].allow, {text, rules[i].filter.len}};
        if (rules[i].filter.len > 0) memcpy(text, rules[i].filter.data, rules[i].filter.len);
        text += rules[i].filter.len;
    }
    hmq_rules_free(e, set);
    *set = (rule_set){.rules = copy, .count = count, .denied_otherwise = denied_otherwise};
    note_reach(set);
    return true;
}

void hmq_rules_deny_otherwise(rule_set *set, bool denied_otherwise) {
    set->denied_otherwise = denied_otherwise;
    note_reach(set);
}

bool hmq_rules_allow(const rule_set *set, hmq_slice topic) {
    if (!set->can_deny || (!set->can_deny_all && topic.len > 0 && topic.data[0] != '$')) return true;
    for (size_t i = 0; i < set->count; i++) {
        const hmq_engine_rule *rule = &set->rules[i];
        if (hmq_topic_matches((const char *)rule->filter.data, rule->filter.len, (const char *)topic.data, topic.len))
            return rule->allow;
    }
    return !set->denied_otherwise;
}

void hmq_rules_free(hmq_engine *e, rule_set *set) {
    if (set->rules != NULL) e->allocator.release(set->rules);
    *set = (rule_set){0};
}

bool hmq_engine_rules(hmq_engine *e, hmq_conn conn, const hmq_engine_rule *rules, size_t count, bool denied_otherwise) {
    connection *c = hmq_engine_find(e, conn);
    return c == NULL || hmq_rules_set(e, &c->publish_rules, rules, count, denied_otherwise);
}

bool hmq_engine_receive_rules(hmq_engine *e, hmq_conn conn, const hmq_engine_rule *rules, size_t count,
                              bool denied_otherwise) {
    connection *c = hmq_engine_find(e, conn);
    return c == NULL || hmq_rules_set(e, &c->receive_rules, rules, count, denied_otherwise);
}
