/* What the files of POP share: the table behind popcheckpoint.h. Private to csrc/pop/. */
#ifndef PS_POP_H
#define PS_POP_H

#include "core/core.h"
#include "pop/orders.h"
#include "pop/popcheckpoint.h"

typedef struct ps_check_point { /* an open check point */
    ps_chain pp_chain;
    ps_pair *pp_pair;          /* group and topic */
    uint32_t pp_acked;
    int32_t pp_queue, pp_revive, pp_count;
    int32_t pp_at; /* in its heap */
    bool pp_late;  /* it could not be brought back in time */
    int64_t pp_start, pp_pop_ms, pp_invisible_ms, pp_due_ms;
    int64_t pp_turn; /* of those due together the first one goes first */
    int32_t pp_distances[]; /* of its messages from pp_start */
} ps_check_point;

typedef struct due_heap { /* of one revive queue */
    int32_t dh_queue, dh_count, dh_room;
    int32_t dh_late; /* how many are */
    ps_check_point **dh_all;
} due_heap;

typedef struct ps_pop_state {
    ps_topic *po_revive;    /* NULL: nothing can be put */
    _Atomic int64_t po_end; /* of the last record put; the writer of offsets reads it, too */
    bool po_aside;          /* records go to the journal and not to the log */
    int po_journal_fd;
    ps_chains po_table;
    due_heap *po_heaps;
    int32_t po_heap_count;
    int64_t po_turn;
    int64_t po_pops; /* requests that were looked at */
    int64_t po_waiting[2], po_places[2]; /* of popwait.c: for messages, for the news of some */
    int64_t po_waiting_bytes;
    ps_pop_rules po_rules;
    ps_order_log po_order;
    ps_chains po_factors; /* poprank.c */
} ps_pop_state;

ps_pop_state *ps_pop_state_of(ps_core *c); /* NULL: no memory */
ps_check_point *ps_check_point_of(ps_core *c, const ps_check_point_key *key);
void ps_check_point_row_of(const ps_check_point *p, ps_check_point_row *out);
/* The one that is due first; NULL: none is open. */
ps_check_point *ps_check_point_first(const ps_core *c);
/* Bits of these offsets, of those that are not acknowledged. */
uint32_t ps_check_point_bits(const ps_check_point *p, const int64_t *offsets, int32_t count);
/* Those are acknowledged from now on; p is gone with its last one. */
void ps_check_point_close(ps_core *c, ps_check_point *p, uint32_t bits);

/* Who waits: a request of the remoting protocol, which is answered with a frame, or somebody to
 * whom a step gives what was found (ps_step.found). */
typedef struct ps_pop_asker {
    ps_conn *conn;
    int64_t number;   /* the call of the connection; 0: a frame */
    int32_t opaque, serialize;
} ps_pop_asker;

/* popwalk.c: takes what is there. *due_ms: when what was taken ends, if that is before all others;
 * else 0. An error: nothing was taken. */
int ps_pop_take(ps_core *c, const ps_pop_ask *ask, ps_pop_found *found, int64_t *due_ms,
                ps_error *e);
/* The same of one that only looks; it takes nothing. False: no memory. */
bool ps_pop_look(ps_core *c, const ps_pop_ask *ask, ps_pop_found *found);
/* poprank.c: whether this pop looks at the queues by priority. luck: from 0 to 99. */
bool ps_pop_is_ranked(const ps_core *c, const ps_topic_entry *topic, const ps_pop_ask *ask,
                      int32_t luck);
typedef struct ps_pop_rank { /* of a queue */
    int64_t rank; /* the greatest is looked at first */
    int32_t queue;
} ps_pop_rank;
/* The topic's queues, the most urgent one first; until the next call. NULL: no memory. */
ps_pop_rank *ps_pop_ranks(ps_core *c, const ps_topic_entry *topic, ps_pair *pair, int64_t now_ms);
/* Before which of them, counted from 0, the retry topic's first message is due. */
int32_t ps_pop_retry_place(ps_core *c, const ps_topic_entry *of, const ps_topic_entry *retry,
                           ps_pair *pair, const ps_pop_rank *ranks, int64_t now_ms);
/* popshow.c: answers with what was found, into ca_answer.an_out; nothing: that. */
int ps_pop_answer(const ps_pop_asker *who, const ps_pop_found *found, ps_slice topic);
/* Answers one that only looks. */
int ps_pop_answer_look(const ps_pop_asker *who, const ps_pop_found *found);

/* popack.c */
typedef struct ps_ack_request { /* ACK_MESSAGE */
    ps_slice group, topic, handle;
    ps_slice lite; /* the lite topic; empty: it is of none */
    int64_t queue_id, offset;
} ps_ack_request;

/* False: one of its fields but the lite topic is missing, or is not valid. */
bool ps_ack_read(const ps_command *command, ps_ack_request *r);
/* end: of the record, in the log; 0: none was put, and nobody waits for the disk. 1, or an
 * error. */
int ps_ack_answer(ps_conn *n, const ps_command *command, int64_t end);

/* The topic through which messages of `topic` come back to the group; second: of the second kind
 * (enableRetryTopicV2). Its length; names have PS_TOPIC_MAX bytes at most. */
#define PS_RETRY_ROOM (2 * PS_TOPIC_MAX + 16)
int32_t ps_retry_topic(ps_slice group, ps_slice topic, bool second, char to[PS_RETRY_ROOM]);

/* Whether this broker hands out messages: a slave does while it acts as master. */
static inline bool ps_pop_hands_out(const ps_core *c) {
    bool acts = c->co_pop != NULL && c->co_pop->po_aside;
    return ps_core_leads(c) && (acts || !atomic_load(&c->co_store->st_follow.fo_on));
}

/* Whether records may be put: in the log, or at a slave that acts as master beside it. */
static inline bool ps_pop_can_put(const ps_core *c) {
    return c->co_pop != NULL && c->co_pop->po_revive != NULL && ps_pop_hands_out(c);
}

static inline int32_t ps_check_point_open(const ps_check_point *p) {
    return p->pp_count - __builtin_popcount(p->pp_acked);
}

#endif
