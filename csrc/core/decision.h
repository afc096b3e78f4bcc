/* What becomes of a message that is to be put: a decision, made by the tables of the core or by the
 * broker, and carried out here either way. A frame whose message the tables have no rule for is
 * delegated; the broker reads it with ps_conn_read_send and gives its decision to ps_conn_decide,
 * which composes, places, puts and answers as for all others. docs/internals/send-path.md. */
#ifndef PS_DECISION_H
#define PS_DECISION_H

#include "core/remoting.h"

/* cdef begin */
#define PS_ASKS_TRANSACTION 1 /* TRAN_MSG is true */
#define PS_ASKS_TIME 2        /* some TIMER_ property */
#define PS_ASKS_QUEUES 4      /* INNER_MULTI_DISPATCH, or __LITE_TOPIC */
#define PS_ASKS_ORDER 8       /* __SHARDINGKEY */
#define PS_ASKS_DELAY 16      /* DELAY, or __STARTDELIVERTIME */
#define PS_ASKS_INNER 32      /* it says that it is a batch in one record: INNER_NUM, or a flag */

/* A send's header, and what its properties ask for. Texts are borrowed from the frame; those that
 * are absent or empty have data NULL. */
typedef struct ps_send {
    int64_t born_timestamp;
    int32_t code, bad; /* bad: letter of a field that is missing or not a number, 0: none */
    int32_t template_queues, queue_id, sys_flag, flag, reconsume_times;
    int32_t max_reconsume_times; /* -1: not said */
    int32_t unit_mode, batch;
    int32_t asks;       /* PS_ASKS_ */
    int32_t level;      /* DELAY, 0: none */
    int32_t wait;       /* WAIT as Boolean.parseBoolean reads it; 1 without one */
    int32_t immunity_s; /* PS_IMMUNITY_ when negative */
    int32_t priority;   /* ps_priority_of; -1: none */
    int32_t restamped;  /* 1: some property has a name that the broker sets itself */
    int32_t pop;        /* 1: there is a POP_CK, which only the broker may set */
    int32_t queues;     /* 1: there is an INNER_MULTI_DISPATCH */
    int32_t body_len;
    ps_slice topic, properties, uniq, group; /* group: PGROUP, a half's producers */
    ps_slice lite;                           /* __LITE_TOPIC */
} ps_send;

#define PS_AS_ASKED -2
#define PS_QUEUE_ANY -1 /* some queue with write permission */
#define PS_ROLE_PLAIN 0 /* visible at once, or when its delay is over */
#define PS_ROLE_HALF 1  /* waits for its transaction's decision */
/* What the answer names of a message of a static topic: its place in the logical queue, or that
 * queue alone, whose offsets are not decided yet, and -1. */
#define PS_LOGICAL_PLACE 1
#define PS_LOGICAL_QUEUE 2

typedef struct ps_decision {
    int32_t code; /* of the answer; 0: how the put went */
    int32_t put;  /* 0: nothing is put, the answer alone is given: a refusal */
    const char *remark;
    int32_t remark_len; /* of the answer, 0: none */
    const char *topic;  /* that it is meant for; NULL: as asked */
    int32_t topic_len;
    int32_t queue_id; /* in that topic; PS_QUEUE_ANY, or PS_AS_ASKED */
    int32_t level;    /* delay level, 0: none, PS_AS_ASKED: by DELAY */
    int32_t role;     /* PS_ROLE_, or PS_AS_ASKED: by TRAN_MSG */
    int32_t wait;     /* 1: answered when it is as safe as flushDiskType asks; or PS_AS_ASKED */
    const char *key;  /* by which its repeats are known; NULL: as asked */
    int32_t key_len;
    const char *drop; /* names of properties that go, each ended by 0x01 */
    int32_t drop_len;
    const char *add; /* encoded properties, which replace those of the same name */
    int32_t add_len;
    int32_t logical; /* PS_LOGICAL_, 0: the answer names its place as it is */
    int32_t logical_queue;
    int64_t logical_delta; /* what is added to offsets */
} ps_decision;

typedef struct ps_sent { /* what a decision brought about; pointers as in ps_step */
    int32_t code, count; /* messages that were put, or that this one repeats; 0: refused */
    int32_t queue_id, half;
    int64_t queue_offset, physical_offset, end; /* of the first; end: of the last, in the log */
    int64_t bytes;                              /* that were put, 0: a repeat */
    const char *ids;                            /* offset message ids, with commas between */
    int32_t ids_len;
} ps_sent;

/* Reads a send that was delegated: 0, or PS_E_FRAME when it is malformed. Good until the next
 * call with the same core. */
int ps_conn_read_send(ps_conn *conn, const uint8_t *frame, int64_t len, ps_send *out,
                      ps_error *error);
/* Whether a message that asks for this is a half: clients older than 4.6.1 let TRAN_MSG slip into
 * their retries, which are delayed. */
int ps_send_is_half(int32_t asks, int32_t reconsume_times, int32_t level);
/* Carries a decision on a frame out and answers it, at once or (out->deferred) when the disk has
 * it. An error: nothing was put and nothing is answered. */
int ps_conn_decide(ps_conn *conn, const uint8_t *frame, int64_t len, const ps_decision *decision,
                   ps_sent *sent, ps_step *out, ps_error *error);
/* The same for a message that lies in the log at `physical` and is put again: sent back by a
 * consumer (more_tries 1), or a discarded half. Nobody is answered. */
int ps_core_put_again(ps_core *core, int64_t physical, int32_t more_tries,
                      const ps_decision *decision, ps_sent *sent, ps_error *error);
/* cdef end */

#endif
