/* Waits for the safe position, for the thread sanitizer: threads that put and wait by their
 * eventfd, each with several waits at once, beside threads that block, and the flusher that ends
 * all of them. Each wait ends once, when its position is safe, and none is lost. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core_kit.h"

#define LOOPS 3
#define BLOCKERS 2
#define AT_ONCE 4
#define LOST_MS 300000 /* whoever waits for longer was not told */

static int64_t rounds = 1500;
static ps_topic *topic;

static int64_t put_one(int32_t queue, int32_t wait) {
    ps_put_result put;
    put.error.code = 0;
    CHECK_EQ(0, ps_put(topic, queue, 0, "body", 4, NULL, 0, wait, &put));
    CHECK_EQ(PS_PUT_OK, put.status);
    return put.physical_offset + put.size;
}

static void *wait_by_event(void *arg) {
    int32_t queue = (int32_t)(intptr_t)arg;
    ps_safe *safe = &kit_store->st_safe;
    ps_waits waits;
    ps_wait each[AT_ONCE];
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ps_waits_init(&waits, safe, fd);
    for (int64_t n = 0; n < rounds; n++) {
        int64_t last = 0;
        /* The older of two waits is added last: the list is by position. */
        for (int i = 0; i < AT_ONCE; i++) {
            int64_t end = put_one(queue, 0), at = i % 2 ? last : end;
            last = end;
            ps_waits_add(&waits, &each[i], at);
        }
        for (int ended = 0; ended < AT_ONCE;) {
            struct pollfd p = {fd, POLLIN, 0};
            uint64_t count;
            if (!CHECK(poll(&p, 1, LOST_MS) > 0)) return NULL;
            CHECK(read(fd, &count, sizeof count) == sizeof count);
            for (ps_wait *w; (w = ps_waits_next(&waits)) != NULL; ended++) {
                CHECK_EQ(0, w->wt_outcome);
                CHECK(!ps_safe_must_wait(safe, w->wt_position));
            }
        }
        CHECK_EQ(0, waits.wa_count);
    }
    ps_waits_add(&waits, &each[0], INT64_MAX); /* goes with its thread */
    ps_waits_drop(&waits, NULL);
    close(fd);
    return NULL;
}

static void *block(void *arg) {
    for (int64_t n = 0; n < rounds; n++)
        CHECK(!ps_safe_must_wait(&kit_store->st_safe, put_one((int32_t)(intptr_t)arg, 1)));
    return NULL;
}

int main(void) {
    check_begin();
    char *base = check_folder();
    ps_error e = {0};
    pthread_t threads[LOOPS + BLOCKERS];
    if (getenv("PS_ROUNDS") != NULL) rounds = strtoll(getenv("PS_ROUNDS"), NULL, 10);
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    conf.sync_flush = 1;
    conf.flush_interval_ms = LOST_MS; /* a sync comes when somebody waits, and only then */
    conf.sync_flush_timeout_ms = LOST_MS;
    kit_open(&conf, 10);
    topic = ps_topic_open(kit_store, "T", 1, 1, &e);
    for (intptr_t i = 0; i < LOOPS + BLOCKERS; i++)
        pthread_create(&threads[i], NULL, i < LOOPS ? wait_by_event : block, (void *)i);
    for (int i = 0; i < LOOPS + BLOCKERS; i++) pthread_join(threads[i], NULL);
    CHECK(kit_store->st_safe.sf_lowest == NULL && kit_store->st_safe.sf_waiting == 0);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("tsan_safe");
}
