/* Open check points against a plain list: opened, acknowledged by frames and by calls, postponed,
 * due; and what damaged acknowledgements do, which is nothing. Then pops by frames. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include "core_kit.h"
#include "pop/popcheckpoint.h"
#include "tables/tables.h"

enum { STEPS = 3000, OPEN_MAX = 200, QUEUES = 3, PUT = 1000 };
static const char revive[] = "rmq_sys_REVIVE_LOG_c";

static ps_check_point_row model[OPEN_MAX];
static int open_count;
static int64_t clock_ms = 1000;

static ps_check_point_key key_of(const char *group, int32_t queue, int64_t start, int64_t pop_ms) {
    return (ps_check_point_key){"T", group, 1, (int32_t)strlen(group), queue, start, pop_ms};
}

static void open_one(void) {
    ps_error e = {0};
    int64_t end = -1;
    ps_check_point_row r = {.key = key_of(check_below(2) ? "g" : "h", (int32_t)check_below(QUEUES),
                                          check_below(PUT - 32 * 20), ++clock_ms),
                            .revive_queue = (int32_t)check_below(4),
                            .count = 1 + (int32_t)check_below(PS_CHECK_POINT_MAX),
                            .invisible_ms = 86400000 + check_below(1000)};
    r.due_ms = r.key.pop_ms + r.invisible_ms;
    for (int32_t i = 0; i < r.count; i++)
        r.offsets[i] = (i > 0 ? r.offsets[i - 1] + 1 : r.key.start) + check_below(20);
    CHECK_EQ(0, ps_core_check_point_open(kit_core, &r, &end, &e));
    CHECK(end > 0 && end == ps_core_pop_end(kit_core));
    CHECK_EQ(1, ps_core_check_point_open(kit_core, &r, &end, &e));
    model[open_count++] = r;
}

/* One of its messages is acknowledged, by a frame or a call; perhaps for the second time. */
static void ack_one(ps_conn *n, ps_check_point_row *r) {
    int32_t i = (int32_t)check_below(r->count);
    bool was_open = !(r->acked >> i & 1);
    int64_t before = ps_core_pop_end(kit_core), end;
    if (check_below(2)) {
        static const char *const added[] = {"", " 4312", " 0 4312"}; /* by proxies */
        char handle[200];
        kit_frame f;
        snprintf(handle, sizeof handle, "%" PRId64 " %" PRId64 " 1 %d 0 b %d %" PRId64 "%s",
                 r->key.start, r->key.pop_ms, r->revive_queue, r->key.queue_id, r->offsets[i],
                 added[check_below(3)]);
        kit_clear();
        kit_begin(&f, 0, 200051, 7);
        kit_text(&f, "consumerGroup", r->key.group);
        kit_text(&f, "topic", "T");
        kit_number(&f, "queueId", r->key.queue_id);
        kit_number(&f, "offset", r->offsets[i]);
        kit_text(&f, "extraInfo", handle);
        kit_ask(n, &f, NULL, 0);
        CHECK_EQ(0, kit_handed_count);
        CHECK(kit_answer_count == 1 && kit_last()->code == 0 && kit_last()->opaque == 7);
    } else {
        CHECK_EQ(was_open,
                 ps_core_check_point_ack(kit_core, &r->key, &r->offsets[i], 1, &end, NULL));
        CHECK((end > 0) == was_open);
    }
    CHECK((ps_core_pop_end(kit_core) > before) == was_open);
    r->acked |= 1u << i;
}

/* Takes those out of the list that have ended. */
static void drop_ended(void) {
    for (int k = open_count - 1; k >= 0; k--)
        if (model[k].acked == (uint32_t)((1ull << model[k].count) - 1))
            model[k] = model[--open_count];
}

static void compare(void) {
    ps_check_point_row rows[7], found;
    int64_t at = 0, seen = 0, due = -1, flying = 0;
    CHECK_EQ(open_count, ps_core_check_point_count(kit_core));
    while (at >= 0) seen += ps_core_check_point_list(kit_core, &at, rows, 7);
    CHECK_EQ(open_count, seen);
    for (int k = 0; k < open_count; k++) {
        const ps_check_point_row *r = &model[k];
        CHECK_EQ(1, ps_core_check_point_find(kit_core, &r->key, &found));
        CHECK(found.acked == r->acked && found.due_ms == r->due_ms && found.count == r->count);
        CHECK_EQ(0, memcmp(found.offsets, r->offsets, (size_t)r->count * sizeof(int64_t)));
        if (due < 0 || r->due_ms < due) due = r->due_ms;
        flying += r->count - __builtin_popcount(r->acked);
    }
    CHECK_EQ(due, ps_core_check_point_due(kit_core));
    CHECK_EQ(flying, ps_core_check_point_in_flight(kit_core, "g", 1, "T", 1, -1) +
                         ps_core_check_point_in_flight(kit_core, "h", 1, "T", 1, -1));
}

static void test_model(ps_conn *n) {
    for (int step = 0; step < STEPS; step++) {
        int k = open_count > 0 ? (int)check_below(open_count) : 0;
        int64_t draw = check_below(20);
        if (open_count == 0 || (draw < 5 && open_count < OPEN_MAX)) {
            open_one();
        } else if (draw < 16) {
            ack_one(n, &model[k]);
        } else if (draw < 17) { /* offsets go, what is in flight stays */
            ps_core_forget_offsets(kit_core, "g", 1, NULL, 0);
        } else if (draw < 18) {
            model[k].due_ms += check_below(5000);
            CHECK_EQ(1, ps_core_check_point_postpone(kit_core, &model[k].key, model[k].due_ms));
        } else {
            model[k].acked = (uint32_t)((1ull << model[k].count) - 1);
            CHECK(ps_core_check_point_end(kit_core, &model[k].key, model[k].offsets,
                                          model[k].count) != 0);
        }
        drop_ended();
        if (step % 50 == 0) compare();
    }
    compare();
}

/* Any bytes for a handle: served or handed on, and nothing of the table changes unless it is one.
 */
static void test_damaged_handles(ps_conn *n) {
    static const char good[] = "5 6 7 1 0 broker 0 8 ";
    for (int i = 0; i < 3000; i++) {
        char handle[64];
        kit_frame f;
        int len = 1 + (int)check_below(40);
        for (int k = 0; k < len; k++)
            handle[k] =
                check_below(8) ? good[check_below(sizeof good - 1)] : (char)check_below(127);
        handle[len] = '\0';
        kit_clear();
        kit_begin(&f, 0, 200051, i);
        kit_text(&f, "consumerGroup", "g");
        kit_text(&f, "topic", "T");
        kit_number(&f, "queueId", check_below(5) - 1);
        kit_number(&f, "offset", check_below(9) - 1);
        kit_text(&f, "extraInfo", handle);
        kit_ask(n, &f, NULL, 0);
        CHECK_EQ(1, kit_answer_count + kit_handed_count);
    }
}

/* ---- POP_MESSAGE ---- */

static void ask_pop(ps_conn *n, int64_t queue, int64_t most, const char *more, const char *value) {
    kit_frame f;
    kit_clear();
    kit_begin(&f, 0, 200050, 9);
    kit_text(&f, "consumerGroup", "p");
    kit_text(&f, "topic", "P");
    kit_number(&f, "queueId", queue);
    kit_number(&f, "maxMsgNums", most);
    kit_number(&f, "invisibleTime", 60000);
    kit_number(&f, "pollTime", 1000);
    kit_number(&f, "bornTime", ps_now_ms() + CHECK_BOUND_MS); /* never late */
    kit_text(&f, "exp", "*");
    kit_text(&f, "order", "false");
    kit_replace(&f, more, value);
    kit_ask(n, &f, NULL, 0);
    CHECK_EQ(1, kit_answer_count + kit_handed_count);
}

/* How many messages the answer has. */
static int64_t popped_of(const ps_command *c) {
    int64_t n = 0;
    for (int64_t at = 0; at < c->body.len; n++) at += (int64_t)be32_get(c->body.data + at);
    return n;
}

/* What is late or wrong is not for the core. */
static void test_others_are_handed_on(ps_conn *n) {
    static const char *const others[][2] = {
        {"expType", "SQL92"}, {"bornTime", "1"},       {"maxMsgNums", "0"},
        {"maxMsgNums", "33"}, {"queueId", "3"},        {"invisibleTime", "0"},
        {"pollTime", "x"},    {"topic", "%RETRY%p_P"}, {"invisibleTime", "86400000"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ask_pop(n, -1, 5, others[i][0], others[i][1]);
        CHECK_EQ(1, kit_handed_count);
    }
    ps_core_leads_until(kit_core, ps_monotonic_ms()); /* a slave may pop, too */
    ask_pop(n, -1, 5, "exp", "*");
    CHECK_EQ(1, kit_handed_count);
    ps_core_leads_until(kit_core, INT64_MAX);
}

/* Everything is handed out once, in the order of its queue, and counted. */
static void test_pops(ps_conn *n) {
    ps_error e = {0};
    ps_pop_rules rules = {.on = 1,
                          .revive_queues = 3,
                          .retry_v1 = 1,
                          .name_max = 127,
                          .invisible_max_ms = 86400000,
                          .in_flight_max = -1,
                          .open_max = 100000,
                          .bytes_max = 1 << 20,
                          .young_bytes = -1,
                          .filter_work = PS_SQL92_WORK_MAX,
                          .filter_ms = 10,
                          .waiting_max = -1};
    int64_t before = ps_core_check_point_count(kit_core), got = 0, all = 40 * QUEUES;
    kit_topic("P", QUEUES, HOT);
    for (int i = 0; i < all; i++) kit_put("P", i % QUEUES, UNIQ);
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    ask_pop(n, -1, 5, "consumerGroup", "p"); /* nobody has subscribed */
    CHECK_EQ(1, kit_handed_count);
    kit_subscribe("p", "P", "", 0, 1);
    ask_pop(n, -1, 5, "exp", "*"); /* a first visit */
    CHECK_EQ(0, kit_handed_count);
    got = popped_of(kit_last());
    CHECK_EQ(5, got);
    test_others_are_handed_on(n);
    while (got < all) {
        int64_t most = 1 + check_below(32), queue = check_below(QUEUES + 1) - 1;
        ask_pop(n, queue, most, "exp", "");
        const ps_command *c = kit_last();
        if (c->code == 210) { /* that queue is empty */
            CHECK(queue >= 0);
            if (queue < 0) return;
            continue;
        }
        CHECK(c->code == 0 && c->opaque == 9 && kit_field_is(c, "invisibleTime", "60000"));
        got += popped_of(c);
        CHECK(popped_of(c) > 0 && popped_of(c) <= most);
        if (queue < 0) CHECK_EQ(all - got, kit_field(c, "restNum"));
    }
    CHECK_EQ(all, got);
    CHECK_EQ(all, ps_core_check_point_in_flight(kit_core, "p", 1, "P", 1, -1));
    CHECK(ps_core_check_point_count(kit_core) > before);
    ask_pop(n, -1, 5, "exp", "*"); /* nothing is left */
    CHECK_EQ(210, kit_last()->code);
    rules.in_flight_max = 10;
    kit_put("P", 1, UNIQ);
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    ask_pop(n, -1, 5, "exp", "*"); /* too many are out */
    CHECK_EQ(210, kit_last()->code);
    rules.in_flight_max = -1;
    rules.on = 0;
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    ask_pop(n, -1, 5, "exp", "*");
    CHECK_EQ(1, kit_handed_count);
    rules.revive_queues = 0;
    CHECK_EQ(PS_E_ARGUMENT, ps_core_pop_rules(kit_core, &rules, &e));
}

/* Marks that are made all at once are those that are made one by one. */
static void test_marks(void) {
    enum { MARKS = 300 };
    int64_t offsets[MARKS];
    ps_pair *p = ps_core_pair_of(kit_core, "marks", 5, "T", 1);
    for (int i = 0; i < MARKS; i++) offsets[i] = -1;
    for (int count = 0; count < MARKS; count += (int)check_below(60)) {
        for (int i = 0; i < 5; i++) {
            int32_t queue = (int32_t)check_below(MARKS);
            ps_pair_commit(p, queue, offsets[queue] = check_below(1000));
        }
        CHECK(ps_pair_marks(p, count) && ps_pair_marks(p, count / 2));
        CHECK(p->pr_mark_count >= count);
        for (int32_t queue = 0; queue < MARKS; queue++) {
            ps_mark *m = ps_pair_mark(p, queue, false);
            CHECK(m == NULL ? queue >= count && offsets[queue] == -1
                            : m->mk_queue == queue && m->mk_offset == offsets[queue]);
        }
    }
}

/* The first pop of a group that knows no queue of a topic of as many as there can be: each of them
 * once. 10 ms of processor time; 900 where marks move each other. */
static void test_first_pop_of_a_wide_topic(ps_conn *n) {
    ps_error e = {0};
    ps_pop_found found;
    int64_t due_ms;
    const ps_pop_rules rules = {.on = 1, .revive_queues = 1, .name_max = 255, .open_max = 10};
    const ps_pop_ask ask = {.topic = "wide",
                            .group = "g",
                            .topic_len = 4,
                            .group_len = 1,
                            .queue_id = -1,
                            .most = 1,
                            .invisible_ms = 1000};
    kit_topic("wide", PS_QUEUE_ID_MAX, HOT);
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    clock_t began = clock();
    CHECK_EQ(1, ps_conn_pop_wait(n, &ask, -1, 1, &found, &due_ms, &e));
    CHECK((clock() - began) * 1000 / CLOCKS_PER_SEC < 500);
    ps_pop_found_free(&found);
}

/* Of a slave that acts as master: the log gets nothing, and the file a line each. */
static void test_aside(void) {
    ps_error e = {0};
    char path[5000], text[2000] = {0};
    int64_t end, before = ps_core_pop_end(kit_core);
    ps_check_point_row r = {.key = key_of("g", 1, 7, 5000),
                            .revive_queue = 3,
                            .count = 2,
                            .invisible_ms = 60000,
                            .due_ms = 65000,
                            .offsets = {7, 9}};
    snprintf(path, sizeof path, "%s.aside", kit_root);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    ps_core_pop_journal(kit_core, fd);
    CHECK_EQ(0, ps_core_check_point_open(kit_core, &r, &end, &e));
    CHECK_EQ(PS_POP_ASIDE, end);
    CHECK_EQ(1, ps_core_check_point_ack(kit_core, &r.key, &r.offsets[1], 1, &end, &e));
    CHECK_EQ(PS_POP_ASIDE, end);
    CHECK_EQ(before, ps_core_pop_end(kit_core));
    CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
    CHECK(strncmp(text, "ck 3 64000 {\"bm\":0,", 19) == 0);
    const char *ack = strchr(text, '\n') + 1;
    CHECK(strncmp(ack, "ack 3 65000 {\"ao\":9,", 20) == 0);
    CHECK(ack[strlen(ack) - 2] == '}' && ack[strlen(ack) - 1] == '\n');
    close(fd);
    fd = open(path, O_RDONLY); /* as a disk that is full: nothing counts */
    ps_core_pop_journal(kit_core, fd);
    CHECK(ps_core_check_point_ack(kit_core, &r.key, &r.offsets[0], 1, &end, &e) < 0);
    ps_core_pop_journal(kit_core, -1);
    CHECK_EQ(1, ps_core_check_point_ack(kit_core, &r.key, &r.offsets[0], 1, &end, &e));
    CHECK(end == ps_core_pop_end(kit_core) && end > before);
    close(fd);
    unlink(path);
}

int main(void) {
    ps_error e = {0};
    ps_check_point_row none = {.key = key_of("g", 0, 5, 6), .count = 2, .offsets = {5, 5}};
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 10);
    kit_topic("T", QUEUES, HOT);
    for (int i = 0; i < PUT * QUEUES; i++) kit_put("T", i % QUEUES, UNIQ);
    CHECK_EQ(0, ps_core_pop_set(kit_core, revive, (int32_t)strlen(revive), &e));
    CHECK_EQ(PS_E_ARGUMENT, ps_core_check_point_add(kit_core, &none, &e));
    ps_conn *n = kit_conn(1);
    test_model(n);
    test_damaged_handles(n);
    test_aside();
    test_pops(n);
    test_marks();
    test_first_pop_of_a_wide_topic(n);
    ps_conn_free(n);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_popcheckpoint");
}
