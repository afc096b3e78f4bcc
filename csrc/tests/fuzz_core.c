/* Fuzzes a connection of the protocol core: damaged frames, cut anywhere, over a small store whose
 * topics and groups are those of the frames. Driver and settings: fuzz_command.c; the museum is
 * tests/fuzz/museum/core. What comes out must be whole answers, and nothing may be left behind. */
#define _GNU_SOURCE
#include "core_kit.h"

enum { INPUT_MAX = 64 << 10, NAMES_MAX = 64, REOPEN_EVERY = 20000 };
#define FUZZ_MUSEUM "tests/fuzz/museum/core"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char names[NAMES_MAX][PS_TOPIC_MAX + 1];
static int name_count, runs;
static char *folder;

static void open_fuzzed(void) {
    ps_conf conf = kit_conf();
    conf.sync_flush = runs / REOPEN_EVERY % 2;
    kit_open(&conf, 50);
    for (int i = 0; i < name_count; i++) {
        kit_topic(names[i], 1 + i % 8, PS_PERM_READ | PS_PERM_WRITE, PS_SEND_HOT);
        for (int k = 0; k < name_count; k++) kit_subscribe(names[k], names[i], "TagA\0", k % 2, 0);
    }
}

static void end_held(void) {
    for (int i = 0; i < kit_held_count; i++) {
        ps_step step;
        ps_held_end(kit_core, kit_held[i], i % 2 ? 0 : 10, i % 3 ? &step : NULL);
        if (i % 3) kit_take_answers(&step);
    }
    kit_held_count = 0;
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
        if (runs % 5 == 0) end_held();
    }
    for (int64_t from = 0; from < kit_handed_len;) { /* given back, as the broker may */
        int64_t total = 4 + (int64_t)be32_get(kit_handed + from);
        ps_step step;
        ps_conn_serve(n, kit_handed + from, total, &step);
        kit_take_answers(&step);
        if (step.held != NULL) kit_held[kit_held_count++] = step.held;
        from += total;
    }
    end_held();
    kit_pump(runs % 4 == 0);
    ps_conn_free(n);
    CHECK_EQ(0, kit_core->co_heap_count);
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
}

int main(int argc, char **argv) {
    int code = fuzz_main("fuzz_core", argc, argv, learn_names);
    if (folder != NULL) {
        kit_close();
        check_remove(folder);
        free(folder);
    }
    free(kit_handed);
    return code;
}
#endif
