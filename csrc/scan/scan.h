/* What a scan keeps while it runs, and how it is planned. Used by scan.c and scanplan.c alone; the
 * interface is in pystore.h. */
#ifndef PS_SCAN_H
#define PS_SCAN_H

#include "scan/arrow.h"
#include "store/store.h"

#define BLOCK 16       /* rows gathered at a time: small, so that their bytes stay in L1 */
#define CANDIDATES 256 /* units decoded at a time */
#define CACHED 4       /* segments held: neighbours of a queue's tail may lie in two or three */

/* A set of names, sorted by length, then by bytes. */
typedef struct name {
    const char *nm_text;
    int32_t nm_len;
    int64_t nm_from; /* of a topic: messages before it are of a life that was deleted */
} name;

typedef struct names {
    char *ns_text; /* our copy */
    name *ns_items;
    int32_t ns_count;
} names;

typedef struct segment {
    ps_mapfile *sg_held;
    const uint8_t *sg_map;
    int64_t sg_from, sg_to; /* physical offsets that may be read */
} segment;

/* A unit that passed the filters a unit can decide. */
typedef struct candidate {
    int64_t ca_offset;
    int64_t ca_physical; /* missing: how many offsets have no unit */
    int32_t ca_size;
    bool ca_missing;
} candidate;

typedef struct scanner {
    ps_store *sn_store;
    ps_topic *sn_topic; /* NULL: a log scan */
    ps_queue *sn_queue;
    ps_scan sn_spec; /* its strings are not ours: names and layout hold copies */
    ps_scan_stats *sn_stats, sn_own_stats;
    ps_arrow_layout sn_layout;
    ps_arrow_pool *sn_pool;
    names sn_tags, sn_topics;
    ps_sql92 *sn_sql;       /* NULL: everything */
    int32_t *sn_tag_hashes; /* sorted */
    bool sn_record, sn_tail,
        sn_find;              /* what rows need: the record, its end, TAGS, KEYS, ... */
    bool sn_body, sn_inflate; /* whether bodies are wanted, and compressed ones inflated */
    bool sn_timed, sn_hashed, sn_filter; /* filters on: head, unit, tail */
    int32_t sn_fixed_bytes;              /* of a row, whatever the message */
    int32_t sn_body_columns, sn_topic_columns, sn_property_columns;

    int64_t sn_at, sn_end; /* next unit or record to be looked at */
    int64_t sn_before;     /* the record before it, where the log was walked up to here */
    ps_given sn_given;       /* records that are read in the place of the log */
    int64_t sn_summed;       /* bytes of them that are right */
    int64_t sn_log_min, sn_log_end;
    int64_t sn_bytes; /* in the batch so far */
    int32_t sn_rows;
    int sn_failed;      /* errno of a failure for good */
    ps_mapfile *sn_cut; /* a file that was cut off under us, with a reference */

    ps_mapfile *sn_unit_file; /* the run of units being walked */
    const uint8_t *sn_units;
    int64_t sn_unit_count;
    segment sn_segments[CACHED]; /* most recently used first */
    uint8_t *sn_inflated;
    int64_t sn_inflated_room, sn_inflated_at; /* the record it belongs to */
    int32_t sn_inflated_len;

    int32_t sn_candidate_at, sn_candidate_count, sn_prefetched;
    candidate sn_candidates[CANDIDATES];
    ps_row sn_row[BLOCK];
    uint8_t sn_tail_units[BLOCK * PS_UNIT];
    char sn_why[900];
    char sn_error[1536];
} scanner;

/* By length, then by bytes: negative, 0 or positive as `a` comes before, is or follows the text. */
static inline int name_order(const name *a, const char *text, int32_t len) {
    if (a->nm_len != len) return a->nm_len < len ? -1 : 1;
    return memcmp(a->nm_text, text, (size_t)len);
}

/* Whether a scan may be asked for like this; PS_E_ARGUMENT says what is wrong with it. */
int ps_scanner_check(const ps_store *s, const ps_scan *spec, ps_error *e);
/* Sets columns, filters, range and the pool of arrays from sn_spec; the caller frees the scanner
 * after a failure: PS_E_ARGUMENT, PS_E_NOT_FOUND (no such queue), PS_E_NO_MEMORY. */
int ps_scanner_plan(scanner *sn, ps_error *e);

#endif
