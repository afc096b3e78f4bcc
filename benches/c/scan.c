/* Rows a second of scans over a warm page cache, a core. Makes a store of its own and deletes it.
 *
 *   scan FOLDER [MESSAGES [BODY_BYTES [QUEUES [ROUNDS]]]]
 *
 * The messages carry TAGS, KEYS, UNIQ_KEY, CLUSTER and WAIT, as those of an official client do.
 * Each line: columns, rows, best and median round in rows/s, bytes of records a second in the best
 * round. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scan/arrow.h"

#define TOPIC "bench-scan"
#define CHUNK 4096
#define ROUNDS_MAX 4096

/* Processor time of this thread: what others on the machine do costs caches, not time slices. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void give_up(const char *what, const ps_error *e) {
    fprintf(stderr, "%s: %s %s\n", what, e->text, e->where);
    exit(1);
}

/* One block of messages, put again and again. */
typedef struct block {
    int64_t offsets[CHUNK + 1], ends[CHUNK + 1], tag_ends[CHUNK + 1], key_ends[CHUNK + 1];
    int32_t queues[CHUNK];
    char *bodies, *properties, *tags, *keys;
} block;

static void block_make(block *b, int64_t body_len, int32_t queues) {
    int64_t p = 0, t = 0, k = 0;
    b->bodies = malloc((size_t)(CHUNK * body_len));
    b->properties = malloc(CHUNK * 128);
    b->tags = malloc(CHUNK * 16);
    b->keys = malloc(CHUNK * 32);
    for (int64_t i = 0; i < CHUNK * body_len; i++) b->bodies[i] = (char)(i * 31 + (i >> 8));
    for (int64_t i = 0; i < CHUNK; i++) {
        b->offsets[i] = i * body_len;
        b->ends[i] = p;
        b->tag_ends[i] = t;
        b->key_ends[i] = k;
        b->queues[i] = (int32_t)(i % queues);
        p += snprintf(b->properties + p, 128,
                      "UNIQ_KEY\001FD0000000000000000%"
                      "014lld\002CLUSTER\001DefaultCluster\002WAIT\001true\002",
                      (long long)i);
        t += snprintf(b->tags + t, 16, "Tag%c", (char)('A' + i % 5));
        k += snprintf(b->keys + k, 32, "order-%lld", (long long)(i * 7919));
    }
    b->offsets[CHUNK] = CHUNK * body_len;
    b->ends[CHUNK] = p;
    b->tag_ends[CHUNK] = t;
    b->key_ends[CHUNK] = k;
}

static ps_store *fill(const char *root, int64_t messages, int64_t body_len, int32_t queues) {
    ps_conf conf;
    ps_error e = {0};
    block *b = malloc(sizeof *b);
    ps_conf_init(&conf);
    conf.root = root;
    conf.message_index_enable = 0;
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, &e);
    ps_topic *t = s == NULL ? NULL : ps_topic_open(s, TOPIC, sizeof TOPIC - 1, 1, &e);
    if (t == NULL) give_up("open", &e);
    block_make(b, body_len, queues);
    ps_put_many many = {.count = CHUNK,
                        .bodies = {.data = b->bodies, .offsets64 = b->offsets},
                        .tags = {.data = b->tags, .offsets64 = b->tag_ends},
                        .keys = {.data = b->keys, .offsets64 = b->key_ends},
                        .properties = {.data = b->properties, .offsets64 = b->ends},
                        .queue_ids = b->queues};
    for (int64_t done = 0; done < messages; done += CHUNK) {
        int64_t stored;
        ps_put_result r;
        if (ps_put_many_messages(s, t, &many, &stored, &r) < 0) give_up("put", &r.error);
    }
    if (ps_store_refresh(s, &e) < 0) give_up("dispatch", &e);
    free(b->bodies);
    free(b->properties);
    free(b->tags);
    free(b->keys);
    free(b);
    return s;
}

typedef struct round_result {
    int64_t rows, bytes;
    double seconds;
} round_result;

static void drain(ps_store *s, const ps_scan *scan, round_result *out) {
    struct ArrowArrayStream stream;
    struct ArrowArray batch;
    ps_scan_stats *stats = ps_scan_stats_new();
    ps_error e = {0};
    double start = now();
    if (ps_scan_open(s, scan, &stream, stats, &e) < 0) give_up("scan", &e);
    for (;;) {
        if (stream.get_next(&stream, &batch) != 0) {
            fprintf(stderr, "%s\n", stream.get_last_error(&stream));
            exit(1);
        }
        if (batch.release == NULL) break;
        batch.release(&batch);
    }
    stream.release(&stream);
    out->seconds += now() - start;
    out->rows += stats->rows;
    out->bytes += stats->bytes;
    ps_scan_stats_free(stats);
}

static int by_rate(const void *a, const void *b) {
    const round_result *x = a, *y = b;
    double p = (double)x->rows / x->seconds, q = (double)y->rows / y->seconds;
    return p < q ? 1 : p > q ? -1 : 0;
}

static void bench(ps_store *s, ps_topic *t, const char *what, const int32_t *columns, int32_t count,
                  int32_t queues, int rounds, const char *tags) {
    round_result r[ROUNDS_MAX] = {0};
    ps_scan scan = {.column_count = count,
                    .topic = t,
                    .to_at = INT64_MAX,
                    .store_time_max = INT64_MAX,
                    .queue_filter = -1,
                    .broker_name = "broker-a",
                    .broker_name_len = 8};
    memcpy(scan.columns, columns, (size_t)count * sizeof *columns);
    if (tags != NULL) {
        scan.tags = tags;
        scan.tags_len = (int32_t)strlen(tags);
        scan.tag_count = 1;
    }
    for (int i = 0; i < rounds; i++)
        for (scan.queue_id = 0; scan.queue_id < (t != NULL ? queues : 1); scan.queue_id++)
            drain(s, &scan, &r[i]);
    qsort(r, (size_t)rounds, sizeof *r, by_rate);
    printf("%-34s %9lld rows  best %7.2f M/s  median %7.2f M/s  %6.2f GB/s\n", what,
           (long long)r[0].rows, (double)r[0].rows / r[0].seconds / 1e6,
           (double)r[rounds / 2].rows / r[rounds / 2].seconds / 1e6,
           (double)r[0].bytes / r[0].seconds / 1e9);
}

#define RUN(topic, what, tags, ...)                                                                \
    do {                                                                                           \
        const int32_t columns[] = {__VA_ARGS__};                                                   \
        if (only == NULL || strstr(what, only) != NULL)                                            \
            bench(s, topic, what, columns, sizeof columns / sizeof columns[0], queues, rounds,     \
                  tags);                                                                           \
    } while (0)

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [MESSAGES [BODY_BYTES [QUEUES [ROUNDS]]]]\n", argv[0]);
        return 2;
    }
    int64_t messages = argc > 2 ? atoll(argv[2]) : 4000000,
            body_len = argc > 3 ? atoll(argv[3]) : 200;
    int32_t queues = argc > 4 ? atoi(argv[4]) : 4;
    int rounds = argc > 5 ? atoi(argv[5]) : 5;
    const char *only = getenv("BENCH_ONLY");
    char root[PATH_MAX], command[PATH_MAX + 16];
    ps_error e = {0};
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    snprintf(root, sizeof root, "%s/bench_scan_store.XXXXXX", argv[1]);
    if (mkdtemp(root) == NULL || body_len < 1 || queues < 1) {
        perror(root);
        return 1;
    }
    ps_store *s = fill(root, messages, body_len, queues);
    ps_topic *t = ps_topic_open(s, TOPIC, sizeof TOPIC - 1, 0, &e);
    printf("%lld messages, %lld-byte bodies, %d queues, %s\n", (long long)messages,
           (long long)body_len, queues, root);
    RUN(t, "queue: queueOffset", NULL, PS_COL_QUEUE_OFFSET);
    RUN(t, "queue: unit columns", NULL, PS_COL_TOPIC, PS_COL_BROKER_NAME, PS_COL_QUEUE_ID,
        PS_COL_QUEUE_OFFSET, PS_COL_STORE_SIZE, PS_COL_COMMIT_LOG_OFFSET);
    RUN(t, "queue: storeTimestamp", NULL, PS_COL_STORE_TIMESTAMP);
    RUN(t, "queue: queueOffset, tags", NULL, PS_COL_QUEUE_OFFSET, PS_COL_TAGS);
    RUN(t, "queue: body", NULL, PS_COL_BODY);
    RUN(t, "queue: usual", NULL, PS_COL_TOPIC, PS_COL_QUEUE_ID, PS_COL_QUEUE_OFFSET, PS_COL_BODY,
        PS_COL_TAGS, PS_COL_KEYS, PS_COL_STORE_TIMESTAMP);
    RUN(t, "queue: TagA of five, usual", "TagA", PS_COL_TOPIC, PS_COL_QUEUE_ID, PS_COL_QUEUE_OFFSET,
        PS_COL_BODY, PS_COL_TAGS, PS_COL_KEYS, PS_COL_STORE_TIMESTAMP);
    RUN(t, "queue: all but map and json", NULL, 0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16,
        17, 18, 19, 20);
    RUN(t, "queue: properties map", NULL, PS_COL_PROPERTIES);
    RUN(t, "queue: properties json", NULL, PS_COL_PROPERTIES_JSON);
    RUN(NULL, "log: queueOffset", NULL, PS_COL_QUEUE_OFFSET);
    RUN(NULL, "log: body", NULL, PS_COL_BODY);
    RUN(NULL, "log: usual", NULL, PS_COL_TOPIC, PS_COL_QUEUE_ID, PS_COL_QUEUE_OFFSET, PS_COL_BODY,
        PS_COL_TAGS, PS_COL_KEYS, PS_COL_STORE_TIMESTAMP);
    ps_store_close(s, &e);
    ps_store_free(s);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) == 0 ? 0 : 1;
}
