/* The table of system calls. See io.h.
 *
 * Calls that a signal interrupts are begun again here, so that no caller has to: the process that
 * embeds the store may handle signals without SA_RESTART, as Python does. close is the exception,
 * since on Linux the descriptor is gone whatever it returns. */
#define _GNU_SOURCE
#include "files/io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define AGAIN(rc, call)                                                                            \
    do (rc) = (call);                                                                              \
    while ((rc) < 0 && errno == EINTR)

static int system_open(ps_io *io, const char *path, int flags, mode_t mode) {
    int rc;
    (void)io;
    AGAIN(rc, open(path, flags, mode));
    return rc;
}

static int system_close(ps_io *io, int fd) {
    (void)io;
    return close(fd);
}

static ssize_t system_pread(ps_io *io, int fd, void *buf, size_t len, off_t at) {
    ssize_t rc;
    (void)io;
    AGAIN(rc, pread(fd, buf, len, at));
    return rc;
}

static ssize_t system_pwrite(ps_io *io, int fd, const void *buf, size_t len, off_t at) {
    ssize_t rc;
    (void)io;
    AGAIN(rc, pwrite(fd, buf, len, at));
    return rc;
}

static int system_fsync(ps_io *io, int fd) {
    int rc;
    (void)io;
    AGAIN(rc, fsync(fd));
    return rc;
}

static int system_fdatasync(ps_io *io, int fd) {
    int rc;
    (void)io;
    AGAIN(rc, fdatasync(fd));
    return rc;
}

static int system_ftruncate(ps_io *io, int fd, off_t len) {
    int rc;
    (void)io;
    AGAIN(rc, ftruncate(fd, len));
    return rc;
}

static int system_fallocate(ps_io *io, int fd, int mode, off_t at, off_t len) {
    int rc;
    (void)io;
    AGAIN(rc, fallocate(fd, mode, at, len));
    return rc;
}

static void *system_mmap(ps_io *io, size_t len, int prot, int fd, off_t at) {
    (void)io;
    return mmap(NULL, len, prot, MAP_SHARED, fd, at);
}

static int system_munmap(ps_io *io, void *addr, size_t len) {
    (void)io;
    return munmap(addr, len);
}

static int system_msync(ps_io *io, void *addr, size_t len) {
    int rc;
    (void)io;
    AGAIN(rc, msync(addr, len, MS_SYNC));
    return rc;
}

static int system_rename(ps_io *io, const char *from, const char *to) {
    (void)io;
    return rename(from, to);
}

static int system_unlink(ps_io *io, const char *path) {
    (void)io;
    return unlink(path);
}

static int system_mkdir(ps_io *io, const char *path, mode_t mode) {
    (void)io;
    return mkdir(path, mode);
}

static int system_rmdir(ps_io *io, const char *path) {
    (void)io;
    return rmdir(path);
}

static int system_fstat(ps_io *io, int fd, struct stat *st) {
    (void)io;
    return fstat(fd, st);
}

static int system_statvfs(ps_io *io, const char *path, struct statvfs *st) {
    int rc;
    (void)io;
    AGAIN(rc, statvfs(path, st));
    return rc;
}

static int system_stat(ps_io *io, const char *path, struct stat *st) {
    (void)io;
    return stat(path, st);
}

static int system_lstat(ps_io *io, const char *path, struct stat *st) {
    (void)io;
    return lstat(path, st);
}

static int system_access(ps_io *io, const char *path, int mode) {
    (void)io;
    return access(path, mode);
}

static off_t system_lseek(ps_io *io, int fd, off_t at, int whence) {
    (void)io;
    return lseek(fd, at, whence);
}

static DIR *system_opendir(ps_io *io, const char *path) {
    (void)io;
    return opendir(path);
}

static struct dirent *system_readdir(ps_io *io, DIR *folder) {
    (void)io;
    errno = 0;
    return readdir(folder);
}

static int system_closedir(ps_io *io, DIR *folder) {
    (void)io;
    return closedir(folder);
}

static int system_lock(ps_io *io, int fd, int command, struct flock *lock) {
    int rc;
    (void)io;
    AGAIN(rc, fcntl(fd, command, lock));
    return rc;
}

static int system_flock(ps_io *io, int fd, int operation) {
    int rc;
    (void)io;
    AGAIN(rc, flock(fd, operation));
    return rc;
}

static int system_syncfs(ps_io *io, int fd) {
    int rc;
    (void)io;
    AGAIN(rc, syncfs(fd));
    return rc;
}

static int system_advise(ps_io *io, int fd, off_t at, off_t len, int advice) {
    (void)io;
    return posix_fadvise(fd, at, len, advice);
}

static const ps_io system_table = {
    .open = system_open,
    .close = system_close,
    .pread = system_pread,
    .pwrite = system_pwrite,
    .fsync = system_fsync,
    .fdatasync = system_fdatasync,
    .ftruncate = system_ftruncate,
    .fallocate = system_fallocate,
    .mmap = system_mmap,
    .munmap = system_munmap,
    .msync = system_msync,
    .rename = system_rename,
    .unlink = system_unlink,
    .mkdir = system_mkdir,
    .rmdir = system_rmdir,
    .fstat = system_fstat,
    .statvfs = system_statvfs,
    .stat = system_stat,
    .lstat = system_lstat,
    .access = system_access,
    .lseek = system_lseek,
    .opendir = system_opendir,
    .readdir = system_readdir,
    .closedir = system_closedir,
    .lock = system_lock,
    .flock = system_flock,
    .syncfs = system_syncfs,
    .advise = system_advise,
    .file_mode = PS_FILE_MODE,
    .folder_mode = PS_FOLDER_MODE(PS_FILE_MODE),
};

/* Callers pass the table about as `ps_io *` since one of a test may change with each call; nobody
 * writes to this one. */
ps_io *ps_io_system(void) {
    return (ps_io *)&system_table;
}

static ps_io tables_of_modes[16];
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (mode_t i = 0; i < 16; i++) {
        ps_io *io = &tables_of_modes[i];
        *io = system_table;
        io->file_mode = 0600 | (i & 014) << 2 | (i & 03) << 1;
        io->folder_mode = PS_FOLDER_MODE(io->file_mode);
    }
}

ps_io *ps_io_system_of(mode_t file_mode) {
    pthread_once(&tables_made, make_tables);
    return &tables_of_modes[(file_mode & 060) >> 2 | (file_mode & 06) >> 1];
}

/* ---- whole small files ---- */

ssize_t ps_read_head(ps_io *io, int fd, void *buf, size_t len) {
    size_t done = 0;
    while (done < len) {
        ssize_t n = io->pread(io, fd, (uint8_t *)buf + done, len - done, (off_t)done);
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int ps_write_head(ps_io *io, int fd, const void *bytes, size_t len) {
    size_t done = 0;
    while (done < len) {
        ssize_t n = io->pwrite(io, fd, (const uint8_t *)bytes + done, len - done, (off_t)done);
        if (n <= 0) {
            errno = n < 0 ? errno : EIO;
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}
