/* See metrics.h. A request costs a comparison and an increment here: its row is that of the request
 * before it, as a rule, and one look at the clock times all requests of a call. */
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

/* ---- messages ---- */

/* The counters of a kind; NULL: no memory. Whoever makes them first wins. */
static ps_inflow *inflow_of(ps_topic_entry *t, int32_t kind) {
    ps_inflow *found = __atomic_load_n(&t->te_in[kind], __ATOMIC_ACQUIRE);
    ps_inflow *made = found == NULL ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) return found;
    if (__atomic_compare_exchange_n(&t->te_in[kind], &found, made, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return made;
    free(made);
    return found;
}

void ps_count_inflow(ps_topic_entry *t, int32_t kind, const ps_inflow *more) {
    ps_inflow *in = inflow_of(t, kind);
    if (in != NULL) ps_inflow_count(in, more);
}

/* NULL: nothing. */
static void add_inflow(ps_count *to, const ps_inflow *in) {
    if (in == NULL) return;
    to->messages += __atomic_load_n(&in->messages, __ATOMIC_RELAXED);
    to->bytes += __atomic_load_n(&in->bytes, __ATOMIC_RELAXED);
}

ps_count ps_topic_put(const ps_topic_entry *t) {
    ps_count put = {0};
    for (int i = 0; i < PS_KINDS; i++) add_inflow(&put, t->te_in[i]);
    for (int i = 0; i < PS_DELAYS; i++) add_inflow(&put, &t->te_topic->tp_delivered[i]);
    return put;
}

ps_count ps_pair_got(const ps_pair *p) {
    ps_count got = {0};
    for (int i = 0; i < PS_WAYS; i++) {
        got.messages += p->pr_out[i].messages;
        got.bytes += p->pr_out[i].bytes;
    }
    return got;
}

void ps_inflows_free(ps_topic_entry *t) {
    for (int i = 0; i < PS_KINDS; i++) {
        free(t->te_in[i]);
        t->te_in[i] = NULL;
    }
}

static void end_count(ps_core *c, ps_slot *slot, ps_count last, ps_count *gone) {
    gone->messages += last.messages;
    gone->bytes += last.bytes;
    /* Without memory, nobody has the slot again. */
    if (slot->slot > 0)
        ps_buffer_add(&c->co_counters.cc_free_slots, &slot->slot, sizeof slot->slot);
    *slot = (ps_slot){0};
}

void ps_topic_count_end(ps_core *c, ps_topic_entry *t) {
    end_count(c, &t->te_slot, ps_topic_put(t), &c->co_counters.cc_gone_puts);
    for (int i = 0; i < PS_DELAYS; i++) ps_inflow_reset(&t->te_topic->tp_delivered[i]);
    ps_inflows_free(t);
}

void ps_pair_count_end(ps_core *c, ps_pair *p) {
    end_count(c, &p->pr_slot, ps_pair_got(p), &c->co_counters.cc_gone_gets);
    memset(p->pr_out, 0, sizeof p->pr_out);
    p->pr_points = 0;
}

/* ---- requests: each caller has rows of his own ---- */

static ps_rpc_row *row_of(ps_call *call, int32_t request, int32_t response, int32_t how) {
    for (int32_t i = call->ca_rpcs.rp_last, n = 0; n < call->ca_rpcs.rp_count; n++) {
        ps_rpc_row *r = &call->ca_rpcs.rp_rows[i];
        if (r->request == request && r->response == response && r->how == how) {
            call->ca_rpcs.rp_last = i;
            return r;
        }
        i = i + 1 < call->ca_rpcs.rp_count ? i + 1 : 0;
    }
    if (call->ca_rpcs.rp_count == PS_RPC_ROWS) return NULL;
    ps_rpc_row *made = &call->ca_rpcs.rp_rows[call->ca_rpcs.rp_last = call->ca_rpcs.rp_count++];
    *made = (ps_rpc_row){.request = request, .response = response, .how = how};
    return made;
}

static void add_time(ps_rpc_row *r, int64_t us, int64_t count) {
    static const int64_t bounds_ms[] = {1, 3, 5, 7, 10, 100, 1000, 2000, 3000};
    size_t i = 0, last = sizeof bounds_ms / sizeof *bounds_ms;
    while (i < last && us > bounds_ms[i] * 1000) i++;
    r->sum_us += us * count;
    r->buckets[i] += count;
}

void ps_rpc_answered(ps_core *c, int32_t request, int32_t response, int32_t how) {
    ps_call *call = ps_mine(c);
    ps_rpc_row *r = row_of(call, request, response, how);
    if (r == NULL) return;
    r->untimed++;
    call->ca_rpcs.rp_untimed = true;
}

void ps_rpc_waited(ps_core *c, int32_t request, int32_t response, int32_t how, int64_t began_ns) {
    ps_rpc_row *r = row_of(ps_mine(c), request, response, how);
    if (r != NULL) add_time(r, (ps_monotonic_ns() - began_ns) / 1000, 1);
}

void ps_rpc_time(ps_call *call, int64_t now_ns) {
    for (int32_t i = 0; i < call->ca_rpcs.rp_count; i++) {
        ps_rpc_row *r = &call->ca_rpcs.rp_rows[i];
        if (r->untimed == 0) continue;
        add_time(r, (now_ns - call->ca_work.wk_began_ns) / 1000, r->untimed);
        r->untimed = 0;
    }
    call->ca_rpcs.rp_untimed = false;
}
