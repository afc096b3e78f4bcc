/* Topics whose queues were deleted. The records stay in the log until retention takes them, so the
 * store keeps in mind where a topic's earlier life ended: no record of it from below goes to a
 * queue again, whatever is recovered or rebuilt, and its next message has queue offset 0.
 *
 * deletedTopics, in the store's root, is a note of such entries; the layout: files/notes.h.
 *
 * What waits for a time or a decision is such a record, too: when that comes, it goes nowhere
 * (ps_topic_is_past). So a topic that never had a message is kept in mind as well, while anything
 * waits at all.
 *
 * The file is replaced before the first queue file goes, and before a message is put that counts
 * from 0 again. So after a crash in between the queues are there whole, with a file that says
 * otherwise: they are stale, go at the next open, and are made again from the records after the
 * mark. An entry goes once the log begins after it.
 *
 * The file may be that of another store. A clean exit ends every deletion, so that an entry whose
 * queues are there all the same is not believed then; after a crash, one that lies amid a record of
 * the log is not, since a topic is deleted where a record ends. The messages stay, the file is kept
 * aside, the entry goes.
 *
 * Upstream (DefaultMessageStore.deleteTopics) keeps no such mark: when the deleted topic's messages
 * are the newest of the log, or after a crash, its next start makes the queues again, under the old
 * offsets. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/notes.h"
#include "files/replace.h"
#include "store/store.h"

#define FILE_NAME "deletedTopics"
#define FILE_MAX (64 << 20)

/* ---- the file ---- */

static bool take_entries(ps_store *s, const uint8_t *p, int64_t len) {
    ps_tombstone row;
    int64_t at = PS_NOTE_HEAD;
    int32_t more;
    if (!ps_note_good(p, len, PS_NOTE_TOMBSTONES)) return false;
    while ((more = ps_tombstone_next(p, len, &at, &row)) > 0) {
        if (row.name_len > PS_TOPIC_MAX) return false;
        ps_topic *t = ps_topic_get(&s->st_topics, (const char *)p + row.name_at, row.name_len);
        if (t == NULL) return false;
        if (row.below > t->tp_gone_below) t->tp_gone_below = row.below;
    }
    return more == 0;
}

static int read_entries(ps_store *s, int fd, int64_t len, ps_report *r) {
    uint8_t *bytes = len > 0 && len <= FILE_MAX ? malloc((size_t)len) : NULL;
    bool good = bytes != NULL && ps_read_head(s->st_io, fd, bytes, (size_t)len) == len &&
                take_entries(s, bytes, len);
    free(bytes);
    if (!good)
        ps_report_add(r, PS_ACTION_SKIPPED, 0, len, 0, FILE_NAME,
                      "damaged: queues of deleted topics may reappear");
    return 0;
}

static int64_t mtime_ns(const struct stat *st) {
    return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

/* Each change makes a new file, so a reader need not look into one that it knows. */
static bool is_file(const ps_tombstones *tb, const struct stat *st) {
    return tb->tb_inode == st->st_ino && tb->tb_size == st->st_size &&
           tb->tb_mtime_ns == mtime_ns(st);
}

bool ps_tombstones_known(ps_store *s) {
    char path[PATH_MAX];
    struct stat st;
    if (ps_path_in(path, s->st_root, FILE_NAME, NULL) < 0) return false;
    if (s->st_io->stat(s->st_io, path, &st) < 0)
        return errno == ENOENT && s->st_tombstones.tb_inode == 0;
    return is_file(&s->st_tombstones, &st);
}

int ps_tombstones_load(ps_store *s, ps_report *r, ps_error *e) {
    char path[PATH_MAX];
    struct stat st;
    int code = ps_path_in(path, s->st_root, FILE_NAME, e);
    if (code < 0) return code;
    int fd = s->st_io->open(s->st_io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0 && errno == ENOENT) {
        s->st_tombstones.tb_inode = 0;
        return 0;
    }
    if (fd < 0 || s->st_io->fstat(s->st_io, fd, &st) < 0) {
        int err = errno;
        if (fd >= 0) s->st_io->close(s->st_io, fd);
        return ps_fail(e, ps_errno_code(err), err, -1, path,
                       fd < 0 ? "cannot open the file of deleted topics"
                              : "cannot read the size of the file of deleted topics");
    }
    bool known = is_file(&s->st_tombstones, &st);
    s->st_tombstones.tb_inode = st.st_ino;
    s->st_tombstones.tb_size = st.st_size;
    s->st_tombstones.tb_mtime_ns = mtime_ns(&st);
    s->st_tombstones.tb_closed = ps_abort_present(s->st_io, s->st_root) == 0;
    code = known ? 0 : read_entries(s, fd, st.st_size, r);
    s->st_io->close(s->st_io, fd);
    return code;
}

/* Every entry that still matters; returns the length, or -1 without memory. */
static int64_t encode_locked(ps_store *s, uint8_t **out) {
    int64_t len = PS_NOTE_HEAD, min = atomic_load(&s->st_log.lg_min);
    uint8_t *p = malloc(PS_NOTE_HEAD +
                        (size_t)s->st_topics.tt_topics.count * (PS_TOMBSTONE_FIXED + PS_TOPIC_MAX));
    if (p == NULL) return -1;
    for (ps_topic *t = NULL; (t = ps_chains_each(&s->st_topics.tt_topics, t)) != NULL;)
        if (t->tp_gone_below > min)
            len += ps_tombstone_put(p + len, t->tp_gone_below, t->tp_name, t->tp_len);
    ps_note_seal(p, len, PS_NOTE_TOMBSTONES);
    *out = p;
    return len;
}

static int write_file(ps_store *s, ps_error *e) {
    uint8_t *bytes = NULL;
    pthread_rwlock_rdlock(&s->st_topics.tt_shared.qs_lock);
    int64_t len = encode_locked(s, &bytes);
    pthread_rwlock_unlock(&s->st_topics.tt_shared.qs_lock);
    if (len < 0) return ps_no_memory(e, s->st_root, "no memory for the list of deleted topics");
    int code = ps_replace_file(s->st_io, s->st_root, FILE_NAME, bytes, len, e);
    free(bytes);
    return code;
}

/* ---- recovery ---- */

static bool is_stale(ps_queue *q) {
    int64_t below = q->cq_topic->tp_gone_below;
    return below > 0 && ps_queue_begins_before(q, below);
}

/* Whether a whole record, in a row of them from the start of its segment, has this byte in its
 * middle. */
static bool amid_record(ps_store *s, int64_t physical) {
    int64_t avail, start = physical - physical % s->st_log.lg_files.ss_file_size, at = 0;
    ps_record r = {.size = 0};
    ps_mapfile *mf;
    const uint8_t *p = ps_log_at(&s->st_log, start, INT64_MAX, &avail, &mf);
    while (p != NULL && start + at < physical &&
           ps_record_check(p + at, avail - at, start + at, PS_CHECK_BODY_CRC, &r) == PS_REC_OK)
        at += r.size;
    ps_mapfile_unref(mf);
    return start + at > physical;
}

static bool of_another_store(ps_store *s, const ps_topic *t) {
    return s->st_tombstones.tb_closed || amid_record(s, t->tp_gone_below);
}

/* Drops entries that this store's own queues belie; their number. */
static int32_t drop_disbelieved(ps_store *s, ps_queue **queues, int32_t n, ps_report *r) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        ps_topic *t = queues[i]->cq_topic;
        if (!is_stale(queues[i]) || !of_another_store(s, t)) continue;
        char why[400];
        snprintf(why, sizeof why, "not believed: the queues of %s are whole", t->tp_name);
        ps_report_add(r, PS_ACTION_SKIPPED, 0, t->tp_gone_below, -1, FILE_NAME, why);
        t->tp_gone_below = 0;
        count++;
    }
    return count;
}

static int keep_file(ps_store *s, ps_error *e) {
    char path[PATH_MAX];
    struct stat st = {0};
    ps_io *io = s->st_io;
    int code = ps_path_in(path, s->st_root, FILE_NAME, e);
    if (code < 0) return code;
    int fd = io->open(io, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0 || io->fstat(io, fd, &st) < 0)
        code = ps_fail(e, ps_errno_code(errno), errno, -1, path,
                       "cannot read the file of deleted topics");
    uint8_t *bytes = code == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (code == 0 && bytes == NULL)
        code = ps_no_memory(e, path, "no memory for the list of deleted topics");
    if (code == 0 && ps_read_head(io, fd, bytes, (size_t)st.st_size) != st.st_size)
        code = ps_fail(e, PS_E_IO, errno, -1, path, "cannot read the file of deleted topics");
    if (code == 0)
        code = ps_aside_bytes(&s->st_aside, path, 0, bytes, st.st_size,
                              "its topics were not deleted in this store", e);
    if (fd >= 0) io->close(io, fd);
    free(bytes);
    return code;
}

static int sync_topic(ps_store *s, const ps_topic *t, ps_error *e) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s/consumequeue/%s", PATH_MAX - 300, s->st_root, t->tp_name);
    return ps_sync_folder(s->st_io, folder, e);
}

static int clear_stale(ps_store *s, ps_queue *q, ps_error *e) {
    int code = ps_queue_clear(q, e);
    return code == 0 ? sync_topic(s, q->cq_topic, e) : code;
}

int ps_tombstones_settle(ps_store *s, int64_t *from, ps_report *r, ps_error *e) {
    ps_queue **queues;
    int code = 0;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    *from = INT64_MAX;
    if (drop_disbelieved(s, queues, n, r) > 0) {
        code = keep_file(s, e);
        if (code == 0) code = write_file(s, e);
    }
    for (int32_t i = 0; i < n && code == 0; i++) {
        char what[300];
        if (!is_stale(queues[i])) continue;
        int64_t below = queues[i]->cq_topic->tp_gone_below, max = atomic_load(&queues[i]->cq_max);
        if (below < *from) *from = below;
        snprintf(what, sizeof what, "consumequeue/%s/%d", queues[i]->cq_topic->tp_name,
                 queues[i]->cq_id);
        ps_report_add(r, PS_ACTION_REMOVED, 0, max, max, what,
                      "its topic was deleted, which a crash interrupted");
        code = clear_stale(s, queues[i], e);
    }
    free(queues);
    return code;
}

int ps_tombstones_trim(ps_store *s, int64_t end, ps_error *e) {
    bool beyond = false;
    pthread_rwlock_rdlock(&s->st_topics.tt_shared.qs_lock);
    for (ps_topic *t = NULL; (t = ps_chains_each(&s->st_topics.tt_topics, t)) != NULL;) {
        if (t->tp_gone_below <= end) continue;
        t->tp_gone_below = end;
        beyond = true;
    }
    pthread_rwlock_unlock(&s->st_topics.tt_shared.qs_lock);
    return beyond ? write_file(s, e) : 0;
}

void ps_tombstones_doubt(ps_store *s, ps_report *r) {
    ps_queue **queues;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    drop_disbelieved(s, queues, n, r);
    free(queues);
}

void ps_tombstones_hide(ps_store *s) {
    ps_queue **queues;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    for (int32_t i = 0; i < n; i++) {
        if (!is_stale(queues[i])) continue;
        pthread_rwlock_wrlock(&s->st_topics.tt_shared.qs_lock);
        ps_queue_forget_locked(queues[i]);
        pthread_rwlock_unlock(&s->st_topics.tt_shared.qs_lock);
    }
    free(queues);
}

/* ---- deleting ---- */

/* Whether a topic is one of those whose messages wait for their time or their decision. */
static bool is_waiting_room(const ps_topic *t) {
    return strcmp(t->tp_name, PS_SCHEDULE_TOPIC) == 0 || strcmp(t->tp_name, PS_TIMER_TOPIC) == 0 ||
           strcmp(t->tp_name, PS_HALF_TOPIC) == 0;
}

static int no_memory_for_queues(ps_store *s, ps_error *e) {
    return ps_no_memory(e, s->st_root, "no memory for the list of queues");
}

/* From here on the topic's messages count from 0. */
static int begin_anew_locked(ps_store *s, ps_topic *t, ps_queue **queues, int32_t n, ps_error *e) {
    int64_t was = t->tp_gone_below;
    bool any = false;
    if (queues == NULL) return no_memory_for_queues(s, e);
    for (int32_t i = 0; i < n && !any; i++) {
        const ps_topic *of = queues[i]->cq_topic;
        any = queues[i]->cq_next > 0 && (of == t || is_waiting_room(of));
    }
    if (!any) return 0;
    t->tp_gone_below = atomic_load(&s->st_log.lg_end);
    int code = write_file(s, e);
    if (code < 0) {
        t->tp_gone_below = was;
        return code;
    }
    for (int32_t i = 0; i < n; i++)
        if (queues[i]->cq_topic == t) queues[i]->cq_next = 0;
    return 0;
}

static int clear_queues(ps_store *s, ps_topic *t, ps_queue **queues, int32_t n, ps_error *e) {
    char folder[PATH_MAX];
    int code = 0;
    for (int32_t i = 0; i < n && code == 0; i++)
        if (queues[i]->cq_topic == t) {
            ps_tier_forget(&s->st_tier, queues[i]);
            code = ps_queue_clear(queues[i], e);
        }
    snprintf(folder, sizeof folder, "%.*s/consumequeue/%s", PATH_MAX - 300, s->st_root, t->tp_name);
    if (code < 0) return code;
    /* Or it stays, empty or with what is not ours. What went must not come back with a loss of
     * power: after a clean exit, queues that are there belie the mark. */
    bool gone = s->st_io->rmdir(s->st_io, folder) == 0 || errno == ENOENT;
    if (gone) *strrchr(folder, '/') = 0;
    return ps_sync_folder(s->st_io, folder, e);
}

int ps_topic_delete(ps_store *s, ps_topic *t, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    ps_queue **queues;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    if (s->st_readonly) {
        ps_leave(s);
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, s->st_root, "the store is open for reading only");
    }
    pthread_mutex_lock(&s->st_keeper.kp_lock); /* a flush would note positions of what goes */
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    pthread_mutex_lock(&s->st_log.lg_append_lock);
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    int code = begin_anew_locked(s, t, queues, n, e);
    pthread_mutex_unlock(&s->st_log.lg_append_lock);
    if (code == 0 && (code = clear_queues(s, t, queues, n, e)) < 0) {
        /* The files that are left meet new ones: only an open sorts them out. */
        code = ps_places_why(&s->st_places, code, e);
        s->st_dispatcher.ds_why = *e;
        atomic_store(&s->st_dispatcher.ds_broken, true);
    }
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    pthread_mutex_unlock(&s->st_keeper.kp_lock);
    free(queues);
    ps_leave(s);
    return code;
}

/* ---- a master's deletions ---- */

static int dispatch_file_again(ps_store *s, const ps_topic *t, ps_mapfile *mf, int64_t at,
                               int64_t stop, ps_error *e) {
    ps_dispatched done = {0};
    ps_record r;
    int code = 0;
    for (; at < stop && (code = ps_dispatch_look(mf, at, stop, &r, e)) > 0; at += r.size) {
        if (!ps_record_has_unit(&r) || r.topic_len != t->tp_len ||
            memcmp(r.topic, t->tp_name, (size_t)t->tp_len) != 0)
            continue;
        if ((code = ps_dispatch_record(s, &r, true, false, &done, e)) < 0) break;
    }
    return code < 0 ? code : 0;
}

/* Units of the topic's records from `at` on: its queues, while they were longer, took none. */
static int dispatch_again_locked(ps_store *s, const ps_topic *t, int64_t at, ps_error *e) {
    int64_t end = atomic_load(&s->st_dispatcher.ds_end);
    int code = 0;
    while (at < end && code == 0) {
        ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, at, e);
        if (mf == NULL) return e->code < 0 ? e->code : 0; /* retention has it */
        int64_t next = mf->mf_base + mf->mf_size;
        code = dispatch_file_again(s, t, mf, at, next < end ? next : end, e);
        ps_mapfile_unref(mf);
        at = next;
    }
    return code;
}

/* A crash before the units from `at` on stand again: the next open makes them of the log. */
static int doubt_checkpoint_locked(ps_store *s, int64_t at, ps_error *e) {
    int64_t avail, *logics = &s->st_keeper.kp_checkpoint.logics_msg_timestamp;
    ps_mapfile *mf;
    ps_record r = {.store_timestamp = 0};
    const uint8_t *p = ps_log_at(&s->st_log, at, INT64_MAX, &avail, &mf);
    if (p == NULL || ps_record_decode(p, avail, &r) != PS_REC_OK) r.store_timestamp = 0;
    ps_mapfile_unref(mf);
    if (*logics <= r.store_timestamp) return 0;
    *logics = r.store_timestamp;
    return ps_checkpoint_write(s->st_io, s->st_root, &s->st_keeper.kp_checkpoint, e);
}

static int follow_deletion_locked(ps_store *s, ps_topic *t, int64_t below, ps_error *e) {
    ps_queue **queues;
    int64_t was = t->tp_gone_below;
    bool cleared = false;
    int32_t n = ps_queues_snapshot(&s->st_topics, &queues);
    if (queues == NULL) return no_memory_for_queues(s, e);
    t->tp_gone_below = below;
    int code = write_file(s, e);
    if (code == 0) code = doubt_checkpoint_locked(s, below, e);
    if (code < 0) t->tp_gone_below = was;
    for (int32_t i = 0; i < n && code == 0; i++) {
        if (queues[i]->cq_topic != t || !is_stale(queues[i])) continue;
        code = clear_stale(s, queues[i], e);
        cleared = true;
    }
    free(queues);
    return code == 0 && cleared ? dispatch_again_locked(s, t, below, e) : code;
}

int ps_topic_follow_deletion(ps_store *s, ps_topic *t, int64_t below, ps_error *error) {
    ps_error mine = {0}, *e = error != NULL ? error : &mine;
    int code = 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    pthread_mutex_lock(&s->st_keeper.kp_lock);
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    bool follows = atomic_load(&s->st_follow.fo_on);
    if (!follows || below > atomic_load(&s->st_log.lg_end)) {
        code = follows ? 0
                       : ps_fail(e, PS_E_ARGUMENT, 0, below, s->st_root,
                                 "the store follows nobody: delete the topic itself");
    } else if (below > t->tp_gone_below && below > atomic_load(&s->st_log.lg_min)) {
        if (amid_record(s, below))
            code = ps_fail(e, PS_E_ARGUMENT, 0, below, s->st_root,
                           "the master deleted %s amid a record of this log", t->tp_name);
        else if ((code = follow_deletion_locked(s, t, below, e)) < 0) {
            code = ps_places_why(&s->st_places, code, e);
            s->st_dispatcher.ds_why = *e;
            atomic_store(&s->st_dispatcher.ds_broken, true);
        }
    }
    if (code == 0) code = below <= atomic_load(&s->st_log.lg_end);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
    pthread_mutex_unlock(&s->st_keeper.kp_lock);
    ps_leave(s);
    return code;
}
