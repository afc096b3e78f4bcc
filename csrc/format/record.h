/* Commit log records, properties, tag hash. Format table: layout.h. No I/O, no allocation; every
 * result borrows from the bytes given. docs/internals/format.md#record; upstream MessageExtEncoder,
 * MessageDecoder, CommitLog.checkMessageAndReturnSize. */
#ifndef PS_RECORD_H
#define PS_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "format/layout.h"
#include "format/names.h"

/* cdef begin */
/* What stands at a place in the log. Everything but PS_REC_OK and PS_REC_BLANK ends a scan. */
typedef enum ps_rec_outcome {
    PS_REC_OK = 0,
    PS_REC_BLANK = 1, /* end-of-file record: go on at the next file */
    PS_REC_END = 2,   /* eight zero bytes (size and magic): nothing was written here */
    PS_REC_SHORT = 3, /* the record runs past the bytes given */
    PS_REC_MAGIC = 4, /* neither V1, V2 nor blank */
    PS_REC_SIZE = 5, /* the fields do not add up to totalSize; ps_record.size is set all the same */
    PS_REC_CRC = 6,  /* body (or properties) CRC differs */
    PS_REC_PLACE = 7 /* physicalOffset is not the place it stands at */
} ps_rec_outcome;

/* Which sums of a record are looked at; PROP_CRC is forceVerifyPropCRC. */
#define PS_CHECK_BODY_CRC 1 /* verify bodyCRC */
#define PS_CHECK_PROP_CRC 2 /* require the properties CRC, and verify it instead of bodyCRC */
#define PS_CHECK_PROP_IF 4  /* verify the properties CRC of a record that has one, beside bodyCRC */

/* Writes the PS_HEAD_LEN bytes of the blank that closes a file with `remaining` bytes left. */
void ps_blank_write(uint8_t *p, int32_t remaining);
/* Gives a whole record of `size` bytes another physical offset, and makes its properties CRC, where
 * it has one, again. -1: it is not a whole record. */
int ps_record_move(uint8_t *p, int64_t size, int64_t place);
/* cdef end */

/* Every sum that a record has. */
#define PS_CHECK_SUMS (PS_CHECK_BODY_CRC | PS_CHECK_PROP_IF)

typedef struct ps_record {
    const uint8_t *start;
    int32_t size;
    uint32_t magic;
    int32_t body_crc;
    int32_t queue_id;
    int32_t flag;
    int64_t queue_offset;
    int64_t physical_offset;
    int32_t sys_flag;
    int64_t born_timestamp;   /* ms */
    const uint8_t *born_host; /* 4 or 16 address bytes, then i32 port */
    int32_t born_host_len;    /* 8 or 20 */
    int64_t store_timestamp;  /* ms */
    const uint8_t *store_host;
    int32_t store_host_len;
    int32_t reconsume_times;
    int64_t prepared_transaction_offset;
    const uint8_t *body;
    int32_t body_len;
    const uint8_t *topic;
    int32_t topic_len;
    const uint8_t *properties;
    int32_t properties_len;
} ps_record;

/* Decodes the record at p, of which `avail` bytes may be read. Checks sizes, not sums of bytes.
 * On PS_REC_OK all of *out is set; on PS_REC_SIZE and PS_REC_BLANK start, size and magic are. */
ps_rec_outcome ps_record_decode(const uint8_t *p, int64_t avail, ps_record *out);

/* ps_record_decode, then the sums that `checks` asks for, then physicalOffset == place unless place
 * is -1. */
ps_rec_outcome ps_record_check(const uint8_t *p, int64_t avail, int64_t place, int checks,
                               ps_record *out);

/* Name of an outcome, e.g. "bad crc". */
const char *ps_rec_outcome_name(ps_rec_outcome o);

/* Properties: NAME 0x01 VALUE 0x02 ... ; the last separator may be missing. */
typedef struct ps_property {
    const uint8_t *name;
    int32_t name_len;
    const uint8_t *value;
    int32_t value_len;
} ps_property;

/* Next property at *at; false at the end. Segments that upstream's parser drops are skipped. */
bool ps_property_next(const uint8_t *props, int32_t len, int32_t *at, ps_property *out);

static inline bool ps_property_is(const ps_property *p, const char *name) {
    return p->name_len == (int32_t)strlen(name) && memcmp(p->name, name, (size_t)p->name_len) == 0;
}
static inline bool ps_property_same_name(const ps_property *a, const ps_property *b) {
    return a->name_len == b->name_len && memcmp(a->name, b->name, (size_t)a->name_len) == 0;
}

/* Value of `name`; the last of equal names wins. */
bool ps_property_find(const uint8_t *props, int32_t len, const char *name, int32_t name_len,
                      ps_property *out);

/* Java's String.hashCode over UTF-8 bytes taken as UTF-16 units; continues from h (0 at the start).
 * Ill-formed bytes count as U+FFFD each, as Java's decoder would make of them. */
int32_t ps_java_hash(int32_t h, const uint8_t *utf8, int64_t len);

/* The index hash of a key: absolute value, 0 for the one value that has none. */
int32_t ps_key_hash(int32_t java_hash);

/* Delay of each level in ms; level n is at [n-1]. */
typedef struct ps_levels {
    int32_t count;
    int64_t delay_ms[64];
} ps_levels;

/* The value of DELAY as a level, 0: no delay. */
int32_t ps_delay_asked(const uint8_t *text, int32_t len);
/* The level that a message gets which asks for this one: the last one when it asks for more. */
int32_t ps_delay_level(const ps_levels *levels, int32_t asked);

/* The i64 that a consume queue unit carries: the tag hash, or for SCHEDULE_TOPIC_XXXX with DELAY
 * the deliver time (docs/internals/format.md#consume-queue). */
int64_t ps_record_tags_code(const ps_record *r, const ps_levels *levels);

/* Whether a record gets a consume queue unit: not while its transaction is open, nor when it was
 * rolled back (upstream CommitLogDispatcherBuildConsumeQueue). */
bool ps_record_has_unit(const ps_record *r);

/* Whether topic and queue id can name a queue folder. No sum covers these fields: one that cannot
 * comes from a flipped bit. */
bool ps_record_names_queue(const ps_record *r);

/* What encoding needs of one message. Pointers are borrowed for the call. `extra` is appended to
 * the properties as it is (already encoded), after tags, keys and properties. */
typedef struct ps_draft {
    const uint8_t *body;
    int64_t body_len;
    const uint8_t *topic;
    int32_t topic_len;
    const uint8_t *tags; /* NULL: no TAGS property */
    int64_t tags_len;
    const uint8_t *keys; /* NULL: no KEYS property */
    int64_t keys_len;
    const uint8_t *properties; /* encoded, NULL or empty: none */
    int64_t properties_len;
    const uint8_t *extra;
    int64_t extra_len;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int64_t born_timestamp;
    int64_t prepared_transaction_offset;
    const uint8_t *born_host; /* 8 or 20 bytes, as on disk */
    int32_t born_host_len;
    const uint8_t *store_host;
    int32_t store_host_len;
    bool prop_crc;      /* append the properties CRC */
    bool long_topic_v2; /* autoMessageVersionOnTopicLen */
    /* filled by ps_draft_measure */
    int32_t body_crc;
    int32_t properties_total; /* bytes of the properties field */
    int32_t size;             /* totalSize */
    bool v2;
} ps_draft;

/* Limits, lengths and the body CRC: everything that can be done before the append lock.
 * Returns 0 or a PS_E_ code; *why then points to a constant sentence. max_message_size in bytes. */
int ps_draft_measure(ps_draft *d, int64_t max_message_size, const char **why);

/* Writes the d->size bytes of the record to p with these stamps. */
void ps_draft_write(const ps_draft *d, uint8_t *p, int64_t queue_offset, int64_t physical_offset,
                    int64_t store_timestamp);

/* One item of a client's batch body (docs/internals/format.md#batch). */
typedef struct ps_batch_item {
    int32_t flag;
    const uint8_t *body;
    int32_t body_len;
    const uint8_t *properties;
    int32_t properties_len;
} ps_batch_item;

/* Item at *at: 1 and *at moved on, 0 at the end, negative PS_E_MESSAGE_ILLEGAL when it is
 * malformed. */
int ps_batch_item_next(const uint8_t *payload, int64_t len, int64_t *at, ps_batch_item *out);

/* 0, or PS_E_TOPIC_ILLEGAL with *why: characters as upstream's TopicValidator allows, length as
 * docs/internals/format.md#record. */
int ps_topic_check(const uint8_t *topic, int64_t len, const char **why);

/* 32 or 56 upper-case hex digits and a zero: store host bytes, port, physical offset. Returns the
 * digits. */
int ps_offset_msg_id(const uint8_t *store_host, int32_t store_host_len, int64_t physical_offset,
                     char out[57]);

#endif
