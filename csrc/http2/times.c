/* How long calls take, for the metrics of a broker and of a proxy: docs/metrics.md. */
#include "base/clock.h"
#include "http2/call.h"

#define NS_A_MS 1000000

void ps_h2_call_asked(ps_h2 *h, ps_h2_call *c) {
    if (h->conf->times != NULL) c->asked_ns = ps_monotonic_ns();
}

void ps_h2_call_answered(ps_h2 *h, ps_h2_call *c) {
    static const int64_t bounds_ms[PS_H2_BUCKETS - 1] = {1,   2,   5,    10,   20,   50,   100,
                                                         200, 500, 1000, 2000, 5000, 10000};
    if (c->asked_ns == 0) return;
    int64_t took_ns = ps_monotonic_ns() - c->asked_ns;
    ps_h2_times *t = &h->conf->times[c->method];
    int32_t i = 0;
    while (i < PS_H2_BUCKETS - 1 && took_ns > bounds_ms[i] * NS_A_MS) i++;
    __atomic_fetch_add(&t->buckets[i], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&t->sum_ns, took_ns, __ATOMIC_RELAXED);
    c->asked_ns = 0;
}
