/* The safe position of the log: below it records survive what flushDiskType promises that they
 * survive, so that their requests may be answered: the lower of what this disk has, with
 * SYNC_FLUSH, and of what enough slaves have, with SYNC_MASTER. Whoever moves one of them calls
 * ps_safe_moved.
 *
 * Callers wait for it in two ways. A thread that may block does so in ps_safe_block. One that may
 * not, an event loop or a thread of a network, has a ps_waits: it adds what waits, and its eventfd
 * becomes readable when some of that is over. All of them stand in one list, ordered by position.
 * Upstream: GroupCommitService. */
#ifndef PS_SAFE_H
#define PS_SAFE_H

#include "log/border.h"

typedef struct ps_waits ps_waits;

/* One wait; the caller's memory, from ps_waits_add until ps_waits_next hands it out. */
typedef struct ps_wait {
    struct ps_wait *wt_lower, *wt_higher; /* in the list of all, by position */
    struct ps_wait *wt_older, *wt_newer;  /* of the same thread, by deadline */
    ps_waits *wt_waits;
    int64_t wt_position, wt_since_ms;
    int32_t wt_bound; /* which deadline is next: of the list that it stands in */
    int32_t wt_outcome; /* 0, PS_FLUSH_DISK_TIMEOUT, PS_FLUSH_SLAVE_TIMEOUT or an error code */
} ps_wait;

typedef struct ps_safe {
    ps_log *sf_log;
    const char *sf_root;          /* of the store, for errors */
    bool sf_sync;                 /* SYNC_FLUSH: answers wait, and so does what readers see */
    _Atomic bool sf_copies;       /* SYNC_MASTER: answers wait for slaves */
    int32_t sf_timeout_ms;        /* syncFlushTimeout */
    int32_t sf_copies_timeout_ms; /* slaveTimeout; both count from the put */
    _Atomic ps_border sf_copied;  /* enough brokers have everything below */
    _Atomic bool sf_hides;        /* with sf_copies: readers do not see what slaves lack */
    _Atomic bool sf_short;        /* fewer than minInSyncReplicas are near: what waits is refused */
    void (*sf_told)(void *arg);   /* with sf_sync or sf_hides, after each move: readers see more */
    void *sf_told_arg;
    pthread_mutex_t sf_lock;      /* of all that follows */
    pthread_cond_t sf_wake;       /* for the flusher: somebody waits */
    pthread_cond_t sf_done;       /* for those who block: it has moved */
    _Atomic bool sf_closed;       /* nobody waits any more; set under the lock */
    _Atomic int64_t sf_wanted;    /* the highest position that somebody waits for */
    int32_t sf_waiting;           /* how many wait, in either way */
    ps_wait *sf_lowest, *sf_highest;
} ps_safe;

/* The waits of one thread. All have as long to wait, so the order of adding is that of deadlines:
 * of the first, and of the second in a list of its own, for those that go on after it. */
struct ps_waits {
    ps_safe *wa_safe;
    int wa_fd;        /* eventfd that is written to when some are over */
    int32_t wa_count; /* added and not handed out; the thread's own */
    ps_wait *wa_oldest[2], *wa_newest[2]; /* of those that go on; sf_lock */
    ps_wait *wa_over, *wa_over_last; /* linked by wt_newer; sf_lock */
};

void ps_safe_init(ps_safe *s, ps_log *log);
/* What this disk has. */
static inline int64_t ps_safe_flushed(const ps_safe *s) {
    return atomic_load_explicit(&s->sf_log->lg_flushed, memory_order_acquire);
}
/* The errno of a sync of the log that failed, 0: none has. It moves no more then. */
static inline int32_t ps_safe_errno(const ps_safe *s) {
    return atomic_load(&s->sf_log->lg_sync_errno);
}
/* Whether slaves are waited for and do not have all below `position`. */
static inline bool ps_safe_lacks_copies(const ps_safe *s, int64_t position) {
    return atomic_load_explicit(&s->sf_copies, memory_order_relaxed) &&
           position > atomic_load_explicit(&s->sf_copied, memory_order_acquire).bd_at;
}
/* Whether an answer must wait that rests on records up to `position`; 0: it rests on none. */
static inline bool ps_safe_must_wait(const ps_safe *s, int64_t position) {
    return position > 0 && ((s->sf_sync && position > ps_safe_flushed(s)) ||
                            ps_safe_lacks_copies(s, position));
}
/* Whether what waits for slaves must not be put: PS_E_IN_SYNC_REPLICAS_NOT_ENOUGH. */
int ps_safe_refuse(const ps_safe *s, ps_error *e);
#define PS_SAFE_NEXT INT64_MAX /* the position of a record that is still to be put */
/* The end of what readers see: with SYNC_FLUSH nothing that a power cut could take, with sf_hides
 * nothing that only this broker has. */
int64_t ps_safe_visible(const ps_safe *s);
/* It may have moved, or will not move any more. Ends the waits that are over. */
void ps_safe_moved(ps_safe *s);
/* Ends every wait: PS_E_CLOSED. */
void ps_safe_close(ps_safe *s);
/* Enough brokers say that they have everything below `place`, which may lie within a record and
 * beyond the end of this log: what counts is the last border up to there. It never goes back. True:
 * there is more to pass, by calling it again. */
bool ps_safe_copied(ps_safe *s, int64_t place);
/* Nobody else says any more what is copied: it is this log as it is, whatever was said before.
 * Returns its end. */
int64_t ps_safe_lead(ps_safe *s);
/* From now on answers wait for slaves, or no longer do; timeout_ms: slaveTimeout. */
void ps_safe_want_copies(ps_safe *s, bool on, int32_t timeout_ms);
/* Waits until this disk has `position`: 0, PS_FLUSH_DISK_TIMEOUT, or an error. */
int ps_safe_block(ps_safe *s, int64_t position, int32_t timeout_ms, ps_error *e);
/* The same until slaves have it, if they are waited for, or until slaveTimeout has passed since
 * `since_ms`, monotonic: 0, PS_FLUSH_SLAVE_TIMEOUT, or an error. */
int ps_safe_block_for_copies(ps_safe *s, int64_t position, int64_t since_ms, ps_error *e);

void ps_waits_init(ps_waits *a, ps_safe *s, int fd);
/* The waits are forgotten; the caller frees those that `each` is called with, NULL: none. */
void ps_waits_drop(ps_waits *a, void (*each)(ps_wait *w));
/* Never calls back: what is over already is told by the eventfd, too. */
void ps_waits_add(ps_waits *a, ps_wait *w, int64_t position);
/* The next one that is over, in the order of their ends; NULL: none is. */
ps_wait *ps_waits_next(ps_waits *a);
/* ms until the first of them is over for lack of time; -1: none waits. */
int64_t ps_waits_deadline_in(ps_waits *a);

#endif
