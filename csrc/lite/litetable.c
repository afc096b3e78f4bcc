/* The tables alone, and the lists of a client: see litetable.h. */
#include "lite/litetable.h"

#include <stdlib.h>
#include <string.h>

/* ---- groups and clients ---- */

lite_group *ps_lite_group(const ps_lite *l, ps_slice name) {
    lite_group *g = ps_chains_first(&l->rg_groups, ps_hash_of(name.data, name.len));
    while (g != NULL && !ps_lite_is(g->lg_name, g->lg_len, name)) g = ps_chains_next(g);
    return g;
}

/* The separator keeps ("ab", "c") and ("a", "bc") apart. */
uint32_t ps_lite_hash(ps_slice group, ps_slice id) {
    static const uint8_t end = 0;
    return ps_hash_more(ps_hash_more(ps_hash_of(group.data, group.len), &end, 1), id.data, id.len);
}

lite_client *ps_lite_find(const ps_lite *l, ps_slice group, ps_slice id) {
    lite_client *c = ps_chains_first(&l->rg_by_name, ps_lite_hash(group, id));
    while (c != NULL && !(ps_lite_is(c->lc_names, c->lc_id_len, id) &&
                          ps_lite_is(c->lc_group->lg_name, c->lc_group->lg_len, group)))
        c = ps_chains_next(c);
    return c;
}

lite_client *ps_lite_find_who(const ps_core *c, const ps_lite_who *who) {
    return c->co_lite == NULL ? NULL
                              : ps_lite_find(c->co_lite, ps_lite_slice(who->group, who->group_len),
                                             ps_lite_slice(who->id, who->id_len));
}

/* ---- pairs ---- */

bool ps_lite_is_of(const lite_sub *s, ps_slice queue) {
    return ps_lite_is(s->ls_name, s->ls_len, queue);
}

bool ps_lite_reads(const lite_client *c, ps_slice queue) {
    const int32_t head = (int32_t)sizeof PS_LMQ_PREFIX; /* and the '$' after it */
    return queue.len > head + c->lc_parent_len &&
           memcmp(queue.data + head, c->lc_names + c->lc_id_len, (size_t)c->lc_parent_len) == 0 &&
           queue.data[head + c->lc_parent_len] == '$';
}

lite_sub *ps_lite_sub(const ps_lite *l, const lite_client *c, ps_slice queue) {
    lite_sub *s = ps_chains_first(&l->rg_by_queue, ps_hash_of(queue.data, queue.len));
    while (s != NULL && (s->ls_client != c || !ps_lite_is_of(s, queue))) s = ps_chains_next(s);
    return s;
}

lite_sub *ps_lite_make_sub(ps_lite *l, lite_client *c, ps_slice queue) {
    lite_sub *s = ps_chains_reserve(&l->rg_by_queue) ? malloc(sizeof *s + (size_t)queue.len) : NULL;
    if (s == NULL) return NULL;
    *s = (lite_sub){.ls_client = c, .ls_len = (uint8_t)queue.len};
    memcpy(s->ls_name, queue.data, (size_t)queue.len);
    ps_chains_add(&l->rg_by_queue, s, ps_hash_of(queue.data, queue.len));
    l->rg_events_alone++;
    return s;
}

void ps_lite_list_sub(lite_sub *s) { /* as the last one */
    lite_client *c = s->ls_client;
    s->ls_next = NULL;
    s->ls_link = c->lc_subs_end;
    *c->lc_subs_end = s;
    c->lc_subs_end = &s->ls_next;
}

static void unlist_sub(lite_sub *s) {
    lite_client *c = s->ls_client;
    if (c->lc_subs_end == &s->ls_next) c->lc_subs_end = s->ls_link;
    *s->ls_link = s->ls_next;
    if (s->ls_next != NULL) s->ls_next->ls_link = s->ls_link;
}

void ps_lite_list_last(lite_sub *s) {
    unlist_sub(s);
    ps_lite_list_sub(s);
}

void ps_lite_drop_sub(ps_lite *l, lite_sub *s) {
    ps_lite_event_drop(l, s);
    if (s->ls_link != NULL) {
        unlist_sub(s);
        s->ls_client->lc_sub_count--;
        l->rg_sums.pairs--;
        l->rg_sums.changes++;
    } else {
        l->rg_events_alone--;
    }
    ps_chains_remove(&l->rg_by_queue, s);
    free(s);
}

/* ---- the lists of a client ---- */

void ps_lite_event_add(ps_lite *l, lite_sub *s) {
    lite_client *c = s->ls_client;
    l->rg_sums.eventful += c->lc_event_count == 0;
    s->ls_event_next = NULL;
    s->ls_event_link = c->lc_events_end;
    *c->lc_events_end = s;
    c->lc_events_end = &s->ls_event_next;
    c->lc_event_count++;
    l->rg_sums.events++;
}

void ps_lite_event_drop(ps_lite *l, lite_sub *s) {
    lite_client *c = s->ls_client;
    if (s->ls_event_link == NULL) return;
    l->rg_sums.eventful -= c->lc_event_count == 1;
    if (c->lc_events_end == &s->ls_event_next) c->lc_events_end = s->ls_event_link;
    *s->ls_event_link = s->ls_event_next;
    if (s->ls_event_next != NULL) s->ls_event_next->ls_event_link = s->ls_event_link;
    s->ls_event_link = NULL;
    c->lc_event_count--;
    l->rg_sums.events--;
}

void ps_lite_unlist(ps_parked *p) {
    lite_poll *w = (lite_poll *)p;
    lite_client *c = w->lp_client;
    if (w->lp_link == NULL) return;
    if (c->lc_polls_end == &w->lp_next) c->lc_polls_end = w->lp_link;
    *w->lp_link = w->lp_next;
    if (w->lp_next != NULL) w->lp_next->lp_link = w->lp_link;
    w->lp_link = NULL;
    c->lc_poll_count--;
    p->pk_conn->cn_core->co_lite->rg_sums.polls--;
    c->lc_woken++;
}

void ps_lite_list_wild(ps_lite *l, lite_client *c) {
    lite_group *g = c->lc_group;
    if (g->lg_wild == NULL) {
        g->lg_wild_next = l->rg_wild;
        g->lg_wild_link = &l->rg_wild;
        if (l->rg_wild != NULL) l->rg_wild->lg_wild_link = &g->lg_wild_next;
        l->rg_wild = g;
    }
    c->lc_wild_next = g->lg_wild;
    c->lc_wild_link = &g->lg_wild;
    if (g->lg_wild != NULL) g->lg_wild->lc_wild_link = &c->lc_wild_next;
    g->lg_wild = c;
}

void ps_lite_unlist_wild(lite_client *c) {
    lite_group *g = c->lc_group;
    *c->lc_wild_link = c->lc_wild_next;
    if (c->lc_wild_next != NULL) c->lc_wild_next->lc_wild_link = c->lc_wild_link;
    if (g->lg_wild != NULL) return;
    *g->lg_wild_link = g->lg_wild_next;
    if (g->lg_wild_next != NULL) g->lg_wild_next->lg_wild_link = g->lg_wild_link;
}

void ps_lite_wake(ps_core *core, lite_client *c) {
    lite_poll *p = c->lc_polls;
    if (p == NULL) return;
    ps_lite_unlist(&p->lp_parked);
    ps_parked_ready(core, &p->lp_parked);
}
