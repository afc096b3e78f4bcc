/* Recovery: what is believed, what is cut, what is rebuilt.
 *
 * Policy.
 *  1. The log is the truth. Its end is the first place, from a start that is known to be sound,
 *     after which no whole record stands. What follows it is kept aside (files/aside.h), then cut.
 *  2. Damage with whole records after it is not the end: exactly the bytes up to the next of them
 *     are kept aside and closed over, by a record of no queue (PS_FILLER_TOPIC) or, up to the end
 *     of a segment, by a blank. The log is then a chain again, for Java's store too.
 *  3. Normal (no abort file): the last writer synced everything. Checking starts at the record that
 *     the furthest queue unit points to, or at its file when that record is not there.
 *  4. Abnormal: checking starts at the last file whose first record is older than the checkpoint by
 *     3 s; zeros in the checkpoint mean the first file. Queue units that point after that start are
 *     discarded and written again from the log; so are index entries after the checkpoint's index
 *     time.
 *  5. Derived files are not believed for having been synced. A queue whose units are missing,
 *     unsound or do not ascend, that lies below what the last close noted (ends.h), or that
 *     lacks the unit before one that is written, has a hole: it is cut to its sound part, and what
 *     follows is written again from the log. An index that lacks entries is written again from the
 *     place on where the first is missing.
 *  6. Nothing is refused for damage in the log's tail: a store always opens with what can be saved.
 *     What is refused: segments of a wrong size, stray files, missing segments, a lock held.
 *
 * docs/internals/format.md#recovery; upstream CommitLog.recoverNormally / recoverAbnormally.
 * Read-only opening (reader) does the same search and keeps what is not in the queues in memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "format/multi.h"
#include "index/keys.h"
#include "log/resync.h"
#include "queues/claims.h"
#include "store/coverage.h"
#include "store/indexer.h"
#include "store/store.h"

#define PROGRESS_STEP (16 << 20)
#define KEYLESS_MAX 4096      /* records looked at for the next one that has a key */
#define INDEXER_LEAST (256 << 10) /* bytes of the log that are worth a thread */
#define FILLER_MAX (1 << 20)  /* bytes of one record that closes over damage */

typedef struct scan {
    ps_store *s;
    ps_indexer *indexer; /* puts the keys, NULL: the scan does */
    ps_report *report;
    ps_progress *progress;
    int64_t at;           /* where it stands; at the end: the end of the log */
    int64_t queues_from;  /* from here on records are checked and go to the queues */
    int64_t index_from;   /* from here on they go to the index */
    int64_t queues_after; /* records below are in the queues already; -1 none */
    int64_t last_start;   /* of the last whole record, -1 none */
    int64_t last_stamp;
    ps_rec_outcome outcome;
    bool healing; /* the second pass: only queues with a hole are written */
    bool reading; /* reader: units go to the tails */
    bool resumes; /* looks past damage; a reader that follows a writer does not */
} scan;

static int checks_of(const ps_store *s) {
    if (!s->st_conf.check_crc_on_recover) return 0;
    return s->st_conf.force_verify_prop_crc ? PS_CHECK_PROP_CRC : PS_CHECK_BODY_CRC;
}

/* ---- where to start ---- */

/* Start of the record that the furthest queue unit points to, -1 when no queue has one. As the
 * queues were opened. */
static int64_t furthest_unit(ps_store *s) {
    ps_queue **queues;
    int64_t furthest = -1;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++)
        if (queues[i]->cq_last_start > furthest) furthest = queues[i]->cq_last_start;
    free(queues);
    return furthest;
}

static bool record_at(ps_store *s, int64_t physical, ps_record *r) {
    ps_mapfile *mf;
    bool there = ps_log_record(&s->st_log, physical, INT64_MAX, 0, r, &mf) == PS_REC_OK;
    ps_mapfile_unref(mf);
    return there;
}

bool ps_recover_confirms(void *store, ps_queue *q, int64_t offset, const ps_unit *u) {
    ps_store *s = store;
    ps_record r;
    ps_mapfile *mf;
    if (u->physical < atomic_load(&s->st_log.lg_min)) return true;
    const ps_queue_place at = {(const uint8_t *)q->cq_name, q->cq_name_len, q->cq_id, offset};
    ps_rec_outcome o = ps_log_record(&s->st_log, u->physical, INT64_MAX, checks_of(s), &r, &mf);
    /* A unit of a lost message names the next record of the queue. */
    bool good = o == PS_REC_OK &&
                (u->size == PS_UNIT_NONE ? ps_queue_is_of(q, &r) && r.queue_offset > offset
                                         : ps_unit_names(u, &r, &at));
    ps_mapfile_unref(mf);
    return good;
}

/* Last file whose first record was stored at or before `limit`; the first file when there is
 * none. */
static int64_t file_by_time(ps_store *s, int64_t limit) {
    ps_record r;
    for (int32_t i = s->st_log.lg_files.ss_count - 1; i > 0; i--) {
        int64_t base = s->st_log.lg_files.ss_items[i].sg_base;
        if (record_at(s, base, &r) && r.store_timestamp > 0 && r.store_timestamp <= limit)
            return base;
    }
    return s->st_log.lg_files.ss_items[0].sg_base;
}

/* What a checkpoint says is any number, if it is damaged. */
static int64_t margin_before(int64_t t) {
    return t > PS_CHECKPOINT_MARGIN_MS ? t - PS_CHECKPOINT_MARGIN_MS : 0;
}

static void start_normal(scan *c) {
    ps_store *s = c->s;
    ps_record r;
    int64_t furthest = furthest_unit(s), min = atomic_load(&s->st_log.lg_min);
    c->at = furthest;
    if (furthest < min || !record_at(s, furthest, &r)) {
        int64_t size = s->st_log.lg_files.ss_file_size;
        int64_t last = s->st_log.lg_files.ss_items[s->st_log.lg_files.ss_count - 1].sg_base;
        c->at = furthest < min ? min : furthest - furthest % size;
        c->at = c->at > last ? last : c->at;
        /* A log that was cut back, and is not opened yet, may end in a file before. */
        while (c->reading && c->at > min && !record_at(s, c->at, &r)) c->at -= size;
    }
    c->queues_from = c->index_from = c->at;
    if (s->st_index != NULL && ps_index_end(s->st_index) >= c->at)
        c->index_from = ps_index_end(s->st_index);
}

/* ---- an index that lacks entries ---- */

/* Start of the first record at or after `at` that carries a key; -1 when there is none among the
 * first KEYLESS_MAX, and nobody can tell. */
static int64_t next_keyed(ps_store *s, int64_t at) {
    for (int32_t i = 0; i < KEYLESS_MAX; i++) {
        ps_record r;
        ps_mapfile *mf;
        ps_rec_outcome o = ps_log_record(&s->st_log, at, INT64_MAX, 0, &r, &mf);
        int64_t next = mf != NULL ? mf->mf_base + mf->mf_size : -1;
        bool keyed = o == PS_REC_OK && ps_index_wants(&r);
        ps_mapfile_unref(mf);
        if (keyed) return at;
        if (o != PS_REC_OK && o != PS_REC_BLANK) return -1;
        at = o == PS_REC_OK ? at + r.size : next;
    }
    return -1;
}

/* Of an entry: whether it is that of its record's tags. */
static int tells_of_tags(void *store, int64_t physical, int32_t hash) {
    ps_store *s = store;
    ps_record r;
    ps_mapfile *mf;
    ps_rec_outcome o = ps_log_record(&s->st_log, physical, INT64_MAX, 0, &r, &mf);
    int said = o == PS_REC_OK ? ix_tells_of_tags(&r, hash) : -1;
    ps_mapfile_unref(mf);
    return said;
}

/* The end of the record at `at`, or -1. */
static int64_t record_end(ps_store *s, int64_t at) {
    ps_record r;
    return record_at(s, at, &r) ? at + r.size : -1;
}

/* *lacks: the first keyed record that the index files have no entry for although later ones have,
 * or that comes after their last entry; -1 when there is none. Each file must begin with the keyed
 * record that follows the last of the file before it. */
static int index_lacks(scan *c, int64_t *lacks, ps_error *e) {
    ps_store *s = c->s;
    int64_t from = atomic_load(&s->st_log.lg_min), file = -1, first, last;
    int code;
    while ((code = ps_index_range(s->st_index, &file, &first, &last, e)) > 0) {
        *lacks = from >= 0 && from < first ? next_keyed(s, from) : -1;
        if (*lacks >= 0 && *lacks < first) return 0;
        from = last >= atomic_load(&s->st_log.lg_min) ? record_end(s, last) : from;
    }
    *lacks = from >= 0 ? next_keyed(s, from) : -1;
    return code;
}

/* Entries are put in the order of the log: what comes after a missing one goes, and is put
 * again. */
static int start_index(scan *c, ps_error *e) {
    ps_store *s = c->s;
    int64_t lacks = -1;
    int code = s->st_index != NULL ? index_lacks(c, &lacks, e) : 0;
    if (code < 0) return code;
    if (lacks < 0 || lacks >= c->index_from) return 0;
    if (lacks < c->queues_from)
        ps_report_add(c->report, PS_ACTION_REBUILT, lacks, c->queues_from, -1, "index",
                      "entries were missing from this place of the log on");
    c->index_from = lacks;
    if (c->reading) {
        if (lacks < atomic_load(&s->st_index_tail)) atomic_store(&s->st_index_tail, lacks);
        return 0;
    }
    if (lacks < c->at) c->at = lacks;
    int64_t cut = 0;
    code = ps_index_cut(s->st_index, lacks, &s->st_aside, &cut, e);
    c->report->entries_cut += cut;
    return code;
}

/* ---- where to start, after a crash ---- */

static void start_abnormal(scan *c) {
    ps_store *s = c->s;
    const ps_checkpoint *k = &s->st_keeper.kp_checkpoint;
    int64_t t = k->physic_msg_timestamp < k->logics_msg_timestamp ? k->physic_msg_timestamp
                                                                  : k->logics_msg_timestamp;
    c->queues_from = file_by_time(s, margin_before(t));
    /* No queue has anything: the checkpoint vouches for files that are not there. */
    if (furthest_unit(s) < 0) c->queues_from = atomic_load(&s->st_log.lg_min);
    c->index_from = c->queues_from;
    if (s->st_index != NULL) {
        int64_t it = margin_before(k->index_msg_timestamp);
        int64_t from = file_by_time(s, it < t ? it : t);
        c->index_from = from < c->index_from ? from : c->index_from;
    }
    c->at = c->index_from;
}

/* After a sync that failed, the pages that it could not write count as clean: the page cache still
 * has what the disk does not, until it lets go of them. So what the checkpoint does not cover is
 * written as far as it goes, dropped from the cache and read from the disk. What the disk does not
 * have is then missing now, and reported, and not at some later time. */
static void distrust_cache(scan *c) {
    ps_segments *files = &c->s->st_log.lg_files;
    ps_io *io = c->s->st_io;
    for (int32_t i = 0; i < files->ss_count; i++) {
        int64_t base = files->ss_items[i].sg_base;
        if (base + files->ss_file_size <= c->queues_from) continue;
        ps_mapfile *mf = ps_segments_find(files, base, NULL);
        if (mf == NULL) continue; /* the scan meets it, too, and says so */
        (void)io->fdatasync(io, mf->mf_fd);
        /* Mapped pages would stay in the cache. */
        madvise(mf->mf_map, (size_t)mf->mf_size, MADV_DONTNEED);
        io->advise(io, mf->mf_fd, 0, 0, POSIX_FADV_DONTNEED);
        ps_mapfile_unref(mf);
    }
}

/* Queues that a deletion left half done begin again after it; from its file's start, since another
 * broker may have written the log again since. */
static void start_deleted(scan *c, int64_t from) {
    ps_store *s = c->s;
    int64_t min = atomic_load(&s->st_log.lg_min);
    if (from == INT64_MAX) return;
    from -= from % s->st_log.lg_files.ss_file_size;
    if (from < min) from = min;
    if (from < c->queues_from) c->queues_from = from;
    if (from < c->at) c->at = from;
}

/* ---- the scan ---- */

static int read_unit(scan *c, const ps_record *r, ps_dispatched *done) {
    ps_store *s = c->s;
    if (!ps_record_names_queue(r)) {
        done->implausible++;
        return 0;
    }
    ps_topic *t = ps_topic_get(&s->st_topics, (const char *)r->topic, r->topic_len);
    if (t != NULL && ps_topic_is_past(t, r->physical_offset)) return 0;
    ps_queue *q = t != NULL ? ps_topic_queue_get(t, r->queue_id) : NULL;
    if (q == NULL) return PS_E_NO_MEMORY;
    if (c->healing && !q->cq_hole) return 0;
    ps_unit u = {r->physical_offset, r->size, ps_record_tags_code(r, &s->st_levels)};
    pthread_rwlock_wrlock(&s->st_topics.tt_shared.qs_lock);
    int code = ps_queue_tail_add_locked(q, r->queue_offset, &u);
    pthread_rwlock_unlock(&s->st_topics.tt_shared.qs_lock);
    done->implausible += code == PS_UNIT_IMPLAUSIBLE;
    done->rivals += code == PS_UNIT_RIVAL;
    if (code == PS_UNIT_TWO) done->after_all = q->cq_doubted.physical;
    return code < 0 ? code : 0;
}

static ps_topic *topic_of(scan *c, const ps_record *r) {
    return ps_topic_find(&c->s->st_topics, (const char *)r->topic, r->topic_len);
}

static ps_queue *queue_of(scan *c, const ps_record *r) {
    ps_topic *t = topic_of(c, r);
    return t != NULL ? ps_topic_queue(t, r->queue_id) : NULL;
}

/* Whether the record may be in a queue of light messages. */
static bool is_light(scan *c, const ps_record *r, ps_multi *m) {
    return atomic_load(&c->s->st_topics.tt_lmq) && ps_multi_of(r, m);
}

static int scan_reading(scan *c, const ps_record *r, ps_dispatched *done) {
    ps_multi m;
    if (!ps_record_has_unit(r)) return 0;
    int code = read_unit(c, r, done);
    if (code == 0 && is_light(c, r, &m))
        while (code == 0 && ps_multi_next(&m))
            if (topic_of(c, &m.mu_as) != NULL) code = read_unit(c, &m.mu_as, done);
    return code;
}

static bool in_a_hole(scan *c, const ps_record *r) {
    ps_queue *q = ps_record_names_queue(r) ? queue_of(c, r) : NULL;
    return q != NULL && q->cq_hole;
}

/* The second pass: units of queues that have a hole, and nothing else. */
static int scan_healing(scan *c, const ps_record *r, ps_dispatched *done, ps_error *e) {
    ps_multi m;
    if (c->reading) return scan_reading(c, r, done);
    if (!ps_record_has_unit(r)) return 0;
    bool wanted = in_a_hole(c, r);
    if (!wanted && is_light(c, r, &m))
        while (!wanted && ps_multi_next(&m)) wanted = in_a_hole(c, &m.mu_as);
    return wanted ? ps_dispatch_record(c->s, r, true, false, done, e) : 0;
}

static int scan_record(scan *c, const ps_record *r, ps_error *e) {
    ps_dispatched done = {0};
    bool queues = c->at >= c->queues_from && c->at > c->queues_after;
    bool index = c->at >= c->index_from;
    int code;
    if (c->healing)
        code = scan_healing(c, r, &done, e);
    else if (c->reading)
        code = queues ? scan_reading(c, r, &done) : 0;
    else
        code = ps_dispatch_record(c->s, r, queues, index && c->indexer == NULL, &done, e);
    if (code == 0 && index && c->indexer != NULL && r->properties_len > 0)
        code = ps_indexer_give(c->indexer, c->at, e);
    c->report->units_written += done.units;
    c->report->entries_written += done.entries;
    if (done.implausible > 0)
        ps_report_add(c->report, PS_ACTION_SKIPPED, c->at, c->at + r->size, 1, "commitlog",
                      "a record whose topic, queue id or queue offset cannot be");
    if (done.after_all > 0) ps_report_withdraw(c->report, PS_ACTION_SKIPPED, done.after_all);
    if (done.rivals > 0)
        ps_report_add(c->report, PS_ACTION_SKIPPED, c->at, c->at + r->size, 1, "commitlog",
                      "a record that claims the queue offset of another, sound one");
    c->report->records += !c->healing;
    c->last_start = c->at;
    c->last_stamp = r->store_timestamp;
    return code;
}

static int tell_progress(scan *c, ps_error *e) {
    if (c->progress == NULL) return 0;
    c->progress->phase = 3;
    c->progress->done = c->at - c->report->scanned_from;
    if (!c->progress->stop) return 0;
    return ps_fail(e, PS_E_INTERRUPTED, 0, c->at, c->s->st_root,
                   "interrupted while reading the log");
}

/* Records of one file; leaves c->outcome at what ended it. */
static int scan_file(scan *c, ps_mapfile *mf, ps_error *e) {
    int64_t end = mf->mf_base + mf->mf_size, told = c->at;
    int deep = checks_of(c->s), code = 0;
    madvise(mf->mf_map, (size_t)mf->mf_size, MADV_SEQUENTIAL);
    c->outcome = PS_REC_OK;
    while (c->at < end && code == 0) {
        ps_record r;
        const uint8_t *p = mf->mf_map + (c->at - mf->mf_base);
        c->outcome = ps_record_check(p, end - c->at, c->at, c->at >= c->queues_from ? deep : 0, &r);
        /* A blank fills its file exactly; one that says otherwise is damage, not the end of the
         * file. */
        if (c->outcome == PS_REC_BLANK && r.size != end - c->at) c->outcome = PS_REC_SIZE;
        if (c->outcome != PS_REC_OK) break;
        code = scan_record(c, &r, e);
        if (code == 0) c->at += r.size;
        if (c->at - told >= PROGRESS_STEP && code == 0) {
            told = c->at;
            code = tell_progress(c, e);
        }
    }
    madvise(mf->mf_map, (size_t)mf->mf_size, MADV_NORMAL);
    if (code == 0) code = ps_mapfile_whole(mf, e);
    return code;
}

/* ---- damage with whole records after it ---- */

/* The next whole record after the place where the scan stopped, in this segment or a later one. */
static int64_t find_next(scan *c, ps_mapfile *mf, ps_record *r, ps_error *e) {
    int64_t size = c->s->st_log.lg_files.ss_file_size, base = mf->mf_base;
    int64_t at = ps_log_next_whole(mf, c->at - base + 1, c->last_stamp, r);
    while (at < 0 && (base += size) <= ps_segments_base(&c->s->st_log.lg_files, -1)) {
        ps_mapfile *next = ps_segments_find(&c->s->st_log.lg_files, base, e);
        if (next == NULL) continue;
        at = ps_log_next_whole(next, 0, c->last_stamp, r);
        ps_mapfile_unref(next);
    }
    return at < 0 ? -1 : base + at;
}

/* The smallest record that closes over damage: the short name where the long one does not fit, for
 * the smallest record that anybody writes has a topic of one letter. */
static bool measure_filler(const ps_store *s, ps_draft *d, int64_t room) {
    const char *why = "";
    d->prop_crc = s->st_conf.append_prop_crc || s->st_conf.force_verify_prop_crc;
    d->topic = (const uint8_t *)PS_FILLER_TOPIC;
    d->topic_len = sizeof PS_FILLER_TOPIC - 1;
    if (ps_draft_measure(d, INT32_MAX, &why) == 0 && d->size <= room) return true;
    d->topic = (const uint8_t *)PS_FILLER_TOPIC_SHORT;
    d->topic_len = sizeof PS_FILLER_TOPIC_SHORT - 1;
    return ps_draft_measure(d, INT32_MAX, &why) == 0 && d->size <= room;
}

/* Writes a record of no queue over [from, to) of a segment, whose body is what stood there: rolled
 * back, so that nobody delivers or indexes it. False when it does not fit. */
static bool write_filler(scan *c, ps_mapfile *mf, int64_t from, int64_t to) {
    static const uint8_t nobody[8];
    const char *why = "";
    ps_draft d = {.body = nobody,
                  .sys_flag = PS_SYS_TX_ROLLBACK,
                  .born_timestamp = c->last_stamp,
                  .born_host = nobody,
                  .born_host_len = sizeof nobody,
                  .store_host = nobody,
                  .store_host_len = sizeof nobody,
                  .long_topic_v2 = true};
    if (!measure_filler(c->s, &d, to - from)) return false;
    int64_t body_len = to - from - d.size;
    uint8_t *body = malloc((size_t)body_len + 1);
    if (body == NULL) return false;
    memcpy(body, mf->mf_map + to - body_len, (size_t)body_len);
    d.body = body;
    d.body_len = body_len;
    bool good = ps_draft_measure(&d, INT32_MAX, &why) == 0 && d.size == to - from;
    if (good) ps_draft_write(&d, mf->mf_map + from, 0, mf->mf_base + from, c->last_stamp);
    free(body);
    return good;
}

/* Makes [from, to) of a segment part of the chain: up to its end by a blank, else by records of at
 * most FILLER_MAX bytes. */
static int close_over(scan *c, ps_mapfile *mf, int64_t from, int64_t to, ps_error *e) {
    char why[128];
    snprintf(why, sizeof why, "no whole record: %s", ps_rec_outcome_name(c->outcome));
    if (c->reading || c->s->st_log.lg_kept) return 0;
    int code = ps_aside_bytes(&c->s->st_aside, mf->mf_path, from, mf->mf_map + from, to - from, why,
                              e);
    if (code == 0) code = ps_mapfile_reserve(mf, to, mf->mf_size, e);
    if (code < 0) return code;
    if (to == mf->mf_size && to - from >= PS_RECORD_SPARE) {
        ps_blank_write(mf->mf_map + from, (int32_t)(to - from));
        from = to;
    }
    while (from < to) {
        int64_t part = to - from > 2 * FILLER_MAX ? FILLER_MAX : to - from;
        if (!write_filler(c, mf, from, from + part)) break;
        from += part;
    }
    if (c->s->st_io->fdatasync(c->s->st_io, mf->mf_fd) < 0)
        return ps_fail(
            e, PS_E_FLUSH_FAILED, errno, mf->mf_base + from, mf->mf_path,
            "cannot sync the records that were written over the damaged part of the log");
    return 0;
}

/* What stands at c->at, when it is whole by now: a record, or the blank that closes its file.
 * Beside a writer the record that was not there when the scan came by has been written before the
 * ones that were found after it. */
static bool is_whole_by_now(scan *c, const ps_mapfile *mf) {
    int64_t left = mf->mf_base + mf->mf_size - c->at;
    int checks = c->at >= c->queues_from ? checks_of(c->s) : 0;
    ps_record r;
    if (!c->reading || c->outcome == PS_REC_BLANK || left <= 0) return false;
    ps_rec_outcome o = ps_record_check(mf->mf_map + (c->at - mf->mf_base), left, c->at, checks, &r);
    return o == PS_REC_OK || (o == PS_REC_BLANK && r.size == left);
}

/* The scan stopped at c->at: 1 when whole records follow, where it then stands; 0 at the end. */
static int resume_scan(scan *c, ps_mapfile *mf, ps_error *e) {
    ps_record r;
    int code = 0;
    if (!c->resumes) return 0;
    int64_t next = find_next(c, mf, &r, e);
    if (next >= 0 && is_whole_by_now(c, mf)) return 1;
    /* A blank that fills its file, and what follows is in the next one: as it should be. */
    if (next < 0 || (c->outcome == PS_REC_BLANK && next >= mf->mf_base + mf->mf_size)) return 0;
    if (c->outcome == PS_REC_BLANK) c->outcome = PS_REC_SIZE;
    if (c->at < c->s->st_light_doubt) c->s->st_light_doubt = c->at;
    ps_report_add(c->report, PS_ACTION_SKIPPED, c->at, next, -1, "commitlog",
                  ps_rec_outcome_name(c->outcome));
    for (int64_t at = c->at; at < next && code == 0;) {
        ps_mapfile *part = ps_segments_find(&c->s->st_log.lg_files, at, e);
        if (part == NULL) return e->code < 0 ? e->code : PS_E_IO;
        int64_t end = part->mf_base + part->mf_size;
        int64_t to = next < end ? next : end;
        code = close_over(c, part, at - part->mf_base, to - part->mf_base, e);
        ps_mapfile_unref(part);
        at = to;
    }
    c->at = next;
    return code < 0 ? code : 1;
}

static int scan_log(scan *c, ps_error *e) {
    c->report->scanned_from = c->at;
    if (c->progress != NULL && c->s->st_log.lg_files.ss_count > 0)
        c->progress->total = ps_segments_base(&c->s->st_log.lg_files, -1) +
                             c->s->st_log.lg_files.ss_file_size - c->at;
    for (;;) {
        e->code = 0;
        ps_mapfile *mf = ps_segments_find(&c->s->st_log.lg_files, c->at, e);
        if (mf == NULL && e->code != 0) return e->code;
        if (mf ==
            NULL) /* after the last file: its blank, or exactly its end, is the end of the log */
            break;
        int code = scan_file(c, mf, e);
        int64_t next = mf->mf_base + mf->mf_size;
        if (code == 0 && c->outcome != PS_REC_OK) code = resume_scan(c, mf, e);
        ps_mapfile_unref(mf);
        if (code < 0) return code;
        if (code > 0) continue;
        /* A blank with no file after it: the end is the blank's own start, and the tail is used
         * again. */
        if (c->outcome == PS_REC_BLANK && ps_segments_base(&c->s->st_log.lg_files, -1) < next)
            break;
        if (c->outcome != PS_REC_BLANK && c->outcome != PS_REC_OK) break;
        c->at = next;
    }
    c->report->scanned_bytes = c->at - c->report->scanned_from;
    return 0;
}

/* The same, with the index made beside it. */
static int scan_and_index(scan *c, ps_error *e) {
    const ps_store *s = c->s;
    int64_t entries = 0, from = c->at > c->index_from ? c->at : c->index_from;
    int64_t end = ps_segments_base(&c->s->st_log.lg_files, -1) + s->st_log.lg_files.ss_file_size;
    if (s->st_index != NULL && s->st_conf.background && end - from >= INDEXER_LEAST &&
        sysconf(_SC_NPROCESSORS_ONLN) > 1)
        c->indexer = ps_indexer_start(c->s);
    int code = scan_log(c, e);
    if (c->indexer == NULL) return code;
    int ended = ps_indexer_end(c->indexer, &entries, code < 0 ? NULL : e);
    c->indexer = NULL;
    c->report->entries_written += entries;
    return code < 0 ? code : ended;
}

/* ---- putting things right ---- */

static int64_t cut_queues(ps_store *s, int64_t physical, ps_report *report, const char *why,
                          ps_error *e) {
    ps_queue **queues;
    int64_t code = 0;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code >= 0; i++) {
        char what[300];
        int64_t was = atomic_load(&queues[i]->cq_max);
        code = ps_queue_cut(queues[i], physical, e);
        if (code <= 0) continue;
        report->units_cut += code;
        snprintf(what, sizeof what, "consumequeue/%s/%d", queues[i]->cq_topic->tp_name,
                 queues[i]->cq_id);
        ps_report_add(report, PS_ACTION_CUT, was - code, was, code, what, why);
    }
    free(queues);
    return code;
}

static int cut_index(ps_store *s, int64_t physical, ps_report *report, ps_error *e) {
    int64_t cut = 0;
    if (s->st_index == NULL) return 0;
    int code = ps_index_cut(s->st_index, physical, &s->st_aside, &cut, e);
    report->entries_cut += cut;
    return code;
}

/* What a crash may have left of the queues after the place where their checking starts is written
 * again from the log; where two records claim one offset, what stood there decides. */
static int rewind_queues(ps_store *s, int64_t physical, ps_report *report, ps_error *e) {
    ps_queue **queues;
    int64_t code = 0;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code >= 0; i++) {
        code = ps_queue_rewind(queues[i], physical, e);
        report->units_cut += code > 0 ? code : 0;
    }
    free(queues);
    return code < 0 ? (int)code : 0;
}

/* What was not written again goes. */
static int settle_queues(ps_store *s, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code == 0; i++) code = ps_queue_settle(queues[i], e);
    free(queues);
    return code;
}

/* ---- queues with a hole ---- */

/* Where the log is to be read from to fill every hole; INT64_MAX when there is none. */
static int64_t holes_from(ps_store *s) {
    ps_queue **queues;
    int64_t from = INT64_MAX, min = atomic_load(&s->st_log.lg_min);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) {
        int64_t end = atomic_load(&queues[i]->cq_max_physical);
        if (queues[i]->cq_hole && (end < min ? min : end) < from) from = end < min ? min : end;
    }
    free(queues);
    return from;
}

/* Before anything is written: queues with a hole end at their sound part. A reader's are as they
 * were found: what follows is hidden by where they end. */
static int mend_queues(scan *c, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int32_t n = ps_queues_snapshot(&c->s->st_topics, &queues);
    for (int32_t i = 0; i < n && code == 0; i++)
        if (queues[i]->cq_hole) code = ps_queue_mend(queues[i], &c->s->st_aside, e);
    free(queues);
    return code;
}

static void settle_holes(scan *c, int64_t from) {
    ps_queue **queues;
    char what[300];
    int32_t n = ps_queues_snapshot(&c->s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = queues[i];
        if (!q->cq_hole) continue;
        q->cq_hole = false;
        q->cq_sealed = c->reading;
        snprintf(what, sizeof what, "consumequeue/%s/%d", q->cq_topic->tp_name, q->cq_id);
        ps_report_add(c->report, PS_ACTION_REBUILT, from, c->at, atomic_load(&q->cq_max), what,
                      "the queue lacked units that the log has");
    }
    free(queues);
}

/* Where a scan may begin so as to meet every record from `at` on: a unit that says where its record
 * ends is not believed, since a scan that begins amid a record takes it for damage. */
static int64_t scan_start(ps_store *s, int64_t at, int64_t end) {
    ps_record r;
    if (at >= end || record_at(s, at, &r)) return at < end ? at : end;
    int64_t min = atomic_load(&s->st_log.lg_min), start = at - at % s->st_log.lg_files.ss_file_size;
    return start < min ? min : start;
}

/* Fills the holes in one more pass over the log. What the log itself has lost is filled with units
 * of no record. */
static int heal_queues(scan *c, ps_error *e) {
    int64_t from = holes_from(c->s), end = c->at, start = c->report->scanned_from;
    ps_rec_outcome outcome = c->outcome;
    int64_t last_start = c->last_start, last_stamp = c->last_stamp;
    c->s->st_topics.tt_shared.qs_strict = false;
    if (from == INT64_MAX) return 0;
    c->healing = true;
    c->last_stamp = 0; /* of the end: all that is met now would be older */
    c->at = from = scan_start(c->s, from, end);
    int code = scan_log(c, e);
    c->healing = false;
    c->report->scanned_bytes += end > start && start < from ? from - start : 0;
    c->report->scanned_from = start < from ? start : from;
    if (code < 0) return code;
    settle_holes(c, from);
    c->outcome = outcome;
    if (last_start > c->last_start) {
        c->last_start = last_start;
        c->last_stamp = last_stamp;
    }
    return 0;
}

static void report_end(scan *c, int64_t bytes_cut) {
    char why[128];
    bool blank = c->outcome == PS_REC_BLANK || c->outcome == PS_REC_OK;
    c->report->bytes_cut = blank ? 0 : bytes_cut;
    if (bytes_cut == 0 || blank) return;
    snprintf(why, sizeof why, "no valid record at this offset: %s",
             ps_rec_outcome_name(c->outcome));
    ps_report_add(c->report, PS_ACTION_CUT, c->at, c->at + bytes_cut, -1, "commitlog", why);
}

/* What a kill left in the page cache only is brought to the disk before it counts as flushed. */
static int sync_scanned(scan *c, ps_error *e) {
    ps_segments *files = &c->s->st_log.lg_files;
    for (int32_t i = 0; i < files->ss_count; i++) {
        int64_t base = ps_segments_base(files, i);
        if (base + files->ss_file_size <= c->queues_from || base > c->at) continue;
        ps_mapfile *mf = ps_segments_find(files, base, e);
        if (mf == NULL) return e->code < 0 ? e->code : PS_E_IO;
        int err = c->s->st_io->fdatasync(c->s->st_io, mf->mf_fd) < 0 ? errno : 0;
        ps_mapfile_unref(mf);
        if (err != 0)
            return ps_fail(e, PS_E_FLUSH_FAILED, err, base, files->ss_items[i].sg_path,
                           "cannot sync the log");
    }
    return 0;
}

/* Before a segment is deleted: units of one that is gone say that it is missing. They were zeroed,
 * or their files deleted, in any of the queues. */
static int sync_queues(ps_store *s, ps_error *e) {
    int fd = s->st_io->open(s->st_io, s->st_root, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return ps_fail(e, ps_errno_code(errno), errno, -1, s->st_root, "cannot open the directory");
    int code = ps_sync_disk(s->st_io, fd, s->st_root, e);
    s->st_io->close(s->st_io, fd);
    return code;
}

static int correct_queues(ps_store *s, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int64_t min = atomic_load(&s->st_log.lg_min);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code == 0; i++) {
        /* Most queues begin with a unit whose record is there: they need not be searched. */
        if (queues[i]->cq_first_start < min) code = ps_queue_correct_min(queues[i], min, e);
        queues[i]->cq_next = atomic_load(&queues[i]->cq_max);
    }
    free(queues);
    return code;
}

static void set_stamps(scan *c) {
    ps_store *s = c->s;
    ps_record r;
    int64_t now = c->last_stamp;
    if (c->last_start < 0 && c->at > atomic_load(&s->st_log.lg_min) &&
        record_at(s, furthest_unit(s), &r))
        now = r.store_timestamp;
    s->st_log.lg_last_stamp = now;
    atomic_store(&s->st_log.lg_published_stamp, now);
    atomic_store(&s->st_dispatcher.ds_logic_stamp, now);
    atomic_store(&s->st_flusher.fl_physic_stamp, now);
    s->st_keeper.kp_checkpoint.confirm_phy_offset =
        c->last_start >= 0 ? c->last_start : s->st_keeper.kp_checkpoint.confirm_phy_offset;
    s->st_keeper.kp_dirty = true;
    ps_keeper_show_locked(&s->st_keeper);
}

/* Where nobody has noted how far the queues reached: what the scan does not read is compared with
 * them. */
static int check_coverage(scan *c, ps_error *e) {
    bool unnoted = c->s->st_unnoted;
    c->s->st_unnoted = false;
    if (!unnoted) return 0;
    /* Of a scan that begins at the last unit's record, that record is in the chain. */
    int64_t until = c->queues_from == furthest_unit(c->s) ? c->queues_from + 1 : c->queues_from;
    return ps_coverage_check(c->s, until, c->report, c->progress, e);
}

static int recover_log(scan *c, bool abnormal, ps_error *e) {
    ps_store *s = c->s;
    int64_t bytes_cut = 0, from, code = ps_tombstones_settle(s, &from, c->report, e);
    if (code < 0) return (int)code;
    c->last_start = c->queues_after = -1;
    c->resumes = true;
    if (abnormal)
        start_abnormal(c);
    else
        start_normal(c);
    code = check_coverage(c, e);
    if (code == 0) code = mend_queues(c, e);
    start_deleted(c, from);
    if (abnormal) distrust_cache(c);
    s->st_topics.tt_shared.qs_strict = true;
    s->st_topics.tt_shared.qs_log_before = c->queues_from > atomic_load(&s->st_log.lg_min);
    if (code >= 0 && abnormal) code = rewind_queues(s, c->queues_from, c->report, e);
    /* An index that has tags, as upstream writes it from 5.5.0 on, keeps having them. */
    if (s->st_index != NULL && ps_index_has_tags(s->st_index, tells_of_tags, s))
        ps_index_set_tags(s->st_index);
    if (code >= 0 && abnormal) code = cut_index(s, c->index_from, c->report, e);
    if (code >= 0) code = start_index(c, e);
    if (code >= 0) code = scan_and_index(c, e);
    if (code >= 0) code = heal_queues(c, e);
    if (code >= 0) code = settle_queues(s, e);
    if (code >= 0)
        code = cut_queues(s, c->at, c->report, "the records are beyond the end of the log", e);
    if (code >= 0) code = abnormal ? sync_scanned(c, e) : 0;
    if (code >= 0 && (abnormal || c->report->units_cut > 0) &&
        ps_segments_base(&s->st_log.lg_files, -1) > c->at)
        code = sync_queues(s, e);
    if (code >= 0) code = ps_log_set_end(&s->st_log, c->at, &s->st_aside, &bytes_cut, e);
    if (code >= 0) code = ps_tombstones_trim(s, c->at, e);
    if (code >= 0) report_end(c, bytes_cut);
    return code < 0 ? (int)code : 0;
}

/* 1: whole records, and the blank after them, fill the last segment: only then may there have been
 * a next one that had messages. */
static int last_segment_is_full(ps_store *s, ps_error *e) {
    int64_t at = ps_segments_base(&s->st_log.lg_files, -1);
    ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, at, e);
    if (mf == NULL) return e->code;
    int64_t end = mf->mf_base + mf->mf_size;
    ps_rec_outcome o = PS_REC_OK;
    while (o == PS_REC_OK && at < end) {
        ps_record r;
        o = ps_record_check(mf->mf_map + (at - mf->mf_base), end - at, at, 0, &r);
        if (o == PS_REC_OK || (o == PS_REC_BLANK && r.size == end - at)) at += r.size;
    }
    ps_mapfile_unref(mf);
    return at == end;
}

/* furthest_unit, also where the files of the log end before it. */
static int64_t furthest_named(ps_store *s) {
    ps_queue **queues;
    int64_t furthest = furthest_unit(s);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++)
        if (queues[i]->cq_beyond > furthest) furthest = queues[i]->cq_beyond;
    free(queues);
    return furthest;
}

/* Queues have messages, and their part of the log is gone from its first segment on, or after a
 * full one: a folder that is not mounted, or not the one of the settings, looks like this. Taken
 * for the end of the log, it would take the queues and the groups' offsets with it, and new
 * messages the places of those that are elsewhere. A crash does not look like this: a segment is
 * made durable before its first record is written, a deleted one after the queues are cut; Java's
 * are made ahead, while the one before is filled. */
static int check_log_is_there(ps_store *s, ps_error *e) {
    ps_segments *files = &s->st_log.lg_files;
    int64_t furthest = furthest_named(s), first, end;
    if (furthest < 0) return 0;
    if (files->ss_count == 0)
        return ps_fail(e, PS_E_NOT_ADJACENT, 0, furthest, s->st_log.lg_dirs.path[0],
                       "the log has no segment, and the queues have messages of it: if it is lost"
                       " for good, move consumequeue and index elsewhere");
    end = ps_segments_base(files, -1) + files->ss_file_size;
    int full = furthest < end ? 0 : last_segment_is_full(s, e);
    if (full <= 0) return full;
    if (s->st_readonly) { /* a writer may have gone on since the segments were listed */
        int code = ps_log_refresh(&s->st_log, &first, e);
        if (code < 0) return code;
        if (ps_segments_base(files, -1) >= end) return check_log_is_there(s, e);
    }
    return ps_fail(e, PS_E_NOT_ADJACENT, 0, end, s->st_log.lg_dirs.path[0],
                   "the segment %020" PRId64 " is in no folder of the log, and the queues have"
                   " messages of it or of later ones",
                   end);
}

/* Files of queues that begin later than at 0 would come after what is put there. */
static int no_log(ps_store *s, ps_report *report, ps_error *e) {
    ps_queue **queues;
    int64_t code = cut_queues(s, 0, report, "there is no commit log", e);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code >= 0; i++)
        if (ps_segments_count(&queues[i]->cq_files) > 0) code = ps_queue_clear(queues[i], e);
    free(queues);
    if (code >= 0) code = cut_index(s, 0, report, e);
    return code < 0 ? (int)code : 0;
}

int ps_recover(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e) {
    scan c = {.s = s, .report = report, .progress = progress};
    int64_t began = ps_monotonic_ns();
    bool abnormal = ps_abort_present(s->st_io, s->st_root) == 1;
    int code = check_log_is_there(s, e);
    if (code < 0) return code;
    report->mode = abnormal ? PS_RECOVERED_ABNORMAL : PS_RECOVERED_NORMAL;
    if (s->st_log.lg_files.ss_count == 0) {
        if (atomic_load(&s->st_topics.tt_queue_count) == 0) report->mode = PS_RECOVERED_NEW;
        code = no_log(s, report, e);
        s->st_keeper.kp_dirty = true;
    } else {
        code = recover_log(&c, abnormal, e);
        if (code == 0) code = correct_queues(s, e);
        if (code == 0) set_stamps(&c);
    }
    s->st_topics.tt_shared.qs_before = NULL;
    s->st_conf.topics = NULL;
    report->log_min = atomic_load(&s->st_log.lg_min);
    report->log_max = atomic_load(&s->st_log.lg_end);
    atomic_store(&s->st_dispatcher.ds_end, report->log_max);
    if (code == 0 && report->mode == PS_RECOVERED_ABNORMAL) code = ps_keeper_flush(s, true, e);
    report->seconds = (double)(ps_monotonic_ns() - began) / 1e9;
    if (code == 0)
        ps_report_add(report, PS_ACTION_KEPT, report->log_min, report->log_max, report->records,
                      "commitlog", "whole records");
    return code;
}

/* ---- readers ---- */

/* Units that point beyond the end of the log are hidden, as recovery would cut them. */
static void hide_units(ps_store *s, int64_t end) {
    ps_queue **queues;
    ps_unit u;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) {
        int64_t max = atomic_load(&queues[i]->cq_max), ends;
        ends = atomic_load(&queues[i]->cq_max_physical);
        if (ends >= 0 && ends <= end) continue;
        while (max > 0 && ps_queue_peek(queues[i], max - 1, &u, NULL) > 0 && u.physical >= end)
            max--;
        atomic_store(&queues[i]->cq_max, max);
    }
    free(queues);
}

/* Queues are opened one after the other, and a writer does not wait: each ends where it had got to
 * when its turn came. It dispatches in the order of the log, so whatever lies before the furthest
 * unit that was seen is in queues and index by now: a second look finds all of it. */
static int look_again(ps_store *s, ps_progress *progress, ps_error *e) {
    int code = ps_queues_load(&s->st_topics, false, NULL, progress, e);
    if (code == 0) code = ps_queues_refresh(&s->st_topics, e);
    if (code == 0 && s->st_index != NULL) code = ps_index_refresh(s->st_index, e);
    return code;
}

int ps_recover_read(ps_store *s, ps_report *report, ps_progress *progress, ps_error *e) {
    scan c = {.s = s, .report = report, .progress = progress, .reading = true, .last_start = -1};
    int64_t began = ps_monotonic_ns();
    int code = check_log_is_there(s, e);
    report->mode = PS_RECOVERED_READ;
    if (code < 0) return code;
    if (s->st_log.lg_files.ss_count > 0) {
        ps_tombstones_doubt(s, report);
        ps_tombstones_hide(s);
        start_normal(&c);
        /* Of another log: nothing is in the queues. */
        c.queues_after = c.at == furthest_unit(s) ? c.at : -1;
        code = check_coverage(&c, e);
        atomic_store(&s->st_index_tail, c.at);
        if (code == 0) code = look_again(s, progress, e);
        ps_tombstones_hide(s);
        c.resumes = true;
        s->st_topics.tt_shared.qs_strict = true;
        s->st_topics.tt_shared.qs_log_before = c.queues_from > atomic_load(&s->st_log.lg_min);
        if (code == 0) code = start_index(&c, e);
        if (code == 0) code = scan_log(&c, e);
        if (code == 0) code = heal_queues(&c, e);
        if (code == 0) {
            hide_units(s, c.at);
            code = correct_queues(s, e);
            set_stamps(&c);
        }
    }
    s->st_conf.topics = NULL;
    atomic_store(&s->st_log.lg_end, c.at);
    atomic_store(&s->st_log.lg_flushed, c.at);
    atomic_store(&s->st_dispatcher.ds_end, c.at);
    ps_reader_mark(s, c.last_start);
    report->log_min = atomic_load(&s->st_log.lg_min);
    report->log_max = c.at;
    report->seconds = (double)(ps_monotonic_ns() - began) / 1e9;
    return code;
}

int ps_reader_extend_locked(ps_store *s, ps_error *e) {
    ps_report *report = calloc(1, sizeof *report);
    if (report == NULL) return ps_no_memory(e, s->st_root, "no memory for a recovery report");
    scan c = {.s = s, .report = report, .reading = true, .last_start = -1, .queues_after = -1};
    c.at = c.queues_from = c.index_from = atomic_load(&s->st_log.lg_end);
    int code = s->st_log.lg_files.ss_count > 0 ? scan_log(&c, e) : 0;
    free(report);
    if (code == 0 && c.at > atomic_load(&s->st_log.lg_end)) {
        atomic_store(&s->st_log.lg_end, c.at);
        atomic_store(&s->st_log.lg_flushed, c.at);
        atomic_store(&s->st_dispatcher.ds_end, c.at);
        if (c.last_start >= 0) atomic_store(&s->st_log.lg_published_stamp, c.last_stamp);
        if (c.last_start >= 0) ps_reader_mark(s, c.last_start);
    }
    return code;
}
