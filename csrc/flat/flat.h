/* Segments of the cold tier: records of one queue, in an object that is written once and never
 * changed (docs/adr/010-cold-tier.md). Big-endian:
 *
 *  at                     | bytes | what
 *  0                      | r     | whole records, back to back, of offsets first, first + 1, ...
 *  r                      | 20 n  | their units, as in a consume queue file
 *  r + 20 n               | 8 k   | keys: CRC-32 of the key, number of its message; in this order;
 *                         | + 4 b | after each 256 of them, and after the last, their sum: b in all
 *  r + 20 n + 8 k + 4 b   | 4 s   | CRC-32 of each 128 KiB of the records, and of the rest of them
 *  the same + 4 s         | 8     | base: where the segment begins in the log of its queue
 *                         | 8     | first
 *                         | 4     | n
 *                         | 4     | k
 *                         | 4     | CRC-32 of everything from r up to here
 *                         | 4     | bytes from r to the end
 *                         | 4     | PS_MAGIC_BLANK
 *                         | 8     | newest store time, ms
 *
 * A record is the one of the commit log, but for its physical offset, which is base + its place
 * here, and its properties CRC, which covers that offset. Keys are UNIQ_KEY and the words of KEYS.
 * Their sum is the CRC-32 of base (8), the number of keys before these (4), and these: a piece of
 * the table tells that it is right, and where it stands. With the sums of records a piece of these
 * is known to be right before the rest was looked at. Older segments have no sums of keys, or none
 * of records, which their size tells. Upstream: FlatCommitLogFile, FlatConsumeQueueFile, whose
 * records and units these are; the magic is that of its blank, and no unit leads to what comes
 * after the records. */
#ifndef PS_FLAT_H
#define PS_FLAT_H

#include <stdint.h>

#include "pystore.h"

/* cdef begin */
#define PS_FLAT_TAIL 44 /* bytes after the keys */
#define PS_FLAT_KEY 8
#define PS_FLAT_KEYS 256  /* keys that have a sum, at most */
#define PS_FLAT_SUM 4
#define PS_FLAT_BLOCK 131072 /* bytes of records that have a sum, at most */

typedef struct ps_flat {
    int32_t count, keys; /* n and k */
    int64_t first;
    int64_t records;               /* r */
    int64_t size;                  /* of all */
    int64_t time_min, time_max;    /* store times, ms */
    uint32_t crc;                  /* CRC-32 of all */
} ps_flat;

/* Measures the segment of a batch that ps_read gave: of its messages as far as their offsets are
 * dense. -1: the batch is empty. */
int ps_flat_measure(const ps_batch_info *batch, ps_flat *out);
/* Writes it to `to`, which has the f->size bytes that were measured, and fills in f->crc.
 * PS_E_NO_MEMORY. */
int ps_flat_write(const ps_batch_info *batch, int64_t base, uint8_t *to, ps_flat *f);
/* CRC-32 of bytes, continued from `crc` (0 at the start). */
uint32_t ps_flat_crc(uint32_t crc, const uint8_t *data, int64_t len);
/* CRC-32 of two runs of bytes that follow each other, of which the second has `len`. */
uint32_t ps_flat_join(uint32_t first, uint32_t second, int64_t len);
/* CRC-32 of `len` bytes of records of which the sums of blocks stand at `sums`. */
uint32_t ps_flat_joined(const uint8_t *sums, int64_t len);
/* cdef end */

#endif
