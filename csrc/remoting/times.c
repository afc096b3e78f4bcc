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

void ps_times_put(ps_core *c, int64_t began_ns, int64_t count) {
    int64_t ms = (ps_monotonic_ns() - began_ns) / 1000000;
    c->co_times.puts[place_of(ms)] += count;
    if (ms > c->co_times.put_max_ms) c->co_times.put_max_ms = ms;
}

void ps_times_begin(ps_core *c) {
    c->co_began_ns = ps_monotonic_ns();
    c->co_puts_before = c->co_totals.puts;
    c->co_pulls_before = c->co_totals.pulls;
}

void ps_times_end(ps_core *c) {
    int64_t puts = c->co_totals.puts - c->co_puts_before - c->co_puts_waiting;
    c->co_puts_waiting = 0;
    if (puts > 0) ps_times_put(c, c->co_began_ns, puts);
    if (c->co_totals.pulls == c->co_pulls_before) return;
    int64_t ms = (ps_monotonic_ns() - c->co_began_ns) / 1000000;
    if (ms > c->co_times.get_max_ms) c->co_times.get_max_ms = ms;
}

void ps_core_get_times(ps_core *c, ps_core_times *out) {
    PS_CORE_HELD(c);
    *out = c->co_times;
}
