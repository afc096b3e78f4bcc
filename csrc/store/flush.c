/* What happens behind the callers' backs: syncing the log, syncing what is derived from it, the
 * checkpoint, and making files and windows ahead of the writer. Spec section 9; upstream
 * FlushManager, GroupCommitService, FlushConsumeQueueService, AllocateMappedFileService. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/store.h"

#define KEEP_INTERVAL_MS 1000
#define GATHER_MAX_NS 2000000
#define PAGE 4096
#define TOUCH_CHUNK (1 << 20)
#define TOUCH_CALM_CHUNK (128 << 10)
#define TOUCH_CALM_PAUSE_US 300
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static struct timespec in_ms(int64_t ms) {
    return ps_monotonic_in(ms * 1000000);
}

/* ---- the log ---- */

/* Syncs one file, counted, and moves the flushed position when that worked. */
static int flush_file(ps_store *s, ps_mapfile *mf, int least_pages, ps_error *e) {
    int64_t before = atomic_load(&mf->mf_flushed);
    int code = ps_mapfile_flush(mf, least_pages, e);
    if (code < 0) {
        atomic_store(&s->st_flush_errno, atomic_load(&mf->mf_errno));
        return code;
    }
    int64_t flushed = atomic_load(&mf->mf_flushed);
    if (flushed != before) atomic_fetch_add_explicit(&s->st_fsyncs, 1, memory_order_relaxed);
    if (mf->mf_base + flushed > atomic_load(&s->st_flushed))
        atomic_store(&s->st_flushed, mf->mf_base + flushed);
    return flushed != before;
}

int ps_log_flush(ps_store *s, int least_pages, ps_error *e) {
    int code = 0;
    pthread_mutex_lock(&s->st_flush_lock);
    int64_t stamp = atomic_load(&s->st_stamp_published);
    int64_t end = atomic_load(&s->st_log_end);
    while (atomic_load(&s->st_flushed) < end) {
        ps_mapfile *mf = ps_segments_find(&s->st_log, atomic_load(&s->st_flushed), e);
        if (mf == NULL) break;
        code = flush_file(s, mf, least_pages, e);
        bool full = atomic_load(&mf->mf_flushed) >= mf->mf_size;
        ps_mapfile_unref(mf);
        if (code <= 0 || !full) break;
    }
    if (code >= 0 && atomic_load(&s->st_flushed) >= end)
        atomic_store(&s->st_physic_timestamp, stamp);
    pthread_mutex_unlock(&s->st_flush_lock);
    return code < 0 ? code : 0;
}

static int wait_outcome(ps_store *s, int64_t physical, int rc, ps_error *e) {
    int err = atomic_load(&s->st_flush_errno);
    if (atomic_load(&s->st_flushed) >= physical) return 0;
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, atomic_load(&s->st_flushed), s->st_root,
                       "the message is in the log but could not be synced: %s", strerror(err));
    if (atomic_load(&s->st_stopping))
        return ps_fail(e, PS_E_CLOSED, 0, -1, s->st_root, "the store was closed while waiting");
    return rc == ETIMEDOUT ? PS_FLUSH_DISK_TIMEOUT : 1;
}

/* One sync serves everybody who waits: the flusher takes the furthest wish, and all that came in
 * while the last sync ran are served by the next. */
int ps_wait_durable(ps_store *s, int64_t physical, int32_t timeout_ms, ps_error *e) {
    if (atomic_load(&s->st_flushed) >= physical) return 0;
    if (s->st_thread_count == 0) {
        int code = ps_log_flush(s, 0, e);
        return code < 0 ? code : wait_outcome(s, physical, ETIMEDOUT, e);
    }
    struct timespec until = in_ms(timeout_ms);
    int rc = 0;
    pthread_mutex_lock(&s->st_wait_lock);
    if (physical > atomic_load(&s->st_flush_wanted)) atomic_store(&s->st_flush_wanted, physical);
    s->st_flush_waiters++;
    pthread_cond_signal(&s->st_flush_wake);
    while (atomic_load(&s->st_flushed) < physical && rc == 0 && !atomic_load(&s->st_flush_errno) &&
           !atomic_load(&s->st_stopping))
        rc = pthread_cond_timedwait(&s->st_flush_done, &s->st_wait_lock, &until);
    s->st_flush_waiters--;
    pthread_mutex_unlock(&s->st_wait_lock);
    return wait_outcome(s, physical, rc, e);
}

static bool flush_wished(ps_store *s) {
    return atomic_load(&s->st_flush_wanted) > atomic_load(&s->st_flushed) &&
           atomic_load(&s->st_flush_errno) == 0;
}

/* Those whom the last sync has released put again at once, but not all in the same microsecond: the
 * next sync waits for as many as it served before, at most as long as a sync takes. A lone putter
 * waits for nobody. */
static void gather_locked(ps_store *s) {
    int64_t most = s->st_sync_ns < GATHER_MAX_NS ? s->st_sync_ns : GATHER_MAX_NS;
    struct timespec until = ps_monotonic_in(most);
    int rc = 0;
    while (s->st_flush_waiters < s->st_flush_served && rc == 0 && !atomic_load(&s->st_stopping))
        rc = pthread_cond_timedwait(&s->st_flush_wake, &s->st_wait_lock, &until);
    s->st_flush_served = s->st_flush_waiters;
}

/* Sleeps until somebody waits or the interval is over; says whether somebody does. */
static bool await_wish(ps_store *s) {
    struct timespec until = in_ms(s->st_conf.flush_interval_ms);
    int rc = 0;
    pthread_mutex_lock(&s->st_wait_lock);
    while (!flush_wished(s) && rc == 0 && !atomic_load(&s->st_stopping))
        rc = pthread_cond_timedwait(&s->st_flush_wake, &s->st_wait_lock, &until);
    bool wished = flush_wished(s);
    if (wished) gather_locked(s);
    pthread_mutex_unlock(&s->st_wait_lock);
    return wished;
}

void *ps_flush_main(void *store) {
    ps_store *s = store;
    int64_t thorough_at = ps_monotonic_ms() + s->st_conf.flush_thorough_ms;
    ps_error e;
    while (!atomic_load(&s->st_stopping)) {
        bool wished = await_wish(s);
        int64_t began = ps_monotonic_ns(), now = began / 1000000;
        bool thorough = wished || now >= thorough_at || s->st_conf.sync_flush;
        if (now >= thorough_at) thorough_at = now + s->st_conf.flush_thorough_ms;
        e.code = 0;
        ps_log_flush(s, thorough ? 0 : s->st_conf.flush_least_pages, &e);
        if (wished) s->st_sync_ns = ps_monotonic_ns() - began;
        pthread_mutex_lock(&s->st_wait_lock);
        pthread_cond_broadcast(&s->st_flush_done);
        pthread_mutex_unlock(&s->st_wait_lock);
        if (s->st_conf.sync_flush) ps_dispatch_wake(s); /* records become dispatchable only now */
    }
    return NULL;
}

/* ---- queues, index, checkpoint ---- */

static int flush_queues(ps_store *s, int least_pages, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int32_t n = ps_queues_snapshot(s, &queues);
    for (int32_t i = 0; i < n && code == 0; i++) code = ps_queue_flush(queues[i], least_pages, e);
    free(queues);
    return code;
}

static int write_checkpoint(ps_store *s, ps_error *e) {
    int64_t physic = atomic_load(&s->st_physic_timestamp);
    if (physic > s->st_checkpoint.physic_msg_timestamp) {
        s->st_checkpoint.physic_msg_timestamp = physic;
        s->st_checkpoint_dirty = true;
    }
    if (!s->st_checkpoint_dirty) return 0;
    int code = ps_checkpoint_write(s->st_io, s->st_root, &s->st_checkpoint, e);
    if (code == 0) s->st_checkpoint_dirty = false;
    return code;
}

/* The checkpoint's times for queues and index move only here, after the syncs, to what was
 * dispatched before them: recovery trusts derived files up to there and rebuilds them behind it. */
int ps_derived_flush(ps_store *s, bool thorough, ps_error *e) {
    pthread_mutex_lock(&s->st_keep_lock);
    int64_t logic = atomic_load(&s->st_logic_timestamp);
    int code = flush_queues(s, thorough ? 0 : s->st_conf.queue_flush_least_pages, e);
    if (code == 0 && thorough && s->st_index != NULL) code = ps_index_flush(s->st_index, e);
    if (code == 0 && thorough && logic > s->st_checkpoint.logics_msg_timestamp) {
        s->st_checkpoint.logics_msg_timestamp = logic;
        s->st_checkpoint.index_msg_timestamp = logic;
        s->st_checkpoint_dirty = true;
    }
    if (code == 0) code = write_checkpoint(s, e);
    pthread_mutex_unlock(&s->st_keep_lock);
    return code;
}

void *ps_keep_main(void *store) {
    ps_store *s = store;
    int64_t began = ps_monotonic_ms(), thorough_at = began + s->st_conf.queue_flush_thorough_ms;
    int64_t clean_at = began + 6 * (int64_t)s->st_conf.clean_interval_ms;
    ps_retention_report cleaned;
    ps_error e;
    int32_t nap = s->st_conf.queue_flush_interval_ms;
    if (nap <= 0 || nap > KEEP_INTERVAL_MS) nap = KEEP_INTERVAL_MS;
    while (!atomic_load(&s->st_stopping)) {
        struct timespec until = in_ms(nap);
        pthread_mutex_lock(&s->st_keep_nap_lock);
        if (!atomic_load(&s->st_stopping))
            pthread_cond_timedwait(&s->st_keep_wake, &s->st_keep_nap_lock, &until);
        pthread_mutex_unlock(&s->st_keep_nap_lock);
        if (atomic_load(&s->st_stopping)) break;
        int64_t now = ps_monotonic_ms();
        bool thorough = now >= thorough_at;
        if (thorough) thorough_at = now + s->st_conf.queue_flush_thorough_ms;
        e.code = 0;
        ps_derived_flush(s, thorough, &e); /* a failure leaves the checkpoint where it was */
        if (s->st_conf.clean_interval_ms > 0 && now >= clean_at) {
            clean_at = now + s->st_conf.clean_interval_ms;
            ps_retention_round(s, ps_now_ms(), false, false, false, &cleaned, &e);
        }
    }
    return NULL;
}

/* ---- files and windows ahead of the writer ---- */

static void make_next_locked(ps_store *s) {
    int64_t base = s->st_next_wanted;
    ps_mapfile *mf = NULL;
    ps_error e = {0};
    pthread_mutex_unlock(&s->st_alloc_lock);
    int code = ps_log_make_file(s, base, &mf, &e);
    pthread_mutex_lock(&s->st_alloc_lock);
    if (code < 0)
        s->st_next_error = e;
    else
        s->st_next_file = mf;
    s->st_next_wanted = -1;
    pthread_cond_broadcast(&s->st_alloc_done);
}

static void reserve_window_locked(ps_store *s) {
    ps_mapfile *mf = s->st_reserve_file;
    s->st_reserve_file = NULL;
    pthread_mutex_unlock(&s->st_alloc_lock);
    /* A failure shows itself when the writer reaches the end of what is reserved and asks again. */
    ps_mapfile_reserve(mf, atomic_load(&mf->mf_reserved) + 1, s->st_conf.reserve_window, NULL);
    ps_mapfile_unref(mf);
    pthread_mutex_lock(&s->st_alloc_lock);
}

/* Only advice: a kernel that does not know it, or has no memory, leaves the faults to the
 * writer.
 *
 * A fault in a page that is not in memory makes the kernel clear as much around it as the disk's
 * read-ahead says, 8 MB on some machines: a processor is gone for 20 ms. That is the fastest way to
 * much room, but while little is appended somebody may wait for that processor, who is the tail of
 * the latency. Then nothing is read ahead, the pages are brought in a little at a time before the
 * fault, and between two times the processor is anybody's. The last request for a file leaves it as
 * those want it who read it back. */
static void touch_pages_locked(ps_store *s) {
    ps_mapfile *mf = s->st_touch_file;
    int64_t from = s->st_touch_from, to = s->st_touch_to;
    int64_t done = s->st_touched - mf->mf_base; /* requests overlap: what one has brought stays */
    bool calm = s->st_touch_calm && to < mf->mf_size;
    int64_t step = calm ? TOUCH_CALM_CHUNK : TOUCH_CHUNK;
    s->st_touch_file = NULL;
    atomic_store(&s->st_touch_asked, false);
    pthread_mutex_unlock(&s->st_alloc_lock);
    from = (from > done ? from : done) / PAGE * PAGE;
    ps_mapfile_spare(mf, calm, calm ? from : 0);
    if (to > atomic_load(&mf->mf_reserved)) to = atomic_load(&mf->mf_reserved);
    for (; from + step <= to && !atomic_load(&s->st_stopping); from += step) {
        if (calm) posix_fadvise(mf->mf_fd, from, step, POSIX_FADV_WILLNEED);
        madvise(mf->mf_map + from, (size_t)step, MADV_POPULATE_WRITE);
        if (!calm) continue;
        usleep(TOUCH_CALM_PAUSE_US);
        if (atomic_load(&s->st_touch_asked)) break; /* the writer is fast now */
    }
    s->st_touched = mf->mf_base + from;
    ps_mapfile_unref(mf);
    pthread_mutex_lock(&s->st_alloc_lock);
}

/* Works on while the store stops: a put that is under way may wait for its next file. */
void *ps_alloc_main(void *store) {
    ps_store *s = store;
    pthread_mutex_lock(&s->st_alloc_lock);
    while (!atomic_load(&s->st_drained)) {
        if (s->st_next_wanted >= 0 && s->st_next_file == NULL)
            make_next_locked(s);
        else if (s->st_reserve_file != NULL)
            reserve_window_locked(s);
        else if (s->st_touch_file != NULL)
            touch_pages_locked(s);
        else {
            atomic_store(&s->st_alloc_asked, s->st_next_file != NULL);
            pthread_cond_wait(&s->st_alloc_wake, &s->st_alloc_lock);
        }
    }
    pthread_mutex_unlock(&s->st_alloc_lock);
    return NULL;
}
