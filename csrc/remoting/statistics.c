/* Counters since the core was made: of topics, of pairs, in all. Upstream: BrokerStatsManager. */
#include "remoting/core.h"

int64_t ps_core_statistics(ps_core *c, ps_stat_row *out, int64_t room) {
    int64_t n = 0;
    for (uint32_t i = 0; i < c->co_topic_buckets; i++) {
        for (ps_topic_entry *t = c->co_topics[i]; t != NULL; t = t->te_next) {
            int64_t puts = t->te_puts, bytes = t->te_bytes;
            if (t->te_topic !=
                NULL) { /* a delayed message counts when it comes, too: as upstream */
                puts += atomic_load_explicit(&t->te_topic->tp_delivered, memory_order_relaxed);
                bytes +=
                    atomic_load_explicit(&t->te_topic->tp_delivered_bytes, memory_order_relaxed);
            }
            if (puts == 0) continue;
            if (n < room) out[n] = (ps_stat_row){t->te_name, NULL, t->te_len, 0, puts, bytes};
            n++;
        }
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

void ps_core_get_totals(ps_core *c, ps_core_totals *out) {
    *out = c->co_totals;
    out->held = c->co_heap_count;
}
