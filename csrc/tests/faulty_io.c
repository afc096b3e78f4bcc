/* See faulty_io.h. */
#define _GNU_SOURCE
#include "faulty_io.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FDS_MAX 4096

typedef struct faulty {
    ps_io fy_io; /* first, so that a ps_io * of this table is a faulty * */
    pthread_mutex_t fy_lock;
    uint32_t fy_mask;
    int64_t fy_countdown; /* matching calls until the one that fails; 0: none will */
    int fy_errno;
    bool fy_forever;
    bool fy_broken; /* the fault has struck and is there to stay */
    uint32_t fy_slow_mask;
    int32_t fy_slow_ms;
    int64_t fy_calls[PS_IO_CALLS];
    int64_t fy_struck; /* faults injected so far */
    const char *fy_within; /* only files whose path has this part count; NULL: all do */
    bool fy_inside[FDS_MAX]; /* descriptors of such files */
} faulty;

/* Counts a call of `kind`. True, with errno set, when it is to fail. */
static bool must_fail(ps_io *io, int kind) {
    faulty *fy = (faulty *)io;
    bool fails = false;
    int err;
    pthread_mutex_lock(&fy->fy_lock);
    fy->fy_calls[kind]++;
    if (fy->fy_mask >> kind & 1) {
        if (fy->fy_countdown > 0 && --fy->fy_countdown == 0) {
            fails = true;
            fy->fy_broken = fy->fy_forever;
        } else {
            fails = fy->fy_broken;
        }
    }
    if (fails) fy->fy_struck++;
    err = fy->fy_errno;
    /* In steps, since a test may make calls fast again that are under way. */
    for (int32_t ms = 0; fy->fy_slow_mask >> kind & 1 && ms < fy->fy_slow_ms; ms++) {
        pthread_mutex_unlock(&fy->fy_lock);
        usleep(1000);
        pthread_mutex_lock(&fy->fy_lock);
    }
    pthread_mutex_unlock(&fy->fy_lock);
    if (fails) errno = err;
    return fails;
}

/* fy_within is set before anything is opened. */
static bool fails_at(ps_io *io, const char *path, int kind) {
    const faulty *fy = (const faulty *)io;
    return (fy->fy_within == NULL || strstr(path, fy->fy_within) != NULL) && must_fail(io, kind);
}

/* fd -1: a call that names no file. */
static bool fails_on(ps_io *io, int fd, int kind) {
    const faulty *fy = (const faulty *)io;
    bool inside = fy->fy_within == NULL || (fd >= 0 && fd < FDS_MAX && fy->fy_inside[fd]);
    return inside && must_fail(io, kind);
}

static void note_place(faulty *fy, int fd, const char *path) {
    if (fy->fy_within != NULL && fd >= 0 && fd < FDS_MAX)
        fy->fy_inside[fd] = strstr(path, fy->fy_within) != NULL;
}

static int faulty_open(ps_io *io, const char *path, int flags, mode_t mode) {
    int fd = fails_at(io, path, PS_IO_OPEN) ? -1 : ps_io_system()->open(io, path, flags, mode);
    note_place((faulty *)io, fd, path);
    return fd;
}

/* The descriptor is closed although the call is said to fail, as Linux does it. */
static int faulty_close(ps_io *io, int fd) {
    bool fails = fails_on(io, fd, PS_IO_CLOSE);
    int rc = ps_io_system()->close(io, fd);
    return fails ? -1 : rc;
}

static ssize_t faulty_pread(ps_io *io, int fd, void *buf, size_t len, off_t at) {
    return fails_on(io, fd, PS_IO_PREAD) ? -1 : ps_io_system()->pread(io, fd, buf, len, at);
}

static ssize_t faulty_pwrite(ps_io *io, int fd, const void *buf, size_t len, off_t at) {
    return fails_on(io, fd, PS_IO_PWRITE) ? -1 : ps_io_system()->pwrite(io, fd, buf, len, at);
}

static int faulty_fsync(ps_io *io, int fd) {
    return fails_on(io, fd, PS_IO_FSYNC) ? -1 : ps_io_system()->fsync(io, fd);
}

static int faulty_fdatasync(ps_io *io, int fd) {
    return fails_on(io, fd, PS_IO_FDATASYNC) ? -1 : ps_io_system()->fdatasync(io, fd);
}

static int faulty_ftruncate(ps_io *io, int fd, off_t len) {
    return fails_on(io, fd, PS_IO_FTRUNCATE) ? -1 : ps_io_system()->ftruncate(io, fd, len);
}

static int faulty_fallocate(ps_io *io, int fd, int mode, off_t at, off_t len) {
    return fails_on(io, fd, PS_IO_FALLOCATE) ? -1
                                             : ps_io_system()->fallocate(io, fd, mode, at, len);
}

static void *faulty_mmap(ps_io *io, size_t len, int prot, int fd, off_t at) {
    return fails_on(io, fd, PS_IO_MMAP) ? MAP_FAILED : ps_io_system()->mmap(io, len, prot, fd, at);
}

static int faulty_munmap(ps_io *io, void *addr, size_t len) {
    return fails_on(io, -1, PS_IO_MUNMAP) ? -1 : ps_io_system()->munmap(io, addr, len);
}

static int faulty_msync(ps_io *io, void *addr, size_t len) {
    return fails_on(io, -1, PS_IO_MSYNC) ? -1 : ps_io_system()->msync(io, addr, len);
}

static int faulty_rename(ps_io *io, const char *from, const char *to) {
    return fails_at(io, from, PS_IO_RENAME) ? -1 : ps_io_system()->rename(io, from, to);
}

static int faulty_unlink(ps_io *io, const char *path) {
    return fails_at(io, path, PS_IO_UNLINK) ? -1 : ps_io_system()->unlink(io, path);
}

static int faulty_mkdir(ps_io *io, const char *path, mode_t mode) {
    return fails_at(io, path, PS_IO_MKDIR) ? -1 : ps_io_system()->mkdir(io, path, mode);
}

static int faulty_rmdir(ps_io *io, const char *path) {
    return fails_at(io, path, PS_IO_RMDIR) ? -1 : ps_io_system()->rmdir(io, path);
}

static int faulty_fstat(ps_io *io, int fd, struct stat *st) {
    return fails_on(io, fd, PS_IO_FSTAT) ? -1 : ps_io_system()->fstat(io, fd, st);
}

static int faulty_statvfs(ps_io *io, const char *path, struct statvfs *st) {
    return fails_at(io, path, PS_IO_STATVFS) ? -1 : ps_io_system()->statvfs(io, path, st);
}

static int faulty_stat(ps_io *io, const char *path, struct stat *st) {
    return fails_at(io, path, PS_IO_STAT) ? -1 : ps_io_system()->stat(io, path, st);
}

static int faulty_lstat(ps_io *io, const char *path, struct stat *st) {
    return fails_at(io, path, PS_IO_LSTAT) ? -1 : ps_io_system()->lstat(io, path, st);
}

static int faulty_access(ps_io *io, const char *path, int mode) {
    return fails_at(io, path, PS_IO_ACCESS) ? -1 : ps_io_system()->access(io, path, mode);
}

static off_t faulty_lseek(ps_io *io, int fd, off_t at, int whence) {
    return fails_on(io, fd, PS_IO_LSEEK) ? -1 : ps_io_system()->lseek(io, fd, at, whence);
}

static DIR *faulty_opendir(ps_io *io, const char *path) {
    return fails_at(io, path, PS_IO_OPENDIR) ? NULL : ps_io_system()->opendir(io, path);
}

static struct dirent *faulty_readdir(ps_io *io, DIR *folder) {
    return fails_on(io, -1, PS_IO_READDIR) ? NULL : ps_io_system()->readdir(io, folder);
}

/* As with close: the folder is let go whatever is said. */
static int faulty_closedir(ps_io *io, DIR *folder) {
    int rc = ps_io_system()->closedir(io, folder);
    return fails_on(io, -1, PS_IO_CLOSEDIR) ? -1 : rc;
}

static int faulty_lock(ps_io *io, int fd, int command, struct flock *lock) {
    return fails_on(io, fd, PS_IO_LOCK) ? -1 : ps_io_system()->lock(io, fd, command, lock);
}

static int faulty_flock(ps_io *io, int fd, int operation) {
    return fails_on(io, fd, PS_IO_FLOCK) ? -1 : ps_io_system()->flock(io, fd, operation);
}

static int faulty_syncfs(ps_io *io, int fd) {
    return fails_on(io, fd, PS_IO_SYNCFS) ? -1 : ps_io_system()->syncfs(io, fd);
}

static int faulty_advise(ps_io *io, int fd, off_t at, off_t len, int advice) {
    return fails_on(io, fd, PS_IO_ADVISE) ? errno : ps_io_system()->advise(io, fd, at, len, advice);
}

static const ps_io faulty_table = {
    .open = faulty_open,
    .close = faulty_close,
    .pread = faulty_pread,
    .pwrite = faulty_pwrite,
    .fsync = faulty_fsync,
    .fdatasync = faulty_fdatasync,
    .ftruncate = faulty_ftruncate,
    .fallocate = faulty_fallocate,
    .mmap = faulty_mmap,
    .munmap = faulty_munmap,
    .msync = faulty_msync,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
    .mkdir = faulty_mkdir,
    .rmdir = faulty_rmdir,
    .fstat = faulty_fstat,
    .statvfs = faulty_statvfs,
    .stat = faulty_stat,
    .lstat = faulty_lstat,
    .access = faulty_access,
    .lseek = faulty_lseek,
    .opendir = faulty_opendir,
    .readdir = faulty_readdir,
    .closedir = faulty_closedir,
    .lock = faulty_lock,
    .flock = faulty_flock,
    .syncfs = faulty_syncfs,
    .advise = faulty_advise,
    .file_mode = PS_FILE_MODE,
    .folder_mode = PS_FOLDER_MODE(PS_FILE_MODE),
};

ps_io *ps_io_faulty_new(void) {
    faulty *fy = calloc(1, sizeof *fy);
    if (fy == NULL) return NULL;
    fy->fy_io = faulty_table;
    pthread_mutex_init(&fy->fy_lock, NULL);
    return &fy->fy_io;
}

/* The countdown starts at this call; ps_io_faulty_calls counts on from where it was. */
void ps_io_faulty_set(ps_io *io, uint32_t mask, int64_t countdown, int err, int forever) {
    faulty *fy = (faulty *)io;
    pthread_mutex_lock(&fy->fy_lock);
    fy->fy_mask = mask;
    fy->fy_countdown = countdown;
    fy->fy_errno = err;
    fy->fy_forever = forever != 0;
    fy->fy_broken = false;
    pthread_mutex_unlock(&fy->fy_lock);
}

void ps_io_faulty_within(ps_io *io, const char *part) {
    ((faulty *)io)->fy_within = part;
}

void ps_io_faulty_slow(ps_io *io, uint32_t mask, int32_t ms) {
    faulty *fy = (faulty *)io;
    pthread_mutex_lock(&fy->fy_lock);
    fy->fy_slow_mask = mask;
    fy->fy_slow_ms = ms;
    pthread_mutex_unlock(&fy->fy_lock);
}

/* Every kind is counted at all times, so that a test may choose the mask after a run without
 * faults. */
int64_t ps_io_faulty_calls(ps_io *io, uint32_t mask) {
    faulty *fy = (faulty *)io;
    int64_t calls = 0;
    pthread_mutex_lock(&fy->fy_lock);
    for (int kind = 0; kind < PS_IO_CALLS; kind++)
        if (mask >> kind & 1) calls += fy->fy_calls[kind];
    pthread_mutex_unlock(&fy->fy_lock);
    return calls;
}

int64_t ps_io_faulty_struck(ps_io *io) {
    faulty *fy = (faulty *)io;
    pthread_mutex_lock(&fy->fy_lock);
    int64_t struck_so_far = fy->fy_struck;
    pthread_mutex_unlock(&fy->fy_lock);
    return struck_so_far;
}

void ps_io_faulty_free(ps_io *io) {
    faulty *fy = (faulty *)io;
    if (fy == NULL) return;
    pthread_mutex_destroy(&fy->fy_lock);
    free(fy);
}
