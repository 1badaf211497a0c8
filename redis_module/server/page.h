/* page.h - pages through names in their order: the options CURSOR and COUNT, and the cursor of the next page.
 *
 * A cursor is '>' and the last name that was looked at.  So the cost of a page depends only on its length, whatever changes
 * between two pages, and a name that exists all the time is listed once. */
#ifndef HMQ_PAGE_H
#define HMQ_PAGE_H

#include "server/args.h"

#define PAGE_MOST 1000
#define PAGE_NAME_BYTES ((size_t)256 << 10) /* a page ends early then: names may be long */

typedef struct page {
    hmq_slice after; /* len 0: from the first name */
    long long count; /* names that are looked at */
    server_string *names[PAGE_MOST];
    size_t found;
    bool has_more;
} page;

/* Reads the options, which end the command.  False after replying an error. */
bool page_parse(args *a, page *p);
/* Takes the names of the page from a dictionary. */
void page_take(page *p, server_dict *names);
/* Replies the cursor of the next page; "0": there are no further pages. */
void page_reply_cursor(server_ctx *ctx, const page *p);
void page_end(page *p);

#endif
