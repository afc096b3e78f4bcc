/* Light queues for the thread sanitizer: puts to old and new ones, expiry, news, reads, and flushes
 * that write `names` again, all at once. What was put and has not expired is there afterwards. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "store/lights.h"

enum { PUTTERS = 3, PUTS = 1200, OLD = 20 };
#define HEAD "%LMQ%$parent$"

static ps_store *store;
static atomic_int putting, deleted;

static void put(const char *topic, const char *name) {
    char props[400];
    ps_error e = {0};
    ps_put_result out = {0};
    int n = snprintf(props, sizeof props, "INNER_MULTI_DISPATCH\1%s\2", name);
    ps_topic *t = ps_topic_open(store, topic, (int32_t)strlen(topic), 1, &e);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, props, name != NULL ? n : 0, 1, &out));
}

/* Names of ones that pass are long, so that soon most of `names` is of those that are gone. */
static void *put_some(void *number) {
    char name[256];
    for (int i = 0; i < PUTS; i++) {
        snprintf(name, sizeof name, "%sold%d", HEAD, i % OLD);
        put("parent", name);
        snprintf(name, sizeof name, "%%LMQ%%$passing$%0200d-%d", i, (int)(intptr_t)number);
        put("passing", name);
        if (i % 3 == 0) put("plain", NULL);
    }
    atomic_fetch_sub(&putting, 1);
    return NULL;
}

static bool expire(void) {
    static const char head[] = "%LMQ%$passing$";
    uint8_t names[4096];
    ps_error e = {0};
    int64_t now_ms = ps_now_ms() + 60000;
    int32_t len = ps_lights_expired(store, head, sizeof head - 1, now_ms, 1, names, sizeof names);
    for (int32_t at = 0; at < len; at += 1 + names[at])
        atomic_fetch_add(&deleted, ps_lights_delete(store, (char *)names + at + 1, names[at],
                                                    now_ms, &e));
    return len > 0;
}

static void *expire_all(void *none) {
    (void)none;
    while (atomic_load(&putting) > 0) expire();
    while (expire()) continue;
    return NULL;
}

static void *listen_and_read(void *none) {
    (void)none;
    uint8_t names[4096], records[4096];
    ps_light_record row;
    ps_error e = {0};
    int64_t need, low, high;
    while (atomic_load(&putting) > 0) {
        int32_t len = ps_lights_news(store, names, sizeof names);
        for (int32_t at = 0; at < len; at += 1 + names[at]) {
            const char *name = (char *)names + at + 1;
            if (ps_lights_range(store, name, names[at], &low, &high))
                ps_lights_read(store, name, names[at], low, &row, 1, records, sizeof records, &need,
                               &e);
        }
        CHECK(ps_lights_count(store) >= 0);
        CHECK(ps_lights_below(store, HEAD, sizeof HEAD - 1) <= OLD);
    }
    return NULL;
}

static void *flush_often(void *none) {
    (void)none;
    ps_error e = {0};
    while (atomic_load(&putting) > 0) CHECK_EQ(0, ps_keeper_flush(store, true, &e));
    return NULL;
}

static ps_store *open_store(const char *root) {
    ps_conf c;
    ps_error e = {0};
    ps_conf_init(&c);
    c.root = root;
    c.commitlog_file_size = 1 << 20;
    c.consumequeue_file_size = 2000;
    c.clean_interval_ms = 0;
    return ps_store_open(&c, NULL, NULL, NULL, &e);
}

int main(void) {
    void *(*const others[])(void *) = {expire_all, listen_and_read, flush_often};
    pthread_t threads[PUTTERS + 3];
    ps_error e = {0};
    int64_t low, high;
    check_begin();
    char *root = check_folder(), name[40];
    CHECK((store = open_store(root)) != NULL);
    CHECK_EQ(0, ps_lights_begin(store, &e));
    ps_lights_listen(store, store->st_sender_fd);
    atomic_store(&putting, PUTTERS);
    for (int i = 0; i < PUTTERS + 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, i < PUTTERS ? put_some : others[i - PUTTERS],
                              (void *)(intptr_t)i));
    for (int i = 0; i < PUTTERS + 3; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(PUTTERS * PUTS, atomic_load(&deleted));
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(OLD, ps_lights_count(store));
        CHECK_EQ(OLD, ps_lights_below(store, HEAD, sizeof HEAD - 1));
        for (int i = 0; i < OLD; i++) {
            int32_t len = snprintf(name, sizeof name, "%sold%d", HEAD, i);
            CHECK_EQ(1, ps_lights_range(store, name, len, &low, &high));
            CHECK_EQ(PUTTERS * PUTS / OLD, high);
        }
        CHECK_EQ(0, ps_store_close(store, &e));
        ps_store_free(store);
        if (!again) CHECK((store = open_store(root)) != NULL);
    }
    check_remove(root);
    free(root);
    return check_end("tsan_light");
}
