/* CRC-32/ISO-HDLC (zlib's), by the widest instructions the processor has. */
#ifndef PS_CRC_H
#define PS_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over `len` bytes; the same values as zlib's crc32().
 * Thread-safe; the implementation is chosen once, from the processor's own feature bits. */
uint32_t ps_crc32(uint32_t crc, const void *data, size_t len);

/* The CRC of two runs of bytes that follow each other, of which the second has `len` bytes, from
 * the CRCs that each has by itself. */
uint32_t ps_crc32_join(uint32_t first, uint32_t second, uint64_t len);

/* The same for many second runs of one length: joins with what ps_crc32_mover gave for it. */
uint32_t ps_crc32_mover(uint64_t len);
uint32_t ps_crc32_moved(uint32_t first, uint32_t second, uint32_t mover);

/* Whether `len` bytes have the sums that stand at `sums`, big-endian, one of each `block` bytes and
 * one of the rest, up to `to`. Of these *right bytes are known to be: that moves on block by block,
 * so that who goes on has each looked at once, just before he reads it. */
bool ps_crc32_right(const uint8_t *data, int64_t len, const uint8_t *sums, int64_t block,
                    int64_t to, int64_t *right);

/* The sum of the CRCs, each masked, of `count` values: value i is data[offsets[i], offsets[i + 1]),
 * as a binary column of Arrow has them. */
uint64_t ps_crc32_sum(const uint8_t *data, const int32_t *offsets, int64_t count, uint32_t mask);

/* ps_crc32 by a named implementation, for tests and benches: "plain", "pclmul", "vpclmul", "armv8".
 * Returns 0, or -1 when this processor lacks it. */
int ps_crc32_by(const char *name, uint32_t crc, const void *data, size_t len, uint32_t *out);

/* The name of the implementation that ps_crc32 uses here. */
const char *ps_crc32_name(void);

#endif
