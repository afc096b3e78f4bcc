/* What ends every wait. The dispatcher announces new units of watched queues (queues/arrivals.c),
 * and the flusher that the log is safe; a heap of deadlines ends in time whatever waits (waits/).
 * Whoever serves the waits calls ps_core_next until nothing is over.
 * docs/internals/services.md#holding-pulls; upstream PullRequestHoldService. */
#define _GNU_SOURCE
#include <unistd.h>

#include "base/threads.h"
#include "core/lock.h"
#include "lite/lite.h"
#include "pop/popwait.h"
#include "remoting/requests.h"
#include "sends/sends.h"
#include "waits/coldpull.h"
#include "waits/watched.h"

#define ROUNDS_MAX 64 /* of one call: the event loop has more to do */

void ps_parked_drop_all(ps_conn *n) {
    for (ps_parked *h = n->cn_parked; h != NULL; h = n->cn_parked)
        if (h->pk_lite)
            ps_lite_poll_free(h);
        else if (h->pk_pops)
            ps_pop_free((ps_pop_waiter *)h);
        else
            ps_parked_free(h);
}

static void take_arrivals(ps_core *c) {
    for (ps_queue *q = ps_arrivals_take(&c->co_store->st_arrivals), *next; q != NULL; q = next) {
        next = q->cq_arrived_next;
        ps_arrivals_done(q);
        ps_watched_arrived(c, q);
        const ps_topic *t = q->cq_topic;
        if (t->tp_pop_places != NULL || t->tp_pops_of != NULL) ps_pop_arrived(c, q);
        for (ps_parked *h = q->cq_parked; h != NULL; h = q->cq_parked) {
            ps_parked_unlink(c, h);
            ps_parked_ready(c, h);
        }
    }
}

/* A pull is read from the disk here from now on, if need be. */
static void stop_reading(ps_core *c, ps_parked *h) {
    h->pk_trips = PS_COLD_TRIPS;
    if (h->pk_reading == NULL) return;
    ps_parked_leave_disk(h);
    ps_parked_ready(c, h);
}

/* Makes ready what is overdue; all: every one. */
static void end_parked(ps_core *c, bool all) {
    int64_t now = ps_monotonic_ms();
    ps_core_parking *g = &c->co_parking;
    for (int32_t i = 0; all && i < g->pg_count; i++) {
        g->pg_heap[i]->pk_deadline = 0;
        if (!g->pg_heap[i]->pk_pops) stop_reading(c, g->pg_heap[i]);
    }
    /* With equal deadlines any order is a heap; each is taken from it when it is answered. */
    while (g->pg_count > 0 && g->pg_heap[0]->pk_deadline <= now) {
        ps_parked *h = g->pg_heap[0];
        if (h->pk_pops && !h->pk_lite && !all &&
            ps_pop_unblocked(c, (ps_pop_waiter *)h, now)) continue;
        h->pk_last = true;
        ps_parked_until(c, h, INT64_MAX);
        if (h->pk_ready || h->pk_reading != NULL) continue;
        if (h->pk_lite)
            ps_lite_unlist(h);
        else if (h->pk_pops)
            ps_pop_unlist((ps_pop_waiter *)h);
        else
            ps_parked_unlink(c, h);
        ps_parked_ready(c, h);
    }
}

/* Makes ready whatever has news or is overdue. */
static void look_at_parked(ps_core *c) {
    uint64_t count;
    /* Read first: what is announced after it makes the descriptor readable again. */
    if (read(c->co_event_fd, &count, sizeof count) < 0) count = 0;
    take_arrivals(c);
    ps_cold_look(c);
    ps_lite_look(c);
    end_parked(c, false);
}

void ps_parked_wake(ps_core *c, ps_pair *p, int32_t queue_id) {
    for (int32_t i = 0; i < c->co_parking.pg_count; i++) {
        ps_parked *h = c->co_parking.pg_heap[i];
        if (h->pk_pops || h->pk_pair != p || h->pk_queue->cq_id != queue_id || h->pk_ready ||
            h->pk_reading != NULL)
            continue;
        ps_parked_unlink(c, h);
        ps_parked_ready(c, h);
    }
    ps_pop_wake(c, p, queue_id);
    if (c->co_parking.pg_ready != NULL) ps_eventfd_tell(c->co_event_fd);
}

int ps_core_next(ps_core *c, int32_t all, ps_step *out, int64_t *next_ms) {
    PS_CORE_HELD(c);
    bool looked = false;
    ps_mine(c)->ca_answer.an_out.len = 0;
    if (all) end_parked(c, true);
    *next_ms = 0;
    for (int rounds = 0;; rounds++) {
        /* After those that were ready before, and before every 0: an arrival may have been
         * announced to nobody (see look_for_news). */
        if (c->co_parking.pg_ready == NULL && !looked) {
            look_at_parked(c);
            looked = true;
        }
        if (ps_deferred_next(c, out)) return 1;
        if (c->co_parking.pg_ready == NULL) break;
        if (rounds >= ROUNDS_MAX) return 0;
        ps_parked *h = c->co_parking.pg_ready;
        if (h->pk_pops) {
            if ((h->pk_lite ? ps_lite_resume : ps_pop_resume)(c, h, out) == 0) continue;
            return 1;
        }
        int64_t conn_id = h->pk_conn->cn_id;
        int rc = ps_pull_resume(c, h);
        if (rc == 0) {
            if (h->pk_reading == NULL) ps_parked_again(h);
            continue;
        }
        if (rc > 0)
            ps_rpc_waited(c, h->pk_request, ps_mine(c)->ca_work.wk_pulled.code, PS_RPC_HELD,
                          h->pk_began_ns);
        ps_parked_free(h);
        const ps_buffer *answer = &ps_mine(c)->ca_answer.an_out;
        *out = (ps_step){.out = answer->data, .out_len = answer->len, .conn_id = conn_id};
        return 1;
    }
    *next_ms = ps_sooner(ps_core_deadline_in(c), ps_lite_due_in(c));
    return 0;
}
