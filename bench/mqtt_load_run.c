/* mqtt_load_run.c - the phases of a run: connect, publish, let all arrive, leave.  See mqtt_load_run.h. */
#include "mqtt_load_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "mqtt_load_traffic.h"

#define LOOK_NS (NS_PER_S / 20) /* conditions are looked at this often at least */
#define TICK_NS (NS_PER_S / 10000) /* messages that become due within a tick are sent together */
#define LINGER_NS (NS_PER_S / 10) /* for duplicates, when all has arrived */
#define LEAVE_NS (5 * NS_PER_S) /* for the broker to close connections that were given up; --timeout if that is more */

static volatile sig_atomic_t told_to_stop;

static void on_signal(int number) {
    (void)number;
    told_to_stop = 1;
}

static uint64_t as_ns(double seconds) {
    return (uint64_t)(seconds * (double)NS_PER_S);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A step that does not last beyond `until_ns`; false: a fault, or nothing came for too long. */
static bool step(load_job *load, uint64_t until_ns) {
    uint64_t now = load_now_ns();
    if (!net_step(&load->net, smaller(until_ns, now + LOOK_NS))) return false;
    return load_now_ns() < load->net.last_packet_ns + as_ns(load->options->timeout_s);
}

/* Keeps idle subscribers alive, two PINGREQs in each keep-alive period, one client after the other at an even pace. */
static void ping_some(load_job *load) {
    const load_options *options = load->options;
    if (options->pattern != LOAD_IDLE || options->keep_alive_s == 0 || load->net.failed) return;
    uint64_t now = load_now_ns(), round_ns = options->keep_alive_s * NS_PER_S / 2;
    if (load->pings_from_ns == 0) load->pings_from_ns = now;
    double rounds = (double)(now - load->pings_from_ns) / (double)round_ns;
    uint64_t due = (uint64_t)(rounds * load->subscriber_count);
    while (load->pings < due) {
        load_client *client = &load->subscribers[load->pings++ % load->subscriber_count];
        if (client->state == CLIENT_READY) load_client_ping(load, client);
    }
}

static void take_sample(load_job *load, load_sample *sample) {
    const load_options *options = load->options;
    sample->time_ns = load_now_ns();
    sample->acknowledged = load->counts.acknowledged;
    sample->delivered = load->counts.delivered;
    sample->own_cpu_ns = load_own_cpu_ns();
    sample->machine_busy_ns = load_machine_busy_ns();
    for (uint32_t i = 0; i < options->watched_count; i++)
        if (!load_cpu_ns(options->watched[i], &sample->watched_cpu_ns[i]))
            net_fail(&load->net, "process %d is gone", (int)options->watched[i]);
}

/* ---- connecting and leaving ------------------------------------------------------------------------------------- */

static bool open_all(load_job *load, load_client *clients, uint32_t count) {
    uint32_t begun = 0, ready_before = load->ready_count;
    load->net.last_packet_ns = load_now_ns();
    while (load->ready_count - ready_before < count) {
        while (begun < count && begun - (load->ready_count - ready_before) < load->options->opening &&
               !load->net.failed)
            load_client_open(load, &clients[begun++]);
        ping_some(load);
        if (!step(load, UINT64_MAX)) {
            net_fail(&load->net, "%u of %u connections stood after %g s without a packet",
                     load->ready_count - ready_before, count, load->options->timeout_s);
            return false;
        }
    }
    return true;
}

static bool leave_all(load_job *load, load_client *clients, uint32_t count) {
    uint32_t left_over = load->open_count > count ? load->open_count - count : 0;
    uint64_t patience = as_ns(load->options->timeout_s);
    uint64_t deadline = load_now_ns() + (patience > LEAVE_NS ? patience : LEAVE_NS);
    for (uint32_t i = 0; i < count; i++) load_client_leave(load, &clients[i]);
    while (load->open_count > left_over && load_now_ns() < deadline && !load->net.failed)
        (void)net_step(&load->net, smaller(deadline, load_now_ns() + LOOK_NS));
    if (load->open_count > left_over)
        net_fail(&load->net, "%u connections were not closed by the broker after DISCONNECT", load->open_count);
    return !load->net.failed;
}

/* ---- publishing ------------------------------------------------------------------------------------------------- */

/* Marks what has become due; returns when to look again. */
static uint64_t schedule(load_job *load, uint64_t now) {
    const load_options *options = load->options;
    uint64_t all = options->count > 0 ? options->count * load->publisher_count : UINT64_MAX;
    while (load->scheduled < all && load_due_ns(load, load->scheduled) <= now) {
        load_client *publisher = &load->publishers[load->scheduled++ % load->publisher_count];
        publisher->due++;
        net_touch(&load->net, &publisher->net);
    }
    if (load->scheduled == all) return UINT64_MAX;
    uint64_t next = load_due_ns(load, load->scheduled);
    return next > now + TICK_NS ? next : now + TICK_NS;
}

/* Without a rate everything is due at once. */
static void release_all(load_job *load) {
    const load_options *options = load->options;
    for (uint32_t i = 0; i < load->publisher_count; i++) {
        load->publishers[i].due = options->count > 0 ? options->count : UINT64_MAX;
        net_touch(&load->net, &load->publishers[i].net);
    }
}

static bool all_published(const load_job *load) {
    return load->options->count > 0 && load->counts.published == load->options->count * load->publisher_count;
}

static bool publish(load_job *load, load_result *result) {
    const load_options *options = load->options;
    load->start_ns = load->net.now_ns = load->net.last_packet_ns = load_now_ns();
    uint64_t from = load->start_ns + as_ns(options->warm_up_s);
    uint64_t until = options->count > 0 ? UINT64_MAX : from + as_ns(options->duration_s);
    load->latency_from_ns = from;
    load->latency_until_ns = until;
    if (options->rate <= 0) release_all(load);
    bool measuring = false;
    for (uint64_t now = load->start_ns; now < until && !all_published(load); now = load_now_ns()) {
        if (!measuring && now >= from) {
            take_sample(load, &result->begin);
            measuring = true;
        }
        uint64_t next = options->rate > 0 ? schedule(load, now) : UINT64_MAX;
        if (!step(load, smaller(next, measuring ? until : from))) return false;
    }
    if (options->count == 0) take_sample(load, &result->end);
    for (uint32_t i = 0; i < load->publisher_count; i++) load->publishers[i].due = load->publishers[i].sent;
    return true;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static bool all_arrived(const load_job *load) {
    return load->counts.acknowledged == load->counts.published && load->counts.delivered >= load_expected(load) &&
           load->unreleased == 0;
}

/* Until all is acknowledged and delivered, or nothing comes any more. */
static bool let_all_arrive(load_job *load) {
    while (!all_arrived(load))
        if (!step(load, UINT64_MAX)) return false;
    return true;
}

static bool linger(load_job *load) {
    uint64_t until = load_now_ns() + LINGER_NS;
    while (load_now_ns() < until)
        if (!net_step(&load->net, until)) return false;
    return true;
}

static void hold(load_job *load) {
    uint64_t until = load_now_ns() + as_ns(load->options->duration_s);
    while (!told_to_stop && load_now_ns() < until) {
        ping_some(load);
        if (!net_step(&load->net, smaller(until, load_now_ns() + LOOK_NS))) return;
    }
}

/* ---- the patterns ----------------------------------------------------------------------------------------------- */

static bool connect_all(load_job *load, load_result *result) {
    uint64_t start = load_now_ns();
    bool stand = open_all(load, load->subscribers, load->subscriber_count);
    if (stand && load->options->pattern == LOAD_STORE)
        stand = leave_all(load, load->subscribers, load->subscriber_count);
    stand = stand && open_all(load, load->publishers, load->publisher_count);
    result->connect_s = (double)(load_now_ns() - start) / (double)NS_PER_S;
    return stand;
}

static void run_traffic(load_job *load, load_result *result) {
    const load_options *options = load->options;
    if (options->pattern == LOAD_DRAIN) take_sample(load, &result->begin);
    if (!connect_all(load, result)) return;
    if (options->pattern != LOAD_DRAIN && !publish(load, result)) {
        net_fail(&load->net, "nothing came for %g s", options->timeout_s);
        return;
    }
    bool arrived = let_all_arrive(load);
    if (options->count > 0) take_sample(load, &result->end);
    uint64_t answered = load->counts.acknowledged;
    if (!arrived && answered < load->counts.published)
        net_fail(&load->net, "%llu publishes were not acknowledged",
                 (unsigned long long)(load->counts.published - answered));
    (void)linger(load);
}

static bool is_good(const load_job *load) {
    const load_counts *counts = &load->counts;
    return !load->net.failed && counts->lost == 0 && counts->out_of_order == 0 && counts->foreign == 0 &&
           counts->refused == 0 && (load->options->qos != 2 || counts->duplicates == 0);
}

static void run_idle(load_job *load, load_result *result, void (*on_ready)(const load_result *)) {
    struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGTERM, &action, NULL);
    if (!connect_all(load, result)) return;
    on_ready(result);
    hold(load);
}

bool load_run(const load_options *options, load_result *result, void (*on_ready)(const load_result *)) {
    memset(result, 0, sizeof *result);
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* ns; 50 us otherwise */
    load_job load = {.latency = &result->latency};
    if (load_traffic_init(&load, options)) {
        if (options->pattern == LOAD_IDLE)
            run_idle(&load, result, on_ready);
        else
            run_traffic(&load, result);
        load.counts.lost = load_missing(&load);
        if (!load.net.failed) {
            (void)leave_all(&load, load.publishers, load.publisher_count);
            (void)leave_all(&load, load.subscribers, load.subscriber_count);
        }
    }
    result->counts = load.counts;
    result->reads = load.net.reads;
    result->writes = load.net.writes;
    result->sessions_present = load.sessions_present;
    memcpy(result->fault, load.net.fault, sizeof result->fault);
    bool good = is_good(&load);
    load_traffic_fini(&load);
    return good;
}
