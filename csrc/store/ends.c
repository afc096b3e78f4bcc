/* queueEnds, in the store's root: a note of our own (files/notes.h). See ends.h.
 *
 *   offset width meaning
 *        8   i64 end of the log that was dispatched
 *       16   i64 where the log began
 *       24 3*i64 the checkpoint's physic, logics and index times, ms
 *       48       entries (ps_noted_end of files/notes.h)
 *
 * The file is replaced by a rename, so that a crash leaves the old one or the new one. It counts
 * only with the checkpoint that was written with it: another broker that ran since has written its
 * own, and may have deleted topics. */
#define _GNU_SOURCE
#include "store/ends.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/report.h"
#include "files/notes.h"
#include "files/replace.h"
#include "format/multi.h"
#include "store/lights.h"
#include "store/store.h"

#define FILE_NAME "queueEnds"
#define FILE_MAX (256LL << 20)

/* ---- writing ---- */

static int64_t encode_ends(ps_store *s, ps_queue **queues, int32_t n, uint8_t *p) {
    int64_t len = PS_NOTED_ENDS;
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = queues[i];
        int64_t base = ps_segments_base(&q->cq_files, 0), synced = atomic_load(&q->cq_flushed);
        if (base < 0 || synced <= 0) continue;
        int64_t physical =
            synced == atomic_load(&q->cq_max) ? atomic_load(&q->cq_max_physical) : -1;
        const ps_noted_end end = {.first = base / PS_UNIT, .end = synced, .physical = physical,
                                  .queue = q->cq_id, .name_len = q->cq_topic->tp_len};
        len += ps_noted_end_put(p + len, &end, q->cq_topic->tp_name);
    }
    be64_put(p + 8, (uint64_t)atomic_load(&s->st_dispatcher.ds_end));
    be64_put(p + 16, (uint64_t)atomic_load(&s->st_log.lg_min));
    be64_put(p + 24, (uint64_t)s->st_keeper.kp_checkpoint.physic_msg_timestamp);
    be64_put(p + 32, (uint64_t)s->st_keeper.kp_checkpoint.logics_msg_timestamp);
    be64_put(p + 40, (uint64_t)s->st_keeper.kp_checkpoint.index_msg_timestamp);
    ps_note_seal(p, len, PS_NOTE_ENDS);
    return len;
}

int ps_ends_write_locked(ps_store *s, ps_error *e) {
    ps_queue **queues;
    int64_t room = PS_NOTED_ENDS;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) room += PS_NOTED_END_FIXED + queues[i]->cq_topic->tp_len;
    uint8_t *bytes = malloc((size_t)room);
    int code =
        bytes == NULL ? ps_no_memory(e, s->st_root, "no memory for the file of queue ends") : 0;
    if (code == 0)
        code = ps_replace_file(s->st_io, s->st_root, FILE_NAME, bytes,
                               encode_ends(s, queues, n, bytes), e);
    free(bytes);
    free(queues);
    return code;
}

/* ---- comparing ---- */

/* Marks the queue when it has less than the note says. */
static int compare_one(ps_store *s, const ps_noted_end *n, const char *name, bool begins_alike,
                       ps_report *r, ps_error *e) {
    char what[300];
    if (n->physical >= 0 && n->physical <= atomic_load(&s->st_log.lg_min)) return 0;
    ps_topic *t = ps_topic_get(&s->st_topics, name, n->name_len);
    if (t != NULL && t->tp_gone_below > 0 && t->tp_gone_below >= n->physical) return 0;
    ps_queue *q = t != NULL ? ps_topic_queue_get(t, n->queue) : NULL;
    if (q == NULL) return ps_no_memory(e, NULL, "no memory for the queue");
    int64_t base = ps_segments_base(&q->cq_files, 0), end = atomic_load(&q->cq_max);
    bool front = base / PS_UNIT > n->first && begins_alike;
    if (base >= 0 && end >= n->end && !front) return 0;
    if (front) ps_queue_restart(q);
    q->cq_hole = true;
    snprintf(what, sizeof what, "consumequeue/%s/%d", t->tp_name, q->cq_id);
    ps_report_add(r, PS_ACTION_SKIPPED, front ? n->first : end, n->end, n->end - end, what,
                  base < 0 ? "the queue is missing"
                  : front  ? "the queue's first files are missing"
                           : "the queue is shorter than it was");
    return 0;
}

/* Whether it was written with this checkpoint. After a crash the log may have been synced since. */
static bool is_of(const uint8_t *p, const ps_checkpoint *c, bool crashed) {
    return (crashed || (int64_t)be64_get(p + 24) == c->physic_msg_timestamp) &&
           (int64_t)be64_get(p + 32) == c->logics_msg_timestamp &&
           (int64_t)be64_get(p + 40) == c->index_msg_timestamp;
}

int ps_ends_compare(ps_store *s, const uint8_t *p, int64_t len, bool crashed, ps_report *r,
                    ps_error *e) {
    if (p == NULL) return 0;
    bool begins_alike = (int64_t)be64_get(p + 16) == atomic_load(&s->st_log.lg_min);
    bool elsewhere = ps_has_light_files(s);
    int64_t at = PS_NOTED_ENDS;
    ps_noted_end n;
    int code = 0;
    if (!is_of(p, &s->st_keeper.kp_checkpoint, crashed)) return 0;
    while (code == 0 && ps_noted_end_next(p, len, &at, &n) > 0) {
        const char *name = (const char *)p + n.name_at;
        if (n.name_len > PS_TOPIC_MAX || n.queue > PS_QUEUE_ID_MAX) return 0;
        /* One that had a folder, too, needs none. */
        if (elsewhere && ps_name_is_lmq((const uint8_t *)name, n.name_len)) continue;
        code = compare_one(s, &n, name, begins_alike, r, e);
    }
    return code < 0 ? code : 1;
}

uint8_t *ps_ends_read(ps_io *io, const char *root, int64_t *len) {
    char path[PATH_MAX];
    struct stat st;
    uint8_t *bytes = NULL;
    if (ps_path_in(path, root, FILE_NAME, NULL) < 0) return NULL;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return NULL; /* nothing is known: not a failure */
    if (io->fstat(io, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= PS_NOTED_ENDS &&
        st.st_size <= FILE_MAX)
        bytes = malloc((size_t)st.st_size);
    if (bytes != NULL && (ps_read_head(io, fd, bytes, (size_t)st.st_size) != st.st_size ||
                          !ps_note_good(bytes, st.st_size, PS_NOTE_ENDS))) {
        free(bytes);
        bytes = NULL;
    }
    *len = bytes != NULL ? st.st_size : 0;
    io->close(io, fd);
    return bytes;
}

int32_t ps_queues_are_noted(const char *root) {
    ps_io *io = ps_io_system();
    ps_checkpoint c;
    int64_t len;
    uint8_t *bytes = ps_ends_read(io, root, &len);
    bool noted = bytes != NULL && ps_checkpoint_read(io, root, &c, NULL) == 0 &&
                 is_of(bytes, &c, ps_abort_present(io, root) == 1);
    free(bytes);
    return noted;
}
