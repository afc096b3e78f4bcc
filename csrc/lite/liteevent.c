/* Events: see lite.h. */
#include <string.h>

#include "base/threads.h"
#include "core/lock.h"
#include "lite/litetable.h"
#include "pop/orders.h"
#include "store/lights.h"
#include "tables/lags.h"
#include "tables/tables.h"

#define NEWS_BYTES (16 << 10) /* of names, that one look takes */
#define BACK_MAX 512          /* batches that come back in one look */
#define DISPATCH_MAX 1024     /* queues that one call looks at */

/* ---- who gets an event ---- */

typedef struct candidate {
    lite_client *client;
    lite_sub *sub; /* NULL: it reads all lite topics, and has no event of this one */
} candidate;

static bool add_candidate(ps_lite *l, lite_client *c, lite_sub *s) {
    uint8_t *to = ps_buffer_room(&l->rg_found, sizeof(candidate));
    const candidate one = {c, s};
    if (to == NULL) return false;
    memcpy(to, &one, sizeof one);
    l->rg_found.len += (int64_t)sizeof one;
    return true;
}

/* The clients of the group that read the queue. */
static int32_t find_candidates(ps_lite *l, const lite_group *g, ps_slice queue, candidate **out) {
    l->rg_found.len = 0;
    lite_sub *s = ps_chains_first(&l->rg_by_queue, ps_hash_of(queue.data, queue.len));
    for (; s != NULL; s = ps_chains_next(s))
        if (s->ls_link != NULL && s->ls_client->lc_group == g && ps_lite_is_of(s, queue) &&
            !add_candidate(l, s->ls_client, s))
            break;
    for (lite_client *c = g->lg_wild; c != NULL; c = c->lc_wild_next)
        if (ps_lite_reads(c, queue) && !add_candidate(l, c, ps_lite_sub(l, c, queue))) break;
    *out = (candidate *)l->rg_found.data;
    return (int32_t)(l->rg_found.len / (int64_t)sizeof **out);
}

/* A client that waits for an event, else any with room; -1: all are full, and are marked so. */
static int32_t choose_candidate(ps_core *core, const lite_group *g, const candidate *all,
                                int32_t count) {
    int32_t start = count > 1 ? (int32_t)(ps_core_random(core) % (uint64_t)count) : 0, best = -1;
    for (int32_t k = 0; k < count; k++) {
        int32_t i = (start + k) % count;
        lite_client *c = all[i].client;
        if (c->lc_event_count >= g->lg_room)
            c->lc_overflowed = true;
        else if (c->lc_polls != NULL)
            return i;
        else if (best < 0)
            best = i;
    }
    return best;
}

/* The event of a client that reads all lite topics. NULL: no memory. */
static lite_sub *event_of(ps_lite *l, lite_client *c, ps_slice queue) {
    lite_sub *s = ps_lite_sub(l, c, queue);
    return s != NULL ? s : ps_lite_make_sub(l, c, queue);
}

static void give_to(ps_core *core, const candidate *to, ps_slice queue) {
    lite_sub *s = to->sub != NULL ? to->sub : event_of(core->co_lite, to->client, queue);
    if (s == NULL) {
        to->client->lc_overflowed = true;
        return;
    }
    if (s->ls_event_link == NULL) ps_lite_event_add(s);
    ps_lite_wake(core, to->client);
}

/* Whoever has the event already keeps it. */
void ps_lite_offer(ps_core *core, lite_group *g, ps_slice queue) {
    candidate *all;
    int32_t count = find_candidates(core->co_lite, g, queue, &all), chosen = -1;
    for (int32_t i = 0; i < count && chosen < 0; i++)
        if (all[i].sub != NULL && all[i].sub->ls_event_link != NULL) chosen = i;
    if (chosen < 0) chosen = choose_candidate(core, g, all, count);
    if (chosen >= 0) give_to(core, &all[chosen], queue);
}

static void tell_ready(ps_core *core) {
    if (core->co_parking.pg_ready != NULL) ps_eventfd_tell(core->co_event_fd);
}

void ps_lite_give(ps_core *core, const char *group, int32_t group_len, const char *queue,
                  int32_t len) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_group *g = l != NULL ? ps_lite_group(l, ps_lite_slice(group, group_len)) : NULL;
    if (g != NULL) ps_lite_offer(core, g, ps_lite_slice(queue, len));
    tell_ready(core);
}

/* ---- what there is to read ---- */

ps_order *ps_lite_order(ps_pair *pair) {
    const ps_mark *m = pair != NULL ? ps_pair_mark(pair, 0, false) : NULL;
    return m != NULL ? m->mk_order : NULL;
}

static bool has_more(ps_core *core, ps_pair *pair, ps_slice queue) {
    const ps_mark *m = pair != NULL ? ps_pair_mark(pair, 0, false) : NULL;
    int64_t low, high, at = m != NULL && m->mk_offset > 0 ? m->mk_offset : 0;
    return ps_lights_range(core->co_store, (const char *)queue.data, queue.len, &low, &high) &&
           at < high;
}

void ps_lite_due(ps_core *core, const ps_pair *pair, int64_t at_ms) {
    ps_order *o = ps_lite_order((ps_pair *)pair);
    const ps_slice group = ps_lite_slice(pair->pr_names, pair->pr_group_len);
    if (o == NULL || ps_order_due(core, o, at_ms)) return;
    ps_lite *l = core->co_lite; /* no memory: the sweep looks */
    const lite_group *g = ps_lite_group(l, group);
    for (int32_t i = 0; i < l->rg_client_count; i++)
        if (l->rg_clients[i]->lc_group == g) l->rg_clients[i]->lc_overflowed = true;
}

void ps_lite_settle(ps_core *core, const char *group, int32_t group_len, const char *queue,
                    int32_t len) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    if (l == NULL || !l->rg_on) return;
    ps_pair *pair = ps_core_find_pair(core, (const uint8_t *)group, group_len,
                                      (const uint8_t *)queue, len);
    ps_order *o = ps_lite_order(pair);
    int64_t until =
        ps_order_blocked_ms(o, (ps_slice){0}, ps_timer_now(core->co_store));
    if (until > 0) {
        ps_lite_due(core, pair, until);
        return;
    }
    if (o != NULL) ps_order_undue(core, o);
    lite_group *g = ps_lite_group(l, ps_lite_slice(group, group_len));
    if (g != NULL && has_more(core, pair, ps_lite_slice(queue, len)))
        ps_lite_offer(core, g, ps_lite_slice(queue, len));
    tell_ready(core);
}

/* Whether a batch keeps the next one back; then it is an event once that comes back. */
static bool is_out(ps_core *core, ps_pair *pair) {
    const ps_order *o = ps_lite_order(pair);
    int64_t until = ps_order_blocked_ms(o, (ps_slice){0}, ps_timer_now(core->co_store));
    if (until > 0 && o->or_due_at == 0) ps_lite_due(core, pair, until);
    return until > 0;
}

/* Those that were looked at go to the end of the list, so that it may change in between. blocked:
 * also of queues whose batch is out, which the same attempt may have again. */
static void dispatch_some(ps_core *core, lite_client *c, bool begin, bool blocked) {
    const ps_slice group = ps_lite_slice(c->lc_group->lg_name, c->lc_group->lg_len);
    if (begin) {
        c->lc_left = c->lc_sub_count;
        c->lc_overflowed = c->lc_wild; /* the broker looks at all queues */
    }
    for (int32_t i = 0; i < DISPATCH_MAX && c->lc_left > 0 && c->lc_subs != NULL; i++) {
        lite_sub *s = c->lc_subs;
        const ps_slice queue = ps_lite_slice(s->ls_name, s->ls_len);
        ps_lite_list_last(s);
        c->lc_left--;
        ps_pair *pair =
            ps_core_find_pair(core, group.data, group.len, queue.data, queue.len);
        if (has_more(core, pair, queue) && (blocked || !is_out(core, pair)))
            ps_lite_offer(core, c->lc_group, queue);
    }
    if (c->lc_subs == NULL) c->lc_left = 0;
}

int32_t ps_lite_dispatch(ps_core *core, const ps_lite_who *who, int32_t begin) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c == NULL) return 0;
    dispatch_some(core, c, begin, true);
    if (begin) c->lc_overflowed = false;
    tell_ready(core);
    return c->lc_left;
}

void ps_lite_refill(ps_core *core, lite_client *c) {
    if (c->lc_events == NULL && ((c->lc_overflowed && !c->lc_wild) || c->lc_left > 0))
        dispatch_some(core, c, c->lc_left == 0, false);
}

void ps_lite_hand_over(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_client *c = ps_lite_find_who(core, who);
    for (lite_sub *s = c != NULL ? c->lc_events : NULL, *next; s != NULL; s = next) {
        candidate *all;
        const ps_slice queue = ps_lite_slice(s->ls_name, s->ls_len);
        int32_t count = find_candidates(l, c->lc_group, queue, &all), i = 0;
        next = s->ls_event_next;
        while (i < count && (all[i].client == c || all[i].client->lc_polls == NULL)) i++;
        if (i == count) continue;
        give_to(core, &all[i], queue);
        ps_lite_event_drop(s);
        if (s->ls_link == NULL) ps_lite_drop_sub(l, s);
    }
    tell_ready(core);
}

void ps_lite_forget(ps_core *core, const char *queue, int32_t len) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    const ps_slice name = ps_lite_slice(queue, len);
    ps_lag_end(core, name);
    lite_sub *s = l != NULL ? ps_chains_first(&l->rg_by_queue, ps_hash_of(queue, len)) : NULL;
    for (lite_sub *next; s != NULL; s = next) {
        next = ps_chains_next(s);
        if (!ps_lite_is_of(s, name)) continue;
        ps_lite_event_drop(s);
        if (s->ls_link == NULL) ps_lite_drop_sub(l, s);
    }
}

/* ---- what comes by itself ---- */

/* Each group that reads the queue gets an event. */
static void take_news_of(ps_core *core, ps_slice queue) {
    ps_lite *l = core->co_lite;
    lite_group *asked = NULL;
    lite_sub *s = ps_chains_first(&l->rg_by_queue, ps_hash_of(queue.data, queue.len));
    for (; s != NULL; s = ps_chains_next(s)) {
        lite_group *g = s->ls_client->lc_group;
        if (g->lg_asked || s->ls_link == NULL || !ps_lite_is_of(s, queue)) continue;
        g->lg_asked = true;
        g->lg_next = asked;
        asked = g;
    }
    for (lite_group *g = NULL; l->rg_wild > 0 && (g = ps_chains_each(&l->rg_groups, g)) != NULL;) {
        if (g->lg_asked || g->lg_wild == NULL) continue;
        g->lg_asked = true;
        g->lg_next = asked;
        asked = g;
    }
    for (lite_group *g = asked; g != NULL; g = g->lg_next) {
        g->lg_asked = false;
        ps_lite_offer(core, g, queue);
    }
}

static void take_news(ps_core *core) {
    ps_lite *l = core->co_lite;
    l->rg_news.len = 0;
    uint8_t *names = ps_buffer_room(&l->rg_news, NEWS_BYTES);
    if (names == NULL) return;
    int32_t len = ps_lights_news(core->co_store, names, NEWS_BYTES);
    for (int32_t at = 0; at < len; at += 1 + names[at]) {
        const ps_slice queue = {names + at + 1, names[at]};
        ps_lag_grew(core, queue);
        take_news_of(core, queue);
    }
    if (len > NEWS_BYTES / 2) ps_eventfd_tell(core->co_event_fd); /* more, after other work */
}

static void give_back(ps_core *core) {
    ps_order *o;
    int64_t now_ms = ps_timer_now(core->co_store);
    for (int32_t i = 0; (o = ps_order_due_first(core)) != NULL && o->or_due_ms <= now_ms; i++) {
        if (i == BACK_MAX) {
            ps_eventfd_tell(core->co_event_fd);
            return;
        }
        const ps_pair *p = o->or_pair;
        lite_group *g =
            ps_lite_group(core->co_lite, ps_lite_slice(p->pr_names, p->pr_group_len));
        ps_order_undue(core, o);
        if (g != NULL) ps_lite_offer(core, g, ps_lite_queue_of(p));
    }
}

void ps_lite_look(ps_core *core) {
    const ps_lite *l = core->co_lite;
    if (l == NULL || !l->rg_on) return;
    give_back(core);
    take_news(core);
}

void ps_lite_look_now(ps_core *core) {
    PS_CORE_HELD(core);
    ps_lite_look(core);
    ps_eventfd_tell(core->co_event_fd);
}

int64_t ps_lite_due_in(const ps_core *core) {
    const ps_lite *l = core->co_lite;
    const ps_order *o = l != NULL && l->rg_on ? ps_order_due_first(core) : NULL;
    if (o == NULL) return -1;
    int64_t left = o->or_due_ms - ps_timer_now(core->co_store);
    return left > 0 ? left : 0;
}

bool ps_lite_has_news(const ps_core *core) {
    const ps_lite *l = core->co_lite;
    return l != NULL && l->rg_on && ps_lights_have_news(core->co_store);
}
