/* See flusher.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "log/flusher.h"

#define NS_PER_MS 1000000LL
#define GATHER_MAX_NS 2000000

void ps_flusher_init(ps_flusher *f, ps_log *log) {
    f->fl_log = log;
    pthread_mutex_init(&f->fl_lock, NULL);
    pthread_mutex_init(&f->fl_wait_lock, NULL);
    ps_cond_init(&f->fl_wake);
    ps_cond_init(&f->fl_done);
}

void ps_flusher_stop(ps_flusher *f) {
    pthread_mutex_lock(&f->fl_wait_lock);
    atomic_store(&f->fl_stopping, true);
    pthread_cond_broadcast(&f->fl_wake);
    pthread_cond_broadcast(&f->fl_done);
    pthread_mutex_unlock(&f->fl_wait_lock);
}

/* ---- syncing ---- */

/* Syncs one file, counted, and moves the flushed position when that worked. */
static int sync_file(ps_flusher *f, ps_mapfile *mf, int least_pages, ps_error *e) {
    _Atomic int64_t *done = &f->fl_log->lg_flushed;
    int64_t before = atomic_load(&mf->mf_flushed);
    int code = ps_mapfile_flush(mf, least_pages, e);
    if (code < 0) {
        atomic_store(&f->fl_errno, atomic_load(&mf->mf_errno));
        return code;
    }
    int64_t flushed = atomic_load(&mf->mf_flushed);
    if (flushed != before) atomic_fetch_add_explicit(&f->fl_fsyncs, 1, memory_order_relaxed);
    if (mf->mf_base + flushed > atomic_load(done)) atomic_store(done, mf->mf_base + flushed);
    return flushed != before;
}

int ps_flusher_sync(ps_flusher *f, int least_pages, ps_error *e) {
    ps_log *l = f->fl_log;
    int code = 0;
    pthread_mutex_lock(&f->fl_lock);
    int64_t stamp = atomic_load(&l->lg_published_stamp);
    int64_t end = atomic_load(&l->lg_end);
    while (atomic_load(&l->lg_flushed) < end) {
        ps_mapfile *mf = ps_segments_find(&l->lg_files, atomic_load(&l->lg_flushed), e);
        if (mf == NULL) break;
        code = sync_file(f, mf, least_pages, e);
        bool full = atomic_load(&mf->mf_flushed) >= mf->mf_size;
        ps_mapfile_unref(mf);
        if (code <= 0 || !full) break;
    }
    if (code >= 0 && atomic_load(&l->lg_flushed) >= end) atomic_store(&f->fl_physic_stamp, stamp);
    pthread_mutex_unlock(&f->fl_lock);
    return code < 0 ? code : 0;
}

/* ---- waiting ---- */

static int wait_outcome(ps_flusher *f, int64_t physical, int rc, ps_error *e) {
    int err = atomic_load(&f->fl_errno);
    int64_t flushed = atomic_load(&f->fl_log->lg_flushed);
    if (flushed >= physical) return 0;
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, flushed, f->fl_root,
                       "the message is in the log but could not be synced: %s", strerror(err));
    if (atomic_load(&f->fl_stopping))
        return ps_fail(e, PS_E_CLOSED, 0, -1, f->fl_root, "the store was closed while waiting");
    return rc == ETIMEDOUT ? PS_FLUSH_DISK_TIMEOUT : 1;
}

/* One sync serves everybody who waits: the thread syncs up to the highest offset that is wanted,
 * and all who came while the last sync ran are served by the next. */
int ps_flusher_wait(ps_flusher *f, int64_t physical, int32_t timeout_ms, ps_error *e) {
    _Atomic int64_t *flushed = &f->fl_log->lg_flushed;
    if (atomic_load(flushed) >= physical) return 0;
    if (!f->fl_running) {
        int code = ps_flusher_sync(f, 0, e);
        return code < 0 ? code : wait_outcome(f, physical, ETIMEDOUT, e);
    }
    struct timespec until = ps_monotonic_in(timeout_ms * NS_PER_MS);
    int rc = 0;
    pthread_mutex_lock(&f->fl_wait_lock);
    if (physical > atomic_load(&f->fl_wanted)) atomic_store(&f->fl_wanted, physical);
    f->fl_waiters++;
    pthread_cond_signal(&f->fl_wake);
    while (atomic_load(flushed) < physical && rc == 0 && !atomic_load(&f->fl_errno) &&
           !atomic_load(&f->fl_stopping))
        rc = pthread_cond_timedwait(&f->fl_done, &f->fl_wait_lock, &until);
    f->fl_waiters--;
    pthread_mutex_unlock(&f->fl_wait_lock);
    return wait_outcome(f, physical, rc, e);
}

/* ---- the thread ---- */

static bool is_wanted(ps_flusher *f) {
    return atomic_load(&f->fl_wanted) > atomic_load(&f->fl_log->lg_flushed) &&
           atomic_load(&f->fl_errno) == 0;
}

/* Those whom the last sync has released put again at once, but not all in the same microsecond: the
 * next sync waits for as many as it served before, at most as long as a sync takes. A lone putter
 * waits for nobody. */
static void gather_locked(ps_flusher *f) {
    struct timespec until =
        ps_monotonic_in(f->fl_sync_ns < GATHER_MAX_NS ? f->fl_sync_ns : GATHER_MAX_NS);
    int rc = 0;
    while (f->fl_waiters < f->fl_served && rc == 0 && !atomic_load(&f->fl_stopping))
        rc = pthread_cond_timedwait(&f->fl_wake, &f->fl_wait_lock, &until);
    f->fl_served = f->fl_waiters;
}

/* Sleeps until somebody waits or the interval is over; says whether somebody does. */
static bool await_waiters(ps_flusher *f) {
    struct timespec until = ps_monotonic_in(f->fl_interval_ms * NS_PER_MS);
    int rc = 0;
    pthread_mutex_lock(&f->fl_wait_lock);
    while (!is_wanted(f) && rc == 0 && !atomic_load(&f->fl_stopping))
        rc = pthread_cond_timedwait(&f->fl_wake, &f->fl_wait_lock, &until);
    bool wanted = is_wanted(f);
    if (wanted) gather_locked(f);
    pthread_mutex_unlock(&f->fl_wait_lock);
    return wanted;
}

void *ps_flusher_main(void *flusher) {
    ps_flusher *f = flusher;
    int64_t thorough_at = ps_monotonic_ms() + f->fl_thorough_ms;
    ps_error e;
    while (!atomic_load(&f->fl_stopping)) {
        bool wanted = await_waiters(f);
        int64_t began = ps_monotonic_ns(), now = began / NS_PER_MS;
        bool thorough = wanted || now >= thorough_at || f->fl_sync;
        if (now >= thorough_at) thorough_at = now + f->fl_thorough_ms;
        e.code = 0;
        ps_flusher_sync(f, thorough ? 0 : f->fl_least_pages, &e);
        if (wanted) f->fl_sync_ns = ps_monotonic_ns() - began;
        pthread_mutex_lock(&f->fl_wait_lock);
        pthread_cond_broadcast(&f->fl_done);
        pthread_mutex_unlock(&f->fl_wait_lock);
        if (f->fl_sync) f->fl_synced(f->fl_synced_arg); /* records become dispatchable only now */
    }
    return NULL;
}
