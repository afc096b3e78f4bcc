/* The checkpoint, abort and lock files of a store root. See checkpoint.h.
 *
 * checkpoint, 4096 bytes, the rest is zero (upstream: StoreCheckpoint)
 *
 *   offset width meaning
 *        0   i64 physicMsgTimestamp, ms
 *        8   i64 logicsMsgTimestamp, ms
 *       16   i64 indexMsgTimestamp, ms
 *       24   i64 masterFlushedOffset (absent, thus zero, before 5.0)
 *       32   i64 confirmPhyOffset (absent, thus zero, before 5.0)
 *
 * abort: the process id in decimal digits. It is there while the store runs, so at the next start
 *   it tells of a crash. Upstream leaves an abort.bak beside it, which means nothing
 *   (DefaultMessageStore.createTempFile).
 *
 * lock: the four bytes "lock" with an exclusive lock on bytes [0, 1)
 *   (DefaultMessageStore.lockFile). Ours is a lock of the open file description: it meets Java's
 *   record lock of another process, and unlike a record lock it also meets a second open in this
 *   process, and is not dropped when some other descriptor of the file is closed. */
#define _GNU_SOURCE
#include "files/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "files/mapfile.h"
#include "files/replace.h"

#define CP_PHYSIC_AT 0
#define CP_LOGICS_AT 8
#define CP_INDEX_AT 16
#define CP_MASTER_AT 24
#define CP_CONFIRM_AT 32
#define CP_USED 40

#define LOCK_TEXT "lock"
#define LOCK_BYTES 1 /* the range that is locked */
#define PID_TEXT_MAX 20

/* ---- checkpoint ---- */

void ps_checkpoint_parse(const uint8_t *p, int64_t len, ps_checkpoint *out) {
    memset(out, 0, sizeof *out);
    if (len < CP_USED) return;
    out->physic_msg_timestamp = (int64_t)be64_get(p + CP_PHYSIC_AT);
    out->logics_msg_timestamp = (int64_t)be64_get(p + CP_LOGICS_AT);
    out->index_msg_timestamp = (int64_t)be64_get(p + CP_INDEX_AT);
    out->master_flushed_offset = (int64_t)be64_get(p + CP_MASTER_AT);
    out->confirm_phy_offset = (int64_t)be64_get(p + CP_CONFIRM_AT);
}

int ps_checkpoint_read(ps_io *io, const char *root, ps_checkpoint *out, ps_error *e) {
    char path[PATH_MAX];
    uint8_t head[CP_USED];
    int code = ps_path_in(path, root, "checkpoint", e);
    memset(out, 0, sizeof *out);
    if (code < 0) return code;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT ? 0
                               : ps_fail(e, ps_errno_code(errno), errno, -1, path,
                                         "cannot open the checkpoint");
    ssize_t n = ps_read_head(io, fd, head, sizeof head);
    int err = errno;
    io->close(io, fd);
    if (n < 0) return ps_fail(e, ps_errno_code(err), err, -1, path, "cannot read the checkpoint");
    ps_checkpoint_parse(head, n, out);
    return 0;
}

/* Gives the file its size, writes the head and syncs. The 40 bytes lie in one sector, so that a
 * crash leaves the old values or the new ones; a temporary file and a rename would put a name
 * into the root that upstream does not know, for nothing. */
static int checkpoint_fill(ps_io *io, int fd, const uint8_t head[CP_USED], const char *path,
                           bool *made, ps_error *e) {
    struct stat st;
    if (io->fstat(io, fd, &st) < 0)
        return ps_fail(e, PS_E_IO, errno, -1, path, "cannot read the size of the checkpoint");
    *made = st.st_size == 0;
    if (st.st_size != PS_CHECKPOINT_SIZE && io->ftruncate(io, fd, PS_CHECKPOINT_SIZE) < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path,
                       "cannot resize the checkpoint");
    if (ps_write_head(io, fd, head, CP_USED) < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot write the checkpoint");
    if (io->fdatasync(io, fd) < 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "cannot sync the checkpoint");
    return 0;
}

int ps_checkpoint_write(ps_io *io, const char *root, const ps_checkpoint *c, ps_error *e) {
    char path[PATH_MAX];
    uint8_t head[CP_USED];
    bool made = false;
    int code = ps_path_in(path, root, "checkpoint", e);
    if (code < 0) return code;
    be64_put(head + CP_PHYSIC_AT, (uint64_t)c->physic_msg_timestamp);
    be64_put(head + CP_LOGICS_AT, (uint64_t)c->logics_msg_timestamp);
    be64_put(head + CP_INDEX_AT, (uint64_t)c->index_msg_timestamp);
    be64_put(head + CP_MASTER_AT, (uint64_t)c->master_flushed_offset);
    be64_put(head + CP_CONFIRM_AT, (uint64_t)c->confirm_phy_offset);
    int fd = io->open(io, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, io->file_mode);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot open the checkpoint");
    code = checkpoint_fill(io, fd, head, path, &made, e);
    io->close(io, fd);
    return code == 0 && made ? ps_sync_folder(io, root, e) : code;
}

/* ---- what stands in a file's place ---- */

/* How opening fails where a folder, a socket, a pipe that nobody reads or a circle of links
 * stands. */
static bool no_file(int err) {
    return err == EISDIR || err == ENXIO || err == ELOOP || err == ENOTDIR;
}

/* PS_E_STRAY_FILE for anything but a regular file; 0 when nothing is there. */
static int check_file(ps_io *io, const char *path, ps_error *e) {
    struct stat st;
    if (io->stat(io, path, &st) < 0) {
        if (errno == ENOENT) return 0;
        return ps_fail(e, no_file(errno) ? PS_E_STRAY_FILE : ps_errno_code(errno), errno, -1, path,
                       "cannot look at the file");
    }
    return S_ISREG(st.st_mode) ? 0
                               : ps_fail(e, PS_E_STRAY_FILE, 0, -1, path, "not a regular file");
}

/* ---- abort ---- */

/* A file that is there but cannot be opened counts as present: recovery then does more than it
 * needs, rather than less. */
int ps_abort_present(ps_io *io, const char *root) {
    char path[PATH_MAX];
    if (ps_path_in(path, root, "abort", NULL) < 0) return 0;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return errno != ENOENT && errno != ENOTDIR;
    io->close(io, fd);
    return 1;
}

int ps_abort_check(ps_io *io, const char *root, ps_error *e) {
    char path[PATH_MAX];
    int code = ps_path_in(path, root, "abort", e);
    return code < 0 ? code : check_file(io, path, e);
}

int ps_abort_create(ps_io *io, const char *root, ps_error *e) {
    char path[PATH_MAX], text[PID_TEXT_MAX + 1];
    int code = ps_path_in(path, root, "abort", e);
    if (code < 0) return code;
    int len = snprintf(text, sizeof text, "%lld", (long long)getpid());
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
    bool closed = io->access(io, path, F_OK) < 0;
    int fd = io->open(io, path, flags, io->file_mode);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot create the abort file");
    if (ps_write_head(io, fd, text, (size_t)len) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot write the abort file");
    else if (io->fsync(io, fd) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "cannot sync the abort file");
    io->close(io, fd);
    /* A store that was closed, and that nobody opens now, does not look crashed afterwards. */
    if (code < 0 && closed) (void)io->unlink(io, path);
    return code < 0 ? code : ps_sync_folder(io, root, e);
}

int ps_abort_remove(ps_io *io, const char *root, ps_error *e) {
    char path[PATH_MAX];
    int code = ps_path_in(path, root, "abort", e);
    if (code < 0) return code;
    if (io->unlink(io, path) < 0 && errno != ENOENT)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot remove the abort file");
    return ps_sync_folder(io, root, e);
}

/* ---- lock ---- */

/* The process id that the abort file names, -1 when it names none or one that is gone. The lock is
 * taken before the abort file is made, so for a moment the text may be that of an earlier, crashed
 * writer. */
static int64_t abort_pid(ps_io *io, const char *root) {
    char path[PATH_MAX], text[PID_TEXT_MAX + 1], *end;
    if (ps_path_in(path, root, "abort", NULL) < 0) return -1;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return -1;
    ssize_t n = ps_read_head(io, fd, (uint8_t *)text, PID_TEXT_MAX);
    io->close(io, fd);
    if (n <= 0 || text[0] < '1' || text[0] > '9') return -1;
    text[n] = 0;
    long long pid = strtoll(text, &end, 10);
    if (pid > INT32_MAX || (*end != 0 && *end != '\n')) return -1;
    return kill((pid_t)pid, 0) < 0 && errno == ESRCH ? -1 : pid;
}

/* Who holds the lock of this file: 0 nobody, a process id, or -1 when the system does not tell. */
static int64_t holder_by(ps_io *io, int fd, const char *root) {
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = LOCK_BYTES};
    if (io->lock(io, fd, F_GETLK, &fl) < 0) return -1;
    if (fl.l_type == F_UNLCK) return 0;
    return fl.l_pid > 0 ? fl.l_pid : abort_pid(io, root);
}

static int lock_refused(ps_io *io, int fd, const char *root, const char *path, int err,
                        ps_error *e) {
    if (err != EAGAIN && err != EACCES)
        return ps_fail(e, PS_E_IO, err, -1, path, "cannot lock the store");
    int64_t pid = holder_by(io, fd, root);
    if (pid > 0)
        ps_fail(e, PS_E_LOCKED, 0, -1, path, "process %lld has the store open", (long long)pid);
    else
        ps_fail(e, PS_E_LOCKED, 0, -1, path, "another process has the store open");
    if (e != NULL) e->pid = pid > 0 ? pid : 0;
    return PS_E_LOCKED;
}

int ps_lock_take(ps_io *io, const char *root, int *fd, ps_error *e) {
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = LOCK_BYTES};
    char path[PATH_MAX];
    struct stat st;
    int code = ps_path_in(path, root, "lock", e);
    *fd = -1;
    if (code == 0) code = check_file(io, path, e);
    if (code < 0) return code;
    int lock = io->open(io, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, io->file_mode);
    if (lock < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot open the lock file");
    if (io->lock(io, lock, F_OFD_SETLK, &fl) < 0) {
        code = lock_refused(io, lock, root, path, errno, e);
        io->close(io, lock);
        return code;
    }
    if (io->fstat(io, lock, &st) < 0)
        code = ps_fail(e, PS_E_IO, errno, -1, path, "cannot read the size of the lock file");
    else if (st.st_size == 0 && ps_write_head(io, lock, LOCK_TEXT, strlen(LOCK_TEXT)) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot write the lock file");
    if (code < 0)
        ps_lock_release(io, lock);
    else
        *fd = lock;
    return code;
}

/* Closing alone would not do: the lock belongs to the open file description, which a child forked
 * meanwhile shares and keeps open. */
void ps_lock_release(ps_io *io, int fd) {
    struct flock fl = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = LOCK_BYTES};
    if (fd < 0) return;
    io->lock(io, fd, F_OFD_SETLK, &fl);
    io->close(io, fd);
}

int ps_lock_keep(ps_io *io, const char *root, int *fd, ps_error *e) {
    char path[PATH_MAX];
    struct stat now, then;
    int code = ps_path_in(path, root, "lock", e), taken;
    if (code < 0 || *fd < 0) return code;
    if (io->fstat(io, *fd, &then) < 0)
        return ps_fail(e, PS_E_IO, errno, -1, path, "cannot look at the lock file");
    if (io->stat(io, path, &now) == 0) {
        if (now.st_dev == then.st_dev && now.st_ino == then.st_ino) return 0;
    } else if (errno != ENOENT) {
        return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot look at the lock file");
    }
    if ((code = ps_lock_take(io, root, &taken, e)) < 0) return code;
    ps_lock_release(io, *fd);
    *fd = taken;
    return 1;
}

int64_t ps_lock_holder(ps_io *io, const char *root) {
    char path[PATH_MAX];
    if (io == NULL) io = ps_io_system();
    if (ps_path_in(path, root, "lock", NULL) < 0) return 0;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return errno == ENOENT || no_file(errno) ? 0 : -1;
    struct stat st;
    bool file = io->fstat(io, fd, &st) < 0 || S_ISREG(st.st_mode); /* nobody locks anything else */
    int64_t pid = file ? holder_by(io, fd, root) : 0;
    io->close(io, fd);
    return pid;
}
