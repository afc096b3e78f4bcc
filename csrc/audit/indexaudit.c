/* One index file by itself: header, entries, chains, slots. Its entries are compared with the log
 * when the segments are walked (logaudit.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "audit/table.h"
#include "index/indexfile.h"
#include "index/keys.h"

/* Walks the entries in order; heads[s] becomes the newest entry of slot s. Returns the number of
 * the first entry that is unsound, or count. */
static int32_t walk_entries(ps_window *w, const au_index *x, int32_t count, int64_t log_end,
                            int32_t *heads, ix_entry *first, ix_entry *last) {
    int64_t low = 0, have = 0;
    const uint8_t *p = NULL;
    for (int32_t n = 1; n < count; n++, p += IX_ENTRY, have -= IX_ENTRY) {
        ix_entry e;
        if (have < IX_ENTRY) {
            p = ps_window_get(w, ix_entry_at(x->xi_slots, n), IX_ENTRY, &have);
            if (p == NULL || have < IX_ENTRY) return n;
        }
        ix_entry_get(p, &e);
        if (e.en_hash < 0 || e.en_physical < low || e.en_physical >= log_end) return n;
        int32_t slot = e.en_hash % x->xi_slots;
        if (e.en_previous != heads[slot]) return n;
        heads[slot] = n;
        low = e.en_physical;
        if (n == 1) *first = e;
        *last = e;
    }
    return count;
}

static void check_slots(ps_window *w, const au_index *x, const int32_t *heads, ps_findings *out) {
    int64_t have = 0, wrong = 0, first = -1, last = -1;
    const uint8_t *p = NULL;
    for (int32_t s = 0; s < x->xi_slots; s++, p += IX_SLOT, have -= IX_SLOT) {
        if (have < IX_SLOT) {
            p = ps_window_get(w, ix_slot_at(s), IX_SLOT, &have);
            if (p == NULL || have < IX_SLOT) break;
        }
        int32_t head = (int32_t)be32_get(p);
        /* A live writer may have put entries since the count was read. */
        if (head == heads[s] || head >= x->xi_keep) continue;
        if (wrong++ == 0) first = s;
        last = s;
    }
    if (wrong > 0) au_find(out, PS_FIND_INDEX_SLOT, first, last + 1, wrong, -1, first);
}

static int index_walk(ps_audit *a, au_index *x, ps_window *w, int32_t entries, ps_findings *out) {
    int64_t have;
    ix_entry first = {.en_physical = -1}, last = {.en_physical = -1};
    const uint8_t *p = ps_window_get(w, 0, IX_HEADER, &have);
    if (p == NULL || have < IX_HEADER) return 0;
    int32_t raw = (int32_t)be32_get(p + IX_AT_COUNT);
    int32_t count = raw < 1 ? 1 : raw < entries ? raw : entries;
    int64_t begin = (int64_t)be64_get(p + IX_AT_BEGIN_PHYSICAL);
    int64_t end = (int64_t)be64_get(p + IX_AT_END_PHYSICAL);
    if (raw > entries || raw < 0)
        au_find(out, PS_FIND_INDEX_HEADER, 0, entries, -1, -1, raw);
    int32_t *heads = calloc((size_t)x->xi_slots, sizeof *heads);
    if (heads == NULL) return PS_E_NO_MEMORY;
    x->xi_keep = walk_entries(w, x, count, a->au_conf.log_end, heads, &first, &last);
    if (x->xi_keep < count)
        au_find(out, PS_FIND_INDEX_CHAIN, x->xi_keep, count, count - x->xi_keep, -1, 0);
    else if (count > 1 && (begin != first.en_physical || end != last.en_physical))
        au_find(out, PS_FIND_INDEX_HEADER, 1, count, count - 1, last.en_physical, end);
    x->xi_end = last.en_physical;
    check_slots(w, x, heads, out);
    free(heads);
    if (x->xi_end > a->au_indexed) a->au_indexed = x->xi_end;
    return 0;
}

/* The next of the index files; NULL: no memory. */
static au_index *index_add(ps_audit *a, const char *path, int32_t slots, ps_error *e) {
    au_index *more =
        realloc(a->au_indexes, (size_t)(a->au_index_count + 1) * sizeof *a->au_indexes);
    if (more != NULL) a->au_indexes = more;
    char *copy = more != NULL ? strdup(path) : NULL;
    if (copy == NULL) {
        ps_no_memory(e, path, "no memory for the tables of the audit");
        return NULL;
    }
    au_index *x = &a->au_indexes[a->au_index_count++];
    *x = (au_index){.xi_path = copy, .xi_slots = slots, .xi_keep = 1, .xi_end = -1};
    return x;
}

int ps_audit_index(ps_audit *a, const char *path, int32_t slots, int32_t entries, ps_findings *out,
                   ps_error *e) {
    ps_window w;
    if (slots < 1 || entries < 2)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, path,
                       "an index file has at least 1 slot and 2 entries, not %d and %d", slots,
                       entries);
    au_index *x = index_add(a, path, slots, e);
    if (x == NULL) return PS_E_NO_MEMORY;
    int code = ps_window_open(&w, a->au_io, path, e);
    if (code < 0) return code;
    code = index_walk(a, x, &w, entries, out);
    if (w.wd_unreadable >= 0)
        au_find(out, PS_FIND_UNREADABLE, w.wd_unreadable, w.wd_unreadable_upto, -1, -1, w.wd_errno);
    ps_window_close(&w);
    if (code == PS_E_NO_MEMORY)
        return ps_fail(e, code, ENOMEM, -1, path, "no memory for the slots of an index file");
    return code;
}

void ps_audit_index_get(ps_audit *a, ps_audit_index_facts *out) {
    *out = (ps_audit_index_facts){.keep = 1, .end = -1};
    if (a->au_index_count == 0) return;
    const au_index *x = &a->au_indexes[a->au_index_count - 1];
    *out = (ps_audit_index_facts){x->xi_slots, x->xi_keep, x->xi_end};
}

int ps_audit_index_set(ps_audit *a, const char *path, const ps_audit_index_facts *facts,
                       ps_error *e) {
    if (facts->slots < 1)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, path, "an index file has at least 1 slot, not %d",
                       facts->slots);
    au_index *x = index_add(a, path, facts->slots, e);
    if (x == NULL) return PS_E_NO_MEMORY;
    x->xi_keep = facts->keep;
    x->xi_end = facts->end;
    if (x->xi_end > a->au_indexed) a->au_indexed = x->xi_end;
    return 0;
}

int ps_audit_tells_of_tags(const uint8_t *record, int64_t len, int32_t hash) {
    ps_record r;
    return ps_record_decode(record, len, &r) == PS_REC_OK ? ix_tells_of_tags(&r, hash) : -1;
}
