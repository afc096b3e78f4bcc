/* The table of system calls and the one that fails on purpose. */
#define _GNU_SOURCE
#include "files/io.h"

#include <errno.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>

#include "check.h"
#include "faulty_io.h"

/* Every call of the table once; returns the one that failed, or -1. tidy: long, one line a call. */
static int walk(ps_io *io, const char *folder) {
    char file[4200], other[4200], sub[4200];
    uint8_t bytes[16] = "sixteen bytes !", back[16] = {0};
    struct stat st;
    struct statvfs vfs;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int failed = -1, err = 0;
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(sub, sizeof sub, "%s/sub", folder);
    int fd = io->open(io, file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return PS_IO_OPEN;
#define STEP(kind, claim)                                                                          \
    do {                                                                                           \
        if (failed < 0 && !(claim)) {                                                              \
            failed = (kind);                                                                       \
            err = errno;                                                                           \
        }                                                                                          \
    } while (0)
    STEP(PS_IO_PWRITE, io->pwrite(io, fd, bytes, 16, 4) == 16);
    STEP(PS_IO_PREAD, io->pread(io, fd, back, 16, 4) == 16 && memcmp(bytes, back, 16) == 0);
    STEP(PS_IO_FSYNC, io->fsync(io, fd) == 0);
    STEP(PS_IO_FDATASYNC, io->fdatasync(io, fd) == 0);
    STEP(PS_IO_FTRUNCATE, io->ftruncate(io, fd, 8192) == 0);
    STEP(PS_IO_FALLOCATE, io->fallocate(io, fd, 0, 0, 8192) == 0);
    STEP(PS_IO_FSTAT, io->fstat(io, fd, &st) == 0 && st.st_size == 8192);
    STEP(PS_IO_LSEEK, io->lseek(io, fd, 4, SEEK_SET) == 4);
    STEP(PS_IO_LOCK, io->lock(io, fd, F_OFD_SETLK, &lock) == 0);
    STEP(PS_IO_FLOCK, io->flock(io, fd, LOCK_EX | LOCK_NB) == 0);
    STEP(PS_IO_SYNCFS, io->syncfs(io, fd) == 0);
    errno = io->advise(io, fd, 0, 0, POSIX_FADV_NORMAL);
    STEP(PS_IO_ADVISE, errno == 0);
    if (failed < 0) {
        uint8_t *map = io->mmap(io, 8192, PROT_READ | PROT_WRITE, fd, 0);
        STEP(PS_IO_MMAP, map != MAP_FAILED);
        if (failed < 0) {
            CHECK(memcmp(map + 4, bytes, 16) == 0);
            map[5000] = 7;
            STEP(PS_IO_MSYNC, io->msync(io, map, 8192) == 0);
            STEP(PS_IO_MUNMAP, io->munmap(io, map, 8192) == 0);
            if (failed >= 0)
                munmap(map, 8192);
        }
    }
    int closed = io->close(io, fd);
    STEP(PS_IO_CLOSE, closed == 0);
    CHECK(fcntl(fd, F_GETFD) < 0); /* whatever close returned */
    STEP(PS_IO_STAT, io->stat(io, file, &st) == 0 && st.st_size == 8192);
    STEP(PS_IO_LSTAT, io->lstat(io, file, &st) == 0 && S_ISREG(st.st_mode));
    STEP(PS_IO_ACCESS, io->access(io, file, R_OK) == 0);
    DIR *dir = failed < 0 ? io->opendir(io, folder) : NULL;
    STEP(PS_IO_OPENDIR, dir != NULL);
    if (dir != NULL) {
        STEP(PS_IO_READDIR, io->readdir(io, dir) != NULL);
        int left = io->closedir(io, dir);
        STEP(PS_IO_CLOSEDIR, left == 0);
    }
    STEP(PS_IO_RENAME, io->rename(io, file, other) == 0);
    STEP(PS_IO_UNLINK, io->unlink(io, other) == 0);
    STEP(PS_IO_MKDIR, io->mkdir(io, sub, 0755) == 0);
    STEP(PS_IO_RMDIR, io->rmdir(io, sub) == 0);
    STEP(PS_IO_STATVFS, io->statvfs(io, folder, &vfs) == 0 && vfs.f_bsize > 0);
    unlink(file);
    unlink(other);
    rmdir(sub);
    errno = err;
    return failed;
}

static void every_call_works(const char *folder) {
    CHECK_EQ(-1, walk(ps_io_system(), folder));
    CHECK(ps_io_system() == ps_io_system());
    for (mode_t mode = 0600; mode <= 0666; mode++) {
        if ((mode & 0111) != 0) continue;
        CHECK_EQ(mode, ps_io_system_of(mode)->file_mode);
        CHECK_EQ(mode | (mode & 0444) >> 2, ps_io_system_of(mode)->folder_mode);
    }
    CHECK(ps_io_system()->open(ps_io_system(), "/no/such/file", O_RDONLY, 0) < 0);
    CHECK_EQ(ENOENT, errno);
}

static void each_kind_fails_alone(const char *folder) {
    for (int kind = 0; kind < PS_IO_CALLS; kind++) {
        ps_io *io = ps_io_faulty_new();
        ps_io_faulty_set(io, 1u << kind, 1, ENOSPC, 0);
        CHECK_EQ(kind, walk(io, folder));
        CHECK_EQ(ENOSPC, errno);
        CHECK_EQ(1, ps_io_faulty_calls(io, 1u << kind));
        CHECK_EQ(-1, walk(io, folder)); /* the fault struck once */
        ps_io_faulty_set(io, 1u << kind, 1, EIO, 1);
        CHECK_EQ(kind, walk(io, folder));
        CHECK_EQ(kind, walk(io, folder)); /* and this one stays */
        CHECK_EQ(EIO, errno);
        ps_io_faulty_set(io, 0, 0, 0, 0);
        CHECK_EQ(-1, walk(io, folder));
        ps_io_faulty_free(io);
    }
}

static void the_countdown_counts_what_the_mask_names(const char *folder) {
    static const int order[] = {PS_IO_OPEN,   PS_IO_PWRITE, PS_IO_PREAD,  PS_IO_FSYNC,
                                PS_IO_FDATASYNC, PS_IO_FTRUNCATE, PS_IO_FALLOCATE, PS_IO_FSTAT,
                                PS_IO_LSEEK,  PS_IO_LOCK,   PS_IO_FLOCK,
                                PS_IO_SYNCFS, PS_IO_ADVISE,
                                PS_IO_MMAP,   PS_IO_MSYNC,  PS_IO_MUNMAP, PS_IO_CLOSE,
                                PS_IO_STAT,   PS_IO_LSTAT,  PS_IO_ACCESS, PS_IO_OPENDIR,
                                PS_IO_READDIR, PS_IO_CLOSEDIR,
                                PS_IO_RENAME, PS_IO_UNLINK, PS_IO_MKDIR,  PS_IO_RMDIR,
                                PS_IO_STATVFS};
    const uint32_t all = (1u << PS_IO_CALLS) - 1;
    ps_io *io = ps_io_faulty_new();
    CHECK_EQ(-1, walk(io, folder));
    CHECK_EQ(PS_IO_CALLS, ps_io_faulty_calls(io, all)); /* counted without a fault set */
    ps_io_faulty_set(io, all, 0, EIO, 1);
    CHECK_EQ(-1, walk(io, folder)); /* countdown 0 only counts */
    CHECK_EQ(2 * PS_IO_CALLS, ps_io_faulty_calls(io, all));
    CHECK_EQ(4, ps_io_faulty_calls(io, 1u << PS_IO_OPEN | 1u << PS_IO_STATVFS));
    for (int n = 0; n < PS_IO_CALLS; n++) {
        ps_io_faulty_set(io, all, n + 1, EIO, 0);
        CHECK_EQ(order[n], walk(io, folder));
    }
    ps_io_faulty_set(io, 1u << PS_IO_FSYNC | 1u << PS_IO_MSYNC, 2, EIO, 0);
    CHECK_EQ(PS_IO_MSYNC, walk(io, folder));
    ps_io_faulty_free(io);
    ps_io_faulty_free(NULL);
}

static void *many_calls(void *arg) {
    ps_io *io = arg;
    struct statvfs vfs;
    int64_t failed = 0;
    for (int i = 0; i < 1000; i++)
        failed += io->statvfs(io, "/", &vfs) < 0;
    return (void *)(intptr_t)failed;
}

static void threads_share_one_countdown(void) {
    pthread_t threads[4];
    int64_t failed = 0;
    ps_io *io = ps_io_faulty_new();
    ps_io_faulty_set(io, 1u << PS_IO_STATVFS, 1501, EIO, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, many_calls, io);
    for (int i = 0; i < 4; i++) {
        void *one;
        pthread_join(threads[i], &one);
        failed += (intptr_t)one;
    }
    CHECK_EQ(1, failed);
    CHECK_EQ(4000, ps_io_faulty_calls(io, 1u << PS_IO_STATVFS));
    ps_io_faulty_free(io);
}

int main(void) {
    check_begin();
    char *folder = check_folder();
    every_call_works(folder);
    each_kind_fails_alone(folder);
    the_countdown_counts_what_the_mask_names(folder);
    threads_share_one_countdown();
    check_remove(folder);
    free(folder);
    return check_end("io");
}
