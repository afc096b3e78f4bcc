/* See popplace.h. A message lets one of each place try, the one that ends first; if it does not
 * want the message, one with another filter tries after it.
 * docs/internals/pop.md#long-polling; upstream PopLongPollingService. */
#include <stdlib.h>

#include "base/threads.h"
#include "pop/popplace.h"

/* ---- places ---- */

ps_pop_place *ps_pop_place_find(const ps_pair *pair, const ps_pop_ask *ask) {
    ps_pop_place *l = pair->pr_places;
    while (l != NULL && (l->pc_queue != ask->queue_id || l->pc_looks != ask->looks))
        l = l->pc_of_pair;
    return l;
}

ps_pop_place *ps_pop_place_add(ps_core *c, ps_pair *pair, ps_topic *t, const ps_pop_ask *ask) {
    ps_pop_place *l = calloc(1, sizeof *l);
    if (l == NULL) return NULL;
    *l = (ps_pop_place){
        .pc_pair = pair, .pc_topic = t, .pc_queue = ask->queue_id, .pc_looks = ask->looks};
    l->pc_of_pair = pair->pr_places;
    pair->pr_places = l;
    l->pc_next = t->tp_pop_places;
    l->pc_link = &t->tp_pop_places;
    if (l->pc_next != NULL) l->pc_next->pc_link = &l->pc_next;
    t->tp_pop_places = l;
    c->co_pop->po_places[l->pc_looks]++;
    return l;
}

void ps_pop_place_drop(ps_core *c, ps_pop_place *l) {
    ps_pop_place **at = &l->pc_pair->pr_places;
    while (*at != l) at = &(*at)->pc_of_pair;
    *at = l->pc_of_pair;
    *l->pc_link = l->pc_next;
    if (l->pc_next != NULL) l->pc_next->pc_link = l->pc_link;
    c->co_pop->po_places[l->pc_looks]--;
    free(l);
}

void ps_pop_list(ps_pop_waiter *w) {
    ps_pop_place *l = w->pw_place;
    ps_pop_waiter *before = l->pc_last; /* most end later than all that were there */
    while (before != NULL && before->pw_ends > w->pw_ends)
        before = before->pw_sooner;
    w->pw_sooner = before;
    w->pw_later = before != NULL ? before->pw_later : l->pc_first;
    *(before != NULL ? &before->pw_later : &l->pc_first) = w;
    *(w->pw_later != NULL ? &w->pw_later->pw_sooner : &l->pc_last) = w;
    w->pw_listed = true;
}

void ps_pop_unlist(ps_pop_waiter *w) {
    ps_pop_place *l = w->pw_place;
    if (!w->pw_listed) return;
    *(w->pw_sooner != NULL ? &w->pw_sooner->pw_later : &l->pc_first) = w->pw_later;
    *(w->pw_later != NULL ? &w->pw_later->pw_sooner : &l->pc_last) = w->pw_sooner;
    w->pw_listed = false;
}

/* ---- rounds ---- */

void ps_pop_try_next(ps_core *c, ps_pop_place *l) {
    ps_pop_waiter *w = l->pc_first;
    while (w != NULL && w->pw_tried == l->pc_round) w = w->pw_later;
    if (w == NULL && l->pc_news) {
        l->pc_news = false;
        l->pc_round++;
        w = l->pc_first;
    }
    l->pc_trying = w;
    if (w == NULL) return;
    ps_pop_unlist(w);
    ps_parked_ready(c, &w->pw_parked);
}

void ps_pop_place_wake(ps_core *c, ps_pop_place *l) {
    l->pc_news = l->pc_trying != NULL;
    if (l->pc_trying != NULL) return;
    l->pc_round++;
    ps_pop_try_next(c, l);
}

void ps_pop_blocked(ps_core *c, ps_pop_waiter *w, int64_t until_ms) {
    ps_pop_place *l = w->pw_place;
    if (until_ms == 0) return;
    int64_t left = until_ms - ps_timer_now(c->co_store);
    int64_t at = ps_monotonic_ms() + (left > 0 ? left : 0);
    if (l->pc_timer != NULL) {
        if (l->pc_timer->pw_parked.pk_deadline <= at) return;
        ps_parked_until(c, &l->pc_timer->pw_parked, l->pc_timer->pw_ends);
        l->pc_timer = NULL;
    }
    if (at >= w->pw_ends || w->pw_parked.pk_last) return;
    l->pc_timer = w;
    ps_parked_until(c, &w->pw_parked, at);
}

bool ps_pop_unblocked(ps_core *c, ps_pop_waiter *w, int64_t now_ms) {
    ps_pop_place *l = w->pw_place;
    bool own = l->pc_timer != w || w->pw_ends <= now_ms;
    if (l->pc_timer == w) l->pc_timer = NULL;
    if (own) return false;
    ps_parked_until(c, &w->pw_parked, w->pw_ends);
    ps_pop_place_wake(c, l);
    return true;
}

void ps_pop_arrived(ps_core *c, ps_queue *q) {
    const ps_topic *t = q->cq_topic, *of = t->tp_pops_of;
    ps_arrivals_watch(q, INT64_MAX); /* whoever does not try now waits on */
    for (ps_pop_place *l = t->tp_pop_places; l != NULL; l = l->pc_next)
        if (l->pc_queue == -1 || l->pc_queue == q->cq_id) ps_pop_place_wake(c, l);
    for (ps_pop_place *l = of != NULL ? of->tp_pop_places : NULL; l != NULL; l = l->pc_next)
        ps_pop_place_wake(c, l);
}

void ps_pop_wake(ps_core *c, ps_pair *pair, int32_t queue_id) {
    for (ps_pop_place *l = pair->pr_places; l != NULL; l = l->pc_of_pair)
        if (l->pc_queue == -1 || queue_id == -1 || l->pc_queue == queue_id) ps_pop_place_wake(c, l);
}

static void leave_place(ps_core *c, ps_pop_waiter *w) {
    ps_pop_place *l = w->pw_place;
    ps_pop_unlist(w);
    c->co_pop->po_waiting[l->pc_looks]--;
    c->co_pop->po_waiting_bytes -= ps_pop_room(&w->pw_ask);
    bool timed = l->pc_timer == w;
    if (timed) l->pc_timer = NULL;
    if (--l->pc_count == 0) {
        ps_pop_place_drop(c, l);
    } else if (timed || l->pc_trying == w) { /* it is gone: another one tries, or has the timer */
        if (l->pc_trying == w) l->pc_trying = NULL;
        ps_pop_place_wake(c, l);
        ps_eventfd_tell(c->co_event_fd);
    }
}

void ps_pop_free(ps_pop_waiter *w) {
    leave_place(w->pw_parked.pk_conn->cn_core, w);
    ps_parked_free(&w->pw_parked);
}
