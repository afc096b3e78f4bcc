/* Records without a unit that claim the same queue offset: no unit says which of them has it, so
 * the first in the log does (queues/claims.h), and the others are in no queue. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "audit/table.h"
#include "audit/window.h"
#include "base/bytes.h"
#include "queues/claims.h"

/* ---- between processes ---- */

int ps_audit_claim_next(ps_audit *a, ps_audit_claim *out) {
    au_rivals *rv = &a->au_rivals;
    while (rv->rv_told == NULL || rv->rv_told_run >= rv->rv_told->cl_count) {
        rv->rv_told = ps_chains_each(&rv->rv_table, (void *)rv->rv_told);
        rv->rv_told_run = 0;
        if (rv->rv_told == NULL) return 0;
    }
    const au_claims *c = rv->rv_told;
    const au_run *run = &c->cl_runs[rv->rv_told_run++];
    int32_t len = c->cl_topic_len < (int32_t)sizeof out->topic ? c->cl_topic_len
                                                               : (int32_t)sizeof out->topic;
    *out = (ps_audit_claim){run->from, run->to, run->at, c->cl_id, len, {0}};
    memcpy(out->topic, c->cl_topic, (size_t)len);
    return 1;
}

void ps_audit_claim_add(ps_audit *a, const ps_audit_claim *claim) {
    const au_run run = {claim->from_at, claim->to_at, claim->physical, NULL};
    au_rivals_add(&a->au_rivals, (const uint8_t *)claim->topic, claim->topic_len, claim->queue_id,
                  &run);
}

/* ---- who has an offset ---- */

/* Finds where the records of a run are: it is walked again, as it was when it was met. */
static void look_up(ps_audit *a, const au_claims *c, au_run *run) {
    const au_segment *s = au_segment_at(a, run->at);
    int64_t count, next = run->from;
    ps_window w;
    run->places = calloc((size_t)(run->to - run->from), sizeof *run->places);
    if (run->places == NULL || s == NULL || ps_window_open(&w, a->au_io, s->sg_path, NULL) < 0)
        return;
    for (int64_t at = run->at - s->sg_base; next < run->to && at < s->sg_size;) {
        ps_record r;
        const uint8_t *p = ps_window_get(&w, at, PS_RECORD_FIXED, &count);
        int32_t size = p != NULL && count >= 4 ? (int32_t)be32_get(p) : 0;
        if (size >= PS_RECORD_FIXED && size > count) p = ps_window_get(&w, at, size, &count);
        if (p == NULL ||
            ps_record_check(p, count, s->sg_base + at, a->au_checks, &r) != PS_REC_OK) {
            at++; /* damage amid the run */
            continue;
        }
        const ps_queue_place place = {c->cl_topic, c->cl_topic_len, c->cl_id, next};
        if (ps_record_claims(&r, &place)) run->places[next++ - run->from] = s->sg_base + at;
        at += r.size;
    }
    ps_window_close(&w);
}

static int64_t place_of(ps_audit *a, const au_claims *c, au_run *run, int64_t offset) {
    if (offset == run->from) return run->at;
    if (run->places == NULL) look_up(a, c, run);
    return run->places != NULL ? run->places[offset - run->from] : run->at;
}

static int by_offset(const void *x, const void *y) {
    const au_run *a = x, *b = y;
    if (a->from != b->from) return a->from < b->from ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Of the runs [first, end), which are ordered, the one whose record at `offset` is the first in the
 * log. */
static au_run *owner_of(au_claims *c, int32_t first, int32_t end, int64_t offset) {
    au_run *owner = NULL;
    for (int32_t i = first; i < end && c->cl_runs[i].from <= offset; i++)
        if (offset < c->cl_runs[i].to && (owner == NULL || c->cl_runs[i].at < owner->at))
            owner = &c->cl_runs[i];
    return owner;
}

/* Runs [first, end) overlap, one with the next. */
static void compare_runs(ps_audit *a, au_claims *c, int32_t first, int32_t end,
                         ps_findings *out) {
    for (int32_t i = first; i < end; i++) {
        au_run *run = &c->cl_runs[i];
        for (int64_t offset = run->from; offset < run->to; offset++) {
            au_run *owner = owner_of(c, first, end, offset);
            if (owner == NULL || owner == run) continue;
            au_find_queue(out, PS_FIND_SAME_OFFSET, c->cl_topic, c->cl_topic_len, c->cl_id, offset,
                          offset + 1, place_of(a, c, run, offset), place_of(a, c, owner, offset));
        }
    }
}

void ps_audit_rivals(ps_audit *a, ps_findings *out) {
    for (au_claims *c = NULL; (c = ps_chains_each(&a->au_rivals.rv_table, c)) != NULL;) {
        qsort(c->cl_runs, (size_t)c->cl_count, sizeof *c->cl_runs, by_offset);
        int32_t first = 0;
        for (int32_t i = 1; i <= c->cl_count; i++) {
            int64_t upto = c->cl_runs[first].to;
            while (i < c->cl_count && c->cl_runs[i].from < upto) {
                if (c->cl_runs[i].to > upto) upto = c->cl_runs[i].to;
                i++;
            }
            if (i - first > 1) compare_runs(a, c, first, i, out);
            first = i;
        }
    }
}
