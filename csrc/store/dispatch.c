/* The dispatcher turns the log into consume queues and index: upstream's "reput". One at a time,
 * under the dispatch lock: usually its thread, at times a reader that wants to see what was just
 * put. With SYNC_FLUSH it stops at the flushed offset, so that nobody reads what a power cut could
 * take back. docs/internals/format.md#dispatch; upstream DefaultMessageStore.ReputMessageService,
 * CommitLogDispatcherBuild*. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "format/multi.h"
#include "store/lights.h"

/* While messages come in, the dispatcher polls rather than be woken for each: often when somebody
 * waits for them, else seldom, since readers dispatch what they miss by themselves. */
#define POLL_US 100
#define POLL_SELDOM_US 1000
#define POLLS_QUIET 10 /* so many empty polls, and what was not told of is */
#define POLLS_IDLE 50  /* so many empty polls, and it sleeps until it is woken */
#define STALL_RETRY_MS 1000

void ps_dispatcher_init(ps_dispatcher *d) {
    pthread_mutex_init(&d->ds_lock, NULL);
    pthread_mutex_init(&d->ds_nap_lock, NULL);
    pthread_mutex_init(&d->ds_news_lock, NULL);
    ps_cond_init(&d->ds_nap_wake);
    ps_cond_init(&d->ds_news);
}

void ps_dispatcher_stop(ps_dispatcher *d) {
    pthread_mutex_lock(&d->ds_nap_lock);
    atomic_store(&d->ds_stopping, true);
    pthread_cond_broadcast(&d->ds_nap_wake);
    pthread_mutex_unlock(&d->ds_nap_lock);
    /* One after the other, for the nap lock is a leaf. Who waits for news looked at ds_stopping
     * under this lock: before it was set, and is woken here, or after. */
    pthread_mutex_lock(&d->ds_news_lock);
    pthread_cond_broadcast(&d->ds_news);
    pthread_mutex_unlock(&d->ds_news_lock);
}

void ps_dispatch_listen(ps_store *s, int fd) {
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    ps_arrivals_listen_locked(&s->st_arrivals, fd);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
}

static ps_topic *topic_of(ps_store *s, const ps_record *r) {
    ps_topic *t = s->st_dispatcher.ds_recent_topic;
    if (t != NULL && t->tp_len == r->topic_len &&
        memcmp(t->tp_name, r->topic, (size_t)t->tp_len) == 0)
        return t;
    t = ps_topic_find(&s->st_topics, (const char *)r->topic, r->topic_len);
    if (t == NULL) t = ps_topic_get(&s->st_topics, (const char *)r->topic, r->topic_len);
    s->st_dispatcher.ds_recent_topic = t;
    return t;
}

static int dispatch_unit(ps_store *s, const ps_record *r, ps_dispatched *done, ps_error *e) {
    if (__builtin_expect(!ps_record_names_queue(r), 0)) {
        done->implausible++;
        return 0;
    }
    ps_topic *t = topic_of(s, r);
    if (t != NULL && ps_topic_is_past(t, r->physical_offset)) return 0;
    ps_queue *q = t != NULL ? ps_topic_queue_get(t, r->queue_id) : NULL;
    if (q == NULL)
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, r->physical_offset, NULL,
                       "no memory for the queue");
    ps_unit u = {r->physical_offset, r->size, ps_record_tags_code(r, &s->st_levels)};
    int code = ps_queue_append(q, r->queue_offset, &u, e);
    if (code < 0) return code;
    if (__builtin_expect(code == PS_UNIT_IMPLAUSIBLE || code == PS_UNIT_RIVAL, 0)) {
        done->implausible += code == PS_UNIT_IMPLAUSIBLE;
        done->rivals += code == PS_UNIT_RIVAL;
        return 0;
    }
    if (__builtin_expect(code == PS_UNIT_TWO, 0)) {
        done->after_all = q->cq_doubted.physical;
        code = 2;
    }
    done->units += code;
    if (code > 0 && s->st_arrivals.ar_listened && ps_arrivals_watched(q))
        ps_arrivals_add(&s->st_arrivals, q);
    atomic_store_explicit(&s->st_dispatcher.ds_logic_stamp, r->store_timestamp,
                          memory_order_relaxed);
    return 0;
}

/* Light queues, and those among them that a Java broker has kept in files of their own: these go on
 * as they are. */
static int dispatch_light(ps_store *s, const ps_record *r, ps_dispatched *done, ps_error *e) {
    ps_multi m;
    int code = 0;
    if (atomic_load_explicit(&s->st_light_on, memory_order_relaxed) &&
        (code = ps_lights_dispatch(s, r, e)) < 0)
        return code;
    if (!ps_multi_of(r, &m)) return 0;
    while (code >= 0 && ps_multi_next(&m))
        if (ps_topic_find(&s->st_topics, (const char *)m.mu_as.topic, m.mu_as.topic_len) != NULL)
            code = dispatch_unit(s, &m.mu_as, done, e);
    return code;
}

int ps_dispatch_record(ps_store *s, const ps_record *r, bool queues, bool index,
                       ps_dispatched *done, ps_error *e) {
    int code = 0;
    if (queues && ps_record_has_unit(r)) {
        code = dispatch_unit(s, r, done, e);
        if (code == 0 && atomic_load_explicit(&s->st_topics.tt_lmq, memory_order_relaxed))
            code = dispatch_light(s, r, done, e);
    }
    if (code == 0 && index && s->st_index != NULL && r->properties_len > 0) {
        code = ps_index_put(s->st_index, r, e);
        if (code > 0) done->entries += code;
    }
    return code < 0 ? code : 0;
}

/* ---- the loop ---- */

static void tell_waiters(ps_store *s) {
    ps_arrivals_tell(&s->st_arrivals);
    if (atomic_load(&s->st_dispatcher.ds_news_waiters) == 0) return;
    pthread_mutex_lock(&s->st_dispatcher.ds_news_lock);
    pthread_cond_broadcast(&s->st_dispatcher.ds_news);
    pthread_mutex_unlock(&s->st_dispatcher.ds_news_lock);
}

int ps_dispatch_look(ps_mapfile *mf, int64_t at, int64_t stop, ps_record *r, ps_error *e) {
    ps_rec_outcome o = ps_record_decode(mf->mf_map + (at - mf->mf_base), stop - at, r);
    if (o == PS_REC_BLANK) return 0;
    if (o == PS_REC_OK && r->physical_offset == at) return 1;
    if (ps_mapfile_whole(mf, e) < 0) return PS_E_FILE_SIZE;
    return ps_fail(e, PS_E_DAMAGED, 0, at, mf->mf_path, "the log was damaged while open: %s",
                   ps_rec_outcome_name(o));
}

/* Records of one segment from `at` on; stops at the bound, at the file's end or at a failure. */
static int dispatch_file(ps_store *s, ps_mapfile *mf, int64_t *at, int64_t bound, ps_error *e) {
    int64_t end = mf->mf_base + mf->mf_size;
    ps_dispatched done = {0};
    int64_t stop = bound < end ? bound : end;
    while (*at < stop) {
        ps_record r;
        int code = ps_dispatch_look(mf, *at, stop, &r, e);
        if (code == 0) {
            *at = end;
            break;
        }
        if (code > 0) code = ps_dispatch_record(s, &r, true, true, &done, e);
        if (code < 0) return code;
        *at += r.size;
        atomic_store_explicit(&s->st_dispatcher.ds_end, *at, memory_order_release);
    }
    atomic_store_explicit(&s->st_dispatcher.ds_end, *at, memory_order_release);
    return 0;
}

/* Failures that end by themselves: room on the disk, descriptors and memory come back. The store
 * refuses puts meanwhile and tries again; after any other failure it must be opened again. */
static bool error_passes(int err) {
    return err == ENOSPC || err == EDQUOT || err == EMFILE || err == ENFILE || err == ENOMEM;
}

int ps_dispatch_to_locked(ps_store *s, int64_t bound, ps_error *e) {
    int64_t at = atomic_load(&s->st_dispatcher.ds_end);
    int code = 0;
    if (at >= bound || atomic_load(&s->st_dispatcher.ds_broken)) return 0;
    while (at < bound && code == 0) {
        ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, at, e);
        if (mf == NULL) { /* its file was deleted while waiting: go on where the log begins */
            int64_t min = atomic_load(&s->st_log.lg_min);
            if (at >= min) break;
            at = min;
            continue;
        }
        code = dispatch_file(s, mf, &at, bound, e);
        ps_mapfile_unref(mf);
    }
    atomic_store(&s->st_dispatcher.ds_stall_errno,
                 code < 0 && error_passes(e->sys_errno) ? e->sys_errno : 0);
    if (code < 0 && !error_passes(e->sys_errno)) {
        code = ps_places_why(&s->st_places, code, e);
        s->st_dispatcher.ds_why = *e;
        atomic_store(&s->st_dispatcher.ds_broken, true);
    }
    if (code == 0) code = ps_lights_told(s, e);
    tell_waiters(s);
    return code;
}

int ps_dispatch_catch_up(ps_store *s, ps_error *e) {
    int64_t bound = ps_safe_visible(&s->st_safe);
    ps_error mine = {0};
    if (s->st_readonly ||
        atomic_load_explicit(&s->st_dispatcher.ds_end, memory_order_acquire) >= bound)
        return 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    int code = ps_dispatch_to_locked(s, bound, &mine);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    if (code < 0 && e != NULL) *e = mine;
    return code;
}

void ps_dispatch_wake(ps_store *s) {
    pthread_mutex_lock(&s->st_dispatcher.ds_nap_lock);
    atomic_store(&s->st_dispatcher.ds_napping, false);
    pthread_cond_signal(&s->st_dispatcher.ds_nap_wake);
    pthread_mutex_unlock(&s->st_dispatcher.ds_nap_lock);
}

/* Sleeps until a writer sees ds_napping; the order of the two loads and stores makes sure that
 * either the writer sees the flag or this thread sees the new end. */
static void nap_until_put(ps_store *s) {
    pthread_mutex_lock(&s->st_dispatcher.ds_nap_lock);
    atomic_store(&s->st_dispatcher.ds_napping, true);
    while (atomic_load(&s->st_dispatcher.ds_napping) &&
           !atomic_load(&s->st_dispatcher.ds_stopping) &&
           atomic_load(&s->st_dispatcher.ds_end) >= ps_safe_visible(&s->st_safe))
        pthread_cond_wait(&s->st_dispatcher.ds_nap_wake, &s->st_dispatcher.ds_nap_lock);
    atomic_store(&s->st_dispatcher.ds_napping, false);
    pthread_mutex_unlock(&s->st_dispatcher.ds_nap_lock);
}

static void pause_stalled(ps_store *s) {
    for (int i = 0; i < STALL_RETRY_MS / 10 && !atomic_load(&s->st_dispatcher.ds_stopping); i++)
        usleep(10 * 1000);
}

void *ps_dispatch_main(void *store) {
    ps_store *s = store;
    int idle = 0;
    while (!atomic_load(&s->st_dispatcher.ds_stopping)) {
        if (atomic_load(&s->st_dispatcher.ds_broken)) {
            pause_stalled(s);
            continue;
        }
        int64_t bound = ps_safe_visible(&s->st_safe);
        if (atomic_load(&s->st_dispatcher.ds_end) < bound) {
            ps_error e = {0};
            pthread_mutex_lock(&s->st_dispatcher.ds_lock);
            ps_dispatch_to_locked(s, bound, &e);
            pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
            if (atomic_load(&s->st_dispatcher.ds_stall_errno) != 0) pause_stalled(s);
            idle = 0;
        } else if (++idle > POLLS_IDLE) {
            nap_until_put(s);
            idle = 0;
        } else {
            if (idle > POLLS_QUIET) ps_lights_tell_rest(s);
            usleep(atomic_load(&s->st_dispatcher.ds_news_waiters) > 0 ? POLL_US : POLL_SELDOM_US);
        }
    }
    return NULL;
}
