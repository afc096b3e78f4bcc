/* Retention: which segments may go, and when the disk is too full to go on.
 * docs/internals/format.md#retention; "Cleaning"; upstream
 * DefaultMessageStore.CleanCommitLogService. Queues and index follow the log. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "store/lights.h"
#include "store/store.h"

/* Rules may be changed while a round runs (ps_store_retain). */
#define RULE(s, field) atomic_load_explicit(&(s)->st_retention.field, memory_order_relaxed)

#define WHY_HOUR 1
#define WHY_RATIO 2
#define WHY_FORCED 3
#define WHY_ASKED 4

void ps_retention_set(ps_retention *r, const ps_conf *rules) {
    atomic_store(&r->rt_reserved_hours, rules->file_reserved_hours);
    atomic_store(&r->rt_when_hours, rules->delete_when_hours);
    atomic_store(&r->rt_batch_max, rules->delete_batch_max);
    atomic_store(&r->rt_forcibly, rules->clean_forcibly);
    atomic_store(&r->rt_max_used_ratio, rules->disk_max_used_ratio);
    atomic_store(&r->rt_clean_ratio, rules->disk_clean_ratio);
    atomic_store(&r->rt_warning_ratio, rules->disk_warning_ratio);
}

/* Percent used of the partition as upstream counts it, rounded up; -1 unknown. */
static int32_t disk_percent(ps_store *s, const char *path) {
    struct statvfs v;
    if (s->st_io->statvfs(s->st_io, path, &v) < 0 || v.f_blocks == 0) return -1;
    uint64_t used = v.f_blocks - v.f_bfree, whole = used + v.f_bavail;
    return whole == 0 ? 100 : (int32_t)((used * 100 + whole - 1) / whole);
}

/* The least full folder decides whether writing may go on; the fullest whether space must be
 * made. */
static void disk_state(ps_store *s, int32_t *least, int32_t *most) {
    *least = 100;
    *most = -1;
    for (int32_t i = 0; i <= s->st_log.lg_dirs.count; i++) {
        int32_t p =
            disk_percent(s, i < s->st_log.lg_dirs.count ? s->st_log.lg_dirs.path[i] : s->st_root);
        if (p < 0) continue;
        if (i < s->st_log.lg_dirs.count && p < *least) *least = p;
        if (p > *most) *most = p;
    }
    if (*most < 0) *least = *most = 0; /* nothing is known: then nothing is refused */
}

bool ps_retention_disk_full(ps_store *s) {
    int32_t least, most;
    disk_state(s, &least, &most);
    bool full = least > RULE(s, rt_warning_ratio);
    atomic_store(&s->st_retention.rt_disk_full, full);
    return full;
}

static bool hour_has_come(const ps_store *s, int64_t now_ms) {
    time_t t = (time_t)(now_ms / 1000);
    struct tm local;
    localtime_r(&t, &local);
    return (RULE(s, rt_when_hours) >> local.tm_hour & 1) != 0;
}

static int32_t reason_to_delete(ps_store *s, int64_t now_ms, bool manual, bool immediate,
                                ps_retention_report *out) {
    int32_t least, most;
    disk_state(s, &least, &most);
    out->disk_percent = most;
    out->disk_full = least > RULE(s, rt_warning_ratio);
    if (immediate || manual) return immediate ? WHY_FORCED : WHY_ASKED;
    if (most > RULE(s, rt_clean_ratio) && RULE(s, rt_forcibly)) return WHY_FORCED;
    if (most > RULE(s, rt_max_used_ratio)) return WHY_RATIO;
    return hour_has_come(s, now_ms) ? WHY_HOUR : 0;
}

/* Whether the oldest file may go: never the last, and expired unless space is needed at once. */
static bool may_go(ps_store *s, int32_t i, int64_t now_ms, bool at_once, int64_t *size) {
    struct stat st;
    int64_t base = ps_segments_base(&s->st_log.lg_files, i);
    if (base < 0 || i >= ps_segments_count(&s->st_log.lg_files) - 1 ||
        base + s->st_log.lg_files.ss_file_size > atomic_load(&s->st_dispatcher.ds_end))
        return false;
    ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, base, NULL);
    if (mf == NULL) return false;
    bool known = s->st_io->fstat(s->st_io, mf->mf_fd, &st) == 0;
    ps_mapfile_unref(mf);
    if (!known) return false;
    *size = st.st_blocks * 512;
    int64_t age = now_ms - (st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000);
    if (!at_once && age < (int64_t)RULE(s, rt_reserved_hours) * 3600 * 1000) return false;
    bool out = base + s->st_log.lg_files.ss_file_size <= RULE(s, rt_out_to);
    atomic_store(&s->st_retention.rt_waits, !out);
    return out || (at_once && RULE(s, rt_lets_go));
}

static int clean_derived(ps_store *s, bool dry_run, ps_retention_report *out, ps_error *e) {
    ps_queue **queues;
    int64_t min = out->log_min;
    int code = 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code >= 0; i++) {
        code = ps_queue_delete_before(queues[i], min, dry_run, e);
        if (code > 0) out->queue_files += code;
        if (!dry_run) ps_queue_correct_min(queues[i], min, NULL);
    }
    free(queues);
    if (code >= 0 && s->st_index != NULL) {
        code = ps_index_delete_before(s->st_index, min, dry_run, e);
        out->index_files = code > 0 ? code : 0;
    }
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    if (code >= 0 && !dry_run) code = ps_lights_trim(s, min, e);
    return code < 0 ? code : 0;
}

int ps_retention_round(ps_store *s, int64_t now_ms, bool manual, bool immediate, bool dry_run,
                       ps_retention_report *out, ps_error *e) {
    *out = (ps_retention_report){.log_min = atomic_load(&s->st_log.lg_min)};
    out->why = reason_to_delete(s, now_ms, manual, immediate, out);
    if (!dry_run) atomic_store(&s->st_retention.rt_disk_full, out->disk_full != 0);
    atomic_store(&s->st_retention.rt_waits, false);
    if (out->why == 0) return 0;
    int64_t size = 0;
    int code = 0;
    while (out->log_files < RULE(s, rt_batch_max) &&
           may_go(s, dry_run ? out->log_files : 0, now_ms, out->why == WHY_FORCED, &size)) {
        /* Light queues whose records are gone are in their files alone; a full disk needs room. */
        if (!dry_run && out->log_files == 0 && (code = ps_lights_sync(s, e)) < 0 &&
            code != PS_E_DISK_FULL)
            return code;
        if (!dry_run && (code = ps_log_delete(&s->st_log, 0, e)) < 0) return code;
        out->log_files++;
        out->bytes += size;
        out->log_min += s->st_log.lg_files.ss_file_size;
        if (!dry_run) atomic_store(&s->st_log.lg_min, out->log_min);
    }
    return out->log_files > 0 ? clean_derived(s, dry_run, out, e) : 0;
}

int ps_store_clean(ps_store *s, int64_t now_ms, int32_t manual, int32_t immediate, int32_t dry_run,
                   ps_retention_report *out, ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    int code = PS_E_READ_ONLY;
    if (s->st_readonly)
        ps_fail(e, code, 0, -1, s->st_root, "the store is open for reading only");
    else {
        ps_dispatch_catch_up(s, NULL); /* a segment goes only when it was dispatched */
        if (now_ms == 0) now_ms = ps_now_ms();
        code = ps_retention_round(s, now_ms, manual, immediate, dry_run, out, e);
    }
    ps_leave(s);
    return code;
}

int ps_store_retain(ps_store *s, const ps_conf *rules, ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_retention_set(&s->st_retention, rules);
    ps_leave(s);
    return 0;
}

void ps_store_out_to(ps_store *s, int64_t end, int32_t lets_go) {
    atomic_store(&s->st_retention.rt_out_to, end);
    atomic_store(&s->st_retention.rt_lets_go, lets_go != 0);
}

void ps_store_clean_by_itself(ps_store *s, int32_t on) {
    atomic_store(&s->st_retention.rt_resting, !on);
}
