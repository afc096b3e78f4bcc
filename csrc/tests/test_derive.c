/* Derived files made in parts under the sanitizers: they are those that the store has made; a call
 * that fails is an error, and the part done again makes the same; damage costs no memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "derive/derive.h"
#include "faulty_io.h"
#include "small_store.h"

#define SEGMENT (32 << 10)
#define SEGMENTS_MAX 64
#define ENTRIES 400
#define MESSAGES 600
#define DAMAGED 60

static char root[256], made[300];
static char paths[SEGMENTS_MAX][512];
static int64_t bases[SEGMENTS_MAX], sizes[SEGMENTS_MAX];
static const char *names[SEGMENTS_MAX];
static int32_t segments;

/* Files of a folder, by name; how many. */
static int32_t list_files(const char *folder, char found[][512]) {
    struct dirent **items = NULL;
    int32_t count = 0, n = scandir(folder, &items, NULL, alphasort);
    for (int32_t i = 0; i < n; i++) {
        if (items[i]->d_name[0] != '.' && count < SEGMENTS_MAX)
            snprintf(found[count++], 512, "%.200s/%.200s", folder, items[i]->d_name);
        free(items[i]);
    }
    free(items);
    return count;
}

static void find_segments(void) {
    char folder[300];
    snprintf(folder, sizeof folder, "%s/commitlog", root);
    segments = list_files(folder, paths);
    for (int32_t i = 0; i < segments; i++) {
        names[i] = paths[i];
        bases[i] = strtoll(strrchr(paths[i], '/') + 1, NULL, 10);
        sizes[i] = SEGMENT;
    }
}

static ps_derive *begin_part(ps_io *io) {
    const ps_derive_conf c = {.into = made, .consumequeue_file_size = QUEUE_FILE,
                              .file_mode = PS_FILE_MODE, .index_slots = SLOTS,
                              .index_entries = ENTRIES};
    return ps_derive_new(&c, io);
}

/* Units of the segments [from, to). 1; 0: not plain; or the error. */
static int units_of(ps_io *io, int32_t from, int32_t to) {
    ps_error e = {0};
    ps_derive_queue q;
    ps_derive *d = begin_part(io);
    int code = 1;
    for (int32_t i = from; i < to && code > 0; i++)
        code = ps_derive_units(d, paths[i], bases[i], sizes[i], i == segments - 1, &e);
    int synced = code > 0 ? ps_derive_sync(d, &e) : 0;
    if (code > 0 && synced == 0)
        CHECK(ps_derive_queue_get(d, 0, &q) == 1 && q.first < q.end && q.topic_len == 7);
    ps_derive_free(d);
    return synced < 0 ? synced : code;
}

/* An index file, looked for from the log's first segment on: 1 when it has all its keys, 0 or the
 * error. */
static int index_of(ps_io *io, int32_t number, const char *path) {
    ps_error e = {0};
    int64_t all = (int64_t)MESSAGES * 3, skip = (int64_t)number * (ENTRIES - 1);
    int64_t keys = all - skip < ENTRIES - 1 ? all - skip : ENTRIES - 1;
    ps_derive_keys wanted = {names, bases, sizes, segments, 1, skip, (int32_t)keys};
    ps_derive *d = begin_part(io);
    int32_t got = ps_derive_index(d, path, &wanted, &e);
    ps_derive_free(d);
    return got < 0 ? got : got == keys;
}

static void make_folder(void) {
    char folder[400];
    check_remove(made);
    mkdir(made, 0750);
    snprintf(folder, sizeof folder, "%s/consumequeue", made);
    mkdir(folder, 0750);
}

static bool same_file(const char *one, const char *other) {
    static char a[1 << 16], b[1 << 16];
    FILE *f = fopen(one, "rb"), *g = fopen(other, "rb");
    size_t n = f != NULL ? fread(a, 1, sizeof a, f) : 0;
    size_t m = g != NULL ? fread(b, 1, sizeof b, g) : 0;
    if (f != NULL) fclose(f);
    if (g != NULL) fclose(g);
    return n > 0 && n == m && memcmp(a, b, n) == 0;
}

static void check_queues(void) {
    static char theirs[SEGMENTS_MAX][512], ours[SEGMENTS_MAX][512];
    for (int32_t q = 0; q < QUEUES; q++) {
        char folder[400];
        snprintf(folder, sizeof folder, "%s/consumequeue/derived/%d", root, q);
        int32_t n = list_files(folder, theirs);
        snprintf(folder, sizeof folder, "%s/consumequeue/derived/%d", made, q);
        CHECK_EQ(n, list_files(folder, ours));
        CHECK(n > 1);
        for (int32_t i = 0; i < n; i++) CHECK(same_file(theirs[i], ours[i]));
    }
}

static void test_parts_make_what_the_store_made(void) {
    static char theirs[SEGMENTS_MAX][512];
    char folder[300], path[400];
    make_folder();
    CHECK_EQ(1, units_of(NULL, segments / 2, segments));
    CHECK_EQ(1, units_of(NULL, 0, segments / 2));
    CHECK_EQ(1, units_of(NULL, 0, 1)); /* once more */
    check_queues();
    snprintf(folder, sizeof folder, "%s/index", root);
    int32_t n = list_files(folder, theirs);
    CHECK(n > 2);
    for (int32_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/index-%d", made, i);
        CHECK_EQ(1, index_of(NULL, i, path));
        CHECK(same_file(theirs[i], path));
        CHECK(index_of(NULL, i, path) < 0); /* never over another */
    }
}

static void test_a_call_that_fails_is_an_error(void) {
    const uint32_t all = (1u << PS_IO_CALLS) - 1;
    char path[400];
    snprintf(path, sizeof path, "%s/index-failing", made);
    for (int64_t n = 1, struck = 1; struck > 0; n++) {
        ps_io *io = ps_io_faulty_new();
        make_folder();
        ps_io_faulty_set(io, all & ~(1u << PS_IO_CLOSE | 1u << PS_IO_MUNMAP), n, ENOSPC, 0);
        int code = units_of(io, 0, segments);
        int whole = code > 0 ? index_of(io, 1, path) : 1;
        struck = ps_io_faulty_struck(io);
        /* A folder that another part has made does no harm, nor does a file that cannot reserve. */
        CHECKF(struck == 0 ? code == 1 && whole == 1 : code != 0 && whole != 0, "call %d: %d",
               (int)n, code);
        if (code == 1) check_queues();
        ps_io_faulty_free(io);
        CHECK_EQ(1, units_of(NULL, 0, segments));
        check_queues();
        unlink(path);
    }
}

static void test_damage_is_no_plain_log_and_costs_no_memory(void) {
    char path[400];
    snprintf(path, sizeof path, "%s/index-damaged", made);
    make_folder();
    for (int i = 0; i < DAMAGED; i++) {
        int32_t n = (int32_t)check_below(segments);
        int fd = open(paths[n], O_RDWR);
        off_t at = check_below(SEGMENT - 16);
        uint8_t was[16], bytes[16];
        CHECK_EQ(16, pread(fd, was, 16, at));
        for (int k = 0; k < 16; k++) bytes[k] = (uint8_t)check_random();
        CHECK_EQ(16, pwrite(fd, bytes, 16, at));
        CHECK(units_of(NULL, 0, segments) <= 1);
        CHECK(index_of(NULL, 1, path) <= 1);
        unlink(path);
        CHECK_EQ(16, pwrite(fd, was, 16, at));
        close(fd);
    }
}

int main(void) {
    check_begin();
    char *folder = check_folder();
    snprintf(root, sizeof root, "%s", folder);
    free(folder);
    snprintf(made, sizeof made, "%s/made", root);
    small_store_make(root, SEGMENT, ENTRIES, "derived", MESSAGES, 200);
    find_segments();
    CHECK(segments > 3 && segments < SEGMENTS_MAX);
    test_parts_make_what_the_store_made();
    test_a_call_that_fails_is_an_error();
    test_damage_is_no_plain_log_and_costs_no_memory();
    check_remove(root);
    return check_end("test_derive");
}
