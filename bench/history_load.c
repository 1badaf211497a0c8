/* history_load.c - reads streams and history page by page, as fast as one client can, and says how much it was.
 *
 *     build/history_load PORT PAGE xrange KEY
 *     build/history_load PORT PAGE replay STORE FILTER
 *     build/history_load PORT PAGE range STORE [PACKED]       everything of shard 0
 *
 * PAGE: messages of a page.  Prints one line: messages, pages, visited, bytes received, microseconds on the clock.
 *
 * Replies are read to their end and counted, not kept.  One connection on loopback, one page asked for at a time; memory
 * is one buffer.  A reply that is not as expected ends it with status 1. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (1 << 20)
#define TEXT_BYTES 8192
#define MAX_DEPTH 8
#define WAIT_S 60

static struct {
    int fd;
    char data[BUFFER_BYTES];
    size_t at, end;
    uint64_t received;
} in;

static uint64_t messages, pages, visited;
static const char *page;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "history_load: %s\n", what);
    exit(1);
}

static void dial(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    struct timeval wait = {.tv_sec = WAIT_S};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in.fd = socket(AF_INET, SOCK_STREAM, 0);
    if (in.fd < 0 || connect(in.fd, (struct sockaddr *)&address, sizeof address) != 0) fail("no connection");
    setsockopt(in.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(in.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
}

/* ---- commands ---------------------------------------------------------------------------------------------- */

static void ask(const char *const *words, size_t count) {
    char text[2 * TEXT_BYTES];
    int len = snprintf(text, sizeof text, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        len += snprintf(text + len, sizeof text - (size_t)len, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
        if ((size_t)len >= sizeof text) fail("a command that is too long");
    }
    for (ssize_t sent = 0, some; sent < len; sent += some) {
        some = write(in.fd, text + sent, (size_t)(len - sent));
        if (some <= 0) fail("the server went away");
    }
}

/* ---- replies ----------------------------------------------------------------------------------------------- */

static void receive(void) {
    if (in.at > 0) memmove(in.data, in.data + in.at, in.end - in.at);
    in.end -= in.at;
    in.at = 0;
    if (in.end == sizeof in.data) fail("a line that is too long");
    ssize_t some = read(in.fd, in.data + in.end, sizeof in.data - in.end);
    if (some <= 0) fail("no reply");
    in.end += (size_t)some;
    in.received += (uint64_t)some;
}

/* The number behind a type; steps over the line. */
static long long take_line(char *type) {
    char *end;
    while ((end = memchr(in.data + in.at, '\n', in.end - in.at)) == NULL) receive();
    const char *line = in.data + in.at;
    *type = *line;
    if (*type == '-') {
        fprintf(stderr, "%.*s", (int)(end + 1 - line), line);
        fail("an error");
    }
    in.at = (size_t)(end + 1 - in.data);
    return strtoll(line + 1, NULL, 10);
}

static void skip_bytes(size_t count) {
    while (count > in.end - in.at) {
        count -= in.end - in.at;
        in.at = in.end;
        receive();
    }
    in.at += count;
}

static void skip_value(unsigned depth) {
    char type;
    long long number = take_line(&type);
    if (type == '$' && number >= 0) skip_bytes((size_t)number + 2);
    if (type != '*') return;
    if (depth == MAX_DEPTH) fail("a reply that is too deep");
    for (long long i = 0; i < number; i++) skip_value(depth + 1);
}

static uint64_t take_number(void) {
    char type;
    long long number = take_line(&type);
    if (type != ':' || number < 0) fail("a number expected");
    return (uint64_t)number;
}

static size_t take_array(void) {
    char type;
    long long count = take_line(&type);
    if (type != '*' || count < 0) fail("an array expected");
    return (size_t)count;
}

static void take_text(char out[TEXT_BYTES]) {
    char type;
    long long len = take_line(&type);
    if (type != '$' || len < 0 || len >= TEXT_BYTES) fail("a text expected");
    while (in.end - in.at < (size_t)len + 2) receive();
    memcpy(out, in.data + in.at, (size_t)len);
    out[len] = '\0';
    in.at += (size_t)len + 2;
}

/* ---- readers ----------------------------------------------------------------------------------------------- */

static void read_stream(const char *key) {
    char from[TEXT_BYTES + 1] = "-";
    for (size_t count = 1; count > 0; pages++) {
        ask((const char *const[]){"XRANGE", key, from, "+", "COUNT", page}, 6);
        count = take_array();
        from[0] = '(';
        for (size_t i = 0; i < count; i++) {
            if (take_array() != 2) fail("an entry expected");
            take_text(from + 1);
            skip_value(0);
        }
        messages += count;
    }
}

static void replay(const char *store, const char *filter) {
    static char cursor[TEXT_BYTES];
    for (bool end = false; !end; pages++) {
        const char *const words[] = {"HISTORY.REPLAY", filter,      "STORE",  store, "COUNT", page,
                                     "BYTES",          "268435456", "CURSOR", cursor};
        ask(words, pages == 0 ? 8 : 10);
        if (take_array() != 5) fail("a page expected");
        size_t count = take_array();
        for (size_t i = 0; i < count; i++) skip_value(0);
        take_text(cursor);
        end = take_number() == 1;
        visited += take_number();
        take_number(); /* missed */
        messages += count;
    }
}

static void read_range(const char *store, const char *packed) {
    char from[24] = "1";
    for (uint64_t next = 1, rows = 1; rows > 0; pages++) {
        const char *const words[] = {"HISTORY.RANGE", store, "0",     from,        "9007199254740991",
                                     "COUNT",         page,  "BYTES", "268435456", packed};
        ask(words, packed == NULL ? 9 : 10);
        if (take_array() != 5) fail("a range expected");
        next = take_number();
        visited += take_number();
        take_number(); /* missed */
        rows = take_number();
        skip_value(0);
        snprintf(from, sizeof from, "%" PRIu64, next);
        messages += rows;
    }
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc < 5) fail("PORT PAGE xrange|replay|range ... expected");
    page = argv[2];
    dial(argv[1]);
    double begun = now_us();
    if (strcmp(argv[3], "xrange") == 0)
        read_stream(argv[4]);
    else if (strcmp(argv[3], "replay") == 0 && argc == 6)
        replay(argv[4], argv[5]);
    else if (strcmp(argv[3], "range") == 0)
        read_range(argv[4], argc > 5 ? argv[5] : NULL);
    else
        fail("xrange KEY, replay STORE FILTER or range STORE [PACKED] expected");
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %.0f\n", messages, pages, visited, in.received,
           now_us() - begun);
    return 0;
}
