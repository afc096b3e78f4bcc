/* The tables of an audit, and its findings. See table.h. */
#define _GNU_SOURCE
#include "audit/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "format/multi.h"
#include "queues/consumequeue.h"

#define FINDINGS_MAX 65536 /* of one call: more tell a person nothing new */

ps_audit *ps_audit_new(const ps_audit_conf *conf, ps_io *io) {
    ps_audit *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->au_io = io != NULL ? io : ps_io_system();
    a->au_conf = *conf;
    a->au_root = strdup(conf->root);
    au_rivals_init(&a->au_rivals);
    a->au_checks = conf->check_crc ? PS_CHECK_SUMS : 0;
    a->au_dispatched = a->au_indexed = -1;
    a->au_levels.count = conf->level_count;
    memcpy(a->au_levels.delay_ms, conf->level_delay_ms, sizeof a->au_levels.delay_ms);
    if (a->au_root == NULL) {
        ps_audit_free(a);
        return NULL;
    }
    return a;
}

void au_lights_free(au_lights *l) {
    free(l->li_names);
    free(l->li_numbers);
    *l = (au_lights){0};
}

void ps_audit_free(ps_audit *a) {
    if (a == NULL) return;
    ps_chains_free(&a->au_queues, true);
    au_rivals_free(&a->au_rivals);
    au_lights_free(&a->au_lights);
    for (au_forgotten *g = a->au_gone, *next; g != NULL; g = next) {
        next = g->fo_next;
        free(g);
    }
    for (int32_t i = 0; i < a->au_index_count; i++) free(a->au_indexes[i].xi_path);
    for (int32_t i = 0; i < a->au_segment_count; i++) free(a->au_segments[i].sg_path);
    free(a->au_indexes);
    free(a->au_segments);
    free(a->au_root);
    free(a);
}

au_queue *au_queue_find(ps_audit *a, const uint8_t *topic, int32_t len, int32_t id) {
    au_queue *q = ps_chains_first(&a->au_queues, ps_queue_hash(topic, len, id));
    while (q != NULL && (q->qu_id != id || q->qu_topic_len != len ||
                         memcmp(q->qu_topic, topic, (size_t)len) != 0))
        q = ps_chains_next(q);
    return q;
}

au_queue *au_queue_add(ps_audit *a, const uint8_t *topic, int32_t len, int32_t id) {
    au_queue *q =
        ps_chains_reserve(&a->au_queues) ? calloc(1, sizeof *q + (size_t)len) : NULL;
    if (q == NULL) return NULL;
    q->qu_id = id;
    q->qu_topic_len = len;
    memcpy(q->qu_topic, topic, (size_t)len);
    a->au_lmq = a->au_lmq || ps_name_is_lmq(topic, len);
    q->qu_end = -1;
    ps_chains_add(&a->au_queues, q, ps_queue_hash(topic, len, id));
    return q;
}

int ps_audit_forget(ps_audit *a, const char *topic, int32_t len, int64_t physical, ps_error *e) {
    au_forgotten *g = calloc(1, sizeof *g + (size_t)len);
    if (g == NULL) return ps_no_memory(e, NULL, "no memory for the tables of the audit");
    g->fo_below = physical;
    g->fo_topic_len = len;
    memcpy(g->fo_topic, topic, (size_t)len);
    g->fo_next = a->au_gone;
    a->au_gone = g;
    return 0;
}

bool au_gone(const ps_audit *a, const ps_record *r) {
    for (const au_forgotten *g = a->au_gone; g != NULL; g = g->fo_next)
        if (r->physical_offset < g->fo_below && g->fo_topic_len == r->topic_len &&
            memcmp(g->fo_topic, r->topic, (size_t)r->topic_len) == 0)
            return true;
    return false;
}

int ps_audit_add_segment(ps_audit *a, const char *path, int64_t base, int64_t size, ps_error *e) {
    au_segment *more =
        realloc(a->au_segments, (size_t)(a->au_segment_count + 1) * sizeof *a->au_segments);
    if (more != NULL) a->au_segments = more;
    char *copy = more != NULL ? strdup(path) : NULL;
    if (copy == NULL) return ps_no_memory(e, path, "no memory for the tables of the audit");
    if (a->au_segment_count > 0 && a->au_segments[a->au_segment_count - 1].sg_base >= base) {
        free(copy);
        return ps_fail(e, PS_E_ARGUMENT, 0, base, path,
                       "the segment at %lld comes before the last one that was added",
                       (long long)base);
    }
    a->au_segments[a->au_segment_count++] = (au_segment){copy, base, size};
    return 0;
}

const au_segment *au_segment_at(const ps_audit *a, int64_t physical) {
    int32_t low = 0, high = a->au_segment_count;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (a->au_segments[mid].sg_base <= physical)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0) return NULL;
    const au_segment *s = &a->au_segments[low - 1];
    return physical - s->sg_base < s->sg_size ? s : NULL;
}

/* ---- findings ---- */

ps_finding *au_find(ps_findings *f, int32_t kind, int64_t from, int64_t to, int64_t count,
                    int64_t physical, int64_t value) {
    if (f->count == FINDINGS_MAX || !PS_GROW(f->items, f->room, f->count + 1, 16)) {
        f->dropped++;
        return NULL;
    }
    ps_finding *x = &f->items[f->count++];
    memset(x, 0, sizeof *x);
    x->kind = kind;
    x->queue_id = -1;
    x->from_at = from;
    x->to_at = to;
    x->count = count;
    x->physical = physical;
    x->value = value;
    return x;
}

ps_finding *au_find_queue(ps_findings *f, int32_t kind, const uint8_t *topic, int32_t topic_len,
                          int32_t queue_id, int64_t from, int64_t to, int64_t physical,
                          int64_t value) {
    ps_finding *x = au_find(f, kind, from, to, to - from, physical, value);
    if (x == NULL) return NULL;
    x->queue_id = queue_id;
    x->topic_len = topic_len < (int32_t)sizeof x->topic ? topic_len : (int32_t)sizeof x->topic;
    memcpy(x->topic, topic, (size_t)x->topic_len);
    return x;
}

void ps_findings_free(ps_findings *f) {
    free(f->items);
    *f = (ps_findings){0};
}
