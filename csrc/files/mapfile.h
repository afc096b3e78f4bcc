/* Segment files: fixed-size, memory-mapped, counted references; and folders of them. Upstream:
 * DefaultMappedFile. */
#ifndef PS_MAPFILE_H
#define PS_MAPFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "files/io.h"

struct ps_segments;

struct ps_mapfile {
    ps_io *mf_io; /* NULL: mf_map is bytes that are not of a file */
    char *mf_path;
    int64_t mf_base; /* logical offset of the first byte */
    int64_t mf_size;
    uint64_t mf_inode; /* of a file that was there; no other one has it while this is mapped */
    uint8_t *mf_map;
    int mf_fd; /* -1 when not kept open */
    bool mf_writable;
    bool mf_borrowed;            /* ps_mapfile_over_bytes */
    _Atomic bool mf_sparing;     /* see ps_mapfile_spare */
    _Atomic int64_t mf_wrote;    /* bytes written, from the start */
    _Atomic int64_t mf_flushed;  /* bytes known to be on the disk */
    _Atomic int64_t mf_reserved; /* bytes whose blocks are reserved */
    _Atomic int32_t mf_refs;     /* unmapped and freed at 0 */
    _Atomic int32_t mf_errno;    /* sticky: the sync that failed */
    _Atomic bool mf_cut;         /* cut off while mapped: zeros stand for some of it (sigbus.h) */
    _Atomic bool mf_used;        /* asked for since the hand of ps_mappings passed it */
    int32_t mf_watch;            /* ps_sigbus_watch */
    int32_t mf_slot;             /* in ps_mappings, -1 none; its lock */
    struct ps_segments *mf_set;  /* that keeps it; set before it is in ps_mappings */
};

#define PS_MAP_WRITE 1   /* read-write; without it read-only */
#define PS_MAP_CREATE 2  /* make it with its full size; fails when it exists */
#define PS_MAP_KEEP_FD 4 /* keep the descriptor: the commit log, which is synced by it */
#define PS_MAP_SPARING 8 /* begins sparing: many files of which little is used */

/* Maps `path` of exactly `size` bytes with one reference. 0 or an error code. */
int ps_mapfile_open(ps_io *io, const char *path, int64_t base, int64_t size, int flags,
                    ps_mapfile **out, ps_error *e);
/* A copy of bytes that are not of a file, in the place of one; NULL: no memory. */
ps_mapfile *ps_mapfile_of_bytes(const uint8_t *bytes, int64_t len, int64_t base);
/* The bytes themselves, which stay the caller's, and are there for longer than its references. */
ps_mapfile *ps_mapfile_over_bytes(const uint8_t *bytes, int64_t len, int64_t base);
ps_mapfile *ps_mapfile_ref(ps_mapfile *mf); /* ps_mapfile_unref: pystore.h */
/* Sparing: after `from` (a multiple of the page) the system brings in a page at a time and none
 * ahead of it. */
void ps_mapfile_spare(ps_mapfile *mf, bool sparing, int64_t from);
/* How many bytes of [at, at + len), from `at` on, are in memory: reading them does not wait for the
 * disk. len: PS_IN_MEMORY_MAX at most. All of them where the system does not say. */
#define PS_IN_MEMORY_MAX (8LL << 20)
int64_t ps_mapfile_in_memory(const ps_mapfile *mf, int64_t at, int64_t len);
/* Reads them from the disk, and returns when they are in memory. */
void ps_mapfile_read_in(const ps_mapfile *mf, int64_t at, int64_t len);
/* Reserves real blocks up to `upto` bytes, at least `window` more than before, so that no store
 * into the map meets a full disk. PS_E_DISK_FULL, PS_E_IO. */
int ps_mapfile_reserve(ps_mapfile *mf, int64_t upto, int64_t window, ps_error *e);
/* Writes through the file, whose blocks are reserved. A store into the mapping would have the
 * system bring in and zero many pages ahead, which takes longer than all else that a slave does.
 * PS_E_DISK_FULL, PS_E_IO. */
int ps_mapfile_put(ps_mapfile *mf, int64_t at, const void *data, int64_t len, ps_error *e);
/* Zeroes [at, at + len) through the file, so that a full disk is an error and not a signal. Holes
 * are left alone. sync: it is on the disk afterwards. PS_E_DISK_FULL, PS_E_FLUSH_FAILED,
 * PS_E_IO. */
int ps_mapfile_zero(ps_mapfile *mf, int64_t at, int64_t len, bool sync, ps_error *e);
/* PS_E_FILE_SIZE when another process has cut the file off while it was mapped: what was read of it
 * since may be zeros. Asked after reading. */
int ps_mapfile_whole(const ps_mapfile *mf, ps_error *e);
/* Syncs what was written when at least `least_pages` pages of 4096 are dirty or the file is full
 * (0: any byte). After one failure every call fails with PS_E_FLUSH_FAILED and no position
 * moves. */
int ps_mapfile_flush(ps_mapfile *mf, int least_pages, ps_error *e);

/* Files of a folder whose names are all digits, sorted. Sub-folders are skipped. Any other file:
 * PS_E_STRAY_FILE when strict, skipped else. A missing folder counts as empty. */
typedef struct ps_listing {
    struct ps_listed {
        char name[64];
        int64_t number;
        int64_t size;
        int64_t mtime_ms;
        uint64_t inode;
    } *items;
    int32_t count;
} ps_listing;
int ps_list_folder(ps_io *io, const char *path, bool strict, ps_listing *out, ps_error *e);
void ps_listing_free(ps_listing *l);
/* What to return when readdir of the table has set errno. */
int ps_list_failed(const char *path, ps_error *e);

/* mkdir -p. synced: each folder that was not there is on the disk, too. */
int ps_make_folders(ps_io *io, const char *path, bool synced, ps_error *e);
/* The same; the first `there` bytes of the path are a folder that is there, or the call fails. */
int ps_make_folders_below(ps_io *io, const char *path, size_t there, bool synced, ps_error *e);
int ps_sync_folder(ps_io *io, const char *path, ps_error *e);  /* fsync of the folder itself */
/* More files or folders than this are on the disk sooner all at once than one by one. */
#define PS_SYNC_ONE_BY_ONE 32
/* The whole file system that `fd`, a folder at `path`, lies on. */
int ps_sync_disk(ps_io *io, int fd, const char *path, ps_error *e);

#endif
