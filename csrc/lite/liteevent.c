/* Events: see lite.h. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "core/lock.h"
#include "lite/litetable.h"
#include "pop/orders.h"
#include "store/lights.h"
#include "tables/lags.h"
#include "tables/lightoffsets.h"
#include "tables/tables.h"

#define NEWS_BYTES (16 << 10) /* of names, that are taken at once */
#define LOOK_NS 1000000       /* of one look at what comes by itself */
#define DISPATCH_MAX 1024     /* queues that one call looks at */
#define HAND_OVER_MAX 1024    /* events that one call gives to others */
#define SHARE_MAX 64          /* the same, after each answer */
/* Of a group that reads all lite topics so many clients are asked, those that wait first. */
#define WILD_ASKED 32
#define ALONE_MAX (1 << 18) /* events that are no pairs; beyond, a client has one at a time */

/* ---- who gets an event ---- */

/* HELD: by an idle client, for as long as nobody waits. HAS_IT: one that is being served has it. */
enum { HAS_ROOM = 1, HELD, WAITS, HAS_IT };

static void begin_pick(lite_group *g) {
    g->lg_full = false;
    g->lg_rank = 0;
    g->lg_picked = 0;
    g->lg_pick = NULL;
    g->lg_pick_sub = 0;
    g->lg_held = 0;
}

/* Of those that are best each has the same chance. */
static void consider_client(ps_core *core, lite_client *c, ps_ref sub) {
    lite_group *g = c->lc_group;
    bool has_it = sub != 0 && ps_lite_sub_at(core->co_lite, sub)->ls_is_event;
    uint8_t rank = has_it ? (ps_lite_is_idle(c) ? HELD : HAS_IT)
                   : c->lc_polls != NULL ? WAITS
                                         : HAS_ROOM;
    if (c->lc_gone) return;
    if (rank == HELD) g->lg_held = sub;
    if (!has_it && c->lc_event_count >= g->lg_room) {
        ps_lite_overflow(core->co_lite, c, true);
        g->lg_full = true;
        return;
    }
    if (rank < g->lg_rank) return;
    g->lg_picked = rank > g->lg_rank ? 1 : g->lg_picked + 1;
    g->lg_rank = rank;
    if (g->lg_picked > 1 && ps_core_random(core) % (uint64_t)g->lg_picked != 0) return;
    g->lg_pick = c;
    g->lg_pick_sub = sub;
}

/* The same of those that read all lite topics; somebody has considered those of them that have the
 * event. */
static void consider_wild(ps_core *core, lite_group *g, ps_slice queue) {
    int32_t left = WILD_ASKED;
    for (lite_client *c = g->lg_wild; c != NULL; c = c->lc_wild_next) {
        if (g->lg_rank == HAS_IT || (c->lc_polls == NULL && g->lg_rank == WAITS)) return;
        if (left-- == 0) {
            g->lg_full = true;
            return;
        }
        if (ps_lite_reads(c, queue)) consider_client(core, c, 0);
    }
}

/* The clients of the group that read the queue. */
static void pick_client(ps_core *core, lite_group *g, ps_slice queue) {
    const ps_lite *l = core->co_lite;
    begin_pick(g);
    for (ps_ref at = ps_lite_first_of(l, queue); at != 0; at = ps_lite_next_of(l, at, queue)) {
        lite_client *c = ps_lite_client_of(l, ps_lite_sub_at(l, at));
        if (c->lc_group == g) consider_client(core, c, at);
    }
    consider_wild(core, g, queue);
}

/* The event of a client that reads all lite topics. 0: there are too many, or no memory. */
static ps_ref event_of(ps_lite *l, lite_client *c, ps_slice queue) {
    ps_ref sub = ps_lite_sub(l, c, queue);
    if (sub != 0 || (l->rg_events_alone >= ALONE_MAX && c->lc_event_count > 0)) return sub;
    return ps_lite_make_sub(l, c, queue);
}

/* An event is its client's no more; nor is the pair, when it was for the event alone. */
static void drop_event(ps_lite *l, ps_ref sub) {
    ps_lite_event_drop(l, sub);
    if (!ps_lite_sub_at(l, sub)->ls_listed) ps_lite_drop_sub(l, sub);
}

static void make_last(ps_lite *l, ps_ref sub) {
    ps_lite_event_drop(l, sub);
    ps_lite_event_add(l, sub);
}

/* Who was picked has the event from now on. */
static bool give_event(ps_core *core, lite_group *g, ps_slice queue) {
    lite_client *c = g->lg_pick;
    ps_ref sub = c == NULL             ? 0
                 : g->lg_pick_sub != 0 ? g->lg_pick_sub
                                       : event_of(core->co_lite, c, queue);
    if (sub == 0) {
        if (c != NULL) ps_lite_overflow(core->co_lite, c, true);
        if (g->lg_wild != NULL && (c != NULL || g->lg_full)) g->lg_again = true;
        return false;
    }
    if (!ps_lite_sub_at(core->co_lite, sub)->ls_is_event) ps_lite_event_add(core->co_lite, sub);
    if (g->lg_held != 0 && g->lg_held != sub) drop_event(core->co_lite, g->lg_held);
    ps_lite_wake(core, c);
    return true;
}

bool ps_lite_offer(ps_core *core, lite_group *g, ps_slice queue) {
    pick_client(core, g, queue);
    return give_event(core, g, queue);
}

void ps_lite_offer_new(ps_core *core, ps_ref sub, ps_slice queue) {
    lite_client *c = ps_lite_client_of(core->co_lite, ps_lite_sub_at(core->co_lite, sub));
    lite_group *g = c->lc_group;
    pick_client(core, g, queue);
    if (g->lg_rank < WAITS && c->lc_event_count < g->lg_room) {
        g->lg_pick = c;
        g->lg_pick_sub = sub;
    }
    give_event(core, g, queue);
}

static void tell_ready(ps_core *core) {
    if (core->co_parking.pg_ready != NULL) ps_eventfd_tell(core->co_event_fd);
}

void ps_lite_give(ps_core *core, const char *group, int32_t group_len, const char *queue,
                  int32_t len) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_group *g = l != NULL ? ps_lite_group(l, ps_slice_from(group, group_len)) : NULL;
    if (g != NULL) ps_lite_offer(core, g, ps_slice_from(queue, len));
    tell_ready(core);
}

/* ---- what there is to read ---- */

ps_order *ps_lite_order(ps_pair *pair) {
    const ps_mark *m = pair != NULL ? ps_pair_mark(pair, 0, false) : NULL;
    return m != NULL ? m->mk_order : NULL;
}

static bool has_more(ps_core *core, ps_slice group, ps_slice queue) {
    int64_t at = ps_light_offset_get(core, group, queue);
    return (at > 0 ? at : 0) < ps_lights_end(core->co_store, (const char *)queue.data, queue.len);
}

void ps_lite_due(ps_core *core, const ps_pair *pair, int64_t at_ms) {
    ps_order *o = ps_lite_order((ps_pair *)pair);
    const ps_slice group = ps_slice_from(pair->pr_names, pair->pr_group_len);
    if (o == NULL || ps_order_due(core, o, at_ms)) return;
    ps_lite *l = core->co_lite; /* no memory: the sweep looks */
    lite_group *g = ps_lite_group(l, group);
    if (g != NULL) g->lg_again = g->lg_wild != NULL;
    for (int32_t i = 0; i < l->rg_client_count; i++)
        if (l->rg_clients[i]->lc_group == g) ps_lite_overflow(l, l->rg_clients[i], true);
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
    const ps_slice of = ps_slice_from(group, group_len), name = ps_slice_from(queue, len);
    lite_group *g = ps_lite_group(l, of);
    if (g != NULL && has_more(core, of, name)) ps_lite_offer(core, g, name);
    tell_ready(core);
}

/* Whether a batch keeps the next one back; then it is an event once that comes back. */
static bool is_out(ps_core *core, ps_slice group, ps_slice queue) {
    ps_pair *pair = ps_core_find_pair(core, group.data, group.len, queue.data, queue.len);
    const ps_order *o = ps_lite_order(pair);
    int64_t until = ps_order_blocked_ms(o, (ps_slice){0}, ps_timer_now(core->co_store));
    if (until > 0 && o->or_due_at == 0) ps_lite_due(core, pair, until);
    return until > 0;
}

/* Those that were looked at go to the end of the list, so that it may change in between. It ends
 * when the client has no room for more. */
static void look_at_subs(ps_core *core, lite_client *c) {
    ps_lite *l = core->co_lite;
    lite_group *g = c->lc_group;
    const ps_slice group = ps_slice_from(g->lg_name, g->lg_len);
    for (int32_t i = 0; i < DISPATCH_MAX && c->lc_left > 0 && c->lc_subs != 0; i++) {
        if (c->lc_event_count >= g->lg_room) return;
        char name[UINT8_MAX];
        const ps_slice queue = ps_lite_sub_queue(l, ps_lite_sub_at(l, c->lc_subs), name);
        ps_lite_list_sub(l, c->lc_subs);
        c->lc_left--;
        if (has_more(core, group, queue) && (c->lc_blocked_too || !is_out(core, group, queue)))
            ps_lite_offer(core, g, queue);
    }
    if (c->lc_subs == 0) c->lc_left = 0;
}

/* Of a client that reads all lite topics: its group goes on where it was. */
static void look_at_all(ps_core *core, lite_client *c) {
    lite_group *g = c->lc_group;
    const ps_slice group = ps_slice_from(g->lg_name, g->lg_len);
    char name[UINT8_MAX];
    for (int32_t i = 0; i < DISPATCH_MAX; i++) {
        int32_t len = 0;
        int64_t at = ps_lights_next(core->co_store, g->lg_at, name, &len);
        g->lg_looks = at >= 0;
        if (at < 0) return;
        const ps_slice queue = ps_slice_from(name, len);
        if (len > 0 && ps_lite_reads(c, queue) && has_more(core, group, queue) &&
            !is_out(core, group, queue)) {
            if (c->lc_event_count >= g->lg_room) return;
            pick_client(core, g, queue);
            if (g->lg_rank != HAS_IT) { /* it asks, and the others may never */
                g->lg_pick = c;
                g->lg_pick_sub = 0;
            }
            if (!give_event(core, g, queue)) return; /* it is the next one again */
        }
        g->lg_at = (uint32_t)at;
    }
}

bool ps_lite_may_refill(const lite_client *c) {
    const lite_group *g = c->lc_group;
    return c->lc_left > 0 || (c->lc_wild ? g->lg_looks || g->lg_again : c->lc_overflowed);
}

void ps_lite_refill(ps_core *core, lite_client *c) {
    lite_group *g = c->lc_group;
    if (c->lc_events != 0) return;
    if (c->lc_left == 0 && c->lc_overflowed) {
        c->lc_left = c->lc_sub_count;
        c->lc_blocked_too = false;
        ps_lite_overflow(core->co_lite, c, false);
    }
    look_at_subs(core, c);
    if (!c->lc_wild || c->lc_events != 0) return;
    if (!g->lg_looks && g->lg_again) {
        g->lg_looks = true;
        g->lg_again = false;
        g->lg_at = 0;
    }
    if (g->lg_looks) look_at_all(core, c);
}

int ps_lite_dispatch(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c == NULL) return 0;
    c->lc_left = c->lc_sub_count;
    c->lc_blocked_too = true;
    ps_lite_overflow(core->co_lite, c, false);
    if (c->lc_wild) c->lc_group->lg_again = true;
    if (c->lc_events == 0) ps_lite_wake(core, c);
    tell_ready(core);
    return 1;
}

/* Events of a client that does not ask go to those who wait; the others to its end, so that the
 * next call looks at others. */
static void offer_events(ps_core *core, lite_client *c, int32_t most) {
    ps_lite *l = core->co_lite;
    if (most > c->lc_event_count) most = c->lc_event_count;
    for (; most > 0 && c->lc_group->lg_polls > 0; most--) {
        char name[UINT8_MAX];
        ps_ref sub = c->lc_events;
        const ps_slice queue = ps_lite_sub_queue(l, ps_lite_sub_at(l, sub), name);
        make_last(l, sub);
        ps_lite_offer(core, c->lc_group, queue);
    }
}

void ps_lite_hand_over(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c != NULL) offer_events(core, c, HAND_OVER_MAX);
    tell_ready(core);
}

void ps_lite_share(ps_core *core, lite_client *c) {
    if (c->lc_group->lg_shared && ps_lite_is_idle(c)) offer_events(core, c, SHARE_MAX);
}

/* One event of another client, if this one reads its queue. */
static bool take_event(ps_lite *l, lite_client *c, ps_ref sub) {
    char name[UINT8_MAX];
    const ps_slice queue = ps_lite_sub_queue(l, ps_lite_sub_at(l, sub), name);
    ps_ref mine = c->lc_wild && ps_lite_reads(c, queue) ? event_of(l, c, queue)
                                                        : ps_lite_sub(l, c, queue);
    if (mine == 0) return false;
    drop_event(l, sub);
    if (!ps_lite_sub_at(l, mine)->ls_is_event) ps_lite_event_add(l, mine);
    return true;
}

/* What it does not read goes to the end of its client's, and that client to the end of the list. */
int32_t ps_lite_take_over(ps_core *core, lite_client *c, int32_t most, int32_t *left) {
    ps_lite *l = core->co_lite;
    lite_group *g = c->lc_group;
    int32_t taken = 0;
    if (!g->lg_shared) return 0;
    if (most > g->lg_room - c->lc_event_count) most = g->lg_room - c->lc_event_count;
    for (int32_t clients = g->lg_idle_count; clients > 0 && *left > 0 && taken < most; clients--) {
        lite_client *from = g->lg_idle;
        if (from == NULL || from == c) break; /* those before it have no more */
        for (int32_t n = from->lc_event_count; n > 0 && *left > 0 && taken < most; n--, --*left) {
            ps_ref sub = from->lc_events;
            if (take_event(l, c, sub))
                taken++;
            else
                make_last(l, sub);
        }
        ps_lite_list_idle(from);
    }
    return taken;
}

static void forget_events(ps_core *core, const char *queue, int32_t len) {
    ps_lite *l = core->co_lite;
    const ps_slice name = ps_slice_from(queue, len);
    ps_lag_end(core, name);
    ps_ref at = l != NULL ? ps_lite_first_of(l, name) : 0;
    for (ps_ref next; at != 0; at = next) {
        next = ps_lite_next_of(l, at, name);
        ps_lite_event_drop(l, at);
        if (!ps_lite_sub_at(l, at)->ls_listed) ps_lite_drop_sub(l, at);
    }
}

int ps_lite_delete(ps_core *core, const char *queue, int32_t len, const uint8_t *groups,
                   int32_t groups_len, int64_t before_ms, ps_error *e) {
    PS_CORE_HELD(core);
    int code = ps_lights_delete(core->co_store, queue, len, before_ms, e);
    if (code <= 0) return code;
    forget_events(core, queue, len);
    for (int32_t at = 0; at < groups_len; at += 1 + groups[at]) {
        const char *group = (const char *)groups + at + 1;
        ps_core_order_forget(core, group, groups[at], queue, len, 0);
        ps_core_forget_offsets(core, group, groups[at], queue, len);
    }
    return 1;
}

/* ---- what comes by itself ---- */

static lite_group *ask_group(lite_group *g, lite_group *asked) {
    if (g->lg_asked) return asked;
    begin_pick(g);
    g->lg_asked = true;
    g->lg_next = asked;
    return g;
}

/* Each group that reads the queue gets an event, by one walk over all that do. */
static void take_news_of(ps_core *core, ps_slice queue) {
    const ps_lite *l = core->co_lite;
    lite_group *asked = NULL;
    for (ps_ref at = ps_lite_first_of(l, queue); at != 0; at = ps_lite_next_of(l, at, queue)) {
        lite_client *c = ps_lite_client_of(l, ps_lite_sub_at(l, at));
        asked = ask_group(c->lc_group, asked);
        consider_client(core, c, at);
    }
    for (lite_group *g = l->rg_wild; g != NULL; g = g->lg_wild_next) {
        asked = ask_group(g, asked);
        consider_wild(core, g, queue);
    }
    for (lite_group *g = asked; g != NULL; g = g->lg_next) {
        g->lg_asked = false;
        give_event(core, g, queue);
    }
}

/* False: there are more. */
static bool take_news(ps_core *core, int64_t until_ns) {
    ps_lite *l = core->co_lite;
    do {
        if (l->rg_news_at == l->rg_news.len) {
            l->rg_news.len = l->rg_news_at = 0;
            uint8_t *to = ps_buffer_room(&l->rg_news, NEWS_BYTES);
            if (to == NULL) return true;
            l->rg_news.len = ps_lights_news(core->co_store, to, NEWS_BYTES);
            if (l->rg_news.len == 0) return true;
        }
        const uint8_t *name = l->rg_news.data + l->rg_news_at;
        l->rg_news_at += 1 + name[0];
        const ps_slice queue = {name + 1, name[0]};
        ps_lag_grew(core, queue);
        take_news_of(core, queue);
    } while (ps_monotonic_ns() < until_ns);
    return false;
}

/* False: there are more. */
static bool give_back(ps_core *core, int64_t until_ns) {
    ps_order *o;
    int64_t now_ms = ps_timer_now(core->co_store);
    while ((o = ps_order_due_first(core)) != NULL && o->or_due_ms <= now_ms) {
        const ps_pair *p = o->or_pair;
        lite_group *g =
            ps_lite_group(core->co_lite, ps_slice_from(p->pr_names, p->pr_group_len));
        ps_order_undue(core, o);
        if (g != NULL) ps_lite_offer(core, g, ps_lite_queue_of(p));
        if (ps_monotonic_ns() >= until_ns) return false;
    }
    return true;
}

/* What waited for one that is gone goes to others, who have it from now on. */
static void drop_one(ps_core *core, lite_client *c) {
    ps_lite *l = core->co_lite;
    char name[UINT8_MAX];
    if (c->lc_events == 0) {
        ps_lite_drop_sub(l, c->lc_subs);
        return;
    }
    const ps_slice queue = ps_lite_sub_queue(l, ps_lite_sub_at(l, c->lc_events), name);
    ps_lite_drop_sub(l, c->lc_events);
    ps_lite_offer(core, c->lc_group, queue);
}

static void free_client(ps_lite *l, lite_client *c) {
    lite_group *g = c->lc_group;
    ps_lite_free_client(l, c);
    if (--g->lg_clients > 0) return;
    ps_chains_remove(&l->rg_groups, g);
    free(g);
}

/* One whose polls are not all answered stays as long. */
static bool free_some_gone(ps_core *core, int64_t until_ns) {
    ps_lite *l = core->co_lite;
    for (lite_client **at = &l->rg_gone, *c; (c = *at) != NULL;) {
        while (c->lc_events != 0 || c->lc_subs != 0) {
            drop_one(core, c);
            if (ps_monotonic_ns() >= until_ns) return false;
        }
        if (c->lc_woken > 0) {
            at = &c->lc_wild_next;
            continue;
        }
        *at = c->lc_wild_next;
        free_client(l, c);
    }
    return true;
}

bool ps_lite_look(ps_core *core) {
    const ps_lite *l = core->co_lite;
    if (l == NULL || !l->rg_on) return true;
    int64_t until_ns = ps_monotonic_ns() + LOOK_NS;
    bool all = free_some_gone(core, until_ns);
    all = give_back(core, until_ns) && all;
    bool heard = take_news(core, until_ns);
    if (!heard || !all) ps_eventfd_tell(core->co_event_fd); /* after others */
    return heard;
}

int ps_lite_look_now(ps_core *core) {
    PS_CORE_HELD(core);
    ps_dispatch_catch_up(core->co_store, NULL);
    bool heard = ps_lite_look(core);
    ps_eventfd_tell(core->co_event_fd);
    return heard;
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
    return l != NULL && l->rg_on &&
           (l->rg_news_at < l->rg_news.len || ps_lights_have_news(core->co_store));
}
