/* How long sends and pulls take, for tools: a clock is read before and after what one read of a
 * connection brought, and each message that was put in between took no longer than that; one that
 * waits for the disk takes until then. Upstream: StoreStatsService. */
#define _GNU_SOURCE
#include <string.h>

#include "remoting/core.h"
#include "remoting/guard.h"

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

void ps_times_put(ps_core *c, int64_t began_ns, int64_t count) {
    int64_t ms = (ps_monotonic_ns() - began_ns) / 1000000;
    __atomic_fetch_add(&c->co_times.puts[place_of(ms)], count, __ATOMIC_RELAXED);
    raise_to(&c->co_times.put_max_ms, ms);
}

void ps_times_begin(ps_core *c) {
    ps_call *call = ps_mine(c);
    call->co_began_ns = ps_monotonic_ns();
    call->co_puts = call->co_looked = 0;
}

void ps_times_end(ps_core *c) {
    ps_call *call = ps_mine(c);
    int64_t puts = call->co_puts - call->co_puts_waiting;
    call->co_puts_waiting = 0;
    if (puts > 0) ps_times_put(c, call->co_began_ns, puts);
    if (call->co_looked == 0) return;
    raise_to(&c->co_times.get_max_ms, (ps_monotonic_ns() - call->co_began_ns) / 1000000);
}

void ps_core_get_times(ps_core *c, ps_core_times *out) {
    PS_CORE_HELD(c);
    *out = c->co_times;
}

/* ---- how many ---- */

void ps_count_put(ps_core *c, ps_topic_entry *entry, int64_t messages, int64_t bytes) {
    ps_call *call = ps_mine(c);
    ps_tally *tally = &call->co_tally;
    call->co_put = true;
    call->co_puts += messages;
    if (tally->entry != entry) ps_count_add(c);
    *tally = (ps_tally){entry, tally->messages + messages, tally->bytes + bytes};
    if (ps_is_alone(c)) ps_count_add(c);
}

void ps_count_add(ps_core *c) {
    ps_tally *tally = &ps_mine(c)->co_tally;
    if (tally->messages == 0) return;
    if (tally->entry != NULL) {
        __atomic_fetch_add(&tally->entry->te_put.messages, tally->messages, __ATOMIC_RELAXED);
        __atomic_fetch_add(&tally->entry->te_put.bytes, tally->bytes, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&c->co_totals.puts, tally->messages, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->co_totals.put_bytes, tally->bytes, __ATOMIC_RELAXED);
    *tally = (ps_tally){0};
}
