/* intercept.h - the command filter that makes stock commands persistent. */
#ifndef HMQ_INTERCEPT_H
#define HMQ_INTERCEPT_H

#include "server/state.h"

/* Registers the filter when the module wakes. */
void intercept_start(void);

#endif
