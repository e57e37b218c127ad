/* The machine's own limits: programs that do only what any broker must do.
 *
 *   loop append PORT FILE       receive size-prefixed frames, CRC-32C them, append them to FILE, answer each
 *   loop sendfile PORT N FILE.. answer each frame with N bytes of a FILE by sendfile, going round; connections take
 *                               turns with the files
 *   loop pingpong PORT          answer each frame with 32 bytes
 *   loop sink PORT              like append without checking or writing: what the client alone can do
 *   loop fsync FILE SIZE COUNT  append SIZE bytes and fdatasync, COUNT times
 *
 * Servers run until the first connection has come and all connections have gone, then print their CPU seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "../../kbroker/_core/wire/crc.h"
#include "wire.h"

enum { APPEND, SENDFILE, PINGPONG, SINK };
enum { BUFFER = 1 << 21, ANSWER = 47 };

typedef struct {
    int fd;
    uint8_t *data;
    size_t size, capacity;
    int64_t to_send;   /* file bytes of the answer still to go */
    int file;          /* what it reads, its size, and where it is in it */
    int64_t file_size, read_at;
} connection_t;

static int mode, file = -1;
static int64_t region, file_at, bytes_in, bytes_out, frames;

static void push_file(connection_t *c) {
    while (c->to_send > 0) {
        off_t at = c->read_at;
        size_t want = c->to_send < c->file_size - c->read_at ? (size_t)c->to_send : (size_t)(c->file_size - c->read_at);
        ssize_t n = sendfile(c->fd, c->file, &at, want);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { c->to_send = 0; return; }
        c->read_at = (c->read_at + n) % c->file_size;
        c->to_send -= n;
        bytes_out += n;
    }
}

/* Handles every complete frame at the front; returns the bytes used. */
static size_t serve(connection_t *c) {
    size_t at = 0;
    uint8_t answers[ANSWER * 64];
    size_t answered = 0;
    while (c->size - at >= 4) {
        uint32_t n = get32(c->data + at);
        if (c->size - at - 4 < n) break;
        uint8_t *frame = c->data + at + 4;
        frames++;
        if (mode == APPEND) {
            volatile uint32_t crc = ~crc32c_chosen(~0u, frame, n);
            (void)crc;
            if (pwrite(file, frame, n, file_at) != (ssize_t)n) die("pwrite");
            file_at += n;
        }
        int32_t answer = mode == SENDFILE ? 16 : ANSWER;
        uint8_t *a = answers + answered;
        memset(a, 0, answer);
        put32(a, mode == SENDFILE ? (uint32_t)(answer - 4 + region) : (uint32_t)(answer - 4));
        memcpy(a + 4, frame + 4, 4); /* the correlation id */
        answered += answer;
        at += 4 + n;
        if (mode == SENDFILE) {
            send_all(c->fd, answers, answered);
            answered = 0;
            c->to_send = region;
            push_file(c);
        } else if (answered + ANSWER > sizeof answers) {
            send_all(c->fd, answers, answered);
            answered = 0;
        }
    }
    if (answered) send_all(c->fd, answers, answered);
    return at;
}

static void open_file(connection_t *c, const char *path) {
    struct stat st;
    if ((c->file = open(path, O_RDONLY)) < 0 || fstat(c->file, &st) || !st.st_size) die(path);
    c->file_size = st.st_size;
}

static void run(int port, char **files, int file_count) {
    int listener = listen_on(port), ep = epoll_create1(0), open = 0, seen = 0;
    struct epoll_event events[256], e = {.events = EPOLLIN, .data.ptr = NULL};
    setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* as kbroker does: BBR would pace by timers */
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    printf("ready\n");
    fflush(stdout);
    uint8_t *scratch = allocate(BUFFER);
    while (!seen || open) {
        int n = epoll_wait(ep, events, 256, -1);
        for (int i = 0; i < n; i++) {
            connection_t *c = events[i].data.ptr;
            if (!c) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
                if (fd < 0) continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                c = calloc(1, sizeof *c);
                c->fd = fd;
                if (file_count) open_file(c, files[seen % file_count]);
                e.events = EPOLLIN | (mode == SENDFILE ? EPOLLOUT | EPOLLET : 0);
                e.data.ptr = c;
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                open++, seen++;
                continue;
            }
            if (c->to_send) push_file(c);
            for (;;) {
                uint8_t *to = c->data ? c->data : scratch;
                size_t capacity = c->data ? c->capacity : BUFFER;
                ssize_t got = recv(c->fd, to + c->size, capacity - c->size, MSG_DONTWAIT);
                if (got < 0 && errno == EAGAIN) break;
                if (got <= 0) {
                    close(c->fd);
                    if (file_count) close(c->file);
                    free(c->data);
                    free(c);
                    open--;
                    break;
                }
                bytes_in += got;
                uint8_t *own = c->data;
                c->data = to;
                c->size += got;
                size_t used = serve(c);
                c->data = own;
                c->size -= used;
                if (c->size && !own) {
                    c->data = allocate(BUFFER);
                    c->capacity = BUFFER;
                    memcpy(c->data, to + used, c->size);
                } else if (c->size) {
                    memmove(c->data, c->data + used, c->size);
                } else if (own) {
                    free(own);
                    c->data = NULL;
                }
                if (mode != SENDFILE && (size_t)got < capacity - c->size) break;
            }
        }
    }
    printf("{\"cpu_s\": %.4f, \"frames\": %ld, \"bytes_in\": %ld, \"bytes_out\": %ld}\n", cpu_seconds(), (long)frames,
           (long)bytes_in, (long)bytes_out);
}

static void run_fsync(const char *path, size_t size, long count) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0) die(path);
    uint8_t *data = calloc(1, size);
    int64_t start = now_ns();
    for (long i = 0; i < count; i++) {
        if (pwrite(fd, data, size, (off_t)(i * size)) != (ssize_t)size || fdatasync(fd)) die(path);
    }
    double seconds = (now_ns() - start) / 1e9;
    printf("{\"seconds\": %.4f, \"per_s\": %.1f}\n", seconds, count / seconds);
    unlink(path);
}

int main(int argc, char **argv) {
    crc_start();
    const char *modes[] = {"append", "sendfile", "pingpong", "sink"};
    if (argc == 5 && !strcmp(argv[1], "fsync")) {
        run_fsync(argv[2], strtoul(argv[3], NULL, 10), strtol(argv[4], NULL, 10));
        return 0;
    }
    for (mode = 0; mode < 4 && (argc < 3 || strcmp(argv[1], modes[mode])); mode++) {}
    if (mode == 4 || (mode == APPEND && argc != 4) || (mode == SENDFILE && argc < 5)) {
        fprintf(stderr, "usage: loop append PORT FILE | sendfile PORT N FILE.. | pingpong PORT | sink PORT"
                        " | fsync FILE SIZE COUNT\n");
        return 2;
    }
    raise_descriptor_limit();
    if (mode == APPEND && (file = open(argv[3], O_CREAT | O_TRUNC | O_WRONLY, 0644)) < 0) die(argv[3]);
    if (mode == SENDFILE) region = strtol(argv[3], NULL, 10);
    run(atoi(argv[2]), argv + 4, mode == SENDFILE ? argc - 4 : 0);
    return 0;
}
