/* Fuzzes a connection of the protocol core: damaged frames, cut anywhere, over a small store whose
 * topics and groups are those of the frames. Driver and settings: fuzz_command.c; the museum is
 * tests/fuzz/museum/core. What comes out must be whole answers, and nothing may be left behind. */
#define _GNU_SOURCE
#include "core_kit.h"
#include "transactions/halves.h"
#include "sends/dedup.h"
#include "pop/popcheckpoint.h"

enum { INPUT_MAX = 64 << 10, NAMES_MAX = 64, REOPEN_EVERY = 20000, WAITING_MAX = 100 };
#define FUZZ_MUSEUM "tests/fuzz/museum/core"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char names[NAMES_MAX][PS_TOPIC_MAX + 1];
static int name_count, runs;
static int64_t decided, acknowledged;
static char *folder;

/* Little may be open and wait, so that the bounds are met. */
static const ps_pop_rules pop_rules = {
    .on = 1, .revive_queues = 2, .name_max = 127, .in_flight_max = 40,
    .invisible_max_ms = 86400000, .open_max = 32, .bytes_max = 1 << 16, .young_bytes = 1 << 10,
    .filter_ms = 10, .filter_work = 10000, .at_place_max = 3, .waiting_max = 8, .places_max = 8};

/* With and without a sync, a window of repeats, halves that one call decides in plenty. */
static void open_fuzzed(void) {
    static const char half[] = "RMQ_SYS_TRANS_HALF_TOPIC", revive[] = "rmq_sys_REVIVE_LOG_c";
    int turn = runs / REOPEN_EVERY;
    ps_tx_conf tx = {.on = 1, .op_bytes = 64, .timeout_ms = 6000, .broker = "b"};
    ps_conf conf = kit_conf();
    ps_error e = {0};
    conf.sync_flush = turn % 2;
    kit_open(&conf, 50);
    CHECK_EQ(0, ps_core_tx_set(kit_core, &tx, &e));
    CHECK_EQ(0, ps_core_dedup_set(kit_core, 100, turn % 4 < 2 ? "UNIQ_KEY" : "KEYS", &e));
    CHECK_EQ(0, ps_core_pop_set(kit_core, revive, (int32_t)sizeof revive - 1, &e));
    CHECK_EQ(0, ps_core_pop_rules(kit_core, &pop_rules, &e));
    kit_topic(half, 1, PS_PERM_READ | PS_PERM_WRITE, 0);
    for (int i = 0; i < name_count; i++) {
        kit_topic(names[i], 1 + i % 8, PS_PERM_READ | PS_PERM_WRITE,
                  PS_SEND_HOT | (i % 2 ? PS_SEND_ONCE : 0));
        for (int k = 0; k < name_count; k++) kit_subscribe(names[k], names[i], "TagA\0", k % 2, 0);
    }
}

/* A decision about a half that is open, as its producer would send it, or with one field that is
 * not its own; when none is open, one is sent. */
static void decide_one(void) {
    ps_half_row row;
    kit_frame f;
    int64_t at = 0;
    char group[PS_TOPIC_MAX + 1], text[80];
    ps_conn *n = kit_conn(-1);
    if (ps_core_tx_list(kit_core, &at, &row, 1) == 0) {
        snprintf(text, sizeof text, "UNIQ_KEY\1%d\2TRAN_MSG\1true\2PGROUP\1p\2", runs);
        kit_send(&f, runs & 1, runs, "T", 0, text);
        kit_ask(n, &f, "half", 4);
    } else {
        snprintf(group, sizeof group, "%.*s", row.group_len, row.group);
        kit_begin(&f, runs & 1, 37, runs);
        kit_text(&f, "producerGroup", runs % 7 ? group : "nobody");
        kit_number(&f, "tranStateTableOffset", row.offset + (runs % 11 == 0));
        kit_number(&f, "commitLogOffset", row.physical + (runs % 13 == 0));
        kit_number(&f, "commitOrRollback", runs % 3 ? 8 : 12);
        kit_text(&f, "msgId", "x");
        if (runs % 2) f.command.flag = PS_FLAG_ONEWAY;
        kit_ask(n, &f, NULL, 0);
        kit_ask(n, &f, NULL, 0); /* and again */
    }
    ps_conn_free(n);
}

static void begin_pop(kit_frame *f, int32_t code, int32_t opaque, int64_t poll_ms) {
    kit_begin(f, 0, code, opaque); /* JSON: the code is more than the other header takes */
    kit_text(f, "consumerGroup", "G");
    kit_text(f, "topic", "T");
    kit_number(f, "queueId", opaque % 4 - 1);
    kit_number(f, "maxMsgNums", 1 + opaque % 5);
    kit_number(f, "invisibleTime", 60000);
    kit_number(f, "pollTime", poll_ms);
    kit_text(f, "order", opaque % 6 == 5 ? "true" : "false");
    if (opaque % 6 == 5) kit_text(f, "attemptId", "a");
    if (opaque % 3 == 2) kit_text(f, "exp", "TagA || TagB");
}

/* Pops, and acknowledges the first message as its consumer would, or with one field that is not its
 * own. */
static void pop_one(void) {
    kit_frame f;
    char start[32] = "", queue[32] = "", offset[32] = "", handle[512];
    ps_conn *n = kit_conn(-2);
    begin_pop(&f, 200050, runs & 0xffff, 0);
    kit_ask(n, &f, NULL, 0);
    const ps_command *c = kit_last();
    ps_slice starts = ps_command_field(c, "startOffsetInfo"),
             offsets = ps_command_field(c, "msgOffsetInfo");
    char list[2][64];
    snprintf(list[0], sizeof list[0], "%.*s", starts.len, (const char *)starts.data);
    snprintf(list[1], sizeof list[1], "%.*s", offsets.len, (const char *)offsets.data);
    if (c->code == 0 && sscanf(list[0], "%*s %31s %31[0-9]", queue, start) == 2 &&
        sscanf(list[1], "%*s %*s %31[0-9]", offset) == 1) {
        int64_t revive = kit_field(c, "reviveQid"), popped_ms = kit_field(c, "popTime");
        snprintf(handle, sizeof handle, "%s %" PRId64 " 60000 %" PRId64 " 0 b %s %s", start,
                 popped_ms + (runs % 17 == 0), revive, queue, offset);
        kit_begin(&f, 0, 200051, runs);
        kit_text(&f, "consumerGroup", runs % 7 ? "G" : "nobody");
        kit_text(&f, "topic", "T");
        kit_text(&f, "queueId", queue);
        kit_text(&f, "offset", runs % 13 ? offset : "0");
        kit_text(&f, "extraInfo", handle);
        kit_ask(n, &f, NULL, 0);
        acknowledged += kit_last()->code == 0;
    }
    ps_conn_free(n);
}

/* All that is open comes back, as if a minute were over. */
static void bring_back(void) {
    static const char target[] = "%RETRY%G_T";
    ps_error e = {0};
    ps_revived out;
    int64_t now = ps_now_ms();
    const ps_revive_ask ask = {.topic = "T",
                               .group = "G",
                               .target = target,
                               .topic_len = 1,
                               .group_len = 1,
                               .target_len = (int32_t)sizeof target - 1,
                               .now_ms = now + 86400000,
                               .again_ms = now + 86401000,
                               .turn_ns = 1000000};
    ps_core_revive(kit_core, &ask, &out, &e);
}

/* Each half that was stored is open, or was decided once. */
static void check_halves(void) {
    static int64_t before;
    ps_tx_state s;
    ps_core_tx_get_state(kit_core, &s);
    int64_t now_decided = s.commits + s.rollbacks;
    decided += now_decided > before ? now_decided - before : 0;
    before = now_decided;
    CHECK_EQ(s.halves, s.open + s.commits + s.rollbacks);
    CHECK(s.half_progress <= s.half_next && s.op_progress <= s.op_next);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t len = (int64_t)size, at = 0;
    int code = 0;
    if (len > INPUT_MAX) return 0;
    if (folder == NULL) {
        folder = check_folder();
        snprintf(kit_root, sizeof kit_root, "%s/store", folder);
        open_fuzzed();
    } else if (++runs % REOPEN_EVERY == 0) {
        kit_close();
        open_fuzzed();
    }
    kit_clear();
    ps_conn *n = kit_conn(runs);
    while (at < len && code == 0) {
        int64_t step = runs % 3 == 0 ? len : 1 + (data[at] * 7 + runs) % 200;
        if (step > len - at) step = len - at;
        code = kit_feed(n, data + at, step);
        at += step;
        if (runs % 5 == 0) kit_pump(false);
    }
    decide_one();
    pop_one();
    if (runs % 64 == 0) bring_back();
    for (int64_t from = 0; from < kit_handed_len;) { /* given back, as the broker may */
        int64_t total = 4 + (int64_t)be32_get(kit_handed + from);
        ps_step step;
        ps_error e = {0};
        if (runs % 2)
            ps_conn_serve_pop(n, kit_handed + from, total, &step, &e);
        else
            ps_conn_serve(n, kit_handed + from, total, &step);
        kit_take_answers(&step);
        from += total;
    }
    kit_pump(runs % 4 == 0);
    if (ps_core_waiting(kit_core) > WAITING_MAX) kit_settle(); /* the disk may be slow */
    ps_conn_free(n);
    CHECK_EQ(0, kit_core->co_parking.pg_count);
    check_halves();
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

static void add_name(ps_slice name) {
    if (name.data == NULL || name.len < 1 || name.len > 100 || name_count == NAMES_MAX) return;
    for (int i = 0; i < name_count; i++)
        if (ps_slice_is(name, names[i])) return;
    snprintf(names[name_count++], sizeof names[0], "%.*s", name.len, name.data);
}

static void add_sends_and_pulls(void) {
    static const char *const texts[] = {"UNIQ_KEY\1A\2", "UNIQ_KEY\1A\2TAGS\1TagA\2WAIT\1true",
                                        "UNIQ_KEY\1A\2DELAY\0013\2"};
    static const char batch[] = "\0\0\0\x21\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1b\0\012UNIQ_KEY\1B";
    uint8_t frame[4096];
    for (int i = 0; i < 24; i++) {
        kit_frame f;
        bool many = i % 4 == 3;
        kit_send(&f, i & 1, i, "T", i % 5 - 1, texts[i % 3]);
        if (many) kit_replace(&f, "m", "true");
        add_frame(frame, kit_encode(&f, many ? batch : "body", many ? 33 : 4, frame, 4096));
        kit_pull(&f, i, i % 3 ? "G" : "T", "T", i % 4, i % 6, i % 8, i * 100);
        if (i % 8 > 3) kit_text(&f, "subscription", i % 3 ? "TagA || TagB" : "a > 1");
        if (i % 8 > 3) kit_text(&f, "expressionType", i % 3 ? "TAG" : "SQL92");
        add_frame(frame, kit_encode(&f, NULL, 0, frame, 4096));
    }
}

/* Halves of two groups, and decisions; those that hit are made by decide_one. */
static void add_transactions(void) {
    static const int decisions[] = {8, 12, 0, 8, 4};
    uint8_t frame[4096];
    char text[200];
    for (int i = 0; i < 24; i++) {
        kit_frame f;
        snprintf(text, sizeof text, "UNIQ_KEY\1h%d\2TRAN_MSG\1true\2PGROUP\1p%d\2KEYS\1k%d\2%s", i,
                 i % 2, i % 3, i % 4 == 3 ? "CHECK_IMMUNITY_TIME_IN_SECONDS\0019\2" : "");
        kit_send(&f, i & 1, i, "T", i % 4, text);
        kit_replace(&f, "f", "4");
        add_frame(frame, kit_encode(&f, "half", 4, frame, 4096));
        kit_begin(&f, i & 1, 37, i);
        kit_text(&f, "producerGroup", i % 3 ? "p0" : "p1");
        kit_number(&f, "tranStateTableOffset", i % 6);
        kit_number(&f, "commitLogOffset", i * 77);
        kit_number(&f, "commitOrRollback", decisions[i % 5]);
        kit_text(&f, "fromTransactionCheck", i % 7 ? "false" : "true");
        kit_text(&f, "msgId", "h");
        if (i % 4 == 1) kit_text(&f, "topic", i % 8 == 1 ? "T" : "RMQ_SYS_TRANS_HALF_TOPIC");
        if (i % 2) f.command.flag = PS_FLAG_ONEWAY;
        add_frame(frame, kit_encode(&f, NULL, 0, frame, 4096));
    }
}

/* Pops, looks and acknowledgements; those that hit are made by pop_one. */
static void add_pops(void) {
    uint8_t frame[4096];
    for (int i = 0; i < 24; i++) {
        kit_frame f;
        begin_pop(&f, i % 2 ? 200050 : 200054, i, i % 4 * 50);
        if (i % 8 > 5) kit_text(&f, "expType", "SQL92");
        add_frame(frame, kit_encode(&f, NULL, 0, frame, 4096));
        kit_begin(&f, 0, 200051, i);
        kit_text(&f, "consumerGroup", "G");
        kit_text(&f, "topic", i % 3 ? "T" : "%RETRY%G_T");
        kit_number(&f, "queueId", i % 4);
        kit_number(&f, "offset", i);
        kit_text(&f, "extraInfo", i % 5 ? "0 1700000000000 60000 1 0 b 0 1" : "0 1 2 3 1 b 0");
        add_frame(frame, kit_encode(&f, NULL, 0, frame, 4096));
    }
}

/* The topics of the files' frames are there, so that the frames are served. */
static void learn_names(void) {
    static ps_command c;
    static uint8_t scratch[PS_HEADER_MAX];
    add_name(ps_slice_of("T"));
    add_name(ps_slice_of("G"));
    for (int i = 0; i < frame_count; i++) {
        int64_t wanted;
        if (ps_command_decode(frames[i].data, frames[i].len, 1 << 24, scratch, &c, &wanted, NULL) <=
            0)
            continue;
        if (c.code == 11 || c.code == 361) add_name(ps_command_field(&c, "topic"));
        if (c.code == 11 || c.code == 361) add_name(ps_command_field(&c, "consumerGroup"));
        if (c.code == 310 || c.code == 320) add_name(ps_command_field(&c, "b"));
    }
    add_sends_and_pulls();
    add_transactions();
    add_pops();
}

int main(int argc, char **argv) {
    int code = fuzz_main("fuzz_core", argc, argv, learn_names);
    printf("%" PRId64 " halves were decided, %" PRId64 " messages acknowledged\n", decided,
           acknowledged);
    if (folder != NULL) {
        kit_close();
        check_remove(folder);
        free(folder);
    }
    free(kit_handed);
    return code;
}
#endif
