/* The composition: what every part of an open store shares. Private to csrc/. Lock order:
 * docs/locking.md. */
#ifndef PS_STORE_H
#define PS_STORE_H

#include <pthread.h>
#include <stdatomic.h>

#include "files/checkpoint.h"
#include "queues/consumequeue.h"
#include "base/clock.h"
#include "base/crc.h"
#include "base/report.h"
#include "index/index.h"
#include "files/mapfile.h"
#include "pystore.h"
#include "format/record.h"

/* A topic's table of queues: blocks that double, so that a topic of few costs little and none ever
 * moves. The first block holds queues 0 to 7, the next 8 to 15, then 16 to 31, ... */
#define PS_QUEUE_BLOCK 8
#define PS_QUEUE_BLOCKS 14
#define PS_DIRS_MAX 16

struct ps_topic {
    struct ps_store *tp_store;
    struct ps_topic *tp_next; /* chain of its hash bucket */
    int32_t tp_len;
    bool tp_schedule; /* SCHEDULE_TOPIC_XXXX: units carry the deliver time */
    _Atomic int64_t tp_delivered, tp_delivered_bytes; /* messages whose delay was over */
    int64_t tp_gone_below; /* records before it are of a life that was deleted; dispatch lock */
    uint32_t tp_hash;
    _Atomic(ps_queue *) *_Atomic tp_blocks[PS_QUEUE_BLOCKS];
    char tp_name[]; /* ends with 0x00 */
};

typedef struct ps_dirs {
    char *path[PS_DIRS_MAX];
    int32_t count;
} ps_dirs;

struct ps_store {
    ps_io *st_io;
    ps_conf st_conf; /* strings below are ours */
    char *st_root;
    ps_dirs st_dirs; /* commit log folders, sorted */
    bool st_readonly;
    int st_lock_fd;
    _Atomic int32_t st_refs;  /* the handle's own, and one a stream that reads from it */
    _Atomic int32_t st_users; /* calls under way */
    _Atomic bool st_closed;
    _Atomic bool st_stopping;
    _Atomic bool st_drained; /* and no call is under way any more */
    pthread_mutex_t st_close_lock;
    ps_levels st_levels;

    /* commit log */
    ps_segments st_log;
    pthread_mutex_t st_append_lock;
    ps_mapfile *st_active;      /* last file; append lock */
    _Atomic int64_t st_log_end; /* end of the last whole record */
    _Atomic int64_t st_log_min;
    _Atomic int64_t st_flushed; /* everything below is on the disk */
    int64_t st_last_timestamp;  /* append lock: store times never go back */
    _Atomic int64_t st_stamp_published;
    _Atomic int64_t st_puts, st_fsyncs;
    _Atomic int64_t st_damaged_reads; /* units that reads met and whose record is damaged */
    _Atomic bool st_disk_full;      /* the retention rules say so */
    _Atomic int32_t st_stall_errno; /* what the dispatcher waits out: ENOSPC, EMFILE, ..; or 0 */
    _Atomic int32_t st_flush_errno;
    _Atomic bool st_derived_broken; /* a queue or index could not be written */
    ps_error st_broken;             /* why; written once before the flag */

    /* allocator */
    pthread_mutex_t st_alloc_lock;
    pthread_cond_t st_alloc_wake, st_alloc_done;
    ps_mapfile *st_next_file;    /* made ahead; alloc lock */
    int64_t st_next_wanted;      /* base of the file to be made, -1: none; alloc lock */
    ps_error st_next_error;      /* why the last one could not be made; alloc lock */
    ps_mapfile *st_reserve_file; /* file that wants its next window; alloc lock, referenced */
    ps_mapfile *st_touch_file;   /* file whose next pages are wanted; alloc lock, referenced */
    int64_t st_touch_from, st_touch_to; /* bytes of it; alloc lock */
    bool st_touch_calm;                 /* little is appended; alloc lock */
    int64_t st_touched;                 /* log offset up to which that was done; allocator's */
    _Atomic bool st_touch_asked;        /* a request waits */
    int64_t st_touch_at;                /* the writer asks again when it gets here; append lock */
    int64_t st_touch_ms[2];             /* when it asked last, and before that; append lock */
    _Atomic bool st_alloc_asked;        /* so that the append path asks once */

    /* flusher */
    pthread_mutex_t st_flush_lock; /* also guards a sync against another */
    pthread_mutex_t st_wait_lock;
    pthread_cond_t st_flush_wake, st_flush_done;
    _Atomic int64_t st_flush_wanted;
    int32_t st_flush_waiters; /* callers that wait for a sync; wait lock */
    int32_t st_flush_served;  /* how many waited when the last sync began; flusher */
    int64_t st_sync_ns;       /* how long the last sync took; flusher */

    /* dispatcher */
    pthread_mutex_t st_dispatch_lock;
    pthread_mutex_t st_nap_lock;
    pthread_cond_t st_nap_wake;
    _Atomic bool st_napping;
    _Atomic int64_t st_dispatched;
    pthread_mutex_t st_news_lock; /* waiters for messages */
    pthread_cond_t st_news;
    _Atomic int32_t st_news_waiters;
    _Atomic int64_t st_logic_timestamp;  /* ms: store time of the last record in the queues */
    _Atomic int64_t st_physic_timestamp; /* ms: everything stored until then is on the disk */
    ps_topic *st_recent_topic;           /* dispatch lock: the topic of the last record */
    uint64_t st_tombstones_inode;           /* dispatch lock: of the deletedTopics that was read */
    int64_t st_tombstones_size;

    /* arrivals.c */
    _Atomic(ps_queue *) st_arrivals; /* watched queues with new units, newest first */
    _Atomic int32_t st_arrival_fd;   /* eventfd told of them, -1: none */
    bool st_listened;                /* somebody listens; dispatch lock */

    _Atomic int64_t st_index_tail; /* readers: records from here on may lack their index entries */

    /* queues */
    pthread_rwlock_t st_topic_lock; /* the table's shape; topics live as long as the store */
    ps_topic **st_buckets;
    uint32_t st_bucket_count;
    int32_t st_topic_count;
    _Atomic int32_t st_queue_count;
    ps_queue **st_queues; /* all queues, in order of birth; topic lock */
    int32_t st_queue_room;
    bool st_strict_queues; /* recovery's first pass: a gap in a queue is an error */

    ps_index *st_index;

    /* keeper */
    pthread_mutex_t st_keep_lock; /* one flush of derived files or cleaning at a time */
    pthread_mutex_t st_keep_nap_lock;
    pthread_cond_t st_keep_wake;
    ps_checkpoint st_checkpoint; /* keep lock */
    bool st_checkpoint_dirty;

    pthread_t st_threads[4];
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
static inline void ps_leave(ps_store *s) {
    atomic_fetch_sub(&s->st_users, 1);
}

/* The memory of a store, closed or not, lives until the last reference is dropped. */
ps_store *ps_store_ref(ps_store *s);
void ps_store_unref(ps_store *s);

/* queues.c */
/* Opens the queues that are not known yet. */
int ps_queues_load(ps_store *s, bool linear, ps_report *r, ps_progress *progress, ps_error *e);
/* Readers: what another process has appended to the queues that are known. */
int ps_queues_refresh(ps_store *s, ps_error *e);

/* topics.c */
ps_topic *ps_topic_find(ps_store *s, const char *name, int32_t len);
ps_topic *ps_topic_get(ps_store *s, const char *name,
                       int32_t len);               /* made when missing; NULL: no memory */
ps_queue *ps_topic_queue(ps_topic *t, int32_t id); /* NULL: none */
ps_queue *ps_topic_queue_get(ps_store *s, ps_topic *t,
                             int32_t id); /* made when missing; NULL: no memory */
ps_queue *ps_topic_queue_get_locked(ps_store *s, ps_topic *t,
                                    int32_t id); /* topic lock held for writing */
int ps_topic_queue_add_locked(ps_store *s, ps_topic *t, ps_queue *q);
void ps_topics_free(ps_store *s);
int32_t ps_queues_snapshot(ps_store *s, ps_queue ***out); /* every queue now; free *out */

/* deleted.c */
int ps_tombstones_load(ps_store *s, ps_report *r, ps_error *e); /* a missing file is none */
/* Clears the queues that belong to an earlier life of their topic; *from: the records behind it may
 * be missing in them, INT64_MAX: none are. */
int ps_tombstones_settle(ps_store *s, int64_t *from, ps_error *e);
/* No mark lies behind the end of the log, which would take messages that are still to come. */
int ps_tombstones_trim(ps_store *s, int64_t end, ps_error *e);
void ps_tombstones_hide(ps_store *s); /* readers: those queues are shown as empty; dispatch lock */

/* commitlog.c */
int ps_log_open(ps_store *s, ps_error *e);
int ps_log_make_file(ps_store *s, int64_t base, ps_mapfile **out, ps_error *e);
int ps_log_set_end(ps_store *s, int64_t end, int64_t *bytes_cut, ps_error *e);
/* Bytes of the log readable at `physical`, within one file, below `bound`; a reference in *mf. */
const uint8_t *ps_log_at(ps_store *s, int64_t physical, int64_t bound, int64_t *avail,
                         ps_mapfile **mf);

/* dispatch.c */
int64_t ps_dispatch_bound(ps_store *s);
int ps_dispatch_to_locked(ps_store *s, int64_t bound, ps_error *e);
int ps_dispatch_catch_up(ps_store *s, ps_error *e);
/* Unit and index entries of one record; counts grow by units written, entries written, and records
 * that can belong to no queue. */
int ps_dispatch_record(ps_store *s, const ps_record *r, bool queues, bool index, int64_t counts[3],
                       ps_error *e);
void ps_dispatch_wake(ps_store *s);
void *ps_dispatch_main(void *store);

/* arrivals.c */
/* From now on `fd` (an eventfd, -1: none) becomes readable when a watched queue gets units. Once
 * this returns nothing is written to the one before, which may be closed. */
void ps_arrivals_listen(ps_store *s, int fd);
/* The same for a while: the listener is about to look at the list by itself. */
void ps_arrivals_to(ps_store *s, int fd);
/* The listener watches q from now on. True: it already reaches beyond `offset`. */
bool ps_arrivals_watch(ps_queue *q, int64_t offset);
/* The dispatcher, after a new unit: whether it is to be added. */
bool ps_arrivals_watched(ps_queue *q);
/* The dispatcher: q has a new unit; then, after some, one word to the listener. */
void ps_arrivals_add(ps_store *s, ps_queue *q);
void ps_arrivals_tell(ps_store *s);
/* Takes the list: each queue was watched and has news, and is watched no longer. The caller follows
 * cq_arrived_next, and calls ps_arrivals_done for each (its next is another's from then on) before
 * it watches it again. */
ps_queue *ps_arrivals_take(ps_store *s);
void ps_arrivals_done(ps_queue *q);

/* flush.c */
int ps_log_flush(ps_store *s, int least_pages, ps_error *e);
int ps_derived_flush(ps_store *s, bool thorough, ps_error *e);
int ps_wait_durable(ps_store *s, int64_t physical, int32_t timeout_ms, ps_error *e);
void *ps_flush_main(void *store);
void *ps_keep_main(void *store);
void *ps_alloc_main(void *store);

/* clean.c */
int ps_retention_round(ps_store *s, int64_t now_ms, bool manual, bool immediate, bool dry_run,
                   ps_retention_report *out, ps_error *e);

/* recover.c */
int ps_recover(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e);
int ps_recover_read(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e);
int ps_reader_extend_locked(ps_store *s, ps_error *e);

/* batch.c */
/* Appends a view of the record at `physical` when it is whole; 0, or an error code, or 1 when the
 * batch is full. */
int ps_batch_add(ps_batch *b, ps_mapfile *mf, const ps_record *r, int64_t queue_offset,
                 int64_t tags_code);
ps_batch *ps_batch_new(int32_t room);

#endif
