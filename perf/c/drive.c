/* Load from outside with as little of its own cost as possible; every mode prints one JSON object.
 *
 *   drive frames PORT FRAME CONNECTIONS IN_FLIGHT SECONDS
 *       sends the size-prefixed request in file FRAME over and over with new correlation ids; counts and times answers
 *   drive produce PORT TOPIC PARTITIONS SIZE RECORDS CONNECTIONS IN_FLIGHT SECONDS ACKS
 *       Produce v7, one batch of RECORDS records of SIZE bytes per request; connections go over the partitions in turn
 *   drive produce-count PORT TOPIC PARTITIONS SIZE RECORDS CONNECTIONS IN_FLIGHT REQUESTS ACKS
 *       the same, that many requests instead of so many seconds
 *   drive fetch PORT TOPIC PARTITIONS MAX_BYTES SECONDS
 *       Fetch v11 without session, one connection per partition, from offset 0 to the end and again
 *   drive fetch-old PORT TOPIC PARTITIONS MAX_BYTES SECONDS
 *       the same with Fetch v2, whose answers hold messages of magic 1
 *   drive regions PORT BYTES CONNECTIONS SECONDS
 *       asks loop.c's sendfile server for regions of BYTES and reads them, as drive fetch reads responses
 *   drive end-to-end PORT TOPIC RATE SECONDS
 *       one record per request at RATE/s (open loop, intended send time inside); a consumer in long polls measures the
 *       arrival
 *   drive connect PORT COUNT
 *       COUNT connections opened at once, none waiting for another one's answer, one ApiVersions each, all kept open
 *       till the end
 *   drive idle PORT COUNT SECONDS
 *       holds COUNT connections on which nothing happens
 *   drive wake PORT TOPIC CONSUMERS RATE SECONDS
 *       CONSUMERS long polls on partition 0; RATE records/s; counts wakes
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "../../kbroker/_core/wire/crc.h"
#include "wire.h"

enum { HEADER = 61, FETCH_BUFFER = 64 << 20 };

static uint64_t random_state = 88172645463325252ULL;

static uint8_t random_byte(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint8_t)(random_state >> 11);
}

static uint8_t *put_varint(uint8_t *p, int64_t value) {
    uint64_t v = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (v >= 0x80) *p++ = (uint8_t)(v | 0x80), v >>= 7;
    *p++ = (uint8_t)v;
    return p;
}

static int varint_size(int64_t value) {
    uint8_t room[10];
    return (int)(put_varint(room, value) - room);
}

static uint8_t *put_string(uint8_t *p, const char *s) {
    size_t n = strlen(s);
    put16(p, (uint16_t)n);
    memcpy(p + 2, s, n);
    return p + 2 + n;
}

static uint8_t *put_header(uint8_t *p, int api, int version) {
    put16(p, (uint16_t)api), put16(p + 2, (uint16_t)version), put32(p + 4, 0);
    return put_string(p + 8, "drive");
}

static void seal_batch(uint8_t *batch, size_t size) {
    put32(batch + 8, (uint32_t)(size - 12));
    put32(batch + 17, ~crc32c_chosen(~0u, batch + 21, size - 21));
}

/* Puts a magic 2 batch of `count` records with random values of `size` bytes, and returns its size. `*value` becomes
   the address of the first record's value. */
static size_t put_batch(uint8_t *batch, int count, int size, uint8_t **value) {
    uint8_t *p = batch + HEADER;
    memset(batch, 0, HEADER);
    put32(batch + 12, 0xffffffff);
    batch[16] = 2;
    put32(batch + 23, (uint32_t)(count - 1));
    put64(batch + 27, (uint64_t)wall_ms());
    put64(batch + 35, (uint64_t)wall_ms());
    put64(batch + 43, UINT64_MAX), put16(batch + 51, 0xffff), put32(batch + 53, 0xffffffff);
    put32(batch + 57, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        int body = 1 + varint_size(0) + varint_size(i) + varint_size(-1) + varint_size(size) + size + varint_size(0);
        p = put_varint(p, body);
        *p++ = 0;
        p = put_varint(p, 0), p = put_varint(p, i), p = put_varint(p, -1), p = put_varint(p, size);
        if (i == 0 && value) *value = p;
        for (int k = 0; k < size; k++) *p++ = 'a' + (random_byte() & 15);
        p = put_varint(p, 0);
    }
    seal_batch(batch, (size_t)(p - batch));
    return (size_t)(p - batch);
}

/* A whole Produce v7 request, size first. */
static uint8_t *produce_request(const char *topic, int partition, int acks, int count, int size, size_t *total,
                                uint8_t **batch, uint8_t **value) {
    uint8_t *frame = allocate(256 + strlen(topic) + HEADER + (size_t)count * (size + 32)),
            *p = put_header(frame + 4, 0, 7);
    put16(p, 0xffff), put16(p + 2, (uint16_t)acks), put32(p + 4, 30000), put32(p + 8, 1);
    p = put_string(p + 12, topic);
    put32(p, 1), put32(p + 4, (uint32_t)partition);
    uint8_t *records_size = p + 8;
    *batch = p + 12;
    size_t n = put_batch(*batch, count, size, value);
    put32(records_size, (uint32_t)n);
    *total = (size_t)(*batch + n - frame);
    put32(frame, (uint32_t)(*total - 4));
    return frame;
}

/* The error code in a Produce v7 response for one partition; `body` is behind the size field. */
static int produce_error(const uint8_t *body) {
    size_t topic = get16(body + 8);
    return (int16_t)get16(body + 8 + 2 + topic + 4 + 4);
}

/* --- request/response load ---------------------------------------------------------------------------- */

typedef struct {
    int fd;
    uint8_t *frame;
    size_t frame_size;
    uint32_t next;
    int64_t *sent_ns;
    uint8_t in[1 << 16];
    size_t in_size;
} client_t;

static samples_t latencies;
static int64_t responses, errors, most_requests = INT64_MAX;

static void send_next(client_t *c, int in_flight) {
    put32(c->frame + 8, c->next);
    c->sent_ns[c->next % (uint32_t)in_flight] = now_ns();
    c->next++;
    send_all(c->fd, c->frame, c->frame_size);
}

static void drive_requests(client_t *clients, int count, int in_flight, double seconds, int check, size_t records) {
    int ep = epoll_create1(0);
    struct epoll_event events[256], e;
    for (int i = 0; i < count; i++) {
        clients[i].sent_ns = calloc((size_t)in_flight, sizeof(int64_t));
        e.events = EPOLLIN, e.data.ptr = &clients[i];
        epoll_ctl(ep, EPOLL_CTL_ADD, clients[i].fd, &e);
    }
    int64_t start = now_ns(), end = start + (int64_t)(seconds * 1e9), now = start, waiting = 0;
    double cpu = cpu_seconds();
    for (int i = 0; i < count; i++)
        for (int k = 0; k < in_flight; k++) send_next(&clients[i], in_flight), waiting++;
    while (waiting) {
        int n = epoll_wait(ep, events, 256, 10000);
        if (n <= 0) { fprintf(stderr, "no answer for 10 s\n"); exit(1); }
        for (int i = 0; i < n; i++) {
            client_t *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->in + c->in_size, sizeof c->in - c->in_size, 0);
            if (got <= 0) { errno = got ? errno : ECONNRESET; die("recv"); }
            c->in_size += (size_t)got;
            size_t at = 0;
            now = now_ns();
            while (c->in_size - at >= 4 && c->in_size - at - 4 >= get32(c->in + at)) {
                uint32_t size = get32(c->in + at);
                const uint8_t *body = c->in + at + 4;
                sample(&latencies, now - c->sent_ns[get32(body) % (uint32_t)in_flight]);
                if (check && produce_error(body)) errors++;
                responses++, waiting--;
                at += 4 + size;
                if (now < end && responses + waiting < most_requests) send_next(c, in_flight), waiting++;
            }
            memmove(c->in, c->in + at, c->in_size - at);
            c->in_size -= at;
        }
    }
    double took = (now - start) / 1e9;
    printf("{\"seconds\": %.4f, \"requests\": %ld, \"requests_per_s\": %.1f, \"records_per_s\": %.1f, "
           "\"bytes_sent\": %.0f, \"errors\": %ld, \"client_cpu_s\": %.3f, ",
           took, (long)responses, responses / took, responses * records / took,
           (double)responses * clients[0].frame_size, (long)errors, cpu_seconds() - cpu);
    print_percentiles(&latencies);
    printf("}\n");
}

static int drive_frames(char **a) {
    FILE *f = fopen(a[1], "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st)) die(a[1]);
    uint8_t *frame = allocate((size_t)st.st_size);
    if (fread(frame, 1, (size_t)st.st_size, f) != (size_t)st.st_size) die(a[1]);
    int count = atoi(a[2]);
    client_t *clients = calloc((size_t)count, sizeof *clients);
    for (int i = 0; i < count; i++)
        clients[i].fd = connect_to(atoi(a[0])), clients[i].frame = frame, clients[i].frame_size = (size_t)st.st_size;
    drive_requests(clients, count, atoi(a[3]), atof(a[4]), 0, 1);
    return 0;
}

static int drive_produce(char **a) {
    int partitions = atoi(a[2]), size = atoi(a[3]), records = atoi(a[4]), count = atoi(a[5]);
    client_t *clients = calloc((size_t)count, sizeof *clients);
    for (int i = 0; i < count; i++) {
        uint8_t *batch;
        clients[i].fd = connect_to(atoi(a[0]));
        clients[i].frame = produce_request(a[1], i % partitions, atoi(a[8]), records, size, &clients[i].frame_size,
                                           &batch, NULL);
    }
    drive_requests(clients, count, atoi(a[6]), atof(a[7]), 1, (size_t)records);
    return errors != 0;
}

static int drive_produce_count(char **a) {
    most_requests = atoll(a[7]);
    a[7] = "100";
    return drive_produce(a);
}

/* --- fetching ------------------------------------------------------------------------------------------- */

static size_t fetch_request(uint8_t *frame, const char *topic, int partition, int64_t offset, int max_wait_ms,
                            int min_bytes, int max_bytes) {
    uint8_t *p = put_header(frame + 4, 1, 11);
    put32(p, 0xffffffff), put32(p + 4, (uint32_t)max_wait_ms);
    put32(p + 8, (uint32_t)min_bytes), put32(p + 12, (uint32_t)max_bytes);
    p[16] = 0, put32(p + 17, 0), put32(p + 21, 0xffffffff), put32(p + 25, 1);
    p = put_string(p + 29, topic);
    put32(p, 1), put32(p + 4, (uint32_t)partition), put32(p + 8, 0xffffffff);
    put64(p + 12, (uint64_t)offset), put64(p + 20, UINT64_MAX);
    put32(p + 28, (uint32_t)max_bytes), put32(p + 32, 0);
    p = put_string(p + 36, "");
    put32(frame, (uint32_t)(p - frame - 4));
    return (size_t)(p - frame);
}

/* The records of a one-partition Fetch v11 response; dies on an error. */
static uint8_t *fetched_records(uint8_t *body, size_t *size) {
    if (get16(body + 8)) { fprintf(stderr, "fetch: error %d\n", (int16_t)get16(body + 8)); exit(1); }
    uint8_t *p = body + 4 + 4 + 2 + 4;             /* correlation id, throttle, error, session */
    *size = 0;
    if (get32(p) == 0) return p;
    p += 4;
    p += 2 + get16(p) + 4 + 4;                     /* topic, partition count, partition */
    if (get16(p)) { fprintf(stderr, "fetch: partition error %d\n", (int16_t)get16(p)); exit(1); }
    p += 2 + 8 + 8 + 8;
    int32_t aborted = (int32_t)get32(p);
    p += 4 + (aborted > 0 ? 16 * aborted : 0) + 4; /* aborted transactions, preferred replica */
    *size = (int32_t)get32(p) > 0 ? get32(p) : 0;
    return p + 4;
}

/* The offset behind the last whole batch, or `offset` when there is none. */
static int64_t offset_behind(const uint8_t *records, size_t size, int64_t offset) {
    size_t at = 0;
    while (size - at >= HEADER && size - at >= get32(records + at + 8) + 12) {
        offset = (int64_t)get64(records + at) + (int32_t)get32(records + at + 23) + 1;
        at += get32(records + at + 8) + 12;
    }
    return offset;
}

/* Fetch v2, as clients from before Kafka 0.11 send it. */
static size_t old_fetch_request(uint8_t *frame, const char *topic, int partition, int64_t offset, int max_bytes) {
    uint8_t *p = put_header(frame + 4, 1, 2);
    put32(p, 0xffffffff), put32(p + 4, 0), put32(p + 8, 0), put32(p + 12, 1);
    p = put_string(p + 16, topic);
    put32(p, 1), put32(p + 4, (uint32_t)partition), put64(p + 8, (uint64_t)offset), put32(p + 16, (uint32_t)max_bytes);
    put32(frame, (uint32_t)(p + 20 - frame - 4));
    return (size_t)(p + 20 - frame);
}

/* The messages of a one-partition Fetch v2 response; dies on an error. */
static uint8_t *fetched_messages(uint8_t *body, size_t *size) {
    uint8_t *p = body + 4 + 4 + 4;                 /* correlation id, throttle, topic count */
    p += 2 + get16(p) + 4 + 4;                     /* topic, partition count, partition */
    if (get16(p)) { fprintf(stderr, "fetch: partition error %d\n", (int16_t)get16(p)); exit(1); }
    *size = (int32_t)get32(p + 10) > 0 ? get32(p + 10) : 0;
    return p + 14;
}

/* The offset behind the last whole message, or `offset` when there is none. */
static int64_t offset_behind_messages(const uint8_t *messages, size_t size, int64_t offset) {
    size_t at = 0;
    while (size - at >= 17 && size - at >= get32(messages + at + 8) + 12) {
        if (messages[at + 16] != 1) { fprintf(stderr, "fetch: magic %d\n", messages[at + 16]); exit(1); }
        offset = (int64_t)get64(messages + at) + 1;
        at += get32(messages + at + 8) + 12;
    }
    return offset;
}

static int fetch_all(char **a, int old) {
    int partitions = atoi(a[2]), max_bytes = atoi(a[3]);
    int64_t end = now_ns() + (int64_t)(atof(a[4]) * 1e9), start = now_ns(), bytes = 0, rounds = 0, requests = 0;
    int *fds = calloc((size_t)partitions, sizeof *fds);
    int64_t *offsets = calloc((size_t)partitions, sizeof *offsets);
    uint8_t request[512], *in = allocate(FETCH_BUFFER);
    for (int i = 0; i < partitions; i++) fds[i] = connect_to(atoi(a[0]));
    while (now_ns() < end) {
        for (int i = 0; i < partitions; i++)
            send_all(fds[i], request, old ? old_fetch_request(request, a[1], i, offsets[i], max_bytes)
                                          : fetch_request(request, a[1], i, offsets[i], 0, 0, max_bytes));
        for (int i = 0; i < partitions; i++) {
            uint8_t prefix[4];
            size_t size;
            recv_all(fds[i], prefix, 4);
            if (get32(prefix) > FETCH_BUFFER) {
                fprintf(stderr, "fetch: response of %u bytes\n", get32(prefix));
                return 1;
            }
            recv_all(fds[i], in, get32(prefix));
            uint8_t *records = old ? fetched_messages(in, &size) : fetched_records(in, &size);
            int64_t next = old ? offset_behind_messages(records, size, offsets[i])
                               : offset_behind(records, size, offsets[i]);
            if (next == offsets[i]) next = 0, rounds++;
            offsets[i] = next;
            bytes += (int64_t)size, requests++;
        }
    }
    double took = (now_ns() - start) / 1e9;
    printf("{\"seconds\": %.4f, \"bytes\": %ld, \"mb_per_s\": %.1f, \"requests\": %ld, \"rounds\": %ld, "
           "\"client_cpu_s\": %.3f}\n",
           took, (long)bytes, bytes / took / 1e6, (long)requests, (long)rounds, cpu_seconds());
    return 0;
}

static int drive_fetch(char **a) { return fetch_all(a, 0); }

static int drive_fetch_old(char **a) { return fetch_all(a, 1); }

static int drive_regions(char **a) {
    size_t size = 16 - 4 + strtoul(a[1], NULL, 10);
    int count = atoi(a[2]), *fds = calloc((size_t)count, sizeof *fds);
    int64_t start = now_ns(), end = start + (int64_t)(atof(a[3]) * 1e9), bytes = 0;
    uint8_t request[512], *in = allocate(size);
    for (int i = 0; i < count; i++) fds[i] = connect_to(atoi(a[0]));
    while (now_ns() < end) {
        for (int i = 0; i < count; i++)
            send_all(fds[i], request, fetch_request(request, "regions", i, 0, 0, 0, 1 << 20));
        for (int i = 0; i < count; i++) {
            uint8_t prefix[4];
            recv_all(fds[i], prefix, 4);
            recv_all(fds[i], in, size);
            bytes += (int64_t)size;
        }
    }
    printf("{\"seconds\": %.4f, \"bytes\": %ld, \"client_cpu_s\": %.3f}\n",
           (now_ns() - start) / 1e9, (long)bytes, cpu_seconds());
    return 0;
}

/* --- open loop, end to end -------------------------------------------------------------------------------- */

static int64_t log_end(int fd, const char *topic) {
    uint8_t frame[512], in[512], *p = put_header(frame + 4, 2, 1);
    put32(p, 0xffffffff), put32(p + 4, 1);
    p = put_string(p + 8, topic);
    put32(p, 1), put32(p + 4, 0), put64(p + 8, UINT64_MAX);
    put32(frame, (uint32_t)(p + 16 - frame - 4));
    send_all(fd, frame, (size_t)(p + 16 - frame));
    recv_all(fd, in, 4);
    uint32_t size = get32(in);
    recv_all(fd, in, size);
    return (int64_t)get64(in + size - 8);
}

static int drive_end_to_end(char **a) {
    int port = atoi(a[0]), producer = connect_to(port), consumer = connect_to(port), ep = epoll_create1(0);
    double rate = atof(a[2]), seconds = atof(a[3]);
    size_t total, in_size = 0, acks_size = 0;
    uint8_t *batch, *value, request[512], *in = allocate(FETCH_BUFFER), acks[1 << 16];
    uint8_t *frame = produce_request(a[1], 0, 1, 1, 100, &total, &batch, &value);
    int64_t offset = log_end(consumer, a[1]), sent = 0, received = 0, count = (int64_t)(rate * seconds);
    samples_t s = {0};
    struct epoll_event events[2], e = {.events = EPOLLIN, .data.fd = producer};
    epoll_ctl(ep, EPOLL_CTL_ADD, producer, &e);
    e.data.fd = consumer;
    epoll_ctl(ep, EPOLL_CTL_ADD, consumer, &e);
    send_all(consumer, request, fetch_request(request, a[1], 0, offset, 500, 1, 1 << 20));
    int64_t start = now_ns() + 1000000, gave_up = start + (int64_t)((seconds + 10) * 1e9);
    while (received < count) {
        int64_t now = now_ns();
        /* After a few, the answers: a broker that cannot write them stops reading. */
        for (int burst = 0; burst < 64 && sent < count && now >= start + (int64_t)(sent * 1e9 / rate); burst++) {
            put64(value, (uint64_t)(start + (int64_t)(sent * 1e9 / rate)));
            put64(batch + 27, (uint64_t)wall_ms()), put64(batch + 35, get64(batch + 27));
            seal_batch(batch, (size_t)(frame + total - batch));
            send_all(producer, frame, total);
            sent++;
            now = now_ns();
        }
        if (now > gave_up) { fprintf(stderr, "only %ld of %ld arrived\n", (long)received, (long)count); return 1; }
        struct timespec wait = {0, 0};
        int64_t left = sent < count ? start + (int64_t)(sent * 1e9 / rate) - now : 100000000;
        wait.tv_nsec = left > 0 ? left : 0;
        int n = epoll_pwait2(ep, events, 2, &wait, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == producer) {
                ssize_t got = recv(producer, acks + acks_size, sizeof acks - acks_size, 0);
                if (got <= 0) die("producer");
                size_t at = 0;
                acks_size += (size_t)got;
                for (; acks_size - at >= 4 && acks_size - at - 4 >= get32(acks + at); at += 4 + get32(acks + at))
                    if (produce_error(acks + at + 4)) { fprintf(stderr, "produce error\n"); return 1; }
                memmove(acks, acks + at, acks_size - at);
                acks_size -= at;
                continue;
            }
            ssize_t got = recv(consumer, in + in_size, FETCH_BUFFER - in_size, 0);
            if (got <= 0) die("consumer");
            in_size += (size_t)got;
            if (in_size < 4 || in_size - 4 < get32(in)) continue;
            now = now_ns();
            size_t size, at = 0;
            uint8_t *records = fetched_records(in + 4, &size);
            while (size - at >= HEADER && size - at >= get32(records + at + 8) + 12) {
                /* every batch holds one record laid out as ours: the value stands where it stood when we made it */
                sample(&s, now - (int64_t)get64(records + at + (value - batch)));
                received++;
                offset = (int64_t)get64(records + at) + 1;
                at += get32(records + at + 8) + 12;
            }
            in_size = 0;
            send_all(consumer, request, fetch_request(request, a[1], 0, offset, 500, 1, 1 << 20));
        }
    }
    printf("{");
    print_percentiles(&s);
    printf("}\n");
    return 0;
}

/* --- many connections --------------------------------------------------------------------------------------- */

static int drive_connect(char **a) {
    int port = atoi(a[0]), count = atoi(a[1]);
    uint8_t frame[64], in[8192], *p = put_header(frame + 4, 18, 0);
    size_t size = (size_t)(p - frame);
    put32(frame, (uint32_t)(size - 4));
    raise_descriptor_limit();
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event events[256], e;
    int ep = epoll_create1(0), answered = 0;
    int64_t start = now_ns();
    for (int i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0 || (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) die("connect");
        e.events = EPOLLOUT, e.data.fd = fd;
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
    double opened = (now_ns() - start) / 1e9;
    while (answered < count) {
        int n = epoll_wait(ep, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            fcntl(fd, F_SETFL, 0);
            if (events[i].events & EPOLLOUT) {
                send_all(fd, frame, size);
                e.events = EPOLLIN, e.data.fd = fd;
                epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e);
                continue;
            }
            recv_all(fd, in, 4);
            if (get32(in) > sizeof in) { fprintf(stderr, "ApiVersions of %u bytes\n", get32(in)); return 1; }
            recv_all(fd, in, get32(in));
            epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL);
            answered++;
        }
    }
    printf("{\"connections\": %d, \"asked_s\": %.4f, \"seconds\": %.4f}\n", count, opened, (now_ns() - start) / 1e9);
    return 0;
}

static int drive_idle(char **a) {
    int count = atoi(a[1]);
    raise_descriptor_limit();
    for (int i = 0; i < count; i++) connect_to(atoi(a[0]));
    printf("open\n");
    fflush(stdout);
    sleep((unsigned)atoi(a[2]));
    return 0;
}

static int drive_wake(char **a) {
    int port = atoi(a[0]), count = atoi(a[2]), ep = epoll_create1(0), producer = connect_to(port);
    double rate = atof(a[3]), seconds = atof(a[4]);
    size_t total;
    uint8_t *batch, *value, request[512], in[1 << 16];
    uint8_t *frame = produce_request(a[1], 0, 1, 1, 100, &total, &batch, &value);
    raise_descriptor_limit();
    int64_t *offsets = calloc((size_t)count, sizeof *offsets), wakes = 0, sent = 0;
    int *fds = calloc((size_t)count, sizeof *fds);
    samples_t s = {0};
    struct epoll_event events[256], e;
    int64_t at_end = log_end(producer, a[1]);
    for (int i = 0; i < count; i++) {
        fds[i] = connect_to(port);
        offsets[i] = at_end;
        send_all(fds[i], request, fetch_request(request, a[1], 0, at_end, 5000, 1, 1 << 20));
        e.events = EPOLLIN, e.data.u32 = (uint32_t)i;
        epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e);
    }
    printf("open\n");
    fflush(stdout);
    sleep(1);
    int64_t start = now_ns(), end = start + (int64_t)(seconds * 1e9);
    double cpu = cpu_seconds();
    while (now_ns() < end) {
        int64_t now = now_ns(), next = start + (int64_t)(sent * 1e9 / rate);
        if (now >= next) {
            put64(value, (uint64_t)now);
            seal_batch(batch, (size_t)(frame + total - batch));
            send_all(producer, frame, total);
            recv_all(producer, in, 4);
            recv_all(producer, in, get32(in));
            sent++;
            continue;
        }
        struct timespec wait = {0, next - now < 1000000000 ? next - now : 999999999};
        int n = epoll_pwait2(ep, events, 256, &wait, NULL);
        for (int k = 0; k < n; k++) {
            int i = (int)events[k].data.u32;
            size_t size;
            recv_all(fds[i], in, 4);
            recv_all(fds[i], in, get32(in));
            now = now_ns();
            uint8_t *records = fetched_records(in, &size);
            if (size) sample(&s, now - (int64_t)get64(records + (value - batch))), wakes++;
            offsets[i] = offset_behind(records, size, offsets[i]);
            send_all(fds[i], request, fetch_request(request, a[1], 0, offsets[i], 5000, 1, 1 << 20));
        }
    }
    printf("{\"wakes\": %ld, \"records\": %ld, \"client_cpu_s\": %.3f, ", (long)wakes, (long)sent, cpu_seconds() - cpu);
    print_percentiles(&s);
    printf("}\n");
    return 0;
}

int main(int argc, char **argv) {
    crc_start();
    static const struct { const char *name; int arguments; int (*run)(char **); } modes[] = {
        {"frames", 5, drive_frames}, {"produce", 9, drive_produce}, {"produce-count", 9, drive_produce_count},
        {"fetch", 5, drive_fetch}, {"fetch-old", 5, drive_fetch_old}, {"regions", 4, drive_regions},
        {"end-to-end", 4, drive_end_to_end},
        {"connect", 2, drive_connect}, {"idle", 3, drive_idle}, {"wake", 5, drive_wake},
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (argc > 1 && !strcmp(argv[1], modes[i].name) && argc == modes[i].arguments + 2)
            return modes[i].run(argv + 2);
    fprintf(stderr, "usage: see the top of drive.c\n");
    return 2;
}
