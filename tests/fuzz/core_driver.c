/* core_driver.c - the fuzzer of the core: mutates inputs, keeps those that reach new code.
 *
 *      core_driver --replay FILE                            every input of the file, once
 *      core_driver --seed S --seconds N CORPUS CURRENT OUT  mutates CORPUS for so long, writes a small one to OUT
 *
 * CURRENT always holds the input that runs, so that whoever started this process knows which one ended it.  A corpus has
 * one input a line, in hexadecimal digits; '#' begins a comment.
 *
 * The files of the core are compiled with -fsanitize-coverage=trace-pc: the compiler calls __sanitizer_cov_trace_pc in
 * each basic block, and the edges (this block after that one) are counted in a map.  This file is compiled without that and
 * without sanitizers: it looks at the whole map after each input. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "core_targets.h"

#define MAP_SIZE 16384U
#define MAX_INPUT 2048U
#define MAX_POOL 8192U
#define MAX_TICKS 10 /* seconds that one input may take */
#define KEEP_MAX_BYTES 256U

typedef struct input {
    uint8_t *bytes;
    size_t len;
} input;

static input pool[MAX_POOL];
static size_t pool_count;
static _Alignas(8) uint8_t edges[MAP_SIZE];
static uint8_t seen[MAP_SIZE];
static uintptr_t previous_block;
static volatile unsigned long long runs;
static uint8_t *current; /* four bytes of length, then the input: shared with a file */

/* ---- coverage ---------------------------------------------------------------------------------------------- */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    here = (here >> 4 ^ here << 8) & (MAP_SIZE - 1);
    edges[(here ^ previous_block) & (MAP_SIZE - 1)]++;
    previous_block = here >> 1;
}

/* How often, roughly: one bit for 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more. */
static uint8_t degree(uint8_t count) {
    static const uint8_t bounds[] = {2, 3, 4, 8, 16, 32, 128};
    uint8_t bit = 1;
    for (size_t i = 0; i < sizeof bounds && count >= bounds[i]; i++) bit = (uint8_t)(bit << 1);
    return bit;
}

static bool is_new(bool by_degree) {
    bool news = false;
    for (size_t i = 0; i < MAP_SIZE; i++) {
        uint64_t eight;
        memcpy(&eight, edges + i / 8 * 8, sizeof eight);
        if (eight == 0) i |= 7; /* most of the map is empty */
        if (edges[i] == 0) continue;
        uint8_t bit = by_degree ? degree(edges[i]) : 1;
        if (seen[i] & bit) continue;
        seen[i] |= bit;
        news = true;
    }
    return news;
}

static size_t edges_seen(void) {
    size_t count = 0;
    for (size_t i = 0; i < MAP_SIZE; i++) count += seen[i] != 0;
    return count;
}

static void run(const uint8_t *bytes, size_t len) {
    uint32_t size = (uint32_t)len;
    if (current != NULL) {
        memcpy(current, &size, sizeof size);
        memcpy(current + sizeof size, bytes, len);
    }
    memset(edges, 0, sizeof edges);
    previous_block = 0;
    fuzz_one(bytes, len);
    runs++;
}

static void on_tick(int signal) {
    static unsigned long long last;
    static int ticks;
    (void)signal;
    ticks = runs == last ? ticks + 1 : 0;
    last = runs;
    if (ticks >= MAX_TICKS) abort();
}

/* ---- randomness and mutation ------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t random64(void) { /* splitmix64 */
    uint64_t z = state += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

static size_t below(size_t bound) {
    return bound == 0 ? 0 : (size_t)(random64() % bound);
}

static const char *const words[] = {"/",
                                    "+",
                                    "#",
                                    "$share/",
                                    "$SYS",
                                    "*",
                                    "[^a-z]",
                                    "\\",
                                    "{",
                                    "}",
                                    "%7B",
                                    "%7D",
                                    "%25",
                                    "_messages_",
                                    "_messages",
                                    "_last_packet_id",
                                    "_session",
                                    "_inbox",
                                    "_retained",
                                    "65535",
                                    "65536",
                                    "0",
                                    "hold=none",
                                    "hold=unheard",
                                    "hold=all",
                                    "last=on",
                                    "last=off",
                                    "maxlen=",
                                    "ttl=",
                                    "deliver=",
                                    "held",
                                    "4294967296",
                                    ";",
                                    "\"",
                                    "\\\"",
                                    "\n",
                                    "{\"",
                                    "\"}",
                                    "\":",
                                    "packetType",
                                    "packetId",
                                    "payload",
                                    "\"PUBLISH\"",
                                    "PUBREL",
                                    "\\u0000",
                                    "\\ud800",
                                    "null",
                                    "1e308",
                                    "\xC0\x80",
                                    "\xED\xA0\x80",
                                    "\xF4\x90\x80\x80",
                                    "\xEF\xBF\xBF",
                                    "\xFA\x11",
                                    "\xFB\x01",
                                    "MQTT\x04",
                                    "MQTT\x05",
                                    "\x05\x02"};

static size_t insert(uint8_t *bytes, size_t len, size_t at, const void *what, size_t what_len) {
    if (len + what_len > MAX_INPUT) return len;
    memmove(bytes + at + what_len, bytes + at, len - at);
    memcpy(bytes + at, what, what_len);
    return len + what_len;
}

static size_t mutate_once(uint8_t *bytes, size_t len) {
    static const uint8_t edges_of_bytes[] = {0, 1, 2, 4, 0x7F, 0x80, 0xFE, 0xFF, '/', '"', '{', 0xFA};
    uint8_t other[64];
    size_t at = below(len + 1), count = 1 + below(8), from;
    switch (below(9)) {
    case 0:
        if (at < len) bytes[at] ^= (uint8_t)(1U << below(8));
        return len;
    case 1:
        if (at < len) bytes[at] = (uint8_t)random64();
        return len;
    case 2:
        if (at < len) bytes[at] = edges_of_bytes[below(sizeof edges_of_bytes)];
        return len;
    case 3:
        if (at < len) bytes[at] = (uint8_t)(bytes[at] + below(9) - 4);
        return len;
    case 4: /* cut out */
        if (at + count > len) return len;
        memmove(bytes + at, bytes + at + count, len - at - count);
        return len - count;
    case 5: { /* a word */
        const char *word = words[below(sizeof words / sizeof words[0])];
        return insert(bytes, len, at, word, strlen(word));
    }
    case 6: /* repeat a part */
        count = below(sizeof other);
        from = below(len + 1);
        if (from + count > len) count = len - from;
        memcpy(other, bytes + from, count);
        return insert(bytes, len, at, other, count);
    case 7: { /* a part of another input */
        const input *source = &pool[below(pool_count)];
        count = below(sizeof other);
        from = below(source->len + 1);
        if (from + count > source->len) count = source->len - from;
        return insert(bytes, len, at, source->bytes + from, count);
    }
    default: return below(4) == 0 ? at : len; /* cut off */
    }
}

/* ---- the pool ---------------------------------------------------------------------------------------------- */

static void keep(const uint8_t *bytes, size_t len) {
    if (pool_count == MAX_POOL) return;
    input *kept = &pool[pool_count++];
    kept->bytes = malloc(len + 1);
    if (kept->bytes == NULL) abort();
    memcpy(kept->bytes, bytes, len);
    kept->len = len;
}

static void load(const char *path) {
    static char line[2 * MAX_INPUT + 3];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    while (fgets(line, sizeof line, file) != NULL) {
        uint8_t bytes[MAX_INPUT];
        size_t len = 0;
        unsigned byte;
        for (const char *at = line; len < MAX_INPUT && sscanf(at, "%2x", &byte) == 1 && line[0] != '#'; at += 2) {
            bytes[len++] = (uint8_t)byte;
        }
        if (len > 0) keep(bytes, len);
    }
    fclose(file);
}

static int shorter_first(const void *a, const void *b) {
    const input *x = a, *y = b;
    return x->len < y->len ? -1 : x->len > y->len;
}

/* The shortest inputs that together reach all edges (of those not too long). */
static void save(const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    fputs("# Inputs of the core's fuzzer that together reach all that it found: target byte, data, in hexadecimal.\n",
          file);
    qsort(pool, pool_count, sizeof pool[0], shorter_first);
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < pool_count && pool[i].len <= KEEP_MAX_BYTES; i++) {
        run(pool[i].bytes, pool[i].len);
        if (!is_new(false)) continue;
        for (size_t j = 0; j < pool[i].len; j++) fprintf(file, "%02x", pool[i].bytes[j]);
        fputc('\n', file);
    }
    fclose(file);
}

/* ---- the run ----------------------------------------------------------------------------------------------- */

static void share_current(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    size_t size = MAX_INPUT + sizeof(uint32_t);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        perror(path);
        exit(2);
    }
    current = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (current == MAP_FAILED) exit(2);
    close(fd);
}

static void fuzz(long seconds) {
    time_t end = time(NULL) + seconds;
    uint8_t bytes[MAX_INPUT];
    for (size_t i = 0; i < pool_count; i++) {
        run(pool[i].bytes, pool[i].len);
        is_new(true);
    }
    while (runs % 256 != 0 || time(NULL) < end) {
        /* Half of the time from the newest: what has just been found leads on. */
        size_t newest = pool_count < 64 ? pool_count : 64;
        const input *parent = &pool[random64() & 1 ? below(pool_count) : pool_count - 1 - below(newest)];
        size_t len = parent->len;
        memcpy(bytes, parent->bytes, len);
        for (size_t i = 1 + below(6); i > 0; i--) len = mutate_once(bytes, len);
        if (len == 0) continue;
        run(bytes, len);
        if (is_new(true)) keep(bytes, len);
    }
}

int main(int argc, char **argv) {
    struct itimerval every_second = {{1, 0}, {1, 0}};
    signal(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &every_second, NULL);
    if (argc == 3 && strcmp(argv[1], "--replay") == 0) {
        load(argv[2]);
        for (size_t i = 0; i < pool_count; i++) run(pool[i].bytes, pool[i].len);
        printf("replayed %zu inputs\n", pool_count);
        return 0;
    }
    if (argc != 8 || strcmp(argv[1], "--seed") != 0 || strcmp(argv[3], "--seconds") != 0) {
        fputs("usage: core_driver --replay FILE | --seed S --seconds N CORPUS CURRENT OUT\n", stderr);
        return 2;
    }
    state = strtoull(argv[2], NULL, 10);
    load(argv[5]);
    if (pool_count == 0) {
        fprintf(stderr, "%s holds no input\n", argv[5]);
        return 2;
    }
    share_current(argv[6]);
    fuzz(strtol(argv[4], NULL, 10));
    size_t reached = edges_seen(), found = pool_count;
    unsigned long long executed = runs;
    save(argv[7]);
    printf("%llu inputs run, %zu kept in memory, %zu edges reached\n", executed, found, reached);
    return 0;
}
