/* Derived files made in parts, by as many processes as there are: units of some segments of the
 * log, one index file. Nothing is asked of the other parts, since each unit has its place by its
 * record alone, and an index file by how many keys come before it. That holds for a plain log:
 * every record is whole and names its queue, and the offsets of each queue follow on each other.
 * Where it does not, the part says so, and recovery makes the files (store/recover.c).
 *
 * A part that is done twice writes the same bytes to the same places.
 *
 * Facts: docs/internals/format.md. Upstream has nothing like it. */
#ifndef PS_DERIVE_H
#define PS_DERIVE_H

#include "pystore.h"

/* cdef begin */
typedef struct ps_derive ps_derive; /* one part; not thread-safe */

typedef struct ps_derive_conf {
    const char *into;               /* a folder that has a folder consumequeue/ */
    int64_t consumequeue_file_size; /* bytes, whole units */
    int32_t file_mode;              /* storeFileMode */
    int32_t index_slots, index_entries;
    int32_t level_count; /* messageDelayLevel */
    int64_t level_delay_ms[64];
} ps_derive_conf;

/* What a part has put into one queue: the units of offsets [first, end). */
typedef struct ps_derive_queue {
    int64_t first, end;
    int32_t queue_id;
    int32_t topic_len;
    char topic[256]; /* bytes as stored, topic_len of them */
} ps_derive_queue;

/* io NULL: the system's. NULL: no memory. */
ps_derive *ps_derive_new(const ps_derive_conf *conf, ps_io *io);
void ps_derive_free(ps_derive *d);

/* The next segment of the part: `size` bytes, of which the first is byte `base` of the log. last:
 * the log may end in it. 1; 0: the log is not plain; PS_E_DISK_FULL, PS_E_IO, PS_E_FILE_SIZE,
 * PS_E_NO_MEMORY. */
int ps_derive_units(ps_derive *d, const char *path, int64_t base, int64_t size, int32_t last,
                    ps_error *error);
/* Brings all units to the disk. 0, PS_E_DISK_FULL, PS_E_IO, PS_E_FLUSH_FAILED. */
int ps_derive_sync(ps_derive *d, ps_error *error);
/* The i-th queue of the part. 1; 0: there are no more. */
int ps_derive_queue_get(const ps_derive *d, int32_t i, ps_derive_queue *out);
/* A queue begins in the middle of its first file, since what was before it is deleted: fills that
 * file up to `first`. Errors as ps_derive_sync. */
int ps_derive_begin(ps_derive *d, const char *topic, int32_t topic_len, int32_t queue_id,
                    int64_t first, ps_error *error);

/* The segments that hold the keys of an index file, and those keys: `keys` of them after the first
 * `skip`, the last of which is that of the file before. */
typedef struct ps_derive_keys {
    const char *const *paths;
    const int64_t *bases, *sizes;
    int32_t count; /* segments */
    int32_t last;  /* 1: the log may end in the last of them */
    int64_t skip;
    int32_t keys;
} ps_derive_keys;

/* Makes an index file, which must not be there, and brings it to the disk. How many keys it has
 * got: fewer than wanted where the log is not plain, or has no more. Errors as ps_derive_sync. */
int32_t ps_derive_index(ps_derive *d, const char *path, const ps_derive_keys *wanted,
                        ps_error *error);
/* cdef end */

#endif
