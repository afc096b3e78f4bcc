/* Room at the end of the log, for whoever holds the append lock. The usual way is inline: a few
 * comparisons; everything else is append.c's. */
#ifndef PS_APPEND_H
#define PS_APPEND_H

#include "base/clock.h"
#include "format/record.h"
#include "log/allocator.h"

/* Closes the active file with a blank and opens the next one. */
int ps_append_roll_locked(ps_log *l, ps_allocator *a, ps_error *e);

/* Reserves blocks of the active file up to `upto` bytes. */
int ps_append_reserve_locked(ps_log *l, ps_mapfile *mf, int64_t upto, ps_error *e);

/* Takes the append lock for a put, and lets go of it. */
static inline void ps_append_lock(ps_log *l) {
    if (pthread_mutex_trylock(&l->lg_append_lock) != 0) {
        int64_t began = ps_monotonic_ns();
        pthread_mutex_lock(&l->lg_append_lock);
        l->lg_append_waited_ns += ps_monotonic_ns() - began;
    }
    l->lg_append_since = l->lg_append_timed ? ps_monotonic_ns() : 0;
}
static inline void ps_append_unlock(ps_log *l) {
    if (l->lg_append_since != 0) l->lg_append_held_ns += ps_monotonic_ns() - l->lg_append_since;
    pthread_mutex_unlock(&l->lg_append_lock);
}

/* Makes sure that the active file takes `size` bytes and the blank after them. */
static inline int ps_append_room_locked(ps_log *l, ps_allocator *a, int64_t size, ps_error *e) {
    ps_mapfile *mf = l->lg_active;
    int64_t wrote = mf != NULL ? atomic_load_explicit(&mf->mf_wrote, memory_order_relaxed) : 0;
    if (__builtin_expect(mf == NULL || size + PS_RECORD_SPARE > mf->mf_size - wrote, 0)) {
        int code = ps_append_roll_locked(l, a, e);
        if (code < 0) return code;
        mf = l->lg_active;
        wrote = 0;
    }
    if (__builtin_expect(wrote > a->al_touch_at, 0)) ps_allocator_ask_touch(a, mf, wrote);
    int64_t need = wrote + size + PS_RECORD_SPARE;
    int64_t reserved = atomic_load_explicit(&mf->mf_reserved, memory_order_relaxed);
    if (__builtin_expect(need > reserved, 0))
        return ps_append_reserve_locked(l, mf, need, e);
    if (__builtin_expect(reserved < mf->mf_size ? reserved - wrote < l->lg_reserve_window / 2
                                                : wrote > mf->mf_size / 2,
                         0) &&
        !atomic_load_explicit(&a->al_asked, memory_order_relaxed))
        ps_allocator_ask(a, mf, wrote);
    return 0;
}

/* The store time of the next record: never before that of the last one, unless that lies so far
 * ahead that it is damage, or from a clock that was put right. */
static inline int64_t ps_append_stamp_locked(ps_log *l, int64_t now) {
    if (now < l->lg_last_stamp && l->lg_last_stamp - now <= PS_STAMP_AHEAD_MS)
        now = l->lg_last_stamp;
    l->lg_last_stamp = now;
    return now;
}

/* Makes what was written visible. */
static inline void ps_append_publish_locked(ps_log *l, int64_t end, int64_t stamp, int64_t count) {
    atomic_store_explicit(&l->lg_published_stamp, stamp, memory_order_relaxed);
    atomic_store_explicit(&l->lg_puts,
                          atomic_load_explicit(&l->lg_puts, memory_order_relaxed) + count,
                          memory_order_relaxed);
    atomic_store(&l->lg_end, end);
}

#endif
