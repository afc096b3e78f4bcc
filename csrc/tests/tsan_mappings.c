/* A store of more files than it may map at once, for the thread sanitizer: while one thread puts
 * and others read and ask for keys, in the store itself and in a reader beside it, no more are
 * mapped than the setting says, and every message is found, by its queue and by its key. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "pystore.h"

#define MAPPED_MAX 50
#define QUEUES 500
#define ROUNDS 4
#define READERS 2
/* Beyond the setting: what each thread is about to unmap, the segment that comes next. */
#define SPARE 10

static char *base;
static atomic_bool putting;
static atomic_int most_mapped;

static ps_store *opened(bool read_only) {
    char path[4200];
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    snprintf(path, sizeof path, "%s/store", base);
    conf.root = path;
    conf.commitlog_file_size = 16 << 10;
    conf.consumequeue_file_size = 2 * 20; /* two files a queue */
    conf.index_slots = 8;
    conf.index_entries = 21; /* 100 files */
    conf.mapped_files_max = MAPPED_MAX;
    conf.queue_flush_interval_ms = 20;
    conf.queue_flush_least_pages = 0;
    ps_store *s = read_only ? ps_reader_open(&conf, NULL, NULL, NULL, &e)
                            : ps_store_open(&conf, NULL, NULL, NULL, &e);
    if (s == NULL) printf("open: %s %s\n", e.text, e.where);
    CHECK(s != NULL);
    return s;
}

/* Files of the store in /proc/self/maps. */
static int mapped_now(void) {
    char line[4600];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) n += strstr(line, base) != NULL;
    if (f != NULL) fclose(f);
    return n;
}

static void look_at_maps(void) {
    int n = mapped_now(), most = atomic_load(&most_mapped);
    while (n > most && !atomic_compare_exchange_weak(&most_mapped, &most, n)) continue;
}

static ps_topic *topic_of(ps_store *s) {
    ps_error e = {0};
    return ps_topic_open(s, "T", 1, 0, &e);
}

/* Queue q's message of round r carries both; what a read finds in its place is an error. */
static int check_queue(ps_store *s, int32_t queue) {
    ps_error e = {0};
    ps_batch_info info;
    ps_topic *t = topic_of(s);
    ps_batch *b = t != NULL ? ps_read(s, t, queue, 0, NULL, &e) : NULL;
    if (b == NULL) return 0;
    ps_batch_get(b, &info);
    CHECK_EQ(0, info.damaged);
    for (int32_t i = 0; i < info.count; i++) {
        const uint8_t *body = info.segments[info.views[i].segment].map + info.body_starts[i];
        CHECK_EQ(queue, body[0] << 8 | body[1]);
        CHECK_EQ(i, body[2]);
    }
    int found = info.count;
    ps_batch_free(b);
    return found;
}

static int key_of(char key[32], int32_t queue, int32_t round) {
    return snprintf(key, 32, "k%d-%d", (int)queue, (int)round);
}

static int found_by_key(ps_store *s, int32_t queue, int32_t round) {
    char key[32];
    ps_error e = {0};
    ps_batch_info info;
    ps_batch *b = ps_query(s, "T", 1, key, key_of(key, queue, round), 0, 0, INT64_MAX, 0, &e);
    if (b == NULL) printf("query: %s %s\n", e.text, e.where);
    if (!CHECK(b != NULL)) return 0;
    ps_batch_get(b, &info);
    int found = info.count;
    ps_batch_free(b);
    return found;
}

static void *reads(void *store) {
    uint64_t dice = 88172645463325252u + (uintptr_t)store;
    while (atomic_load(&putting)) {
        dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
        check_queue(store, (int32_t)(dice % QUEUES));
        if (dice % 64 == 0) ps_store_refresh(store, NULL);
        if (dice % 16 == 0) CHECK(found_by_key(store, (int32_t)(dice % QUEUES), 0) <= 1);
        if (dice % 32 == 0) look_at_maps();
    }
    return NULL;
}

static void put_all(ps_store *s) {
    ps_error e = {0};
    ps_topic *t = ps_topic_open(s, "T", 1, 1, &e);
    for (int r = 0; r < ROUNDS; r++) {
        for (int q = 0; q < QUEUES; q++) {
            ps_put_result out = {0};
            uint8_t body[100] = {(uint8_t)(q >> 8), (uint8_t)q, (uint8_t)r};
            char keys[48] = "KEYS\x01";
            int32_t len = 5 + key_of(keys + 5, q, r);
            if (!CHECK_EQ(0, ps_put(t, q, 0, body, sizeof body, keys, len, 1, &out))) return;
        }
        look_at_maps();
    }
    CHECK_EQ(0, ps_store_flush(s, &e));
}

static void check_all(ps_store *s) {
    ps_error e = {0};
    CHECK_EQ(0, ps_store_refresh(s, &e));
    for (int q = 0; q < QUEUES; q++) CHECK_EQ(ROUNDS, check_queue(s, q));
    for (int q = 0; q < QUEUES; q += 9) CHECK_EQ(1, found_by_key(s, q, q % ROUNDS));
    look_at_maps();
}

int main(void) {
    pthread_t threads[2 * READERS];
    ps_error e = {0};
    check_begin();
    base = check_folder();
    ps_store *s = opened(false), *r = opened(true);
    if (s == NULL || r == NULL) return check_end("tsan_mappings");
    atomic_store(&putting, true);
    for (int i = 0; i < 2 * READERS; i++)
        pthread_create(&threads[i], NULL, reads, i < READERS ? s : r);
    put_all(s);
    atomic_store(&putting, false);
    for (int i = 0; i < 2 * READERS; i++) pthread_join(threads[i], NULL);
    check_all(s);
    check_all(r);
    CHECK(atomic_load(&most_mapped) <= 2 * MAPPED_MAX + 2 * SPARE);
    CHECK(atomic_load(&most_mapped) > MAPPED_MAX); /* it had something to unmap */
    ps_store_free(r);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    CHECK_EQ(0, mapped_now());
    s = opened(false);
    if (s != NULL) check_all(s);
    CHECK(mapped_now() <= MAPPED_MAX + SPARE);
    ps_store_free(s);
    check_remove(base);
    free(base);
    return check_end("tsan_mappings");
}
