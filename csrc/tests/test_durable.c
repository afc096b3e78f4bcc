/* What a power loss may take: folder entries are on the disk before the checkpoint vouches for what
 * they hold, and after a crash the page cache is not believed. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "faulty_io.h"
#include "store/store.h"

#define ENTRIES_MAX 4096

/* A table that knows which entries of folders are not synced, and tells what is missing whenever
 * the checkpoint is synced. */
typedef struct watch {
    ps_io io; /* first */
    const ps_io *system;
    char dirty[ENTRIES_MAX][PATH_MAX]; /* folders with an entry that is not on the disk */
    int32_t dirty_count;
    int32_t checkpoints, unsynced; /* syncs of the checkpoint; folders that were dirty then */
    int64_t drop_from; /* of the log: what the disk does not have, -1 all is there */
    int32_t dropped;
} watch;

static watch *watch_of(ps_io *io) {
    return (watch *)io;
}

static void folder_of(const char *path, char out[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    snprintf(out, PATH_MAX, "%.*s", slash != NULL ? (int)(slash - path) : 1,
             slash != NULL ? path : ".");
}

static void touched(ps_io *io, const char *path) {
    watch *w = watch_of(io);
    char folder[PATH_MAX];
    folder_of(path, folder);
    for (int32_t i = 0; i < w->dirty_count; i++)
        if (strcmp(w->dirty[i], folder) == 0) return;
    if (CHECK(w->dirty_count < ENTRIES_MAX)) memcpy(w->dirty[w->dirty_count++], folder, PATH_MAX);
}

static int watch_open(ps_io *io, const char *path, int flags, mode_t mode) {
    bool is_new = (flags & O_CREAT) && access(path, F_OK) != 0;
    int fd = watch_of(io)->system->open(io, path, flags, mode);
    /* Not the temporary files: their rename counts. */
    if (fd >= 0 && is_new && strstr(path, ".tmp") == NULL) touched(io, path);
    return fd;
}

static int watch_mkdir(ps_io *io, const char *path, mode_t mode) {
    int rc = watch_of(io)->system->mkdir(io, path, mode);
    if (rc == 0) touched(io, path);
    return rc;
}

static int watch_unlink(ps_io *io, const char *path) {
    int rc = watch_of(io)->system->unlink(io, path);
    if (rc == 0) touched(io, path);
    return rc;
}

static void name_of(int fd, char out[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = 0;
}

static int watch_fsync(ps_io *io, int fd) {
    watch *w = watch_of(io);
    char path[PATH_MAX];
    name_of(fd, path);
    for (int32_t i = 0; i < w->dirty_count; i++) {
        if (strcmp(w->dirty[i], path) != 0) continue;
        w->dirty_count--;
        if (i < w->dirty_count) memcpy(w->dirty[i], w->dirty[w->dirty_count], PATH_MAX);
        break;
    }
    return w->system->fsync(io, fd);
}

static int watch_fdatasync(ps_io *io, int fd) {
    watch *w = watch_of(io);
    char path[PATH_MAX], root[PATH_MAX];
    name_of(fd, path);
    if (strcmp(strrchr(path, '/'), "/checkpoint") == 0) {
        w->checkpoints++;
        folder_of(path, root); /* where the checkpoint itself is new */
        for (int32_t i = 0; i < w->dirty_count; i++)
            if (strcmp(w->dirty[i], root) != 0 && strstr(w->dirty[i], "/config") == NULL) {
                w->unsynced++;
                printf("not synced: %s\n", w->dirty[i]);
            }
    }
    return w->system->fdatasync(io, fd);
}

static int watch_syncfs(ps_io *io, int fd) {
    watch_of(io)->dirty_count = 0;
    return watch_of(io)->system->syncfs(io, fd);
}

/* The cache is dropped: what was only there is gone. */
static int watch_advise(ps_io *io, int fd, off_t at, off_t len, int advice) {
    watch *w = watch_of(io);
    static const char zeros[4096];
    char path[PATH_MAX];
    (void)at, (void)len;
    if (advice != POSIX_FADV_DONTNEED || w->drop_from < 0) return 0;
    name_of(fd, path);
    if (strstr(path, "/commitlog/") == NULL) return 0;
    w->dropped++;
    CHECK_EQ(sizeof zeros, pwrite(fd, zeros, sizeof zeros, w->drop_from));
    return 0;
}

static watch *watch_new(void) {
    watch *w = calloc(1, sizeof *w);
    w->system = ps_io_system();
    w->io = *w->system;
    w->io.open = watch_open;
    w->io.mkdir = watch_mkdir;
    w->io.unlink = watch_unlink;
    w->io.fsync = watch_fsync;
    w->io.fdatasync = watch_fdatasync;
    w->io.syncfs = watch_syncfs;
    w->io.advise = watch_advise;
    w->drop_from = -1;
    return w;
}

static ps_store *open_store(const char *root, ps_io *io, ps_report *report) {
    ps_conf c;
    ps_error e = {0};
    ps_conf_init(&c);
    c.root = root;
    c.commitlog_file_size = 64 << 10;
    c.consumequeue_file_size = 400;
    c.index_slots = 16;
    c.index_entries = 64;
    c.clean_interval_ms = 0;
    c.background = 0;
    ps_store *s = ps_store_open(&c, io, report, NULL, &e);
    if (s == NULL) printf("%s: %s\n", e.text, e.where);
    CHECK(s != NULL);
    return s;
}

/* Later, by a millisecond at least, than what was put before: a checkpoint whose times are the same
 * is not written. */
static void put(ps_store *s, const char *topic, int32_t queues, int32_t n) {
    ps_error e = {0};
    ps_put_result out;
    for (int64_t before = ps_now_ms(); ps_now_ms() == before;) usleep(100);
    static const char body[500];
    ps_topic *t = ps_topic_open(s, topic, (int32_t)strlen(topic), 1, &e);
    for (int32_t i = 0; i < n; i++)
        CHECK_EQ(0, ps_put(t, i % queues, 0, body, sizeof body, NULL, 0, 1, &out));
}

/* ---- tests ---- */

static void test_entries_are_synced_before_the_checkpoint(void) {
    char *folder = check_folder(), root[PATH_MAX];
    ps_retention_report cleaned;
    ps_error e = {0};
    watch *w = watch_new();
    snprintf(root, sizeof root, "%s/new/store", folder);
    ps_store *s = open_store(root, &w->io, NULL);
    put(s, "few", 3, 300);
    CHECK_EQ(0, ps_store_flush(s, &e));
    put(s, "many", 100, 300);
    CHECK_EQ(0, ps_store_flush(s, &e));
    CHECK_EQ(0, ps_store_clean(s, 0, 1, 1, 0, &cleaned, &e));
    CHECK(cleaned.log_files > 0 && cleaned.queue_files > 0);
    put(s, "few", 3, 3);
    CHECK_EQ(0, ps_store_flush(s, &e));
    CHECK_EQ(0, ps_topic_delete(s, ps_topic_open(s, "many", 4, 0, &e), &e));
    put(s, "few", 3, 3);
    CHECK_EQ(0, ps_store_flush(s, &e));
    ps_store_abandon(s);
    ps_store_unref(s);
    /* Killed: the next writer vouches for what this one has not synced. */
    s = open_store(root, &w->io, NULL);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    CHECK(w->checkpoints >= 5);
    CHECK_EQ(0, w->unsynced);
    free(w);
    check_remove(folder);
    free(folder);
}

/* A sync failed, so the disk lacks what the page cache shows; then the process was killed. */
static void test_the_page_cache_is_not_believed_after_a_crash(void) {
    char *root = check_folder();
    ps_report *report = calloc(1, sizeof *report);
    ps_error e = {0};
    watch *w = watch_new();
    ps_store *s = open_store(root, &w->io, NULL);
    put(s, "t", 1, 20);
    int64_t end = atomic_load(&s->st_log.lg_end);
    ps_store_abandon(s);
    ps_store_unref(s);
    w->drop_from = end / 2 / 4096 * 4096;
    s = open_store(root, &w->io, report);
    CHECK(w->dropped > 0);
    CHECK(report->item_count > 1);
    ps_topic *t = ps_topic_open(s, "t", 1, 0, &e);
    ps_read_options o = {.max_messages = 100};
    ps_batch *b = ps_read(s, t, 0, 0, &o, &e);
    ps_batch_info info;
    ps_batch_get(b, &info);
    CHECK(info.count > 5 && info.count < 20);
    ps_batch_free(b);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    free(report);
    free(w);
    check_remove(root);
    free(root);
}

/* A folder that cannot be listed is not an empty one: the open fails, and says which. */
static void test_a_folder_that_cannot_be_listed(void) {
    char *root = check_folder();
    ps_error e = {0};
    ps_io *io = ps_io_faulty_new();
    ps_store *s = open_store(root, NULL, NULL);
    put(s, "t", 2, 20);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    const uint32_t kinds[2] = {1u << PS_IO_OPENDIR, 1u << PS_IO_READDIR};
    for (int k = 0; k < 2; k++) {
        for (int64_t n = 1;; n++) {
            ps_conf c;
            ps_conf_init(&c);
            c.root = root;
            c.background = 0;
            memset(&e, 0, sizeof e);
            int64_t before = ps_io_faulty_struck(io);
            ps_io_faulty_set(io, kinds[k], n, EIO, 0);
            s = ps_store_open(&c, io, NULL, NULL, &e);
            ps_io_faulty_set(io, 0, 0, 0, 0);
            if (ps_io_faulty_struck(io) == before) {
                CHECK(s != NULL && n > 4);
                ps_store_free(s);
                break;
            }
            CHECK(s == NULL && e.code == PS_E_IO && e.sys_errno == EIO && e.where[0] == '/');
            ps_store_free(s);
        }
    }
    ps_io_faulty_free(io);
    check_remove(root);
    free(root);
}

int main(void) {
    check_begin();
    test_entries_are_synced_before_the_checkpoint();
    test_the_page_cache_is_not_believed_after_a_crash();
    test_a_folder_that_cannot_be_listed();
    return check_end("test_durable");
}
