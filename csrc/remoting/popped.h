/* Check points: batches that consumers have popped and not yet acknowledged altogether, and the
 * records in the revive topic that tell of them. The table is derived from the records: a start
 * fills it again. docs/internals/pop.md#records, docs/internals/pop.md#acknowledging; upstream
 * PopCheckPoint, AckMsg, BatchAckMsg.
 *
 * Memory: some 250 bytes a check point; how many there are is for the broker to bound. Everything
 * belongs to the thread of the core. */
#ifndef PS_POPPED_H
#define PS_POPPED_H

#include "remoting/remoting.h"

/* cdef begin */
#define PS_POPPED_MAX 32    /* messages of one batch, as upstream limits them */
#define PS_POP_LEAD_MS 1000 /* a check point's record is due so long before its messages are back */

typedef struct ps_popped_key { /* of which delivery; names have 1 to 255 bytes */
    const char *topic, *group;
    int32_t topic_len, group_len;
    int32_t queue_id;
    int64_t start; /* the offset that the batch began at */
    int64_t pop_ms;
} ps_popped_key;

typedef struct ps_popped_row { /* a check point; its names are good as long as it is open */
    ps_popped_key key;
    int32_t revive_queue;
    int32_t count;        /* of offsets */
    uint32_t acked;       /* bit i: offsets[i] is acknowledged */
    int64_t invisible_ms;
    int64_t due_ms;       /* when what is not acknowledged comes back */
    int64_t offsets[32];  /* ascending, none before start, none 2^31 or more after it */
} ps_popped_row;

/* What POP_MESSAGE is served by. */
typedef struct ps_pop_rules {
    int32_t on;                 /* 0: it is handed on */
    int32_t revive_queues;      /* that batches take turns with */
    int32_t retry_v1, retry_v2; /* which retry topics are looked at */
    int32_t name_max;           /* bytes of a retry topic's name */
    int64_t invisible_max_ms;   /* a longer time, or just this one, is refused */
    int64_t in_flight_max;      /* messages of a queue; -1: any number */
    int64_t open_max;           /* check points */
    int64_t bytes_max;          /* of the records of an answer, after which no queue is read */
} ps_pop_rules;

/* From now on. PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_pop_rules(ps_core *core, const ps_pop_rules *rules, ps_error *error);
/* Where the records go. PS_E_TOPIC_ILLEGAL, PS_E_NO_MEMORY. */
int ps_core_pop_set(ps_core *core, const char *revive_topic, int32_t len, ps_error *error);
/* The end, in the log, of the last record that was put; 0: none was. */
int64_t ps_core_pop_end(const ps_core *core);

/* Puts the record that acknowledges these offsets of a check point, which need not be open. */
int ps_core_popped_put_ack(ps_core *core, const ps_popped_row *row, const int64_t *offsets,
                           int32_t count, int64_t *end, ps_error *error);

/* Puts its record, and from now on it is open. 1: there is one with this key, and nothing was put.
 * An error: it is not open. *end: of the record, in the log. */
int ps_core_popped_open(ps_core *core, const ps_popped_row *row, int64_t *end, ps_error *error);
/* It is open from now on. 1: there is one with this key. PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_popped_add(ps_core *core, const ps_popped_row *row, ps_error *error);
/* 1: it is open, and *out is it; 0. */
int ps_core_popped_find(ps_core *core, const ps_popped_key *key, ps_popped_row *out);
/* These offsets are acknowledged; with its last one the check point ends. Bits of those that were
 * open before; 0: there is no such check point, or none of them was. */
uint32_t ps_core_popped_end(ps_core *core, const ps_popped_key *key, const int64_t *offsets,
                            int32_t count);
/* The same after its record was put. 0: nothing was to be put. *end: of the record. An error:
 * nothing counts. */
int ps_core_popped_ack(ps_core *core, const ps_popped_key *key, const int64_t *offsets,
                       int32_t count, int64_t *end, ps_error *error);
/* It could not be brought back when it was due. 0: it is not open. */
int ps_core_popped_postpone(ps_core *core, const ps_popped_key *key, int64_t due_ms);
/* The one that is due first: 1, or 0. */
int ps_core_popped_next(ps_core *core, ps_popped_row *out);
/* When that is; -1: none is open. */
int64_t ps_core_popped_due(const ps_core *core);
/* Whether the record of an open one may be in this revive queue by now. */
int ps_core_popped_stored(const ps_core *core, int32_t revive_queue, int64_t now_ms);
int64_t ps_core_popped_count(const ps_core *core);
/* Messages that were popped and are neither acknowledged nor back; queue -1: of all queues. */
int64_t ps_core_popped_in_flight(ps_core *core, const char *group, int32_t group_len,
                                 const char *topic, int32_t topic_len, int32_t queue_id);
/* Up to `room` of those that are open, from place *at on (0: the first), in no order; *at is -1 at
 * the end. Good as long as nothing is added or ends. */
int64_t ps_core_popped_list(ps_core *core, int64_t *at, ps_popped_row *out, int64_t room);
/* cdef end */

struct ps_pops;
void ps_pops_free(struct ps_pops *pops);

/* POP_MESSAGE, ACK_MESSAGE: 1 served, 0 for the broker to serve. */
int ps_core_pop(ps_conn *conn, const ps_command *request);
int ps_core_ack(ps_conn *conn, const ps_command *request);

#endif
