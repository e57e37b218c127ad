/* Big-endian fields, clocks and blocking socket helpers shared by loop.c and drive.c. */
#ifndef KBROKER_PERF_WIRE_H
#define KBROKER_PERF_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint16_t get16(const void *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t get32(const void *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get64(const void *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void put16(void *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void put32(void *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void put64(void *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static inline double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void *allocate(size_t size) {
    void *p = malloc(size);
    if (!p) die("malloc");
    return p;
}

static inline void raise_descriptor_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static inline int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static inline int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) die("listen");
    return fd;
}

static inline void send_all(int fd, const void *data, size_t size) {
    const char *p = data;
    while (size) {
        ssize_t n = send(fd, p, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd ready = {.fd = fd, .events = POLLOUT};
            poll(&ready, 1, -1);
            continue;
        }
        if (n < 0) die("send");
        p += n, size -= n;
    }
}

static inline void recv_all(int fd, void *data, size_t size) {
    char *p = data;
    while (size) {
        ssize_t n = recv(fd, p, size, 0);
        if (n < 0) die("recv");
        if (n == 0) { errno = ECONNRESET; die("recv"); }
        p += n, size -= n;
    }
}

/* Latencies in nanoseconds, sorted on demand. */
typedef struct { int64_t *ns; size_t count, capacity; } samples_t;

static inline void sample(samples_t *s, int64_t ns) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 65536;
        s->ns = realloc(s->ns, s->capacity * sizeof *s->ns);
        if (!s->ns) die("realloc");
    }
    s->ns[s->count++] = ns;
}

static int compare_i64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static inline void print_percentiles(samples_t *s) {
    qsort(s->ns, s->count, sizeof *s->ns, compare_i64);
    double mean = 0;
    for (size_t i = 0; i < s->count; i++) mean += (double)s->ns[i] / s->count;
#define AT(q) (s->count ? s->ns[(size_t)((s->count - 1) * (q))] / 1000.0 : 0.0)
    printf("\"samples\": %zu, \"mean_us\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f", s->count, mean / 1000, AT(0.5), AT(0.99), AT(0.999), AT(1.0));
#undef AT
}
#endif
