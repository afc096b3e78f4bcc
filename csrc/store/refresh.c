/* A reader takes note of what another process has written since its last look. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

void ps_reader_mark(ps_store *s, int64_t start) {
    s->st_mark_at = start;
    if (start >= 0 &&
        ps_segments_peek(&s->st_log.lg_files, start, s->st_mark, sizeof s->st_mark, NULL) <= 0)
        s->st_mark_at = -1;
}

/* A slave cuts off what its master does not have, and takes other records in its place: of its
 * queues, too, offsets that were shown are given once more. */
static int check_mark(ps_store *s, int64_t *first, ps_error *e) {
    uint8_t now[sizeof s->st_mark];
    ps_error why = {0};
    int64_t at = s->st_mark_at;
    if (at < 0 || (*first != INT64_MAX && at < *first)) return 0; /* retention has it */
    int code = ps_segments_read(&s->st_log.lg_files, at, now, sizeof now, &why);
    if (code > 0 && memcmp(now, s->st_mark, sizeof now) == 0) return 0;
    if (code < 0 && why.sys_errno != ENOENT) {
        *e = why;
        return code;
    }
    if (code < 0) code = ps_log_refresh(&s->st_log, first, e); /* retention may have it just now */
    if (code < 0) return code;
    if (*first != INT64_MAX && at < *first) return 0;
    return ps_fail(e, PS_E_CUT_BACK, 0, at, s->st_root,
                   "the log was cut back: the record at %lld, which was there, is another one, or"
                   " none", (long long)at);
}

static int follow_writer_locked(ps_store *s, ps_error *e) {
    int64_t first;
    int code = ps_log_refresh(&s->st_log, &first, e);
    if (code == 0) code = check_mark(s, &first, e);
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
    if (ps_enter(s) < 0) return ps_fail(e, PS_E_CLOSED, 0, -1, NULL, "the store is closed");
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
