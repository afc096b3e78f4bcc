/* Units of some segments, each written to its place. See derive.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/grow.h"
#include "derive/part.h"
#include "files/mapfile.h"
#include "queues/consumequeue.h"

#define UNITS_FIRST 16 /* gathered before they are written: most of many queues get few */
#define UNITS_MOST 2048

/* One queue of the part. */
typedef struct dv_queue {
    ps_chain qu_chain;
    int64_t qu_first, qu_end; /* offsets of the units that the part has */
    uint8_t *qu_units;        /* the last of them, which are not written yet */
    int32_t qu_count, qu_room;
    int32_t qu_id, qu_topic_len;
    char qu_topic[];
} dv_queue;

ps_derive *ps_derive_new(const ps_derive_conf *conf, ps_io *io) {
    ps_derive *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    d->dv_io = io != NULL ? io : ps_io_system_of((mode_t)conf->file_mode);
    d->dv_conf = *conf;
    d->dv_levels.count = conf->level_count;
    memcpy(d->dv_levels.delay_ms, conf->level_delay_ms, sizeof d->dv_levels.delay_ms);
    d->dv_into = strdup(conf->into);
    if (d->dv_into == NULL) {
        free(d);
        return NULL;
    }
    d->dv_folder = d->dv_io->open(d->dv_io, d->dv_into, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    return d;
}

void ps_derive_free(ps_derive *d) {
    if (d == NULL) return;
    for (int32_t i = 0; i < d->dv_queue_count; i++) {
        free(d->dv_queues[i]->qu_units);
        free(d->dv_queues[i]);
    }
    if (d->dv_folder >= 0) d->dv_io->close(d->dv_io, d->dv_folder);
    ps_chains_free(&d->dv_table, false);
    free(d->dv_queues);
    free(d->dv_into);
    free(d);
}

/* ---- the walk ---- */

int dv_walk(ps_derive *d, const char *path, int64_t base, int64_t size, bool last, dv_visit visit,
            void *arg, ps_error *e) {
    ps_mapfile *mf;
    ps_rec_outcome o = PS_REC_OK;
    ps_record r = {0};
    int64_t at = 0;
    int code = ps_mapfile_open(d->dv_io, path, base, size, 0, &mf, e);
    if (code < 0) return code;
    madvise(mf->mf_map, (size_t)size, MADV_SEQUENTIAL);
    for (code = 1; at < size && code > 0; at += r.size) {
        o = ps_record_check(mf->mf_map + at, size - at, base + at, 0, &r);
        if (o != PS_REC_OK) break;
        code = visit(arg, &r, e);
    }
    bool ends = o == PS_REC_OK || (o == PS_REC_BLANK && r.size == size - at);
    if (code > 0 && !ends && !last) code = 0;
    if (code >= 0 && ps_mapfile_whole(mf, e) < 0) code = PS_E_FILE_SIZE;
    ps_mapfile_unref(mf);
    return code;
}

/* ---- files ---- */

static void folder_of(const ps_derive *d, const dv_queue *q, bool topic, char path[PATH_MAX]) {
    int len = snprintf(path, PATH_MAX, "%s/consumequeue/%s", d->dv_into, q->qu_topic);
    if (!topic && len < PATH_MAX) snprintf(path + len, (size_t)(PATH_MAX - len), "/%d", q->qu_id);
}

/* Opens the file of a queue that begins at byte `base`, of its full size; other parts may make it
 * at the same time. A descriptor or an error code. The folder above the topics is never made: a
 * task of a run that was abandoned must not bring it back. */
static int file_open(const ps_derive *d, const dv_queue *q, int64_t base, ps_error *e) {
    char path[PATH_MAX + 32], folder[PATH_MAX];
    ps_io *io = d->dv_io;
    struct stat st;
    int fd, flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    folder_of(d, q, false, folder);
    snprintf(path, sizeof path, "%s/%020" PRId64, folder, base);
    fd = io->open(io, path, flags, io->file_mode);
    if (fd < 0 && errno == ENOENT) {
        folder_of(d, q, true, folder);
        io->mkdir(io, folder, io->folder_mode);
        folder_of(d, q, false, folder);
        io->mkdir(io, folder, io->folder_mode);
        fd = io->open(io, path, flags, io->file_mode);
    }
    bool sized = fd >= 0 && io->fstat(io, fd, &st) == 0 &&
                 (st.st_size >= d->dv_conf.consumequeue_file_size ||
                  io->ftruncate(io, fd, d->dv_conf.consumequeue_file_size) == 0);
    if (sized) return fd;
    int err = errno;
    if (fd >= 0) io->close(io, fd);
    return ps_fail(e, ps_errno_code(err), err, -1, path, "cannot make a file of the queue");
}

static int write_all(const ps_derive *d, int fd, const uint8_t *p, int64_t len, int64_t at,
                     const dv_queue *q, ps_error *e) {
    while (len > 0) {
        ssize_t done = d->dv_io->pwrite(d->dv_io, fd, p, (size_t)len, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            int err = done < 0 ? errno : EIO;
            char folder[PATH_MAX];
            folder_of(d, q, false, folder);
            return ps_fail(e, ps_errno_code(err), err, -1, folder, "cannot write to the queue");
        }
        p += done;
        at += done;
        len -= done;
    }
    return 0;
}

/* Writes the bytes of units from queue offset `offset` on, all of one file or more. */
static int put_units(const ps_derive *d, const dv_queue *q, int64_t offset, const uint8_t *units,
                     int64_t count, ps_error *e) {
    int64_t size = d->dv_conf.consumequeue_file_size, at = offset * PS_UNIT, len = count * PS_UNIT;
    int code = 0;
    while (len > 0 && code == 0) {
        int64_t into = at % size, part = len < size - into ? len : size - into;
        int fd = file_open(d, q, at - into, e);
        if (fd < 0) return fd;
        code = write_all(d, fd, units, part, into, q, e);
        d->dv_io->close(d->dv_io, fd);
        units += part;
        at += part;
        len -= part;
    }
    return code;
}

static int flush_units(const ps_derive *d, dv_queue *q, ps_error *e) {
    int code = put_units(d, q, q->qu_end - q->qu_count, q->qu_units, q->qu_count, e);
    if (code == 0) q->qu_count = 0;
    return code;
}

/* ---- units ---- */

static bool is_of(const dv_queue *q, const ps_record *r) {
    return q->qu_id == r->queue_id && q->qu_topic_len == r->topic_len &&
           memcmp(q->qu_topic, r->topic, (size_t)r->topic_len) == 0;
}

/* NULL: no memory. */
static dv_queue *queue_add(ps_derive *d, const uint8_t *topic, int32_t topic_len, int32_t id) {
    bool room = PS_GROW(d->dv_queues, d->dv_queue_room, d->dv_queue_count + 1, 64) &&
                ps_chains_reserve(&d->dv_table);
    dv_queue *q = room ? calloc(1, sizeof *q + (size_t)topic_len + 1) : NULL;
    if (q == NULL) return NULL;
    q->qu_id = id;
    q->qu_topic_len = topic_len;
    memcpy(q->qu_topic, topic, (size_t)topic_len);
    ps_chains_add(&d->dv_table, q, ps_queue_hash(topic, topic_len, id));
    return d->dv_queues[d->dv_queue_count++] = q;
}

/* *out: NULL where the record's offset cannot be. */
static int queue_of(ps_derive *d, const ps_record *r, dv_queue **out, ps_error *e) {
    dv_queue *q = d->dv_recent;
    if (q == NULL || !is_of(q, r)) {
        q = ps_chains_first(&d->dv_table, ps_queue_hash(r->topic, r->topic_len, r->queue_id));
        while (q != NULL && !is_of(q, r)) q = ps_chains_next(q);
    }
    if (q == NULL) {
        if (r->queue_offset < 0 ||
            r->queue_offset > ps_queue_most(r->topic_len, r->physical_offset)) {
            *out = NULL;
            return 0;
        }
        q = queue_add(d, r->topic, r->topic_len, r->queue_id);
        if (q == NULL)
            return ps_no_memory(e, NULL, "no memory for a queue that is made from the log");
        q->qu_first = q->qu_end = r->queue_offset;
    }
    *out = d->dv_recent = q;
    return 0;
}

/* Room for one more unit. */
static int make_room(const ps_derive *d, dv_queue *q, ps_error *e) {
    if (q->qu_count < q->qu_room) return 0;
    if (q->qu_room == UNITS_MOST) return flush_units(d, q, e);
    int32_t room = q->qu_room > 0 ? q->qu_room * 2 : UNITS_FIRST;
    uint8_t *more = realloc(q->qu_units, (size_t)room * PS_UNIT);
    if (more == NULL) return ps_no_memory(e, NULL, "no memory for the units of a queue");
    q->qu_units = more;
    q->qu_room = room;
    return 0;
}

static int take_unit(void *arg, const ps_record *r, ps_error *e) {
    ps_derive *d = arg;
    dv_queue *q = NULL;
    if (!ps_record_has_unit(r)) return 1;
    if (!ps_record_names_queue(r)) return 0;
    int code = queue_of(d, r, &q, e);
    if (code < 0) return code;
    if (q == NULL || r->queue_offset != q->qu_end) return 0;
    if ((code = make_room(d, q, e)) < 0) return code;
    const ps_unit u = {r->physical_offset, r->size, ps_record_tags_code(r, &d->dv_levels)};
    ps_unit_put(q->qu_units + q->qu_count++ * PS_UNIT, &u);
    q->qu_end++;
    return 1;
}

int ps_derive_units(ps_derive *d, const char *path, int64_t base, int64_t size, int32_t last,
                    ps_error *e) {
    return dv_walk(d, path, base, size, last != 0, take_unit, d, e);
}

/* ---- the disk ---- */

static int sync_queue(const ps_derive *d, const dv_queue *q, ps_error *e) {
    int64_t size = d->dv_conf.consumequeue_file_size, end = q->qu_end * PS_UNIT;
    char folder[PATH_MAX];
    for (int64_t base = q->qu_first * PS_UNIT / size * size; base < end; base += size) {
        int fd = file_open(d, q, base, e);
        if (fd < 0) return fd;
        int err = d->dv_io->fdatasync(d->dv_io, fd) < 0 ? errno : 0;
        d->dv_io->close(d->dv_io, fd);
        folder_of(d, q, false, folder);
        if (err != 0)
            return ps_fail(e, PS_E_FLUSH_FAILED, err, -1, folder, "cannot sync the queue");
    }
    int code = ps_sync_folder(d->dv_io, folder, e);
    folder_of(d, q, true, folder);
    return code < 0 ? code : ps_sync_folder(d->dv_io, folder, e);
}

int ps_derive_sync(ps_derive *d, ps_error *e) {
    int code = 0;
    for (int32_t i = 0; i < d->dv_queue_count && code == 0; i++)
        code = flush_units(d, d->dv_queues[i], e);
    if (code == 0 && d->dv_queue_count > PS_SYNC_ONE_BY_ONE && d->dv_folder >= 0)
        return ps_sync_disk(d->dv_io, d->dv_folder, d->dv_into, e);
    for (int32_t i = 0; i < d->dv_queue_count && code == 0; i++)
        code = sync_queue(d, d->dv_queues[i], e);
    return code;
}

int ps_derive_queue_get(const ps_derive *d, int32_t i, ps_derive_queue *out) {
    if (i < 0 || i >= d->dv_queue_count) return 0;
    const dv_queue *q = d->dv_queues[i];
    *out = (ps_derive_queue){q->qu_first, q->qu_end, q->qu_id, q->qu_topic_len, {0}};
    memcpy(out->topic, q->qu_topic, (size_t)q->qu_topic_len);
    return 1;
}

int ps_derive_begin(ps_derive *d, const char *topic, int32_t topic_len, int32_t queue_id,
                    int64_t first, ps_error *e) {
    static const ps_unit none = {0, PS_UNIT_NONE, 0};
    int64_t per_file = d->dv_conf.consumequeue_file_size / PS_UNIT;
    dv_queue *q = queue_add(d, (const uint8_t *)topic, topic_len, queue_id);
    if (q == NULL) return ps_no_memory(e, NULL, "no memory for a queue that is made from the log");
    q->qu_end = q->qu_first = first - first % per_file;
    for (int code; q->qu_end < first; q->qu_end++) {
        if ((code = make_room(d, q, e)) < 0) return code;
        ps_unit_put(q->qu_units + q->qu_count++ * PS_UNIT, &none);
    }
    return 0;
}
