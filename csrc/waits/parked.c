/* See parked.h. docs/internals/services.md#holding-pulls; upstream PullRequestHoldService. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "waits/parked.h"
#include "tables/tables.h"

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
    bool news = ps_arrivals_watch(h->pk_queue, h->pk_offset);
    if (h->pk_lends >= 0) news = atomic_load(&c->co_store->st_tier.lends) != h->pk_lends;
    if (news || h->pk_last)
        ps_parked_ready(c, h);
    else
        push_parked(&h->pk_queue->cq_parked, h);
}

void ps_parked_free(ps_parked *h) {
    ps_core *c = h->pk_conn->cn_core;
    ps_parked_leave_disk(h);
    if (h->pk_link != NULL) ps_parked_unlink(c, h);
    ps_deadline_remove(c, h);
    *h->pk_conn_link = h->pk_conn_next;
    if (h->pk_conn_next != NULL) h->pk_conn_next->pk_conn_link = h->pk_conn_link;
    h->pk_pair->pr_parked--;
    if (!h->pk_pops) c->co_parking.pg_pulls--;
    ps_filter_unref(h->pk_filter);
    free(h);
}

bool ps_parked_keep(ps_core *c, ps_parked *h) {
    if (!ps_deadline_add(c, h)) return false;
    h->pk_pair->pr_parked++;
    if (!h->pk_pops) c->co_parking.pg_pulls++;
    h->pk_conn_next = h->pk_conn->cn_parked;
    h->pk_conn_link = &h->pk_conn->cn_parked;
    if (h->pk_conn_next != NULL) h->pk_conn_next->pk_conn_link = &h->pk_conn_next;
    h->pk_conn->cn_parked = h;
    return true;
}

ps_parked *ps_parked_new(const ps_parked *like) {
    ps_core *c = like->pk_conn->cn_core;
    ps_parked *h = c->co_parking.pg_pulls < c->co_settings.se_parked_max ? malloc(sizeof *h) : NULL;
    if (h == NULL) return NULL;
    *h = *like;
    if (!ps_parked_keep(c, h)) {
        free(h);
        return NULL;
    }
    ps_filter_ref(h->pk_filter);
    return h;
}

bool ps_parked_add(const ps_parked *like) {
    ps_parked *h = ps_parked_new(like);
    if (h == NULL) return false;
    park_again(like->pk_conn->cn_core, h);
    return true;
}

void ps_parked_again(ps_parked *h) {
    ps_core *c = h->pk_conn->cn_core;
    ps_parked_unlink(c, h);
    park_again(c, h);
}
