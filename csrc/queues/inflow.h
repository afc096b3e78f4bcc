/* Messages of one kind that went into a topic, for rocketmq_message_size and its like: upstream
 * BrokerMetricsManager. */
#ifndef PS_INFLOW_H
#define PS_INFLOW_H

#include <stdint.h>

#define PS_SIZES 7 /* buckets of rocketmq_message_size */

typedef struct ps_inflow {
    int64_t messages, bytes;
    int64_t size_sum; /* of the mean sizes of its sends */
    int64_t sizes[PS_SIZES];
} ps_inflow;

/* The bucket of a size. */
static inline int ps_inflow_place(int64_t size) {
    static const int64_t bounds[PS_SIZES - 1] = {1024, 4096, 524288, 1048576, 2097152, 4194304};
    int i = 0;
    while (i < PS_SIZES - 1 && size > bounds[i]) i++;
    return i;
}

#endif
