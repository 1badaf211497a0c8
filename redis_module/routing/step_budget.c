/* step_budget.c - what one command of many publishes may take. */
#include "routing/step_budget.h"

#include <time.h>

#define STEP_NS 4000000U
#define BYTES_PER_DELIVERY 16384U /* so many bytes of a message take as long as one more delivery */
#define UNITS_PER_STORED 4U       /* a message of QoS 0 is only pushed */
#define UNITS_IMPATIENT 4096U      /* of publishers that do not send again: in any case */
#define UNITS_UNLOOKED 256U       /* so many take less than the budget, at any price */
#define UNITS_TO_LEARN 64U        /* of fewer, the time is not exact */
#define FIRST_NS 1000U            /* of a unit, until one was measured */
#define LEAST_NS 100U
#define MOST_NS 20000U

static struct {
    bool runs;
    uint64_t begun_ns, settle_ns;
    size_t allowed; /* units */
    size_t noted;
} command;
static uint64_t unit_ns = FIRST_NS;

/* Of this thread: what else runs on the machine does not count. */
static uint64_t processor_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

size_t step_units(size_t bytes, uint8_t qos) {
    return (1 + bytes / BYTES_PER_DELIVERY) * (qos > 0 ? UNITS_PER_STORED : 1);
}

void step_budget_begin(void) {
    command.runs = true;
    command.allowed = command.noted = 0;
    command.begun_ns = processor_ns();
}

void step_budget_end(void) {
    command.runs = false;
}

static bool has_time(size_t units) {
    return processor_ns() - command.begun_ns + (command.noted + units) * unit_ns <= STEP_NS;
}

bool step_budget_allows(size_t units, bool is_patient) {
    if (!command.runs) return true;
    size_t total = command.allowed + units;
    bool fits = command.allowed == 0 || total <= (is_patient ? UNITS_UNLOOKED : UNITS_IMPATIENT) || has_time(units);
    if (fits) command.allowed += units;
    return fits;
}

bool step_budget_is_half_over(void) {
    return command.runs && processor_ns() - command.begun_ns > STEP_NS / 2;
}

void step_budget_note(size_t units) {
    command.noted += units;
}

void step_budget_settle(void) {
    if (command.noted >= UNITS_TO_LEARN) command.settle_ns = processor_ns();
}

/* The price rises quickly and falls slowly. */
void step_budget_settled(void) {
    size_t units = command.noted;
    command.noted = 0;
    if (units < UNITS_TO_LEARN) return;
    uint64_t price = (processor_ns() - command.settle_ns) / units;
    if (price < LEAST_NS) price = LEAST_NS;
    if (price > MOST_NS) price = MOST_NS;
    if (price > unit_ns)
        unit_ns += (price - unit_ns + 1) / 2;
    else
        unit_ns -= (unit_ns - price) / 16;
}
