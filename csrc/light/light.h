/* Light queues (lite topics; upstream: LMQ): thousands to millions of them, each with few units.
 * All of them share two kinds of files, so that a queue takes no file, descriptor or mapping, but
 * an entry of a table in memory. Derived from the log, as every queue is. Format table: light.c;
 * docs/adr/009-light-queues.md. */
#ifndef PS_LIGHT_H
#define PS_LIGHT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "base/pool.h"
#include "files/io.h"

#define PS_LIGHT_FOLDER "lightqueue"
#define PS_LIGHT_SLOT 48
#define PS_LIGHT_FILE_SLOTS (1 << 18) /* 12 MiB a file */
#define PS_LIGHT_AHEAD 512            /* slots that wait in memory */
#define PS_LIGHT_NAME_MAX 255

/* What the names of some queues begin with: up to their last '$', so "%LMQ%$TOPIC$" for all lite
 * topics of a topic. They are in order of their last records, so that the oldest is known. */
typedef struct ps_light_family {
    ps_entry lf_entry; /* by that */
    ps_ref lf_oldest, lf_newest;
    uint32_t lf_count; /* queues, with those that have no unit yet and are not in the order */
    uint8_t lf_len;
    char lf_name[];
} ps_light_family;

/* There may be a million, so fields have the bits that their values need: places have those of
 * slot.h. */
typedef struct ps_light_queue {
    ps_entry lq_entry;          /* by family and name */
    ps_ref lq_family;
    ps_ref lq_older, lq_newer;  /* of its family */
    ps_ref lq_news;             /* the next one with news */
    uint32_t lq_number;
    struct __attribute__((packed)) {
        int64_t lq_max;         /* offset of the next unit */
        int64_t lq_next;        /* offset of the next message that is put */
        uint64_t lq_physical : 56; /* place of the last record: a new unit need not read it */
        uint8_t lq_len;
        int64_t lq_last : 48;   /* slot of the last unit, -1: none */
        uint64_t lq_stamp : 48; /* ms: store time of the last record, 0: not known */
        uint32_t lq_leap;       /* slots from there to where it points further back; 0: not known */
        bool lq_has_news : 1;
        bool lq_ordered : 1;    /* it is in that order */
        bool lq_noted : 1;      /* `names` says its next offset and its time */
        char lq_name[];         /* what follows that of its family */
    };
} ps_light_queue;

/* A time as a queue has it: one that no clock says is the first or the last that it can have. */
static inline uint64_t ps_light_stamp(int64_t ms) {
    const int64_t last = (1LL << 48) - 1;
    return (uint64_t)(ms < 0 ? 1 : ms > last ? last : ms);
}

typedef struct ps_light_unit {
    int64_t offset, physical, tags_code;
    int32_t size;
} ps_light_unit;

/* Queues by number, in pages: one without a queue takes no memory, so that numbers may go on for
 * years. */
#define PS_LIGHT_PAGE 4096

typedef struct ps_light_page {
    int32_t count;
    ps_ref queues[PS_LIGHT_PAGE]; /* 0: gone */
} ps_light_page;

/* A leaf of the lock order but for the I/O of its files. */
typedef struct ps_light {
    ps_io *lt_io;
    const char *lt_root; /* of the store */
    bool lt_readonly;    /* nothing is written: units and names stay in memory */
    pthread_mutex_t lt_lock;
    ps_pool lt_queues, lt_families;
    ps_ref lt_recent; /* the family that was looked for last; 0: none */
    ps_light_page **lt_pages; /* NULL: all of its queues are gone */
    uint32_t lt_page_count;
    uint32_t lt_number_count; /* that were given out */
    int64_t lt_first;   /* slot that the first file begins with */
    int64_t lt_written; /* slots in files */
    int64_t lt_covered; /* all records below have their units */
    int64_t lt_end;     /* place in the log that the last slot names */
    int lt_fd;          /* of the last file, -1: not open */
    int64_t lt_fd_base;
    int lt_old_fd; /* of the file that was read last, beside that */
    int64_t lt_old_base;
    struct ps_light_near *lt_near; /* what was read last where units point further back */
    int lt_names_fd;
    int64_t lt_names_len, lt_names_dead; /* dead: bytes that say nothing of the queues of now */
    int64_t lt_synced, lt_names_synced;  /* slots, bytes of `names`: they are on the disk */
    bool lt_is_made; /* files since the last sync, or before the open, whose folder may not be so */
    uint8_t *lt_ahead; /* slots after those written */
    int32_t lt_ahead_count, lt_ahead_room;
    uint8_t *lt_names; /* names after those written */
    int32_t lt_names_ahead, lt_names_room;
    _Atomic ps_ref lt_news;
    bool lt_listened;
    _Atomic bool lt_told; /* who listens was told of the first news since he took them */
    int64_t lt_units;   /* written since the open */
    _Atomic int64_t lt_skipped; /* names in records that can be no queue's */
} ps_light;

/* Reads what is there, as far as it is sound and lies below the end of the log; what follows goes
 * from the disk, and all of it where its beginning is missing. lt_covered then says from where on
 * the log is to be read again. */
int ps_light_load(ps_light *l, ps_io *io, const char *root, bool readonly, int64_t log_min,
                  int64_t log_end, ps_error *e);
void ps_light_free(ps_light *l);
/* The last unit before slot *at, of those whose queues are there, and its queue; *at: its slot.
 * False: there is none. */
bool ps_light_before(ps_light *l, int64_t *at, ps_light_unit *out, const ps_light_queue **queue);
/* Forgets everything, so that it is rebuilt from the log. */
int ps_light_reset(ps_light *l, ps_error *e);

/* The next message that is put gets the offset after the last unit. */
void ps_light_settle_locked(ps_light *l);
/* The queue with this number, and the first with this one or a later one; NULL: there is none. */
ps_light_queue *ps_light_numbered(const ps_light *l, uint32_t number);
ps_light_queue *ps_light_from(const ps_light *l, uint32_t number);

int32_t ps_light_name_len(const ps_light *l, const ps_light_queue *q);
/* Writes its whole name, of PS_LIGHT_NAME_MAX bytes at most: how many. */
int32_t ps_light_name(const ps_light *l, const ps_light_queue *q, void *to);
ps_light_queue *ps_light_find_locked(ps_light *l, const void *name, int32_t len);
/* See ps_pool_fetch(). */
void ps_light_fetch_locked(ps_light *l, const void *name, int32_t len, bool entry);
/* Made when missing. NULL: no memory. */
ps_light_queue *ps_light_get_locked(ps_light *l, const void *name, int32_t len);

/* The unit of a record that the queue's offset `u->offset` belongs to: 1, 0 when it is there
 * already, or an error. An offset below the end begins a new life of the queue. */
int ps_light_append(ps_light *l, const void *name, int32_t len, const ps_light_unit *u,
                    int64_t store_ms, ps_error *e);
/* All records below are in. It is noted in the files now, or after some more of the log. The
 * dispatch lock is held, or nobody dispatches any more. */
int ps_light_cover(ps_light *l, int64_t physical, bool now, ps_error *e);
/* Writes what waits in memory; sync: and brings it to the disk. */
int ps_light_flush(ps_light *l, bool sync, ps_error *e);
/* The log begins here, with a record of this time: notes the next offset and the time of queues
 * whose last record is gone, and deletes files of which nothing is left, once that is on the disk.
 * Not beside ps_light_flush. */
int ps_light_trim(ps_light *l, int64_t log_min, int64_t oldest_ms, ps_error *e);
/* The queue is gone: 1; 0: there was none, or, unless before_ms is 0, something was put to it at
 * that time or later. The append lock is held. */
int ps_light_remove(ps_light *l, const void *name, int32_t len, int64_t before_ms, ps_error *e);
/* How many queues of this family there are. */
uint32_t ps_light_below_locked(ps_light *l, const void *family, int32_t len);
/* Names of queues of this family whose last record is older than age_ms, the oldest first, each
 * after its length (a byte), as far as there is room: the bytes. -1: before that comes *unknown,
 * whose time is to be found out, and is 0 so far. */
int32_t ps_light_expired_locked(ps_light *l, const void *family, int32_t len, int64_t now_ms,
                                int64_t age_ms, uint8_t *to, int32_t room,
                                ps_light_queue **unknown);

/* Its offsets that may be read, and false when there is no such queue. */
bool ps_light_range(ps_light *l, const void *name, int32_t len, int64_t log_min, int64_t *low,
                    int64_t *high);
/* Units from the offset on, ascending, of records at log_min or later: how many, or an error. */
int32_t ps_light_units(ps_light *l, const void *name, int32_t len, int64_t from, int64_t log_min,
                       ps_light_unit *out, int32_t room, ps_error *e);

#endif
