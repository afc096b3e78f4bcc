/* Facts of a store: positions, sizes, its queues and topics. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "store/store.h"

static int64_t first_timestamp(ps_store *s) {
    ps_record r;
    int64_t avail, min = atomic_load(&s->st_log.lg_min);
    ps_mapfile *mf;
    const uint8_t *p = ps_log_at(&s->st_log, min, atomic_load(&s->st_log.lg_end), &avail, &mf);
    bool there = p != NULL && ps_record_decode(p, avail, &r) == PS_REC_OK;
    ps_mapfile_unref(mf);
    return there ? r.store_timestamp : -1;
}

static void index_info(const ps_store *s, ps_info *out) {
    out->index_slots = s->st_index ? ps_index_slots(s->st_index) : 0;
    out->index_entries = s->st_index ? ps_index_entries(s->st_index) : 0;
    out->index_files = s->st_index ? ps_index_files(s->st_index) : 0;
    out->index_used = s->st_index ? ps_index_used(s->st_index) : 0;
}

static bool disk_full(ps_store *s) {
    return atomic_load(&s->st_retention.rt_disk_full) || atomic_load(&s->st_log.lg_disk_full) ||
           ps_errno_code(atomic_load(&s->st_dispatcher.ds_stall_errno)) == PS_E_DISK_FULL;
}

int ps_store_disk_full(ps_store *s) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    int full = disk_full(s);
    ps_leave(s);
    return full;
}

int ps_store_info(ps_store *s, ps_info *out) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    *out = (ps_info){.log_min = atomic_load(&s->st_log.lg_min),
                     .log_max = atomic_load(&s->st_log.lg_end),
                     .log_flushed = atomic_load(&s->st_log.lg_flushed),
                     .dispatched = atomic_load(&s->st_dispatcher.ds_end),
                     .commitlog_file_size = s->st_log.lg_files.ss_file_size,
                     .consumequeue_file_size = s->st_topics.tt_shared.qs_file_size,
                     .log_files = ps_segments_count(&s->st_log.lg_files),
                     .topics = (int32_t)s->st_topics.tt_topics.count,
                     .queues = atomic_load(&s->st_topics.tt_queue_count),
                     .writable = !s->st_readonly,
                     .disk_full = disk_full(s),
                     .sync_flush = s->st_conf.sync_flush,
                     .flush_errno = ps_safe_errno(&s->st_safe),
                     .fsyncs = atomic_load(&s->st_flusher.fl_fsyncs),
                     .sync_ns = atomic_load(&s->st_flusher.fl_fsync_ns),
                     .sync_max_ns = atomic_load(&s->st_flusher.fl_fsync_max_ns),
                     .puts = atomic_load(&s->st_log.lg_puts),
                     .damaged_reads = atomic_load(&s->st_damaged_reads),
                     .store_timestamp_min = first_timestamp(s),
                     .background = s->st_thread_count > 0,
                     .abort_present = ps_abort_present(s->st_io, s->st_root)};
    int64_t stamp = atomic_load(&s->st_log.lg_published_stamp);
    out->store_timestamp_max = out->log_max > out->log_min && stamp > 0 ? stamp : -1;
    index_info(s, out);
    for (int i = 0; i < 5; i++) out->checkpoint[i] = atomic_load(&s->st_keeper.kp_shown[i]);
    ps_leave(s);
    return 0;
}

int ps_store_log_resident(ps_store *s, int64_t *mapped, int64_t *resident) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    ps_segments_resident(&s->st_log.lg_files, atomic_load(&s->st_log.lg_min),
                         atomic_load(&s->st_log.lg_end), 256, mapped, resident);
    ps_leave(s);
    return 0;
}

static int by_topic(const void *a, const void *b) {
    const ps_queue *x = *(ps_queue *const *)a, *y = *(ps_queue *const *)b;
    int c = strcmp(x->cq_topic->tp_name, y->cq_topic->tp_name);
    return c != 0 ? c : (x->cq_id > y->cq_id) - (x->cq_id < y->cq_id);
}

/* A queue that somebody only waits for has neither files nor messages: nobody else need know. */
static int32_t drop_unborn(ps_queue **queues, int32_t n) {
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = queues[i];
        if (atomic_load(&q->cq_max) > 0 || ps_segments_count(&q->cq_files) > 0) queues[kept++] = q;
    }
    return kept;
}

int32_t ps_store_queues(ps_store *s, ps_queue_info *out, int32_t room) {
    ps_queue **queues;
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    ps_dispatch_catch_up(s, NULL);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    n = drop_unborn(queues, n);
    if (n > 1) qsort(queues, (size_t)n, sizeof *queues, by_topic);
    for (int32_t i = 0; i < n && i < room; i++) {
        ps_queue *q = queues[i];
        out[i] = (ps_queue_info){
            q->cq_topic->tp_name,    q->cq_topic->tp_len,     q->cq_id,
            atomic_load(&q->cq_min), atomic_load(&q->cq_max), atomic_load(&q->cq_max_physical)};
    }
    free(queues);
    ps_leave(s);
    return n;
}

ps_topic *ps_topic_open(ps_store *s, const char *name, int32_t len, int32_t make, ps_error *e) {
    const char *why = "";
    if (ps_enter(s) < 0) {
        ps_refuse_closed(s, e);
        return NULL;
    }
    ps_topic *t = len < 0 || len > PS_TOPIC_MAX ? NULL : ps_topic_find(&s->st_topics, name, len);
    if (t == NULL && make && s->st_readonly) {
        ps_fail(e, PS_E_READ_ONLY, 0, -1, s->st_root, "the store is open for reading only");
    } else if (t == NULL && make) {
        int code = ps_topic_check((const uint8_t *)name, len, &why);
        if (code < 0)
            ps_fail(e, code, 0, -1, NULL, "topic '%.140s': %s", name, why);
        else if ((t = ps_topic_get(&s->st_topics, name, len)) == NULL)
            ps_no_memory(e, NULL, "no memory for the topic");
    } else if (t == NULL) {
        ps_fail(e, PS_E_NOT_FOUND, 0, -1, s->st_root, "the store has no topic '%.200s'", name);
    }
    ps_leave(s);
    return t;
}

int ps_queue_range(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t *min_offset,
                   int64_t *max_offset) {
    if (ps_enter(s) < 0) return PS_E_CLOSED;
    ps_dispatch_catch_up(s, NULL);
    ps_queue *q = topic != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    *min_offset = q != NULL ? atomic_load(&q->cq_min) : 0;
    *max_offset = q != NULL ? atomic_load(&q->cq_max) : 0;
    ps_leave(s);
    return q != NULL ? 0 : PS_E_NOT_FOUND;
}
