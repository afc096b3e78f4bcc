/* Opening a store. Load order as upstream's, but the lock is taken first: upstream takes it
 * after recovery has changed files (docs/internals/format.md#checkpoint). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/ends.h"
#include "store/lights.h"
#include "store/store.h"

#define READER_TRIES 11
#define READER_LOOKS 3
#define READER_LOOK_MS 20 /* before the first of these, each twice the one before */
#define READER_PAUSE_MS 250 /* the longest; the first is 2 ms, each twice the one before */

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
        if (n > 0 && s->st_log.lg_dirs.count == PS_DIRS_MAX)
            return ps_fail(e, PS_E_ARGUMENT, 0, -1, at, "more than %d commit log folders",
                           PS_DIRS_MAX);
        if (n > 0 && (s->st_log.lg_dirs.path[s->st_log.lg_dirs.count++] = strndup(at, n)) == NULL)
            return ps_no_memory(e, at, "no memory for the name of a commit log folder");
        at += n + (at[n] == ',');
    }
    qsort(s->st_log.lg_dirs.path, (size_t)s->st_log.lg_dirs.count, sizeof(char *), by_text);
    return 0;
}

/* Records become dispatchable only now. */
static void safe_moved(void *store) {
    ps_dispatch_wake(store);
}

static void init_objects(ps_store *s) {
    const ps_conf *c = &s->st_conf;
    ps_mappings_init(&s->st_mappings, c->mapped_files_max, ps_segments_let_go);
    ps_log_init(&s->st_log, s->st_io, c->commitlog_file_size, s->st_readonly);
    s->st_log.lg_files.ss_mappings = &s->st_mappings;
    s->st_log.lg_adopt_sizes = c->adopt_sizes != 0;
    s->st_log.lg_kept = c->keep_log != 0;
    s->st_log.lg_reserve_window = c->reserve_window;
    s->st_log.lg_places = &s->st_places;
    ps_allocator_init(&s->st_allocator, &s->st_log);
    ps_safe_init(&s->st_safe, &s->st_log);
    s->st_safe.sf_root = s->st_root;
    s->st_safe.sf_sync = c->sync_flush != 0;
    s->st_safe.sf_timeout_ms = c->sync_flush_timeout_ms;
    s->st_safe.sf_told = safe_moved;
    s->st_safe.sf_told_arg = s;
    ps_flusher_init(&s->st_flusher, &s->st_safe);
    s->st_flusher.fl_interval_ms = c->flush_interval_ms;
    s->st_flusher.fl_thorough_ms = c->flush_thorough_ms;
    s->st_flusher.fl_least_pages = c->flush_least_pages;
    ps_topics_init(&s->st_topics, s, s->st_io, s->st_root, c->consumequeue_file_size,
                   s->st_readonly);
    s->st_topics.tt_shared.qs_mappings = &s->st_mappings;
    s->st_topics.tt_shared.qs_places = &s->st_places;
    s->st_topics.tt_shared.qs_adopt_sizes = c->adopt_sizes != 0;
    s->st_topics.tt_shared.qs_log_min = &s->st_log.lg_min;
    s->st_topics.tt_shared.qs_confirms = ps_recover_confirms;
    s->st_topics.tt_shared.qs_confirms_arg = s;
    atomic_store(&s->st_arrivals.ar_fd, -1);
    ps_dispatcher_init(&s->st_dispatcher);
    ps_keeper_init(&s->st_keeper);
    ps_retention_set(&s->st_retention, c);
    atomic_store(&s->st_retention.rt_out_to, INT64_MAX);
}

static ps_store *store_new(const ps_conf *conf, ps_io *io, bool readonly, ps_error *e) {
    if (ps_conf_check(conf, e) < 0 || ps_sigbus_install(e) < 0) return NULL;
    ps_store *s = calloc(1, sizeof *s);
    if (s == NULL || (s->st_root = strdup(conf->root)) == NULL) {
        free(s);
        ps_no_memory(e, conf->root, "no memory for the store");
        return NULL;
    }
    size_t n = strlen(s->st_root);
    while (n > 1 && s->st_root[n - 1] == '/') s->st_root[--n] = 0;
    atomic_init(&s->st_refs, 1);
    s->st_io = io != NULL ? io : ps_io_system_of((mode_t)conf->file_mode);
    s->st_conf = *conf;
    s->st_conf.root = s->st_root;
    s->st_conf.commitlog_dirs = NULL;
    s->st_conf.queues_before = NULL;
    ps_aside_init(&s->st_aside, s->st_io, s->st_root);
    s->st_readonly = readonly;
    s->st_lock_fd = s->st_sender_fd = s->st_light_fd = -1;
    s->st_light_doubt = INT64_MAX;
    s->st_places.pl_io = s->st_io;
    s->st_levels.count = conf->level_count;
    memcpy(s->st_levels.delay_ms, conf->level_delay_ms, sizeof s->st_levels.delay_ms);
    s->st_timer_rules = (ps_timer_rules){conf->timer_enable != 0, conf->timer_max_delay_s * 1000,
                                         conf->timer_precision_ms};
    pthread_mutex_init(&s->st_close_lock, NULL);
    ps_tier_init(&s->st_tier);
    init_objects(s);
    s->st_topics.tt_shared.qs_before = conf->queues_before;
    if (split_dirs(s, conf->commitlog_dirs, e) < 0) {
        ps_store_free(s);
        return NULL;
    }
    return s;
}

/* ---- is it a store? ---- */

static bool is_folder(ps_io *io, const char *path) {
    struct stat st;
    return io->stat(io, path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool folder_holds(const ps_store *s, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->st_root, name);
    return s->st_io->access(s->st_io, path, F_OK) == 0;
}

static bool folder_empty(ps_io *io, const char *path) {
    DIR *dir = io->opendir(io, path);
    struct dirent *d;
    bool empty = true;
    if (dir == NULL) return false;
    while ((d = io->readdir(io, dir)) != NULL)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
            strcmp(d->d_name, "meta") != 0 && strcmp(d->d_name, "config") != 0)
            empty = false;
    if (errno != 0) empty = false;
    io->closedir(io, dir);
    return empty;
}

static int check_root(ps_store *s, ps_error *e) {
    struct stat st;
    bool known = false;
    if (s->st_io->stat(s->st_io, s->st_root, &st) < 0) {
        if (errno == ENOENT && !s->st_readonly) return 0;
        return ps_fail(e, errno == EACCES ? PS_E_FORBIDDEN : PS_E_NOT_A_STORE, errno, -1,
                       s->st_root, "cannot open the directory");
    }
    if (!S_ISDIR(st.st_mode))
        return ps_fail(e, PS_E_NOT_A_STORE, 0, -1, s->st_root, "not a directory");
    if (s->st_io->access(s->st_io, s->st_root, R_OK | X_OK | (s->st_readonly ? 0 : W_OK)) < 0)
        return ps_fail(e, PS_E_FORBIDDEN, errno, -1, s->st_root,
                       "permission denied on the directory");
    for (int32_t i = 0; i < s->st_log.lg_dirs.count; i++)
        known = known || is_folder(s->st_io, s->st_log.lg_dirs.path[i]);
    if (known || folder_holds(s, "consumequeue") || folder_holds(s, "checkpoint") ||
        folder_holds(s, "lock"))
        return 0;
    if (!s->st_readonly && folder_empty(s->st_io, s->st_root)) return 0;
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
                      s->st_conf.adopt_sizes != 0, s->st_readonly, &s->st_mappings, &s->st_aside,
                      &skipped, &s->st_index, e);
    if (code == 0 && s->st_conf.index_tags) ps_index_set_tags(s->st_index);
    if (code == 0 && skipped > 0)
        ps_report_add(report, PS_ACTION_SKIPPED, 0, 0, skipped, "index",
                      "files that are not index files");
    return code;
}

static int make_root(ps_store *s, ps_error *e) {
    char path[PATH_MAX];
    int code = ps_make_folders(s->st_io, s->st_root, true, e);
    ps_dirs *log = &s->st_log.lg_dirs;
    for (int32_t i = 0; i < log->count && code == 0; i++) {
        log->made[i] = s->st_io->access(s->st_io, log->path[i], F_OK) < 0;
        code = ps_make_folders(s->st_io, log->path[i], true, e);
    }
    snprintf(path, sizeof path, "%s/consumequeue", s->st_root);
    return code < 0 ? code : ps_make_folders(s->st_io, path, true, e);
}

static int load_store(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e) {
    int64_t len;
    uint8_t *note = ps_ends_read(s->st_io, s->st_root, &len);
    int code = ps_log_open(&s->st_log, e);
    if (code == 0) code = ps_log_check_names(&s->st_log, e);
    bool crashed = ps_abort_present(s->st_io, s->st_root) == 1;
    /* The abort file of a live writer tells of no crash. */
    bool live = crashed && s->st_readonly && ps_lock_holder(s->st_io, s->st_root) != 0;
    const ps_segments *log = &s->st_log.lg_files;
    int64_t last = log->ss_count > 0 ? log->ss_items[log->ss_count - 1].sg_base : -1;
    s->st_topics.tt_shared.qs_log_limit = live || last < 0 ? INT64_MAX : last + log->ss_file_size;
    crashed = crashed && !live;
    if (progress != NULL) progress->phase = 1;
    if (code == 0) code = ps_tombstones_load(s, report, e);
    if (code == 0) code = ps_queues_load(&s->st_topics, crashed, report, progress, e);
    if (progress != NULL) progress->phase = 2;
    if (code == 0) code = ps_checkpoint_read(s->st_io, s->st_root, &s->st_keeper.kp_checkpoint, e);
    ps_keeper_show_locked(&s->st_keeper);
    if (code == 0) code = ps_ends_compare(s, note, len, crashed, report, e);
    free(note);
    s->st_unnoted = code == 0 && !live && s->st_conf.compare_queues;
    return code < 0 ? code : open_index(s, report, e);
}

/* Made empty, and after recovery, so that an index folder that is missing means one taken away. */
static int make_index_folder(ps_store *s, ps_error *e) {
    char path[PATH_MAX];
    if (s->st_index == NULL) return 0;
    snprintf(path, sizeof path, "%s/index", s->st_root);
    return ps_make_folders(s->st_io, path, true, e);
}

static int start_threads(ps_store *s, ps_error *e) {
    const struct {
        void *(*main)(void *);
        void *arg;
        bool *running;
    } threads[PS_THREADS] = {
        {ps_flusher_main, &s->st_flusher, &s->st_flusher.fl_running},
        {ps_dispatch_main, s, NULL},
        {ps_keeper_main, s, NULL},
        {ps_allocator_main, &s->st_allocator, &s->st_allocator.al_running},
    };
    if (!s->st_conf.background) return 0;
    for (int32_t i = 0; i < PS_THREADS; i++) {
        int err = pthread_create(&s->st_threads[i], NULL, threads[i].main, threads[i].arg);
        if (err != 0)
            return ps_fail(e, PS_E_NO_MEMORY, err, -1, s->st_root, "cannot start a thread");
        s->st_thread_count++;
        if (threads[i].running != NULL) *threads[i].running = true;
    }
    return 0;
}

/* The file `lock`, which Java brokers know, may be deleted; these may not. */
static int take_places(ps_store *s, ps_error *e) {
    int code = ps_places_take(&s->st_places, s->st_root, e);
    int32_t count = s->st_log.lg_kept ? 0 : s->st_log.lg_dirs.count; /* a kept log is another's */
    for (int32_t i = 0; i < count && code == 0; i++)
        code = ps_places_take(&s->st_places, s->st_log.lg_dirs.path[i], e);
    return code;
}

/* A folder of the log that was not there is not left to be taken for one that is mounted. */
static void unmake_log_folders(ps_store *s) {
    ps_dirs *log = &s->st_log.lg_dirs;
    for (int32_t i = 0; i < log->count; i++)
        if (log->made[i]) (void)s->st_io->rmdir(s->st_io, log->path[i]); /* only if empty */
}

static ps_store *give_up(ps_store *s) {
    unmake_log_folders(s);
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
    if (code == 0) code = take_places(s, e);
    if (code == 0) code = ps_abort_check(s->st_io, s->st_root, e);
    if (code == 0) code = load_store(s, r, progress, e);
    if (code == 0) code = ps_recover(s, r, progress, e);
    if (code == 0) code = make_index_folder(s, e);
    if (code == 0 && ps_has_light_files(s)) code = ps_lights_begin(s, e);
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
    if (code == 0) code = load_store(s, r, progress, e);
    if (code == 0) code = ps_recover_read(s, r, progress, e);
    return code < 0 ? give_up(s) : s;
}

bool ps_looks_again(ps_io *io, const char *root, const ps_error *e, int *tries) {
    bool gone = e->code == PS_E_IO && e->sys_errno == ENOENT;
    bool odd = e->code == PS_E_NOT_ADJACENT || (e->code == PS_E_FILE_SIZE && e->sys_errno == 0);
    if (*tries == READER_TRIES || !(gone || (odd && ps_lock_holder(io, root) != 0))) return false;
    int pause = 2 << (*tries)++;
    usleep(1000 * (useconds_t)(pause < READER_PAUSE_MS ? pause : READER_PAUSE_MS));
    return true;
}

/* What a writer has in hand that opens the store looks damaged or missing: before that is reported,
 * it is looked at again. */
static bool looks_twice(ps_io *io, const char *root, const ps_report *r, int *looks) {
    bool tells = false;
    for (int32_t i = 0; i < r->item_count && !tells; i++)
        tells = r->items[i].action != PS_ACTION_KEPT;
    if (!tells || *looks == READER_LOOKS || ps_lock_holder(io, root) == 0) return false;
    usleep(1000 * (useconds_t)(READER_LOOK_MS << (*looks)++));
    return true;
}

ps_store *ps_reader_open(const ps_conf *conf, ps_io *io, ps_report *report, ps_progress *progress,
                         ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    ps_report *own = report != NULL ? NULL : malloc(sizeof *own);
    ps_report *r = report != NULL ? report : own;
    ps_io *looked = io != NULL ? io : ps_io_system();
    ps_store *s;
    int tries = 0, looks = 0;
    if (r == NULL) return NULL;
    for (;;) {
        e->code = 0;
        s = reader_try(conf, io, r, progress, e);
        if (s == NULL && !ps_looks_again(looked, conf->root, e, &tries)) break;
        if (s != NULL && !looks_twice(looked, conf->root, r, &looks)) break;
        if (s != NULL) give_up(s);
    }
    if (progress != NULL) progress->phase = 4;
    free(own);
    return s;
}
