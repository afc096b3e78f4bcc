/* Pulls under the sanitizers: each outcome and filter, offsets, statistics; how they are held,
 * woken and ended, against a model too. docs/internals/wire.md#pull. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "core/lock.h"
#include "tables/tables.h"

static void open_core(void) {
    ps_conf conf = kit_conf();
    kit_open(&conf, 1000);
    kit_topic("T", 4, HOT);
    kit_topic("cold", 4, PS_PERM_READ | PS_PERM_WRITE, 0);
    kit_topic("withdrawn", 4, HOT);
    ps_core_forget_topic(kit_core, "withdrawn", 9);
}

/* ---- pulls ---- */

/* The answer to a pull; code -2: it is held, -3: handed on. */
static ps_command *pull(ps_conn *n, kit_frame *f) {
    static ps_command held = {.code = -2}, handed = {.code = -3};
    kit_clear();
    CHECK_EQ(0, kit_ask(n, f, NULL, 0));
    return kit_handed_count > 0 ? &handed : kit_answer_count > 0 ? kit_last() : &held;
}

static void check_pull(ps_conn *n, const char *topic, int32_t queue, int64_t offset, int32_t code,
                       int64_t next, int line) {
    kit_frame f;
    kit_pull(&f, queue + 1, "G", topic, queue, offset, 0, 0);
    ps_command *c = pull(n, &f);
    if (c->code != code || (code >= 0 && kit_field(c, "nextBeginOffset") != next))
        printf("line %d: code %d, next %" PRId64 "\n", line, c->code,
               kit_field(c, "nextBeginOffset"));
    CHECK_EQ(code, c->code);
    if (code < 0) return;
    CHECK_EQ(next, kit_field(c, "nextBeginOffset"));
    CHECK_EQ(code == 0, c->body.len > 0);
    CHECK_EQ(0, kit_field(c, "suggestWhichBrokerId"));
    CHECK(kit_field(c, "minOffset") >= 0 && kit_field(c, "maxOffset") >= 0);
    CHECK(c->remark.len > 0);
}

static void test_outcomes(void) {
    kit_topic("P", 3, HOT);
    kit_subscribe("G", "P", "", 0, 0);
    ps_conn *n = kit_conn(1);
    check_pull(n, "P", 0, 0, 19, 0, __LINE__); /* no such queue yet */
    check_pull(n, "P", 0, 5, 21, 0, __LINE__);
    for (int i = 0; i < 40; i++) kit_put("P", 0, UNIQ);
    check_pull(n, "P", 0, 0, 0, 32, __LINE__);
    check_pull(n, "P", 0, 32, 0, 40, __LINE__);
    check_pull(n, "P", 0, 40, 19, 40, __LINE__);
    check_pull(n, "P", 0, 41, 21, 40, __LINE__);
    check_pull(n, "P", 0, INT64_MAX, 21, 40, __LINE__);
    check_pull(n, "P", 2, 0, 19, 0, __LINE__);
    check_pull(n, "P", 3, 0, -3, 0, __LINE__); /* out of range, and what else is the broker's */
    check_pull(n, "P", -1, 0, -3, 0, __LINE__);
    check_pull(n, "P", 0, -1, 21, 0, __LINE__);
    check_pull(n, "nothing", 0, 0, -3, 0, __LINE__);
    check_pull(n, "withdrawn", 0, 0, -3, 0, __LINE__);
    check_pull(n, "cold", 0, 0, -3, 0, __LINE__);
    kit_subscribe("G", "cold", "", 0, 0);
    check_pull(n, "cold", 0, 0, 19, 0, __LINE__);
    kit_topic("cold", 4, PS_PERM_WRITE, 0);
    check_pull(n, "cold", 0, 0, -3, 0, __LINE__);
    ps_core_forget_subscription(kit_core, "G", 1, "P", 1);
    check_pull(n, "P", 0, 0, -3, 0, __LINE__);
    kit_subscribe("G", "P", "", 0, 0);
    ps_core_forget_group(kit_core, "G", 1);
    check_pull(n, "P", 0, 0, -3, 0, __LINE__);
    ps_conn_free(n);
}

static void test_fields_of_pulls(void) {
    static const struct {
        const char *field, *value;
        int32_t code;
    } cases[] = {
        {"maxMsgNums", "0", 0},
        {"maxMsgNums", "-1", 0},
        {"maxMsgNums", "9223372036854775807", 0},
        {"maxMsgNums", NULL, -3},
        {"sysFlag", NULL, -3},
        {"sysFlag", "8", 0}, /* a class filter: nobody has them any more */
        {"sysFlag", "-1", 0},
        {"queueOffset", "-9223372036854775808", PS_CODE_PULL_OFFSET_MOVED},
        {"queueId", "4294967296", -3},
        {"queueOffset", "x", -3},
        {"consumerGroup", NULL, -3},
        {"consumerGroup", "g", -3},
        {"topic", NULL, -3},
        {"commitOffset", "", 0},
        {"commitOffset", "1-", -3},
        {"subVersion", "1", 0},
        {"subVersion", "11", -3}, /* newer than what the group told */
        {"suspendTimeoutMillis", "99999999999999999999", -3},
    };
    ps_conn *n = kit_conn(1);
    kit_subscribe("G", "P", "", 0, 10);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit_frame f;
        kit_pull(&f, (int32_t)i, "G", "P", 0, 0, 0, 0);
        kit_replace(&f, cases[i].field, cases[i].value);
        if (!CHECK_EQ(cases[i].code, pull(n, &f)->code)) printf("case %zu\n", i);
    }
    ps_conn_free(n);
}

/* What a pull gets with this subscription of its own: TagA, TagB, no tag, TagA again. */
static int64_t got_with(ps_conn *n, const char *type, const char *text, int32_t *code) {
    kit_frame f;
    kit_pull(&f, 1, "G", "F", 0, 0, 4, 0);
    kit_text(&f, "expressionType", type);
    kit_text(&f, "subscription", text);
    ps_command *c = pull(n, &f);
    *code = c->code;
    int64_t count = 0;
    for (int64_t at = 0; at < c->body.len; count++) at += be32_get(c->body.data + at);
    return count;
}

static void test_filters(void) {
    static const struct {
        const char *type, *text;
        int32_t code, count;
    } cases[] = {
        {"TAG", "*", 0, 4},       {"TAG", NULL, 0, 4},
        {NULL, "TagA", 0, 2},     {"TAG", "TagA || TagB", 0, 3},
        {"TAG", "TagA||", 0, 2},  {"TAG", " || TagB ||x", 0, 1},
        {"TAG", "none", 20, 0},   {"TAG", "*||TagA", 0, 2},
        {"TAG", "|", 20, 0},      {"SQL92", "n > 1", 0, 2},
        {"SQL92", "n > 1", 0, 2}, {"SQL92", "n >", -3, 0},
        {"SQL92", NULL, -3, 0},   {"XPATH", "x", -3, 0},
    };
    ps_conn *n = kit_conn(1);
    int32_t code;
    kit_topic("F", 1, HOT);
    kit_put("F", 0, UNIQ "TAGS\1TagA\2n\0011\2");
    kit_put("F", 0, UNIQ "TAGS\1TagB\2n\0012\2");
    kit_put("F", 0, UNIQ "n\0013\2");
    kit_put("F", 0, UNIQ "TAGS\1TagA\2");
    kit_subscribe("G", "F", "TagB\0none\0", 2, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t count = got_with(n, cases[i].type, cases[i].text, &code);
        if (!CHECK_EQ(cases[i].code, code) || !CHECK_EQ(cases[i].count, count))
            printf("case %zu\n", i);
    }
    kit_frame f; /* the group's own */
    kit_pull(&f, 1, "G", "F", 0, 0, 0, 0);
    ps_command *c = pull(n, &f);
    CHECK(c->code == 0 && c->body.len == (int32_t)be32_get(c->body.data));
    CHECK_EQ(4, kit_field(c, "nextBeginOffset"));
    char *many = malloc(100000); /* as many tags as a header takes, TagA among them */
    int len = snprintf(many, 20, "TagA");
    for (int i = 0; i < 9000; i++) len += snprintf(many + len, 20, "||x%d", i);
    CHECK(got_with(n, "TAG", many, &code) == 2 && code == 0);
    free(many);
    /* Neither kind may be brought unless the group was published so. */
    ps_error e = {0};
    CHECK_EQ(0, ps_core_subscription(kit_core, "G", 1, "F", 1, 0, "", 0, 0, NULL, 0, 0, &e));
    got_with(n, "TAG", "*", &code);
    CHECK_EQ(-3, code);
    CHECK_EQ(PS_E_EXPRESSION_ILLEGAL, ps_core_subscription(kit_core, "G2", 2, "F", 1, PS_SUB_GROUP,
                                                           "", 0, 0, "n >", 3, 0, &e));
    CHECK_EQ(0, ps_core_subscription(kit_core, "G", 1, "F", 1, PS_SUB_GROUP, "", 0, 0, "n = 2", 5,
                                     0, &e));
    CHECK(pull(n, &f)->code == 0 &&
          kit_last()->body.len == (int32_t)be32_get(kit_last()->body.data));
    ps_conn_free(n);
}

/* ---- consumer offsets ---- */

static int64_t offset_of(const char *group, const char *topic, int32_t queue) {
    return ps_core_offset(kit_core, group, (int32_t)strlen(group), topic, (int32_t)strlen(topic),
                          queue);
}

static int commit(const char *group, int32_t queue, int64_t offset) {
    ps_error e = {0};
    return ps_core_commit(kit_core, group, (int32_t)strlen(group), "P", 1, queue, offset, &e);
}

static void test_offsets_of_pulls(void) {
    kit_frame f;
    ps_error e = {0};
    ps_conn *n = kit_conn(1);
    kit_subscribe("G", "P", "", 0, 0);
    for (int flags = 0; flags < 2; flags++) {
        kit_pull(&f, 1, "G", "P", 1, 0, flags, 0);
        kit_replace(&f, "commitOffset", "7");
        CHECK_EQ(19, pull(n, &f)->code);
        CHECK_EQ(flags ? 7 : -1, offset_of("G", "P", 1));
    }
    kit_replace(&f, "commitOffset", "-1");
    pull(n, &f);
    CHECK_EQ(7, offset_of("G", "P", 1));
    CHECK_EQ(0, ps_core_reset(kit_core, "G", 1, "P", 1, 1, 3, &e));
    CHECK_EQ(3, offset_of("G", "P", 1));
    kit_replace(&f, "commitOffset", "9"); /* a reset is pending: it is not taken, but told */
    CHECK_EQ(1, commit("G", 1, 8));
    ps_command *c = pull(n, &f);
    CHECK(c->code == 21 && kit_field(c, "nextBeginOffset") == 3);
    CHECK(ps_slice_is(c->remark, "OFFSET_RESET"));
    CHECK_EQ(3, offset_of("G", "P", 1));
    CHECK_EQ(19, pull(n, &f)->code);
    CHECK_EQ(9, offset_of("G", "P", 1));
    ps_conn_free(n);
}

static int by_queue(const void *a, const void *b) {
    return ((const ps_offset_row *)a)->queue_id - ((const ps_offset_row *)b)->queue_id;
}

/* Of groups and topics of one letter. */
static int64_t offsets_of_all(void) {
    uint8_t blocks[1024];
    int64_t size = ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 0, blocks, sizeof blocks);
    int64_t heads = ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 1, blocks, sizeof blocks);
    return (size - heads) / PS_OFFSET_ROW_BYTES;
}

static void test_offsets_table(void) {
    ps_offset_row rows[64];
    ps_error e = {0};
    ps_core_forget_offsets(kit_core, NULL, 0, NULL, 0);
    CHECK_EQ(0, offsets_of_all());
    CHECK_EQ(0, ps_core_take_offsets(kit_core, 1, rows, 64));
    CHECK_EQ(PS_E_ARGUMENT, commit("C", -1, 0));
    CHECK_EQ(PS_E_ARGUMENT, commit("C", 65536, 0));
    CHECK_EQ(PS_E_ARGUMENT, commit("C", 0, -1));
    CHECK_EQ(PS_E_ARGUMENT, commit("", 0, 0));
    static const int32_t queues[] = {65535, 3, 0, 70, 1, 2, 1000};
    for (int i = 0; i < 7; i++) CHECK_EQ(0, commit("C", queues[i], queues[i] + 5));
    for (int i = 0; i < 7; i++) CHECK_EQ(queues[i] + 5, offset_of("C", "P", queues[i]));
    CHECK_EQ(-1, offset_of("C", "P", 4));
    CHECK_EQ(-1, offset_of("C", "P", 65536));
    CHECK_EQ(-1, offset_of("none", "P", 0));
    /* A room too small: the rows that did not fit are still to be taken. What is committed
     * meanwhile is for the next round. */
    CHECK_EQ(3, ps_core_take_offsets(kit_core, 1, rows, 3));
    CHECK_EQ(0, commit("E", 0, 1));
    CHECK_EQ(0, commit("C", rows[0].queue_id, 1));
    CHECK_EQ(3, ps_core_take_offsets(kit_core, 0, rows + 3, 3));
    CHECK_EQ(1, ps_core_take_offsets(kit_core, 0, rows + 6, 3));
    CHECK_EQ(0, ps_core_take_offsets(kit_core, 0, rows + 7, 3));
    CHECK_EQ(2, ps_core_take_offsets(kit_core, 1, rows + 7, 3));
    CHECK_EQ(0, commit("C", rows[0].queue_id, rows[0].offset));
    CHECK_EQ(1, ps_core_take_offsets(kit_core, 1, rows + 7, 3));
    ps_core_forget_offsets(kit_core, "E", 1, "P", 1);
    qsort(rows, 7, sizeof *rows, by_queue);
    CHECK(rows[0].queue_id == 0 && rows[6].queue_id == 65535 && rows[6].offset == 65540);
    CHECK(memcmp(rows[0].group, "C", 1) == 0 && memcmp(rows[0].topic, "P", 1) == 0);
    CHECK_EQ(0, commit("C", 70, 75)); /* as before: nothing changed */
    CHECK_EQ(0, ps_core_take_offsets(kit_core, 1, rows, 64));
    CHECK_EQ(0, commit("C", 70, 1)); /* backwards is allowed */
    CHECK_EQ(1, ps_core_take_offsets(kit_core, 1, rows, 64));
    CHECK(rows[0].queue_id == 70 && rows[0].offset == 1);
    CHECK_EQ(7, offsets_of_all());
    CHECK_EQ(0, commit("D", 0, 1));
    ps_core_forget_offsets(kit_core, "D", 1, "x", 1);
    ps_core_forget_offsets(kit_core, "x", 1, "P", 1);
    CHECK_EQ(8, offsets_of_all());
    ps_core_forget_offsets(kit_core, "C", 1, "P", 1);
    CHECK_EQ(1, offsets_of_all());
    ps_core_forget_offsets(kit_core, NULL, 0, "P", 1);
    CHECK_EQ(0, offsets_of_all());
    CHECK_EQ(0, ps_core_reset(kit_core, "C", 1, "P", 1, 0, 4, &e));
    ps_core_forget_offsets(kit_core, "C", 1, NULL, 0);
    CHECK_EQ(-1, offset_of("C", "P", 0));
}

/* A block: C consumes P, and has `rows` offsets; the first is of `queue`. */
static const uint8_t *check_block(const uint8_t *at, char group, int32_t rows, int32_t queue) {
    int32_t head[3], first;
    memcpy(head, at, sizeof head);
    CHECK(head[0] == 1 && head[1] == 1 && head[2] == rows);
    at += sizeof head;
    CHECK(at[0] == group && at[1] == 'P');
    at += 2;
    if (rows > 0) {
        int64_t offset;
        memcpy(&first, at, 4);
        memcpy(&offset, at + 4, 8);
        CHECK(first == queue && offset == queue + 5);
    }
    return at + rows * PS_OFFSET_ROW_BYTES;
}

static void test_offsets_as_blocks(void) {
    uint8_t room[128];
    ps_core_forget_offsets(kit_core, NULL, 0, NULL, 0);
    CHECK_EQ(0, ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 0, room, sizeof room));
    for (int32_t queue = 0; queue < 2; queue++) CHECK_EQ(0, commit("C", queue, queue + 5));
    CHECK_EQ(0, commit("D", 7, 12));
    static const int64_t one = 14 + PS_OFFSET_ROW_BYTES, two = one + PS_OFFSET_ROW_BYTES;
    CHECK_EQ(one + two, ps_core_offsets_of(kit_core, NULL, 0, "P", 1, 0, room, sizeof room));
    CHECK(check_block(check_block(room, 'D', 1, 7), 'C', 2, 0) == room + one + two);
    CHECK_EQ(two, ps_core_offsets_of(kit_core, "C", 1, NULL, 0, 0, room, sizeof room));
    check_block(room, 'C', 2, 0);
    CHECK_EQ(28, ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 1, room, sizeof room));
    CHECK(check_block(check_block(room, 'D', 0, 0), 'C', 0, 0) == room + 28);
    CHECK_EQ(0, ps_core_offsets_of(kit_core, "C", 1, "Q", 1, 1, room, sizeof room));
    /* Nothing is written beyond the room; without any, it is asked how much is needed. */
    memset(room, 9, sizeof room);
    CHECK_EQ(one + two, ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 0, room, one + 3));
    check_block(room, 'D', 1, 7);
    CHECK_EQ(9, room[one]);
    CHECK_EQ(one + two, ps_core_offsets_of(kit_core, NULL, 0, NULL, 0, 0, NULL, 0));
    ps_core_forget_offsets(kit_core, NULL, 0, NULL, 0);
}

/* Names that clients make up leave nothing behind. */
static void test_pairs_that_go(void) {
    char group[16];
    ps_error e = {0};
    uint32_t before = kit_core->co_tables.tc_pairs.count;
    for (int i = 0; i < 5000; i++) {
        int32_t len = snprintf(group, sizeof group, "g%d", i);
        kit_subscribe(group, "P", "a\0", 1, 0);
        if (i % 3 == 0) CHECK_EQ(0, commit(group, i, i));
        if (i % 2 == 0)
            ps_core_forget_group(kit_core, group, len);
        else
            ps_core_forget_subscription(kit_core, group, len, "P", 1);
        if (i % 3 == 0) CHECK_EQ(i, offset_of(group, "P", i));
        ps_core_forget_offsets(kit_core, group, len, NULL, 0);
        CHECK(ps_core_subscription(kit_core, group, len, "P", 1, 1, "", 0, 0, "<", 1, 0, &e) < 0);
    }
    CHECK_EQ(before, kit_core->co_tables.tc_pairs.count);
}

/* There are as many as there may be offsets; what the broker itself commits is kept. */
static void test_pairs_are_limited(void) {
    ps_marks *marks = &kit_core->co_tables.tc_marks;
    ps_error e = {0};
    marks->ms_max = kit_core->co_tables.tc_pairs.count + 1;
    CHECK_EQ(0, ps_core_subscription(kit_core, "in", 2, "P", 1, 1, "", 0, 0, NULL, 0, 0, &e));
    CHECK_EQ(PS_E_NO_MEMORY,
             ps_core_subscription(kit_core, "out", 3, "P", 1, 1, "", 0, 0, NULL, 0, 0, &e));
    CHECKF(strstr(e.text, "maxOffsetsPerBroker") != NULL, "%s", e.text);
    CHECK_EQ(0, ps_core_commit(kit_core, "out", 3, "P", 1, 0, 1, &e));
    marks->ms_max = 0;
    ps_core_forget_subscription(kit_core, "in", 2, "P", 1);
    ps_core_forget_offsets(kit_core, "out", 3, NULL, 0);
}

/* A topic that was withdrawn leaves neither a row nor a place in samples; the sums of the broker
 * keep what it got. */
static void test_topics_that_go(void) {
    static int64_t values[4096];
    kit_frame f;
    ps_sample first, about;
    ps_counter made;
    ps_conn *n = kit_conn(1);
    char name[16];
    kit_topic("stays", 1, HOT);
    uint32_t rows = kit_core->co_tables.tc_topics.count;
    int64_t slots = ps_core_sample(kit_core, values, 4096, &first);
    for (int i = 0; i < 50; i++) {
        int32_t len = snprintf(name, sizeof name, "goes%d", i);
        kit_topic(name, 1, HOT);
        kit_subscribe("stats", name, "", 0, 0);
        kit_put(name, 0, UNIQ);
        kit_pull(&f, 1, "stats", name, 0, 0, 0, 0);
        CHECK_EQ(0, pull(n, &f)->code);
        CHECK(ps_core_sample(kit_core, values, 4096, &about) <= slots + 4);
        ps_core_counter(kit_core, NULL, 0, name, len, &made);
        CHECK(made.messages == 1 && made.since == about.number && values[2 * made.slot] == 1);
        ps_core_forget_topic(kit_core, name, len);
        ps_core_forget_subscription(kit_core, "stats", 5, name, len);
        ps_core_forget_offsets(kit_core, NULL, 0, name, len);
        ps_core_counter(kit_core, NULL, 0, name, len, &made);
        CHECK(made.messages == 0 && made.slot == -1);
    }
    CHECK_EQ(rows, kit_core->co_tables.tc_topics.count);
    CHECK(ps_core_find_pair(kit_core, (const uint8_t *)"stats", 5, (const uint8_t *)"goes0", 5) ==
          NULL);
    ps_core_sample(kit_core, values, 4096, &about);
    CHECK(about.puts == first.puts + 50 && about.gets == first.gets + 50);
    ps_conn_free(n);
}

static void test_statistics(void) {
    ps_stat_row rows[64];
    ps_core_totals before, after;
    ps_sample first, last;
    kit_frame f;
    ps_conn *n = kit_conn(1);
    kit_topic("S", 1, HOT);
    kit_subscribe("stats", "S", "", 0, 0);
    ps_core_get_totals(kit_core, &before);
    ps_core_sample(kit_core, NULL, 0, &first);
    for (int i = 0; i < 3; i++) kit_put("S", 0, UNIQ);
    kit_pull(&f, 1, "stats", "S", 0, 0, 0, 0);
    int32_t bytes = pull(n, &f)->body.len;
    kit_replace(&f, "queueOffset", "3");
    pull(n, &f);
    ps_core_get_totals(kit_core, &after);
    ps_core_sample(kit_core, NULL, 0, &last);
    CHECK(last.puts - first.puts == 3 && last.gets - first.gets == 3);
    CHECK(last.put_bytes - first.put_bytes == bytes && last.get_bytes - first.get_bytes == bytes);
    CHECK_EQ(first.number, last.number);
    CHECK(after.pulls - before.pulls == 2 && after.misses - before.misses == 1);
    int64_t count = ps_core_statistics(kit_core, rows, 64);
    CHECK_EQ(count, ps_core_statistics(kit_core, NULL, 0));
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i].topic_len != 1 || *rows[i].topic != 'S') continue;
        found += rows[i].group == NULL ? 1 : 2;
        CHECK(rows[i].messages == 3 && rows[i].bytes == bytes);
    }
    CHECK_EQ(3, found);
    ps_conn_free(n);
}

/* ---- held pulls ---- */

static int32_t held(void) {
    ps_core_totals totals;
    ps_core_get_totals(kit_core, &totals);
    return (int32_t)totals.held;
}

/* Holds one at the end of queue 0 of H. */
static void hold(ps_conn *n, int32_t opaque, const char *group, int64_t suspend_ms) {
    kit_frame f;
    int64_t end = kit_queue_end("H", 0);
    kit_pull(&f, opaque, group, "H", 0, end < 0 ? 0 : end, 2, suspend_ms);
    CHECK_EQ(-2, pull(n, &f)->code);
}

/* Until the eventfd or the time says so, as the event loop would. Only a hang reaches the bound. */
static int64_t wait_and_pump(void) {
    int64_t next = kit_pump(false), until = check_clock_ms() + CHECK_BOUND_MS;
    while (kit_answer_count == 0 && check_clock_ms() < until) {
        struct pollfd p = {ps_core_event_fd(kit_core), POLLIN, 0};
        poll(&p, 1, (int)(next >= 0 && next < CHECK_BOUND_MS ? next : CHECK_BOUND_MS));
        next = kit_pump(false);
    }
    return next;
}

static void test_holding(void) {
    ps_conn *n = kit_conn(1);
    kit_topic("H", 2, HOT);
    kit_subscribe("G", "H", "", 0, 0);
    kit_subscribe("A", "H", "TagA\0", 1, 0);
    hold(n, 11, "G", CHECK_BOUND_MS); /* the queue is not there yet */
    CHECK(kit_look_in_ms > 0 && kit_look_in_ms <= CHECK_BOUND_MS + 1);
    CHECK_EQ(1, held());
    kit_put("H", 0, UNIQ "TAGS\1TagB\2");
    CHECK(kit_news);
    kit_clear();
    CHECK_EQ(-1, kit_pump(false));
    CHECK(kit_answer_count == 1 && kit_last()->opaque == 11 && kit_last()->code == 0);
    CHECK_EQ(1, kit_field(kit_last(), "nextBeginOffset"));
    CHECK_EQ(0, held());

    hold(n, 12, "A", CHECK_BOUND_MS); /* what does not match is passed over, and told at the end */
    for (int i = 0; i < 3; i++) kit_put("H", 0, UNIQ "TAGS\1TagB\2");
    kit_clear();
    CHECK(kit_pump(false) > 0);
    CHECK_EQ(0, kit_answer_count);
    kit_pump(true);
    CHECK(kit_last()->code == 20 && kit_field(kit_last(), "nextBeginOffset") == 4);
    int64_t begun = check_clock_ms();
    kit_clear();
    hold(n, 12, "A", 50);
    wait_and_pump();
    CHECK(check_clock_ms() - begun >= 50);
    CHECK(kit_last()->code == 19 && kit_field(kit_last(), "nextBeginOffset") == 4);
    hold(n, 13, "A", CHECK_BOUND_MS);
    kit_put("H", 0, UNIQ "TAGS\1TagB\2");
    kit_pump(false);
    kit_put("H", 0, UNIQ "TAGS\1TagA\2");
    kit_clear();
    kit_pump(false);
    CHECK(kit_last()->code == 0 && kit_field(kit_last(), "nextBeginOffset") == 6);

    kit_frame f; /* never held: no time, no leave, not at the end, or too many are */
    kit_pull(&f, 1, "G", "H", 0, 6, 2, 0);
    CHECK_EQ(19, pull(n, &f)->code);
    kit_pull(&f, 1, "G", "H", 0, 6, 2, -5);
    CHECK_EQ(19, pull(n, &f)->code);
    kit_pull(&f, 1, "G", "H", 0, 6, 0, 1000);
    CHECK_EQ(19, pull(n, &f)->code);
    kit_pull(&f, 1, "G", "H", 0, 7, 2, 1000);
    CHECK_EQ(21, pull(n, &f)->code);
    kit_core->co_settings.se_parked_max = 2;
    hold(n, 2, "G", INT64_MAX);
    hold(n, 3, "G", INT64_MAX);
    kit_pull(&f, 1, "G", "H", 0, 6, 2, 1000);
    CHECK_EQ(19, pull(n, &f)->code);
    kit_core->co_settings.se_parked_max = 1000;
    ps_conn_free(n);
    CHECK_EQ(0, held());
    CHECK_EQ(-1, kit_pump(false));
}

static void test_deadlines(void) {
    static const int32_t waits[] = {90, 20, 60, 40, 10, 30};
    ps_conn *n = kit_conn(1);
    /* The first and the last moment that may be the deadline of each, by what it asked for. */
    int64_t first[100], latest[100];
    for (int i = 0; i < 6; i++) {
        first[waits[i]] = check_clock_ms() + waits[i];
        hold(n, waits[i], "G", waits[i]);
        latest[waits[i]] = check_clock_ms() + waits[i];
        CHECK(kit_look_in_ms >= 0 && kit_look_in_ms <= waits[i] + 1);
        if (i > 0) CHECK(kit_look_in_ms <= 21);
    }
    for (int32_t last = 0, i = 0; i < 6; i++) {
        kit_clear();
        wait_and_pump();
        if (!CHECK(kit_answer_count >= 1)) break;
        for (int k = 0; k < kit_answer_count; k++) {
            const ps_command *c = kit_answers[k].command;
            CHECK(c->code == 19 && kit_field(c, "nextBeginOffset") == kit_queue_end("H", 0));
            CHECK(check_clock_ms() >= first[c->opaque]);
            CHECK(last == 0 || first[last] <= latest[c->opaque]);
            last = c->opaque;
        }
        i += kit_answer_count - 1;
    }
    CHECK_EQ(0, held());
    hold(n, 5, "A", CHECK_BOUND_MS); /* everything now, those too that have news already */
    hold(n, 6, "G", CHECK_BOUND_MS);
    kit_put("H", 0, UNIQ "TAGS\1TagB\2");
    kit_clear();
    CHECK_EQ(-1, kit_pump(true));
    CHECK(kit_answer_count == 2 && held() == 0);
    for (int i = 0; i < kit_answer_count; i++) {
        bool all = kit_answers[i].command->opaque == 6;
        CHECK_EQ(all ? 0 : 20, kit_answers[i].command->code);
    }
    ps_conn_free(n);
}

/* Thousands of messages of no interest, its time over meanwhile: it is answered all the same. */
static void test_much_passed_over(void) {
    ps_conn *n = kit_conn(1);
    ps_error e = {0};
    ps_put_result out;
    ps_topic *t = ps_topic_open(kit_store, "H", 1, 1, &e);
    for (int round = 0; round < 2; round++) {
        hold(n, 1, "A", round ? 1 : 60000);
        int64_t from = kit_queue_end("H", 0), count = 4096 * (round + 2);
        for (int i = 0; i < count; i++)
            CHECK_EQ(0, ps_put(t, 0, 0, "b", 1, "TAGS\1TagB\2", 10, 0, &out));
        ps_dispatch_catch_up(kit_store, NULL);
        usleep(5000);
        kit_clear();
        int64_t next = kit_pump(false);
        if (round == 0) {
            CHECK(next > 0 && kit_answer_count == 0 && held() == 1);
            kit_pump(true);
        }
        CHECK(kit_answer_count == 1 && kit_last()->code == 20);
        CHECK_EQ(from + count, kit_field(kit_last(), "nextBeginOffset"));
    }
    ps_conn_free(n);
}

static void test_changes_while_held(void) {
    ps_conn *n = kit_conn(1), *other = kit_conn(2);
    ps_error e = {0};
    hold(n, 1, "A", 60000);
    hold(other, 2, "A", 60000);
    hold(n, 3, "A", 60000);
    kit_subscribe("A", "H", "TagC\0TagD\0", 2, 1); /* those that are held keep what they asked */
    kit_frame f;
    kit_pull(&f, 9, "A", "H", 0, 0, 4 | 2, 1000); /* and a subscription of its own comes and goes */
    kit_text(&f, "subscription", "one");
    pull(n, &f);
    kit_replace(&f, "subscription", "two");
    pull(n, &f);
    ps_core_forget_group(kit_core, "A", 1);
    ps_core_forget_topic(kit_core, "H", 1);
    ps_conn_free(other);
    CHECK_EQ(2, held());
    kit_clear();
    CHECK_EQ(0, ps_core_reset(kit_core, "A", 1, "H", 1, 0, 2, &e)); /* told to the first */
    int64_t next = wait_and_pump();
    CHECK(kit_answer_count == 1 && kit_last()->code == 21 && next > 0);
    CHECK_EQ(2, kit_field(kit_last(), "nextBeginOffset"));
    kit_topic("H", 2, HOT);
    kit_put("H", 0, UNIQ "TAGS\1TagC\2");
    kit_put("H", 0, UNIQ "TAGS\1TagA\2");
    kit_clear();
    wait_and_pump();
    CHECK(kit_answer_count == 1 && kit_last()->code == 0 && held() == 0);
    CHECK_EQ(kit_last()->body.len, (int32_t)be32_get(kit_last()->body.data));
    ps_conn_free(n);
}

/* The dispatcher's thread has news while nobody sends through the core. */
static void test_news_of_others(void) {
    ps_conn *n = kit_conn(1);
    ps_put_result out;
    ps_error e = {0};
    ps_topic *t = ps_topic_open(kit_store, "H", 1, 1, &e);
    kit_subscribe("G", "H", "", 0, 0);
    for (int i = 0; i < 20; i++) {
        hold(n, i, "G", 60000);
        usleep(i % 4 == 0 ? 120000 : 100); /* asleep or polling */
        kit_clear();
        CHECK_EQ(0, ps_put(t, 0, 0, "b", 1, "a\1b\2", 4, 0, &out));
        wait_and_pump();
        CHECK(kit_answer_count == 1 && kit_last()->opaque == i && kit_last()->code == 0);
    }
    ps_conn_free(n);
}

static void test_levels(void) {
    ps_error e = {0};
    const char *topic = "SCHEDULE_TOPIC_XXXX";
    CHECK_EQ(PS_E_ARGUMENT, ps_core_watch_level(kit_core, 0, 0, &e));
    CHECK_EQ(PS_E_ARGUMENT, ps_core_watch_level(kit_core, 65, 0, &e));
    kit_put("T", 0, UNIQ "DELAY\0011\2");
    CHECK_EQ(1, kit_queue_end(topic, 0));
    CHECK_EQ(1, ps_core_watch_level(kit_core, 1, 0, &e)); /* it is there already */
    kit_pump(false);
    ps_core_take_level_news(kit_core);
    CHECK_EQ(0, ps_core_watch_level(kit_core, 1, kit_queue_end(topic, 0), &e));
    CHECK_EQ(0, ps_core_watch_level(kit_core, 5, 0, &e));
    kit_put("T", 0, UNIQ "DELAY\0015\2");
    kit_put("T", 0, UNIQ "DELAY\0015\2");
    kit_put("T", 0, UNIQ "DELAY\0017\2");
    kit_queue_end(topic, 0);
    kit_pump(false);
    CHECK_EQ(1 << 4, ps_core_take_level_news(kit_core));
    CHECK_EQ(0, ps_core_take_level_news(kit_core));
}

/* ---- at random, against a model ---- */

enum { QUEUES = 3, CONNS = 4, WAITING = 24, TAGS = 3 };

typedef struct waiting {
    int conn, queue, tag; /* tag -1: every message */
    int64_t offset;
    int32_t opaque;
} waiting;

static struct model {
    int8_t tags[QUEUES][20000];
    int64_t ends[QUEUES];
    waiting waits[WAITING];
    int wait_count;
    ps_conn *conns[CONNS];
    int64_t marks[TAGS][QUEUES];
    int32_t opaque;
} m;

static int64_t first_match(int queue, int64_t from, int tag) {
    while (from < m.ends[queue] && tag >= 0 && m.tags[queue][from] != tag) from++;
    return from;
}

static const char *group_of(int tag) {
    static const char *const names[] = {"all", "g0", "g1", "g2"};
    return names[tag + 1];
}

static void random_send(void) {
    char text[80];
    int queue = (int)check_below(QUEUES), tag = (int)check_below(TAGS);
    if (m.ends[queue] >= 19999) return;
    snprintf(text, sizeof text, "%sTAGS\1t%d\2", UNIQ, tag);
    kit_clear();
    kit_frame f;
    kit_send(&f, (int)check_below(2), 1, "R", queue, text);
    kit_ask(m.conns[check_below(CONNS)], &f, "body", 4);
    CHECK_EQ(m.ends[queue], kit_field(kit_last(), "queueOffset"));
    m.tags[queue][m.ends[queue]++] = (int8_t)tag;
}

static void random_pull(void) {
    waiting w = {(int)check_below(CONNS), (int)check_below(QUEUES), (int)check_below(TAGS + 1) - 1,
                 0, ++m.opaque};
    int64_t end = m.ends[w.queue];
    w.offset = check_below(3) == 0 ? end : check_below(end + 2);
    bool suspend = check_below(2) == 0, commits = check_below(3) == 0;
    kit_frame f;
    kit_pull(&f, w.opaque, group_of(w.tag), "R", w.queue, w.offset, suspend * 2 + commits, 60000);
    char offset[24];
    snprintf(offset, sizeof offset, "%" PRId64, w.offset);
    kit_replace(&f, "commitOffset", offset);
    ps_command *c = pull(m.conns[w.conn], &f);
    if (commits && w.tag >= 0) m.marks[w.tag][w.queue] = w.offset;
    int64_t match = first_match(w.queue, w.offset, w.tag);
    if (w.offset > end) {
        CHECK_EQ(21, c->code);
    } else if (w.offset == end && suspend && m.wait_count < WAITING) {
        CHECK_EQ(-2, c->code);
        m.waits[m.wait_count++] = w;
    } else if (w.offset == end) {
        CHECK_EQ(19, c->code);
    } else if (match < end && match - w.offset < 800) {
        CHECK_EQ(0, c->code);
        CHECK(c->body.len > 28 && (int64_t)be64_get(c->body.data + 20) == match);
    } else {
        CHECK_EQ(20, c->code);
        CHECK(kit_field(c, "nextBeginOffset") > w.offset);
    }
}

/* Every held pull with a match is answered, and no other, unless all are. */
static void settle(bool all) {
    bool answered[WAITING] = {false};
    kit_clear();
    kit_pump(all);
    for (int i = 0; i < kit_answer_count; i++) {
        const ps_command *c = kit_answers[i].command;
        int at = 0;
        while (at < m.wait_count && m.waits[at].opaque != c->opaque) at++;
        if (!CHECK(at < m.wait_count && !answered[at])) continue;
        const waiting *w = &m.waits[at];
        answered[at] = true;
        CHECK_EQ(w->conn, kit_answers[i].conn);
        int64_t match = first_match(w->queue, w->offset, w->tag), end = m.ends[w->queue];
        CHECK_EQ(match < end ? 0 : end > w->offset ? 20 : 19, c->code);
        if (c->code == 0) CHECK_EQ(match, be64_get(c->body.data + 20));
    }
    int kept = 0;
    for (int i = 0; i < m.wait_count; i++) {
        const waiting *w = &m.waits[i];
        bool wanted = all || first_match(w->queue, w->offset, w->tag) < m.ends[w->queue];
        CHECK_EQ(wanted, answered[i]);
        if (!answered[i]) m.waits[kept++] = *w;
    }
    m.wait_count = kept;
    CHECK_EQ(kept, held());
}

static void random_end_of_connection(void) {
    int conn = (int)check_below(CONNS), kept = 0;
    ps_conn_free(m.conns[conn]);
    m.conns[conn] = kit_conn(conn);
    for (int i = 0; i < m.wait_count; i++)
        if (m.waits[i].conn != conn) m.waits[kept++] = m.waits[i];
    m.wait_count = kept;
}

static void campaign(int steps) {
    kit_topic("R", QUEUES, HOT);
    kit_subscribe("all", "R", "", 0, 0);
    kit_subscribe("g0", "R", "t0\0", 1, 0);
    kit_subscribe("g1", "R", "t1\0", 1, 0);
    kit_subscribe("g2", "R", "t2\0", 1, 0);
    memset(m.marks, 0xFF, sizeof m.marks);
    kit_core->co_settings.se_parked_max = WAITING;
    for (int i = 0; i < CONNS; i++) m.conns[i] = kit_conn(i);
    for (int step = 0; step < steps && check_failures < 20; step++) {
        int64_t what = check_below(100);
        if (what < 45)
            random_send();
        else if (what < 90)
            random_pull();
        else if (what < 93)
            random_end_of_connection();
        if (what % 3 == 0) settle(what >= 97);
    }
    for (int tag = 0; tag < TAGS; tag++)
        for (int q = 0; q < QUEUES; q++)
            CHECK_EQ(m.marks[tag][q], offset_of(group_of(tag), "R", q));
    settle(true);
    for (int i = 0; i < CONNS; i++) ps_conn_free(m.conns[i]);
}

/* As a network thread does it: the answer shows large records where they lie. */
static void test_a_file_cut_off_under_what_is_lent_is_noticed(void) {
    static uint8_t body[60000], frame[1 << 16];
    char path[4300];
    ps_error e = {0};
    ps_step step;
    kit_frame f;
    uint8_t *room;
    open_core();
    kit_subscribe("G", "T", "", 0, 0);
    ps_conn *n = kit_conn(1);
    for (int i = 0; i < 2; i++) {
        kit_send(&f, 0, 0, "T", 0, UNIQ);
        kit_ask(n, &f, body, sizeof body);
    }
    ps_dispatch_catch_up(kit_store, NULL);
    CHECK_EQ(0, ps_store_flush(kit_store, &e)); /* nothing of it is written again */
    CHECK_EQ(0, ps_core_add_caller(kit_core, 1, &e));
    ps_core_call_as(1);
    kit_pull(&f, 1, "G", "T", 0, 0, 0, 0);
    int64_t len = kit_encode(&f, NULL, 0, frame, sizeof frame);
    CHECK(ps_conn_room(n, &room, &e) >= len);
    memcpy(room, frame, (size_t)len);
    CHECK_EQ(0, ps_conn_received(n, len, &step, &e));
    CHECK_EQ(2, step.piece_count);
    CHECK(ps_core_written(kit_core));
    memcpy(room, frame, (size_t)len);
    CHECK_EQ(0, ps_conn_received(n, len, &step, &e));
    snprintf(path, sizeof path, "%s/commitlog/00000000000000000000", kit_root);
    CHECK_EQ(0, truncate(path, 4096));
    memcpy(body, step.pieces[1].data, sizeof body); /* whoever copies it */
    CHECK(!ps_core_written(kit_core));
    ps_conn_free(n);
    ps_core_call_as(PS_CALLER_LOOP);
    kit_close();
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    open_core();
    test_outcomes();
    test_fields_of_pulls();
    test_filters();
    test_offsets_of_pulls();
    test_offsets_table();
    test_offsets_as_blocks();
    test_pairs_that_go();
    test_pairs_are_limited();
    test_topics_that_go();
    test_statistics();
    test_holding();
    test_deadlines();
    test_much_passed_over();
    test_changes_while_held();
    test_news_of_others();
    test_levels();
    campaign(8000);
    kit_put(NULL, 0, NULL);
    kit_close();
    test_a_file_cut_off_under_what_is_lent_is_noticed();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_pull");
}
