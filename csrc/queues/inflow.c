/* See inflow.h. */
#include "queues/inflow.h"

static int bucket_of(int64_t size) {
    static const int64_t bounds[PS_SIZES - 1] = {1024, 4096, 524288, 1048576, 2097152, 4194304};
    int i = 0;
    while (i < PS_SIZES - 1 && size > bounds[i]) i++;
    return i;
}

void ps_inflow_add(ps_inflow *in, int64_t messages, int64_t bytes) {
    int64_t mean = messages > 0 ? bytes / messages : 0;
    in->messages += messages;
    in->bytes += bytes;
    in->size_sum += mean;
    in->sizes[bucket_of(mean)]++;
}

void ps_inflow_count(ps_inflow *to, const ps_inflow *more) {
    __atomic_fetch_add(&to->messages, more->messages, __ATOMIC_RELAXED);
    __atomic_fetch_add(&to->bytes, more->bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&to->size_sum, more->size_sum, __ATOMIC_RELAXED);
    for (int i = 0; i < PS_SIZES; i++)
        if (more->sizes[i] > 0)
            __atomic_fetch_add(&to->sizes[i], more->sizes[i], __ATOMIC_RELAXED);
}

void ps_inflow_sum(ps_inflow *to, const ps_inflow *counted) {
    to->messages += __atomic_load_n(&counted->messages, __ATOMIC_RELAXED);
    to->bytes += __atomic_load_n(&counted->bytes, __ATOMIC_RELAXED);
    to->size_sum += __atomic_load_n(&counted->size_sum, __ATOMIC_RELAXED);
    for (int i = 0; i < PS_SIZES; i++)
        to->sizes[i] += __atomic_load_n(&counted->sizes[i], __ATOMIC_RELAXED);
}

void ps_inflow_reset(ps_inflow *counted) {
    __atomic_store_n(&counted->messages, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&counted->bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&counted->size_sum, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < PS_SIZES; i++) __atomic_store_n(&counted->sizes[i], 0, __ATOMIC_RELAXED);
}
