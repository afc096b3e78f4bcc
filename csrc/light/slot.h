/* The format of the files of light queues, lightqueue/ in the store's root; numbers are big-endian:
 *
 *   NUMBER (20 digits)   slots of 48 bytes, in order of the log; NUMBER is the first one's
 *    offset  width  meaning
 *         0      1  kind: 1 unit, 2 mark: records below `physical` have their units
 *         1      7  physical offset of the record
 *         8      4  its size
 *        12      8  its tags code
 *        20      8  offset in the queue
 *        28      4  number of the queue
 *        32      6  slot of the unit before it in the queue, plus 1; 0: none
 *        38      6  slot of an earlier unit, plus 1 (light.c); 0: none
 *        44      4  CRC-32 of the 44 bytes before
 *   names                what the numbers mean, one entry after the other; numbers ascend, and may
 *                        leave out those that are gone
 *         0      4  CRC-32 of what follows
 *         4      1  kind: 1 a new queue, with its name; 2 the queue is gone; 3 its next offset, and
 *                   the store time of its last record (ms), since this has left the log
 *         5      1  length of the rest
 *         6      4  number of the queue
 *        10         the name; nothing; 8 bytes each (older files: no time)
 *
 * A file but the first begins with a mark: the one before it, if it was deleted, was of records
 * below that. */
#ifndef PS_LIGHT_SLOT_H
#define PS_LIGHT_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/crc.h"

enum { LG_UNIT = 1, LG_MARK = 2 };
enum { LG_NAME_NEW = 1, LG_NAME_GONE = 2, LG_NAME_NEXT = 3 };

#define LG_NAME_HEAD 10
#define LG_NEXT_LEN 16
#define LG_NEXT_LEN_OLD 8

#define LG_AT_PHYSICAL 0
#define LG_AT_SIZE 8
#define LG_AT_TAGS 12
#define LG_AT_OFFSET 20
#define LG_AT_NUMBER 28
#define LG_AT_BEFORE 32
#define LG_AT_JUMP 38
#define LG_AT_CRC 44
#define LG_KIND_SHIFT 56

typedef struct lg_slot {
    int kind;
    int64_t physical, tags_code, offset;
    int32_t size;
    uint32_t number;
    int64_t before, jump; /* -1: none */
} lg_slot;

static inline void lg_be48_put(uint8_t *p, uint64_t v) {
    be16_put(p, (uint16_t)(v >> 32));
    be32_put(p + 2, (uint32_t)v);
}

static inline uint64_t lg_be48_get(const uint8_t *p) {
    return (uint64_t)be16_get(p) << 32 | be32_get(p + 2);
}

static inline void lg_slot_put(uint8_t *p, const lg_slot *s) {
    be64_put(p + LG_AT_PHYSICAL, (uint64_t)s->kind << LG_KIND_SHIFT | (uint64_t)s->physical);
    be32_put(p + LG_AT_SIZE, (uint32_t)s->size);
    be64_put(p + LG_AT_TAGS, (uint64_t)s->tags_code);
    be64_put(p + LG_AT_OFFSET, (uint64_t)s->offset);
    be32_put(p + LG_AT_NUMBER, s->number);
    lg_be48_put(p + LG_AT_BEFORE, (uint64_t)(s->before + 1));
    lg_be48_put(p + LG_AT_JUMP, (uint64_t)(s->jump + 1));
    be32_put(p + LG_AT_CRC, ps_crc32(0, p, LG_AT_CRC));
}

/* False: it is not sound. */
static inline bool lg_slot_get(const uint8_t *p, lg_slot *s) {
    uint64_t head = be64_get(p + LG_AT_PHYSICAL);
    *s = (lg_slot){.kind = (int)(head >> LG_KIND_SHIFT),
                   .physical = (int64_t)(head & ((1ULL << LG_KIND_SHIFT) - 1)),
                   .size = (int32_t)be32_get(p + LG_AT_SIZE),
                   .tags_code = (int64_t)be64_get(p + LG_AT_TAGS),
                   .offset = (int64_t)be64_get(p + LG_AT_OFFSET),
                   .number = be32_get(p + LG_AT_NUMBER),
                   .before = (int64_t)lg_be48_get(p + LG_AT_BEFORE) - 1,
                   .jump = (int64_t)lg_be48_get(p + LG_AT_JUMP) - 1};
    return (s->kind == LG_UNIT || s->kind == LG_MARK) &&
           be32_get(p + LG_AT_CRC) == ps_crc32(0, p, LG_AT_CRC);
}

/* The length that an entry of `names` at these bytes says; 0: they are not all of it. */
static inline int64_t lg_name_said(const uint8_t *p, int64_t avail) {
    return avail < LG_NAME_HEAD || avail < LG_NAME_HEAD + p[5] ? 0 : LG_NAME_HEAD + p[5];
}

/* The same of one that is sound, 0: there is none. */
static inline int64_t lg_name_len(const uint8_t *p, int64_t avail) {
    int64_t len = lg_name_said(p, avail);
    return len > 0 && be32_get(p) == ps_crc32(0, p + 4, (size_t)len - 4) ? len : 0;
}

#endif
