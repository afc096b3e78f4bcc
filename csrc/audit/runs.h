/* Records that no unit leads to, and the queue offsets that they claim. */
#ifndef PS_AUDIT_RUNS_H
#define PS_AUDIT_RUNS_H

#include <pthread.h>

#include "audit/audit.h"
#include "base/chains.h"

/* Records of one queue that follow on each other in one segment: they claim [from, to). */
typedef struct au_run {
    int64_t from, to;
    int64_t at, end; /* physical: where the first begins, and where the last ends */
    int64_t got;     /* the next open puts [got, to) into the queue */
    int64_t doubted; /* and would not believe [doubted, to), were it not for what follows */
    int64_t *places; /* of all of them, once they were looked up; else NULL */
} au_run;

/* The runs of a queue. */
typedef struct au_claims {
    ps_chain cl_chain;
    au_run *cl_runs;
    int32_t cl_count, cl_room;
    int32_t cl_id, cl_topic_len;
    uint8_t cl_topic[];
} au_claims;

typedef struct au_rivals {
    pthread_mutex_t rv_lock; /* segments are walked by several threads */
    ps_chains rv_table;
    const au_claims *rv_told; /* where ps_audit_claim_next stands */
    int32_t rv_told_run;
} au_rivals;

void au_rivals_init(au_rivals *rv);
void au_rivals_free(au_rivals *rv);
/* Takes a run over; without memory for it, it is not compared. */
void au_rivals_add(au_rivals *rv, const uint8_t *topic, int32_t topic_len, int32_t queue_id,
                   const au_run *run);

#endif
