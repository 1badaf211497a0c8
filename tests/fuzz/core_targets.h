/* core_targets.h - what the fuzzer of the core calls with each input; between core_targets.c and core_driver.c.
 *
 * An input is a byte that names the target, and what the target gets.  A target reads nothing but its input, keeps
 * nothing, and calls abort() when a law that it knows does not hold. */
#ifndef HMQ_FUZZ_CORE_TARGETS_H
#define HMQ_FUZZ_CORE_TARGETS_H

#include <stddef.h>
#include <stdint.h>

void fuzz_one(const uint8_t *data, size_t len);

/* Targets of core_history.c, the first byte taken off. */
void fuzz_history_patterns(const uint8_t *data, size_t len);
void fuzz_history_lists(const uint8_t *data, size_t len);
void fuzz_history_texts(const uint8_t *data, size_t len);
void fuzz_history_learner(const uint8_t *data, size_t len);
/* That of core_engine.c, likewise. */
void fuzz_engine(const uint8_t *data, size_t len);
/* That of core_websocket.c, likewise. */
void fuzz_websocket(const uint8_t *data, size_t len);

#endif
