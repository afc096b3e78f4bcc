/* Reading: by queue offset, by log offset, by key, by time. A batch holds references on the
 * mappings it points into, so its bytes stay valid whatever happens to the store. See
 * docs/internals/format.md#reading-a-queue; upstream
 * DefaultMessageStore.getMessage, IndexService.queryOffset,
 * ConsumeQueue.binarySearchInQueueByTime. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bisect.h"
#include "base/bytes.h"
#include "base/grow.h"
#include "filter/sql92.h"
#include "log/resync.h"
#include "store/cold.h"

#define DEFAULT_MESSAGES 32
#define DEFAULT_BYTES (128LL << 20)
#define LEAST_BYTES 100
#define LEAST_UNITS 800 /* units looked at, at most, unless more messages are wanted */
#define QUERY_STEP 256
#define PREFETCH 8
/* What is this near to the end was written lately, and is not asked about: it is in memory. */
#define NEAR_BYTES (16LL << 20)
#define NEAR_UNITS 200
/* So much is asked about at once: to ask about pages that nobody has touched yet costs by the
 * page. */
#define LOOK_BYTES (32LL << 10)
/* So much is read from the disk at once: neighbours are what is wanted next. */
#define COLD_BYTES (256LL << 10)
/* Messages of no interest that lie between two of interest are fetched with them up to so many
 * bytes: a request to the tier costs more. */
#define TIER_GAP (256LL << 10)

static const ps_read_options default_options;

struct ps_batch {
    ps_batch_info info;
    ps_view *views;
    int64_t *body_starts, *body_ends;
    int32_t room;
    ps_mapfile **files;
    ps_segment_view *segments;
    int32_t segment_room;
    ps_cold cold;
};

#define FEW_TAGS 8 /* are looked through one by one */

/* ---- batches ---- */

static int grow_batch(ps_batch *b, int32_t room) {
    ps_view *views = realloc(b->views, (size_t)room * sizeof *views);
    if (views != NULL) b->views = views;
    int64_t *starts = realloc(b->body_starts, (size_t)room * sizeof *starts);
    if (starts != NULL) b->body_starts = starts;
    int64_t *ends = realloc(b->body_ends, (size_t)room * sizeof *ends);
    if (ends != NULL) b->body_ends = ends;
    if (views == NULL || starts == NULL || ends == NULL) return PS_E_NO_MEMORY;
    b->room = room;
    return 0;
}

ps_batch *ps_batch_new(int32_t room) {
    ps_batch *b = calloc(1, sizeof *b);
    if (b != NULL && grow_batch(b, room > 0 && room < 4096 ? room : 64) < 0) {
        ps_batch_free(b);
        b = NULL;
    }
    return b;
}

void ps_batch_free(ps_batch *b) {
    if (b == NULL) return;
    for (int32_t i = 0; i < b->info.segment_count; i++) ps_mapfile_unref(b->files[i]);
    ps_cold_let_go(&b->cold);
    free(b->files);
    free(b->segments);
    free(b->views);
    free(b->body_starts);
    free(b->body_ends);
    free(b);
}

void ps_batch_get(const ps_batch *b, ps_batch_info *out) {
    *out = b->info;
    out->views = b->views;
    out->segments = b->segments;
    out->body_starts = b->body_starts;
    out->body_ends = b->body_ends;
}

void ps_batch_records(const ps_batch_info *b, uint8_t *to) {
    for (int32_t i = 0; i < b->count; i++) {
        const ps_view *v = &b->views[i];
        memcpy(to, b->segments[v->segment].map + v->start, (size_t)v->size);
        to += v->size;
    }
}

/* Index of the segment in the batch, which takes its own reference; -1 no memory. */
static int32_t batch_segment(ps_batch *b, ps_mapfile *mf) {
    int32_t n = b->info.segment_count;
    for (int32_t i = n - 1; i >= 0; i--)
        if (b->files[i] == mf) return i;
    if (n == b->segment_room) {
        int32_t room = n ? n * 2 : 2;
        ps_mapfile **files = realloc(b->files, (size_t)room * sizeof *files);
        if (files != NULL) b->files = files;
        ps_segment_view *segments = realloc(b->segments, (size_t)room * sizeof *segments);
        if (segments != NULL) b->segments = segments;
        if (files == NULL || segments == NULL) return -1;
        b->segment_room = room;
    }
    b->files[n] = ps_mapfile_ref(mf);
    b->segments[n] = (ps_segment_view){mf->mf_map, mf->mf_size, mf->mf_base};
    return b->info.segment_count++;
}

int ps_batch_add(ps_batch *b, ps_mapfile *mf, const ps_record *r, int64_t queue_offset,
                 int64_t tags_code) {
    int32_t i = b->info.count;
    if (i == b->room && grow_batch(b, b->room * 2) < 0) return PS_E_NO_MEMORY;
    int32_t segment = batch_segment(b, mf);
    if (segment < 0) return PS_E_NO_MEMORY;
    ps_view *v = &b->views[i];
    v->segment = segment;
    v->size = r->size;
    v->start = r->start - mf->mf_map;
    v->body_start = b->body_starts[i] = r->body - mf->mf_map;
    v->body_end = b->body_ends[i] = v->body_start + r->body_len;
    v->physical_offset = mf->mf_base + v->start;
    v->queue_offset = queue_offset;
    v->store_timestamp = r->store_timestamp;
    v->tags_code = tags_code;
    v->topic_start = (int32_t)(r->topic - r->start);
    v->topic_len = r->topic_len;
    v->properties_start = (int32_t)(r->properties - r->start);
    v->properties_len = r->properties_len;
    v->sys_flag = r->sys_flag;
    v->reconsume_times = r->reconsume_times;
    b->info.compressed += r->sys_flag & PS_SYS_COMPRESSED;
    b->info.count = i + 1;
    b->info.bytes += r->size;
    return 0;
}

int ps_batch_whole(const ps_batch *b, ps_error *e) {
    int code = 0;
    for (int32_t i = 0; i < b->info.segment_count && code == 0; i++)
        code = ps_mapfile_whole(b->files[i], e);
    return code;
}

static void *fail_null(ps_error *e, int code, int64_t at, const char *text) {
    ps_fail(e, code, code == PS_E_NO_MEMORY ? ENOMEM : 0, at, NULL, "%s", text);
    return NULL;
}

/* ---- what is not in memory ---- */

bool ps_batch_cold(ps_batch *b, ps_cold *out) {
    *out = b->cold;
    b->cold.file = NULL;
    return out->file != NULL;
}

void ps_cold_read(const ps_cold *cold) {
    ps_mapfile_read_in(cold->file, cold->at, cold->len);
}

void ps_cold_let_go(ps_cold *cold) {
    ps_mapfile_unref(cold->file);
    cold->file = NULL;
}

/* How many bytes are in memory from `at` on, as far as `most` and the file reach. Fewer than
 * `least` make it what the batch has ended before: then `cold` bytes are to be read. */
static int64_t look_in_memory(ps_batch *b, ps_mapfile *mf, int64_t at, int64_t least,
                              int64_t most, int64_t cold) {
    int64_t left = mf->mf_size - at;
    if (most > left) most = left;
    if (cold > left) cold = left;
    if (least > most) least = most;
    int64_t found = ps_mapfile_in_memory(mf, at, most);
    if (found < least) b->cold = (ps_cold){ps_mapfile_ref(mf), at, cold};
    return found;
}

/* ---- by queue offset ---- */

typedef struct limits {
    int32_t messages;
    int64_t bytes, units;
    bool transfer;
    int64_t memory_from; /* records at or after this count as being in memory */
    int64_t hidden_from; /* records from here to the log's end are not read: see sf_hides */
    int64_t log_end;
    int64_t near_from; /* records at or after this are not asked whether they are in memory */
    bool spares_disk, forces_tier; /* NOT_IN_MEM; FORCE, while the tier answers */
} limits;

static limits limits_of(ps_store *s, const ps_read_options *o) {
    limits l = {.messages = o->max_messages > 0 ? o->max_messages : DEFAULT_MESSAGES,
                .bytes = o->max_bytes > 0 ? o->max_bytes : DEFAULT_BYTES,
                .transfer = o->transfer_limits != 0};
    if (l.bytes < LEAST_BYTES) l.bytes = LEAST_BYTES;
    l.units = l.messages > LEAST_UNITS ? l.messages : LEAST_UNITS;
    int64_t ram = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    l.log_end = atomic_load(&s->st_log.lg_end);
    l.near_from = o->in_memory ? l.log_end - NEAR_BYTES : INT64_MIN;
    l.memory_from = l.log_end - ram / 100 * s->st_conf.memory_ratio;
    /* The dispatcher stops there, too, but what the log had when it was opened is in the queues. */
    bool hides = atomic_load_explicit(&s->st_safe.sf_hides, memory_order_relaxed);
    l.hidden_from = hides ? ps_safe_visible(&s->st_safe) : l.log_end;
    int32_t level = atomic_load_explicit(&s->st_tier.level, memory_order_relaxed);
    if (level > PS_TIER_NOT_IN_DISK &&
        ps_monotonic_ms() >= atomic_load(&s->st_tier.local_until)) {
        l.spares_disk = level == PS_TIER_NOT_IN_MEM;
        l.forces_tier = level == PS_TIER_FORCE;
    }
    return l;
}

static bool is_full(const ps_store *s, const limits *l, const ps_batch_info *b, const ps_unit *u) {
    if (b->count == 0) return false;
    if (b->count + 1 > l->messages || b->bytes + u->size > l->bytes) return true;
    if (!l->transfer) return false;
    bool memory = u->physical >= l->memory_from;
    return b->bytes + u->size >
               (memory ? s->st_conf.max_bytes_in_memory : s->st_conf.max_bytes_in_disk) ||
           b->count >=
               (memory ? s->st_conf.max_messages_in_memory : s->st_conf.max_messages_in_disk);
}

static inline bool tag_wanted(const ps_read_options *o, int64_t tags_code) {
    const int32_t *hashes = o->tag_hashes;
    int32_t from = 0, count = o->tag_count, hash = (int32_t)tags_code;
    if (count == 0 || ps_tags_code_is_address(tags_code)) return true;
    /* A client may name a hundred thousand, and each unit is compared. */
    while (count > FEW_TAGS) {
        int32_t half = count / 2;
        if (hashes[from + half] <= hash) {
            from += half;
            count -= half;
        } else {
            count = half;
        }
    }
    for (int32_t i = 0; i < count; i++)
        if (hashes[from + i] == hash) return true;
    return false;
}

bool ps_unit_record(const ps_unit *u, const uint8_t *p, int64_t avail, ps_record *r) {
    if (u->size <= avail && ps_record_decode(p, u->size, r) == PS_REC_OK && r->size == u->size &&
        r->physical_offset == u->physical)
        return true;
    /* A whole record there says by its sums that the unit's size is what is wrong. */
    return ps_record_check(p, avail, u->physical, PS_CHECK_SUMS, r) ==
           PS_REC_OK;
}

/* The segment that a unit points into, cached in *mf over units; NULL when the log has none
 * there. */
static bool segment_of(ps_store *s, const ps_unit *u, ps_mapfile **mf) {
    if (*mf != NULL && u->physical >= (*mf)->mf_base &&
        u->physical - (*mf)->mf_base < (*mf)->mf_size)
        return true;
    ps_mapfile_unref(*mf);
    *mf = u->physical < 0 ? NULL : ps_segments_find(&s->st_log.lg_files, u->physical, NULL);
    return *mf != NULL;
}

/* The record a unit points to, checked against the unit; *mf as of segment_of. */
static bool record_of(ps_store *s, const ps_unit *u, ps_mapfile **mf, ps_record *r) {
    if (!segment_of(s, u, mf)) return false;
    int64_t at = u->physical - (*mf)->mf_base;
    const uint8_t *p = (*mf)->mf_map + at;
    if (!ps_unit_record(u, p, (*mf)->mf_size - at, r)) return false;
    return !s->st_conf.check_crc_on_read ||
           ps_record_check(p, (*mf)->mf_size - at, u->physical,
                           PS_CHECK_SUMS, r) == PS_REC_OK;
}

/* By how much a record's queue offset differs from its place. Damage makes any number of it, so it
 * wraps. */
static int64_t drift_of(const ps_record *r, int64_t offset) {
    return (int64_t)((uint64_t)r->queue_offset - (uint64_t)offset);
}

/* Whether the unit at offset `other` points to a whole record of q whose queue offset differs from
 * its place by `drift`, and that lies on the same side of `physical` as the unit does. */
static bool drifts_alike(ps_store *s, ps_queue *q, int64_t other, bool before, int64_t physical,
                         int64_t drift) {
    ps_mapfile *mf = NULL;
    ps_record r;
    ps_unit u;
    bool alike = ps_queue_unit(q, other, &u) && u.size != PS_UNIT_NONE &&
                 (u.physical < physical) == before && record_of(s, &u, &mf, &r) &&
                 ps_queue_is_of(q, &r) && drift_of(&r, other) == drift;
    ps_mapfile_unref(mf);
    return alike;
}

bool ps_unit_belongs(ps_store *s, ps_queue *q, int64_t offset, const ps_record *r) {
    if (strncmp(q->cq_topic->tp_name, "%LMQ%", 5) == 0) return true;
    if (!ps_queue_is_of(q, r)) return false;
    if (r->queue_offset == offset) return true;
    int64_t drift = drift_of(r, offset), place = r->physical_offset;
    return drifts_alike(s, q, offset - 1, true, place, drift) ||
           drifts_alike(s, q, offset + 1, false, place, drift);
}

/* Equal hashes do not make equal tags ("AaAa" and "BBBB"): the text decides where it is given. */
static bool tag_equal(const ps_read_options *o, const ps_record *r) {
    ps_property p;
    if (o->tag_count == 0 || o->tag_texts == NULL) return true;
    if (!ps_property_find(r->properties, r->properties_len, "TAGS", 4, &p)) return false;
    for (int32_t at = 0; at < o->tag_texts_len;) {
        const char *end = memchr(o->tag_texts + at, 0, (size_t)(o->tag_texts_len - at));
        int32_t n = end != NULL ? (int32_t)(end - o->tag_texts) - at : o->tag_texts_len - at;
        if (n == p.value_len && memcmp(o->tag_texts + at, p.value, (size_t)n) == 0) return true;
        at += n + 1;
    }
    return false;
}

static bool passes_filter(const ps_read_options *o, const ps_unit *u, const ps_record *r) {
    return tag_wanted(o, u->tags_code) && tag_equal(o, r) &&
           (o->sql == NULL || ps_sql92_match(o->sql, r->properties, r->properties_len));
}

typedef struct walk {
    ps_store *s;
    ps_queue *q;
    ps_batch *b;
    const ps_read_options *o;
    limits l;
    ps_mapfile *log_file;
    /* A segment that the log lacks: units that point into it are passed over without a look. */
    int64_t gone_from, gone_to;
    int64_t warm_from, warm_to; /* of the log, in memory when it was asked about */
    bool to_tier; /* it ended before an offset that the tier has, and this store lacks */
    int code;
    ps_error why;
} walk;

/* Whether the tier has what this store lacks, or may have it: the walk ends before it. */
static bool leave_to_tier(walk *w, int64_t offset) {
    if (!ps_tiered_has(ps_tiered_of(w->q), offset) && !ps_tier_unknown(&w->s->st_tier))
        return false;
    w->b->info.next_offset = offset;
    w->to_tier = true;
    return true;
}

/* The unit points to nothing that can be delivered. A segment that retention has deleted takes
 * many units with it; anything else is damage, costs this one message, and is counted. */
static void pass_over(walk *w, int64_t offset, const ps_unit *u) {
    ps_batch_info *b = &w->b->info;
    int64_t size = w->s->st_log.lg_files.ss_file_size;
    if (leave_to_tier(w, offset)) return;
    if (b->count == 0) b->status = PS_GET_MESSAGE_WAS_REMOVING;
    if (w->log_file == NULL && u->physical >= 0 && u->size > 0 &&
        u->physical < atomic_load(&w->s->st_log.lg_min)) {
        w->gone_from = u->physical - u->physical % size;
        w->gone_to = w->gone_from + size;
        return;
    }
    /* A file that another process has cut off is not damage to be passed over. */
    w->code = ps_segments_whole(&w->s->st_log.lg_files, u->physical, &w->why);
    if (w->code < 0) return;
    if (b->damaged++ == 0) b->first_damaged = offset;
    atomic_fetch_add_explicit(&w->s->st_damaged_reads, 1, memory_order_relaxed);
}

/* Whether the record would have to be read from the disk. */
static bool is_cold(walk *w, const ps_unit *u) {
    if (u->physical >= w->warm_from && u->physical + u->size <= w->warm_to) return false;
    if (!segment_of(w->s, u, &w->log_file)) return false;
    int64_t size = u->size < PS_IN_MEMORY_MAX ? u->size : PS_IN_MEMORY_MAX;
    int64_t most = size > LOOK_BYTES ? size : LOOK_BYTES;
    int64_t cold = size > COLD_BYTES ? size : COLD_BYTES;
    int64_t at = u->physical - w->log_file->mf_base;
    w->warm_from = u->physical;
    w->warm_to = u->physical + look_in_memory(w->b, w->log_file, at, size, most, cold);
    return w->b->cold.file != NULL;
}

/* One unit of the scan (docs/internals/format.md#reading-a-queue); false ends it. */
static bool take_unit(walk *w, int64_t offset, const ps_unit *u) {
    ps_batch_info *b = &w->b->info;
    ps_record r;
    if (is_full(w->s, &w->l, b, u)) return false;
    if (__builtin_expect(u->physical >= w->l.hidden_from && u->physical < w->l.log_end, 0)) {
        if (b->count == 0) b->status = PS_GET_OFFSET_OVERFLOW_ONE;
        return false;
    }
    b->next_offset = offset + 1;
    int64_t code = u->tags_code;
    if (!tag_wanted(w->o, code)) return true;
    if (u->physical >= w->gone_from && u->physical < w->gone_to) return !leave_to_tier(w, offset);
    if (u->size == PS_UNIT_NONE) { /* no record belongs to this offset any more */
        if (leave_to_tier(w, offset)) return false;
        if (b->count == 0) b->status = PS_GET_MESSAGE_WAS_REMOVING;
        return true;
    }
    if (u->physical < w->l.near_from && is_cold(w, u)) {
        b->next_offset = offset;
        if (w->l.spares_disk && ps_tiered_has(ps_tiered_of(w->q), offset) &&
            leave_to_tier(w, offset))
            ps_cold_let_go(&w->b->cold);
        return false;
    }
    if (!record_of(w->s, u, &w->log_file, &r) ||
        (__builtin_expect(r.queue_offset != offset || !ps_queue_is_of(w->q, &r), 0) &&
         !ps_unit_belongs(w->s, w->q, offset, &r))) {
        pass_over(w, offset, u);
        return w->code == 0 && !w->to_tier;
    }
    if (__builtin_expect(ps_tags_code_is_address(code), 0)) {
        code = ps_record_tags_code(&r, &w->s->st_levels);
        if (!tag_wanted(w->o, code)) return true;
    }
    if (!tag_equal(w->o, &r)) return true;
    if (w->o->sql != NULL) {
        if (w->o->work_left != NULL && *w->o->work_left <= 0) {
            b->next_offset = offset;
            return false;
        }
        if (w->o->work_left != NULL)
            *w->o->work_left -= ps_sql92_work(w->o->sql, r.properties_len);
        if (!ps_sql92_match(w->o->sql, r.properties, r.properties_len)) return true;
    }
    w->code = ps_batch_add(w->b, w->log_file, &r, offset, code);
    b->status = PS_GET_FOUND;
    b->suggest_slave = u->physical < w->l.memory_from;
    return w->code == 0;
}

/* Inlined by force: GCC takes a function of prefetches alone for one without effect, and drops
 * it. */
__attribute__((always_inline)) static inline void prefetch_unit(const walk *w,
                                                                const uint8_t *unit) {
    uint64_t at = be64_get(unit) - (uint64_t)(w->log_file != NULL ? w->log_file->mf_base : 0);
    if (w->log_file != NULL && at < (uint64_t)w->log_file->mf_size) {
        __builtin_prefetch(w->log_file->mf_map + at);
        __builtin_prefetch(w->log_file->mf_map + at + 64);
    }
}

static void walk_queue(walk *w, ps_queue *q, int64_t offset) {
    ps_batch_info *b = &w->b->info;
    int64_t end = offset + w->l.units < b->max_offset ? offset + w->l.units : b->max_offset;
    bool go = true;
    while (go && offset < end) {
        const uint8_t *p;
        int64_t n;
        ps_unit u;
        ps_mapfile *mf = ps_queue_run(q, offset, &p, &n);
        if (mf == NULL) {
            if (!ps_queue_unit(q, offset, &u)) {
                w->code = ps_segments_whole(&q->cq_files, offset * PS_UNIT, &w->why);
                if (w->code < 0 || leave_to_tier(w, offset)) return;
                int64_t per_file = q->cq_files.ss_file_size / PS_UNIT;
                if (b->count == 0) {
                    b->status = PS_GET_OFFSET_FOUND_NULL;
                    b->next_offset = (offset / per_file + 1) * per_file;
                }
                return;
            }
            go = take_unit(w, offset++, &u);
            continue;
        }
        ps_queue_reads_on(mf, n);
        n = n < end - offset ? n : end - offset;
        if (w->o->in_memory && b->max_offset - offset > NEAR_UNITS)
            n = look_in_memory(w->b, mf, p - mf->mf_map, PS_UNIT, n * PS_UNIT, n * PS_UNIT) /
                PS_UNIT;
        go = n > 0;
        for (int64_t i = 0; i < n && go; i++) {
            if (i + PREFETCH < n) prefetch_unit(w, p + (i + PREFETCH) * PS_UNIT);
            ps_unit_get(p + i * PS_UNIT, &u);
            go = take_unit(w, offset++, &u);
        }
        if (w->code == 0) w->code = ps_mapfile_whole(mf, &w->why);
        go = go && w->code == 0;
        ps_mapfile_unref(mf);
    }
}

/* ---- what is in the tier ---- */

/* Which bytes of the queue's log a read lacks from the want's offset on: those of all messages that
 * it would take, unless too much lies between two of them. */
static void measure_want(const walk *w, const ps_lent *l, ps_tier_want *want) {
    ps_batch_info found = {.count = w->b->info.count, .bytes = w->b->info.bytes};
    for (int64_t at = want->offset; at < l->end; at++) {
        ps_unit u;
        ps_unit_get(l->units->mf_map + (at - l->first) * PS_UNIT, &u);
        if (u.size == PS_UNIT_NONE || !tag_wanted(w->o, u.tags_code)) continue;
        if (is_full(w->s, &w->l, &found, &u)) return;
        if (want->high > 0 && (u.physical < want->high || u.physical - want->high > TIER_GAP))
            return;
        if (want->high == 0) want->low = u.physical;
        want->high = u.physical + u.size;
        want->count = (int32_t)(at - want->offset) + 1;
        found.count++;
        found.bytes += u.size;
    }
}

/* As take_unit; false, too, when the record is wanted first. */
static bool take_lent(walk *w, ps_tiered *d, const ps_lent *l, int64_t offset,
                      ps_tier_want *want) {
    ps_batch_info *b = &w->b->info;
    ps_unit u;
    ps_record r;
    ps_unit_get(l->units->mf_map + (offset - l->first) * PS_UNIT, &u);
    bool none = u.size == PS_UNIT_NONE, wanted = !none && tag_wanted(w->o, u.tags_code);
    if (!none && is_full(w->s, &w->l, b, &u)) return false;
    ps_mapfile *mf = wanted ? ps_tier_record_locked(d, &u) : NULL;
    if (wanted && mf == NULL) {
        want->offset = offset;
        measure_want(w, l, want);
        return false;
    }
    const uint8_t *p = mf != NULL ? mf->mf_map + (u.physical - mf->mf_base) : NULL;
    bool damaged = none || (wanted && !ps_unit_record(&u, p, u.size, &r));
    if (wanted && !damaged && w->o->sql != NULL && w->o->work_left != NULL) {
        if (*w->o->work_left <= 0) return false;
        *w->o->work_left -= ps_sql92_work(w->o->sql, r.properties_len);
    }
    b->next_offset = offset + 1;
    if (damaged) {
        if (b->count == 0) b->status = PS_GET_MESSAGE_WAS_REMOVING;
        if (b->damaged++ == 0) b->first_damaged = offset;
    } else if (wanted && passes_filter(w->o, &u, &r)) {
        w->code = ps_batch_add(w->b, mf, &r, offset, u.tags_code);
        b->status = PS_GET_FOUND;
    }
    return w->code == 0;
}

static void walk_tier(walk *w, ps_tiered *d, int64_t offset) {
    ps_batch_info *b = &w->b->info;
    ps_tier *t = &w->s->st_tier;
    int64_t stop = atomic_load(&d->end);
    if (stop > offset + w->l.units) stop = offset + w->l.units;
    ps_tier_want want = {.offset = -1};
    b->status = PS_GET_NO_MATCHED_MESSAGE;
    pthread_mutex_lock(&t->lock);
    for (int64_t at = b->next_offset = offset; at < stop && w->code == 0; at = b->next_offset) {
        const ps_lent *l = ps_tier_units_locked(t, d, at);
        if (l == NULL) {
            want.offset = at;
            break;
        }
        if (l->units == NULL) {
            if (b->count == 0) b->status = PS_GET_MESSAGE_WAS_REMOVING;
            b->next_offset = l->end;
        } else if (!take_lent(w, d, l, at, &want)) {
            break;
        }
    }
    bool asked = want.offset < 0 || ps_tier_ask_locked(t, d, &want);
    pthread_mutex_unlock(&t->lock);
    if (want.offset == offset && b->count == 0)
        b->status = asked ? PS_GET_IN_TIER : PS_GET_TIER_BUSY;
}

/* Nobody knows yet whether it is in the tier. */
static void say_hidden(ps_batch_info *b, int64_t offset) {
    b->status = PS_GET_TIER_BUSY;
    b->next_offset = offset;
}

static void walk_all(walk *w, int64_t offset) {
    /* The minimum before the tier, which has a message before the store lets go of it. */
    int64_t min = atomic_load(&w->q->cq_min);
    ps_tiered *d = ps_tiered_of(w->q);
    if (ps_tiered_has(d, offset) && (w->l.forces_tier || offset < min)) {
        walk_tier(w, d, offset);
        return;
    }
    if (offset < min) { /* between the tier and what is here there is nothing */
        w->b->info.status = PS_GET_MESSAGE_WAS_REMOVING;
        w->b->info.next_offset = min;
        return;
    }
    walk_queue(w, w->q, offset);
    if (!w->to_tier || w->b->info.count > 0) return;
    offset = w->b->info.next_offset;
    d = ps_tiered_of(w->q);
    if (ps_tiered_has(d, offset))
        walk_tier(w, d, offset);
    else
        say_hidden(&w->b->info, offset);
}

/* The conditions of docs/internals/format.md#reading-a-queue in their order; true when the scan is
 * to be done. */
static bool is_within_queue(ps_batch_info *b, int64_t offset) {
    b->next_offset = offset;
    if (b->max_offset == 0) {
        b->status = PS_GET_NO_MESSAGE_IN_QUEUE;
        b->next_offset = 0;
    } else if (offset < b->min_offset) { /* of all, as the answer has it */
        b->status = PS_GET_OFFSET_TOO_SMALL;
        b->next_offset = b->min_offset;
    } else if (offset == b->max_offset) {
        b->status = PS_GET_OFFSET_OVERFLOW_ONE;
    } else if (offset > b->max_offset) {
        b->status = PS_GET_OFFSET_OVERFLOW_BADLY;
        b->next_offset = b->max_offset;
    } else {
        b->status = PS_GET_NO_MATCHED_MESSAGE;
        return true;
    }
    return false;
}

ps_batch *ps_read(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t offset,
                  const ps_read_options *o, ps_error *e) {
    if (o == NULL) o = &default_options;
    if (ps_enter(s) < 0) return fail_null(e, PS_E_CLOSED, -1, "the store is closed");
    walk w = {.s = s, .o = o, .l = limits_of(s, o), .gone_from = -1, .gone_to = -1};
    ps_queue *q = topic != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    w.q = q;
    w.b = ps_batch_new(w.l.messages);
    if (w.b != NULL && q == NULL) {
        w.b->info.status = PS_GET_NO_MATCHED_LOGIC_QUEUE;
    } else if (w.b != NULL) {
        w.code = ps_dispatch_catch_up(s, e) == PS_E_DAMAGED ? PS_E_DAMAGED : 0;
        w.b->info.min_offset = ps_tier_min(q);
        w.b->info.max_offset = atomic_load_explicit(&q->cq_max, memory_order_acquire);
        if (is_within_queue(&w.b->info, offset))
            walk_all(&w, offset);
        else if (w.b->info.status == PS_GET_OFFSET_TOO_SMALL && ps_tier_hides(&s->st_tier, q))
            say_hidden(&w.b->info, offset);
    }
    ps_mapfile_unref(w.log_file);
    ps_leave(s);
    if (w.b != NULL && w.code >= 0) w.code = ps_batch_whole(w.b, &w.why);
    if (w.code == PS_E_FILE_SIZE) {
        ps_batch_free(w.b);
        if (e != NULL) *e = w.why;
        return NULL;
    }
    if (w.b == NULL || w.code == PS_E_NO_MEMORY) {
        ps_batch_free(w.b);
        return fail_null(e, PS_E_NO_MEMORY, -1, "no memory for the batch");
    }
    return w.b;
}

/* ---- by log offset ---- */

ps_batch *ps_log_read(ps_store *s, int64_t physical, const ps_read_options *o, ps_error *e) {
    if (o == NULL) o = &default_options;
    if (ps_enter(s) < 0) return fail_null(e, PS_E_CLOSED, physical, "the store is closed");
    ps_batch *b = ps_batch_new(o->max_messages);
    limits l = limits_of(s, o);
    int64_t end = atomic_load_explicit(&s->st_log.lg_end, memory_order_acquire);
    int code = b == NULL ? PS_E_NO_MEMORY : 0, cut = 0;
    ps_mapfile *mf = NULL;
    while (code == 0) {
        ps_record r;
        ps_rec_outcome out = ps_log_record(&s->st_log, physical, end,
                                           o->check_crc ? PS_CHECK_SUMS : 0, &r, &mf);
        b->info.outcome = mf == NULL ? -1 : 0;
        if (out == PS_REC_BLANK && ps_log_blank_hides(mf, physical - mf->mf_base))
            out = PS_REC_SIZE; /* whole records that nobody would hear of */
        if (out == PS_REC_BLANK) {
            physical = mf->mf_base + mf->mf_size;
        } else if (out == PS_REC_OK &&
                   (b->info.count == 0 ||
                    (b->info.count < l.messages && b->info.bytes + r.size <= l.bytes))) {
            code = ps_batch_add(b, mf, &r, r.queue_offset, 0);
            physical += r.size;
        } else {
            if (mf != NULL && out != PS_REC_OK) b->info.outcome = (int32_t)out;
            break;
        }
        ps_mapfile_unref(mf);
        mf = NULL;
    }
    ps_mapfile_unref(mf);
    if (code == 0 && b->info.outcome != 0)
        cut = ps_segments_whole(&s->st_log.lg_files, physical, e);
    if (code == 0 && cut == 0) cut = ps_batch_whole(b, e);
    ps_leave(s);
    if (code < 0 || cut < 0) {
        ps_batch_free(b);
        return cut < 0 ? NULL : fail_null(e, code, physical, "no memory for the batch");
    }
    b->info.status = b->info.count > 0 ? PS_GET_FOUND : PS_GET_NO_MATCHED_MESSAGE;
    b->info.next_offset = physical;
    b->info.min_offset = atomic_load(&s->st_log.lg_min);
    b->info.max_offset = end;
    return b;
}

/* A record of the tier that is lent; NULL: it is not, or no memory. */
static ps_batch *lent_message(ps_store *s, int64_t place, ps_error *e) {
    ps_mapfile *mf = ps_tier_at(&s->st_tier, place);
    ps_batch *b = mf != NULL ? ps_batch_new(1) : NULL;
    ps_record r;
    bool there = b != NULL &&
                 ps_record_check(mf->mf_map + (place - mf->mf_base),
                                 mf->mf_size - (place - mf->mf_base), place, PS_CHECK_SUMS,
                                 &r) == PS_REC_OK &&
                 ps_batch_add(b, mf, &r, r.queue_offset, 0) == 0;
    ps_mapfile_unref(mf);
    if (there) return b;
    ps_batch_free(b);
    return fail_null(e, PS_E_NOT_FOUND, place, "nothing is lent from this place of the tier");
}

ps_batch *ps_message_at(ps_store *s, int64_t physical, ps_error *e) {
    if (physical >= PS_TIER_PLACE) return lent_message(s, physical, e);
    ps_read_options one = {.max_messages = 1, .check_crc = 1};
    ps_batch *b = ps_log_read(s, physical, &one, e);
    if (b == NULL) return NULL;
    if (b->info.count == 1 && b->views[0].physical_offset == physical) return b;
    bool damaged = b->info.outcome > 0;
    ps_rec_outcome outcome = damaged ? (ps_rec_outcome)b->info.outcome : PS_REC_END;
    ps_batch_free(b);
    if (damaged)
        ps_fail(e, PS_E_DAMAGED, 0, physical, s->st_root, "no valid record at this offset: %s",
                ps_rec_outcome_name(outcome));
    else
        ps_fail(e, PS_E_NOT_FOUND, 0, physical, s->st_root, "the offset is outside the log");
    return NULL;
}

/* ---- an excerpt that is not in a store ---- */

void ps_units_choose(const uint8_t *units, int32_t count, const ps_read_options *o,
                     ps_unit_choice *c) {
    static const ps_read_options all = {.max_messages = INT32_MAX, .max_bytes = INT64_MAX};
    if (o == NULL) o = &all;
    int32_t most = o->max_messages > 0 ? o->max_messages : DEFAULT_MESSAGES, taken = 0;
    int64_t room = o->max_bytes > 0 ? o->max_bytes : DEFAULT_BYTES, total = 0, low = INT64_MAX;
    *c = (ps_unit_choice){.first = -1, .last = -1};
    for (int32_t i = 0; i < count; c->looked = ++i) {
        ps_unit u;
        ps_unit_get(units + (int64_t)i * PS_UNIT, &u);
        if (u.size == PS_UNIT_NONE || !tag_wanted(o, u.tags_code)) continue;
        if (taken == most || (taken > 0 && u.size > room - total)) break;
        if (c->first < 0) c->first = i;
        c->last = i;
        taken++;
        if (u.size <= 0 || u.physical < 0 || u.physical > INT64_MAX - u.size) continue;
        total += u.size;
        if (u.physical < low) low = u.physical;
        if (u.physical + u.size > c->high) c->high = u.physical + u.size;
    }
    c->low = c->high > 0 ? low : 0;
}

ps_batch *ps_excerpt_read(ps_excerpt *p, int64_t offset, int32_t units, const ps_read_options *o,
                          ps_error *e) {
    if (o == NULL) o = &default_options;
    int32_t most = o->max_messages > 0 ? o->max_messages : DEFAULT_MESSAGES;
    int64_t bytes = o->max_bytes > 0 ? o->max_bytes : DEFAULT_BYTES;
    ps_mapfile *mf = p->file != NULL ? ps_mapfile_ref(p->file)
                                     : ps_mapfile_over_bytes(p->records, p->len, p->base);
    ps_batch *b = ps_batch_new(most);
    int code = mf == NULL || b == NULL ? PS_E_NO_MEMORY : 0;
    int32_t i = (int32_t)(offset - p->first);
    int32_t end = units < p->count - i ? i + units : p->count;
    for (; code == 0 && i < end; i++) {
        ps_unit u;
        ps_record r;
        ps_unit_get(p->units + (int64_t)i * PS_UNIT, &u);
        if (b->info.count == most) break;
        if (b->info.count > 0 && b->info.bytes + u.size > bytes) break;
        if (!tag_wanted(o, u.tags_code)) continue;
        if (!ps_excerpt_record(p, p->first + i, &u, &r)) {
            if (b->info.damaged++ == 0) b->info.first_damaged = p->first + i;
        } else if (passes_filter(o, &u, &r)) {
            code = ps_batch_add(b, mf, &r, p->first + i, u.tags_code);
        }
    }
    if (code < 0) fail_null(e, code, -1, "no memory for the batch");
    else code = ps_mapfile_whole(mf, e);
    ps_mapfile_unref(mf);
    if (code < 0) {
        ps_batch_free(b);
        return NULL;
    }
    b->info.status = b->info.count > 0 ? PS_GET_FOUND : PS_GET_NO_MATCHED_MESSAGE;
    b->info.min_offset = p->first;
    b->info.max_offset = p->first + p->count;
    b->info.next_offset = p->first + i;
    return b;
}

/* ---- by key ---- */

static bool has_token(const uint8_t *text, int32_t len, const char *key, int32_t key_len) {
    for (int32_t at = 0; at < len;) {
        const uint8_t *space = memchr(text + at, ' ', (size_t)(len - at));
        int32_t n = space != NULL ? (int32_t)(space - text) - at : len - at;
        if (n == key_len && memcmp(text + at, key, (size_t)n) == 0) return true;
        at += n + 1;
    }
    return false;
}

typedef struct query {
    const char *topic, *key;
    int32_t topic_len, key_len, max;
    int64_t begin, end;
    int64_t *found;
    int32_t count, room;
    bool tags; /* the key is the TAGS of a record */
    ps_error why;
} query;

/* The hash only says "perhaps": topic and key themselves decide. */
static bool has_key(const ps_record *r, const query *q) {
    const char *whole = q->tags ? "TAGS" : "UNIQ_KEY";
    ps_property p;
    if (r->topic_len != q->topic_len || memcmp(r->topic, q->topic, (size_t)q->topic_len) != 0)
        return false;
    if (ps_property_find(r->properties, r->properties_len, whole, (int32_t)strlen(whole), &p) &&
        p.value_len == q->key_len && memcmp(p.value, q->key, (size_t)q->key_len) == 0)
        return true;
    return !q->tags && ps_property_find(r->properties, r->properties_len, "KEYS", 4, &p) &&
           has_token(p.value, p.value_len, q->key, q->key_len);
}

static int by_place(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int keep_matches(ps_store *s, query *q, const int64_t *places, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        ps_record r;
        ps_mapfile *mf;
        bool match = ps_log_has(&s->st_log, places[i], &r, &mf) &&
                     r.store_timestamp >= q->begin && r.store_timestamp <= q->end &&
                     has_key(&r, q);
        ps_mapfile_unref(mf);
        if (mf == NULL && ps_segments_whole(&s->st_log.lg_files, places[i], &q->why) < 0)
            return PS_E_FILE_SIZE;
        if (!match || (q->count > 0 && q->found[q->count - 1] == places[i])) continue;
        if (!PS_GROW(q->found, q->room, q->count + 1, 64)) return PS_E_NO_MEMORY;
        q->found[q->count++] = places[i];
    }
    return 0;
}

static int batch_of_places(ps_store *s, const query *q, ps_batch *b) {
    for (int32_t i = 0; i < q->count; i++) {
        ps_record r;
        ps_mapfile *mf;
        int code = 0;
        if (ps_log_has(&s->st_log, q->found[i], &r, &mf))
            code = ps_batch_add(b, mf, &r, r.queue_offset, 0);
        ps_mapfile_unref(mf);
        if (code < 0) return code;
    }
    return 0;
}

/* The next whole record after damage at `at`, in its segment or a later one; `end` when there is
 * none. */
static int64_t next_whole(ps_store *s, int64_t at, int64_t end) {
    ps_segments *files = &s->st_log.lg_files;
    for (int64_t from = at + 1; from < end;) {
        ps_record r;
        int64_t file = from - from % files->ss_file_size;
        ps_mapfile *mf = ps_segments_find(files, from, NULL);
        int64_t found = mf != NULL ? ps_log_next_whole(mf, from - file, 0, &r) : -1;
        ps_mapfile_unref(mf);
        if (found >= 0) return file + found;
        from = file + files->ss_file_size;
    }
    return end;
}

/* A reader of a crashed store: the last records may have no index entries yet. They are read one by
 * one, past damage, which recovery passes, too. */
static int query_tail(ps_store *s, query *q) {
    int64_t at = atomic_load(&s->st_index_tail), end = atomic_load(&s->st_log.lg_end);
    int64_t min = atomic_load(&s->st_log.lg_min);
    int code = 0;
    if (at < min) at = min;
    while (code == 0 && at < end) {
        ps_record r;
        ps_mapfile *mf;
        ps_rec_outcome o = ps_log_record(&s->st_log, at, end, 0, &r, &mf);
        bool closed = o == PS_REC_BLANK && !ps_log_blank_hides(mf, at - mf->mf_base);
        int64_t next = closed ? mf->mf_base + mf->mf_size : at;
        ps_mapfile_unref(mf);
        if (o == PS_REC_OK) code = keep_matches(s, q, &at, 1);
        if (o == PS_REC_OK) next = at + r.size;
        at = next > at ? next : next_whole(s, at, end);
    }
    return code;
}

/* Ascending, each place once (a record may carry a key twice), the newest `max` of them. */
static void sort_places(query *q) {
    int32_t n = 0;
    if (q->count > 1) qsort(q->found, (size_t)q->count, sizeof *q->found, by_place);
    for (int32_t i = 0; i < q->count; i++)
        if (n == 0 || q->found[n - 1] != q->found[i]) q->found[n++] = q->found[i];
    q->count = n;
    if (q->max > 0 && n > q->max) {
        memmove(q->found, q->found + n - q->max, (size_t)q->max * sizeof *q->found);
        q->count = q->max;
    }
}

static int run_query(ps_store *s, query *q) {
    int64_t places[QUERY_STEP], skip = 0;
    int32_t n;
    int code = s->st_readonly ? query_tail(s, q) : 0;
    if (s->st_index == NULL || code < 0) return code;
    do {
        n = ps_index_query(s->st_index, q->topic, q->topic_len, q->key, q->key_len, q->tags,
                           q->begin, q->end, &skip, places, QUERY_STEP, &q->why);
        if (n < 0) return n;
        code = keep_matches(s, q, places, n);
        /* The last record of the index may be the first of a reader's tail: one more than asked
         * for. */
    } while (code == 0 && n == QUERY_STEP && (q->max <= 0 || q->count <= q->max));
    sort_places(q);
    return code;
}

ps_batch *ps_query(ps_store *s, const char *topic, int32_t topic_len, const char *key,
                   int32_t key_len, int32_t tags, int64_t begin, int64_t end, int32_t max,
                   ps_error *e) {
    query q = {.topic = topic,
               .topic_len = topic_len,
               .key = key,
               .key_len = key_len,
               .tags = tags != 0,
               .begin = begin,
               .end = end,
               .max = max};
    if (ps_enter(s) < 0) return fail_null(e, PS_E_CLOSED, -1, "the store is closed");
    ps_dispatch_catch_up(s, NULL);
    ps_batch *b = ps_batch_new(64);
    int code = b == NULL ? PS_E_NO_MEMORY : run_query(s, &q);
    if (code == 0) code = batch_of_places(s, &q, b);
    if (code == 0) code = ps_batch_whole(b, &q.why);
    free(q.found);
    ps_leave(s);
    if (code < 0) {
        ps_batch_free(b);
        if (q.why.code == code) {
            if (e != NULL) *e = q.why;
            return NULL;
        }
        return fail_null(e, code, -1, "no memory for the batch");
    }
    b->info.status = b->info.count > 0 ? PS_GET_FOUND : PS_GET_NO_MATCHED_MESSAGE;
    return b;
}

/* ---- units, times, waiting ---- */

int32_t ps_queue_units(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t offset, int32_t room,
                       int64_t *physical, int32_t *sizes, int64_t *tags_codes, ps_error *e) {
    int32_t n = 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_dispatch_catch_up(s, NULL);
    ps_queue *q = topic != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    ps_unit u;
    for (; q != NULL && n < room && ps_queue_unit(q, offset + n, &u); n++) {
        if (physical != NULL) physical[n] = u.physical;
        if (sizes != NULL) sizes[n] = u.size;
        if (tags_codes != NULL) tags_codes[n] = u.tags_code;
    }
    int code = 0;
    if (q == NULL)
        code = ps_fail(e, PS_E_NOT_FOUND, 0, -1, NULL, "the topic has no queue %d", queue_id);
    else if (n < room)
        code = ps_segments_whole(&q->cq_files, (offset + n) * PS_UNIT, e);
    ps_leave(s);
    return code < 0 ? code : n;
}

/* A store time that messages of a queue are compared with. */
typedef struct time_sought {
    ps_store *store;
    ps_queue *queue;
    int64_t time;
    ps_mapfile *mf; /* of the last record looked at */
} time_sought;

static int side_of_time(void *arg, int64_t offset, ps_error *e) {
    time_sought *t = arg;
    ps_segments *units = &t->queue->cq_files, *log = &t->store->st_log.lg_files;
    ps_unit u;
    ps_record r;
    int code = 0;
    if (!ps_queue_unit(t->queue, offset, &u)) {
        code = ps_segments_whole(units, offset * PS_UNIT, e);
        return code < 0 ? code : PS_SIDE_BEFORE;
    }
    if (u.size == PS_UNIT_NONE) return u.physical == 0 ? PS_SIDE_BEFORE : PS_SIDE_UNKNOWN;
    if (!record_of(t->store, &u, &t->mf, &r) || !ps_unit_belongs(t->store, t->queue, offset, &r)) {
        bool deleted = u.physical >= 0 && u.physical < atomic_load(&t->store->st_log.lg_min);
        code = ps_segments_whole(log, u.physical, e);
        return code < 0 ? code : deleted ? PS_SIDE_BEFORE : PS_SIDE_UNKNOWN;
    }
    code = ps_mapfile_whole(t->mf, e);
    return code < 0 ? code : r.store_timestamp < t->time ? PS_SIDE_BEFORE : PS_SIDE_AFTER;
}

/* First offset in [low, high) whose store time is at or after `time`; records that were deleted
 * count as older. Or PS_E_FILE_SIZE. */
static int64_t first_at(ps_store *s, ps_queue *q, int64_t low, int64_t high, int64_t time,
                        ps_error *e) {
    time_sought t = {s, q, time, NULL};
    int64_t first = ps_bisect(side_of_time, &t, low, high, e);
    ps_mapfile_unref(t.mf);
    return first;
}

int64_t ps_offset_at(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t timestamp,
                     int32_t upper, ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_dispatch_catch_up(s, NULL);
    ps_queue *q = topic != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    int64_t at = PS_E_NOT_FOUND;
    if (q == NULL) {
        ps_fail(e, PS_E_NOT_FOUND, 0, -1, NULL, "the topic has no queue %d", queue_id);
    } else {
        int64_t min = atomic_load(&q->cq_min), max = atomic_load(&q->cq_max);
        bool last = upper && timestamp == INT64_MAX;
        at = last ? max : first_at(s, q, min, max, timestamp + (upper ? 1 : 0), e);
        if (at >= 0 && upper) at--;
        if (at < min && at != PS_E_FILE_SIZE) at = min;
    }
    ps_leave(s);
    return at;
}

static bool is_reached(ps_queue *q, int64_t offset) {
    return q != NULL && atomic_load_explicit(&q->cq_max, memory_order_acquire) > offset;
}

static int wait_news(ps_store *s, ps_topic *topic, int32_t id, int64_t offset, int32_t timeout_ms) {
    struct timespec until = ps_monotonic_in(timeout_ms * 1000000LL);
    int rc = 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_news_lock);
    atomic_fetch_add(&s->st_dispatcher.ds_news_waiters, 1);
    while (!is_reached(ps_topic_queue(topic, id), offset) && rc == 0 &&
           !atomic_load(&s->st_dispatcher.ds_stopping))
        rc = pthread_cond_timedwait(&s->st_dispatcher.ds_news, &s->st_dispatcher.ds_news_lock,
                                    &until);
    atomic_fetch_sub(&s->st_dispatcher.ds_news_waiters, 1);
    pthread_mutex_unlock(&s->st_dispatcher.ds_news_lock);
    return is_reached(ps_topic_queue(topic, id), offset);
}

int ps_wait_message(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t offset,
                    int32_t timeout_ms) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    int code;
    if (!s->st_readonly && s->st_thread_count > 0) {
        code = wait_news(s, topic, queue_id, offset, timeout_ms);
    } else {
        /* Another process writes: nothing wakes us, so look, and rest a little longer each time. */
        int64_t until = ps_monotonic_ms() + timeout_ms;
        useconds_t rest = 500;
        while (!(code = is_reached(ps_topic_queue(topic, queue_id), offset)) &&
               ps_monotonic_ms() < until && !atomic_load(&s->st_closed)) {
            usleep(rest);
            rest = rest < 20000 ? rest * 2 : rest;
            ps_store_refresh(s, NULL);
        }
    }
    ps_leave(s);
    return code;
}
