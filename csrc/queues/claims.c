/* Which of two records that claim one queue offset has it. See claims.h. */
#define _GNU_SOURCE
#include "queues/claims.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "format/multi.h"
#include "format/record.h"

#define STRETCH 64 /* units read at once: a store may have a hundred thousand queues */

/* Units as they stood: those of [from, from + count) are here, those up to `end` are not there. */
struct ps_old_units {
    int64_t from, count, end;
    uint8_t bytes[STRETCH * PS_UNIT];
};

static bool is_place_of(const ps_record *r, const ps_queue_place *at) {
    return r->queue_id == at->queue_id && r->queue_offset == at->offset &&
           r->topic_len == at->topic_len &&
           memcmp(r->topic, at->topic, (size_t)r->topic_len) == 0;
}

bool ps_record_claims(const ps_record *r, const ps_queue_place *at) {
    ps_multi m;
    if (is_place_of(r, at)) return true;
    if (!ps_multi_of(r, &m)) return false;
    while (ps_multi_next(&m))
        if (is_place_of(&m.mu_as, at)) return true;
    return false;
}

bool ps_unit_names(const ps_unit *u, const ps_record *r, const ps_queue_place *at) {
    return u->physical == r->physical_offset && u->size == r->size && ps_record_claims(r, at);
}

/* ---- units as they stood ---- */

static void read_old(const ps_queue *q, struct ps_old_units *old, int64_t offset) {
    const ps_queues_shared *shared = q->cq_shared;
    char path[PATH_MAX];
    int64_t size = shared->qs_file_size, at = offset * PS_UNIT, base = at - at % size;
    int64_t want = (base + size - at) / PS_UNIT;
    if (want > STRETCH) want = STRETCH;
    old->from = offset;
    old->count = 0;
    old->end = (base + size) / PS_UNIT;
    int len = snprintf(path, sizeof path, "%s/%s/%d/%020" PRId64, shared->qs_before, q->cq_name,
                       q->cq_id, base);
    if (len < 0 || len >= (int)sizeof path) return;
    int fd = shared->qs_io->open(shared->qs_io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    ssize_t got =
        shared->qs_io->pread(shared->qs_io, fd, old->bytes, (size_t)(want * PS_UNIT), at - base);
    shared->qs_io->close(shared->qs_io, fd);
    old->count = got > 0 ? got / PS_UNIT : 0;
    if (old->count == want) old->end = offset + want;
}

static bool old_unit(ps_queue *q, int64_t offset, uint8_t p[PS_UNIT]) {
    struct ps_old_units *old = q->cq_old;
    if (old == NULL && (old = q->cq_old = calloc(1, sizeof *old)) == NULL) return false;
    if (offset < old->from || offset >= old->end) read_old(q, old, offset);
    if (offset >= old->from + old->count) return false;
    memcpy(p, old->bytes + (offset - old->from) * PS_UNIT, PS_UNIT);
    return true;
}

static bool own_unit(ps_queue *q, int64_t offset, uint8_t p[PS_UNIT]) {
    const ps_mapfile *mf = atomic_load_explicit(&q->cq_last, memory_order_relaxed);
    int64_t at = mf != NULL ? offset * PS_UNIT - mf->mf_base : -1;
    if (at < 0 || at >= mf->mf_size)
        return ps_segments_peek(&q->cq_files, offset * PS_UNIT, p, PS_UNIT, NULL) > 0;
    memcpy(p, mf->mf_map + at, PS_UNIT);
    return true;
}

/* ---- the rule ---- */

static bool names_another(ps_queue *q, const uint8_t p[PS_UNIT], int64_t offset, int64_t physical,
                          int64_t from) {
    const ps_queues_shared *shared = q->cq_shared;
    ps_unit u;
    ps_unit_get(p, &u);
    return u.physical != physical && u.physical >= from && u.size > 0 && u.size != PS_UNIT_NONE &&
           shared->qs_confirms(shared->qs_confirms_arg, q, offset, &u);
}

bool ps_unit_is_of_another(ps_queue *q, int64_t offset, int64_t physical) {
    uint8_t p[PS_UNIT];
    return own_unit(q, offset, p) && names_another(q, p, offset, physical, 0);
}

static bool unit_that_stood(ps_queue *q, int64_t offset, uint8_t p[PS_UNIT]) {
    if (q->cq_shared->qs_before != NULL) return old_unit(q, offset, p);
    return offset < q->cq_was && own_unit(q, offset, p);
}

bool ps_unit_was_of_another(ps_queue *q, int64_t offset, int64_t physical, int64_t from) {
    uint8_t p[PS_UNIT];
    return unit_that_stood(q, offset, p) && names_another(q, p, offset, physical, from);
}

bool ps_unit_was_there(ps_queue *q, int64_t offset, const ps_unit *unit) {
    uint8_t p[PS_UNIT];
    ps_unit u;
    if (!unit_that_stood(q, offset, p)) return false;
    ps_unit_get(p, &u);
    return u.physical == unit->physical && u.size == unit->size;
}
