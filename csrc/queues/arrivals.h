/* Notifies one listener of queues that got new units. How: arrivals.c. */
#ifndef PS_ARRIVALS_H
#define PS_ARRIVALS_H

#include "queues/consumequeue.h"

typedef struct ps_arrivals {
    _Atomic(ps_queue *) ar_list; /* watched queues with new units, newest first */
    _Atomic int32_t ar_fd;       /* eventfd to signal, -1: none */
    bool ar_listened;            /* somebody listens; dispatch lock */
} ps_arrivals;

/* From now on `fd` (an eventfd, -1: none) becomes readable when a watched queue gets units. Once
 * this returns nothing is written to the one before, which may be closed. Dispatch lock. */
void ps_arrivals_listen_locked(ps_arrivals *a, int fd);
/* The same for a while: the listener is about to look at the list by itself. */
void ps_arrivals_to(ps_arrivals *a, int fd);
/* The listener watches q from now on. True: it already reaches beyond `offset`. */
bool ps_arrivals_watch(ps_queue *q, int64_t offset);
/* The dispatcher, after a new unit: whether it is to be added. */
bool ps_arrivals_watched(ps_queue *q);
/* The dispatcher: q has a new unit; then, after some, one signal to the listener. */
void ps_arrivals_add(ps_arrivals *a, ps_queue *q);
void ps_arrivals_tell(ps_arrivals *a);
/* Takes the list: each queue was watched and has news, and is watched no longer. The caller follows
 * cq_arrived_next, and calls ps_arrivals_done for each (its next is another's from then on) before
 * it watches it again. */
ps_queue *ps_arrivals_take(ps_arrivals *a);
void ps_arrivals_done(ps_queue *q);

#endif
