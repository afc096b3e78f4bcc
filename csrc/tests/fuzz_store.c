/* Fuzzes all that reads the files of a store's folder: log, units, index files, checkpoint, ends of
 * queues, deleted topics, by a writer, by a reader and by an audit. The store lies in memory
 * (memory_io.h). Driver and settings: fuzz_command.c; the museum is tests/fuzz/museum/store. An
 * input is the number of the file that it replaces, what is done then (MODE_), six bytes that
 * nobody reads, and the file's bytes.
 *
 * Where the damage is in a derived file and the store has crashed, nothing of the log is missing
 * after a writer has opened it: queues and index are made of it. */
#define _GNU_SOURCE
#include "audit/audit.h"
#include "base/bytes.h"
#include "base/crc.h"
#include "check.h"
#include "memory_io.h"
#include "store/store.h"

enum { INPUT_MAX = 64 << 10, HEAD = 8, BASE_MAX = 64, MESSAGES = 60, QUEUES = 2 };
enum { SEGMENT = 4096, QUEUE_FILE = 400, SLOTS = 8, ENTRIES = 24, UNITS = QUEUE_FILE / PS_UNIT };
enum { MODE_READER = 1, MODE_CRASHED = 2, MODE_AUDIT = 4, MODE_ABANDON = 8, MODES = 16 };
#define FUZZ_MUSEUM "tests/fuzz/museum/store"
#define FUZZ_GROWTH (8 << 10)
#define ROOT "/s"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The sound store. */
static struct {
    char path[MEMORY_PATH];
    uint8_t *data; /* NULL: a folder */
    int64_t size;
} base[BASE_MAX];
static int base_count;
static int64_t opened, refused;

static ps_conf conf_of(void) {
    ps_conf c;
    ps_conf_init(&c);
    c.root = ROOT;
    c.commitlog_file_size = SEGMENT;
    c.consumequeue_file_size = QUEUE_FILE;
    c.index_slots = SLOTS;
    c.index_entries = ENTRIES;
    c.clean_interval_ms = 0;
    c.background = 0;
    return c;
}

/* ---- the sound store ---- */

static void put_all(ps_store *s) {
    static const char names[2][8] = {"topic-a", "b"};
    char body[64], text[40];
    ps_put_result out;
    for (int i = 0; i < MESSAGES; i++) {
        ps_topic *t = ps_topic_open(s, names[i % 5 == 0], (int32_t)strlen(names[i % 5 == 0]), 1,
                                    NULL);
        int len = snprintf(text, sizeof text, "TAGS\1t%d\2KEYS\1k%d\2", i % 3, i);
        CHECK_EQ(0, ps_put(t, i % QUEUES, 0, body, snprintf(body, sizeof body, "body %d", i), text,
                           len, 1, &out));
    }
    CHECK_EQ(0, ps_topic_delete(s, ps_topic_open(s, names[1], 1, 0, NULL), NULL));
}

static void make_base(void) {
    ps_conf c = conf_of();
    ps_error e = {0};
    memory_make("/", NULL);
    ps_store *s = ps_store_open(&c, &memory_io, NULL, NULL, &e);
    CHECK(s != NULL);
    put_all(s);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    for (int i = 0; i < MEMORY_FILES; i++) {
        const memory_file *f = &memory_files[i];
        if (f->path[0] == 0 || base_count == BASE_MAX) continue;
        snprintf(base[base_count].path, MEMORY_PATH, "%s", f->path);
        base[base_count].size = f->bytes != NULL ? f->bytes->size : 0;
        if (f->bytes != NULL) {
            base[base_count].data = malloc((size_t)f->bytes->size + 1);
            memcpy(base[base_count].data, f->bytes->data, (size_t)f->bytes->size);
        }
        base_count++;
    }
}

static bool base_is(int i, const char *part) {
    return strncmp(base[i].path, part, strlen(part)) == 0;
}

/* The sums of our own small files are made right again, so that what they cover is read. */
static void lay_out(int damaged, const uint8_t *data, int64_t len, int mode) {
    memory_clear();
    for (int i = 0; i < base_count; i++)
        if (base[i].data == NULL)
            memory_make(base[i].path, NULL);
        else if (i != damaged)
            memory_put(base[i].path, base[i].data, base[i].size);
    memory_put(base[damaged].path, data, len);
    uint8_t *there = memory_files[memory_find(base[damaged].path)].bytes->data;
    if (base_is(damaged, ROOT "/deletedTopics") || base_is(damaged, ROOT "/queueEnds"))
        if (len >= 8 && (mode & MODE_ABANDON) == 0)
            be32_put(there + 4, ps_crc32(0, there + 8, (size_t)len - 8));
    if ((mode & MODE_CRASHED) != 0) memory_put(ROOT "/abort", (const uint8_t *)"1", 1);
}

/* ---- what is done to it ---- */

/* Reads all queues; how many messages there were. */
static int64_t read_queues(ps_store *s) {
    ps_queue_info queues[64];
    int32_t n = ps_store_queues(s, queues, 64);
    int64_t total = 0;
    ps_error e = {0};
    ps_read_options o = {.max_messages = 20};
    for (int32_t i = 0; i < n && i < 64; i++) {
        ps_topic *t = ps_topic_open(s, queues[i].topic, queues[i].topic_len, 0, &e);
        int64_t at = queues[i].min_offset, places[4];
        for (int reads = 0; at < queues[i].max_offset && reads < MESSAGES; reads++) {
            ps_batch_info b;
            ps_batch *batch = ps_read(s, t, queues[i].queue_id, at, &o, &e);
            if (batch == NULL) break;
            ps_batch_get(batch, &b);
            CHECK(b.next_offset > at || b.count == 0);
            total += b.count;
            bool on = b.next_offset > at;
            at = b.next_offset;
            ps_batch_free(batch);
            if (!on) break;
        }
        ps_queue_units(s, t, queues[i].queue_id, at - 4, 4, places, NULL, NULL, &e);
        ps_offset_at(s, t, queues[i].queue_id, 1, 0, &e);
    }
    return total;
}

static int64_t ask_keys(ps_store *s) {
    int64_t found = 0;
    for (int i = 0; i < MESSAGES; i++) {
        char key[16];
        ps_batch_info b = {0};
        ps_error e = {0};
        int len = snprintf(key, sizeof key, "k%d", i);
        ps_batch *batch = ps_query(s, "topic-a", 7, key, len, 0, INT64_MAX, 0, &e);
        if (batch != NULL) ps_batch_get(batch, &b);
        found += b.count;
        ps_batch_free(batch);
    }
    return found;
}

static void read_log(ps_store *s) {
    ps_read_options o = {.max_messages = 16, .check_crc = 1};
    ps_error e = {0};
    for (int64_t at = 0, reads = 0; reads < MESSAGES; reads++) {
        ps_batch_info b;
        ps_batch *batch = ps_log_read(s, at, &o, &e);
        if (batch == NULL) return;
        ps_batch_get(batch, &b);
        bool ends = b.outcome != 0 || b.next_offset <= at;
        at = b.next_offset;
        ps_batch_free(batch);
        if (ends) return;
    }
}

static void use(int damaged, int mode) {
    ps_conf c = conf_of();
    ps_error e = {0};
    bool reader = (mode & MODE_READER) != 0;
    ps_store *s = reader ? ps_reader_open(&c, &memory_io, NULL, NULL, &e)
                         : ps_store_open(&c, &memory_io, NULL, NULL, &e);
    if (s == NULL) {
        CHECK(e.code < 0 && e.text[0] != 0);
        refused++;
        return;
    }
    opened++;
    int64_t messages = read_queues(s), keys = ask_keys(s);
    read_log(s);
    /* What is deleted stands in no other file: without it the messages are back. */
    if (!reader && (mode & MODE_CRASHED) != 0 && !base_is(damaged, ROOT "/commitlog") &&
        !base_is(damaged, ROOT "/deletedTopics")) {
        CHECK_EQ(MESSAGES - (MESSAGES + 4) / 5, messages);
        CHECK_EQ(MESSAGES - (MESSAGES + 4) / 5, keys);
    }
    if (!reader && (mode & MODE_ABANDON) == 0) ps_store_close(s, &e);
    if ((mode & MODE_ABANDON) != 0) ps_store_abandon(s);
    ps_store_free(s);
}

/* ---- the audit ---- */

static int64_t size_of(const char *path) {
    int n = memory_find(path);
    return n < 0 || memory_files[n].bytes == NULL ? 0 : memory_files[n].bytes->size;
}

static void audit_queues(ps_audit *a, ps_findings *out, ps_error *e) {
    for (int32_t id = 0; id < QUEUES; id++) {
        char path[MEMORY_PATH];
        int64_t numbers[4], sizes[4];
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, ROOT "/consumequeue/topic-a/%d/%020d", id, i * QUEUE_FILE);
            numbers[i] = i * QUEUE_FILE;
            sizes[i] = size_of(path);
        }
        ps_audit_queue(a, "topic-a", 7, id, numbers, sizes, 4, out, e);
    }
}

static void audit_all(void) {
    ps_audit_conf c = {.root = ROOT, .consumequeue_file_size = QUEUE_FILE, .check_crc = 1};
    ps_findings out = {0};
    ps_error e = {0};
    ps_audit_segment_facts facts;
    int32_t segments = 0;
    for (int i = 0; i < base_count; i++) segments += base_is(i, ROOT "/commitlog/");
    c.log_end = segments * SEGMENT;
    ps_audit *a = ps_audit_new(&c, &memory_io);
    audit_queues(a, &out, &e);
    for (int i = 0; i < base_count; i++)
        if (base_is(i, ROOT "/index/")) ps_audit_index(a, base[i].path, SLOTS, ENTRIES, &out, &e);
    for (int32_t i = 0; i < segments; i++) {
        char path[MEMORY_PATH];
        snprintf(path, sizeof path, ROOT "/commitlog/%020d", i * SEGMENT);
        ps_audit_add_segment(a, path, i * SEGMENT, SEGMENT, &e);
    }
    for (int32_t i = 0; i < segments; i++)
        ps_audit_segment(a, i, i == segments - 1, NULL, &facts, &out, &e);
    for (int32_t id = 0; id < QUEUES; id++)
        ps_audit_queue_recount(a, "topic-a", 7, id, &out, &e);
    ps_findings_free(&out);
    ps_audit_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t len = (int64_t)size - HEAD;
    if (base_count == 0) make_base();
    if (len < 0 || len > INPUT_MAX) return 0;
    int damaged = data[0] % base_count, mode = data[1] % MODES;
    if (base[damaged].data == NULL) return 0;
    lay_out(damaged, data + HEAD, len, mode);
    if ((mode & MODE_AUDIT) != 0)
        audit_all();
    else
        use(damaged, mode);
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

/* Each file of the store, whole, for each thing that is done. */
static void add_files(void) {
    static uint8_t frame[GROWTH];
    make_base();
    fuzz_in_place = true;
    for (int i = 0; i < base_count; i++) {
        if (base[i].data == NULL || base[i].size > GROWTH - HEAD) continue;
        for (int mode = 0; mode < MODES; mode++) {
            memset(frame, 0, HEAD);
            frame[0] = (uint8_t)i;
            frame[1] = (uint8_t)mode;
            memcpy(frame + HEAD, base[i].data, (size_t)base[i].size);
            add_frame(frame, HEAD + base[i].size);
        }
    }
}

int main(int argc, char **argv) {
    (void)argc;
    int code = fuzz_main("fuzz_store", 1, argv, add_files); /* a wire has frames, not files */
    printf("%" PRId64 " stores were opened, %" PRId64 " refused\n", opened, refused);
    memory_clear();
    for (int i = 0; i < base_count; i++) free(base[i].data);
    return code;
}
#endif
