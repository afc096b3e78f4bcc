/* Messages a processor-second of network threads, one and several, and their waiting for the lock
 * of the core.
 *
 *   reactors FOLDER [SECONDS [ROUNDS [IN_FLIGHT [THREADS...]]]]
 *
 * Sends of 128 bytes over loopback, IN_FLIGHT (64) on each of 16 connections, or PS_CONNECTIONS, by
 * two threads of load; and a quiet connection, which sends one about every millisecond. One JSON
 * line for each number of threads and round, in turns.
 *
 *   cpu_us                          processor time of the network threads a message
 *   takes, waits                    of the core's lock, a message
 *   waited, appending               the part of their time, on or off a processor, that they waited
 *                                   for that lock, and for the lock of the log's end
 *   held_us, shared_us, append_us   time a message alone in the core, sharing it, and with the lock
 *                                   of the log's end, of a round of its own, since each costs two
 *                                   looks at the clock; the last has the price of one taken off
 *   quiet_p50_ms, quiet_p99_ms      how long the quiet connection waits for its answers */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "net/net.h"
#include "store/store.h"

enum { CONNECTIONS_MAX = 256, LOADERS = 2, IN_FLIGHT_MAX = 64, ROOM = 64 << 10, WAITS = 1 << 16 };

static ps_store *store;
static ps_core *core;
static ps_net *nets[PS_THREADS_MAX];
static ps_net_budget *budget;
static int net_count, port, connections = 16, in_flight = IN_FLIGHT_MAX;
static atomic_bool over;
static atomic_llong answered;
static uint8_t frame[4096];
static int64_t frame_len;

static void give_up(const char *what, const ps_error *e) {
    fprintf(stderr, "reactors: %s: %s\n", what, e != NULL ? e->text : "");
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

/* Processor seconds of the threads of this process whose names begin so. */
static double processor_s(const char *prefix) {
    DIR *d = opendir("/proc/self/task");
    double sum = 0;
    for (struct dirent *each; d != NULL && (each = readdir(d)) != NULL;) {
        char path[400], name[64] = "";
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", each->d_name);
        FILE *f = fopen(path, "r");
        if (f == NULL) continue;
        if (fgets(name, sizeof name, f) == NULL) name[0] = 0;
        fclose(f);
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", each->d_name);
        f = fopen(path, "r");
        if (f != NULL && fscanf(f, "%llu", &ns) == 1) sum += (double)ns * 1e-9;
        if (f != NULL) fclose(f);
    }
    if (d != NULL) closedir(d);
    return sum;
}

/* ---- the load ---- */

static ps_slice slice_of(const char *text) {
    return (ps_slice){(const uint8_t *)text, (int32_t)strlen(text)};
}

static void make_frame(void) {
    static const char *const fields[][2] = {
        {"a", "p"}, {"b", "T"}, {"c", "TBW102"}, {"d", "4"}, {"e", "0"}, {"f", "0"},
        {"g", "1700000000000"}, {"h", "0"}, {"i", "UNIQ_KEY\1FD0123456789\2WAIT\1true\2"},
        {"j", "0"}, {"m", "false"}, {"n", "broker-a"}};
    ps_command c = {.serialize = PS_SERIALIZE_ROCKETMQ, .code = 310, .opaque = 1, .version = 479};
    ps_error e = {0};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        c.fields[c.field_count++] = (ps_field){slice_of(fields[i][0]), slice_of(fields[i][1])};
    frame_len = ps_command_encode(&c, 128, frame, sizeof frame - 128, &e);
    if (frame_len < 0) give_up("a frame", &e);
    memset(frame + frame_len, 'x', 128);
    frame_len += 128;
}

typedef struct client {
    int fd, skip; /* skip: bytes that are left of an answer */
    int head_len;
    uint8_t head[4];
} client;

static void say(client *c, int count) {
    static _Thread_local uint8_t many[IN_FLIGHT_MAX * 1024];
    int64_t len = 0;
    for (; count > 0; count--, len += frame_len) memcpy(many + len, frame, (size_t)frame_len);
    for (int64_t at = 0; at < len;) {
        ssize_t done = send(c->fd, many + at, (size_t)(len - at), MSG_NOSIGNAL);
        if (done <= 0) return;
        at += done;
    }
}

/* Whole answers among these bytes. */
static int count_answers(client *c, const uint8_t *data, int len) {
    int count = 0;
    for (int at = 0; at < len;) {
        if (c->skip == 0) {
            c->head[c->head_len++] = data[at++];
            if (c->head_len < 4) continue;
            c->head_len = 0;
            c->skip = (int)be32_get(c->head);
            continue;
        }
        int took = c->skip < len - at ? c->skip : len - at;
        at += took;
        c->skip -= took;
        count += c->skip == 0;
    }
    return count;
}

static client connect_one(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    client c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int on = 1;
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c.fd, (struct sockaddr *)&to, sizeof to) < 0) give_up("connect", NULL);
    return c;
}

static void *load(void *arg) {
    client clients[CONNECTIONS_MAX / LOADERS];
    struct pollfd fds[CONNECTIONS_MAX / LOADERS];
    static _Thread_local uint8_t data[ROOM];
    pthread_setname_np(pthread_self(), "load");
    for (int i = 0; i < connections / LOADERS; i++) {
        clients[i] = connect_one();
        fds[i] = (struct pollfd){clients[i].fd, POLLIN, 0};
        say(&clients[i], in_flight);
    }
    while (!atomic_load(&over)) {
        if (poll(fds, connections / LOADERS, 100) <= 0) continue;
        for (int i = 0; i < connections / LOADERS; i++) {
            if (fds[i].revents == 0) continue;
            ssize_t got = recv(clients[i].fd, data, sizeof data, 0);
            if (got <= 0) give_up("a connection has ended", NULL);
            int count = count_answers(&clients[i], data, (int)got);
            atomic_fetch_add(&answered, count);
            say(&clients[i], count);
        }
    }
    for (int i = 0; i < connections / LOADERS; i++) close(clients[i].fd);
    return arg;
}

static int64_t waits[WAITS]; /* of the quiet connection, in ns */
static atomic_int wait_count;

static void *be_quiet(void *arg) {
    client c = connect_one();
    uint8_t data[1024];
    pthread_setname_np(pthread_self(), "quiet");
    while (!atomic_load(&over)) {
        int64_t began = ps_monotonic_ns();
        say(&c, 1);
        for (int count = 0; count == 0;) {
            ssize_t got = recv(c.fd, data, sizeof data, 0);
            if (got <= 0) give_up("the quiet connection has ended", NULL);
            count = count_answers(&c, data, (int)got);
        }
        int at = atomic_load(&wait_count);
        if (at < WAITS) waits[at] = ps_monotonic_ns() - began;
        if (at < WAITS) atomic_store(&wait_count, at + 1);
        usleep(1000);
    }
    close(c.fd);
    return arg;
}

static int compare_waits(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* So many percent of the waits took no longer, in ms. */
static double wait_ms(int percent) {
    int count = atomic_load(&wait_count);
    if (count == 0) return 0;
    qsort(waits, (size_t)count, sizeof waits[0], compare_waits);
    return (double)waits[(int64_t)(count - 1) * percent / 100] * 1e-6;
}

/* ---- the broker ---- */

static void open_broker(const char *folder, int threads) {
    ps_core_conf conf = {.cluster = "C", .region = "DefaultRegion", .trace_on = 1,
                         .frame_max = 16 << 20, .long_polling = 1, .parked_max = 1000,
                         .broker = "b"};
    ps_net_conf net = {.links_max = 1000, .queued_max = 8192, .queued_bytes = 16 << 20,
                       .write_high = 1 << 20, .write_low = 256 << 10, .unsent_max = 64 << 20,
                       .budget = budget = ps_net_budget_new(64 << 20)};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    ps_conf c;
    ps_error e = {0};
    ps_conf_init(&c);
    c.root = folder;
    store = ps_store_open(&c, NULL, NULL, NULL, &e);
    core = store != NULL ? ps_core_new(store, &conf, &e) : NULL;
    if (core == NULL || ps_core_topic(core, "T", 1, 4, 4, 6, PS_SEND_HOT, &e) < 0)
        give_up("the core", &e);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        give_up("listen", NULL);
    port = ntohs(at.sin_port);
    for (net_count = 0; net_count < threads; net_count++) {
        net.number = net_count + 1;
        nets[net_count] = ps_net_start(core, &net, net_count == 0 ? fd : -1,
                                       net_count == 0 ? NULL : nets[0], &e);
        if (nets[net_count] == NULL) give_up("a network thread", &e);
    }
    close(fd);
}

static void close_broker(const char *folder) {
    ps_net_event rows[16];
    ps_error e = {0};
    for (int i = 0; i < net_count; i++) ps_net_stop(nets[i]);
    for (int i = 0; i < net_count; i++)
        while (ps_net_events(nets[i], rows, 16) > 0) continue;
    while (net_count > 0) ps_net_free(nets[--net_count]);
    ps_net_budget_free(budget);
    ps_core_free(core);
    ps_store_close(store, &e);
    ps_store_free(store);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* What one look at the clock costs. */
static double look_us(void) {
    int64_t began = ps_monotonic_ns(), last = began;
    for (int i = 0; i < 10000; i++) last = ps_monotonic_ns();
    return (double)(last - began) * 1e-3 / 10000;
}

static void run_once(const char *folder, int threads, int round, double seconds, bool timed) {
    pthread_t loaders[LOADERS], quiet;
    ps_core_lock_times before, after;
    open_broker(folder, threads);
    ps_log *log = &store->st_log;
    if (timed) ps_core_time_lock(core);
    log->lg_append_timed = timed;
    atomic_store(&over, false);
    for (int i = 0; i < LOADERS; i++) pthread_create(&loaders[i], NULL, load, NULL);
    pthread_create(&quiet, NULL, be_quiet, NULL);
    usleep((useconds_t)(seconds * 250000)); /* warm */
    atomic_store(&wait_count, 0);
    ps_core_get_lock_times(core, &before);
    int64_t appending = log->lg_append_waited_ns, append = log->lg_append_held_ns;
    double began = now(), cpu = processor_s("rmq-net-");
    long long count = atomic_load(&answered);
    usleep((useconds_t)(seconds * 1e6));
    ps_core_get_lock_times(core, &after);
    appending = log->lg_append_waited_ns - appending;
    append = log->lg_append_held_ns - append;
    count = atomic_load(&answered) - count;
    cpu = processor_s("rmq-net-") - cpu;
    double took = now() - began, n = (double)(count > 0 ? count : 1);
    atomic_store(&over, true);
    for (int i = 0; i < LOADERS; i++) pthread_join(loaders[i], NULL);
    pthread_join(quiet, NULL);
    printf("{\"bench\":\"reactors\",\"threads\":%d,\"in_flight\":%d,\"round\":%d,\"timed\":%d,"
           "\"per_s\":%.0f,\"cpu_us\":%.3f,\"takes\":%.4f,\"waits\":%.4f,\"waited\":%.4f,"
           "\"appending\":%.4f,\"held_us\":%.3f,\"shared_us\":%.3f,\"append_us\":%.3f,"
           "\"quiet_p50_ms\":%.3f,\"quiet_p99_ms\":%.3f}\n",
           threads, in_flight, round, timed, n / took, cpu * 1e6 / n,
           (double)(after.takes - before.takes) / n,
           (double)(after.waits - before.waits) / n,
           (double)(after.waited_ns - before.waited_ns) * 1e-9 / (took * threads),
           (double)appending * 1e-9 / (took * threads),
           (double)(after.held_ns - before.held_ns) * 1e-3 / n,
           (double)(after.shared_ns - before.shared_ns) * 1e-3 / n,
           timed ? (double)append * 1e-3 / n - look_us() : 0.0, wait_ms(50), wait_ms(99));
    fflush(stdout);
    close_broker(folder);
}

int main(int argc, char **argv) {
    static int numbers[8] = {1, 2, 3};
    int kinds = 3;
    char folder[4096];
    if (argc < 2)
        give_up("usage: reactors FOLDER [SECONDS [ROUNDS [IN_FLIGHT [THREADS...]]]]", NULL);
    snprintf(folder, sizeof folder, "%s/reactors-%d", argv[1], (int)getpid());
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 3.0;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    if (argc > 4) in_flight = atoi(argv[4]);
    const char *wide = getenv("PS_CONNECTIONS");
    if (wide != NULL) connections = atoi(wide);
    if (connections < LOADERS || connections > CONNECTIONS_MAX)
        give_up("PS_CONNECTIONS is 2 to 256", NULL);
    if (in_flight < 1 || in_flight > IN_FLIGHT_MAX) give_up("IN_FLIGHT is 1 to 64", NULL);
    if (argc > 5) kinds = 0;
    for (int i = 5; i < argc && kinds < 8; i++) numbers[kinds++] = atoi(argv[i]);
    make_frame();
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < kinds; i++) {
            run_once(folder, numbers[i], round, seconds, false);
            run_once(folder, numbers[i], round, seconds, true);
        }
    return 0;
}
