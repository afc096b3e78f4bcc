/* How long sends and pulls take, for tools: a clock is read before and after what one read of a
 * connection brought, and each message that was put in between took no longer than that; one that
 * waits for the disk takes until then. Upstream: StoreStatsService. */
#define _GNU_SOURCE
#include <string.h>

#include "core/core.h"

#define EXACT_MS 1000 /* up to here a place for each ms, then one for each s */

static int64_t place_of(int64_t ms) {
    int64_t last = PS_TIMES - 1, place = ms <= EXACT_MS ? ms : EXACT_MS + ms / 1000;
    return place < last ? place : last;
}

/* Several threads may raise it at once. */
static void raise_to(int64_t *most, int64_t value) {
    int64_t now = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (value > now && !__atomic_compare_exchange_n(most, &now, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED));
}

static void add_puts(ps_core *c, int64_t took_ns, int64_t count) {
    int64_t ms = took_ns / 1000000;
    __atomic_fetch_add(&c->co_counters.cc_times.puts[place_of(ms)], count, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->co_counters.cc_times.put_ns, took_ns * count, __ATOMIC_RELAXED);
    raise_to(&c->co_counters.cc_times.put_max_ms, ms);
}

void ps_times_put(ps_core *c, int64_t began_ns, int64_t count) {
    add_puts(c, ps_monotonic_ns() - began_ns, count);
}

void ps_times_begin(ps_core *c) {
    ps_call *call = ps_mine(c);
    call->ca_work.wk_began_ns = ps_monotonic_ns();
    call->ca_work.wk_puts = call->ca_work.wk_looked = 0;
}

void ps_times_end(ps_core *c) {
    ps_call *call = ps_mine(c);
    int64_t puts = call->ca_work.wk_puts - call->ca_work.wk_puts_waiting;
    call->ca_work.wk_puts_waiting = 0;
    if (puts <= 0 && call->ca_work.wk_looked == 0 && !call->ca_rpcs.rp_untimed) return;
    int64_t now = ps_monotonic_ns(), took = now - call->ca_work.wk_began_ns;
    if (puts > 0) add_puts(c, took, puts);
    if (call->ca_work.wk_looked != 0) raise_to(&c->co_counters.cc_times.get_max_ms, took / 1000000);
    if (call->ca_rpcs.rp_untimed) ps_rpc_time(call, now);
}

/* ---- how many ---- */

void ps_count_put(ps_core *c, ps_topic_entry *entry, int32_t kind, int64_t messages,
                  int64_t bytes) {
    ps_call *call = ps_mine(c);
    ps_tally *tally = &call->ca_work.wk_tally;
    call->ca_work.wk_put = true;
    call->ca_work.wk_puts += messages;
    if (entry == NULL) return;
    if (tally->entry != entry || tally->kind != kind) ps_count_add(c);
    tally->entry = entry;
    tally->kind = kind;
    ps_inflow_add(&tally->in, messages, bytes);
    if (ps_is_alone(c)) ps_count_add(c);
}

void ps_count_add(ps_core *c) {
    ps_tally *tally = &ps_mine(c)->ca_work.wk_tally;
    if (tally->entry == NULL) return;
    ps_count_inflow(tally->entry, tally->kind, &tally->in);
    *tally = (ps_tally){0};
}
