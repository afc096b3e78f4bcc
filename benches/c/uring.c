/* What a message costs a thread that waits by epoll, and one that waits by io_uring.
 *
 *   uring [SECONDS [ROUNDS [CONNECTIONS]]]
 *
 * SENDERS of them in flight over loopback, spread over all connections (5,000): each sends 256
 * bytes, waits for 64, and goes on with its next connection. The thread does nothing but answer:
 * what it costs is waiting, reading and writing. One JSON line for each way and round, in turns:
 *
 *   epoll   one wait for many events, then recv and send for each
 *   uring   multishot receives into a ring of buffers, all sends of a turn in one submission
 *
 *   cpu_us  processor time of the thread a message, and of whatever threads the system adds to it
 *
 * docs/adr/008-network-threads.md says what was decided from it. Where the system has no io_uring,
 * or forbids it, a line says so, and nothing else is measured. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SENDERS = 64, LOADERS = 2, BATCH = 128, REQUEST = 256, ANSWER = 64 };
enum { ENTRIES = 1024, BUFFERS = 1024, BUFFER = 2048, GROUP = 1 };

static int connections = 5000;
static int *theirs, *ours; /* sockets of the load, and of the thread */
static atomic_bool over;
static atomic_llong answered;
static _Atomic double load_cpu_s;
static const char answer[ANSWER], request[REQUEST];

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

static double clock_s(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the load ---- */

static int next_of(int i) {
    return i + SENDERS < connections ? i + SENDERS : i % SENDERS;
}

static void *run_load(void *arg) {
    int mine = (int)(intptr_t)arg, ep = epoll_create1(0);
    struct epoll_event events[BATCH];
    char got[ANSWER];
    for (int i = 0; i < connections; i++) {
        if (i % SENDERS % LOADERS != mine) continue;
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, theirs[i], &e) < 0) give_up("epoll_ctl");
    }
    for (int i = mine; i < SENDERS; i += LOADERS)
        if (send(theirs[i], request, REQUEST, 0) != REQUEST) give_up("send");
    while (!over) {
        int n = epoll_wait(ep, events, BATCH, 100);
        for (int k = 0; k < n; k++) {
            int i = (int)events[k].data.u32;
            if (recv(theirs[i], got, ANSWER, 0) != ANSWER) continue;
            atomic_fetch_add_explicit(&answered, 1, memory_order_relaxed);
            if (send(theirs[next_of(i)], request, REQUEST, 0) != REQUEST) give_up("send");
        }
    }
    close(ep);
    double used = clock_s(CLOCK_THREAD_CPUTIME_ID), old = load_cpu_s;
    while (!atomic_compare_exchange_weak(&load_cpu_s, &old, old + used)) continue;
    return NULL;
}

/* ---- by epoll ---- */

static void *serve_by_epoll(void *arg) {
    struct epoll_event events[BATCH];
    char got[BUFFER];
    int ep = epoll_create1(0);
    (void)arg;
    for (int i = 0; i < connections; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = ours[i]};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, ours[i], &e) < 0) give_up("epoll_ctl");
    }
    while (!over) {
        int n = epoll_wait(ep, events, BATCH, 100);
        for (int k = 0; k < n; k++)
            if (recv(events[k].data.fd, got, BUFFER, 0) > 0)
                if (send(events[k].data.fd, answer, ANSWER, 0) != ANSWER) give_up("send");
    }
    close(ep);
    return NULL;
}

/* ---- by io_uring ---- */

typedef struct ring {
    int fd;
    uint8_t *queues;
    struct io_uring_sqe *sqes;
    struct io_uring_params p;
    struct io_uring_buf_ring *buffers;
    char *data;
    uint32_t unsubmitted;
} ring;

static uint32_t *word(ring *r, uint32_t at) {
    return (uint32_t *)(void *)(r->queues + at);
}

static struct io_uring_sqe *next_sqe(ring *r) {
    uint32_t *tail = word(r, r->p.sq_off.tail), mask = *word(r, r->p.sq_off.ring_mask);
    if (r->unsubmitted == ENTRIES) {
        if (syscall(__NR_io_uring_enter, r->fd, r->unsubmitted, 0, 0, NULL, 0) < 0)
            give_up("io_uring_enter");
        r->unsubmitted = 0;
    }
    struct io_uring_sqe *e = &r->sqes[*tail & mask];
    memset(e, 0, sizeof *e);
    word(r, r->p.sq_off.array)[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    r->unsubmitted++;
    return e;
}

static void give_buffer(ring *r, uint16_t number) {
    struct io_uring_buf_ring *b = r->buffers;
    struct io_uring_buf *place = &b->bufs[b->tail & (BUFFERS - 1)];
    place->addr = (uint64_t)(uintptr_t)(r->data + (size_t)number * BUFFER);
    place->len = BUFFER;
    place->bid = number;
    __atomic_store_n(&b->tail, (uint16_t)(b->tail + 1), __ATOMIC_RELEASE);
}

static void receive(ring *r, int i) {
    struct io_uring_sqe *e = next_sqe(r);
    e->opcode = IORING_OP_RECV;
    e->fd = ours[i];
    e->ioprio = IORING_RECV_MULTISHOT;
    e->flags = IOSQE_BUFFER_SELECT;
    e->buf_group = GROUP;
    e->user_data = (uint64_t)i + 1;
}

static void open_ring(ring *r) {
    *r = (ring){.p.flags = IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER |
                           IORING_SETUP_DEFER_TASKRUN,
                .p.cq_entries = 16384};
    r->fd = (int)syscall(__NR_io_uring_setup, ENTRIES, &r->p);
    if (r->fd < 0) { /* in a container, most often */
        printf("{\"bench\":\"c_uring\",\"way\":\"uring\",\"forbidden\":\"%s\"}\n", strerror(errno));
        exit(0);
    }
    size_t of_sq = r->p.sq_off.array + r->p.sq_entries * sizeof(uint32_t);
    size_t of_cq = r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe);
    r->queues = mmap(NULL, of_sq > of_cq ? of_sq : of_cq, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
    r->sqes = mmap(NULL, r->p.sq_entries * sizeof *r->sqes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
    r->buffers = mmap(NULL, BUFFERS * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE,
                      MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    r->data = malloc((size_t)BUFFERS * BUFFER);
    struct io_uring_buf_reg reg = {.ring_addr = (uint64_t)(uintptr_t)r->buffers,
                                   .ring_entries = BUFFERS, .bgid = GROUP};
    if (r->queues == MAP_FAILED || r->sqes == MAP_FAILED || r->buffers == MAP_FAILED ||
        r->data == NULL ||
        syscall(__NR_io_uring_register, r->fd, IORING_REGISTER_PBUF_RING, &reg, 1) < 0)
        give_up("io_uring_register");
    for (int i = 0; i < BUFFERS; i++) give_buffer(r, (uint16_t)i);
}

static void take(ring *r, const struct io_uring_cqe *c) {
    if (c->user_data == 0) { /* a send */
        if (c->res != ANSWER) give_up("send");
        return;
    }
    int i = (int)c->user_data - 1;
    if (c->flags & IORING_CQE_F_BUFFER)
        give_buffer(r, (uint16_t)(c->flags >> IORING_CQE_BUFFER_SHIFT));
    if (!(c->flags & IORING_CQE_F_MORE) && !over) receive(r, i);
    if (c->res <= 0) return;
    struct io_uring_sqe *e = next_sqe(r);
    e->opcode = IORING_OP_SEND;
    e->fd = ours[i];
    e->addr = (uint64_t)(uintptr_t)answer;
    e->len = ANSWER;
}

static void *serve_by_uring(void *arg) {
    ring r;
    (void)arg;
    open_ring(&r);
    for (int i = 0; i < connections; i++) receive(&r, i);
    struct __kernel_timespec tenth = {.tv_nsec = 100000000};
    struct io_uring_getevents_arg wait = {.ts = (uint64_t)(uintptr_t)&tenth};
    uint32_t *head = word(&r, r.p.cq_off.head), mask = *word(&r, r.p.cq_off.ring_mask);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(void *)(r.queues + r.p.cq_off.cqes);
    while (!over) {
        if (syscall(__NR_io_uring_enter, r.fd, r.unsubmitted, 1,
                    IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait) < 0 &&
            errno != ETIME && errno != EINTR)
            give_up("io_uring_enter");
        r.unsubmitted = 0;
        uint32_t end = __atomic_load_n(word(&r, r.p.cq_off.tail), __ATOMIC_ACQUIRE);
        for (uint32_t at = *head; at != end; at++) take(&r, &cqes[at & mask]);
        __atomic_store_n(head, end, __ATOMIC_RELEASE);
    }
    close(r.fd);
    free(r.data);
    return NULL;
}

/* ---- the rounds ---- */

static void connect_all(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0);
    theirs = calloc((size_t)connections, sizeof *theirs);
    ours = calloc((size_t)connections, sizeof *ours);
    if (theirs == NULL || ours == NULL || bind(listening, (struct sockaddr *)&at, len) < 0 ||
        listen(listening, 128) < 0 || getsockname(listening, (struct sockaddr *)&at, &len) < 0)
        give_up("listen");
    for (int i = 0; i < connections; i++) {
        theirs[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(theirs[i], (struct sockaddr *)&at, len) < 0 ||
            (ours[i] = accept(listening, NULL, NULL)) < 0)
            give_up("connect");
        setsockopt(theirs[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(ours[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    close(listening);
}

static void close_all(void) {
    for (int i = 0; i < connections; i++) close(theirs[i]), close(ours[i]);
    free(theirs);
    free(ours);
}

static void one_round(const char *way, void *(*serve)(void *), int round, double seconds) {
    pthread_t server, load[LOADERS];
    connect_all();
    over = false;
    answered = 0;
    load_cpu_s = 0;
    double began = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    pthread_create(&server, NULL, serve, NULL);
    usleep(200000);
    for (intptr_t i = 0; i < LOADERS; i++) pthread_create(&load[i], NULL, run_load, (void *)i);
    usleep((useconds_t)(seconds * 1e6));
    over = true;
    for (int i = 0; i < LOADERS; i++) pthread_join(load[i], NULL);
    pthread_join(server, NULL);
    double used = clock_s(CLOCK_PROCESS_CPUTIME_ID) - began - load_cpu_s;
    printf("{\"bench\":\"c_uring\",\"way\":\"%s\",\"round\":%d,\"connections\":%d,"
           "\"messages\":%lld,\"cpu_us\":%.2f}\n",
           way, round, connections, (long long)answered, used / (double)answered * 1e6);
    fflush(stdout);
    close_all();
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 3;
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    if (argc > 3) connections = atoi(argv[3]);
    struct rlimit files = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    setrlimit(RLIMIT_NOFILE, &files);
    for (int round = 0; round < rounds; round++) {
        one_round("epoll", serve_by_epoll, round, seconds);
        one_round("uring", serve_by_uring, round, seconds);
    }
    return 0;
}
