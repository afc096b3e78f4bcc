/* queueEnds, in the store's root: a note of our own (files/notes.h). See ends.h.
 *
 *   offset width meaning
 *        8   i64 end of the log that was dispatched
 *       16   i64 where the log began
 *       24 3*i64 the checkpoint's physic, logics and index times, ms
 *       48       entries, each:
 *            i64 first offset of the queue's first file
 *            i64 offset up to which its units are on the disk
 *            i64 end of the last record of those, -1 unknown
 *            i32 queue id
 *            i32 length of the topic's name, then the name
 *
 * The file is replaced by a rename, so that a crash leaves the old one or the new one. After a
 * clean close it counts only with the checkpoint that was written with it: another broker that ran
 * since has written its own, and may have deleted topics. */
#define _GNU_SOURCE
#include "store/ends.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/report.h"
#include "files/notes.h"
#include "files/replace.h"
#include "store/store.h"

#define FILE_NAME "queueEnds"
#define HEAD 48
#define ENTRY_HEAD 32
#define FILE_MAX (256LL << 20)

/* ---- writing ---- */

static int64_t encode_ends(ps_store *s, ps_queue **queues, int32_t n, uint8_t *p) {
    int64_t len = HEAD;
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = queues[i];
        int64_t base = ps_segments_base(&q->cq_files, 0), synced = atomic_load(&q->cq_flushed);
        if (base < 0 || synced <= 0) continue;
        int64_t physical =
            synced == atomic_load(&q->cq_max) ? atomic_load(&q->cq_max_physical) : -1;
        be64_put(p + len, (uint64_t)(base / PS_UNIT));
        be64_put(p + len + 8, (uint64_t)synced);
        be64_put(p + len + 16, (uint64_t)physical);
        be32_put(p + len + 24, (uint32_t)q->cq_id);
        be32_put(p + len + 28, (uint32_t)q->cq_topic->tp_len);
        memcpy(p + len + ENTRY_HEAD, q->cq_topic->tp_name, (size_t)q->cq_topic->tp_len);
        len += ENTRY_HEAD + q->cq_topic->tp_len;
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
    int64_t room = HEAD;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) room += ENTRY_HEAD + queues[i]->cq_topic->tp_len;
    uint8_t *bytes = malloc((size_t)room);
    int code = bytes == NULL ? ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, s->st_root,
                                       "no memory for the file of queue ends")
                             : 0;
    if (code == 0)
        code = ps_replace_file(s->st_io, s->st_root, FILE_NAME, bytes,
                               encode_ends(s, queues, n, bytes), e);
    free(bytes);
    free(queues);
    return code;
}

/* ---- comparing ---- */

typedef struct noted_end {
    int64_t first, end, physical;
    int32_t id, len;
    const char *name;
} noted_end;

/* Marks the queue when it has less than the note says. */
static int compare_one(ps_store *s, const noted_end *n, bool begins_alike, ps_report *r,
                       ps_error *e) {
    char what[300];
    if (n->physical >= 0 && n->physical <= atomic_load(&s->st_log.lg_min)) return 0;
    ps_topic *t = ps_topic_get(&s->st_topics, n->name, n->len);
    if (t != NULL && t->tp_gone_below > 0 && t->tp_gone_below >= n->physical) return 0;
    ps_queue *q = t != NULL ? ps_topic_queue_get(t, n->id) : NULL;
    if (q == NULL) return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for the queue");
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

static int compare_all(ps_store *s, const uint8_t *p, int64_t len, bool crashed, ps_report *r,
                       ps_error *e) {
    bool begins_alike = (int64_t)be64_get(p + 16) == atomic_load(&s->st_log.lg_min);
    bool noted = is_of(p, &s->st_keeper.kp_checkpoint, crashed);
    int code = 0;
    if (!crashed && !noted) return 0;
    for (int64_t at = HEAD; at + ENTRY_HEAD <= len && code == 0;) {
        noted_end n = {(int64_t)be64_get(p + at),      (int64_t)be64_get(p + at + 8),
                       (int64_t)be64_get(p + at + 16), (int32_t)be32_get(p + at + 24),
                       (int32_t)be32_get(p + at + 28), (const char *)p + at + ENTRY_HEAD};
        at += ENTRY_HEAD;
        if (n.len <= 0 || n.len > PS_TOPIC_MAX || n.len > len - at || n.id < 0 ||
            n.id > PS_QUEUE_ID_MAX || n.first < 0 || n.end < n.first)
            return 0;
        code = compare_one(s, &n, begins_alike, r, e);
        at += n.len;
    }
    return code < 0 ? code : noted;
}

/* The whole note, to be freed; NULL: there is none. */
static uint8_t *read_note(ps_io *io, const char *root, int64_t *len) {
    char path[PATH_MAX];
    struct stat st;
    uint8_t *bytes = NULL;
    if (ps_path_in(path, root, FILE_NAME, NULL) < 0) return NULL;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return NULL; /* nothing is known: not a failure */
    if (io->fstat(io, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= HEAD &&
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

int ps_ends_compare(ps_store *s, bool crashed, ps_report *r, ps_error *e) {
    int64_t len;
    uint8_t *bytes = read_note(s->st_io, s->st_root, &len);
    int code = bytes != NULL ? compare_all(s, bytes, len, crashed, r, e) : 0;
    free(bytes);
    return code;
}

int32_t ps_queues_are_noted(const char *root) {
    ps_io *io = ps_io_system();
    ps_checkpoint c;
    int64_t len;
    uint8_t *bytes = read_note(io, root, &len);
    bool noted = bytes != NULL && ps_checkpoint_read(io, root, &c, NULL) == 0 &&
                 is_of(bytes, &c, ps_abort_present(io, root) == 1);
    free(bytes);
    return noted;
}
