/* sealed.h - bytes that a client keeps for this server, and can neither read nor change.
 *
 *     =<tag: 16 digits><bytes, enciphered: two digits each>            hexadecimal
 *
 * A cursor may name what its reader may not see.  The tag is a keyed hash of the bytes (SipHash), and the bytes are
 * enciphered with a stream of keyed hashes of the tag and the place: so equal bytes give equal texts, and nothing else
 * shows but their length.  The keys are random, and those of this process: after a restart, or on another server, a text
 * does not open. */
#ifndef HMQ_SEALED_H
#define HMQ_SEALED_H

#include "server/state.h"

#define SEALED_MARK '='

/* False after replying that there are no random numbers yet.  Asked before sealed_close. */
bool sealed_begin(server_ctx *ctx);
/* The caller frees it. */
server_string *sealed_close(hmq_slice bytes);
/* The bytes of a text that sealed_close made; NULL: this process did not make it.  The caller frees it. */
server_string *sealed_open(hmq_slice text);

#endif
