/* See poporder.h. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "core/lock.h"
#include "pop/orders.h"
#include "pop/popwait.h"
#include "tables/tables.h"
#include "waits/watched.h"

/* ---- the table ---- */

static ps_order *find_order(ps_pair *pair, int32_t queue_id) {
    const ps_mark *m = pair != NULL ? ps_pair_mark(pair, queue_id, false) : NULL;
    return m != NULL ? m->mk_order : NULL;
}

static ps_order *order_of(ps_core *c, const ps_check_point_key *k) {
    return find_order(ps_core_find_pair(c, (const uint8_t *)k->group, k->group_len,
                                        (const uint8_t *)k->topic, k->topic_len),
                      k->queue_id);
}

/* Removes it from all but its mark. */
static void unlink_order(ps_core *c, ps_order *o) {
    ps_pair *pair = o->or_pair;
    ps_order_undue(c, o);
    if (pair->pr_orders == o)
        pair->pr_orders =
            o->or_next != NULL && o->or_next->or_pair == pair ? o->or_next : NULL;
    *o->or_link = o->or_next;
    if (o->or_next != NULL) o->or_next->or_link = o->or_link;
    free(o);
    ps_pair_let_go(c, pair);
}

/* It takes the place of the one that is out. */
static void link_order(ps_core *c, ps_order *o) {
    ps_pair *pair = o->or_pair;
    ps_mark *m = ps_pair_mark(pair, o->or_queue, false);
    ps_order *old = m->mk_order;
    ps_order **at = pair->pr_orders != NULL ? &pair->pr_orders->or_next
                                            : &ps_order_log_of(c)->ol_all;
    o->or_next = *at;
    o->or_link = at;
    *at = o;
    if (o->or_next != NULL) o->or_next->or_link = &o->or_next;
    if (pair->pr_orders == NULL) pair->pr_orders = o;
    pair->pr_pop_open++;
    m->mk_order = o;
    if (old != NULL) unlink_order(c, old);
}

static ps_order *make_order(ps_pair *pair, int32_t queue_id, int32_t count, ps_slice attempt) {
    ps_order *o = malloc(sizeof *o + (size_t)count * sizeof o->or_all[0] + (size_t)attempt.len);
    if (o == NULL) return NULL;
    *o = (ps_order){.or_pair = pair,
                    .or_queue = queue_id,
                    .or_count = count,
                    .or_attempt_len = attempt.len};
    if (attempt.len > 0) memcpy(o->or_all + count, attempt.data, (size_t)attempt.len);
    return o;
}

static void forget_order(ps_core *c, ps_order *o) {
    ps_order_note(c, o->or_pair, o->or_queue, NULL, 0);
    ps_pair_mark(o->or_pair, o->or_queue, false)->mk_order = NULL;
    unlink_order(c, o);
}

void ps_orders_free(ps_core *c) {
    if (c->co_pop == NULL) return;
    ps_core_order_journal_end(c);
    for (ps_order *o = ps_order_log_of(c)->ol_all, *next; o != NULL; o = next) {
        next = o->or_next;
        free(o);
    }
    free(ps_order_log_of(c)->ol_due);
}

/* ---- what it says ---- */

static uint64_t open_bits(const ps_order *o) {
    uint64_t all = o->or_count < 64 ? (UINT64_C(1) << o->or_count) - 1 : UINT64_MAX;
    return ~o->or_acked & all;
}

static int64_t returns_ms(const ps_order *o, int32_t i) {
    int64_t changed = o->or_all[i].om_visible_ms;
    return changed >= 0 ? changed : o->or_pop_ms + o->or_invisible_ms;
}

/* Everything before it is acknowledged. */
static int64_t next_offset(const ps_order *o) {
    uint64_t open = open_bits(o);
    return open != 0 ? o->or_all[__builtin_ctzll(open)].om_offset
                     : o->or_all[o->or_count - 1].om_offset + 1;
}

static int32_t place_of(const ps_order *o, int64_t offset) {
    int32_t i = 0;
    while (i < o->or_count && o->or_all[i].om_offset != offset) i++;
    return i < o->or_count ? i : -1;
}

int64_t ps_order_blocked_ms(const ps_order *o, ps_slice attempt, int64_t now_ms) {
    int64_t until = 0;
    if (o == NULL) return 0;
    if (attempt.len > 0 && attempt.len == o->or_attempt_len &&
        memcmp(attempt.data, ps_order_attempt(o).data, (size_t)attempt.len) == 0)
        return 0;
    if (!o->or_changed) /* all come back together */
        until = open_bits(o) != 0 ? o->or_pop_ms + o->or_invisible_ms : 0;
    for (uint64_t open = o->or_changed ? open_bits(o) : 0; open != 0; open &= open - 1) {
        int64_t one = returns_ms(o, __builtin_ctzll(open));
        if (one > until) until = one;
    }
    return until > now_ms ? until : 0;
}

int ps_core_order_find(ps_core *c, const ps_check_point_key *key, const char *attempt,
                       int32_t attempt_len, int64_t *first, int64_t *blocked_ms) {
    PS_CORE_HELD(c);
    const ps_order *o = order_of(c, key);
    if (o == NULL) return 0;
    *first = o->or_all[0].om_offset;
    *blocked_ms = ps_order_blocked_ms(o, (ps_slice){(const uint8_t *)attempt, attempt_len},
                                      ps_timer_now(c->co_store));
    return 1;
}

int ps_core_order_get(ps_core *c, const ps_check_point_key *key, ps_order_row *row) {
    PS_CORE_HELD(c);
    const ps_order *o = order_of(c, key);
    if (o == NULL) return 0;
    row->key = *key;
    row->key.pop_ms = o->or_pop_ms;
    row->attempt = (const char *)ps_order_attempt(o).data;
    row->attempt_len = o->or_attempt_len;
    row->count = o->or_count;
    row->invisible_ms = o->or_invisible_ms;
    row->used_ms = o->or_used_ms;
    row->acked = o->or_acked;
    for (int32_t i = 0; i < o->or_count; i++) {
        row->offsets[i] = o->or_all[i].om_offset;
        row->visible_ms[i] = o->or_all[i].om_visible_ms;
        row->times[i] = o->or_all[i].om_times;
    }
    return 1;
}

/* ---- popping ---- */

/* How often a message that is popped again was popped before: the same attempt gets it once more,
 * and that does not count. */
static int32_t times_before(const ps_order *old, bool same, int64_t offset) {
    int32_t at = old != NULL ? place_of(old, offset) : -1;
    return at < 0 ? 0 : old->or_all[at].om_times + !same;
}

bool ps_order_popped(ps_core *c, ps_pair *pair, int32_t queue_id, const ps_pop_ask *ask,
                     const ps_batch_info *info, int64_t pop_ms, int32_t *times) {
    const ps_slice attempt = {(const uint8_t *)ask->attempt, ask->attempt_len};
    ps_order *o = ps_order_log_of(c) != NULL && info->count > 0
                      ? make_order(pair, queue_id, info->count, attempt)
                      : NULL;
    if (o == NULL) return false;
    const ps_order *old = find_order(pair, queue_id);
    bool same = old != NULL && attempt.len > 0 && attempt.len == old->or_attempt_len &&
                memcmp(attempt.data, ps_order_attempt(old).data, (size_t)attempt.len) == 0;
    o->or_pop_ms = pop_ms;
    o->or_invisible_ms = ask->invisible_ms;
    o->or_used_ms = pop_ms;
    for (int32_t i = 0; i < info->count; i++) {
        int64_t offset = info->views[i].queue_offset;
        times[i] = times_before(old, same, offset);
        o->or_all[i] = (ps_ordered_message){offset, -1, times[i]};
    }
    link_order(c, o);
    ps_order_note(c, pair, queue_id, o, o->or_all[0].om_offset);
    return true;
}

int ps_core_order_put(ps_core *c, const ps_order_row *r, int32_t note, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pair *pair;
    bool good = r->count > 0 && r->count <= PS_ORDER_MAX && r->offsets[0] >= 0;
    for (int32_t i = 1; good && i < r->count; i++) good = r->offsets[i] > r->offsets[i - 1];
    if (!good)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "the offsets of an ordered batch do not ascend");
    int code = ps_pair_hold(c, r->key.group, r->key.group_len, r->key.topic, r->key.topic_len,
                            r->key.queue_id, &pair, e);
    if (code < 0) return code;
    ps_order *o = ps_order_log_of(c) == NULL
                      ? NULL
                      : make_order(pair, r->key.queue_id, r->count,
                                   (ps_slice){(const uint8_t *)r->attempt, r->attempt_len});
    if (o != NULL) {
        o->or_pop_ms = r->key.pop_ms;
        o->or_invisible_ms = r->invisible_ms;
        o->or_used_ms = r->used_ms;
        o->or_acked = r->acked;
        for (int32_t i = 0; i < r->count; i++) {
            o->or_all[i] = (ps_ordered_message){r->offsets[i], r->visible_ms[i], r->times[i]};
            o->or_changed = o->or_changed || r->visible_ms[i] >= 0;
        }
        link_order(c, o);
        if (note) ps_order_note(c, pair, o->or_queue, o, next_offset(o));
    }
    ps_pair_let_go(c, pair); /* the batch holds it by itself */
    if (o != NULL) return 0;
    return ps_no_memory(e, NULL, "no memory for an ordered batch");
}

int64_t ps_core_order_count(ps_core *c) {
    PS_CORE_HELD(c);
    const ps_order_log *l = ps_order_log_of(c);
    int64_t n = 0;
    for (const ps_order *o = l != NULL ? l->ol_all : NULL; o != NULL; o = o->or_next) n++;
    return n;
}

/* ---- acknowledging ---- */

/* Whoever waits for the queue tries again; the broker learns of it if it watches the queue. */
static void wake_queue(ps_core *c, ps_pair *pair, int32_t queue_id) {
    const ps_topic_entry *t = ps_core_find_topic(
        c, (const uint8_t *)pair->pr_names + pair->pr_group_len, pair->pr_topic_len);
    ps_queue *q = t != NULL ? ps_topic_queue_get(t->te_topic, queue_id) : NULL;
    ps_pop_wake(c, pair, queue_id);
    if (q != NULL) ps_watched_arrived(c, q);
    if (c->co_parking.pg_ready != NULL || ps_core_has_watched_news(c))
        ps_eventfd_tell(c->co_event_fd);
}

/* The group continues after what is acknowledged. */
static void move_on(ps_core *c, const ps_order *o) {
    ps_pair *pair = o->or_pair;
    int64_t next = next_offset(o), committed = ps_pair_offset(pair, o->or_queue);
    if (next < committed) next = committed;
    ps_pair_commit(pair, o->or_queue, next);
    ps_order_note(c, pair, o->or_queue, o, next);
    if (ps_order_blocked_ms(o, (ps_slice){0}, ps_timer_now(c->co_store)) == 0)
        wake_queue(c, pair, o->or_queue);
}

/* PS_ORDER_STALE, PS_ORDER_UNKNOWN, or PS_ORDER_DONE and its place. */
static int find_open(ps_order *o, int64_t pop_ms, int64_t offset, int32_t *at) {
    if (o == NULL || o->or_pop_ms != pop_ms ||
        offset < ps_pair_offset(o->or_pair, o->or_queue))
        return PS_ORDER_STALE;
    *at = place_of(o, offset);
    return *at >= 0 ? PS_ORDER_DONE : PS_ORDER_UNKNOWN;
}

int ps_core_order_ack(ps_core *c, const ps_check_point_key *key, const int64_t *offsets,
                      int32_t count) {
    PS_CORE_HELD(c);
    ps_order *o = order_of(c, key);
    int worst = PS_ORDER_DONE;
    bool some = false;
    for (int32_t i = 0, at; i < count; i++) {
        int one = find_open(o, key->pop_ms, offsets[i], &at);
        if (one < worst) worst = one;
        if (one != PS_ORDER_DONE) continue;
        o->or_acked |= UINT64_C(1) << at;
        some = true;
    }
    if (some) move_on(c, o);
    return worst;
}

bool ps_order_has(ps_core *c, const ps_check_point_key *key, int64_t offset) {
    ps_order *o = order_of(c, key);
    int32_t at;
    return find_open(o, key->pop_ms, offset, &at) == PS_ORDER_DONE && !(o->or_acked >> at & 1);
}

int ps_core_order_change(ps_core *c, const ps_check_point_key *key, int64_t offset,
                         int64_t visible_ms) {
    PS_CORE_HELD(c);
    ps_order *o = order_of(c, key);
    int32_t at;
    int what = find_open(o, key->pop_ms, offset, &at);
    if (what != PS_ORDER_DONE) return what;
    o->or_all[at].om_visible_ms = visible_ms;
    o->or_changed = true;
    move_on(c, o);
    return what;
}

/* ---- forgetting ---- */

static bool is_named(const char *want, int32_t want_len, const char *name, int32_t len) {
    return want == NULL || (want_len == len && memcmp(want, name, (size_t)len) == 0);
}

void ps_core_order_forget(ps_core *c, const char *group, int32_t group_len, const char *topic,
                          int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    if (group != NULL && topic != NULL && queue_id >= 0) {
        const ps_check_point_key key = {.topic = topic, .group = group, .topic_len = topic_len,
                                        .group_len = group_len, .queue_id = queue_id};
        ps_order *one = order_of(c, &key);
        if (one != NULL) forget_order(c, one);
        return;
    }
    for (ps_order *o = l != NULL ? l->ol_all : NULL, *next; o != NULL; o = next) {
        const ps_pair *p = o->or_pair;
        next = o->or_next;
        if (is_named(group, group_len, p->pr_names, p->pr_group_len) &&
            is_named(topic, topic_len, p->pr_names + p->pr_group_len, p->pr_topic_len) &&
            (queue_id < 0 || queue_id == o->or_queue))
            forget_order(c, o);
    }
}

void ps_core_order_expire(ps_core *c, int64_t before_ms) {
    PS_CORE_HELD(c);
    ps_order_log *l = ps_order_log_of(c);
    for (ps_order *o = l != NULL ? l->ol_all : NULL, *next; o != NULL; o = next) {
        next = o->or_next;
        if (o->or_used_ms < before_ms) forget_order(c, o);
    }
}

void ps_order_reset(ps_core *c, ps_pair *pair, int32_t queue_id) {
    ps_order *o = find_order(pair, queue_id);
    if (o != NULL) forget_order(c, o);
}
