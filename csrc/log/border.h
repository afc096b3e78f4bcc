/* Borders of the log: places where a record, or the blank of a segment, begins or ends. Whatever a
 * peer says of its log is a place, not a border: Java's slaves report where a chunk of 32 KiB
 * ended, in the middle of a record. A type of its own, so that the one is never taken for the
 * other: a border is made here alone, from bytes of this log, and never lies beyond its end. */
#ifndef PS_BORDER_H
#define PS_BORDER_H

#include "log/commitlog.h"

typedef struct ps_border {
    int64_t bd_at;
} ps_border;

/* The end of the log. */
static inline ps_border ps_border_end(const ps_log *l) {
    return (ps_border){atomic_load_explicit(&l->lg_end, memory_order_acquire)};
}
/* The last border at or before `place`. Records are passed one by one, from `known` on where that
 * is in the same segment: at most `look` bytes of them, and less than the last border is found when
 * *more is true. A segment's records that are damaged are not passed. */
ps_border ps_border_before(ps_log *l, ps_border known, int64_t place, int64_t look, bool *more);
/* The last whole record that ends at or before `place`, with the last border there in *end: where
 * it begins; -1: there is none. Reads a segment, or two. */
int64_t ps_border_record(ps_log *l, int64_t place, ps_border *end);

#endif
