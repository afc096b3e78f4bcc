/* Consume queues: 20-byte units that point into the commit log. Format table: consumequeue.c.
 * Derived data: never believed over the log, always rebuildable.
 * docs/internals/format.md#consume-queue; upstream ConsumeQueue. */
#ifndef PS_CONSUMEQUEUE_H
#define PS_CONSUMEQUEUE_H

#include "base/bytes.h"
#include "base/chains.h"
#include "files/places.h"
#include "files/segments.h"
#include "format/layout.h"

#define PS_UNIT 20

typedef struct ps_unit {
    int64_t physical; /* of the record */
    int32_t size;     /* its totalSize */
    int64_t tags_code;
} ps_unit;

#define PS_UNIT_AT_PHYSICAL 0
#define PS_UNIT_AT_SIZE 8
#define PS_UNIT_AT_TAGS 12

static inline void ps_unit_get(const uint8_t *p, ps_unit *u) {
    u->physical = (int64_t)be64_get(p + PS_UNIT_AT_PHYSICAL);
    u->size = (int32_t)be32_get(p + PS_UNIT_AT_SIZE);
    u->tags_code = (int64_t)be64_get(p + PS_UNIT_AT_TAGS);
}

static inline void ps_unit_put(uint8_t *p, const ps_unit *u) {
    be64_put(p + PS_UNIT_AT_PHYSICAL, (uint64_t)u->physical);
    be64_put(p + PS_UNIT_AT_TAGS, (uint64_t)u->tags_code);
    /* The size is what makes a unit valid for a reader in another process, so it is stored last. */
    ps_fence_before_valid();
    be32_put(p + PS_UNIT_AT_SIZE, (uint32_t)u->size);
}

/* The hash of a queue's name, for tables of queues. */
static inline uint32_t ps_queue_hash(const uint8_t *topic, int32_t len, int32_t id) {
    return ps_hash_more((uint32_t)id, topic, len);
}

struct ps_aside;
struct ps_old_units;
struct ps_parked;
struct ps_queue;
struct ps_record;
struct ps_tiered;
struct ps_topic;

/* What all queues of a store share. */
typedef struct ps_queues_shared {
    ps_io *qs_io;
    const char *qs_root;      /* of the store */
    const ps_places *qs_places; /* of the store; NULL: nobody moves them */
    int64_t qs_file_size;     /* bytes, whole units */
    bool qs_adopt_sizes;      /* take the file size from files that are there */
    bool qs_readonly;         /* another process may be writing */
    bool qs_strict;           /* recovery's first pass: a gap in a queue is marked, not filled */
    bool qs_log_before;       /* and the log has more before the place where that pass began */
    const _Atomic int64_t *qs_log_min; /* where the log begins */
    /* No unit points past it: the end of the last segment; INT64_MAX while somebody else may add
     * one. Set before the queues are opened, and, by a reader, before it refreshes them: what
     * points into segments that the writer has made since they were listed comes the next time. */
    int64_t qs_log_limit;
    /* Whether the record that a unit names is there and is the one of this offset of the queue;
     * also when nobody can tell. By the log, which this room does not know. */
    bool (*qs_confirms)(void *arg, struct ps_queue *q, int64_t offset, const ps_unit *unit);
    void *qs_confirms_arg;
    /* The folder with the queues that recovery makes again, which say whose an offset is; NULL: the
     * files that are there do. */
    const char *qs_before;
    pthread_rwlock_t qs_lock; /* the table's shape, and the tails of a reader's queues */
    ps_mappings *qs_mappings; /* bounds what queues and log have mapped */
    /* Queues whose last file the dispatcher holds, half of the mappings at most: dispatch lock. */
    struct ps_queue **qs_held;
    int32_t qs_held_count, qs_held_room, qs_held_hand;
} ps_queues_shared;

/* One queue. The dispatcher alone writes it; any thread reads it. Offsets count units. */
typedef struct ps_queue {
    ps_queues_shared *cq_shared;
    struct ps_topic *cq_topic;
    const char *cq_name; /* the topic's */
    int32_t cq_name_len;
    int32_t cq_id;
    ps_segments cq_files;
    /* The file that is written to, which the dispatcher holds; NULL: it is to be found first. */
    _Atomic(ps_mapfile *) cq_last;
    _Atomic int64_t cq_max;          /* next offset to be written: everything below is readable */
    _Atomic int64_t cq_min;          /* first offset whose record may still exist */
    _Atomic int64_t cq_max_physical; /* end of the last record indexed, -1 none */
    int32_t cq_held_slot;            /* in qs_held; dispatch lock */
    int64_t cq_held_max;             /* cq_max when its hand passed */
    int64_t cq_was;                  /* units below stood before the recovery; 0: it is settled */
    struct ps_old_units *cq_old;     /* units that stood in another store: claims.c */
    ps_unit cq_doubted;              /* of the record that was passed over last; size 0: none */
    int64_t cq_doubted_at;           /* the offset that it claims */
    int64_t cq_next;                 /* next offset to be assigned; append lock */
    int64_t cq_last_start;           /* as opened: start of the last record indexed, -1 none */
    int64_t cq_first_start;          /* as opened: of the first unit's record, -1 none */
    int64_t cq_beyond;               /* as opened: of a record beyond qs_log_limit, -1 none */
    bool cq_hole; /* units are missing that the log may hold; set and settled by recovery */
    bool cq_sealed; /* readers: it had a hole, so that its files count only up to where it began */
    _Atomic int64_t cq_flushed;      /* offset below which units are on the disk */
    _Atomic bool cq_relisted; /* files came or went since its folders were synced: folders.c */
    /* readers only: units of records that the log holds and the files do not yet; shared lock */
    ps_unit *cq_tail;
    _Atomic int64_t cq_tail_from; /* offset of cq_tail[0] */
    _Atomic int32_t cq_tail_count;
    int32_t cq_tail_room;
    /* a listener watches it: arrivals.c */
    _Atomic bool cq_watched;
    _Atomic bool cq_arrived;          /* it is in the list of arrivals */
    struct ps_queue *cq_arrived_next; /* owned by that list */
    struct ps_parked *cq_parked;      /* the listener's own */
    _Atomic(struct ps_tiered *) cq_tiered; /* what is in a cold tier (store/tier.h); or NULL */
} ps_queue;

/* Opens the files of one queue folder, as listed, and finds how far its units are sound from the
 * first file on: `deep` looks at every unit, else the ends of files are looked at and the end is
 * found by bisection in the last one. What follows an unsound unit, and a file that is missing or
 * of another length, makes the queue one with a hole (cq_hole). Nothing is mapped or changed. */
int ps_queue_open(ps_queues_shared *shared, struct ps_topic *topic, const char *name, int32_t id,
                  const char *folder, const ps_listing *files, bool deep, ps_queue **out,
                  ps_error *e);
/* Nothing of the queue counts any more: it is written again from the log's beginning on. */
void ps_queue_restart(ps_queue *q);
/* The same of the units from `offset` on, which lies within its files. */
void ps_queue_end_at(ps_queue *q, int64_t offset);
/* Takes away what follows the sound part of a queue with a hole, keeping it aside, so that the log
 * can fill it. Writers only. */
int ps_queue_mend(ps_queue *q, struct ps_aside *aside, ps_error *e);
ps_queue *ps_queue_new(ps_queues_shared *shared, struct ps_topic *topic, const char *name,
                       int32_t id);
void ps_queue_free(ps_queue *q);
/* Drops its mappings; nobody uses it any more. */
void ps_queue_release(ps_queue *q);
void ps_queues_shared_free(ps_queues_shared *shared);

/* The size in units that point to no record: those before a queue's first message when what was
 * before is deleted (upstream's pre-fill, physical 0), and those of messages that the log has lost
 * (physical: the next record of the queue). */
#define PS_UNIT_NONE 0x7FFFFFFF

/* Writes the unit of queue offset `offset`. Offsets below cq_max are duplicates and succeed. An
 * empty queue may begin anywhere (its older part was deleted): pre-fill, as upstream. A gap means
 * that units are missing: while `qs_strict` is set nothing is written and the queue is
 * marked (cq_hole), so that recovery can look at the log before it; else the log has lost messages,
 * and the gap is filled with units of no record. An offset that is out of range, since the log
 * before the record has no room for so many messages, is passed over, unless the queue's next
 * record goes on from it: then both are written. Returns 1 written, 0 not, PS_UNIT_IMPLAUSIBLE,
 * PS_UNIT_RIVAL, PS_UNIT_TWO, PS_E_DISK_FULL or PS_E_IO. */
#define PS_UNIT_IMPLAUSIBLE 2
#define PS_UNIT_RIVAL 3 /* recovery: the offset is that of another record, which is sound, or the
                         * queue has gone past this one in the log */
#define PS_UNIT_TWO 4   /* written, and before it cq_doubted, which had been passed over */
int ps_queue_append(ps_queue *q, int64_t offset, const ps_unit *unit, ps_error *e);

/* An empty queue goes on at `offset`: what it had lies before the log. Until its first message
 * comes all of its units are pre-filled ones. Dispatch lock. */
int ps_queue_begin(ps_queue *q, int64_t offset, ps_error *e);

/* Whether the log has room for a message of a queue whose topic's name is so long to be at `offset`
 * and its record at `physical`, when the queue ends at `max` and its last record at `before`
 * (-1: none): each message between them took some. */
bool ps_offset_possible(int32_t name_len, int64_t offset, int64_t physical, int64_t max,
                        int64_t before);

/* Takes back every unit whose record is at or after `physical`, or from the first unit on that is
 * not ascending. Returns units discarded, or an error code. */
int64_t ps_queue_cut(ps_queue *q, int64_t physical, ps_error *e);

/* Recovery: the queue ends before its first unit whose record is at or after `physical`, and
 * what follows stays until it is written again: it says which of two records an offset is of.
 * Returns units discarded, or an error code. */
int64_t ps_queue_rewind(ps_queue *q, int64_t physical, ps_error *e);
/* Ends that: what was not written again is taken away. */
int ps_queue_settle(ps_queue *q, ps_error *e);

/* First offset whose unit points at or after `physical` (the log's min), by bisection. */
/* With e, a file that cannot be opened is an error; without, one that is not there counts as
 * deleted by retention. */
int ps_queue_correct_min(ps_queue *q, int64_t physical, ps_error *e);
/* Deletes files but the last whose last unit points before `physical`. */
int32_t ps_queue_delete_before(ps_queue *q, int64_t physical, bool dry_run, ps_error *e);

/* Whether its first unit that points to a record points before `physical`. */
bool ps_queue_begins_before(ps_queue *q, int64_t physical);
/* Deletes all of it: files, folder, positions but for cq_next, which is the append lock's. What was
 * found in it stays mapped. */
int ps_queue_clear(ps_queue *q, ps_error *e);
/* Readers: the same without touching the disk; shared lock held for writing. */
void ps_queue_forget_locked(ps_queue *q);

/* Whether a record says that it is of this queue: its topic and its queue id. */
bool ps_queue_is_of(const ps_queue *q, const struct ps_record *r);
/* A tags code below every 32-bit hash is an address in consumequeue_ext (enableConsumeQueueExt of a
 * Java broker). It says nothing about tags or deliver time: the record does. */
static inline bool ps_tags_code_is_address(int64_t code) {
    return code < INT32_MIN;
}

/* One unit; false when there is none. */
bool ps_queue_unit(ps_queue *q, int64_t offset, ps_unit *out);
/* The same for a look into each of thousands of queues: a file that is not mapped stays so. 1, 0,
 * or an error code when the file cannot be read. */
int ps_queue_peek(ps_queue *q, int64_t offset, ps_unit *out, ps_error *e);

/* Walks units of one file at a time without a lock a unit: the file that holds `offset`
 * (referenced, unref it) with *units set to its unit and *count to how many lie there below cq_max.
 * NULL: none, or they lie in the tail of a reader, where ps_queue_unit finds them one by one. */
ps_mapfile *ps_queue_run(ps_queue *q, int64_t offset, const uint8_t **units, int64_t *count);
/* Asks to read `count` units of such a file ahead. A reader opens its files sparing, for
 * it looks into thousands of queues that nobody may ask for; one that is read is read ahead. */
void ps_queue_reads_on(ps_mapfile *mf, int64_t count);

int ps_queue_flush(ps_queue *q, int least_pages, ps_error *e);
/* Readers: look for newer units in the files; the shared lock is held for writing. */
int ps_queue_refresh_locked(ps_queue *q, ps_error *e);
/* Readers: the unit of a record that the files do not hold yet; shared lock held for writing. A gap
 * is treated as ps_queue_append does. */
int ps_queue_tail_add_locked(ps_queue *q, int64_t offset, const ps_unit *unit);

/* How many records of this queue have room in so many bytes of the log, at most. */
int64_t ps_queue_most(int32_t name_len, int64_t bytes);
/* Where the unit's record ends. Damage makes any number of a unit: the furthest place there is for
 * what would be beyond it. */
int64_t ps_unit_end(const ps_unit *u);

#endif
