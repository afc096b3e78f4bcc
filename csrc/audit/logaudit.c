/* One segment of the log: each record by itself, then against its queue and the index.
 *
 * Where no whole record stands, the walk looks for the next place where one does, by its magic, its
 * own place in the log and its sums, so that damage costs just what is damaged. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "audit/cursor.h"
#include "audit/lightaudit.h"
#include "base/bytes.h"
#include "format/multi.h"
#include "format/utf8.h"
#include "index/keys.h"
#include "queues/claims.h"

#define PROGRESS_STEP (4 << 20)
#define HEAD 8          /* size and magic */
#define HEAD_MOST 256   /* all before the body, of any record */
#define KEYS_MOST 64    /* keys of a record that are compared one by one */

typedef struct segment_walk {
    ps_audit *a;
    ps_window file;
    au_cursors queues;
    au_entries entries;
    au_light_row lights;
    ps_audit_segment_facts *facts;
    ps_findings *out;
    int64_t base;
    bool last;
    int64_t time;                /* store time of the record before */
    int64_t back_from, back_ms;  /* first record whose time went back, and the most */
    int64_t back_count;
    int64_t keys_missing;        /* number of the open finding of missing keys, -1 */
    int64_t ghosts;              /* number of the open finding of ghost entries, -1 */
    int64_t no_folder;           /* number of the finding of light queues without a folder, -1 */
} segment_walk;

/* ---- finding records ---- */

/* Reads a whole record only when its lengths add up, so that a size that lies costs no memory. */
static bool lengths_add_up(ps_window *w, int64_t at, int32_t size) {
    int64_t count, left;
    const uint8_t *p = ps_window_get(w, at, HEAD_MOST, &count);
    if (p == NULL || count < PS_RECORD_FIXED) return false;
    int32_t v2 = be32_get(p + PS_AT_MAGIC) == PS_MAGIC_V2;
    int32_t body_at = ps_body_at((int32_t)be32_get(p + PS_AT_SYS_FLAG));
    int32_t fixed = body_at + 3 + v2; /* after the body stand the lengths of topic and properties */
    int64_t body_len = (int32_t)be32_get(p + body_at - PS_LATE_BODY + PS_LATE_BODY_LEN);
    left = (int64_t)size - fixed - body_len;
    if (body_len < 0 || left < 0) return false;
    p = ps_window_get(w, at + body_at + body_len, HEAD_MOST * 2, &count);
    if (p == NULL || count < 1 + v2) return false;
    int32_t topic_len = v2 ? (int16_t)be16_get(p) : (int8_t)p[0];
    if (topic_len < 0 || topic_len > left || count < 3 + v2 + topic_len) return false;
    return (int16_t)be16_get(p + 1 + v2 + topic_len) == left - topic_len;
}

/* What stands at `at` of the file. The bytes of *r are valid until the window moves. */
static ps_rec_outcome record_at(ps_window *w, const ps_audit *a, int64_t base, int64_t at,
                                ps_record *r) {
    int64_t count, rest = w->wd_size - at;
    const uint8_t *p = ps_window_get(w, at, HEAD, &count);
    if (p == NULL || count < HEAD) return rest <= 0 ? PS_REC_END : PS_REC_SHORT;
    int32_t size = (int32_t)be32_get(p + PS_AT_SIZE);
    uint32_t magic = be32_get(p + PS_AT_MAGIC);
    if (magic == PS_MAGIC_V1 || magic == PS_MAGIC_V2) {
        if (size < PS_RECORD_FIXED) return PS_REC_SIZE;
        if (size > rest) return PS_REC_SHORT;
        if (size > count && !lengths_add_up(w, at, size)) return PS_REC_SIZE;
        p = ps_window_get(w, at, size, &count);
        if (p == NULL || count < size) return PS_REC_SHORT;
    }
    return ps_record_check(p, count, base + at, a->au_checks, r);
}

/* The next place from `at` on where a whole record stands, or the blank that ends the file; -1:
 * none. *zeros: every byte before it is zero. */
static int64_t find_next_record(ps_window *w, const ps_audit *a, int64_t base, int64_t at,
                                int64_t *size, bool *zeros) {
    *zeros = true;
    while (at + HEAD <= w->wd_size) {
        int64_t count, data = ps_window_next_data(w, at);
        if (data > at) {
            at = data - data % HEAD > at ? data - data % HEAD : data;
            continue;
        }
        const uint8_t *p = ps_window_get(w, at, HEAD, &count);
        if (p == NULL || count < HEAD) break;
        /* The second byte of all magics differs, the last byte of a blank's is a '4'. */
        int64_t n = 0, room = count - HEAD + 1;
        for (; n < room; n++) {
            const uint8_t *m = p + n + PS_AT_MAGIC;
            uint64_t eight = 1;
            if (n + 8 <= room) memcpy(&eight, m, 8);
            if (eight == 0) n += 7; /* room made ahead: most of what is searched */
            if (m[0] != 0xDA && m[0] != 0xCB) continue;
            uint32_t magic = be32_get(m);
            if (magic == PS_MAGIC_V1 || magic == PS_MAGIC_V2 || magic == PS_MAGIC_BLANK) break;
        }
        if (*zeros) *zeros = all_zero(p, n);
        at += n;
        if (n == room) continue;
        ps_record r;
        ps_rec_outcome o = record_at(w, a, base, at, &r);
        *size = r.size;
        if (o == PS_REC_OK || (o == PS_REC_BLANK && r.size == w->wd_size - at)) return at;
        *zeros = false;
        at++;
    }
    return -1;
}

/* ---- one whole record ---- */

/* Clients make a UNIQ_KEY of 32 or 40 upper-case hex digits (MessageClientIDSetter). Others write
 * what they like; one that has all but a digit or two right was right once. */
static bool nearly_unique_key(const uint8_t *name, const uint8_t *end) {
    static const char key[] = "UNIQ_KEY";
    const uint8_t *value = name + sizeof key; /* after the separator */
    int32_t wrong = 0;
    if (end - name < (int64_t)sizeof key || memcmp(name, key, sizeof key - 1) != 0 ||
        value[-1] != PS_NAME_SEPARATOR || (end - value != 32 && end - value != 40))
        return false;
    for (const uint8_t *p = value; p < end; p++)
        wrong += !((*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'F'));
    return wrong == 1 || wrong == 2;
}

static void check_fields(segment_walk *w, const ps_record *r) {
    int64_t dropped = 0, at = r->physical_offset;
    bool suspect = !ps_utf8_valid(r->properties, r->properties_len);
    const uint8_t *p = r->properties, *end = p + r->properties_len;
    while (p < end) {
        const uint8_t *stop = memchr(p, PS_PROPERTY_SEPARATOR, (size_t)(end - p));
        if (stop == NULL) stop = end;
        const uint8_t *name = memchr(p, PS_NAME_SEPARATOR, (size_t)(stop - p));
        if (stop > p && (name == NULL || name == p)) dropped++;
        suspect = suspect || nearly_unique_key(p, stop);
        p = stop < end ? stop + 1 : end;
    }
    if (dropped > 0) au_find(w->out, PS_FIND_PROPERTIES, at, at + r->size, 1, at, dropped);
    if (suspect) au_find(w->out, PS_FIND_SUSPECT, at, at + r->size, 1, at, 0);
    if (r->store_timestamp < w->time) {
        int64_t back; /* damage makes any number of a time */
        if (__builtin_sub_overflow(w->time, r->store_timestamp, &back)) back = INT64_MAX;
        if (w->back_count++ == 0) w->back_from = at;
        if (back > w->back_ms) w->back_ms = back;
    }
    w->time = r->store_timestamp;
    if (w->facts->first_time < 0) w->facts->first_time = r->store_timestamp;
    w->facts->last_time = r->store_timestamp;
}

/* Extends the open finding of a cursor, or opens one. */
static void unit_missing(segment_walk *w, au_cursor *c, const ps_record *r) {
    if (r->physical_offset >= w->a->au_dispatched) {
        if (w->facts->units_pending++ == 0) w->facts->pending_from = r->physical_offset;
        return;
    }
    ps_finding *open = c->cu_missing >= 0 ? &w->out->items[c->cu_missing] : NULL;
    if (open != NULL && open->to_at == r->queue_offset) {
        open->to_at++;
        open->count++;
        return;
    }
    if (au_find_queue(w->out, PS_FIND_UNIT_MISSING, c->cu_topic, c->cu_topic_len, c->cu_id,
                      r->queue_offset, r->queue_offset + 1, r->physical_offset,
                      c->cu_queue == NULL) != NULL)
        c->cu_missing = w->out->count - 1;
}

/* Whether the unit at an offset of the queue of r names another record, which says so, too. That of
 * a lost message names the queue's next record. */
static bool is_of_another(segment_walk *w, const ps_record *r, int64_t offset, const ps_unit *u) {
    const ps_queue_place at = {r->topic, r->topic_len, r->queue_id, offset};
    const au_segment *s = au_segment_at(w->a, u->physical);
    ps_window other;
    ps_record x;
    if (s == NULL || ps_window_open(&other, w->a->au_io, s->sg_path, NULL) < 0) return false;
    bool named = record_at(&other, w->a, s->sg_base, u->physical - s->sg_base, &x) == PS_REC_OK;
    if (named && u->size == PS_UNIT_NONE) {
        const ps_queue_place next = {at.topic, at.topic_len, at.queue_id, x.queue_offset};
        named = x.queue_offset > offset && ps_record_claims(&x, &next);
    } else if (named)
        named = ps_unit_names(u, &x, &at);
    ps_window_close(&other);
    return named;
}

/* Units ascend in the log. So a record has no place in its queue when one with a higher offset
 * stands before it in the log, or one with a lower offset after it: the place of that one, -1 none.
 * u: the unit that stands where r belongs, if it is one of a lost message, else NULL. */
static int64_t in_the_way(segment_walk *w, au_cursor *c, const ps_record *r, const ps_unit *u) {
    int64_t q = r->queue_offset, at = r->physical_offset;
    ps_unit before;
    if (u != NULL && u->physical > 0 && u->physical < at && is_of_another(w, r, q, u))
        return u->physical;
    if (c->cu_queue == NULL || at >= c->cu_queue->qu_end) return -1;
    if (c->cu_stays != q) {
        int64_t offset = au_cursor_before(&w->queues, c, q, &before);
        if (offset >= 0 && before.physical > at && is_of_another(w, r, offset, &before))
            return before.physical;
    }
    c->cu_stays = q + 1;
    return -1;
}

static void check_queue(segment_walk *w, const ps_record *r) {
    if (au_gone(w->a, r)) {
        w->facts->forgotten++;
        return;
    }
    int64_t at = r->physical_offset, q = r->queue_offset;
    if (!ps_record_names_queue(r)) {
        au_find(w->out, PS_FIND_NO_QUEUE, at, at + r->size, 1, at, r->queue_id);
        return;
    }
    /* Every message took some bytes of the log, so no queue is longer than the log has records. */
    if (q < 0 || q > INT64_MAX / PS_UNIT - 1) {
        au_find(w->out, PS_FIND_QUEUE_OFFSET, at, at + r->size, 1, at, q);
        return;
    }
    ps_unit u;
    au_cursor *c = au_cursor_of(&w->queues, r);
    if (c == NULL) return;
    bool there = au_cursor_unit(&w->queues, c, q, &u);
    if (!there || u.size == PS_UNIT_NONE) {
        int64_t other = in_the_way(w, c, r, there ? &u : NULL);
        if (other >= 0) {
            au_find_queue(w->out, PS_FIND_SAME_OFFSET, c->cu_topic, c->cu_topic_len, c->cu_id, q,
                          q + 1, at, other);
            return;
        }
        au_cursor_claims(&w->queues, c, r);
        unit_missing(w, c, r);
        return;
    }
    int kind = 0;
    int64_t tags = ps_record_tags_code(r, &w->a->au_levels), value = 0;
    if (u.physical != at) {
        kind = is_of_another(w, r, q, &u) ? PS_FIND_SAME_OFFSET : PS_FIND_UNIT_FOREIGN;
        value = u.physical;
    } else if (u.size != r->size) {
        kind = PS_FIND_UNIT_SIZE;
        value = u.size;
    } else if (u.tags_code != tags && u.tags_code >= INT32_MIN) { /* below: an extension */
        kind = PS_FIND_UNIT_TAGS;
        value = u.tags_code;
    }
    if (u.physical == at) c->cu_matched++;
    if (kind != 0)
        au_find_queue(w->out, kind, c->cu_topic, c->cu_topic_len, c->cu_id, q, q + 1, at, value);
}

/* Where our own files have the light queues, none needs a folder. */
static void without_folder(segment_walk *w, const ps_record *r) {
    ps_finding *open = w->no_folder >= 0 ? &w->out->items[w->no_folder] : NULL;
    if (w->a->au_lights.li_on || au_gone(w->a, r)) return;
    if (open != NULL) {
        open->to_at = r->physical_offset + r->size;
        open->count++;
    } else if (au_find(w->out, PS_FIND_LIGHT_NO_FOLDER, r->physical_offset,
                       r->physical_offset + r->size, 1, r->physical_offset, 0) != NULL)
        w->no_folder = w->out->count - 1;
}

static void check_unit(segment_walk *w, const ps_record *r) {
    ps_multi m;
    if (!ps_record_has_unit(r) || (r->sys_flag & PS_SYS_INNER_BATCH) != 0) return;
    check_queue(w, r);
    if (!w->a->au_lmq || !ps_multi_of(r, &m)) return;
    while (ps_multi_next(&m))
        if (au_queue_find(w->a, m.mu_as.topic, m.mu_as.topic_len, 0) != NULL)
            check_queue(w, &m.mu_as);
        else
            without_folder(w, &m.mu_as);
}

/* ---- keys ---- */

static void key_missing(segment_walk *w, const ps_record *r, int64_t count) {
    ps_finding *open = w->keys_missing >= 0 ? &w->out->items[w->keys_missing] : NULL;
    if (open != NULL) {
        open->to_at = r->physical_offset + r->size;
        open->count += count;
    } else if (au_find(w->out, PS_FIND_KEY_MISSING, r->physical_offset,
                       r->physical_offset + r->size, count, r->physical_offset, 0) != NULL)
        w->keys_missing = w->out->count - 1;
}

/* Entries that no record in order asks for. */
static void entry_ghost(segment_walk *w, const au_entry *e) {
    ps_finding *open = w->ghosts >= 0 ? &w->out->items[w->ghosts] : NULL;
    if (open != NULL)
        open->count++;
    else if (au_find(w->out, PS_FIND_INDEX_GHOST, w->entries.en_at, w->entries.en_at + 1, 1,
                     e->physical, e->hash) != NULL)
        w->ghosts = w->out->count - 1;
}

static void skip_ghosts(segment_walk *w, int64_t before) {
    au_entry e;
    while (au_entries_peek(&w->entries, &e) && e.physical < before) {
        entry_ghost(w, &e);
        au_entries_take(&w->entries);
    }
}

/* As the cursor of the record's queue has it, mostly. */
static int32_t topic_hash_of(const segment_walk *w, const ps_record *r) {
    const au_cursor *c = w->queues.cs_recent;
    if (c != NULL && c->cu_topic_len == r->topic_len &&
        memcmp(c->cu_topic, r->topic, (size_t)r->topic_len) == 0)
        return c->cu_topic_hash;
    return ix_topic_hash(r->topic, r->topic_len);
}

static void check_keys(segment_walk *w, const ps_record *r) {
    int32_t wanted[KEYS_MOST], count = 0, hash;
    ix_keys k;
    au_entry e;
    skip_ghosts(w, r->physical_offset);
    bool keyed = ix_record_keys(r, false, &k);
    if (!keyed && (r->sys_flag & PS_SYS_TX_MASK) == PS_SYS_TX_ROLLBACK) return;
    int32_t topic = keyed ? topic_hash_of(w, r) : 0;
    int64_t all = 0;
    while (keyed && ix_key_next(&k, topic, &hash)) {
        if (count < KEYS_MOST) wanted[count++] = hash;
        all++;
    }
    w->facts->keys += all;
    int64_t missing = all;
    while (au_entries_peek(&w->entries, &e) && e.physical == r->physical_offset) {
        int32_t i = 0;
        while (i < count && wanted[i] != e.hash) i++;
        if (i < count) {
            wanted[i] = wanted[--count];
            missing--;
        } else if (ix_tells_of_tags(r, e.hash) > 0) {
            w->facts->tags_entries++; /* an index may have them, and need not */
        } else if (all > KEYS_MOST)
            missing--; /* of so many keys the rest are only counted */
        else
            entry_ghost(w, &e);
        au_entries_take(&w->entries);
    }
    if (missing <= 0) return;
    if (r->physical_offset > w->a->au_indexed) {
        if (w->facts->keys_pending == 0) w->facts->keys_pending_from = r->physical_offset;
        w->facts->keys_pending += missing;
    } else
        key_missing(w, r, missing);
}

/* ---- the walk ---- */

/* A topic is deleted where a record ends. */
static void check_forgotten(segment_walk *w, const ps_record *r) {
    int64_t at = r->physical_offset;
    for (const au_forgotten *g = w->a->au_gone; g != NULL; g = g->fo_next)
        if (at < g->fo_below && g->fo_below < at + r->size)
            au_find_queue(w->out, PS_FIND_FORGOTTEN_AMID, g->fo_topic, g->fo_topic_len, -1, at,
                          g->fo_below, at, g->fo_below);
}

static void record_found(segment_walk *w, const ps_record *r) {
    w->facts->records++;
    w->facts->end = r->physical_offset + r->size;
    check_fields(w, r);
    check_forgotten(w, r);
    check_unit(w, r);
    au_light_row_record(&w->lights, r, w->out);
    check_keys(w, r);
}

/* Whether a writer has put a record there since the window was read: what comes after it was read
 * later, so that a log that grows seems to have a hole. */
static bool has_come(segment_walk *w, int64_t at) {
    ps_record r;
    ps_window_forget(&w->file);
    ps_rec_outcome now = record_at(&w->file, w->a, w->base, at, &r);
    return now == PS_REC_OK || now == PS_REC_BLANK;
}

/* Damage from `at` on: reports it and returns where the walk continues, the file's size at the
 * end. */
static int64_t step_over(segment_walk *w, int64_t at, ps_rec_outcome why) {
    int64_t size = 0;
    bool zeros, from_zero = why == PS_REC_END;
    int64_t next =
        find_next_record(&w->file, w->a, w->base, at + (from_zero ? 0 : 1), &size, &zeros);
    zeros = zeros && from_zero;
    if (next < 0 && from_zero && zeros && w->last) return w->file.wd_size; /* the end of the log */
    if (has_come(w, at)) return at;
    int64_t to = next < 0 ? w->file.wd_size : next;
    int kind = zeros ? PS_FIND_HOLE : PS_FIND_DAMAGED;
    if (next < 0 && w->last) kind = PS_FIND_TAIL;
    ps_finding *x = au_find(w->out, kind, w->base + at, w->base + to, -1, -1, 0);
    if (x != NULL) x->outcome = (int32_t)why;
    w->keys_missing = -1;
    return to;
}

/* A blank at `at`: the file should end with it. */
static int64_t blank_found(segment_walk *w, int64_t at, int32_t says) {
    int64_t size, rest = w->file.wd_size - at;
    bool zeros;
    int64_t next = find_next_record(&w->file, w->a, w->base, at + HEAD, &size, &zeros);
    ps_record r;
    /* Recovery's blank may cover the writer's. */
    if (next >= 0 && record_at(&w->file, w->a, w->base, next, &r) == PS_REC_BLANK) next = -1;
    if (says != rest)
        au_find(w->out, PS_FIND_SHORT_BLANK, w->base + at, w->base + w->file.wd_size, -1, -1, says);
    if (next >= 0) {
        au_find(w->out, PS_FIND_AFTER_BLANK, w->base + at, w->base + next, -1, w->base + next,
                says);
        return next;
    }
    w->facts->blank = 1;
    w->facts->end = w->base + w->file.wd_size;
    return w->file.wd_size;
}

static int walk_segment(segment_walk *w, ps_progress *progress) {
    int64_t at = 0, told = 0;
    while (at < w->file.wd_size) {
        ps_record r;
        ps_rec_outcome o = record_at(&w->file, w->a, w->base, at, &r);
        if (o == PS_REC_OK) {
            record_found(w, &r);
            at += r.size;
        } else
            at = o == PS_REC_BLANK ? blank_found(w, at, r.size) : step_over(w, at, o);
        if (at - told < PROGRESS_STEP) continue;
        if (progress != NULL) {
            __atomic_fetch_add(&progress->done, at - told, __ATOMIC_RELAXED);
            if (progress->stop) return PS_E_INTERRUPTED;
        }
        told = at;
    }
    if (progress != NULL) __atomic_fetch_add(&progress->done, at - told, __ATOMIC_RELAXED);
    return 0;
}

static void walk_end(segment_walk *w) {
    ps_audit_segment_facts *f = w->facts;
    int64_t end = w->base + w->file.wd_size;
    if (!w->last) skip_ghosts(w, end);
    au_light_row_skip(&w->lights, end, w->out);
    if (w->back_count > 0)
        au_find(w->out, PS_FIND_TIME, w->back_from, f->end, w->back_count, w->back_from,
                w->back_ms);
    if (w->file.wd_unreadable >= 0)
        au_find(w->out, PS_FIND_UNREADABLE, w->base + w->file.wd_unreadable,
                w->base + w->file.wd_unreadable_upto, -1, -1, w->file.wd_errno);
    if (!w->last && !f->blank && f->end == end)
        au_find(w->out, PS_FIND_NO_BLANK, end, end, -1, -1, 0);
}

int ps_audit_segment(ps_audit *a, int32_t number, int32_t last, ps_progress *progress,
                     ps_audit_segment_facts *facts, ps_findings *out, ps_error *e) {
    if (number < 0 || number >= a->au_segment_count)
        return ps_fail(e, PS_E_ARGUMENT, 0, number, a->au_root,
                       "there is no segment %d: the audit has %d", number, a->au_segment_count);
    const au_segment *s = &a->au_segments[number];
    *facts = (ps_audit_segment_facts){.end = s->sg_base, .first_time = -1, .last_time = -1,
                                      .pending_from = -1, .keys_pending_from = -1};
    segment_walk w = {.a = a, .queues = {.cs_audit = a}, .facts = facts, .out = out,
                      .base = s->sg_base, .last = last != 0,
                      .time = INT64_MIN, .keys_missing = -1, .ghosts = -1,
                      .no_folder = -1};
    int code = ps_window_open(&w.file, a->au_io, s->sg_path, e);
    if (code < 0) return code;
    if (w.file.wd_size > s->sg_size) w.file.wd_size = s->sg_size;
    au_entries_seek(&w.entries, a, s->sg_base);
    au_light_row_seek(&w.lights, a, s->sg_base);
    code = walk_segment(&w, progress);
    walk_end(&w);
    facts->bytes = w.file.wd_size;
    au_entries_close(&w.entries);
    au_light_row_close(&w.lights);
    au_cursors_end(&w.queues);
    ps_window_close(&w.file);
    if (code == PS_E_INTERRUPTED)
        return ps_fail(e, code, 0, s->sg_base, s->sg_path, "the audit was interrupted");
    return code;
}
