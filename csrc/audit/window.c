/* A file read piece by piece. See window.h. */
#define _GNU_SOURCE
#include "audit/window.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/grow.h"

#define WINDOW (1 << 18) /* what was copied is still in the processor's cache when it is checked */
#define PAGE 4096

int ps_window_open(ps_window *w, ps_io *io, const char *path, ps_error *e) {
    struct stat st;
    /* O_NONBLOCK: a pipe in place of a file must not hold the process. */
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME;
    *w = (ps_window){.wd_io = io, .wd_unreadable = -1};
    w->wd_fd = io->open(io, path, flags, 0);
    if (w->wd_fd < 0 && errno == EPERM) w->wd_fd = io->open(io, path, flags & ~O_NOATIME, 0);
    if (w->wd_fd < 0)
        return ps_fail(e, errno == ENOENT ? PS_E_NOT_FOUND : ps_errno_code(errno), errno, -1, path,
                       "cannot open the file");
    int code = 0;
    if (io->fstat(io, w->wd_fd, &st) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path, "cannot look at the file");
    else if (!S_ISREG(st.st_mode))
        code = ps_fail(e, PS_E_STRAY_FILE, 0, -1, path, "not a regular file");
    else
        w->wd_size = st.st_size;
    if (code < 0) ps_window_close(w);
    return code;
}

void ps_window_close(ps_window *w) {
    if (w->wd_fd >= 0) w->wd_io->close(w->wd_io, w->wd_fd);
    w->wd_fd = -1;
    free(w->wd_bytes);
    w->wd_bytes = NULL;
    w->wd_room = w->wd_count = 0;
}

static void note_unreadable(ps_window *w, int64_t at, int64_t len) {
    w->wd_errno = errno;
    if (w->wd_unreadable < 0) w->wd_unreadable = at;
    w->wd_unreadable_upto = at + len;
}

/* Fills the buffer from its start; a page that the disk refuses is taken as zeros and noted. */
static void window_fill(ps_window *w, int64_t want) {
    w->wd_count = 0;
    while (w->wd_count < want) {
        int64_t at = w->wd_from + w->wd_count;
        ssize_t got = w->wd_io->pread(w->wd_io, w->wd_fd, w->wd_bytes + w->wd_count,
                                      (size_t)(want - w->wd_count), at);
        if (got == 0) { /* the file was cut while it was read */
            w->wd_size = at;
            return;
        }
        if (got < 0) {
            int64_t page = PAGE - at % PAGE, rest = want - w->wd_count;
            int64_t len = page < rest ? page : rest;
            got = w->wd_io->pread(w->wd_io, w->wd_fd, w->wd_bytes + w->wd_count, (size_t)len, at);
            if (got <= 0) {
                note_unreadable(w, at, len);
                memset(w->wd_bytes + w->wd_count, 0, (size_t)len);
                got = len;
            }
        }
        w->wd_count += got;
    }
}

const uint8_t *ps_window_read(ps_window *w, int64_t at, int64_t least, int64_t *count) {
    *count = 0;
    if (at < 0 || at >= w->wd_size) return NULL;
    if (least > w->wd_size - at) least = w->wd_size - at;
    if (at < w->wd_from || at + least > w->wd_from + w->wd_count) {
        int64_t upto = at < w->wd_hole && w->wd_hole < w->wd_size ? w->wd_hole : w->wd_size;
        int64_t usual = upto - at < WINDOW ? upto - at : WINDOW;
        int64_t room = least > usual ? least : usual;
        if (!PS_GROW(w->wd_bytes, w->wd_room, room, room)) return NULL;
        w->wd_from = at;
        window_fill(w, room);
    }
    *count = w->wd_from + w->wd_count - at;
    if (*count <= 0) return NULL;
    return w->wd_bytes + (at - w->wd_from);
}

int64_t ps_window_next_data(ps_window *w, int64_t at) {
    if (at < w->wd_hole) return at;
    int64_t found = w->wd_io->lseek(w->wd_io, w->wd_fd, at, SEEK_DATA);
    if (found < 0) found = errno == ENXIO ? w->wd_size : at;
    if (found > w->wd_size) found = w->wd_size;
    w->wd_hole = w->wd_io->lseek(w->wd_io, w->wd_fd, found, SEEK_HOLE);
    return found;
}
