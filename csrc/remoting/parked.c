/* See parked.h. The dispatcher announces new units of watched queues (queues/arrivals.c); a heap of
 * deadlines ends each pull in time. docs/internals/services.md#holding-pulls; upstream
 * PullRequestHoldService. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "base/threads.h"
#include "remoting/popplace.h"

/* ---- the lists ---- */

static void push_parked(ps_parked **list, ps_parked *h) {
    h->pk_next = *list;
    h->pk_link = list;
    if (h->pk_next != NULL) h->pk_next->pk_link = &h->pk_next;
    *list = h;
}

/* Waits in its queue from now on, unless messages came meanwhile or its deadline has passed: then
 * it only yields to others. */
static void park_again(ps_core *c, ps_parked *h) {
    h->pk_ready = false;
    if (ps_arrivals_watch(h->pk_queue, h->pk_offset) || h->pk_last)
        ps_parked_ready(c, h);
    else
        push_parked(&h->pk_queue->cq_parked, h);
}

void ps_parked_free(ps_parked *h) {
    ps_core *c = h->pk_conn->cn_core;
    if (h->pk_pops) ps_pop_leave(c, (ps_pop_waiter *)h);
    if (h->pk_link != NULL) ps_parked_unlink(c, h);
    ps_deadline_remove(c, h);
    *h->pk_conn_link = h->pk_conn_next;
    if (h->pk_conn_next != NULL) h->pk_conn_next->pk_conn_link = h->pk_conn_link;
    h->pk_pair->pr_parked--;
    ps_filter_unref(h->pk_filter);
    free(h);
}

void ps_parked_drop_all(ps_conn *n) {
    while (n->cn_parked != NULL) ps_parked_free(n->cn_parked);
}

bool ps_parked_keep(ps_core *c, ps_parked *h) {
    if (!ps_deadline_add(c, h)) return false;
    h->pk_pair->pr_parked++;
    h->pk_conn_next = h->pk_conn->cn_parked;
    h->pk_conn_link = &h->pk_conn->cn_parked;
    if (h->pk_conn_next != NULL) h->pk_conn_next->pk_conn_link = &h->pk_conn_next;
    h->pk_conn->cn_parked = h;
    return true;
}

bool ps_parked_add(const ps_parked *like) {
    ps_core *c = like->pk_conn->cn_core;
    ps_parked *h = ps_parked_pulls(c) < c->co_parked_max ? malloc(sizeof *h) : NULL;
    if (h == NULL) return false;
    *h = *like;
    if (!ps_parked_keep(c, h)) {
        free(h);
        return false;
    }
    ps_filter_ref(h->pk_filter);
    park_again(c, h);
    return true;
}

int32_t ps_parked_pulls(const ps_core *c) {
    const ps_pops *x = c->co_pops;
    return c->co_heap_count - (x != NULL ? (int32_t)(x->po_waiting[0] + x->po_waiting[1]) : 0);
}

void ps_parked_again(ps_parked *h) {
    ps_core *c = h->pk_conn->cn_core;
    ps_parked_unlink(c, h);
    park_again(c, h);
}

/* ---- what makes them ready ---- */

static void take_arrivals(ps_core *c) {
    for (ps_queue *q = ps_arrivals_take(&c->co_store->st_arrivals), *next; q != NULL; q = next) {
        next = q->cq_arrived_next;
        ps_arrivals_done(q);
        ps_levels_arrived(c, q);
        if (q->cq_topic->tp_pops != NULL) ps_pop_arrived(c, q);
        for (ps_parked *h = q->cq_parked; h != NULL; h = q->cq_parked) {
            ps_parked_unlink(c, h);
            ps_parked_ready(c, h);
        }
    }
}

void ps_parked_end(ps_core *c, bool all) {
    int64_t now = ps_monotonic_ms();
    for (int32_t i = 0; all && i < c->co_heap_count; i++) c->co_heap[i]->pk_deadline = 0;
    /* With equal deadlines any order is a heap; each is taken from it when it is answered. */
    while (c->co_heap_count > 0 && c->co_heap[0]->pk_deadline <= now) {
        ps_parked *h = c->co_heap[0];
        if (h->pk_pops && !all && ps_pop_unblocked(c, (ps_pop_waiter *)h, now)) continue;
        h->pk_last = true;
        ps_parked_until(c, h, INT64_MAX);
        if (h->pk_ready) continue;
        if (h->pk_pops)
            ps_pop_unlist((ps_pop_waiter *)h);
        else
            ps_parked_unlink(c, h);
        ps_parked_ready(c, h);
    }
}

int64_t ps_parked_deadline_in(const ps_core *c) {
    if (c->co_heap_count == 0 || c->co_heap[0]->pk_deadline == INT64_MAX) return -1;
    int64_t left = c->co_heap[0]->pk_deadline - ps_monotonic_ms();
    return left > 0 ? left : 0;
}

int64_t ps_core_deadline_in(ps_core *c) {
    int64_t pull = ps_parked_deadline_in(c), wait = ps_waits_deadline_in(&c->co_waits);
    return pull < 0 || (wait >= 0 && wait < pull) ? wait : pull;
}

void ps_parked_look(ps_core *c) {
    uint64_t count;
    /* Read first: what is announced after it makes the descriptor readable again. */
    if (read(c->co_event_fd, &count, sizeof count) < 0) count = 0;
    take_arrivals(c);
    ps_parked_end(c, false);
}

void ps_parked_wake(ps_core *c, ps_pair *p, int32_t queue_id) {
    for (int32_t i = 0; i < c->co_heap_count; i++) {
        ps_parked *h = c->co_heap[i];
        if (h->pk_pops || h->pk_pair != p || h->pk_queue->cq_id != queue_id || h->pk_ready)
            continue;
        ps_parked_unlink(c, h);
        ps_parked_ready(c, h);
    }
    ps_pop_wake(c, p, queue_id);
    if (c->co_ready != NULL) ps_eventfd_tell(c->co_event_fd);
}
