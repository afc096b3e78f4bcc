/* Ordered sets of segment files. See segments.h.
 *
 * ss_lock guards the array; whoever has found a file under it holds a reference, and needs the lock
 * no more. Upstream: MappedFileQueue. */
#define _GNU_SOURCE
#include "files/segments.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/grow.h"

void ps_segments_init(ps_segments *ss, ps_io *io, int64_t file_size, int flags) {
    memset(ss, 0, sizeof *ss);
    ss->ss_io = io;
    ss->ss_file_size = file_size;
    ss->ss_flags = flags;
    pthread_rwlock_init(&ss->ss_lock, NULL);
}

/* An item that is no longer in the set. */
static void item_free(ps_segments *ss, ps_segment *item) {
    ps_mappings_remove(ss->ss_mappings, item->sg_file);
    ps_mapfile_unref(item->sg_file);
    free(item->sg_path);
}

void ps_segments_free(ps_segments *ss) {
    for (int32_t i = 0; i < ss->ss_count; i++) item_free(ss, &ss->ss_items[i]);
    free(ss->ss_items);
    pthread_rwlock_destroy(&ss->ss_lock);
    memset(ss, 0, sizeof *ss);
}

/* For a file that has room in ps_mappings. */
static int add_item(ps_segments *ss, int64_t base, const char *path, ps_mapfile *mf) {
    char *copy = strdup(path);
    pthread_rwlock_wrlock(&ss->ss_lock);
    bool room = copy != NULL && PS_GROW(ss->ss_items, ss->ss_room, ss->ss_count + 1, 2);
    if (room) {
        int32_t i = ss->ss_count++;
        for (; i > 0 && ss->ss_items[i - 1].sg_base > base; i--)
            ss->ss_items[i] = ss->ss_items[i - 1];
        ss->ss_items[i] = (ps_segment){.sg_base = base, .sg_file = mf, .sg_path = copy};
        if (mf != NULL) {
            mf->mf_set = ss;
            ps_mappings_add(ss->ss_mappings, mf);
        }
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    if (!room) free(copy);
    return room ? 0 : PS_E_NO_MEMORY;
}

int ps_segments_add(ps_segments *ss, int64_t base, const char *path, ps_mapfile *mf_or_null) {
    if (mf_or_null == NULL) return add_item(ss, base, path, NULL);
    int code = ps_mappings_make_room(ss->ss_mappings);
    if (code < 0) return code;
    code = add_item(ss, base, path, mf_or_null);
    if (code < 0) ps_mappings_cancel(ss->ss_mappings);
    return code;
}

/* Maps a file; once more with fewer mappings when the kernel has no room for another. */
static int open_file(ps_segments *ss, const char *path, int64_t base, int flags, ps_mapfile **out,
                     ps_error *e) {
    int code = ps_mapfile_open(ss->ss_io, path, base, ss->ss_file_size, flags, out, e);
    if (code == PS_E_NO_MEMORY && ps_mappings_shrink(ss->ss_mappings))
        code = ps_mapfile_open(ss->ss_io, path, base, ss->ss_file_size, flags, out, e);
    return code;
}

int ps_segments_make(ps_segments *ss, int64_t base, const char *path, ps_mapfile **out,
                     ps_error *e) {
    int code = ps_mappings_make_room(ss->ss_mappings);
    if (code < 0) return ps_fail(e, code, ENOMEM, -1, path, "no memory for the file");
    code = open_file(ss, path, base, ss->ss_flags | PS_MAP_CREATE, out, e);
    if (code == 0 && (code = add_item(ss, base, path, ps_mapfile_ref(*out))) < 0) {
        ss->ss_io->unlink(ss->ss_io, path);
        ps_mapfile_unref(*out);
        ps_mapfile_unref(*out);
        ps_fail(e, code, ENOMEM, -1, path, "no memory for the file");
    }
    if (code < 0) ps_mappings_cancel(ss->ss_mappings);
    return code;
}

/* Index of the file that holds `offset`, or -1. Gaps of a damaged store are respected. */
static int32_t segment_index_locked(const ps_segments *ss, int64_t offset) {
    int32_t low = 0, high = ss->ss_count - 1;
    while (low <= high) {
        int32_t mid = low + (high - low) / 2;
        int64_t base = ss->ss_items[mid].sg_base;
        if (offset < base)
            high = mid - 1;
        else if (offset >= base + ss->ss_file_size)
            low = mid + 1;
        else
            return mid;
    }
    return -1;
}

/* Maps an item. Everything in a file that was only listed so far counts as written and on the disk
 * until recovery has found its true end. */
static int item_map_locked(ps_segments *ss, ps_segment *s, ps_error *e) {
    ps_mapfile *mf;
    int code = open_file(ss, s->sg_path, s->sg_base, ss->ss_flags, &mf, e);
    if (code < 0) return code;
    mf->mf_set = ss;
    atomic_store(&mf->mf_wrote, s->sg_was_mapped ? s->sg_wrote : ss->ss_file_size);
    atomic_store(&mf->mf_flushed, s->sg_was_mapped ? s->sg_flushed : ss->ss_file_size);
    atomic_store(&mf->mf_reserved, s->sg_reserved);
    atomic_store(&mf->mf_errno, s->sg_errno);
    s->sg_file = mf;
    return 0;
}

static ps_mapfile *segment_map(ps_segments *ss, int64_t offset, ps_error *e) {
    ps_mapfile *mf = NULL;
    bool mapped = false;
    if (ps_mappings_make_room(ss->ss_mappings) < 0) {
        ps_no_memory(e, NULL, "no memory for a mapping");
        return NULL;
    }
    pthread_rwlock_wrlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, offset);
    if (i >= 0 && ss->ss_items[i].sg_file == NULL)
        mapped = item_map_locked(ss, &ss->ss_items[i], e) == 0;
    if (i >= 0 && ss->ss_items[i].sg_file != NULL) mf = ps_mapfile_ref(ss->ss_items[i].sg_file);
    if (mapped)
        ps_mappings_add(ss->ss_mappings, mf);
    else
        ps_mappings_cancel(ss->ss_mappings);
    pthread_rwlock_unlock(&ss->ss_lock);
    return mf;
}

/* Nobody can take a reference while the lock is held for writing. A segment of the log stays until
 * all of it is on the disk: its writer, its flusher and recovery go by the mapping. Of other files
 * the item remembers what is not synced yet. */
bool ps_segments_let_go(ps_mapfile *mf) {
    ps_segments *ss = mf->mf_set;
    if (pthread_rwlock_trywrlock(&ss->ss_lock) != 0) return false;
    int32_t i = segment_index_locked(ss, mf->mf_base);
    ps_segment *s = i >= 0 && ss->ss_items[i].sg_file == mf ? &ss->ss_items[i] : NULL;
    bool stays = mf->mf_writable && mf->mf_fd >= 0 && atomic_load(&mf->mf_flushed) < mf->mf_size;
    bool free_now = s != NULL && !stays && atomic_load(&mf->mf_refs) == 1;
    if (free_now) {
        s->sg_wrote = atomic_load(&mf->mf_wrote);
        s->sg_flushed = atomic_load(&mf->mf_flushed);
        s->sg_reserved = atomic_load(&mf->mf_reserved);
        s->sg_errno = atomic_load(&mf->mf_errno);
        s->sg_was_mapped = true;
        s->sg_file = NULL;
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    return free_now;
}

ps_mapfile *ps_segments_find(ps_segments *ss, int64_t offset, ps_error *e) {
    ps_mapfile *mf = NULL;
    bool listed = false;
    pthread_rwlock_rdlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, offset);
    if (i >= 0) {
        listed = true;
        mf = ss->ss_items[i].sg_file;
        if (mf != NULL) ps_mapfile_ref(mf);
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    if (mf != NULL && !atomic_load_explicit(&mf->mf_used, memory_order_relaxed))
        atomic_store_explicit(&mf->mf_used, true, memory_order_relaxed);
    if (mf == NULL && listed) mf = segment_map(ss, offset, e);
    if (mf == NULL || ps_mapfile_whole(mf, e) == 0) return mf;
    ps_mapfile_unref(mf);
    return NULL;
}

int ps_segments_whole(ps_segments *ss, int64_t offset, ps_error *e) {
    ps_error why = {0};
    ps_mapfile_unref(ps_segments_find(ss, offset, &why));
    if (why.code != PS_E_FILE_SIZE) return 0;
    if (e != NULL) *e = why;
    return PS_E_FILE_SIZE;
}

static int read_at(ps_io *io, const char *path, int64_t at, void *out, int64_t len, ps_error *e) {
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot open the file");
    ssize_t n = io->pread(io, fd, out, (size_t)len, at);
    int err = errno;
    io->close(io, fd);
    if (n < 0) return ps_fail(e, ps_errno_code(err), err, -1, path, "cannot read the file");
    if (n < len) return ps_fail(e, PS_E_FILE_SIZE, 0, -1, path, "the file was truncated");
    return 1;
}

int ps_segments_peek(ps_segments *ss, int64_t offset, void *out, int64_t len, ps_error *e) {
    char path[PATH_MAX] = "";
    ps_mapfile *mf = NULL;
    int64_t base = 0;
    pthread_rwlock_rdlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, offset);
    if (i >= 0) {
        base = ss->ss_items[i].sg_base;
        mf = ss->ss_items[i].sg_file;
        if (mf != NULL)
            ps_mapfile_ref(mf);
        else
            snprintf(path, sizeof path, "%s", ss->ss_items[i].sg_path);
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    if (i < 0) return 0;
    if (mf == NULL) return read_at(ss->ss_io, path, offset - base, out, len, e);
    memcpy(out, mf->mf_map + (offset - base), (size_t)len);
    int code = ps_mapfile_whole(mf, e);
    ps_mapfile_unref(mf);
    return code < 0 ? code : 1;
}

int ps_segments_read(ps_segments *ss, int64_t offset, void *out, int64_t len, ps_error *e) {
    char path[PATH_MAX];
    int64_t base = 0;
    pthread_rwlock_rdlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, offset);
    if (i >= 0) {
        base = ss->ss_items[i].sg_base;
        snprintf(path, sizeof path, "%s", ss->ss_items[i].sg_path);
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    return i < 0 ? 0 : read_at(ss->ss_io, path, offset - base, out, len, e);
}

/* What was written through a mapping that is gone is in the page cache: a descriptor syncs it, and
 * learns of a failure that nobody was told yet. */
static int flush_unmapped(ps_segments *ss, int64_t base, const char *path, int64_t wrote,
                          ps_error *e) {
    ps_io *io = ss->ss_io;
    int fd = io->open(io, path, O_RDWR | O_CLOEXEC | O_NONBLOCK, 0), err = 0;
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot open the file");
    if (io->fdatasync(io, fd) < 0) err = errno != 0 ? errno : EIO;
    io->close(io, fd);
    pthread_rwlock_wrlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, base);
    ps_segment *s = i >= 0 ? &ss->ss_items[i] : NULL;
    if (s != NULL && err != 0) s->sg_errno = err;
    if (s != NULL && err != 0 && s->sg_file != NULL) atomic_store(&s->sg_file->mf_errno, err);
    if (s != NULL && err == 0 && s->sg_file == NULL && s->sg_flushed < wrote) s->sg_flushed = wrote;
    pthread_rwlock_unlock(&ss->ss_lock);
    if (err == 0) return 0;
    return ps_fail(e, PS_E_FLUSH_FAILED, err, base, path, "the file could not be synced");
}

int ps_segments_flush(ps_segments *ss, int32_t i, ps_error *e) {
    char path[PATH_MAX] = "";
    ps_mapfile *mf = NULL;
    ps_segment item = {0};
    pthread_rwlock_rdlock(&ss->ss_lock);
    if (i >= 0 && i < ss->ss_count) {
        item = ss->ss_items[i];
        if (item.sg_file != NULL) mf = ps_mapfile_ref(item.sg_file);
        snprintf(path, sizeof path, "%s", item.sg_path);
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    if (mf != NULL) {
        int code = ps_mapfile_flush(mf, 0, e);
        ps_mapfile_unref(mf);
        return code;
    }
    if (item.sg_errno != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, item.sg_errno, item.sg_base, path,
                       "an earlier sync of the file failed");
    if (!item.sg_was_mapped || item.sg_wrote <= item.sg_flushed) return 0;
    return flush_unmapped(ss, item.sg_base, path, item.sg_wrote, e);
}

/* The file that holds `offset`, with a reference, if it is mapped. */
static ps_mapfile *find_mapped(ps_segments *ss, int64_t offset) {
    pthread_rwlock_rdlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, offset);
    ps_mapfile *mf = i >= 0 ? ss->ss_items[i].sg_file : NULL;
    if (mf != NULL) ps_mapfile_ref(mf);
    pthread_rwlock_unlock(&ss->ss_lock);
    return mf;
}

/* The part of a window, which begins on a page, that is in memory. */
static double resident_part(const ps_mapfile *mf, int64_t at, int64_t page) {
    unsigned char pages[PS_RESIDENT_WINDOW / 4096];
    int64_t len = mf->mf_size - at < PS_RESIDENT_WINDOW ? mf->mf_size - at : PS_RESIDENT_WINDOW;
    int64_t count = (len + page - 1) / page, found = 0;
    if (mincore(mf->mf_map + at, (size_t)len, pages) < 0) return 0;
    for (int64_t i = 0; i < count; i++) found += pages[i] & 1;
    return (double)found / (double)count;
}

void ps_segments_resident(ps_segments *ss, int64_t from, int64_t to, int32_t most, int64_t *mapped,
                          int64_t *resident) {
    int64_t len = to - from, count = (len + PS_RESIDENT_WINDOW - 1) / PS_RESIDENT_WINDOW;
    int64_t page = (int64_t)sysconf(_SC_PAGESIZE);
    double mapped_sum = 0, resident_sum = 0;
    if (count > most) count = most;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = from + (int64_t)((double)len * (double)i / (double)count);
        double stands_for = (double)len / (double)count;
        ps_mapfile *mf = find_mapped(ss, at);
        if (mf == NULL) continue;
        mapped_sum += stands_for;
        resident_sum += stands_for * resident_part(mf, (at - mf->mf_base) / page * page, page);
        ps_mapfile_unref(mf);
    }
    *mapped = (int64_t)(mapped_sum + 0.5);
    *resident = (int64_t)(resident_sum + 0.5);
}

int32_t ps_segments_count(ps_segments *ss) {
    pthread_rwlock_rdlock(&ss->ss_lock);
    int32_t n = ss->ss_count;
    pthread_rwlock_unlock(&ss->ss_lock);
    return n;
}

int64_t ps_segments_base(ps_segments *ss, int32_t i) {
    int64_t base = -1;
    pthread_rwlock_rdlock(&ss->ss_lock);
    if (i < 0) i += ss->ss_count;
    if (i >= 0 && i < ss->ss_count) base = ss->ss_items[i].sg_base;
    pthread_rwlock_unlock(&ss->ss_lock);
    return base;
}

int ps_segments_delete(ps_segments *ss, int32_t i, ps_error *e) {
    ps_segment gone = {0};
    int code = 0;
    pthread_rwlock_wrlock(&ss->ss_lock);
    if (i < 0) i += ss->ss_count;
    if (i >= 0 && i < ss->ss_count) {
        if (ss->ss_io->unlink(ss->ss_io, ss->ss_items[i].sg_path) < 0 && errno != ENOENT) {
            code = ps_fail(e, ps_errno_code(errno), errno, -1, ss->ss_items[i].sg_path,
                           "cannot delete the file");
        } else {
            gone = ss->ss_items[i];
            memmove(&ss->ss_items[i], &ss->ss_items[i + 1],
                    (size_t)(ss->ss_count - i - 1) * sizeof gone);
            ss->ss_count--;
        }
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    item_free(ss, &gone);
    return code;
}

void ps_segments_forget(ps_segments *ss, int32_t i) {
    ps_segment gone = {0};
    pthread_rwlock_wrlock(&ss->ss_lock);
    if (i < 0) i += ss->ss_count;
    if (i >= 0 && i < ss->ss_count) {
        gone = ss->ss_items[i];
        ss->ss_count--;
        memmove(&ss->ss_items[i], &ss->ss_items[i + 1], (size_t)(ss->ss_count - i) * sizeof gone);
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    item_free(ss, &gone);
}

void ps_segments_forget_first(ps_segments *ss) {
    ps_segments_forget(ss, 0);
}

void ps_segments_renew(ps_segments *ss, int64_t base, uint64_t inode) {
    ps_mapfile *old = NULL;
    pthread_rwlock_wrlock(&ss->ss_lock);
    int32_t i = segment_index_locked(ss, base);
    ps_segment *s = i >= 0 && ss->ss_items[i].sg_base == base ? &ss->ss_items[i] : NULL;
    if (s != NULL && s->sg_file != NULL && s->sg_file->mf_inode != inode) {
        old = s->sg_file;
        s->sg_file = NULL;
        s->sg_was_mapped = false;
    }
    pthread_rwlock_unlock(&ss->ss_lock);
    if (old == NULL) return;
    ps_mappings_remove(ss->ss_mappings, old);
    ps_mapfile_unref(old);
}
