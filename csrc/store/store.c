/* Opening, closing and the facts of a store: the composition of the other files. Load order as spec
 * section 7.3, but the lock is taken first: upstream takes it after recovery has changed files
 * (trap 26). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store.h"

#define GIB (1LL << 30)
#define READER_TRIES 12
#define READER_PAUSE_MS 250 /* the longest; the first is 2 ms, each twice the one before */

int32_t ps_abi(void) {
    return PS_ABI;
}

int64_t ps_struct_size(int32_t which) {
    static const int64_t sizes[] = {sizeof(ps_conf), sizeof(ps_report),     sizeof(ps_info),
                                    sizeof(ps_view), sizeof(ps_put_result), sizeof(ps_scan)};
    return which >= 0 && which < (int32_t)(sizeof sizes / sizeof sizes[0]) ? sizes[which] : -1;
}

static void default_levels(ps_conf *c) {
    static const int32_t seconds[] = {1,   5,   10,  30,  60,  120,  180,  240,  300,
                                      360, 420, 480, 540, 600, 1200, 1800, 3600, 7200};
    c->level_count = sizeof seconds / sizeof seconds[0];
    for (int32_t i = 0; i < c->level_count; i++) c->level_delay_ms[i] = seconds[i] * 1000LL;
}

void ps_conf_init(ps_conf *c) {
    static const uint8_t loopback[8] = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F};
    *c = (ps_conf){.commitlog_file_size = GIB,
                   .consumequeue_file_size = 300000 * PS_UNIT,
                   .index_slots = 5000000,
                   .index_entries = 20000000,
                   .adopt_sizes = 1,
                   .flush_interval_ms = 500,
                   .flush_least_pages = 4,
                   .flush_thorough_ms = 10000,
                   .queue_flush_interval_ms = 1000,
                   .queue_flush_least_pages = 2,
                   .queue_flush_thorough_ms = 60000,
                   .sync_flush_timeout_ms = 5000,
                   .max_message_size = 4 << 20,
                   .check_crc_on_recover = 1,
                   .message_index_enable = 1,
                   .long_topic_v2 = 1,
                   .clean_interval_ms = 10000,
                   .file_reserved_hours = 72,
                   .delete_when_hours = 1u << 4,
                   .disk_max_used_ratio = 75,
                   .disk_clean_ratio = 85,
                   .disk_warning_ratio = 90,
                   .clean_forcibly = 1,
                   .delete_batch_max = 10,
                   .max_messages_in_memory = 32,
                   .max_bytes_in_memory = 256 << 10,
                   .max_messages_in_disk = 8,
                   .max_bytes_in_disk = 64 << 10,
                   .memory_ratio = 40,
                   .store_host_len = 8,
                   .reserve_window = 64 << 20,
                   .background = 1};
    memcpy(c->store_host, loopback, sizeof loopback);
    default_levels(c);
}

/* ---- making the object ---- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int split_dirs(ps_store *s, const char *list, ps_error *e) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/commitlog", s->st_root);
    const char *at = list != NULL && *list ? list : path;
    while (*at) {
        size_t n = strcspn(at, ",");
        if (n > 0 && s->st_dirs.count == PS_DIRS_MAX)
            return ps_fail(e, PS_E_ARGUMENT, 0, -1, at, "more than %d commit log folders",
                           PS_DIRS_MAX);
        if (n > 0 && (s->st_dirs.path[s->st_dirs.count++] = strndup(at, n)) == NULL)
            return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, at, "no memory");
        at += n + (at[n] == ',');
    }
    qsort(s->st_dirs.path, (size_t)s->st_dirs.count, sizeof(char *), by_text);
    return 0;
}

static int check_conf(const ps_conf *c, ps_error *e) {
    if (c->root == NULL || *c->root == 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "storePathRootDir is empty");
    if (strlen(c->root) > PATH_MAX - 400)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "storePathRootDir is too long");
    if (c->commitlog_file_size < 4096 || c->commitlog_file_size > INT32_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "mappedFileSizeCommitLog %lld is not between 4096 and 2147483647",
                       (long long)c->commitlog_file_size);
    if (c->consumequeue_file_size < PS_UNIT || c->consumequeue_file_size > INT32_MAX - PS_UNIT)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "mappedFileSizeConsumeQueue %lld is not between 20 and 2147483627",
                       (long long)c->consumequeue_file_size);
    if (c->index_slots < 1 || c->index_entries < 2)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "maxHashSlotNum or maxIndexNum is too small");
    if (c->store_host_len != 8 && c->store_host_len != 20)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "the store host is neither 8 nor 20 bytes long");
    if (c->reserve_window < 4096 || c->level_count < 0 || c->level_count > 64)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "reserve window or delay levels out of range");
    return 0;
}

static void init_locks(ps_store *s) {
    pthread_mutex_t *locks[] = {&s->st_close_lock,   &s->st_append_lock, &s->st_alloc_lock,
                                &s->st_flush_lock,   &s->st_wait_lock,   &s->st_dispatch_lock,
                                &s->st_nap_lock,     &s->st_news_lock,   &s->st_keep_lock,
                                &s->st_keep_nap_lock};
    pthread_cond_t *conds[] = {&s->st_alloc_wake, &s->st_alloc_done, &s->st_flush_wake,
                               &s->st_flush_done, &s->st_nap_wake,   &s->st_news,
                               &s->st_keep_wake};
    for (size_t i = 0; i < sizeof locks / sizeof locks[0]; i++) pthread_mutex_init(locks[i], NULL);
    for (size_t i = 0; i < sizeof conds / sizeof conds[0]; i++) ps_cond_init(conds[i]);
    pthread_rwlock_init(&s->st_topic_lock, NULL);
}

static ps_store *store_new(const ps_conf *conf, ps_io *io, bool readonly, ps_error *e) {
    if (check_conf(conf, e) < 0) return NULL;
    ps_store *s = calloc(1, sizeof *s);
    if (s == NULL || (s->st_root = strdup(conf->root)) == NULL) {
        free(s);
        ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, conf->root, "no memory");
        return NULL;
    }
    atomic_init(&s->st_refs, 1);
    s->st_io = io != NULL ? io : ps_io_system();
    s->st_conf = *conf;
    s->st_conf.root = s->st_root;
    s->st_conf.commitlog_dirs = NULL;
    s->st_conf.consumequeue_file_size =
        (conf->consumequeue_file_size + PS_UNIT - 1) / PS_UNIT * PS_UNIT;
    s->st_readonly = readonly;
    s->st_lock_fd = -1;
    atomic_store(&s->st_arrival_fd, -1);
    s->st_next_wanted = -1;
    s->st_levels.count = conf->level_count;
    memcpy(s->st_levels.delay_ms, conf->level_delay_ms, sizeof s->st_levels.delay_ms);
    init_locks(s);
    ps_segments_init(&s->st_log, s->st_io, conf->commitlog_file_size, 0);
    size_t n = strlen(s->st_root);
    while (n > 1 && s->st_root[n - 1] == '/') s->st_root[--n] = 0;
    if (split_dirs(s, conf->commitlog_dirs, e) < 0) {
        ps_store_free(s);
        return NULL;
    }
    return s;
}

/* ---- is it a store? ---- */

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool holds(const ps_store *s, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->st_root, name);
    return access(path, F_OK) == 0;
}

static bool folder_empty(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *d;
    bool empty = true;
    if (dir == NULL) return false;
    while ((d = readdir(dir)) != NULL)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
            strcmp(d->d_name, "meta") != 0 && strcmp(d->d_name, "config") != 0)
            empty = false;
    closedir(dir);
    return empty;
}

static int check_root(ps_store *s, ps_error *e) {
    struct stat st;
    bool known = false;
    if (stat(s->st_root, &st) < 0) {
        if (errno == ENOENT && !s->st_readonly) return 0;
        return ps_fail(e, errno == EACCES ? PS_E_FORBIDDEN : PS_E_NOT_A_STORE, errno, -1,
                       s->st_root, "cannot open the directory: %s", strerror(errno));
    }
    if (!S_ISDIR(st.st_mode))
        return ps_fail(e, PS_E_NOT_A_STORE, 0, -1, s->st_root, "not a directory");
    if (access(s->st_root, R_OK | X_OK | (s->st_readonly ? 0 : W_OK)) < 0)
        return ps_fail(e, PS_E_FORBIDDEN, errno, -1, s->st_root,
                       "permission denied on the directory");
    for (int32_t i = 0; i < s->st_dirs.count; i++) known = known || is_folder(s->st_dirs.path[i]);
    if (known || holds(s, "consumequeue") || holds(s, "checkpoint") || holds(s, "lock")) return 0;
    if (!s->st_readonly && folder_empty(s->st_root)) return 0;
    return ps_fail(e, PS_E_NOT_A_STORE, 0, -1, s->st_root,
                   "the directory contains neither commitlog nor consumequeue");
}

/* ---- opening ---- */

static int open_index(ps_store *s, ps_report *report, ps_error *e) {
    char folder[PATH_MAX];
    int32_t skipped = 0;
    if (!s->st_conf.message_index_enable && !s->st_readonly) return 0;
    snprintf(folder, sizeof folder, "%s/index", s->st_root);
    int code =
        ps_index_open(s->st_io, folder, s->st_conf.index_slots, s->st_conf.index_entries,
                      s->st_conf.adopt_sizes != 0, s->st_readonly, &skipped, &s->st_index, e);
    if (code == 0 && skipped > 0)
        ps_report_add(report, PS_ACTION_SKIPPED, 0, 0, skipped, "index",
                      "files that are not index files");
    return code;
}

static int make_root(ps_store *s, ps_error *e) {
    char path[PATH_MAX];
    int code = ps_make_folders(s->st_io, s->st_root, e);
    for (int32_t i = 0; i < s->st_dirs.count && code == 0; i++)
        code = ps_make_folders(s->st_io, s->st_dirs.path[i], e);
    snprintf(path, sizeof path, "%s/consumequeue", s->st_root);
    return code < 0 ? code : ps_make_folders(s->st_io, path, e);
}

static int load(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e) {
    int code = ps_log_open(s, e);
    bool linear = ps_abort_present(s->st_io, s->st_root) == 1;
    if (progress != NULL) progress->phase = 1;
    if (code == 0) code = ps_tombstones_load(s, report, e);
    if (code == 0) code = ps_queues_load(s, linear, report, progress, e);
    if (progress != NULL) progress->phase = 2;
    if (code == 0) code = ps_checkpoint_read(s->st_io, s->st_root, &s->st_checkpoint, e);
    return code < 0 ? code : open_index(s, report, e);
}

/* Made empty, and after recovery, so that an index folder that is missing means one taken away. */
static int make_index_folder(ps_store *s, ps_error *e) {
    char path[PATH_MAX];
    if (s->st_index == NULL) return 0;
    snprintf(path, sizeof path, "%s/index", s->st_root);
    return ps_make_folders(s->st_io, path, e);
}

static int start_threads(ps_store *s, ps_error *e) {
    void *(*mains[])(void *) = {ps_flush_main, ps_dispatch_main, ps_keep_main, ps_alloc_main};
    if (!s->st_conf.background) return 0;
    for (size_t i = 0; i < sizeof mains / sizeof mains[0]; i++) {
        int err = pthread_create(&s->st_threads[i], NULL, mains[i], s);
        if (err != 0)
            return ps_fail(e, PS_E_NO_MEMORY, err, -1, s->st_root, "cannot start a thread");
        s->st_thread_count++;
    }
    return 0;
}

static ps_store *give_up(ps_store *s) {
    ps_store_abandon(s);
    ps_store_free(s);
    return NULL;
}

ps_store *ps_store_open(const ps_conf *conf, ps_io *io, ps_report *report, ps_progress *progress,
                        ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    ps_report *own = NULL, *r = report;
    ps_store *s = store_new(conf, io, false, e);
    if (s == NULL) return NULL;
    if (r == NULL && (r = own = malloc(sizeof *own)) == NULL) return give_up(s);
    memset(r, 0, sizeof *r);
    int code = check_root(s, e);
    if (code == 0) code = make_root(s, e);
    if (code == 0) code = ps_lock_take(s->st_io, s->st_root, &s->st_lock_fd, e);
    if (code == 0) code = load(s, r, progress, e);
    if (code == 0) code = ps_recover(s, r, progress, e);
    if (code == 0) code = make_index_folder(s, e);
    if (code == 0) code = ps_abort_create(s->st_io, s->st_root, e);
    if (code == 0) code = start_threads(s, e);
    if (progress != NULL) progress->phase = 4;
    free(own);
    return code < 0 ? give_up(s) : s;
}

static ps_store *reader_try(const ps_conf *conf, ps_io *io, ps_report *r, ps_progress *progress,
                            ps_error *e) {
    ps_store *s = store_new(conf, io, true, e);
    if (s == NULL) return NULL;
    memset(r, 0, sizeof *r);
    int code = check_root(s, e);
    if (code == 0) code = load(s, r, progress, e);
    if (code == 0) code = ps_recover_read(s, r, progress, e);
    return code < 0 ? give_up(s) : s;
}

/* Whoever writes the store may delete a file (retention, recovery) between our listing of its
 * folder and our opening of it. What is there then is looked at anew; recovery may take away
 * hundreds of small queue files in a row, so it is given about a second to get done. */
ps_store *ps_reader_open(const ps_conf *conf, ps_io *io, ps_report *report, ps_progress *progress,
                         ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    ps_report *own = report != NULL ? NULL : malloc(sizeof *own);
    ps_store *s = NULL;
    if (report == NULL && own == NULL) return NULL;
    for (int tries = 0, pause = 1; s == NULL && tries < READER_TRIES; tries++, pause *= 2) {
        if (tries > 0)
            usleep(1000 * (useconds_t)(pause < READER_PAUSE_MS ? pause : READER_PAUSE_MS));
        e->code = 0;
        s = reader_try(conf, io, report != NULL ? report : own, progress, e);
        if (e->code != PS_E_IO || e->sys_errno != ENOENT) break;
    }
    if (progress != NULL) progress->phase = 4;
    free(own);
    return s;
}

/* ---- closing ---- */

static void wake_all(ps_store *s) {
    struct {
        pthread_mutex_t *lock;
        pthread_cond_t *cond;
    } all[] = {{&s->st_alloc_lock, &s->st_alloc_wake},  {&s->st_alloc_lock, &s->st_alloc_done},
               {&s->st_wait_lock, &s->st_flush_wake},   {&s->st_wait_lock, &s->st_flush_done},
               {&s->st_nap_lock, &s->st_nap_wake},      {&s->st_news_lock, &s->st_news},
               {&s->st_keep_nap_lock, &s->st_keep_wake}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        pthread_mutex_lock(all[i].lock);
        pthread_cond_broadcast(all[i].cond);
        pthread_mutex_unlock(all[i].lock);
    }
}

/* Lets calls under way end, then stops the threads. False when somebody else did it already. */
static bool stop(ps_store *s) {
    pthread_mutex_lock(&s->st_close_lock);
    bool first = !atomic_exchange(&s->st_closed, true);
    if (first) {
        atomic_store(&s->st_stopping, true);
        wake_all(s);
        while (atomic_load(&s->st_users) > 0) {
            wake_all(s);
            usleep(200);
        }
        atomic_store(&s->st_drained, true);
        wake_all(s);
        for (int32_t i = 0; i < s->st_thread_count; i++) pthread_join(s->st_threads[i], NULL);
        s->st_thread_count = 0;
    }
    return first;
}

static void drop_next_file(ps_store *s, bool clean) {
    ps_mapfile *next = s->st_next_file;
    if (next != NULL && clean) s->st_io->unlink(s->st_io, next->mf_path);
    ps_mapfile_unref(next);
    ps_mapfile_unref(s->st_reserve_file);
    ps_mapfile_unref(s->st_touch_file);
    s->st_next_file = s->st_reserve_file = s->st_touch_file = NULL;
}

static void release(ps_store *s) {
    ps_lock_release(s->st_io, s->st_lock_fd);
    s->st_lock_fd = -1;
    ps_segments_free(&s->st_log);
    s->st_active = NULL;
    if (s->st_index != NULL) ps_index_close(s->st_index);
    s->st_index = NULL;
    for (int32_t i = 0; i < atomic_load(&s->st_queue_count); i++) {
        ps_segments_free(&s->st_queues[i]->cq_files);
        atomic_store(&s->st_queues[i]->cq_last, NULL);
    }
}

/* The abort file goes only when everything is on the disk: what could not be synced is
 * recovered. */
static int finish_writing(ps_store *s, ps_error *e) {
    int code = ps_log_flush(s, 0, e);
    if (code == 0) {
        pthread_mutex_lock(&s->st_dispatch_lock);
        code = ps_dispatch_to_locked(s, atomic_load(&s->st_log_end), e);
        pthread_mutex_unlock(&s->st_dispatch_lock);
    }
    if (code == 0) code = ps_derived_flush(s, true, e);
    if (code == 0 && !atomic_load(&s->st_derived_broken))
        code = ps_abort_remove(s->st_io, s->st_root, e);
    return code;
}

int ps_store_close(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code = 0;
    if (stop(s)) {
        if (!s->st_readonly) code = finish_writing(s, e);
        drop_next_file(s, true);
        release(s);
    }
    pthread_mutex_unlock(&s->st_close_lock);
    return code;
}

void ps_store_abandon(ps_store *s) {
    if (stop(s)) {
        drop_next_file(s, false);
        release(s);
    }
    pthread_mutex_unlock(&s->st_close_lock);
}

ps_store *ps_store_ref(ps_store *s) {
    atomic_fetch_add(&s->st_refs, 1);
    return s;
}

void ps_store_unref(ps_store *s) {
    if (atomic_fetch_sub(&s->st_refs, 1) != 1) return;
    ps_topics_free(s);
    for (int32_t i = 0; i < s->st_dirs.count; i++) free(s->st_dirs.path[i]);
    pthread_rwlock_destroy(&s->st_topic_lock);
    free(s->st_root);
    free(s);
}

void ps_store_free(ps_store *s) {
    if (s == NULL) return;
    ps_store_close(s, NULL);
    ps_store_unref(s);
}

/* The threads are the parent's and a lock may be held by one of them, so nothing is joined, flushed
 * or freed: the memory is a copy that ends with the process. Only the descriptor of the lock is
 * closed. */
void ps_store_forget(ps_store *s) {
    atomic_store(&s->st_closed, true);
    if (s->st_lock_fd >= 0) close(s->st_lock_fd);
    s->st_lock_fd = -1;
}

/* ---- facts ---- */

static int64_t first_timestamp(ps_store *s) {
    ps_record r;
    int64_t avail, min = atomic_load(&s->st_log_min);
    ps_mapfile *mf;
    const uint8_t *p = ps_log_at(s, min, atomic_load(&s->st_log_end), &avail, &mf);
    bool there = p != NULL && ps_record_decode(p, avail, &r) == PS_REC_OK;
    ps_mapfile_unref(mf);
    return there ? r.store_timestamp : -1;
}

static void index_info(const ps_store *s, ps_info *out) {
    out->index_slots = s->st_index ? ps_index_slots(s->st_index) : 0;
    out->index_entries = s->st_index ? ps_index_entries(s->st_index) : 0;
    out->index_files = s->st_index ? ps_index_files(s->st_index) : 0;
    out->index_used = s->st_index ? ps_index_used(s->st_index) : 0;
}

int ps_store_info(ps_store *s, ps_info *out) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    *out = (ps_info){.log_min = atomic_load(&s->st_log_min),
                     .log_max = atomic_load(&s->st_log_end),
                     .log_flushed = atomic_load(&s->st_flushed),
                     .dispatched = atomic_load(&s->st_dispatched),
                     .commitlog_file_size = s->st_conf.commitlog_file_size,
                     .consumequeue_file_size = s->st_conf.consumequeue_file_size,
                     .log_files = ps_segments_count(&s->st_log),
                     .topics = s->st_topic_count,
                     .queues = atomic_load(&s->st_queue_count),
                     .writable = !s->st_readonly,
                     .disk_full = atomic_load(&s->st_disk_full) ||
                                  ps_errno_code(atomic_load(&s->st_stall_errno)) == PS_E_DISK_FULL,
                     .sync_flush = s->st_conf.sync_flush,
                     .flush_errno = atomic_load(&s->st_flush_errno),
                     .fsyncs = atomic_load(&s->st_fsyncs),
                     .puts = atomic_load(&s->st_puts),
                     .damaged_reads = atomic_load(&s->st_damaged_reads),
                     .store_timestamp_min = first_timestamp(s),
                     .background = s->st_thread_count > 0,
                     .abort_present = ps_abort_present(s->st_io, s->st_root)};
    int64_t stamp = atomic_load(&s->st_stamp_published);
    out->store_timestamp_max = out->log_max > out->log_min && stamp > 0 ? stamp : -1;
    index_info(s, out);
    pthread_mutex_lock(&s->st_keep_lock);
    const ps_checkpoint *k = &s->st_checkpoint;
    int64_t values[5] = {k->physic_msg_timestamp, k->logics_msg_timestamp, k->index_msg_timestamp,
                         k->master_flushed_offset, k->confirm_phy_offset};
    memcpy(out->checkpoint, values, sizeof values);
    pthread_mutex_unlock(&s->st_keep_lock);
    ps_leave(s);
    return 0;
}

static int by_topic(const void *a, const void *b) {
    const ps_queue *x = *(ps_queue *const *)a, *y = *(ps_queue *const *)b;
    int c = strcmp(x->cq_topic->tp_name, y->cq_topic->tp_name);
    return c != 0 ? c : (x->cq_id > y->cq_id) - (x->cq_id < y->cq_id);
}

/* A queue that somebody only waits for has neither files nor messages: nobody else need know. */
static int32_t drop_unborn(ps_queue **queues, int32_t n) {
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = queues[i];
        if (atomic_load(&q->cq_max) > 0 || ps_segments_count(&q->cq_files) > 0) queues[kept++] = q;
    }
    return kept;
}

int32_t ps_store_queues(ps_store *s, ps_queue_info *out, int32_t room) {
    ps_queue **queues;
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    ps_dispatch_catch_up(s, NULL);
    int32_t n = ps_queues_snapshot(s, &queues);
    n = drop_unborn(queues, n);
    if (n > 1) qsort(queues, (size_t)n, sizeof *queues, by_topic);
    for (int32_t i = 0; i < n && i < room; i++) {
        ps_queue *q = queues[i];
        out[i] = (ps_queue_info){
            q->cq_topic->tp_name,    q->cq_topic->tp_len,     q->cq_id,
            atomic_load(&q->cq_min), atomic_load(&q->cq_max), atomic_load(&q->cq_max_physical)};
    }
    free(queues);
    ps_leave(s);
    return n;
}

/* The first file that a reader of an empty store meets tells the size of all. */
static void adopt_first(ps_store *s, const struct ps_listed *file) {
    if (ps_segments_count(&s->st_log) > 0 || !s->st_conf.adopt_sizes || file->size == 0 ||
        file->number % file->size != 0)
        return;
    s->st_conf.commitlog_file_size = s->st_log.ss_file_size = file->size;
    atomic_store(&s->st_log_min, file->number);
    atomic_store(&s->st_log_end, file->number);
}

/* Commit log files that another process has made since the last look; *first: the lowest one
 * there. */
static int list_newer_segments(ps_store *s, int64_t *first, ps_error *e) {
    char path[PATH_MAX];
    *first = INT64_MAX;
    for (int32_t d = 0; d < s->st_dirs.count; d++) {
        ps_listing l;
        int code = ps_list_folder(s->st_io, s->st_dirs.path[d], false, &l, e);
        if (code < 0) return code;
        for (int32_t i = 0; i < l.count; i++) {
            adopt_first(s, &l.items[i]);
            if (l.items[i].number < *first) *first = l.items[i].number;
            if (l.items[i].number <= ps_segments_base(&s->st_log, -1) ||
                l.items[i].size != s->st_conf.commitlog_file_size)
                continue;
            snprintf(path, sizeof path, "%s/%s", s->st_dirs.path[d], l.items[i].name);
            ps_segments_add(&s->st_log, l.items[i].number, path, NULL);
        }
        ps_listing_free(&l);
    }
    return 0;
}

/* Segments that the writer's retention has deleted; batches keep their own references. */
static void forget_deleted(ps_store *s, int64_t first) {
    ps_queue **queues;
    if (first == INT64_MAX || first <= atomic_load(&s->st_log_min)) return;
    while (ps_segments_count(&s->st_log) > 0 && ps_segments_base(&s->st_log, 0) < first)
        ps_segments_forget_first(&s->st_log);
    atomic_store(&s->st_log_min, first);
    int32_t n = ps_queues_snapshot(s, &queues);
    for (int32_t i = 0; i < n; i++) ps_queue_correct_min(queues[i], first);
    free(queues);
}

int ps_store_refresh(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int64_t first;
    int code;
    if (ps_enter(s) < 0) return ps_fail(e, PS_E_CLOSED, 0, -1, NULL, "the store is closed");
    if (!s->st_readonly) {
        code = ps_dispatch_catch_up(s, e);
    } else {
        pthread_mutex_lock(&s->st_dispatch_lock);
        code = list_newer_segments(s, &first, e);
        if (code == 0) code = ps_tombstones_load(s, NULL, e);
        if (code == 0) ps_tombstones_hide(s);
        if (code == 0) code = ps_queues_refresh(s, e);
        if (code == 0) ps_tombstones_hide(s); /* the writer deletes them after it has said so */
        if (code == 0) code = ps_reader_extend_locked(s, e);
        if (code == 0) forget_deleted(s, first);
        if (code == 0 && s->st_index != NULL) code = ps_index_refresh(s->st_index, e);
        if (code == 0 && s->st_index != NULL &&
            ps_index_end(s->st_index) > atomic_load(&s->st_index_tail))
            atomic_store(&s->st_index_tail, ps_index_end(s->st_index));
        pthread_mutex_unlock(&s->st_dispatch_lock);
    }
    ps_leave(s);
    return code;
}

ps_topic *ps_topic_open(ps_store *s, const char *name, int32_t len, int32_t make, ps_error *e) {
    const char *why = "";
    if (ps_enter(s) < 0) {
        ps_fail(e, PS_E_CLOSED, 0, -1, NULL, "the store is closed");
        return NULL;
    }
    ps_topic *t = len < 0 || len > PS_TOPIC_MAX ? NULL : ps_topic_find(s, name, len);
    if (t == NULL && make && s->st_readonly) {
        ps_fail(e, PS_E_READ_ONLY, 0, -1, s->st_root, "the store is open for reading only");
    } else if (t == NULL && make) {
        int code = ps_topic_check((const uint8_t *)name, len, &why);
        if (code < 0)
            ps_fail(e, code, 0, -1, NULL, "topic '%.140s': %s", name, why);
        else if ((t = ps_topic_get(s, name, len)) == NULL)
            ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for the topic");
    } else if (t == NULL) {
        ps_fail(e, PS_E_NOT_FOUND, 0, -1, s->st_root, "the store has no topic '%.200s'", name);
    }
    ps_leave(s);
    return t;
}

int ps_queue_range(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t *min_offset,
                   int64_t *max_offset) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    ps_dispatch_catch_up(s, NULL);
    ps_queue *q = topic != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    *min_offset = q != NULL ? atomic_load(&q->cq_min) : 0;
    *max_offset = q != NULL ? atomic_load(&q->cq_max) : 0;
    ps_leave(s);
    return q != NULL ? 0 : PS_E_NOT_FOUND;
}

int ps_wait_flushed(ps_store *s, int64_t physical, int32_t timeout_ms, ps_error *e) {
    if (ps_enter(s) < 0) return ps_fail(e, PS_E_CLOSED, 0, -1, NULL, "the store is closed");
    int code = ps_wait_durable(s, physical, timeout_ms, e);
    ps_leave(s);
    return code;
}

int ps_store_flush(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    if (ps_enter(s) < 0) return ps_fail(e, PS_E_CLOSED, 0, -1, NULL, "the store is closed");
    int code = s->st_readonly ? 0 : ps_log_flush(s, 0, e);
    if (code == 0 && !s->st_readonly) code = ps_dispatch_catch_up(s, e);
    if (code == 0 && !s->st_readonly) code = ps_derived_flush(s, true, e);
    ps_leave(s);
    return code;
}
