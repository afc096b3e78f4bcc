/* One index file: its bytes, what they mean, and how far they are sound. Used by index.c alone.
 *
 * All integers are big-endian and signed. S is the number of slots, N that of entries
 * (maxHashSlotNum and maxIndexNum); a file has 40 + S*4 + N*20 bytes.
 *
 *   offset       width  name                  meaning
 *   0            8      IX_AT_BEGIN_TIME      beginTimestamp: store time of the first record, ms
 *   8            8      IX_AT_END_TIME        endTimestamp: store time of the last record, ms
 *   16           8      IX_AT_BEGIN_PHYSICAL  beginPhyOffset: place of the first record in the log
 *   24           8      IX_AT_END_PHYSICAL    endPhyOffset: place of the last record in the log
 *   32           4      IX_AT_SLOTS_USED      hashSlotCount
 *   36           4      IX_AT_COUNT           indexCount: number of the next entry; 0 counts as 1
 *   40           S*4    slots                 number of the newest entry of the chain, 0 none
 *   40+S*4+n*20  20     entry n               n from 1 to N-1; entry 0 is never used
 *
 *   in an entry
 *   0            4      IX_IN_HASH            keyHash of "topic#key"; its slot is keyHash % S
 *   4            8      IX_IN_PHYSICAL        phyOffset: place of the record
 *   12           4      IX_IN_SECONDS         timeDiff: store time less beginTimestamp, whole s
 *   16           4      IX_IN_PREVIOUS        number of the next older entry of the slot, 0 none
 *
 * A file is named by the local time of its birth, yyyyMMddHHmmssSSS. Names order the files and mean
 * nothing else. A new file takes over the end of the one before as its begin and end; timeDiff of
 * its first entry therefore counts from there, and only then is beginTimestamp that entry's own.
 *
 * Upstream: store/.../index/IndexFile, IndexHeader. */
#ifndef PS_INDEXFILE_H
#define PS_INDEXFILE_H

#include "base/bytes.h"
#include "files/segments.h"

#define IX_AT_BEGIN_TIME 0
#define IX_AT_END_TIME 8
#define IX_AT_BEGIN_PHYSICAL 16
#define IX_AT_END_PHYSICAL 24
#define IX_AT_SLOTS_USED 32
#define IX_AT_COUNT 36
#define IX_HEADER 40
#define IX_SLOT 4
#define IX_ENTRY 20
#define IX_IN_HASH 0
#define IX_IN_PHYSICAL 4
#define IX_IN_SECONDS 12
#define IX_IN_PREVIOUS 16

#define IX_MS_LOST 999 /* timeDiff is rounded down to a second */

typedef struct ix_layout {
    int32_t slots;
    int32_t entries;
} ix_layout;

/* A file of the index, mapped or not. */
typedef struct ix_item {
    ps_segments it_set; /* of this one file: it is mapped when it is asked for */
    int64_t it_number;  /* the name */
    ix_layout it_layout;
    _Atomic int32_t it_refs;
    _Atomic int32_t it_count; /* as of when it was full; 0: not known */
    _Atomic bool it_dirty;    /* written to since the last sync began */
    _Atomic bool it_gone;     /* deleted or moved aside, or about to be */
} ix_item;

/* A file that somebody holds: it stays mapped until ix_file_release. */
typedef struct ix_file {
    ix_item *if_item;   /* NULL: none is held */
    ps_mapfile *if_map;
    int64_t if_number;  /* stays after the release */
    int32_t if_slots;
    int32_t if_entries;
} ix_file;

typedef struct ix_head {
    int64_t hd_begin_time, hd_end_time;
    int64_t hd_begin_physical, hd_end_physical;
    int32_t hd_used, hd_count;
} ix_head;

typedef struct ix_entry {
    int64_t en_physical;
    int32_t en_hash, en_seconds, en_previous;
} ix_entry;

/* Slots and header fields are read by queries while the dispatcher writes them, in this process
 * or in another, so that each must go through memory in one piece. They lie at multiples of their
 * size, since mappings start at a page; that is what allows the casts. */
static inline int32_t shared32_get(const uint8_t *p) {
    uint32_t v = __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE);
    return (int32_t)__builtin_bswap32(v);
}
static inline void shared32_put(uint8_t *p, int32_t v) {
    __atomic_store_n((uint32_t *)(void *)p, __builtin_bswap32((uint32_t)v), __ATOMIC_RELEASE);
}
static inline int64_t shared64_get(const uint8_t *p) {
    uint64_t v = __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_ACQUIRE);
    return (int64_t)__builtin_bswap64(v);
}
static inline void shared64_put(uint8_t *p, int64_t v) {
    __atomic_store_n((uint64_t *)(void *)p, __builtin_bswap64((uint64_t)v), __ATOMIC_RELEASE);
}

static inline uint8_t *ix_bytes(const ix_file *f) {
    return f->if_map->mf_map;
}

static inline int64_t ix_slot_at(int32_t slot) {
    return IX_HEADER + (int64_t)slot * IX_SLOT;
}

static inline int64_t ix_entry_at(int32_t slots, int32_t n) {
    return ix_slot_at(slots) + (int64_t)n * IX_ENTRY;
}

static inline int64_t ix_size(int32_t slots, int32_t entries) {
    return ix_entry_at(slots, entries);
}

static inline void ix_entry_get(const uint8_t *p, ix_entry *out) {
    out->en_hash = (int32_t)be32_get(p + IX_IN_HASH);
    out->en_physical = (int64_t)be64_get(p + IX_IN_PHYSICAL);
    out->en_seconds = (int32_t)be32_get(p + IX_IN_SECONDS);
    out->en_previous = (int32_t)be32_get(p + IX_IN_PREVIOUS);
}

static inline void ix_file_entry(const ix_file *f, int32_t n, ix_entry *out) {
    ix_entry_get(ix_bytes(f) + ix_entry_at(f->if_slots, n), out);
}

/* Number of the next entry, within the file whatever the header says. */
static inline int32_t ix_file_count(const ix_file *f) {
    int32_t count = shared32_get(ix_bytes(f) + IX_AT_COUNT);
    if (count < 1) return 1;
    return count < f->if_entries ? count : f->if_entries;
}

/* ---- fields ---- */

/* The header of a new file after one with this end; zeros: it is the first. */
static inline ix_head ix_head_after(int64_t physical, int64_t time) {
    ix_head h = {.hd_count = 1};
    if (physical > 0) h.hd_begin_physical = h.hd_end_physical = physical;
    if (time > 0) h.hd_begin_time = h.hd_end_time = time;
    return h;
}
void ix_head_get(const ix_file *f, ix_head *out);
/* The count goes first, so that it never names an entry that is to be discarded. */
void ix_head_put(const ix_file *f, const ix_head *h);
/* Files hold any number, so that sums of times stop at the ends of the range. */
int64_t ix_time_add(int64_t t, int64_t ms);
/* Earliest store time, ms, that entry n may have; the latest is IX_MS_LOST later. The first entry's
 * timeDiff counts from the end of the file before, but its time is the header's. */
int64_t ix_entry_time(int64_t begin_time, int32_t n, int32_t seconds);
/* timeDiff of an entry stored at `time`, in seconds, within what the field holds. */
int32_t ix_seconds_since(int64_t begin_time, int64_t time);
/* Adds an entry to a file whose header is *h. There is room for it. */
static inline void ix_put(uint8_t *map, int32_t slots, ix_head *h, int32_t hash, int64_t physical,
                          int64_t time) {
    uint8_t *slot = map + ix_slot_at(hash % slots);
    uint8_t *entry = map + ix_entry_at(slots, h->hd_count);
    int32_t previous = shared32_get(slot);
    if (previous <= 0 || previous >= h->hd_count) previous = 0;
    be32_put(entry + IX_IN_HASH, (uint32_t)hash);
    be64_put(entry + IX_IN_PHYSICAL, (uint64_t)physical);
    be32_put(entry + IX_IN_SECONDS, (uint32_t)ix_seconds_since(h->hd_begin_time, time));
    be32_put(entry + IX_IN_PREVIOUS, (uint32_t)previous);
    shared32_put(slot, h->hd_count);
    if (h->hd_count == 1) {
        h->hd_begin_physical = physical;
        h->hd_begin_time = time;
        shared64_put(map + IX_AT_BEGIN_PHYSICAL, physical);
        shared64_put(map + IX_AT_BEGIN_TIME, time);
    }
    if (previous == 0) shared32_put(map + IX_AT_SLOTS_USED, ++h->hd_used);
    h->hd_end_physical = physical;
    h->hd_end_time = time;
    shared64_put(map + IX_AT_END_PHYSICAL, physical);
    shared64_put(map + IX_AT_END_TIME, time);
    shared32_put(map + IX_AT_COUNT, ++h->hd_count);
}
/* Place of the last record in the file; an unused file has that of the file before, from its
 * birth. */
int64_t ix_file_end_physical(const ix_file *f);

/* ---- files ---- */

/* The layout of a file of `size` bytes that is there: `wanted` where it fits, unless the entries
 * speak for another; `hint` is that of a neighbour, or zeros. False when none is known. */
bool ix_layout_adopt(const ix_layout *wanted, const uint8_t *map, int64_t size,
                     const ix_layout *hint, ix_layout *out);
/* An item of `size` bytes without its file (ps_segments_add, ps_segments_make), with one reference.
 * NULL without memory. mappings: who bounds how many files are mapped; NULL: nobody. */
ix_item *ix_item_new(ps_io *io, ps_mappings *mappings, int64_t number, int64_t size, int flags);
ix_item *ix_item_ref(ix_item *it);
void ix_item_unref(ix_item *it); /* NULL is none */
static inline const char *ix_item_path(const ix_item *it) {
    return it->it_set.ss_items[0].sg_path;
}
/* Maps the file and holds it. 0 or an error code: PS_E_FILE_SIZE when another process has cut it
 * off. */
int ix_file_hold(ix_item *it, ix_file *out, ps_error *e);
void ix_file_release(ix_file *f); /* no matter when nothing is held */

/* ---- soundness ---- */

/* A file that nothing was put into: left by a crash right after its birth, it says nothing of its
 * neighbours. One whose count was damaged has a first entry. */
bool ix_file_unused(const ix_file *f);
/* A full file, all records at or after `floor` and below `physical`, whose ends are what its
 * header says. */
bool ix_file_plausible(const ix_file *f, int64_t floor, int64_t physical);
/* Finds how far a file is sound: *keep is the number of the first entry that is not, or whose
 * record is at or after `physical`; heads, zeros at first, one for each slot, is what the slots
 * must be. */
void ix_file_check(const ix_file *f, int64_t floor, int64_t physical, int32_t *heads,
                   int32_t *keep);
/* Makes header and slots those of a file that keeps entries 1 to keep-1, keep being 2 at least;
 * `heads` as ix_file_check left it. PS_E_DISK_FULL, PS_E_IO. */
int ix_file_cut(const ix_file *f, int32_t keep, const int32_t *heads, ps_error *e);

#endif
