/* See flusher.h. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "log/flusher.h"

#define NS_PER_MS 1000000LL
#define GATHER_MAX_NS 2000000

void ps_flusher_init(ps_flusher *f, ps_safe *safe) {
    f->fl_safe = safe;
    f->fl_log = safe->sf_log;
    pthread_mutex_init(&f->fl_lock, NULL);
}

/* ---- syncing ---- */

/* fl_lock held. */
static void count_sync(ps_flusher *f, int64_t ns) {
    atomic_fetch_add_explicit(&f->fl_fsyncs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&f->fl_fsync_ns, ns, memory_order_relaxed);
    if (ns > atomic_load_explicit(&f->fl_fsync_max_ns, memory_order_relaxed))
        atomic_store_explicit(&f->fl_fsync_max_ns, ns, memory_order_relaxed);
}

/* Syncs one file, counted, and moves the flushed position when that worked. */
static int sync_file(ps_flusher *f, ps_mapfile *mf, int least_pages, ps_error *e) {
    _Atomic int64_t *done = &f->fl_log->lg_flushed;
    int64_t before = atomic_load(&mf->mf_flushed), began = ps_monotonic_ns();
    int code = ps_mapfile_flush(mf, least_pages, e);
    if (code < 0) {
        ps_log_sync_failed(f->fl_log, atomic_load(&mf->mf_errno));
        return code;
    }
    int64_t flushed = atomic_load(&mf->mf_flushed);
    if (flushed != before) count_sync(f, ps_monotonic_ns() - began);
    if (mf->mf_base + flushed > atomic_load(done)) atomic_store(done, mf->mf_base + flushed);
    return flushed != before;
}

/* fl_lock held. 0, or an error: the log is not on the disk up to `end`. */
static int sync_log(ps_flusher *f, int64_t end, int least_pages, ps_error *e) {
    ps_log *l = f->fl_log;
    int code = 0;
    while (atomic_load(&l->lg_flushed) < end) {
        ps_error why = {0};
        int64_t at = atomic_load(&l->lg_flushed);
        ps_mapfile *mf = ps_segments_find(&l->lg_files, at, &why);
        int64_t first = mf == NULL && why.code == 0 ? ps_segments_base(&l->lg_files, 0) : -1;
        if (first > at) { /* retention was faster */
            atomic_store(&l->lg_flushed, first);
            continue;
        }
        if (mf == NULL) /* cut off, or there is no memory to map it again */
            return ps_fail(e, PS_E_FLUSH_FAILED, why.sys_errno, at, f->fl_safe->sf_root,
                           "a segment that is not on the disk cannot be synced: %s",
                           why.code != 0 ? why.text : "no longer there");
        code = sync_file(f, mf, least_pages, e);
        bool full = atomic_load(&mf->mf_flushed) >= mf->mf_size;
        ps_mapfile_unref(mf);
        if (code <= 0 || !full) break;
    }
    return code < 0 ? code : 0;
}

int ps_flusher_sync(ps_flusher *f, int least_pages, ps_error *e) {
    ps_log *l = f->fl_log;
    pthread_mutex_lock(&f->fl_lock);
    int64_t stamp = atomic_load(&l->lg_published_stamp);
    int64_t end = atomic_load(&l->lg_end);
    int err = ps_safe_errno(f->fl_safe);
    int code = err == 0 ? sync_log(f, end, least_pages, e)
                        : ps_fail(e, PS_E_FLUSH_FAILED, err, atomic_load(&l->lg_flushed),
                                  f->fl_safe->sf_root, "an earlier sync of the log failed");
    if (code == 0 && atomic_load(&l->lg_flushed) >= end) atomic_store(&f->fl_physic_stamp, stamp);
    pthread_mutex_unlock(&f->fl_lock);
    ps_safe_moved(f->fl_safe);
    return code;
}

int ps_flusher_wait(ps_flusher *f, int64_t physical, int32_t timeout_ms, ps_error *e) {
    bool syncs_itself = !f->fl_running && ps_safe_flushed(f->fl_safe) < physical;
    int code = syncs_itself ? ps_flusher_sync(f, 0, e) : 0;
    return code < 0 ? code : ps_safe_block(f->fl_safe, physical, f->fl_running ? timeout_ms : 0, e);
}

/* ---- the thread ---- */

static bool is_wanted(const ps_safe *s) {
    return atomic_load(&s->sf_wanted) > ps_safe_flushed(s) && ps_safe_errno(s) == 0;
}

/* Those whom the last sync has released put again at once, but not all in the same microsecond: the
 * next sync waits for as many as it served before, at most as long as a sync takes. A lone putter
 * waits for nobody. */
static void gather_locked(ps_flusher *f) {
    ps_safe *s = f->fl_safe;
    struct timespec until =
        ps_monotonic_in(f->fl_sync_ns < GATHER_MAX_NS ? f->fl_sync_ns : GATHER_MAX_NS);
    int rc = 0;
    while (s->sf_waiting < f->fl_served && rc == 0 && !atomic_load(&s->sf_closed))
        rc = pthread_cond_timedwait(&s->sf_wake, &s->sf_lock, &until);
    f->fl_served = s->sf_waiting;
}

/* Sleeps until somebody waits or the interval is over; says whether somebody does. */
static bool await_waiters(ps_flusher *f) {
    ps_safe *s = f->fl_safe;
    struct timespec until = ps_monotonic_in(f->fl_interval_ms * NS_PER_MS);
    int rc = 0;
    pthread_mutex_lock(&s->sf_lock);
    while (!is_wanted(s) && rc == 0 && !atomic_load(&s->sf_closed))
        rc = pthread_cond_timedwait(&s->sf_wake, &s->sf_lock, &until);
    bool wanted = is_wanted(s);
    if (wanted) gather_locked(f);
    pthread_mutex_unlock(&s->sf_lock);
    return wanted;
}

void *ps_flusher_main(void *flusher) {
    ps_flusher *f = flusher;
    int64_t thorough_at = ps_monotonic_ms() + f->fl_thorough_ms;
    ps_error e;
    while (!atomic_load(&f->fl_safe->sf_closed)) {
        bool wanted = await_waiters(f);
        int64_t began = ps_monotonic_ns(), now = began / NS_PER_MS;
        bool thorough = wanted || now >= thorough_at || f->fl_safe->sf_sync;
        if (now >= thorough_at) thorough_at = now + f->fl_thorough_ms;
        e.code = 0;
        ps_flusher_sync(f, thorough ? 0 : f->fl_least_pages, &e);
        if (wanted) f->fl_sync_ns = ps_monotonic_ns() - began;
    }
    return NULL;
}
