/* The timers that wait, ordered by time, equal times by arrival: 16 bytes each, derived from the
 * queue of the timer topic. New ones are in a heap in memory; a full heap becomes a sorted file
 * (a run), of which only a cursor is kept; small runs are merged, some entries with each new timer,
 * so that none waits for a merge. docs/adr says why.
 *
 * A folder `timers` holds run files and `state`, which is replaced as a whole. State is believed
 * only if its sums and those of all runs agree; else the caller reads the queue from its beginning.
 *
 * Everything belongs to one thread, but for ps_pending_save. */
#ifndef PS_PENDING_H
#define PS_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "files/io.h"

#define PS_PENDING_HEAP 8192 /* entries in memory */
#define PS_PENDING_RUNS 32
#define PS_PENDING_NOTES_MAX (16 << 20)

/* id: queue offset << 25, 24 bits by which it is found, 1 bit: 0 takes the timer with the same time
 * and offset away, 1 is a timer. Of the 24 bits the upper one is PS_PENDING_MARKED: those that have
 * it can be asked for together. */
typedef struct ps_pending_entry {
    int64_t due_ms, id;
} ps_pending_entry;

static inline int64_t ps_pending_id(int64_t offset, uint32_t hash) {
    return offset << 25 | (int64_t)(hash & 0xFFFFFF) << 1 | 1;
}
static inline int64_t ps_pending_offset(int64_t id) {
    return id >> 25;
}
static inline uint32_t ps_pending_hash(int64_t id) {
    return (uint32_t)(id >> 1) & 0xFFFFFF;
}

#define PS_PENDING_MARKED 0x800000u
#define PS_PENDING_ANY -1      /* for ps_pending_find: all */
#define PS_PENDING_ALL_MARKED -2 /* and those that are marked */

typedef struct ps_run {
    int64_t rn_number;       /* its file's name */
    int64_t rn_count, rn_at; /* entries; the first that is not delivered */
    uint32_t rn_crc;
    bool rn_cancels; /* it may have cancellations */
    bool rn_merging; /* it stays mapped until the merge is done */
    const ps_pending_entry *rn_map;
} ps_run;

typedef struct ps_pending {
    ps_io *pd_io;
    char *pd_folder;
    bool pd_readonly; /* everything new stays in memory */
    ps_pending_entry *pd_heap;
    int64_t pd_count, pd_room;
    ps_run pd_runs[PS_PENDING_RUNS];
    int32_t pd_run_count;
    struct ps_merge *pd_merge; /* in progress; NULL: none is */
    int32_t pd_merge_at;  /* runs that begin one */
    int64_t pd_next_run;  /* number of the next file */
    int64_t pd_live;      /* timers that wait */
    int64_t pd_from;      /* queue offset: everything before it is in runs */
    int64_t pd_next;      /* queue offset: everything before it was added */
    int64_t pd_delivered; /* ms: of everything in the heap up to this time nothing is left */
    int64_t pd_seen;      /* as found in the state: offsets before it up to pd_delivered are done */
    int64_t pd_log_end;   /* of the state: later records may be deliveries */
    bool pd_settled;      /* timers of the heap were taken out for deliveries after pd_log_end */
    uint8_t *pd_notes;    /* of the state: what the caller keeps with it */
    int64_t pd_notes_len;
} ps_pending;

/* Loads what the state says. 1: it was good; 0: there is none, or it is damaged; or an error. */
int ps_pending_open(ps_pending *p, ps_io *io, const char *folder, bool readonly, ps_error *e);
void ps_pending_close(ps_pending *p);
/* Forgets everything: the queue is read again from `from` on. */
void ps_pending_restart(ps_pending *p, int64_t from);

int ps_pending_add(ps_pending *p, int64_t due_ms, int64_t id, ps_error *e);
/* Takes a timer away that is there. */
int ps_pending_cancel(ps_pending *p, ps_pending_entry entry, ps_error *e);
/* The first timer; false: none waits. */
bool ps_pending_first(ps_pending *p, ps_pending_entry *out);
void ps_pending_pop(ps_pending *p); /* that one is done */
/* Timers with from_ms < time <= to_ms, in order, of this hash (or PS_PENDING_ANY, _ALL_MARKED), not
 * cancelled: up to `room` into `out`. Returns how many; -1: there are more. */
int64_t ps_pending_find(ps_pending *p, int64_t from_ms, int64_t to_ms, int64_t hash,
                        ps_pending_entry *out, int64_t room);
/* How many there are with from_ms < time <= to_ms. */
int64_t ps_pending_count(const ps_pending *p, int64_t from_ms, int64_t to_ms);

/* Timers before this queue offset, unordered, cancelled ones as well: at most `room`. */
int64_t ps_pending_before(ps_pending *p, int64_t offset, ps_pending_entry *out, int64_t room);

typedef struct ps_pending_state {
    uint8_t *bytes;
    int64_t len;
    int64_t writing; /* number of the run that a merge is writing; -1: none */
} ps_pending_state;
/* What is to be written once the log is on the disk up to `log_end`: free its bytes. notes: kept
 * with it, up to PS_PENDING_NOTES_MAX bytes. */
int ps_pending_capture(ps_pending *p, int64_t log_end, const uint8_t *notes, int64_t notes_len,
                       ps_pending_state *out, ps_error *e);
/* Writes it, synced, and deletes runs that it does not name. In any thread, one at a time. */
int ps_pending_save(ps_io *io, const char *folder, const ps_pending_state *state, ps_error *e);

#endif
