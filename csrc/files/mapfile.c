/* Segment files, and folders of them. See mapfile.h.
 *
 * A file is named by 20 decimal digits: the logical offset of its first byte. It has its full size
 * from the start and is mapped whole. Blocks are reserved ahead of the writer (ps_mapfile_reserve),
 * since a store into a mapped hole on a full disk is a SIGBUS, and since writing into reserved
 * extents is ten times faster than into holes. Upstream: DefaultMappedFile, MappedFileQueue. */
#define _GNU_SOURCE
#include "files/mapfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/sigbus.h"

#define PS_PAGE 4096
#define LOOKED_AT (256 << 10) /* bytes of which one page is looked for */
#define READ_IN 22 /* MADV_POPULATE_READ, which some C libraries do not name yet */

/* What is at the path, which has `want` bytes. */
static int look_at_fd(ps_io *io, int fd, const char *path, int64_t want, uint64_t *inode,
                      ps_error *e) {
    struct stat st;
    if (io->fstat(io, fd, &st) < 0)
        return ps_fail(e, PS_E_IO, errno, -1, path, "cannot read the size of the file");
    if (st.st_size != want)
        return ps_fail(e, PS_E_FILE_SIZE, 0, -1, path, "the file has %lld bytes, not %lld",
                       (long long)st.st_size, (long long)want);
    *inode = st.st_ino;
    return 0;
}

/* Maps an open file, which stays the caller's: mf_fd is -1. */
static int map_fd(ps_io *io, int fd, const char *path, int64_t base, int64_t size, bool write,
                  ps_mapfile **out, ps_error *e) {
    void *map = io->mmap(io, (size_t)size, write ? PROT_READ | PROT_WRITE : PROT_READ, fd, 0);
    if (map == MAP_FAILED)
        return ps_fail(e, errno == ENOMEM ? PS_E_NO_MEMORY : PS_E_IO, errno, -1, path,
                       "cannot map the file");
    ps_mapfile *mf = calloc(1, sizeof *mf);
    if (mf == NULL || (mf->mf_path = strdup(path)) == NULL) {
        io->munmap(io, map, (size_t)size);
        free(mf);
        return ps_no_memory(e, path, "no memory for a mapped file");
    }
    mf->mf_io = io;
    mf->mf_base = base;
    mf->mf_size = size;
    mf->mf_map = map;
    mf->mf_fd = -1;
    mf->mf_writable = write;
    mf->mf_slot = -1;
    atomic_init(&mf->mf_refs, 1);
    mf->mf_watch = ps_sigbus_watch(map, (size_t)size, write, &mf->mf_cut, &mf->mf_errno);
    *out = mf;
    return 0;
}

int ps_mapfile_open(ps_io *io, const char *path, int64_t base, int64_t size, int flags,
                    ps_mapfile **out, ps_error *e) {
    int write = flags & PS_MAP_WRITE, make = flags & PS_MAP_CREATE, code = 0;
    /* O_NONBLOCK: a pipe in a segment's place would wait for its writer for ever. */
    int mode =
        (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | (make ? O_CREAT | O_EXCL : 0);
    uint64_t inode = 0;
    int fd = io->open(io, path, mode, io->file_mode);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path,
                       make ? "cannot create the file" : "cannot open the file");
    if (make && io->ftruncate(io, fd, size) < 0) {
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot resize the file");
        goto out;
    }
    if (!make && (code = look_at_fd(io, fd, path, size, &inode, e)) < 0) goto out;
    code = map_fd(io, fd, path, base, size, write != 0, out, e);
    if (code < 0) goto out;
    (*out)->mf_inode = inode;
    if (flags & PS_MAP_KEEP_FD) (*out)->mf_fd = fd;
    if (flags & PS_MAP_SPARING) ps_mapfile_spare(*out, true, 0);
out:
    if (code < 0 && make) io->unlink(io, path);
    if (code < 0 || !(flags & PS_MAP_KEEP_FD)) io->close(io, fd);
    return code;
}

ps_mapfile *ps_file_map(int fd, const char *path, int64_t base, int64_t size, ps_segment_view *out,
                        ps_error *e) {
    ps_mapfile *mf = NULL;
    if (ps_sigbus_install(e) < 0 ||
        map_fd(ps_io_system(), fd, path, base, size, false, &mf, e) < 0)
        return NULL;
    *out = (ps_segment_view){mf->mf_map, size, base};
    return mf;
}

ps_mapfile *ps_mapfile_over_bytes(const uint8_t *bytes, int64_t len, int64_t base) {
    ps_mapfile *mf = calloc(1, sizeof *mf);
    if (mf == NULL) return NULL;
    mf->mf_base = base;
    mf->mf_size = len;
    mf->mf_map = (uint8_t *)(uintptr_t)bytes;
    mf->mf_borrowed = true;
    mf->mf_fd = mf->mf_watch = mf->mf_slot = -1;
    atomic_init(&mf->mf_refs, 1);
    return mf;
}

ps_mapfile *ps_mapfile_of_bytes(const uint8_t *bytes, int64_t len, int64_t base) {
    int64_t size = len > 0 ? len : 1;
    uint8_t *copy = malloc((size_t)size);
    if (copy == NULL) return NULL;
    copy[0] = 0;
    if (len > 0) memcpy(copy, bytes, (size_t)len);
    ps_mapfile *mf = ps_mapfile_over_bytes(copy, size, base);
    if (mf == NULL) {
        free(copy);
        return NULL;
    }
    mf->mf_borrowed = false;
    return mf;
}

ps_mapfile *ps_mapfile_ref(ps_mapfile *mf) {
    atomic_fetch_add_explicit(&mf->mf_refs, 1, memory_order_relaxed);
    return mf;
}

void ps_mapfile_unref(ps_mapfile *mf) {
    if (mf == NULL || atomic_fetch_sub_explicit(&mf->mf_refs, 1, memory_order_acq_rel) != 1) return;
    ps_sigbus_unwatch(mf->mf_watch);
    if (mf->mf_io == NULL && !mf->mf_borrowed)
        free(mf->mf_map);
    else if (mf->mf_io != NULL)
        mf->mf_io->munmap(mf->mf_io, mf->mf_map, (size_t)mf->mf_size);
    if (mf->mf_fd >= 0) mf->mf_io->close(mf->mf_io, mf->mf_fd);
    free(mf->mf_path);
    free(mf);
}

void ps_mapfile_spare(ps_mapfile *mf, bool sparing, int64_t from) {
    if (atomic_load_explicit(&mf->mf_sparing, memory_order_relaxed) == sparing ||
        atomic_exchange(&mf->mf_sparing, sparing) == sparing)
        return;
    madvise(mf->mf_map + from, (size_t)(mf->mf_size - from), sparing ? MADV_RANDOM : MADV_NORMAL);
}

void ps_mapfile_read_whole(const ps_mapfile *mf) {
    madvise(mf->mf_map, (size_t)mf->mf_size, MADV_HUGEPAGE); /* it may know nothing of that */
}

/* Widens [at, at + len) to whole pages; false: the mapping does not begin with one. */
static bool in_pages(const ps_mapfile *mf, int64_t at, int64_t len, int64_t *from, int64_t *size) {
    *from = at / PS_PAGE * PS_PAGE;
    *size = (at + len + PS_PAGE - 1) / PS_PAGE * PS_PAGE - *from;
    return len > 0 && at >= 0 && at + len <= mf->mf_size && (uintptr_t)mf->mf_map % PS_PAGE == 0;
}

int64_t ps_mapfile_in_memory(const ps_mapfile *mf, int64_t at, int64_t len) {
    unsigned char pages[PS_IN_MEMORY_MAX / PS_PAGE + 1];
    int64_t from, size;
    if (len > PS_IN_MEMORY_MAX || !in_pages(mf, at, len, &from, &size) ||
        mincore(mf->mf_map + from, (size_t)size, pages) < 0)
        return len;
    for (int64_t i = 0; i < size / PS_PAGE; i++) {
        if (pages[i] & 1) continue;
        int64_t until = from + i * PS_PAGE - at;
        return until > 0 ? until : 0;
    }
    return len;
}

int ps_mapfile_at_hand(const ps_mapfile *mf) {
    for (int64_t at = 0; at < mf->mf_size; at += LOOKED_AT)
        if (ps_mapfile_in_memory(mf, at, 1) < 1) return 0;
    return 1;
}

void ps_mapfile_read_in(const ps_mapfile *mf, int64_t at, int64_t len) {
    int64_t from, size;
    if (!in_pages(mf, at, len, &from, &size) ||
        madvise(mf->mf_map + from, (size_t)size, READ_IN) == 0)
        return;
    /* The system is older than that, or the file was cut off: see sigbus.h. */
    const volatile uint8_t *map = mf->mf_map;
    for (int64_t i = from; i < from + size && i < mf->mf_size; i += PS_PAGE) (void)map[i];
}

int ps_mapfile_reserve(ps_mapfile *mf, int64_t upto, int64_t window, ps_error *e) {
    int64_t have = atomic_load_explicit(&mf->mf_reserved, memory_order_acquire);
    int64_t want;
    int fd = mf->mf_fd, rc, err;
    if (upto <= have) return 0;
    want = have + (upto - have + window - 1) / window * window;
    if (want > mf->mf_size) want = mf->mf_size;
    if (fd < 0 && (fd = mf->mf_io->open(mf->mf_io, mf->mf_path, O_RDWR | O_CLOEXEC, 0)) < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, mf->mf_path, "cannot open the file");
    do rc = mf->mf_io->fallocate(mf->mf_io, fd, 0, have, want - have);
    while (rc < 0 && errno == EINTR);
    err = errno;
    if (mf->mf_fd < 0) mf->mf_io->close(mf->mf_io, fd);
    /* A file system that cannot reserve (some network mounts) is used all the same: there, a full
     * disk is caught by the ratio check of the retention rules alone. */
    if (rc < 0 && err != EOPNOTSUPP && err != ENOSYS)
        return ps_fail(e, ps_errno_code(err), err, -1, mf->mf_path,
                       "cannot allocate disk space for the file");
    atomic_store_explicit(&mf->mf_reserved, want, memory_order_release);
    return 0;
}

static int write_part(ps_mapfile *mf, int fd, int64_t at, const uint8_t *data, int64_t len,
                      const char *what, ps_error *e) {
    while (len > 0) {
        ssize_t done = mf->mf_io->pwrite(mf->mf_io, fd, data, (size_t)len, at);
        if (done <= 0)
            return ps_fail(e, ps_errno_code(done < 0 ? errno : EIO), done < 0 ? errno : EIO,
                           mf->mf_base + at, mf->mf_path, "%s", what);
        at += done;
        data += done;
        len -= done;
    }
    return 0;
}

int ps_mapfile_put(ps_mapfile *mf, int64_t at, const void *data, int64_t len, ps_error *e) {
    if (mf->mf_fd >= 0)
        return write_part(mf, mf->mf_fd, at, data, len, "cannot write to the file", e);
    memcpy(mf->mf_map + at, data, (size_t)len);
    return 0;
}

static int zero_part(ps_mapfile *mf, int fd, int64_t from, int64_t to, ps_error *e) {
    static const uint8_t zeros[65536];
    int code = 0;
    for (int64_t n; from < to && code == 0; from += n) {
        n = to - from < (int64_t)sizeof zeros ? to - from : (int64_t)sizeof zeros;
        code = write_part(mf, fd, from, zeros, n, "cannot zero a part of the file", e);
    }
    return code;
}

int ps_mapfile_zero(ps_mapfile *mf, int64_t at, int64_t len, bool sync, ps_error *e) {
    ps_io *io = mf->mf_io;
    int64_t end = at + len;
    int code = 0, fd = mf->mf_fd;
    if (fd < 0 && (fd = io->open(io, mf->mf_path, O_RDWR | O_CLOEXEC, 0)) < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, mf->mf_path, "cannot open the file");
    while (at < end && code == 0) {
        off_t data = io->lseek(io, fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) break;
        off_t hole = data < 0 ? -1 : io->lseek(io, fd, data, SEEK_HOLE);
        int64_t from = hole > data ? data : at, to = hole > data && hole < end ? hole : end;
        if (from < to) code = zero_part(mf, fd, from, to, e);
        at = to;
    }
    if (code == 0 && sync && io->fdatasync(io, fd) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, mf->mf_path, "cannot sync the file");
    if (mf->mf_fd < 0) io->close(io, fd);
    return code;
}

static int sync_range(ps_mapfile *mf, int64_t from, int64_t to) {
    if (mf->mf_fd >= 0) return mf->mf_io->fdatasync(mf->mf_io, mf->mf_fd);
    from -= from % PS_PAGE;
    return mf->mf_io->msync(mf->mf_io, mf->mf_map + from, (size_t)(to - from));
}

int ps_mapfile_whole(const ps_mapfile *mf, ps_error *e) {
    if (!atomic_load_explicit(&mf->mf_cut, memory_order_acquire)) return 0;
    return ps_fail(e, PS_E_FILE_SIZE, 0, -1, mf->mf_path,
                   "the file was truncated while it was mapped");
}

int ps_mapfile_flush(ps_mapfile *mf, int least_pages, ps_error *e) {
    int64_t wrote = atomic_load_explicit(&mf->mf_wrote, memory_order_acquire);
    int64_t flushed = atomic_load_explicit(&mf->mf_flushed, memory_order_acquire);
    int err = atomic_load(&mf->mf_errno);
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, mf->mf_base + flushed, mf->mf_path,
                       "an earlier sync of the file failed");
    if (wrote <= flushed) return 0;
    if (wrote < mf->mf_size && wrote / PS_PAGE - flushed / PS_PAGE < least_pages) return 0;
    if (sync_range(mf, flushed, wrote) < 0) {
        /* The kernel drops the error with the dirty pages once reported: a second sync would
         * succeed without the data being there. So the first failure is kept for good. */
        err = errno ? errno : EIO;
        atomic_store(&mf->mf_errno, err);
        return ps_fail(e, PS_E_FLUSH_FAILED, err, mf->mf_base + flushed, mf->mf_path,
                       "the file could not be synced");
    }
    atomic_store_explicit(&mf->mf_flushed, wrote, memory_order_release);
    return 0;
}

/* ---- folders ---- */

static int by_number(const void *a, const void *b) {
    const struct ps_listed *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static bool all_digits(const char *s) {
    size_t n = strspn(s, "0123456789");
    return n > 0 && n <= 20 && s[n] == 0;
}

/* A link that leads nowhere, a folder, a pipe under the name of a segment: the messages that it
 * stands for must not be missing silently. */
static int list_odd(const char *folder, const struct dirent *d, int err, ps_error *e) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 300, folder, d->d_name);
    return ps_fail(e, ps_errno_code(err), err == EINVAL ? 0 : err, -1, path,
                   err == EINVAL ? "not a regular file" : "cannot look at the file");
}

static int list_one(ps_io *io, const char *folder, const struct dirent *d, bool strict,
                    ps_listing *out, int32_t *room, ps_error *e) {
    struct stat st;
    char path[PATH_MAX];
    bool segment = strlen(d->d_name) == 20 && all_digits(d->d_name);
    if (d->d_name[0] == '.' && (d->d_name[1] == 0 || strcmp(d->d_name, "..") == 0)) return 0;
    snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 300, folder, d->d_name);
    if (io->stat(io, path, &st) < 0) {
        int err = errno;
        if (err == ELOOP && !all_digits(d->d_name)) return 0;
        /* A segment that is a link to nothing is not one that has gone meanwhile. */
        if (err == ENOENT && (!segment || (io->lstat(io, path, &st) < 0 && errno == ENOENT)))
            return 0;
        return list_odd(folder, d, err, e);
    }
    if (segment && !S_ISREG(st.st_mode)) return list_odd(folder, d, EINVAL, e);
    if (S_ISDIR(st.st_mode)) return 0;
    if (!all_digits(d->d_name)) {
        if (!strict) return 0;
        return ps_fail(e, PS_E_STRAY_FILE, 0, -1, path, "unexpected file");
    }
    if (!PS_GROW(out->items, *room, out->count + 1, 4))
        return ps_no_memory(e, folder, "no memory for the list of the folder's files");
    struct ps_listed *item = &out->items[out->count++];
    snprintf(item->name, sizeof item->name, "%.63s", d->d_name);
    errno = 0;
    item->number = strtoll(d->d_name, NULL, 10);
    item->size = st.st_size;
    item->mtime_ms = st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    item->inode = st.st_ino;
    return 0;
}

int ps_list_folder(ps_io *io, const char *path, bool strict, ps_listing *out, ps_error *e) {
    int32_t room = 0;
    int code = 0;
    struct dirent *d;
    memset(out, 0, sizeof *out);
    DIR *dir = io->opendir(io, path);
    if (dir == NULL) {
        if (errno == ENOENT) return 0;
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot list the directory");
    }
    while (code == 0 && (d = io->readdir(io, dir)) != NULL)
        code = list_one(io, path, d, strict, out, &room, e);
    if (code == 0 && errno != 0) code = ps_list_failed(path, e);
    io->closedir(io, dir);
    if (code < 0) {
        ps_listing_free(out);
        return code;
    }
    if (out->count > 1) qsort(out->items, (size_t)out->count, sizeof *out->items, by_number);
    return 0;
}

int ps_list_failed(const char *path, ps_error *e) {
    return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot read the whole directory");
}

void ps_listing_free(ps_listing *l) {
    free(l->items);
    memset(l, 0, sizeof *l);
}

/* The entry of `path`, which was just made, in the folder above it. */
static int sync_parent(ps_io *io, const char *path, ps_error *e) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int len = slash == NULL ? 0 : slash == path ? 1 : (int)(slash - path);
    snprintf(parent, sizeof parent, "%.*s", len > 0 ? len : 1, len > 0 ? path : ".");
    return ps_sync_folder(io, parent, e);
}

int ps_make_folders(ps_io *io, const char *path, bool synced, ps_error *e) {
    return ps_make_folders_below(io, path, 0, synced, e);
}

int ps_make_folders_below(ps_io *io, const char *path, size_t there, bool synced, ps_error *e) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return ps_fail(e, PS_E_ARGUMENT, ENAMETOOLONG, -1, path, "the path is empty or too long");
    memcpy(part, path, n + 1);
    if (io->mkdir(io, part, io->folder_mode) == 0) return synced ? sync_parent(io, part, e) : 0;
    if (errno == EEXIST) return 0;
    for (size_t i = there + 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        char kept = part[i];
        part[i] = 0;
        bool made = io->mkdir(io, part, io->folder_mode) == 0;
        if (!made && errno != EEXIST)
            return ps_fail(e, ps_errno_code(errno), errno, -1, part, "cannot create the directory");
        int code = made && synced ? sync_parent(io, part, e) : 0;
        if (code < 0) return code;
        part[i] = kept;
    }
    return 0;
}

int ps_sync_folder(ps_io *io, const char *path, ps_error *e) {
    int fd = io->open(io, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int code = 0;
    if (fd < 0) return ps_fail(e, ps_errno_code(errno), errno, -1, path,
                               "cannot open the directory");
    /* Some file systems refuse to sync a folder (EINVAL); they order it themselves. */
    if (io->fsync(io, fd) < 0 && errno != EINVAL)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "cannot sync the directory");
    io->close(io, fd);
    return code;
}

int ps_sync_disk(ps_io *io, int fd, const char *path, ps_error *e) {
    if (io->syncfs(io, fd) == 0) return 0;
    return ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "cannot sync the file system");
}
