/* resources.c - the server's memory and disk. */
#include "server/resources.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "server/awake.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "server/timers.h"

#define LOOK_MS 1000
#define DISK_LOOK_US 10000 /* while messages are stored: in a second they fill what is kept free */
#define TOLD_EVERY_MS 600000
#define SCARCE_DISKS 4 /* times holdmq.min-free-disk */
#define SCARCE_MEMORY_PERCENT 90
#define GROUPS_MAX_BYTES 4096
#define REFUSAL_MAX_BYTES 160

static resources now;
static unsigned long long maxmemory, group_limit;
static bool appends;      /* there is an append-only file */
static unsigned long long appended; /* its size */
static bool refuses;
static uint64_t disk_looked_us; /* monotonic */

/* What was logged of one resource. */
typedef struct reported {
    bool is_scarce;
    long long at_ms;
} reported;
static reported of_memory, of_disk;

/* ---- control groups ---------------------------------------------------------------------------------------- */

/* The number of bytes read into the text, which ends with 0. */
static size_t read_text(const char *path, char *text, size_t room) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t count = read(file, text, room - 1);
    close(file);
    text[count > 0 ? count : 0] = 0;
    return count > 0 ? (size_t)count : 0;
}

/* ULLONG_MAX: no limit ("max", or no such file). */
static unsigned long long limit_in(const char *path) {
    char text[64], *end;
    if (read_text(path, text, sizeof text) == 0 || text[0] < '0' || text[0] > '9') return ULLONG_MAX;
    errno = 0;
    unsigned long long limit = strtoull(text, &end, 10);
    return errno == 0 ? limit : ULLONG_MAX;
}

/* The least limit of a group and of its parents; shortens `group` to nothing. */
static unsigned long long limit_of_group(const char *root, char *group, const char *file) {
    unsigned long long least = ULLONG_MAX;
    for (;;) {
        char path[PATH_MAX];
        int len = snprintf(path, sizeof path, "%s%s/%s", root, group, file);
        if (len > 0 && (size_t)len < sizeof path) {
            unsigned long long limit = limit_in(path);
            if (limit < least) least = limit;
        }
        char *last = strrchr(group, '/');
        if (last == NULL) return least;
        *last = 0;
    }
}

/* One line of /proc/self/cgroup: <number>:<controllers>:<group>. */
static unsigned long long limit_of_line(char *line) {
    char *controllers = strchr(line, ':'), *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (group == NULL) return ULLONG_MAX;
    *group++ = 0;
    if (controllers[1] == 0) return limit_of_group("/sys/fs/cgroup", group, "memory.max");
    if (strcmp(controllers + 1, "memory") != 0) return ULLONG_MAX;
    return limit_of_group("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
}

static unsigned long long limit_of_groups(void) {
    char text[GROUPS_MAX_BYTES], *rest = NULL;
    unsigned long long least = ULLONG_MAX;
    if (read_text("/proc/self/cgroup", text, sizeof text) == 0) return least;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        unsigned long long limit = limit_of_line(line);
        if (limit < least) least = limit;
    }
    return least;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

static unsigned long long field(server_info_data *info, const char *name) {
    const char *text = sv.ServerInfoGetFieldC(info, name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

static void look_at_memory(server_ctx *ctx) {
    server_info_data *info = sv.GetServerInfo(ctx, "memory");
    unsigned long long machine = field(info, "total_system_memory");
    maxmemory = field(info, "maxmemory");
    group_limit = limit_of_groups();
    if (machine > 0 && group_limit >= machine) group_limit = ULLONG_MAX; /* older kernels have no word for "no limit" */
    unsigned long long outer = group_limit == ULLONG_MAX && machine > 0 ? machine : group_limit;
    bool is_own = maxmemory > 0 && maxmemory <= outer;
    now.memory_limit = is_own ? maxmemory : outer == ULLONG_MAX ? 0 : outer;
    unsigned long long used = field(info, "used_memory"), resident = field(info, "used_memory_rss");
    now.memory_used =
        is_own || resident < used ? used : resident; /* at load the server has not measured its resident memory yet */
    sv.FreeServerInfo(ctx, info);
}

/* The server's folder is its working directory. */
static void look_at_free_disk(void) {
    struct statvfs disk;
    bool is_known = statvfs(".", &disk) == 0;
    now.disk_total = is_known ? (unsigned long long)disk.f_blocks * disk.f_frsize : 0;
    now.disk_free = is_known ? (unsigned long long)disk.f_bavail * disk.f_frsize : 0;
    refuses = appends && now.disk_total > 0 && now.disk_free < (unsigned long long)settings.min_free_disk;
    disk_looked_us = monotonic_us();
}

static void look_at_disk(server_ctx *ctx) {
    server_info_data *info = sv.GetServerInfo(ctx, "persistence");
    appends = field(info, "aof_enabled") != 0;
    appended = appends ? field(info, "aof_current_size") : 0;
    sv.FreeServerInfo(ctx, info);
    look_at_free_disk();
}

static bool memory_is_scarce(void) {
    return now.memory_limit > 0 && now.memory_used / SCARCE_MEMORY_PERCENT >= now.memory_limit / 100;
}

static bool disk_is_scarce(void) {
    unsigned long long least = SCARCE_DISKS * (unsigned long long)settings.min_free_disk;
    return appends && now.disk_total > 0 && now.disk_free < (appended > least ? appended : least);
}

/* ---- logging ----------------------------------------------------------------------------------------------- */

/* Should the scarcity of a resource be logged now?  When it begins, and once in a while as long as it lasts. */
static bool is_due(reported *t, bool is_scarce) {
    bool is_due = is_scarce && (!t->is_scarce || sv.Milliseconds() - t->at_ms >= TOLD_EVERY_MS);
    t->is_scarce = is_scarce;
    if (is_due) t->at_ms = sv.Milliseconds();
    return is_due;
}

static void report(server_ctx *ctx) {
    bool memory_was = of_memory.is_scarce, disk_was = of_disk.is_scarce;
    if (is_due(&of_memory, memory_is_scarce()))
        sv.Log(ctx, "warning", "memory is scarce: %llu bytes are used, the limit is %llu; logged at most once in %d s",
               now.memory_used, now.memory_limit, TOLD_EVERY_MS / 1000);
    if (memory_was && !of_memory.is_scarce) sv.Log(ctx, "notice", "memory is no longer scarce");
    if (is_due(&of_disk, disk_is_scarce()))
        sv.Log(
            ctx, "warning",
            "the disk is almost full: %llu bytes are free, the append-only file has %llu and is rewritten into a second "
            "one, and below %lld bytes (holdmq.min-free-disk) publishes are refused; logged at most once in %d s",
            now.disk_free, appended, settings.min_free_disk, TOLD_EVERY_MS / 1000);
    if (disk_was && !of_disk.is_scarce) sv.Log(ctx, "notice", "the disk is no longer almost full");
}

static void report_all(server_ctx *ctx) {
    sv.Log(
        ctx, "notice",
        "memory: %llu of %llu bytes are used (maxmemory %llu); disk: %llu of %llu bytes are free, %lld are kept free; "
        "append-only file: %s",
        now.memory_used, now.memory_limit, maxmemory, now.disk_free, now.disk_total, settings.min_free_disk,
        appends ? "yes" : "no");
    if (group_limit != ULLONG_MAX && (maxmemory == 0 || maxmemory > group_limit))
        sv.Log(
            ctx, "warning",
            "maxmemory is %llu and the control group allows %llu bytes: the kernel ends the server there; a maxmemory "
            "below that refuses writes instead",
            maxmemory, group_limit);
}

static module_timer look_timer;

static void look(server_ctx *ctx, void *data) {
    (void)data;
    look_at_memory(ctx);
    look_at_disk(ctx);
    report(ctx);
    timers_arm(&look_timer, LOOK_MS);
}

static void follow(void) {
    look(detached, NULL);
}

/* Eviction takes held messages, queues and sessions like any key. */
static void report_eviction(server_ctx *ctx) {
    server_info_data *info = sv.GetServerInfo(ctx, "memory");
    const char *policy = sv.ServerInfoGetFieldC(info, "maxmemory_policy");
    if (maxmemory > 0 && policy != NULL && strcmp(policy, "noeviction") != 0)
        sv.Log(
            ctx, "warning",
            "maxmemory-policy is %s: at %llu bytes (maxmemory) the server evicts held messages, queues and sessions; "
            "noeviction refuses writes instead",
            policy, maxmemory);
    sv.FreeServerInfo(ctx, info);
}

void resources_start(server_ctx *ctx) {
    look_at_memory(ctx);
    look_at_disk(ctx);
    report_all(ctx);
    report_eviction(ctx);
    report(ctx);
    look_timer.fire = look;
    awake_add_follower(follow);
}

resources resources_read(void) {
    if (!is_following) {
        look_at_memory(detached);
        look_at_disk(detached);
    }
    return now;
}

bool resources_are_short(void) {
    if (appends && monotonic_us() - disk_looked_us >= DISK_LOOK_US) look_at_free_disk();
    return refuses;
}

bool resources_refuse(void) {
    bool refused = resources_are_short();
    counters.disk_refused += refused;
    return refused;
}

const char *resources_refusal(void) {
    static char text[REFUSAL_MAX_BYTES];
    snprintf(text, sizeof text, ERROR_DISK_SHORT, now.disk_free, settings.min_free_disk);
    return text;
}

int resources_reply_refusal(server_ctx *ctx) {
    return reply_error(ctx, ERROR_DISK_SHORT, now.disk_free, settings.min_free_disk);
}
