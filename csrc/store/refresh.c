/* A reader takes note of what another process has written since its last look. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "store/lights.h"

/* Segments that the writer's retention has deleted; batches keep their own references. */
static void forget_deleted(ps_store *s, int64_t first) {
    ps_queue **queues;
    if (first == INT64_MAX || first <= atomic_load(&s->st_log.lg_min)) return;
    ps_log_forget_below(&s->st_log, first);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) ps_queue_correct_min(queues[i], first, NULL);
    free(queues);
}

/* Retention took what the reader had not looked at yet: it goes on where the log begins now. */
static void skip_deleted(ps_store *s, int64_t first) {
    if (first == INT64_MAX || first <= atomic_load(&s->st_log.lg_end)) return;
    atomic_store(&s->st_log.lg_end, first);
    atomic_store(&s->st_log.lg_flushed, first);
    atomic_store(&s->st_dispatcher.ds_end, first);
}

static int follow_writer_locked(ps_store *s, ps_error *e) {
    int64_t first;
    int code = ps_log_refresh(&s->st_log, &first, e);
    if (code == 0) code = ps_reader_check_mark(s, &first, e);
    if (code == 0) code = ps_tombstones_load(s, NULL, e);
    if (code == 0) ps_tombstones_hide(s);
    s->st_topics.tt_shared.qs_log_limit = ps_log_listed_end(&s->st_log);
    if (code == 0) code = ps_queues_refresh(&s->st_topics, e);
    if (code == 0) ps_tombstones_hide(s); /* the writer deletes them after it has said so */
    if (code == 0) forget_deleted(s, first);
    if (code == 0) skip_deleted(s, first);
    if (code == 0) code = ps_reader_extend_locked(s, e);
    if (code == 0) code = ps_lights_follow_locked(s, e);
    if (code == 0 && s->st_index != NULL) code = ps_index_refresh(s->st_index, e);
    if (code == 0 && s->st_index != NULL &&
        ps_index_end(s->st_index) > atomic_load(&s->st_index_tail))
        atomic_store(&s->st_index_tail, ps_index_end(s->st_index));
    return code;
}

int ps_store_refresh(ps_store *s, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    if (!s->st_readonly) {
        code = ps_dispatch_catch_up(s, e);
    } else {
        pthread_mutex_lock(&s->st_dispatcher.ds_lock);
        int tries = 0;
        s->st_view++;
        do {
            e->code = 0;
            code = follow_writer_locked(s, e);
        } while (code < 0 && ps_looks_again(s->st_io, s->st_root, e, &tries));
        s->st_view_whole = code == 0;
        pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    }
    ps_leave(s);
    return code;
}

/* Queues are not looked at. A writer dispatches what is in the log, and a reader has taken that
 * itself: they only follow what the log has shown. */
int64_t ps_store_view(ps_store *s) {
    int64_t view = 0;
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    if (s->st_readonly) {
        pthread_mutex_lock(&s->st_dispatcher.ds_lock);
        if (s->st_view_whole && ps_tombstones_known(s) && ps_log_stands(&s->st_log))
            view = s->st_view;
        pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    }
    ps_leave(s);
    return view;
}
