/* A table of system calls that fails on purpose, for tests in C and, through build/faulty_io.so
 * (tests/faulty.py), in Python. */
#ifndef PS_FAULTY_IO_H
#define PS_FAULTY_IO_H

#include "files/io.h"

/* Names of the calls of io.h, for fault masks: bit n of a mask is call n of this order. */
enum {
    PS_IO_OPEN,
    PS_IO_CLOSE,
    PS_IO_PREAD,
    PS_IO_PWRITE,
    PS_IO_FSYNC,
    PS_IO_FDATASYNC,
    PS_IO_FTRUNCATE,
    PS_IO_FALLOCATE,
    PS_IO_MMAP,
    PS_IO_MUNMAP,
    PS_IO_MSYNC,
    PS_IO_RENAME,
    PS_IO_UNLINK,
    PS_IO_MKDIR,
    PS_IO_RMDIR,
    PS_IO_FSTAT,
    PS_IO_STATVFS,
    PS_IO_STAT,
    PS_IO_LSTAT,
    PS_IO_ACCESS,
    PS_IO_LSEEK,
    PS_IO_OPENDIR,
    PS_IO_READDIR,
    PS_IO_CLOSEDIR,
    PS_IO_LOCK,
    PS_IO_FLOCK,
    PS_IO_SYNCFS,
    PS_IO_ADVISE,
    PS_IO_CALLS
};

/* A table that fails on purpose: calls whose bit is in `mask` are counted; the `countdown`-th fails
 * with `err` (errno), and when `forever` is set every later one as well. countdown 0: none fails,
 * calls are only counted. Thread-safe. Free with ps_io_faulty_free after every store that uses it
 * is closed. */
ps_io *ps_io_faulty_new(void);
void ps_io_faulty_set(ps_io *io, uint32_t mask, int64_t countdown, int err, int forever);
/* From now on each call of these kinds takes so many milliseconds more; 0: no longer, and those
 * under way end. */
void ps_io_faulty_slow(ps_io *io, uint32_t mask, int32_t ms);
/* Only calls on files whose path has this part count and fail; the text stays the caller's. It is
 * set before anything is opened. */
void ps_io_faulty_within(ps_io *io, const char *part);
int64_t ps_io_faulty_calls(ps_io *io, uint32_t mask); /* calls seen so far of those kinds */
int64_t ps_io_faulty_struck(ps_io *io); /* faults injected so far, of all kinds */
void ps_io_faulty_free(ps_io *io);

#endif
