/* See coverage.h.
 *
 * A record has one unit, and it begins where the one before it ends. So the units of a segment
 * whose records all have theirs are a chain from its beginning to its blank, spread over the
 * queues. Each adds mix(end) - mix(start) to a sum of its segment (mix_place): of a chain, in any
 * order, this comes to mix(last end) - mix(segment). A link that is missing or there twice makes
 * it any other number. That takes one look at 20 bytes a message, and 16 bytes of memory a segment.
 *
 * The records of a segment whose sum is another are looked at one by one, by their heads.
 *
 * The units of two queues give the same sum when their files are exchanged. So the records that the
 * first and the last unit of each file name are asked whose they are.
 *
 * Units of light queues are of records that have one elsewhere, and tell of no link. Where such
 * queues have files, all records are looked at. */
#define _GNU_SOURCE
#include "store/coverage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/report.h"
#include "format/multi.h"
#include "log/resync.h"
#include "queues/claims.h"
#include "store/lights.h"
#include "store/store.h"

#define UNITS_AT_ONCE 4096
/* What a reader looks at: it does so at each open, since it notes nothing. */
#define READER_UNITS (16 << 20)
#define READER_BYTES (4LL << 30)

typedef struct stretch {
    uint64_t sum; /* of the units of one segment */
    int64_t end;  /* of the last of their records, -1: there is none */
} stretch;

/* Records of queues that nobody knows. */
typedef struct strange_records {
    int64_t count, from, to;
} strange_records;

typedef struct coverage {
    ps_store *s;
    ps_report *report;
    int64_t base, size, until; /* of the first segment; of each; where the check ends */
    stretch *parts;            /* one a segment */
    bool lights;               /* light queues have folders */
    bool lights_elsewhere;     /* and files of our own, which have the units of all */
    strange_records strange, strange_lights;
} coverage;

/* The finalizer of splitmix64: neighbours have nothing in common. */
static uint64_t mix_place(int64_t place) {
    uint64_t x = (uint64_t)place + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* ---- the units ---- */

static void add_units(coverage *c, const uint8_t *units, int64_t count) {
    int64_t from = c->base, to = c->base; /* of the segment of the unit before */
    stretch *part = c->parts;
    for (int64_t i = 0; i < count; i++) {
        ps_unit u;
        ps_unit_get(units + i * PS_UNIT, &u);
        if (u.size <= 0 || u.size == PS_UNIT_NONE) continue;
        if (u.physical < c->base || u.physical >= c->until) continue;
        if (u.physical < from || u.physical >= to) {
            int64_t n = (u.physical - c->base) / c->size;
            from = c->base + n * c->size;
            to = from + c->size;
            part = c->parts + n;
        }
        int64_t end = u.physical + u.size;
        part->sum += mix_place(end) - mix_place(u.physical);
        if (end > part->end) part->end = end;
    }
}

static void mark_queue(coverage *c, ps_queue *q, int64_t offset, const char *why) {
    char what[300];
    q->cq_hole = true;
    snprintf(what, sizeof what, "consumequeue/%s/%d", q->cq_name, q->cq_id);
    ps_report_add(c->report, PS_ACTION_SKIPPED, offset, -1, -1, what, why);
}

/* Whether the unit of `offset` names a whole record that says that it stands elsewhere. Of a record
 * that is damaged, the log and not the queue is wrong. */
static bool is_of_another(const coverage *c, ps_queue *q, int64_t offset, const uint8_t *unit) {
    const ps_queue_place at = {(const uint8_t *)q->cq_name, q->cq_name_len, q->cq_id, offset};
    ps_unit u;
    ps_record r;
    ps_mapfile *mf;
    ps_unit_get(unit, &u);
    if (u.size <= 0 || u.size == PS_UNIT_NONE) return false;
    if (u.physical < c->base || u.physical >= c->until) return false;
    ps_rec_outcome o = ps_log_record(&c->s->st_log, u.physical, INT64_MAX, 0, &r, &mf);
    bool another = o == PS_REC_OK && !ps_unit_names(&u, &r, &at);
    ps_mapfile_unref(mf);
    return another;
}

/* Of units that begin or end their file. */
static bool file_is_of_another(const coverage *c, ps_queue *q, int64_t at, const uint8_t *units,
                               int64_t len, int64_t end) {
    int64_t file = q->cq_files.ss_file_size, to = at + len, last = len - PS_UNIT;
    return (at % file == 0 && is_of_another(c, q, at / PS_UNIT, units)) ||
           ((to % file == 0 || to == end) &&
            is_of_another(c, q, to / PS_UNIT - 1, units + last));
}

/* A queue that has a file of another one ends before that file. */
static int add_queue(coverage *c, ps_queue *q, uint8_t *room, ps_error *e) {
    int64_t at = ps_segments_base(&q->cq_files, 0), end = atomic_load(&q->cq_max) * PS_UNIT;
    int64_t file = q->cq_files.ss_file_size;
    int code = 1;
    while (at >= 0 && at < end && code >= 0) {
        int64_t len = UNITS_AT_ONCE * PS_UNIT, left = file - at % file;
        if (len > left) len = left;
        if (len > end - at) len = end - at;
        code = ps_segments_peek(&q->cq_files, at, room, len, e);
        if (code > 0) add_units(c, room, len / PS_UNIT);
        if (code > 0 && !q->cq_hole && file_is_of_another(c, q, at, room, len, end)) {
            int64_t offset = (at - at % file) / PS_UNIT;
            ps_queue_end_at(q, offset);
            mark_queue(c, q, offset, "the units of this file are of another queue");
        }
        at += len;
    }
    return code < 0 ? code : 0;
}

static bool is_light_queue(const ps_queue *q) {
    return ps_name_is_lmq((const uint8_t *)q->cq_name, q->cq_name_len);
}

static int64_t count_units(ps_queue **queues, int32_t n) {
    int64_t units = 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t base = ps_segments_base(&queues[i]->cq_files, 0);
        if (base >= 0) units += atomic_load(&queues[i]->cq_max) - base / PS_UNIT;
    }
    return units;
}

static int check_stopped(const coverage *c, ps_progress *progress, ps_error *e) {
    if (progress == NULL || !progress->stop) return 0;
    return ps_fail(e, PS_E_INTERRUPTED, 0, -1, c->s->st_root,
                   "interrupted while comparing queues with the log");
}

static int add_queues(coverage *c, ps_queue **queues, int32_t n, ps_progress *progress,
                      ps_error *e) {
    uint8_t *room = malloc(UNITS_AT_ONCE * PS_UNIT);
    int code = room == NULL
                   ? ps_no_memory(e, c->s->st_root, "no memory to compare queues with the log")
                   : 0;
    for (int32_t i = 0; i < n && code == 0; i++) {
        ps_queue *q = queues[i];
        if (ps_segments_count(&q->cq_files) > 0) q->cq_topic->tp_there = true;
        if (!is_light_queue(q)) code = add_queue(c, q, room, e);
        if (code == 0) code = check_stopped(c, progress, e);
        if (progress != NULL && ps_segments_count(&q->cq_files) > 0)
            progress->done +=
                atomic_load(&q->cq_max) * PS_UNIT - ps_segments_base(&q->cq_files, 0);
    }
    free(room);
    return code;
}

/* ---- records without one ---- */

static int by_name(const void *key, const void *row) {
    const ps_topic_row *a = key, *b = row;
    int32_t least = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->name, b->name, (size_t)least);
    return order != 0 ? order : (a->len > b->len) - (a->len < b->len);
}

/* Whether a record of a queue that is not there belongs in one: Java's broker takes the queues of a
 * topic away with its row of the configuration, and leaves its records. */
static bool record_belongs(const coverage *c, const ps_topic *t, const ps_record *r) {
    const ps_conf *conf = &c->s->st_conf;
    const ps_topic_row key = {(const char *)r->topic, r->topic_len, 0}, *row = NULL;
    if (ps_name_is_lmq(r->topic, r->topic_len)) return t != NULL;
    if (conf->topic_count == 0) return true;
    row = bsearch(&key, conf->topics, (size_t)conf->topic_count, sizeof key, by_name);
    return row != NULL ? r->queue_id < row->queues : t != NULL && t->tp_there;
}

/* A record whose offset lies within its queue. */
static void look_within(coverage *c, ps_queue *q, const ps_record *r) {
    ps_unit u;
    int found = ps_queue_peek(q, r->queue_offset, &u, NULL);
    bool names = found > 0 && u.size > 0 && u.size != PS_UNIT_NONE;
    if (names && u.physical == r->physical_offset && u.size == r->size) return;
    /* It may be of another record: a topic that was deleted and made again counts from 0. */
    const ps_queues_shared *shared = q->cq_shared;
    if (names && shared->qs_confirms(shared->qs_confirms_arg, q, r->queue_offset, &u)) return;
    ps_queue_end_at(q, r->queue_offset);
    mark_queue(c, q, r->queue_offset, "no unit names the record that the log has for this offset");
}

static void count_strange(coverage *c, const ps_record *r) {
    bool light = ps_name_is_lmq(r->topic, r->topic_len);
    if (light && c->lights_elsewhere) return;
    strange_records *n = light ? &c->strange_lights : &c->strange;
    if (n->count++ == 0) n->from = r->physical_offset;
    n->to = r->physical_offset + r->size;
}

/* As the record lies in one of its queues. */
static int look_at(coverage *c, const ps_record *r, ps_error *e) {
    if (!ps_record_has_unit(r) || !ps_record_names_queue(r)) return 0;
    ps_topics *tt = &c->s->st_topics;
    ps_topic *t = ps_topic_find(tt, (const char *)r->topic, r->topic_len);
    if (t != NULL && ps_topic_is_past(t, r->physical_offset)) return 0;
    ps_queue *q = t != NULL ? ps_topic_queue(t, r->queue_id) : NULL;
    if (q != NULL && q->cq_hole) return 0;
    if (q == NULL || ps_segments_count(&q->cq_files) == 0) {
        if (!record_belongs(c, t, r)) {
            count_strange(c, r);
            return 0;
        }
        if (t == NULL) t = ps_topic_get(tt, (const char *)r->topic, r->topic_len);
        if (t != NULL && q == NULL) q = ps_topic_queue_get(t, r->queue_id);
        if (q == NULL) return ps_no_memory(e, c->s->st_root, "no memory for the queue");
        ps_queue_restart(q);
        mark_queue(c, q, r->queue_offset, "the queue is missing, and the log has messages of it");
    } else if (r->queue_offset >= atomic_load(&q->cq_max)) {
        /* Units ascend: a record before the last one is of an earlier life of the topic. */
        if (r->physical_offset >= atomic_load(&q->cq_max_physical))
            mark_queue(c, q, r->queue_offset,
                       "the queue ends here, and the log has more messages of it");
    } else if (r->queue_offset >= ps_segments_base(&q->cq_files, 0) / PS_UNIT) {
        look_within(c, q, r);
    } else if (q->cq_first_start < 0 || r->physical_offset < q->cq_first_start) {
        ps_queue_restart(q);
        mark_queue(c, q, r->queue_offset, "the queue's first files are missing");
    }
    return 0;
}

static int look_at_all(coverage *c, const ps_record *r, ps_error *e) {
    ps_multi m;
    int code = look_at(c, r, e);
    if (code == 0 && c->lights && ps_multi_of(r, &m))
        while (code == 0 && ps_multi_next(&m)) code = look_at(c, &m.mu_as, e);
    return code;
}

static int look_through(coverage *c, int64_t segment, ps_error *e) {
    ps_mapfile *mf = ps_segments_find(&c->s->st_log.lg_files, segment, e);
    int64_t at = segment, end = segment + c->size, stamp = 0;
    int code = 0;
    if (mf == NULL) return e->code;
    if (end > c->until) end = c->until;
    madvise(mf->mf_map, (size_t)mf->mf_size, MADV_SEQUENTIAL);
    while (at < end && code == 0) {
        ps_record r;
        ps_rec_outcome o =
            ps_record_check(mf->mf_map + (at - segment), segment + mf->mf_size - at, at, 0, &r);
        if (o == PS_REC_BLANK) break;
        if (o != PS_REC_OK) {
            int64_t next = ps_log_next_whole(mf, at - segment + 1, stamp, &r);
            if (next < 0 || segment + next >= end) break;
            at = segment + next;
        }
        stamp = r.store_timestamp;
        code = look_at_all(c, &r, e);
        at += r.size;
    }
    madvise(mf->mf_map, (size_t)mf->mf_size, MADV_NORMAL);
    if (code == 0) code = ps_mapfile_whole(mf, e);
    ps_mapfile_unref(mf);
    return code;
}

/* ---- segments ---- */

static bool blank_at(const coverage *c, int64_t segment, int64_t at) {
    ps_record r;
    ps_mapfile *mf;
    ps_rec_outcome o = ps_log_record(&c->s->st_log, at, INT64_MAX, 0, &r, &mf);
    bool blank = o == PS_REC_BLANK && at + r.size == segment + c->size;
    ps_mapfile_unref(mf);
    return blank;
}

static bool is_covered(const coverage *c, int64_t segment) {
    const stretch *part = c->parts + (segment - c->base) / c->size;
    if (part->end < 0 || part->sum != mix_place(part->end) - mix_place(segment)) return false;
    return part->end >= c->until || part->end == segment + c->size ||
           blank_at(c, segment, part->end);
}

static void not_compared(const coverage *c) {
    ps_report_add(c->report, PS_ACTION_SKIPPED, c->base, c->until, -1, "consumequeue",
                  "too much to compare with the log at each open; pystore verify does");
}

static void report_strange(const coverage *c, const strange_records *n, const char *why) {
    if (n->count > 0)
        ps_report_add(c->report, PS_ACTION_SKIPPED, n->from, n->to, n->count, "commitlog", why);
}

static int look_where_units_lack(coverage *c, ps_progress *progress, ps_error *e) {
    int64_t left = c->s->st_readonly ? READER_BYTES : INT64_MAX;
    int code = 0;
    for (int64_t at = c->base; at < c->until && code == 0; at += c->size) {
        if (!c->lights && is_covered(c, at)) continue;
        if ((left -= c->size) < 0 && at > c->base) {
            not_compared(c);
            break;
        }
        code = look_through(c, at, e);
        if (code == 0) code = check_stopped(c, progress, e);
    }
    report_strange(c, &c->strange, "messages of topics that have neither a queue nor a row in"
                   " topics.json: deleted ones, as a rule");
    report_strange(c, &c->strange_lights, "messages of light queues that have neither a folder nor"
                   " an offset of a group: deleted ones, as a rule");
    return code;
}

/* A light queue without a folder has a row by the offsets of its groups, which go when a Java
 * broker deletes it. Made known here, it gets the units of all records that are read. */
static int know_lights(const coverage *c, ps_error *e) {
    const ps_conf *conf = &c->s->st_conf;
    for (int32_t i = 0; c->lights && !c->lights_elsewhere && i < conf->topic_count; i++) {
        const ps_topic_row *row = &conf->topics[i];
        if (ps_name_is_lmq((const uint8_t *)row->name, row->len) && row->len <= PS_TOPIC_MAX &&
            ps_topic_get(&c->s->st_topics, row->name, row->len) == NULL)
            return ps_no_memory(e, c->s->st_root, "no memory for a light queue");
    }
    return 0;
}

int ps_coverage_check(ps_store *s, int64_t until, ps_report *r, ps_progress *progress,
                      ps_error *e) {
    coverage c = {.s = s, .report = r, .base = ps_segments_base(&s->st_log.lg_files, 0),
                  .size = s->st_log.lg_files.ss_file_size, .until = until,
                  .lights = atomic_load(&s->st_topics.tt_lmq),
                  .lights_elsewhere = ps_has_light_files(s)};
    ps_queue **queues;
    int code = know_lights(&c, e);
    if (code < 0 || c.base < 0 || until <= c.base) return code;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    int64_t units = count_units(queues, n), segments = (until - c.base - 1) / c.size + 1;
    if (s->st_readonly && units > READER_UNITS) {
        not_compared(&c);
    } else if ((c.parts = malloc((size_t)segments * sizeof *c.parts)) == NULL) {
        code = ps_no_memory(e, s->st_root, "no memory to compare queues with the log");
    } else {
        for (int64_t i = 0; i < segments; i++) c.parts[i] = (stretch){0, -1};
        if (progress != NULL) {
            progress->phase = 1;
            progress->done = 0;
            progress->total = units * PS_UNIT;
        }
        code = add_queues(&c, queues, n, progress, e);
        if (code == 0) code = look_where_units_lack(&c, progress, e);
    }
    free(c.parts);
    free(queues);
    return code;
}
