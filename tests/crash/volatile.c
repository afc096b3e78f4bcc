/* A disk that remembers only what was synced: preloaded into a process (LD_PRELOAD), it keeps,
 * beside the files under PS_DISK_ROOT, what a power failure would be certain to leave of them.
 *
 * PS_DISK_KEPT/NUMBER is the content of the file with that inode number as far as it is durable: a
 * sync copies the file, or the range that was synced, and asks nothing of the real disk. As the
 * kernel may write any page back at any time, now and then a page of some mapping is copied, too.
 * PS_DISK_KEPT/journal tells what happened to folders, a line an event, fields parted by tabs:
 *
 *   C folder number name        a file was made       M folder number name    a folder was made
 *   U folder name               unlinked, or removed  L folder number name    one more name
 *   R folder name folder name   renamed               X folder name folder name   exchanged
 *   D folder                a folder was synced
 *
 * Folders are inode numbers. The content of files that lose their name is held under
 * PS_DISK_KEPT/held-NUMBER, so that no number is used twice. PS_DISK_CLOCK=SECONDS:N has the clock
 * begin a day before those seconds and go N times as fast since, so that a short run is long in the
 * store's time, and in the past when it is over. tests/crash/power.py makes images of all this.
 *
 * A process that was not told a root when it began can name one by disk_begin(), and the number of
 * the call before which its power fails: it ends with DISK_CUT then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAPPINGS_MAX = 4096, CHUNK = 1 << 20, EARLY_ONE_IN = 8, DISK_CUT = 95 };

typedef struct mapping {
    uint8_t *addr;
    size_t len;
    off_t at;
    int fd; /* of our own, to read the file; -1: a free place */
} mapping;

static char root[PATH_MAX], kept[PATH_MAX];
static size_t root_len;
static int journal = -1;
static int64_t clock_began, clock_speed;
static uint64_t seed;
static int64_t calls, cut_before = -1; /* of calls that change the root or sync it; -1: none */
static mapping mappings[MAPPINGS_MAX];
/* Recursive: a wrapper may reach another one. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) _exit(97);
    return found;
}

static void lock_all(void) {
    pthread_mutex_lock(&lock);
}

static void unlock_all(void) {
    int e = errno;
    pthread_mutex_unlock(&lock);
    errno = e;
}

static void note(const char *format, ...) {
    char line[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (syscall(SYS_write, journal, line, len) != len) _exit(98);
}

static void count_call(void) {
    if (++calls == cut_before) _exit(DISK_CUT);
}

static uint64_t number_of(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 ? st.st_ino : 0;
}

/* The absolute path, when it lies under the root. */
static bool inside(int folder, const char *path, char *out) {
    char proc[64];
    ssize_t len = 0;
    if (journal < 0) return false;
    if (path[0] != '/') {
        snprintf(proc, sizeof proc, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
                 folder);
        if ((len = readlink(proc, out, PATH_MAX - 1)) < 0) return false;
        out[len++] = '/';
    }
    if (len + strlen(path) >= PATH_MAX) return false;
    memcpy(out + len, path, strlen(path) + 1);
    for (len = (ssize_t)strlen(out); len > 1 && out[len - 1] == '/'; len--) out[len - 1] = 0;
    return strncmp(out, root, root_len) == 0 && (out[root_len] == '/' || out[root_len] == 0);
}

static uint64_t parent_of(const char *path, const char **name) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name = slash + 1;
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    return number_of(parent);
}

/* Also under a name of ours, so that its number and its content stay. */
static void hold(const char *path) {
    char to[2 * PATH_MAX];
    struct stat st;
    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode)) return;
    snprintf(to, sizeof to, "%s/held-%llu", kept, (unsigned long long)st.st_ino);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, to, 0) < 0 && errno != EEXIST) _exit(99);
}

/* ---- content ---- */

/* Bytes [from, to) of the file are durable from now on, and so is its size; to -1: all bytes. */
static void keep(int fd, off_t from, off_t to) {
    static uint8_t chunk[CHUNK];
    char path[2 * PATH_MAX];
    struct stat st, there;
    if (fstat(fd, &st) < 0) return;
    snprintf(path, sizeof path, "%s/%llu", kept, (unsigned long long)st.st_ino);
    int copy = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (copy < 0 || fstat(copy, &there) < 0) _exit(99);
    if (to < 0 || to > st.st_size) to = st.st_size;
    if (there.st_size != st.st_size && syscall(SYS_ftruncate, copy, st.st_size) < 0) _exit(99);
    for (ssize_t n; from < to; from += n) {
        size_t want = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
        n = syscall(SYS_pread64, fd, chunk, want, from);
        if (n <= 0 || syscall(SYS_pwrite64, copy, chunk, n, from) != n) break;
    }
    close(copy);
}

static uint64_t chance(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* The kernel writes a page back when it likes. */
static void write_back_early(void) {
    if (chance() % EARLY_ONE_IN != 0) return;
    mapping *m = &mappings[chance() % 64];
    if (m->fd < 0 || m->len < PAGE) return;
    off_t at = m->at + (off_t)(chance() % (m->len / PAGE)) * PAGE;
    keep(m->fd, at, at + PAGE);
}

/* A descriptor of our own for what `fd` has open, when that is under the root; -1. */
static int reopened(int fd) {
    char proc[64], path[PATH_MAX], unused[PATH_MAX];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(proc, path, sizeof path - 1);
    if (len < 0 || journal < 0) return -1;
    path[len] = 0;
    if (path[0] != '/' || !inside(AT_FDCWD, path, unused)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, proc, O_RDONLY | O_CLOEXEC);
}

/* What is to be a sync of fd; false: not ours. */
static bool synced(int fd, off_t from, off_t to) {
    struct stat st;
    int own = reopened(fd);
    if (own < 0) return false;
    lock_all();
    count_call();
    if (fstat(own, &st) == 0 && S_ISDIR(st.st_mode))
        note("D\t%llu\n", (unsigned long long)st.st_ino);
    else
        keep(own, from, to);
    write_back_early();
    unlock_all();
    close(own);
    return true;
}

int fsync(int fd) {
    return synced(fd, 0, -1) ? 0 : REAL(fsync)(fd);
}

int fdatasync(int fd) {
    return synced(fd, 0, -1) ? 0 : REAL(fdatasync)(fd);
}

static int keep_found(const char *path, const struct stat *st, int kind, struct FTW *unused) {
    (void)unused;
    if (kind == FTW_D) note("D\t%llu\n", (unsigned long long)st->st_ino);
    if (kind != FTW_F || !S_ISREG(st->st_mode)) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        keep(fd, 0, -1);
        close(fd);
    }
    return 0;
}

int syncfs(int fd) {
    int own = reopened(fd);
    if (own < 0) return REAL(syncfs)(fd);
    close(own);
    lock_all();
    count_call();
    nftw(root, keep_found, 16, FTW_PHYS);
    unlock_all();
    return 0;
}

int msync(void *addr, size_t len, int flags) {
    bool ours = false;
    lock_all();
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        mapping *m = &mappings[i];
        uint8_t *from = addr;
        if (m->fd < 0 || from < m->addr || from >= m->addr + m->len) continue;
        off_t at = m->at + (from - m->addr);
        count_call();
        if (flags & MS_SYNC) keep(m->fd, at, at + (off_t)len);
        ours = true;
        break;
    }
    if (ours) write_back_early();
    unlock_all();
    return ours ? 0 : REAL(msync)(addr, len, flags);
}

static void *map_file(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    void *got = (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, at);
    if (got == MAP_FAILED || !(flags & MAP_SHARED) || fd < 0) return got;
    int own = reopened(fd);
    if (own < 0) return got;
    lock_all();
    int i = 0;
    while (i < MAPPINGS_MAX && mappings[i].fd >= 0) i++;
    if (i == MAPPINGS_MAX) _exit(96);
    mappings[i] = (mapping){got, len, at, own};
    unlock_all();
    return got;
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    return map_file(addr, len, prot, flags, fd, at);
}

void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    return map_file(addr, len, prot, flags, fd, at);
}

int munmap(void *addr, size_t len) {
    lock_all();
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        mapping *m = &mappings[i];
        if (m->fd < 0 || m->addr != addr) continue;
        close(m->fd);
        m->fd = -1;
    }
    unlock_all();
    return (int)syscall(SYS_munmap, addr, len);
}

/* ---- writes ---- */

static void before_write(int fd) {
    int own = cut_before < 0 ? -1 : reopened(fd);
    if (own < 0) return;
    close(own);
    count_call();
}

static void after_write(int fd, off_t at, ssize_t wrote) {
    if (journal < 0 || wrote <= 0) return;
    int e = errno, flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && flags & O_DSYNC) {
        if (at < 0) at = lseek(fd, 0, SEEK_CUR) - wrote;
        synced(fd, at, at + wrote);
    }
    errno = e;
}

#define WROTE(call, at)                                                                            \
    before_write(fd);                                                                              \
    ssize_t n = (call);                                                                            \
    after_write(fd, at, n);                                                                        \
    return n

ssize_t write(int fd, const void *buf, size_t len) {
    WROTE(syscall(SYS_write, fd, buf, len), -1);
}

ssize_t writev(int fd, const struct iovec *v, int count) {
    WROTE(syscall(SYS_writev, fd, v, count), -1);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t at) {
    WROTE(syscall(SYS_pwrite64, fd, buf, len, at), at);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off_t at) {
    WROTE(syscall(SYS_pwrite64, fd, buf, len, at), at);
}

/* ---- folders ---- */

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    char at[PATH_MAX];
    const char *name;
    if (!(flags & O_CREAT) || !inside(folder, path, at))
        return (int)syscall(SYS_openat, folder, path, flags, mode);
    lock_all();
    count_call();
    bool fresh = number_of(at) == 0;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && fresh)
        note("C\t%llu\t%llu\t%s\n", (unsigned long long)parent_of(at, &name),
             (unsigned long long)number_of(at), strrchr(at, '/') + 1);
    unlock_all();
    return fd;
}

static mode_t mode_of(int flags, va_list args) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
}

#define OPENER(name, folder, params)                                                               \
    int name params {                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = mode_of(flags, args);                                                        \
        va_end(args);                                                                              \
        return open_file(folder, path, flags, mode);                                               \
    }

OPENER(open, AT_FDCWD, (const char *path, int flags, ...))
OPENER(open64, AT_FDCWD, (const char *path, int flags, ...))
OPENER(openat, folder, (int folder, const char *path, int flags, ...))
OPENER(openat64, folder, (int folder, const char *path, int flags, ...))

int mkdirat(int folder, const char *path, mode_t mode) {
    char at[PATH_MAX];
    const char *name;
    if (!inside(folder, path, at)) return (int)syscall(SYS_mkdirat, folder, path, mode);
    lock_all();
    count_call();
    int rc = (int)syscall(SYS_mkdirat, folder, path, mode);
    if (rc == 0)
        note("M\t%llu\t%llu\t%s\n", (unsigned long long)parent_of(at, &name),
             (unsigned long long)number_of(at), strrchr(at, '/') + 1);
    unlock_all();
    return rc;
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int folder, const char *path, int flags) {
    char at[PATH_MAX];
    const char *name;
    if (!inside(folder, path, at)) return (int)syscall(SYS_unlinkat, folder, path, flags);
    lock_all();
    count_call();
    if (!(flags & AT_REMOVEDIR)) hold(at);
    int rc = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (rc == 0) {
        unsigned long long parent = parent_of(at, &name);
        note("U\t%llu\t%s\n", parent, name);
    }
    unlock_all();
    return rc;
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    const char *old_name, *new_name;
    bool exchange = (flags & RENAME_EXCHANGE) != 0;
    if (!inside(from_folder, from, old) || !inside(to_folder, to, new))
        return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    lock_all();
    count_call();
    if (!exchange) hold(new);
    int rc = (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    if (rc == 0) {
        unsigned long long a = parent_of(old, &old_name), b = parent_of(new, &new_name);
        note("%c\t%llu\t%s\t%llu\t%s\n", exchange ? 'X' : 'R', a, old_name, b, new_name);
    }
    unlock_all();
    return rc;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return renameat2(from_folder, from, to_folder, to, 0);
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char at[PATH_MAX];
    const char *name;
    lock_all();
    int rc = (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    if (rc == 0 && inside(to_folder, to, at))
        note("L\t%llu\t%llu\t%s\n", (unsigned long long)parent_of(at, &name),
             (unsigned long long)number_of(at), strrchr(at, '/') + 1);
    unlock_all();
    return rc;
}

int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- the clock ---- */

int clock_gettime(clockid_t clock, struct timespec *out) {
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (rc < 0 || clock != CLOCK_REALTIME || clock_speed == 0) return rc;
    int64_t passed = (out->tv_sec - clock_began) * 1000000000 + out->tv_nsec;
    int64_t ns = passed * clock_speed;
    out->tv_sec = clock_began - 86400 + ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    return rc;
}

/* ---- the beginning: what is there is durable ---- */

static int note_found(const char *path, const struct stat *st, int kind, struct FTW *depth) {
    const char *name;
    if (depth->level > 0)
        note("%c\t%llu\t%llu\t%s\n", kind == FTW_D ? 'M' : 'C',
             (unsigned long long)parent_of(path, &name), (unsigned long long)st->st_ino,
             strrchr(path, '/') + 1);
    else
        note("M\t0\t%llu\t/\n", (unsigned long long)st->st_ino);
    return 0;
}

/* Of one root in each process. */
static void begin_disk(const char *disk, const char *to) {
    char path[2 * PATH_MAX];
    snprintf(root, sizeof root, "%s", disk);
    snprintf(kept, sizeof kept, "%s", to);
    root_len = strlen(root);
    snprintf(path, sizeof path, "%s/journal", kept);
    int flags = O_WRONLY | O_APPEND | O_CLOEXEC;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CREAT | O_EXCL, 0600);
    if (fd < 0) { /* a child of the process that began it */
        journal = (int)syscall(SYS_openat, AT_FDCWD, path, flags);
        return;
    }
    journal = fd;
    if (nftw(root, note_found, 16, FTW_PHYS) == 0) nftw(root, keep_found, 16, FTW_PHYS);
}

__attribute__((constructor)) static void begin(void) {
    const char *disk = getenv("PS_DISK_ROOT"), *to = getenv("PS_DISK_KEPT");
    for (int i = 0; i < MAPPINGS_MAX; i++) mappings[i].fd = -1;
    const char *clock = getenv("PS_DISK_CLOCK"), *chosen = getenv("PS_DISK_SEED");
    seed = (chosen != NULL ? strtoull(chosen, NULL, 10) : 0) * 2 + 1;
    if (clock != NULL) sscanf(clock, "%" SCNd64 ":%" SCNd64, &clock_began, &clock_speed);
    if (disk != NULL && to != NULL) begin_disk(disk, to);
}

void disk_begin(const char *disk, const char *to, uint64_t dice, int64_t cut);
int64_t disk_calls(void);

/* cut: number of the call before which the power fails, from 1 on; 0: never. */
void disk_begin(const char *disk, const char *to, uint64_t dice, int64_t cut) {
    seed = dice * 2 + 1;
    begin_disk(disk, to);
    calls = 0;
    cut_before = cut;
}

int64_t disk_calls(void) {
    return calls;
}
