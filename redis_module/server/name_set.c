/* name_set.c - a set of the names of a command. */
#include "server/name_set.h"

#include <string.h>

#define FEW 8 /* names that are compared one by one */

name_set name_set_of(server_string **names, int count) {
    name_set set = {names, count, count > FEW ? sv.CreateDict(NULL) : NULL};
    for (int i = 0; set.dict != NULL && i < count; i++) {
        hmq_slice name = slice_of(names[i]);
        sv.DictSetC(set.dict, name.data, name.len, names);
    }
    return set;
}

void name_set_free(name_set *set) {
    if (set->dict != NULL) sv.FreeDict(NULL, set->dict);
}

bool name_set_is_empty(const name_set *set) {
    return set->count == 0;
}

bool name_set_has(const name_set *set, const server_string *name) {
    hmq_slice wanted = slice_of(name);
    if (set->dict != NULL) return sv.DictGetC(set->dict, wanted.data, wanted.len, NULL) != NULL;
    for (int i = 0; i < set->count; i++) {
        hmq_slice own = slice_of(set->names[i]);
        if (hmq_slice_equal(own, wanted)) return true;
    }
    return false;
}
