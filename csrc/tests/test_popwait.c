/* Pops that wait, against a count of what each group has still to get: random requests at random
 * places, messages, and connections that end. Nobody waits while there is something for him. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "pop/popcheckpoint.h"
#include "pop/poporder.h"

enum { STEPS = 4000, ASKERS = 24, QUEUES = 3, GROUPS = 3, TAGS = 2 };

static const char *const groups[GROUPS] = {"all", "red", "blue"}; /* what each of them wants */
static ps_conn *askers[ASKERS];
static int group_of[ASKERS], queue_of[ASKERS]; /* of those who wait */
static bool waits[ASKERS];
static int64_t left[GROUPS][QUEUES]; /* messages that the group has still to get */
static int64_t answered, found;
static ps_pop_rules rules = {.on = 1,
                             .revive_queues = 3,
                             .name_max = 127,
                             .in_flight_max = -1,
                             .invisible_max_ms = 86400000,
                             .open_max = 1 << 20,
                             .bytes_max = 1 << 20,
                             .young_bytes = -1,
                             .filter_ms = CHECK_BOUND_MS,
                             .filter_work = PS_SQL92_WORK_MAX,
                             .at_place_max = 1000,
                             .waiting_max = 1000,
                             .places_max = 1000};

/* Counts what an answer has by its list, "0 QUEUE OFFSET,OFFSET;...". */
static void count_answer(int i, const ps_command *c) {
    char text[4096];
    ps_slice list = ps_command_field(c, "msgOffsetInfo");
    CHECK(waits[i] && list.len < (int32_t)sizeof text);
    CHECK_EQ(c->code == 0, list.len > 0);
    waits[i] = false;
    answered++;
    if (c->code != 0 || list.len >= (int32_t)sizeof text) return;
    memcpy(text, list.data, (size_t)list.len);
    text[list.len] = 0;
    for (char *at = strtok(text, ";"); at != NULL; at = strtok(NULL, ";")) {
        int queue = at[2] - '0';
        int64_t count = 1;
        for (const char *p = at; *p != 0; p++) count += *p == ',';
        CHECK(queue_of[i] == -1 || queue_of[i] == queue);
        left[group_of[i]][queue] -= count;
        CHECK(left[group_of[i]][queue] >= 0);
        found += count;
    }
}

static void take_answers(void) {
    for (int k = 0; k < kit_answer_count; k++)
        if (kit_answers[k].conn < ASKERS)
            count_answer((int)kit_answers[k].conn, kit_answers[k].command);
    kit_clear();
}

static void ask(int i, int group, int64_t poll_ms) {
    kit_frame f;
    if (waits[i]) return;
    if (askers[i] == NULL) askers[i] = kit_conn(i);
    group_of[i] = group;
    queue_of[i] = (int)check_below(QUEUES + 1) - 1;
    waits[i] = true;
    kit_begin(&f, 0, 200050, 9);
    kit_text(&f, "consumerGroup", groups[group_of[i]]);
    kit_text(&f, "topic", "W");
    kit_number(&f, "queueId", queue_of[i]);
    kit_number(&f, "maxMsgNums", 1 + check_below(3));
    kit_number(&f, "invisibleTime", 60000);
    kit_number(&f, "pollTime", poll_ms);
    kit_text(&f, "exp", group_of[i] == 0 ? "*" : groups[group_of[i]]);
    kit_ask(askers[i], &f, NULL, 0);
    CHECK_EQ(0, kit_handed_count);
}

static void put(void) {
    int tag = (int)check_below(TAGS), queue = (int)check_below(QUEUES);
    left[0][queue]++;
    left[1 + tag][queue]++;
    kit_put("W", queue, tag == 0 ? UNIQ "TAGS\1red\2" : UNIQ "TAGS\1blue\2");
}

static void end_one(int i) {
    ps_conn_free(askers[i]);
    askers[i] = NULL;
    waits[i] = false;
}

static int64_t waiting(void) {
    int64_t n = 0;
    for (int i = 0; i < ASKERS; i++) n += waits[i];
    return n;
}

static void test_nobody_waits_for_what_is_there(void) {
    for (int step = 0; step < STEPS; step++) {
        int64_t what = check_below(20);
        if (what < 10)
            ask((int)check_below(ASKERS), (int)check_below(GROUPS), 3600000);
        else if (what < 19)
            put();
        else
            end_one((int)check_below(ASKERS));
        take_answers();
        if (check_below(3) > 0) continue;
        kit_pump(false);
        take_answers();
        for (int i = 0; i < ASKERS; i++)
            for (int queue = 0; queue < QUEUES; queue++)
                if (waits[i] && (queue_of[i] == -1 || queue_of[i] == queue))
                    CHECK_EQ(0, left[group_of[i]][queue]);
        CHECK_EQ(waiting(), ps_core_pop_waiting(kit_core, 0, NULL, 0, NULL, 0, 0));
    }
    CHECK(found > STEPS / 8);
}

static void test_all_are_answered_at_the_end(void) {
    for (int i = 0; i < ASKERS; i++) ask(i, i % GROUPS, 3600000);
    take_answers();
    kit_pump(true);
    take_answers();
    CHECK_EQ(0, waiting());
    CHECK_EQ(0, ps_core_pop_waiting(kit_core, 0, NULL, 0, NULL, 0, 0));
}

/* Whoever may not wait is told so at once, and whose time is over without another request. */
static void test_waits_are_bounded_and_end(void) {
    ps_error e = {0};
    int64_t next_ms = 0;
    for (int queue = 0; queue < QUEUES; queue++) { /* nothing is left for the first group */
        left[0][queue] = 0;
        CHECK_EQ(0,
                 ps_core_commit(kit_core, "all", 3, "W", 1, queue, kit_queue_end("W", queue), &e));
    }
    rules.waiting_max = 1;
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    for (int i = 0; i < 2; i++) ask(i, 0, 100);
    take_answers();
    CHECK(waits[0] && !waits[1]);
    int64_t before = answered;
    while (waits[0]) {
        next_ms = kit_pump(false);
        take_answers();
        CHECK(next_ms <= 100);
        struct pollfd fd = {.fd = ps_core_event_fd(kit_core), .events = POLLIN};
        if (waits[0] && poll(&fd, 1, (int)next_ms) < 0) return;
    }
    CHECK_EQ(before + 1, answered);
}

/* A try of Python's, whose outcome is a step's. */
static void test_others_are_given_what_was_found(void) {
    ps_error e = {0};
    ps_pop_found got;
    ps_step step;
    int64_t due_ms, next_ms;
    ps_conn *own = kit_conn(500);
    const ps_pop_ask want = {.topic = "W",
                             .group = "own",
                             .topic_len = 1,
                             .group_len = 3,
                             .queue_id = 1,
                             .most = 5,
                             .invisible_ms = 1000};
    rules.waiting_max = 1000;
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    CHECK_EQ(0, ps_core_commit(kit_core, "own", 3, "W", 1, 1, kit_queue_end("W", 1), &e));
    CHECK_EQ(1, ps_conn_pop_wait(own, &want, -1, 7, &got, &due_ms, &e));
    CHECK(got.count == 0 && !got.full);
    for (int64_t number = 7; number < 9; number++)
        CHECK_EQ(0, ps_conn_pop_wait(own, &want, 3600000, number, &got, &due_ms, &e));
    ps_conn_pop_leave(own, 7);
    kit_put("W", 1, UNIQ);
    CHECK_EQ(1, ps_core_next(kit_core, 0, &step, &next_ms));
    CHECK(step.conn_id == 500 && step.number == 8 && step.found->messages == 1);
    CHECK(step.pop_due_ms > 0 && step.out_len == 5 && memcmp(step.out, "own\nW", 5) == 0);
    ps_pop_found_take(step.found, &got);
    ps_pop_found_free(&got);
    CHECK_EQ(0, ps_core_next(kit_core, 0, &step, &next_ms));
    ps_conn_free(own);
}

/* ---- those who only look ---- */

/* A NOTIFICATION that was handed on, and found right. */
static int look(ps_conn *n, int32_t opaque, int queue, int64_t poll_ms, const char *attempt) {
    uint8_t frame[1000];
    ps_error e = {0};
    ps_step step;
    kit_frame f;
    kit_begin(&f, 0, PS_REQUEST_NOTIFICATION, opaque);
    kit_text(&f, "consumerGroup", "looks");
    kit_text(&f, "topic", "L");
    kit_number(&f, "queueId", queue);
    kit_number(&f, "bornTime", 0);
    kit_number(&f, "pollTime", poll_ms);
    kit_text(&f, "order", attempt != NULL ? "true" : "false");
    kit_text(&f, "attemptId", attempt);
    int served =
        ps_conn_serve_pop(n, frame, kit_encode(&f, NULL, 0, frame, sizeof frame), &step, &e);
    kit_take(&step);
    return served;
}

static bool is_told(const char *has, const char *full) {
    const ps_command *c = kit_last();
    bool told = kit_answer_count > 0 && c->code == 0 && kit_field_is(c, "hasMsg", has) &&
                kit_field_is(c, "pollingFull", full);
    kit_clear();
    return told;
}

static int64_t looking(void) {
    return ps_core_pop_waiting(kit_core, 1, NULL, 0, NULL, 0, 0);
}

/* All of each place are told, and what there is is left to pops. */
static void test_those_who_look_leave_all_of_it(void) {
    ps_error e = {0};
    ps_pop_found got;
    int64_t due_ms;
    ps_conn *one = kit_conn(600), *other = kit_conn(601);
    const ps_pop_ask want = {.topic = "L",
                             .group = "looks",
                             .topic_len = 1,
                             .group_len = 5,
                             .queue_id = -1,
                             .most = 1,
                             .from_min = 1,
                             .invisible_ms = 1000};
    kit_topic("L", 2, HOT);
    CHECK(look(one, 1, 0, 0, NULL) == 1 && is_told("false", "false"));
    CHECK(look(one, 1, 0, INT64_MIN, NULL) == 1 && is_told("false", "false"));
    CHECK(look(one, 1, -2, 0, NULL) == 1 && is_told("false", "false"));        /* all queues */
    CHECK(look(one, 1, 0, INT64_MAX, NULL) == 1 && is_told("false", "false")); /* no time's end */
    for (int32_t i = 0; i < 3; i++) CHECK_EQ(1, look(one, i, 0, INT64_MAX / 2, NULL));
    CHECK_EQ(1, look(other, 3, -1, 3600000, NULL));
    CHECK_EQ(1, look(other, 4, 1, 3600000, NULL));
    CHECK(looking() == 5 && kit_answer_count == 0);
    CHECK_EQ(0, ps_core_pop_waiting(kit_core, 0, NULL, 0, NULL, 0, 0));
    CHECK_EQ(3, ps_core_pop_waiting(kit_core, 1, "looks", 5, "L", 1, 0));
    kit_put("L", 0, UNIQ);
    kit_clear();
    kit_pump(false);
    CHECK(looking() == 1 && kit_answer_count == 4 && is_told("true", "false"));
    CHECK(look(one, 1, 0, 3600000, NULL) == 1 && is_told("true", "false"));
    CHECK_EQ(1, ps_conn_pop_wait(one, &want, -1, 1, &got, &due_ms, &e));
    CHECK_EQ(1, got.messages);
    ps_pop_found_free(&got);
    CHECK_EQ(1, look(one, 1, -1, 3600000, NULL));
    CHECK_EQ(2, looking());
    ps_conn_free(one);
    CHECK_EQ(1, looking());
    kit_pump(true);
    CHECK(looking() == 0 && is_told("false", "false"));
    ps_conn_free(other);
}

/* What came back is in the retry topic. */
static void test_those_who_look_see_what_came_back(void) {
    ps_conn *n = kit_conn(602);
    rules.retry_v1 = 1;
    ps_error e = {0};
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    CHECK_EQ(1, look(n, 1, 0, 3600000, NULL));
    kit_topic("%RETRY%looks_L", 1, HOT);
    kit_put("%RETRY%looks_L", 0, UNIQ);
    kit_clear();
    ps_core_pop_wake(kit_core, "looks", 5, "L", 1);
    kit_pump(false);
    CHECK(looking() == 0 && is_told("true", "false"));
    CHECK_EQ(0, ps_core_commit(kit_core, "looks", 5, "%RETRY%looks_L", 14, 0, 1, &e));
    CHECK(look(n, 1, 0, 0, NULL) == 1 && is_told("false", "false"));
    ps_conn_free(n);
}

static void test_those_who_look_are_bounded(void) {
    ps_error e = {0};
    ps_conn *n = kit_conn(603);
    rules.waiting_max = 1;
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    CHECK_EQ(1, look(n, 1, 0, 3600000, NULL));
    CHECK(look(n, 2, 0, 3600000, NULL) == 1 && is_told("false", "true"));
    ps_conn_free(n);
    rules.waiting_max = 1000;
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
}

/* A batch that is out holds the queue back, but for the attempt that got it, until its end. */
static void test_those_who_look_in_order(void) {
    ps_error e = {0};
    ps_pop_found got;
    int64_t due_ms;
    ps_conn *n = kit_conn(604);
    const ps_pop_ask want = {.topic = "L",
                             .group = "looks",
                             .topic_len = 1,
                             .group_len = 5,
                             .queue_id = 0,
                             .most = 1,
                             .ordered = 1,
                             .attempt = "a",
                             .attempt_len = 1,
                             .invisible_ms = 3600000};
    kit_put("L", 0, UNIQ);
    kit_put("L", 0, UNIQ);
    kit_clear();
    CHECK(look(n, 1, 0, 0, "b") == 1 && is_told("true", "false"));
    CHECK_EQ(1, ps_conn_pop_wait(n, &want, -1, 1, &got, &due_ms, &e));
    CHECK_EQ(1, got.messages);
    CHECK(look(n, 1, 0, 0, "b") == 1 && is_told("false", "false"));
    CHECK(look(n, 1, 0, 0, "a") == 1 && is_told("true", "false"));
    CHECK_EQ(1, look(n, 1, 0, 3600000, "b"));
    kit_pump(false);
    CHECK(looking() == 1 && kit_answer_count == 0);
    const ps_check_point_key key = {.topic = "L",
                                    .group = "looks",
                                    .topic_len = 1,
                                    .group_len = 5,
                                    .queue_id = 0,
                                    .start = got.all[0].start,
                                    .pop_ms = got.pop_ms};
    ps_pop_found_free(&got);
    CHECK_EQ(PS_ORDER_DONE, ps_core_order_ack(kit_core, &key, &key.start, 1));
    kit_pump(false);
    CHECK(looking() == 0 && is_told("true", "false"));
    ps_conn_free(n);
}

int main(void) {
    ps_error e = {0};
    static const char revive[] = "rmq_sys_REVIVE_LOG_c";
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 10);
    kit_topic("W", QUEUES, HOT);
    CHECK_EQ(0, ps_core_pop_set(kit_core, revive, (int32_t)strlen(revive), &e));
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    for (int i = 0; i < GROUPS; i++) kit_subscribe(groups[i], "W", "", 0, 1);
    test_nobody_waits_for_what_is_there();
    test_all_are_answered_at_the_end();
    test_waits_are_bounded_and_end();
    test_others_are_given_what_was_found();
    test_those_who_look_leave_all_of_it();
    test_those_who_look_see_what_came_back();
    test_those_who_look_are_bounded();
    test_those_who_look_in_order();
    for (int i = 0; i < ASKERS; i++) end_one(i);
    kit_put(NULL, 0, NULL);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_popwait");
}
