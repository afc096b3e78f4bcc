/* Counters since the core was made: of topics, of pairs, in all. Upstream: BrokerStatsManager. */
#include <string.h>

#include "core/core.h"
#include "core/lock.h"
#include "tables/tables.h"

/* What a topic got; a delayed message counts when it comes, too: as upstream. */
static ps_count puts_of(const ps_topic_entry *t) {
    ps_count n = t->te_put;
    n.messages += atomic_load_explicit(&t->te_topic->tp_delivered, memory_order_relaxed);
    n.bytes += atomic_load_explicit(&t->te_topic->tp_delivered_bytes, memory_order_relaxed);
    return n;
}

int64_t ps_core_statistics(ps_core *c, ps_stat_row *out, int64_t room) {
    PS_CORE_HELD(c);
    int64_t n = 0;
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        ps_count put = puts_of(t);
        if (put.messages == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){t->te_name, NULL, t->te_len, 0, put.messages, put.bytes};
        n++;
    }
    for (ps_pair *p = c->co_tables.tc_all_pairs; p != NULL; p = p->pr_all) {
        if (p->pr_got.messages == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){p->pr_names + p->pr_group_len,
                                   p->pr_names,
                                   p->pr_topic_len,
                                   p->pr_group_len,
                                   p->pr_got.messages,
                                   p->pr_got.bytes};
        n++;
    }
    return n;
}

static void give_slot(ps_core_counters *c, ps_count *count) {
    ps_buffer *free_slots = &c->cc_free_slots;
    if (free_slots->len > 0) {
        free_slots->len -= (int64_t)sizeof count->slot;
        memcpy(&count->slot, free_slots->data + free_slots->len, sizeof count->slot);
    } else {
        count->slot = ++c->cc_slots;
    }
    count->since = c->cc_samples;
}

/* now: with what the counter itself does not have. */
static void add_sample(ps_core *c, ps_count *count, const ps_count *now, int64_t *out,
                       int64_t room) {
    if (now->messages == 0) return;
    if (count->slot == 0) give_slot(&c->co_counters, count);
    if (2 * count->slot > room) return;
    out[2 * count->slot - 2] = now->messages;
    out[2 * count->slot - 1] = now->bytes;
}

int64_t ps_core_sample(ps_core *c, int64_t *out, int64_t room, ps_sample *about) {
    PS_CORE_HELD(c);
    ps_core_counters *counted = &c->co_counters;
    *about = (ps_sample){++counted->cc_samples, counted->cc_gone_puts, counted->cc_gone_gets};
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        ps_count put = puts_of(t);
        about->puts += put.messages;
        add_sample(c, &t->te_put, &put, out, room);
    }
    for (ps_pair *p = c->co_tables.tc_all_pairs; p != NULL; p = p->pr_all) {
        about->gets += p->pr_got.messages;
        add_sample(c, &p->pr_got, &p->pr_got, out, room);
    }
    return 2 * c->co_counters.cc_slots;
}

void ps_core_counter(ps_core *c, const char *group, int32_t group_len, const char *topic,
                     int32_t topic_len, ps_counter *out) {
    PS_CORE_HELD(c);
    const uint8_t *name = (const uint8_t *)topic;
    ps_count found = {0};
    if (group == NULL) {
        const ps_topic_entry *t = ps_core_find_topic(c, name, topic_len);
        if (t != NULL) found = puts_of(t);
    } else {
        const ps_pair *p = ps_core_find_pair(c, (const uint8_t *)group, group_len, name, topic_len);
        if (p != NULL) found = p->pr_got;
    }
    *out = (ps_counter){found.slot - 1, found.since, found.messages, found.bytes};
}

void ps_core_get_totals(ps_core *c, ps_core_totals *out) {
    PS_CORE_HELD(c);
    *out = c->co_counters.cc_totals;
    out->held = c->co_parking.pg_pulls;
}

void ps_core_get_times(ps_core *c, ps_core_times *out) {
    PS_CORE_HELD(c);
    *out = c->co_counters.cc_times;
}

int32_t ps_core_rpc_rows(ps_core *c, ps_rpc_row *out, int32_t room) {
    PS_CORE_HELD(c);
    int32_t total = 0;
    for (int32_t i = 0; i < c->co_lock.lo_callers; i++) {
        const ps_call *call = c->co_lock.lo_calls[i];
        if (call == NULL) continue;
        for (int32_t k = 0; k < call->ca_rpc_count; k++, total++)
            if (total < room) out[total] = call->ca_rpcs[k];
    }
    return total;
}
