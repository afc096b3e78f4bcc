/* The composition: an open store is these objects, each with its own lock, and what holds them
 * together. Private to csrc/. Lock order: docs/locking.md. */
#ifndef PS_STORE_H
#define PS_STORE_H

#include "base/clock.h"
#include "base/report.h"
#include "files/aside.h"
#include "files/checkpoint.h"
#include "files/places.h"
#include "files/segments.h"
#include "format/record.h"
#include "format/timer.h"
#include "index/index.h"
#include "light/light.h"
#include "log/append.h"
#include "log/flusher.h"
#include "pystore.h"
#include "queues/arrivals.h"
#include "queues/folders.h"
#include "queues/topics.h"
#include "store/tier.h"

/* Makes queue units and index entries from the log: dispatch.c. */
typedef struct ps_dispatcher {
    /* Every put reads these four, and they seldom change. What the dispatcher writes for each
     * record lies on other cache lines, or the two threads would take them from each other. */
    _Atomic int32_t ds_stall_errno; /* what it waits out: ENOSPC, EMFILE, ..; or 0 */
    _Atomic bool ds_broken;         /* a queue or index could not be written, for good */
    _Atomic bool ds_napping;        /* it sleeps until it is woken */
    _Atomic bool ds_sender_naps;    /* and so does who sends the log to slaves (ha/) */
    ps_error ds_why;                /* why it is broken; written once before the flag */
    pthread_mutex_t ds_lock;        /* one at a time: the thread, or a reader that catches up */
    _Atomic int64_t ds_end;         /* everything in the log below is in queues and index */
    _Atomic int64_t ds_logic_stamp; /* ms: store time of the last record in the queues */
    ps_topic *ds_recent_topic;      /* of the last record; ds_lock */
    _Atomic bool ds_stopping;       /* set under the nap lock */
    pthread_mutex_t ds_nap_lock;
    pthread_cond_t ds_nap_wake; /* for the thread: there is something to do */
    pthread_mutex_t ds_news_lock;
    pthread_cond_t ds_news;          /* for those who wait for messages */
    _Atomic int32_t ds_news_waiters; /* how many do */
} ps_dispatcher;

/* Syncs what is derived from the log, and runs retention: keeper.c. */
typedef struct ps_keeper {
    pthread_mutex_t kp_lock;     /* one flush of derived files or deletion of a topic at a time */
    ps_checkpoint kp_checkpoint; /* kp_lock */
    bool kp_dirty;               /* it differs from the file; kp_lock */
    ps_error kp_unsynced; /* the first sync that failed: the end will not be a clean one; kp_lock */
    _Atomic int64_t kp_shown[5]; /* its values, for who must not wait for a sync */
    pthread_mutex_t kp_nap_lock;
    pthread_cond_t kp_wake;   /* for the thread: the store stops */
    _Atomic bool kp_stopping; /* set under kp_nap_lock */
} ps_keeper;

/* Which segments may go: retention.c. The rules may change while a round runs. */
typedef struct ps_retention {
    _Atomic int32_t rt_reserved_hours; /* fileReservedTime */
    _Atomic uint32_t rt_when_hours;    /* deleteWhen, a mask */
    _Atomic int32_t rt_batch_max;      /* deleteFileBatchMax */
    _Atomic int32_t rt_forcibly;       /* cleanFileForciblyEnable */
    _Atomic int32_t rt_max_used_ratio; /* diskMaxUsedSpaceRatio, percent */
    _Atomic int32_t rt_clean_ratio;    /* diskSpaceCleanForciblyRatio */
    _Atomic int32_t rt_warning_ratio;  /* diskSpaceWarningLevelRatio */
    _Atomic bool rt_disk_full;         /* fuller than that: puts are refused */
    _Atomic bool rt_resting;           /* nothing goes by itself */
    _Atomic int64_t rt_out_to;         /* a cold tier has everything below; INT64_MAX: none asks */
    _Atomic bool rt_lets_go;           /* on a disk that is too full, the rest may go, too */
    _Atomic bool rt_waits;             /* the last round left what the tier lacks */
} ps_retention;

/* A store that follows a master takes no messages but that one's log: follow.c. */
typedef struct ps_follow {
    _Atomic bool fo_on;
    int64_t fo_end; /* of the bytes that came, perhaps within a record; append lock */
    uint8_t fo_head[PS_HEAD_LEN]; /* of the record that is not whole yet, as far as it came */
} ps_follow;

/* Topics that were deleted: tombstones.c. Dispatch lock. */
typedef struct ps_tombstones {
    uint64_t tb_inode; /* of the file that was read last; 0: there was none */
    int64_t tb_size, tb_mtime_ns;
    bool tb_closed; /* no writer has the store open, nor did one crash */
} ps_tombstones;

#define PS_THREADS 4

struct ps_store {
    ps_io *st_io;
    ps_conf st_conf; /* as it was given; its strings are gone, but for the root, which is ours */
    char *st_root;
    bool st_readonly;
    bool st_unnoted; /* opening: nobody has noted how far the queues reached (ends.h) */
    int st_lock_fd; /* of the file `lock`; -1: a reader, or closed */
    ps_places st_places; /* root and folders of the log; none: a reader */
    ps_levels st_levels;
    ps_timer_rules st_timer_rules;
    _Atomic int64_t st_timer_shift_ms; /* of the clock of timers: tests set it */

    ps_aside st_aside; /* what this open takes away */

    ps_mappings st_mappings; /* of log, queues and index */
    ps_log st_log;
    ps_follow st_follow;
    int st_sender_fd; /* eventfd of who sends the log to slaves; -1: nobody does */
    ps_allocator st_allocator;
    ps_safe st_safe;
    ps_flusher st_flusher;
    ps_topics st_topics;
    ps_arrivals st_arrivals;
    _Atomic bool st_light_on; /* light queues are served (lights.h) */
    int st_light_fd;          /* eventfd of who listens for them, -1: nobody; dispatch lock */
    int64_t st_light_told_ms; /* when he was told last, monotonic; dispatch lock */
    _Atomic int32_t st_light_waits; /* so many wait for his answer to news */
    int64_t st_light_doubt;   /* of the first damage that recovery met: see first_lost */
    ps_light st_light;
    ps_index *st_index;            /* NULL: messageIndexEnable is false */
    _Atomic int64_t st_index_tail; /* readers: records from here on may lack their entries */
    ps_dispatcher st_dispatcher;
    ps_keeper st_keeper;
    ps_retention st_retention;
    ps_tier st_tier;
    ps_tombstones st_tombstones;
    int64_t st_view;    /* readers: refreshes until now; dispatch lock */
    int64_t st_mark_at; /* readers: the last record that was shown, -1 none; dispatch lock */
    uint8_t st_mark[PS_RECORD_FIXED]; /* how it begins */
    bool st_view_whole; /* the last one found all there was */
    _Atomic int64_t st_damaged_reads; /* units that reads met and whose record is damaged */

    _Atomic int32_t st_refs;  /* the handle's own, and one a stream that reads from it */
    _Atomic int32_t st_users; /* calls under way */
    _Atomic bool st_closed;   /* no call may begin */
    pthread_mutex_t st_close_lock;
    pthread_t st_threads[PS_THREADS];
    int32_t st_thread_count;
};

/* Every public call is bracketed so that close can wait for it. Enter answers PS_E_CLOSED. */
static inline int ps_enter(ps_store *s) {
    atomic_fetch_add(&s->st_users, 1);
    if (__builtin_expect(atomic_load(&s->st_closed), 0)) {
        atomic_fetch_sub(&s->st_users, 1);
        return PS_E_CLOSED;
    }
    return 0;
}
/* What a call answers that may not begin: PS_E_CLOSED, with *e filled in. */
static inline int ps_refuse_closed(const ps_store *s, ps_error *e) {
    return ps_fail(e, PS_E_CLOSED, 0, -1, s->st_root, "the store is closed");
}
static inline void ps_leave(ps_store *s) {
    atomic_fetch_sub(&s->st_users, 1);
}

/* close.c: the memory of a store, closed or not, lives until the last reference is dropped */
ps_store *ps_store_ref(ps_store *s);
void ps_store_unref(ps_store *s);

/* tombstones.c */
int ps_tombstones_load(ps_store *s, ps_report *r, ps_error *e); /* a missing file is none */
/* Clears the queues that belong to an earlier life of their topic; *from: the records after it may
 * be missing in them, INT64_MAX: none are. Entries that are another store's go. */
int ps_tombstones_settle(ps_store *s, int64_t *from, ps_report *r, ps_error *e);
/* Readers: forgets entries that are another store's. */
void ps_tombstones_doubt(ps_store *s, ps_report *r);
/* No mark lies beyond the end of the log, which would take messages that are still to come. */
int ps_tombstones_trim(ps_store *s, int64_t end, ps_error *e);
bool ps_tombstones_known(ps_store *s); /* readers: the file is still the one that was read */
void ps_tombstones_hide(ps_store *s); /* readers: those queues are shown as empty; dispatch lock */

/* dispatch.c */
void ps_dispatcher_init(ps_dispatcher *d);
void ps_dispatcher_stop(ps_dispatcher *d);
int ps_dispatch_to_locked(ps_store *s, int64_t bound, ps_error *e);
int ps_dispatch_catch_up(ps_store *s, ps_error *e);
/* The record at `at` of a log that ends at `stop`: 1; 0: the rest of the file is blank; or an
 * error. */
int ps_dispatch_look(ps_mapfile *mf, int64_t at, int64_t stop, ps_record *r, ps_error *e);
typedef struct ps_dispatched {
    int64_t units, entries; /* written */
    int64_t implausible;    /* records that can belong to no queue */
    int64_t rivals;         /* records that claim the offset of another, which the queue names */
    int64_t after_all;      /* place of one that counted as implausible before; 0 none */
} ps_dispatched;
/* Unit and index entries of one record; *done grows. */
int ps_dispatch_record(ps_store *s, const ps_record *r, bool queues, bool index,
                       ps_dispatched *done, ps_error *e);
void ps_dispatch_wake(ps_store *s);
void *ps_dispatch_main(void *store);
void ps_dispatch_listen(ps_store *s, int fd); /* ps_arrivals_listen_locked */

/* keeper.c */
void ps_keeper_init(ps_keeper *k);
void ps_keeper_stop(ps_keeper *k);
void ps_keeper_show_locked(ps_keeper *k);
int ps_keeper_flush(ps_store *s, bool thorough, ps_error *e); /* queues, index, checkpoint */
void *ps_keeper_main(void *store);

/* retention.c */
void ps_retention_set(ps_retention *r, const ps_conf *rules);
/* Looks whether every folder of the log is fuller than it may be: then puts are refused. */
bool ps_retention_disk_full(ps_store *s);
int ps_retention_round(ps_store *s, int64_t now_ms, bool manual, bool immediate, bool dry_run,
                       ps_retention_report *out, ps_error *e);

/* recover.c */
/* The topic of records that recovery writes over damage in the log. They are of type rollback, so
 * that no store, Java's neither, gives them a unit or an index entry. */
int ps_recover(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e);
int ps_recover_read(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e);
/* Confirms a unit, for ps_queues_shared. */
bool ps_recover_confirms(void *store, ps_queue *q, int64_t offset, const ps_unit *u);
int ps_reader_extend_locked(ps_store *s, ps_error *e);
/* A reader has shown the record that begins there as the last one; -1: it has no record yet. */
void ps_reader_mark(ps_store *s, int64_t start);
/* PS_E_CUT_BACK when it no longer exists. *first: where the log begins, as it was listed. */
int ps_reader_check_mark(ps_store *s, int64_t *first, ps_error *e);
/* Whether a reader that failed so is to look again, after a pause. Who writes the store may delete
 * a file (retention, recovery) between a listing of its folder and the opening of it, and a listing
 * of files that are made and deleted meanwhile may have gaps. Recovery may take away hundreds of
 * small queue files in a row, so it is given about a second to get done. *tries: 0 at first. */
bool ps_looks_again(ps_io *io, const char *root, const ps_error *e, int *tries);

/* conf.c */
int ps_conf_check(const ps_conf *c, ps_error *e);

/* timerrule.c */
int64_t ps_timer_now(ps_store *s); /* the clock of timers */
/* What this message asks for: 1 and *out_ms when it waits, 0, or an error when it is refused. */
int ps_timer_asked(ps_store *s, const uint8_t *properties, int64_t len, int64_t *out_ms,
                   ps_error *e);

/* read.c */
/* Whether the record that `u` points to, at p with `avail` bytes to read, is whole. The record says
 * how long it is: where the unit says something else, place and sums of the record decide. */
bool ps_unit_record(const ps_unit *u, const uint8_t *p, int64_t avail, ps_record *r);
/* Whether the unit at `offset` may lead to this whole record: it is of the queue, and its queue
 * offset is the unit's. A queue of Java's whose log once lost messages counts on without a gap, so
 * that later records differ from their units by the same amount: a neighbour that differs alike
 * makes a record belong, too. Queues of multi-dispatch (%LMQ%) hold records of other topics by
 * design: any record belongs there. */
bool ps_unit_belongs(ps_store *s, ps_queue *q, int64_t offset, const ps_record *r);
/* Appends a view of the record at `physical` when it is whole; 0, or an error code, or 1 when the
 * batch is full. */
int ps_batch_add(ps_batch *b, ps_mapfile *mf, const ps_record *r, int64_t queue_offset,
                 int64_t tags_code);
ps_batch *ps_batch_new(int32_t room);

#endif
