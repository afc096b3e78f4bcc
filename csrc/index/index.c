/* Index files: from a key to the records that carry it. The bytes of one file: indexfile.h.
 *
 * Policy. The log is the truth: a file that is unsound from entry k on loses k and all after it,
 * later files included, and the caller puts those records again. Recovery reads every entry of
 * the newest files, up to CHECKED_ENTRIES; of files further back, which were synced when they
 * became full, it reads the ends alone, so that a store of billions of keys opens as fast as a
 * small one.
 *
 * Threads. One thread puts, any may query, one flushes and deletes. Queries take no lock but for
 * the list of files: an entry is written before the slot that names it, and a slot before the
 * count.
 *
 * Upstream: store/.../index/IndexFile, IndexHeader, IndexService. */
#define _GNU_SOURCE
#include "index/index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "index/indexfile.h"
#include "index/keys.h"

#define RESERVE_WINDOW (1 << 20)  /* blocks of entries are reserved in steps of so many bytes */
#define CHECKED_ENTRIES (8 << 20) /* entries that recovery reads one by one: about 160 MB */
#define NAME_HIGHEST 999999999999999999 /* 17 digits are usual; one more follows on them */
#define NAME_TRIES 64
/* Entries at the end of a file that are looked at for tags, and how many of records with tags. */
#define TAGS_LOOKED 64
#define TAGS_TELLING 4
#define WHY_ASIDE "an entry is unsound: keys from there on are indexed again"

struct ps_index {
    ps_io *ix_io;
    char *ix_folder;
    ps_mappings *ix_mappings;
    int32_t ix_slots, ix_entries; /* of new files */
    bool ix_adopt, ix_read_only;
    bool ix_tags; /* they are put, too */

    pthread_mutex_t ix_load_lock; /* one reading of the folder at a time; taken before ix_lock */
    pthread_rwlock_t ix_lock;     /* guards the list, not the files */
    ix_item **ix_items;           /* oldest first */
    int32_t ix_count;
    int64_t ix_newest; /* greatest name in the folder, files left out included */
    _Atomic bool ix_folder_changed;

    /* the thread that puts */
    ix_file ix_last;      /* newest of ix_items, held */
    ix_head ix_head;      /* its header */
    int64_t ix_reserved;  /* its bytes that have blocks */
    int64_t ix_end;       /* place of the last record indexed, -1 none */
    ix_topic ix_topic;

    _Atomic int64_t ix_stamp_now; /* store time of the last record indexed */
    _Atomic int64_t ix_stamp;     /* the same, of what is on the disk */
};

/* ---- files ---- */

static int path_of(const ps_index *ix, const char *name, char path[PATH_MAX], ps_error *e) {
    int len = snprintf(path, PATH_MAX, "%s/%s", ix->ix_folder, name);
    if (len < 0 || len >= PATH_MAX)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, ix->ix_folder, "the path is too long");
    return 0;
}

/* Finds the layout of a file that is there. 1; 0 when it has none, or has gone. */
static int item_adopt(const ps_index *ix, ix_item *it, ix_layout *hint, ps_aside *aside,
                      ps_error *e) {
    ix_layout wanted = {ix->ix_slots, ix->ix_entries};
    ps_error why = {0};
    ix_file f;
    int code = ix_file_hold(it, &f, &why);
    if (code < 0) {
        /* Another process may have deleted or resized it since it was listed. */
        if (code == PS_E_FILE_SIZE || why.sys_errno == ENOENT) return 0;
        if (e != NULL) *e = why;
        return code;
    }
    bool good = ix_layout_adopt(&wanted, ix_bytes(&f), f.if_map->mf_size, hint, &it->it_layout);
    ix_file_release(&f);
    if (good) return 1;
    /* Its keys are indexed again; left there it would be in the way of those who check. */
    if (ix->ix_read_only) return 0;
    return ps_aside_move(aside, ix_item_path(it), "its bytes are no index file of any size", e);
}

/* One listed file; *out stays NULL when it is left out. An empty one is what a crash between create
 * and resize leaves: it goes. */
static int item_open(ps_index *ix, const struct ps_listed *l, ix_layout *hint, ps_aside *aside,
                     ix_item **out, ps_error *e) {
    char path[PATH_MAX];
    int code, flags = ix->ix_read_only ? 0 : PS_MAP_WRITE;
    *out = NULL;
    if ((code = path_of(ix, l->name, path, e)) < 0) return code;
    if (l->size == 0 && !ix->ix_read_only) ix->ix_io->unlink(ix->ix_io, path);
    if (l->number > NAME_HIGHEST || l->size < ix_size(1, 2)) return 0;
    if (!ix->ix_adopt && l->size != ix_size(ix->ix_slots, ix->ix_entries)) return 0;
    ix_item *it = ix_item_new(ix->ix_io, ix->ix_mappings, l->number, l->size, flags);
    if (it == NULL || ps_segments_add(&it->it_set, 0, path, NULL) < 0) {
        ix_item_unref(it);
        return ps_no_memory(e, path, "no memory for an index file");
    }
    it->it_layout = (ix_layout){ix->ix_slots, ix->ix_entries};
    /* What a crashed writer left in the page cache is synced by the first flush. */
    atomic_init(&it->it_dirty, !ix->ix_read_only);
    code = ix->ix_adopt ? item_adopt(ix, it, hint, aside, e) : 1;
    if (code <= 0) {
        ix_item_unref(it);
        return code;
    }
    *hint = it->it_layout;
    *out = it;
    return 0;
}

/* Place in the list of the first file whose name is `number` or comes after it. */
static int32_t place_locked(const ps_index *ix, int64_t number) {
    int32_t low = 0, high = ix->ix_count;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (ix->ix_items[mid]->it_number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static ix_item *known_item_locked(const ps_index *ix, int64_t number) {
    int32_t i = place_locked(ix, number);
    return i < ix->ix_count && ix->ix_items[i]->it_number == number ? ix->ix_items[i] : NULL;
}

static void items_drop(ix_item **items, int32_t count) {
    for (int32_t i = 0; i < count; i++) ix_item_unref(items[i]);
    free(items);
}

/* Lists the folder and puts the files there in place of those known; queries go on meanwhile. */
static int files_load(ps_index *ix, ps_aside *aside, int32_t *skipped, ps_error *e) {
    ps_listing list;
    ix_layout hint = {0, 0};
    int32_t count = 0, out = 0;
    int code = ps_list_folder(ix->ix_io, ix->ix_folder, false, &list, e);
    if (code < 0) return code;
    ix_item **items = calloc((size_t)list.count + 1, sizeof *items);
    if (items == NULL)
        code = ps_no_memory(e, ix->ix_folder, "no memory for the list of index files");
    for (int32_t i = 0; i < list.count && code == 0; i++) {
        const struct ps_listed *l = &list.items[i];
        if (l->number > ix->ix_newest) ix->ix_newest = l->number;
        ix_item *it = known_item_locked(ix, l->number);
        bool twice = i > 0 && l->number == list.items[i - 1].number;
        if (it != NULL && !twice)
            hint = ix_item_ref(it)->it_layout;
        else if (!twice)
            code = item_open(ix, l, &hint, aside, &it, e);
        if (it != NULL && !twice)
            items[count++] = it;
        else
            out++;
    }
    ps_listing_free(&list);
    if (code < 0) {
        items_drop(items, items != NULL ? count : 0);
        return code;
    }
    pthread_rwlock_wrlock(&ix->ix_lock);
    ix_item **old = ix->ix_items;
    int32_t old_count = ix->ix_count;
    ix->ix_items = items;
    ix->ix_count = count;
    pthread_rwlock_unlock(&ix->ix_lock);
    items_drop(old, old_count);
    if (skipped != NULL) *skipped = out;
    return 0;
}

/* The i-th file from the oldest, with a reference; NULL when there are no more. */
static ix_item *item_take(ps_index *ix, int32_t i) {
    pthread_rwlock_rdlock(&ix->ix_lock);
    ix_item *it = i >= 0 && i < ix->ix_count ? ix_item_ref(ix->ix_items[i]) : NULL;
    pthread_rwlock_unlock(&ix->ix_lock);
    return it;
}

/* Holds a file that was taken from the list. 1; 0 when it has been deleted since, by this index or,
 * for a reader, by another process. */
static int item_hold(const ps_index *ix, ix_item *it, ix_file *out, ps_error *e) {
    ps_error why = {0};
    int code = ix_file_hold(it, out, &why);
    if (code == 0) return 1;
    if (why.sys_errno == ENOENT && (ix->ix_read_only || atomic_load(&it->it_gone))) return 0;
    if (e != NULL) *e = why;
    return code;
}

#define OLDER (-1)
#define NEWER 1
#define BEFORE_ALL ((ix_file){.if_number = -1})
#define AFTER_ALL ((ix_file){.if_number = INT64_MAX})

/* The nearest file with a smaller name (or a greater one), with a reference. Files may come and go
 * between two calls: that is why walks go by name and not by place in the list. */
static ix_item *item_beside(ps_index *ix, int64_t number, int way) {
    pthread_rwlock_rdlock(&ix->ix_lock);
    int32_t i = way == OLDER ? place_locked(ix, number) - 1 : place_locked(ix, number + 1);
    ix_item *it = i >= 0 && i < ix->ix_count ? ix_item_ref(ix->ix_items[i]) : NULL;
    pthread_rwlock_unlock(&ix->ix_lock);
    return it;
}

/* Releases *f and holds the file beside it. 1; 0 when there are no more, or an error code: nothing
 * is held then. */
static int step_to_file(ps_index *ix, int way, ix_file *f, ps_error *e) {
    for (;;) {
        ix_item *it = item_beside(ix, f->if_number, way);
        ix_file_release(f);
        if (it == NULL) return 0;
        f->if_number = it->it_number;
        int code = item_hold(ix, it, f, e);
        ix_item_unref(it);
        if (code != 0) return code;
    }
}

static int file_unlink(ps_index *ix, const ix_item *it, ps_error *e) {
    const char *path = ix_item_path(it);
    if (ix->ix_io->unlink(ix->ix_io, path) < 0 && errno != ENOENT) {
        int err = errno, code = ps_errno_code(err);
        return ps_fail(e, code, err, -1, path, "cannot delete the index file");
    }
    atomic_store(&ix->ix_folder_changed, true);
    return 0;
}

/* Deletes the i-th file, or moves it aside, and takes it off the list, which others may lengthen
 * meanwhile. */
static int file_delete(ps_index *ix, int32_t i, ps_aside *aside, ps_error *e) {
    ix_item *it = item_take(ix, i);
    atomic_store(&it->it_gone, true);
    int code = aside == NULL ? file_unlink(ix, it, e)
                             : ps_aside_move(aside, ix_item_path(it), WHY_ASIDE, e);
    atomic_store(&it->it_gone, code == 0);
    if (code == 0) {
        atomic_store(&ix->ix_folder_changed, true);
        pthread_rwlock_wrlock(&ix->ix_lock);
        ix->ix_count--;
        memmove(&ix->ix_items[i], &ix->ix_items[i + 1], (size_t)(ix->ix_count - i) * sizeof it);
        pthread_rwlock_unlock(&ix->ix_lock);
        ix_item_unref(it);
    }
    ix_item_unref(it);
    return code;
}

/* Holds the newest file that has an entry. 1, 0 when there is none, or an error code. */
static int hold_newest_used(ps_index *ix, ix_file *f, ps_error *e) {
    int code;
    *f = AFTER_ALL;
    do code = step_to_file(ix, OLDER, f, e);
    while (code > 0 && ix_file_count(f) <= 1);
    return code;
}

/* ---- opening and closing ---- */

/* Sets what the putting thread keeps, from the files. The end is taken from the entries: a damaged
 * header could otherwise make every later record look like one that is indexed already. */
static int writer_load(ps_index *ix, ps_error *e) {
    int64_t stamp = 0;
    ix_file f;
    int code;
    ix_file_release(&ix->ix_last);
    ix->ix_last = AFTER_ALL;
    ix->ix_head = (ix_head){.hd_count = 1};
    ix->ix_reserved = 0;
    ix->ix_end = -1;
    if ((code = step_to_file(ix, OLDER, &ix->ix_last, e)) < 0) return code;
    if (code > 0) ix_head_get(&ix->ix_last, &ix->ix_head);
    /* Nobody reads it but people: a damaged number must not overflow. */
    if (ix->ix_head.hd_used < 0 || ix->ix_head.hd_used > ix->ix_last.if_slots)
        ix->ix_head.hd_used = ix->ix_last.if_slots;
    if ((code = hold_newest_used(ix, &f, e)) < 0) return code;
    if (code > 0) {
        stamp = shared64_get(ix_bytes(&f) + IX_AT_END_TIME);
        ix->ix_end = ix_file_end_physical(&f);
    }
    ix_file_release(&f);
    atomic_store(&ix->ix_stamp_now, stamp);
    atomic_store(&ix->ix_stamp, stamp);
    return 0;
}

int ps_index_open(ps_io *io, const char *folder, int32_t slots, int32_t entries, bool adopt,
                  bool read_only, ps_mappings *mappings, ps_aside *aside, int32_t *skipped,
                  ps_index **out, ps_error *e) {
    *out = NULL;
    if (slots < 1 || entries < 2)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, folder,
                       "an index needs at least 1 slot and 2 entries, not %" PRId32 " and %" PRId32,
                       slots, entries);
    ps_index *ix = calloc(1, sizeof *ix);
    if (ix == NULL || (ix->ix_folder = strdup(folder)) == NULL) {
        free(ix);
        return ps_no_memory(e, folder, "no memory for the index");
    }
    ix->ix_io = io;
    ix->ix_mappings = mappings;
    ix->ix_slots = slots;
    ix->ix_entries = entries;
    ix->ix_adopt = adopt;
    ix->ix_read_only = read_only;
    ix->ix_topic.to_len = -1;
    pthread_mutex_init(&ix->ix_load_lock, NULL);
    pthread_rwlock_init(&ix->ix_lock, NULL);
    int code = files_load(ix, aside, skipped, e);
    if (code == 0) code = writer_load(ix, e);
    if (code < 0) {
        ps_index_close(ix);
        return code;
    }
    if (adopt && ix->ix_last.if_item != NULL) {
        ix->ix_slots = ix->ix_last.if_slots;
        ix->ix_entries = ix->ix_last.if_entries;
    }
    if (read_only) ix_file_release(&ix->ix_last);
    *out = ix;
    return 0;
}

void ps_index_close(ps_index *ix) {
    if (ix == NULL) return;
    ix_file_release(&ix->ix_last);
    items_drop(ix->ix_items, ix->ix_count);
    pthread_rwlock_destroy(&ix->ix_lock);
    pthread_mutex_destroy(&ix->ix_load_lock);
    free(ix->ix_folder);
    free(ix);
}

/* Headers are read through the map by every call, so that only the list can be out of date. */
int ps_index_refresh(ps_index *ix, ps_error *e) {
    if (!ix->ix_read_only) return 0;
    pthread_mutex_lock(&ix->ix_load_lock);
    int code = files_load(ix, NULL, NULL, e);
    pthread_mutex_unlock(&ix->ix_load_lock);
    return code;
}

/* ---- facts ---- */

int64_t ps_index_end(ps_index *ix) {
    ix_file f;
    if (!ix->ix_read_only) return ix->ix_end;
    int64_t end = hold_newest_used(ix, &f, NULL) > 0 ? ix_file_end_physical(&f) : -1;
    ix_file_release(&f);
    return end;
}

int ps_index_range(ps_index *ix, int64_t *file, int64_t *first, int64_t *last, ps_error *e) {
    ix_file f = {.if_number = *file};
    ix_entry entry;
    int code;
    do code = step_to_file(ix, NEWER, &f, e);
    while (code > 0 && ix_file_count(&f) <= 1);
    if (code > 0) {
        ix_file_entry(&f, 1, &entry);
        *file = f.if_number;
        *first = entry.en_physical;
        *last = ix_file_end_physical(&f);
    }
    ix_file_release(&f);
    return code;
}

bool ps_index_wants(const ps_record *r) {
    ix_keys k;
    return ix_record_keys(r, false, &k);
}

void ps_index_set_tags(ps_index *ix) {
    ix->ix_tags = true;
}

bool ps_index_has_tags(ps_index *ix, int (*tells)(void *, int64_t, int32_t), void *arg) {
    ix_file f = AFTER_ALL;
    ix_entry entry;
    bool found = false;
    while (!found && step_to_file(ix, OLDER, &f, NULL) > 0) {
        int32_t n = ix_file_count(&f), least = n > TAGS_LOOKED ? n - TAGS_LOOKED : 1;
        for (int told = 0; n > least && told < TAGS_TELLING && !found; n--) {
            ix_file_entry(&f, n - 1, &entry);
            int said = tells(arg, entry.en_physical, entry.en_hash);
            told += said >= 0;
            found = said > 0;
        }
    }
    ix_file_release(&f);
    return found;
}

int64_t ps_index_timestamp(ps_index *ix) {
    if (!ix->ix_read_only) return atomic_load(&ix->ix_stamp);
    ix_file f;
    bool found = hold_newest_used(ix, &f, NULL) > 0;
    int64_t stamp = found ? shared64_get(ix_bytes(&f) + IX_AT_END_TIME) : 0;
    ix_file_release(&f);
    return stamp;
}

int32_t ps_index_files(ps_index *ix) {
    pthread_rwlock_rdlock(&ix->ix_lock);
    int32_t count = ix->ix_count;
    pthread_rwlock_unlock(&ix->ix_lock);
    return count;
}

/* Number of the next entry of a file. That of a full one is kept: the figure of thousands of files
 * is asked for by pages of statistics. */
static int32_t item_count(ps_index *ix, ix_item *it) {
    ix_file f;
    int32_t count = atomic_load(&it->it_count);
    if (count > 0) return count;
    if (item_hold(ix, it, &f, NULL) <= 0) return 1;
    count = ix_file_count(&f);
    if (count == f.if_entries) atomic_store(&it->it_count, count);
    ix_file_release(&f);
    return count;
}

int64_t ps_index_used(ps_index *ix) {
    int64_t used = 0, number = -1;
    ix_item *it;
    while ((it = item_beside(ix, number, NEWER)) != NULL) {
        number = it->it_number;
        used += item_count(ix, it) - 1;
        ix_item_unref(it);
    }
    return used;
}

int32_t ps_index_slots(ps_index *ix) {
    return ix->ix_slots;
}
int32_t ps_index_entries(ps_index *ix) {
    return ix->ix_entries;
}

/* The time rule is the cautious one: an entry counts as later unless its whole second is over,
 * since records of one millisecond may lie on both sides of a sync. */
int64_t ps_index_first_after(ps_index *ix, int64_t timestamp) {
    int64_t found = -1;
    ix_file f = BEFORE_ALL;
    while (found < 0 && step_to_file(ix, NEWER, &f, NULL) > 0) {
        ix_head h;
        ix_entry e;
        ix_head_get(&f, &h);
        bool over = h.hd_end_time < timestamp && h.hd_begin_time <= h.hd_end_time;
        for (int32_t n = 1; n < h.hd_count && !over && found < 0; n++) {
            ix_file_entry(&f, n, &e);
            int64_t time = ix_entry_time(h.hd_begin_time, n, e.en_seconds);
            if (ix_time_add(time, n == 1 ? 0 : IX_MS_LOST) >= timestamp)
                found = e.en_physical > 0 ? e.en_physical : 0;
        }
    }
    ix_file_release(&f);
    return found;
}

/* ---- recovery ---- */

/* Deletes files from the newest down to number i of the list. */
static int delete_from(ps_index *ix, int32_t i, ps_aside *aside, int64_t *cut, ps_error *e) {
    int code = 0;
    while (ix->ix_count > i && code == 0) {
        int64_t entries = item_count(ix, ix->ix_items[ix->ix_count - 1]) - 1;
        code = file_delete(ix, ix->ix_count - 1, aside, e);
        if (code == 0) *cut += entries;
    }
    return code;
}

/* Whether the first entry that goes does so for what it is, and not for being at or after
 * `physical`: then a copy of it, and of what follows it, is kept. */
static bool cut_for_damage(const ix_file *f, int32_t keep, int64_t physical, const int32_t *heads) {
    ix_entry first, next;
    int32_t count = ix_file_count(f);
    if (keep >= count) return true;
    ix_file_entry(f, keep, &first);
    next = first;
    if (keep + 1 < count) ix_file_entry(f, keep + 1, &next);
    return first.en_physical < physical || next.en_physical < first.en_physical ||
           first.en_hash < 0 || first.en_previous != heads[first.en_hash % f->if_slots];
}

static int keep_entries(const ix_file *f, int32_t keep, int32_t count, ps_aside *aside,
                        ps_error *e) {
    int64_t at = ix_entry_at(f->if_slots, keep), end = ix_entry_at(f->if_slots, count);
    return ps_aside_bytes(aside, f->if_map->mf_path, at, ix_bytes(f) + at, end - at, WHY_ASIDE, e);
}

/* Cuts file i, which is held, to its sound part and mends its slots; later files go when anything
 * is cut. 1 when it was the last file to look at. */
static int file_mend(ps_index *ix, int32_t i, const ix_file *f, int64_t floor, int64_t physical,
                     ps_aside *aside, int64_t *cut, ps_error *e) {
    int32_t count = ix_file_count(f), keep, *heads = calloc((size_t)f->if_slots, sizeof *heads);
    if (heads == NULL)
        return ps_no_memory(e, f->if_map->mf_path, "no memory for the slots of an index file");
    ix_file_check(f, floor, physical, heads, &keep);
    bool cuts = keep < count || count <= 1;
    int code = 0;
    if (cuts && !cut_for_damage(f, keep, physical, heads)) aside = NULL;
    if (aside != NULL && keep > 1 && keep < count) code = keep_entries(f, keep, count, aside, e);
    if (code == 0 && cuts) code = delete_from(ix, keep > 1 ? i + 1 : i, aside, cut, e);
    if (code == 0 && keep > 1) code = ix_file_cut(f, keep, heads, e);
    if (code == 0 && keep > 1) *cut += count - keep;
    atomic_store(&f->if_item->it_count, 0);
    free(heads);
    return code == 0 && cuts ? 1 : code;
}

int ps_index_cut(ps_index *ix, int64_t physical, ps_aside *aside, int64_t *cut, ps_error *e) {
    int64_t floor = -1, budget = CHECKED_ENTRIES;
    int32_t deep = ix->ix_count;
    int code = 0;
    *cut = 0;
    if (ix->ix_read_only)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, ix->ix_folder, "the index is read-only");
    while (deep > 0 && (budget > 0 || deep == ix->ix_count))
        budget -= item_count(ix, ix->ix_items[--deep]);
    for (int32_t i = 0; i < ix->ix_count && code == 0;) {
        ix_file f;
        if ((code = ix_file_hold(ix->ix_items[i], &f, e)) < 0) break;
        bool unused = ix_file_unused(&f);
        if (unused)
            code = file_delete(ix, i, NULL, e);
        else if (i >= deep || !ix_file_plausible(&f, floor, physical))
            code = file_mend(ix, i, &f, floor, physical, aside, cut, e);
        if (code == 0 && !unused) floor = ix_file_end_physical(&f);
        if (unused)
            deep -= i < deep;
        else
            i++;
        ix_file_release(&f);
    }
    int loaded = writer_load(ix, code < 0 ? NULL : e);
    return code < 0 ? code : loaded;
}

/* ---- putting ---- */

static bool local_number(int64_t ms, int64_t *out) {
    time_t seconds = (time_t)(ms / 1000);
    struct tm t;
    if (localtime_r(&seconds, &t) == NULL) return false;
    int64_t day = (t.tm_year + 1900LL) * 10000 + (t.tm_mon + 1) * 100 + t.tm_mday;
    *out = (day * 1000000 + t.tm_hour * 10000 + t.tm_min * 100 + t.tm_sec) * 1000 + ms % 1000;
    return true;
}

/* A name one ms later than `number`, which still reads as a time where it did before. */
static int64_t number_after(int64_t number) {
    int64_t rest = number / 1000, later;
    if (number % 1000 < 999) return number + 1;
    struct tm t = {.tm_isdst = -1};
    t.tm_sec = (int)(rest % 100) + 1;
    t.tm_min = (int)(rest / 100 % 100);
    t.tm_hour = (int)(rest / 10000 % 100);
    t.tm_mday = (int)(rest / 1000000 % 100);
    t.tm_mon = (int)(rest / 100000000 % 100) - 1;
    t.tm_year = (int)(rest / 10000000000 % 1000000) - 1900;
    time_t seconds = mktime(&t);
    if (seconds > 0 && local_number((int64_t)seconds * 1000, &later) && later > number)
        return later;
    return number + 1;
}

/* The name of a new file: the local time, or just after the newest name there is, since clocks
 * are set back and files are made within one ms. */
static int64_t number_new(const ps_index *ix) {
    struct timespec t;
    int64_t number;
    clock_gettime(CLOCK_REALTIME, &t);
    if (local_number((int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000, &number) &&
        number > ix->ix_newest)
        return number;
    return number_after(ix->ix_newest);
}

static int item_make(ps_index *ix, int64_t number, const char *path, ix_file *out, ps_error *e) {
    ix_layout l = {ix->ix_slots, ix->ix_entries};
    ps_mapfile *mf;
    ix_item *it = ix_item_new(ix->ix_io, ix->ix_mappings, number, ix_size(l.slots, l.entries),
                              PS_MAP_WRITE | PS_MAP_SPARING);
    if (it == NULL) return ps_no_memory(e, path, "no memory for a new index file");
    it->it_layout = l;
    atomic_init(&it->it_dirty, true);
    int code = ps_segments_make(&it->it_set, 0, path, &mf, e);
    if (code == 0) {
        code = ix_file_hold(it, out, e);
        ps_mapfile_unref(mf);
    }
    ix_item_unref(it);
    return code;
}

/* Makes a file under a name that is free, with blocks for its slots and for `entries` entries. */
static int file_make(ps_index *ix, int32_t entries, ix_file *out, ps_error *e) {
    ix_layout l = {ix->ix_slots, ix->ix_entries};
    char path[PATH_MAX], name[32];
    ps_error why = {0};
    int64_t number = 0, slots_end = ix_entry_at(l.slots, 0);
    int32_t upto = entries < l.entries ? entries + 1 : l.entries;
    int code = ps_make_folders(ix->ix_io, ix->ix_folder, true, e);
    if (code < 0) return code;
    for (int32_t i = 0; i < NAME_TRIES; i++) {
        if (ix->ix_newest >= NAME_HIGHEST)
            return ps_fail(e, PS_E_STRAY_FILE, 0, -1, ix->ix_folder,
                           "the newest index file has the highest name that there is");
        number = number_new(ix);
        snprintf(name, sizeof name, "%017" PRId64, number);
        if ((code = path_of(ix, name, path, e)) < 0) return code;
        code = item_make(ix, number, path, out, &why);
        if (code == 0 || why.sys_errno != EEXIST) break;
        ix->ix_newest = number;
    }
    if (code < 0) {
        if (e != NULL) *e = why;
        return code;
    }
    ps_mapfile *mf = out->if_map;
    code = ps_mapfile_reserve(mf, slots_end, slots_end, e);
    if (code == 0) code = ps_mapfile_reserve(mf, ix_entry_at(l.slots, upto), RESERVE_WINDOW, e);
    if (code < 0) {
        ix->ix_io->unlink(ix->ix_io, path);
        ix_file_release(out);
    }
    return code;
}

/* Goes on to a new file, which begins where the last one ends. */
static int roll_file(ps_index *ix, int32_t entries, ps_error *e) {
    ix_item **grown;
    ix_file f;
    int code = file_make(ix, entries, &f, e);
    if (code < 0) return code;
    bool first = ix->ix_last.if_item == NULL;
    ix_head h = ix_head_after(first ? 0 : ix->ix_head.hd_end_physical,
                              first ? 0 : ix->ix_head.hd_end_time);
    ix_head_put(&f, &h);
    shared32_put(ix_bytes(&f) + IX_AT_COUNT, 0); /* as upstream leaves it until the first entry */
    pthread_rwlock_wrlock(&ix->ix_lock);
    grown = realloc(ix->ix_items, ((size_t)ix->ix_count + 1) * sizeof *grown);
    if (grown != NULL) {
        ix->ix_items = grown;
        ix->ix_items[ix->ix_count++] = ix_item_ref(f.if_item);
    }
    pthread_rwlock_unlock(&ix->ix_lock);
    if (grown == NULL) {
        file_unlink(ix, f.if_item, NULL);
        ix_file_release(&f);
        return ps_no_memory(e, ix->ix_folder, "no memory for the list of index files");
    }
    ix_file_release(&ix->ix_last);
    ix->ix_newest = f.if_number;
    ix->ix_last = f;
    ix->ix_head = h;
    ix->ix_reserved = atomic_load(&f.if_map->mf_reserved);
    atomic_store(&ix->ix_folder_changed, true);
    return 0;
}

/* Sees to it that the next entry, and as many of the `wanted` ones as fit into its file, can be
 * written without meeting a full disk. */
static int make_room(ps_index *ix, int32_t wanted, ps_error *e) {
    const ix_file *f = &ix->ix_last;
    if (f->if_item == NULL || ix->ix_head.hd_count >= f->if_entries)
        return roll_file(ix, wanted, e);
    int err = atomic_load_explicit(&f->if_map->mf_errno, memory_order_relaxed);
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, -1, f->if_map->mf_path,
                       "an earlier sync of the file failed");
    int32_t left = f->if_entries - ix->ix_head.hd_count;
    int32_t upto = ix->ix_head.hd_count + (wanted < left ? wanted : left);
    int64_t end = ix_entry_at(f->if_slots, upto);
    if (end <= ix->ix_reserved) return 0;
    int code = ps_mapfile_reserve(f->if_map, end, RESERVE_WINDOW, e);
    ix->ix_reserved = atomic_load(&f->if_map->mf_reserved);
    return code;
}

/* Tells the flusher. After the bytes, never before: it clears the mark before it syncs. */
static inline void put_done(ps_index *ix, const ps_record *r) {
    ix->ix_end = r->physical_offset;
    atomic_store_explicit(&ix->ix_last.if_item->it_dirty, true, memory_order_release);
    atomic_store_explicit(&ix->ix_stamp_now, r->store_timestamp, memory_order_release);
}

/* Holds the file of the first entry after those of older records, or the oldest file; *n: the
 * number of that entry. 1, 0 when the index is empty, or an error code. */
static int to_entries_of(ps_index *ix, int64_t physical, ix_file *f, int32_t *n, ps_error *e) {
    ix_entry entry;
    int code;
    *f = AFTER_ALL;
    while ((code = step_to_file(ix, OLDER, f, e)) > 0) {
        for (*n = ix_file_count(f); *n > 1; --*n) {
            ix_file_entry(f, *n - 1, &entry);
            if (entry.en_physical != physical) return 1;
        }
    }
    *n = 1;
    *f = BEFORE_ALL;
    return code < 0 ? code : step_to_file(ix, NEWER, f, e);
}

/* How many of the record's keys, from the first, are the last entries there are; or an error
 * code. */
static int32_t keys_there(ps_index *ix, const ps_record *r, ix_keys k, int32_t topic,
                          ps_error *e) {
    int32_t n, there = 0, hash;
    ix_entry entry;
    ix_file f;
    int code = to_entries_of(ix, r->physical_offset, &f, &n, e);
    while (code > 0 && ix_key_next(&k, topic, &hash)) {
        while (code > 0 && n >= ix_file_count(&f)) {
            code = step_to_file(ix, NEWER, &f, e);
            n = 1;
        }
        if (code <= 0) break;
        ix_file_entry(&f, n++, &entry);
        if (entry.en_physical != r->physical_offset || entry.en_hash != hash) break;
        there++;
    }
    ix_file_release(&f);
    return code < 0 ? code : there;
}

/* The record that was put last is put again, after a crash or a cut that may have parted its keys:
 * those that are there are left alone, and the time that a cut had to round is set right. */
static int put_again(ps_index *ix, const ps_record *r, ps_error *e) {
    if (ix->ix_head.hd_count <= 1 || ix->ix_head.hd_end_time == r->store_timestamp) return 0;
    int code = ps_mapfile_reserve(ix->ix_last.if_map, IX_HEADER, IX_HEADER, e);
    if (code < 0) return code;
    ix->ix_head.hd_end_time = r->store_timestamp;
    shared64_put(ix_bytes(&ix->ix_last) + IX_AT_END_TIME, r->store_timestamp);
    put_done(ix, r);
    return 0;
}

int ps_index_put(ps_index *ix, const ps_record *r, ps_error *e) {
    ix_keys k;
    int32_t hash, skip = 0, written = 0;
    if (ix->ix_read_only)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, ix->ix_folder, "the index is read-only");
    if (r->physical_offset < ix->ix_end || !ix_record_keys(r, ix->ix_tags, &k)) return 0;
    int32_t topic = ix_topic_hash_cached(&ix->ix_topic, r), wanted = ix_keys_count(k);
    if (r->physical_offset == ix->ix_end && (skip = keys_there(ix, r, k, topic, e)) < 0)
        return skip;
    wanted -= skip;
    int code = skip > 0 ? put_again(ix, r, e) : 0;
    if (code == 0 && wanted > 0) code = make_room(ix, wanted, e);
    while (code == 0 && ix_key_next(&k, topic, &hash)) {
        if (skip-- > 0) continue;
        if (ix->ix_head.hd_count >= ix->ix_last.if_entries)
            code = make_room(ix, wanted - written, e);
        if (code == 0) {
            ix_put(ix_bytes(&ix->ix_last), ix->ix_last.if_slots, &ix->ix_head, hash,
                   r->physical_offset, r->store_timestamp);
            written++;
        }
    }
    if (written > 0) put_done(ix, r);
    return code < 0 ? code : written;
}

/* ---- asking ---- */

typedef struct ix_query {
    int32_t hash;
    int64_t begin, end; /* ms, both inclusive */
    int64_t skip;
    int64_t *out;
    int32_t found, room;
} ix_query;

/* Walks one chain from its newest entry. Numbers fall at each step, so that it ends; times fall
 * too, so that it ends at the first one before the range. */
static void query_chain(const ix_file *f, int64_t begin_time, ix_query *q) {
    ix_entry e;
    int32_t n = shared32_get(ix_bytes(f) + ix_slot_at(q->hash % f->if_slots));
    /* The count is read after the slot: the entry being put just now is ready, and named by it. */
    int32_t count = ix_file_count(f);
    if (n > count || n >= f->if_entries) return;
    while (n > 0 && q->found < q->room) {
        ix_file_entry(f, n, &e);
        int64_t time = ix_entry_time(begin_time, n, e.en_seconds);
        int64_t latest = ix_time_add(time, n == 1 ? 0 : IX_MS_LOST);
        /* timeDiff 0 also stands for a clock set back, and the greatest one for all above it. */
        bool early_enough = time <= q->end || e.en_seconds == 0;
        if (e.en_seconds == INT32_MAX) latest = INT64_MAX;
        if (e.en_seconds < 0 || latest < q->begin) return;
        if (e.en_hash == q->hash && early_enough && e.en_physical >= 0) {
            if (q->skip > 0)
                q->skip--;
            else
                q->out[q->found++] = e.en_physical;
        }
        if (e.en_previous >= n) return;
        n = e.en_previous;
    }
}

int32_t ps_index_query(ps_index *ix, const char *topic, int32_t topic_len, const char *key,
                       int32_t key_len, bool tags, int64_t begin, int64_t end, int64_t *skip,
                       int64_t *out, int32_t room, ps_error *e) {
    ix_query q = {.begin = begin, .end = end, .skip = *skip, .out = out, .room = room};
    bool older = true;
    ix_file f = AFTER_ALL;
    int code = 0;
    int32_t topic_hash = ix_topic_hash((const uint8_t *)topic, topic_len);
    q.hash = tags ? ix_tags_hash(topic_hash, (const uint8_t *)key, key_len)
                  : ix_key_hash(topic_hash, (const uint8_t *)key, key_len);
    while (code == 0 && older && q.found < room && (code = step_to_file(ix, OLDER, &f, e)) > 0) {
        int64_t first = shared64_get(ix_bytes(&f) + IX_AT_BEGIN_TIME);
        int64_t last = shared64_get(ix_bytes(&f) + IX_AT_END_TIME);
        /* A clock set back may leave the end before the begin; a cut rounds the end down. */
        int64_t low = first < last ? first : last;
        int64_t high = ix_time_add(first < last ? last : first, IX_MS_LOST);
        bool used = ix_file_count(&f) > 1;
        if (used && high >= begin && low <= end) query_chain(&f, first, &q);
        older = !used || first >= begin;
        code = ps_mapfile_whole(f.if_map, e);
    }
    ix_file_release(&f);
    if (code < 0) return code;
    *skip += q.found;
    return q.found;
}

/* ---- the disk ---- */

static int file_flush(ps_index *ix, const ix_file *f, ps_error *e) {
    ps_mapfile *mf = f->if_map;
    int err = atomic_load(&mf->mf_errno);
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, -1, mf->mf_path,
                       "an earlier sync of the file failed");
    atomic_store(&f->if_item->it_dirty, false);
    /* Slots are hit at random, so that all of the file up to its last entry is synced. The kernel
     * writes only the pages that changed. */
    int64_t upto = ix_entry_at(f->if_slots, ix_file_count(f));
    if (ix->ix_io->msync(ix->ix_io, mf->mf_map, (size_t)upto) == 0) return 0;
    /* A second sync would succeed without the data being there: the first failure is kept for
     * good. */
    err = errno != 0 ? errno : EIO;
    atomic_store(&mf->mf_errno, err);
    atomic_store(&f->if_item->it_dirty, true);
    return ps_fail(e, PS_E_FLUSH_FAILED, err, -1, mf->mf_path, "the file could not be synced");
}

/* A file that nobody has written to is not mapped for it. One that was deleted has nothing to sync:
 * the next open misses its keys, and puts them again. */
static int item_flush(ps_index *ix, ix_item *it, ps_error *e) {
    ps_error why = {0};
    ix_file f;
    if (!atomic_load(&it->it_dirty)) return 0;
    int code = ix_file_hold(it, &f, &why);
    if (code < 0 && why.sys_errno == ENOENT) return 0;
    if (code < 0) {
        if (e != NULL) *e = why;
        return code;
    }
    code = file_flush(ix, &f, e);
    ix_file_release(&f);
    return code;
}

int ps_index_flush(ps_index *ix, ps_error *e) {
    int64_t stamp = atomic_load_explicit(&ix->ix_stamp_now, memory_order_acquire), number = -1;
    int code = 0;
    ix_item *it;
    if (ix->ix_read_only) return 0;
    while (code == 0 && (it = item_beside(ix, number, NEWER)) != NULL) {
        number = it->it_number;
        code = item_flush(ix, it, e);
        ix_item_unref(it);
    }
    if (code == 0 && atomic_exchange(&ix->ix_folder_changed, false)) {
        code = ps_sync_folder(ix->ix_io, ix->ix_folder, e);
        if (code < 0) atomic_store(&ix->ix_folder_changed, true);
    }
    if (code == 0) atomic_store(&ix->ix_stamp, stamp);
    return code;
}

int32_t ps_index_delete_before(ps_index *ix, int64_t physical, bool dry_run, ps_error *e) {
    int32_t deleted = 0;
    int code = 0;
    if (ix->ix_read_only && !dry_run)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, ix->ix_folder, "the index is read-only");
    for (;;) {
        int32_t i = dry_run ? deleted : 0;
        ix_item *it = i < ps_index_files(ix) - 1 ? item_take(ix, i) : NULL;
        ix_file f = {0};
        code = it != NULL ? item_hold(ix, it, &f, e) : 0;
        bool gone = code > 0 && ix_file_end_physical(&f) < physical;
        ix_file_release(&f);
        ix_item_unref(it);
        if (code < 0) return code;
        if (!gone) break;
        if (!dry_run && (code = file_delete(ix, i, NULL, e)) < 0) return code;
        deleted++;
    }
    return deleted;
}
