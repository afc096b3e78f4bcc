/* The store while somebody sets the wall clock: the threads that sync go on, and waits end in time.
 * The clock is this program's own: what it adds to the wall clock is what everybody here reads. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pystore.h"
#include "check.h"

#define HOUR_S 3600
#define BOUND_S 120 /* an interval that an hour was added to does not end within this */

static _Atomic int64_t shift_s; /* added to the wall clock */

int clock_gettime(clockid_t clock, struct timespec *out) {
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME) out->tv_sec += atomic_load(&shift_s);
    return rc;
}

static int64_t seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* A store that was opened, and whose threads fell asleep, an hour before the time it is now. */
static ps_store *opened(const char *root, bool sync_flush) {
    ps_conf conf;
    ps_error e = {0};
    ps_conf_init(&conf);
    conf.root = root;
    conf.commitlog_file_size = 256 << 10;
    conf.consumequeue_file_size = 2000;
    conf.index_slots = 64;
    conf.index_entries = 128;
    conf.sync_flush = sync_flush;
    conf.flush_interval_ms = 20;
    conf.flush_thorough_ms = 40;
    conf.queue_flush_interval_ms = 20;
    conf.queue_flush_thorough_ms = 40;
    atomic_store(&shift_s, HOUR_S);
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, &e);
    CHECK(s != NULL);
    usleep(100 * 1000);
    atomic_store(&shift_s, 0);
    return s;
}

static ps_topic *put_one(ps_store *s) {
    ps_error e = {0};
    ps_put_result put;
    ps_topic *t = ps_topic_open(s, "clock", 5, 1, &e);
    CHECK_EQ(0, ps_put(t, 0, 0, "body", 4, NULL, 0, 1, &put));
    CHECK_EQ(PS_PUT_OK, put.status);
    return t;
}

static ps_info info_of(ps_store *s) {
    ps_info info;
    CHECK_EQ(0, ps_store_info(s, &info));
    return info;
}

static void test_threads_sync_on(const char *root) {
    ps_store *s = opened(root, false);
    put_one(s);
    ps_info info = info_of(s);
    for (int64_t end = seconds() + BOUND_S; seconds() < end; usleep(1000)) {
        info = info_of(s);
        if (info.log_flushed == info.log_max && info.checkpoint[1] == info.store_timestamp_max)
            break;
    }
    CHECK_EQ(info.log_max, info.log_flushed); /* the flusher */
    CHECK_EQ(info.store_timestamp_max, info.checkpoint[1]); /* the keeper: logicsMsgTimestamp */
    ps_store_free(s);
}

static void test_waits_end(const char *root) {
    ps_store *s = opened(root, false);
    ps_topic *t = put_one(s);
    for (int hours = -1; hours <= 1; hours += 2) {
        int64_t began = seconds();
        atomic_store(&shift_s, hours * HOUR_S);
        alarm(BOUND_S); /* ends this program where the wait would last the hour */
        CHECK_EQ(0, ps_wait_message(s, t, 0, 100, 1200));
        CHECK(seconds() - began >= 1);
        alarm(0);
    }
    atomic_store(&shift_s, 0);
    ps_store_free(s);
}

/* The time of a message is the wall clock's, yet never before that of the one before it. */
static void test_timestamps(const char *root) {
    ps_store *s = opened(root, true);
    ps_topic *t = put_one(s);
    int64_t before = info_of(s).store_timestamp_max;
    ps_put_result put;
    atomic_store(&shift_s, -HOUR_S);
    CHECK_EQ(0, ps_put(t, 0, 0, "body", 4, NULL, 0, 1, &put));
    CHECK_EQ(before, put.store_timestamp);
    atomic_store(&shift_s, 2 * HOUR_S);
    CHECK_EQ(0, ps_put(t, 0, 0, "body", 4, NULL, 0, 1, &put));
    CHECK(put.store_timestamp >= before + HOUR_S * 1000);
    atomic_store(&shift_s, 0);
    ps_store_free(s);
}

int main(void) {
    check_begin();
    char *root = check_folder();
    test_threads_sync_on(root);
    test_waits_end(root);
    test_timestamps(root);
    check_remove(root);
    free(root);
    return check_end("test_clock");
}
