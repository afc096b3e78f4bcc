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

void ps_inflow_add(ps_inflow *in, int64_t messages, int64_t bytes); /* of one send */
/* Adds `more`; several threads may do so at once. */
void ps_inflow_count(ps_inflow *to, const ps_inflow *more);
/* Adds what others may be counting. */
void ps_inflow_sum(ps_inflow *to, const ps_inflow *counted);
void ps_inflow_reset(ps_inflow *counted);

#endif
