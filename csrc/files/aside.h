/* What recovery and repair take away is kept aside first: ROOT/aside/TIME/, with a manifest that
 * says where each piece came from, so that it can be put back. A row of manifest.jsonl:
 *
 *   {"file": "commitlog/000..", "at": 4096, "length": 120, "kept": "0001", "why": "bad crc"}
 *
 * file: relative to the root, or absolute for a commit log folder elsewhere. kept: the file beside
 * the manifest that holds those bytes; at -1: the whole file, or folder, was moved there. */
#ifndef PS_ASIDE_H
#define PS_ASIDE_H

#include <limits.h>
#include <stdint.h>

#include "base/error.h"
#include "files/io.h"

typedef struct ps_aside {
    ps_io *as_io;
    const char *as_root;
    char as_folder[PATH_MAX]; /* empty until something is kept */
    int32_t as_count;         /* pieces kept so far */
    int64_t as_written;       /* bytes of the manifest */
} ps_aside;

/* Nothing is made on the disk before the first piece. root is borrowed. */
void ps_aside_init(ps_aside *a, ps_io *io, const char *root);
/* Keeps a copy of `len` bytes that stand at byte `at` of `file`, synced before it returns. 0, or
 * PS_E_DISK_FULL, PS_E_IO: then nothing may be taken away. */
int ps_aside_bytes(ps_aside *a, const char *file, int64_t at, const uint8_t *bytes, int64_t len,
                   const char *why, ps_error *e);
/* Moves a file or folder of the root there. A missing one is not a failure. */
int ps_aside_move(ps_aside *a, const char *file, const char *why, ps_error *e);

#endif
