/* Consumer offsets by the block: one a pair of group and topic. Each number is in the order of the
 * machine: three i32, the lengths of group and topic and the number of rows; the names; each row an
 * i32, the queue, and an i64, the offset. */
#ifndef PS_OFFSETBLOCK_H
#define PS_OFFSETBLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* cdef begin */
#define PS_OFFSET_ROW_BYTES 12
/* cdef end */

typedef struct ps_offset_block {
    const uint8_t *begin, *rows, *end;
    const char *group, *topic;
    int32_t group_len, topic_len, count;
} ps_offset_block;

/* The block at these bytes. False: they are not all of one. */
static inline bool ps_offset_block_get(const uint8_t *at, const uint8_t *end,
                                       ps_offset_block *out) {
    int32_t head[3];
    if (end - at < (int64_t)sizeof head) return false;
    memcpy(head, at, sizeof head);
    int64_t names = (int64_t)head[0] + head[1], rows = (int64_t)head[2] * PS_OFFSET_ROW_BYTES;
    *out = (ps_offset_block){.begin = at,
                             .group = (const char *)at + sizeof head,
                             .group_len = head[0],
                             .topic_len = head[1],
                             .count = head[2]};
    if (head[0] < 0 || head[1] < 0 || rows < 0 ||
        end - at - (int64_t)sizeof head < names + rows)
        return false;
    out->topic = out->group + head[0];
    out->rows = (const uint8_t *)out->topic + head[1];
    out->end = out->rows + rows;
    return true;
}

static inline int32_t ps_offset_row_get(const uint8_t *row, int64_t *offset) {
    int32_t queue;
    memcpy(&queue, row, sizeof queue);
    memcpy(offset, row + sizeof queue, sizeof *offset);
    return queue;
}

static inline uint8_t *ps_offset_row_put(uint8_t *to, int32_t queue, int64_t offset) {
    memcpy(to, &queue, sizeof queue);
    memcpy(to + sizeof queue, &offset, sizeof offset);
    return to + PS_OFFSET_ROW_BYTES;
}

#endif
