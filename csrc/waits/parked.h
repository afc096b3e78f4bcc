/* Pulls and pops that wait for messages ("parked"): pulls in their queue until it gets units, pops
 * at their place (popplace.h), in a list of ready ones after that, and in a heap of deadlines all
 * the time. Private to csrc/waits/. */
#ifndef PS_PARKED_H
#define PS_PARKED_H

#include "core/core.h"

struct ps_parked {
    /* of its queue, or of the ready ones; link NULL: it waits for the disk */
    struct ps_parked *pk_next, **pk_link;
    struct ps_parked *pk_conn_next, **pk_conn_link; /* of its connection */
    ps_conn *pk_conn;
    ps_pair *pk_pair;
    ps_topic *pk_topic;
    ps_queue *pk_queue;
    ps_filter *pk_filter;
    int32_t pk_opaque, pk_serialize, pk_max;
    int32_t pk_request; /* its code */
    int64_t pk_began_ns;
    int64_t pk_first;       /* the offset that was asked for */
    int64_t pk_offset;      /* what lies before it did not match */
    int64_t pk_lends;       /* it waits for the tier: ps_tier.lends before; -1: it does not */
    int64_t pk_deadline;    /* ms, monotonic */
    struct ps_parked **pk_reading; /* where that names it (coldpull.c); NULL: it does not wait so */
    int32_t pk_trips;       /* how often it did since it last found nothing */
    int32_t pk_heap;        /* place in the heap of deadlines */
    bool pk_ready, pk_last; /* last: it is answered whatever there is */
    bool pk_lite;           /* of pops: one of lite topics (lite/) */
    bool pk_pops;           /* a ps_pop_waiter: the queue, the filter and the offsets are not set */
};

/* Parks a copy of `like`, whose links are not set: in its queue, or ready when that has units by
 * now. False: there are too many, or no memory. */
bool ps_parked_add(const ps_parked *like);
/* The same, but it is in no list yet. NULL: too many, or no memory. */
ps_parked *ps_parked_new(const ps_parked *like);
/* A ready one that found nothing to answer with waits on. */
void ps_parked_again(ps_parked *p);
void ps_parked_free(ps_parked *p); /* of a pop: popplace.h */
/* A pop is kept until it is freed: in the heap, and by its connection. False: no memory. */
bool ps_parked_keep(ps_core *c, ps_parked *p);
/* deadlines.c: its deadline is another one from now on. */
void ps_parked_until(ps_core *c, ps_parked *p, int64_t deadline_ms);
bool ps_deadline_add(ps_core *c, ps_parked *p); /* false: no memory */
void ps_deadline_remove(ps_core *c, ps_parked *p);
/* ms until the first parked pull or wait expires; -1: there is none. */
int64_t ps_core_deadline_in(ps_core *c);
/* The same of what is parked alone. */
int64_t ps_parked_deadline_in(const ps_core *c);

/* The first of two times that are left; negative: there is none. */
static inline int64_t ps_sooner(int64_t a, int64_t b) {
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* Out of the list that it is in. */
static inline void ps_parked_unlink(ps_core *c, ps_parked *h) {
    if (c->co_parking.pg_ready_end == &h->pk_next) c->co_parking.pg_ready_end = h->pk_link;
    *h->pk_link = h->pk_next;
    if (h->pk_next != NULL) h->pk_next->pk_link = h->pk_link;
    h->pk_next = NULL;
    h->pk_link = NULL;
}

/* It does not wait for the disk any longer. */
static inline void ps_parked_leave_disk(ps_parked *h) {
    if (h->pk_reading != NULL) *h->pk_reading = NULL;
    h->pk_reading = NULL;
}

/* Puts it at the end of the ready ones: first come, first served. */
static inline void ps_parked_ready(ps_core *c, ps_parked *h) {
    h->pk_ready = true;
    h->pk_next = NULL;
    h->pk_link = c->co_parking.pg_ready_end;
    *c->co_parking.pg_ready_end = h;
    c->co_parking.pg_ready_end = &h->pk_next;
}

#endif
