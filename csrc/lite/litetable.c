/* The tables alone, and the lists of a client: see litetable.h. */
#define _GNU_SOURCE
#include "lite/litetable.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "store/lights.h"

#define NUMBERS_FIRST 64

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
                              : ps_lite_find(c->co_lite, ps_slice_from(who->group, who->group_len),
                                             ps_slice_from(who->id, who->id_len));
}

bool ps_lite_number(ps_lite *l, lite_client *c) {
    if (l->rg_free != 0) {
        c->lc_number = l->rg_free - 1;
        l->rg_free = (uint32_t)(uintptr_t)l->rg_numbered[c->lc_number];
    } else {
        if (l->rg_number_count == l->rg_number_room) {
            uint32_t room = l->rg_number_room + l->rg_number_room / 2 + NUMBERS_FIRST;
            lite_client **grown = realloc(l->rg_numbered, (size_t)room * sizeof *grown);
            if (grown == NULL) return false;
            l->rg_numbered = grown;
            l->rg_number_room = room;
        }
        c->lc_number = l->rg_number_count++;
    }
    l->rg_numbered[c->lc_number] = c;
    return true;
}

void ps_lite_free_client(ps_lite *l, lite_client *c) {
    l->rg_numbered[c->lc_number] = (lite_client *)(uintptr_t)l->rg_free;
    l->rg_free = c->lc_number + 1;
    free(c);
}

/* ---- pairs ---- */

bool ps_lite_reads(const lite_client *c, ps_slice queue) {
    const int32_t head = (int32_t)sizeof PS_LMQ_PREFIX; /* and the '$' after it */
    return queue.len > head + c->lc_parent_len &&
           memcmp(queue.data + head, c->lc_names + c->lc_id_len, (size_t)c->lc_parent_len) == 0 &&
           queue.data[head + c->lc_parent_len] == '$';
}

/* Bytes of the name that the client's topic says, for a queue that it reads. */
static int32_t head_len(const lite_client *c) {
    return (int32_t)sizeof PS_LMQ_PREFIX + c->lc_parent_len + 1;
}

lite_client *ps_lite_client_of(const ps_lite *l, const lite_sub *s) {
    return l->rg_numbered[s->ls_client];
}

ps_slice ps_lite_sub_queue(const ps_lite *l, const lite_sub *s, char room[UINT8_MAX]) {
    const lite_client *c = ps_lite_client_of(l, s);
    char *to = room;
    if (s->ls_below) {
        to = mempcpy(to, PS_LMQ_PREFIX "$", sizeof PS_LMQ_PREFIX);
        to = mempcpy(to, c->lc_names + c->lc_id_len, (size_t)c->lc_parent_len);
        *to++ = '$';
    }
    to = mempcpy(to, s->ls_name, s->ls_len);
    return ps_slice_from(room, (int32_t)(to - room));
}

uint32_t ps_lite_hash_of_sub(const void *lite, const void *sub) {
    char name[UINT8_MAX];
    const ps_slice queue = ps_lite_sub_queue(lite, sub, name);
    return ps_hash_of(queue.data, queue.len);
}

static bool is_of(const ps_lite *l, const lite_sub *s, ps_slice queue) {
    const lite_client *c = ps_lite_client_of(l, s);
    int32_t head = s->ls_below ? head_len(c) : 0;
    return queue.len == head + s->ls_len &&
           memcmp(s->ls_name, queue.data + head, s->ls_len) == 0 &&
           (head == 0 || ps_lite_reads(c, queue));
}

lite_sub *ps_lite_sub_at(const ps_lite *l, ps_ref sub) {
    return sub != 0 ? ps_pool_at(&l->rg_subs, sub) : NULL;
}

static ps_ref from_here(const ps_lite *l, ps_ref at, ps_slice queue) {
    while (at != 0 && !is_of(l, ps_lite_sub_at(l, at), queue))
        at = ps_pool_next(&l->rg_subs, at);
    return at;
}

ps_ref ps_lite_first_of(const ps_lite *l, ps_slice queue) {
    return from_here(l, ps_pool_first(&l->rg_subs, ps_hash_of(queue.data, queue.len)), queue);
}

ps_ref ps_lite_next_of(const ps_lite *l, ps_ref sub, ps_slice queue) {
    return from_here(l, ps_pool_next(&l->rg_subs, sub), queue);
}

ps_ref ps_lite_sub(const ps_lite *l, const lite_client *c, ps_slice queue) {
    ps_ref at = ps_lite_first_of(l, queue);
    while (at != 0 && ps_lite_sub_at(l, at)->ls_client != c->lc_number)
        at = ps_lite_next_of(l, at, queue);
    return at;
}

ps_ref ps_lite_make_sub(ps_lite *l, lite_client *c, ps_slice queue) {
    bool below = ps_lite_reads(c, queue);
    int32_t head = below ? head_len(c) : 0;
    ps_ref made = ps_pool_add(&l->rg_subs, offsetof(lite_sub, ls_name) + (size_t)(queue.len - head),
                              ps_hash_of(queue.data, queue.len));
    lite_sub *s = ps_lite_sub_at(l, made);
    if (s == NULL) return 0;
    s->ls_client = c->lc_number;
    s->ls_below = below;
    s->ls_len = (uint8_t)(queue.len - head);
    memcpy(s->ls_name, queue.data + head, s->ls_len);
    l->rg_events_alone++;
    return made;
}

static void unlist_sub(ps_lite *l, lite_sub *s) {
    lite_client *c = ps_lite_client_of(l, s);
    lite_sub *before = ps_lite_sub_at(l, s->ls_before), *next = ps_lite_sub_at(l, s->ls_next);
    *(before != NULL ? &before->ls_next : &c->lc_subs) = s->ls_next;
    *(next != NULL ? &next->ls_before : &c->lc_subs_last) = s->ls_before;
    if (c->lc_named != 0 && ps_lite_sub_at(l, c->lc_named) == s) c->lc_named = s->ls_next;
    s->ls_listed = false;
}

void ps_lite_list_sub(ps_lite *l, ps_ref sub) {
    lite_sub *s = ps_lite_sub_at(l, sub);
    lite_client *c = ps_lite_client_of(l, s);
    if (s->ls_listed) unlist_sub(l, s);
    lite_sub *before = ps_lite_sub_at(l, c->lc_subs_last);
    s->ls_next = 0;
    s->ls_before = c->lc_subs_last;
    *(before != NULL ? &before->ls_next : &c->lc_subs) = sub;
    c->lc_subs_last = sub;
    if (c->lc_named == 0 && c->lc_to_name > 0) c->lc_named = sub;
    s->ls_listed = true;
}

void ps_lite_drop_sub(ps_lite *l, ps_ref sub) {
    lite_sub *s = ps_lite_sub_at(l, sub);
    lite_client *c = ps_lite_client_of(l, s);
    ps_lite_event_drop(l, sub);
    if (s->ls_listed) {
        unlist_sub(l, s);
        c->lc_sub_count--;
        c->lc_in_round -= s->ls_round == c->lc_round;
        if (c->lc_gone) {
            l->rg_sums.leaving--;
        } else {
            l->rg_sums.pairs--;
            l->rg_sums.changes++;
        }
    } else {
        l->rg_events_alone--;
    }
    ps_pool_drop(&l->rg_subs, sub);
}

/* ---- the lists of a client ---- */

static void link_idle(lite_client *c) {
    lite_group *g = c->lc_group;
    c->lc_idle_next = NULL;
    c->lc_idle_link = g->lg_idle_end;
    *g->lg_idle_end = c;
    g->lg_idle_end = &c->lc_idle_next;
    g->lg_idle_count++;
}

static void unlink_idle(lite_client *c) {
    lite_group *g = c->lc_group;
    if (g->lg_idle_end == &c->lc_idle_next) g->lg_idle_end = c->lc_idle_link;
    *c->lc_idle_link = c->lc_idle_next;
    if (c->lc_idle_next != NULL) c->lc_idle_next->lc_idle_link = c->lc_idle_link;
    c->lc_idle_link = NULL;
    g->lg_idle_count--;
}

void ps_lite_list_idle(lite_client *c) {
    if (c->lc_idle_link != NULL) unlink_idle(c);
    if (c->lc_event_count > 0 && ps_lite_is_idle(c)) link_idle(c);
}

void ps_lite_event_add(ps_lite *l, ps_ref sub) {
    lite_sub *s = ps_lite_sub_at(l, sub);
    lite_client *c = ps_lite_client_of(l, s);
    lite_sub *before = ps_lite_sub_at(l, c->lc_events_last);
    l->rg_sums.eventful += c->lc_event_count == 0;
    s->ls_event_next = 0;
    s->ls_event_before = c->lc_events_last;
    *(before != NULL ? &before->ls_event_next : &c->lc_events) = sub;
    c->lc_events_last = sub;
    s->ls_is_event = true;
    l->rg_sums.events++;
    if (c->lc_event_count++ == 0) ps_lite_list_idle(c);
}

void ps_lite_event_drop(ps_lite *l, ps_ref sub) {
    lite_sub *s = ps_lite_sub_at(l, sub);
    lite_client *c = ps_lite_client_of(l, s);
    if (!s->ls_is_event) return;
    lite_sub *before = ps_lite_sub_at(l, s->ls_event_before);
    lite_sub *next = ps_lite_sub_at(l, s->ls_event_next);
    l->rg_sums.eventful -= c->lc_event_count == 1;
    *(before != NULL ? &before->ls_event_next : &c->lc_events) = s->ls_event_next;
    *(next != NULL ? &next->ls_event_before : &c->lc_events_last) = s->ls_event_before;
    s->ls_is_event = false;
    l->rg_sums.events--;
    if (--c->lc_event_count == 0) ps_lite_list_idle(c);
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
    c->lc_group->lg_polls--;
    p->pk_conn->cn_core->co_lite->rg_sums.polls--;
    ps_lights_wait(p->pk_conn->cn_core->co_store, -1);
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
