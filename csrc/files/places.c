#include "files/places.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>

#include "files/mapfile.h"

static bool is_same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_held(const ps_places *p, const struct stat *of) {
    struct stat st;
    for (int32_t i = 0; i < p->pl_count; i++)
        if (p->pl_io->fstat(p->pl_io, p->pl_fd[i], &st) == 0 && is_same_file(&st, of)) return true;
    return false;
}

/* Network and other file systems may not lock folders. */
static bool knows_no_locks(int err) {
    return err == ENOLCK || err == EOPNOTSUPP || err == ENOSYS || err == EBADF || err == EINVAL;
}

static int lock_folder(ps_places *p, int fd, const char *folder, ps_error *e) {
    if (p->pl_io->flock(p->pl_io, fd, LOCK_EX | LOCK_NB) == 0 || knows_no_locks(errno)) return 0;
    if (errno == EWOULDBLOCK)
        return ps_fail(e, PS_E_LOCKED, 0, -1, folder,
                       "another process, or another part of this one, has the store open");
    return ps_fail(e, ps_errno_code(errno), errno, -1, folder, "cannot lock the folder");
}

int ps_places_take(ps_places *p, const char *folder, ps_error *e) {
    ps_io *io = p->pl_io;
    struct stat st;
    int code = 0, fd = io->open(io, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, folder, "cannot open the folder");
    if (io->fstat(io, fd, &st) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, folder, "cannot look at the folder");
    bool held = code == 0 && is_held(p, &st);
    if (code == 0 && !held) code = lock_folder(p, fd, folder, e);
    if (code < 0 || held) {
        io->close(io, fd);
        return code;
    }
    p->pl_path[p->pl_count] = folder;
    p->pl_fd[p->pl_count++] = fd;
    return 0;
}

int ps_places_check(const ps_places *p, ps_error *e) {
    struct stat now, then;
    for (int32_t i = 0; i < p->pl_count; i++) {
        const char *path = p->pl_path[i];
        bool there = p->pl_io->stat(p->pl_io, path, &now) == 0;
        if (!there && errno != ENOENT && errno != ENOTDIR)
            return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot look at the folder");
        if (p->pl_io->fstat(p->pl_io, p->pl_fd[i], &then) < 0)
            return ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot look at the folder");
        if (!there || !is_same_file(&now, &then))
            return ps_fail(e, PS_E_NOT_WRITEABLE, 0, -1, path,
                           "the folder was moved, replaced or deleted while the store was open: "
                           "close the store and open it where it lies now");
    }
    return 0;
}

int ps_places_folder(const ps_places *p, const char *folder, bool synced, ps_error *e) {
    size_t there = 0;
    for (int32_t i = 0; i < p->pl_count; i++) {
        size_t n = strlen(p->pl_path[i]);
        bool in = strncmp(folder, p->pl_path[i], n) == 0 && (folder[n] == '/' || folder[n] == 0);
        if (in && n > there) there = n;
    }
    int code = ps_places_check(p, e);
    if (code < 0 || folder[there] == 0) return code;
    return ps_make_folders_below(p->pl_io, folder, there, synced, e);
}

int ps_places_why(const ps_places *p, int code, ps_error *e) {
    ps_error gone;
    int why = code < 0 && p != NULL ? ps_places_check(p, &gone) : 0;
    if (why == 0) return code;
    *e = gone;
    return why;
}

void ps_places_release(ps_places *p) {
    for (int32_t i = 0; i < p->pl_count; i++) {
        p->pl_io->flock(p->pl_io, p->pl_fd[i], LOCK_UN); /* a child may have the descriptor, too */
        p->pl_io->close(p->pl_io, p->pl_fd[i]);
    }
    p->pl_count = 0;
}

void ps_places_forget(ps_places *p) {
    for (int32_t i = 0; i < p->pl_count; i++) p->pl_io->close(p->pl_io, p->pl_fd[i]);
    p->pl_count = 0;
}
