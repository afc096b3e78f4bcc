/* Transactions: halves that are stored, decided, checked and discarded. The table of open halves
 * (halves.c) is the truth while a broker runs: a half that is not in it has been decided, so no
 * decision is carried out twice. The topics on the disk are as upstream writes them, and from them
 * the table can be rebuilt. docs/internals/services.md#transactions; upstream
 * TransactionalMessageServiceImpl, EndTransactionProcessor.
 *
 * Memory: at most PS_HALVES_MAX open halves of 72 bytes, 8 MiB for decisions remembered, a name a
 * group and topic that has open halves; beyond it sends of halves are delegated and refused.
 * Everything belongs to the thread of the core. */
#ifndef PS_TRANSACTION_H
#define PS_TRANSACTION_H

#include "core/remoting.h"

/* cdef begin */
#define PS_HALVES_MAX 4194304

/* Decisions. COMMIT and ROLLBACK are the wire's. */
#define PS_TX_COMMIT 8
#define PS_TX_ROLLBACK 12
#define PS_TX_DISCARD 1  /* discarded: a copy lies in TRANS_CHECK_MAX_TIME_TOPIC */
#define PS_TX_LOST 2     /* its record is no longer in the log */
#define PS_TX_FINISHED 3 /* decided; how was not seen or is not remembered */

#define PS_IMMUNITY_NONE -2    /* the half names no time of its own */
#define PS_IMMUNITY_DEFAULT -1 /* its value is invalid */

typedef struct ps_tx_conf {
    int32_t on;         /* 0: halves and decisions are all delegated */
    int32_t op_bytes;   /* transactionOpMsgMaxSize */
    int64_t timeout_ms; /* transactionTimeOut */
    int64_t now_ms;     /* the clock of late decisions; 0: the system's */
    const char *broker; /* bname of checks */
} ps_tx_conf;
int ps_core_tx_set(ps_core *core, const ps_tx_conf *conf, ps_error *error);

typedef struct ps_half_row {
    int64_t offset, physical;    /* of its newest copy, in the half queue and in the log */
    int64_t root, root_physical; /* of the first one; equal to these when there is no copy */
    int64_t store_ms;            /* of the first one */
    int64_t asked_ms;            /* the last check, 0: none */
    int32_t checks, immunity_s;  /* immunity_s: PS_IMMUNITY_ when negative */
    int32_t group_len, topic_len;
    const char *group, *topic; /* live as long as the half is open */
} ps_half_row;

/* Adds a half that was put elsewhere or found on the disk; saved 1: the metadata has it. 1: it is
 * there already. PS_E_NO_MEMORY when the table is full. */
int ps_core_tx_add(ps_core *core, const ps_half_row *row, int32_t saved, ps_error *error);
/* The open half at a half queue offset, of its newest copy or its first: 1, or 0. */
int ps_core_tx_find(ps_core *core, int64_t offset, ps_half_row *out);
/* How it was decided, PS_TX_FINISHED when that is not remembered. */
int32_t ps_core_tx_decided(ps_core *core, int64_t offset);
/* Up to `room` open halves from place *at on (0: the first), in no order; *at is -1 at the end. */
int64_t ps_core_tx_list(ps_core *core, int64_t *at, ps_half_row *out, int64_t room);
/* Carries a decision out: the final message (COMMIT) or the copy (DISCARD) is put, then the op is
 * queued. PS_E_NOT_FOUND: there is no such open half; the other errors leave it open. */
int ps_core_tx_decide(ps_core *core, int64_t offset, int32_t decision, ps_put_result *out,
                      ps_error *error);
/* What END_TRANSACTION says. offset: in the queue of halves; physical: in the log. */
typedef struct ps_ending {
    ps_slice group, topic; /* topic: without data, any */
    int64_t offset, physical, decision;
    int32_t from_check;
} ps_ending;
/* The same for a gRPC client, which names the topic: 1 carried out; 0: nothing has happened, the
 * broker serves it. */
int ps_conn_end(ps_conn *conn, const struct ps_proof *proof, const ps_ending *ending);
/* Takes out a half that the log shows to be decided; op 1: and writes that down. 0: not open. */
int ps_core_tx_settled(ps_core *core, int64_t offset, int32_t decision, int32_t op);
/* An op record that lies on the disk: the largest half queue offset that it names. */
void ps_core_tx_op_seen(ps_core *core, int64_t op_offset, int64_t largest_half);
/* The half queue reaches up to here. */
void ps_core_tx_half_seen(ps_core *core, int64_t next);
/* Writes the ops that are queued. */
int ps_core_tx_write_ops(ps_core *core, ps_error *error);

typedef struct ps_tx_state {
    int64_t open, half_next, op_next;
    int64_t half_progress, op_progress; /* of CID_RMQ_SYS_TRANS */
    int64_t ops_queued;                 /* bytes */
    int64_t ops_since_ms;               /* monotonic, of the first that is queued; 0: none */
    int64_t uncovered;                  /* first final message whose op is queued; -1: none */
    int64_t halves, commits, rollbacks, discards, lost, unknown, repeated, refused, checks;
} ps_tx_state;
void ps_core_tx_get_state(ps_core *core, ps_tx_state *out);

/* rocketmq_finish_message_latency: commits by whole seconds since the message was born, up to 5,
 * 60, 600, 3600, 43200, 86400, and more (upstream BrokerMetricsManager). */
#define PS_TX_LATENCIES 7

typedef struct ps_tx_tally { /* of a topic, since the start */
    const char *topic;       /* lives as long as the core */
    int32_t topic_len;
    int64_t commits, rollbacks, latency_s; /* latency_s: sum over commits */
    int64_t latencies[PS_TX_LATENCIES];    /* commits by bucket, not added up */
} ps_tx_tally;
/* Topics that had transactions decided; returns how many there are. */
int64_t ps_core_tx_tallies(ps_core *core, ps_tx_tally *out, int64_t room);

/* ---- checks ---- */
typedef struct ps_tx_count {
    const char *name;
    int32_t len, live;
    int64_t open;
} ps_tx_count;
/* Groups (topics 0) or topics that have open halves; returns how many there are. */
int64_t ps_core_tx_counts(ps_core *core, int32_t topics, ps_tx_count *out, int64_t room);
/* Whether somebody of the group can be asked. */
void ps_core_tx_live(ps_core *core, const char *group, int32_t len, int32_t live);
/* Whether somebody of its group may be asked about the half whose newest or first copy is at
 * `offset`; of a new one somebody may. */
void ps_core_tx_heard(ps_core *core, int64_t offset, int32_t heard);

typedef struct ps_tx_check { /* checks of a topic for one group, in a row in the step's out */
    const char *group, *topic;
    int32_t group_len, topic_len, count;
    int64_t from_at, to_at;
} ps_tx_check;

typedef struct ps_tx_round {
    int64_t now_ms, start_ms;    /* halves stored from start_ms on wait for the next round */
    int64_t reserved_ms;         /* older ones are discarded: their file will go */
    int32_t check_max;           /* transactionCheckMax */
    int32_t look_max, bytes_max; /* of one call */
    int64_t at;                  /* 0: begins; -1: the round is over */
    int64_t asked, unheard;      /* sums of the round; unheard: due, and nobody was there */
    int32_t check_count, spent_count;
} ps_tx_round;
/* The next part of a round: frames of checks for groups that are live, and halves to be discarded.
 */
int ps_core_tx_round(ps_core *core, ps_tx_round *round, ps_tx_check *checks, int32_t check_room,
                     int64_t *spent, int32_t spent_room, ps_step *out, ps_error *error);

/* ---- from the log ---- */
typedef struct
    ps_tx_outcome {         /* a record that settles a half: a final message, or a discarded copy */
    int64_t half, physical; /* places in the log */
    int32_t decision;
} ps_tx_outcome;
/* Those that begin in [*from, to), up to `room`; *from moves to where to go on, `to` or the end of
 * the log when it is through. Damage is passed over. Needs no core, and serves readers, too. An
 * error: the log has no file there. */
int64_t ps_log_outcomes(ps_store *store, int64_t *from, int64_t to, ps_tx_outcome *out,
                        int64_t room, ps_error *error);

/* ---- to the metadata ---- */
/* Up to `room` open halves that were never taken; those that have changed since they were. */
int64_t ps_core_tx_take_new(ps_core *core, ps_half_row *out, int64_t room);
int64_t ps_core_tx_take_changed(ps_core *core, ps_half_row *out, int64_t room);
/* Up to `room` offsets of halves that were taken and are open no longer. -1: some were forgotten,
 * so that all must be written again, after ps_core_tx_untake. */
int64_t ps_core_tx_take_gone(ps_core *core, int64_t *out, int64_t room);
void ps_core_tx_untake(ps_core *core); /* none of them was taken */
/* CHECK_IMMUNITY_TIME_IN_SECONDS of a half that has one: seconds, PS_IMMUNITY_DEFAULT for a text
 * that is not a number or negative. */
int32_t ps_tx_immunity(const uint8_t *text, int32_t len);
/* cdef end */

#endif
