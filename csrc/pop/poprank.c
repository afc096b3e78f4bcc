/* Pops of topics with priorities: whether a pop goes by them, and in which order it looks at the
 * queues, which are the levels. docs/internals/pop.md#priorities; upstream PopMessageProcessor. */
#include "pop/pop.h"

#include <stdlib.h>
#include <string.h>

#include "format/messagetype.h"
#include "core/lock.h"
#include "tables/tables.h"

#define ALWAYS 100 /* percent: of groups that say nothing */

/* ---- groups that take priorities less often ---- */

typedef struct factor { /* of a group */
    ps_chain fa_chain;
    int32_t fa_percent, fa_len;
    char fa_group[];
} factor;

static factor *find_factor(const ps_pop_state *x, const char *group, int32_t len) {
    factor *f = ps_chains_first(&x->po_factors, ps_hash_of(group, len));
    while (f != NULL && (f->fa_len != len || memcmp(f->fa_group, group, (size_t)len) != 0))
        f = ps_chains_next(f);
    return f;
}

int ps_core_pop_factor(ps_core *c, const char *group, int32_t len, int32_t percent, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pop_state *x = ps_pop_state_of(c);
    c->co_tables.tc_rules++; /* whatever of the group has changed */
    factor *f = x != NULL ? find_factor(x, group, len) : NULL;
    if (f == NULL && percent == ALWAYS) return 0; /* whatever the name */
    if (len < 1 || len > PS_TOPIC_MAX || percent < 0 || percent > ALWAYS)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "a group of %d bytes or a priority factor of %d is out of range", len,
                       percent);
    if (f != NULL && percent == ALWAYS) {
        ps_chains_remove(&x->po_factors, f);
        free(f);
        return 0;
    }
    if (f == NULL) {
        f = x != NULL && ps_chains_reserve(&x->po_factors) ? malloc(sizeof *f + (size_t)len) : NULL;
        if (f == NULL) return ps_no_memory(e, NULL, "no memory for a priority factor");
        f->fa_len = len;
        memcpy(f->fa_group, group, (size_t)len);
        ps_chains_add(&x->po_factors, f, ps_hash_of(group, len));
    }
    f->fa_percent = percent;
    return 0;
}

bool ps_pop_is_ranked(const ps_core *c, const ps_topic_entry *t, const ps_pop_ask *ask,
                      int32_t luck) {
    if (!(t->te_flags & PS_TOPIC_PRIORITY) || ask->ordered) return false;
    const factor *f = find_factor(c->co_pop, ask->group, ask->group_len);
    return f == NULL || luck < f->fa_percent;
}

/* ---- the order of the queues ---- */

/* The more urgent of two has the greater rank; of equal ranks the nearer queue goes first. */
static int more_urgent(const void *a, const void *b) {
    const ps_pop_rank *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return x->queue < y->queue ? -1 : x->queue > y->queue;
}

/* Gives the store time and the priority (-1: none) of the first message of a queue that the group
 * has not been handed. False: there is none, or it cannot be read. */
static bool find_head(ps_core *c, const ps_topic_entry *t, ps_pair *pair, int32_t queue,
                      int64_t *store_ms, int32_t *priority) {
    const ps_mark *m = pair != NULL ? ps_pair_mark(pair, queue, false) : NULL;
    const ps_read_options one = {.max_messages = 1};
    int64_t at = m == NULL ? -1 : m->mk_reset >= 0 ? m->mk_reset : m->mk_offset, low, high;
    ps_error none = {0};
    ps_batch_info info;
    ps_property p;
    if (ps_queue_span(c->co_store, t->te_topic, queue, &low, &high) < 0) return false;
    if (at < low) at = low;
    ps_batch *b = at < high ? ps_read(c->co_store, t->te_topic, queue, at, &one, &none) : NULL;
    if (b == NULL) return false;
    ps_batch_get(b, &info);
    bool found = info.count > 0;
    if (found) {
        const ps_view *v = &info.views[0];
        *store_ms = v->store_timestamp;
        const uint8_t *said = info.segments[v->segment].map + v->start + v->properties_start;
        *priority = ps_property_find(said, v->properties_len, PS_PROPERTY_PRIORITY,
                                     (int32_t)sizeof PS_PROPERTY_PRIORITY - 1, &p)
                        ? ps_priority_of(p.value, p.value_len)
                        : -1;
    }
    ps_batch_free(b);
    return found;
}

/* A message is one level more urgent for each step of its age. */
static int64_t steps_of_age(const ps_pop_rules *rules, int64_t now_ms, int64_t store_ms) {
    return rules->age_ms > 0 && now_ms > store_ms ? (now_ms - store_ms) / rules->age_ms : 0;
}

ps_pop_rank *ps_pop_ranks(ps_core *c, const ps_topic_entry *t, ps_pair *pair, int64_t now_ms) {
    const ps_pop_rules *rules = &c->co_pop->po_rules;
    ps_buffer *buffer = &ps_mine(c)->ca_pop.cp_ranks;
    int32_t queues = t->te_read_queues, priority;
    buffer->len = 0;
    ps_pop_rank *ranks = (ps_pop_rank *)ps_buffer_room(buffer, (int64_t)sizeof *ranks * queues);
    for (int32_t i = 0; ranks != NULL && i < queues; i++) {
        int64_t store_ms;
        ranks[i] = (ps_pop_rank){.rank = rules->lowest_first ? queues - 1 - i : i, .queue = i};
        if (rules->age_ms > 0 && find_head(c, t, pair, i, &store_ms, &priority))
            ranks[i].rank += steps_of_age(rules, now_ms, store_ms);
    }
    if (ranks != NULL) qsort(ranks, (size_t)queues, sizeof *ranks, more_urgent);
    return ranks;
}

int32_t ps_pop_retry_place(ps_core *c, const ps_topic_entry *of, const ps_topic_entry *retry,
                           ps_pair *pair, const ps_pop_rank *ranks, int64_t now_ms) {
    const ps_pop_rules *rules = &c->co_pop->po_rules;
    int32_t queues = of->te_read_queues, priority, place = 0;
    int64_t store_ms;
    if (!find_head(c, retry, pair, 0, &store_ms, &priority)) return queues;
    int32_t level = priority < 0 ? 0 : priority < queues ? priority : queues - 1;
    int64_t rank =
        (rules->lowest_first ? queues - 1 - level : level) + steps_of_age(rules, now_ms, store_ms);
    while (place < queues && ranks[place].rank > rank) place++;
    return place;
}
