/* Fuzzes all that reads the files of a store's folder: log, units, those of light queues, index
 * files, checkpoint, ends of queues, deleted topics, by a writer, by a reader and by an audit.
 * The store lies in memory (memory_io.h) and is small; between runs only what one has changed
 * is put back, since this is most of their time. Driver and settings: fuzz_command.c; the museum is
 * tests/fuzz/museum/store.
 * An input is the number of the file that it replaces, what is done then (MODE_), how (FLAG_), five
 * bytes that nobody reads, and the file's bytes. The log has as many inputs as all other kinds of
 * file (KINDS), whose readers fuzz_files.c meets more often; the end of a run says how many.
 *
 * Where the damage is in a derived file and the store has crashed, nothing of the log is missing
 * after a writer has opened it: queues and index are made of it. */
#define _GNU_SOURCE
#include "audit/audit.h"
#include "base/bytes.h"
#include "base/crc.h"
#include "check.h"
#include "format/multi.h"
#include "light/slot.h"
#include "memory_io.h"
#include "store/lights.h"
#include "store/store.h"

enum { INPUT_MAX = 64 << 10, HEAD = 8, BASE_MAX = 64, MESSAGES = 15, DELETED = 3, QUEUES = 2 };
enum { LIGHTS = 6 }; /* messages that are in light queues, too */
enum { BODY = 300, SEGMENT = 4096, QUEUE_FILE = 80, SLOTS = 8, ENTRIES = 7 };
enum { MODE_READER = 1, MODE_CRASHED = 2, MODE_AUDIT = 4, MODE_ABANDON = 8, MODES = 16 };
enum { FLAG_BEGIN = 1 }; /* the bytes are the file's first ones, the others are as they were */
enum { CHECKPOINT_FIELDS = 64 };
#define FUZZ_MUSEUM "tests/fuzz/museum/store"
#define FUZZ_GROWTH (8 << 10)
#define ROOT "/s"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where the files of a kind lie; the last one: all others. */
static const char *const KINDS[] = {ROOT "/commitlog/", ROOT "/consumequeue/", ROOT "/index/",
                                    ROOT "/checkpoint", ROOT "/lightqueue/", ROOT "/"};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

/* The sound store. */
static memory_kept base[BASE_MAX];
static int base_count;
static int64_t opened, refused, of_kind[KIND_COUNT];

/* The clock is the same in every run, so that an input means the same; it goes, but slowly. */
static int64_t clock_ns;

int clock_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    clock_ns += 1000;
    *t = (struct timespec){1700000000 + clock_ns / 1000000000, clock_ns % 1000000000};
    return 0;
}

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
    char body[BODY + 1], text[100];
    ps_put_result out;
    for (int i = 0; i < MESSAGES; i++) {
        ps_topic *t = ps_topic_open(s, names[i % 5 == 0], (int32_t)strlen(names[i % 5 == 0]), 1,
                                    NULL);
        int len = snprintf(text, sizeof text, "TAGS\1t%d\2KEYS\1k%d\2", i % 3, i);
        if (i % 5 == 1 || i % 5 == 2) /* of the topic that stays */
            len += snprintf(text + len, sizeof text - (size_t)len,
                            "INNER_MULTI_DISPATCH\1%%LMQ%%$topic-a$%c\2", 'x' + i % 5);
        snprintf(body, sizeof body, "body %-*d", BODY - 5, i);
        CHECK_EQ(0, ps_put(t, i % QUEUES, 0, body, BODY, text, len, 1, &out));
    }
    CHECK_EQ(0, ps_topic_delete(s, ps_topic_open(s, names[1], 1, 0, NULL), NULL));
}

static void make_base(void) {
    ps_conf c = conf_of();
    ps_error e = {0};
    memory_make("/", NULL);
    ps_store *s = ps_store_open(&c, &memory_io, NULL, NULL, &e);
    CHECK(s != NULL);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    put_all(s);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    base_count = memory_keep(base, BASE_MAX);
}

static bool base_is(int i, const char *part) {
    return strncmp(base[i].file.path, part, strlen(part)) == 0;
}

static int kind_of(int i) {
    int kind = 0;
    while (!base_is(i, KINDS[kind])) kind++;
    return kind;
}

static int64_t base_size(int i) {
    return base[i].file.bytes->size;
}

/* Of each slot, or of each name. */
static void sum_lights(uint8_t *p, int64_t size, bool names) {
    for (int64_t at = 0, len; at + LG_NAME_HEAD <= size; at += len) {
        len = names ? LG_NAME_HEAD + p[at + 5] : PS_LIGHT_SLOT;
        if (at + len > size) return;
        if (names)
            be32_put(p + at, ps_crc32(0, p + at + 4, (size_t)len - 4));
        else
            be32_put(p + at + LG_AT_CRC, ps_crc32(0, p + at, LG_AT_CRC));
    }
}

/* The sums of our own small files are made right again, so that what they cover is read. */
static void lay_out(int damaged, const uint8_t *data, int64_t len, int mode, bool begin) {
    const char *path = base[damaged].file.path;
    int64_t whole = base_size(damaged);
    memory_restore(base, base_count);
    clock_ns = 1000000000; /* a second after the store was closed */
    if (begin && len < whole) {
        memory_put(path, base[damaged].data, whole);
        memcpy(memory_files[memory_find(path)].bytes->data, data, (size_t)len);
    } else {
        memory_put(path, data, len);
    }
    uint8_t *there = memory_files[memory_find(path)].bytes->data;
    if (base_is(damaged, ROOT "/deletedTopics") || base_is(damaged, ROOT "/queueEnds"))
        if (len >= 8 && (mode & MODE_ABANDON) == 0)
            be32_put(there + 4, ps_crc32(0, there + 8, (size_t)len - 8));
    if (base_is(damaged, ROOT "/lightqueue/") && (mode & MODE_ABANDON) == 0)
        sum_lights(there, memory_files[memory_find(path)].bytes->size,
                   base_is(damaged, ROOT "/lightqueue/names"));
    if ((mode & MODE_CRASHED) != 0) memory_put(ROOT "/abort", (const uint8_t *)"1", 1);
}

/* ---- what is done to it ---- */

/* Reads all queues; how many messages there were. */
static int64_t read_queues(ps_store *s) {
    ps_queue_info queues[64];
    int32_t n = ps_store_queues(s, queues, 64);
    int64_t total = 0;
    ps_error e = {0};
    ps_read_options o = {.max_messages = 3};
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

/* Whether the record is the one of the light queue that it is said to be. */
static bool is_of_light(const ps_light_row *q, const ps_light_record *one, const uint8_t *raw) {
    ps_record r;
    ps_multi m;
    if (ps_record_decode(raw, one->size, &r) != PS_REC_OK || !ps_multi_of(&r, &m)) return false;
    while (ps_multi_next(&m))
        if (m.mu_as.queue_offset == one->offset && m.mu_as.topic_len == q->len &&
            memcmp(m.mu_as.topic, q->name, (size_t)q->len) == 0)
            return true;
    return false;
}

/* Reads the light queues; how many messages there were. */
static int64_t read_lights(ps_store *s) {
    static ps_light_row rows[64];
    static uint8_t raw[SEGMENT];
    ps_light_record found[LIGHTS];
    ps_error e = {0};
    int64_t total = 0, need;
    if (ps_lights_begin(s, &e) < 0) {
        CHECK(e.text[0] != 0);
        return -1;
    }
    int32_t n = ps_lights_list(s, 0, rows, 64);
    for (int32_t i = 0; i < n; i++) {
        e = (ps_error){0};
        int32_t count = ps_lights_read(s, rows[i].name, rows[i].len, rows[i].low, found, LIGHTS,
                                       raw, sizeof raw, &need, &e);
        CHECK(count >= 0 || e.text[0] != 0);
        for (int64_t k = 0, at = 0; k < count; at += found[k++].size) {
            if (found[k].size == 0) continue;
            CHECK(is_of_light(&rows[i], &found[k], raw + at));
            total++;
        }
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
        ps_batch *batch = ps_query(s, "topic-a", 7, key, len, 0, 0, INT64_MAX, 0, &e);
        if (batch != NULL) ps_batch_get(batch, &b);
        found += b.count;
        ps_batch_free(batch);
    }
    return found;
}

static void read_log(ps_store *s) {
    ps_read_options o = {.max_messages = 6, .check_crc = 1};
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
    int64_t messages = read_queues(s), keys = ask_keys(s), lights = read_lights(s);
    read_log(s);
    /* What is deleted stands in no other file: without it the messages are back. */
    if (!reader && (mode & MODE_CRASHED) != 0 && !base_is(damaged, ROOT "/commitlog") &&
        !base_is(damaged, ROOT "/deletedTopics")) {
        CHECK_EQ(MESSAGES - DELETED, messages);
        CHECK_EQ(MESSAGES - DELETED, keys);
        /* Files whose sums are right are believed, but not over the log. */
        if (!base_is(damaged, ROOT "/lightqueue/") || (mode & MODE_ABANDON) != 0)
            CHECK_EQ(LIGHTS, lights);
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
        if (base_is(i, ROOT "/index/"))
            ps_audit_index(a, base[i].file.path, SLOTS, ENTRIES, &out, &e);
    for (int32_t i = 0; i < segments; i++) {
        char path[MEMORY_PATH];
        snprintf(path, sizeof path, ROOT "/commitlog/%020d", i * SEGMENT);
        ps_audit_add_segment(a, path, i * SEGMENT, SEGMENT, &e);
    }
    static const int64_t first[] = {0};
    ps_audit_light_facts lights;
    ps_audit_light(a, first, 1, &lights, &out, &e);
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
    lay_out(damaged, data + HEAD, len, mode, (data[2] & FLAG_BEGIN) != 0);
    if ((mode & MODE_AUDIT) != 0)
        audit_all();
    else
        use(damaged, mode);
    CHECK_EQ(0, memory_held); /* descriptors and mappings */
    of_kind[kind_of(damaged)]++;
    if (check_failures != 0) __builtin_trap();
    return 0;
}

#ifndef PS_LIBFUZZER

#include "fuzz.h"

/* Nothing lives longer than a run, whose few hundred allocations one megabyte holds; how they came
 * about is seen when the find is repeated, with ASAN_OPTIONS=malloc_context_size=30. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=1:malloc_context_size=0";
}

/* File i of the store for each thing that is done; of a checkpoint the part that is used. */
static void add_one(int i) {
    static uint8_t frame[GROWTH];
    bool begin = base_is(i, ROOT "/checkpoint");
    int64_t len = begin ? CHECKPOINT_FIELDS : base_size(i);
    CHECK(len <= GROWTH - HEAD);
    for (int mode = 0; mode < MODES; mode++) {
        memset(frame, 0, HEAD);
        frame[0] = (uint8_t)i;
        frame[1] = (uint8_t)mode;
        frame[2] = begin ? FLAG_BEGIN : 0;
        memcpy(frame + HEAD, base[i].data, (size_t)len);
        add_frame(frame, HEAD + len);
    }
}

/* Twelve files of each kind, and as many of the log; the same ones again where there are fewer. */
static void add_files(void) {
    enum { EACH = 12, OF_LOG = EACH * (KIND_COUNT - 1) };
    make_base();
    fuzz_in_place = true;
    fuzz_kinds = 2;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int added = 0, i = 0; added < (kind == 0 ? OF_LOG : EACH); i = (i + 1) % base_count) {
            if (base[i].data == NULL || kind_of(i) != kind) continue;
            add_one(i);
            added++;
        }
}

int main(int argc, char **argv) {
    (void)argc;
    int code = fuzz_main("fuzz_store", 1, argv, add_files); /* a wire has frames, not files */
    printf("%" PRId64 " stores were opened, %" PRId64 " refused\n", opened, refused);
    for (int kind = 0; kind < KIND_COUNT; kind++)
        printf("%s: %" PRId64 " inputs\n", KINDS[kind], of_kind[kind]);
    memory_forget(base, base_count);
    return code;
}
#endif
