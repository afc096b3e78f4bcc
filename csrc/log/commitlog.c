/* The commit log: one logical file of records, cut into equally long segment files that may lie in
 * several folders. A segment takes a record only when 8 bytes stay free after it; else a blank
 * record closes it and the record opens the next one. docs/internals/format.md#blank-record,
 * docs/internals/format.md#truncation; upstream CommitLog, MultiPathMappedFileQueue. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/aside.h"
#include "format/record.h"
#include "log/commitlog.h"
#include "log/resync.h"

/* ---- opening ---- */

/* The size of the segments, as the files show it, or 0. One that ends where the next begins is
 * whole; a file that was cut off is not believed while another is. */
static int64_t size_shown(const ps_listing *found) {
    int64_t likely = 0;
    for (int32_t i = 0; i < found->count; i++) {
        const struct ps_listed *file = &found->items[i];
        if (file->size <= PS_RECORD_FIXED || file->number % file->size != 0) continue;
        if (i + 1 < found->count && file->number + file->size == file[1].number) return file->size;
        if (likely == 0) likely = file->size;
    }
    return likely;
}

static int adopt_size(ps_log *l, const ps_listing *found, const char *folder, bool *adopted,
                      ps_error *e) {
    char path[PATH_MAX];
    int64_t shown = l->lg_adopt_sizes && !*adopted ? size_shown(found) : 0;
    if (shown != 0) l->lg_files.ss_file_size = shown;
    for (int32_t i = 0; i < found->count; i++) {
        const struct ps_listed *file = &found->items[i];
        if (file->size == l->lg_files.ss_file_size || file->size == 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, file->name);
        return ps_fail(e, PS_E_FILE_SIZE, 0, -1, path, "the file has %lld bytes, not %lld",
                       (long long)file->size, (long long)l->lg_files.ss_file_size);
    }
    return 0;
}

/* Lists one folder into the set. An empty last file is what a crash between create and resize
 * leaves. */
static int load_folder(ps_log *l, const char *folder, bool *adopted, ps_error *e) {
    char path[PATH_MAX];
    ps_listing found;
    int code = ps_list_folder(l->lg_io, folder, !l->lg_readonly, &found, e);
    if (code == 0) code = adopt_size(l, &found, folder, adopted, e);
    for (int32_t i = 0; code == 0 && i < found.count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, found.items[i].name);
        if (found.items[i].size != 0) {
            code = ps_segments_add(&l->lg_files, found.items[i].number, path, NULL);
            *adopted = true;
        } else if (i < found.count - 1) {
            code = ps_fail(e, PS_E_FILE_SIZE, 0, -1, path, "the file is empty");
        } else if (!l->lg_readonly && !l->lg_kept) {
            l->lg_io->unlink(l->lg_io, path);
        }
    }
    ps_listing_free(&found);
    return code;
}

void ps_log_init(ps_log *l, ps_io *io, int64_t file_size, bool readonly) {
    l->lg_io = io;
    l->lg_readonly = readonly;
    pthread_mutex_init(&l->lg_append_lock, NULL);
    ps_segments_init(&l->lg_files, io, file_size, readonly ? 0 : PS_MAP_WRITE | PS_MAP_KEEP_FD);
}

void ps_log_free(ps_log *l) {
    for (int32_t i = 0; i < l->lg_dirs.count; i++) free(l->lg_dirs.path[i]);
    l->lg_dirs.count = 0;
}

int ps_log_open(ps_log *l, ps_error *e) {
    bool adopted = false;
    for (int32_t i = 0; i < l->lg_dirs.count; i++) {
        int code = load_folder(l, l->lg_dirs.path[i], &adopted, e);
        if (code < 0) return code;
    }
    ps_segment *items = l->lg_files.ss_items;
    int64_t size = l->lg_files.ss_file_size;
    for (int32_t i = 0; i < l->lg_files.ss_count; i++)
        if (items[i].sg_base % size != 0 ||
            (i > 0 && items[i].sg_base != items[i - 1].sg_base + size))
            return ps_fail(e, PS_E_NOT_ADJACENT, 0, items[i].sg_base, items[i].sg_path,
                           i > 0 && items[i].sg_base == items[i - 1].sg_base
                               ? "two folders of the log have this segment"
                               : "the segment does not follow the previous one");
    if (l->lg_files.ss_count > 0) atomic_store(&l->lg_min, items[0].sg_base);
    return 0;
}

int ps_log_check_names(ps_log *l, ps_error *e) {
    const ps_segments *files = &l->lg_files;
    size_t room = (size_t)files->ss_count + 1;
    const char **paths = malloc(room * sizeof *paths);
    int64_t *bases = malloc(room * sizeof *bases), belongs;
    int code = paths == NULL || bases == NULL
                   ? ps_no_memory(e, NULL, "no memory for the names of segments")
                   : 0;
    for (int32_t i = 0; code == 0 && i < files->ss_count; i++) {
        paths[i] = files->ss_items[i].sg_path;
        bases[i] = files->ss_items[i].sg_base;
    }
    int32_t i = code < 0 ? -1 : ps_log_misnamed(l->lg_io, paths, bases, files->ss_count,
                                                files->ss_file_size, 0, &belongs);
    if (i >= 0)
        code = ps_fail(e, PS_E_NOT_ADJACENT, 0, bases[i], paths[i],
                       "misnamed-segment: its records belong at %lld of the log",
                       (long long)belongs);
    free(paths);
    free(bases);
    return code;
}

/* The folder of a file by upstream's rule for several: file index modulo the number of folders. */
static int log_make_file(ps_log *l, int64_t base, ps_mapfile **out, ps_error *e) {
    char path[PATH_MAX];
    int64_t size = l->lg_files.ss_file_size;
    const char *folder = l->lg_dirs.path[base / size % l->lg_dirs.count];
    int code = l->lg_places != NULL ? ps_places_folder(l->lg_places, folder, true, e)
                                    : ps_make_folders(l->lg_io, folder, true, e);
    snprintf(path, sizeof path, "%.*s/%020" PRId64, PATH_MAX - 32, folder, base);
    if (code == 0)
        code = ps_mapfile_open(l->lg_io, path, base, size,
                               PS_MAP_WRITE | PS_MAP_CREATE | PS_MAP_KEEP_FD, out, e);
    if (code < 0) return code;
    code = ps_mapfile_reserve(*out, 1, l->lg_reserve_window, e);
    /* Its size, too: an empty file that is not the last one is damage. */
    if (code == 0 && l->lg_io->fdatasync(l->lg_io, (*out)->mf_fd) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, base, path, "the new file cannot be synced");
    if (code == 0) code = ps_sync_folder(l->lg_io, folder, e);
    if (code < 0) {
        l->lg_io->unlink(l->lg_io, path);
        ps_mapfile_unref(*out);
    }
    return code;
}

void ps_log_sync_failed(ps_log *l, int sys_errno) {
    int32_t none = 0;
    atomic_compare_exchange_strong(&l->lg_sync_errno, &none, sys_errno != 0 ? sys_errno : EIO);
}

/* Often made ahead, when nobody waits for it and would be told. */
int ps_log_make_file(ps_log *l, int64_t base, ps_mapfile **out, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code = log_make_file(l, base, out, e);
    if (code == PS_E_FLUSH_FAILED) ps_log_sync_failed(l, e->sys_errno);
    return ps_places_why(l->lg_places, code, e);
}

const uint8_t *ps_log_at(ps_log *l, int64_t physical, int64_t bound, int64_t *avail,
                         ps_mapfile **mf) {
    *mf = NULL;
    *avail = 0;
    if (physical < 0 || physical >= bound) return NULL;
    *mf = ps_segments_find(&l->lg_files, physical, NULL);
    if (*mf == NULL) return NULL;
    int64_t end = (*mf)->mf_base + (*mf)->mf_size;
    *avail = (bound < end ? bound : end) - physical;
    return (*mf)->mf_map + (physical - (*mf)->mf_base);
}

ps_rec_outcome ps_log_record(ps_log *l, int64_t physical, int64_t bound, int checks, ps_record *r,
                             ps_mapfile **mf) {
    int64_t avail;
    const uint8_t *p = ps_log_at(l, physical, bound, &avail, mf);
    return p != NULL ? ps_record_check(p, avail, physical, checks, r) : PS_REC_END;
}

bool ps_log_has(ps_log *l, int64_t physical, ps_record *r, ps_mapfile **mf) {
    int64_t end = atomic_load_explicit(&l->lg_end, memory_order_acquire);
    return ps_log_record(l, physical, end, 0, r, mf) == PS_REC_OK;
}

/* ---- the end ---- */

/* End of the last byte in [at, end) that is not zero, or `at`. */
static int64_t last_dirty(const uint8_t *map, int64_t at, int64_t end) {
    uint64_t word;
    while (end - 8 >= at) {
        memcpy(&word, map + end - 8, 8);
        if (word != 0) break;
        end -= 8;
    }
    while (end > at && map[end - 1] == 0) end--;
    return end;
}

/* Bytes after `at` up to the last one that is not zero. Holes and reserved blocks are passed over,
 * since looking at each page of a fresh segment would cost a second. */
static int64_t dirty_tail(const ps_mapfile *mf, int64_t at) {
    int64_t dirty = at, data, end;
    for (int64_t from = at; ps_log_next_data(mf, from, &data, &end); from = end) {
        int64_t last = last_dirty(mf->mf_map, data, end);
        if (last > data) dirty = last;
    }
    return dirty - at;
}

/* Keeps what follows the end of the log, then zeroes it: a stale record there would be taken for a
 * live one after the next crash (docs/internals/format.md#truncation). On a full disk it goes
 * without a copy, since the scan has found that nothing whole is in it: a store must open there. */
static int wipe_tail(ps_mapfile *mf, int64_t at, int64_t dirty, ps_aside *aside, ps_error *e) {
    if (dirty == 0) return 0;
    int code = ps_aside_bytes(aside, mf->mf_path, at, mf->mf_map + at, dirty,
                              "follows the end of the log", e);
    if (code < 0 && code != PS_E_DISK_FULL) return code;
    return ps_mapfile_zero(mf, at, dirty, true, e);
}

int ps_log_delete(ps_log *l, int32_t i, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code = ps_segments_delete(&l->lg_files, i, e);
    for (int32_t d = 0; code == 0 && d < l->lg_dirs.count; d++)
        code = ps_sync_folder(l->lg_io, l->lg_dirs.path[d], e);
    if (code == PS_E_FLUSH_FAILED) ps_log_sync_failed(l, e->sys_errno);
    return code;
}

/* A segment after the end of the log: empty, or without any whole record. */
static int drop_segment(ps_log *l, int64_t *dirty, ps_aside *aside, ps_error *e) {
    ps_mapfile *mf = ps_segments_find(&l->lg_files, ps_segments_base(&l->lg_files, -1), e);
    if (mf == NULL) return e->code;
    int64_t bytes = dirty_tail(mf, 0);
    int code = ps_aside_bytes(aside, mf->mf_path, 0, mf->mf_map, bytes,
                              "a segment after the end of the log", e);
    ps_mapfile_unref(mf);
    *dirty += bytes;
    return code < 0 && code != PS_E_DISK_FULL ? code : ps_log_delete(l, -1, e);
}

int ps_log_set_end(ps_log *l, int64_t end, ps_aside *aside, int64_t *bytes_cut, ps_error *e) {
    *bytes_cut = 0;
    while (!l->lg_kept && l->lg_files.ss_count > 0 && ps_segments_base(&l->lg_files, -1) > end) {
        int code = drop_segment(l, bytes_cut, aside, e);
        if (code < 0) return code;
    }
    ps_mapfile *last = ps_segments_find(&l->lg_files, end, e);
    if (last != NULL) {
        int64_t at = end - last->mf_base, dirty = l->lg_kept ? 0 : dirty_tail(last, at);
        int code = wipe_tail(last, at, dirty, aside, e);
        *bytes_cut += dirty;
        atomic_store(&last->mf_wrote, at);
        atomic_store(&last->mf_flushed, at);
        ps_mapfile_unref(last); /* the set keeps it */
        if (code < 0) return code;
    }
    l->lg_active = last;
    atomic_store(&l->lg_end, end);
    atomic_store(&l->lg_flushed, end);
    return 0;
}

/* ---- a reader beside a writer ---- */

/* The first file that a reader of an empty store meets tells the size of all. */
static void adopt_first(ps_log *l, const struct ps_listed *file) {
    if (ps_segments_count(&l->lg_files) > 0 || !l->lg_adopt_sizes || file->size == 0 ||
        file->number % file->size != 0)
        return;
    l->lg_files.ss_file_size = file->size;
    atomic_store(&l->lg_min, file->number);
    atomic_store(&l->lg_end, file->number);
}

/* A sum over a folder's files: each one that comes, goes, is cut off, written through the file or
 * replaced by another changes it. */
static uint64_t add_listing(uint64_t sum, const ps_listing *found) {
    for (int32_t i = 0; i < found->count; i++) {
        const struct ps_listed *f = &found->items[i];
        const uint64_t facts[] = {(uint64_t)f->number, (uint64_t)f->size, (uint64_t)f->mtime_ms,
                                  f->inode};
        for (int k = 0; k < 4; k++) sum = (sum ^ facts[k]) * 0x9E3779B97F4A7C15u + (sum >> 32);
    }
    return sum;
}

/* The number of the folder whose next file comes first; -1: all were taken. */
static int32_t next_folder(const ps_listing *found, const int32_t *taken, int32_t count) {
    int32_t next = -1;
    for (int32_t d = 0; d < count; d++) {
        if (taken[d] == found[d].count) continue;
        if (next < 0 || found[d].items[taken[d]].number < found[next].items[taken[next]].number)
            next = d;
    }
    return next;
}

/* Takes a file into the set where it goes on with it. A listing of a folder to which a writer adds
 * may show a file and lack the one before it, or show that one before it has its size: what comes
 * after is left to the next look. */
static void take_listed(ps_log *l, const char *folder, const struct ps_listed *file,
                        int64_t first) {
    char path[PATH_MAX];
    int64_t last = ps_segments_base(&l->lg_files, -1);
    if (file->number <= last) {
        ps_segments_renew(&l->lg_files, file->number, file->inode);
        return;
    }
    bool goes_on = last < first || file->number == last + l->lg_files.ss_file_size;
    if (!goes_on || file->size != l->lg_files.ss_file_size) return;
    snprintf(path, sizeof path, "%s/%s", folder, file->name);
    ps_segments_add(&l->lg_files, file->number, path, NULL);
}

int ps_log_refresh(ps_log *l, int64_t *first, ps_error *e) {
    ps_listing found[PS_DIRS_MAX] = {0};
    int32_t taken[PS_DIRS_MAX] = {0}, count = l->lg_dirs.count, d;
    int code = 0;
    *first = INT64_MAX;
    l->lg_listed = 0;
    for (d = 0; d < count && code == 0; d++) {
        code = ps_list_folder(l->lg_io, l->lg_dirs.path[d], false, &found[d], e);
        if (code == 0) l->lg_listed = add_listing(l->lg_listed, &found[d]);
    }
    while (code == 0 && (d = next_folder(found, taken, count)) >= 0) {
        const struct ps_listed *file = &found[d].items[taken[d]++];
        adopt_first(l, file);
        if (*first == INT64_MAX) *first = file->number;
        take_listed(l, l->lg_dirs.path[d], file, *first);
    }
    for (d = 0; d < count; d++) ps_listing_free(&found[d]);
    return code;
}

int64_t ps_log_listed_end(ps_log *l) {
    int64_t last = ps_segments_base(&l->lg_files, -1);
    return last < 0 ? 0 : last + l->lg_files.ss_file_size;
}

static bool ends_here(ps_log *l) {
    ps_error e = {0};
    ps_record r;
    int64_t at = atomic_load(&l->lg_end);
    ps_mapfile *mf = ps_segments_find(&l->lg_files, at, &e);
    if (mf == NULL) return e.code == 0; /* the last file is full */
    at -= mf->mf_base;
    int64_t left = mf->mf_size - at;
    ps_rec_outcome o = ps_record_check(mf->mf_map + at, left, -1, 0, &r);
    bool blank = o == PS_REC_BLANK && r.size == left;
    bool last = mf->mf_base == ps_segments_base(&l->lg_files, -1);
    ps_mapfile_unref(mf);
    return o == PS_REC_END || (blank && last); /* a writer makes files ahead */
}

bool ps_log_stands(ps_log *l) {
    uint64_t sum = 0;
    for (int32_t d = 0; d < l->lg_dirs.count; d++) {
        ps_listing found;
        if (ps_list_folder(l->lg_io, l->lg_dirs.path[d], false, &found, NULL) < 0) return false;
        sum = add_listing(sum, &found);
        ps_listing_free(&found);
    }
    return sum == l->lg_listed && ends_here(l);
}

void ps_log_forget_below(ps_log *l, int64_t first) {
    while (ps_segments_count(&l->lg_files) > 0 && ps_segments_base(&l->lg_files, 0) < first)
        ps_segments_forget_first(&l->lg_files);
    atomic_store(&l->lg_min, first);
}
