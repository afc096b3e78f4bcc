/* The dispatcher's thread against the event loop's, for the thread sanitizer: no arrival is ever
 * lost. Putters go in lockstep with the pulls: each puts its next message when the one before has
 * come, which is just when the loop's thread looks once more and begins to hold. An arrival that
 * nobody was notified of would leave both waiting. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "core_kit.h"

#define PUTTERS 3
#define CONNS 3
#define LOST_MS 300000 /* whoever is slower than this was not told */

static atomic_llong put_count[PUTTERS], got_count[PUTTERS];
static atomic_bool stop;
static int64_t rounds = 2500;

static ps_topic *topic_of(const char *name) {
    ps_error e = {0};
    return ps_topic_open(kit_store, name, (int32_t)strlen(name), 1, &e);
}

static void *put_all(void *arg) {
    int number = (int)(intptr_t)arg;
    ps_topic *t = topic_of("T"), *later = topic_of("SCHEDULE_TOPIC_XXXX");
    for (int64_t i = 0; i < rounds && !atomic_load(&stop); i++) {
        ps_put_result out;
        while (atomic_load(&got_count[number]) < i && !atomic_load(&stop)) sched_yield();
        for (int spin = (int)(i * 7919 % 20000); spin > 0; spin--) __asm__ volatile("");
        const char *tag = number == 0 && i % 4 != 3 ? "TAGS\1B\2" : "TAGS\1A\2";
        CHECK_EQ(0, ps_put(t, number, 0, "body", 4, tag, 7, 0, &out));
        if (i % 16 == 0)
            CHECK_EQ(0, ps_put(later, number, 0, "body", 4, "DELAY\0011\2", 8, 0, &out));
        /* At once, since the dispatcher's thread looks only now and then. */
        if (i % 8 != 0) ps_dispatch_catch_up(kit_store, NULL);
        atomic_fetch_add(&put_count[number], 1);
        /* What the filter of the first queue passes over brings no answer. */
        if (number == 0 && i % 4 != 3) atomic_fetch_add(&got_count[number], 1);
    }
    return NULL;
}

/* ---- the loop's thread ---- */

static ps_conn *conns[CONNS];
static int conn_of[PUTTERS];
static int64_t next_of[PUTTERS]; /* offset to be pulled */
static bool waits_for[PUTTERS];
static bool news; /* a step said that held pulls have something; the eventfd does not */

static void handle_answers(void) {
    for (int i = 0; i < kit_answer_count; i++) {
        const ps_command *c = kit_answers[i].command;
        int queue = c->opaque;
        waits_for[queue] = false;
        if (c->code != 0) continue;
        int64_t from = next_of[queue], messages = 0;
        for (int64_t at = 0; at < c->body.len; messages++) at += be32_get(c->body.data + at);
        next_of[queue] = kit_field(c, "nextBeginOffset");
        CHECK(next_of[queue] >= from + messages && messages > 0);
        CHECK(queue == 0 || (int64_t)be64_get(c->body.data + 20) == from);
        atomic_fetch_add(&got_count[queue], messages);
    }
    kit_clear();
}

static void pull_again(int queue) {
    kit_frame f;
    kit_pull(&f, queue, queue == 0 ? "A" : "G", "T", queue, next_of[queue], 2, 60000);
    conn_of[queue] = (int)check_below(CONNS);
    waits_for[queue] = true;
    kit_ask(conns[conn_of[queue]], &f, NULL, 0);
    news = news || kit_news;
    handle_answers();
}

static void close_one(void) {
    int conn = (int)check_below(CONNS);
    ps_conn_free(conns[conn]);
    conns[conn] = kit_conn(conn);
    for (int q = 0; q < PUTTERS; q++)
        if (conn_of[q] == conn) waits_for[q] = false;
}

static bool all_came(void) {
    for (int q = 0; q < PUTTERS; q++)
        if (atomic_load(&got_count[q]) < rounds) return false;
    return true;
}

/* Waits for the eventfd unless a step brought news, as the event loop does. disturbed: connections
 * close and pulls are answered before their time, which would also mend a loss: so not in every
 * round. */
static void loop(bool disturbed) {
    uint64_t levels = 0;
    static int64_t seen[PUTTERS];
    for (int turn = 0; !all_came() && !atomic_load(&stop); turn++) {
        ps_error e = {0};
        for (int q = 0; q < PUTTERS; q++) {
            while (!waits_for[q] && atomic_load(&got_count[q]) < rounds) pull_again(q);
            if (ps_core_watch_level(kit_core, q + 1, seen[q], &e) > 0)
                seen[q] = kit_queue_end("SCHEDULE_TOPIC_XXXX", q);
        }
        if (disturbed && turn % 64 == 0) {
            close_one();
            continue;
        }
        struct pollfd p = {ps_core_event_fd(kit_core), POLLIN, 0};
        int ready = all_came() || news ? 1 : poll(&p, 1, LOST_MS);
        news = false;
        if (!CHECK(ready > 0)) { /* an arrival was lost */
            for (int q = 0; q < PUTTERS; q++)
                printf("queue %d: put %lld, got %lld\n", q, (long long)put_count[q],
                       (long long)got_count[q]);
            atomic_store(&stop, true);
        }
        kit_pump(disturbed && turn % 512 == 5);
        levels |= ps_core_take_level_news(kit_core);
        handle_answers();
    }
    CHECK(levels != 0);
}

static void run(bool disturbed) {
    pthread_t threads[PUTTERS];
    atomic_store(&stop, false);
    for (int i = 0; i < CONNS; i++) conns[i] = kit_conn(i);
    for (int i = 0; i < PUTTERS; i++) {
        got_count[i] = put_count[i] = 0;
        waits_for[i] = false;
        pthread_create(&threads[i], NULL, put_all, (void *)(intptr_t)i);
    }
    loop(disturbed);
    atomic_store(&stop, true);
    for (int i = 0; i < PUTTERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < CONNS; i++) ps_conn_free(conns[i]);
}

int main(void) {
    check_begin();
    char *base = check_folder();
    if (getenv("PS_ROUNDS") != NULL) rounds = strtoll(getenv("PS_ROUNDS"), NULL, 10);
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    conf.consumequeue_file_size = 20000;
    kit_open(&conf, 100);
    kit_topic("T", PUTTERS, PS_PERM_READ, 0);
    kit_subscribe("G", "T", "", 0, 0);
    kit_subscribe("A", "T", "A\0", 1, 0);
    run(false);
    run(true);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("tsan_core");
}
