/* A file read piece by piece: what is asked for is brought into a buffer, and as much after it as
 * the buffer holds. Private to csrc/audit/. */
#ifndef PS_WINDOW_H
#define PS_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "files/io.h"

typedef struct ps_window {
    ps_io *wd_io;
    int wd_fd; /* -1: closed */
    int64_t wd_size;
    uint8_t *wd_bytes;
    int64_t wd_room;
    int64_t wd_from, wd_count;  /* bytes of the file that are in the buffer */
    int64_t wd_hole;            /* where the next hole begins, as far as was asked */
    int64_t wd_unreadable;      /* first byte that the disk refused, -1 none; zeros stand for it */
    int64_t wd_unreadable_upto; /* and the end of the last such page */
    int wd_errno;
} ps_window;

/* Opens `path` without changing its time of access where the rights allow it. Anything but a
 * regular file: PS_E_STRAY_FILE. */
int ps_window_open(ps_window *w, ps_io *io, const char *path, ps_error *e);
void ps_window_close(ps_window *w);
/* The same as ps_window_get, from the file where the buffer lacks some of it. */
const uint8_t *ps_window_read(ps_window *w, int64_t at, int64_t least, int64_t *count);

/* The bytes at `at`, *count of them: at least `least` unless the file ends before. NULL: the file
 * ends at or before `at`, or there is no memory. */
static inline const uint8_t *ps_window_get(ps_window *w, int64_t at, int64_t least,
                                           int64_t *count) {
    int64_t into = at - w->wd_from;
    *count = w->wd_count - into;
    if (into >= 0 && least > 0 && *count >= least) return w->wd_bytes + into;
    return ps_window_read(w, at, least, count);
}

/* What is asked for next comes from the file, whatever the buffer holds. */
static inline void ps_window_forget(ps_window *w) {
    w->wd_count = 0;
}

/* First byte at or after `at` that is in no hole; the file's size when there is none. What is read
 * from there on ends where the data ends: a queue of a few units is a page of a file of 6 MB. */
int64_t ps_window_next_data(ps_window *w, int64_t at);

#endif
