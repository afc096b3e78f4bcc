/* The fields of a record as numbers and places, for whoever holds its bytes but cannot hold
 * pointers into them: Python, and clients. Layout: layout.h. No I/O, no allocation. */
#ifndef PS_FIELDS_H
#define PS_FIELDS_H

#include "format/record.h"

/* cdef begin */
/* Places are bytes from the beginning of what was read. */
typedef struct ps_fields {
    int64_t queue_offset, physical_offset;
    int64_t born_ms, store_ms, prepared_offset;
    int64_t at, end, host_at, body_at, body_end, topic_at, properties_at, tags_at;
    int32_t host_len, topic_len, properties_len;
    int32_t tags_len; /* -1: no TAGS */
    int32_t queue_id, flag, sys_flag, reconsume_times, body_crc;
    uint32_t magic;
} ps_fields;

/* Reads records from `from` on, `room` at most. checks: PS_CHECK_ bits. Returns their number;
 * *used: where the last of them ends. With room left and *used < len, what stands there is not a
 * record. */
int32_t ps_fields_read(const uint8_t *in, int64_t from, int64_t len, int32_t checks,
                       ps_fields *out, int32_t room, int64_t *used);

/* The fields of the record that these bytes are. -1: they are not one, or more. */
int32_t ps_fields_check(const uint8_t *in, int64_t len, int32_t checks, ps_fields *out);

/* The bytes that a record which begins like this says that it has; -1: none begins so. */
int64_t ps_fields_size(const uint8_t *in, int64_t len);
/* The same of a blank. */
int64_t ps_fields_blank_size(const uint8_t *in, int64_t len);
/* Where the body of a record which begins like this begins; -1: there are too few bytes to tell. */
int32_t ps_fields_body_at(const uint8_t *in, int64_t len);

/* What surrounds `body_len` bytes of damage that become the body of a record of no queue: it is
 * rolled back, so that nobody delivers or indexes it. head: ps_fields_body_at of an IPv4 record.
 * tail: of 3 + topic_len bytes. time_ms: of a neighbour. body_crc: CRC-32. */
void ps_fields_frame(int32_t body_len, uint32_t body_crc, int64_t physical, int64_t time_ms,
                     const uint8_t *topic, int32_t topic_len, uint8_t *head, uint8_t *tail);
/* cdef end */

#endif
