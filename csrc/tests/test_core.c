/* The protocol core under the sanitizers: what it answers itself, what it hands on, what it stores
 * of a send. docs/internals/wire.md#frames. */
#define _GNU_SOURCE
#include <errno.h>

#include "core_kit.h"

static void open_core(void) {
    ps_conf conf = kit_conf();
    conf.commitlog_file_size = 16 << 20; /* a batch goes into one file */
    kit_open(&conf, 1000);
    kit_topic("T", 4, HOT);
    kit_topic("cold", 4, PS_PERM_READ | PS_PERM_WRITE, 0);
    kit_topic("read-only", 4, PS_PERM_READ, PS_SEND_HOT);
    kit_topic("withdrawn", 4, HOT);
    ps_core_forget_topic(kit_core, "withdrawn", 9);
}

/* The record of a queue at an offset, in memory that lives as long as the store; false: none. */
static bool record_at(const char *topic, int32_t queue, int64_t offset, ps_record *out) {
    ps_read_options o = {.max_messages = 1};
    ps_batch_info b;
    ps_error e = {0};
    ps_topic *t = ps_topic_open(kit_store, topic, (int32_t)strlen(topic), 0, &e);
    ps_batch *batch = t != NULL ? ps_read(kit_store, t, queue, offset, &o, &e) : NULL;
    if (batch == NULL) return false;
    ps_batch_get(batch, &b);
    const ps_view *v = b.count > 0 ? &b.views[0] : NULL;
    bool found = v != NULL &&
                 ps_record_decode(b.segments[v->segment].map + v->start, v->size, out) == PS_REC_OK;
    ps_batch_free(batch);
    return found;
}

static bool properties_are(const ps_record *r, const char *wanted) {
    bool same = (size_t)r->properties_len == strlen(wanted) &&
                memcmp(r->properties, wanted, strlen(wanted)) == 0;
    if (!same) printf("properties: %.*s\n", r->properties_len, r->properties);
    return same;
}

/* ---- bytes ---- */

/* Four frames: two sends, one that nobody here knows, a pull that finds nothing. */
static int64_t some_frames(uint8_t *to, int64_t room, int64_t *cold_at, int64_t *cold_len) {
    kit_frame f;
    int64_t at = 0;
    kit_send(&f, 0, 1, "T", 0, UNIQ "k\1v \\u \"x\"\2");
    at += kit_encode(&f, "body1", 5, to + at, room - at);
    *cold_at = at;
    kit_begin(&f, 0, 34, 2);
    at += kit_encode(&f, "{\"clientID\":1}", 14, to + at, room - at);
    *cold_len = at - *cold_at;
    kit_send(&f, 1, 3, "T", 1, UNIQ);
    at += kit_encode(&f, "body2", 5, to + at, room - at);
    kit_pull(&f, 4, "G", "T", 3, 0, 0, 0);
    return at + kit_encode(&f, NULL, 0, to + at, room - at);
}

static void check_some(const uint8_t *cold, int64_t cold_len) {
    if (!CHECK_EQ(3, kit_answer_count) || !CHECK_EQ(1, kit_handed_count)) return;
    for (int i = 0; i < 3; i++) {
        static const int32_t opaques[] = {1, 3, 4}, codes[] = {0, 0, 19}, kinds[] = {0, 1, 0};
        CHECK_EQ(opaques[i], kit_answers[i].command->opaque);
        CHECK_EQ(codes[i], kit_answers[i].command->code);
        CHECK_EQ(kinds[i], kit_answers[i].command->serialize);
    }
    CHECK(kit_handed_len == cold_len && memcmp(kit_handed, cold, (size_t)cold_len) == 0);
}

static void test_cuts(void) {
    uint8_t stream[4096];
    int64_t cold_at, cold_len;
    int64_t len = some_frames(stream, sizeof stream, &cold_at, &cold_len);
    kit_subscribe("G", "T", "", 0, 0);
    ps_conn *n = kit_conn(1);
    for (int64_t cut = 0; cut <= len; cut++) {
        kit_clear();
        CHECK_EQ(0, kit_feed(n, stream, cut));
        CHECK_EQ(0, kit_feed(n, stream + cut, len - cut));
        check_some(stream + cold_at, cold_len);
    }
    for (int step = 1; step < 40; step += 3) {
        kit_clear();
        for (int64_t at = 0; at < len; at += step)
            CHECK_EQ(0, kit_feed(n, stream + at, step < len - at ? step : len - at));
        check_some(stream + cold_at, cold_len);
    }
    CHECK_EQ(kit_queue_end("T", 0), kit_queue_end("T", 1));
    ps_record r;
    CHECK(record_at("T", 0, 3, &r) && r.body_len == 5 && memcmp(r.body, "body1", 5) == 0);
    CHECK(properties_are(&r, UNIQ "k\1v \\u \"x\"\2" EXTRA));
    ps_conn_free(n);
}

/* A thousand frames of one read. */
static void test_many_frames_in_one_read(void) {
    static uint8_t stream[400 << 10];
    kit_frame f;
    int64_t at = 0, before = kit_queue_end("T", 2);
    int count = 0;
    ps_conn *n = kit_conn(1);
    for (; at < 255 << 10; count++) {
        kit_send(&f, count & 1, count, "T", 2, UNIQ);
        at += kit_encode(&f, "b", 1, stream + at, (int64_t)sizeof stream - at);
    }
    kit_clear();
    CHECK_EQ(0, kit_feed(n, stream, at));
    CHECK_EQ(count, kit_answer_count);
    for (int i = 0; i < kit_answer_count; i++) {
        CHECK_EQ(i, kit_answers[i].command->opaque);
        CHECK_EQ(before + i, kit_field(kit_answers[i].command, "queueOffset"));
    }
    ps_conn_free(n);
}

/* Small pulls for much: their answers come in steps, each only somewhat larger than enough. */
static void test_much_to_write(void) {
    static uint8_t stream[64 << 10];
    static char body[60000];
    kit_frame f;
    int64_t at = 0;
    kit_clear();
    ps_conn *n = kit_conn(1);
    for (int i = 0; i < 4; i++) {
        kit_send(&f, 0, i, "T", 3, UNIQ);
        kit_ask(n, &f, body, sizeof body);
    }
    kit_subscribe("G", "T", "", 0, 0);
    kit_clear();
    int64_t offset = kit_queue_end("T", 3) - 4;
    for (int i = 0; i < 100; i++) {
        kit_pull(&f, i, "G", "T", 3, offset, 0, 0);
        at += kit_encode(&f, NULL, 0, stream + at, (int64_t)sizeof stream - at);
    }
    uint8_t *to;
    ps_error e = {0};
    ps_step step;
    CHECK(ps_conn_room(n, &to, &e) >= at);
    memcpy(to, stream, (size_t)at);
    CHECK_EQ(0, ps_conn_received(n, at, &step, &e));
    int steps = 1;
    for (; step.more; steps++) {
        CHECK(step.out_len < 2 << 20);
        kit_take_answers(&step);
        CHECK_EQ(0, ps_conn_received(n, 0, &step, &e));
    }
    kit_take_answers(&step);
    CHECK(steps > 10);
    CHECK_EQ(100, kit_answer_count);
    for (int i = 0; i < kit_answer_count; i++) {
        CHECK_EQ(i, kit_answers[i].command->opaque);
        CHECK_EQ(0, kit_answers[i].command->code);
    }
    ps_conn_free(n);
}

static void test_big_frames(void) {
    int64_t len = 16 << 20;
    uint8_t *frame = malloc((size_t)len), *to;
    ps_error e = {0};
    kit_frame f;
    kit_begin(&f, 0, 34, 9);
    int64_t head = ps_command_encode(&f.command, 0, frame, len, &e);
    for (int64_t i = head; i < len; i++) frame[i] = (uint8_t)(i * 7);
    be32_put(frame, (uint32_t)(len - 4));
    ps_conn *n = kit_conn(1);

    kit_clear(); /* what only says that it is long reserves nothing */
    CHECK_EQ(0, kit_feed(n, frame, 100));
    int64_t room = ps_conn_room(n, &to, &e);
    CHECK(room > 0 && room <= 1 << 20);
    CHECK(n->cn_in.room <= 1 << 20);
    CHECK_EQ(0, kit_feed(n, frame + 100, len - 100));
    CHECK(kit_handed_len == len && memcmp(kit_handed, frame, (size_t)len) == 0);
    CHECK(ps_conn_room(n, &to, &e) > 0 && n->cn_in.data == NULL);

    be32_put(frame, (uint32_t)(len - 3)); /* one byte too many */
    CHECK_EQ(PS_E_FRAME, kit_feed(n, frame, 4));
    ps_conn_free(n);
    n = kit_conn(2);
    be32_put(frame, 0xFFFFFFFF);
    CHECK_EQ(PS_E_FRAME, kit_feed(n, frame, 8));
    ps_conn_free(n);
    free(frame);
}

/* Frames before a malformed one are served, and answered. */
static void test_bad_frame_behind_a_good_one(void) {
    uint8_t stream[1024];
    kit_frame f;
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    int64_t at = kit_encode(&f, "b", 1, stream, sizeof stream);
    memset(stream + at, 0xFF, 16);
    ps_conn *n = kit_conn(1);
    kit_clear();
    CHECK_EQ(PS_E_FRAME, kit_feed(n, stream, at + 16));
    CHECK_EQ(1, kit_answer_count);
    ps_conn_free(n);
}

/* ---- sends that are the broker's ---- */

static void test_sends_handed_on(void) {
    static const struct {
        const char *field, *value;
    } cases[] = {
        {"b", "unknown"},
        {"b", "cold"},
        {"b", "read-only"},
        {"b", "withdrawn"},
        {"b", ""},
        {"b", NULL},
        {"e", "4"},
        {"e", "2147483648"},
        {"e", ""},
        {"e", "1x"},
        {"e", NULL},
        {"f", "4"},
        {"f", "8"},
        {"f", "12"},
        {"f", "0x0"},
        {"g", "9223372036854775808"},
        {"h", "2147483648"},
        {"i", NULL},
        {"i", "KEYS\1k\2"},
        {"i", UNIQ "TRAN_MSG\1true\2"},
        {"i", UNIQ "TIMER_DELIVER_MS\1x\2"},
        {"i", UNIQ "TIMER_DELAY_SEC\001259201\2"},
        {"i", UNIQ "TIMER_DELAY_MS\0011.5\2"},
        {"i", UNIQ "INNER_MULTI_DISPATCH\1x\2"},
        {"i", UNIQ "\1x\2"},
        {"m", "true"}, /* and the body is not a batch */
    };
    ps_conn *n = kit_conn(1);
    kit_frame f;
    int64_t before = atomic_load(&kit_store->st_log.lg_end);
    kit_clear();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int kind = 0; kind < 2; kind++) {
            kit_send(&f, kind, (int32_t)i, "T", 0, UNIQ);
            kit_replace(&f, cases[i].field, cases[i].value);
            CHECK_EQ(0, kit_ask(n, &f, "body", 4));
            if (!CHECK_EQ(2 * i + (size_t)kind + 1, kit_handed_count))
                printf("case %zu: %s\n", i, cases[i].field);
        }
    }
    kit_send(&f, 0, 0, "T", 0, UNIQ); /* no body; a response; codes of other requests */
    kit_ask(n, &f, NULL, 0);
    f.command.flag = PS_FLAG_RESPONSE;
    kit_ask(n, &f, "b", 1);
    f.command.flag = 0;
    f.command.code = 324;
    kit_ask(n, &f, "b", 1);
    CHECK_EQ(sizeof cases / sizeof *cases * 2 + 3, kit_handed_count);
    CHECK_EQ(0, kit_answer_count);
    CHECK_EQ(before, atomic_load(&kit_store->st_log.lg_end));
    ps_conn_free(n);
}

/* The broker may make the topic and give the frame back. */
static void test_served_again(void) {
    kit_frame f;
    ps_step step;
    ps_conn *n = kit_conn(1);
    kit_clear();
    kit_send(&f, 1, 5, "later", 0, UNIQ);
    kit_ask(n, &f, "body", 4);
    CHECK_EQ(1, kit_handed_count);
    CHECK_EQ(0, ps_conn_serve(n, kit_handed, kit_handed_len, &step));
    CHECK_EQ(0, step.out_len);
    kit_topic("later", 1, HOT);
    CHECK_EQ(1, ps_conn_serve(n, kit_handed, kit_handed_len, &step));
    kit_take(&step);
    CHECK_EQ(0, kit_last()->code);
    CHECK_EQ(1, kit_queue_end("later", 0));
    CHECK_EQ(0, ps_conn_serve(n, kit_handed, kit_handed_len - 1, &step));
    ps_conn_free(n);
}

/* ---- sends that are stored ---- */

static void test_stored(void) {
    kit_frame f;
    ps_record r;
    char text[1100];
    ps_conn *n = kit_conn(1);
    for (int kind = 0; kind < 2; kind++) {
        kit_clear();
        int64_t at = kit_queue_end("T", 1);
        kit_send(&f, kind, 77, "T", 1, "KEYS\1a b\2" UNIQ "WAIT\1true");
        kit_replace(&f, "f", "49"); /* compressed, and flags of hosts that are not its own */
        kit_replace(&f, "j", "3");
        CHECK_EQ(0, kit_ask(n, &f, "body", 4));
        const ps_command *c = kit_last();
        CHECK(c->code == 0 && c->opaque == 77 && c->serialize == kind && c->version == 479);
        CHECK(kit_field_is(c, "transactionId", "FD0123456789"));
        CHECK(kit_field_is(c, "MSG_REGION", "DefaultRegion") &&
              kit_field_is(c, "TRACE_ON", "true"));
        CHECK_EQ(1, kit_field(c, "queueId"));
        CHECK_EQ(at, kit_field(c, "queueOffset"));
        CHECK_EQ(32, ps_command_field(c, "msgId").len);
        if (!CHECK(record_at("T", 1, at, &r))) break;
        CHECK(properties_are(&r, "KEYS\1a b\2" UNIQ "WAIT\1true\2" EXTRA));
        CHECK_EQ(1, r.sys_flag);
        CHECK(r.flag == 7 && r.reconsume_times == 3 && r.born_timestamp == 1700000000000);
        CHECK(r.born_host_len == 8 && memcmp(r.born_host, "\12\0\0\1\0\0\x30\x39", 8) == 0);
    }
    kit_begin(&f, 0, 10, 5); /* long names */
    kit_text(&f, "topic", "T");
    kit_text(&f, "queueId", "1");
    kit_text(&f, "sysFlag", "0");
    kit_text(&f, "bornTimestamp", "5");
    kit_text(&f, "flag", "0");
    kit_text(&f, "properties", UNIQ);
    int64_t at = kit_queue_end("T", 1);
    kit_ask(n, &f, "x", 1);
    CHECK(kit_last()->code == 0 && record_at("T", 1, at, &r) && r.born_timestamp == 5);
    /* Everything that the store refuses is the broker's to answer. */
    kit_clear();
    memset(text, 'p', sizeof text);
    text[sizeof text - 1] = 0;
    kit_send(&f, 0, 6, "T", 1, text);
    kit_replace(&f, "i", UNIQ "no separators");
    kit_ask(n, &f, "x", 1);
    CHECK(kit_handed_count == 1 && kit_answer_count == 0);
    ps_conn_free(n);
}

/* What is odd and harmless is stored as it would be by a decision of the broker. */
static void test_stored_leniently(void) {
    static const struct {
        const char *field, *value, *stored;
    } cases[] = {
        {"g", NULL, UNIQ EXTRA},
        {"g", "", UNIQ EXTRA},
        {"j", "-1", UNIQ EXTRA},
        {"h", "", UNIQ EXTRA},
        {"i", UNIQ "POP_CK\1x\2k\1v\2", UNIQ "k\1v\2" EXTRA},
        {"i", UNIQ "DELAY\1x\2", UNIQ "DELAY\1x\2" EXTRA},
        {"i", UNIQ "DELAY\19999999999\2", UNIQ "DELAY\19999999999\2" EXTRA},
        {"i", "CLUSTER\1other\2" UNIQ "TRACE_ON\1no", UNIQ EXTRA},
    };
    kit_frame f;
    ps_record r;
    ps_conn *n = kit_conn(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t at = kit_queue_end("T", 1);
        kit_clear();
        kit_send(&f, 0, (int32_t)i, "T", 1, UNIQ);
        kit_replace(&f, cases[i].field, cases[i].value);
        CHECK_EQ(0, kit_ask(n, &f, "body", 4));
        CHECK_EQ(0, kit_last()->code);
        if (!CHECK(record_at("T", 1, at, &r)) || !CHECK(properties_are(&r, cases[i].stored)))
            printf("case %zu\n", i);
    }
    ps_conn_free(n);
}

static void test_queue_of_the_brokers_choice(void) {
    int64_t before[4], moved = 0;
    bool seen[4] = {false};
    kit_frame f;
    ps_conn *n = kit_conn(1);
    kit_clear();
    for (int q = 0; q < 4; q++) before[q] = kit_queue_end("T", q);
    for (int i = 0; i < 100; i++) {
        kit_send(&f, 0, i, "T", -1 - i, UNIQ);
        kit_ask(n, &f, "b", 1);
        int64_t q = kit_field(kit_last(), "queueId");
        if (CHECK(q >= 0 && q < 4)) seen[q] = true;
    }
    for (int q = 0; q < 4; q++) moved += kit_queue_end("T", q) - before[q];
    CHECK_EQ(100, moved);
    CHECK(seen[0] && seen[1] && seen[2] && seen[3]);
    ps_conn_free(n);
}

static void test_delayed(void) {
    static const struct {
        const char *asked;
        int level;
    } cases[] = {{"1", 1}, {"3", 3}, {"18", 18}, {"19", 18}, {"2147483647", 18}};
    kit_frame f;
    ps_record r;
    char text[200], wanted[400];
    ps_conn *n = kit_conn(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int level = cases[i].level;
        int64_t at = kit_queue_end("SCHEDULE_TOPIC_XXXX", level - 1);
        if (at < 0) at = 0;
        snprintf(text, sizeof text, "%sDELAY\1%s\2TAGS\1t\2", UNIQ, cases[i].asked);
        kit_clear();
        kit_send(&f, 0, 1, "T", 2, text);
        kit_ask(n, &f, "late", 4);
        CHECK_EQ(2, kit_field(kit_last(), "queueId"));
        CHECK_EQ(at, kit_field(kit_last(), "queueOffset"));
        snprintf(wanted, sizeof wanted, "%s%s%sDELAY\1%d\2REAL_TOPIC\1T\2REAL_QID\0012\2", UNIQ,
                 "TAGS\1t\2", EXTRA, level);
        CHECK(record_at("SCHEDULE_TOPIC_XXXX", level - 1, at, &r) && properties_are(&r, wanted));
    }
    int64_t at = kit_queue_end("T", 0); /* no delay at all */
    kit_send(&f, 0, 1, "T", 0, UNIQ "DELAY\1-3\2");
    kit_ask(n, &f, "now", 3);
    CHECK(record_at("T", 0, at, &r) && properties_are(&r, UNIQ "DELAY\1-3\2" EXTRA));
    ps_conn_free(n);
}

/* ---- batches ---- */

static int64_t add_item(uint8_t *to, const char *body, const char *properties) {
    int32_t body_len = (int32_t)strlen(body), len = (int32_t)strlen(properties);
    memset(to, 0, 20);
    be32_put(to, (uint32_t)(22 + body_len + len));
    be32_put(to + 12, 5);
    be32_put(to + 16, (uint32_t)body_len);
    memcpy(to + 20, body, (size_t)body_len);
    be16_put(to + 20 + body_len, (uint16_t)len);
    memcpy(to + 22 + body_len, properties, (size_t)len);
    return 22 + body_len + len;
}

static void test_batches(void) {
    uint8_t body[1024];
    kit_frame f;
    ps_record r;
    ps_conn *n = kit_conn(1);
    int64_t at = kit_queue_end("T", 0);
    int64_t len = add_item(body, "one", "UNIQ_KEY\1A\2TAGS\1x\2");
    len += add_item(body + len, "two", "UNIQ_KEY\1B");
    kit_send(&f, 0, 1, "T", 0, UNIQ "common\1c\2");
    kit_replace(&f, "m", "true");
    f.command.code = 320;
    kit_clear();
    kit_ask(n, &f, body, len);
    const ps_command *c = kit_last();
    CHECK(c->code == 0 && kit_field(c, "queueOffset") == at);
    CHECK(kit_field_is(c, "transactionId", "FD0123456789"));
    ps_slice ids = ps_command_field(c, "msgId");
    CHECK(ids.len == 65 && ids.data[32] == ',');
    CHECK(record_at("T", 0, at, &r) && r.body_len == 3 && r.flag == 5);
    CHECK(properties_are(&r, "UNIQ_KEY\1A\2TAGS\1x\2common\1c\2" EXTRA));
    CHECK(record_at("T", 0, at + 1, &r));
    CHECK(properties_are(&r, "UNIQ_KEY\1B\2common\1c\2" EXTRA));

    len += add_item(body + len, "three", "KEYS\1k\2"); /* one has no key of its own */
    kit_ask(n, &f, body, len);
    CHECK(record_at("T", 0, at + 4, &r));
    CHECK(properties_are(&r, "KEYS\1k\2" UNIQ "common\1c\2" EXTRA));

    kit_clear(); /* for the broker: a cut item, lengths that lie, a delay, another topic */
    kit_ask(n, &f, body, len - 1);
    be32_put(body + 16, 0x7FFFFFFF);
    kit_ask(n, &f, body, len);
    be32_put(body + 16, 0xFFFFFFFF);
    kit_ask(n, &f, body, len);
    len = add_item(body, "one", "UNIQ_KEY\1A\2");
    kit_replace(&f, "i", UNIQ "DELAY\0013\2");
    kit_ask(n, &f, body, len);
    kit_replace(&f, "b", "%RETRY%G");
    kit_replace(&f, "i", UNIQ);
    kit_ask(n, &f, body, len);
    CHECK(kit_handed_count == 5 && kit_answer_count == 0);
    CHECK_EQ(at + 5, kit_queue_end("T", 0));
    ps_conn_free(n);
}

/* As many ids as make a header that no client would send. */
static void test_batch_with_a_long_answer(void) {
    enum { ITEMS = 32000 };
    uint8_t *body = malloc(ITEMS * 40), *frame = malloc(ITEMS * 40 + 4096);
    int64_t len = 0;
    kit_frame f;
    for (int i = 0; i < ITEMS; i++) len += add_item(body + len, "b", "");
    kit_topic("many", 1, HOT);
    kit_send(&f, 0, 1, "many", 0, UNIQ);
    kit_replace(&f, "m", "true");
    kit_clear();
    ps_conn *n = kit_conn(1);
    int64_t size = kit_encode(&f, body, len, frame, ITEMS * 40 + 4096);
    uint8_t *to;
    ps_error e = {0};
    ps_step step = {0};
    for (int64_t at = 0; at < size;) {
        int64_t room = ps_conn_room(n, &to, &e), took = room < size - at ? room : size - at;
        memcpy(to, frame + at, (size_t)took);
        CHECK_EQ(0, ps_conn_received(n, took, &step, &e));
        at += took;
    }
    CHECK_EQ(0, step.frame_count);
    CHECK(step.out_len > PS_HEADER_MAX && step.out_len > ITEMS * 33);
    ps_conn_free(n);
    free(body);
    free(frame);
}

static void test_oneway(void) {
    kit_frame f;
    int64_t at = kit_queue_end("T", 0);
    ps_conn *n = kit_conn(1);
    kit_clear();
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    f.command.flag = PS_FLAG_ONEWAY;
    kit_ask(n, &f, "b", 1);
    CHECK(kit_answer_count == 0 && kit_handed_count == 0);
    CHECK_EQ(at + 1, kit_queue_end("T", 0));
    ps_conn_free(n);
}

/* ---- answers that wait for the disk ---- */

/* WAIT is read as Boolean.parseBoolean reads it (Message.isWaitStoreMsgOK): all but "true" in
 * whatever case means that the answer need not wait; without one it waits. */
static void test_wait(ps_conn *n) {
    kit_frame f;
    static const struct {
        const char *properties;
        int waits;
    } asked[] = {{UNIQ, 1},
                 {UNIQ "WAIT\1true\2", 1},
                 {UNIQ "WAIT\1TRUE\2", 1},
                 {UNIQ "WAIT\1tRuE\2", 1},
                 {UNIQ "WAIT\1false\2", 0},
                 {UNIQ "WAIT\1False\2", 0},
                 {UNIQ "WAIT\1no\2", 0},
                 {UNIQ "WAIT\1yes\2", 0},
                 {UNIQ "WAIT\1" "1\2", 0},
                 {UNIQ "WAIT\1 true\2", 0},
                 {UNIQ "WAIT\1\2", 1}, /* without a value it is not a property */
                 {UNIQ "WAIT\1true\2WAIT\1false\2", 0}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        kit_send(&f, 0, 7, "T", 0, asked[i].properties);
        kit_clear();
        kit_ask(n, &f, "x", 1);
        CHECK_EQ(asked[i].waits, kit_wait_count);
        CHECK_EQ(!asked[i].waits, kit_answer_count);
    }
}

/* A store whose syncs end when they are let go. */
static void open_held(int32_t timeout_ms) {
    ps_conf conf = kit_conf();
    conf.sync_flush = 1;
    conf.sync_flush_timeout_ms = timeout_ms;
    kit_open_slow(&conf, 1000);
    kit_topic("T", 4, HOT);
    kit_hold_disk(true);
}

/* Four sends in one read: the second does not wait, the third wants no answer. */
static void send_four(ps_conn *n) {
    uint8_t stream[2048];
    kit_frame f;
    int64_t at = 0;
    for (int i = 0; i < 4; i++) {
        kit_send(&f, i & 1, 100 + i, "T", i, i == 1 ? UNIQ "WAIT\1false\2" : UNIQ);
        if (i == 2) f.command.flag = PS_FLAG_ONEWAY;
        at += kit_encode(&f, "body", 4, stream + at, (int64_t)sizeof stream - at);
    }
    kit_clear();
    kit_feed(n, stream, at);
    CHECK(kit_answer_count == 1 && kit_last()->opaque == 101);
    CHECK_EQ(1, kit_wait_count);
    CHECK_EQ(1, ps_core_waiting(kit_core));
}

/* The two that waited are answered with this code. */
static void check_four(int32_t code, int32_t outcome, int64_t queue_offset) {
    int64_t waited = kit_wait;
    kit_clear();
    kit_settle();
    CHECK_EQ(waited, kit_wait);
    CHECK_EQ(outcome, kit_outcome);
    if (!CHECK_EQ(2, kit_answer_count)) return;
    for (int k = 0; k < 2; k++) {
        const ps_command *c = kit_answers[k].command;
        CHECK_EQ(8, kit_answers[k].conn);
        CHECK(c->opaque == (k ? 103 : 100) && c->code == code);
        CHECK(kit_field_is(c, "transactionId", "FD0123456789"));
        CHECK_EQ(k ? 3 : 0, kit_field(c, "queueId"));
        CHECK_EQ(queue_offset, kit_field(c, "queueOffset"));
    }
}

static void test_answers_wait_until_the_log_is_safe(void) {
    uint8_t stream[2048];
    kit_frame f;
    open_held(60000);
    ps_conn *n = kit_conn(8), *other = kit_conn(9);
    send_four(n);
    kit_pump(false);
    CHECK_EQ(1, ps_core_waiting(kit_core));
    CHECK_EQ(1, kit_answer_count);
    kit_hold_disk(false);
    check_four(0, 0, 0);
    kit_hold_disk(true);
    test_wait(n);
    /* A batch, and answers of two connections; one of them closes meanwhile. */
    int64_t len = add_item(stream, "one", "UNIQ_KEY\1A\2");
    len += add_item(stream + len, "two", "UNIQ_KEY\1B\2");
    kit_hold_disk(false);
    kit_settle();
    kit_hold_disk(true);
    kit_send(&f, 0, 7, "T", 0, UNIQ);
    kit_replace(&f, "m", "true");
    kit_clear();
    kit_ask(n, &f, stream, len);
    kit_ask(other, &f, stream, len);
    CHECK(kit_wait_count == 2 && kit_answer_count == 0);
    ps_conn_free(other);
    kit_hold_disk(false);
    kit_settle();
    CHECK_EQ(2, kit_answer_count);
    CHECK_EQ(65, ps_command_field(kit_last(), "msgId").len);
    kit_hold_disk(true);
    kit_ask(n, &f, stream, len);
    CHECK_EQ(1, ps_core_waiting(kit_core)); /* and goes with the core */
    ps_conn_free(n);
    kit_close();
}

static void test_answers_say_what_became_of_the_wait(void) {
    open_held(20);
    ps_conn *n = kit_conn(8);
    send_four(n);
    check_four(10, PS_FLUSH_DISK_TIMEOUT, 0);
    kit_hold_disk(false);
    ps_flusher_wait(&kit_store->st_flusher, atomic_load(&kit_store->st_log.lg_end), 60000, NULL);
    kit_hold_disk(true);
    kit_store->st_safe.sf_timeout_ms = 60000;
    ps_io_faulty_set(kit_io, 1u << PS_IO_FDATASYNC, 1, EIO, 1); /* of the sync that is held next */
    send_four(n);
    kit_hold_disk(false);
    check_four(14, PS_E_FLUSH_FAILED, 1);
    kit_close_code = PS_E_FLUSH_FAILED;
    ps_conn_free(n);
    kit_close();
}

/* The disk and the slaves have a bound each. */
static void test_answers_wait_for_disk_and_slaves_side_by_side(void) {
    open_held(20);
    ps_want_copies(kit_store, 1, 600000);
    ps_conn *n = kit_conn(8);
    send_four(n);
    const ps_waits *waits = &kit_core->co_late.la_waits;
    while (waits->wa_oldest[0] != NULL) { /* until the disk is late; the slaves have their time */
        poll(NULL, 0, 1);
        kit_pump(false);
    }
    CHECK(waits->wa_oldest[1] != NULL);
    ps_safe_copied(&kit_store->st_safe, atomic_load(&kit_store->st_log.lg_end));
    check_four(10, PS_FLUSH_DISK_TIMEOUT, 0);
    kit_store->st_safe.sf_timeout_ms = 600000;
    ps_want_copies(kit_store, 1, 20);
    send_four(n);
    check_four(12, PS_FLUSH_SLAVE_TIMEOUT, 1);
    kit_hold_disk(false);
    ps_conn_free(n);
    kit_close();
}

/* The broker's own waits stand in the same list, by position whatever the order of asking. */
static void test_waits_end_in_the_order_of_positions(void) {
    ps_step step;
    open_held(60000);
    ps_conn *n = kit_conn(8);
    int64_t ids[3], told[4], count = 0, next_ms;
    send_four(n);
    const int64_t end = atomic_load(&kit_store->st_log.lg_end);
    const int64_t at[3] = {end, end - 2, end - 1};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(0, ps_core_wait(kit_core, at[i], &step));
        ids[i] = step.wait;
        CHECK(step.look_in_ms > 0);
    }
    CHECK_EQ(4, ps_core_waiting(kit_core));
    kit_hold_disk(false);
    while (count < 4) {
        struct pollfd fd = {.fd = ps_core_event_fd(kit_core), .events = POLLIN};
        poll(&fd, 1, -1);
        while (ps_core_next(kit_core, 0, &step, &next_ms) > 0)
            if (CHECK(step.wait != 0 && count < 4)) told[count++] = step.wait;
    }
    CHECK(told[0] == ids[1] && told[1] == ids[2]);
    CHECK_EQ(0, ps_core_waiting(kit_core));
    CHECK_EQ(0, ps_core_wait(kit_core, end, &step)); /* over already */
    CHECK_EQ(1, ps_core_next(kit_core, 0, &step, &next_ms));
    CHECK(step.outcome == 0 && step.conn_id == -1 && step.out_len == 0);
    CHECK(!ps_must_wait(kit_store, end) && ps_must_wait(kit_store, end + 1));
    CHECK(!ps_must_wait(kit_store, 0));
    ps_conn_free(n);
    kit_close();
}

static void test_a_closed_store_ends_the_waits(void) {
    ps_step step;
    open_held(60000);
    CHECK_EQ(0, ps_core_wait(kit_core, 1 << 20, &step));
    ps_safe_close(&kit_store->st_safe);
    kit_settle();
    CHECK_EQ(PS_E_CLOSED, kit_outcome);
    kit_close();
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    open_core();
    test_cuts();
    test_many_frames_in_one_read();
    test_much_to_write();
    test_big_frames();
    test_bad_frame_behind_a_good_one();
    test_sends_handed_on();
    test_served_again();
    test_stored();
    test_stored_leniently();
    test_queue_of_the_brokers_choice();
    test_delayed();
    test_batches();
    test_batch_with_a_long_answer();
    test_oneway();
    kit_put(NULL, 0, NULL);
    kit_close();
    test_answers_wait_until_the_log_is_safe();
    test_answers_say_what_became_of_the_wait();
    test_answers_wait_for_disk_and_slaves_side_by_side();
    test_waits_end_in_the_order_of_positions();
    test_a_closed_store_ends_the_waits();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_core");
}
