/* Which of two records that claim one queue offset has it: the one that the unit there names, and
 * that says the same of itself. Where no unit does, the first in the log. Recovery, rebuild, repair
 * and audit ask here (docs/recovery.md#after-a-crash). */
#ifndef PS_CLAIMS_H
#define PS_CLAIMS_H

#include "queues/consumequeue.h"

struct ps_record;

/* A place in a queue. */
typedef struct ps_queue_place {
    const uint8_t *topic;
    int32_t topic_len, queue_id;
    int64_t offset;
} ps_queue_place;

/* Whether the record says that it belongs there, or into that queue of light messages. */
bool ps_record_claims(const struct ps_record *r, const ps_queue_place *at);
/* Whether the unit that stands there is of this record, and the record says so. */
bool ps_unit_names(const ps_unit *u, const struct ps_record *r, const ps_queue_place *at);

/* Whether a unit of `offset` names another record than the one at `physical`, and that one says so:
 * a unit that stands in the queue's files; or one that stood there before the queue is written
 * again, in its own files or in those of the store that a scratch store is made for. The latter
 * counts only if its record is at `from` or later in the log. */
bool ps_unit_is_of_another(ps_queue *q, int64_t offset, int64_t physical);
bool ps_unit_was_of_another(ps_queue *q, int64_t offset, int64_t physical, int64_t from);
/* Whether the unit that stood there is this one, of a record that is at hand and says so. */
bool ps_unit_was_there(ps_queue *q, int64_t offset, const ps_unit *unit);

#endif
