/* Messages a second into a fresh store from one thread, in C, the store's own threads running.
 *
 *   append FOLDER [MESSAGES [BODY_BYTES [ROUNDS]]]
 *
 * One JSON line for each mode and round:
 *   put       ps_put, one call a message
 *   put_many  ps_put_many_messages, 1,000 messages a call
 *   floor     the records of such a log, built beforehand, copied into a fresh mapped file of the
 *             same kind: no CRC, no lock, no queues. No writer of a mapped log can be faster.
 * per_s counts until the last put has returned, dispatched_per_s until the last consume queue unit
 * and index entry is written too. Stores are made in FOLDER with upstream's default settings
 * (segments of 1 GiB, ASYNC_FLUSH) and deleted after each round. Segments are fresh: page faults
 * are in the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "pystore.h"

#define TOPIC "bench"
#define QUEUES 4
#define MANY 1000
#define SEGMENT (1LL << 30)

typedef struct job {
    const char *folder;
    int64_t messages;
    int64_t body_len;
    int64_t record_len; /* learnt from the first put */
    char *bodies;       /* MANY of them */
    int64_t offsets[MANY + 1];
} job;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void give_up(const char *what, const ps_error *e) {
    fprintf(stderr, "append: %s: %s %s\n", what, e != NULL ? e->text : "",
            e != NULL ? e->where : "");
    exit(1);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void print_line(const job *j, const char *mode, int round, double put_s, double all_s) {
    double n = (double)j->messages;
    printf("{\"bench\":\"c_append\",\"mode\":\"%s\",\"round\":%d,\"messages\":%lld,"
           "\"body_bytes\":%lld,\"record_bytes\":%lld,\"crc\":\"%s\",\"flush\":\"ASYNC_FLUSH\","
           "\"seconds\":%.6f,\"per_s\":%.0f,\"dispatched_per_s\":%.0f}\n",
           mode, round, (long long)j->messages, (long long)j->body_len, (long long)j->record_len,
           ps_crc32_name(), put_s, n / put_s, n / all_s);
    fflush(stdout);
}

/* ---- the store ---- */

static void put_each(const job *j, ps_store *s, ps_topic *topic) {
    (void)s;
    ps_put_result out = {0};
    for (int64_t i = 0; i < j->messages; i++)
        if (ps_put(topic, (int32_t)(i % QUEUES), 0, j->bodies + i % MANY * j->body_len,
                   j->body_len, NULL, 0, 1, &out) < 0)
            give_up("put", &out.error);
}

static void put_many(const job *j, ps_store *s, ps_topic *topic) {
    ps_put_many many = {.bodies = {j->bodies, NULL, j->offsets}, .queue_count = QUEUES, .wait = 1};
    ps_put_result out = {0};
    int64_t stored;
    for (int64_t left = j->messages; left > 0; left -= many.count) {
        many.count = left < MANY ? left : MANY;
        if (ps_put_many_messages(s, topic, &many, &stored, &out) < 0)
            give_up("put_many", &out.error);
    }
}

static void check(const job *j, ps_store *s, ps_topic *topic) {
    int64_t total = 0, low, high;
    for (int32_t q = 0; q < QUEUES; q++) {
        if (ps_queue_range(s, topic, q, &low, &high) < 0)
            give_up("a queue is missing", NULL);
        total += high - low;
    }
    if (total != j->messages + QUEUES)
        give_up("the queues do not hold what was put", NULL);
}

static void run_store(job *j, const char *mode, int round,
                      void (*puts)(const job *, ps_store *, ps_topic *)) {
    char root[PATH_MAX];
    ps_conf conf;
    ps_error e = {0};
    ps_put_result out = {0};
    snprintf(root, sizeof root, "%s/append-%s", j->folder, mode);
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    ps_conf_init(&conf);
    conf.root = root;
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, &e);
    ps_topic *topic = s != NULL ? ps_topic_open(s, TOPIC, sizeof TOPIC - 1, 1, &e) : NULL;
    if (topic == NULL)
        give_up("open", &e);
    for (int32_t q = 0; q < QUEUES; q++) /* the queues' files are made before the clock runs */
        if (ps_put(topic, q, 0, j->bodies, j->body_len, NULL, 0, 1, &out) < 0)
            give_up("put", &out.error);
    j->record_len = out.size;
    if (ps_store_refresh(s, &e) < 0)
        give_up("refresh", &e);
    double began = now();
    puts(j, s, topic);
    double put_s = now() - began;
    if (ps_store_refresh(s, &e) < 0)
        give_up("refresh", &e);
    print_line(j, mode, round, put_s, now() - began);
    check(j, s, topic);
    ps_store_abandon(s); /* it will be deleted: no long sync before */
    ps_store_free(s);
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- the floor ---- */

static char *make_segment(const char *path, int *fd) {
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (*fd < 0 || ftruncate(*fd, SEGMENT) < 0 || posix_fallocate(*fd, 0, SEGMENT) != 0)
        give_up("cannot make the file of the floor", NULL);
    char *map = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (map == MAP_FAILED)
        give_up("cannot map the file of the floor", NULL);
    return map;
}

/* The making of the segment is not counted: the store's allocator makes it ahead of the writer. */
static void run_floor(const job *j, int round) {
    char path[PATH_MAX];
    int fd;
    char *record = calloc(MANY, (size_t)j->record_len);
    snprintf(path, sizeof path, "%s/append-floor", j->folder);
    char *map = make_segment(path, &fd);
    double seconds = 0;
    int64_t fit = SEGMENT / j->record_len;
    memset(record, 'x', (size_t)(MANY * j->record_len));
    for (int64_t left = j->messages; left > 0; left -= fit) {
        if (left != j->messages) {
            munmap(map, SEGMENT);
            close(fd);
            map = make_segment(path, &fd);
        }
        double began = now();
        for (int64_t i = 0; i < (left < fit ? left : fit); i++)
            memcpy(map + i * j->record_len, record + i % MANY * j->record_len,
                   (size_t)j->record_len);
        seconds += now() - began;
    }
    munmap(map, SEGMENT);
    close(fd);
    unlink(path);
    free(record);
    print_line(j, "floor", round, seconds, seconds);
}

static int64_t argument(int argc, char **argv, int i, int64_t otherwise) {
    return argc > i ? strtoll(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    job j = {.folder = argc > 1 ? argv[1] : ".",
             .messages = argument(argc, argv, 2, 3000000),
             .body_len = argument(argc, argv, 3, 128)};
    int64_t rounds = argument(argc, argv, 4, 3);
    if (j.messages < 1 || j.body_len < 1 || j.body_len > 1 << 20) {
        fprintf(stderr, "append FOLDER [MESSAGES [BODY_BYTES [ROUNDS]]]\n");
        return 2;
    }
    j.bodies = malloc((size_t)(MANY * j.body_len));
    for (int64_t i = 0; i < MANY * j.body_len; i++)
        j.bodies[i] = (char)('a' + (i * 7 + i / j.body_len) % 26);
    for (int64_t i = 0; i <= MANY; i++)
        j.offsets[i] = i * j.body_len;
    for (int round = 1; round <= rounds; round++) {
        run_store(&j, "put", round, put_each);
        run_store(&j, "put_many", round, put_many);
        run_floor(&j, round);
    }
    free(j.bodies);
    return 0;
}
