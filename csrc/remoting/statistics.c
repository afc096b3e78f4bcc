/* Counters since the core was made: of topics, of pairs, in all. Upstream: BrokerStatsManager. */
#include "remoting/core.h"
#include "remoting/guard.h"

static void put_into(const ps_topic_entry *t, int64_t *puts, int64_t *bytes) {
    *puts = t->te_puts;
    *bytes = t->te_bytes;
    if (t->te_topic == NULL) return; /* a delayed message counts when it comes, too: as upstream */
    *puts += atomic_load_explicit(&t->te_topic->tp_delivered, memory_order_relaxed);
    *bytes += atomic_load_explicit(&t->te_topic->tp_delivered_bytes, memory_order_relaxed);
}

int64_t ps_core_statistics(ps_core *c, ps_stat_row *out, int64_t room) {
    PS_CORE_HELD(c);
    int64_t n = 0;
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_topics, t)) != NULL;) {
        int64_t puts, bytes;
        put_into(t, &puts, &bytes);
        if (puts == 0) continue;
        if (n < room) out[n] = (ps_stat_row){t->te_name, NULL, t->te_len, 0, puts, bytes};
        n++;
    }
    for (ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) {
        if (p->pr_gets == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){p->pr_names + p->pr_group_len,
                                   p->pr_names,
                                   p->pr_topic_len,
                                   p->pr_group_len,
                                   p->pr_gets,
                                   p->pr_bytes};
        n++;
    }
    return n;
}

static void add_sample(ps_core *c, int64_t *slot, int64_t messages, int64_t bytes, int64_t *out,
                       int64_t room) {
    if (messages == 0) return;
    if (*slot == 0) *slot = ++c->co_slots;
    if (2 * *slot > room) return;
    out[2 * *slot - 2] = messages;
    out[2 * *slot - 1] = bytes;
}

int64_t ps_core_sample(ps_core *c, int64_t *out, int64_t room, int64_t sums[2]) {
    PS_CORE_HELD(c);
    sums[0] = sums[1] = 0;
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_topics, t)) != NULL;) {
        int64_t puts, bytes;
        put_into(t, &puts, &bytes);
        sums[0] += puts;
        add_sample(c, &t->te_slot, puts, bytes, out, room);
    }
    for (ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) {
        sums[1] += p->pr_gets;
        add_sample(c, &p->pr_slot, p->pr_gets, p->pr_bytes, out, room);
    }
    return 2 * c->co_slots;
}

void ps_core_counter(ps_core *c, const char *group, int32_t group_len, const char *topic,
                     int32_t topic_len, ps_counter *out) {
    PS_CORE_HELD(c);
    const uint8_t *name = (const uint8_t *)topic;
    *out = (ps_counter){.slot = -1};
    if (group == NULL) {
        const ps_topic_entry *t = ps_core_find_topic(c, name, topic_len);
        if (t == NULL) return;
        put_into(t, &out->messages, &out->bytes);
        out->slot = t->te_slot - 1;
    } else {
        const ps_pair *p = ps_core_find_pair(c, (const uint8_t *)group, group_len, name, topic_len);
        if (p != NULL) *out = (ps_counter){p->pr_slot - 1, p->pr_gets, p->pr_bytes};
    }
}

void ps_core_get_totals(ps_core *c, ps_core_totals *out) {
    PS_CORE_HELD(c);
    *out = c->co_totals;
    out->held = c->co_heap_count;
}
