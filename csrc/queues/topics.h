/* The table of topics and their queues. Topics and queues are never freed before the store's
 * handle, so a pointer once got stays good without a lock. */
#ifndef PS_TOPICS_H
#define PS_TOPICS_H

#include "base/chains.h"
#include "queues/consumequeue.h"
#include "queues/inflow.h"

/* A topic's table of queues: blocks that double, so that a topic of few costs little and none ever
 * moves. The first block holds queues 0 to 7, the next 8 to 15, then 16 to 31, ... */
#define PS_QUEUE_BLOCK 8
#define PS_QUEUE_BLOCKS 14

#define PS_DELAYS 2 /* where delayed messages come from */
#define PS_DELAY_TIMER 0
#define PS_DELAY_LEVEL 1

struct ps_topic {
    ps_chain tp_chain; /* hash of the name */
    struct ps_store *tp_store; /* for public calls that take a topic alone */
    struct ps_topics *tp_table;
    int32_t tp_len;
    bool tp_schedule; /* SCHEDULE_TOPIC_XXXX: units carry the deliver time */
    bool tp_there;    /* it had files when the store was opened (store/coverage.c) */
    ps_inflow tp_delivered[PS_DELAYS]; /* messages whose delay was over */
    struct ps_pop_place *tp_pop_places; /* the listener's own: where pops wait for messages of it */
    struct ps_topic *tp_pops_of; /* and of a topic of retries that are in the tier: whose pops these
                                  * are; NULL: none is known */
    /* Records before it are of a life that was deleted (store/tombstones.c). Written with the
     * dispatch lock. */
    _Atomic int64_t tp_gone_below;
    _Atomic(ps_queue *) *_Atomic tp_blocks[PS_QUEUE_BLOCKS];
    char tp_name[]; /* ends with 0x00 */
};

typedef struct ps_topics {
    ps_queues_shared tt_shared; /* with the lock of all this */
    struct ps_store *tt_store;
    ps_chains tt_topics;
    _Atomic bool tt_lmq; /* one of them is a queue of light messages (format/multi.h) */
    ps_queue **tt_queues; /* all queues, in order of birth */
    int32_t tt_queue_room;
    _Atomic int32_t tt_queue_count;
} ps_topics;

void ps_topics_init(ps_topics *tt, struct ps_store *store, ps_io *io, const char *root,
                    int64_t file_size, bool readonly);
void ps_topics_free(ps_topics *tt);
ps_topic *ps_topic_find(ps_topics *tt, const char *name, int32_t len);
/* Made when missing; NULL: no memory, or a name that is too long. */
ps_topic *ps_topic_get(ps_topics *tt, const char *name, int32_t len);

ps_queue *ps_topic_queue(ps_topic *t, int32_t id); /* NULL: none */
/* Made when missing; NULL: no memory. */
ps_queue *ps_topic_queue_get(ps_topic *t, int32_t id);
ps_queue *ps_topic_queue_get_locked(ps_topic *t, int32_t id); /* lock held for writing */
int ps_topic_queue_add_locked(ps_topic *t, ps_queue *q);
int32_t ps_queues_snapshot(ps_topics *tt, ps_queue ***out); /* every queue now; free *out */

/* Whether a record at this place was stored for a life of the topic that has been deleted since: it
 * goes to none of its queues, neither by itself nor when its time or decision comes. */
static inline bool ps_topic_is_past(const ps_topic *t, int64_t physical) {
    return physical < atomic_load_explicit(&t->tp_gone_below, memory_order_relaxed);
}

#endif
