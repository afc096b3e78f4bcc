/* The whole store under the sanitizers: put in every way, roll, read, crash, recover, cut, clean.
 * What it claims is checked again from Python; here the memory is watched. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/store.h"
#include "check.h"
#include "faulty_io.h"

static char root[256];

static ps_conf conf_small(void) {
    ps_conf c;
    ps_conf_init(&c);
    c.root = root;
    c.commitlog_file_size = 64 << 10;
    c.consumequeue_file_size = 2000;
    c.index_slots = 64;
    c.index_entries = 128;
    c.clean_interval_ms = 0;
    return c;
}

static ps_store *open_store(ps_report *report) {
    ps_conf c = conf_small();
    ps_error e = {0};
    ps_store *s = ps_store_open(&c, NULL, report, NULL, &e);
    if (s == NULL) fprintf(stderr, "%s: %s\n", e.text, e.where);
    CHECK(s != NULL);
    return s;
}

static ps_topic *topic_of(ps_store *s, const char *name) {
    ps_error e = {0};
    ps_topic *t = ps_topic_open(s, name, (int32_t)strlen(name), 1, &e);
    CHECK(t != NULL);
    return t;
}

static void put_singles(ps_store *s, int n) {
    static const char props[] = "TAGS\1TagA\2KEYS\1k1 k2\2";
    ps_topic *t = topic_of(s, "singles");
    ps_put_result out;
    char body[300];
    memset(body, 'b', sizeof body);
    for (int i = 0; i < n; i++)
        CHECK_EQ(0, ps_put(t, i % 3, i, body, i % 300, props, sizeof props - 1, 1, &out));
    CHECK_EQ(PS_E_QUEUE_ILLEGAL, ps_put(t, -1, 0, body, 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_E_MESSAGE_ILLEGAL, ps_put(t, 0, 0, body, 5 << 20, NULL, 0, 1, &out));
    CHECK_EQ(PS_E_PROPERTIES_ILLEGAL, ps_put(t, 0, 0, body, 1, "x", 1, 1, &out));
}

static void put_columns(ps_store *s, int n) {
    ps_topic *t = topic_of(s, "columns");
    char *data = malloc((size_t)n * 10);
    int64_t *offsets = malloc((size_t)(n + 1) * sizeof *offsets), stored,
            *placed = malloc((size_t)n * 16);
    memset(data, 'c', (size_t)n * 10);
    for (int i = 0; i <= n; i++) offsets[i] = (int64_t)i * 10;
    ps_put_many m = {.count = n,
                     .bodies = {data, NULL, offsets},
                     .keys = {data, NULL, offsets},
                     .common = "a\1b\2",
                     .common_len = 4,
                     .queue_count = 4,
                     .wait = 1,
                     .physical_offsets = placed,
                     .queue_offsets = placed + n};
    ps_put_result out;
    CHECK_EQ(0, ps_put_many_messages(s, t, &m, &stored, &out));
    CHECK_EQ(n, stored);
    m.queue_count = 1;
    m.together = 1;
    m.count = n < 100 ? n : 100;
    CHECK_EQ(0, ps_put_many_messages(s, t, &m, &stored, &out));
    CHECK_EQ(m.count, stored);
    free(data);
    free(offsets);
    free(placed);
}

static int64_t count_log(ps_store *s) {
    ps_read_options o = {.max_messages = 100, .check_crc = 1};
    ps_error e = {0};
    ps_info info;
    int64_t n = 0;
    CHECK_EQ(0, ps_store_info(s, &info));
    for (int64_t at = info.log_min;;) {
        ps_batch *b = ps_log_read(s, at, &o, &e);
        ps_batch_info i;
        CHECK(b != NULL);
        ps_batch_get(b, &i);
        n += i.count;
        at = i.next_offset;
        int end = i.outcome != 0;
        CHECK(i.outcome <= 0);
        ps_batch_free(b);
        if (end) return n;
    }
}

static int64_t count_queues(ps_store *s) {
    ps_queue_info queues[64];
    ps_error e = {0};
    ps_read_options o = {.max_messages = 50};
    int32_t n = ps_store_queues(s, queues, 64);
    int64_t total = 0;
    for (int32_t k = 0; k < n; k++) {
        ps_topic *t = ps_topic_open(s, queues[k].topic, queues[k].topic_len, 0, &e);
        for (int64_t at = queues[k].min_offset; at < queues[k].max_offset;) {
            ps_batch *b = ps_read(s, t, queues[k].queue_id, at, &o, &e);
            ps_batch_info i;
            ps_batch_get(b, &i);
            CHECK_EQ(PS_GET_FOUND, i.status);
            CHECK_EQ(at, i.views[0].queue_offset);
            total += i.count;
            at = i.next_offset;
            ps_batch_free(b);
        }
    }
    return total;
}

static int64_t count_key(ps_store *s, const char *topic, const char *key) {
    ps_error e = {0};
    ps_batch *b =
        ps_query(s, topic, (int32_t)strlen(topic), key, (int32_t)strlen(key), 0, 0, INT64_MAX, 0,
                 &e);
    ps_batch_info i;
    CHECK(b != NULL);
    ps_batch_get(b, &i);
    ps_batch_free(b);
    return i.count;
}

/* Kept, closed, reopened, abandoned, reopened: always the same messages. */
static void test_life(void) {
    static ps_report report;
    ps_store *s = open_store(&report);
    CHECK_EQ(PS_RECOVERED_NEW, report.mode);
    put_singles(s, 700);
    put_columns(s, 900);
    int64_t n = count_log(s);
    CHECK_EQ(1700, n);
    CHECK_EQ(n, count_queues(s));
    CHECK_EQ(700, count_key(s, "singles", "k2"));
    CHECK_EQ(0, ps_store_close(s, NULL));
    ps_store_free(s);

    s = open_store(&report);
    CHECK_EQ(PS_RECOVERED_NORMAL, report.mode);
    CHECK_EQ(n, count_queues(s));
    put_singles(s, 300);
    ps_store_abandon(s);
    ps_store_free(s);

    s = open_store(&report);
    CHECK_EQ(PS_RECOVERED_ABNORMAL, report.mode);
    n = count_log(s);
    CHECK_EQ(2000, n);
    CHECK_EQ(n, count_queues(s));
    CHECK_EQ(1000, count_key(s, "singles", "k1"));
    ps_store_free(s);
}

/* Every queue id that there is has a queue of its own, made in any order. */
static void test_queue_ids(void) {
    ps_store *s = open_store(NULL);
    ps_topic *t = topic_of(s, "wide");
    static ps_queue *made[PS_QUEUE_ID_MAX + 1];
    for (int32_t i = 0; i <= PS_QUEUE_ID_MAX; i++) { /* 40503 is odd: each id once */
        int32_t id = (int32_t)((uint32_t)i * 40503 & PS_QUEUE_ID_MAX);
        CHECK(ps_topic_queue(t, id) == NULL);
        made[id] = ps_topic_queue_get(t, id);
        CHECK(made[id] != NULL && made[id]->cq_id == id);
    }
    for (int32_t id = 0; id <= PS_QUEUE_ID_MAX; id++) CHECK(ps_topic_queue(t, id) == made[id]);
    CHECK(ps_topic_queue_get(t, -1) == NULL);
    CHECK(ps_topic_queue_get(t, PS_QUEUE_ID_MAX + 1) == NULL);
    CHECK_EQ(0, ps_store_close(s, NULL));
    ps_store_free(s);
}

/* Views outlive the store and the segment they point into. */
static void test_views_live_on(void) {
    ps_store *s = open_store(NULL);
    ps_error e = {0};
    ps_read_options o = {.max_messages = 5};
    ps_batch *b = ps_read(s, topic_of(s, "singles"), 0, 0, &o, &e);
    ps_batch_info i;
    ps_retention_report cleaned;
    ps_batch_get(b, &i);
    CHECK_EQ(5, i.count);
    CHECK_EQ(0, ps_store_clean(s, 0, 1, 1, 0, &cleaned, &e));
    CHECK(cleaned.log_files > 0);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    int64_t sum = 0;
    for (int32_t k = 0; k < i.count; k++)
        for (int64_t at = i.views[k].start; at < i.views[k].start + i.views[k].size; at++)
            sum += i.segments[i.views[k].segment].map[at];
    CHECK(sum > 0);
    ps_batch_free(b);
}

/* A reader beside the writer: it grows with it and follows its retention. */
static void test_reader(void) {
    ps_store *s = open_store(NULL);
    ps_conf c = conf_small();
    ps_error e = {0};
    ps_store *r = ps_reader_open(&c, NULL, NULL, NULL, &e);
    CHECK(r != NULL);
    int64_t before = count_queues(r);
    put_singles(s, 400);
    CHECK_EQ(0, ps_store_refresh(s, &e));
    CHECK_EQ(0, ps_store_refresh(r, &e));
    CHECK_EQ(before + 400, count_queues(r));
    CHECK_EQ(count_log(s), count_log(r));
    ps_store_abandon(s);
    ps_store_free(s);
    ps_store_free(r);
    r = ps_reader_open(&c, NULL, NULL, NULL, &e);
    CHECK_EQ(before + 400, count_queues(r));
    ps_store_free(r);
}

static ps_io writing_io;
static ps_store *writes_on;
static DIR *log_listed;

/* The writer goes on right before a reader looks in the log for what follows the end that it has
 * met. */
static off_t write_then_lseek(ps_io *io, int fd, off_t at, int whence) {
    (void)io;
    if (writes_on != NULL && at > conf_small().consumequeue_file_size) {
        ps_store *s = writes_on;
        writes_on = NULL;
        put_singles(s, 7);
    }
    return lseek(fd, at, whence);
}

/* A log that grows while a reader opens it is not damaged where it ended a moment ago. */
static void test_reader_beside_a_writer(void) {
    ps_store *s = open_store(NULL);
    ps_conf c = conf_small();
    ps_report *report = calloc(1, sizeof *report);
    ps_error e = {0};
    writing_io = *ps_io_system();
    writing_io.lseek = write_then_lseek;
    put_singles(s, 5);
    CHECK_EQ(0, ps_store_flush(s, &e));
    writes_on = s;
    ps_store *r = ps_reader_open(&c, &writing_io, report, NULL, &e);
    CHECK(writes_on == NULL);
    if (!CHECK(r != NULL)) return;
    for (int32_t i = 0; i < report->item_count; i++)
        CHECK(report->items[i].action != PS_ACTION_SKIPPED);
    CHECK_EQ(count_log(s), count_log(r));
    ps_store_free(r);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    free(report);
}

static void (*beside)(ps_store *s);
static const char *hidden; /* the name of a file that is made while its folder is listed */

static DIR *remember_log(ps_io *io, const char *path) {
    (void)io;
    DIR *folder = opendir(path);
    if (strstr(path, "/commitlog") != NULL) log_listed = folder;
    return folder;
}

static struct dirent *read_but_hidden(ps_io *io, DIR *folder) {
    (void)io;
    struct dirent *d = readdir(folder);
    if (d == NULL || hidden == NULL || folder != log_listed || strcmp(d->d_name, hidden) != 0)
        return d;
    hidden = NULL;
    return readdir(folder);
}

/* The writer goes on right after a reader has listed the log's files. */
static int close_then_write(ps_io *io, DIR *folder) {
    (void)io;
    bool log = folder == log_listed;
    int code = closedir(folder);
    if (log) log_listed = NULL;
    if (log && writes_on != NULL) {
        ps_store *s = writes_on;
        writes_on = NULL;
        beside(s);
    }
    return code;
}

static ps_store *open_beside(void) {
    ps_conf c = conf_small();
    ps_error e = {0};
    writing_io = *ps_io_system();
    writing_io.opendir = remember_log;
    writing_io.readdir = read_but_hidden;
    writing_io.closedir = close_then_write;
    ps_store *r = ps_reader_open(&c, &writing_io, NULL, NULL, &e);
    if (r == NULL) fprintf(stderr, "%s: %s\n", e.text, e.where);
    CHECK(r != NULL);
    return r;
}

static void check_sees_all(ps_store *s, ps_store *r) {
    ps_error e = {0};
    CHECK_EQ(0, ps_store_refresh(r, &e));
    CHECK_EQ(count_log(s), count_log(r));
    CHECK_EQ(count_queues(s), count_queues(r));
    CHECK_EQ(0, atomic_load(&r->st_damaged_reads));
}

static void put_segments(ps_store *s) {
    put_singles(s, 1000);
    CHECK_EQ(0, ps_store_refresh(s, NULL));
}

static void leave_last_segment(ps_store *s) {
    ps_retention_report cleaned;
    put_segments(s);
    do CHECK_EQ(0, ps_store_clean(s, 0, 1, 1, 0, &cleaned, NULL));
    while (cleaned.log_files > 0);
}

/* Whatever a writer does amid a reader's refresh, no message counts as damaged, those that are
 * there are read, and the next refresh brings the rest. */
static void test_refresh_amid_writes(void) {
    void (*const deeds[])(ps_store *) = {put_segments, leave_last_segment};
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        ps_store *s = open_store(NULL), *r = open_beside();
        ps_error e = {0};
        put_segments(s);
        beside = deeds[i];
        writes_on = s;
        CHECK_EQ(0, ps_store_refresh(r, &e));
        CHECK(writes_on == NULL);
        if (deeds[i] == put_segments) count_queues(r);
        check_sees_all(s, r);
        ps_store_free(r);
        CHECK_EQ(0, ps_store_close(s, &e));
        ps_store_free(s);
    }
}

/* A listing has a file and lacks the one before it, which was made in that moment. */
static void test_reader_of_a_listing_with_a_gap(void) {
    char name[32];
    ps_store *s = open_store(NULL), *r = open_beside();
    ps_error e = {0};
    snprintf(name, sizeof name, "%020" PRId64,
             ps_segments_base(&s->st_log.lg_files, -1) + (64 << 10));
    put_segments(s);
    hidden = name;
    CHECK_EQ(0, ps_store_refresh(r, &e));
    CHECK(hidden == NULL);
    count_log(r);
    count_queues(r);
    check_sees_all(s, r);
    ps_store_free(r);
    hidden = name;
    r = open_beside();
    CHECK(hidden == NULL);
    if (r != NULL) check_sees_all(s, r);
    ps_store_free(r);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
}

/* A writer's recovery deletes the segment that was made ahead, and the writer makes it again. */
static void test_reader_of_a_segment_made_again(void) {
    char path[512];
    ps_error e = {0};
    ps_store *s = open_store(NULL);
    put_singles(s, 5);
    CHECK_EQ(0, ps_store_close(s, &e));
    int64_t next = atomic_load(&s->st_log.lg_end) / (64 << 10) * (64 << 10) + (64 << 10);
    snprintf(path, sizeof path, "%s/commitlog/%020" PRId64, root, next);
    ps_store_free(s);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    CHECK_EQ(0, ftruncate(fd, 64 << 10));
    close(fd);
    ps_store *r = open_beside();
    ps_mapfile_unref(ps_segments_find(&r->st_log.lg_files, next, &e)); /* it is mapped now */
    s = open_store(NULL);
    CHECK(access(path, F_OK) < 0 || atomic_load(&s->st_log.lg_end) > next);
    put_segments(s);
    check_sees_all(s, r);
    ps_store_free(r);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
}

/* A file that was listed and is gone when it is opened: the reader looks again. */
static void test_reader_of_going_files(void) {
    ps_conf c = conf_small();
    ps_error e = {0};
    ps_io *io = ps_io_faulty_new();
    const uint32_t opens = 1u << PS_IO_OPEN;
    ps_store *r = ps_reader_open(&c, io, NULL, NULL, &e);
    int64_t calls = ps_io_faulty_calls(io, opens), messages = count_queues(r);
    ps_store_free(r);
    CHECK(calls > 0);
    for (int64_t n = 1; n <= calls; n++) {
        ps_io_faulty_set(io, opens, n, ENOENT, 0);
        r = ps_reader_open(&c, io, NULL, NULL, &e);
        if (!CHECK(r != NULL)) break;
        CHECK_EQ(0, e.code);
        CHECK_EQ(messages, count_queues(r));
        ps_store_free(r);
    }
    ps_io_faulty_set(io, opens, 1, ENOENT, 1);
    CHECK(ps_reader_open(&c, io, NULL, NULL, &e) == NULL);
    CHECK_EQ(ENOENT, e.sys_errno);
    ps_io_faulty_free(io);
}

static char paths[200][512];
static int path_count;

static int remember(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)ftw;
    if (kind == FTW_F && st->st_size > 0 && path_count < 200)
        snprintf(paths[path_count++], sizeof paths[0], "%s", path);
    return 0;
}

/* Six bytes in a row of one file under `folder`, most often near its beginning. */
static void damage(const char *folder) {
    path_count = 0;
    nftw(folder, remember, 8, FTW_PHYS);
    if (path_count == 0) return;
    int fd = open(paths[check_below(path_count)], O_RDWR);
    char noise[6];
    for (int i = 0; i < 6; i++) noise[i] = (char)check_below(256);
    CHECK_EQ(6, pwrite(fd, noise, 6, check_below(2000)));
    close(fd);
}

static void look_around(ps_store *s) {
    ps_error e = {0};
    ps_read_options o = {.max_messages = 1000};
    ps_topic *t = ps_topic_open(s, "singles", 7, 0, &e);
    for (int64_t at = 0; at < 300; at += 100) ps_batch_free(ps_read(s, t, 0, at, &o, &e));
    ps_batch_free(ps_log_read(s, 0, &o, &e));
    ps_batch_free(ps_query(s, "singles", 7, "k1", 2, 0, 0, INT64_MAX, 0, &e));
}

/* What was just written is mapped and in memory; of a store that was opened again nothing is mapped
 * before it is read. */
static void test_what_is_resident_is_a_part_of_the_log(void) {
    char *folder = check_folder();
    ps_error e = {0};
    ps_conf c = conf_small();
    c.root = folder;
    ps_store *s = ps_store_open(&c, NULL, NULL, NULL, &e);
    if (CHECK(s != NULL)) {
        put_singles(s, 2000);
        int64_t mapped = -1, resident = -1, again, few, len;
        len = atomic_load(&s->st_log.lg_end) - atomic_load(&s->st_log.lg_min);
        CHECK_EQ(0, ps_store_log_resident(s, &mapped, &resident));
        CHECK_EQ(len, mapped);
        CHECK_EQ(len, resident);
        /* A sample of three windows stands for all of it. */
        ps_segments_resident(&s->st_log.lg_files, 0, len, 3, &again, &few);
        CHECK_EQ(len, again);
        CHECK_EQ(len, few);
        ps_segments_resident(&s->st_log.lg_files, 0, 2 * len, 1000, &again, &few);
        CHECK(again <= len + 2 * PS_RESIDENT_WINDOW && few <= again);
        CHECK_EQ(0, ps_store_close(s, &e));
        CHECK_EQ(PS_E_CLOSED, ps_store_log_resident(s, &mapped, &resident));
    }
    ps_store_free(s);
    check_remove(folder);
    free(folder);
}

static int whole_disk_used(ps_io *io, const char *path, struct statvfs *out) {
    (void)io;
    (void)path;
    *out = (struct statvfs){.f_bsize = 4096, .f_frsize = 4096, .f_blocks = 100};
    return 0;
}

/* The keeper looks now and then; a put that it would have refused looks itself. */
static void test_a_disk_that_has_room_again_takes_the_next_put(void) {
    char *folder = check_folder();
    ps_io *io = ps_io_faulty_new();
    ps_conf c = conf_small();
    ps_error e = {0};
    ps_put_result out;
    ps_retention_report cleaned;
    c.root = folder;
    c.background = 0;
    ps_store *s = ps_store_open(&c, io, NULL, NULL, &e);
    if (CHECK(s != NULL)) {
        ps_topic *t = topic_of(s, "t");
        int (*real)(ps_io *, const char *, struct statvfs *) = io->statvfs;
        io->statvfs = whole_disk_used;
        CHECK_EQ(0, ps_retention_round(s, 0, false, false, false, &cleaned, &e));
        CHECK_EQ(PS_E_DISK_FULL, ps_put(t, 0, 0, "b", 1, NULL, 0, 1, &out));
        io->statvfs = real;
        CHECK_EQ(0, ps_put(t, 0, 0, "b", 1, NULL, 0, 1, &out));
        CHECK_EQ(0, ps_store_disk_full(s));
        CHECK_EQ(0, ps_store_close(s, &e));
    }
    ps_store_free(s);
    ps_io_faulty_free(io);
    check_remove(folder);
    free(folder);
}

/* A segment that a cold tier lacks stays, whatever its age and however full the disk is, unless it
 * is said that it may go; and the refusal names the tier. */
static void test_what_a_tier_lacks_stays(void) {
    char *folder = check_folder();
    ps_io *io = ps_io_faulty_new();
    ps_conf c = conf_small();
    ps_error e = {0};
    ps_put_result out = {0};
    ps_retention_report cleaned;
    c.root = folder;
    c.background = 0;
    ps_store *s = ps_store_open(&c, io, NULL, NULL, &e);
    if (CHECK(s != NULL)) {
        ps_topic *t = topic_of(s, "t");
        while (atomic_load(&s->st_log.lg_end) < 4 * c.commitlog_file_size)
            if (!CHECK_EQ(0, ps_put(t, 0, 0, "b", 1, NULL, 0, 1, &out))) break;
        ps_store_out_to(s, c.commitlog_file_size + 1, 0);
        CHECK_EQ(0, ps_store_clean(s, 0, 1, 1, 0, &cleaned, &e));
        CHECK_EQ(c.commitlog_file_size, cleaned.log_min);
        io->statvfs = whole_disk_used;
        CHECK_EQ(0, ps_retention_round(s, 0, false, false, false, &cleaned, &e));
        CHECK_EQ(0, cleaned.log_files);
        CHECK_EQ(PS_E_DISK_FULL, ps_put(t, 0, 0, "b", 1, NULL, 0, 1, &out));
        CHECK(strstr(out.error.text, "cold tier") != NULL);
        ps_store_out_to(s, c.commitlog_file_size + 1, 1);
        CHECK_EQ(0, ps_retention_round(s, 0, false, false, false, &cleaned, &e));
        CHECK(cleaned.log_files > 0);
        CHECK_EQ(0, ps_store_close(s, &e));
    }
    ps_store_free(s);
    ps_io_faulty_free(io);
    check_remove(folder);
    free(folder);
}

/* An event loop asks whether the disk is full while a flush holds the keeper's lock over a sync: it
 * gets its answer, and no file is touched. A wait would hang here. */
static void test_disk_full_waits_for_nobody(void) {
    char *folder = check_folder();
    ps_io *io = ps_io_faulty_new();
    ps_conf c = conf_small();
    ps_error e = {0};
    c.root = folder;
    c.background = 0;
    ps_store *s = ps_store_open(&c, io, NULL, NULL, &e);
    if (CHECK(s != NULL)) {
        pthread_mutex_lock(&s->st_keeper.kp_lock);
        int64_t calls = ps_io_faulty_calls(io, UINT32_MAX);
        CHECK_EQ(0, ps_store_disk_full(s));
        atomic_store(&s->st_log.lg_disk_full, true);
        CHECK_EQ(1, ps_store_disk_full(s));
        CHECK_EQ(calls, ps_io_faulty_calls(io, UINT32_MAX));
        ps_info info;
        CHECK_EQ(0, ps_store_info(s, &info));
        CHECK_EQ(1, info.disk_full);
        pthread_mutex_unlock(&s->st_keeper.kp_lock);
        CHECK_EQ(0, ps_store_close(s, &e));
        CHECK_EQ(PS_E_CLOSED, ps_store_disk_full(s));
    }
    ps_store_free(s);
    ps_io_faulty_free(io);
    check_remove(folder);
    free(folder);
}

/* Random bytes anywhere in the log, the queues or the index: it opens or says why not, and
 * reads. */
static void test_damage(void) {
    static const char *where[] = {"commitlog", "consumequeue", "index", "."};
    char copy[300], folder[320], command[1000];
    snprintf(copy, sizeof copy, "%s.damaged", root);
    for (int round = 0; round < 40; round++) {
        snprintf(command, sizeof command, "rm -rf %s; cp -r --sparse=always %s %s", copy, root,
                 copy);
        CHECK_EQ(0, system(command));
        snprintf(folder, sizeof folder, "%s/%s", copy, where[round % 4]);
        damage(folder);
        ps_conf c = conf_small();
        c.root = copy;
        for (int writing = 0; writing < 2; writing++) {
            ps_error e = {0};
            ps_store *s = writing ? ps_store_open(&c, NULL, NULL, NULL, &e)
                                  : ps_reader_open(&c, NULL, NULL, NULL, &e);
            CHECK(s != NULL || e.code < 0);
            if (s != NULL) look_around(s);
            ps_store_free(s);
        }
    }
    snprintf(command, sizeof command, "rm -rf %s %s", copy, root);
    CHECK_EQ(0, system(command));
}

int main(void) {
    const char *temp = getenv("TMPDIR");
    check_begin();
    snprintf(root, sizeof root, "%s/ps-store-XXXXXX", temp != NULL ? temp : "/tmp");
    CHECK(mkdtemp(root) != NULL);
    test_life();
    test_queue_ids();
    test_views_live_on();
    test_reader();
    test_reader_beside_a_writer();
    test_refresh_amid_writes();
    test_reader_of_a_listing_with_a_gap();
    test_reader_of_a_segment_made_again();
    test_reader_of_going_files();
    test_what_is_resident_is_a_part_of_the_log();
    test_disk_full_waits_for_nobody();
    test_a_disk_that_has_room_again_takes_the_next_put();
    test_what_a_tier_lacks_stays();
    test_damage();
    return check_end("test_store");
}
