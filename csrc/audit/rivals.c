/* Records without a unit: what the next open, or a repair, does with them. Of two that claim one
 * queue offset the first in the log has it (queues/claims.h), and one that the queue has gone past,
 * or whose offset is not believed, is in no queue. */
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
    *out = (ps_audit_claim){run->from, run->to, run->at, run->end, c->cl_id, len, {0}};
    memcpy(out->topic, c->cl_topic, (size_t)len);
    return 1;
}

void ps_audit_claim_add(ps_audit *a, const ps_audit_claim *claim) {
    const au_run run = {
        .from = claim->from_at, .to = claim->to_at, .at = claim->physical, .end = claim->end};
    au_rivals_add(&a->au_rivals, (const uint8_t *)claim->topic, claim->topic_len, claim->queue_id,
                  &run);
}

/* ---- who has an offset ---- */

/* The record at `at` of the log; what it says is valid until the window is closed. */
static bool record_at(ps_audit *a, ps_window *w, const au_segment *s, int64_t at, ps_record *r) {
    int64_t count;
    const uint8_t *p = ps_window_get(w, at, PS_RECORD_FIXED, &count);
    int32_t size = p != NULL && count >= 4 ? (int32_t)be32_get(p) : 0;
    if (size >= PS_RECORD_FIXED && size > count) p = ps_window_get(w, at, size, &count);
    return p != NULL && ps_record_check(p, count, s->sg_base + at, a->au_checks, r) == PS_REC_OK;
}

/* Finds where the records of a run are: it is walked again, as it was when it was met. */
static void look_up(ps_audit *a, const au_claims *c, au_run *run) {
    const au_segment *s = au_segment_at(a, run->at);
    int64_t next = run->from;
    ps_window w;
    run->places = calloc((size_t)(run->to - run->from), sizeof *run->places);
    if (run->places == NULL || s == NULL || ps_window_open(&w, a->au_io, s->sg_path, NULL) < 0)
        return;
    for (int64_t at = run->at - s->sg_base; next < run->to && at < s->sg_size;) {
        ps_record r;
        if (!record_at(a, &w, s, at, &r)) {
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

static int64_t end_of(ps_audit *a, int64_t at) {
    const au_segment *s = au_segment_at(a, at);
    ps_window w;
    ps_record r;
    if (s == NULL || ps_window_open(&w, a->au_io, s->sg_path, NULL) < 0) return at;
    int64_t end = record_at(a, &w, s, at - s->sg_base, &r) ? at + r.size : at;
    ps_window_close(&w);
    return end;
}

static int by_place(const void *x, const void *y) {
    const au_run *a = x, *b = y;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Why a record is in no queue: the place of the one that has its offset; else of the first one in
 * the log that is beyond it, or, once the queue had gone past, of the next that is in it. -1: there
 * is none among those without a unit. */
static int64_t instead_of(ps_audit *a, au_claims *c, int32_t number, int64_t offset) {
    au_run *beyond = NULL, *next = NULL;
    for (int32_t i = 0; i < c->cl_count; i++) {
        au_run *run = &c->cl_runs[i];
        if (i == number || run->got >= run->to) continue;
        if (run->got <= offset && offset < run->to) return place_of(a, c, run, offset);
        if (beyond == NULL && run->got > offset) beyond = run;
        if (next == NULL && i > number) next = run;
    }
    au_run *other = beyond != NULL ? beyond : next;
    return other != NULL ? place_of(a, c, other, other->got) : -1;
}

static void name_hidden(ps_audit *a, au_claims *c, int32_t number, int64_t from, int64_t to,
                        ps_findings *out) {
    for (int64_t offset = from; offset < to; offset++) {
        int64_t other = instead_of(a, c, number, offset);
        int64_t at = place_of(a, c, &c->cl_runs[number], offset);
        if (other >= 0)
            au_find_queue(out, PS_FIND_SAME_OFFSET, c->cl_topic, c->cl_topic_len, c->cl_id, offset,
                          offset + 1, at, other);
        else if (offset >= c->cl_runs[number].doubted)
            au_find(out, PS_FIND_QUEUE_OFFSET, at, end_of(a, at), 1, at, offset);
    }
}

/* A run amid records that have units: those before it in the log have what they claim. */
static void settle_amid(ps_audit *a, au_claims *c, int32_t number, ps_findings *out) {
    au_run *run = &c->cl_runs[number];
    for (int32_t i = 0; i < number; i++) {
        au_run *other = &c->cl_runs[i];
        int64_t from = other->got > run->from ? other->got : run->from;
        int64_t to = other->to < run->to ? other->to : run->to;
        if (from < to) name_hidden(a, c, number, from, to, out);
    }
    run->got = run->from;
}

/* Where the records of one queue go, in the order of the log: as ps_queue_append has it. */
static void settle_queue(ps_audit *a, au_claims *c, ps_findings *out) {
    const au_queue *q = au_queue_find(a, c->cl_topic, c->cl_topic_len, c->cl_id);
    int64_t max = q != NULL ? q->qu_max : 0, end = q != NULL ? q->qu_end : -1, before = end;
    au_run *doubted = NULL;
    qsort(c->cl_runs, (size_t)c->cl_count, sizeof *c->cl_runs, by_place);
    for (int32_t i = 0; i < c->cl_count; i++)
        c->cl_runs[i].got = c->cl_runs[i].doubted = c->cl_runs[i].to;
    for (int32_t i = 0; i < c->cl_count; i++) {
        au_run *run = &c->cl_runs[i];
        if (run->at < end) {
            settle_amid(a, c, i, out);
            continue;
        }
        int64_t low = run->from > max ? run->from : max < run->to ? max : run->to;
        name_hidden(a, c, i, run->from, low, out);
        if (low == run->to) continue;
        int64_t at = low > max ? place_of(a, c, run, low) : run->at;
        bool goes_on = low > max && doubted != NULL && doubted->to == low;
        bool may_go_on = ps_offset_possible(c->cl_topic_len, low, at, 0, -1);
        if (low > max && !goes_on && !ps_offset_possible(c->cl_topic_len, low, at, max, before) &&
            (low + 1 == run->to || !may_go_on)) {
            run->doubted = low;
            if (may_go_on) doubted = run;
            continue;
        }
        if (goes_on) doubted->got = doubted->doubted;
        run->got = low;
        max = run->to;
        before = run->end;
    }
    for (int32_t i = 0; i < c->cl_count; i++)
        if (c->cl_runs[i].got == c->cl_runs[i].to)
            name_hidden(a, c, i, c->cl_runs[i].doubted, c->cl_runs[i].to, out);
}

void ps_audit_rivals(ps_audit *a, ps_findings *out) {
    for (au_claims *c = NULL; (c = ps_chains_each(&a->au_rivals.rv_table, c)) != NULL;)
        settle_queue(a, c, out);
}
