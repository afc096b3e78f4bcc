/* What the two files of ordered consumption share: a batch that is out, and the journal of changes.
 * Private to csrc/pop/. */
#ifndef PS_ORDERS_H
#define PS_ORDERS_H

#include "core/core.h"
#include "pop/poporder.h"

typedef struct ps_ordered_message {
    int64_t om_offset;
    int64_t om_visible_ms; /* -1: it comes back with the others */
    int32_t om_times;
} ps_ordered_message;

typedef struct ps_order {
    struct ps_order *or_next, **or_link; /* of all; those of a pair stand together */
    ps_pair *or_pair;
    int32_t or_queue, or_count;
    int32_t or_attempt_len;
    bool or_changed; /* the time of some message was changed */
    int64_t or_pop_ms, or_invisible_ms, or_used_ms;
    int64_t or_due_ms; /* when somebody wants to know that it is over */
    int32_t or_due_at; /* its place in that heap, from 1; 0: nobody does */
    uint64_t or_acked;
    ps_ordered_message or_all[]; /* then the attempt */
} ps_order;

static inline ps_slice ps_order_attempt(const ps_order *o) {
    return (ps_slice){(const uint8_t *)(o->or_all + o->or_count), o->or_attempt_len};
}

typedef struct ps_order_log {
    ps_order *ol_all;
    int64_t ol_changes;
    int64_t ol_at;      /* where the journal ends */
    int ol_fd;          /* -1: there is none */
    int ol_failed;      /* errno, until Python has it */
    bool ol_saving;     /* a file is being saved: what changes is for the journal after it, too */
    ps_buffer ol_since; /* that */
    bool ol_records;    /* changes are records of the log, too */
    int64_t ol_end;     /* of the last one */
    ps_order **ol_due;  /* a heap, by time: orderdue.c */
    int32_t ol_due_count, ol_due_room;
} ps_order_log;

ps_order_log *ps_order_log_of(ps_core *c); /* NULL: no memory */

/* orderdue.c: from now on it is due at that time, in the clock of timers; false: no memory. Not any
 * more. The one that is due first; NULL: none is. */
bool ps_order_due(ps_core *c, ps_order *o, int64_t at_ms);
void ps_order_undue(ps_core *c, ps_order *o);
ps_order *ps_order_due_first(const ps_core *c);

/* Notes the batch of a queue that was popped or changed; NULL: it is forgotten. The group continues
 * at `next`. From now on a crash of the process does not undo it. */
void ps_order_note(ps_core *c, const ps_pair *pair, int32_t queue_id, const ps_order *o,
                   int64_t next);

#endif
