/* Fuzzes the readers of files that are made of the log, and of our own notes, each by itself and
 * without the log: units, index files, checkpoint, ends of queues, deleted topics, pending timers.
 * fuzz_store.c opens the whole store instead, which takes several times as long. Driver and
 * settings: fuzz_command.c; the museum is tests/fuzz/museum/files. An input is the number of the
 * file that it replaces, what is done then (MODE_), six bytes that nobody reads, and the file's
 * bytes. Each kind of file (KINDS) has as many inputs as the others; the end of a run says how
 * many, and in how many of them nothing was found. */
#define _GNU_SOURCE
#include "audit/audit.h"
#include "base/bytes.h"
#include "base/crc.h"
#include "check.h"
#include "files/checkpoint.h"
#include "memory_io.h"
#include "queues/folders.h"
#include "store/ends.h"
#include "store/store.h"
#include "timers/pending.h"

enum { INPUT_MAX = 64 << 10, HEAD = 8, BASE_MAX = 64, MESSAGES = 9, TIMERS = 40 };
enum { SEGMENT = 4096, QUEUE_FILE = 80, SLOTS = 8, ENTRIES = 7, HEAP = 8, FURTHEST = 1 << 20 };
enum { MODE_READER = 1, MODE_CRASHED = 2, MODE_AUDIT = 4, MODE_NO_SUM = 8, MODES = 16 };
#define FUZZ_MUSEUM "tests/fuzz/museum/files"
#define FUZZ_GROWTH (8 << 10)
#define ROOT "/s"
#define TIMERS_FOLDER ROOT "/timers"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static memory_kept base[BASE_MAX]; /* the sound store */
static int base_count, damaged;
static bool reader, crashed;
static ps_record sample; /* the first one of the log */
static ps_report report;

/* The clock is the same in every run, so that an input means the same; it goes, but slowly. */
static int64_t clock_ns;

int clock_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    clock_ns += 1000;
    *t = (struct timespec){1700000000 + clock_ns / 1000000000, clock_ns % 1000000000};
    return 0;
}

/* ---- the sound store ---- */

static void put_all(ps_store *s) {
    ps_put_result out;
    char text[40];
    for (int i = 0; i < MESSAGES; i++) {
        ps_topic *t = ps_topic_open(s, i % 4 == 0 ? "b" : "topic-a", i % 4 == 0 ? 1 : 7, 1, NULL);
        int len = snprintf(text, sizeof text, "TAGS\1t%d\2KEYS\1k%d\2", i % 3, i);
        CHECK_EQ(0, ps_put(t, 0, 0, "body", 4, text, len, 1, &out));
    }
    CHECK_EQ(0, ps_topic_delete(s, ps_topic_open(s, "b", 1, 0, NULL), NULL));
}

static void make_timers(void) {
    ps_pending p = {0};
    ps_pending_state state;
    ps_error e = {0};
    CHECK_EQ(0, ps_pending_open(&p, &memory_io, TIMERS_FOLDER, false, &e));
    p.pd_room = HEAP;
    for (int i = 0; i < TIMERS; i++)
        CHECK_EQ(0, ps_pending_add(&p, 1000 + i * 37 % 100, ps_pending_id(i, (uint32_t)i), &e));
    CHECK_EQ(0, ps_pending_capture(&p, 0, (const uint8_t *)"notes", 5, &state, &e));
    CHECK_EQ(0, ps_pending_save(&memory_io, TIMERS_FOLDER, &state, &e));
    free(state.bytes);
    ps_pending_close(&p);
}

static void make_base(void) {
    ps_conf c;
    ps_error e = {0};
    ps_conf_init(&c);
    c.root = ROOT;
    c.commitlog_file_size = SEGMENT;
    c.consumequeue_file_size = QUEUE_FILE;
    c.index_slots = SLOTS;
    c.index_entries = ENTRIES;
    c.clean_interval_ms = 0;
    c.background = 0;
    memory_make("/", NULL);
    ps_store *s = ps_store_open(&c, &memory_io, NULL, NULL, &e);
    CHECK(s != NULL);
    put_all(s);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    memory_make(TIMERS_FOLDER, NULL);
    make_timers();
    base_count = memory_keep(base, BASE_MAX);
    int log = memory_find(ROOT "/commitlog/00000000000000000000");
    CHECK_EQ(PS_REC_OK, ps_record_decode(base[log].data, SEGMENT, &sample));
}

/* ---- the readers of each kind ---- */

/* Every unit that the queue says it has. */
static void walk_queue(ps_queue *q) {
    int64_t end = atomic_load(&q->cq_max), count;
    const uint8_t *units;
    ps_unit unit;
    ps_error e = {0};
    CHECK(end >= 0 && end <= FURTHEST && atomic_load(&q->cq_min) >= 0);
    for (int64_t at = 0; at < end; at += count > 0 ? count : 1) {
        ps_mapfile *mf = ps_queue_run(q, at, &units, &count);
        CHECK(count >= 0 && count <= end - at);
        for (int64_t i = 0; i < count; i++) ps_unit_get(units + i * PS_UNIT, &unit);
        if (mf != NULL) ps_mapfile_unref(mf);
        ps_queue_peek(q, at, &unit, &e);
    }
    ps_queue_unit(q, end - 1, &unit);
    CHECK(!ps_queue_unit(q, end, &unit) && !ps_queue_unit(q, -1, &unit));
    ps_queue_correct_min(q, sample.size, &e);
    ps_queue_begins_before(q, sample.size);
}

static void write_queue(ps_queue *q, ps_aside *aside) {
    ps_unit unit = {SEGMENT / 2, sample.size, 7};
    ps_error e = {0};
    if (q->cq_hole) ps_queue_mend(q, aside, &e);
    if (ps_queue_rewind(q, SEGMENT / 4, &e) == 0) ps_queue_settle(q, &e);
    ps_queue_append(q, atomic_load(&q->cq_max), &unit, &e);
    ps_queue_append(q, atomic_load(&q->cq_max) + 3, &unit, &e);
    ps_queue_cut(q, SEGMENT / 8, &e);
    ps_queue_flush(q, 0, &e);
    ps_queue_delete_before(q, SEGMENT / 2, false, &e);
}

static bool confirms(void *arg, ps_queue *q, int64_t offset, const ps_unit *unit) {
    (void)arg, (void)q, (void)offset;
    return unit->physical >= 0 && unit->size == sample.size;
}

static bool use_queues(void) {
    static _Atomic int64_t log_min;
    ps_topics tt = {0}; /* as in a store, which is made empty */
    ps_aside aside;
    ps_error e = {0};
    ps_aside_init(&aside, &memory_io, ROOT);
    ps_topics_init(&tt, NULL, &memory_io, ROOT, QUEUE_FILE, reader);
    tt.tt_shared.qs_log_min = &log_min;
    tt.tt_shared.qs_log_limit = SEGMENT;
    tt.tt_shared.qs_confirms = confirms;
    tt.tt_shared.qs_adopt_sizes = true;
    bool good = ps_queues_load(&tt, crashed, &report, NULL, &e) == 0;
    for (int32_t i = 0; i < atomic_load(&tt.tt_queue_count); i++) {
        walk_queue(tt.tt_queues[i]);
        if (reader) continue;
        write_queue(tt.tt_queues[i], &aside);
        walk_queue(tt.tt_queues[i]);
    }
    if (reader) ps_queues_refresh(&tt, &e);
    ps_topics_free(&tt);
    return good;
}

static bool use_index(void) {
    int64_t out[2 * ENTRIES], skip = 0, file = -1, first, last, cut;
    int32_t skipped = 0, found;
    ps_index *ix = NULL;
    ps_error e = {0};
    ps_aside aside;
    ps_aside_init(&aside, &memory_io, ROOT);
    if (ps_index_open(&memory_io, ROOT "/index", SLOTS, ENTRIES, crashed, reader, NULL, &aside,
                      &skipped, &ix, &e) < 0)
        return false;
    int32_t files = ps_index_files(ix);
    if (!reader && crashed) ps_index_cut(ix, SEGMENT / 2, &aside, &cut, &e);
    for (int i = 0; i < 3; i++) {
        char key[8];
        int len = snprintf(key, sizeof key, "k%d", 4 * i + 1);
        skip = 0;
        found = ps_index_query(ix, "topic-a", 7, key, len, false, 0, INT64_MAX, &skip, out,
                               2 * ENTRIES, &e);
        CHECK(found <= 2 * ENTRIES);
    }
    for (int i = 0; i < 8 && ps_index_range(ix, &file, &first, &last, &e) > 0; i++) continue;
    ps_index_first_after(ix, sample.store_timestamp);
    CHECK(ps_index_used(ix) >= 0);
    if (!reader) {
        ps_index_put(ix, &sample, &e);
        ps_index_flush(ix, &e);
        ps_index_delete_before(ix, SEGMENT / 2, false, &e);
    } else {
        ps_index_refresh(ix, &e);
    }
    ps_index_end(ix);
    ps_index_timestamp(ix);
    ps_index_close(ix);
    return files > 0 && skipped == 0;
}

static bool use_checkpoint(void) {
    ps_checkpoint c;
    ps_error e = {0};
    if (ps_checkpoint_read(&memory_io, ROOT, &c, &e) < 0) return false;
    if (!reader) CHECK_EQ(0, ps_checkpoint_write(&memory_io, ROOT, &c, &e));
    return c.physic_msg_timestamp != 0;
}

/* Ends of queues and deleted topics, as an open compares them with queues that are sound. */
static bool use_notes(void) {
    static ps_store s;
    ps_error e = {0};
    memset(&s, 0, sizeof s);
    s.st_io = &memory_io;
    s.st_root = ROOT;
    ps_topics_init(&s.st_topics, &s, &memory_io, ROOT, QUEUE_FILE, reader);
    s.st_topics.tt_shared.qs_log_min = &s.st_log.lg_min;
    s.st_topics.tt_shared.qs_log_limit = SEGMENT;
    s.st_topics.tt_shared.qs_confirms = confirms;
    report.item_count = 0;
    CHECK_EQ(0, ps_tombstones_load(&s, &report, &e));
    ps_queues_load(&s.st_topics, false, &report, NULL, &e);
    ps_checkpoint_read(&memory_io, ROOT, &s.st_keeper.kp_checkpoint, &e);
    int64_t len;
    uint8_t *note = ps_ends_read(&memory_io, ROOT, &len);
    CHECK(ps_ends_compare(&s, note, len, crashed, &report, &e) >= 0);
    free(note);
    for (int32_t i = 0; i < atomic_load(&s.st_topics.tt_queue_count); i++)
        walk_queue(s.st_topics.tt_queues[i]);
    ps_topics_free(&s.st_topics);
    return report.item_count == 0;
}

static bool use_timers(void) {
    ps_pending p = {0};
    ps_pending_entry first, some[8];
    ps_pending_state state;
    ps_error e = {0};
    int code = ps_pending_open(&p, &memory_io, TIMERS_FOLDER, reader, &e);
    if (code < 0) return false;
    p.pd_room = HEAP;
    CHECK(p.pd_live >= 0 && p.pd_run_count <= PS_PENDING_RUNS);
    ps_pending_count(&p, 0, 1050);
    CHECK(ps_pending_find(&p, 0, INT64_MAX, PS_PENDING_ANY, some, 8) <= 8);
    CHECK(ps_pending_before(&p, 5, some, 8) <= 8);
    for (int i = 0; i < 12; i++)
        ps_pending_add(&p, 1040 + i, ps_pending_id(TIMERS + i, (uint32_t)i), &e);
    for (int i = 0; i < 2 * TIMERS && ps_pending_first(&p, &first); i++) {
        if (i == 4) ps_pending_cancel(&p, first, &e);
        ps_pending_pop(&p);
    }
    if (ps_pending_capture(&p, 0, p.pd_notes, p.pd_notes_len, &state, &e) == 0) {
        if (!reader) ps_pending_save(&memory_io, TIMERS_FOLDER, &state, &e);
        free(state.bytes);
    }
    ps_pending_close(&p);
    return code > 0;
}

/* Where the files of a kind lie, and what reads them. */
static const struct {
    const char *path;
    bool (*use)(void);
} KINDS[] = {
    {ROOT "/consumequeue/", use_queues},  {ROOT "/index/", use_index},
    {ROOT "/checkpoint", use_checkpoint}, {ROOT "/queueEnds", use_notes},
    {ROOT "/deletedTopics", use_notes},   {ROOT "/timers/", use_timers},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };
static int64_t of_kind[KIND_COUNT], sound_of[KIND_COUNT];

static bool base_is(int i, const char *part) {
    return strncmp(base[i].file.path, part, strlen(part)) == 0;
}

/* -1: it is made of nothing. */
static int kind_of(int i) {
    int kind = KIND_COUNT - 1;
    while (kind >= 0 && !base_is(i, KINDS[kind].path)) kind--;
    return kind;
}

/* ---- the audit ---- */

static bool audit(int kind) {
    ps_audit_conf c = {.root = ROOT, .consumequeue_file_size = QUEUE_FILE, .log_end = SEGMENT};
    int64_t numbers[3], sizes[3];
    ps_findings out = {0};
    ps_error e = {0};
    ps_audit *a = ps_audit_new(&c, &memory_io);
    for (int i = 0; i < 3 && kind == 0; i++) {
        char path[MEMORY_PATH];
        snprintf(path, sizeof path, ROOT "/consumequeue/topic-a/0/%020d", i * QUEUE_FILE);
        int n = memory_find(path);
        numbers[i] = i * QUEUE_FILE;
        sizes[i] = n < 0 ? 0 : memory_files[n].bytes->size;
    }
    if (kind == 0) ps_audit_queue(a, "topic-a", 7, 0, numbers, sizes, 3, &out, &e);
    for (int i = 0; i < base_count && kind == 1; i++)
        if (kind_of(i) == 1) ps_audit_index(a, base[i].file.path, SLOTS, ENTRIES, &out, &e);
    bool sound = out.count == 0;
    ps_findings_free(&out);
    ps_audit_free(a);
    return sound;
}

static uint8_t *bytes_of(const char *path, int64_t *len) {
    memory_bytes *b = memory_files[memory_find(path)].bytes;
    *len = b->size;
    b->changed = true;
    return b->data;
}

/* The sum of what follows the first eight bytes. */
static void sum_note(const char *path) {
    int64_t len;
    uint8_t *p = bytes_of(path, &len);
    if (len >= 8) be32_put(p + 4, ps_crc32(0, p + 8, (size_t)len - 8));
}

/* The state's row of a run, as pending.c has it. */
static void sum_run(const char *path) {
    enum { RUNS = 48, FIRST = 56, ROW = 32, ENTRY = 16 };
    int64_t len, state_len, number = atoll(strrchr(path, '/') + 1);
    const uint8_t *run = bytes_of(path, &len);
    uint8_t *state = bytes_of(TIMERS_FOLDER "/state", &state_len);
    for (int64_t i = 0; i < (int64_t)be64_get(state + RUNS); i++) {
        uint8_t *row = state + FIRST + i * ROW;
        if ((int64_t)be64_get(row) != number) continue;
        be64_put(row + 8, (uint64_t)len / ENTRY);
        be64_put(row + 24, ps_crc32(0, run, (size_t)len));
    }
}

/* The sums of our own files are made right again, so that what they cover is read. */
static void lay_out(const uint8_t *data, int64_t len, bool sums) {
    const char *path = base[damaged].file.path;
    memory_restore(base, base_count);
    clock_ns = 1000000000; /* a second after the store was closed */
    memory_put(path, data, len);
    if (!sums) return;
    bool timers = base_is(damaged, ROOT "/timers/"), run = timers && strstr(path, "/state") == NULL;
    if (run) sum_run(path);
    if (timers) sum_note(TIMERS_FOLDER "/state");
    if (base_is(damaged, ROOT "/queueEnds") || base_is(damaged, ROOT "/deletedTopics"))
        sum_note(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t len = (int64_t)size - HEAD;
    if (base_count == 0) make_base();
    if (len < 0 || len > INPUT_MAX) return 0;
    damaged = data[0] % base_count;
    int kind = kind_of(damaged), mode = data[1] % MODES;
    if (base[damaged].data == NULL || kind < 0) return 0;
    reader = (mode & MODE_READER) != 0;
    crashed = (mode & MODE_CRASHED) != 0;
    lay_out(data + HEAD, len, (mode & MODE_NO_SUM) == 0);
    bool audited = (mode & MODE_AUDIT) != 0 && kind < 2;
    of_kind[kind]++;
    sound_of[kind] += audited ? audit(kind) : KINDS[kind].use();
    CHECK_EQ(0, memory_held); /* descriptors and mappings */
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

/* As in fuzz_store.c: nothing lives longer than a run. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=1:malloc_context_size=0";
}

/* A file for each thing that is done; of a checkpoint the part that is used. */
static void add_one(int i) {
    static uint8_t frame[GROWTH];
    int64_t len = base[i].file.bytes->size;
    if (base_is(i, ROOT "/checkpoint")) len = 64;
    CHECK(len <= GROWTH - HEAD);
    for (int mode = 0; mode < MODES; mode++) {
        memset(frame, 0, HEAD);
        frame[0] = (uint8_t)i;
        frame[1] = (uint8_t)mode;
        memcpy(frame + HEAD, base[i].data, (size_t)len);
        add_frame(frame, HEAD + len);
    }
}

/* As many files of each kind, the same ones again where there are fewer. */
static void add_files(void) {
    enum { EACH = 12 };
    make_base();
    fuzz_in_place = true;
    fuzz_kinds = KIND_COUNT;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int added = 0, i = 0; added < EACH; i = (i + 1) % base_count) {
            if (base[i].data == NULL || kind_of(i) != kind) continue;
            add_one(i);
            added++;
        }
}

int main(int argc, char **argv) {
    (void)argc;
    int code = fuzz_main("fuzz_files", 1, argv, add_files); /* a wire has frames, not files */
    for (int kind = 0; kind < KIND_COUNT; kind++)
        printf("%s: %" PRId64 " inputs, nothing found in %" PRId64 "\n", KINDS[kind].path,
               of_kind[kind], sound_of[kind]);
    memory_forget(base, base_count);
    return code;
}
#endif
