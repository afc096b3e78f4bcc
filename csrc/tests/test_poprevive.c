/* Messages that nobody acknowledged come back: their copies byte for byte, in parts, and what is
 * gone, may not come back, or cannot now. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "format/record.h"
#include "pop/popcheckpoint.h"

#define RETRY "%RETRY%g_T"
#define POP_MS 5000
#define DUE_MS 65000

static const char revive[] = "rmq_sys_REVIVE_LOG_c";
static const uint8_t born_host[8] = {10, 0, 0, 9, 0, 0, 0x10, 0xE1};

/* Its queue offset. */
static int64_t put(const char *topic, const char *properties, int64_t len, int32_t times) {
    ps_error e = {0};
    ps_put_result put = {0};
    ps_message m = {.body = "body",
                    .body_len = 4,
                    .properties = properties,
                    .properties_len = len,
                    .queue_id = 1,
                    .flag = 7,
                    .sys_flag = 1,
                    .reconsume_times = times,
                    .born_timestamp = 1700000000000,
                    .born_host_len = sizeof born_host};
    memcpy(m.born_host, born_host, sizeof born_host);
    ps_topic *t = ps_topic_open(kit_store, topic, (int32_t)strlen(topic), 1, &e);
    CHECK_EQ(0, ps_put_message(kit_store, t, &m, &put));
    return put.queue_offset;
}

static ps_check_point_row point(const char *group, const char *topic, int64_t start,
                                int32_t count) {
    ps_check_point_row r = {.key = {.topic = topic,
                                    .group = group,
                                    .topic_len = (int32_t)strlen(topic),
                                    .group_len = (int32_t)strlen(group),
                                    .queue_id = 1,
                                    .start = start,
                                    .pop_ms = POP_MS},
                            .count = count,
                            .invisible_ms = DUE_MS - POP_MS,
                            .due_ms = DUE_MS};
    for (int32_t i = 0; i < count; i++) r.offsets[i] = start + i;
    return r;
}

static ps_check_point_row open_point(const char *group, const char *topic, int64_t start,
                                     int32_t count) {
    ps_error e = {0};
    int64_t end;
    ps_check_point_row r = point(group, topic, start, count);
    CHECK_EQ(0, ps_core_check_point_open(kit_core, &r, &end, &e));
    return r;
}

#define LONG_NS (CHECK_BOUND_MS * INT64_C(1000000)) /* a turn that no pause ends */

static int bring_back(const char *target, int64_t now_ms, int64_t turn_ns, ps_revived *out) {
    ps_error e = {0};
    const ps_revive_ask ask = {.topic = "T",
                               .group = "g",
                               .target = target,
                               .topic_len = 1,
                               .group_len = 1,
                               .target_len = (int32_t)strlen(target),
                               .now_ms = now_ms,
                               .again_ms = now_ms + 1000,
                               .turn_ns = turn_ns};
    return ps_core_revive(kit_core, &ask, out, &e);
}

/* The last record of the retry topic is a copy with these properties. */
static void check_copy(int64_t offset, const char *properties, int64_t len, int32_t times) {
    ps_error e = {0};
    ps_batch_info found;
    ps_record r;
    ps_dispatch_catch_up(kit_store, &e);
    ps_topic *t = ps_topic_open(kit_store, RETRY, (int32_t)strlen(RETRY), 0, &e);
    ps_batch *b = ps_read(kit_store, t, 0, offset, NULL, &e);
    ps_batch_get(b, &found);
    if (CHECK_EQ(1, found.count)) {
        const ps_view *v = found.views;
        const uint8_t *record = found.segments[v->segment].map + v->start;
        CHECK_EQ(PS_REC_OK, ps_record_decode(record, v->size, &r));
        CHECK_EQ(times, r.reconsume_times);
        CHECK(r.queue_id == 0 && r.flag == 7 && r.sys_flag == 1);
        CHECK(r.born_timestamp == 1700000000000 && r.prepared_transaction_offset == 0);
        CHECK(r.born_host_len == 8 && memcmp(r.born_host, born_host, 8) == 0);
        CHECK(r.body_len == 4 && memcmp(r.body, "body", 4) == 0);
        CHECKF(r.properties_len == len && memcmp(r.properties, properties, (size_t)len) == 0,
               "%.*s", r.properties_len, (const char *)r.properties);
    }
    ps_batch_free(b);
}

static void test_copies_byte_for_byte(void) {
    static const struct {
        const char *stored, *copied;
        int32_t times;
    } all[] = {
        {"", "1ST_POP_TIME\1" "5000\2", 0},
        {"UNIQ_KEY\1A\2KEYS\1k1 k2\2TAGS\1t\2CLUSTER\1c\2",
         "UNIQ_KEY\1A\2KEYS\1k1 k2\2TAGS\1t\2CLUSTER\1c\2" "1ST_POP_TIME\1" "5000\2", 0},
        {"KEYS\1k", "KEYS\1k\2" "1ST_POP_TIME\1" "5000\2", 0}, /* without its last separator */
        /* what asked for a time, or named a delivery, goes; what else was said of a time stays */
        {"POP_CK\1" "1 2 3\2A\1" "1\2TIMER_DELIVER_MS\1" "9\2TIMER_DELAY_SEC\1" "8\2B\1" "2\2"
         "TIMER_DELAY_MS\1" "7\2TIMER_OUT_MS\1" "6\2",
         "A\1" "1\2B\1" "2\2TIMER_OUT_MS\1" "6\2" "1ST_POP_TIME\1" "5000\2", 0},
        /* the first time is kept, and goes to the end; a client's own word for it does not count */
        {"1ST_POP_TIME\1" "777\2A\1" "1\2", "A\1" "1\2" "1ST_POP_TIME\1" "777\2", 2},
        {"1ST_POP_TIME\1" "777\2A\1" "1\2", "A\1" "1\2" "1ST_POP_TIME\1" "5000\2", 0},
        {"A\1" "1\2", "A\1" "1\2" "1ST_POP_TIME\1" "5000\2", 3},
        /* it was delayed, and waits no more */
        {"DELAY\1" "3\2REAL_TOPIC\1U\2REAL_QID\1" "5\2",
         "DELAY\1" "3\2REAL_TOPIC\1U\2REAL_QID\1" "5\2" "1ST_POP_TIME\1" "5000\2", 1},
        {"\xE8\xAE\xA2\1\xE5\x8D\x95\2", "\xE8\xAE\xA2\1\xE5\x8D\x95\2" "1ST_POP_TIME\1" "5000\2",
         0},
    };
    ps_revived out;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t at = put("T", all[i].stored, (int64_t)strlen(all[i].stored), all[i].times);
        open_point("g", "T", at, 1);
        CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
        CHECK(out.copies == 1 && out.gone == 0 && out.ended == 1 && out.damaged_queue == -1);
        check_copy(kit_queue_end(RETRY, 0) - 1, all[i].copied, (int64_t)strlen(all[i].copied),
                   all[i].times + 1);
    }
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
}

/* One more property would be too much: it comes back without. */
static void test_properties_that_are_full(void) {
    static char full[PS_PROPERTIES_MAX];
    ps_revived out;
    memset(full, 'x', sizeof full);
    full[1] = '\1';
    full[sizeof full - 1] = '\2';
    open_point("g", "T", put("T", full, sizeof full, 0), 1);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK(out.copies == 1 && out.ended == 1);
    check_copy(kit_queue_end(RETRY, 0) - 1, full, sizeof full, 1);
}

/* However short its turn, it does a check point a call. */
static void test_a_check_point_a_turn(void) {
    enum { POINTS = 3, EACH = PS_CHECK_POINT_MAX };
    ps_revived out;
    int64_t end, from = kit_queue_end(RETRY, 0);
    for (int i = 0; i < POINTS; i++) {
        int64_t start = put("T", "A\1" "1\2", 4, 0);
        for (int k = 1; k < EACH; k++) put("T", "A\1" "1\2", 4, 0);
        ps_check_point_row r = open_point("g", "T", start, EACH);
        CHECK_EQ(1, ps_core_check_point_ack(kit_core, &r.key, &r.offsets[3], 1, &end, NULL));
    }
    CHECK_EQ(0, bring_back(RETRY, DUE_MS - 1, LONG_NS, &out)); /* nothing is due */
    CHECK(out.copies == 0 && out.ended == 0);
    for (int n = 1; n <= POINTS; n++) {
        int64_t before = ps_core_pop_end(kit_core);
        CHECK_EQ(0, bring_back(RETRY, DUE_MS, 0, &out));
        CHECK(out.copies == EACH - 1 && out.ended == 1);
        CHECK(ps_core_pop_end(kit_core) > before);
        CHECK_EQ(from + n * (EACH - 1), kit_queue_end(RETRY, 0));
        CHECK_EQ((POINTS - n) * (EACH - 1),
                 ps_core_check_point_in_flight(kit_core, "g", 1, "T", 1, 1));
    }
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
}

/* Of much it does a part, which it marks. */
static void test_large_messages_in_parts(void) {
    enum { EACH = 12, SIZE = 120 << 10, FIRST = 9 };
    static char body[SIZE];
    ps_revived out;
    ps_check_point_row left;
    ps_error e = {0};
    ps_put_result put = {0};
    ps_message m = {.body = body, .body_len = SIZE, .queue_id = 1};
    ps_topic *t = ps_topic_open(kit_store, "T", 1, 1, &e);
    int64_t from = kit_queue_end(RETRY, 0), start = kit_queue_end("T", 1);
    memset(body, 'x', sizeof body);
    for (int i = 0; i < EACH; i++) CHECK_EQ(0, ps_put_message(kit_store, t, &m, &put));
    ps_check_point_row r = open_point("g", "T", start, EACH);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, 0, &out));
    CHECK(out.copies == FIRST && out.ended == 0);
    CHECK_EQ(1, ps_core_check_point_find(kit_core, &r.key, &left));
    CHECK_EQ((1 << FIRST) - 1, left.acked);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, 0, &out));
    CHECK(out.copies == EACH - FIRST && out.ended == 1);
    CHECK_EQ(from + EACH, kit_queue_end(RETRY, 0));
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
}

static void test_what_is_gone_ends(void) {
    ps_revived out;
    int64_t end = put("T", "A\1" "1\2", 4, 0) + 1, copies = kit_queue_end(RETRY, 0);
    int64_t before = ps_core_pop_end(kit_core);
    open_point("g", "T", end - 1, 3); /* of which one is there */
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK(out.copies == 1 && out.gone == 2 && out.ended == 1);
    open_point("g", "T", end - 1, 1);
    CHECK_EQ(0, bring_back("", DUE_MS, LONG_NS, &out)); /* it may not come back */
    CHECK(out.copies == 0 && out.gone == 1 && out.ended == 1);
    CHECK_EQ(copies + 1, kit_queue_end(RETRY, 0));
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
    CHECK(ps_core_pop_end(kit_core) > before);
}

/* Only what is due before all others. */
static void test_others_end_a_turn(void) {
    ps_revived out;
    int64_t at = put("T", "A\1" "1\2", 4, 0);
    put("T", "A\1" "1\2", 4, 0);
    ps_check_point_row first = open_point("g", "T", at, 1), other = open_point("h", "T", at, 1);
    ps_check_point_row last = open_point("g", "T", at + 1, 1);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK(out.copies == 1 && out.ended == 1);
    CHECK_EQ(0, ps_core_check_point_find(kit_core, &first.key, &first));
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK_EQ(0, out.copies);
    CHECK(ps_core_check_point_end(kit_core, &other.key, other.offsets, 1) != 0);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK_EQ(1, out.copies);
    CHECK_EQ(0, ps_core_check_point_find(kit_core, &last.key, &last));
}

/* What cannot be put stays open, and is due later. */
static void test_failures(void) {
    ps_revived out;
    ps_check_point_row found;
    int64_t at = put("T", "A\1" "1\2", 4, 0);
    put("T", "A\1" "1\2", 4, 0);
    ps_check_point_row r = open_point("g", "T", at, 2);
    CHECK_EQ(PS_E_TOPIC_ILLEGAL, bring_back("not a name", DUE_MS, LONG_NS, &out));
    CHECK(out.copies == 0 && out.gone == 0 && out.ended == 0);
    CHECK_EQ(1, ps_core_check_point_find(kit_core, &r.key, &found));
    CHECK(found.acked == 0 && found.due_ms == DUE_MS + 1000);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS, LONG_NS, &out));
    CHECK_EQ(0, out.copies);
    CHECK_EQ(0, bring_back(RETRY, DUE_MS + 1000, LONG_NS, &out));
    CHECK_EQ(2, out.copies);
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
}

/* Its copies are there, and the file that takes its record is not: they do not come again. */
static void test_a_record_that_cannot_be_put(void) {
    ps_revived out;
    int64_t copies = kit_queue_end(RETRY, 0);
    open_point("g", "T", put("T", "A\1" "1\2", 4, 0), 1);
    ps_core_pop_journal(kit_core, kit_core->co_event_fd); /* as a disk that is full */
    CHECK(bring_back(RETRY, DUE_MS, LONG_NS, &out) < 0);
    ps_core_pop_journal(kit_core, -1);
    CHECK(out.copies == 1 && out.ended == 1);
    CHECK_EQ(copies + 1, kit_queue_end(RETRY, 0));
    CHECK_EQ(0, ps_core_check_point_count(kit_core));
}

int main(void) {
    ps_error e = {0};
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    ps_conf conf = kit_conf();
    kit_open(&conf, 10);
    kit_topic("T", 2, HOT);
    kit_topic(RETRY, 1, HOT);
    CHECK_EQ(0, ps_core_pop_set(kit_core, revive, (int32_t)strlen(revive), &e));
    test_copies_byte_for_byte();
    test_properties_that_are_full();
    test_a_check_point_a_turn();
    test_large_messages_in_parts();
    test_what_is_gone_ends();
    test_others_end_a_turn();
    test_failures();
    test_a_record_that_cannot_be_put();
    kit_close();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_poprevive");
}
