/* See safe.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "log/safe.h"
#include "pystore.h"

#define NS_PER_MS 1000000LL
#define PASS_BYTES (4 << 20) /* of records that are passed in one call: the lock of the caller */

void ps_safe_init(ps_safe *s, ps_log *log) {
    s->sf_log = log;
    pthread_mutex_init(&s->sf_lock, NULL);
    ps_cond_init(&s->sf_wake);
    ps_cond_init(&s->sf_done);
}

/* ---- the position ---- */

int64_t ps_safe_visible(const ps_safe *s) {
    int64_t end = atomic_load_explicit(&s->sf_log->lg_end, memory_order_acquire);
    if (atomic_load_explicit(&s->sf_hides, memory_order_relaxed) && ps_safe_lacks_copies(s, end))
        end = atomic_load_explicit(&s->sf_copied, memory_order_acquire).bd_at;
    if (!s->sf_sync) return end;
    int64_t safe = ps_safe_flushed(s);
    return safe < end ? safe : end;
}

int ps_safe_refuse(const ps_safe *s, ps_error *e) {
    if (!atomic_load_explicit(&s->sf_short, memory_order_relaxed)) return 0;
    return ps_fail(e, PS_E_IN_SYNC_REPLICAS_NOT_ENOUGH, 0, -1, s->sf_root,
                   "in-sync replicas not enough: fewer than minInSyncReplicas");
}

#define GOES_ON 100 /* a wait that is not over */

static int outcome_of_flush(const ps_safe *s, int64_t position, bool late) {
    int err = ps_safe_errno(s); /* before the position, which moves no more after it */
    if (ps_safe_flushed(s) >= position) return 0;
    if (err != 0) return PS_E_FLUSH_FAILED;
    if (atomic_load(&s->sf_closed)) return PS_E_CLOSED;
    return late ? PS_FLUSH_DISK_TIMEOUT : GOES_ON;
}

static int outcome_of_copies(const ps_safe *s, int64_t position, bool late) {
    if (!ps_safe_lacks_copies(s, position)) return 0;
    if (atomic_load(&s->sf_closed)) return PS_E_CLOSED;
    return late ? PS_FLUSH_SLAVE_TIMEOUT : GOES_ON;
}

/* Of both: the slaves decide first, as upstream. waited_ms: since the put. */
static int outcome_of_wait(const ps_safe *s, int64_t position, int64_t waited_ms) {
    int copied = outcome_of_copies(s, position, waited_ms >= s->sf_copies_timeout_ms);
    return copied != 0 || !s->sf_sync
               ? copied
               : outcome_of_flush(s, position, waited_ms >= s->sf_timeout_ms);
}

/* The first bound of a wait, and the second: the last one ends it. They may have changed since. */
static int64_t bound_of(const ps_safe *s, int32_t bound) {
    bool copies = atomic_load_explicit(&s->sf_copies, memory_order_relaxed);
    int32_t one = s->sf_sync || !copies ? s->sf_timeout_ms : s->sf_copies_timeout_ms;
    int32_t other = copies ? s->sf_copies_timeout_ms : one;
    return (one < other) == (bound == 0) ? one : other;
}

/* ---- the list ---- */

static void want_locked(ps_safe *s, int64_t position) {
    if (position > atomic_load(&s->sf_wanted)) atomic_store(&s->sf_wanted, position);
    pthread_cond_signal(&s->sf_wake);
}

static void link_by_time_locked(ps_waits *a, ps_wait *w, int32_t bound) {
    w->wt_bound = bound;
    w->wt_older = a->wa_newest[bound];
    w->wt_newer = NULL;
    *(w->wt_older != NULL ? &w->wt_older->wt_newer : &a->wa_oldest[bound]) = w;
    a->wa_newest[bound] = w;
}

static void unlink_by_time_locked(ps_wait *w) {
    ps_waits *a = w->wt_waits;
    *(w->wt_older != NULL ? &w->wt_older->wt_newer : &a->wa_oldest[w->wt_bound]) = w->wt_newer;
    *(w->wt_newer != NULL ? &w->wt_newer->wt_older : &a->wa_newest[w->wt_bound]) = w->wt_older;
}

static void link_locked(ps_waits *a, ps_wait *w) {
    ps_safe *s = a->wa_safe;
    ps_wait *lower = s->sf_highest;
    while (lower != NULL && lower->wt_position > w->wt_position) lower = lower->wt_lower;
    w->wt_lower = lower;
    w->wt_higher = lower != NULL ? lower->wt_higher : s->sf_lowest;
    *(w->wt_lower != NULL ? &w->wt_lower->wt_higher : &s->sf_lowest) = w;
    *(w->wt_higher != NULL ? &w->wt_higher->wt_lower : &s->sf_highest) = w;
    link_by_time_locked(a, w, 0);
}

static void unlink_locked(ps_wait *w) {
    ps_safe *s = w->wt_waits->wa_safe;
    *(w->wt_lower != NULL ? &w->wt_lower->wt_higher : &s->sf_lowest) = w->wt_higher;
    *(w->wt_higher != NULL ? &w->wt_higher->wt_lower : &s->sf_highest) = w->wt_lower;
    unlink_by_time_locked(w);
    s->sf_waiting--;
}

static void end_locked(ps_wait *w, int how) {
    ps_waits *a = w->wt_waits;
    unlink_locked(w);
    w->wt_outcome = how;
    w->wt_newer = NULL;
    *(a->wa_over != NULL ? &a->wa_over_last->wt_newer : &a->wa_over) = w;
    a->wa_over_last = w;
}

/* Ends those that are over, and tells each thread once for a run of its own. */
static void end_over_locked(ps_safe *s) {
    const ps_waits *last = NULL;
    int how;
    for (ps_wait *w = s->sf_lowest; w != NULL; w = s->sf_lowest) {
        how = outcome_of_wait(s, w->wt_position, w->wt_bound == 0 ? -1 : bound_of(s, 0));
        if (how == GOES_ON) break;
        if (last != NULL && last != w->wt_waits) ps_eventfd_tell(last->wa_fd);
        last = w->wt_waits;
        end_locked(w, how);
    }
    if (last != NULL) ps_eventfd_tell(last->wa_fd);
}

void ps_safe_moved(ps_safe *s) {
    pthread_mutex_lock(&s->sf_lock);
    end_over_locked(s);
    pthread_cond_broadcast(&s->sf_done);
    pthread_mutex_unlock(&s->sf_lock);
    if (s->sf_sync || atomic_load(&s->sf_hides)) s->sf_told(s->sf_told_arg);
}

void ps_safe_close(ps_safe *s) {
    pthread_mutex_lock(&s->sf_lock);
    atomic_store(&s->sf_closed, true);
    end_over_locked(s);
    pthread_cond_broadcast(&s->sf_wake);
    pthread_cond_broadcast(&s->sf_done);
    pthread_mutex_unlock(&s->sf_lock);
}

/* ---- waiting ---- */

static int explain_outcome(const ps_safe *s, int how, ps_error *e) {
    int err = ps_safe_errno(s);
    if (how == PS_E_FLUSH_FAILED)
        return ps_fail(e, how, err, ps_safe_flushed(s), s->sf_root,
                       "the message is in the log but could not be synced");
    if (how == PS_E_CLOSED)
        return ps_fail(e, how, 0, -1, s->sf_root, "the store was closed while waiting");
    return how;
}

/* One sync serves everybody who waits: the flusher syncs up to the highest position that is wanted,
 * and all who came while the last sync ran are served by the next. */
int ps_safe_block(ps_safe *s, int64_t position, int32_t timeout_ms, ps_error *e) {
    if (ps_safe_flushed(s) >= position) return 0;
    struct timespec until = ps_monotonic_in(timeout_ms * NS_PER_MS);
    int rc = 0, how;
    pthread_mutex_lock(&s->sf_lock);
    want_locked(s, position);
    s->sf_waiting++;
    while ((how = outcome_of_flush(s, position, rc != 0)) == GOES_ON)
        rc = pthread_cond_timedwait(&s->sf_done, &s->sf_lock, &until);
    s->sf_waiting--;
    pthread_mutex_unlock(&s->sf_lock);
    return explain_outcome(s, how, e);
}

int ps_safe_block_for_copies(ps_safe *s, int64_t position, int64_t since_ms, ps_error *e) {
    if (!ps_safe_lacks_copies(s, position)) return 0;
    int64_t waited_ms = ps_monotonic_ms() - since_ms;
    int rc = 0, how;
    pthread_mutex_lock(&s->sf_lock);
    int64_t left_ms = s->sf_copies_timeout_ms - waited_ms;
    struct timespec until = ps_monotonic_in((left_ms > 0 ? left_ms : 0) * NS_PER_MS);
    while ((how = outcome_of_copies(s, position, rc != 0)) == GOES_ON)
        rc = pthread_cond_timedwait(&s->sf_done, &s->sf_lock, &until);
    pthread_mutex_unlock(&s->sf_lock);
    return explain_outcome(s, how, e);
}

bool ps_safe_copied(ps_safe *s, int64_t place) {
    bool more = false;
    ps_border before = atomic_load(&s->sf_copied);
    if (place <= before.bd_at) return false;
    ps_border now = ps_border_before(s->sf_log, before, place, PASS_BYTES, &more);
    if (now.bd_at <= before.bd_at) return more;
    atomic_store_explicit(&s->sf_copied, now, memory_order_release);
    ps_safe_moved(s);
    return more;
}

int64_t ps_safe_lead(ps_safe *s) {
    ps_border end = ps_border_end(s->sf_log);
    atomic_store_explicit(&s->sf_copied, end, memory_order_release);
    ps_safe_moved(s);
    return end.bd_at;
}

/* Each thread whose waits have other deadlines now looks at them again. */
static void tell_all_locked(const ps_safe *s) {
    const ps_waits *last = NULL;
    for (const ps_wait *w = s->sf_lowest; w != NULL; w = w->wt_higher) {
        if (w->wt_waits != last) ps_eventfd_tell(w->wt_waits->wa_fd);
        last = w->wt_waits;
    }
}

void ps_safe_want_copies(ps_safe *s, bool on, int32_t timeout_ms) {
    pthread_mutex_lock(&s->sf_lock);
    if (s->sf_copies_timeout_ms != timeout_ms) tell_all_locked(s);
    s->sf_copies_timeout_ms = timeout_ms;
    atomic_store(&s->sf_copies, on);
    pthread_mutex_unlock(&s->sf_lock);
    ps_safe_moved(s);
}

void ps_waits_init(ps_waits *a, ps_safe *s, int fd) {
    *a = (ps_waits){.wa_safe = s, .wa_fd = fd};
}

void ps_waits_drop(ps_waits *a, void (*each)(ps_wait *w)) {
    if (a->wa_count == 0) return;
    pthread_mutex_lock(&a->wa_safe->sf_lock);
    for (int bound = 0; bound < 2; bound++)
        while (a->wa_oldest[bound] != NULL) end_locked(a->wa_oldest[bound], PS_E_CLOSED);
    ps_wait *over = a->wa_over;
    a->wa_over = NULL;
    pthread_mutex_unlock(&a->wa_safe->sf_lock);
    a->wa_count = 0;
    for (ps_wait *w = over, *next; w != NULL; w = next) {
        next = w->wt_newer;
        if (each != NULL) each(w);
    }
}

void ps_waits_add(ps_waits *a, ps_wait *w, int64_t position) {
    ps_safe *s = a->wa_safe;
    w->wt_waits = a;
    w->wt_position = position;
    a->wa_count++;
    pthread_mutex_lock(&s->sf_lock);
    w->wt_since_ms = ps_monotonic_ms();
    if (s->sf_sync) want_locked(s, position);
    s->sf_waiting++;
    link_locked(a, w);
    end_over_locked(s);
    pthread_mutex_unlock(&s->sf_lock);
}

/* What has waited for the first bound goes on to the second, unless that was the one that it waited
 * for. */
static void end_late_locked(ps_waits *a, int64_t now) {
    for (int32_t bound = 0; bound < 2; bound++) {
        int64_t least = bound_of(a->wa_safe, bound);
        ps_wait *w;
        while ((w = a->wa_oldest[bound]) != NULL && w->wt_since_ms + least <= now) {
            int64_t waited = bound == 0 ? now - w->wt_since_ms : INT64_MAX;
            int how = outcome_of_wait(a->wa_safe, w->wt_position, waited);
            if (how != GOES_ON) {
                end_locked(w, how);
            } else {
                unlink_by_time_locked(w);
                link_by_time_locked(a, w, 1);
            }
        }
    }
}

ps_wait *ps_waits_next(ps_waits *a) {
    if (a->wa_count == 0) return NULL;
    int64_t now = ps_monotonic_ms();
    pthread_mutex_lock(&a->wa_safe->sf_lock);
    end_late_locked(a, now);
    ps_wait *w = a->wa_over;
    if (w != NULL) a->wa_over = w->wt_newer;
    pthread_mutex_unlock(&a->wa_safe->sf_lock);
    if (w != NULL) a->wa_count--;
    return w;
}

int64_t ps_waits_deadline_in(ps_waits *a) {
    if (a->wa_count == 0) return -1;
    pthread_mutex_lock(&a->wa_safe->sf_lock);
    int64_t first = -1;
    for (int32_t bound = 0; bound < 2; bound++) {
        const ps_wait *w = a->wa_oldest[bound];
        int64_t at = w != NULL ? w->wt_since_ms + bound_of(a->wa_safe, bound) : -1;
        if (w != NULL && (first < 0 || at < first)) first = at;
    }
    pthread_mutex_unlock(&a->wa_safe->sf_lock);
    int64_t left = first < 0 ? -1 : first - ps_monotonic_ms();
    return first >= 0 && left < 0 ? 0 : left;
}
