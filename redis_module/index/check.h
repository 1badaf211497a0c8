/* check.h - HOLDMQ.CHECK, and what the checks of the kinds share. */
#ifndef HMQ_INDEX_CHECK_H
#define HMQ_INDEX_CHECK_H

#include "index/index.h"

/* Replies an array with a sentence for each difference between the index and a rebuild. */
int index_check_command(server_ctx *ctx, server_string **argv, int argc);

/* Reports each name of `a` that `b` lacks, or, with `values`, has with another value. */
void index_compare_names(server_dict *a, server_dict *b, bool values, const char *what, index_differ differ,
                         void *context);

#endif
