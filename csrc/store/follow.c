/* A store that follows a master: it takes the master's log as it is, byte for byte at the same
 * places, whatever pieces it comes in. Queues and index are made of it as of any log. A record
 * becomes visible once all of it is there. docs/internals/ha.md; upstream
 * DefaultMessageStore.appendToCommitLog. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "store/appended.h"
#include "store/lights.h"

/* More messages than a log has bytes for. */
#define QUEUE_OFFSET_MAX (1LL << 56)

void ps_want_copies(ps_store *s, int32_t on, int32_t timeout_ms) {
    ps_safe_want_copies(&s->st_safe, on != 0, timeout_ms);
}

void ps_hide_unconfirmed(ps_store *s) {
    atomic_store(&s->st_safe.sf_hides, true);
}

int64_t ps_confirmed(ps_store *s) {
    return ps_safe_visible(&s->st_safe);
}

int32_t ps_settled(ps_store *s, int64_t position) {
    return ps_safe_flushed(&s->st_safe) >= position && !ps_safe_lacks_copies(&s->st_safe, position);
}

int32_t ps_lacks_replicas(ps_store *s) {
    return ps_safe_refuse(&s->st_safe, NULL) < 0;
}

int64_t ps_follow_begin(ps_store *s) {
    atomic_store(&s->st_follow.fo_on, true);
    pthread_mutex_lock(&s->st_log.lg_append_lock);
    int64_t end = s->st_follow.fo_end = atomic_load(&s->st_log.lg_end);
    pthread_mutex_unlock(&s->st_log.lg_append_lock);
    return end;
}

void ps_follow_pause(ps_store *s) {
    ps_log *l = &s->st_log;
    if (ps_enter(s) < 0) return; /* the next open finds what is not whole */
    pthread_mutex_lock(&l->lg_append_lock);
    int64_t whole = atomic_load(&l->lg_end);
    ps_mapfile *mf = l->lg_active;
    if (mf != NULL && s->st_follow.fo_end > whole)
        memset(mf->mf_map + (whole - mf->mf_base), 0, (size_t)(s->st_follow.fo_end - whole));
    s->st_follow.fo_end = whole;
    pthread_mutex_unlock(&l->lg_append_lock);
    ps_leave(s);
}

int ps_follow_end(ps_store *s, ps_error *e) {
    ps_queue **queues;
    if (!atomic_load(&s->st_follow.fo_on)) return 0;
    ps_follow_pause(s);
    if (s->st_safe.sf_sync && ps_flusher_sync(&s->st_flusher, 0, e) < 0) return e->code;
    ps_safe_lead(&s->st_safe);
    if (ps_dispatch_catch_up(s, e) < 0) return e->code;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    pthread_mutex_lock(&s->st_log.lg_append_lock);
    for (int32_t i = 0; i < n; i++) queues[i]->cq_next = atomic_load(&queues[i]->cq_max);
    ps_lights_lead_locked(s);
    pthread_mutex_unlock(&s->st_log.lg_append_lock);
    free(queues);
    atomic_store(&s->st_follow.fo_on, false);
    return 1;
}

int64_t ps_last_record(ps_store *s) {
    ps_queue **queues, *last = NULL;
    int64_t physical = -1;
    if (ps_enter(s) < 0) return -1;
    ps_dispatch_catch_up(s, NULL);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++)
        if (atomic_load(&queues[i]->cq_max_physical) > 0 &&
            (last == NULL ||
             atomic_load(&queues[i]->cq_max_physical) > atomic_load(&last->cq_max_physical)))
            last = queues[i];
    if (last != NULL && ps_queue_units(s, last->cq_topic, last->cq_id,
                                       atomic_load(&last->cq_max) - 1, 1, &physical, NULL, NULL,
                                       NULL) != 1)
        physical = -1;
    free(queues);
    ps_leave(s);
    return physical;
}

int64_t ps_record_before(ps_store *s, int64_t place, int64_t *border) {
    ps_border end = {-1};
    int64_t record = -1;
    if (ps_enter(s) >= 0) {
        record = ps_border_record(&s->st_log, place, &end);
        ps_leave(s);
    }
    *border = end.bd_at;
    return record;
}

int32_t ps_has_bytes(ps_store *s, int64_t at, const void *data, int64_t len) {
    const uint8_t *theirs = data;
    bool same = ps_enter(s) >= 0;
    if (!same) return 0;
    int64_t end = atomic_load_explicit(&s->st_log.lg_end, memory_order_acquire);
    while (same && len > 0) {
        ps_mapfile *mf;
        int64_t n = 0;
        const uint8_t *ours = ps_log_at(&s->st_log, at, end, &n, &mf);
        if (n > len) n = len;
        same = ours != NULL && memcmp(ours, theirs, (size_t)n) == 0;
        ps_mapfile_unref(mf);
        at += n;
        theirs += n;
        len -= n;
    }
    ps_leave(s);
    return same;
}

/* ---- what comes ---- */

/* An empty log begins where the master's does. Both locks are held. */
static int begin_at_locked(ps_store *s, int64_t at, ps_error *e) {
    ps_log *l = &s->st_log;
    if (at % l->lg_files.ss_file_size != 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, at, s->st_root,
                       "the master's log begins within a segment of %lld bytes, as this store"
                       " has them (mappedFileSizeCommitLog)",
                       (long long)l->lg_files.ss_file_size);
    s->st_follow.fo_end = at;
    atomic_store(&l->lg_flushed, at);
    atomic_store(&l->lg_min, at);
    atomic_store(&l->lg_end, at);
    atomic_store(&s->st_dispatcher.ds_end, at);
    return 0;
}

int ps_follow_queue(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t offset, ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_queue *q = ps_topic_queue_get(topic, queue_id);
    bool possible = offset > 0 && offset < QUEUE_OFFSET_MAX && atomic_load(&s->st_follow.fo_on);
    int code = 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    if (!possible || atomic_load(&s->st_log.lg_end) > 0) {
        code = ps_fail(e, PS_E_ARGUMENT, 0, offset, s->st_root,
                       "a queue cannot go on at offset %lld of a log that has begun, or that"
                       " follows nobody", (long long)offset);
    } else if (q == NULL) {
        code = ps_no_memory(e, NULL, "no memory for the queue");
    } else {
        /* What an earlier try has left, or a log that is gone. */
        if (ps_segments_count(&q->cq_files) > 0) code = ps_queue_clear(q, e);
        if (code == 0) code = ps_queue_begin(q, offset, e);
    }
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    ps_leave(s);
    return code;
}

/* The segment that takes the next byte. NULL: *e says why there is none. */
static ps_mapfile *segment_locked(ps_store *s, ps_error *e) {
    ps_log *l = &s->st_log;
    ps_mapfile *mf = l->lg_active;
    if (mf != NULL && s->st_follow.fo_end < mf->mf_base + mf->mf_size) return mf;
    return ps_append_roll_locked(l, &s->st_allocator, e) < 0 ? NULL : l->lg_active;
}

/* Where the record begins whose head is kept since it is not whole with the bytes up to `end`, or
 * the blank that ends the file; `end`: none. A head of another kind is not kept: publish_locked
 * names it. `head` is of the record at `at`, `data` of the log from `from` on. */
static int64_t where_unfinished(int64_t at, const uint8_t *head, int64_t from, const uint8_t *data,
                          int64_t end) {
    while (at < end) {
        if (at + PS_HEAD_LEN > end) return at;
        uint32_t magic = be32_get(head + PS_AT_MAGIC);
        int32_t size = (int32_t)be32_get(head + PS_AT_SIZE);
        bool known = magic == PS_MAGIC_V1 || magic == PS_MAGIC_V2;
        if (magic == PS_MAGIC_BLANK || (known && at + size > end)) return at;
        if (!known || size < PS_RECORD_FIXED) return end;
        at += size;
        head = data + (at - from);
    }
    return end;
}

/* Writes the next n bytes of the log. Another process that follows its end through a mapping of its
 * own sees no record before all of it is there: the head of the first new one is written last, and
 * that of an unfinished one is kept. Returns where that begins, or where the bytes end. */
static int64_t write_locked(ps_store *s, ps_mapfile *mf, const uint8_t *data, int64_t n,
                            ps_error *e) {
    ps_follow *f = &s->st_follow;
    int64_t first = atomic_load(&s->st_log.lg_end), base = mf->mf_base;
    int64_t at = f->fo_end, end = at + n;
    int64_t lead = first + PS_HEAD_LEN - at;
    if (lead > n) lead = n;
    if (lead > 0) memcpy(f->fo_head + (at - first), data, (size_t)lead);
    else lead = 0;
    int64_t kept = first;
    if (end - first >= PS_HEAD_LEN) kept = where_unfinished(first, f->fo_head, at, data, end);
    if (end == base + mf->mf_size) kept = end; /* nothing goes on in the next file */
    int64_t plain = kept > first ? kept : end, after = plain + PS_HEAD_LEN;
    int64_t head = end - first < PS_HEAD_LEN ? end - first : PS_HEAD_LEN;
    int code = ps_mapfile_put(mf, at + lead - base, data + lead, plain - at - lead, e);
    if (code == 0 && after < end)
        code = ps_mapfile_put(mf, after - base, data + (after - at), end - after, e);
    if (code == 0 && kept > first) {
        ps_fence_before_valid();
        code = ps_mapfile_put(mf, first - base, f->fo_head, head, e);
        if (kept < end)
            memcpy(f->fo_head, data + (kept - at),
                   (size_t)(after < end ? PS_HEAD_LEN : end - kept));
    }
    if (code == 0) f->fo_end = end;
    return code < 0 ? code : kept;
}

/* Makes the records before `end` visible. */
static int publish_locked(ps_store *s, ps_mapfile *mf, int64_t end, ps_error *e) {
    ps_log *l = &s->st_log;
    int64_t at = atomic_load(&l->lg_end), last = mf->mf_base + mf->mf_size, count = 0;
    ps_rec_outcome o = PS_REC_OK;
    while (at < end) {
        ps_record r;
        o = ps_record_decode(mf->mf_map + (at - mf->mf_base), end - at, &r);
        if (o == PS_REC_OK && r.physical_offset != at) o = PS_REC_PLACE;
        if (o == PS_REC_BLANK && end == last) at = last;
        if (o != PS_REC_OK) break;
        l->lg_last_stamp = r.store_timestamp;
        at += r.size;
        count++;
    }
    atomic_store_explicit(&mf->mf_wrote, at - mf->mf_base, memory_order_release);
    ps_append_publish_locked(l, at, l->lg_last_stamp, count);
    if (o == PS_REC_OK || o == PS_REC_BLANK) return 0;
    return ps_fail(e, PS_E_DAMAGED, 0, at, mf->mf_path,
                   "the master sent bytes that are not a valid record: %s",
                   ps_rec_outcome_name(o));
}

static int append_locked(ps_store *s, int64_t at, const uint8_t *data, int64_t len, ps_error *e) {
    ps_follow *f = &s->st_follow;
    if (at != f->fo_end || !atomic_load(&f->fo_on))
        return ps_fail(e, PS_E_ARGUMENT, 0, at, s->st_root,
                       "the master goes on at %lld of the log, and this store at %lld",
                       (long long)at, (long long)f->fo_end);
    int err = ps_safe_errno(&s->st_safe);
    if (err != 0) /* the master would count a copy that this disk may never have */
        return ps_fail(e, PS_E_FLUSH_FAILED, err, at, s->st_root, "a sync of the log failed: %s",
                       strerror(err));
    while (len > 0) {
        ps_mapfile *mf = segment_locked(s, e);
        if (mf == NULL) return e->code;
        int64_t into = f->fo_end - mf->mf_base, n = mf->mf_size - into;
        if (n > len) n = len;
        int code = into + n > atomic_load(&mf->mf_reserved)
                       ? ps_append_reserve_locked(&s->st_log, mf, into + n, e)
                       : 0;
        if (code < 0) return code;
        int64_t end = write_locked(s, mf, data, n, e);
        if (end < 0) return (int)end;
        data += n;
        len -= n;
        if ((code = publish_locked(s, mf, end, e)) < 0) return code;
    }
    return 0;
}

int ps_follow_append(ps_store *s, int64_t at, const void *data, int64_t len, ps_error *e) {
    int code = 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    /* The dispatcher works with its lock held: only a log that begins waits for that. */
    bool begins = at > 0 && atomic_load(&s->st_log.lg_end) == 0;
    if (begins) pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    pthread_mutex_lock(&s->st_log.lg_append_lock);
    if (begins && s->st_log.lg_active == NULL && atomic_load(&s->st_log.lg_end) == 0)
        code = begin_at_locked(s, at, e);
    if (begins) pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    if (code == 0) code = append_locked(s, at, data, len, e);
    pthread_mutex_unlock(&s->st_log.lg_append_lock);
    ps_wake_those_who_read_on(s);
    ps_leave(s);
    return code;
}
