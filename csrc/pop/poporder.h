/* Ordered consumption: which batch of a queue is out, and what of it is acknowledged. There are no
 * check points: a queue hands out its next batch when each message of the last one is acknowledged,
 * or visible again. docs/internals/pop.md#order; upstream ConsumerOrderInfoManager.
 *
 * Memory: some 80 bytes a batch and 24 a message of it; one batch for each queue of a group, until
 * nobody has popped it for a day. Everything belongs to who is alone in the core. */
#ifndef PS_POPORDER_H
#define PS_POPORDER_H

#include "pop/popcheckpoint.h"

/* cdef begin */
#define PS_ORDER_MAX 64 /* messages of a batch in the file, whose bits are an i64 */

typedef struct ps_order_row { /* the batch of a queue that is out */
    ps_check_point_key key;   /* whose start says nothing */
    const char *attempt;      /* of the request that got it; NULL: it named none */
    int32_t attempt_len;
    int32_t count;
    int64_t invisible_ms, used_ms; /* used: when it was last popped */
    uint64_t acked;                /* bit i: offsets[i] is acknowledged */
    int64_t offsets[64];           /* ascending */
    int64_t visible_ms[64];        /* when one comes back whose time was changed; -1: it was not */
    int32_t times[64];             /* how often it was popped before */
} ps_order_row;

/* This one is out from now on, as its file says; note 1: that is a change, which the journal has.
 * PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_order_put(ps_core *core, const ps_order_row *row, int32_t note, ps_error *error);
/* Batches that are out, by a walk over them. */
int64_t ps_core_order_count(ps_core *core);
/* 1: *row is the batch that is out, but for the names of its key; its attempt is good until the
 * next change. 0: none is. */
int ps_core_order_get(ps_core *core, const ps_check_point_key *key, ps_order_row *row);
/* 1: a batch is out. *first: its first offset; *blocked_ms: when the next one may be popped, 0:
 * now. An attempt that got this batch gets it again. */
int ps_core_order_find(ps_core *core, const ps_check_point_key *key, const char *attempt,
                       int32_t attempt_len, int64_t *first, int64_t *blocked_ms);

#define PS_ORDER_UNKNOWN 0 /* the batch that is out does not have this offset */
#define PS_ORDER_STALE 1   /* that batch is over, or was acknowledged so far */
#define PS_ORDER_DONE 2
/* Acknowledges these offsets of the batch that was popped at that time, and moves the group on: the
 * worst of their outcomes. */
int ps_core_order_ack(ps_core *core, const ps_check_point_key *key, const int64_t *offsets,
                      int32_t count);
/* Makes one of them visible again at that time. */
int ps_core_order_change(ps_core *core, const ps_check_point_key *key, int64_t offset,
                         int64_t visible_ms);
/* Forgets the batches of a topic, of a group, of a queue, or of what is given together; NULL, -1:
 * any. */
void ps_core_order_forget(ps_core *core, const char *group, int32_t group_len, const char *topic,
                          int32_t topic_len, int32_t queue_id);
/* Forgets those that nobody has popped since then. */
void ps_core_order_expire(ps_core *core, int64_t before_ms);

/* ---- the file, and its journal: orderlog.c ---- */

/* How often something of it has changed: others than last time, and there is something to save. */
int64_t ps_core_order_changes(ps_core *core);
/* What the file has to say now, good until the next call. saving 1: the journal notes that a file
 * of this content is about to be saved. Its bytes, or PS_E_NO_MEMORY. */
int64_t ps_core_order_text(ps_core *core, int32_t saving, const uint8_t **text);
/* Begins a journal after the file with this CRC-32: it takes the place of the one at `path`, and
 * has these lines and all changes since the text that is saved. An error: the old one stays. */
int ps_core_order_journal(ps_core *core, const char *path, uint32_t crc, const uint8_t *lines,
                          int64_t len, ps_error *error);
/* No more changes are noted. */
void ps_core_order_journal_end(ps_core *core);
/* on: changes are records of the revive topic, too: for the slave that becomes the master. What is
 * answered to a change waits for the record. */
void ps_core_order_records(ps_core *core, int32_t on);
/* The end of the last of these in the log; 0: there is none. */
int64_t ps_core_order_end(ps_core *core);
/* errno of a change that could not be noted, once: then none is, until the next journal. */
int ps_core_order_failed(ps_core *core);
/* cdef end */

struct ps_pair;
struct ps_order;

/* The time until which the batch that is out blocks the queue for this attempt; 0: it does not. */
int64_t ps_order_blocked_ms(const struct ps_order *o, ps_slice attempt, int64_t now_ms);
/* These messages are out from now on; `times` gets how often each was popped before. The group
 * continues at the first of them. False: no memory, and nothing has changed. */
bool ps_order_popped(ps_core *c, struct ps_pair *pair, int32_t queue_id, const ps_pop_ask *ask,
                     const ps_batch_info *info, int64_t pop_ms, int32_t *times);
/* Whether such a message is out, and neither acknowledged nor passed over. */
bool ps_order_has(ps_core *c, const ps_check_point_key *key, int64_t offset);
/* A reset: what is out blocks nobody any more. */
void ps_order_reset(ps_core *c, struct ps_pair *pair, int32_t queue_id);
/* Every one; at the end. */
void ps_orders_free(ps_core *c);

#endif
