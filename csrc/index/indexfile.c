/* One index file. What each function promises stands in indexfile.h. */
#include "index/indexfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GUESSES (1 << 20)  /* numbers of slots tried on a file whose layout is unknown */
#define GUESS_ENTRIES 4096 /* entries that a guess must explain */

/* ---- fields ---- */

void ix_head_get(const ix_file *f, ix_head *out) {
    const uint8_t *p = ix_bytes(f);
    out->hd_count = ix_file_count(f);
    out->hd_used = shared32_get(p + IX_AT_SLOTS_USED);
    out->hd_begin_time = shared64_get(p + IX_AT_BEGIN_TIME);
    out->hd_end_time = shared64_get(p + IX_AT_END_TIME);
    out->hd_begin_physical = shared64_get(p + IX_AT_BEGIN_PHYSICAL);
    out->hd_end_physical = shared64_get(p + IX_AT_END_PHYSICAL);
}

void ix_head_put(const ix_file *f, const ix_head *h) {
    uint8_t *p = ix_bytes(f);
    shared32_put(p + IX_AT_COUNT, h->hd_count);
    shared32_put(p + IX_AT_SLOTS_USED, h->hd_used);
    shared64_put(p + IX_AT_BEGIN_TIME, h->hd_begin_time);
    shared64_put(p + IX_AT_END_TIME, h->hd_end_time);
    shared64_put(p + IX_AT_BEGIN_PHYSICAL, h->hd_begin_physical);
    shared64_put(p + IX_AT_END_PHYSICAL, h->hd_end_physical);
}

int64_t ix_time_add(int64_t t, int64_t ms) {
    int64_t sum;
    if (!__builtin_add_overflow(t, ms, &sum)) return sum;
    return ms > 0 ? INT64_MAX : INT64_MIN;
}

int64_t ix_entry_time(int64_t begin_time, int32_t n, int32_t seconds) {
    return n == 1 ? begin_time : ix_time_add(begin_time, (int64_t)seconds * 1000);
}

int32_t ix_seconds_since(int64_t begin_time, int64_t time) {
    int64_t ms;
    if (begin_time <= 0) return 0;
    if (__builtin_sub_overflow(time, begin_time, &ms)) return time > begin_time ? INT32_MAX : 0;
    if (ms < 0) return 0;
    return ms / 1000 > INT32_MAX ? INT32_MAX : (int32_t)(ms / 1000);
}

int64_t ix_file_end_physical(const ix_file *f) {
    ix_entry last;
    int32_t count = ix_file_count(f);
    if (count <= 1) return shared64_get(ix_bytes(f) + IX_AT_END_PHYSICAL);
    ix_file_entry(f, count - 1, &last);
    return last.en_physical;
}

/* ---- layout of files whose sizes were not told ---- */

/* The entries that fit after so many slots; false when the file's size leaves a rest. */
static bool layout_of(int64_t size, int64_t slots, ix_layout *out) {
    int64_t rest = size - IX_HEADER - slots * IX_SLOT;
    if (slots < 1 || slots > INT32_MAX || rest < 2 * IX_ENTRY || rest % IX_ENTRY != 0 ||
        rest / IX_ENTRY > INT32_MAX)
        return false;
    *out = (ix_layout){(int32_t)slots, (int32_t)(rest / IX_ENTRY)};
    return true;
}

/* A glance at the first and the last entry: they hold the header's places, and a slot leads to
 * them. */
static bool layout_likely(const uint8_t *map, const ix_layout *l) {
    int32_t count = shared32_get(map + IX_AT_COUNT);
    int64_t begin = shared64_get(map + IX_AT_BEGIN_PHYSICAL);
    int64_t end = shared64_get(map + IX_AT_END_PHYSICAL);
    ix_entry first, last;
    if (count < 2 || count > l->entries) return false;
    ix_entry_get(map + ix_entry_at(l->slots, 1), &first);
    if (first.en_physical != begin || first.en_previous != 0 || first.en_hash < 0) return false;
    ix_entry_get(map + ix_entry_at(l->slots, count - 1), &last);
    return last.en_hash >= 0 && last.en_physical >= begin && last.en_physical <= end &&
           shared32_get(map + ix_slot_at(last.en_hash % l->slots)) >= count - 1;
}

/* Whether the first entries are ascending and chained slot by slot. */
static bool layout_explains(const uint8_t *map, const ix_layout *l) {
    int32_t count = shared32_get(map + IX_AT_COUNT);
    int64_t physical = 0;
    for (int32_t n = 1; n < count && n < l->entries && n <= GUESS_ENTRIES; n++) {
        ix_entry e, older;
        ix_entry_get(map + ix_entry_at(l->slots, n), &e);
        if (e.en_hash < 0 || e.en_physical < physical || e.en_previous < 0 || e.en_previous >= n)
            return false;
        if (shared32_get(map + ix_slot_at(e.en_hash % l->slots)) < n) return false;
        physical = e.en_physical;
        if (e.en_previous == 0) continue;
        ix_entry_get(map + ix_entry_at(l->slots, e.en_previous), &older);
        if (older.en_hash < 0 || older.en_hash % l->slots != e.en_hash % l->slots) return false;
    }
    return true;
}

static bool layout_good(const uint8_t *map, int64_t size, int64_t slots, ix_layout *out) {
    ix_layout l;
    if (!layout_of(size, slots, &l) || !layout_likely(map, &l) || !layout_explains(map, &l))
        return false;
    *out = l;
    return true;
}

/* Finds the layout that the entries of a file speak for: usual ratios of entries to slots first,
 * then every number of slots that leaves no rest, at most GUESSES of them. */
static bool layout_search(const uint8_t *map, int64_t size, ix_layout *out) {
    static const int32_t ratios[] = {4, 2, 1, 5, 10, 8, 3};
    for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
        int64_t unit = IX_SLOT + (int64_t)ratios[i] * IX_ENTRY;
        if ((size - IX_HEADER) % unit == 0 &&
            layout_good(map, size, (size - IX_HEADER) / unit, out))
            return true;
    }
    /* Five slots are as long as one entry, so that only each fifth number leaves no rest. */
    int64_t slots = (size - IX_HEADER) % IX_ENTRY / IX_SLOT;
    for (int32_t i = 0; i < GUESSES && ix_slot_at(0) + slots * IX_SLOT < size;
         i++, slots += IX_ENTRY / IX_SLOT)
        if (layout_good(map, size, slots, out)) return true;
    return false;
}

bool ix_layout_adopt(const ix_layout *wanted, const uint8_t *map, int64_t size,
                     const ix_layout *hint, ix_layout *out) {
    ix_layout found;
    bool empty = shared32_get(map + IX_AT_COUNT) <= 1;
    bool fits = size == ix_size(wanted->slots, wanted->entries);
    bool like = hint->slots > 0 && size == ix_size(hint->slots, hint->entries);
    *out = fits ? *wanted : *hint;
    if (empty && (fits || like)) return true;
    if (!empty && fits && layout_good(map, size, wanted->slots, &found)) return true;
    if (!empty &&
        (like ? layout_good(map, size, hint->slots, &found) : layout_search(map, size, &found))) {
        *out = found;
        return true;
    }
    /* Nothing in it, or damaged: upstream's ratio is the best guess left. */
    int64_t unit = IX_SLOT + 4 * IX_ENTRY;
    if (fits || like) return true;
    return (size - IX_HEADER) % unit == 0 && empty &&
           layout_of(size, (size - IX_HEADER) / unit, out);
}

/* ---- files ---- */

ix_item *ix_item_new(ps_io *io, ps_mappings *mappings, int64_t number, int64_t size, int flags) {
    ix_item *it = calloc(1, sizeof *it);
    if (it == NULL) return NULL;
    ps_segments_init(&it->it_set, io, size, flags);
    it->it_set.ss_mappings = mappings;
    it->it_number = number;
    atomic_init(&it->it_refs, 1);
    return it;
}

ix_item *ix_item_ref(ix_item *it) {
    atomic_fetch_add_explicit(&it->it_refs, 1, memory_order_relaxed);
    return it;
}

void ix_item_unref(ix_item *it) {
    if (it == NULL || atomic_fetch_sub_explicit(&it->it_refs, 1, memory_order_acq_rel) != 1) return;
    /* Under the set's lock, since the clock may want to unmap the file just now. */
    ps_segments_forget_first(&it->it_set);
    ps_segments_free(&it->it_set);
    free(it);
}

int ix_file_hold(ix_item *it, ix_file *out, ps_error *e) {
    ps_error why = {0};
    ps_mapfile *mf = ps_segments_find(&it->it_set, 0, &why);
    if (mf == NULL) {
        if (e != NULL) *e = why;
        return why.code;
    }
    *out = (ix_file){.if_item = ix_item_ref(it),
                     .if_map = mf,
                     .if_number = it->it_number,
                     .if_slots = it->it_layout.slots,
                     .if_entries = it->it_layout.entries};
    return 0;
}

void ix_file_release(ix_file *f) {
    ps_mapfile_unref(f->if_map);
    ix_item_unref(f->if_item);
    *f = (ix_file){.if_number = f->if_number};
}

/* ---- soundness ---- */

/* Whether the header's times fit the last entry: they are what all times in the file count from, so
 * that a damaged one cannot be told from the entries. */
static bool times_fit(const ix_head *h, const ix_entry *last) {
    if (h->hd_begin_time <= 0) return true; /* every timeDiff is 0 then */
    if (h->hd_count == 2) return h->hd_end_time == h->hd_begin_time;
    int64_t time = ix_time_add(h->hd_begin_time, (int64_t)last->en_seconds * 1000);
    if (h->hd_end_time > ix_time_add(time, IX_MS_LOST) && last->en_seconds < INT32_MAX)
        return false;
    return h->hd_end_time >= time || last->en_seconds == 0;
}

bool ix_file_unused(const ix_file *f) {
    static const uint8_t zeros[IX_ENTRY];
    return ix_file_count(f) <= 1 &&
           memcmp(ix_bytes(f) + ix_entry_at(f->if_slots, 1), zeros, IX_ENTRY) == 0;
}

bool ix_file_plausible(const ix_file *f, int64_t floor, int64_t physical) {
    ix_head h;
    ix_entry first, last;
    ix_head_get(f, &h);
    if (h.hd_count != f->if_entries) return false;
    ix_file_entry(f, 1, &first);
    ix_file_entry(f, h.hd_count - 1, &last);
    return first.en_physical >= floor && first.en_physical == h.hd_begin_physical &&
           last.en_physical == h.hd_end_physical && first.en_physical <= last.en_physical &&
           last.en_physical < physical && times_fit(&h, &last);
}

void ix_file_check(const ix_file *f, int64_t floor, int64_t physical, int32_t *heads,
                   int32_t *keep) {
    const uint8_t *p = ix_bytes(f) + ix_entry_at(f->if_slots, 1);
    int32_t count = ix_file_count(f), n;
    int64_t low = floor > 0 ? floor : 0;
    for (n = 1; n < count; n++, p += IX_ENTRY) {
        ix_entry e;
        ix_entry_get(p, &e);
        if (e.en_hash < 0 || e.en_physical < low || e.en_physical >= physical || e.en_seconds < 0)
            break;
        int32_t slot = e.en_hash % f->if_slots;
        if (e.en_previous != heads[slot]) break;
        heads[slot] = n;
        low = e.en_physical;
    }
    ix_head h;
    ix_entry last;
    ix_head_get(f, &h);
    if (n == count && n > 1) {
        ix_file_entry(f, n - 1, &last);
        if (!times_fit(&h, &last)) n = 1;
    }
    *keep = n;
}

/* The header of a file that keeps entries 1 to keep-1. Times are rounded down where they are not
 * known any more; putting the last record again sets them right. */
static void head_cut(const ix_file *f, int32_t keep, const int32_t *heads, ix_head *h) {
    ix_entry first, last;
    ix_file_entry(f, 1, &first);
    ix_file_entry(f, keep - 1, &last);
    if (keep < h->hd_count) {
        int64_t time = ix_entry_time(h->hd_begin_time, keep - 1, last.en_seconds);
        h->hd_end_time = keep == 2 || time < h->hd_end_time ? time : h->hd_end_time;
    }
    h->hd_count = keep;
    h->hd_begin_physical = first.en_physical;
    h->hd_end_physical = last.en_physical;
    h->hd_used = 0;
    for (int32_t s = 0; s < f->if_slots; s++) h->hd_used += heads[s] != 0;
}

int ix_file_cut(const ix_file *f, int32_t keep, const int32_t *heads, ps_error *e) {
    uint8_t *p = ix_bytes(f);
    ix_head was, h;
    ix_head_get(f, &was);
    h = was;
    head_cut(f, keep, heads, &h);
    bool head_differs =
        memcmp(&was, &h, sizeof h) != 0 || shared32_get(p + IX_AT_COUNT) != h.hd_count;
    int32_t s = 0;
    while (s < f->if_slots && shared32_get(p + ix_slot_at(s)) == heads[s]) s++;
    if (!head_differs && s == f->if_slots) return 0;
    /* The file may be a copy with holes: give them blocks before a store meets a full disk. */
    int64_t upto = ix_entry_at(f->if_slots, 0);
    int code = ps_mapfile_reserve(f->if_map, upto, upto, e);
    if (code < 0) return code;
    ix_head_put(f, &h);
    for (; s < f->if_slots; s++)
        if (shared32_get(p + ix_slot_at(s)) != heads[s]) shared32_put(p + ix_slot_at(s), heads[s]);
    atomic_store(&f->if_item->it_dirty, true);
    return 0;
}
