/* Ordered consumption: one batch of a queue at a time, whoever waits for the next one, and what the
 * file and its journal say. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "base/crc.h"
#include "core_kit.h"
#include "pop/poporder.h"

enum { STEPS = 3000, ASKERS = 6, QUEUES = 3, HOUR = 3600000 };

static ps_conn *askers[ASKERS];

/* ---- requests ---- */

static void pop(int i, int queue, int64_t most, int64_t invisible_ms, int64_t poll_ms,
                const char *attempt) {
    kit_frame f;
    kit_begin(&f, 0, 200050, i);
    kit_text(&f, "consumerGroup", "o");
    kit_text(&f, "topic", "W");
    kit_number(&f, "queueId", queue);
    kit_number(&f, "maxMsgNums", most);
    kit_number(&f, "invisibleTime", invisible_ms);
    kit_number(&f, "pollTime", poll_ms);
    kit_text(&f, "order", "true");
    kit_text(&f, "attemptId", attempt);
    kit_ask(askers[i], &f, NULL, 0);
    CHECK_EQ(0, kit_handed_count);
}

static void ack(int queue, int64_t offset, int64_t pop_ms) {
    char handle[128];
    kit_frame f;
    snprintf(handle, sizeof handle, "0 %" PRId64 " %d 999 0 broker-a %d %" PRId64, pop_ms, HOUR,
             queue, offset);
    kit_begin(&f, 0, 200051, 77);
    kit_text(&f, "consumerGroup", "o");
    kit_text(&f, "topic", "W");
    kit_number(&f, "queueId", queue);
    kit_number(&f, "offset", offset);
    kit_text(&f, "extraInfo", handle);
    kit_ask(askers[0], &f, NULL, 0);
}

static void wait_for_answers(int count) {
    for (int64_t next_ms = kit_pump(false); kit_answer_count < count; next_ms = kit_pump(false)) {
        struct pollfd fd = {.fd = ps_core_event_fd(kit_core), .events = POLLIN};
        if (poll(&fd, 1, (int)next_ms) < 0) return;
    }
}

static int64_t waiting(void) {
    return ps_core_pop_waiting(kit_core, 0, NULL, 0, NULL, 0, 0);
}

/* ---- a model ---- */

static int64_t ends[QUEUES], first[QUEUES];  /* first: that nobody has acknowledged */
static int64_t out_ms[QUEUES], out_to[QUEUES], out_from[QUEUES]; /* the batch that is out */
static uint32_t acked[QUEUES];
static int wanted[ASKERS]; /* the queue it waits for; -2: it waits for none */

static bool is_free(int queue) {
    return first[queue] >= out_to[queue] && first[queue] < ends[queue];
}

/* A batch begins where the last one ended, and no queue has two. */
static void take_batches(void) {
    for (int k = 0; k < kit_answer_count; k++) {
        const ps_command *c = kit_answers[k].command;
        int64_t i = c->opaque;
        char text[1024];
        ps_slice list = ps_command_field(c, "msgOffsetInfo");
        if (i >= ASKERS) continue;
        wanted[i] = -2;
        if (c->code != 0 || !CHECK(list.len < (int32_t)sizeof text)) continue;
        memcpy(text, list.data, (size_t)list.len);
        text[list.len] = 0;
        for (char *at = strtok(text, ";"); at != NULL; at = strtok(NULL, ";")) {
            int queue = at[2] - '0';
            if (!CHECK(queue >= 0 && queue < QUEUES)) return;
            CHECK(is_free(queue));
            CHECK_EQ(first[queue], atoll(at + 4));
            out_from[queue] = out_to[queue] = first[queue];
            for (const char *p = at; *p != 0; p++) out_to[queue] += *p == ',';
            out_to[queue]++;
            out_ms[queue] = kit_field(c, "popTime");
            acked[queue] = 0;
        }
    }
    kit_clear();
}

static void ack_some(int queue) {
    int64_t count = out_to[queue] - out_from[queue];
    if (first[queue] >= out_to[queue]) return;
    int64_t at = check_below(count);
    acked[queue] |= 1u << at;
    ack(queue, out_from[queue] + at, out_ms[queue]);
    for (first[queue] = out_from[queue]; first[queue] < out_to[queue]; first[queue]++)
        if (!(acked[queue] >> (first[queue] - out_from[queue]) & 1)) break;
    CHECK_EQ(first[queue], ps_core_offset(kit_core, "o", 1, "W", 1, queue));
}

static void test_one_batch_at_a_time_and_nobody_waits_in_vain(void) {
    for (int i = 0; i < ASKERS; i++) wanted[i] = -2;
    for (int step = 0; step < STEPS; step++) {
        int i = (int)check_below(ASKERS), queue = (int)check_below(QUEUES + 1) - 1;
        int64_t what = check_below(10);
        if (what < 3 && wanted[i] == -2) {
            wanted[i] = queue;
            pop(i, queue, 1 + check_below(4), HOUR, HOUR, NULL);
        } else if (what < 5) {
            int to = (int)check_below(QUEUES);
            kit_put("W", to, UNIQ);
            ends[to]++;
            kit_clear();
        } else if (queue >= 0) {
            ack_some(queue);
        }
        take_batches();
        kit_pump(false);
        take_batches();
        for (int k = 0; k < ASKERS; k++)
            for (int q = 0; q < QUEUES; q++)
                if (wanted[k] == q || wanted[k] == -1) CHECK(!is_free(q));
    }
    kit_pump(true);
    kit_clear();
    CHECK_EQ(0, waiting());
    ps_core_order_forget(kit_core, NULL, 0, NULL, 0, -1);
    for (int q = 0; q < QUEUES; q++) {
        ps_error e = {0};
        CHECK_EQ(0, ps_core_commit(kit_core, "o", 1, "W", 1, q, kit_queue_end("W", q), &e));
    }
}

/* ---- time ---- */

/* One of those that wait has its turn when the batch is visible again. It may be so before they
 * ask: then the first has it at once. */
static void test_a_batch_is_free_when_its_time_is_over(void) {
    char counts[64];
    kit_put("W", 0, UNIQ);
    kit_clear();
    pop(0, 0, 1, 50, 0, NULL);
    CHECK(kit_field_is(kit_last(), "orderCountInfo", "0 0 0"));
    int64_t popped_ms = kit_field(kit_last(), "popTime");
    kit_clear();
    for (int i = 1; i < 4; i++) pop(i, 0, 1, HOUR, HOUR, NULL);
    int64_t next_ms = kit_pump(false);
    CHECK(kit_answer_count == 1 || (waiting() == 3 && next_ms >= 0 && next_ms <= 50));
    wait_for_answers(1);
    CHECK_EQ(2, waiting());
    CHECK(kit_field(kit_last(), "popTime") - popped_ms >= 50);
    snprintf(counts, sizeof counts, "0 qo0%%%" PRId64 " 1;0 0 1", kit_queue_end("W", 0) - 1);
    CHECK(kit_field_is(kit_last(), "orderCountInfo", counts));
    kit_pump(true);
    ps_core_order_forget(kit_core, "o", 1, NULL, 0, -1);
    kit_clear();
}

/* Whoever waits with the timer of the others leaves. False: it was free before they asked. */
static bool next_one_has_its_turn(void) {
    pop(0, 0, 1, 50, 0, NULL);
    for (int i = 1; i < 3; i++) pop(i, 0, 1, HOUR, HOUR, NULL);
    bool wait = waiting() == 2;
    kit_clear();
    if (wait) {
        ps_conn_free(askers[1]);
        askers[1] = kit_conn(1);
        wait_for_answers(1);
        CHECK(kit_last()->opaque == 2 && kit_last()->code == 0);
    }
    kit_pump(true);
    ps_core_order_forget(kit_core, "o", 1, NULL, 0, -1);
    kit_clear();
    return wait;
}

/* ---- the file ---- */

static void check_text(const char *format, int64_t at, int64_t pop_ms) {
    const uint8_t *text;
    char want[512];
    int len = snprintf(want, sizeof want, format, pop_ms, at, pop_ms);
    int64_t size = ps_core_order_text(kit_core, 0, &text);
    CHECK(size == len && memcmp(text, want, (size_t)len) == 0);
}

static void check_file(const char *path, const char *want) {
    char text[2048] = "";
    int fd = open(path, O_RDONLY);
    ssize_t len = read(fd, text, sizeof text - 1);
    CHECK(len >= 0 && strcmp(text, want) == 0);
    if (len >= 0 && strcmp(text, want) != 0) printf("%s\nnot\n%s\n", text, want);
    close(fd);
}

static void test_the_file_and_its_journal(void) {
    char path[4300], want[2048];
    ps_error e = {0};
    const uint8_t *text;
    snprintf(path, sizeof path, "%s/order.journal", kit_root);
    int64_t at = kit_queue_end("W", 1), changes = ps_core_order_changes(kit_core);
    kit_put("W", 1, UNIQ);
    kit_put("W", 1, UNIQ);
    kit_clear();
    CHECK_EQ(0, ps_core_order_journal(kit_core, path, 7, (const uint8_t *)"old\n", 4, &e));
    pop(0, 1, 2, 4000, 0, "a\"b");
    int64_t pop_ms = kit_field(kit_last(), "popTime");
    CHECK_EQ(changes + 1, ps_core_order_changes(kit_core));
    check_text("{\"table\":{\"W@o\":{1:{\"a\":\"a\\\"b\",\"cm\":0,\"i\":4000,\"l\":%" PRId64
               ",\"o\":[%" PRId64 ",1],\"oc\":{},\"popTime\":%" PRId64 "}}}}",
               at, pop_ms);
    int64_t len = ps_core_order_text(kit_core, 1, &text);
    uint32_t crc = ps_crc32(0, text, (size_t)len);
    ack(1, at, pop_ms);
    int size = snprintf(want, sizeof want,
                        "{\"file\":7}\nold\n{\"topic\":\"W\",\"group\":\"o\",\"queue\":1,\"next\":%"
                        PRId64 ",\"batch\":{\"a\":\"a\\\"b\",\"cm\":0,\"i\":4000,\"l\":%" PRId64
                        ",\"o\":[%" PRId64 ",1],\"oc\":{},\"popTime\":%" PRId64
                        "}}\n{\"file\":%u}\n",
                        at, pop_ms, at, pop_ms, crc);
    char line[512];
    snprintf(line, sizeof line,
             "{\"topic\":\"W\",\"group\":\"o\",\"queue\":1,\"next\":%" PRId64
             ",\"batch\":{\"a\":\"a\\\"b\",\"cm\":1,\"i\":4000,\"l\":%" PRId64 ",\"o\":[%" PRId64
             ",1],\"oc\":{},\"popTime\":%" PRId64 "}}\n",
             at + 1, pop_ms, at, pop_ms);
    snprintf(want + size, sizeof want - (size_t)size, "%s", line);
    check_file(path, want);
    CHECK_EQ(0, ps_core_order_journal(kit_core, path, crc, NULL, 0, &e));
    snprintf(want, sizeof want, "{\"file\":%u}\n%s", crc, line);
    check_file(path, want);
    ps_core_order_journal_end(kit_core);
    CHECK_EQ(0, ps_core_order_failed(kit_core));
    CHECK_EQ(0, ps_core_order_end(kit_core));
    ps_core_order_records(kit_core, 1); /* the same lines, in the log */
    ack(1, at + 1, pop_ms);
    CHECK_EQ(1, kit_queue_end("rmq_sys_REVIVE_LOG_c", 0));
    CHECK(ps_core_order_end(kit_core) > 0);
    ps_core_order_records(kit_core, 0);
    CHECK_EQ(PS_E_IO, ps_core_order_journal(kit_core, kit_root, 0, NULL, 0, &e));
}

int main(void) {
    ps_error e = {0};
    static const char revive[] = "rmq_sys_REVIVE_LOG_c";
    static const ps_pop_rules rules = {.on = 1, .revive_queues = 3, .name_max = 127,
                                       .in_flight_max = -1, .invisible_max_ms = 86400000,
                                       .open_max = 1 << 20, .bytes_max = 1 << 20,
                                       .young_bytes = -1, .filter_ms = 1000,
                                       .filter_work = PS_SQL92_WORK_MAX, .at_place_max = 1000,
                                       .waiting_max = 1000, .places_max = 1000};
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    conf.timer_enable = 1;
    conf.timer_precision_ms = 1000;
    kit_open(&conf, 10);
    kit_topic("W", QUEUES, HOT);
    CHECK_EQ(0, ps_core_pop_set(kit_core, revive, (int32_t)strlen(revive), &e));
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &rules, &e));
    kit_subscribe("o", "W", "", 0, 1);
    for (int i = 0; i < ASKERS; i++) askers[i] = kit_conn(i);
    test_one_batch_at_a_time_and_nobody_waits_in_vain();
    test_a_batch_is_free_when_its_time_is_over();
    CHECK_UNTIL(next_one_has_its_turn());
    CHECK_EQ(0, waiting());
    test_the_file_and_its_journal();
    for (int i = 0; i < ASKERS; i++) ps_conn_free(askers[i]);
    kit_put(NULL, 0, NULL);
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_poporder");
}
