/* utf8.h - is this well-formed UTF-8, and is it a string that MQTT allows?
 *
 * Well-formed by table 3-7 of The Unicode Standard: no overlong form, no surrogate, nothing above U+10FFFF.
 * Used by topic names and filters and by every UTF-8 string field of an MQTT packet. */
#ifndef HMQ_UTF8_H
#define HMQ_UTF8_H

#include "base/base.h"

/* cffi-begin */
typedef enum hmq_utf8_error {
    HMQ_UTF8_OK = 0,
    HMQ_UTF8_ILL_FORMED = 1, /* [MQTT-1.5.3-1; 5.0: 1.5.4-1] */
    HMQ_UTF8_NUL = 2         /* well-formed, but contains U+0000 [MQTT-1.5.3-2; 5.0: 1.5.4-2] */
} hmq_utf8_error;

hmq_utf8_error hmq_utf8_check(const uint8_t *text, size_t len);
/* cffi-end */

#endif
