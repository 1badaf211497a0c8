/* name_set.h - answers in constant time whether a name is among the arguments of a command. */
#ifndef HMQ_NAME_SET_H
#define HMQ_NAME_SET_H

#include "server/state.h"

typedef struct name_set {
    server_string **names; /* the caller's */
    int count;
    server_dict *dict; /* NULL if there are few names */
} name_set;

name_set name_set_of(server_string **names, int count);
void name_set_free(name_set *set);
bool name_set_is_empty(const name_set *set);
bool name_set_has(const name_set *set, const server_string *name);

#endif
