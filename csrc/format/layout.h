/* The layout of a record of the commit log: the one place where it stands. C takes these names from
 * here, Python the same ones through cffi (pystore/format/records.py).
 *
 * All integers are big-endian and signed. H and S are the lengths of the two hosts, 8 (IPv4) or
 * 20 (IPv6); B, T and P those of body, topic and properties. AT_ counts from the record's start,
 * MIDDLE_ from the end of the born host, LATE_ from the end of the store host.
 *
 *   offset       width   name                      meaning
 *   0            4       PS_AT_SIZE                 totalSize, this field included
 *   4            4       PS_AT_MAGIC                PS_MAGIC_V1, PS_MAGIC_V2 or PS_MAGIC_BLANK
 *   8            4       PS_AT_BODY_CRC             CRC-32 of the stored body; sign bit clear
 *   12           4       PS_AT_QUEUE_ID
 *   16           4       PS_AT_FLAG                 the user's, opaque
 *   20           8       PS_AT_QUEUE_OFFSET
 *   28           8       PS_AT_PHYSICAL_OFFSET      the record's own place in the log
 *   36           4       PS_AT_SYS_FLAG             PS_SYS_ bits; bits 4 and 5 say H and S
 *   40           8       PS_AT_BORN_TIMESTAMP       ms, the producer's clock
 *   48           H       PS_AT_BORN_HOST            4 or 16 address bytes, i32 port
 *   48+H         8       PS_MIDDLE_STORE_TIMESTAMP  ms, the broker's clock
 *   56+H         S       PS_MIDDLE_STORE_HOST
 *   56+H+S       4       PS_LATE_RECONSUME_TIMES
 *   60+H+S       8       PS_LATE_PREPARED_OFFSET    preparedTransactionOffset
 *   68+H+S       4       PS_LATE_BODY_LEN           B
 *   72+H+S       B       PS_LATE_BODY
 *   72+H+S+B     1 or 2  topic length               V1: i8, V2: i16
 *   then         T       topic
 *   then         2       properties length
 *   then         P       properties                 NAME 0x01 VALUE 0x02 ...; last 0x02 optional
 *
 * A blank record closes a file: totalSize is all that remains of the file, but only the first
 * PS_HEAD_LEN bytes are written. The properties CRC, where a record has one, is its last
 * PS_PROP_CRC_LEN bytes: "__CRC32#" 0x01, ten digits with the least significant first, 0x02; it
 * covers all bytes before.
 *
 * One item of a client's batch body (docs/internals/format.md#batch):
 *
 *   offset  width  name               meaning
 *   0       12     -                   totalSize, magic and body CRC: brokers look at none of them
 *   12      4      PS_ITEM_FLAG
 *   16      4      PS_ITEM_BODY_LEN    B
 *   20      B      PS_ITEM_BODY
 *   20+B    2      properties length, then the properties
 *
 * Upstream: store/.../MessageExtEncoder.encode and .encodeWithoutProperties, CommitLog
 * .checkMessageAndReturnSize and .setBatchSizeIfNeeded, common/.../message/MessageDecoder
 * .messageProperties2String, .string2messageProperties and .encodeMessage. */
#ifndef PS_LAYOUT_H
#define PS_LAYOUT_H

#include <stdint.h>

/* cdef begin */
#define PS_MAGIC_V1 0xDAA320A7u
#define PS_MAGIC_V2 0xDAA320ABu
#define PS_MAGIC_BLANK 0xCBD43194u

enum {
    PS_AT_SIZE = 0,
    PS_AT_MAGIC = 4,
    PS_AT_BODY_CRC = 8,
    PS_AT_QUEUE_ID = 12,
    PS_AT_FLAG = 16,
    PS_AT_QUEUE_OFFSET = 20,
    PS_AT_PHYSICAL_OFFSET = 28,
    PS_AT_SYS_FLAG = 36,
    PS_AT_BORN_TIMESTAMP = 40,
    PS_AT_BORN_HOST = 48,
    PS_MIDDLE_STORE_TIMESTAMP = 0,
    PS_MIDDLE_STORE_HOST = 8,
    PS_LATE_RECONSUME_TIMES = 0,
    PS_LATE_PREPARED_OFFSET = 4,
    PS_LATE_BODY_LEN = 12,
    PS_LATE_BODY = 16,

    PS_HEAD_LEN = 8, /* size and magic: what tells the kinds of records apart, and all of a blank */
    PS_HOST_V4 = 8,  /* bytes of a host: address and port */
    PS_HOST_V6 = 20,
    PS_RECORD_FIXED = 91, /* of a V1 record with two IPv4 hosts beside body, topic, properties */
    PS_RECORD_SPARE = 8,  /* that must stay free after a record: the blank that closes a file */

    PS_SYS_COMPRESSED = 0x1,
    PS_SYS_MULTI_TAGS = 0x2,
    PS_SYS_TX_MASK = 0xC,
    PS_SYS_TX_NONE = 0x0,
    PS_SYS_TX_PREPARED = 0x4,
    PS_SYS_TX_COMMIT = 0x8,
    PS_SYS_TX_ROLLBACK = 0xC,
    PS_SYS_BORN_V6 = 0x10,
    PS_SYS_STORE_V6 = 0x20,
    PS_SYS_NEED_UNWRAP = 0x40, /* by clients, beside PS_SYS_INNER_BATCH */
    PS_SYS_INNER_BATCH = 0x80, /* the body holds a batch; of upstream's BatchCQ topics alone */
    PS_SYS_COMPRESSION_SHIFT = 8,
    PS_SYS_COMPRESSION_MASK = 0x700,
    PS_COMPRESSION_ZLIB = 3, /* and 0 */

    PS_NAME_SEPARATOR = 0x01,
    PS_PROPERTY_SEPARATOR = 0x02,
    PS_PROP_CRC_LEN = 20,
    PS_PROPERTIES_MAX = 32767,
    PS_TOPIC_MAX_V1 = 127,
    PS_TOPIC_MAX = 255,
    PS_QUEUE_ID_MAX = 65535,

    PS_ITEM_FLAG = 12,
    PS_ITEM_BODY_LEN = 16,
    PS_ITEM_BODY = 20,
    PS_ITEM_FIXED = 22, /* of an item beside body and properties */
};
/* cdef end */

static inline int32_t ps_born_host_len(int32_t sys_flag) {
    return sys_flag & PS_SYS_BORN_V6 ? PS_HOST_V6 : PS_HOST_V4;
}

static inline int32_t ps_store_host_len(int32_t sys_flag) {
    return sys_flag & PS_SYS_STORE_V6 ? PS_HOST_V6 : PS_HOST_V4;
}

/* Where the body of a record with these flags begins. */
static inline int32_t ps_body_at(int32_t sys_flag) {
    return PS_AT_BORN_HOST + ps_born_host_len(sys_flag) + PS_MIDDLE_STORE_HOST +
           ps_store_host_len(sys_flag) + PS_LATE_BODY;
}

#endif
