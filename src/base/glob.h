/* glob.h - glob patterns as the server's KEYS and PSUBSCRIBE understand them: * ? [abc] [^a-z] and backslash.
 *
 * Byte-wise and case-sensitive.  Time is bounded by pattern length times text length: no pattern explodes. */
#ifndef HMQ_GLOB_H
#define HMQ_GLOB_H

#include "base/base.h"

/* cffi-begin */
bool hmq_glob_matches(const char *pattern, size_t pattern_len, const char *text, size_t text_len);
/* cffi-end */

#endif
