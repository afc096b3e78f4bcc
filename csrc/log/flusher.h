/* Syncing the log: by a thread of its own, at intervals (ASYNC_FLUSH) or as soon as somebody waits
 * (SYNC_FLUSH, group commit). A sync that failed is kept: nothing is believed to be on the disk
 * from then on. Upstream: FlushManager, GroupCommitService, FlushRealTimeService. */
#ifndef PS_FLUSHER_H
#define PS_FLUSHER_H

#include "log/commitlog.h"

typedef struct ps_flusher {
    ps_log *fl_log;
    const char *fl_root; /* of the store, for errors */
    bool fl_sync;        /* SYNC_FLUSH: any byte is synced at once */
    int32_t fl_interval_ms, fl_thorough_ms;
    int32_t fl_least_pages;       /* an interval's sync waits for so many dirty pages */
    void (*fl_synced)(void *arg); /* with fl_sync, after each sync; by the thread */
    void *fl_synced_arg;
    bool fl_running;                 /* its thread is there */
    pthread_mutex_t fl_lock;         /* one sync at a time */
    _Atomic int32_t fl_errno;        /* sticky: the sync that failed */
    _Atomic int64_t fl_fsyncs;       /* syncs since the store was opened */
    _Atomic int64_t fl_physic_stamp; /* ms: everything stored until then is on the disk */
    pthread_mutex_t fl_wait_lock;
    pthread_cond_t fl_wake;    /* for the thread: somebody waits */
    pthread_cond_t fl_done;    /* for those who wait: a sync is over */
    _Atomic bool fl_stopping;  /* set under the wait lock */
    _Atomic int64_t fl_wanted; /* the highest offset that somebody waits for */
    int32_t fl_waiters;        /* callers that wait for a sync; wait lock */
    int32_t fl_served;         /* how many waited when the last sync began; the thread's */
    int64_t fl_sync_ns;        /* how long the last sync took; the thread's */
} ps_flusher;

void ps_flusher_init(ps_flusher *f, ps_log *log);
void *ps_flusher_main(void *flusher);
/* Ends the thread, and every wait: PS_E_CLOSED. */
void ps_flusher_stop(ps_flusher *f);
/* Syncs what is not on the disk, on the caller's thread; least_pages: ps_mapfile_flush. */
int ps_flusher_sync(ps_flusher *f, int least_pages, ps_error *e);
/* Waits until everything below `physical` is on the disk: 0, PS_FLUSH_DISK_TIMEOUT, or an error. */
int ps_flusher_wait(ps_flusher *f, int64_t physical, int32_t timeout_ms, ps_error *e);

#endif
