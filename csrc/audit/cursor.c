/* Cursors of one walk through a segment. See cursor.h. */
#define _GNU_SOURCE
#include "audit/cursor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index/indexfile.h"
#include "index/keys.h"

#define UNITS_FIRST 16 /* read at first: most of many queues hold little */
#define UNITS_MOST 512

static void end_run(au_cursors *cs, au_cursor *c) {
    if (c->cu_run.to > 0)
        au_rivals_add(&cs->cs_audit->au_rivals, c->cu_topic, c->cu_topic_len, c->cu_id,
                      &c->cu_run);
    c->cu_run = (au_run){0};
}

void au_cursor_claims(au_cursors *cs, au_cursor *c, const ps_record *r) {
    if (c->cu_run.to == 0 || c->cu_run.to != r->queue_offset) {
        end_run(cs, c);
        c->cu_run = (au_run){
            .from = r->queue_offset, .to = r->queue_offset, .at = r->physical_offset};
    }
    c->cu_run.to++;
    c->cu_run.end = r->physical_offset + r->size;
}

void au_cursors_end(au_cursors *cs) {
    for (au_cursor *c = NULL; (c = ps_chains_each(&cs->cs_table, c)) != NULL;) {
        end_run(cs, c);
        if (c->cu_queue != NULL) atomic_fetch_add(&c->cu_queue->qu_matched, c->cu_matched);
        free(c->cu_units);
    }
    ps_chains_free(&cs->cs_table, true);
    *cs = (au_cursors){0};
}

static bool is_cursor_of(const au_cursor *c, const ps_record *r) {
    return c->cu_id == r->queue_id && c->cu_topic_len == r->topic_len &&
           memcmp(c->cu_topic, r->topic, (size_t)r->topic_len) == 0;
}

au_cursor *au_cursor_of(au_cursors *cs, const ps_record *r) {
    if (cs->cs_recent != NULL && is_cursor_of(cs->cs_recent, r)) return cs->cs_recent;
    uint32_t h = ps_queue_hash(r->topic, r->topic_len, r->queue_id);
    au_cursor *c = ps_chains_first(&cs->cs_table, h);
    while (c != NULL && !is_cursor_of(c, r)) c = ps_chains_next(c);
    if (c == NULL) {
        if (!ps_chains_reserve(&cs->cs_table)) return NULL;
        c = calloc(1, sizeof *c + (size_t)r->topic_len);
        if (c == NULL) return NULL;
        c->cu_queue = au_queue_find(cs->cs_audit, r->topic, r->topic_len, r->queue_id);
        c->cu_id = r->queue_id;
        c->cu_topic_len = r->topic_len;
        memcpy(c->cu_topic, r->topic, (size_t)r->topic_len);
        c->cu_topic_hash = ix_topic_hash(r->topic, r->topic_len);
        c->cu_missing = c->cu_stays = -1;
        ps_chains_add(&cs->cs_table, c, h);
    }
    cs->cs_recent = c;
    return c;
}

/* Reads units from `offset` on, within one file; twice as many each time the reads follow on each
 * other. */
static void cursor_read(const ps_audit *a, au_cursor *c, int64_t offset) {
    char path[PATH_MAX];
    int64_t size = a->au_conf.consumequeue_file_size, at = offset * PS_UNIT, base = at - at % size;
    int64_t room = c->cu_room == 0                        ? UNITS_FIRST
                   : offset == c->cu_from + c->cu_count   ? c->cu_room * 2
                                                          : c->cu_room;
    if (room > UNITS_MOST) room = UNITS_MOST;
    if (room > c->cu_room) {
        uint8_t *more = realloc(c->cu_units, (size_t)room * PS_UNIT);
        if (more == NULL) return;
        c->cu_units = more;
        c->cu_room = room;
    }
    c->cu_from = offset;
    c->cu_count = 0;
    int len = snprintf(path, sizeof path, "%s/consumequeue/%.*s/%d/%020" PRId64, a->au_root,
                       c->cu_topic_len, (const char *)c->cu_topic, c->cu_id, base);
    if (len < 0 || len >= (int)sizeof path) return;
    int fd = a->au_io->open(a->au_io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME, 0);
    if (fd < 0 && errno == EPERM)
        fd = a->au_io->open(a->au_io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return;
    int64_t want = room * PS_UNIT < size - at % size ? room * PS_UNIT : size - at % size;
    ssize_t got = a->au_io->pread(a->au_io, fd, c->cu_units, (size_t)want, at - base);
    a->au_io->close(a->au_io, fd);
    if (got > 0) c->cu_count = got / PS_UNIT;
}

static bool unit_in_stretch(const au_cursor *c, int64_t offset, ps_unit *out) {
    if (offset < c->cu_from || offset >= c->cu_from + c->cu_count) return false;
    ps_unit_get(c->cu_units + (offset - c->cu_from) * PS_UNIT, out);
    return out->size > 0;
}

bool au_cursor_unit(au_cursors *cs, au_cursor *c, int64_t offset, ps_unit *out) {
    if (c->cu_queue == NULL || offset < 0 || offset > INT64_MAX / PS_UNIT - 1) return false;
    bool fresh = offset < c->cu_from || offset >= c->cu_from + c->cu_count;
    if (fresh) cursor_read(cs->cs_audit, c, offset);
    if (unit_in_stretch(c, offset, out)) return true;
    /* A live writer may have put the unit since the stretch was read. */
    if (fresh || offset < c->cu_queue->qu_max) return false;
    cursor_read(cs->cs_audit, c, offset);
    return unit_in_stretch(c, offset, out);
}

int64_t au_cursor_before(au_cursors *cs, au_cursor *c, int64_t offset, ps_unit *out) {
    int64_t least = c->cu_queue->qu_first / PS_UNIT, end = c->cu_queue->qu_max;
    int64_t each = cs->cs_audit->au_conf.consumequeue_file_size / PS_UNIT;
    for (end = offset < end ? offset : end; end > least;) {
        int64_t file = (end - 1) - (end - 1) % each;
        int64_t from = end - c->cu_room > file ? end - c->cu_room : file;
        cursor_read(cs->cs_audit, c, from);
        for (int64_t at = end - 1; at >= from; at--)
            if (unit_in_stretch(c, at, out) && out->size != PS_UNIT_NONE) return at;
        end = from;
    }
    return -1;
}

/* ---- index entries ---- */

static bool entries_open(au_entries *es, int32_t number) {
    if (es->en_open == number) return true;
    if (es->en_open >= 0) ps_window_close(&es->en_file);
    es->en_open = -1;
    if (ps_window_open(&es->en_file, es->en_audit->au_io, es->en_audit->au_indexes[number].xi_path,
                       NULL) < 0)
        return false;
    es->en_open = number;
    return true;
}

static bool entry_read(au_entries *es, int32_t number, int32_t n, ix_entry *out) {
    int64_t count;
    if (!entries_open(es, number)) return false;
    int32_t slots = es->en_audit->au_indexes[number].xi_slots;
    const uint8_t *p = ps_window_get(&es->en_file, ix_entry_at(slots, n), IX_ENTRY, &count);
    if (p == NULL || count < IX_ENTRY) return false;
    ix_entry_get(p, out);
    return true;
}

void au_entries_seek(au_entries *es, ps_audit *a, int64_t physical) {
    *es = (au_entries){.en_audit = a, .en_open = -1, .en_at = 1};
    while (es->en_number < a->au_index_count &&
           a->au_indexes[es->en_number].xi_end < physical)
        es->en_number++;
    if (es->en_number >= a->au_index_count) return;
    int32_t low = 1, high = a->au_indexes[es->en_number].xi_keep;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        ix_entry e;
        if (!entry_read(es, es->en_number, mid, &e)) break;
        if (e.en_physical < physical)
            low = mid + 1;
        else
            high = mid;
    }
    es->en_at = low;
}

bool au_entries_bring(au_entries *es) {
    ix_entry e;
    while (es->en_number < es->en_audit->au_index_count) {
        if (es->en_at < es->en_audit->au_indexes[es->en_number].xi_keep &&
            entry_read(es, es->en_number, es->en_at, &e)) {
            es->en_entry = (au_entry){e.en_physical, e.en_hash};
            return es->en_ready = true;
        }
        es->en_number++;
        es->en_at = 1;
    }
    return false;
}

void au_entries_close(au_entries *es) {
    if (es->en_open >= 0) ps_window_close(&es->en_file);
    es->en_open = -1;
}
