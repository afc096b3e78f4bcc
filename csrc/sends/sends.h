/* Sends, and the answers of what is put. */
#ifndef PS_SENDS_H
#define PS_SENDS_H

#include "core/core.h"

/* sent.c: answers of sends */
typedef struct ps_answer { /* what an answer is made of */
    int32_t opaque, serialize, code, queue_id, count;
    int64_t queue_offset;
    const int64_t *physical;
    ps_slice uniq, remark, handle;
    int64_t end; /* of the last record, in the log */
    bool bare;   /* without the fields of a send: it answers a pop or an acknowledgement */
    ps_slice frame; /* the answer itself, made already; else NULL */
} ps_answer;
/* Answers now, or, when `wait` and its records are not safe yet, once they are. */
int ps_sent_answer(ps_conn *n, const ps_answer *a, bool wait, bool put);
/* What an_out holds from there on is the answer `a`, as a frame: it stays, or, when it rests on
 * records that are not safe yet, it goes once they are. */
int ps_sent_frame(ps_conn *n, const ps_answer *a, int64_t from);
/* A refusal. */
int ps_sent_refuse(ps_core *c, const ps_answer *a);
/* The offset message ids, with commas between, into sd_props. False: no memory. */
bool ps_sent_ids(ps_core *c, const ps_answer *a, ps_slice *out);
/* The handle by which a timer is recalled, good until the next one: URL-safe Base64 of
 * `v1 topic broker time id`. False: no memory. */
bool ps_sent_handle(ps_core *c, ps_slice topic, int64_t out_ms, ps_slice uniq, ps_slice *out);
/* From now on the answers of this call wait, if there are any that must. */
void ps_deferred_begin(ps_core *c, ps_step *out);
/* The answers of the next wait that is over. False: none is. */
bool ps_deferred_next(ps_core *c, ps_step *out);
void ps_deferred_drop_all(ps_core *c);

/* sendrequest.c */
void ps_send_read(const ps_command *command, ps_send *out);
/* What these properties ask for: all of `out` that comes from them. */
void ps_send_read_properties(ps_slice properties, ps_send *out);

/* send.c: 1 served, 0 for the broker to serve */
int ps_core_send(ps_conn *conn, const ps_command *request);
/* ps_conn_decide within a step. */
int ps_core_decide(ps_conn *conn, const uint8_t *frame, int64_t len, const ps_decision *decision,
                   ps_sent *sent, ps_error *e);
/* ps_conn_put within a step. */
int ps_core_put(ps_conn *conn, const ps_plain_put *put, ps_plain_place *out);

#endif
