/* The counters of messages as Prometheus reads them. docs/metrics.md. */
#ifndef PS_EXPOSITION_H
#define PS_EXPOSITION_H

#include "core/core.h"

/* cdef begin */
/* How many series of a metric are shown. Whoever writes metrics asks here, in C and in Python. */
typedef struct ps_series_bound {
    int64_t most, shown, left_out;
} ps_series_bound;
/* Whether one more series is shown; if not, it is counted. */
int32_t ps_series_fits(ps_series_bound *bound);
/* A copy of all counters of messages: taken with the lock of the core, made a text without. `most`
 * series of each family; what does not fit is one series more. NULL: no memory. */
typedef struct ps_flows ps_flows;
ps_flows *ps_core_flows(ps_core *core, int64_t most);
void ps_flows_free(ps_flows *flows);
/* The families of messages in Prometheus' text format, which `flows` owns. `labels` stand in every
 * sample, escaped; `systems` are names of system topics, each ended by a line feed. Returns its
 * bytes, or PS_E_NO_MEMORY. */
int64_t ps_flows_text(ps_flows *flows, const char *labels, const char *systems,
                        const char **out);
/* Series that did not fit. */
int64_t ps_flows_left_out(const ps_flows *flows);
/* cdef end */

#endif
