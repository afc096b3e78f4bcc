/* Clients and their subscriptions: see lite.h. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/threads.h"
#include "core/lock.h"
#include "format/multi.h"
#include "lite/litetable.h"
#include "store/lights.h"
#include "tables/lags.h"

#define ROOM_FIRST 64
#define ADDED_BYTES (16 << 10) /* of names of queues that one call adds */

static int no_memory(ps_error *e) {
    return ps_no_memory(e, NULL, "no memory for subscriptions");
}

/* ---- life ---- */

int ps_lite_begin(ps_core *c, ps_error *e) {
    PS_CORE_HELD(c);
    if (c->co_lite == NULL) c->co_lite = calloc(1, sizeof *c->co_lite);
    if (c->co_lite == NULL) return no_memory(e);
    c->co_lite->rg_subs.pl_hash = ps_lite_hash_of_sub;
    c->co_lite->rg_subs.pl_owner = c->co_lite;
    c->co_lite->rg_on = true;
    c->co_tables.tc_rules++;
    ps_lights_listen(c->co_store, c->co_event_fd);
    ps_lag_look(c); /* what came before there was somebody to listen */
    return 0;
}

void ps_lite_expect(ps_core *c, uint32_t pairs) {
    PS_CORE_HELD(c);
    if (c->co_lite != NULL) ps_pool_reserve(&c->co_lite->rg_subs, pairs);
}

void ps_lite_end(ps_core *c) {
    PS_CORE_HELD(c);
    ps_lite *l = c->co_lite;
    if (l == NULL) return;
    l->rg_on = false;
    ps_lights_listen(c->co_store, -1);
    for (int32_t i = 0; i < l->rg_client_count; i++)
        while (l->rg_clients[i]->lc_polls != NULL) ps_lite_wake(c, l->rg_clients[i]);
    ps_eventfd_tell(c->co_event_fd);
}

/* Connections are gone, and with them what waits. */
void ps_lite_free(ps_core *c) {
    ps_lite *l = c->co_lite;
    if (l == NULL) return;
    for (lite_client *c = l->rg_gone, *next; c != NULL; c = next) {
        next = c->lc_wild_next;
        free(c);
    }
    ps_pool_free(&l->rg_subs);
    ps_chains_free(&l->rg_by_name, true);
    ps_chains_free(&l->rg_groups, true);
    ps_buffer_free(&l->rg_records);
    ps_buffer_free(&l->rg_counts);
    ps_buffer_free(&l->rg_news);
    free(l->rg_clients);
    free(l->rg_numbered);
    free(l);
    c->co_lite = NULL;
}

/* ---- clients ---- */

static lite_group *group_of(ps_lite *l, ps_slice name) {
    lite_group *g = ps_lite_group(l, name);
    if (g != NULL) return g;
    g = ps_chains_reserve(&l->rg_groups) ? calloc(1, sizeof *g + (size_t)name.len) : NULL;
    if (g == NULL) return NULL;
    g->lg_len = name.len;
    g->lg_idle_end = &g->lg_idle;
    memcpy(g->lg_name, name.data, (size_t)name.len);
    ps_chains_add(&l->rg_groups, g, ps_hash_of(name.data, name.len));
    return g;
}

static bool list_client(ps_lite *l, lite_client *c) {
    if (!PS_GROW(l->rg_clients, l->rg_client_room, l->rg_client_count + 1, ROOM_FIRST))
        return false;
    c->lc_at = l->rg_client_count;
    l->rg_clients[l->rg_client_count++] = c;
    return true;
}

static lite_client *make_client(ps_lite *l, lite_group *g, const ps_lite_who *who,
                                const char *parent, int32_t parent_len) {
    lite_client *c = ps_chains_reserve(&l->rg_by_name)
                         ? calloc(1, sizeof *c + (size_t)who->id_len + (size_t)parent_len)
                         : NULL;
    if (c == NULL || !ps_lite_number(l, c)) {
        free(c);
        return NULL;
    }
    if (!list_client(l, c)) {
        ps_lite_free_client(l, c);
        return NULL;
    }
    c->lc_group = g;
    c->lc_accessed_ms = -1;
    c->lc_polls_end = &c->lc_polls;
    c->lc_id_len = who->id_len;
    c->lc_parent_len = parent_len;
    memcpy(c->lc_names, who->id, (size_t)who->id_len);
    memcpy(c->lc_names + who->id_len, parent, (size_t)parent_len);
    ps_chains_add(&l->rg_by_name, c,
                  ps_lite_hash(ps_slice_from(who->group, who->group_len),
                                 ps_slice_from(who->id, who->id_len)));
    g->lg_clients++;
    return c;
}

int ps_lite_join(ps_core *core, const ps_lite_who *who, const char *parent, int32_t parent_len,
                 int32_t room, ps_error *e) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_client *c = ps_lite_find_who(core, who);
    int made = c == NULL;
    if (made && l != NULL) {
        lite_group *g = group_of(l, ps_slice_from(who->group, who->group_len));
        c = g != NULL ? make_client(l, g, who, parent, parent_len) : NULL;
    }
    if (c == NULL) return no_memory(e);
    c->lc_updated_ms = ps_monotonic_ms();
    c->lc_group->lg_room = room;
    return made;
}

static void fill_row(const lite_client *c, ps_lite_row *row) {
    *row = (ps_lite_row){.who = {c->lc_group->lg_name, c->lc_names, c->lc_group->lg_len,
                                 c->lc_id_len},
                         .parent = c->lc_names + c->lc_id_len,
                         .parent_len = c->lc_parent_len,
                         .queues = c->lc_sub_count,
                         .events = c->lc_event_count,
                         .polls = c->lc_poll_count,
                         .wild = c->lc_wild,
                         .overflowed = c->lc_overflowed,
                         .version = c->lc_version,
                         .updated_ms = c->lc_updated_ms,
                         .accessed_ms = c->lc_accessed_ms};
}

int ps_lite_get(ps_core *core, const ps_lite_who *who, ps_lite_row *row) {
    PS_CORE_HELD(core);
    const lite_client *c = ps_lite_find_who(core, who);
    if (c != NULL) fill_row(c, row);
    return c != NULL;
}

int32_t ps_lite_list(ps_core *core, int32_t before, ps_lite_row *rows, int32_t room) {
    PS_CORE_HELD(core);
    const ps_lite *l = core->co_lite;
    int32_t n = 0, count = l != NULL ? l->rg_client_count : 0;
    if (before > count) before = count;
    for (; n < room && n < before; n++) fill_row(l->rg_clients[before - 1 - n], &rows[n]);
    return n;
}

void ps_lite_set_version(ps_core *core, const ps_lite_who *who, int64_t version) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c != NULL && version > c->lc_version) c->lc_version = version;
}

/* ---- pairs ---- */

/* The client's pair of a queue; 0: none, and then its group may share the queue from now on. */
static ps_ref find_sub(const ps_lite *l, const lite_client *c, ps_slice queue) {
    lite_group *g = c->lc_group;
    bool shared = g->lg_wild != NULL;
    for (ps_ref at = ps_lite_first_of(l, queue); at != 0; at = ps_lite_next_of(l, at, queue)) {
        const lite_client *other = ps_lite_client_of(l, ps_lite_sub_at(l, at));
        if (other == c) return at;
        shared = shared || other->lc_group == g;
    }
    g->lg_shared = g->lg_shared || shared;
    return 0;
}

/* 1: it is new; 0: it is there; -1: no memory. */
static int add_sub(ps_core *core, lite_client *c, ps_slice queue) {
    ps_lite *l = core->co_lite;
    ps_ref sub = find_sub(l, c, queue);
    if (sub == 0) sub = ps_lite_make_sub(l, c, queue);
    if (sub == 0) return -1;
    lite_sub *s = ps_lite_sub_at(l, sub);
    bool had = s->ls_listed;
    c->lc_in_round += !had || s->ls_round != c->lc_round;
    s->ls_round = c->lc_round;
    ps_lite_list_sub(l, sub);
    if (had) return 0;
    c->lc_sub_count++;
    l->rg_events_alone--;
    l->rg_sums.pairs++;
    l->rg_sums.changes++;
    if (ps_lights_end(core->co_store, (const char *)queue.data, queue.len) > 0)
        ps_lite_offer_new(core, sub, queue);
    return 1;
}

/* What the next names are looked for in. Returns where those begin that are none of them. */
static int32_t fetch_some(const ps_core *core, const uint8_t *names, int32_t at, int32_t len) {
    const ps_pool *subs = &core->co_lite->rg_subs;
    ps_text some[PS_POOL_AHEAD];
    int32_t n = 0;
    for (; n < PS_POOL_AHEAD && at < len; at += 1 + names[at])
        some[n++] = (ps_text){names + at + 1, names[at]};
    for (int entry = 0; entry < 2; entry++)
        for (int32_t i = 0; i < n; i++)
            ps_pool_fetch(subs, ps_hash_of(some[i].data, (int32_t)some[i].len), entry != 0);
    ps_lights_fetch(core->co_store, some, n);
    return at;
}

static int no_client(const ps_lite_who *who, ps_error *e) {
    return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                   "there is no client %.*s of the group %.*s: it has left since it joined",
                   (int)who->id_len, who->id, (int)who->group_len, who->group);
}

int32_t ps_lite_add(ps_core *core, const ps_lite_who *who, const uint8_t *names, int32_t len,
                    ps_error *e) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    int32_t made = 0;
    if (c == NULL) return no_client(who, e);
    for (int32_t at = 0, fetched = 0; at < len; at += 1 + names[at]) {
        if (at == fetched) fetched = fetch_some(core, names, at, len);
        int one = add_sub(core, c, (ps_slice){names + at + 1, names[at]});
        if (one < 0) return no_memory(e);
        made += one;
    }
    if (core->co_parking.pg_ready != NULL) ps_eventfd_tell(core->co_event_fd);
    return made;
}

int32_t ps_lite_add_below(ps_core *core, const ps_lite_who *who, const char *parent,
                          int32_t parent_len, const uint8_t *names, int32_t len, int32_t *at,
                          ps_error *e) {
    uint8_t queues[ADDED_BYTES];
    int32_t used = 0, head = (int32_t)sizeof PS_LMQ_PREFIX + parent_len + 1; /* "%LMQ%$PARENT$" */
    for (; *at < len; *at += 1 + names[*at]) {
        int32_t whole = head + names[*at];
        if (whole > UINT8_MAX || names[*at] > len - *at - 1)
            return ps_fail(e, PS_E_ARGUMENT, 0, *at, NULL, "the name of a lite topic is too long");
        if (used + 1 + whole > ADDED_BYTES) break;
        queues[used++] = (uint8_t)whole;
        ps_lite_queue_put(queues + used, (const uint8_t *)parent, parent_len, names + *at + 1,
                          names[*at]);
        used += whole;
    }
    return ps_lite_add(core, who, queues, used, e);
}

/* Those of the new set get the next round. After the last round all that there are are of round 0:
 * a set that has not ended may have left some of any. */
void ps_lite_begin_set(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c == NULL) return;
    if (c->lc_round == LITE_ROUNDS) {
        const ps_lite *l = core->co_lite;
        lite_sub *s = ps_lite_sub_at(l, c->lc_subs);
        for (; s != NULL; s = ps_lite_sub_at(l, s->ls_next)) s->ls_round = 0;
        c->lc_round = 0;
    }
    c->lc_round++;
    c->lc_in_round = 0;
}

int32_t ps_lite_end_set(ps_core *core, const ps_lite_who *who, int32_t most) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    ps_lite *l = core->co_lite;
    int32_t n = 0;
    /* Old ones come first, but for those that were looked at meanwhile. */
    for (; c != NULL && n < most && c->lc_in_round < c->lc_sub_count; n++) {
        if (ps_lite_sub_at(l, c->lc_subs)->ls_round == c->lc_round)
            ps_lite_list_sub(l, c->lc_subs);
        else
            ps_lite_drop_sub(l, c->lc_subs);
    }
    return n;
}

int ps_lite_add_wild(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    if (c == NULL || c->lc_wild) return 0;
    c->lc_wild = c->lc_group->lg_shared = true;
    ps_lite_list_wild(core->co_lite, c);
    c->lc_group->lg_again = true; /* and its next pop looks for what there is */
    core->co_lite->rg_sums.changes++;
    return 1;
}

int ps_lite_remove(ps_core *core, const ps_lite_who *who, const char *queue, int32_t len) {
    PS_CORE_HELD(core);
    lite_client *c = ps_lite_find_who(core, who);
    ps_ref sub = c != NULL ? ps_lite_sub(core->co_lite, c, ps_slice_from(queue, len)) : 0;
    bool was = sub != 0 && ps_lite_sub_at(core->co_lite, sub)->ls_listed;
    if (sub != 0) ps_lite_drop_sub(core->co_lite, sub);
    return was;
}

/* ---- leaving ---- */

static void unlist_client(ps_lite *l, lite_client *c) {
    lite_client *last = l->rg_clients[--l->rg_client_count];
    l->rg_clients[c->lc_at] = last;
    last->lc_at = c->lc_at;
    ps_chains_remove(&l->rg_by_name, c);
}

void ps_lite_leave(ps_core *core, const ps_lite_who *who) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_client *c = ps_lite_find_who(core, who);
    if (c == NULL) return;
    unlist_client(l, c);
    if (c->lc_wild) ps_lite_unlist_wild(c);
    l->rg_sums.changes += c->lc_wild || c->lc_sub_count > 0;
    l->rg_sums.pairs -= c->lc_sub_count;
    l->rg_sums.leaving += c->lc_sub_count;
    ps_lite_overflow(l, c, false);
    c->lc_gone = true;
    c->lc_wild_next = l->rg_gone;
    l->rg_gone = c;
    while (c->lc_polls != NULL) ps_lite_wake(core, c); /* they try, and find that it is gone */
    ps_eventfd_tell(core->co_event_fd);
}

/* ---- asking ---- */

/* Bytes of the queue's name after its length, which are in `to` if there is room for them. */
static int32_t put_queue(const ps_lite *l, const lite_sub *s, uint8_t *to, int64_t room) {
    char name[UINT8_MAX];
    const ps_slice queue = ps_lite_sub_queue(l, s, name);
    if (1 + queue.len <= room) {
        to[0] = (uint8_t)queue.len;
        memcpy(to + 1, queue.data, (size_t)queue.len);
    }
    return 1 + queue.len;
}

int32_t ps_lite_names(ps_core *core, const ps_lite_who *who, int32_t begin, uint8_t *to,
                      int32_t room) {
    PS_CORE_HELD(core);
    ps_lite *l = core->co_lite;
    lite_client *c = ps_lite_find_who(core, who);
    int32_t used = 0;
    if (c == NULL) return 0;
    if (begin) {
        c->lc_named = c->lc_subs;
        c->lc_to_name = c->lc_sub_count <= INT32_MAX / 2 ? 2 * c->lc_sub_count : INT32_MAX;
    }
    for (; c->lc_named != 0 && c->lc_to_name > 0; c->lc_to_name--) {
        const lite_sub *s = ps_lite_sub_at(l, c->lc_named);
        const int32_t len = put_queue(l, s, to + used, room - used);
        if (len > room - used) return used;
        used += len;
        c->lc_named = s->ls_next;
    }
    if (c->lc_named != 0) l->rg_sums.changes++;
    if (used == 0 || c->lc_named != 0) {
        c->lc_named = 0;
        c->lc_to_name = 0;
    }
    return used;
}

int64_t ps_lite_event_names(ps_core *core, const ps_lite_who *who, uint8_t *to, int64_t room) {
    PS_CORE_HELD(core);
    const lite_client *c = ps_lite_find_who(core, who);
    int64_t used = 0;
    ps_ref at = c == NULL ? 0 : c->lc_events;
    for (const lite_sub *s; (s = ps_lite_sub_at(core->co_lite, at)) != NULL; at = s->ls_event_next)
        used += put_queue(core->co_lite, s, to + used, used < room ? room - used : 0);
    return used;
}

int32_t ps_lite_subscribers(ps_core *core, const char *queue, int32_t len, const char *group,
                            int32_t group_len, ps_lite_row *rows, int32_t room) {
    PS_CORE_HELD(core);
    const ps_lite *l = core->co_lite;
    const ps_slice name = ps_slice_from(queue, len), of = ps_slice_from(group, group_len);
    int32_t n = 0;
    ps_ref at = l != NULL ? ps_lite_first_of(l, name) : 0;
    for (; at != 0 && n < room; at = ps_lite_next_of(l, at, name)) {
        const lite_sub *s = ps_lite_sub_at(l, at);
        const lite_client *c = ps_lite_client_of(l, s);
        const lite_group *g = c->lc_group;
        if (s->ls_listed && !c->lc_gone &&
            (group == NULL || ps_lite_is(g->lg_name, g->lg_len, of)))
            fill_row(c, &rows[n++]);
    }
    return n;
}

int32_t ps_lite_wild_clients(ps_core *core, const char *group, int32_t group_len) {
    PS_CORE_HELD(core);
    const ps_lite *l = core->co_lite;
    const lite_group *g = l != NULL ? ps_lite_group(l, ps_slice_from(group, group_len)) : NULL;
    return g != NULL && g->lg_wild != NULL;
}

void ps_lite_counts(ps_core *core, ps_lite_totals *out) {
    PS_CORE_HELD(core);
    *out = (ps_lite_totals){0};
    if (core->co_lite == NULL) return;
    *out = core->co_lite->rg_sums;
    out->clients = core->co_lite->rg_client_count;
}
