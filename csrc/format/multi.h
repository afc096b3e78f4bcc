/* Multi-dispatch: queues of light messages (%LMQ%) that hold a record of another topic, by two
 * properties of it. Upstream: LmqDispatch.
 *
 *   INNER_MULTI_DISPATCH       names, with ',' between them
 *   INNER_MULTI_QUEUE_OFFSET   as many queue offsets, which the broker adds; the queue id is 0
 *
 * Rows of different lengths name no queue, nor does a name with '/': upstream's MultiDispatchUtils.
 * Records of some topics are in no such queue, whatever they say: what is tried again, is dead,
 * waits or is undecided would be delivered twice, or too early. */
#ifndef PS_MULTI_H
#define PS_MULTI_H

#include "format/names.h"
#include "format/record.h"

#define PS_LMQ_PREFIX_LEN 5
#define PS_MULTI_OFFSET_MAX 999999999999999999LL /* of the digits that are read */
#define PS_PROPERTY_MULTI_DISPATCH "INNER_MULTI_DISPATCH"

typedef struct ps_multi {
    const uint8_t *mu_name, *mu_names_end;
    const uint8_t *mu_offset, *mu_offsets_end;
    ps_record mu_as;    /* the record as it lies in the queue that was met last */
    int32_t mu_skipped; /* names that can be no queue's */
} ps_multi;

/* Whether records of the topic may be in such queues. */
bool ps_multi_takes(const uint8_t *topic, int32_t len);
bool ps_name_is_lmq(const uint8_t *topic, int32_t len);
/* Writes the queue of a lite topic: %LMQ%$TOPIC$NAME. Returns where it ends. */
uint8_t *ps_lite_queue_put(uint8_t *to, const uint8_t *topic, int32_t topic_len,
                           const uint8_t *name, int32_t len);
/* Whether the record is in such queues. */
bool ps_multi_of(const ps_record *r, ps_multi *out);
/* The next of them, in mu_as; false at the end. What is not of upstream's form ends the row. */
bool ps_multi_next(ps_multi *m);

#endif
