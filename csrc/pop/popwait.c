/* See popwait.h. Whoever serves held pulls (ps_core_next) has those try that are ready
 * (popplace.h). */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "core/lock.h"
#include "pop/popwait.h"
#include "sends/sends.h"
#include "tables/tables.h"

#define BYTES_MAX (64 << 20) /* of all that wait, beside what they wait for */

void ps_core_pop_wake(ps_core *c, const char *group, int32_t group_len, const char *topic,
                      int32_t topic_len) {
    PS_CORE_HELD(c);
    const ps_pair *pair =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (pair == NULL || pair->pr_places == NULL) return;
    ps_dispatch_catch_up(c->co_store, NULL); /* what came back is in its queue */
    for (ps_pop_place *l = pair->pr_places; l != NULL; l = l->pc_of_pair) {
        l->pc_all = true;
        ps_pop_place_wake(c, l);
    }
    ps_eventfd_tell(c->co_event_fd);
}

void ps_core_pop_topic(ps_core *c, const char *topic, int32_t topic_len) {
    PS_CORE_HELD(c);
    const ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)topic, topic_len);
    if (t == NULL || t->te_topic->tp_pop_places == NULL) return;
    for (ps_pop_place *l = t->te_topic->tp_pop_places; l != NULL; l = l->pc_next)
        ps_pop_place_wake(c, l);
    ps_eventfd_tell(c->co_event_fd);
}

/* ---- waiting ---- */

static bool is_like(const ps_pop_ask *a, const ps_pop_ask *b) {
    return a->sql == b->sql && a->ordered == b->ordered && a->filter_len == b->filter_len &&
           a->attempt_len == b->attempt_len &&
           (a->filter_len == 0 || memcmp(a->filter, b->filter, (size_t)a->filter_len) == 0) &&
           (a->attempt_len == 0 || memcmp(a->attempt, b->attempt, (size_t)a->attempt_len) == 0);
}

/* It wants nothing of what is there, and neither do those that are like it. */
static void note_try(ps_pop_waiter *w) {
    ps_pop_place *l = w->pw_place;
    w->pw_tried = l->pc_round;
    for (ps_pop_waiter *x = l->pc_first; x != NULL; x = x->pw_later)
        if (x->pw_tried != l->pc_round && is_like(&x->pw_ask, &w->pw_ask))
            x->pw_tried = l->pc_round;
}

/* Its place is woken by what comes after that which it has seen. */
static void watch_queues(ps_pop_place *l, const ps_pop_found *found) {
    for (int32_t i = 0; i < found->seen_count; i++) {
        ps_queue *q = ps_topic_queue_get(l->pc_topic, found->seen_first + i);
        if (q != NULL && ps_arrivals_watch(q, found->seen[i])) l->pc_news = true;
    }
    const ps_tier *tier = &l->pc_topic->tp_store->st_tier;
    bool lent = found->lends >= 0 && atomic_load(&tier->lends) != found->lends;
    if (found->more || lent) l->pc_news = true;
}

static ps_pop_waiter *make_waiter(const ps_pop_asker *who, const ps_pop_ask *ask, ps_pair *pair,
                                  int64_t wait_ms) {
    ps_pop_waiter *w = malloc((size_t)ps_pop_room(ask));
    if (w == NULL) return NULL;
    *w = (ps_pop_waiter){.pw_parked = {.pk_conn = who->conn,
                                       .pk_pair = pair,
                                       .pk_opaque = who->opaque,
                                       .pk_serialize = who->serialize,
                                       .pk_request = ask->looks ? PS_REQUEST_NOTIFICATION
                                                                : PS_REQUEST_POP_MESSAGE,
                                       .pk_began_ns = ps_monotonic_ns(),
                                       .pk_pops = true},
                         .pw_ends = ps_monotonic_ms() + wait_ms,
                         .pw_number = who->number,
                         .pw_ask = *ask};
    char *at = w->pw_texts;
    w->pw_ask.topic = memcpy(at, ask->topic, (size_t)ask->topic_len);
    w->pw_ask.group = memcpy(at += ask->topic_len, ask->group, (size_t)ask->group_len);
    at += ask->group_len;
    if (ask->filter != NULL)
        w->pw_ask.filter = memcpy(at, ask->filter, (size_t)ask->filter_len);
    if (ask->attempt != NULL)
        w->pw_ask.attempt =
            memcpy(at + ask->filter_len, ask->attempt, (size_t)ask->attempt_len);
    w->pw_parked.pk_deadline = w->pw_ends;
    return w;
}

bool ps_pop_wait(const ps_pop_asker *who, const ps_pop_ask *ask, int64_t wait_ms,
                 const ps_pop_found *found) {
    ps_core *c = who->conn->cn_core;
    ps_pop_state *x = c->co_pop;
    const ps_topic_entry *t =
        ps_core_find_topic(c, (const uint8_t *)ask->topic, ask->topic_len);
    ps_pair *pair =
        ps_core_pair_of(c, ask->group, ask->group_len, ask->topic, ask->topic_len);
    if (t == NULL || pair == NULL || x->po_waiting[ask->looks] >= x->po_rules.waiting_max ||
        x->po_waiting_bytes + ps_pop_room(ask) > BYTES_MAX)
        return false;
    ps_pop_place *l = ps_pop_place_find(pair, ask);
    if (l != NULL ? l->pc_count >= x->po_rules.at_place_max
                  : x->po_places[ask->looks] >= x->po_rules.places_max)
        return false;
    if (l == NULL) l = ps_pop_place_add(c, pair, t->te_topic, ask);
    ps_pop_waiter *w = l != NULL ? make_waiter(who, ask, pair, wait_ms) : NULL;
    if (w == NULL || !ps_parked_keep(c, &w->pw_parked)) {
        free(w);
        if (l != NULL && l->pc_count == 0) ps_pop_place_drop(c, l);
        return false;
    }
    w->pw_place = l;
    l->pc_count++;
    x->po_waiting[ask->looks]++;
    x->po_waiting_bytes += ps_pop_room(ask);
    ps_pop_list(w);
    w->pw_tried = l->pc_round;
    watch_queues(l, found);
    ps_pop_blocked(c, w, found->blocked_ms);
    if (l->pc_news && l->pc_trying == NULL) ps_pop_place_wake(c, l);
    ps_mine(c)->ca_work.wk_parked_one = true;
    ps_mine(c)->ca_rpcs.rp_answered = PS_RPC_NONE;
    return true;
}

/* ---- trying again ---- */

static void wait_on(ps_core *c, ps_pop_waiter *w, const ps_pop_found *found) {
    ps_pop_place *l = w->pw_place;
    ps_pop_list(w);
    note_try(w);
    l->pc_all = false;
    watch_queues(l, found);
    ps_pop_blocked(c, w, found->blocked_ms);
    if (l->pc_trying == w) ps_pop_try_next(c, l);
}

/* It is done with; others go on with what it has left. */
static void end_waiter(ps_core *c, ps_pop_waiter *w, bool more) {
    ps_pop_place *l = w->pw_place;
    bool tried = l->pc_trying == w;
    if (tried) l->pc_trying = NULL;
    if (more || (tried && l->pc_news)) ps_pop_place_wake(c, l);
    ps_pop_free(w);
}

/* What was found goes to whoever asked, with the group and the topic. */
static bool give_found(ps_core *c, const ps_pop_waiter *w, const ps_pop_found *found,
                       ps_step *out) {
    const ps_pop_ask *ask = &w->pw_ask;
    int64_t len = ask->group_len + 1 + ask->topic_len;
    uint8_t *names = ps_buffer_room(&ps_mine(c)->ca_answer.an_out, len);
    out->found = names != NULL ? malloc(sizeof *out->found) : NULL;
    if (out->found == NULL) return false;
    *out->found = *found;
    memcpy(names, ask->group, (size_t)ask->group_len);
    names[ask->group_len] = '\n';
    memcpy(names + ask->group_len + 1, ask->topic, (size_t)ask->topic_len);
    ps_mine(c)->ca_answer.an_out.len += len;
    out->number = w->pw_number;
    return true;
}

/* The answer of a request of the remoting protocol, now or once its records are safe. */
static void answer_found(ps_core *c, const ps_pop_waiter *w, const ps_pop_found *found) {
    const ps_parked *p = &w->pw_parked;
    const ps_pop_asker who = {p->pk_conn, 0, p->pk_opaque, p->pk_serialize};
    const ps_slice topic = {(const uint8_t *)w->pw_ask.topic, w->pw_ask.topic_len};
    ps_call *call = ps_mine(c);
    ps_step later;
    call->ca_rpcs.rp_request = p->pk_request;
    call->ca_work.wk_began_ns = p->pk_began_ns;
    int code = w->pw_ask.looks ? ps_pop_answer_look(&who, found)
                               : ps_pop_answer(&who, found, topic);
    if (code < 0) call->ca_answer.an_out.len = 0;
    if (call->ca_rpcs.rp_answered != PS_RPC_NONE)
        ps_rpc_waited(c, p->pk_request, call->ca_rpcs.rp_answered, PS_RPC_HELD, p->pk_began_ns);
    ps_deferred_begin(c, &later);
}

int ps_pop_resume(ps_core *c, ps_parked *p, ps_step *out) {
    ps_pop_waiter *w = (ps_pop_waiter *)p;
    ps_pop_found found = {0};
    *out = (ps_step){.conn_id = p->pk_conn->cn_id};
    ps_parked_unlink(c, p);
    p->pk_ready = false;
    /* Who cannot be handed anything now, since no check point can be put, waits on. */
    if (w->pw_ask.looks)
        ps_pop_look(c, &w->pw_ask, &found);
    else
        ps_pop_take(c, &w->pw_ask, &found, &out->pop_due_ms, NULL);
    if (found.messages == 0 && !p->pk_last && !found.full) {
        wait_on(c, w, &found);
        return 0;
    }
    /* Of those who wait in order, another one is to wait for the end of what was found. Whoever
     * only looks leaves all of it. */
    bool more = found.messages > 0 && (found.rest > 0 || w->pw_place->pc_all || found.ordered ||
                                       w->pw_ask.looks);
    if (w->pw_number == 0) answer_found(c, w, &found);
    if (w->pw_number == 0 || !give_found(c, w, &found, out)) ps_pop_found_free(&found);
    end_waiter(c, w, more);
    out->out = ps_mine(c)->ca_answer.an_out.data;
    out->out_len = ps_mine(c)->ca_answer.an_out.len;
    return 1;
}

/* ---- those who are given what was found ---- */

int ps_conn_pop_wait(ps_conn *n, const ps_pop_ask *ask, int64_t wait_ms, int64_t number,
                     ps_pop_found *out, int64_t *due_ms, ps_error *e) {
    PS_CORE_HELD(n->cn_core);
    ps_core *c = n->cn_core;
    const ps_pop_asker who = {.conn = n, .number = number};
    int code = ps_pop_take(c, ask, out, due_ms, e);
    if (code < 0 || out->count > 0 || out->full || wait_ms < 0) return code < 0 ? code : 1;
    if (!ps_pop_wait(&who, ask, wait_ms, out)) {
        out->full = 1;
        return 1;
    }
    /* Whoever serves held pulls learns of the deadline, and of what came meanwhile. */
    if (c->co_parking.pg_ready != NULL || c->co_parking.pg_heap[0]->pk_conn == n)
        ps_eventfd_tell(c->co_event_fd);
    return 0;
}

void ps_conn_pop_leave(ps_conn *n, int64_t number) {
    PS_CORE_HELD(n->cn_core);
    ps_parked *p = n->cn_parked;
    while (p != NULL && !(p->pk_pops && !p->pk_lite && ((ps_pop_waiter *)p)->pw_number == number))
        p = p->pk_conn_next;
    if (p != NULL) ps_pop_free((ps_pop_waiter *)p);
}

/* ---- counting ---- */

int64_t ps_core_pop_waiting(ps_core *c, int32_t looks, const char *group, int32_t group_len,
                            const char *topic, int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    const ps_pop_state *x = c->co_pop;
    if (group == NULL) return x != NULL ? x->po_waiting[looks != 0] : 0;
    const ps_pair *pair =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    int64_t count = 0;
    for (const ps_pop_place *l = pair != NULL ? pair->pr_places : NULL; l != NULL;
         l = l->pc_of_pair)
        if (l->pc_looks == looks && (queue_id < -1 || l->pc_queue == queue_id))
            count += l->pc_count;
    return count;
}
