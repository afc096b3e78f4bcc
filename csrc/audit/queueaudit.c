/* Consume queues against the log: first the units of a folder by themselves, later, where their
 * number differs from what the records asked for, each unit against the record it points to. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/table.h"
#include "base/bytes.h"
#include "queues/claims.h"

/* One pass over the units of a folder. */
typedef struct unit_walk {
    ps_audit *a;
    au_queue *q;
    ps_findings *out;
    int64_t before;     /* place of the last written unit, -1 none */
    int64_t zero_from;  /* where a run of zero units began, -1 none */
    ps_finding *beyond; /* open findings that the next unit may extend */
    ps_finding *lost;
} unit_walk;

static void walk_extend(unit_walk *w, ps_finding **open, int32_t kind, int64_t offset,
                        int64_t physical) {
    const au_queue *q = w->q;
    if (*open != NULL && (*open)->to_at == offset) {
        (*open)->to_at++;
        (*open)->count++;
        return;
    }
    *open = au_find_queue(w->out, kind, q->qu_topic, q->qu_topic_len, q->qu_id, offset, offset + 1,
                          physical, physical);
    /* Findings move when their array grows, so only the last may stay open. */
    if (open != &w->beyond) w->beyond = NULL;
    if (open != &w->lost) w->lost = NULL;
}

static void walk_unit(unit_walk *w, int64_t offset, const ps_unit *u) {
    au_queue *q = w->q;
    if (u->size <= 0 && u->physical == 0) {
        if (w->zero_from < 0) w->zero_from = offset;
        return;
    }
    if (w->zero_from >= 0) {
        au_find_queue(w->out, PS_FIND_UNIT_ZERO, q->qu_topic, q->qu_topic_len, q->qu_id,
                      w->zero_from, offset, u->physical, 0);
        w->zero_from = -1;
        w->beyond = w->lost = NULL;
    }
    q->qu_max = offset + 1;
    if (u->size == PS_UNIT_NONE) {
        /* Physical 0 is the pre-fill of a queue whose beginning was deleted. */
        if (u->physical > 0) walk_extend(w, &w->lost, PS_FIND_UNIT_LOST, offset, u->physical);
        return;
    }
    if (u->size <= 0 || u->physical < 0 || u->physical > w->a->au_conf.log_end - u->size) {
        walk_extend(w, &w->beyond, PS_FIND_UNIT_BEYOND, offset, u->physical);
        return;
    }
    if (u->physical < w->a->au_conf.log_min) return;
    if (u->physical <= w->before) {
        au_find_queue(w->out, PS_FIND_UNIT_ORDER, q->qu_topic, q->qu_topic_len, q->qu_id, offset,
                      offset + 1, u->physical, w->before);
        w->beyond = w->lost = NULL;
    }
    w->before = u->physical;
    q->qu_units++;
    if (u->physical + u->size > q->qu_end) q->qu_end = u->physical + u->size;
}

static int queue_path(const ps_audit *a, const au_queue *q, int64_t base, char path[PATH_MAX]) {
    int len = snprintf(path, PATH_MAX, "%s/consumequeue/%.*s/%d", a->au_root, q->qu_topic_len,
                       (const char *)q->qu_topic, q->qu_id);
    if (len > 0 && len < PATH_MAX - 24 && base >= 0)
        len += snprintf(path + len, 24, "/%020" PRId64, base);
    return len > 0 && len < PATH_MAX ? 0 : -1;
}

static int walk_file(unit_walk *w, int64_t base, ps_error *e) {
    char path[PATH_MAX];
    ps_window file;
    int64_t count, size = w->a->au_conf.consumequeue_file_size;
    if (queue_path(w->a, w->q, base, path) < 0)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, w->a->au_root, "the path is too long");
    int code = ps_window_open(&file, w->a->au_io, path, e);
    if (code < 0) return code;
    /* Pages that the kernel reads ahead into a hole count as data for whoever asks next. */
    w->a->au_io->advise(w->a->au_io, file.wd_fd, 0, 0, POSIX_FADV_RANDOM);
    for (int64_t at = 0; at + PS_UNIT <= size;) {
        int64_t data = ps_window_next_data(&file, at);
        const uint8_t *p = NULL;
        if (data - at < PS_UNIT) {
            p = ps_window_get(&file, at, PS_UNIT, &count);
            if (p == NULL || count < PS_UNIT) break; /* the file ends, maybe amid a unit */
            if (at + count > size) count = size - at;
        }
        int64_t zeros = p == NULL ? data - at : all_zero(p, count) ? count : 0;
        if (zeros >= PS_UNIT) { /* a hole, or as good as one */
            if (w->zero_from < 0) w->zero_from = (base + at) / PS_UNIT;
            at += zeros / PS_UNIT * PS_UNIT;
            continue;
        }
        for (; count >= PS_UNIT && at + PS_UNIT <= size; count -= PS_UNIT, p += PS_UNIT) {
            ps_unit u;
            ps_unit_get(p, &u);
            walk_unit(w, (base + at) / PS_UNIT, &u);
            at += PS_UNIT;
        }
    }
    if (file.wd_unreadable >= 0)
        au_find_queue(w->out, PS_FIND_UNREADABLE, w->q->qu_topic, w->q->qu_topic_len, w->q->qu_id,
                      (base + file.wd_unreadable) / PS_UNIT,
                      (base + file.wd_unreadable_upto + PS_UNIT - 1) / PS_UNIT, -1, file.wd_errno);
    ps_window_close(&file);
    return 0;
}

/* Sizes and names of the files, before their bytes. */
static void check_listing(unit_walk *w, const int64_t *numbers, const int64_t *sizes, int32_t n) {
    const au_queue *q = w->q;
    int64_t size = w->a->au_conf.consumequeue_file_size;
    for (int32_t i = 0; i < n; i++) {
        if (sizes[i] != size && !(sizes[i] == 0 && i == n - 1))
            au_find_queue(w->out, PS_FIND_QUEUE_FILE_SIZE, q->qu_topic, q->qu_topic_len, q->qu_id,
                          numbers[i] / PS_UNIT, numbers[i] / PS_UNIT + 1, -1, sizes[i]);
        if (i > 0 && numbers[i - 1] + size != numbers[i])
            au_find_queue(w->out, PS_FIND_QUEUE_GAP, q->qu_topic, q->qu_topic_len, q->qu_id,
                          (numbers[i - 1] + size) / PS_UNIT, numbers[i] / PS_UNIT, -1, numbers[i]);
    }
}

int ps_audit_queue(ps_audit *a, const char *topic, int32_t topic_len, int32_t queue_id,
                   const int64_t *numbers, const int64_t *sizes, int32_t count, ps_findings *out,
                   ps_error *e) {
    au_queue *q = au_queue_add(a, (const uint8_t *)topic, topic_len, queue_id);
    if (q == NULL) return ps_no_memory(e, NULL, "no memory for the tables of the audit");
    unit_walk w = {.a = a, .q = q, .out = out, .before = -1, .zero_from = -1};
    int code = 0;
    check_listing(&w, numbers, sizes, count);
    q->qu_first = count > 0 ? numbers[0] : 0;
    q->qu_max = q->qu_first / PS_UNIT;
    for (int32_t i = 0; i < count && code == 0; i++) {
        code = walk_file(&w, numbers[i], e);
        if (code == PS_E_NOT_FOUND) code = 0; /* retention took it just now */
    }
    if (q->qu_end > a->au_dispatched) a->au_dispatched = q->qu_end;
    return code;
}

void ps_audit_queue_get(ps_audit *a, const char *topic, int32_t topic_len, int32_t queue_id,
                        ps_audit_queue_facts *out) {
    const au_queue *q = au_queue_find(a, (const uint8_t *)topic, topic_len, queue_id);
    *out = (ps_audit_queue_facts){0};
    if (q == NULL) return;
    out->max_offset = q->qu_max;
    out->units = q->qu_units;
    out->matched = atomic_load(&q->qu_matched);
    out->first = q->qu_first;
    out->end = q->qu_end;
}

int ps_audit_queue_set(ps_audit *a, const char *topic, int32_t topic_len, int32_t queue_id,
                       const ps_audit_queue_facts *facts, ps_error *e) {
    au_queue *q = au_queue_find(a, (const uint8_t *)topic, topic_len, queue_id);
    if (q == NULL) q = au_queue_add(a, (const uint8_t *)topic, topic_len, queue_id);
    if (q == NULL) return ps_no_memory(e, NULL, "no memory for the tables of the audit");
    q->qu_max = facts->max_offset;
    q->qu_units = facts->units;
    q->qu_first = facts->first;
    q->qu_end = facts->end;
    atomic_store(&q->qu_matched, facts->matched);
    if (q->qu_end > a->au_dispatched) a->au_dispatched = q->qu_end;
    return 0;
}

/* ---- each unit against its record ---- */

typedef struct recount {
    unit_walk walk;
    ps_window log;
    const au_segment *segment;
    ps_finding *ghost;
} recount;

/* What is wrong with a unit: 0, or the kind of finding. */
static int unit_against_record(recount *rc, int64_t offset, const ps_unit *u) {
    ps_audit *a = rc->walk.a;
    const au_segment *s = au_segment_at(a, u->physical);
    int64_t count;
    ps_record r;
    if (s == NULL || u->physical + u->size > s->sg_base + s->sg_size) return PS_FIND_UNIT_GHOST;
    if (s != rc->segment) {
        if (rc->segment != NULL) ps_window_close(&rc->log);
        rc->segment = NULL;
        if (ps_window_open(&rc->log, a->au_io, s->sg_path, NULL) < 0) return PS_FIND_UNIT_GHOST;
        rc->segment = s;
    }
    const uint8_t *p = ps_window_get(&rc->log, u->physical - s->sg_base, u->size, &count);
    if (p == NULL || ps_record_check(p, count, u->physical, a->au_checks, &r) != PS_REC_OK ||
        r.size != u->size || !ps_record_has_unit(&r) || au_gone(a, &r))
        return PS_FIND_UNIT_GHOST;
    const au_queue *q = rc->walk.q;
    const ps_queue_place place = {q->qu_topic, q->qu_topic_len, q->qu_id, offset};
    return ps_unit_names(u, &r, &place) ? 0 : PS_FIND_DISAGREE;
}

static void recount_unit(recount *rc, int64_t offset, const ps_unit *u) {
    const au_queue *q = rc->walk.q;
    const ps_audit_conf *conf = &rc->walk.a->au_conf;
    if (u->size <= 0 || u->size == PS_UNIT_NONE || u->physical < conf->log_min ||
        u->physical > conf->log_end - u->size)
        return;
    int kind = unit_against_record(rc, offset, u);
    if (kind == 0) return;
    if (kind == PS_FIND_DISAGREE) {
        au_find_queue(rc->walk.out, kind, q->qu_topic, q->qu_topic_len, q->qu_id, offset,
                      offset + 1, u->physical, u->physical);
        rc->ghost = NULL;
        return;
    }
    if (rc->ghost != NULL && rc->ghost->to_at == offset) {
        rc->ghost->to_at++;
        rc->ghost->count++;
        return;
    }
    rc->ghost = au_find_queue(rc->walk.out, PS_FIND_UNIT_GHOST, q->qu_topic, q->qu_topic_len,
                              q->qu_id, offset, offset + 1, u->physical, u->physical);
}

int ps_audit_queue_recount(ps_audit *a, const char *topic, int32_t topic_len, int32_t queue_id,
                           ps_findings *out, ps_error *e) {
    char path[PATH_MAX];
    au_queue *q = au_queue_find(a, (const uint8_t *)topic, topic_len, queue_id);
    if (q == NULL)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, a->au_root,
                       "queue %d of '%.*s' cannot be counted again: it was not audited", queue_id,
                       topic_len, topic);
    recount rc = {.walk = {.a = a, .q = q, .out = out}};
    int64_t size = a->au_conf.consumequeue_file_size, count;
    for (int64_t base = q->qu_first; base / PS_UNIT < q->qu_max; base += size) {
        ps_window file;
        if (queue_path(a, q, base, path) < 0 || ps_window_open(&file, a->au_io, path, NULL) < 0)
            continue;
        for (int64_t at = 0; at + PS_UNIT <= size && (base + at) / PS_UNIT < q->qu_max;) {
            ps_unit u;
            const uint8_t *p = ps_window_get(&file, at, PS_UNIT, &count);
            if (p == NULL || count < PS_UNIT) break;
            ps_unit_get(p, &u);
            recount_unit(&rc, (base + at) / PS_UNIT, &u);
            at += PS_UNIT;
        }
        ps_window_close(&file);
    }
    if (rc.segment != NULL) ps_window_close(&rc.log);
    return 0;
}

int ps_audit_unit_names(const uint8_t *unit, const uint8_t *record, int64_t len, const char *topic,
                        int32_t topic_len, int32_t queue_id, int64_t offset) {
    const ps_queue_place at = {(const uint8_t *)topic, topic_len, queue_id, offset};
    ps_unit u;
    ps_record r;
    ps_unit_get(unit, &u);
    return ps_record_decode(record, len, &r) == PS_REC_OK && ps_unit_names(&u, &r, &at);
}
