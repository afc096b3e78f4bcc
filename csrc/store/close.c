/* Closing a store, and how long its memory lives. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "store/store.h"

/* Lets calls under way end, then stops the threads. False when somebody else did it already. */
static bool stop_threads(ps_store *s) {
    pthread_mutex_lock(&s->st_close_lock);
    bool first = !atomic_exchange(&s->st_closed, true);
    if (first) {
        ps_safe_close(&s->st_safe);
        ps_dispatcher_stop(&s->st_dispatcher);
        ps_keeper_stop(&s->st_keeper);
        while (atomic_load(&s->st_users) > 0) usleep(200);
        ps_allocator_stop(&s->st_allocator); /* last: a put may have waited for its next file */
        for (int32_t i = 0; i < s->st_thread_count; i++) pthread_join(s->st_threads[i], NULL);
        s->st_thread_count = 0;
        s->st_flusher.fl_running = s->st_allocator.al_running = false;
    }
    return first;
}

static void release_store(ps_store *s) {
    ps_places_release(&s->st_places);
    ps_lock_release(s->st_io, s->st_lock_fd);
    s->st_lock_fd = -1;
    ps_segments_free(&s->st_log.lg_files);
    s->st_log.lg_active = NULL;
    if (s->st_index != NULL) ps_index_close(s->st_index);
    s->st_index = NULL;
    for (int32_t i = 0; i < atomic_load(&s->st_topics.tt_queue_count); i++)
        ps_queue_release(s->st_topics.tt_queues[i]);
}

/* The abort file goes only when everything is on the disk: what could not be synced is
 * recovered. */
static int finish_writing(ps_store *s, ps_error *e) {
    int code = ps_flusher_sync(&s->st_flusher, 0, e);
    if (code == 0) {
        pthread_mutex_lock(&s->st_dispatcher.ds_lock);
        code = ps_dispatch_to_locked(s, atomic_load(&s->st_log.lg_end), e);
        pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    }
    if (code == 0 && atomic_load(&s->st_light_on))
        code = ps_light_cover(&s->st_light, atomic_load(&s->st_dispatcher.ds_end), true, e);
    if (code == 0) code = ps_keeper_flush(s, true, e);
    if (code == 0 && s->st_keeper.kp_unsynced.code != 0) {
        *e = s->st_keeper.kp_unsynced;
        code = e->code;
    }
    if (code == 0 && !atomic_load(&s->st_dispatcher.ds_broken))
        code = ps_abort_remove(s->st_io, s->st_root, e);
    return code;
}

int ps_store_close(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code = 0;
    if (stop_threads(s)) {
        if (!s->st_readonly) code = finish_writing(s, e);
        ps_allocator_free(&s->st_allocator, false);
        release_store(s);
    }
    pthread_mutex_unlock(&s->st_close_lock);
    return code;
}

void ps_store_abandon(ps_store *s) {
    if (stop_threads(s)) {
        ps_allocator_free(&s->st_allocator, true);
        release_store(s);
    }
    pthread_mutex_unlock(&s->st_close_lock);
}

ps_store *ps_store_ref(ps_store *s) {
    atomic_fetch_add(&s->st_refs, 1);
    return s;
}

void ps_store_unref(ps_store *s) {
    if (atomic_fetch_sub(&s->st_refs, 1) != 1) return;
    ps_tier_free(&s->st_tier);
    ps_topics_free(&s->st_topics);
    ps_light_free(&s->st_light);
    ps_log_free(&s->st_log);
    ps_mappings_free(&s->st_mappings);
    if (s->st_sender_fd >= 0) close(s->st_sender_fd);
    free(s->st_root);
    free(s);
}

void ps_store_free(ps_store *s) {
    if (s == NULL) return;
    ps_store_close(s, NULL);
    ps_store_unref(s);
}

/* The threads are the parent's and a lock may be held by one of them, so nothing is joined, flushed
 * or freed: the memory is a copy that ends with the process. Only the descriptor of the lock is
 * closed. */
void ps_store_forget(ps_store *s) {
    atomic_store(&s->st_closed, true);
    if (s->st_lock_fd >= 0) s->st_io->close(s->st_io, s->st_lock_fd);
    s->st_lock_fd = -1;
    ps_places_forget(&s->st_places);
}
