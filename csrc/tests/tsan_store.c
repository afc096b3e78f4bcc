/* Threads on one store, for the thread sanitizer: puts of each kind, reads, lookups, flushes and
 * retention at once, closing under load, group commit, and a reader over a live writer. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/bytes.h"
#include "check.h"
#include "base/error.h"
#include "pystore.h"

#define THREADS 8
#define PUTS 1500 /* a thread; the sanitizer makes each some twenty times slower */
#define BODY 700
#define QUEUES 3

static char *base;

typedef struct room {
    ps_store *store;
    ps_store *other; /* a reader's handle, or NULL */
    atomic_int left; /* putters that are still at work */
    atomic_llong put;
    bool until_closed;
} room;

typedef struct job {
    room *in;
    int number;
    uint64_t state;
} job;

/* check_random keeps its state in one place; threads need one each. */
static uint64_t dice(job *j) {
    j->state ^= j->state << 13;
    j->state ^= j->state >> 7;
    j->state ^= j->state << 17;
    return j->state;
}

static ps_store *opened(const char *name, bool sync_flush) {
    char path[4200];
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    snprintf(path, sizeof path, "%s/%s", base, name);
    conf.root = path;
    conf.commitlog_file_size = 256 << 10;
    conf.consumequeue_file_size = 2000;
    conf.index_slots = 64;
    conf.index_entries = 256;
    conf.sync_flush = sync_flush;
    conf.flush_interval_ms = 5;
    conf.queue_flush_interval_ms = 5;
    conf.flush_thorough_ms = 20;
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, &e);
    if (s == NULL)
        printf("open: %s %s\n", e.text, e.where);
    CHECK(s != NULL);
    return s;
}

static ps_store *reader(const char *name) {
    char path[4200];
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    snprintf(path, sizeof path, "%s/%s", base, name);
    conf.root = path;
    ps_store *s = ps_reader_open(&conf, NULL, NULL, NULL, &e);
    CHECK(s != NULL);
    return s;
}

/* Whether a call met a closed store, the one error that is allowed, and only then. */
static bool ended(const job *j, int code) {
    if (code == PS_E_CLOSED && j->in->until_closed)
        return true;
    CHECK_EQ(0, code < 0 ? code : 0);
    return code < 0;
}

static ps_topic *topic_of(const job *j, int n) {
    char name[16];
    ps_error e = {0};
    int len = snprintf(name, sizeof name, "T%d", n);
    return ps_topic_open(j->in->store, name, len, 1, &e);
}

/* ---- what each thread does ---- */

static void *puts_single(void *arg) {
    job *j = arg;
    uint8_t body[BODY];
    char properties[64];
    for (int i = 0; j->in->until_closed || i < PUTS; i++) {
        ps_put_result out = {0};
        ps_topic *t = topic_of(j, (int)(dice(j) % 2));
        if (t == NULL)
            break;
        memset(body, i, sizeof body);
        int len = snprintf(properties, sizeof properties, "KEYS\x01k%d-%d\x02TAGS\x01%c\x02",
                           j->number, i, 'a' + i % 2);
        if (ended(j, ps_put(t, (int)(dice(j) % QUEUES), i, body,
                            (int64_t)(dice(j) % BODY), properties, len, 1, &out)))
            break;
        atomic_fetch_add(&j->in->put, 1);
    }
    atomic_fetch_sub(&j->in->left, 1);
    return NULL;
}

static void *puts_many(void *arg) {
    job *j = arg;
    uint8_t data[1000] = {1};
    int64_t offsets[11];
    for (int i = 0; i < 11; i++)
        offsets[i] = i * 100;
    for (int i = 0; j->in->until_closed || i < PUTS / 10; i++) {
        ps_put_result out = {0};
        int64_t stored = 0;
        ps_put_many many = {.count = 10, .queue_count = QUEUES, .wait = 1};
        ps_topic *t = topic_of(j, 1);
        if (t == NULL)
            break;
        many.bodies.data = data;
        many.bodies.offsets64 = offsets;
        if (ended(j, ps_put_many_messages(j->in->store, t, &many, &stored, &out)))
            break;
        atomic_fetch_add(&j->in->put, stored);
    }
    atomic_fetch_sub(&j->in->left, 1);
    return NULL;
}

static void *puts_batches(void *arg) {
    job *j = arg;
    uint8_t batch[5 * 32] = {0};
    for (int i = 0; i < 5; i++) { /* totalSize, magic, CRC, flag, body of 10, no properties */
        be32_put(batch + 32 * i, 32);
        be32_put(batch + 32 * i + 16, 10);
    }
    for (int i = 0; j->in->until_closed || i < PUTS / 10; i++) {
        ps_put_result out = {0};
        int64_t count = 0;
        ps_message m = {.body = batch, .body_len = sizeof batch, .wait = 1};
        ps_topic *t = topic_of(j, 0);
        if (t == NULL)
            break;
        m.queue_id = i % QUEUES;
        if (ended(j, ps_put_client_batch(j->in->store, t, &m, &count, NULL, &out)))
            break;
        atomic_fetch_add(&j->in->put, count);
    }
    atomic_fetch_sub(&j->in->left, 1);
    return NULL;
}

/* Touches what a batch points to: the bytes must have been published before the positions. */
static int64_t touched(ps_batch *batch) {
    ps_batch_info info;
    int64_t sum = 0;
    ps_batch_get(batch, &info);
    for (int32_t i = 0; i < info.count; i++) {
        const ps_view *v = &info.views[i];
        const ps_segment_view *sg = &info.segments[v->segment];
        CHECK(v->start >= 0 && v->start + v->size <= sg->size);
        CHECK_EQ(v->size, (int32_t)be32_get(sg->map + v->start));
        for (int64_t at = v->body_start; at < v->body_end; at++)
            sum += sg->map[at];
    }
    return sum;
}

static bool going_on(const job *j) {
    return j->in->until_closed || atomic_load(&j->in->left) > 0;
}

static void *reads(void *arg) {
    job *j = arg;
    ps_store *s = j->in->other != NULL ? j->in->other : j->in->store;
    ps_read_options options = {.max_messages = 20};
    int64_t at = 0;
    while (going_on(j)) {
        ps_error e = {0};
        ps_batch_info info;
        ps_topic *t = ps_topic_open(s, "T1", 2, 0, &e);
        if (j->in->other != NULL && ended(j, ps_store_refresh(s, &e)))
            return NULL;
        ps_batch *batch = ps_read(s, t, j->number % QUEUES, at, &options, &e);
        if (batch == NULL && ended(j, e.code))
            return NULL;
        ps_batch_get(batch, &info);
        touched(batch);
        at = info.count > 0 ? info.next_offset : (int64_t)(dice(j) % 200);
        ps_batch_free(batch);
        batch = ps_log_read(s, 0, &options, &e);
        if (batch == NULL && ended(j, e.code))
            return NULL;
        touched(batch);
        ps_batch_free(batch);
    }
    return NULL;
}

static void *looks_up(void *arg) {
    job *j = arg;
    ps_store *s = j->in->other != NULL ? j->in->other : j->in->store;
    while (going_on(j)) {
        char key[32];
        ps_error e = {0};
        int len = snprintf(key, sizeof key, "k0-%d", (int)(dice(j) % PUTS));
        ps_batch *batch = ps_query(s, "T0", 2, key, len, 0, 0, INT64_MAX, 0, &e);
        if (batch == NULL && ended(j, e.code))
            return NULL;
        touched(batch);
        ps_batch_free(batch);
        ps_topic *t = ps_topic_open(s, "T0", 2, 0, &e);
        if (t != NULL)
            ps_offset_at(s, t, 0, 1000, 1, &e);
    }
    return NULL;
}

static void *waits(void *arg) {
    job *j = arg;
    int64_t at = 0;
    while (going_on(j)) {
        ps_topic *t = topic_of(j, 0);
        if (t == NULL)
            return NULL;
        int got = ps_wait_message(j->in->store, t, 0, at, 20);
        if (got < 0 && ended(j, got))
            return NULL;
        at += got > 0;
    }
    return NULL;
}

static void *keeps_house(void *arg) {
    job *j = arg;
    ps_store *s = j->in->store;
    ps_queue_info queues[16];
    while (going_on(j)) {
        ps_info info;
        ps_error e = {0};
        ps_retention_report cleaned;
        if (ended(j, ps_store_info(s, &info)) || ended(j, ps_store_flush(s, &e)))
            return NULL;
        int32_t n = ps_store_queues(s, queues, 16);
        if (n < 0 && ended(j, n))
            return NULL;
        if (dice(j) % 4 == 0 && ended(j, ps_store_clean(s, 0, 1, 1, 0, &cleaned, &e)))
            return NULL;
        int code = ps_wait_flushed(s, info.log_max, 1000, &e);
        if (code < 0 && ended(j, code))
            return NULL;
    }
    return NULL;
}

static void *closes(void *arg) {
    job *j = arg;
    ps_error e = {0};
    struct timespec a_while = {0, (long)(20 + dice(j) % 200) * 1000000};
    nanosleep(&a_while, NULL);
    CHECK_EQ(0, ps_store_close(j->in->store, &e));
    return NULL;
}

/* ---- the rounds ---- */

typedef void *(*work)(void *);

static void run(room *in, int putters, work *works, int count) {
    pthread_t threads[2 * THREADS];
    job jobs[2 * THREADS];
    atomic_store(&in->left, putters);
    for (int i = 0; i < count; i++) {
        jobs[i] = (job){.in = in, .number = i, .state = check_random() | 1};
        pthread_create(&threads[i], NULL, works[i], &jobs[i]);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static int64_t messages_of(ps_store *s) {
    ps_queue_info queues[16];
    int64_t sum = 0;
    int32_t n = ps_store_queues(s, queues, 16);
    for (int32_t i = 0; i < n && i < 16; i++)
        sum += queues[i].max_offset;
    return sum;
}

static void closed(ps_store *s) {
    ps_error e = {0};
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
}

/* Everything at once; afterwards every message put has its unit. */
static void round_of_everything(bool sync_flush) {
    work works[] = {puts_single, puts_single, puts_many, puts_batches, reads,
                    reads,       looks_up,    waits,     keeps_house};
    room in = {.store = opened("everything", sync_flush)};
    if (in.store == NULL)
        return;
    int64_t before = messages_of(in.store);
    run(&in, 4, works, sizeof works / sizeof works[0]);
    ps_error e = {0};
    CHECK_EQ(0, ps_store_refresh(in.store, &e));
    CHECK_EQ(before + atomic_load(&in.put), messages_of(in.store));
    closed(in.store);
}

/* Two threads close while the others work; each call succeeds or says closed. */
static void round_of_closing(int n) {
    char name[32];
    work works[] = {puts_single, puts_many, puts_batches, reads,  looks_up,
                    waits,       keeps_house, closes,     closes};
    snprintf(name, sizeof name, "closing%d", n);
    room in = {.store = opened(name, n % 2 == 1), .until_closed = true};
    if (in.store == NULL)
        return;
    run(&in, 3, works, sizeof works / sizeof works[0]);
    ps_store_free(in.store);
    ps_store *again = opened(name, false);
    if (again == NULL)
        return;
    int64_t there = messages_of(again);
    CHECK(there >= atomic_load(&in.put));
    CHECK(there <= atomic_load(&in.put) + 1 + 10 + 5); /* one call of each putter, unanswered */
    closed(again);
}

static void *deletes(void *arg) {
    job *j = arg;
    while (going_on(j)) {
        ps_error e = {0};
        ps_topic *t = ps_topic_open(j->in->store, "T1", 2, 0, &e);
        if (t != NULL && ended(j, ps_topic_delete(j->in->store, t, &e)))
            return NULL;
        usleep(2000);
    }
    return NULL;
}

/* A topic is deleted again and again while it is written and read; what is left of it counts from 0
 * without a gap. */
static void round_of_deleting(void) {
    work works[] = {puts_single, puts_many, puts_batches, reads, waits, keeps_house, deletes};
    ps_read_options options = {.max_messages = 100000};
    room in = {.store = opened("deleted", false)};
    if (in.store == NULL)
        return;
    run(&in, 3, works, sizeof works / sizeof works[0]);
    for (int q = 0; q < QUEUES; q++) {
        ps_error e = {0};
        ps_batch_info info;
        int64_t low, high;
        ps_topic *t = ps_topic_open(in.store, "T1", 2, 0, &e);
        if (ps_queue_range(in.store, t, q, &low, &high) < 0)
            continue;
        ps_batch *batch = ps_read(in.store, t, q, low, &options, &e);
        ps_batch_get(batch, &info);
        CHECK_EQ(high - low, info.count);
        for (int32_t i = 0; i < info.count; i++)
            CHECK_EQ(low + i, info.views[i].queue_offset);
        ps_batch_free(batch);
    }
    closed(in.store);
}

/* A reader's handle, refreshed and used by threads while a writer works. */
static void round_of_readers(void) {
    work works[] = {puts_single, puts_single, puts_many, reads, reads, looks_up};
    room in = {.store = opened("read", false)};
    if (in.store == NULL)
        return;
    in.other = reader("read");
    if (in.other != NULL)
        run(&in, 3, works, sizeof works / sizeof works[0]);
    if (in.other != NULL)
        closed(in.other);
    closed(in.store);
}

static int64_t found_by_keys(ps_store *s, int count) {
    int64_t found = 0;
    for (int i = 0; i < count; i += 7) {
        char key[20];
        ps_batch_info info = {0};
        int len = snprintf(key, sizeof key, "k%d", i);
        ps_batch *batch = ps_query(s, "r", 1, key, len, 0, 0, INT64_MAX, 0, NULL);
        if (batch != NULL)
            ps_batch_get(batch, &info);
        found += info.count;
        ps_batch_free(batch);
    }
    return found;
}

/* A crash, and a recovery that makes the index beside its scan: all of it, then none of it. */
static void round_of_recovery(void) {
    enum { COUNT = 4200 };
    static const char body[300];
    ps_store *s = opened("recovered", false);
    ps_topic *t = ps_topic_open(s, "r", 1, 1, NULL);
    for (int i = 0; i < COUNT; i++) {
        char text[40];
        ps_put_result out;
        int len = snprintf(text, sizeof text, "KEYS\1k%d\2", i);
        CHECK_EQ(0, ps_put(t, i % 3, 0, body, sizeof body, text, len, 1, &out));
    }
    for (int times = 0; times < 2; times++) {
        char path[4200];
        ps_store_abandon(s);
        ps_store_free(s);
        snprintf(path, sizeof path, "%s/recovered/%s", base, times == 0 ? "index" : "checkpoint");
        check_remove(path);
        s = opened("recovered", false);
        CHECK_EQ(COUNT, messages_of(s));
        CHECK_EQ(COUNT / 7, found_by_keys(s, COUNT));
    }
    closed(s);
}

int main(void) {
    check_begin();
    base = check_folder();
    round_of_everything(false);
    round_of_everything(true);
    round_of_readers();
    round_of_deleting();
    round_of_recovery();
    for (int n = 0; n < 6; n++)
        round_of_closing(n);
    check_remove(base);
    free(base);
    return check_end("tsan_store");
}
