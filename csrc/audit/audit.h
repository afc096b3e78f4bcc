/* Auditing: every check that the files of a store allow, by whoever wrote it, live, stopped or
 * crashed. It opens no store, takes no lock, maps nothing and writes nothing: files are read piece
 * by piece, so that one that shrinks or lies about itself costs a finding and not the process.
 *
 * Order of use: ps_audit_new; ps_audit_queue for each queue folder; ps_audit_index for each index
 * file, oldest first; ps_audit_light; ps_audit_segment for each segment, in any order and from
 * several threads at once; ps_audit_rivals; ps_audit_queue_recount for each queue whose counts
 * differ. What the records of the log ask for is compared with the units and index entries that are
 * there, and the other way round.
 *
 * Parts of one audit may be done by many processes: what ps_audit_queue_get and ps_audit_index_get
 * say of a queue and an index file in one of them is told the others by ps_audit_queue_set and
 * ps_audit_index_set, in place of ps_audit_queue and ps_audit_index.
 *
 * Facts: docs/internals/format.md. Upstream has nothing like it. */
#ifndef PS_AUDIT_H
#define PS_AUDIT_H

#include "pystore.h"

/* cdef begin */
typedef struct ps_audit ps_audit; /* thread-safe once the queues and index files are known */

typedef struct ps_finding {
    int32_t kind;     /* PS_FIND_, of audit/findings.def */
    int32_t outcome;  /* damage in the log: why no record stands there (ps_rec_outcome), else 0 */
    int32_t queue_id; /* queue concerned, or -1 */
    int32_t topic_len;
    int64_t from_at, to_at; /* [from_at, to_at), of what the kind counts */
    int64_t count;          /* records, units, entries or keys concerned; -1: nobody knows */
    int64_t physical;       /* record concerned, or -1 */
    int64_t value;          /* as the kind says */
    char topic[256];        /* bytes as stored, topic_len of them */
} ps_finding;

typedef struct ps_findings {
    ps_finding *items; /* free with ps_findings_free */
    int64_t count, room;
    int64_t dropped; /* found, and left out since there were too many */
} ps_findings;

typedef struct ps_audit_conf {
    const char *root;               /* holds consumequeue/ */
    int64_t consumequeue_file_size; /* bytes */
    int64_t log_min, log_end;       /* physical: first byte of the first, end of the last segment */
    int32_t check_crc;              /* 1: sum bodies, and properties that carry a sum */
    int32_t level_count;            /* messageDelayLevel */
    int64_t level_delay_ms[64];
} ps_audit_conf;

/* Facts of one queue folder, and what the segments have asked of it since. */
typedef struct ps_audit_queue_facts {
    int64_t max_offset; /* after its last unit, as the files have it */
    int64_t units;      /* that point into the log as it is */
    int64_t matched;    /* of them, asked for by a record */
    int64_t first;      /* byte that the name of the first file says */
    int64_t end;        /* physical: after the furthest record that a unit points to, -1 none */
} ps_audit_queue_facts;

/* Facts of one index file. */
typedef struct ps_audit_index_facts {
    int32_t slots; /* as the file is laid out */
    int32_t keep;  /* entries 1 to keep - 1 are sound */
    int64_t end;   /* physical: start of the record of the last of them, -1 none */
} ps_audit_index_facts;

/* Facts of the files of light queues. */
typedef struct ps_audit_light_facts {
    int64_t queues;  /* that were ever named */
    int64_t units;   /* sound ones */
    int64_t covered; /* physical: all records below should have their units */
} ps_audit_light_facts;

typedef struct ps_audit_segment_facts {
    int64_t bytes;      /* read */
    int64_t records;    /* whole */
    int64_t end;        /* physical: after the last whole record or blank */
    int64_t first_time, last_time; /* ms: store times of the first and last record, -1 none */
    int64_t units_pending; /* records after the furthest unit of all queues, without a unit */
    int64_t pending_from;  /* physical, of the first of them; -1 none */
    int64_t keys;          /* that the records carry */
    int64_t tags_entries;  /* entries of the index that lead to tags */
    int64_t keys_pending;  /* of them, after the last index entry */
    int64_t keys_pending_from;
    int64_t forgotten;     /* records that ps_audit_forget told of */
    int32_t blank; /* 1: a blank ends it */
} ps_audit_segment_facts;

/* io NULL: the system's. NULL: no memory. */
ps_audit *ps_audit_new(const ps_audit_conf *conf, ps_io *io);
void ps_audit_free(ps_audit *audit);
void ps_findings_free(ps_findings *findings);

/* Records of `topic` before `physical` belong to a life of it that was deleted: no unit is asked
 * for. Before ps_audit_segment. */
int ps_audit_forget(ps_audit *audit, const char *topic, int32_t topic_len, int64_t physical,
                    ps_error *error);
/* One queue folder: `count` files, by the first byte that their names say, and their sizes.
 * PS_E_IO, PS_E_FORBIDDEN, PS_E_NO_MEMORY; damage is a finding. */
int ps_audit_queue(ps_audit *audit, const char *topic, int32_t topic_len, int32_t queue_id,
                   const int64_t *numbers, const int64_t *sizes, int32_t count, ps_findings *out,
                   ps_error *error);
void ps_audit_queue_get(ps_audit *audit, const char *topic, int32_t topic_len, int32_t queue_id,
                        ps_audit_queue_facts *out);
/* A queue folder that another process has looked at; of one that is known, its facts change. */
int ps_audit_queue_set(ps_audit *audit, const char *topic, int32_t topic_len, int32_t queue_id,
                       const ps_audit_queue_facts *facts, ps_error *error);
/* Units of a queue one by one against the log: those that no record asked for. */
int ps_audit_queue_recount(ps_audit *audit, const char *topic, int32_t topic_len, int32_t queue_id,
                           ps_findings *out, ps_error *error);
/* One index file; slots and entries as the file is laid out. */
int ps_audit_index(ps_audit *audit, const char *path, int32_t slots, int32_t entries,
                   ps_findings *out, ps_error *error);
/* Facts of the last index file that was looked at. */
void ps_audit_index_get(ps_audit *audit, ps_audit_index_facts *out);
/* The next index file, which another process has looked at. */
int ps_audit_index_set(ps_audit *audit, const char *path, const ps_audit_index_facts *facts,
                       ps_error *error);
/* The files of light queues: the `count` files of slots, by the numbers that their names say.
 * Without it segments are not asked for such units. Before ps_audit_segment. */
int ps_audit_light(ps_audit *audit, const int64_t *bases, int32_t count,
                   ps_audit_light_facts *facts, ps_findings *out, ps_error *error);
/* A segment of the log, told before the first is audited, for the recount. */
int ps_audit_add_segment(ps_audit *audit, const char *path, int64_t base, int64_t size,
                         ps_error *error);
/* One segment. last: it may end without a blank. done: bytes so far, for whoever watches, and
 * stop: set by it to interrupt; may be NULL. */
int ps_audit_segment(ps_audit *audit, int32_t number, int32_t last, ps_progress *progress,
                     ps_audit_segment_facts *facts, ps_findings *out, ps_error *error);

/* Records of one queue that follow on each other in one segment and that no unit leads to. */
typedef struct ps_audit_claim {
    int64_t from_at, to_at; /* queue offsets [from_at, to_at) */
    int64_t physical;       /* of the first record */
    int64_t end;            /* of the last one */
    int32_t queue_id;
    int32_t topic_len;
    char topic[256]; /* bytes as stored, topic_len of them */
} ps_audit_claim;

/* The next of them, once the segments are audited: 1; 0: there are no more. And one that another
 * process has met. */
int ps_audit_claim_next(ps_audit *audit, ps_audit_claim *out);
void ps_audit_claim_add(ps_audit *audit, const ps_audit_claim *claim);
/* After all segments: those among them that no queue will deliver. */
void ps_audit_rivals(ps_audit *audit, ps_findings *out);

/* Whether a unit, 20 bytes, that stands at `offset` of a queue names the record that these `len`
 * bytes begin with, and the record says so: queues/claims.h. */
int ps_audit_unit_names(const uint8_t *unit, const uint8_t *record, int64_t len, const char *topic,
                        int32_t topic_len, int32_t queue_id, int64_t offset);

/* Whether an index entry with this hash is that of its record's tags: 1; 0, it is not although the
 * record has some; -1, the record has none. */
int ps_audit_tells_of_tags(const uint8_t *record, int64_t len, int32_t hash);

/* A leaf page of LMDB, `size` bytes: how many entries it has, if all of them are plain, in the page
 * and in order after the key `before`; -1: something is not so, and who asks must look closer.
 * before_len -1: there is none. reversed: integer keys. last: place and length of its last key. */
int32_t ps_audit_leaf(const uint8_t *page, int32_t size, const uint8_t *before, int32_t before_len,
                      int32_t reversed, int32_t last[2]);

/* Consumer offsets out of leaf pages of LMDB, those of its tables `pairs` and `offsets`
 * (pystore/meta/_database.py): these pages, each in the order of its table, of `size` bytes, of a
 * file to which nobody commits until the end. NULL: PS_E_DAMAGED, PS_E_IO, PS_E_NO_MEMORY. */
typedef struct ps_audit_offsets ps_audit_offsets;
ps_audit_offsets *ps_audit_offsets_begin(int32_t fd, int32_t size, const int64_t *pairs,
                                         int32_t pair_count, const int64_t *rows,
                                         int32_t row_count, ps_error *error);
/* The next blocks (format/offsetblock.h), good until the next call; *len 0: there are
 * no more. NULL as above. */
const uint8_t *ps_audit_offsets_next(ps_audit_offsets *o, int64_t *len, ps_error *error);
/* The next members of offsetTable in consumerOffset.json, likewise, in the layout of
 * pystore/files/javajson.py, a comma before each. light: those of light queues, one after another;
 * else all others, before each two i32 in the order of the machine and its name: the lengths of
 * both. ascii: what is not becomes an escape. */
const uint8_t *ps_audit_offsets_members(ps_audit_offsets *o, int32_t light, int32_t ascii,
                                        int64_t *len, ps_error *error);
/* Whether a name of a member so far, wanted or not, has half a surrogate pair. */
int32_t ps_audit_offsets_half(const ps_audit_offsets *o);
void ps_audit_offsets_free(ps_audit_offsets *o);
/* cdef end */

enum {
#define PS_FINDING(NAME, code, ...) PS_FIND_##NAME = code,
#define PS_FINDING_OUTSIDE(...)
#define PS_FINDING_WORD(...)
#include "audit/findings.def"
#undef PS_FINDING
#undef PS_FINDING_OUTSIDE
#undef PS_FINDING_WORD
};

#endif
