/* Check points: batches that consumers have popped and not yet acknowledged altogether, and the
 * records in the revive topic that tell of them. The table is derived from the records: a start
 * fills it again. docs/internals/pop.md#records, docs/internals/pop.md#acknowledging; upstream
 * PopCheckPoint, AckMsg, BatchAckMsg.
 *
 * Memory: some 250 bytes a check point; how many there are is for the broker to bound. Everything
 * belongs to the thread of the core. */
#ifndef PS_POPCHECKPOINT_H
#define PS_POPCHECKPOINT_H

#include "core/remoting.h"

/* cdef begin */
#define PS_CHECK_POINT_MAX 32 /* messages of one batch, as upstream limits them */
#define PS_POP_ASIDE 1      /* the end of a record that is not in the log */
#define PS_POP_MARGIN_MS 50 /* an answer leaves so long before its client gives up */
#define PS_POP_LEAD_MS 1000 /* a check point's record is due so long before its messages are back */

typedef struct ps_check_point_key { /* of which delivery; names have 1 to 255 bytes */
    const char *topic, *group;
    int32_t topic_len, group_len;
    int32_t queue_id;
    int64_t start; /* the offset that the batch began at */
    int64_t pop_ms;
} ps_check_point_key;

typedef struct ps_check_point_row { /* a check point; its names are good as long as it is open */
    ps_check_point_key key;
    int32_t revive_queue;
    int32_t count;        /* of offsets */
    uint32_t acked;       /* bit i: offsets[i] is acknowledged */
    int64_t invisible_ms;
    int64_t due_ms;       /* when what is not acknowledged comes back */
    int64_t offsets[32];  /* ascending, none before start, none 2^31 or more after it */
} ps_check_point_row;

/* What POP_MESSAGE is served by. */
typedef struct ps_pop_rules {
    int32_t on;                 /* 0: it is delegated */
    int32_t revive_queues;      /* that batches take turns with */
    int32_t retry_v1;           /* retry topics of the first kind are looked at, too */
    int32_t retry_percent;      /* of requests look there first, the others last */
    int32_t ranked_retry_percent; /* the same of pops that go by priority */
    int32_t lowest_first;         /* 1: a smaller priority is the more urgent one */
    int32_t retries_ranked;       /* 1: retry topics are looked at in turn with their own level */
    int64_t age_ms; /* a message gains a level each time it has waited so long; 0: never */
    int32_t retry_as_stored;    /* 1: answers show retry topics' records under their own names */
    int32_t name_max;           /* bytes of a retry topic's name */
    int64_t invisible_max_ms;   /* a longer time, or just this one, is refused */
    int64_t in_flight_max;      /* messages of a queue; -1: any number */
    int64_t open_max;           /* check points */
    int64_t bytes_max;          /* of the records of an answer, after which no queue is read */
    int64_t young_bytes;        /* a queue whose first record lies so near to the end of the log is
                                 * young; -1: none is */
    int64_t filter_work;        /* what SQL92 may cost in one read (ps_sql92_work) */
    int64_t filter_ms;          /* so long filters pass over messages in one walk */
    /* Requests that may wait: at one place, in all, and at how many places; those for messages and
     * those for the news of some each. */
    int64_t at_place_max, waiting_max, places_max;
} ps_pop_rules;

/* What a consumer asks for, checked. */
typedef struct ps_pop_ask {
    const char *topic, *group, *filter; /* filter: tags, or SQL92; NULL: every message */
    int32_t topic_len, group_len, filter_len;
    int32_t sql;
    int32_t queue_id; /* -1: any of the topic */
    int32_t most;     /* messages, PS_CHECK_POINT_MAX at most */
    int32_t from_min; /* where a new group begins: 1 at the first message, 0 at the last one */
    int32_t ordered;  /* 1: one batch of a queue at a time, without check points: poporder.h */
    int32_t looks;    /* 1: only whether there is something is asked, and nothing is taken */
    int32_t attempt_len;
    const char *attempt; /* names this try of an ordered consumer; NULL: nothing does */
    int64_t invisible_ms;
} ps_pop_ask;

typedef struct ps_pop_batch { /* of one queue */
    int32_t kind;             /* of its topic: 0 that which was asked for, 1, 2 a retry topic */
    int32_t queue_id;
    int64_t start;
    ps_batch *batch;
} ps_pop_batch;

/* What was found: its batches are the caller's, who frees them. */
typedef struct ps_pop_found {
    int64_t pop_ms, invisible_ms;
    int32_t revive_queue, count; /* count: of batches */
    int32_t messages;    /* of an ask that only looks: 1 if there are some */
    int32_t more;        /* 1: filters have not yet seen all */
    int32_t full;        /* 1: a check point more cannot be kept */
    int64_t rest, bytes; /* messages that are still there; of the records */
    int64_t end;         /* of the last check point's record, in the log; 0: none was put */
    const int64_t *seen; /* ends of the topic's queues from seen_first on; until the next walk */
    int32_t seen_first, seen_count;
    int64_t lends;      /* ps_tier.lends before a queue said that its next message is in the
                         * tier; -1: none did */
    int64_t blocked_ms; /* when the first queue that order has passed over may be looked at; 0: none
                         * was */
    int32_t ordered;    /* 1: `times` are set, and there are no check points */
    ps_pop_batch all[32];
    int32_t times[32]; /* by message: how often it was popped before */
} ps_pop_found;

/* Takes what is there: each batch has its check point in the log, or is noted as out. Else it waits
 * until there is something: up to wait_ms, below 0: not at all. 1: *out is what was found, full: it
 * may not wait; *due_ms: when that ends, if it is before all others, else 0. 0: it waits, and
 * ps_core_next gives what was found for this number of the connection, above 0, which no other one
 * has. An error: nothing was taken; PS_E_EXPRESSION_ILLEGAL, PS_E_NO_MEMORY, or what putting a
 * check point fails with. */
int ps_conn_pop_wait(ps_conn *conn, const ps_pop_ask *ask, int64_t wait_ms, int64_t number,
                     ps_pop_found *out, int64_t *due_ms, ps_error *error);
/* It waits no more. */
void ps_conn_pop_leave(ps_conn *conn, int64_t number);
/* Something came back for them: those try who wait for messages of the topic in this group. */
void ps_core_pop_wake(ps_core *core, const char *group, int32_t group_len, const char *topic,
                      int32_t topic_len);
/* The topic may have more queues than before: who waits at any of them looks at all. */
void ps_core_pop_topic(ps_core *core, const char *topic, int32_t topic_len);
/* How many requests wait at this place, queue -1: for any of the topic; -2: at all of the topic's.
 * group NULL: in all. looks 0: for messages; 1: for the news of some. */
int64_t ps_core_pop_waiting(ps_core *core, int32_t looks, const char *group, int32_t group_len,
                            const char *topic, int32_t topic_len, int32_t queue_id);
/* A POP_MESSAGE or NOTIFICATION that was delegated, and found right: it is served, whether or not
 * the tables say that it may be. 1 served; 0: it is not one; or an error, after which nothing was
 * taken. */
int ps_conn_serve_pop(ps_conn *conn, const uint8_t *frame, int64_t len, ps_step *out,
                      ps_error *error);
/* Moves what a network thread has found (ps_net_call) to the caller's memory. */
void ps_pop_found_take(ps_pop_found *from, ps_pop_found *to);

/* Sets the rules from now on. PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_pop_rules(ps_core *core, const ps_pop_rules *rules, ps_error *error);
/* In so many of 100 pops a group goes by priority, in topics that have some; all do that say
 * nothing. PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_pop_factor(ps_core *core, const char *group, int32_t group_len, int32_t percent,
                       ps_error *error);
/* Where the records go. PS_E_TOPIC_ILLEGAL, PS_E_NO_MEMORY. */
int ps_core_pop_set(ps_core *core, const char *revive_topic, int32_t len, ps_error *error);
/* From now on records go to this file, a line each, and not to the log, which belongs to another
 * broker: of a slave that acts as master. Below 0: to the log again. A line has tag, revive queue,
 * when the record would be delivered there (ms), and body. The end of such a record is
 * PS_POP_ASIDE, which is safe. */
void ps_core_pop_journal(ps_core *core, int fd);
/* The end, in the log, of the last record that was put; 0: none was. */
int64_t ps_core_pop_end(const ps_core *core);

/* Puts the record that acknowledges these offsets of a check point, which need not be open. */
int ps_core_check_point_put_ack(ps_core *core, const ps_check_point_row *row,
                                const int64_t *offsets, int32_t count, int64_t *end,
                                ps_error *error);

/* Puts its record, and from now on it is open. 1: there is one with this key, and nothing was put.
 * An error: it is not open. *end: of the record, in the log. */
int ps_core_check_point_open(ps_core *core, const ps_check_point_row *row, int64_t *end,
                             ps_error *error);
/* It is open from now on. 1: there is one with this key. PS_E_ARGUMENT, PS_E_NO_MEMORY. */
int ps_core_check_point_add(ps_core *core, const ps_check_point_row *row, ps_error *error);
/* 1: it is open, and *out is it; 0. */
int ps_core_check_point_find(ps_core *core, const ps_check_point_key *key, ps_check_point_row *out);
/* These offsets are acknowledged; with its last one the check point ends. Bits of those that were
 * open before; 0: there is no such check point, or none of them was. */
uint32_t ps_core_check_point_end(ps_core *core, const ps_check_point_key *key,
                                 const int64_t *offsets, int32_t count);
/* The same after its record was put. 0: nothing was to be put. *end: of the record. An error:
 * nothing counts. */
int ps_core_check_point_ack(ps_core *core, const ps_check_point_key *key, const int64_t *offsets,
                            int32_t count, int64_t *end, ps_error *error);
/* It could not be brought back when it was due. 0: it is not open. */
int ps_core_check_point_postpone(ps_core *core, const ps_check_point_key *key, int64_t due_ms);
/* Which check points come back: those of a topic and a group that are due, as long as they are due
 * before all others. target: the retry topic, of one queue at least; of no length: nothing of them
 * may come back. */
typedef struct ps_revive_ask {
    const char *topic, *group, *target;
    int32_t topic_len, group_len, target_len;
    int64_t now_ms;
    int64_t again_ms; /* when one that cannot be brought back now is tried again */
    int64_t turn_ns;  /* so long it goes on, but for a check point, or a MiB of it, at least */
} ps_revive_ask;

typedef struct ps_revived {
    int64_t copies; /* that were put */
    int64_t gone;   /* messages that retention has taken, or that may not come back */
    int64_t ended;  /* check points */
    int64_t end;    /* of the last copy, in the log; 0: none was put */
    int32_t damaged_queue; /* of the last message whose record is damaged; -1: none is */
    int64_t damaged_offset;
} ps_revived;

/* Puts a copy of each message that nobody acknowledged, and acknowledges it, in the log, too. An
 * error: what putting or reading failed with; *out says what was done before. */
int ps_core_revive(ps_core *core, const ps_revive_ask *ask, ps_revived *out, ps_error *error);
/* The one that is due first: 1, or 0. */
int ps_core_check_point_next(ps_core *core, ps_check_point_row *out);
/* When that is; -1: none is open. */
int64_t ps_core_check_point_due(const ps_core *core);
/* Whether the record of an open one may be in this revive queue by now. */
int ps_core_check_point_stored(const ps_core *core, int32_t revive_queue, int64_t now_ms);
int64_t ps_core_check_point_count(const ps_core *core);
/* Messages that were popped and are neither acknowledged nor back; queue -1: of all queues. */
int64_t ps_core_check_point_in_flight(ps_core *core, const char *group, int32_t group_len,
                                      const char *topic, int32_t topic_len, int32_t queue_id);
/* Up to `room` of those that are open, from place *at on (0: the first), in no order; *at is -1 at
 * the end. Good as long as nothing is added or ends. */
int64_t ps_core_check_point_list(ps_core *core, int64_t *at, ps_check_point_row *out, int64_t room);
/* cdef end */

struct ps_pop_state;
void ps_pop_state_free(struct ps_pop_state *pops);
void ps_pop_found_free(ps_pop_found *found);

/* POP_MESSAGE, ACK_MESSAGE: 1 served, 0 for the broker to serve. */
int ps_core_pop(ps_conn *conn, const ps_command *request);
/* The same of one that the broker has found right, or a NOTIFICATION; an error: see
 * ps_conn_serve_pop. */
int ps_core_pop_checked(ps_conn *conn, const ps_command *request, ps_error *e);
int ps_core_ack(ps_conn *conn, const ps_command *request);

#endif
