/* Queues that go on below their local messages, in a cold tier (docs/cold.md). The store does not
 * know where that is: a read that needs something from there says PS_GET_IN_TIER and leaves a want;
 * whoever took that lends the bytes, which the next read finds here. What is lent the longest goes
 * when there is no more room; what a batch points into stays until the batch goes. */
#ifndef PS_TIER_H
#define PS_TIER_H

#include <pthread.h>

#include "files/mapfile.h"
#include "pystore.h"
#include "queues/consumequeue.h"

typedef struct ps_lent { /* offsets [first, end) of a queue, or a part of its records */
    struct ps_lent *newer, *older;
    struct ps_lent *next; /* of its queue */
    struct ps_tiered *of;
    int64_t first, end;
    ps_mapfile *units;   /* NULL: a hole, where the tier has nothing */
    ps_mapfile *records; /* what units lead to, by place; NULL: none of them */
} ps_lent;

typedef struct ps_tiered { /* what of a queue is in the tier */
    struct ps_tiered *next;
    ps_queue *queue;
    _Atomic int64_t first, end; /* queue offsets; equal: nothing */
    ps_lent *lent;              /* the newest first */
} ps_tiered;

typedef struct ps_tier {
    pthread_mutex_t lock; /* of all but what is atomic; a leaf */
    ps_lent *newest, *oldest;
    ps_tiered *all;
    int64_t bytes, room;
    _Atomic int64_t lends;       /* so often something was lent */
    _Atomic int32_t level;       /* PS_TIER_ */
    _Atomic bool unknown;        /* ps_tier_known */
    _Atomic int64_t local_until; /* monotonic ms: it failed, so what is here is read here */
    int fd;                      /* told of wants; -1: nobody is */
    int32_t wanted;
    ps_tier_want wants[PS_TIER_WANTS]; /* the oldest first */
    char why[PS_TIER_WHY];             /* why the last one failed; empty: it did not */
} ps_tier;

void ps_tier_init(ps_tier *t);
void ps_tier_free(ps_tier *t);
/* Nothing of a deleted queue is in the tier any more. */
void ps_tier_forget(ps_tier *t, ps_queue *q);
/* What of the queue is in the tier; NULL: nothing was ever said. */
static inline ps_tiered *ps_tiered_of(ps_queue *q) {
    return atomic_load_explicit(&q->cq_tiered, memory_order_acquire);
}
static inline bool ps_tiered_has(const ps_tiered *d, int64_t offset) {
    return d != NULL && offset >= atomic_load(&d->first) && offset < atomic_load(&d->end);
}
/* Whether nobody has looked yet at what the tier has. */
static inline bool ps_tier_unknown(const ps_tier *t) {
    return atomic_load_explicit(&t->unknown, memory_order_relaxed);
}
/* Whether the queue may have more in the tier than is known. */
static inline bool ps_tier_hides(const ps_tier *t, const ps_queue *q) {
    return ps_tier_unknown(t) && atomic_load(&q->cq_min) > 0;
}
/* Where the queue begins, here or there. */
int64_t ps_tier_min(ps_queue *q);
/* What is lent of the units from `offset` on; NULL: nothing. */
ps_lent *ps_tier_units_locked(ps_tier *t, ps_tiered *d, int64_t offset);
/* The record that a unit leads to; NULL: it is not lent. */
ps_mapfile *ps_tier_record_locked(ps_tiered *d, const ps_unit *u);
/* Leaves a want of offset, low, high and count; false: there are too many. */
bool ps_tier_ask_locked(ps_tier *t, ps_tiered *d, ps_tier_want *want);
/* The bytes with the record at a place (PS_TIER_PLACE), referenced; NULL: they are not lent. */
ps_mapfile *ps_tier_at(ps_tier *t, int64_t place);
/* Whether the unit at `offset` of an excerpt leads to a whole record of the queue that lies in
 * it. */
bool ps_excerpt_record(ps_excerpt *x, int64_t offset, const ps_unit *u, ps_record *r);
/* Why what was wanted did not come, as far as it is known. */
void ps_tier_why(ps_tier *t, char to[PS_TIER_WHY]);

#endif
