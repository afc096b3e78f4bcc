/* See allocator.h. The lock is released while a file is made, a window reserved, pages touched. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "log/allocator.h"

#define NEXT_FILE_WAIT_MS 5000
#define PAGE 4096
#define TOUCH_STEP (4 << 20)
#define TOUCH_CHUNK (1 << 20)
#define TOUCH_CALM_CHUNK (128 << 10)
#define TOUCH_CALM_PAUSE_US 300
#define CALM_MS 100 /* longer, twice in a row, for TOUCH_STEP bytes: less than 40 MB a second */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

void ps_allocator_init(ps_allocator *a, ps_log *log) {
    a->al_log = log;
    a->al_next_wanted = -1;
    pthread_mutex_init(&a->al_lock, NULL);
    ps_cond_init(&a->al_wake);
    ps_cond_init(&a->al_done);
}

void ps_allocator_stop(ps_allocator *a) {
    pthread_mutex_lock(&a->al_lock);
    atomic_store(&a->al_ended, true);
    pthread_cond_broadcast(&a->al_wake);
    pthread_mutex_unlock(&a->al_lock);
}

void ps_allocator_free(ps_allocator *a, bool keep) {
    ps_io *io = a->al_log->lg_io;
    if (a->al_next_file != NULL && !keep) io->unlink(io, a->al_next_file->mf_path);
    ps_mapfile_unref(a->al_next_file);
    ps_mapfile_unref(a->al_reserve_file);
    ps_mapfile_unref(a->al_touch_file);
    a->al_next_file = a->al_reserve_file = a->al_touch_file = NULL;
}

/* ---- the writer's side ---- */

static int wait_next_file(ps_allocator *a, int64_t base, ps_mapfile **out, ps_error *e) {
    struct timespec until = ps_monotonic_in(NEXT_FILE_WAIT_MS * 1000000LL);
    int rc = 0;
    pthread_mutex_lock(&a->al_lock);
    a->al_next_error.code = 0;
    a->al_next_wanted = base;
    if (a->al_next_file == NULL) pthread_cond_signal(&a->al_wake);
    while (a->al_next_file == NULL && a->al_next_error.code == 0 && rc == 0)
        rc = pthread_cond_timedwait(&a->al_done, &a->al_lock, &until);
    *out = a->al_next_file;
    a->al_next_file = NULL;
    a->al_next_wanted = -1;
    atomic_store(&a->al_asked, false);
    if (*out == NULL && a->al_next_error.code != 0)
        *e = a->al_next_error;
    else if (*out == NULL)
        ps_fail(e, PS_E_CREATE_MAPPED_FILE_FAILED, ETIMEDOUT, base, NULL,
                "the next segment was not ready within %d ms", NEXT_FILE_WAIT_MS);
    pthread_mutex_unlock(&a->al_lock);
    return *out == NULL ? e->code : 0;
}

int ps_allocator_next_file(ps_allocator *a, int64_t base, ps_mapfile **out, ps_error *e) {
    return a->al_running ? wait_next_file(a, base, out, e)
                         : ps_log_make_file(a->al_log, base, out, e);
}

void ps_allocator_ask(ps_allocator *a, ps_mapfile *active, int64_t wrote) {
    int64_t reserved = atomic_load(&active->mf_reserved);
    bool window = reserved - wrote < a->al_log->lg_reserve_window / 2 && reserved < active->mf_size;
    if (!a->al_running || atomic_exchange(&a->al_asked, true)) return;
    pthread_mutex_lock(&a->al_lock);
    if (window && a->al_reserve_file == NULL) a->al_reserve_file = ps_mapfile_ref(active);
    if (!window && a->al_next_file == NULL) a->al_next_wanted = active->mf_base + active->mf_size;
    pthread_cond_signal(&a->al_wake);
    pthread_mutex_unlock(&a->al_lock);
}

void ps_allocator_new_file(ps_allocator *a) {
    a->al_touch_at = TOUCH_STEP;
}

/* A first store into a page costs the writer ten times the record, so the thread touches the pages
 * that come next. Asked for once in TOUCH_STEP bytes: a small store never gets there. */
void ps_allocator_ask_touch(ps_allocator *a, ps_mapfile *active, int64_t wrote) {
    int64_t now = ps_monotonic_ms(), last = a->al_touch_ms[0], before = a->al_touch_ms[1];
    a->al_touch_at = wrote + TOUCH_STEP;
    a->al_touch_ms[0] = now;
    a->al_touch_ms[1] = last;
    if (!a->al_running) return;
    pthread_mutex_lock(&a->al_lock);
    if (a->al_touch_file == NULL) {
        a->al_touch_file = ps_mapfile_ref(active);
        a->al_touch_from = wrote + TOUCH_STEP / 2;
        a->al_touch_to = wrote + TOUCH_STEP / 2 + 2 * TOUCH_STEP;
        a->al_touch_calm = now - last > CALM_MS && last - before > CALM_MS && before > 0;
        atomic_store(&a->al_touch_asked, true);
        pthread_cond_signal(&a->al_wake);
    }
    pthread_mutex_unlock(&a->al_lock);
}

/* ---- the thread ---- */

static void make_next_locked(ps_allocator *a) {
    int64_t base = a->al_next_wanted;
    ps_mapfile *mf = NULL;
    ps_error e = {0};
    pthread_mutex_unlock(&a->al_lock);
    int code = ps_log_make_file(a->al_log, base, &mf, &e);
    pthread_mutex_lock(&a->al_lock);
    if (code < 0)
        a->al_next_error = e;
    else
        a->al_next_file = mf;
    a->al_next_wanted = -1;
    pthread_cond_broadcast(&a->al_done);
}

static void reserve_window_locked(ps_allocator *a) {
    ps_mapfile *mf = a->al_reserve_file;
    a->al_reserve_file = NULL;
    pthread_mutex_unlock(&a->al_lock);
    /* A failure shows itself when the writer reaches the end of what is reserved and asks again. */
    ps_mapfile_reserve(mf, atomic_load(&mf->mf_reserved) + 1, a->al_log->lg_reserve_window, NULL);
    ps_mapfile_unref(mf);
    pthread_mutex_lock(&a->al_lock);
}

/* Only advice: a kernel that does not know it, or has no memory, leaves the faults to the writer.
 *
 * A fault in a page that is not in memory makes the kernel clear as much around it as the disk's
 * read-ahead says, 8 MB on some machines: a processor is gone for 20 ms. That is the fastest way to
 * much room, but while little is appended somebody may wait for that processor, who is the tail of
 * the latency. Then nothing is read ahead, the pages are brought in a little at a time before the
 * fault, and between two times the processor is anybody's. The last request for a file leaves it as
 * those want it who read it back. */
static void touch_pages_locked(ps_allocator *a) {
    ps_mapfile *mf = a->al_touch_file;
    int64_t from = a->al_touch_from, to = a->al_touch_to;
    int64_t done = a->al_touched - mf->mf_base; /* requests overlap: what one has brought stays */
    bool calm = a->al_touch_calm && to < mf->mf_size;
    int64_t step = calm ? TOUCH_CALM_CHUNK : TOUCH_CHUNK;
    a->al_touch_file = NULL;
    atomic_store(&a->al_touch_asked, false);
    pthread_mutex_unlock(&a->al_lock);
    from = (from > done ? from : done) / PAGE * PAGE;
    ps_mapfile_spare(mf, calm, calm ? from : 0);
    if (to > atomic_load(&mf->mf_reserved)) to = atomic_load(&mf->mf_reserved);
    for (; from + step <= to && !atomic_load(&a->al_ended); from += step) {
        if (calm) mf->mf_io->advise(mf->mf_io, mf->mf_fd, from, step, POSIX_FADV_WILLNEED);
        madvise(mf->mf_map + from, (size_t)step, MADV_POPULATE_WRITE);
        if (!calm) continue;
        usleep(TOUCH_CALM_PAUSE_US);
        if (atomic_load(&a->al_touch_asked)) break; /* the writer is fast now */
    }
    a->al_touched = mf->mf_base + from;
    ps_mapfile_unref(mf);
    pthread_mutex_lock(&a->al_lock);
}

void *ps_allocator_main(void *allocator) {
    ps_allocator *a = allocator;
    pthread_mutex_lock(&a->al_lock);
    while (!atomic_load(&a->al_ended)) {
        if (a->al_next_wanted >= 0 && a->al_next_file == NULL)
            make_next_locked(a);
        else if (a->al_reserve_file != NULL)
            reserve_window_locked(a);
        else if (a->al_touch_file != NULL)
            touch_pages_locked(a);
        else {
            atomic_store(&a->al_asked, a->al_next_file != NULL);
            pthread_cond_wait(&a->al_wake, &a->al_lock);
        }
    }
    pthread_mutex_unlock(&a->al_lock);
    return NULL;
}
