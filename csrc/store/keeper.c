/* Syncing what is derived from the log: queues, index, and the checkpoint that says how far they
 * reach; by a thread that runs retention, too. See
 * docs/internals/format.md#flushing-and-status; upstream FlushConsumeQueueService. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "store/ends.h"
#include "store/store.h"

#define INTERVAL_MAX_MS 1000

void ps_keeper_init(ps_keeper *k) {
    pthread_mutex_init(&k->kp_lock, NULL);
    pthread_mutex_init(&k->kp_nap_lock, NULL);
    ps_cond_init(&k->kp_wake);
}

void ps_keeper_stop(ps_keeper *k) {
    pthread_mutex_lock(&k->kp_nap_lock);
    atomic_store(&k->kp_stopping, true);
    pthread_cond_broadcast(&k->kp_wake);
    pthread_mutex_unlock(&k->kp_nap_lock);
}

void ps_keeper_show_locked(ps_keeper *k) {
    const ps_checkpoint *c = &k->kp_checkpoint;
    const int64_t values[5] = {c->physic_msg_timestamp, c->logics_msg_timestamp,
                               c->index_msg_timestamp, c->master_flushed_offset,
                               c->confirm_phy_offset};
    for (int i = 0; i < 5; i++) atomic_store(&k->kp_shown[i], values[i]);
}

static int flush_queues(ps_store *s, int least_pages, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n && code == 0; i++) code = ps_queue_flush(queues[i], least_pages, e);
    free(queues);
    return code;
}

/* 1: written; 0: it holds all this already. */
static int write_checkpoint(ps_store *s, ps_error *e) {
    int64_t physic = atomic_load(&s->st_flusher.fl_physic_stamp);
    if (physic > s->st_keeper.kp_checkpoint.physic_msg_timestamp) {
        s->st_keeper.kp_checkpoint.physic_msg_timestamp = physic;
        s->st_keeper.kp_dirty = true;
    }
    if (!s->st_keeper.kp_dirty) return 0;
    int code = ps_checkpoint_write(s->st_io, s->st_root, &s->st_keeper.kp_checkpoint, e);
    if (code == 0) s->st_keeper.kp_dirty = false;
    return code == 0 ? 1 : code;
}

/* The store is where it was opened, and nobody else's. What is wrong with that is for good: nothing
 * more is put, and no file of it is written by its path, which may be another store's by now. */
static int check_place(ps_store *s, ps_error *e) {
    int code = ps_places_check(&s->st_places, e);
    if (code == 0 && !s->st_readonly) code = ps_lock_keep(s->st_io, s->st_root, &s->st_lock_fd, e);
    if (code != PS_E_NOT_WRITEABLE && code != PS_E_LOCKED) return code < 0 ? code : 0;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    if (!atomic_load(&s->st_dispatcher.ds_broken)) {
        s->st_dispatcher.ds_why = *e;
        atomic_store(&s->st_dispatcher.ds_broken, true);
    }
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    return code;
}

/* The checkpoint's times for queues and index move only here, after the syncs, to what was
 * dispatched before them: recovery trusts derived files up to there and rebuilds the rest. */
int ps_keeper_flush(ps_store *s, bool thorough, ps_error *e) {
    pthread_mutex_lock(&s->st_keeper.kp_lock);
    int64_t logic = atomic_load(&s->st_dispatcher.ds_logic_stamp);
    int code = check_place(s, e);
    if (code == 0) code = flush_queues(s, thorough ? 0 : s->st_conf.queue_flush_least_pages, e);
    if (code == 0 && thorough) code = ps_queues_sync_folders(&s->st_topics, e);
    if (code == 0 && atomic_load(&s->st_light_on))
        code = ps_light_flush(&s->st_light, thorough, e);
    if (code == 0 && thorough && s->st_index != NULL) code = ps_index_flush(s->st_index, e);
    if (code == 0 && thorough && logic > s->st_keeper.kp_checkpoint.logics_msg_timestamp) {
        s->st_keeper.kp_checkpoint.logics_msg_timestamp = logic;
        s->st_keeper.kp_checkpoint.index_msg_timestamp = logic;
        s->st_keeper.kp_dirty = true;
    }
    if (code == 0) code = write_checkpoint(s, e);
    /* It counts only beside the checkpoint that was written with it: the last one is noted, too. */
    if (thorough && (code > 0 || (code == 0 && atomic_load(&s->st_keeper.kp_stopping))))
        code = ps_ends_write_locked(s, e);
    code = code > 0 ? 0 : code;
    if (code == PS_E_FLUSH_FAILED && s->st_keeper.kp_unsynced.code == 0)
        s->st_keeper.kp_unsynced = *e; /* a later sync that succeeds says nothing of these bytes */
    ps_keeper_show_locked(&s->st_keeper);
    pthread_mutex_unlock(&s->st_keeper.kp_lock);
    return code;
}

void *ps_keeper_main(void *store) {
    ps_store *s = store;
    int64_t began = ps_monotonic_ms(), thorough_at = began + s->st_conf.queue_flush_thorough_ms;
    int64_t clean_at = began + 6 * (int64_t)s->st_conf.clean_interval_ms;
    ps_retention_report cleaned;
    ps_error e;
    int32_t nap = s->st_conf.queue_flush_interval_ms;
    if (nap <= 0 || nap > INTERVAL_MAX_MS) nap = INTERVAL_MAX_MS;
    while (!atomic_load(&s->st_keeper.kp_stopping)) {
        struct timespec until = ps_monotonic_in(nap * 1000000LL);
        pthread_mutex_lock(&s->st_keeper.kp_nap_lock);
        if (!atomic_load(&s->st_keeper.kp_stopping))
            pthread_cond_timedwait(&s->st_keeper.kp_wake, &s->st_keeper.kp_nap_lock, &until);
        pthread_mutex_unlock(&s->st_keeper.kp_nap_lock);
        if (atomic_load(&s->st_keeper.kp_stopping)) break;
        int64_t now = ps_monotonic_ms();
        bool thorough = now >= thorough_at;
        if (thorough) thorough_at = now + s->st_conf.queue_flush_thorough_ms;
        e.code = 0;
        ps_keeper_flush(s, thorough, &e); /* a failure leaves the checkpoint where it was */
        if (s->st_conf.clean_interval_ms > 0 && now >= clean_at) {
            clean_at = now + s->st_conf.clean_interval_ms;
            /* Whether the disk is full is looked at in any case. */
            bool rests = atomic_load(&s->st_retention.rt_resting);
            ps_retention_round(s, ps_now_ms(), false, false, rests, &cleaned, &e);
            atomic_store(&s->st_retention.rt_disk_full, cleaned.disk_full != 0);
        }
    }
    return NULL;
}

/* ---- when a caller asks for it ---- */

int32_t ps_must_wait(const ps_store *s, int64_t physical) {
    return ps_safe_must_wait(&s->st_safe, physical);
}

int ps_wait_flushed(ps_store *s, int64_t physical, int32_t timeout_ms, ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    int code = ps_flusher_wait(&s->st_flusher, physical, timeout_ms, e);
    ps_leave(s);
    return code;
}

int ps_store_flush(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    int code = s->st_readonly ? 0 : ps_flusher_sync(&s->st_flusher, 0, e);
    if (code == 0 && !s->st_readonly) code = ps_dispatch_catch_up(s, e);
    if (code == 0 && !s->st_readonly) code = ps_keeper_flush(s, true, e);
    ps_leave(s);
    return code;
}
