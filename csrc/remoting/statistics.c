/* Counters since the core was made: of topics, of pairs, in all. Upstream: BrokerStatsManager. */
#include <string.h>

#include "core/core.h"
#include "core/lock.h"
#include "tables/tables.h"

int64_t ps_core_statistics(ps_core *c, ps_stat_row *out, int64_t room) {
    PS_CORE_HELD(c);
    int64_t n = 0;
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        ps_count put = ps_topic_put(t);
        if (put.messages == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){t->te_name, NULL, t->te_len, 0, put.messages, put.bytes};
        n++;
    }
    for (ps_pair *p = c->co_tables.tc_all_pairs; p != NULL; p = p->pr_all) {
        ps_count got = ps_pair_got(p);
        if (got.messages == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){p->pr_names + p->pr_group_len,
                                   p->pr_names,
                                   p->pr_topic_len,
                                   p->pr_group_len,
                                   got.messages,
                                   got.bytes};
        n++;
    }
    return n;
}

static void give_slot(ps_core_counters *c, ps_slot *slot) {
    ps_buffer *free_slots = &c->cc_free_slots;
    if (free_slots->len > 0) {
        free_slots->len -= (int64_t)sizeof slot->slot;
        memcpy(&slot->slot, free_slots->data + free_slots->len, sizeof slot->slot);
    } else {
        slot->slot = ++c->cc_slots;
    }
    slot->since = c->cc_samples;
}

static void add_sample(ps_core *c, ps_slot *slot, ps_count now, int64_t *out, int64_t room) {
    if (now.messages == 0 || out == NULL) return;
    if (slot->slot == 0) give_slot(&c->co_counters, slot);
    if (2 * slot->slot > room) return;
    out[2 * slot->slot - 2] = now.messages;
    out[2 * slot->slot - 1] = now.bytes;
}

int64_t ps_core_sample(ps_core *c, int64_t *out, int64_t room, ps_sample *about) {
    PS_CORE_HELD(c);
    ps_core_counters *n = &c->co_counters;
    n->cc_samples += out != NULL;
    *about = (ps_sample){n->cc_samples, n->cc_gone_puts.messages, n->cc_gone_puts.bytes,
                         n->cc_gone_gets.messages, n->cc_gone_gets.bytes};
    for (ps_topic_entry *t = NULL; (t = ps_chains_each(&c->co_tables.tc_topics, t)) != NULL;) {
        ps_count put = ps_topic_put(t);
        about->puts += put.messages;
        about->put_bytes += put.bytes;
        add_sample(c, &t->te_slot, put, out, room);
    }
    for (ps_pair *p = c->co_tables.tc_all_pairs; p != NULL; p = p->pr_all) {
        ps_count got = ps_pair_got(p);
        about->gets += got.messages;
        about->get_bytes += got.bytes;
        add_sample(c, &p->pr_slot, got, out, room);
    }
    return 2 * n->cc_slots;
}

void ps_core_counter(ps_core *c, const char *group, int32_t group_len, const char *topic,
                     int32_t topic_len, ps_counter *out) {
    PS_CORE_HELD(c);
    const uint8_t *name = (const uint8_t *)topic;
    const ps_topic_entry *t = group == NULL ? ps_core_find_topic(c, name, topic_len) : NULL;
    const ps_pair *p = group != NULL ? ps_core_find_pair(c, (const uint8_t *)group, group_len,
                                                         name, topic_len)
                                     : NULL;
    ps_slot slot = t != NULL ? t->te_slot : p != NULL ? p->pr_slot : (ps_slot){0};
    ps_count n = t != NULL ? ps_topic_put(t) : p != NULL ? ps_pair_got(p) : (ps_count){0};
    *out = (ps_counter){slot.slot - 1, slot.since, n.messages, n.bytes};
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
        for (int32_t k = 0; k < call->ca_rpcs.rp_count; k++, total++)
            if (total < room) out[total] = call->ca_rpcs.rp_rows[k];
    }
    return total;
}
