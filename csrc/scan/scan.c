/* Scans: messages of a queue range or of a log range as an Arrow C stream.
 *
 * A queue scan walks units and looks into the log only when a column or a filter asks for it. A
 * log scan walks the records as they lie. Either way a block of rows is gathered first, with
 * nothing but pointers in it and the log's cache lines asked for ahead of use, and then goes into
 * the batch one column at a time (arrow.c).
 *
 * What is read is hostile: a unit is checked against the segment it points into, a record against
 * the unit, its magic, its own place and its lengths, each before the next is used. The checks are
 * those of ps_record_decode, for the parts that are asked for: a scan that wants neither topic nor
 * properties does not touch the end of a record.
 *
 * Damage ends the batch before it. The next call reports it, and keeps reporting it, unless the
 * scan skips damage: a queue scan to the next unit, a log scan by the record's size where that can
 * be believed, else to the next file. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/bytes.h"
#include "base/crc.h"
#include "scan/scan.h"
#include "filter/sql92.h"
#include "log/resync.h"

#define AHEAD 32            /* units whose records are asked for ahead of use */
#define UNITS_A_STEP 4096   /* units looked at between two looks at whether the store was closed */
#define RECORDS_A_STEP 1024 /* the same for records of a log scan */
#define LINE 64
#define LOG_AHEAD 8192    /* bytes that a log scan asks for ahead of use */
#define HEAD_MAX 87       /* last byte of an IPv4 record before its body */
#define TAIL_LIKELY 256   /* topic and properties, mostly */
#define PREFETCH_MAX 1024 /* the rest of a longer body is left to the processor's own prefetch */
#define INFLATED_MAX (256LL << 20)
#define INFLATED_FIRST 4096

/* How gathering a block ended; a negative errno, with sn_error set, when it failed. */
enum { BLOCK_DONE = 0, BATCH_DONE = 1 };

static int fail_scan(scanner *sn, int err, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
static int fail_scan(scanner *sn, int err, const char *text, ...) {
    va_list args;
    va_start(args, text);
    vsnprintf(sn->sn_error, sizeof sn->sn_error, text, args);
    va_end(args);
    return -err;
}

/* ---- names ---- */

static const name *names_find(const names *ns, const uint8_t *text, int32_t len) {
    int32_t low = 0, high = ns->ns_count;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        int order = name_order(&ns->ns_items[mid], (const char *)text, len);
        if (order == 0) return &ns->ns_items[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* ---- records ---- */

static inline const segment *segment_cached(scanner *sn, int64_t physical) {
    for (int32_t i = 0; i < CACHED; i++) {
        segment *sg = &sn->sn_segments[i];
        if (physical < sg->sg_from || physical >= sg->sg_to) continue;
        if (i > 0) {
            segment moved = *sg;
            memmove(&sn->sn_segments[1], &sn->sn_segments[0], (size_t)i * sizeof *sg);
            sn->sn_segments[0] = moved;
        }
        return &sn->sn_segments[0];
    }
    return NULL;
}

/* ---- files that are cut off meanwhile ---- */

static void cut_found(scanner *sn, ps_mapfile *mf) {
    if (sn->sn_cut == NULL) sn->sn_cut = ps_mapfile_ref(mf);
}

/* The handler of SIGBUS has left zeros where the file ends now. */
static inline void cut_look(scanner *sn, ps_mapfile *mf) {
    if (mf != NULL && atomic_load_explicit(&mf->mf_cut, memory_order_acquire)) cut_found(sn, mf);
}

static bool cut_any(scanner *sn) {
    for (int32_t i = 0; i < CACHED; i++) cut_look(sn, sn->sn_segments[i].sg_held);
    cut_look(sn, sn->sn_unit_file);
    return sn->sn_cut != NULL;
}

static int cut_failed(scanner *sn) {
    return sn->sn_failed = fail_scan(sn, EIO, "the file was truncated while it was read: %s",
                                     sn->sn_cut->mf_path);
}

/* Takes the segment into the cache and lets another go: no row may still point into it. */
static const segment *segment_load(scanner *sn, int64_t physical) {
    ps_mapfile *mf;
    int64_t avail;
    if (ps_log_at(&sn->sn_store->st_log, physical, sn->sn_log_end, &avail, &mf) == NULL) {
        ps_mapfile_unref(mf);
        return NULL;
    }
    cut_look(sn, sn->sn_segments[CACHED - 1].sg_held);
    ps_mapfile_unref(sn->sn_segments[CACHED - 1].sg_held);
    memmove(&sn->sn_segments[1], &sn->sn_segments[0], (CACHED - 1) * sizeof(segment));
    sn->sn_segments[0] = (segment){mf, mf->mf_map, mf->mf_base, physical + avail};
    return &sn->sn_segments[0];
}

/* The head of the record of `size` bytes at p, all of which may be read. The conditions are those
 * of ps_record_decode. */
static inline bool head_parse(const uint8_t *p, int32_t size, int64_t place, ps_row *r) {
    uint32_t magic = be32_get(p + PS_AT_MAGIC);
    int32_t sys_flag = (int32_t)be32_get(p + PS_AT_SYS_FLAG), v2 = magic == PS_MAGIC_V2;
    int32_t born_len = sys_flag & PS_SYS_BORN_V6 ? 20 : 8;
    int32_t store_len = sys_flag & PS_SYS_STORE_V6 ? 20 : 8;
    int32_t left = size - (PS_RECORD_FIXED - 16) - v2 - born_len - store_len;
    if ((magic != PS_MAGIC_V1 && !v2) || (int32_t)be32_get(p + PS_AT_SIZE) != size ||
        (int64_t)be64_get(p + PS_AT_PHYSICAL_OFFSET) != place || left < 0)
        return false;
    r->rw_middle = p + PS_AT_BORN_HOST + born_len;
    r->rw_late = r->rw_middle + PS_MIDDLE_STORE_HOST + store_len;
    r->rw_body = r->rw_late + PS_LATE_BODY;
    r->rw_body_len = (int32_t)be32_get(r->rw_late + PS_LATE_BODY_LEN);
    if (r->rw_body_len < 0 || r->rw_body_len > left) return false;
    r->rw_start = p;
    r->rw_physical = place;
    r->rw_size = size;
    r->rw_sys_flag = sys_flag;
    r->rw_topic = r->rw_body + r->rw_body_len + 1 + v2;
    r->rw_topic_len = v2; /* until its own length is read */
    return true;
}

/* What follows the body: its lengths must add up to the record's. */
static inline bool tail_parse(ps_row *r) {
    const uint8_t *topic = r->rw_topic;
    int64_t left = r->rw_start + r->rw_size - topic - 2;
    int32_t topic_len = r->rw_topic_len ? (int16_t)be16_get(topic - 2) : (int8_t)topic[-1];
    if (topic_len < 0 || topic_len > left) return false;
    r->rw_topic_len = topic_len;
    r->rw_properties = topic + topic_len + 2;
    r->rw_properties_len = (int16_t)be16_get(topic + topic_len);
    return r->rw_properties_len == left - topic_len;
}

/* Bit i is set where p[i] separates two properties, for 64 bytes. */
static inline uint64_t separator_mask(const uint8_t *p) {
    uint64_t mask = 0;
#ifdef __SSE2__
    const __m128i separator = _mm_set1_epi8(PS_PROPERTY_SEPARATOR);
    for (int i = 0; i < 4; i++) {
        __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
        uint32_t hits = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(part, separator));
        mask |= (uint64_t)hits << (16 * i);
    }
#else
    for (int i = 0; i < 64; i++) mask |= (uint64_t)(p[i] == PS_PROPERTY_SEPARATOR) << i;
#endif
    return mask;
}

/* As in ps_property_find: a name counts when its value has at least a byte; the last one wins. */
static inline void property_note(ps_row *r, const uint8_t *p, int64_t len) {
    if (len > 5 && p[4] == PS_NAME_SEPARATOR) {
        if (memcmp(p, "TAGS", 4) == 0) {
            r->rw_tags = p + 5;
            r->rw_tags_len = (int32_t)len - 5;
        } else if (memcmp(p, "KEYS", 4) == 0) {
            r->rw_keys = p + 5;
            r->rw_keys_len = (int32_t)len - 5;
        }
    } else if (len > 9 && p[8] == PS_NAME_SEPARATOR && memcmp(p, "UNIQ_KEY", 8) == 0) {
        r->rw_uniq = p + 9;
        r->rw_uniq_len = (int32_t)len - 9;
    } else if (len > 13 && p[12] == PS_NAME_SEPARATOR && memcmp(p, "__LITE_TOPIC", 12) == 0) {
        r->rw_lite = p + 13;
        r->rw_lite_len = (int32_t)len - 13;
    }
}

/* One pass over the properties for the four that columns want. A last window shorter than 64
 * bytes is read so that it ends with the record, whose first 91 bytes make sure that it also
 * starts in it. */
static inline void properties_find(ps_row *r) {
    const uint8_t *part = r->rw_properties, *end = part + r->rw_properties_len;
    r->rw_tags = r->rw_keys = r->rw_uniq = r->rw_lite = NULL;
    r->rw_tags_len = r->rw_keys_len = r->rw_uniq_len = r->rw_lite_len = 0;
    for (const uint8_t *at = part; at < end; at += 64) {
        int64_t left = end - at;
        uint64_t mask = left >= 64 ? separator_mask(at) : separator_mask(end - 64) >> (64 - left);
        for (; mask != 0; mask &= mask - 1) {
            const uint8_t *stop = at + __builtin_ctzll(mask);
            property_note(r, part, stop - part);
            part = stop + 1;
        }
    }
    property_note(r, part, end - part);
}

/* ---- filters ---- */

static bool log_row_wanted(const scanner *sn, const ps_row *r) {
    const ps_scan *spec = &sn->sn_spec;
    int32_t type = r->rw_sys_flag & PS_SYS_TX_MASK;
    bool queued = type != PS_SYS_TX_PREPARED && type != PS_SYS_TX_ROLLBACK;
    if (spec->queue_filter >= 0 &&
        (int32_t)be32_get(r->rw_start + PS_AT_QUEUE_ID) != spec->queue_filter)
        return false;
    if (spec->committed_only) {
        if (!queued) return false;
        /* Half messages lie in a topic of their own since 4.3, with no type. A scan that names that
         * topic gets them. */
        if (sn->sn_topics.ns_count == 0 && (PS_IS(r->rw_topic, r->rw_topic_len, PS_HALF_TOPIC) ||
                                            PS_IS(r->rw_topic, r->rw_topic_len, PS_OP_TOPIC)))
            return false;
    }
    if (sn->sn_topics.ns_count == 0) return true;
    const name *topic = names_find(&sn->sn_topics, r->rw_topic, r->rw_topic_len);
    return topic != NULL && (r->rw_physical >= topic->nm_from || !queued);
}

/* Leaves the rows that filters on the whole record want. Returns how many. */
static int32_t rows_filter(scanner *sn, int32_t count) {
    int32_t kept = 0;
    if (sn->sn_find)
        for (int32_t i = 0; i < count; i++) properties_find(&sn->sn_row[i]);
    if (sn->sn_topic != NULL && sn->sn_tags.ns_count == 0 && sn->sn_sql == NULL) return count;
    for (int32_t i = 0; i < count; i++) {
        const ps_row *r = &sn->sn_row[i];
        if (sn->sn_topic == NULL && !log_row_wanted(sn, r)) continue;
        if (sn->sn_tags.ns_count > 0 &&
            (r->rw_tags == NULL || names_find(&sn->sn_tags, r->rw_tags, r->rw_tags_len) == NULL))
            continue;
        if (sn->sn_sql != NULL &&
            !ps_sql92_match(sn->sn_sql, r->rw_properties, r->rw_properties_len))
            continue;
        if (kept != i) sn->sn_row[kept] = *r;
        kept++;
    }
    return kept;
}

static bool row_checked(const ps_row *r, int checks) {
    ps_record rec;
    return ps_record_check(r->rw_start, r->rw_size, -1, checks, &rec) == PS_REC_OK;
}

/* A time that the record's own sum belies leaves nothing out where sums are checked. */
static inline bool time_wanted(const scanner *sn, const ps_row *r) {
    int64_t stored = (int64_t)be64_get(r->rw_middle + PS_MIDDLE_STORE_TIMESTAMP);
    return (stored >= sn->sn_spec.store_time_min && stored <= sn->sn_spec.store_time_max) ||
           (sn->sn_spec.check_crc && !row_checked(r, PS_CHECK_PROP_IF));
}

/* Whether a unit's tags code may belong to one of the tags. Codes below 32 bits are addresses in
 * the queue's extension, which say nothing about tags. */
static inline bool code_wanted(const scanner *sn, int64_t code) {
    int32_t low = 0, high = sn->sn_tags.ns_count, hash = (int32_t)code;
    if (code < INT32_MIN) return true;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (sn->sn_tag_hashes[mid] == hash) return true;
        if (sn->sn_tag_hashes[mid] < hash)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

/* ---- bodies ---- */

/* Inflates into the scanner's own room. 0, or PS_E_DAMAGED, PS_E_NO_MEMORY. The row must be the
 * last of its block, since the next body takes its place. */
static int row_inflate(scanner *sn, ps_row *r) {
    int32_t type = (r->rw_sys_flag & PS_SYS_COMPRESSION_MASK) >> PS_SYS_COMPRESSION_SHIFT;
    int64_t want = 4LL * r->rw_body_len, got = 0;
    if (sn->sn_inflated_at != r->rw_physical) {
        want = want < INFLATED_FIRST ? INFLATED_FIRST : want < INFLATED_MAX ? want : INFLATED_MAX;
        for (;;) {
            if (want > sn->sn_inflated_room) {
                free(sn->sn_inflated);
                sn->sn_inflated_room = 0;
                sn->sn_inflated_at = -1;
                sn->sn_inflated = malloc((size_t)want);
                if (sn->sn_inflated == NULL) return PS_E_NO_MEMORY;
                sn->sn_inflated_room = want;
            }
            got = sn->sn_spec.inflate(sn->sn_spec.inflate_arg, type ? type : PS_COMPRESSION_ZLIB,
                                      r->rw_body, r->rw_body_len, sn->sn_inflated,
                                      sn->sn_inflated_room);
            if (got < 0 || got > INFLATED_MAX) return PS_E_DAMAGED;
            if (got <= sn->sn_inflated_room) break;
            /* At least twice as much, so that a callback that only asks for a little more still
             * ends. */
            want = got > 2 * sn->sn_inflated_room ? got : 2 * sn->sn_inflated_room;
            want = want < INFLATED_MAX ? want : INFLATED_MAX;
        }
        sn->sn_inflated_at = r->rw_physical;
        sn->sn_inflated_len = (int32_t)got;
    }
    r->rw_body = sn->sn_inflated;
    r->rw_body_len = sn->sn_inflated_len;
    return 0;
}

/* ---- damage ---- */

/* Why there is no segment for `physical`: the file was deleted, or cannot be opened any more. */
static const char *missing_name(scanner *sn, int64_t physical) {
    ps_error e = {0};
    char words[64];
    if (physical < atomic_load(&sn->sn_store->st_log.lg_min)) return "deleted";
    ps_mapfile_unref(ps_segments_find(&sn->sn_store->st_log.lg_files, physical, &e));
    if (e.code == 0) return "not in the log";
    if (e.sys_errno == ENOENT) {
        snprintf(sn->sn_why, sizeof sn->sn_why,
                 "its file was deleted meanwhile, as retention does it: refresh and scan again: %s",
                 e.where);
        return sn->sn_why;
    }
    const char *why = e.sys_errno != 0 ? strerror_r(e.sys_errno, words, sizeof words) : "";
    snprintf(sn->sn_why, sizeof sn->sn_why, "%s%s%s: %s", e.text, *why ? ", " : "", why, e.where);
    return sn->sn_why;
}

/* What is wrong at `physical`, for the error's text. c: the candidate of a queue scan, or NULL. */
static const char *damage_name(scanner *sn, int64_t physical, const candidate *c) {
    const segment *sg = segment_cached(sn, physical);
    ps_record rec = {0};
    if (sg == NULL) return missing_name(sn, physical);
    int64_t avail = sg->sg_to - physical;
    ps_rec_outcome o = ps_record_check(sg->sg_map + (physical - sg->sg_from), avail, physical,
                                       PS_CHECK_SUMS, &rec);
    if (o == PS_REC_BLANK && c == NULL) return "whole records follow the blank";
    if (o == PS_REC_BLANK || (o == PS_REC_OK && c != NULL && rec.size != c->ca_size))
        return "the record does not match its queue unit";
    if (o != PS_REC_OK) return ps_rec_outcome_name(o);
    if (c != NULL && !ps_queue_is_of(sn->sn_queue, &rec)) return "a record of another queue";
    if (c == NULL || ps_unit_belongs(sn->sn_store, sn->sn_queue, c->ca_offset, &rec))
        return "the body does not inflate";
    snprintf(sn->sn_why, sizeof sn->sn_why, "the record itself has the queue offset %lld",
             (long long)rec.queue_offset);
    return sn->sn_why;
}

/* Returns 0 when the scan skips damage, and counts it. Else the batch ends before it, or, when
 * there is nothing before it, the scan fails. */
static int damage_met(scanner *sn, int64_t skipped, int64_t physical) {
    if (sn->sn_spec.skip_damaged) {
        if (sn->sn_stats->skipped == 0) sn->sn_stats->first_skipped = physical;
        sn->sn_stats->skipped += skipped;
        return BLOCK_DONE;
    }
    return sn->sn_rows > 0 ? BATCH_DONE : -EIO;
}

static int unit_damaged(scanner *sn, const candidate *c) {
    const char *topic = sn->sn_topic->tp_name;
    int32_t id = sn->sn_queue->cq_id;
    bool missing = c->ca_missing;
    int code = damage_met(sn, missing ? c->ca_physical : 1, missing ? -1 : c->ca_physical);
    if (code >= 0) return code;
    if (missing)
        return fail_scan(sn, EIO,
                         "queue %s/%d has no unit at offset %lld: it was deleted or is missing",
                         topic, id, (long long)c->ca_offset);
    if (c->ca_size == PS_UNIT_NONE)
        return fail_scan(sn, EIO, "queue %s/%d, offset %lld: the log has lost the message", topic,
                         id, (long long)c->ca_offset);
    const char *why = damage_name(sn, c->ca_physical, c);
    return fail_scan(
        sn, EIO,
        "queue %s/%d, offset %lld: the record of %d bytes at physical offset %lld cannot "
        "be read: %s",
        topic, id, (long long)c->ca_offset, c->ca_size, (long long)c->ca_physical, why);
}

/* Whether what is given is right up to a place. */
static inline bool given_right(scanner *sn, int64_t to) {
    const ps_given *g = &sn->sn_given;
    return to <= sn->sn_summed ||
           ps_crc32_right(g->records, sn->sn_end, g->sums, g->block, to, &sn->sn_summed);
}

/* Records that are given: sn_at is a place among them. */
static int given_damaged(scanner *sn) {
    const uint8_t *p = sn->sn_given.records + sn->sn_at;
    int64_t left = sn->sn_end - sn->sn_at, place = -1;
    if (!given_right(sn, sn->sn_end))
        return sn->sn_rows > 0
                   ? BATCH_DONE
                   : fail_scan(sn, EIO, "records have another CRC than their segment says: %s",
                               sn->sn_given.name);
    ps_record rec = {0};
    if (left >= PS_RECORD_FIXED) place = (int64_t)be64_get(p + PS_AT_PHYSICAL_OFFSET);
    ps_rec_outcome o = ps_record_check(p, left, place, PS_CHECK_SUMS, &rec);
    int code = damage_met(sn, 1, place);
    if (code < 0)
        return fail_scan(sn, EIO, "the record at physical offset %lld cannot be read: %s",
                         (long long)place,
                         o == PS_REC_OK ? "the body does not inflate" : ps_rec_outcome_name(o));
    if (code == BLOCK_DONE) {
        bool sized = rec.size >= PS_RECORD_FIXED && rec.size <= left;
        sn->sn_at = sized ? sn->sn_at + rec.size : sn->sn_end;
    }
    return code;
}

/* Where the record after damage stands. Only a size that the record's other lengths add up to is
 * believed; else it is the next whole one. */
static int64_t next_after(const segment *sg, int64_t at, int64_t before) {
    ps_record rec;
    int64_t stamp = 0;
    ps_rec_outcome o = ps_record_check(sg->sg_map + (at - sg->sg_from), sg->sg_to - at, at,
                                       PS_CHECK_SUMS, &rec);
    if (o == PS_REC_OK || o == PS_REC_CRC) return at + rec.size;
    if (before >= sg->sg_from && before < at &&
        ps_record_check(sg->sg_map + (before - sg->sg_from), at - before, before, 0, &rec) ==
            PS_REC_OK)
        stamp = rec.store_timestamp;
    int64_t found = ps_log_next_whole(sg->sg_held, at - sg->sg_from + 1, stamp, &rec);
    return sg->sg_from + (found < 0 ? sg->sg_held->mf_size : found);
}

/* Moves sn_at past the damage when it is skipped. */
static int log_damaged(scanner *sn) {
    if (sn->sn_spec.more != NULL) return given_damaged(sn);
    int64_t at = sn->sn_at, file_size = sn->sn_store->st_log.lg_files.ss_file_size;
    int64_t log_min = atomic_load(&sn->sn_store->st_log.lg_min);
    const char *why = damage_name(sn, at, NULL);
    int code = damage_met(sn, 1, at);
    if (code < 0)
        return fail_scan(sn, EIO, "log: the record at physical offset %lld cannot be read: %s",
                         (long long)at, why);
    const segment *sg = code == BLOCK_DONE ? segment_cached(sn, at) : NULL;
    if (sg != NULL)
        sn->sn_at = next_after(sg, at, sn->sn_before);
    else if (code == BLOCK_DONE)
        sn->sn_at = at < log_min ? log_min : (at / file_size + 1) * file_size;
    return code;
}

/* ---- queue scans ---- */

/* Opens the run of units at sn_at. False when the queue has none there. */
static bool units_open(scanner *sn) {
    ps_unit u;
    cut_look(sn, sn->sn_unit_file);
    ps_mapfile_unref(sn->sn_unit_file);
    sn->sn_unit_file = ps_queue_run(sn->sn_queue, sn->sn_at, &sn->sn_units, &sn->sn_unit_count);
    if (sn->sn_unit_file != NULL) {
        ps_queue_reads_on(sn->sn_unit_file, sn->sn_unit_count);
        return sn->sn_unit_count > 0;
    }
    /* The tail of a reader is copied, a block at a time. */
    sn->sn_units = sn->sn_tail_units;
    sn->sn_unit_count = 0;
    while (sn->sn_unit_count < BLOCK && sn->sn_at + sn->sn_unit_count < sn->sn_end &&
           ps_queue_unit(sn->sn_queue, sn->sn_at + sn->sn_unit_count, &u)) {
        uint8_t *p = sn->sn_tail_units + sn->sn_unit_count++ * PS_UNIT;
        be64_put(p, (uint64_t)u.physical);
        be32_put(p + 8, (uint32_t)u.size);
        be64_put(p + 12, (uint64_t)u.tags_code);
    }
    return sn->sn_unit_count > 0;
}

/* How many offsets from sn_at on have no unit: up to the queue's first, or to the next file. */
static int64_t units_missing(const scanner *sn) {
    int64_t units = sn->sn_queue->cq_files.ss_file_size / PS_UNIT, at = sn->sn_at;
    int64_t first = atomic_load(&sn->sn_queue->cq_min);
    int64_t next = at < first ? first : (at / units + 1) * units;
    return (next < sn->sn_end ? next : sn->sn_end) - at;
}

/* Asks for the cache lines that the rows will touch, for the second level cache: the first has too
 * few slots for as many lines as it takes to hide the memory's delay. Inlined by force, since GCC
 * takes a function that only prefetches for one without effect, and drops calls of it. */
static inline __attribute__((always_inline)) void record_prefetch(const scanner *sn,
                                                                  const candidate *c) {
    const segment *sg = &sn->sn_segments[0];
    int32_t size = c->ca_size, at = 2 * LINE;
    if (c->ca_physical < sg->sg_from || c->ca_physical >= sg->sg_to || size < PS_RECORD_FIXED)
        return;
    /* Addresses after the mapping do no harm: a prefetch never faults. */
    const uint8_t *p = sg->sg_map + (c->ca_physical - sg->sg_from);
    __builtin_prefetch(p, 0, 2);
    __builtin_prefetch(p + LINE, 0, 2);
    if (sn->sn_body)
        for (; at < size && at < PREFETCH_MAX; at += LINE) __builtin_prefetch(p + at, 0, 2);
    else
        __builtin_prefetch(p + HEAD_MAX, 0, 2);
    if (sn->sn_tail && at < size) {
        for (at = size - TAIL_LIKELY > at ? size - TAIL_LIKELY : at; at < size; at += LINE)
            __builtin_prefetch(p + at, 0, 2);
    }
    if (sn->sn_body || sn->sn_tail) __builtin_prefetch(p + size - 1, 0, 2);
}

/* Appends the next units to the candidates. There may be none although units follow. */
static void candidates_fill(scanner *sn) {
    int32_t n = sn->sn_candidate_count - sn->sn_candidate_at;
    int64_t budget = UNITS_A_STEP;
    if (n > 0)
        memmove(sn->sn_candidates, sn->sn_candidates + sn->sn_candidate_at,
                (size_t)n * sizeof *sn->sn_candidates);
    sn->sn_prefetched -= sn->sn_candidate_at;
    sn->sn_candidate_at = 0;
    while (n < CANDIDATES && sn->sn_at < sn->sn_end && budget > 0) {
        if (sn->sn_unit_count == 0 && !units_open(sn)) {
            int64_t missing = units_missing(sn);
            sn->sn_candidates[n++] = (candidate){sn->sn_at, missing, 0, true};
            sn->sn_at += missing;
            break;
        }
        const uint8_t *p = sn->sn_units;
        int64_t take = sn->sn_end - sn->sn_at, i = 0;
        take = take < sn->sn_unit_count ? take : sn->sn_unit_count;
        take = take < budget ? take : budget;
        for (; i < take && n < CANDIDATES; i++, p += PS_UNIT) {
            if (sn->sn_hashed && !code_wanted(sn, (int64_t)be64_get(p + 12))) continue;
            sn->sn_candidates[n++] =
                (candidate){sn->sn_at + i, (int64_t)be64_get(p), (int32_t)be32_get(p + 8), false};
        }
        sn->sn_at += i;
        sn->sn_units = p;
        sn->sn_unit_count -= i;
        budget -= i;
    }
    sn->sn_candidate_count = n;
}

/* The size that the record of a unit has by itself; 0 where the log has no whole one there that
 * belongs to the unit. */
static int32_t record_size(scanner *sn, const segment *sg, const candidate *c) {
    ps_unit u = {c->ca_physical, c->ca_size, 0};
    ps_record r;
    if (sg == NULL || c->ca_size == PS_UNIT_NONE) return 0;
    const uint8_t *p = sg->sg_map + (c->ca_physical - sg->sg_from);
    bool good = ps_unit_record(&u, p, sg->sg_to - c->ca_physical, &r) &&
                ps_unit_belongs(sn->sn_store, sn->sn_queue, c->ca_offset, &r);
    return good ? r.size : 0;
}

/* Whether a row may take the unit's word, as its record lies within the log. */
static inline bool unit_plausible(const scanner *sn, const candidate *c) {
    return c->ca_size >= PS_RECORD_FIXED && c->ca_physical >= sn->sn_log_min &&
           c->ca_physical <= sn->sn_log_end - c->ca_size;
}

static int32_t unit_size(scanner *sn, const candidate *c) {
    if (__builtin_expect(unit_plausible(sn, c), 1)) return c->ca_size;
    if (c->ca_missing) return 0;
    const segment *sg = segment_cached(sn, c->ca_physical);
    return record_size(sn, sg != NULL ? sg : segment_load(sn, c->ca_physical), c);
}

/* Rows from units alone: they touch the log only where a unit says what cannot be. */
static int unit_rows(scanner *sn, int32_t room, int32_t *count) {
    int32_t n = 0, i = sn->sn_candidate_at;
    for (; i < sn->sn_candidate_count && n < room; i++) {
        const candidate *c = &sn->sn_candidates[i];
        ps_row *r = &sn->sn_row[n];
        int32_t size = unit_size(sn, c);
        if (__builtin_expect(size == 0, 0)) {
            int code = n > 0 ? BLOCK_DONE : unit_damaged(sn, c);
            if (n > 0) break;
            if (code != BLOCK_DONE) return code;
            continue;
        }
        r->rw_from = i;
        r->rw_offset = c->ca_offset;
        r->rw_physical = c->ca_physical;
        r->rw_size = size;
        n++;
    }
    sn->sn_candidate_at = i;
    *count = n;
    return BLOCK_DONE;
}

/* Whether a row of a queue scan names the queue's topic: its bytes follow the body. */
static inline bool row_of_topic(const scanner *sn, const ps_row *r) {
    const uint8_t *topic = r->rw_topic;
    int32_t len = be32_get(r->rw_start + PS_AT_MAGIC) == PS_MAGIC_V2 ? (int16_t)be16_get(topic - 2)
                                                                     : (int8_t)topic[-1];
    return len == sn->sn_topic->tp_len && len <= r->rw_start + r->rw_size - topic &&
           memcmp(topic, sn->sn_topic->tp_name, (size_t)len) == 0;
}

/* Whether the record is the one that the queue has at this offset. A scan that reads neither the
 * body nor what follows it does not touch the topic. */
static inline bool row_asked_for(scanner *sn, const candidate *c, const ps_row *r) {
    ps_record whole;
    if (__builtin_expect((int64_t)be64_get(r->rw_start + PS_AT_QUEUE_OFFSET) == c->ca_offset &&
                             (int32_t)be32_get(r->rw_start + PS_AT_QUEUE_ID) ==
                                 sn->sn_queue->cq_id &&
                             (!(sn->sn_body || sn->sn_tail) || row_of_topic(sn, r)),
                         1))
        return true;
    return ps_record_decode(r->rw_start, r->rw_size, &whole) == PS_REC_OK &&
           ps_unit_belongs(sn->sn_store, sn->sn_queue, c->ca_offset, &whole);
}

static inline bool queue_head_parse(scanner *sn, const segment *sg, const candidate *c, ps_row *r) {
    const uint8_t *p = sg->sg_map + (c->ca_physical - sg->sg_from);
    int32_t size = c->ca_size;
    if (__builtin_expect(size >= PS_RECORD_FIXED && size <= sg->sg_to - c->ca_physical &&
                             head_parse(p, size, c->ca_physical, r),
                         1))
        return true;
    size = record_size(sn, sg, c);
    return size != 0 && head_parse(p, size, c->ca_physical, r);
}

/* Heads of the records that the next candidates point to. */
static int queue_heads(scanner *sn, int32_t room, int32_t *count) {
    int32_t n = 0, i = sn->sn_candidate_at, end = sn->sn_candidate_count;
    for (; i < end && n < room; i++) {
        const candidate *c = &sn->sn_candidates[i];
        ps_row *r = &sn->sn_row[n];
        for (; sn->sn_prefetched < end && sn->sn_prefetched <= i + AHEAD; sn->sn_prefetched++)
            record_prefetch(sn, &sn->sn_candidates[sn->sn_prefetched]);
        const segment *sg = segment_cached(sn, c->ca_physical);
        if (__builtin_expect(sg == NULL, 0)) {
            if (n > 0) break; /* rows may point into the segment that would go */
            sg = c->ca_missing ? NULL : segment_load(sn, c->ca_physical);
        }
        if (__builtin_expect(
                sg == NULL || !queue_head_parse(sn, sg, c, r) || !row_asked_for(sn, c, r), 0)) {
            if (n > 0) break;
            sn->sn_candidate_at = i;
            int code = unit_damaged(sn, c);
            if (code != BLOCK_DONE) return code;
            continue;
        }
        r->rw_from = i;
        r->rw_offset = c->ca_offset;
        n += !sn->sn_timed || time_wanted(sn, r);
    }
    sn->sn_candidate_at = i;
    *count = n;
    return BLOCK_DONE;
}

static int queue_rows(scanner *sn, int32_t room, int32_t *count) {
    if (sn->sn_candidate_count - sn->sn_candidate_at < BLOCK + AHEAD) candidates_fill(sn);
    return sn->sn_record ? queue_heads(sn, room, count) : unit_rows(sn, room, count);
}

/* ---- log scans ---- */

/* Asks for what follows p, as far as it was not asked for: up to `ahead`. Inlined by force, as
 * record_prefetch is. */
static inline __attribute__((always_inline)) const uint8_t *log_prefetch(const uint8_t *p,
                                                                         const uint8_t *ahead) {
    if (ahead < p || ahead > p + LOG_AHEAD) ahead = p + LOG_AHEAD / 2;
    for (; ahead < p + LOG_AHEAD; ahead += LINE) __builtin_prefetch(ahead, 0, 2);
    return ahead;
}

/* Heads of the next records of the log. */
static int log_rows(scanner *sn, int32_t room, int32_t *count) {
    int64_t at = sn->sn_at;
    int32_t n = 0;
    const uint8_t *ahead = NULL;
    for (int32_t seen = 0; seen < RECORDS_A_STEP && n < room && at < sn->sn_end; seen++) {
        ps_row *r = &sn->sn_row[n];
        int32_t size = 0;
        const segment *sg = segment_cached(sn, at);
        if (sg == NULL && n > 0) break;
        if (sg == NULL) sg = segment_load(sn, at);
        if (sg != NULL && sg->sg_to - at >= PS_RECORD_SPARE) {
            const uint8_t *p = sg->sg_map + (at - sg->sg_from);
            ahead = log_prefetch(p, ahead);
            size = (int32_t)be32_get(p + PS_AT_SIZE);
            if (be32_get(p + PS_AT_MAGIC) == PS_MAGIC_BLANK &&
                !ps_log_blank_hides(sg->sg_held, at - sg->sg_from)) {
                /* How far a blank says to reach is not believed: it always closes its file. */
                at = sg->sg_from + sn->sn_store->st_log.lg_files.ss_file_size;
                continue;
            }
            if (size < PS_RECORD_FIXED || size > sg->sg_to - at || !head_parse(p, size, at, r))
                size = 0;
        }
        if (__builtin_expect(size < PS_RECORD_FIXED, 0)) {
            if (n > 0) break;
            sn->sn_at = at;
            int code = log_damaged(sn);
            if (code != BLOCK_DONE) return code;
            at = sn->sn_at;
            continue;
        }
        r->rw_from = at;
        r->rw_offset = (int64_t)be64_get(r->rw_start + PS_AT_QUEUE_OFFSET);
        sn->sn_before = at;
        at += size;
        n += !sn->sn_timed || time_wanted(sn, r);
    }
    sn->sn_at = at;
    *count = n;
    return BLOCK_DONE;
}

/* Heads of the next records of those that are given. */
static int given_rows(scanner *sn, int32_t room, int32_t *count) {
    int64_t at = sn->sn_at;
    int32_t n = 0;
    const uint8_t *ahead = NULL;
    for (int32_t seen = 0; seen < RECORDS_A_STEP && n < room && at < sn->sn_end; seen++) {
        const uint8_t *p = sn->sn_given.records + at;
        int64_t left = sn->sn_end - at;
        bool right = given_right(sn, left < LOG_AHEAD ? sn->sn_end : at + LOG_AHEAD);
        ahead = log_prefetch(p, ahead);
        int32_t size = right && left >= PS_RECORD_FIXED ? (int32_t)be32_get(p + PS_AT_SIZE) : 0;
        ps_row *r = &sn->sn_row[n];
        if (size < PS_RECORD_FIXED || size > left || !given_right(sn, at + size) ||
            !head_parse(p, size, (int64_t)be64_get(p + PS_AT_PHYSICAL_OFFSET), r)) {
            if (n > 0) break;
            sn->sn_at = at;
            int code = log_damaged(sn);
            if (code != BLOCK_DONE) return code;
            at = sn->sn_at;
            continue;
        }
        r->rw_from = at;
        r->rw_offset = (int64_t)be64_get(p + PS_AT_QUEUE_OFFSET);
        at += size;
        n += !sn->sn_timed || time_wanted(sn, r);
    }
    sn->sn_at = at;
    *count = n;
    return BLOCK_DONE;
}

/* ---- blocks ---- */

/* The next block begins with this row. */
static void rewind_to(scanner *sn, const ps_row *r) {
    if (sn->sn_topic != NULL)
        sn->sn_candidate_at = (int32_t)r->rw_from;
    else
        sn->sn_at = r->rw_from;
}

/* Row i cannot be read: the block ends before it, and when it is the first the damage is dealt
 * with. */
static int row_damaged(scanner *sn, int32_t i) {
    rewind_to(sn, &sn->sn_row[i]);
    if (i > 0) return BLOCK_DONE;
    if (sn->sn_topic == NULL) return log_damaged(sn);
    int code = unit_damaged(sn, &sn->sn_candidates[sn->sn_candidate_at]);
    sn->sn_candidate_at += code == BLOCK_DONE;
    return code;
}

/* Sums and inflates. An inflated body ends the block, since the next one takes its place. */
static int rows_bodies(scanner *sn, int32_t *count) {
    for (int32_t i = 0; i < *count; i++) {
        ps_row *r = &sn->sn_row[i];
        bool inflate = sn->sn_inflate && r->rw_sys_flag & PS_SYS_COMPRESSED && r->rw_body_len > 0;
        bool bad = sn->sn_spec.check_crc && !row_checked(r, PS_CHECK_BODY_CRC);
        int code = bad ? PS_E_DAMAGED : 0;
        if (code == 0 && inflate) code = row_inflate(sn, r);
        if (code == PS_E_NO_MEMORY)
            return sn->sn_failed = fail_scan(sn, ENOMEM, "no memory to decompress a body");
        if (code < 0) {
            *count = i;
            return row_damaged(sn, i);
        }
        if (inflate && i + 1 < *count) {
            rewind_to(sn, r + 1);
            *count = i + 1;
        }
    }
    return BLOCK_DONE;
}

static inline int64_t row_bytes(const scanner *sn, const ps_row *r) {
    int64_t bytes = sn->sn_fixed_bytes;
    if (sn->sn_record) bytes += (int64_t)r->rw_body_len * sn->sn_body_columns;
    if (sn->sn_tail)
        bytes += (int64_t)r->rw_topic_len * sn->sn_topic_columns +
                 (int64_t)r->rw_properties_len * sn->sn_property_columns;
    if (sn->sn_find) bytes += r->rw_tags_len + r->rw_keys_len + r->rw_uniq_len + r->rw_lite_len;
    return bytes;
}

/* Ends the batch before the row that would make it too large. One row always fits. */
static int rows_fit(scanner *sn, int32_t *count) {
    int64_t bytes = sn->sn_bytes, read = 0, room = sn->sn_layout.ly_bytes;
    int32_t i = 0, rows = sn->sn_rows;
    for (; i < *count; i++) {
        const ps_row *r = &sn->sn_row[i];
        int64_t more = row_bytes(sn, r);
        if (bytes + more > room && rows + i > 0) break;
        bytes += more;
        read += r->rw_size;
    }
    sn->sn_bytes = bytes;
    sn->sn_stats->bytes += read;
    if (i == *count) return BLOCK_DONE;
    rewind_to(sn, &sn->sn_row[i]);
    *count = i;
    return BATCH_DONE;
}

/* Gathers up to `room` rows. There may be none although more follow. */
static int block_read(scanner *sn, int32_t room, int32_t *count) {
    int code = sn->sn_topic != NULL       ? queue_rows(sn, room, count)
               : sn->sn_spec.more != NULL ? given_rows(sn, room, count)
                                          : log_rows(sn, room, count);
    /* The sum of the properties comes before the filter, which believes them. */
    bool sums = sn->sn_spec.check_crc != 0;
    if ((sn->sn_tail || sums) && code == BLOCK_DONE) {
        for (int32_t i = 0; i < *count; i++) {
            ps_row *r = &sn->sn_row[i];
            bool good = !sums || row_checked(r, PS_CHECK_PROP_IF);
            if (__builtin_expect(!good || (sn->sn_tail && !tail_parse(r)), 0)) {
                code = row_damaged(sn, i);
                *count = i;
            }
        }
    }
    if (code == BLOCK_DONE && sn->sn_filter) *count = rows_filter(sn, *count);
    if (code == BLOCK_DONE && (sn->sn_inflate || sn->sn_spec.check_crc))
        code = rows_bodies(sn, count);
    if (code == BLOCK_DONE) code = rows_fit(sn, count);
    return code;
}

/* ---- the stream ---- */

/* Takes the next records that are given. No row points into the ones before any more. */
static bool given_next(scanner *sn) {
    segment *sg = &sn->sn_segments[0]; /* of no bytes: nothing is looked for there */
    cut_look(sn, sg->sg_held);
    ps_mapfile_unref(sg->sg_held);
    sg->sg_held = NULL;
    sn->sn_given = (ps_given){0};
    int64_t len = sn->sn_spec.more(sn->sn_spec.more_arg, &sn->sn_given, sn->sn_error,
                                   (int64_t)sizeof sn->sn_error);
    if (sn->sn_given.file != NULL) sg->sg_held = ps_mapfile_ref(sn->sn_given.file);
    sn->sn_at = 0;
    sn->sn_end = len > 0 ? len : 0;
    sn->sn_summed = sn->sn_given.sums != NULL ? 0 : sn->sn_end;
    sn->sn_inflated_at = -1; /* records of another queue may lie at the same places */
    if (len < 0) sn->sn_failed = -EIO;
    return len > 0;
}

static bool more_to_read(scanner *sn) {
    if (sn->sn_at < sn->sn_end || sn->sn_candidate_at < sn->sn_candidate_count) return true;
    return sn->sn_spec.more != NULL && given_next(sn);
}

static int refuse_closed(scanner *sn) {
    return fail_scan(sn, EBADF, "the store was closed during the scan");
}

/* Fills one batch. 0, with *out released when the scan is at its end, or a negative errno. */
static int batch_read(scanner *sn, struct ArrowArray *out) {
    ps_arrow_batch *ba = ps_arrow_begin(sn->sn_pool);
    int code = BLOCK_DONE;
    if (ba == NULL) return sn->sn_failed = fail_scan(sn, ENOMEM, "no memory for a batch");
    sn->sn_rows = 0;
    sn->sn_bytes = 0;
    while (code == BLOCK_DONE && sn->sn_rows < sn->sn_layout.ly_rows && more_to_read(sn)) {
        int32_t count = 0, room = sn->sn_layout.ly_rows - sn->sn_rows;
        /* A scan that finds little can take minutes, for which closing the store need not wait. */
        if (sn->sn_store != NULL &&
            atomic_load_explicit(&sn->sn_store->st_closed, memory_order_relaxed)) {
            code = refuse_closed(sn);
            break;
        }
        room = room < BLOCK ? room : BLOCK;
        code = block_read(sn, room, &count);
        if (count > 0 && ps_arrow_add(ba, sn->sn_row, count) < 0) {
            code = sn->sn_failed =
                fail_scan(sn, ENOMEM, "no memory for a batch of %d rows", sn->sn_rows + count);
            break;
        }
        sn->sn_rows += count;
        if (__builtin_expect(sn->sn_cut != NULL, 0)) break;
    }
    if (cut_any(sn)) code = cut_failed(sn);
    if (sn->sn_failed != 0 && sn->sn_rows == 0) code = sn->sn_failed;
    if (code < 0 || sn->sn_rows == 0) {
        ps_arrow_drop(ba);
        return code < 0 ? code : 0;
    }
    if (ps_arrow_finish(ba, out) < 0)
        return sn->sn_failed =
                   fail_scan(sn, ENOMEM, "no memory for a batch of %d rows", sn->sn_rows);
    sn->sn_stats->rows += sn->sn_rows;
    sn->sn_stats->batches++;
    return 0;
}

static int stream_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
    scanner *sn = stream->private_data;
    memset(out, 0, sizeof *out);
    if (sn->sn_failed != 0) return -sn->sn_failed;
    if (sn->sn_store != NULL && ps_enter(sn->sn_store) < 0) return -refuse_closed(sn);
    int code = batch_read(sn, out);
    if (sn->sn_store != NULL) ps_leave(sn->sn_store);
    return -code;
}

static int stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
    scanner *sn = stream->private_data;
    memset(out, 0, sizeof *out);
    if (ps_arrow_schema(&sn->sn_layout, out) < 0)
        return -fail_scan(sn, ENOMEM, "no memory for the schema");
    return 0;
}

static const char *stream_error(struct ArrowArrayStream *stream) {
    scanner *sn = stream->private_data;
    return sn->sn_error[0] ? sn->sn_error : NULL;
}

static void scanner_free(scanner *sn) {
    for (int32_t i = 0; i < CACHED; i++) ps_mapfile_unref(sn->sn_segments[i].sg_held);
    ps_mapfile_unref(sn->sn_unit_file);
    ps_mapfile_unref(sn->sn_cut);
    if (sn->sn_pool != NULL) ps_arrow_pool_close(sn->sn_pool);
    free(sn->sn_tags.ns_text);
    free(sn->sn_tags.ns_items);
    free(sn->sn_topics.ns_text);
    free(sn->sn_topics.ns_items);
    free(sn->sn_tag_hashes);
    ps_sql92_free(sn->sn_sql);
    free(sn->sn_inflated);
    if (sn->sn_stats != NULL && sn->sn_stats != &sn->sn_own_stats) ps_scan_stats_free(sn->sn_stats);
    if (sn->sn_store != NULL) ps_store_unref(sn->sn_store);
    free(sn);
}

static void stream_release(struct ArrowArrayStream *stream) {
    scanner *sn = stream->private_data;
    if (sn->sn_spec.more != NULL) sn->sn_spec.more(sn->sn_spec.more_arg, NULL, NULL, 0);
    scanner_free(sn);
    stream->private_data = NULL;
    stream->release = NULL;
}

/* ---- opening ---- */

ps_scan_stats *ps_scan_stats_new(void) {
    ps_scan_stats *stats = calloc(1, sizeof *stats);
    if (stats != NULL) *stats = (ps_scan_stats){.first_skipped = -1, .refs = 1};
    return stats;
}

void ps_scan_stats_free(ps_scan_stats *stats) {
    if (stats != NULL && __atomic_sub_fetch(&stats->refs, 1, __ATOMIC_ACQ_REL) == 0) free(stats);
}

int ps_scan_open(ps_store *s, const ps_scan *spec, void *arrow_array_stream, ps_scan_stats *stats,
                 ps_error *e) {
    struct ArrowArrayStream *stream = arrow_array_stream;
    memset(stream, 0, sizeof *stream);
    if (s != NULL && ps_enter(s) < 0) return ps_refuse_closed(s, e);
    int code = ps_scanner_check(s, spec, e);
    scanner *sn = code < 0 ? NULL : calloc(1, sizeof *sn);
    if (code == 0 && sn == NULL) code = ps_no_memory(e, NULL, "no memory for the scan");
    if (code == 0) {
        sn->sn_store = s;
        sn->sn_topic = spec->topic;
        sn->sn_spec = *spec;
        sn->sn_inflated_at = -1;
        if (s != NULL) ps_store_ref(s);
        sn->sn_stats = stats != NULL ? stats : &sn->sn_own_stats;
        __atomic_fetch_add(&sn->sn_stats->refs, 1, __ATOMIC_RELAXED);
        sn->sn_stats->rows = sn->sn_stats->bytes = sn->sn_stats->batches = 0;
        sn->sn_stats->skipped = 0;
        sn->sn_stats->first_skipped = -1;
        code = ps_scanner_plan(sn, e);
    }
    if (s != NULL) ps_leave(s);
    if (code < 0) {
        if (sn != NULL) scanner_free(sn);
        return code;
    }
    *stream =
        (struct ArrowArrayStream){stream_schema, stream_next, stream_error, stream_release, sn};
    return 0;
}
