/* The table of check points: by key, and by due time in a heap for each revive queue. See
 * popcheckpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pop/pop.h"
#include "core/lock.h"
#include "tables/tables.h"

static int no_memory(ps_error *e) {
    return ps_no_memory(e, NULL, "no memory for a check point");
}

ps_pop_state *ps_pop_state_of(ps_core *c) {
    if (c->co_pop != NULL) return c->co_pop;
    c->co_pop = calloc(1, sizeof *c->co_pop);
    if (c->co_pop != NULL) c->co_pop->po_order.ol_fd = -1;
    return c->co_pop;
}

ps_order_log *ps_order_log_of(ps_core *c) {
    ps_pop_state *x = ps_pop_state_of(c);
    return x != NULL ? &x->po_order : NULL;
}

void ps_pop_state_free(ps_pop_state *x) {
    if (x == NULL) return;
    for (int32_t i = 0; i < x->po_heap_count; i++) {
        due_heap *h = &x->po_heaps[i];
        for (int32_t k = 0; k < h->dh_count; k++) free(h->dh_all[k]);
        free(h->dh_all);
    }
    free(x->po_heaps);
    ps_chains_free(&x->po_table, false);
    ps_chains_free(&x->po_factors, true);
    free(x);
}

/* ---- by due time ---- */

static bool is_due_sooner(const ps_check_point *a, const ps_check_point *b) {
    return a->pp_due_ms != b->pp_due_ms ? a->pp_due_ms < b->pp_due_ms : a->pp_turn < b->pp_turn;
}

static void place_in_heap(due_heap *h, ps_check_point *p, int32_t at) {
    h->dh_all[at] = p;
    p->pp_at = at;
}

static void sift_up(due_heap *h, ps_check_point *p, int32_t at) {
    for (; at > 0 && is_due_sooner(p, h->dh_all[(at - 1) / 2]); at = (at - 1) / 2)
        place_in_heap(h, h->dh_all[(at - 1) / 2], at);
    place_in_heap(h, p, at);
}

static void sift_down(due_heap *h, ps_check_point *p, int32_t at) {
    for (int32_t child; (child = 2 * at + 1) < h->dh_count; at = child) {
        if (child + 1 < h->dh_count && is_due_sooner(h->dh_all[child + 1], h->dh_all[child]))
            child++;
        if (!is_due_sooner(h->dh_all[child], p)) break;
        place_in_heap(h, h->dh_all[child], at);
    }
    place_in_heap(h, p, at);
}

static due_heap *find_heap(const ps_pop_state *x, int32_t revive_queue) {
    for (int32_t i = 0; i < x->po_heap_count; i++)
        if (x->po_heaps[i].dh_queue == revive_queue) return &x->po_heaps[i];
    return NULL;
}

/* With room for one more; NULL: no memory. */
static due_heap *heap_of(ps_pop_state *x, int32_t revive_queue) {
    due_heap *h = find_heap(x, revive_queue);
    if (h == NULL) {
        due_heap *heaps = realloc(x->po_heaps, (size_t)(x->po_heap_count + 1) * sizeof *heaps);
        if (heaps == NULL) return NULL;
        x->po_heaps = heaps;
        h = &heaps[x->po_heap_count++];
        *h = (due_heap){.dh_queue = revive_queue};
    }
    return PS_GROW(h->dh_all, h->dh_room, h->dh_count + 1, 64) ? h : NULL;
}

static void take_from_heap(due_heap *h, ps_check_point *p) {
    int32_t at = p->pp_at;
    ps_check_point *last = h->dh_all[--h->dh_count];
    if (last == p) return;
    if (at > 0 && is_due_sooner(last, h->dh_all[(at - 1) / 2]))
        sift_up(h, last, at);
    else
        sift_down(h, last, at);
}

ps_check_point *ps_check_point_first(const ps_core *c) {
    ps_check_point *first = NULL;
    const ps_pop_state *x = c->co_pop;
    for (int32_t i = 0; x != NULL && i < x->po_heap_count; i++) {
        const due_heap *h = &x->po_heaps[i];
        if (h->dh_count > 0 && (first == NULL || is_due_sooner(h->dh_all[0], first)))
            first = h->dh_all[0];
    }
    return first;
}

/* ---- by key ---- */

static uint32_t hash_of(const ps_pair *pair, int32_t queue_id, int64_t start, int64_t pop_ms) {
    uint64_t h = pair->pr_chain.hash;
    h = (h ^ (uint64_t)(uint32_t)queue_id) * 0x9E3779B97F4A7C15u;
    h = (h ^ (uint64_t)start) * 0x9E3779B97F4A7C15u;
    h = (h ^ (h >> 32) ^ (uint64_t)pop_ms) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static ps_check_point *find_check_point(const ps_core *c, const ps_pair *pair, int32_t queue_id,
                                        int64_t start, int64_t pop_ms) {
    const ps_pop_state *x = c->co_pop;
    if (x == NULL || pair == NULL) return NULL;
    ps_check_point *p = ps_chains_first(&x->po_table, hash_of(pair, queue_id, start, pop_ms));
    while (p != NULL && (p->pp_pair != pair || p->pp_queue != queue_id || p->pp_start != start ||
                         p->pp_pop_ms != pop_ms))
        p = ps_chains_next(p);
    return p;
}

ps_check_point *ps_check_point_of(ps_core *c, const ps_check_point_key *k) {
    return find_check_point(c,
                            ps_core_find_pair(c, (const uint8_t *)k->group, k->group_len,
                                              (const uint8_t *)k->topic, k->topic_len),
                            k->queue_id, k->start, k->pop_ms);
}

static int check_row(const ps_check_point_row *r, ps_error *e) {
    bool good = r->count > 0 && r->count <= PS_CHECK_POINT_MAX && r->key.start >= 0 &&
                r->key.pop_ms >= 0 && r->invisible_ms >= 0 && r->key.queue_id >= 0 &&
                r->revive_queue >= 0;
    for (int32_t i = 0; good && i < r->count; i++)
        good = r->offsets[i] >= (i > 0 ? r->offsets[i - 1] + 1 : r->key.start) &&
               r->offsets[i] - r->key.start <= INT32_MAX;
    return good ? 0
                : ps_fail(e, PS_E_ARGUMENT, 0, r->key.start, NULL,
                          "the offsets or numbers of a check point are out of their range");
}

int ps_core_check_point_add(ps_core *c, const ps_check_point_row *r, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pop_state *x = ps_pop_state_of(c);
    ps_pair *pair;
    int code = check_row(r, e);
    if (code < 0) return code;
    if (ps_check_point_of(c, &r->key) != NULL) return 1;
    due_heap *h = x != NULL ? heap_of(x, r->revive_queue) : NULL;
    if (h == NULL || !ps_chains_reserve(&x->po_table)) return no_memory(e);
    ps_check_point *p = malloc(sizeof *p + (size_t)r->count * sizeof p->pp_distances[0]);
    if (p == NULL) return no_memory(e);
    code = ps_pair_hold(c, r->key.group, r->key.group_len, r->key.topic, r->key.topic_len,
                        r->key.queue_id, &pair, e);
    if (code < 0) {
        free(p);
        return code;
    }
    *p = (ps_check_point){.pp_pair = pair,
                          .pp_queue = r->key.queue_id,
                          .pp_revive = r->revive_queue,
                          .pp_count = r->count,
                          .pp_acked = r->acked & (uint32_t)((1ull << r->count) - 1),
                          .pp_start = r->key.start,
                          .pp_pop_ms = r->key.pop_ms,
                          .pp_invisible_ms = r->invisible_ms,
                          .pp_due_ms = r->due_ms,
                          .pp_turn = x->po_turn++};
    for (int32_t i = 0; i < r->count; i++)
        p->pp_distances[i] = (int32_t)(r->offsets[i] - r->key.start);
    ps_chains_add(&x->po_table, p, hash_of(pair, p->pp_queue, p->pp_start, p->pp_pop_ms));
    sift_up(h, p, h->dh_count++);
    ps_pair_mark(pair, p->pp_queue, false)->mk_in_flight += ps_check_point_open(p);
    return 0;
}

static void forget_check_point(ps_core *c, ps_check_point *p) {
    ps_pop_state *x = c->co_pop;
    due_heap *h = find_heap(x, p->pp_revive);
    ps_chains_remove(&x->po_table, p);
    h->dh_late -= p->pp_late;
    take_from_heap(h, p);
    ps_pair_let_go(c, p->pp_pair);
    free(p);
}

/* ---- acknowledging ---- */

uint32_t ps_check_point_bits(const ps_check_point *p, const int64_t *offsets, int32_t count) {
    uint32_t bits = 0;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < p->pp_count; k++)
            if (p->pp_start + p->pp_distances[k] == offsets[i]) bits |= 1u << k;
    return bits & ~p->pp_acked;
}

void ps_check_point_close(ps_core *c, ps_check_point *p, uint32_t bits) {
    p->pp_acked |= bits;
    ps_pair_mark(p->pp_pair, p->pp_queue, false)->mk_in_flight -= __builtin_popcount(bits);
    if (ps_check_point_open(p) == 0) forget_check_point(c, p);
}

uint32_t ps_core_check_point_end(ps_core *c, const ps_check_point_key *key, const int64_t *offsets,
                                 int32_t count) {
    PS_CORE_HELD(c);
    ps_check_point *p = ps_check_point_of(c, key);
    uint32_t bits = p != NULL ? ps_check_point_bits(p, offsets, count) : 0;
    if (bits != 0) ps_check_point_close(c, p, bits);
    return bits;
}

/* ---- looking ---- */

void ps_check_point_row_of(const ps_check_point *p, ps_check_point_row *out) {
    const ps_pair *pair = p->pp_pair;
    *out = (ps_check_point_row){.key = {.topic = pair->pr_names + pair->pr_group_len,
                                        .group = pair->pr_names,
                                        .topic_len = pair->pr_topic_len,
                                        .group_len = pair->pr_group_len,
                                        .queue_id = p->pp_queue,
                                        .start = p->pp_start,
                                        .pop_ms = p->pp_pop_ms},
                                .revive_queue = p->pp_revive,
                                .count = p->pp_count,
                                .acked = p->pp_acked,
                                .invisible_ms = p->pp_invisible_ms,
                                .due_ms = p->pp_due_ms};
    for (int32_t i = 0; i < p->pp_count; i++)
        out->offsets[i] = p->pp_start + p->pp_distances[i];
}

int ps_core_check_point_find(ps_core *c, const ps_check_point_key *key, ps_check_point_row *out) {
    PS_CORE_HELD(c);
    const ps_check_point *p = ps_check_point_of(c, key);
    if (p != NULL) ps_check_point_row_of(p, out);
    return p != NULL;
}

int ps_core_check_point_postpone(ps_core *c, const ps_check_point_key *key, int64_t due_ms) {
    PS_CORE_HELD(c);
    ps_check_point *p = ps_check_point_of(c, key);
    if (p == NULL) return 0;
    due_heap *h = find_heap(c->co_pop, p->pp_revive);
    take_from_heap(h, p);
    h->dh_late += !p->pp_late;
    p->pp_late = true;
    p->pp_due_ms = due_ms;
    p->pp_turn = c->co_pop->po_turn++;
    sift_up(h, p, h->dh_count++);
    return 1;
}

int ps_core_check_point_next(ps_core *c, ps_check_point_row *out) {
    PS_CORE_HELD(c);
    const ps_check_point *p = ps_check_point_first(c);
    if (p != NULL) ps_check_point_row_of(p, out);
    return p != NULL;
}

int64_t ps_core_check_point_due(const ps_core *c) {
    PS_CORE_HELD((ps_core *)c);
    const ps_check_point *p = ps_check_point_first(c);
    return p != NULL ? p->pp_due_ms : -1;
}

int ps_core_check_point_stored(const ps_core *c, int32_t revive_queue, int64_t now_ms) {
    PS_CORE_HELD((ps_core *)c);
    const due_heap *h = c->co_pop != NULL ? find_heap(c->co_pop, revive_queue) : NULL;
    if (h == NULL || h->dh_count == 0) return 0;
    const ps_check_point *p = h->dh_all[0];
    return h->dh_late > 0 || p->pp_pop_ms + p->pp_invisible_ms - PS_POP_LEAD_MS <= now_ms;
}

int64_t ps_core_check_point_count(const ps_core *c) {
    PS_CORE_HELD((ps_core *)c);
    return c->co_pop != NULL ? c->co_pop->po_table.count : 0;
}

int64_t ps_core_check_point_in_flight(ps_core *c, const char *group, int32_t group_len,
                                      const char *topic, int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    const ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    int64_t n = 0;
    for (int32_t i = 0; p != NULL && i < p->pr_mark_count; i++)
        if (queue_id < 0 || p->pr_marks[i].mk_queue == queue_id) n += p->pr_marks[i].mk_in_flight;
    return n;
}

int64_t ps_core_check_point_list(ps_core *c, int64_t *at, ps_check_point_row *out, int64_t room) {
    PS_CORE_HELD(c);
    const ps_pop_state *x = c->co_pop;
    int64_t n = 0, skip = *at;
    for (int32_t i = 0; x != NULL && i < x->po_heap_count && n < room; i++) {
        const due_heap *h = &x->po_heaps[i];
        for (int64_t k = skip < h->dh_count ? skip : h->dh_count; k < h->dh_count && n < room; k++)
            ps_check_point_row_of(h->dh_all[k], &out[n++]);
        skip = skip > h->dh_count ? skip - h->dh_count : 0;
    }
    *at = n < room ? -1 : *at + n;
    return n;
}
