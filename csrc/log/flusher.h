/* Syncing the log: by a thread of its own, at intervals (ASYNC_FLUSH) or as soon as somebody waits
 * (SYNC_FLUSH, group commit). A sync that failed is kept: nothing is believed to be on the disk
 * from then on. Who waits: safe.h. Upstream: FlushManager, FlushRealTimeService. */
#ifndef PS_FLUSHER_H
#define PS_FLUSHER_H

#include "log/safe.h"

typedef struct ps_flusher {
    ps_log *fl_log;
    ps_safe *fl_safe; /* what each sync moves */
    int32_t fl_interval_ms, fl_thorough_ms;
    int32_t fl_least_pages;          /* an interval's sync waits for so many dirty pages */
    bool fl_running;                 /* its thread is there */
    pthread_mutex_t fl_lock;         /* one sync at a time */
    _Atomic int64_t fl_fsyncs;       /* syncs since the store was opened */
    _Atomic int64_t fl_fsync_ns, fl_fsync_max_ns; /* how long they took, and the longest */
    _Atomic int64_t fl_physic_stamp; /* ms: everything stored until then is on the disk */
    int32_t fl_served;               /* how many waited when the last sync began; the thread's */
    int64_t fl_sync_ns;              /* how long the last sync took; the thread's */
} ps_flusher;

void ps_flusher_init(ps_flusher *f, ps_safe *safe);
/* Ends when the safe position is closed. */
void *ps_flusher_main(void *flusher);
/* Syncs what is not on the disk, on the caller's thread; least_pages: ps_mapfile_flush. */
int ps_flusher_sync(ps_flusher *f, int least_pages, ps_error *e);
/* ps_safe_block; without the thread the caller syncs. */
int ps_flusher_wait(ps_flusher *f, int64_t physical, int32_t timeout_ms, ps_error *e);

#endif
