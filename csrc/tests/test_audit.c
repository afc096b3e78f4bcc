/* The audit under the sanitizers: a sound store has no findings, and a store with random damage in
 * every kind of file costs findings, never memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit.h"
#include "base/bytes.h"
#include "small_store.h"

#define SEGMENT (64 << 10)
#define ENTRIES 128
#define FILES_MAX 512
#define ROUNDS 100 /* PS_AUDIT_ROUNDS: more */

static char root[256];
static ps_io *audit_io; /* NULL: the system's */

/* Paths of the regular files of one folder below the root, by name. */
static int list_files(const char *below, char paths[][256], int count) {
    struct dirent **found = NULL;
    char folder[512];
    snprintf(folder, sizeof folder, "%.250s/%.200s", root, below);
    int n = scandir(folder, &found, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (found[i]->d_name[0] != '.' && count < FILES_MAX)
            snprintf(paths[count++], 256, "%.150s/%.100s", below, found[i]->d_name);
        free(found[i]);
    }
    free(found);
    return count;
}

static int64_t file_size(const char *path) {
    struct stat st;
    return stat(path, &st) < 0 ? 0 : st.st_size;
}

static int64_t audit_queues(ps_audit *a, ps_findings *f, ps_error *e) {
    static char paths[FILES_MAX][256];
    for (int32_t q = 0; q < 3; q++) {
        char below[64], full[600];
        int64_t numbers[FILES_MAX], sizes[FILES_MAX];
        snprintf(below, sizeof below, "consumequeue/audited/%d", q);
        int n = list_files(below, paths, 0);
        for (int i = 0; i < n; i++) {
            snprintf(full, sizeof full, "%s/%s", root, paths[i]);
            numbers[i] = strtoll(strrchr(paths[i], '/') + 1, NULL, 10);
            sizes[i] = file_size(full);
        }
        CHECK_EQ(0, ps_audit_queue(a, "audited", 7, q, numbers, sizes, n, f, e));
    }
    return f->count;
}

/* What one audit found of its queues and of the index file that it looked at last, told another. */
static void tell_queues(ps_audit *from, ps_audit *to, ps_error *e) {
    for (int32_t q = 0; q < 3; q++) {
        ps_audit_queue_facts facts;
        ps_audit_queue_get(from, "audited", 7, q, &facts);
        CHECK_EQ(0, ps_audit_queue_set(to, "audited", 7, q, &facts, e));
    }
}

static void tell_index(ps_audit *from, ps_audit *to, const char *path, ps_error *e) {
    ps_audit_index_facts facts;
    ps_audit_index_get(from, &facts);
    CHECK_EQ(0, ps_audit_index_set(to, path, &facts, e));
}

/* The number of findings. parts: the segments are walked by another audit than queues and index. */
static int64_t audit_in(bool parts) {
    static char segments[FILES_MAX][256], indexes[FILES_MAX][256];
    char full[600];
    ps_error e = {0};
    ps_findings f = {0};
    int n = list_files("commitlog", segments, 0), x = list_files("index", indexes, 0);
    ps_audit_conf c = {.root = root, .consumequeue_file_size = QUEUE_FILE, .check_crc = 1,
                       .log_end = (int64_t)n * SEGMENT};
    ps_audit *a = ps_audit_new(&c, audit_io);
    ps_audit *b = parts ? ps_audit_new(&c, audit_io) : a;
    CHECK(a != NULL && b != NULL);
    audit_queues(a, &f, &e);
    if (parts) tell_queues(a, b, &e);
    for (int i = 0; i < x; i++) {
        snprintf(full, sizeof full, "%s/%s", root, indexes[i]);
        CHECK_EQ(0, ps_audit_index(a, full, SLOTS, ENTRIES, &f, &e));
        if (parts) tell_index(a, b, full, &e);
    }
    for (int i = 0; i < n; i++) {
        snprintf(full, sizeof full, "%s/%s", root, segments[i]);
        int64_t base = strtoll(strrchr(full, '/') + 1, NULL, 10);
        CHECK_EQ(0, ps_audit_add_segment(b, full, base, SEGMENT, &e));
    }
    for (int i = 0; i < n; i++) {
        ps_audit_segment_facts facts;
        CHECK_EQ(0, ps_audit_segment(b, i, i == n - 1, NULL, &facts, &f, &e));
    }
    for (int32_t q = 0; q < 3; q++)
        CHECK_EQ(0, ps_audit_queue_recount(b, "audited", 7, q, &f, &e));
    int64_t found = f.count;
    ps_findings_free(&f);
    if (parts) ps_audit_free(b);
    ps_audit_free(a);
    return found;
}

static int64_t audit_all(void) {
    int64_t found = audit_in(false);
    CHECK_EQ(found, audit_in(true));
    return found;
}

/* Overwrites some bytes of one file, audits, puts them back. */
static void damage_and_audit(char paths[][256], int count) {
    char full[600];
    uint8_t old[64], bytes[64];
    snprintf(full, sizeof full, "%s/%s", root, paths[check_below(count)]);
    int fd = open(full, O_RDWR);
    int64_t len = 1 + check_below(sizeof old - 1), size = file_size(full);
    int64_t at = check_below(size - len);
    int kind = (int)check_below(3);
    for (int64_t i = 0; i < len; i++)
        bytes[i] = kind == 0 ? 0 : kind == 1 ? 0xFF : (uint8_t)check_random();
    CHECK_EQ(len, pread(fd, old, (size_t)len, at));
    CHECK_EQ(len, pwrite(fd, bytes, (size_t)len, at));
    audit_all();
    CHECK_EQ(len, pwrite(fd, old, (size_t)len, at));
    close(fd);
}

static void test_random_damage(void) {
    static char paths[FILES_MAX][256];
    int count = list_files("commitlog", paths, 0);
    count = list_files("index", paths, count);
    for (int q = 0; q < 3; q++) {
        char below[64];
        snprintf(below, sizeof below, "consumequeue/audited/%d", q);
        count = list_files(below, paths, count);
    }
    const char *given = getenv("PS_AUDIT_ROUNDS");
    int64_t rounds = given != NULL ? atoll(given) : ROUNDS;
    for (int64_t i = 0; i < rounds; i++) damage_and_audit(paths, count);
    CHECK_EQ(0, audit_all());
}

/* Reads as they are beside a writer: one of the log is older than the next, so that records that
 * both have a part of seem to be zeros. */
static int64_t until_late = -1;

static bool is_of_log(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len > 0 ? len : 0] = 0;
    return strstr(path, "/commitlog/") != NULL;
}

static ssize_t late_pread(ps_io *io, int fd, void *buf, size_t size, off_t at) {
    if (size <= 9000 || !is_of_log(fd) || until_late-- != 0)
        return ps_io_system()->pread(io, fd, buf, size, at);
    uint8_t *p = buf;
    ssize_t got = ps_io_system()->pread(io, fd, buf, 9000, at), end = 0;
    while (end < 8000) end += be32_get(p + end);
    memset(p + end, 0, (size_t)(got - end));
    return got;
}

static void test_a_log_that_grows_has_no_hole(void) {
    ps_io late = *ps_io_system();
    late.pread = late_pread;
    audit_io = &late;
    for (int64_t read = 0; read < 4; read++) {
        until_late = read;
        CHECK_EQ(0, audit_in(false));
        CHECK(until_late < 0);
    }
    audit_io = NULL;
}

int main(void) {
    check_begin();
    char *folder = check_folder();
    snprintf(root, sizeof root, "%s", folder);
    free(folder);
    small_store_make(root, SEGMENT, ENTRIES, "audited", 1500, 400);
    CHECK_EQ(0, audit_all());
    test_a_log_that_grows_has_no_hole();
    test_random_damage();
    check_remove(root);
    return check_end("test_audit");
}
